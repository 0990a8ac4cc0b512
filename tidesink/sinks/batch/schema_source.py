"""Where a table's columns come from: the protocol that each source follows, and its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tidesink.config.models import Definition
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import ConfigError
from tidesink.events import Column as TableColumn
from tidesink.events import TableId, TableSchema
from tidesink.sinks.batch.counts import BatchSummary
from tidesink.sinks.kafka.offsets import OffsetRange, TopicOffsets

if TYPE_CHECKING:
    from tidesink.sinks.batch.decoders import DecodePlan


class Missed(NamedTuple):
    """What a batch met that its plan did not know, and where Kafka ended when it was planned."""

    summary: BatchSummary
    ranges: Sequence[OffsetRange]
    found: TopicOffsets


class Renamed(NamedTuple):
    """A column's name now, and whether rows with its old name can be read as rows with this one.

    ``at``: the moment of the DDL that renamed it. ``returned``: some column, perhaps this one, had the new
    name before.

    ``target``, ``was``: its names now and before at the target, where those are others. ``reused``: another
    column has, or had, one of its two names too, so that a target with both does not say that the rename was
    ignored.
    """

    name: str
    readable: bool
    target: str | None = None
    was: str | None = None
    reused: bool = False
    at: str = ""
    returned: bool = False


@dataclass(frozen=True)
class SourceColumns:
    """What a topic's own DDL tells of a table's columns.

    ``current``: the table now. ``former``: columns it had and has no more, with the types they had.
    ``renamed``: by the names they had before, columns that it has. ``readded``: names, folded, of columns
    that were dropped and added again. ``partings``: by name, folded, the moments at which columns were last
    dropped or renamed. ``renames``: names that columns had, dropped ones too, each with one they had later.
    """

    current: TableSchema
    former: tuple[TableColumn, ...] = ()
    renamed: Mapping[str, Renamed] = field(default_factory=dict)
    readded: frozenset[str] = frozenset()
    partings: Mapping[str, str] = field(default_factory=dict)
    renames: tuple[tuple[str, str], ...] = ()


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

    def columns(self) -> DecodePlan:
        """The plan as it stands."""

    def reported(self) -> SourceColumns | None:
        """What DDL tells of the columns beside the plan's shape; None where no DDL is read."""

    def read_as(self, renamed: Mapping[str, str], held: Mapping[str, str]) -> None:
        """Read rows that have a column's old name as if they had its new one.

        ``held``: Spark's types of the target's columns by their names, folded. What the source had of them
        and has no more is in the plan's shape, and so NULL in rows without it, whoever read those of before.

        Raises: as ``prepare``.
        """

    def meet_others(self, missed: Missed) -> None:
        """Take note that the batch has records of tables nobody knows.

        Raises: as ``prepare``.
        """

    def learn(self, missed: Missed) -> bool:
        """Look up what a batch lacked; True where the plan is another one now.

        Raises: as ``prepare``.
        """

    def take_ddl(self, missed: Missed) -> bool:
        """Take note that a batch has DDL events; True where the plan is another one now."""


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
