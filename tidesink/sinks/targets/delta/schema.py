"""Creates and alters Delta tables, registers them in Spark's catalog, and compacts their files."""

# ruff: noqa: S608  every name and text in a statement is quoted by targets/sharing.py

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

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
from tidesink.typemap.target_schema import TargetColumn, TargetSchema

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

# Properties of new tables (reader version 3, writer version 7). They need only one reader feature, deletion
# vectors, which every batch uses.
TABLE_PROPERTIES: Final[Mapping[str, str]] = {
    "delta.enableDeletionVectors": "true",
    "delta.checkpointInterval": "20",
}
# The property and value that enable a feature which a table may need later, by feature.
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
    "DataFusion cannot read it"
)
_NAMED_ODDLY: Final = (
    f"A column has a space or one of ,;{{}}()= in its name: {_UNREAD.format('columnMapping')}."
)
CAVEATS: Final[Mapping[ChangeKind, str]] = {
    "widen": (
        f"Once a column is widened, {_UNREAD.format('typeWidening')}. "
        "Set `schema-changes: widen: pause` to decide for each column."
    ),
    "rename": f"Once a column is renamed, {_UNREAD.format('columnMapping')}.",
    "drop": f"Once a column is dropped, {_UNREAD.format('columnMapping')}.",
}

# Column names that Spark and Delta's MERGE (4.3) use themselves. A table cannot have columns of these names.
RESERVED: Final = Reserved("Delta", frozenset({"_metadata", "_row_dropped_", "_source_row_present_"}))


class DeltaPreflight(LakePreflight):
    """Checks, before the first run, whether the configured tables can be stored in Delta."""

    def location(self, settings: Any) -> str:
        """Return the path of the folder with the tables."""
        return str(settings.path)

    def foresee(self, config: Config, shape: TargetSchema) -> PreflightResult:
        """Check that Delta can store the table, and return the limits that will apply to it.

        Limits are the batches that will need a MERGE, and column names that not all readers support.
        """
        result = super().foresee(config, shape)
        mapped = tuple(column.name for column in shape.columns if _needs_mapping(column))
        readers = (Limit("readers", _NAMED_ODDLY, mapped),) if mapped else ()
        return result._replace(limits=(*result.limits, *readers))


def check(shape: TargetSchema, present: Iterable[str] = ()) -> None:
    """Check that a Delta table can have the columns of ``shape`` in addition to its existing columns
    ``present``.

    Raises:
        SchemaRefusedError: the target schema ``shape`` has no key, a column with a reserved name, or two
            columns with the same name in Spark.
    """
    check_shape(shape, RESERVED)
    lake_tables.check_names(shape, present)


def create_statement(
    location: str, shape: TargetSchema, *, soft_deletes: bool, properties: Mapping[str, str]
) -> str:
    """Return the CREATE TABLE statement for a table with the columns of ``shape``.

    ``location``: the table's quoted name.
    """
    given = {**TABLE_PROPERTIES, **dict(map(_GIVEN_BY.__getitem__, _named_by(shape.columns))), **properties}
    return lake_tables.create_statement(
        location, shape, provider="delta", properties=given, soft_deletes=soft_deletes
    )


def _named_by(columns: Iterable[TargetColumn]) -> list[str]:
    """Return the Delta table features that the columns' names require: column mapping, if a name has special
    characters.
    """
    return ["columnMapping"] if any(map(_needs_mapping, columns)) else []


def _needs_mapping(column: TargetColumn) -> bool:
    return not _MAPPED.isdisjoint(column.name)


def give_features(session: SparkSession, log: DeltaLog, location: str, features: Iterable[str]) -> None:
    """Enable those of the Delta table features that are not enabled yet, and log a warning for each.

    This is permanent: readers that do not support the features can no longer read the table.
    """
    for feature in features:
        name, value = _GIVEN_BY[feature]
        there = log.supports(feature) if value == "supported" else log.property(name) not in _WITHOUT
        if not there:
            setting = f"{quote_text(name)} = {quote_text(value)}"
            session.sql(f"ALTER TABLE {location} SET TBLPROPERTIES ({setting})")
            _log.warning(
                "readers of the Delta table must now support a feature", table=location, feature=feature
            )


def present_columns(log: DeltaLog) -> dict[str, str]:
    """Return the table's current columns: Spark DDL type by name."""
    return columns_of(log.schema())


def columns_of(text: str) -> dict[str, str]:
    """Parse a schema in Spark's JSON form, and return its columns: Spark DDL type by name."""
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(json.loads(text))
    return {field.name: _ddl(field) for field in schema.fields}


def _ddl(field: StructField) -> str:
    """Return a column's Spark DDL type. A ``char(n)`` column does not become ``string``, because Spark pads
    its texts.
    """
    declared = str((field.metadata or {}).get(_CHARACTERS, ""))
    return declared if declared.startswith("char") else field.dataType.simpleString()


def nullable_columns(log: DeltaLog) -> tuple[str, ...]:
    """Return the names of the columns that can be set to NULL, without generated columns, which Delta
    computes.
    """
    fields = json.loads(log.schema())["fields"]
    return tuple(field["name"] for field in fields if field["nullable"] and not _generated(field["metadata"]))


def _generated(metadata: Collection[str]) -> bool:
    return any(name.startswith(GENERATED) for name in metadata)


