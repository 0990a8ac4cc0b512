"""Opens a table's schema source by protocol (``DECODINGS``), and what sources with a plan share."""

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
    """The decoding of one table by the config's protocol, laid out and named as its target has it.

    Raises:
        ConfigError: the table's filter cannot be read, its settings contradict each other, or its route
            makes no name.
    """
    settings = context.config.table_config(table)
    check_merged(settings)
    module, _, function = DECODINGS[context.config.source.protocol].partition(":")
    found: Decoding = getattr(import_module(module), function)(context, topic, table, session=session)
    return projected(found, table, settings.layout, context.config.destination(table), session)


class PlannedDecoding:
    """One table's settings, and the plan made of them and of its records."""

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
        """The topic from the table's start on."""
        return started_at(found, self._starts)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Columns whose type at the target is not the nearest one, and what the topic cannot say of them."""
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
        """The plan over all that is known.

        Raises:
            ConfigError: nothing was prepared.
        """
        if self._plan is None:
            raise ConfigError("prepare the table first", table=str(self._table))
        return self._plan


class LoneDecoding(PlannedDecoding, ABC):
    """A table that has its topic for itself, and whose types come with its records: no DDL is read."""

    @abstractmethod
    def prepare(self, found: TopicOffsets, starts: Starts = NO_STARTS) -> None:
        """Make the plan."""

    @abstractmethod
    def learn(self, missed: Missed) -> bool:
        """Look up what a batch lacked; True where the plan is another one now."""

    def catch_up(self, _ranges: Sequence[OffsetRange] | None, _found: TopicOffsets) -> None:
        """Nothing: a record that needs more than is known says so."""

    def reported(self) -> SourceColumns | None:
        """Nothing: no DDL is read."""
        return None

    def row_ddl(self) -> None:
        """Nothing: no DDL is read."""

    def read_as(self, _renamed: Mapping[str, str], _held: Mapping[str, str]) -> None:
        """Never asked: no DDL tells of a rename."""

    def meet_others(self, _missed: Missed) -> None:
        """Never: there are no others, and a row of another table is a bad record."""

    def take_ddl(self, _missed: Missed) -> bool:
        """Nothing: what DDL there is changes no type that is known."""
        return False
