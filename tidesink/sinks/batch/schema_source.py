"""A table's decoding: what each source of schemas offers, and the projection into what the target holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from tidesink.config.models import Definition, Destination
from tidesink.ddl.catalog import TableDefinitions
from tidesink.ddl.row_changes import RowDdl
from tidesink.errors import ConfigError
from tidesink.events import Column as TableColumn
from tidesink.events import TableId, TableSchema, fold_name
from tidesink.sinks.batch.counts import BatchSummary
from tidesink.sinks.batch.target_rows import Metadata
from tidesink.sinks.kafka.offsets import NO_STARTS, OffsetRange, Starts, TopicOffsets
from tidesink.sinks.targets.base import OWN_COLUMNS
from tidesink.sinks.targets.modes import routed_shape
from tidesink.typemap.projection import Layout, check_renames, laid_out

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidesink.sinks.batch.decoders import DecodePlan

_TWO_MEANINGS: Final = (
    "ignore_null_updates: a record of this protocol can omit a value, which is not the same as NULL, and "
    "this version does not distinguish the two. Remove ignore_null_updates."
)


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

    def prepare(self, found: TopicOffsets, starts: Starts = NO_STARTS) -> None:
        """Learn enough of a topic that has records to know the table's shape.

        ``starts``: where the table begins to read each partition; nothing is learnt of earlier records.

        Raises:
            ConfigError: the table's key, or its columns, cannot be known; says what to configure.
            RegistryError: the registry refuses, or does not answer.
            SourceError: Kafka refuses, or does not answer.
        """

    def catch_up(self, ranges: Sequence[OffsetRange] | None, found: TopicOffsets) -> None:
        """Know what decoding the ranges takes and would not be missed in them; asked before each batch.

        ``None``: of rows that are behind all that was sent, as those of a snapshot.

        Raises: as ``prepare``.
        """

    def columns(self) -> DecodePlan:
        """The plan as it stands."""

    def reported(self) -> SourceColumns | None:
        """What DDL tells of the columns beside the plan's shape; None where no DDL is read."""

    def row_ddl(self) -> tuple[RowDdl, ...] | None:
        """The DDL read so far that changes rows of the table, in its order; None where no DDL is read."""

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
        raise ConfigError("The definition under tables is of another table.", table=str(table))
    return found


# Columns left out or renamed, rows filtered, another name at the target


@dataclass(frozen=True)
class _Holders:
    """The source's columns that the target holds by a layout."""

    layout: Layout
    current: tuple[TableColumn, ...]

    def own(self, name: str) -> bool:
        """Whether the target's column of that name, if any, is this one of the source's."""
        target = fold_name(self.layout.target_name(name))
        others = (c.name for c in self.current if fold_name(self.layout.target_name(c.name)) == target)
        return fold_name(next(others, name)) == fold_name(name)


def projected(
    decoding: Decoding, table: TableId, layout: Layout, destination: Destination, session: SparkSession
) -> Decoding:
    """A table's decoding into what the target holds of it; the decoding itself where that is all of it."""
    if layout.plain and destination == Destination(table):
        return decoding
    return ProjectedDecoding(decoding, layout, destination, session)


