"""Positions of the first and last rows of a writer schema, to find out which rows are earlier.

Positions of several batches are joined by the minimum or the maximum of each number. So the result for a set
of rows does not depend on how they were divided into batches, nor on whether a row was read twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc


class RowPosition(NamedTuple):
    """The position of a row in its partition.

    ``offset``: the record's offset. ``source``: the position in the source database's log
    (``Position.source``), or None if the record has none. ``time``: Kafka's timestamp in ms since 1970, or
    None if it was not read.
    """

    offset: int
    source: tuple[int, ...] | None = None
    time: int | None = None


class RowSpan(NamedTuple):
    """The minimum and the maximum of offset, source position and time of some rows of one partition.

    ``first``: the minimum of each. ``last``: the maximum of each. The three need not come from the same row.
    """

    first: RowPosition
    last: RowPosition

    @classmethod
    def of(cls, row: RowPosition) -> RowSpan:
        """Returns the span of a single row: the row is the minimum and the maximum."""
        return cls(row, row)

    def joined(self, other: RowSpan) -> RowSpan:
        """Returns the minimum and the maximum over the rows of this span and of another one."""
        firsts = zip(self.first, other.first, strict=True)
        lasts = zip(self.last, other.last, strict=True)
        return RowSpan(
            RowPosition(*(extreme(min, *two) for two in firsts)),
            RowPosition(*(extreme(max, *two) for two in lasts)),
        )


def span_of(rows: pa.Table) -> RowSpan:
    """Returns the first and the last position of some row changes, which must be of one partition.

    ``rows`` must not be empty.
    """
    ends = pc.min_max(rows["offset"]).as_py()
    sources = rows["source"].combine_chunks().drop_null()
    return RowSpan(
        RowPosition(ends["min"], _extreme(sources, "min")), RowPosition(ends["max"], _extreme(sources, "max"))
    )


class FirstRows(NamedTuple):
    """The positions of the first known rows that were written with some writer schemas.

    Attributes:
        offsets: The smallest offset in each partition.
        source: The smallest source position in all partitions.
        sources: The smallest source position in each partition.
        are_comparable: True if source positions can be compared. False if positions restarted, as binlog
            files do on a promoted server: a position does not contain its server.
    """

    offsets: Mapping[int, int] = {}
    source: tuple[int, ...] | None = None
    sources: Mapping[int, tuple[int, ...]] = {}
    are_comparable: bool = True

    def joined(self, other: FirstRows) -> FirstRows:
        """Returns the earlier of the two objects' rows: the minimum of each offset and source position."""
        return FirstRows(
            _least(self.offsets, other.offsets),
            extreme(min, self.source, other.source),
            _least(self.sources, other.sources),
            self.are_comparable and other.are_comparable,
        )

    def are_before(self, rows: pa.Table) -> pa.BooleanArray:
        """Returns True for each row change that is earlier than these first rows; null if this is not known.

        Two rows that have source positions are compared by them, because a restarted producer sends rows a
        second time with higher offsets. Other rows are compared by their offsets if they are in the same
        partition.

        A row with a smaller offset than the first row of its partition is also earlier if its source position
        is greater. In this case the two positions come from different servers: a row that is sent a second
        time would have a greater offset.
        """
        source, flags = rows["source"].combine_chunks(), pa.nulls(rows.num_rows, pa.bool_())
        if self.source is not None and self.are_comparable:
            flags = _are_less(source, self.source)
        for number, offset in self.offsets.items():
            there = pc.equal(rows["partition"], number).combine_chunks()
            by_offset = pc.if_else(there, pc.less(rows["offset"], offset).combine_chunks(), None)
            flags = pc.coalesce(flags, by_offset)
            if number in self.sources:
                started_again = pc.and_(by_offset, pc.invert(_are_less(source, self.sources[number])))
                flags = pc.or_kleene(flags, pc.fill_null(started_again, fill_value=False))
        return flags


def first_rows_of(rows: pa.Table) -> FirstRows:
    """Returns the first positions in some row changes, which must be of one partition.

    ``rows`` must not be empty.
    """
    offset, number = pc.min(rows["offset"]).as_py(), rows["partition"][0].as_py()
    source = _extreme(rows["source"].combine_chunks().drop_null(), "min")
    return FirstRows({number: offset}, source, {} if source is None else {number: source})


def _least(one: Mapping[int, Any], other: Mapping[int, Any]) -> dict[int, Any]:
    numbers = sorted(one.keys() | other.keys())
    return {number: extreme(min, one.get(number), other.get(number)) for number in numbers}


def extreme(choose: Any, *values: Any) -> Any:
    """Returns the minimum or the maximum of the values that are not None; None if all values are None.

    ``choose``: ``min`` or ``max``.
    """
    return choose((value for value in values if value is not None), default=None)


def _extreme(sources: pa.ListArray, kind: str) -> tuple[int, ...] | None:
    """Returns the smallest or the greatest of the source positions (lists of numbers); None without
    positions.

    ``kind``: ``min`` or ``max``. Positions are compared number by number.
    """
    if not len(sources):
        return None
    if (size := _size(sources)) is None:
        choose = min if kind == "min" else max
        return choose(tuple(map(int, source)) for source in sources.to_pylist())
    numbers: list[int] = []
    for index in range(size):
        members = pc.list_element(sources, index)
        ends = pc.min_max(members)
        if ends["min"] != ends["max"]:
            sources = sources.filter(pc.equal(members, ends[kind]))
        numbers.append(int(ends[kind].as_py()))
    return tuple(numbers)


def _are_less(sources: pa.ListArray, limit: tuple[int, ...]) -> pa.BooleanArray:
    """Returns a mask of the source positions (lists of numbers) that are less than ``limit``; null for a
    null.
    """
    if _size(sources.drop_null()) != len(limit):
        flags = (
            None if source is None else tuple(map(int, source)) < limit for source in sources.to_pylist()
        )
        return pa.array(flags, pa.bool_())
    less, equal = pa.scalar(False), pa.scalar(True)
    for index, number in enumerate(limit):
        members = pc.list_element(sources, index)
        value = pa.scalar(number, members.type)
        less = pc.or_(less, pc.and_(equal, pc.less(members, value)))
        equal = pc.and_(equal, pc.equal(members, value))
    return less


def _size(sources: pa.ListArray) -> int | None:
    """Returns the common length of the source positions (lists); None if lengths differ or one is null."""
    sizes = pc.min_max(pc.list_value_length(sources)).as_py()
    return sizes["min"] if sizes["min"] == sizes["max"] and not sources.flatten().null_count else None
