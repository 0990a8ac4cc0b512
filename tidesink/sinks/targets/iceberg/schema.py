"""Creates Iceberg tables, prepares changes of their columns, opens catalogs in Spark, and compacts tables."""

# ruff: noqa: S608  every name and text in a statement is quoted by targets/sharing.py

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from tidesink.errors import ConfigError, SchemaRefusedError
from tidesink.events import TableId, fold_name
from tidesink.sinks.spark.errors import SPARK_ERRORS
from tidesink.sinks.targets.base import SOFT_DELETE_COLUMN, Reserved, check_shape
from tidesink.sinks.targets.column_changes import Evolution, default_texts
from tidesink.sinks.targets.iceberg.jvm import JvmTable, TableState, reading_error
from tidesink.sinks.targets.lake import tables as lake_tables
from tidesink.sinks.targets.lake.batches import LakePreflight
from tidesink.sinks.targets.lake.merge import rows_of
from tidesink.sinks.targets.lake.tables import literal, try_path
from tidesink.sinks.targets.sharing import quote_identifier, quote_text
from tidesink.typemap.table import iceberg_type
from tidesink.typemap.target_schema import Shard, TargetColumn, TargetSchema, ways_out

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


BACKFILL: Final = "tidesink.backfill"

# Measured in docs/adr/0014-iceberg-batches.md.
TABLE_PROPERTIES: Final[Mapping[str, str]] = {
    "format-version": "2",
    "write.merge.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.delete.mode": "merge-on-read",
    "write.target-file-size-bytes": "134217728",
    # Each batch creates two metadata files, so old ones are removed.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
}
# Names of Iceberg's metadata columns, and of columns that Spark's MERGE adds.
RESERVED: Final = Reserved(
    "Iceberg",
    frozenset(
        {
            "_file",
            "_pos",
            "_deleted",
            "_spec_id",
            "_partition",
            "_row_id",
            "_last_updated_sequence_number",
            "_change_type",
            "_change_ordinal",
            "_commit_snapshot_id",
            "__row_operation",
            "__row_from_source",
            "__row_from_target",
            "__row_id",
        }
    ),
)
_DECIMAL: Final = re.compile(r"decimal\(\d+,(\d+)\)")
_PROMOTED: Final = frozenset({("int", "bigint"), ("float", "double")})


class IcebergPreflight(LakePreflight):
    """Checks, before the first run, whether the configured tables can be stored in Iceberg."""

    def column_type(self, settings: Any, column: TargetColumn) -> str:  # noqa: ARG002
        """Return the name of the column's type in Iceberg, which can differ from Spark's."""
        return iceberg_type(column.spark)

    def location(self, settings: Any) -> str:
        """Return the warehouse path of a ``hadoop`` catalog; an empty string for other catalogs."""
        return warehouse_path(settings.catalog_values()) or ""


