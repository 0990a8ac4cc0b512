"""Reading a table up to a bound, so that all tables show one instant of their source (ADR 36).

A bound W is a commit_ts that all tables of a pipeline share until the cut at W is published. A batch under
this bound applies the rows up to W. Rows above W wait. In each partition, nothing is read after the first
watermark that is W or later. At this watermark every row up to W was sent, and repetitions of rows that the
producer began earlier are complete. Any later row up to W is another repetition.

Progress contains the bound, and for each partition the offset up to which it was read and the first offset
that waits. Under another bound the partition is read again from the offset that waits, in the order of its
offsets. Rows that are applied once more have the same final state (L2).

So a table whose partitions have all passed W holds exactly the changes up to W. The bound may be raised at
any time, because nothing above it was applied.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tidesink.ddl.history import ddl_moment
from tidesink.events import LOGICAL_BITS
from tidesink.sinks.batch.counts import PlaceSummary, greatest, latest, least
from tidesink.sinks.batch.records import DDL, WATERMARK, DecodedRecords
from tidesink.sinks.state.progress import LastRecord, PartitionProgress, Progress, TopicProgress

Marks = Mapping[int, int]
NO_MARKS: Final[Marks] = {}


def up_to_bound(
    batches: Iterable[pa.RecordBatch], decode: Callable[[pa.RecordBatch], DecodedRecords], bound: int | None
) -> Iterator[DecodedRecords]:
    """Decodes the records of a range, up to the first watermark that is at the bound or later.

    The batches are in the order of their offsets. If a batch is split, the part with watermarks comes first.
    """
    if bound is None:
        yield from map(decode, batches)
        return
    passed: int | None = None
    for batch in batches:
        found = batch if passed is None else _read_to(batch, passed)
        if passed is not None and not found.num_rows:
            if pc.min(batch.column("offset")).as_py() > passed:
                return
            continue
        decoded = decode(found)
        at = _first_at(decoded, bound)
        if at is not None and (passed is None or at < passed):
            passed = at
            decoded = decode(_read_to(found, passed))
            decoded.passed = passed
        decoded.waits = least([decoded.waits, *_ddl_above(decoded, bound)])
        yield decoded


def _read_to(batch: pa.RecordBatch, last: int) -> pa.RecordBatch:
    return batch.filter(pc.less_equal(batch.column("offset"), last))


def _ddl_above(found: DecodedRecords, bound: int) -> Iterator[int]:
    """Yields the offsets of DDL events above the bound, which wait like rows.

    An event with an impossible time is treated as one without a time, because no bound would ever reach it.
    """
    for one in found.others:
        moment = ddl_moment(one.commit_ts, None, one.time) if one.kind == DDL else None
        if moment is not None and moment > bound:
            yield one.offset


def _first_at(found: DecodedRecords, bound: int) -> int | None:
    """Returns the offset of the first watermark at or above the bound."""
    marks = (one for one in found.others if one.kind == WATERMARK and one.commit_ts is not None)
    return min((one.offset for one in marks if (one.commit_ts or 0) >= bound), default=None)


def starts(progress: Progress, topic: str, bound: int | None) -> dict[int, int]:
    """Returns the next offset to read in each partition of a topic under a bound (None: no bound)."""
    known = progress.topics.get(topic)
    parts = known.partitions if known else {}
    return {number: _under(at, progress.bound, bound).next_offset for number, at in parts.items()}


def settled(topic: TopicProgress | None, applied: Mapping[int, int], bound: int | None) -> dict[int, int]:
    """Returns the offsets up to which a topic is applied under a bound, with no earlier row waiting."""
    known = topic.partitions if topic is not None and bound is not None else {}
    low = {number: at.low_water_offset for number, at in known.items()}
    return {number: min(at, low.get(number, at)) for number, at in applied.items()}


def topic_after(
    before: Progress,
    topic: str,
    topic_id: str,
    read: Mapping[int, tuple[int, PlaceSummary | None]],
    bound: int | None,
    *last: Mapping[int, LastRecord],
) -> TopicProgress:
    """Returns a topic's progress after ranges of it are applied.

    ``read``: the end of each partition's range, and the summary of its records. ``last``: last records of
    the partitions that are not part of these summaries.
    """
    old = before.topics[topic].partitions if topic in before.topics else {}
    stands = {number: _under(at, before.bound, bound) for number, at in old.items()}
    new = {
        number: _after(stands.get(number), end, found, [one.get(number) for one in last])
        for number, (end, found) in read.items()
    }
    return TopicProgress(topic, topic_id, {**stands, **new})


def _after(
    at: PartitionProgress | None, end: int, found: PlaceSummary | None, last: Iterable[LastRecord | None]
) -> PartitionProgress:
    passed = found.passed if found else None
    following = end if passed is None else passed + 1
    waited = at.low_water_offset if at is not None and at.low_water_offset < at.next_offset else None
    waits = waited if waited is not None or found is None else found.waits
    applied = at.applied_to if at is not None else following
    return PartitionProgress(
        next_offset=following,
        low_water_offset=following if waits is None else waits,
        applied_commit_ts=greatest(
            [at.applied_commit_ts if at else None, found.max_commit_ts if found else None]
        ),
        watermark=greatest([at.watermark if at else None, found.watermark if found else None]),
        again_to=applied if following < applied else None,
        last=_last_before(following, at.last if at else None, found.last if found else None, *last),
    )


def _last_before(following: int, *records: LastRecord | None) -> LastRecord | None:
    """Returns the last record before the next offset.

    A batch can end before the range that was read: at a bad record, a truncate, or a bound.
    """
    return latest(*(one for one in records if one is not None and one.offset < following))


def _under(at: PartitionProgress, former: int | None, bound: int | None) -> PartitionProgress:
    """Returns the progress under ``bound`` of a partition that was read under the bound ``former``.

    Rows that waited are read again, and so is the watermark that ended the read.
    """
    if former is None and bound is not None:
        # Without a bound, records after a watermark were read. They may be the first part of a repetition.
        return replace(at, watermark=None)
    if bound == former or at.low_water_offset >= at.next_offset:
        return at
    mark = at.watermark if at.watermark is None or former is None else min(at.watermark, former)
    return replace(at, next_offset=at.low_water_offset, watermark=mark)


def marks_at(progress: Progress, topic: str, bound: int | None, ends: Mapping[int, int]) -> Marks:
    """Returns the bound as the watermark of each partition that is read up to its offset in ``ends``.

    ``ends``: the ends that the partitions had after the source passed the bound.
    """
    if bound is None:
        return NO_MARKS
    known = starts(progress, topic, bound)
    return {number: bound for number, at in known.items() if number in ends and at >= ends[number]}


def passed_partitions(progress: Progress, topic: str, bound: int | None, marks: Marks = NO_MARKS) -> set[int]:
    """Returns the numbers of the partitions that have nothing more to apply up to a bound.

    They are not read further: records after the watermark that passed the bound may be the first part of a
    repetition. ``marks``: the newest watermark of each partition beyond the committed offset, if only
    watermarks lie between.
    """
    known = progress.topics.get(topic)
    if known is None or bound is None:
        return set()
    same = progress.bound == bound
    return {
        number
        for number, at in known.partitions.items()
        # Rows that wait under another bound may be at or below this bound.
        if (same or at.low_water_offset >= at.next_offset)
        and (greatest([_under(at, progress.bound, bound).watermark, marks.get(number)]) or 0) >= bound
    }


def stands_at(
    progress: Progress, topic: str, partitions: Collection[int], bound: int, marks: Marks = NO_MARKS
) -> bool:
    """Returns True if a table holds exactly the changes up to a bound: all partitions have passed it.

    ``marks``: see ``passed_partitions``.
    """
    known = progress.topics.get(topic)
    numbers = {*partitions, *(known.partitions if known else ())}
    return bool(numbers) and numbers <= passed_partitions(progress, topic, bound, marks)


def is_outside(progress: Progress, bound: int | None, *, loads: bool) -> bool:
    """Returns True if a cut at a bound omits a table, because it has database rows that may be later.

    ``loads``: True while the table's snapshot is not complete.
    """
    seen = progress.snapshot.seen if progress.snapshot is not None else None
    return loads or (seen is not None and (bound is None or seen > bound))


def least_bound(progress: Progress, *, outside: bool = False) -> int | None:
    """Returns the least bound under which a table can be read, or None if any bound is possible.

    Nothing above the bound may be applied already. ``outside``: True if cuts omit the table, so that applied
    changes do not matter.
    """
    return progress.bound if outside else greatest([progress.bound, progress.commit_ts])


def next_bound(newest: int, *, every: float, above: int | None, least: int | None) -> int:
    """Returns the bound of the next cut: the last of the instants ``every`` seconds apart up to ``newest``.

    Args:
        newest: A commit_ts that the source has passed.
        every: The interval between cuts in seconds.
        above: The bound of the last cut. The new bound is greater, even if this needs a later instant.
        least: The least bound that the tables can be read under. The new bound is not smaller.
    """
    step = max(1, round(every * 1000)) << LOGICAL_BITS
    found = newest - newest % step
    if above is not None:
        found = max(found, (above // step + 1) * step)
    if least is not None:
        found = max(found, -(-least // step) * step)
    return found
