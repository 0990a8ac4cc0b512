"""The schema of a Delta table, its catalog entry, and its compaction."""

# ruff: noqa: S608  every name and text in a statement is quoted by targets/sharing.py

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final

import structlog
from pyspark.errors import PySparkException

from tidesink.errors import ConfigError, StaleProgressError
from tidesink.events import TableId, fold_name
from tidesink.sinks.spark.errors import SPARK_ERRORS
from tidesink.sinks.targets.base import (
    SEQUENCE_COLUMN,
    SEQUENCE_DDL,
    SOFT_DELETE_COLUMN,
    Limit,
    PreflightResult,
    ReducedBatch,
    Reserved,
    check_shape,
)
from tidesink.sinks.targets.column_changes import Evolution, default_texts
from tidesink.sinks.targets.delta.file_format import NULL_FOLDER, check_text
from tidesink.sinks.targets.delta.log import DeltaLog, reading_error
from tidesink.sinks.targets.lake import tables as lake_tables
from tidesink.sinks.targets.lake.batches import LakePreflight
from tidesink.sinks.targets.lake.tables import (
    SEQUENCE_COMMENT,
    column_words,
    literal,
    soft_delete_column,
    table_names,
    transaction,
)
from tidesink.sinks.targets.sharing import quote_identifier, quote_path, quote_text
from tidesink.typemap.target_schema import ShapeColumn, TableShape

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructField

    from tidesink.config import Config
    from tidesink.config.fields import ChangeKind


_log = structlog.get_logger("tidesink.delta")
# Metadata key under which Spark stores the CHAR or VARCHAR type of a column.
_CHARACTERS: Final = "__CHAR_VARCHAR_TYPE_STRING"
# Metadata keys of a column that Delta computes.
GENERATED: Final = ("delta.generationExpression", "delta.identity.")
BACKFILL_APPLICATION: Final = "tidesink.backfill"
BACKFILL_PROPERTY: Final = "tidesink.backfill"

# Reader 3, writer 7. New tables need only one reader feature, deletion vectors, which every batch uses.
TABLE_PROPERTIES: Final[Mapping[str, str]] = {
    "delta.enableDeletionVectors": "true",
    "delta.checkpointInterval": "20",
}
# Feature that a table may need later -> the property that enables it.
_GIVEN_BY: Final[Mapping[str, tuple[str, str]]] = {
    "columnMapping": ("delta.columnMapping.mode", "name"),
    "typeWidening": ("delta.enableTypeWidening", "true"),
    "timestampNtz": ("delta.feature.timestampNtz", "supported"),
}
# Values of such a property in a table without the feature.
_WITHOUT: Final = (None, "none", "false")
# Characters in a column name that need column mapping (Delta's ``invalidColumnNameChars``).
_MAPPED: Final = frozenset(" ,;{}()\n\t=")
_UNREAD: Final = (
    "the table needs readers that support the feature {}, such as Spark with Delta 4. delta-rs, Polars and "
    "DataFusion refuse it"
)
_NAMED_ODDLY: Final = (
    f"A column has a space or one of ,;{{}}()= in its name: {_UNREAD.format('columnMapping')}."
)
CAVEATS: Final[Mapping[ChangeKind, str]] = {
    "widen": (
        f"Once a column is widened, {_UNREAD.format('typeWidening')}. "
        "Set `schema-changes: widen: pause` to wait before that."
    ),
    "rename": f"Once a column is renamed, {_UNREAD.format('columnMapping')}.",
    "drop": f"Once a column is dropped, {_UNREAD.format('columnMapping')}.",
}

# Names used by Spark and by Delta's MERGE (4.3). A target column of the same name makes them ambiguous.
RESERVED: Final = Reserved("Delta", frozenset({"_metadata", "_row_dropped_", "_source_row_present_"}))


class DeltaPreflight(LakePreflight):
    """Checks of Delta tables, including column names that limit who can read the table."""

    def foresee(self, config: Config, shape: TableShape) -> PreflightResult:
        """Check the table as for any lake, and return the limits."""
        found = super().foresee(config, shape)
        mapped = tuple(column.name for column in shape.columns if _needs_mapping(column))
        readers = (Limit("readers", _NAMED_ODDLY, mapped),) if mapped else ()
        return found._replace(limits=(*found.limits, *readers))


def check(shape: TableShape, present: Iterable[str] = ()) -> None:
    """Refuse a shape for which Delta cannot create a table, or that conflicts with ``present`` columns.

    Raises:
        SchemaRefusedError: names the column.
    """
    check_shape(shape, RESERVED)
    lake_tables.check_names(shape, present)


