"""The Delta target. A batch's rows and its progress are written in one commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

import structlog

from tidesink.config.targets import DeltaSettings
from tidesink.errors import ConfigError
from tidesink.events import TableId
from tidesink.sinks.spark.errors import translating
from tidesink.sinks.state.progress import Progress
from tidesink.sinks.targets.base import Capabilities, DeleteMode, TableReader, Target
from tidesink.sinks.targets.cuts import NAME as CUTS
from tidesink.sinks.targets.delta import schema
from tidesink.sinks.targets.delta.columns import DeltaColumns
from tidesink.sinks.targets.delta.files import FILE_PROPERTIES, FileWriter
from tidesink.sinks.targets.delta.format import DeltaFormat
from tidesink.sinks.targets.delta.hold import DeltaHold
from tidesink.sinks.targets.delta.ledger import Ledger, ProgressHistory
from tidesink.sinks.targets.delta.log import DeltaLog, reading_error, translated
from tidesink.sinks.targets.delta.schema import Compaction
from tidesink.sinks.targets.delta.writes import DeltaShard
from tidesink.sinks.targets.lake.batches import FEWEST_STAGED
from tidesink.sinks.targets.lake.cuts import CutLog
from tidesink.sinks.targets.lake.merge import rows_that_live
from tidesink.sinks.targets.lake.table import LakeTable
from tidesink.sinks.targets.lake.tables import (
    long_names_refused,
    open_session,
    table_path,
    try_path,
    try_path_of,
)
from tidesink.sinks.targets.sharing import quote_identifier
from tidesink.typemap.target_schema import TargetColumn, TargetSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.config import Config
    from tidesink.sinks.spark.engine import SparkEngine
    from tidesink.sinks.state.progress import StateStore


_log = structlog.get_logger("tidesink.delta")

CAPABILITIES: Final = Capabilities(
    name="delta",
    exactly_once=True,
    features=DeltaSettings.features,
    rereads=True,
    caveats=schema.CAVEATS,
)
PREFLIGHT: Final = schema.DeltaPreflight(schema.check, FILE_PROPERTIES)


def open_target(config: Config, spark: SparkEngine, store: StateStore) -> DeltaTarget:
    """Return the Delta target that a config describes.

    ``store``: has the progress of commits that Delta has removed from a table's log.

    Raises:
        ConfigError: the path is local and cannot be written to.
    """
    settings, session = cast("DeltaSettings", config.target), spark.session()
    try_path_of(session, settings.path)
    return DeltaTarget(
        session,
        settings.path,
        template=settings.table,
        history=store,
        catalog_table=settings.catalog_table,
        properties=settings.table_properties,
    )


def place_of(settings: DeltaSettings, table: TableId) -> str:
    """Return the path of a source table's target table, for display."""
    return table_path(settings.path, settings.table, table)


def try_target(settings: DeltaSettings) -> str:
    """Check that the lake's path can be listed and written to, and return the result as text for display.

    Raises:
        ConfigError: the path cannot be listed or written to.
    """
    return try_path(settings.path)


