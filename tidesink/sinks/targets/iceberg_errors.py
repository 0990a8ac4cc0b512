"""Spark's and Iceberg's exceptions as tidesink's, by Java class and never by text.

A batch is staged on a branch that nobody reads, and becomes visible by one commit of the table's metadata:
whatever fails before that commit has written nothing.
"""

from __future__ import annotations

from typing import Final

from tidesink.errors import CommitUnknownError, ConfigError, TargetError, TidesinkError, TransientTargetError
from tidesink.sinks.spark.task_errors import task_error
from tidesink.sinks.targets.spark_errors import class_names, row_not_stored, summary

_ICEBERG: Final = "org.apache.iceberg.exceptions."
# Another commit came first, and ours did not happen.
CONFLICT: Final = f"{_ICEBERG}CommitFailedException"
# The catalog cannot be used as things are: a class or a file system is missing, or a right.
_UNUSABLE: Final = frozenset(
    {
        "java.lang.ClassNotFoundException",
        "org.apache.hadoop.fs.UnsupportedFileSystemException",
        "org.apache.hadoop.security.AccessControlException",
        "java.nio.file.AccessDeniedException",
        f"{_ICEBERG}NotAuthorizedException",
        f"{_ICEBERG}ForbiddenException",
    }
)
# The same batch would fail again.
_FOR_GOOD: Final = frozenset(
    {
        "org.apache.spark.sql.AnalysisException",
        "org.apache.spark.SparkRuntimeException",
        "org.apache.spark.SparkArithmeticException",
        "org.apache.spark.SparkNumberFormatException",
        "org.apache.spark.SparkDateTimeException",
        "java.lang.NullPointerException",
    }
)


def staging_error(exc: BaseException, *, table: str) -> TidesinkError:
    """The error to raise for an exception of Spark while rows were staged: nothing is visible of them."""
    # Where rows cannot be read the job ends before anything is committed.
    refused = row_not_stored(exc) or task_error(exc)
    if refused is not None:
        return refused.with_context(table=table)
    if _FOR_GOOD.intersection(class_names(exc)):
        return TargetError(
            f"Iceberg does not take the batch, and nothing was written ({summary(exc)}): a row has no key, "
            "or the table was changed by another program",
            table=table,
        )
    return TransientTargetError(f"nothing was written, try again ({summary(exc)})", table=table)


def commit_error(exc: BaseException, *, table: str) -> TidesinkError:
    """The error to raise for an exception of the one commit that makes rows and progress visible."""
    if is_conflict(exc):
        return TransientTargetError("others commit to the table; nothing was written, try again", table=table)
    return CommitUnknownError(
        "the commit was cut off and may have happened: ask for the committed progress first "
        f"({summary(exc)})",
        table=table,
    )


def reading_error(exc: BaseException, *, table: str | None) -> TidesinkError:
    """The error to raise for an exception of Spark while nothing was being written."""
    names = frozenset(class_names(exc))
    if _UNUSABLE & names:
        return ConfigError(
            f"target.catalog cannot be used ({summary(exc)}): has Spark the jars of the catalog and of its "
            "file system under spark.conf, and may this user read and write there?",
            table=table,
        )
    if "org.apache.spark.sql.AnalysisException" in names:
        return TargetError(f"Iceberg cannot read the table ({summary(exc)})", table=table)
    return TransientTargetError(f"the catalog or the table cannot be read now ({summary(exc)})", table=table)


def is_conflict(exc: BaseException) -> bool:
    """True where another commit came first, so that ours did not happen."""
    return CONFLICT in class_names(exc)
