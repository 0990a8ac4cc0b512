"""Spark's and Delta's exceptions as tidesink's, by Java class and never by text."""

from __future__ import annotations

from typing import Final

from tidesink.errors import CommitUnknownError, TargetError, TidesinkError, TransientTargetError
from tidesink.sinks.spark.task_errors import task_error
from tidesink.sinks.targets.spark_errors import SPARK_ERRORS, class_names, is_java, row_not_stored, summary

__all__ = ["SPARK_ERRORS", "is_java", "reading_error", "translated"]

# The path cannot be used as things are: no file system for its scheme, or no right to it.
_UNUSABLE_PATH: Final = frozenset(
    {
        "java.lang.ClassNotFoundException",
        "org.apache.hadoop.fs.UnsupportedFileSystemException",
        "org.apache.hadoop.security.AccessControlException",
        "java.nio.file.AccessDeniedException",
    }
)

# Delta's conflicts are all Java ConcurrentModificationExceptions.
# Java class (or superclass) anywhere in the chain of causes -> our class. The first row that matches wins.
_CLASSES: Final[tuple[tuple[str, type[TidesinkError], str], ...]] = (
    (
        "java.util.ConcurrentModificationException",
        TransientTargetError,
        "another writer committed to the table at the same time; nothing of this batch was written",
    ),
    (
        "org.apache.spark.sql.delta.schema.InvariantViolationException",
        TargetError,
        "a row of the batch has no key or breaks a constraint of the table, and nothing was written",
    ),
    (
        "org.apache.spark.sql.AnalysisException",
        TargetError,
        "Delta refuses the statement, and nothing was written; was the table changed by another program?",
    ),
)


def translated(exc: BaseException, *, table: str) -> TidesinkError:
    """The error to raise for an exception of Spark while a commit was under way.

    Classes that are known to come before the commit say so; after any other the commit may have happened.
    """
    names = tuple(class_names(exc))
    # Where rows cannot be read the job ends before anything is committed.
    refused = row_not_stored(exc) or task_error(exc)
    if refused is not None:
        return refused.with_context(table=table)
    short = summary(exc)
    for java_class, error, message in _CLASSES:
        if java_class in names:
            return error(f"{message} ({short})", table=table)
    return CommitUnknownError(
        f"the commit was cut off and may have happened: ask for the committed progress first ({short})",
        table=table,
    )


def reading_error(exc: BaseException, *, table: str) -> TidesinkError:
    """The error to raise for an exception of Spark while nothing was being written."""
    names = tuple(class_names(exc))
    if _UNUSABLE_PATH.intersection(names):
        return TargetError(
            f"target.path cannot be used ({summary(exc)}): has Spark the jars of its file system under "
            "spark.conf, and may this user write there?",
            table=table,
        )
    if "org.apache.spark.sql.AnalysisException" in names:
        return TargetError(f"Delta cannot read the table ({summary(exc)})", table=table)
    return TransientTargetError(f"the table cannot be read now ({summary(exc)})", table=table)
