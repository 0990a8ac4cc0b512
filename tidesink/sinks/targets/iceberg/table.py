"""The Iceberg target.

A batch's new snapshot is published together with its progress in one metadata commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

import structlog

from tidesink.config.targets import IcebergSettings
from tidesink.events import TableId
from tidesink.sinks.spark.errors import translating
from tidesink.sinks.state.progress import Progress
from tidesink.sinks.targets.base import Capabilities, DeleteMode, TableReader, Target
from tidesink.sinks.targets.cuts import NAME as CUTS
from tidesink.sinks.targets.iceberg import schema as iceberg_schema
from tidesink.sinks.targets.iceberg.columns import IcebergColumns
from tidesink.sinks.targets.iceberg.files import FILE_PROPERTIES, FileWriter
from tidesink.sinks.targets.iceberg.format import IcebergFormat
from tidesink.sinks.targets.iceberg.jvm import JvmTable, reading_error
from tidesink.sinks.targets.iceberg.ledger import Holder, IcebergLedger
from tidesink.sinks.targets.iceberg.merge import Staging
from tidesink.sinks.targets.iceberg.schema import Maintenance, open_session, try_catalog
from tidesink.sinks.targets.iceberg.tags import CutTags
from tidesink.sinks.targets.lake.batches import FEWEST_STAGED
from tidesink.sinks.targets.lake.cuts import CutLog
from tidesink.sinks.targets.lake.merge import rows_that_live
from tidesink.sinks.targets.lake.table import LakeTable
from tidesink.sinks.targets.lake.tables import long_names_refused, table_names, try_path_of
from tidesink.sinks.targets.sharing import quote_path
from tidesink.typemap.target_schema import TargetColumn, TargetSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.config import Config
    from tidesink.sinks.spark.engine import SparkEngine
    from tidesink.sinks.state.progress import StateStore


_log = structlog.get_logger("tidesink.iceberg")
# Stands for the table of cuts in the template of table names, which determines its namespace.
_CUTS_TABLE: Final = TableId("tidesink", "cuts")


CAPABILITIES: Final = Capabilities(
    name="iceberg",
    exactly_once=True,
    features=IcebergSettings.features,
    rescales=False,
)
PREFLIGHT: Final = iceberg_schema.IcebergPreflight(
    iceberg_schema.check, {**FILE_PROPERTIES, "format-version": ("2", "3")}
)


def open_target(config: Config, spark: SparkEngine, _store: StateStore) -> IcebergTarget:
    """Return the Iceberg target that a config describes.

    Raises:
        ConfigError: the warehouse is a local path that cannot be written to.
    """
    settings, session = cast("IcebergSettings", config.target), spark.session()
    properties = settings.catalog_values()
    if (path := iceberg_schema.warehouse_path(properties)) is not None:
        try_path_of(session, path, setting=iceberg_schema.WAREHOUSE)
    return IcebergTarget(
        session,
        settings.catalog,
        template=settings.table,
        properties=properties,
        table_properties=settings.table_properties,
    )


def place_of(settings: IcebergSettings, table: TableId) -> str:
    """Return the catalog and name of a source table's target table, for display."""
    return ".".join((settings.catalog, *table_names(settings.table, table)))


def try_target(settings: IcebergSettings) -> str:
    """Check the catalog without starting Spark, and return the result as text for display.

    Raises:
        ConfigError: the catalog's warehouse cannot be used.
    """
    return try_catalog(settings.catalog, settings.catalog_values())


