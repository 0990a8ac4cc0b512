"""A Delta table's columns: made, added, widened; old rows given the default of a new column.

A default goes into old rows by an UPDATE after the ADD COLUMN. What is still to be filled stands in a
table property, written before the column is added, so that a crash between the two heals: whoever
opens, claims or evolves the table next fills first. The UPDATE carries a transaction version of the
holder's epoch, as each claim does, so that a worker which lost the table cannot fill over newer rows; nor
does it leave others a default to fill, since the property is set by a commit that carries one as well.
"""

# ruff: noqa: S608  every name and text in a statement is quoted by identifier.py
from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

from tidesink.errors import StaleProgressError, TargetError
from tidesink.sinks.evolve import Evolution, default_texts
from tidesink.sinks.shape import TableShape
from tidesink.sinks.targets import spark_tables
from tidesink.sinks.targets.base import SEQUENCE_COLUMN, SEQUENCE_DDL, SOFT_DELETE_COLUMN, ReducedBatch
from tidesink.sinks.targets.delta_log import DeltaLog
from tidesink.sinks.targets.delta_session import transaction
from tidesink.sinks.targets.identifier import quote_identifier, quote_text
from tidesink.sinks.targets.shape_checks import Reserved, check_shape
from tidesink.sinks.targets.spark_tables import SEQUENCE_COMMENT, column_words, literal, soft_delete_column

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructField

# Where Spark keeps the CHAR or VARCHAR that a column was made with.
_CHARACTERS: Final = "__CHAR_VARCHAR_TYPE_STRING"
BACKFILL_APPLICATION: Final = "tidesink.backfill"
BACKFILL_PROPERTY: Final = "tidesink.backfill"

# Reader 3, writer 7. Column mapping by name lets any column name stand.
TABLE_PROPERTIES: Final[Mapping[str, str]] = {
    "delta.columnMapping.mode": "name",
    "delta.enableDeletionVectors": "true",
    "delta.enableTypeWidening": "true",
    # Delta refuses to add a column of this type later to a table made without it.
    "delta.feature.timestampNtz": "supported",
    "delta.checkpointInterval": "20",
}

# Names of Spark and of Delta's MERGE (4.3): the target's column of the same name makes it ambiguous.
RESERVED: Final = Reserved("Delta", frozenset({"_metadata", "_row_dropped_", "_source_row_present_"}))


def check(shape: TableShape) -> None:
    """Refuse a shape of which Delta can make no table; raises SchemaRefusedError."""
    check_shape(shape, RESERVED)


def create_statement(location: str, shape: TableShape, *, soft_deletes: bool) -> str:
    """The CREATE TABLE of a shape; ``location`` is the quoted table."""
    return spark_tables.create_statement(
        location, shape, provider="delta", properties=TABLE_PROPERTIES, soft_deletes=soft_deletes
    )


def present_columns(log: DeltaLog) -> dict[str, str]:
    """The latest version's columns by name, as Spark DDL types."""
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(json.loads(log.schema()))
    return {field.name: _ddl(field) for field in schema.fields}


def _ddl(field: StructField) -> str:
    """The type of a column; a ``char(n)``, to Delta a string, puts spaces at the end of texts."""
    said = str((field.metadata or {}).get(_CHARACTERS, ""))
    return said if said.startswith("char") else field.dataType.simpleString()


def nullable_columns(log: DeltaLog) -> tuple[str, ...]:
    """The latest version's columns that can be set to NULL: Delta writes a generated one by itself."""
    fields = json.loads(log.schema())["fields"]
    return tuple(field["name"] for field in fields if field["nullable"] and not _generated(field["metadata"]))


def _generated(metadata: Collection[str]) -> bool:
    return any(name.startswith(("delta.generationExpression", "delta.identity.")) for name in metadata)


def check_partitions(parts: Collection[str], batch: ReducedBatch) -> None:
    """Refuse an empty text in a column that the table is partitioned by: Delta gives it back as NULL.

    ``parts`` are the names of those columns in lower case.

    Raises: TargetError.
    """
    from pyspark.sql import functions as F  # noqa: N812  (PySpark's own name for it)

    for column in batch.shape.columns:
        if column.name.lower() in parts and column.spark in ("string", "binary") and batch.frame is not None:
            value = F.col("key" if column.key else "after").getField(column.name)
            if not batch.frame.where(F.length(value) == 0).isEmpty():
                raise TargetError(
                    f"a row has an empty text in {column.name}, which the table is partitioned by, where "
                    "Delta keeps none: it would be NULL, and nothing was written. Partition the table by "
                    "another column",
                    table=str(batch.shape.source),
                    column=column.name,
                )


