"""A lane's decoding whose rows go to another table than their source's, by the pipeline's routes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tidesink.change import ColumnType, TableId
from tidesink.codecs.columns_base import DecodeColumns
from tidesink.config.routes import LONGEST_SHARD, Destination
from tidesink.errors import SchemaRefusedError
from tidesink.sinks.offsets import TopicOffsets
from tidesink.sinks.ranges import OffsetRange
from tidesink.typemap.shape import ShapeColumn, Shard, TableShape

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidesink.sinks.decoding import Apart, Decoding, Missed, ToldColumns

_TYPE = ColumnType("varchar", length=LONGEST_SHARD, sql=f"varchar({LONGEST_SHARD})")


def routed(decoding: Decoding, table: TableId, goal: Destination) -> Decoding:
    """The decoding itself where its table keeps its name, else one that gives it the target's."""
    return decoding if goal == Destination(table) else RoutedDecoding(decoding, goal)


def routed_shape(shape: TableShape, goal: Destination) -> TableShape:
    """The shape at the target: its name there, and the shard column at the end of the columns and the key.

    Raises:
        SchemaRefusedError: the source has a column of that name.
    """
    named = replace(shape, table=goal.table, origin=shape.source)
    if goal.shard is None:
        return named
    if goal.shard.column.lower() in shape.by_name:
        raise SchemaRefusedError(
            f"the source has a column {goal.shard.column}, the name that its route gives the shard column: "
            "give shard-column another",
            table=str(shape.source),
            column=goal.shard.column,
        )
    # Last in the key: what prunes files and pages is the range of the key's first column.
    keys = (*shape.keys, goal.shard.column) if shape.keys else ()
    return replace(named, columns=(*shape.columns, shard_column(goal.shard)), keys=keys, shard=goal.shard)


def shard_column(shard: Shard) -> ShapeColumn:
    """The column that says which source table a row is of."""
    return ShapeColumn(shard.column, _TYPE, "string", key=True)


class RoutedDecoding:
    """A decoding whose plan gives the target's table; all else is the source table's."""

    def __init__(self, decoding: Decoding, goal: Destination) -> None:
        self._decoding, self._goal = decoding, goal

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should know about this table's types."""
        return self._decoding.warnings

    def prepare(self, found: TopicOffsets) -> None:
        """Know the table's shape."""
        self._decoding.prepare(found)

    def catch_up(self, ranges: Sequence[OffsetRange], found: TopicOffsets) -> None:
        """Know what decoding the ranges takes."""
        self._decoding.catch_up(ranges, found)

    def columns(self) -> DecodeColumns:
        """The plan, with the target's table."""
        from tidesink.sinks.routing_spark import RoutedColumns

        return RoutedColumns(self._decoding.columns(), self._goal)

    def told(self) -> ToldColumns | None:
        """What DDL tells; nothing where several tables share one: the next still has its column as it was."""
        return self._decoding.told() if self._goal.shard is None else None

    def read_as(self, renamed: Mapping[str, str]) -> None:
        """Read rows with old names by the new ones."""
        self._decoding.read_as(renamed)

    def apart(self) -> Apart | None:
        """How other tables' records are told apart."""
        return self._decoding.apart()

    def meet_others(self, missed: Missed) -> None:
        """Take note of records of tables nobody knows."""
        self._decoding.meet_others(missed)

    def learn(self, missed: Missed) -> bool:
        """Look up what a batch lacked."""
        return self._decoding.learn(missed)

    def take_ddl(self, reduced: DataFrame, missed: Missed) -> bool:
        """Take note of DDL events."""
        return self._decoding.take_ddl(reduced, missed)