@dataclass(frozen=True)
class IcebergTarget(Target):
    """An Iceberg catalog in which tables are written.

    ``catalog``: the catalog's name in Spark.
    ``template``: template of the target tables' names, with ``{schema}`` and ``{table}`` of the source table.
    ``properties``: the catalog's properties (type, uri, warehouse, …); if empty, Spark's settings define the
        catalog.
    ``table_properties``: additional properties of new tables.
    ``fewest_staged``: the tasks that reduce a batch also write its rows to files if each offset range of the
        batch has at least this many records.
    ``file_writer``: makes the object that writes the batches of a table as files.
    """

    spark: SparkSession
    catalog: str
    template: str = "{schema}.{table}"
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    table_properties: Mapping[str, str] = field(default_factory=dict)
    fewest_staged: int = FEWEST_STAGED
    file_writer: Callable[[SparkSession, JvmTable, TableId], FileWriter] = FileWriter

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of an Iceberg target."""
        return CAPABILITIES

    def location_of(self, table: TableId) -> str:
        """Return the quoted name of a source table's target table, with its catalog."""
        return f"{self.catalog}.{quote_path(*table_names(self.template, table))}"

    def open_table(
        self, shape: TargetSchema, *, pipeline: str, delete_mode: DeleteMode = "hard"
    ) -> IcebergTable:
        """Open a target table for rows with the columns and key of ``shape``, and create it if missing."""
        session = open_session(self.spark, self.catalog, self.properties)
        location = self.location_of(shape.table)
        with long_names_refused(table_names(self.template, shape.table), shape.table):
            return IcebergTable(
                session,
                location,
                shape,
                pipeline=pipeline,
                delete_mode=delete_mode,
                target=self,
            )

    def cut_log(self, pipeline: str) -> CutLog:
        """Return the log in which a pipeline's cuts (all tables as of one commit_ts) are published.

        The log is a table in the namespace that the template gives for a source schema ``tidesink``.
        """
        session = open_session(self.spark, self.catalog, self.properties)
        spaces = table_names(self.template, _CUTS_TABLE)[:-1]
        location = f"{self.catalog}.{quote_path(*spaces, CUTS)}"
        table = JvmTable(session, location)
        packing = Maintenance(session, table)

        def maintain() -> None:
            state = table.state()
            packing.run_if_due(state.totals, state.snapshot_count())

        return CutLog(
            session,
            location,
            "iceberg",
            pipeline,
            namespace=f"{self.catalog}.{quote_path(*spaces)}" if spaces else "",
            exists=lambda: table.exists,
            maintain=maintain,
            translate=reading_error,
        )

    def reader(self, shape: TargetSchema, *, pipeline: str, session: SparkSession) -> IcebergReader | None:
        """Return a reader of the target table whose columns and key ``shape`` describes; None if the table
        does not exist.
        """
        own = open_session(session, self.catalog, self.properties)
        table_reader = IcebergReader(own, self.location_of(shape.table), shape, pipeline=pipeline)
        return table_reader if table_reader.exists else None


class IcebergReader(TableReader):
    """Reads the rows of one Iceberg table, in the snapshot that its readers see."""

    def __init__(self, session: SparkSession, location: str, shape: TargetSchema, *, pipeline: str) -> None:
        self.session = session
        self._shape = shape
        self._table = JvmTable(session, location)
        self._ledger = IcebergLedger(shape.source, pipeline, location, shape.keys, shape.shard)

    @property
    def exists(self) -> bool:
        """True if the table exists."""
        with translating(reading_error, self._shape.source):
            return self._table.exists

    def columns(self) -> Mapping[str, str]:
        """Return the table's current columns: Spark type by name."""
        with translating(reading_error, self._shape.source):
            return self._table.columns(self._table.state())

    def committed(self) -> Progress | None:
        """Return the progress that the table's ledger property records; None if no batch was ever applied."""
        with translating(reading_error, self._shape.source):
            entry = self._ledger.entry(self._table.state())
        return entry.progress if entry else None

    def rows(self, columns: Sequence[TargetColumn]) -> DataFrame:
        """Return the current rows of the snapshot that readers see, with ``columns`` in this order."""
        with translating(reading_error, self._shape.source):
            return rows_that_live(self.session.table(self._table.location), columns, self._shape.shard)


class IcebergTable(LakeTable):
    """An open Iceberg table. It is used by one worker thread."""

    format: IcebergFormat

    def __init__(
        self,
        session: SparkSession,
        location: str,
        shape: TargetSchema,
        *,
        pipeline: str,
        delete_mode: DeleteMode,
        target: IcebergTarget,
    ) -> None:
        """Open the table, and create it if it is missing."""
        self.location = location
        table = JvmTable(session, location)
        ledger = IcebergLedger(shape.source, pipeline, location, shape.keys, shape.shard)
        holder = Holder(table, ledger, shape.source)
        columns = IcebergColumns(
            session,
            table,
            holder,
            Staging(session, table, holder, shape.source),
            shape.source,
            shape.shard,
            PREFLIGHT,
            target.table_properties,
        )
        self._tags = CutTags(table, pipeline, shape.source)
        super().__init__(
            IcebergFormat(
                session,
                table,
                ledger,
                columns=columns,
                files=target.file_writer(session, table, shape.source),
            ),
            shape,
            delete_mode=delete_mode,
            fewest_staged=target.fewest_staged,
            log=_log,
        )

    def keep_version(self, version: int, commit_ts: int, *, keep: float) -> None:
        """Put a tag on the snapshot to which a cut (all tables as of one commit_ts) refers, so that it does
        not expire.
        """
        with translating(reading_error, self._table):
            self._tags.keep(version, commit_ts, seconds=keep)
