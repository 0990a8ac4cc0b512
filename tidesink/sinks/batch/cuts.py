"""Reading all tables up to one shared commit_ts, so that they show one instant of the source (ADR 36).

The bound W is the commit_ts that all tables of a pipeline are read up to until the cut at W is published. A
batch applies rows with a commit_ts up to W. Rows with a greater commit_ts are not applied: they wait and are
read again under a higher bound.

In each partition, reading ends at the first watermark with a commit_ts of W or more. This watermark proves
that the producer has sent every row up to W, and that all of its re-sends that began in front of the
watermark are complete. A row up to W after this watermark can only be a re-send of a row that was already
sent.

A table's progress records the bound W. For each partition it also records the offset up to which the
partition was read, and the offset of the first waiting row. When the bound changes, the partition is read
again from the first waiting row. Some rows are then applied a second time, which leaves the same final state
(L2).

Once all partitions of a table have passed W, the table holds exactly the changes up to W. The bound may be
raised at any time, because no row above it was applied.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tidesink.ddl.history import ddl_moment
from tidesink.events import LOGICAL_BITS
from tidesink.sinks.batch.counts import PartitionSummary, greatest, latest, least
from tidesink.sinks.batch.records import DDL, WATERMARK, DecodedRecords
from tidesink.sinks.state.progress import LastRecord, PartitionProgress, Progress, TopicProgress

Marks = Mapping[int, int]
NO_MARKS: Final[Marks] = {}


def up_to_bound(
    batches: Iterable[pa.RecordBatch], decode: Callable[[pa.RecordBatch], DecodedRecords], bound: int | None
) -> Iterator[DecodedRecords]:
    """Decodes the records of a range up to its first watermark with a commit_ts at or above ``bound``.

    The batches must be in the order of their offsets. A batch may have been split by table
    (``SplitByTable``). Then the part with the watermarks must come first.

    Args:
        batches: Kafka records of one range.
        decode: Decodes one batch.
        bound: A commit_ts, or None to decode all records.
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
    """Yields the offsets of DDL events with a commit time above the bound. These events wait, as rows do.

    An event with an impossible commit time is not yielded, because no bound would ever reach that time.
    """
    for one in found.others:
        moment = ddl_moment(one.commit_ts, None, one.time) if one.kind == DDL else None
        if moment is not None and moment > bound:
            yield one.offset


def _first_at(found: DecodedRecords, bound: int) -> int | None:
    """Returns the offset of the first watermark whose commit_ts is at or above the bound; None if there is no
    such watermark.
    """
    marks = (one for one in found.others if one.kind == WATERMARK and one.commit_ts is not None)
    return min((one.offset for one in marks if (one.commit_ts or 0) >= bound), default=None)


def starts(progress: Progress, topic: str, bound: int | None) -> dict[int, int]:
    """Returns the next offset to read in each partition of a topic when it is read under ``bound``.

    ``bound``: a commit_ts, or None to read without a bound.
    """
    known = progress.topics.get(topic)
    parts = known.partitions if known else {}
    return {number: _under(at, progress.bound, bound).next_offset for number, at in parts.items()}


def settled(topic: TopicProgress | None, applied: Mapping[int, int], bound: int | None) -> dict[int, int]:
    """Returns, for each partition, the offset below which all records are applied.

    ``applied``: the next offset to read in each partition. If a row of the partition waits for a higher
    bound, the result is the offset of the first waiting row instead.
    """
    known = topic.partitions if topic is not None and bound is not None else {}
    low = {number: at.low_water_offset for number, at in known.items()}
    return {number: min(at, low.get(number, at)) for number, at in applied.items()}


def topic_after(
    before: Progress,
    topic: str,
    topic_id: str,
    read: Mapping[int, tuple[int, PartitionSummary | None]],
    bound: int | None,
    *last: Mapping[int, LastRecord],
) -> TopicProgress:
    """Returns a topic's progress after a batch of its ranges is applied.

    Args:
        before: The table's progress before the batch.
        topic: The topic's name.
        topic_id: Kafka's id of the topic.
        read: The end offset and the summary of the range that was read, by partition.
        bound: The commit_ts that the batch was read up to, or None.
        last: Last records by partition, in addition to the last records in the summaries.
    """
    old = before.topics[topic].partitions if topic in before.topics else {}
    stands = {number: _under(at, before.bound, bound) for number, at in old.items()}
    new = {
        number: _after(stands.get(number), end, found, [one.get(number) for one in last])
        for number, (end, found) in read.items()
    }
    return TopicProgress(topic, topic_id, {**stands, **new})


