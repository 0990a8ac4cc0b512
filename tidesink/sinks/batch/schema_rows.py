"""Where the first and the last rows of a writer's schema stand, and which rows are before them.

Positions are joined by the least and the greatest of each member, so that what is known of a set of rows
does not depend on how batches cut it, nor on rows that are read twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc


class RowPosition(NamedTuple):
    """Where a row stands in its partition.

    ``source``: its position at the source, as ``Position.source``; None where the wire has none. ``time``:
    Kafka's, in ms since 1970, where it was read.
    """

    offset: int
    source: tuple[int, ...] | None = None
    time: int | None = None


class RowSpan(NamedTuple):
    """The least and the greatest offset, position at the source, and time of some rows of a partition."""

    first: RowPosition
    last: RowPosition

    @classmethod
    def of(cls, row: RowPosition) -> RowSpan:
        """The span of one row."""
        return cls(row, row)

    def joined(self, other: RowSpan) -> RowSpan:
        """The span of the rows of both."""
        firsts = zip(self.first, other.first, strict=True)
        lasts = zip(self.last, other.last, strict=True)
        return RowSpan(
            RowPosition(*(extreme(min, *two) for two in firsts)),
            RowPosition(*(extreme(max, *two) for two in lasts)),
        )


def span_of(rows: pa.Table) -> RowSpan:
    """The span of row changes of one partition; at least one."""
    ends = pc.min_max(rows["offset"]).as_py()
    sources = rows["source"].combine_chunks().drop_null()
    return RowSpan(
        RowPosition(ends["min"], _extreme(sources, "min")), RowPosition(ends["max"], _extreme(sources, "max"))
    )


class FirstRows(NamedTuple):
    """The first rows that are known of some schemas.

    ``offsets`` and ``sources``: by partition, the least offset and the least position at the source;
    ``source``: the least position of all. ``are_comparable``: whether positions at the source are compared.
    They are not if they started again, as the binlog files of a server that was promoted do: a position
    does not say which server it is from.
    """

    offsets: Mapping[int, int] = {}
    source: tuple[int, ...] | None = None
    sources: Mapping[int, tuple[int, ...]] = {}
    are_comparable: bool = True

    def joined(self, other: FirstRows) -> FirstRows:
        """The first rows of both."""
        return FirstRows(
            _least(self.offsets, other.offsets),
            extreme(min, self.source, other.source),
            _least(self.sources, other.sources),
            self.are_comparable and other.are_comparable,
        )

    def are_before(self, rows: pa.Table) -> pa.BooleanArray:
        """Whether row changes are before the first rows; null where nothing compares them.

        Rows are compared by their positions at the source where both have one, since a producer that starts
        again sends rows a second time; else by their offsets in one partition. A row with a lower offset
        than the first row of its partition is before it if its position is greater: a row that is sent again
        has a higher offset, so such positions are of two servers.
        """
        source, found = rows["source"].combine_chunks(), pa.nulls(rows.num_rows, pa.bool_())
        if self.source is not None and self.are_comparable:
            found = _are_less(source, self.source)
        for number, offset in self.offsets.items():
            there = pc.equal(rows["partition"], number).combine_chunks()
            by_offset = pc.if_else(there, pc.less(rows["offset"], offset).combine_chunks(), None)
            found = pc.coalesce(found, by_offset)
            if number in self.sources:
                started_again = pc.and_(by_offset, pc.invert(_are_less(source, self.sources[number])))
                found = pc.or_kleene(found, pc.fill_null(started_again, fill_value=False))
        return found


def first_rows_of(rows: pa.Table) -> FirstRows:
    """The first of row changes of one partition; at least one."""
    offset, number = pc.min(rows["offset"]).as_py(), rows["partition"][0].as_py()
    source = _extreme(rows["source"].combine_chunks().drop_null(), "min")
    return FirstRows({number: offset}, source, {} if source is None else {number: source})


def _least(one: Mapping[int, Any], other: Mapping[int, Any]) -> dict[int, Any]:
    numbers = sorted(one.keys() | other.keys())
    return {number: extreme(min, one.get(number), other.get(number)) for number in numbers}


def extreme(choose: Any, *values: Any) -> Any:
    """Return the least or the greatest of what is known of some values; None if none is."""
    return choose((one for one in values if one is not None), default=None)


def _extreme(sources: pa.ListArray, kind: str) -> tuple[int, ...] | None:
    """The least or the greatest of lists of numbers, member by member from the first."""
    if not len(sources):
        return None
    if (size := _size(sources)) is None:
        choose = min if kind == "min" else max
        return choose(tuple(map(int, one)) for one in sources.to_pylist())
    found: list[int] = []
    for at in range(size):
        members = pc.list_element(sources, at)
        ends = pc.min_max(members)
        if ends["min"] != ends["max"]:
            sources = sources.filter(pc.equal(members, ends[kind]))
        found.append(int(ends[kind].as_py()))
    return tuple(found)


def _are_less(sources: pa.ListArray, limit: tuple[int, ...]) -> pa.BooleanArray:
    """Whether lists of numbers are before one; null where there is no list."""
    if _size(sources.drop_null()) != len(limit):
        found = (None if one is None else tuple(map(int, one)) < limit for one in sources.to_pylist())
        return pa.array(found, pa.bool_())
    less, equal = pa.scalar(False), pa.scalar(True)
    for at, number in enumerate(limit):
        members = pc.list_element(sources, at)
        value = pa.scalar(number, members.type)
        less = pc.or_(less, pc.and_(equal, pc.less(members, value)))
        equal = pc.and_(equal, pc.equal(members, value))
    return less


def _size(sources: pa.ListArray) -> int | None:
    """How many members each list has; None where they differ, or one is null."""
    sizes = pc.min_max(pc.list_value_length(sources)).as_py()
    return sizes["min"] if sizes["min"] == sizes["max"] and not sources.flatten().null_count else None
