"""A lane's decoding whose rows go to another table than their source's, by the pipeline's routes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tidesink.config.models import LONGEST_SHARD, Destination
from tidesink.errors import SchemaRefusedError
from tidesink.events import ColumnType, TableId
from tidesink.sinks.decoding_around import DecodingAround
from tidesink.sinks.ranges import OffsetRange
from tidesink.typemap.target_schema import ShapeColumn, Shard, TableShape

if TYPE_CHECKING:
    from tidesink.sinks.batch.decoded_frame import Decode
    from tidesink.sinks.batch.tasks import Fetch, RangeTask
    from tidesink.sinks.decoding import Decoding, ToldColumns

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


class RoutedDecoding(DecodingAround):
    """A decoding whose plan gives the target's table; all else is the source table's."""

    def __init__(self, decoding: Decoding, goal: Destination) -> None:
        super().__init__(decoding)
        self._goal = goal

    def _around(self, inner: Decode) -> Decode:
        """The plan, with the target's table."""
        from tidesink.sinks.routing_spark import RoutedColumns

        return RoutedColumns(inner, self._goal)

    def range_task(self, ranges: Sequence[OffsetRange], fetch: Fetch) -> RangeTask | None:
        """The tasks of the decoding inside, whose rows are the target table's."""
        inner = self._decoding.range_task(ranges, fetch)
        if inner is None:
            return None
        return replace(inner, plan=inner.plan.with_shape(routed_shape(inner.plan.shape, self._goal)))

    def told(self) -> ToldColumns | None:
        """What DDL tells; nothing where several tables share one: the next still has its column as it was."""
        return self._decoding.told() if self._goal.shard is None else None
