"""Code that Delta and Iceberg share: table locations, SQL statements, and each table's Spark session."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import unquote, urlsplit

from tidesink.config.targets import scheme_of
from tidesink.errors import ConfigError, SchemaRefusedError, TargetError
from tidesink.events import TableId, fold_name, folding
from tidesink.sinks.spark.errors import said
from tidesink.sinks.targets.base import SOFT_DELETE_COLUMN
from tidesink.sinks.targets.sharing import path_segment, quote_identifier, quote_text
from tidesink.typemap.target_schema import TargetColumn, TargetSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidesink.sinks.targets.base import ReducedBatch


# Longest folder name in bytes, in the file systems of Linux, Hadoop and Azure.
LONGEST_FOLDER: Final = 255
# Texts in the errors of Linux, HDFS, and the databases of catalogs for a name that is too long. Java's local
# file system only reports a missing folder, for which the last two alternatives are the texts of Delta and
# Hadoop.
_TOO_LONG: Final = re.compile(
    r"name (is )?too long|NAMETOOLONG|ComponentTooLong|too long for (type|column)"
    r"|Cannot create file:/|Mkdirs failed to create",
    re.IGNORECASE,
)
_REMEDY: Final = "Set {} to a directory that the worker's user may write to, or create it."


def table_path(root: str, template: str, table: TableId) -> str:
    """Return the path of a source table's target table under ``root``, by a template like
    ``{schema}/{table}``.
    """
    relative_path = template.format(schema=path_segment(table.schema), table=path_segment(table.name))
    return f"{root.rstrip('/')}/{relative_path}"


def table_names(template: str, table: TableId) -> tuple[str, ...]:
    """Return the parts of a table's name in a catalog, from a template such as ``{schema}.{table}``.

    Source names are encoded as path segments, including their dots, because catalogs use the parts as folder
    names and join them with dots.
    """
    schema, name = (path_segment(part).replace(".", "~2e") for part in table)
    return tuple(level.format(schema=schema, table=name) for level in template.split("."))


@contextmanager
def long_names_refused(names: Iterable[str], table: TableId) -> Iterator[None]:
    """Convert an error inside the block to SchemaRefusedError, if its cause is a folder name that is too
    long.

    Other errors are not changed. Names are not checked in advance, because object stores allow any length.

    ``names``: the table's folder names.

    Raises:
        SchemaRefusedError: a folder name is too long. The message has the name.
    """
    try:
        yield
    except SchemaRefusedError:
        raise
    except TargetError as error:
        sizes = {name: len(name.encode("utf-8", "surrogatepass")) for name in names}
        name = max(sizes, key=sizes.__getitem__)
        if sizes[name] <= LONGEST_FOLDER or not _TOO_LONG.search(said(error)):
            raise
        raise SchemaRefusedError(
            f"The table cannot be created: the name of its folder {name!r} has {sizes[name]} bytes, but "
            f"file systems allow at most {LONGEST_FOLDER}. Rename the table at the source, or set "
            "target.table to a shorter template.",
            table=str(table),
        ) from error


def try_path(path: str, *, setting: str = "target.path") -> str:
    """Check that a lake's local path can be listed and written to, and return the result as text for display.

    A temporary file is written in the path, or in its nearest existing parent directory. A path in another
    file system is not tried, because only Spark with the worker's jars can open it.

    ``setting``: the config setting with the path, for the message.

    Raises:
        ConfigError: the path cannot be listed or written to. The message has the system's reason.
    """
    scheme = "file" if path.startswith("file:") else scheme_of(path)
    if scheme not in ("", "file"):
        return f"{path} is not checked here: the worker opens {scheme} through Spark when it starts"
    root = Path(unquote(urlsplit(path).path) if scheme else path)
    try:
        there = next(folder for folder in (root, *root.parents) if folder.exists())
        tables = sum(1 for entry in there.iterdir() if entry.is_dir())
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"tidesink")
    except OSError as error:
        raise ConfigError(
            f"{setting} {root} cannot be used ({error.strerror}). {_REMEDY.format(setting)}"
        ) from error
    if there != root:
        return f"{root} does not exist yet and is created by the first batch: {there} can be written to"
    return f"{root} can be written to, and holds {tables} directories"


def try_path_of(session: SparkSession, path: str, *, setting: str = "target.path") -> None:
    """Check a lake's path with ``try_path`` when a worker starts, if Spark opens it on the local disk.

    Raises:
        ConfigError: the path cannot be listed or written to. The message has the system's reason.
    """
    java: Any = session.sparkContext._jsc
    usual = str(java.hadoopConfiguration().get("fs.defaultFS") or "file:")
    if path.startswith("file:") or (not scheme_of(path) and usual.startswith("file:")):
        try_path(path, setting=setting)


SOFT_DELETE_COMMENT: Final = "true: the row was deleted at the source"
SEQUENCE_COMMENT: Final = "position of the row's last change in the source's log"


def create_statement(
    location: str,
    shape: TargetSchema,
    *,
    provider: Literal["delta", "iceberg"],
    properties: Mapping[str, str],
    soft_deletes: bool,
) -> str:
    """Return the CREATE TABLE statement for a table with the columns of ``shape``.

    ``location``: the table's quoted name.
    """
    columns = [column_words(column) for column in shape.columns]
    if soft_deletes:
        columns.append(soft_delete_column())
    listed = ", ".join(f"{quote_text(k)} = {quote_text(v)}" for k, v in properties.items())
    comment = quote_text(f"{shape.table}, kept by tidesink")
    return (
        f"CREATE TABLE IF NOT EXISTS {location} ({', '.join(columns)}) USING {provider} "
        f"COMMENT {comment} TBLPROPERTIES ({listed})"
    )


def check_names(shape: TargetSchema, present: Iterable[str] = ()) -> None:
    """Check that Spark distinguishes all names among the columns of ``shape`` and the target's columns
    ``present``.

    Raises:
        SchemaRefusedError: two names are different at the source but the same in Spark.
    """
    there, columns = tuple(present), tuple(column.name for column in shape.columns)
    fold = folding(there, columns)
    names = {fold(name): name for name in there}
    for name in columns:
        names.setdefault(fold(name), name)
    spark_names: dict[str, str] = {}
    for name in names.values():
        other = spark_names.setdefault(_spark_name(name), name)
        if other != name:
            raise SchemaRefusedError(
                f"The columns {other} and {name} have the same upper case, so they are the same column in "
                "Spark. Exclude one of them (`except_column_list`), or give it another name at the target "
                "(`rename`).",
                table=str(shape.table),
                column=name,
            )


def _spark_name(name: str) -> str:
    """Return a name in the form in which Spark compares names: each character in upper, then in lower case.

    Spark uses Java's ``equalsIgnoreCase``. TiDB only converts to lower case, so it distinguishes some
    characters that have the same upper case: ς and σ, ı and i, ſ and s, µ and μ.
    """
    if name.isascii():
        return name.lower()
    # Java leaves a character unchanged if its upper case has several characters.
    upper = (raised if len(raised := character.upper()) == 1 else character for character in name)
    return fold_name("".join(upper))


def soft_delete_statement(location: str) -> str:
    """Return the statement that adds the soft-delete column.

    Existing rows get NULL, which means not deleted.
    """
    return f"ALTER TABLE {location} ADD COLUMNS ({soft_delete_column()})"


def soft_delete_column() -> str:
    """Return the definition of the soft-delete column for CREATE or ALTER TABLE."""
    return f"{quote_identifier(SOFT_DELETE_COLUMN)} boolean COMMENT {quote_text(SOFT_DELETE_COMMENT)}"


def column_words(column: TargetColumn) -> str:
    """Return the definition of a column for CREATE or ALTER TABLE: name, type, NOT NULL and comment."""
    # A key column is NOT NULL, because a row with a null key never matches and would be inserted again by
    # each batch.
    null = " NOT NULL" if column.key else ""
    return f"{quote_identifier(column.name)} {column.spark}{null} COMMENT {quote_text(column.comment)}"


def literal(text: str, ddl: str) -> str:
    """Return a SQL expression of the Spark type ``ddl`` for a value given as text (bytes as hex digits)."""
    if ddl == "binary":
        return f"unhex({quote_text(text)})"
    return quote_text(text) if ddl == "string" else f"CAST({quote_text(text)} AS {ddl})"


_APPLICATION: Final = "spark.databricks.delta.write.txnAppId"
_VERSION: Final = "spark.databricks.delta.write.txnVersion"

# Measured in docs/adr/0006-delta-small-batches.md.
SESSION_SETTINGS: Final[Mapping[str, str]] = {
    # Delta computes a snapshot's state for each version. Its default of 50 partitions costs more than it
    # saves.
    "spark.databricks.delta.snapshotPartitions": "2",
    # The batch's frame is already persisted, so MERGE need not copy it.
    "spark.databricks.delta.merge.materializeCachedSource": "false",
    # OPTIMIZE compacts files below 64 MiB into files of up to 128 MiB.
    "spark.databricks.delta.optimize.minFileSize": "67108864",
    "spark.databricks.delta.optimize.maxFileSize": "134217728",
    "spark.databricks.delta.autoCompact.enabled": "false",
    # Up to this number of files, a commit's checksum lists all of them (1 to 2 KB each). A batch that is
    # written as files is then planned without a Spark job.
    "spark.databricks.delta.allFilesInCrc.thresholdNumFiles": "500",
}
# A batch of up to this many rows is shuffled into one partition, which needs fewer tasks and creates only one
# file.
SMALL_BATCH: Final = 10_000
_ARROW_ROWS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_MATERIALIZE: Final = "spark.databricks.delta.merge.materializeSource"
_BROADCAST: Final = "spark.sql.autoBroadcastJoinThreshold"
_MEASURED_BROADCAST: Final = "spark.sql.adaptive.autoBroadcastJoinThreshold"
_PARTITIONS: Final = "spark.sql.shuffle.partitions"


def open_session(spark: SparkSession, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Return a new Spark session for a table.

    Its settings are those of the Spark context, then ``SESSION_SETTINGS``, then ``settings``.
    """
    session = spark.newSession()
    _know_settings(session)
    for name, value in {**SESSION_SETTINGS, **(settings or {})}.items():
        session.conf.set(name, value)
    return session