def check(shape: TargetSchema, present: Iterable[str] = ()) -> None:
    """Check that an Iceberg table can have the columns of ``shape`` in addition to its existing columns
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
    given = {**TABLE_PROPERTIES, **properties}
    return lake_tables.create_statement(
        location, shape, provider="iceberg", properties=given, soft_deletes=soft_deletes
    )


def open_table(
    session: SparkSession,
    table: JvmTable,
    shape: TargetSchema,
    *,
    soft_deletes: bool,
    properties: Mapping[str, str],
) -> bool:
    """Create the Iceberg table if it is missing, and add the soft-delete column if needed.

    Returns True if the table was created.
    """
    if not table.exists:
        check(shape)  # not for an existing table, which may never get the shape's other columns
        namespace = table.location.rpartition(".")[0]
        session.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
        session.sql(create_statement(table.location, shape, soft_deletes=soft_deletes, properties=properties))
        return True
    if soft_deletes and SOFT_DELETE_COLUMN not in table.columns(table.state()):
        session.sql(lake_tables.soft_delete_statement(table.location))
    return False


def check_promotions(widened: Mapping[str, str], present: Mapping[str, str], *, table: TableId) -> None:
    """Check that Iceberg can make the planned type changes without rewriting rows.

    ``widened``: new Spark type by column name.
    ``present``: the table's columns: Spark type by name.

    Raises:
        SchemaRefusedError: Iceberg cannot make a type change. The error names the column and both types.
    """
    for name, wider in widened.items():
        if not _promotes(present[name], wider):
            raise SchemaRefusedError(
                f"The column is {present[name]} and must become {wider} to hold the source's values. But "
                "Iceberg "
                "can only widen int to bigint, float to double, and the precision of a decimal. "
                f"{ways_out(name)}",
                table=str(table),
                column=name,
                change="type",
                before=present[name],
                after=wider,
            )


def evolution(
    table: JvmTable, state: TableState, plan: Evolution, shape: TargetSchema
) -> tuple[Any, dict[str, str], tuple[str, ...]]:
    """Convert a plan of column changes to what its commit needs.

    Returns Java's new table schema, the table properties to set with it (defaults that are still to be
    written into existing rows), and warnings.
    """
    update = state.table.updateSchema()
    for name, ddl in plan.widened.items():
        update.updateColumn(name, table.type_of(ddl))
    for column in plan.added:
        # With a parent argument, even None, Iceberg does not split the name at dots.
        update.addColumn(None, column.name, table.type_of(column.spark), column.comment)
    # In a shared table, ``IcebergColumns`` writes the defaults, into the rows of this shard only.
    defaults, warnings = default_texts(plan.added if shape.shard is None else (), shape)
    pending = {**pending_defaults(state), **defaults}
    return update.apply(), {BACKFILL: json.dumps(pending)} if pending else {}, warnings


def pending_defaults(state: TableState) -> dict[str, str]:
    """Return the defaults that still have to be written into existing rows, as texts by column name."""
    text = state.property(BACKFILL)
    return json.loads(text) if text else {}


def fill_statement(
    location: str, pending: Mapping[str, str], present: Mapping[str, str], shard: Shard | None = None
) -> str | None:
    """Return the UPDATE statement that writes defaults into existing rows; None if the table has none of the
    columns.

    ``pending``: default texts by column name.
    ``present``: the table's columns: Spark type by name.
    ``shard``: only the rows of this shard are updated; None for all rows.
    """
    given = {fold_name(name): text for name, text in pending.items()}
    sets = [
        f"{quote_identifier(name)} = {literal(given[fold_name(name)], ddl)}"
        for name, ddl in present.items()
        if fold_name(name) in given
    ]
    where = f" WHERE {rows_of(shard)}" if shard else ""
    return f"UPDATE {location} SET {', '.join(sets)}{where}" if sets else None


def _promotes(narrow: str, wide: str) -> bool:
    old, new = _DECIMAL.fullmatch(narrow), _DECIMAL.fullmatch(wide)
    return (narrow, wide) in _PROMOTED or bool(old and new and old.group(1) == new.group(1))


CATALOG_CLASS: Final = "org.apache.iceberg.spark.SparkCatalog"
_PREFIX: Final = "spark.sql.catalog."
_ONE_AT_A_TIME: Final = threading.Lock()
_DEFAULTS: Final[Mapping[str, str]] = {
    # A cached table would show other writers' commits up to half a minute late.
    "cache-enabled": "false",
}


def open_session(spark: SparkSession, catalog: str, properties: Mapping[str, str]) -> SparkSession:
    """Return a new Spark session in which the catalog is configured, and connect to the catalog.

    ``catalog``: the catalog's name.
    ``properties``: the catalog's properties; if empty, Spark's own settings define the catalog.

    Raises:
        ConfigError: Iceberg is not on Spark's class path, or the catalog is not defined or cannot be used.
        TransientTargetError: the catalog does not answer.
    """
    session = spark.newSession()
    _check_class_path(session)
    if not properties and session.conf.get(_PREFIX + catalog, None) is None:
        raise ConfigError(
            f"The catalog {catalog} is not defined. Set target.catalog-properties (type, uri, warehouse, …), "
            f"or define it under spark.conf with the settings {_PREFIX}{catalog}…",
            key="target.catalog-properties",
        )
    if properties:
        session.conf.set(_PREFIX + catalog, CATALOG_CLASS)
    # Tasks get payloads of some MiB each. 32 of them stay far below the limit of 2 GiB for an Arrow batch.
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "32")
    for name, value in {**_DEFAULTS, **properties}.items():
        session.conf.set(f"{_PREFIX}{catalog}.{name}", value)
    _load_catalog(session, catalog)
    return session


def _load_catalog(session: SparkSession, catalog: str) -> None:
    """Make Spark create the session's catalog object, for one session at a time.

    A JDBC catalog creates its own tables at this time, which fails if two sessions do so at once.
    """
    with _ONE_AT_A_TIME:
        try:
            session.catalog.tableExists(f"{catalog}.tidesink.none")
        except SPARK_ERRORS as exc:
            raise reading_error(exc, table=None) from exc


def _check_class_path(session: SparkSession) -> None:
    from py4j.java_gateway import JavaClass

    jvm: Any = session._jvm
    if not isinstance(jvm.org.apache.iceberg.spark.SparkCatalog, JavaClass):
        raise ConfigError(
            "The running Spark session has no Iceberg on its class path. Let the worker start its own "
            "session, or start it with build_session(targets=['iceberg'])."
        )


WAREHOUSE: Final = "target.catalog-properties.warehouse"


def warehouse_path(properties: Mapping[str, str]) -> str | None:
    """Return the warehouse path of a ``hadoop`` catalog; None for another type of catalog."""
    return properties.get("warehouse") if properties.get("type") == "hadoop" else None


def try_catalog(catalog: str, properties: Mapping[str, str]) -> str:
    """Check a catalog without starting Spark, and return the result as text for display.

    Only a ``hadoop`` catalog whose warehouse is on this machine can be checked.

    Raises:
        ConfigError: the warehouse cannot be listed or written to. The message has the system's reason.
    """
    if (path := warehouse_path(properties)) is not None:
        return try_path(path, setting=WAREHOUSE)
    return f"the catalog {catalog} is not checked here: the worker opens it through Spark when it starts"


# A table is compacted when it has this many more files than after the last compaction.
FILES_BETWEEN: Final = 50
# Delete files are compacted if this many remain when data files are compacted, which only rewrites small data
# files.
DELETE_FILES_LEFT: Final = 10
# Snapshots are expired each time this many were added. Those of the last hour and the newest ones are kept
# for readers.
SNAPSHOTS_BETWEEN: Final = 300
SNAPSHOTS_KEPT: Final = 100
_HOUR_MS: Final = 3_600_000
_AGE: Final = "history.expire.max-snapshot-age-ms"


class Maintenance:
    """Compacts the files of one table, and expires its old snapshots, each time many files or snapshots were
    added.
    """

    def __init__(self, session: SparkSession, table: JvmTable) -> None:
        self._session, self._table = session, table
        self._files_before = 0
        self._snapshots_before = 0

    def run_if_due(self, totals: Mapping[str, int], snapshots: int) -> bool:
        """Compact files, or expire snapshots, if many were added. Returns True if either was tried.

        A failure is ignored; mostly another program commits at the same time. The next attempt is made after
        the same number of new files or snapshots.

        ``totals``: the numbers in the newest snapshot's summary.
        ``snapshots``: the number of the table's snapshots.
        """
        pack = _files(totals) >= self._files_before + FILES_BETWEEN
        expire = snapshots >= self._snapshots_before + SNAPSHOTS_BETWEEN
        if not pack and not expire:
            return False
        try:
            if expire:
                _expire(self._table.state())
            if pack:
                pack_files(self._session, self._table)
            state = self._table.state()
            totals, snapshots = state.totals, state.snapshot_count()
        except SPARK_ERRORS:
            pass
        self._files_before = _files(totals) if pack else self._files_before
        self._snapshots_before = snapshots if expire else self._snapshots_before
        return True


def pack_files(session: SparkSession, table: JvmTable) -> None:
    """Compact the table's small data files, and its position delete files if many of them remain."""
    catalog, _, name = table.location.partition(".")
    rewrite, named = f"CALL {catalog}.system.rewrite", f"table => {quote_text(name)}"
    session.sql(f"{rewrite}_data_files({named}, options => map('remove-dangling-deletes', 'true'))")
    if table.state().totals.get("total-delete-files", 0) >= DELETE_FILES_LEFT:
        session.sql(f"{rewrite}_position_delete_files({named})")


def _files(totals: Mapping[str, int]) -> int:
    return totals.get("total-data-files", 0) + totals.get("total-delete-files", 0)


def _expire(state: TableState) -> None:
    """Expire old snapshots.

    Their maximum age is the table property ``history.expire.max-snapshot-age-ms``, or an hour if the property
    is not set. The newest ``SNAPSHOTS_KEPT`` snapshots are kept, and tags protect the snapshots to which cuts
    refer.
    """
    oldest = int(time.time() * 1000) - int(state.property(_AGE) or _HOUR_MS)
    state.table.expireSnapshots().expireOlderThan(oldest).retainLast(SNAPSHOTS_KEPT).commit()