def check_partitions(parts: Collection[str], batch: ReducedBatch) -> None:
    """Check, before a MERGE, that Delta will not read texts in partition columns of the batch back as NULL.

    ``parts``: names of the partition columns in lower case.

    Raises:
        TargetError: a partition column has a text that Delta would read back as NULL.
    """
    from pyspark.sql import functions as F  # noqa: N812  (PySpark's own name for it)

    for column in batch.shape.columns:
        if (
            fold_name(column.name) in parts
            and column.spark in ("string", "binary")
            and batch.frame is not None
        ):
            value = F.col("key" if column.key else "after").getField(column.name).cast("string")
            row = batch.frame.where(value.isin("", NULL_FOLDER)).select(value).first()
            if row is not None:
                check_text(row[0], column.name, table=str(batch.shape.source))


def open_table(
    session: SparkSession,
    log: DeltaLog,
    location: str,
    *,
    shape: TargetSchema,
    soft_deletes: bool,
    properties: Mapping[str, str],
) -> bool:
    """Create the Delta table at ``location`` if it is missing, and add the soft-delete column if needed.

    Returns True if the table was created.
    """
    if not log.exists:
        check(shape)  # not for an existing table, which may never get the shape's other columns
        session.sql(create_statement(location, shape, soft_deletes=soft_deletes, properties=properties))
        return True
    if soft_deletes and SOFT_DELETE_COLUMN not in present_columns(log):
        session.sql(lake_tables.soft_delete_statement(location))
    return False


def sequence_statement(location: str, present: Mapping[str, str]) -> str:
    """Return the statement that adds the columns for the source's order (`sequence_by: source`).

    Existing rows get NULL in these columns, which counts as older than every change.
    """
    columns = [f"{quote_identifier(SEQUENCE_COLUMN)} {SEQUENCE_DDL} COMMENT {quote_text(SEQUENCE_COMMENT)}"]
    if SOFT_DELETE_COLUMN not in present:
        columns.append(soft_delete_column())
    return f"ALTER TABLE {location} ADD COLUMNS ({', '.join(columns)})"


def evolve_table(
    session: SparkSession, log: DeltaLog, location: str, *, shape: TargetSchema, plan: Evolution, epoch: int
) -> tuple[str, ...]:
    """Widen and add columns as planned, and return warnings.

    Defaults of new columns are only recorded here. ``fill_pending`` writes them into existing rows.

    Raises:
        StaleProgressError: another worker claimed the table in the meantime.
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
    """Change the types of the columns that the plan of column changes widens."""
    give_features(session, log, location, ["typeWidening"] if plan.widened else [])
    for name, ddl in plan.widened.items():
        session.sql(f"ALTER TABLE {location} ALTER COLUMN {quote_identifier(name)} TYPE {ddl}")


def add_columns(session: SparkSession, log: DeltaLog, location: str, plan: Evolution) -> None:
    """Add the new columns of a plan of column changes. Existing rows get NULL in them."""
    if plan.added:
        instants = any(column.spark == "timestamp_ntz" for column in plan.added)
        needed = [*_named_by(plan.added), *(["timestampNtz"] if instants else [])]
        give_features(session, log, location, needed)
        columns = ", ".join(column_words(column) for column in plan.added)
        session.sql(f"ALTER TABLE {location} ADD COLUMNS ({columns})")


def pending_defaults(log: DeltaLog) -> dict[str, str]:
    """Return the defaults that still have to be written into existing rows, as texts by column name."""
    text = log.property(BACKFILL_PROPERTY)
    return json.loads(text) if text else {}


def fill_pending(session: SparkSession, log: DeltaLog, location: str, *, epoch: int) -> tuple[str, ...]:
    """Write the recorded defaults of new columns into existing rows. Returns the names of these columns.

    If the worker was interrupted after it recorded a default, the column may not exist yet. Then only the
    record is removed here, because the column is added again with the batch that needs it.

    Raises:
        StaleProgressError: another worker claimed the table in the meantime.
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
        if not updated:  # for a skipped statement, Delta returns no row with counts at all
            raise _lost(log)
    _set_pending(log, {}, epoch=epoch)
    return tuple(filled)


def _set_pending(log: DeltaLog, pending: Mapping[str, str], *, epoch: int) -> None:
    what = "still to be written" if pending else "written"
    text, words = json.dumps(pending) if pending else None, f"defaults {what} into existing rows"
    if not log.put_property(
        BACKFILL_APPLICATION, log.next_version(epoch), BACKFILL_PROPERTY, text, words=words
    ):
        raise _lost(log)


def _lost(log: DeltaLog) -> StaleProgressError:
    return StaleProgressError(
        f"Another worker claimed the Delta table at {log.path} while this worker added columns to it. Run "
        "only one "
        "worker per table. This worker must stop."
    )


_IS_VIEW: Final = "EXPECT_TABLE_NOT_VIEW"


def register(session: SparkSession, path: str, template: str, table: TableId) -> None:
    """Register the Delta table at ``path`` in Spark's catalog, if it is not registered yet.

    ``template``: template of its name in the catalog.

    Raises:
        ConfigError: the name belongs to another table or a view.
        TidesinkError: the catalog does not answer, or does not allow the name.
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
            "target.catalog-table so that this name is unused, or drop the existing entry from the catalog.",
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
    """Return the folder of the table ``name`` in Spark's catalog; None for a view, or a table without a
    folder.
    """
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
    """Compacts the files of one table each time ``FILES_BETWEEN`` files were added.

    The size of compacted files is a setting of the table's Spark session.
    """

    def __init__(self, session: SparkSession, log: DeltaLog, location: str) -> None:
        self._session, self._log, self._location = session, log, location
        self._files_before = 0

    def run_if_due(self) -> bool:
        """Compact small files if many were added since the last compaction. Returns True if it was tried.

        A failure is ignored; mostly another program commits at the same time. The next attempt is made after
        the same number of new files.
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
