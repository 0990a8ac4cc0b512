"""How a table is read up to a bound, so that all tables stand at one instant of their source (ADR 36).

A bound W is a commit_ts that all tables of a pipeline share until the cut at W is published. A batch under it
applies the rows up to W and leaves out those above, which wait. Of a partition it reads nothing behind the
first watermark that is W or later: whatever the producer sent again of rows up to W is complete there, and a
row up to W behind it is one that was sent again. Progress has the bound, and of each partition the offset up
to which it was read and the first that waits. Under another bound the partition is read again from there, in
the order of its offsets: rows that are applied once more end as they ended before (L2).

So a table whose partitions have all passed W holds exactly the changes up to W, and a bound may be raised at
any time: nothing above it was applied.
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
    """What the records of a range hold, up to its first watermark that is the bound or later.

    The batches are in the order of their offsets; of one that is split, the part with watermarks is first.
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
    """The offsets of DDL above the bound: what it does to rows waits as they do.

    One with an impossible time is taken as one without a time. No bound would ever come to it.
    """
    for one in found.others:
        moment = ddl_moment(one.commit_ts, None, one.time) if one.kind == DDL else None
        if moment is not None and moment > bound:
            yield one.offset


def _first_at(found: DecodedRecords, bound: int) -> int | None:
    """The offset of the first watermark at or above the bound."""
    marks = (one for one in found.others if one.kind == WATERMARK and one.commit_ts is not None)
    return min((one.offset for one in marks if (one.commit_ts or 0) >= bound), default=None)


def starts(progress: Progress, topic: str, bound: int | None) -> dict[int, int]:
    """Where each partition of a topic is read next under a bound; None: without one."""
    known = progress.topics.get(topic)
    parts = known.partitions if known else {}
    return {number: _under(at, progress.bound, bound).next_offset for number, at in parts.items()}


def settled(topic: TopicProgress | None, applied: Mapping[int, int], bound: int | None) -> dict[int, int]:
    """The offsets up to which a topic is applied under a bound, and before which no row waits."""
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
    """A topic's progress once ranges of it are applied, by their ends and what they held.

    ``last``: records that were read of the partitions besides those of the ranges' summaries.
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
    """Return the last record before the next offset.

    A batch can end before the range that was read: at a bad record, a truncate, or a bound.
    """
    return latest(*(one for one in records if one is not None and one.offset < following))


def _under(at: PartitionProgress, former: int | None, bound: int | None) -> PartitionProgress:
    """Where a partition stands under a bound, that was read under the former one.

    Rows that waited are read again, and with them the watermark that ended the read.
    """
    if former is None and bound is not None:
        # What was read behind a watermark without a bound may be the first part of what is sent again.
        return replace(at, watermark=None)
    if bound == former or at.low_water_offset >= at.next_offset:
        return at
    mark = at.watermark if at.watermark is None or former is None else min(at.watermark, former)
    return replace(at, next_offset=at.low_water_offset, watermark=mark)


def marks_at(progress: Progress, topic: str, bound: int | None, ends: Mapping[int, int]) -> Marks:
    """The bound, for each partition that is read to the end which it had behind the bound (``ends``)."""
    if bound is None:
        return NO_MARKS
    known = starts(progress, topic, bound)
    return {number: bound for number, at in known.items() if number in ends and at >= ends[number]}


def passed_partitions(progress: Progress, topic: str, bound: int | None, marks: Marks = NO_MARKS) -> set[int]:
    """The partitions that have nothing more to apply up to a bound, by number: they are not read further.

    What stands behind the watermark that passed it may be the first part of what is sent again. ``marks``: by
    partition the greatest watermark that is known to stand behind what was read, with nothing but watermarks
    before it.
    """
    known = progress.topics.get(topic)
    if known is None or bound is None:
        return set()
    same = progress.bound == bound
    return {
        number
        for number, at in known.partitions.items()
        # What waits under another bound may be up to this one.
        if (same or at.low_water_offset >= at.next_offset)
        and (greatest([_under(at, progress.bound, bound).watermark, marks.get(number)]) or 0) >= bound
    }


def stands_at(
    progress: Progress, topic: str, partitions: Collection[int], bound: int, marks: Marks = NO_MARKS
) -> bool:
    """Whether a table holds exactly the changes up to a bound: each partition of its topic has passed it.

    ``marks``: as of ``passed_partitions``.
    """
    known = progress.topics.get(topic)
    numbers = {*partitions, *(known.partitions if known else ())}
    return bool(numbers) and numbers <= passed_partitions(progress, topic, bound, marks)


def is_outside(progress: Progress, bound: int | None, *, loads: bool) -> bool:
    """Whether a cut at a bound leaves a table out: it has rows of the database that may be later.

    ``loads``: its snapshot is not over.
    """
    seen = progress.snapshot.seen if progress.snapshot is not None else None
    return loads or (seen is not None and (bound is None or seen > bound))


def least_bound(progress: Progress, *, outside: bool = False) -> int | None:
    """The least bound that a table can be read under: nothing above it may be applied. None: any.

    ``outside``: cuts leave the table out, whatever was applied to it.
    """
    return progress.bound if outside else greatest([progress.bound, progress.commit_ts])


def next_bound(newest: int, *, every: float, above: int | None, least: int | None) -> int:
    """The bound of the next cut: of instants ``every`` seconds apart the last that is not after ``newest``.

    ``newest``: a commit_ts that the source is known to have passed. The bound is above ``above``, the last
    cut, and not below ``least``, if that takes a later instant.
    """
    step = max(1, round(every * 1000)) << LOGICAL_BITS
    found = newest - newest % step
    if above is not None:
        found = max(found, (above // step + 1) * step)
    if least is not None:
        found = max(found, -(-least // step) * step)
    return found
