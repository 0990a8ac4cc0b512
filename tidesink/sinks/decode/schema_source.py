"""The decoding of a table's records (``Decoding``), and the projection of rows into the target's columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

from tidesink.config.models import Definition, Destination
from tidesink.ddl.catalog import TableDefinitions
from tidesink.ddl.row_changes import RowDdl
from tidesink.errors import ConfigError
from tidesink.events import Column as TableColumn
from tidesink.events import TableId, TableSchema, fold_name
from tidesink.sinks.decode.target_rows import Metadata
from tidesink.sinks.kafka.offsets import NO_STARTS, OffsetRange, Starts, TopicOffsets
from tidesink.sinks.laws.counts import BatchSummary
from tidesink.sinks.laws.modes import routed_shape
from tidesink.sinks.targets.base import OWN_COLUMNS
from tidesink.typemap.projection import Projection, check_renames, project

if TYPE_CHECKING:
    from tidesink.sinks.decode.filtering import FilterCheck
    from tidesink.sinks.decode.plans import DecodePlan

_TWO_MEANINGS: Final = (
    "ignore_null_updates is not possible with this protocol: its records can omit a value, and this version "
    "does not distinguish an omitted value from NULL. Remove ignore_null_updates."
)


# Where a table's column types come from: a definition in the config, the topic's DDL, the Avro schemas, the
# schemas in debezium-json records, the source database, or the type names in rows. ``nothing``: the records
# have no types, so all columns are text.
TypesFrom = Literal["definition", "ddl", "avro", "records", "database", "rows", "nothing"]


class Missed(NamedTuple):
    """A batch that could not be decoded completely, because the decode plan lacked schemas or columns.

    ``summary``: the batch's summary, with the missing ids and columns. ``ranges``: the ranges of offsets
    in the batch. ``found``: the topic's offsets and id when these ranges were chosen.
    """

    summary: BatchSummary
    ranges: Sequence[OffsetRange]
    found: TopicOffsets


class Renamed(NamedTuple):
    """A column that was renamed at the source.

    Attributes:
        name: The new name.
        readable: True if values under the old name can be read as values of the new column.
        target: The new name in the target, if it is different.
        was: The old name in the target, if it is different.
        reused: True if another column has or had the old or the new name. Then a target with columns of both
            names does not prove that the rename was ignored.
        at: Identifies the DDL that renamed the column: its TSO as text, or ``#N`` for the N-th drop or rename
            of a column with this name.
        returned: True if a column, possibly this one, had the new name in the past.
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
        current: The table with its current columns.
        dropped_columns: Dropped columns with the types that they had.
        renamed: The table's renamed columns, by their old names.
        readded: Folded names of columns that were dropped and added again.
        removals: For each folded name that a column lost by a drop or a rename, the last such DDL, identified
            as in ``Renamed.at``.
        renames: Pairs of an old name and a later name of the same column, including dropped columns.
    """

    current: TableSchema
    dropped_columns: tuple[TableColumn, ...] = ()
    renamed: Mapping[str, Renamed] = field(default_factory=dict)
    readded: frozenset[str] = frozenset()
    removals: Mapping[str, str] = field(default_factory=dict)
    renames: tuple[tuple[str, str], ...] = ()


class Decoding(Protocol):
    """Decodes a table's records. Only one thread uses the object at a time."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for the user about column types of the table."""

    @property
    def types_from(self) -> TypesFrom:
        """Where the types of the table's columns come from, according to what was read so far."""

    def prepare(self, topic_offsets: TopicOffsets, starts: Starts = NO_STARTS) -> None:
        """Reads as many records as are needed to find out the table's columns and key.

        ``starts``: the first offset of the table in each partition. Records before it are not used.

        Raises:
            ConfigError: The table's key or columns cannot be found out. The message names the setting.
            RegistryError: The registry refuses the request, or does not answer.
            SourceError: Kafka refuses the request, or does not answer.
        """

    def catch_up(self, ranges: Sequence[OffsetRange] | None, topic_offsets: TopicOffsets) -> None:
        """Reads schemas or DDL that must be known before the ranges are decoded.

        This is called before each batch. Without it, the batch would decode records wrongly and not notice.
        ``ranges``: the ranges of the batch. None for rows that are newer than all records, such as rows of a
        snapshot.

        Raises:
            ConfigError, RegistryError, SourceError: For the same reasons as ``prepare``.
        """

    def columns(self) -> DecodePlan:
        """Returns the decode plan for the table's columns as they are known now."""

    def reported(self) -> SourceColumns | None:
        """Returns the table's columns as reported by DDL, or None if the protocol has no DDL."""

    def row_ddl(self) -> tuple[RowDdl, ...] | None:
        """Returns the DDL statements read so far that change existing rows of the table, in order.

        None if the protocol has no DDL.
        """

    def read_as(self, renamed: Mapping[str, str], held: Mapping[str, str]) -> None:
        """Sets which renamed columns are read under their new names, and which dropped columns are kept.

        Args:
            renamed: New names by old names. A value under the old name becomes a value of the new column.
            held: The Spark types of the target's columns, by folded name. Those columns that the source has
                dropped become part of the decode plan. So rows without them have NULL in them, even if this
                worker never read a row that has them.

        Raises:
            ConfigError, RegistryError, SourceError: For the same reasons as ``prepare``.
        """

    def meet_others(self, missed: Missed) -> None:
        """Finds the names of tables that the pipeline does not know yet, and of which a batch has rows.

        A decoding of a topic that has only one table does nothing.

        Raises:
            ConfigError, RegistryError, SourceError: For the same reasons as ``prepare``.
        """

    def learn(self, missed: Missed) -> bool:
        """Looks up the schemas and columns that the decode plan lacked for a batch.

        Returns True if the plan changed.

        Raises:
            ConfigError, RegistryError, SourceError: For the same reasons as ``prepare``.
        """

    def take_ddl(self, missed: Missed) -> bool:
        """Reads the topic's new DDL, after a batch was found to contain DDL events. Returns True if the
        decode plan changed.
        """


