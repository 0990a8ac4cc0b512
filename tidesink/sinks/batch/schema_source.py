"""A table's decoding: the protocol of schema sources, and the projection into the target's columns."""

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
    """The counts of a batch whose plan lacked something, its ranges, and the topic when it was planned."""

    summary: BatchSummary
    ranges: Sequence[OffsetRange]
    found: TopicOffsets


class Renamed(NamedTuple):
    """A renamed column.

    Attributes:
        name: The new name.
        readable: True if rows with the old name can be read as rows with the new name.
        target: The new name in the target, if it differs.
        was: The old name in the target, if it differs.
        reused: True if another column has or had one of the two names. Then a target with both names does
            not show that the rename was ignored.
        at: The moment of the DDL that renamed the column.
        returned: True if a column, perhaps this one, had the new name earlier.
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
    """A table's columns as reported by the DDL in its topic.

    Attributes:
        current: The current table.
        former: Dropped columns with their last types.
        renamed: Renamed columns of the table, by their old names.
        readded: Folded names of columns that were dropped and added again.
        partings: The moments at which columns were last dropped or renamed, by folded name.
        renames: Old names of columns, including dropped ones, each with a later name of the same column.
    """

    current: TableSchema
    former: tuple[TableColumn, ...] = ()
    renamed: Mapping[str, Renamed] = field(default_factory=dict)
    readded: frozenset[str] = frozenset()
    partings: Mapping[str, str] = field(default_factory=dict)
    renames: tuple[tuple[str, str], ...] = ()


class Decoding(Protocol):
    """The decoding of one table. Used by one thread at a time."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about this table's types."""

    def prepare(self, found: TopicOffsets, starts: Starts = NO_STARTS) -> None:
        """Read enough of a topic with records to derive the table's shape.

        ``starts``: the first offset of the table in each partition. Earlier records are not used.

        Raises:
            ConfigError: The table's key or columns cannot be derived. The message names the setting.
            RegistryError: The registry refuses the request, or does not answer.
            SourceError: Kafka refuses the request, or does not answer.
        """

    def catch_up(self, ranges: Sequence[OffsetRange] | None, found: TopicOffsets) -> None:
        """Read schemas or DDL that decoding the ranges needs, and whose absence a batch would not notice.

        Called before each batch. ``ranges``: None for rows that are later than all records, as in a snapshot.

        Raises:
            ConfigError, RegistryError, SourceError: For the same reasons as ``prepare``.
        """

    def columns(self) -> DecodePlan:
        """Returns the current plan."""

    def reported(self) -> SourceColumns | None:
        """Returns the columns that DDL reports, or None if no DDL is read."""

    def row_ddl(self) -> tuple[RowDdl, ...] | None:
        """Returns the DDL read so far that changes rows of the table, in order; None if no DDL is read."""

    def read_as(self, renamed: Mapping[str, str], held: Mapping[str, str]) -> None:
        """Read the old names of renamed columns as their new names.

        ``held``: Spark types of the target's columns by folded name. Columns among them that the source
        dropped are part of the plan's shape. So they are NULL in rows without them, no matter which worker
        read the earlier rows.

        Raises:
            ConfigError, RegistryError, SourceError: For the same reasons as ``prepare``.
        """

    def meet_others(self, missed: Missed) -> None:
        """Handle a batch with records of unknown tables.

        Raises:
            ConfigError, RegistryError, SourceError: For the same reasons as ``prepare``.
        """

    def learn(self, missed: Missed) -> bool:
        """Look up what a batch lacked. Returns True if the plan changed.

        Raises:
            ConfigError, RegistryError, SourceError: For the same reasons as ``prepare``.
        """

    def take_ddl(self, missed: Missed) -> bool:
        """Handle a batch with DDL events. Returns True if the plan changed."""


def declared_table(definition: Definition | None, table: TableId) -> TableSchema | None:
    """Returns the table as defined in the config.

    Raises:
        ConfigError: The definition cannot be read, or describes another table.
    """
    if definition is None:
        return None
    definitions = TableDefinitions()
    definition.declare_in(definitions, table.schema)
    found = definitions.get(table)
    if found is None:
        raise ConfigError("The definition under tables describes another table.", table=str(table))
    return found