@dataclass(frozen=True)
class DeltaTarget(Target):
    """A folder in which Delta tables are written.

    ``root``: the folder's path.
    ``template``: template of the tables' paths in the folder, with ``{schema}`` and ``{table}`` of the source
        table.
    ``history``: the state store's record of the progress after each batch, for commits that Delta has removed
        from a log.
    ``settings``: Spark settings of the tables' sessions.
    ``catalog_table``: template of the name under which each table is registered in Spark's catalog; None to
        register no table.
    ``properties``: additional properties of new tables.
    ``fewest_staged``: the tasks that reduce a batch also write its rows to files if each offset range of the
        batch has at least this many records.
    ``file_writer``: makes the object that writes the batches of a table as files.
    """

    spark: SparkSession
    root: str
    template: str = "{schema}/{table}"
    history: ProgressHistory | None = None
    settings: Mapping[str, str] | None = None
    catalog_table: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    fewest_staged: int = FEWEST_STAGED
    file_writer: Callable[[SparkSession, DeltaLog, TableId], FileWriter] = FileWriter

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of a Delta target."""
        return CAPABILITIES

    def path_of(self, table: TableId) -> str:
        """Return the path of a source table's target table.

        Raises:
            ConfigError: the template does not contain ``{table}``.
        """
        if "{table}" not in self.template:
            raise ConfigError(f"target.table {self.template!r} must contain {{table}}.")
        return table_path(self.root, self.template, table)

    def open_table(
        self, shape: TargetSchema, *, pipeline: str, delete_mode: DeleteMode = "hard"
    ) -> DeltaTable:
        """Open a target table for rows with the columns and key of ``shape``, and create it if missing."""
        session, path = open_session(self.spark, self.settings), self.path_of(shape.table)
        with long_names_refused(path.split("/"), shape.table):
            table = DeltaTable(
                session,
                path,
                shape,
                pipeline=pipeline,
                delete_mode=delete_mode,
                target=self,
            )
        if self.catalog_table is not None:
            schema.register(session, path, self.catalog_table, shape.table)
        return table

    def cut_log(self, pipeline: str) -> CutLog:
        """Return the log in which a pipeline's cuts (all tables as of one commit_ts) are published.

        The log is a table in the folder ``root``.
        """
        session, path = open_session(self.spark, self.settings), f"{self.root.rstrip('/')}/{CUTS}"
        location, log = f"delta.{quote_identifier(path)}", DeltaLog(session, path)
        packing = Compaction(session, log, location)
        return CutLog(
            session,
            location,
            "delta",
            pipeline,
            exists=lambda: log.exists,
            maintain=packing.run_if_due,
            translate=translated,
        )

    def reader(self, shape: TargetSchema, *, pipeline: str, session: SparkSession) -> DeltaReader | None:
        """Return a reader of the target table whose columns and key ``shape`` describes; None if the table
        does not exist.
        """
        path = self.path_of(shape.table)
        own = open_session(session, self.settings)
        table_reader = DeltaReader(own, path, shape, pipeline=pipeline, history=self.history)
        return table_reader if table_reader.exists else None


class DeltaReader(TableReader):
    """Reads the rows of one Delta table, in its latest version."""

    def __init__(
        self,
        session: SparkSession,
        path: str,
        shape: TargetSchema,
        *,
        pipeline: str,
        history: ProgressHistory | None,
    ) -> None:
        self.session = session
        self._path = path
        self._shape = shape
        self._log = DeltaLog(session, path)
        self._ledger = Ledger(self._log, shape.source, pipeline, path, history, shape.keys, shape.shard)

    @property
    def exists(self) -> bool:
        """True if the table exists."""
        with translating(reading_error, self._shape.source):
            return self._log.exists

    def columns(self) -> Mapping[str, str]:
        """Return the table's current columns: Spark type by name."""
        with translating(reading_error, self._shape.source):
            return schema.present_columns(self._log)

    def committed(self) -> Progress | None:
        """Return the progress in the user metadata of the table's commits; None if no batch was
        ever applied.
        """
        with translating(reading_error, self._shape.source):
            return self._ledger.committed()

    def rows(self, columns: Sequence[TargetColumn]) -> DataFrame:
        """Return the current rows of the latest version, with ``columns`` in this order."""
        with translating(reading_error, self._shape.source):
            frame = self.session.read.format("delta").load(self._path)
            return rows_that_live(frame, columns, self._shape.shard)


class DeltaTable(LakeTable):
    """An open Delta table. It is used by one worker thread."""

    format: DeltaFormat

    def __init__(
        self,
        session: SparkSession,
        path: str,
        shape: TargetSchema,
        *,
        pipeline: str,
        delete_mode: DeleteMode,
        target: DeltaTarget,
    ) -> None:
        """Open the table, and create it if it is missing."""
        self.path = path
        self.location = f"delta.{quote_identifier(path)}"
        log = DeltaLog(session, path)
        ledger = Ledger(log, shape.source, pipeline, path, target.history, shape.keys, shape.shard)
        columns = DeltaColumns(
            session,
            log,
            self.location,
            DeltaHold(ledger),
            DeltaShard(shape.shard, session, log, ledger) if shape.shard else None,
            PREFLIGHT,
            target.properties,
        )
        super().__init__(
            DeltaFormat(
                session, ledger, columns=columns, files=target.file_writer(session, log, shape.source)
            ),
            shape,
            delete_mode=delete_mode,
            fewest_staged=target.fewest_staged,
            log=_log,
        )