def declared_table(definition: Definition | None, table: TableId) -> TableSchema | None:
    """Returns the table as defined in the config, or None without a definition.

    Raises:
        ConfigError: The definition cannot be read, or defines another table.
    """
    if definition is None:
        return None
    definitions = TableDefinitions()
    definition.declare_in(definitions, table.schema)
    schema = definitions.get(table)
    if schema is None:
        raise ConfigError(
            "The definition under tables is for another table. Correct the table name in its CREATE TABLE.",
            table=str(table),
        )
    return schema


# Projection: excluded or renamed columns, a row filter, another table name in the target


@dataclass(frozen=True)
class _Holders:
    """Finds out which source column a target column holds, if several source columns have had its name.

    ``projection``: the columns that the config chooses and renames. ``current``: the chosen columns that the
    source has now.
    """

    projection: Projection
    current: tuple[TableColumn, ...]

    def own(self, name: str) -> bool:
        """Returns True if no other current source column is stored under this column's name in the target."""
        target = fold_name(self.projection.target_name(name))
        others = (c.name for c in self.current if fold_name(self.projection.target_name(c.name)) == target)
        return fold_name(next(others, name)) == fold_name(name)


def projected(
    decoding: Decoding,
    table: TableId,
    projection: Projection,
    destination: Destination,
    check: FilterCheck,
) -> Decoding:
    """Returns a decoding into the target's columns. If the target has the source's columns and table name,
    this is ``decoding`` itself.

    ``check``: checks the table's filter.
    """
    if projection.plain and destination == Destination(table):
        return decoding
    return ProjectedDecoding(decoding, projection, destination, check)


