"""A table as its config has it: columns left out or renamed, rows filtered, another name at the target."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from tidesink.config.models import Destination
from tidesink.ddl.history import Followed, followed, omitted_too
from tidesink.events import Column as TableColumn
from tidesink.events import TableId
from tidesink.sinks.batch.modes import routed_shape
from tidesink.sinks.kafka.offsets import OffsetRange
from tidesink.sinks.schema_sources.base import Decoding, DecodingAround, SourceColumns
from tidesink.sinks.targets.base import OWN_COLUMNS
from tidesink.typemap.projection import Layout, laid_out
from tidesink.typemap.target_schema import TableShape

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidesink.sinks.batch.decoded_frame import Decode
    from tidesink.sinks.batch.tasks import RangeTask
    from tidesink.sinks.kafka.offsets import TopicOffsets
    from tidesink.sinks.schema_sources.base import Missed


_ONTO: Final = (
    "it has the name {0} now, which except_column_list names or a column of it had: its values are not "
    "written from then on. Take {0} out of the list, name there the columns that are meant by the names they "
    "have now, and load the table again; accept it as ignore to go on without them"
)

_log = structlog.get_logger("tidesink.worker")


class _Holders(NamedTuple):
    """The layout, and the source's columns that the target holds by it."""

    layout: Layout
    current: tuple[TableColumn, ...]

    def own(self, name: str) -> bool:
        """Whether the target's column of that name, if any, is this one of the source's."""
        target = self.layout.target_name(name).lower()
        others = (c.name for c in self.current if self.layout.target_name(c.name).lower() == target)
        return next(others, name).lower() == name.lower()