def create_statement(
    location: str, shape: TableShape, *, soft_deletes: bool, properties: Mapping[str, str]
) -> str:
    """Return the CREATE TABLE of a shape; ``location`` is the quoted table."""
    given = {**TABLE_PROPERTIES, **dict(map(_GIVEN_BY.__getitem__, _named_by(shape.columns))), **properties}
    return lake_tables.create_statement(
        location, shape, provider="delta", properties=given, soft_deletes=soft_deletes
    )


def _named_by(columns: Iterable[ShapeColumn]) -> list[str]:
    """Return the features that column names need."""
    return ["columnMapping"] if any(map(_needs_mapping, columns)) else []


def _needs_mapping(column: ShapeColumn) -> bool:
    return not _MAPPED.isdisjoint(column.name)


def give_features(session: SparkSession, log: DeltaLog, location: str, features: Iterable[str]) -> None:
    """Enable missing features. This changes the table, and the readers that it needs, permanently."""
    for feature in features:
        name, value = _GIVEN_BY[feature]
        there = log.supports(feature) if value == "supported" else log.property(name) not in _WITHOUT
        if not there:
            setting = f"{quote_text(name)} = {quote_text(value)}"
            session.sql(f"ALTER TABLE {location} SET TBLPROPERTIES ({setting})")
            _log.warning("the Delta table needs other readers now", table=location, feature=feature)


def present_columns(log: DeltaLog) -> dict[str, str]:
    """Return the latest version's columns as Spark DDL types by name."""
    return columns_of(log.schema())


def columns_of(text: str) -> dict[str, str]:
    """Return the columns of a schema in Spark's JSON, as Spark DDL types by name."""
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(json.loads(text))
    return {field.name: _ddl(field) for field in schema.fields}


def _ddl(field: StructField) -> str:
    """Return a column's type. Delta stores ``char(n)`` as a string, but Spark pads its texts with spaces."""
    said = str((field.metadata or {}).get(_CHARACTERS, ""))
    return said if said.startswith("char") else field.dataType.simpleString()


def nullable_columns(log: DeltaLog) -> tuple[str, ...]:
    """Return the latest version's columns that can be set to NULL. Delta computes generated ones itself."""
    fields = json.loads(log.schema())["fields"]
    return tuple(field["name"] for field in fields if field["nullable"] and not _generated(field["metadata"]))


def _generated(metadata: Collection[str]) -> bool:
    return any(name.startswith(GENERATED) for name in metadata)


def check_partitions(parts: Collection[str], batch: ReducedBatch) -> None:
    """Refuse a text in a partition column that Delta would read back as NULL.

    ``parts``: names of the partition columns in lower case.

    Raises:
        TargetError: a row has such a text.
    """
    from pyspark.sql import functions as F  # noqa: N812  (PySpark's own name for it)

    for column in batch.shape.columns:
        if (
            fold_name(column.name) in parts
            and column.spark in ("string", "binary")
            and batch.frame is not None
        ):
            value = F.col("key" if column.key else "after").getField(column.name).cast("string")
            found = batch.frame.where(value.isin("", NULL_FOLDER)).select(value).first()
            if found is not None:
                check_text(found[0], column.name, table=str(batch.shape.source))


def open_table(
    session: SparkSession,
    log: DeltaLog,
    location: str,
    *,
    shape: TableShape,
    soft_deletes: bool,
    properties: Mapping[str, str],
) -> bool:
    """Create the table if missing. Returns True if it was created."""
    if not log.exists:
        check(shape)  # only here, because an existing table may never get the columns it lacks
        session.sql(create_statement(location, shape, soft_deletes=soft_deletes, properties=properties))
        return True
    if soft_deletes and SOFT_DELETE_COLUMN not in present_columns(log):
        session.sql(lake_tables.soft_delete_statement(location))
    return False


def sequence_statement(location: str, present: Mapping[str, str]) -> str:
    """Return the statement that adds the ordering columns. NULL in old rows: older than every change."""
    columns = [f"{quote_identifier(SEQUENCE_COLUMN)} {SEQUENCE_DDL} COMMENT {quote_text(SEQUENCE_COMMENT)}"]
    if SOFT_DELETE_COLUMN not in present:
        columns.append(soft_delete_column())
    return f"ALTER TABLE {location} ADD COLUMNS ({', '.join(columns)})"


def evolve_table(
    session: SparkSession, log: DeltaLog, location: str, *, shape: TableShape, plan: Evolution, epoch: int
) -> tuple[str, ...]:
    """Apply a plan and return warnings. Defaults stay pending for ``fill_pending``.

    Raises:
        StaleProgressError: another worker has claimed the table since.
    """
    widen_columns(session, log, location, plan)
    if not plan.added:
        return ()
    defaults, warnings = default_texts(plan.added, shape)
    if defaults:
        _set_pending(log, {**pending_defaults(log), **defaults}, epoch=epoch)
    add_columns(session, log, location, plan)
    return warnings


