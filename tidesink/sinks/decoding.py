"""How a lane's records are decoded: the plan, and how it learns what a batch lacked.

One module a protocol, listed in ``DECODINGS``; they ask the registry, the config and the topic itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from tidesink.config.models import Definition
from tidesink.config.table_checks import check_merged
from tidesink.ddl.catalog import TableDefinitions
from tidesink.ddl.history import ToldNames
from tidesink.errors import ConfigError
from tidesink.events import Column as TableColumn
from tidesink.events import TableId, TableSchema
from tidesink.sinks.offsets import TopicOffsets
from tidesink.sinks.ranges import OffsetRange
from tidesink.sinks.routing import routed
from tidesink.sinks.summary import BatchSummary

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from tidesink.sinks.batch.decoded_frame import Decode
    from tidesink.sinks.batch.tasks import Fetch, RangeTask
    from tidesink.sinks.surroundings import Surroundings

# protocol in the config -> module with open_decoding(around, topic, table, session)
DECODINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "flat-avro": "tidesink.sinks.decoding_flat_avro",
        "canal-json": "tidesink.sinks.decoding_canal_json",
        "debezium-avro": "tidesink.sinks.decoding_debezium_avro",
        "debezium-json": "tidesink.sinks.decoding_debezium_json",
    }
)


class Missed(NamedTuple):
    """What a batch met that its plan did not know, and where Kafka ended when it was planned."""

    summary: BatchSummary
    ranges: Sequence[OffsetRange]
    found: TopicOffsets


class Apart(NamedTuple):
    """Other tables' records: which are another known table's or a stranger's, and which a stranger's.

    The first are left out of the batch; the second are counted, since somebody must take them.
    """

    foreign: Column
    stranger: Column


class Renamed(NamedTuple):
    """A column's name now, and whether rows with its old name can be read as rows with this one.

    ``at``: the moment of the DDL that renamed it. ``returned``: some column, perhaps this one, had the new
    name before.

    ``target``, ``was``: its names now and before at the target, where those are others. ``reused``: another
    column has, or had, one of its two names too, so that a target with both does not say that the rename was
    ignored. ``why``: where the two cannot be read as one, the reason that is shown for it.
    """

    name: str
    readable: bool
    target: str | None = None
    was: str | None = None
    reused: bool = False
    at: str = ""
    returned: bool = False
    why: str = ""


@dataclass(frozen=True)
class ToldColumns:
    """What a topic's own DDL tells of a table's columns.

    ``current``: the table now. ``former``: columns it had and has no more, with the types they had.
    ``renamed``: by the names they had before, columns that it has. ``readded``: names, folded, of columns
    that were dropped and added again. ``partings``: by name, folded, the moments at which columns were last
    dropped or renamed. ``names``: all that was told of names at the source.
    """

    current: TableSchema
    former: tuple[TableColumn, ...] = ()
    renamed: Mapping[str, Renamed] = field(default_factory=dict)
    readded: frozenset[str] = frozenset()
    partings: Mapping[str, str] = field(default_factory=dict)
    names: ToldNames = field(default_factory=ToldNames)


class Decoding(Protocol):
    """One table's decoding. Used by one thread at a time."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should know about this table's types."""

    def prepare(self, found: TopicOffsets) -> None:
        """Learn enough of a topic that has records to know the table's shape.

        Raises:
            ConfigError: the table's key, or its columns, cannot be known; says what to configure.
            RegistryError: the registry refuses, or does not answer.
            SourceError: Kafka refuses, or does not answer.
        """

    def catch_up(self, ranges: Sequence[OffsetRange], found: TopicOffsets) -> None:
        """Know what decoding the ranges takes and would not be missed in them; asked before each batch.

        Raises: as ``prepare``.
        """

    def columns(self) -> Decode:
        """The plan as it stands."""

    def range_task(self, ranges: Sequence[OffsetRange], fetch: Fetch) -> RangeTask | None:
        """Tasks that fetch, decode and reduce ranges by the plan as it stands.

        None where the batch is decoded in the JVM.
        """

    def told(self) -> ToldColumns | None:
        """What DDL tells of the columns beside the plan's shape; None where no DDL is read."""

    def read_as(self, renamed: Mapping[str, str], held: Mapping[str, str]) -> None:
        """Read rows that have a column's old name as if they had its new one.

        ``held``: Spark's types of the target's columns by their names, folded. What the source had of them
        and has no more is in the plan's shape, and so NULL in rows without it, whoever read those of before.

        Raises: as ``prepare``.
        """

    def apart(self) -> Apart | None:
        """How other tables' records are told apart; None where the topic can only have one table."""

    def meet_others(self, missed: Missed) -> None:
        """Take note that the batch has records of tables nobody knows.

        Raises: as ``prepare``.
        """

    def learn(self, missed: Missed) -> bool:
        """Look up what a batch lacked; True where the plan is another one now.

        Raises: as ``prepare``.
        """

    def take_ddl(self, reduced: DataFrame, missed: Missed) -> bool:
        """Take note of DDL events of a batch; True where the plan is another one now."""


def open_decoding(around: Surroundings, topic: str, table: TableId, *, session: SparkSession) -> Decoding:
    """The decoding of one table by the config's protocol, laid out and named as its target has it.

    Raises:
        ConfigError: the table's filter cannot be read, its settings contradict each other, or its route
            makes no name.
    """
    settings = around.config.table_config(table)
    check_merged(settings)
    module = import_module(DECODINGS[around.config.source.protocol])
    found: Decoding = module.open_decoding(around, topic, table, session=session)
    layout = settings.layout
    if not layout.plain:
        from tidesink.sinks.layout import LaidOutDecoding

        found = LaidOutDecoding(found, layout, session)
    return routed(found, table, around.config.destination(table))


def declared_table(definition: Definition | None, table: TableId) -> TableSchema | None:
    """The table as the config defines it.

    Raises:
        ConfigError: the definition cannot be read, or is another table's.
    """
    if definition is None:
        return None
    definitions = TableDefinitions()
    definition.declare_in(definitions, table.schema)
    found = definitions.get(table)
    if found is None:
        raise ConfigError("the definition under tables is not this table's", table=str(table))
    return found