def _after(
    at: PartitionProgress | None, end: int, found: PartitionSummary | None, last: Iterable[LastRecord | None]
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
    """Returns the newest of the records with an offset below ``following``, the next offset to read.

    The batch may end before the end of the range that was read: at a bad record, a truncate, or a watermark
    at the bound. Records after that point do not count.
    """
    return latest(*(one for one in records if one is not None and one.offset < following))


def _under(at: PartitionProgress, earlier_bound: int | None, bound: int | None) -> PartitionProgress:
    """Converts a partition's progress from an earlier bound (``earlier_bound``) to a new bound (``bound``).

    If the bound changes, rows that waited are read again, and so is the watermark at which reading ended.
    """
    if earlier_bound is None and bound is not None:
        # Without a bound, the worker also read records after the watermark. These may be the beginning of a
        # re-send, so the watermark no longer proves that no re-send is open.
        return replace(at, watermark=None)
    if bound == earlier_bound or at.low_water_offset >= at.next_offset:
        return at
    mark = at.watermark if at.watermark is None or earlier_bound is None else min(at.watermark, earlier_bound)
    return replace(at, next_offset=at.low_water_offset, watermark=mark)


def marks_at(progress: Progress, topic: str, bound: int | None, ends: Mapping[int, int]) -> Marks:
    """Returns ``bound`` as the watermark of each partition that was read up to its offset in ``ends``.

    ``ends``: the end offsets of the partitions, looked up after the source had passed the bound. So all rows
    up to the bound are below them. Without a bound, the result is empty.
    """
    if bound is None:
        return NO_MARKS
    known = starts(progress, topic, bound)
    return {number: bound for number, at in known.items() if number in ends and at >= ends[number]}


def passed_partitions(progress: Progress, topic: str, bound: int | None, marks: Marks = NO_MARKS) -> set[int]:
    """Returns the numbers of the partitions in which every change up to ``bound`` is applied.

    These partitions are not read further under this bound: records after the watermark that passed it may be
    the beginning of a re-send. ``marks``: for each partition, its newest watermark after the committed
    offset, if only watermarks lie between that offset and the watermark.
    """
    known = progress.topics.get(topic)
    if known is None or bound is None:
        return set()
    same = progress.bound == bound
    return {
        number
        for number, at in known.partitions.items()
        # Rows that waited under the previous bound may have a commit_ts up to this bound.
        if (same or at.low_water_offset >= at.next_offset)
        and (greatest([_under(at, progress.bound, bound).watermark, marks.get(number)]) or 0) >= bound
    }


def stands_at(
    progress: Progress, topic: str, partitions: Collection[int], bound: int, marks: Marks = NO_MARKS
) -> bool:
    """Returns True if the table holds exactly the changes up to ``bound``: all partitions have passed it.

    ``marks``: for each partition, its newest watermark after the committed offset, if only watermarks lie
    between that offset and the watermark.
    """
    known = progress.topics.get(topic)
    numbers = {*partitions, *(known.partitions if known else ())}
    return bool(numbers) and numbers <= passed_partitions(progress, topic, bound, marks)


def is_outside(progress: Progress, bound: int | None, *, loads: bool) -> bool:
    """Returns True if the cut at ``bound`` has to omit the table.

    A table is omitted while its snapshot is loading, and as long as the snapshot's rows may be newer than the
    bound. ``loads``: True while the table's snapshot is not complete.
    """
    seen = progress.snapshot.seen if progress.snapshot is not None else None
    return loads or (seen is not None and (bound is None or seen > bound))


def least_bound(progress: Progress, *, outside: bool = False) -> int | None:
    """Returns the smallest bound (a commit_ts) under which a table can be read, or None for any bound.

    The bound must not be smaller than the greatest commit_ts that was applied. ``outside``: True if cuts omit
    the table. Then the applied changes do not restrict the bound.
    """
    return progress.bound if outside else greatest([progress.bound, progress.commit_ts])


def next_bound(newest: int, *, every: float, above: int | None, least: int | None) -> int:
    """Returns the bound (commit_ts) of the next cut.

    Bounds are multiples of ``every``. The result is the last multiple up to ``newest``, unless ``above`` or
    ``least`` requires a later multiple.

    Args:
        newest: A commit_ts that the source has passed.
        every: The interval between cuts in seconds.
        above: The bound of the last cut, or None. The new bound is greater.
        least: The smallest bound that the tables can be read under, or None. The new bound is not smaller.
    """
    step = max(1, round(every * 1000)) << LOGICAL_BITS
    found = newest - newest % step
    if above is not None:
        found = max(found, (above // step + 1) * step)
    if least is not None:
        found = max(found, -(-least // step) * step)
    return found