def widen_columns(session: SparkSession, log: DeltaLog, location: str, plan: Evolution) -> None:
    """Change the types that a plan widens."""
    give_features(session, log, location, ["typeWidening"] if plan.widened else [])
    for name, ddl in plan.widened.items():
        session.sql(f"ALTER TABLE {location} ALTER COLUMN {quote_identifier(name)} TYPE {ddl}")


def add_columns(session: SparkSession, log: DeltaLog, location: str, plan: Evolution) -> None:
    """Add the columns of a plan. Old rows get NULL."""
    if plan.added:
        instants = any(column.spark == "timestamp_ntz" for column in plan.added)
        needed = [*_named_by(plan.added), *(["timestampNtz"] if instants else [])]
        give_features(session, log, location, needed)
        columns = ", ".join(column_words(column) for column in plan.added)
        session.sql(f"ALTER TABLE {location} ADD COLUMNS ({columns})")


def pending_defaults(log: DeltaLog) -> dict[str, str]:
    """Return the columns whose old rows still lack their default, with the default's literal text."""
    text = log.property(BACKFILL_PROPERTY)
    return json.loads(text) if text else {}


def fill_pending(session: SparkSession, log: DeltaLog, location: str, *, epoch: int) -> tuple[str, ...]:
    """Fill pending defaults into old rows. Returns the filled columns.

    A pending column that does not exist belongs to an interrupted schema change. The change is repeated with
    its batch, so the pending default is only removed here.

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
        if not updated:  # Delta returns no counts at all, not even 0 rows, for a skipped statement
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
        f"Another worker claimed the Delta table at {log.path} while this worker added columns to it. This "
        "worker must stop."
    )


_IS_VIEW: Final = "EXPECT_TABLE_NOT_VIEW"


def register(session: SparkSession, path: str, template: str, table: TableId) -> None:
    """Register the Delta table at ``path`` in the catalog under ``template``, if the name is free.

    Raises:
        ConfigError: the name belongs to another table.
        TidesinkError: the catalog does not answer, or refuses the name.
    """
    levels = table_names(template, table)
    try:
        there = _registered(session, levels, path)
        ours = _location(session, f"delta.{quote_identifier(path)}")
    except SPARK_ERRORS as exc:
        raise reading_error(exc, table=str(table)) from exc
    if there != ours:
        raise ConfigError(
            f"{'.'.join(levels)} in the catalog is {_shown(there)}, but this table is at {ours}. Set "
            "target.catalog-table to unused names, or drop the existing entry.",
            key="target.catalog-table",
        )


def _shown(location: str | None) -> str:
    return "a view or a table with no folder of its own" if location is None else f"the table at {location}"


def _registered(session: SparkSession, levels: tuple[str, ...], path: str) -> str | None:
    name = quote_path(*levels)
    if not session.catalog.tableExists(name):
        session.sql(f"CREATE SCHEMA IF NOT EXISTS {quote_path(*levels[:-1])}")
        session.sql(f"CREATE TABLE IF NOT EXISTS {name} USING delta LOCATION {quote_text(path)}")
    return _location(session, name)


def _location(session: SparkSession, name: str) -> str | None:
    """Return the table's folder; None for a view, and for a table without a folder."""
    try:
        location: str | None = session.sql(f"DESCRIBE DETAIL {name}").select("location").collect()[0][0]
    except PySparkException as exc:
        if (exc.getCondition() or "").startswith(_IS_VIEW):
            return None
        raise
    return location


# A table is compacted when it has this many more files than after the last compaction.
FILES_BETWEEN: Final = 50


class Compaction:
    """The compaction of one table. Its file sizes are session settings (``targets.lake.tables``)."""

    def __init__(self, session: SparkSession, log: DeltaLog, location: str) -> None:
        self._session, self._log, self._location = session, log, location
        self._files_before = 0

    def run_if_due(self) -> bool:
        """Compact small files if many have gathered. Returns True if it was tried.

        A failure leaves the table unchanged, and mostly means that another program commits. The next
        compaction is tried after as many new files.
        """
        try:
            if self._log.file_count() < self._files_before + FILES_BETWEEN:
                return False
            self._files_before = self._log.file_count()
            self._session.sql(f"OPTIMIZE {self._location}")
            self._files_before = self._log.file_count()
        except SPARK_ERRORS:
            return True
        return True
