"""Opens the schema source of a table, by protocol (``DECODINGS``), and has base classes of schema sources.

A schema source finds a table's columns and types, and builds and updates the table's decode plan.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Final

from tidesink.config.table_checks import check_merged
from tidesink.errors import ConfigError
from tidesink.events import TableId
from tidesink.sinks.decode.parts import DecodingParts
from tidesink.sinks.decode.plans import DecodePlan, PlanSettings
from tidesink.sinks.decode.schema_source import Decoding, Missed, SourceColumns, projected
from tidesink.sinks.kafka.offsets import NO_STARTS, OffsetRange, Starts, TopicOffsets, started_at

# By protocol in the config: "module:function". The function has the parameters (parts, topic, table).
DECODINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "flat-avro": "tidesink.sinks.decode.writer_schemas:open_flat_avro",
        "canal-json": "tidesink.sinks.decode.canal_json_types:open_decoding",
        "debezium-avro": "tidesink.sinks.decode.writer_schemas:open_debezium_avro",
        "debezium-json": "tidesink.sinks.decode.writer_schemas:open_debezium_json",
    }
)


def open_decoding(parts: DecodingParts, topic: str, table: TableId) -> Decoding:
    """Open the schema source of a table, by the config's protocol.

    Its decode plans have only the columns that the target has.

    Raises:
        ConfigError: The table's filter cannot be parsed, its settings contradict each other, or its route
            results in an empty name.
    """
    settings, destination = parts.config.table_config(table), parts.config.destination(table)
    check_merged(settings)
    decoding = open_unprojected(parts, topic, table)
    return projected(decoding, table, settings.projection, destination, parts.check_filter)


def open_unprojected(parts: DecodingParts, topic: str, table: TableId) -> Decoding:
    """Open the schema source of a table. Its decode plans have all columns of the source.

    Raises:
        ConfigError: The config lacks a setting that the protocol needs, or its definition is for another
            table.
    """
    module, _, function = DECODINGS[parts.config.source.protocol].partition(":")
    decoding: Decoding = getattr(import_module(module), function)(parts, topic, table)
    return decoding


class PlannedDecoding:
    """The settings of one table, and the decode plan that is built from them and from the table's records."""

    def __init__(self, parts: DecodingParts, topic: str, table: TableId) -> None:
        self._parts = parts
        self._topic = topic
        self._table = table
        self._settings = parts.config.table_config(table)
        self._projection = self._settings.projection
        self._plan: DecodePlan | None = None
        self._starts: Starts = NO_STARTS

    @property
    def _plan_settings(self) -> PlanSettings:
        """The settings of the next decode plan, which keeps the columns of the current one."""
        settings = self._settings
        return PlanSettings(
            self._plan.shape if self._plan else None,
            settings.keys,
            settings.zero_date,
            settings.ambiguous_time,
            settings.time_zone,
            logs=settings.mode == "append",
            left_out=self._projection.leaves_out,
        )

    def _of_table(self, topic_offsets: TopicOffsets) -> TopicOffsets:
        """Returns the topic's offsets without the records before the table's start (setting ``start``)."""
        return started_at(topic_offsets, self._starts)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about columns that have another type in the target than usual, each with the reason.

        The warnings of the current decode plan follow.
        """
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
        """Returns the current decode plan.

        Raises:
            ConfigError: ``prepare`` was not called before.
        """
        if self._plan is None:
            raise ConfigError(
                "The table's columns are not known yet. Prepare the table first.", table=str(self._table)
            )
        return self._plan


class LoneDecoding(PlannedDecoding, ABC):
    """Base class of schema sources for a table with its own topic, whose records contain the types.

    No DDL is read.
    """

    @abstractmethod
    def prepare(self, topic_offsets: TopicOffsets, starts: Starts = NO_STARTS) -> None:
        """Build the first decode plan."""

    @abstractmethod
    def learn(self, missed: Missed) -> bool:
        """Look up the schemas that were missing for a batch. Returns True if a new decode plan was built."""

    def catch_up(self, _ranges: Sequence[OffsetRange] | None, _found: TopicOffsets) -> None:
        """Does nothing, because tasks report records whose schema the decode plan does not have."""

    def reported(self) -> SourceColumns | None:
        """Returns None, because no DDL is read."""
        return None

    def row_ddl(self) -> None:
        """Returns None, because no DDL is read."""

    def read_as(self, _renamed: Mapping[str, str], _held: Mapping[str, str]) -> None:
        """Does nothing, because no DDL is read that could report a rename."""

    def meet_others(self, _missed: Missed) -> None:
        """Does nothing, because the topic has only one table. A row of another table is a bad record."""

    def take_ddl(self, _missed: Missed) -> bool:
        """Returns False, because DDL events do not change the plan."""
        return False
