"""Opens a table's schema source by protocol (``DECODINGS``), and base classes of sources with a plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from tidesink.config.table_checks import check_merged
from tidesink.errors import ConfigError
from tidesink.events import TableId
from tidesink.sinks.batch.context import WorkerContext
from tidesink.sinks.batch.decoders import DecodePlan
from tidesink.sinks.batch.schema_source import Decoding, Missed, SourceColumns, projected
from tidesink.sinks.kafka.offsets import NO_STARTS, OffsetRange, Starts, TopicOffsets, started_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# protocol in the config -> "module:function"; the function takes (context, topic, table, session)
DECODINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "flat-avro": "tidesink.sinks.schema_sources.writer_schemas:open_flat_avro",
        "canal-json": "tidesink.sinks.schema_sources.canal_json:open_decoding",
        "debezium-avro": "tidesink.sinks.schema_sources.writer_schemas:open_debezium_avro",
        "debezium-json": "tidesink.sinks.schema_sources.writer_schemas:open_debezium_json",
    }
)


def open_decoding(context: WorkerContext, topic: str, table: TableId, *, session: SparkSession) -> Decoding:
    """Returns the decoding of one table by the config's protocol, projected into the target's columns.

    Raises:
        ConfigError: The table's filter cannot be read, its settings contradict each other, or its route
            results in no name.
    """
    settings = context.config.table_config(table)
    check_merged(settings)
    module, _, function = DECODINGS[context.config.source.protocol].partition(":")
    found: Decoding = getattr(import_module(module), function)(context, topic, table, session=session)
    return projected(found, table, settings.layout, context.config.destination(table), session)


class PlannedDecoding:
    """One table's settings, and the plan that is built from them and from its records."""

    def __init__(self, context: WorkerContext, topic: str, table: TableId, *, session: SparkSession) -> None:
        self._context = context
        self._topic = topic
        self._table = table
        self._settings = context.config.table_config(table)
        self._session = session
        self._layout = self._settings.layout
        self._plan: DecodePlan | None = None
        self._starts: Starts = NO_STARTS

    def _of_table(self, found: TopicOffsets) -> TopicOffsets:
        """Returns the topic's offsets, beginning at the table's start."""
        return started_at(found, self._starts)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Columns whose target type is not the nearest one, and facts that the topic does not contain."""
        if self._plan is None:
            return ()
        unread = self._plan.rows.unread
        reasons = (
            f"column {c.name}: {c.reason}"
            for c in self._plan.shape.columns
            if c.reason and c.name not in unread
        )
        return (*reasons, *self._plan.warnings)

    def columns(self) -> DecodePlan:
        """Returns the current plan.

        Raises:
            ConfigError: ``prepare`` was not called.
        """
        if self._plan is None:
            raise ConfigError("Prepare the table first.", table=str(self._table))
        return self._plan


class LoneDecoding(PlannedDecoding, ABC):
    """A table in a topic of its own, whose types come with its records. No DDL is read."""

    @abstractmethod
    def prepare(self, found: TopicOffsets, starts: Starts = NO_STARTS) -> None:
        """Build the plan."""

    @abstractmethod
    def learn(self, missed: Missed) -> bool:
        """Look up what a batch lacked. Returns True if the plan changed."""

    def catch_up(self, _ranges: Sequence[OffsetRange] | None, _found: TopicOffsets) -> None:
        """Does nothing: a record that needs more than the plan has is reported."""

    def reported(self) -> SourceColumns | None:
        """Returns None: no DDL is read."""
        return None

    def row_ddl(self) -> None:
        """Returns None: no DDL is read."""

    def read_as(self, _renamed: Mapping[str, str], _held: Mapping[str, str]) -> None:
        """Never called, because no DDL reports a rename."""

    def meet_others(self, _missed: Missed) -> None:
        """Never called: the topic has no other tables, and a row of another table is a bad record."""

    def take_ddl(self, _missed: Missed) -> bool:
        """Returns False: DDL events change no known type."""
        return False