# Excluded or renamed columns, filtered rows, another name in the target


@dataclass(frozen=True)
class _Holders:
    """The source's columns that the target holds according to a projection."""

    layout: Layout
    current: tuple[TableColumn, ...]

    def own(self, name: str) -> bool:
        """Returns True if no other source column has this column's name in the target."""
        target = fold_name(self.layout.target_name(name))
        others = (c.name for c in self.current if fold_name(self.layout.target_name(c.name)) == target)
        return fold_name(next(others, name)) == fold_name(name)


def projected(
    decoding: Decoding, table: TableId, layout: Layout, destination: Destination, session: SparkSession
) -> Decoding:
    """Returns a decoding into the target's columns; the decoding itself if the target holds all as it is."""
    if layout.plain and destination == Destination(table):
        return decoding
    return ProjectedDecoding(decoding, layout, destination, session)


class ProjectedDecoding:
    """A decoding whose plan returns the rows that the target holds, under the target's names."""

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
        return self._decoding.warnings

    def prepare(self, found: TopicOffsets, starts: Starts = NO_STARTS) -> None:
        self._decoding.prepare(found, starts)

    def columns(self) -> DecodePlan:
        """Returns the current plan, which is the same object while the inner plan is the same.

        Raises:
            ConfigError: The projection does not fit the table's columns. Or Spark does not accept its filter.
                Or ``ignore_null_updates`` is set, and the records can omit values.
            SchemaRefusedError: The projection names a column that the source no longer has, or excludes a
                column under only some of its names. Or the source has a column with the shard's name.
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
            # Another task may have read DDL that this plan does not contain.
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
        """See ``Decoding.catch_up``; also raises SchemaRefusedError for conflicting renames."""
        self._decoding.catch_up(ranges, found)
        self._check_renames()

    def row_ddl(self) -> tuple[RowDdl, ...] | None:
        return self._decoding.row_ddl()

    def read_as(self, renamed: Mapping[str, str], held: Mapping[str, str]) -> None:
        """See ``Decoding.read_as``; also raises SchemaRefusedError for conflicting renames."""
        self._decoding.read_as(renamed, held if self._layout.plain else dict(self._at_source(held)))
        self._check_renames()

    def meet_others(self, missed: Missed) -> None:
        self._decoding.meet_others(missed)

    def learn(self, missed: Missed) -> bool:
        """See ``Decoding.learn``; also raises SchemaRefusedError for conflicting renames."""
        changed = self._decoding.learn(missed)
        self._check_renames()
        return changed

    def take_ddl(self, missed: Missed) -> bool:
        """See ``Decoding.take_ddl``; also raises SchemaRefusedError for conflicting renames."""
        changed = self._decoding.take_ddl(missed)
        self._check_renames()
        return changed

    def _check_renames(self) -> None:
        """Check renames even without a new plan: names can be exchanged while the columns stay the same."""
        if self._layout.except_columns and (reported := self._decoding.reported()) is not None:
            check_renames(self._layout, self._decoding.columns().shape, reported.renames)

    def _at_source(self, held: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Yields types of the target's columns that the source dropped or renamed, by folded source name."""
        reported = self._decoding.reported()
        if reported is None:
            return
        holders = self._holders(reported)
        for name in (*(column.name for column in reported.former), *reported.renamed):
            found = held.get(fold_name(self._layout.target_name(name)))
            if found is not None and holders.own(name):
                yield fold_name(name), found

    def reported(self) -> SourceColumns | None:
        """Returns the columns that DDL reports, under the target's names and only if the target holds them.

        A renamed column keeps the source's names in addition. None if several tables share the target table,
        because the other tables may still have the old columns.
        """
        reported = self._decoding.reported()
        if reported is None or self._destination.shard is not None:
            return None
        if self._layout.plain:
            return reported
        layout, holders = self._layout, self._holders(reported)
        own = holders.own
        excluded = {fold_name(name) for name in layout.except_columns}
        # A list of columns has a column's current name; the old name need not be in the list.
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