@contextmanager
def transaction(session: SparkSession, application: str, version: int) -> Iterator[None]:
    """Give all Delta writes of ``session`` inside the block a transaction version.

    Delta stores the version with the commit. It silently skips a write whose version is not above the stored
    one.

    ``application``: the application id under which Delta stores the version.
    """
    session.conf.set(_APPLICATION, application)
    session.conf.set(_VERSION, str(version))
    try:
        yield
    finally:
        session.conf.unset(_APPLICATION)
        session.conf.unset(_VERSION)


@contextmanager
def partitions_for(session: SparkSession, rows: int) -> Iterator[None]:
    """Make the Spark session use one shuffle partition inside the block, if the batch has few rows."""
    usual = session.conf.get(_PARTITIONS) or "200"
    if rows <= SMALL_BATCH:
        session.conf.set(_PARTITIONS, "1")
    try:
        yield
    finally:
        session.conf.set(_PARTITIONS, usual)


@contextmanager
def source_of(session: SparkSession, batch: ReducedBatch) -> Iterator[None]:
    """Let a MERGE of ``session`` inside the block read a checkpointed batch without copying it.

    MERGE reads its source twice. Delta copies the source first, because both reads must return the same rows.
    A checkpoint guarantees this without a copy, because Spark never computes its stored blocks again. If
    blocks are lost with an executor, the statement fails before its commit, and the batch is read from Kafka
    again.
    """
    large = batch.upserts + batch.deletes > SMALL_BATCH
    settings = {_MATERIALIZE: "none"} if batch.checkpointed else {}
    if batch.checkpointed and large:
        # Spark underestimates the size of a checkpoint, and would broadcast it. The size that it measures
        # while the statement runs is right.
        settings |= {_BROADCAST: "-1", _MEASURED_BROADCAST: "10MB"}
    usual = {name: session.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, before in usual.items():
            if before is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, before)


@contextmanager
def arrow_batches_of_rows(session: SparkSession) -> Iterator[None]:
    """Use large Arrow batches when rows of ``session`` are passed to Python tasks inside the block.

    The session's own setting is small, because it is made for payloads of some MiB per row.
    """
    usual = session.conf.get(_ARROW_ROWS)
    session.conf.set(_ARROW_ROWS, "10000")
    try:
        yield
    finally:
        session.conf.set(_ARROW_ROWS, str(usual))


def _know_settings(session: SparkSession) -> None:
    """Make Delta register all its settings in Spark, so that they can be set.

    Without this, setting one could fail (CANNOT_MODIFY_CONFIG) while another table's thread is the first to
    use Delta.
    """
    jvm: Any = session._jvm
    getattr(getattr(jvm.org.apache.spark.sql.delta.sources, "DeltaSQLConf$"), "MODULE$")