class ProjectedDecoding:
    """Decodes a table's records into the columns and names that the target has."""

    def __init__(
        self, decoding: Decoding, projection: Projection, destination: Destination, check: FilterCheck
    ) -> None:
        self._decoding = decoding
        self._projection = projection
        self._destination = destination
        self._check = check
        self._plans: tuple[DecodePlan, DecodePlan] | None = None

    @property
    def unprojected(self) -> Decoding:
        """The decoding into the source's columns."""
        return self._decoding

    @property
    def warnings(self) -> tuple[str, ...]:
        return self._decoding.warnings

    @property
    def types_from(self) -> TypesFrom:
        return self._decoding.types_from

    def prepare(self, topic_offsets: TopicOffsets, starts: Starts = NO_STARTS) -> None:
        self._decoding.prepare(topic_offsets, starts)

    def columns(self) -> DecodePlan:
        """Returns the current decode plan.

        It is the same object as long as the table's own plan does not change.

        Raises:
            ConfigError: The projection does not fit the table's columns. Or its filter is not a condition.
                Or ``ignore_null_updates`` is set, and records can omit values.
            SchemaRefusedError: The projection names a column that the source no longer has, or excludes a
                renamed column under only some of its names. Or the source has a column with the name of the
                shard column.
        """
        inner = self._decoding.columns()
        if self._plans is None or self._plans[0] is not inner:
            self._plans = inner, self._routed(inner if self._projection.plain else self._project(inner))
        return self._plans[1]

    def _project(self, inner: DecodePlan) -> DecodePlan:
        from tidesink.sinks.decode.filtering import filter_rule

        projection, reported = self._projection, self._decoding.reported()
        past: list[str] = []
        if reported is not None:
            check_renames(projection, inner.shape, reported.renames)
            # Another task may have read DDL that came after this plan was made.
            fold = inner.shape.fold
            past += (fold(column.name) for column in reported.dropped_columns)
            past += (fold(name) for pair in reported.renames for name in pair)
        laid = project(projection, inner.shape, own=OWN_COLUMNS, gone=inner.gone, past=past)
        if projection.ignore_nulls and inner.keeps_values:
            raise ConfigError(_TWO_MEANINGS, table=str(inner.shape.table))
        metadata = Metadata(projection.metadata, inner.shape.table) if projection.metadata else None
        row_filter = projection.row_filter
        return replace(
            inner,
            rows=replace(inner.rows, target=laid.shape, sources=laid.sources, metadata=metadata),
            keeps_values=inner.keeps_values or projection.ignore_nulls,
            gone=frozenset(
                laid.shape.fold(new)
                for new, old in laid.sources.items()
                if inner.shape.fold(old) in inner.gone
            ),
            row_filter=None if row_filter is None else filter_rule(row_filter, inner.shape, self._check),
            ignores_nulls=projection.ignore_nulls,
        )

    def _routed(self, plan: DecodePlan) -> DecodePlan:
        if self._destination == Destination(plan.shape.table):
            return plan
        return replace(plan, rows=replace(plan.rows, target=routed_shape(plan.shape, self._destination)))

    def catch_up(self, ranges: Sequence[OffsetRange] | None, topic_offsets: TopicOffsets) -> None:
        """Reads schemas or DDL that must be known before the ranges are decoded (``Decoding.catch_up``).

        Raises:
            SchemaRefusedError: The projection excludes a renamed column under only some of its names.
        """
        self._decoding.catch_up(ranges, topic_offsets)
        self._check_renames()

    def row_ddl(self) -> tuple[RowDdl, ...] | None:
        return self._decoding.row_ddl()

    def read_as(self, renamed: Mapping[str, str], held: Mapping[str, str]) -> None:
        """Sets which renamed and dropped columns are read (``Decoding.read_as``).

        Raises:
            SchemaRefusedError: The projection excludes a renamed column under only some of its names.
        """
        self._decoding.read_as(renamed, held if self._projection.plain else dict(self._at_source(held)))
        self._check_renames()

    def meet_others(self, missed: Missed) -> None:
        self._decoding.meet_others(missed)

    def learn(self, missed: Missed) -> bool:
        """Looks up the schemas and columns that the decode plan lacked for a batch (``Decoding.learn``).

        Raises:
            SchemaRefusedError: The projection excludes a renamed column under only some of its names.
        """
        changed = self._decoding.learn(missed)
        self._check_renames()
        return changed

    def take_ddl(self, missed: Missed) -> bool:
        """Reads the topic's new DDL, after a batch was found to contain DDL events (``Decoding.take_ddl``).

        Raises:
            SchemaRefusedError: The projection excludes a renamed column under only some of its names.
        """
        changed = self._decoding.take_ddl(missed)
        self._check_renames()
        return changed

    def _check_renames(self) -> None:
        """Raises SchemaRefusedError if the projection excludes a renamed column under only some of its names.

        This is also needed if the plan does not change: two columns can exchange their names while the
        table's list of columns stays the same.
        """
        if self._projection.except_columns and (reported := self._decoding.reported()) is not None:
            check_renames(self._projection, self._decoding.columns().shape, reported.renames)

    def _at_source(self, held: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Yields those of the target's columns that the source has dropped or renamed.

        Each one is its folded name at the source and its Spark type in the target.
        """
        reported = self._decoding.reported()
        if reported is None:
            return
        holders = self._holders(reported)
        for name in (*(column.name for column in reported.dropped_columns), *reported.renamed):
            held_type = held.get(fold_name(self._projection.target_name(name)))
            if held_type is not None and holders.own(name):
                yield fold_name(name), held_type

    def reported(self) -> SourceColumns | None:
        """Returns the columns as reported by DDL, with the target's names and without excluded columns.

        A renamed column has both its names at the source and its names in the target. The result is None if
        several source tables share the target table, because the other tables may still have the old columns.
        """
        reported = self._decoding.reported()
        if reported is None or self._destination.shard is not None:
            return None
        if self._projection.plain:
            return reported
        projection, holders = self._projection, self._holders(reported)
        own = holders.own
        excluded = {fold_name(name) for name in projection.except_columns}
        # If the config lists the columns to keep, it has a column's current name and maybe not the old one.
        renamed = {
            old: new._replace(was=projection.target_name(old), target=projection.target_name(new.name))
            for old, new in reported.renamed.items()
            if projection.chooses(new.name) and fold_name(old) not in excluded and own(old)
        }
        dropped_columns = tuple(
            column
            for column in reported.dropped_columns
            if projection.chooses(column.name) and own(column.name)
        )
        readded = (
            fold_name(projection.target_name(name)) for name in reported.readded if projection.chooses(name)
        )
        named = replace(reported.current, columns=tuple(self._named(holders.current)))
        removals = {
            fold_name(projection.target_name(name)): parting
            for name, parting in reported.removals.items()
            if projection.chooses(name) and own(name)
        }
        return SourceColumns(
            named, tuple(self._named(dropped_columns)), renamed, frozenset(readded), removals
        )

    def _holders(self, reported: SourceColumns) -> _Holders:
        current = tuple(c for c in reported.current.columns if self._projection.chooses(c.name))
        return _Holders(self._projection, current)

    def _named(self, columns: Iterable[TableColumn]) -> Iterator[TableColumn]:
        return (replace(column, name=self._projection.target_name(column.name)) for column in columns)