class LaidOutDecoding(DecodingAround):
    """One table's decoding with a layout over its plan."""

    def __init__(self, decoding: Decoding, layout: Layout, session: SparkSession) -> None:
        super().__init__(decoding)
        self._layout = layout
        self._session = session
        self._warnings: tuple[str, ...] = ()
        self._along = Followed(layout)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should know about the table's types at the source, and what is left out unasked."""
        return (*super().warnings, *self._warnings)

    def _plan_around(self, inner: Decode) -> Decode:
        """The plan laid out.

        Raises:
            ConfigError: the layout does not fit the table's columns.
            SchemaRefusedError: the layout names a column that the source does not have any more.
        """
        from tidesink.sinks.batch.projection_frames import LaidOutColumns

        reported = self._decoding.reported()
        found = self._along = self._followed(reported, inner.shape)
        # Another task may have read DDL that this plan does not know of.
        past = [name.lower() for name in reported.names.ever] if reported else []
        shape = found.marked(inner.shape)
        laid = laid_out(found.layout, shape, own=OWN_COLUMNS, gone=inner.gone, past=past)
        return LaidOutColumns(inner, laid, found.layout, self._session)

    def range_task(self, ranges: Sequence[OffsetRange]) -> RangeTask:
        """The tasks of the decoding inside, whose rows are filtered and laid out."""
        from tidesink.sinks.batch.projection_frames import LaidOutColumns

        task, laid = self._decoding.range_task(ranges), self.columns()
        assert isinstance(laid, LaidOutColumns)  # noqa: S101  (``_plan_around`` makes it)
        return replace(task, plan=laid.laid_out(task.plan))

    def catch_up(self, ranges: Sequence[OffsetRange], found: TopicOffsets) -> None:
        """As the decoding inside; what is left out then goes by the DDL that was read."""
        super().catch_up(ranges, found)
        self._projects_again()

    def read_as(self, renamed: Mapping[str, str], held: Mapping[str, str]) -> None:
        """As the decoding inside; what is left out then goes by the DDL that was read."""
        super().read_as(renamed, dict(self._at_source(held)))
        self._projects_again()

    def _at_source(self, held: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Of the target's columns those that the source has no more, by their names there, folded."""
        reported = self._decoding.reported()
        if reported is None:
            return
        holders = self._holders(reported)
        for name in (*(column.name for column in reported.former), *reported.renamed):
            found = held.get(holders.layout.target_name(name).casefold())
            if found is not None and holders.own(name):
                yield name.casefold(), found

    def learn(self, missed: Missed) -> bool:
        """As the decoding inside; the plan is another one, too, where DDL changes what is left out."""
        changed = super().learn(missed)
        return self._projects_again() or changed

    def take_ddl(self, missed: Missed) -> bool:
        """As the decoding inside; the plan is another one, too, where DDL changes what is left out."""
        changed = super().take_ddl(missed)
        return self._projects_again() or changed

    def _projects_again(self) -> bool:
        """Forget a plan that other DDL was laid out by: names may change hands and the columns stay."""
        if self._plans is None or not self._layout.except_columns:
            return False
        stale = self._followed(self._decoding.reported(), self._plans[0].shape) != self._along
        if stale:
            self._plans = None
        return stale

    def _followed(self, reported: SourceColumns | None, shape: TableShape) -> Followed:
        """The layout, whose columns to leave out are left out under the names that DDL gave them, too."""
        if reported is None or not self._layout.except_columns:
            return Followed(self._layout)
        found = followed(self._layout, reported.names, shape.keys)
        warnings = tuple(omitted_too(found, reported.names))
        for warning in warnings:
            if warning not in self._warnings:
                _log.warning("column left out", table=str(reported.current.table), warning=warning)
        self._warnings = warnings
        return found

    def reported(self) -> SourceColumns | None:
        """What DDL tells of the columns that the target holds, by their names there.

        A column that was renamed keeps the source's names beside them.
        """
        reported = self._decoding.reported()
        if reported is None:
            return None
        holders = self._holders(reported)
        layout, current, own = holders.layout, holders.current, holders.own
        excluded = {name.lower() for name in layout.except_columns}
        # A list of columns names a column by what it is called now: the old name need not be in it.
        renamed = {
            old: new._replace(was=layout.target_name(old), target=layout.target_name(new.name))
            for old, new in reported.renamed.items()
            if layout.chooses(new.name) and old.lower() not in excluded and own(old)
        }
        # What the target holds would go on under a name that is left out: somebody is to say so.
        renamed |= {
            old: new._replace(was=layout.target_name(old), readable=False, why=_ONTO.format(new.name))
            for old, new in reported.renamed.items()
            if new.name.lower() in excluded and layout.chooses(old) and own(old)
        }
        former = tuple(
            column for column in reported.former if layout.chooses(column.name) and own(column.name)
        )
        readded = (layout.target_name(name).casefold() for name in reported.readded if layout.chooses(name))
        named = replace(reported.current, columns=tuple(self._named(current)))
        partings = {
            layout.target_name(name).casefold(): at
            for name, at in reported.partings.items()
            if layout.chooses(name) and own(name)
        }
        return SourceColumns(named, tuple(self._named(former)), renamed, frozenset(readded), partings)

    def _holders(self, reported: SourceColumns) -> _Holders:
        layout = self._followed(reported, self._decoding.columns().shape).layout
        return _Holders(layout, tuple(c for c in reported.current.columns if layout.chooses(c.name)))

    def _named(self, columns: Iterable[TableColumn]) -> Iterator[TableColumn]:
        return (replace(column, name=self._layout.target_name(column.name)) for column in columns)


def routed(decoding: Decoding, table: TableId, destination: Destination) -> Decoding:
    """The decoding itself where its table keeps its name, else one that gives it the target's."""
    return decoding if destination == Destination(table) else RoutedDecoding(decoding, destination)


class RoutedDecoding(DecodingAround):
    """A decoding whose plan gives the target's table; all else is the source table's."""

    def __init__(self, decoding: Decoding, destination: Destination) -> None:
        super().__init__(decoding)
        self._destination = destination

    def _plan_around(self, inner: Decode) -> Decode:
        """The plan, with the target's table."""
        from tidesink.sinks.batch.projection_frames import RoutedColumns

        return RoutedColumns(inner, self._destination)

    def range_task(self, ranges: Sequence[OffsetRange]) -> RangeTask:
        """The tasks of the decoding inside, whose rows are the target table's."""
        from tidesink.sinks.batch.target_rows import OutputRows

        inner = self._decoding.range_task(ranges)
        shape = routed_shape(inner.plan.target_shape, self._destination)
        output = inner.plan.output or OutputRows(shape)
        return replace(inner, plan=inner.plan.with_output(replace(output, shape=shape)))

    def reported(self) -> SourceColumns | None:
        """What DDL tells; nothing where several tables share one: the next still has its column as it was."""
        return self._decoding.reported() if self._destination.shard is None else None