class ProjectedDecoding:
    """One table's decoding, whose plan gives the rows that the target holds, under its names."""

    def __init__(
        self, decoding: Decoding, layout: Layout, destination: Destination, session: SparkSession
    ) -> None:
        self._decoding = decoding
        self._layout = layout
        self._destination = destination
        self._session = session
        self._plans: tuple[DecodePlan, DecodePlan] | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """As the decoding inside."""
        return self._decoding.warnings

    def prepare(self, found: TopicOffsets, starts: Starts = NO_STARTS) -> None:
        """As the decoding inside."""
        self._decoding.prepare(found, starts)

    def columns(self) -> DecodePlan:
        """The plan as it stands; the same one for as long as the decoding inside has the same.

        Raises:
            ConfigError: the layout does not fit the table's columns, Spark does not take its filter, or its
                records have another sign for values that stay.
            SchemaRefusedError: the layout names a column that the source does not have any more, or leaves
                one out under some of its names alone; or the source has a column with the shard's name.
        """
        inner = self._decoding.columns()
        if self._plans is None or self._plans[0] is not inner:
            self._plans = inner, self._routed(inner if self._layout.plain else self._laid_out(inner))
        return self._plans[1]

    def _laid_out(self, inner: DecodePlan) -> DecodePlan:
        from tidesink.sinks.batch.filtering import filter_rule

        layout, reported = self._layout, self._decoding.reported()
        past: list[str] = []
        if reported is not None:
            check_renames(layout, inner.shape, reported.renames)
            # Another task may have read DDL that this plan does not know of.
            fold = inner.shape.fold
            past += (fold(column.name) for column in reported.former)
            past += (fold(name) for pair in reported.renames for name in pair)
        laid = laid_out(layout, inner.shape, own=OWN_COLUMNS, gone=inner.gone, past=past)
        if layout.ignore_nulls and inner.keeps_values:
            raise ConfigError(_TWO_MEANINGS, table=str(inner.shape.table))
        metadata = Metadata(layout.metadata, inner.shape.table) if layout.metadata else None
        row_filter = layout.row_filter
        return replace(
            inner,
            rows=replace(inner.rows, target=laid.shape, sources=laid.sources, metadata=metadata),
            keeps_values=inner.keeps_values or layout.ignore_nulls,
            gone=frozenset(
                laid.shape.fold(new)
                for new, old in laid.sources.items()
                if inner.shape.fold(old) in inner.gone
            ),
            row_filter=None if row_filter is None else filter_rule(row_filter, inner.shape, self._session),
            ignores_nulls=layout.ignore_nulls,
        )

    def _routed(self, plan: DecodePlan) -> DecodePlan:
        if self._destination == Destination(plan.shape.table):
            return plan
        return replace(plan, rows=replace(plan.rows, target=routed_shape(plan.shape, self._destination)))

    def catch_up(self, ranges: Sequence[OffsetRange] | None, found: TopicOffsets) -> None:
        """As the decoding inside; raises SchemaRefusedError, too, as a new plan does."""
        self._decoding.catch_up(ranges, found)
        self._check_renames()

    def row_ddl(self) -> tuple[RowDdl, ...] | None:
        """As the decoding inside."""
        return self._decoding.row_ddl()

    def read_as(self, renamed: Mapping[str, str], held: Mapping[str, str]) -> None:
        """As ``catch_up``."""
        self._decoding.read_as(renamed, held if self._layout.plain else dict(self._at_source(held)))
        self._check_renames()

    def meet_others(self, missed: Missed) -> None:
        """As the decoding inside."""
        self._decoding.meet_others(missed)

    def learn(self, missed: Missed) -> bool:
        """As ``catch_up``."""
        changed = self._decoding.learn(missed)
        self._check_renames()
        return changed

    def take_ddl(self, missed: Missed) -> bool:
        """As ``catch_up``."""
        changed = self._decoding.take_ddl(missed)
        self._check_renames()
        return changed

    def _check_renames(self) -> None:
        """As for a new plan: names may change hands, and the plan of the same columns stays."""
        if self._layout.except_columns and (reported := self._decoding.reported()) is not None:
            check_renames(self._layout, self._decoding.columns().shape, reported.renames)

    def _at_source(self, held: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Of the target's columns those that the source has no more, by their names there, folded."""
        reported = self._decoding.reported()
        if reported is None:
            return
        holders = self._holders(reported)
        for name in (*(column.name for column in reported.former), *reported.renamed):
            found = held.get(fold_name(self._layout.target_name(name)))
            if found is not None and holders.own(name):
                yield fold_name(name), found

    def reported(self) -> SourceColumns | None:
        """What DDL tells of the columns that the target holds, by their names there.

        A column that was renamed keeps the source's names beside them. Nothing where several tables share
        one: the next still has its column as it was.
        """
        reported = self._decoding.reported()
        if reported is None or self._destination.shard is not None:
            return None
        if self._layout.plain:
            return reported
        layout, holders = self._layout, self._holders(reported)
        own = holders.own
        excluded = {fold_name(name) for name in layout.except_columns}
        # A list of columns names a column by what it is called now: the old name need not be in it.
        renamed = {
            old: new._replace(was=layout.target_name(old), target=layout.target_name(new.name))
            for old, new in reported.renamed.items()
            if layout.chooses(new.name) and fold_name(old) not in excluded and own(old)
        }
        former = tuple(
            column for column in reported.former if layout.chooses(column.name) and own(column.name)
        )
        readded = (fold_name(layout.target_name(name)) for name in reported.readded if layout.chooses(name))
        named = replace(reported.current, columns=tuple(self._named(holders.current)))
        partings = {
            fold_name(layout.target_name(name)): at
            for name, at in reported.partings.items()
            if layout.chooses(name) and own(name)
        }
        return SourceColumns(named, tuple(self._named(former)), renamed, frozenset(readded), partings)

    def _holders(self, reported: SourceColumns) -> _Holders:
        current = tuple(c for c in reported.current.columns if self._layout.chooses(c.name))
        return _Holders(self._layout, current)

    def _named(self, columns: Iterable[TableColumn]) -> Iterator[TableColumn]:
        return (replace(column, name=self._layout.target_name(column.name)) for column in columns)