def open_table(
    session: SparkSession, log: DeltaLog, location: str, *, shape: TableShape, soft_deletes: bool
) -> bool:
    """Make the table where it is missing; whether it was."""
    if not log.exists:
        check(shape)  # a table that is there may never get the columns it lacks
        session.sql(create_statement(location, shape, soft_deletes=soft_deletes))
        return True
    if soft_deletes and SOFT_DELETE_COLUMN not in present_columns(log):
        session.sql(spark_tables.soft_delete_statement(location))
    return False


def sequence_statement(location: str, present: Mapping[str, str]) -> str:
    """Adds the columns of the source's order; NULL in old rows: older than every change that comes."""
    columns = [f"{quote_identifier(SEQUENCE_COLUMN)} {SEQUENCE_DDL} COMMENT {quote_text(SEQUENCE_COMMENT)}"]
    if SOFT_DELETE_COLUMN not in present:
        columns.append(soft_delete_column())
    return f"ALTER TABLE {location} ADD COLUMNS ({', '.join(columns)})"


def evolve_table(
    session: SparkSession, log: DeltaLog, location: str, *, shape: TableShape, plan: Evolution, epoch: int
) -> tuple[str, ...]:
    """Carry out a plan; the warnings. Defaults are left pending for ``fill_pending``.

    Raises:
        StaleProgressError: another worker has claimed the table since.
    """
    widen_columns(session, location, plan)
    if not plan.added:
        return ()
    defaults, warnings = default_texts(plan.added, shape)
    if defaults:
        _set_pending(log, {**pending_defaults(log), **defaults}, epoch=epoch)
    add_columns(session, location, plan)
    return warnings


def widen_columns(session: SparkSession, location: str, plan: Evolution) -> None:
    """Change the types that a plan widens."""
    for name, ddl in plan.widened.items():
        session.sql(f"ALTER TABLE {location} ALTER COLUMN {quote_identifier(name)} TYPE {ddl}")


def add_columns(session: SparkSession, location: str, plan: Evolution) -> None:
    """Add the columns of a plan; NULL in old rows."""
    if plan.added:
        columns = ", ".join(column_words(column) for column in plan.added)
        session.sql(f"ALTER TABLE {location} ADD COLUMNS ({columns})")


def pending_defaults(log: DeltaLog) -> dict[str, str]:
    """Columns whose old rows still lack their default, with the default's literal text."""
    text = log.property(BACKFILL_PROPERTY)
    return json.loads(text) if text else {}


def fill_pending(session: SparkSession, log: DeltaLog, location: str, *, epoch: int) -> tuple[str, ...]:
    """Give old rows the defaults still pending; the columns filled.

    A column which is not there belongs to an evolution that was cut off before it: it comes again with
    its batch, so it is only forgotten here.

    Raises:
        StaleProgressError: another worker has claimed the table since.
    """
    pending = pending_defaults(log)
    if not pending:
        return ()
    present = present_columns(log)
    filled = {name: text for name, text in pending.items() if name in present}
    if filled and log.file_count():
        sets = ", ".join(
            f"{quote_identifier(name)} = {literal(text, present[name])}" for name, text in filled.items()
        )
        with transaction(session, BACKFILL_APPLICATION, log.next_version(epoch)):
            updated = session.sql(f"UPDATE {location} SET {sets}").collect()
        if not updated:  # of what Delta skips it counts nothing, not even 0 rows
            raise _lost(log)
    _set_pending(log, {}, epoch=epoch)
    return tuple(filled)


def _set_pending(log: DeltaLog, pending: Mapping[str, str], *, epoch: int) -> None:
    what = "still to be given" if pending else "given"
    text, words = json.dumps(pending) if pending else None, f"defaults that rows from before are {what}"
    if not log.put_property(
        BACKFILL_APPLICATION, log.next_version(epoch), BACKFILL_PROPERTY, text, words=words
    ):
        raise _lost(log)


def _lost(log: DeltaLog) -> StaleProgressError:
    return StaleProgressError(
        f"another worker claimed the Delta table at {log.path} while this one added columns to it: this one "
        "must stop"
    )
