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

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from tidesink.events import LOGICAL_BITS
from tidesink.sinks.laws.counts import PartitionSummary, greatest, latest
from tidesink.sinks.state.progress import LastRecord, PartitionProgress, Progress, TopicProgress

Marks = Mapping[int, int]
NO_MARKS: Final[Marks] = {}


def starts(progress: Progress, topic: str, bound: int | None) -> dict[int, int]:
    """Returns the next offset to read in each partition of a topic when it is read under ``bound``.

    ``bound``: a commit_ts, or None to read without a bound.
    """
    topic_progress = progress.topics.get(topic)
    parts = topic_progress.partitions if topic_progress else {}
    return {number: _under(part, progress.bound, bound).next_offset for number, part in parts.items()}


def settled(topic: TopicProgress | None, applied: Mapping[int, int], bound: int | None) -> dict[int, int]:
    """Returns, for each partition, the offset below which all records are applied.

    This is the offset of the first row that waits for a higher bound. If no row of the partition waits, it is
    the partition's offset in ``applied``, the next offsets to read.
    """
    parts = topic.partitions if topic is not None and bound is not None else {}
    low = {number: part.low_water_offset for number, part in parts.items()}
    return {number: min(offset, low.get(number, offset)) for number, offset in applied.items()}


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
        last: Further last records by partition: of records that were skipped without a commit, and of a
            shared read. The newest of these and of the summaries' last records is kept.
    """
    old = before.topics[topic].partitions if topic in before.topics else {}
    stands = {number: _under(part, before.bound, bound) for number, part in old.items()}
    new = {
        number: _after(stands.get(number), end, summary, [records.get(number) for records in last])
        for number, (end, summary) in read.items()
    }
    return TopicProgress(topic, topic_id, {**stands, **new})


def _after(
    previous: PartitionProgress | None,
    end: int,
    summary: PartitionSummary | None,
    last: Iterable[LastRecord | None],
) -> PartitionProgress:
    passed = summary.passed if summary else None
    following = end if passed is None else passed + 1
    waited = (
        previous.low_water_offset
        if previous is not None and previous.low_water_offset < previous.next_offset
        else None
    )
    waits = waited if waited is not None or summary is None else summary.waits
    applied = previous.applied_to if previous is not None else following
    return PartitionProgress(
        next_offset=following,
        low_water_offset=following if waits is None else waits,
        applied_commit_ts=greatest(
            [previous.applied_commit_ts if previous else None, summary.max_commit_ts if summary else None]
        ),
        watermark=greatest(
            [previous.watermark if previous else None, summary.watermark if summary else None]
        ),
        again_to=applied if following < applied else None,
        last=_last_before(
            following, previous.last if previous else None, summary.last if summary else None, *last
        ),
    )


def _last_before(following: int, *records: LastRecord | None) -> LastRecord | None:
    """Returns the newest of the given records whose offset is below ``following``, the next offset to read.

    The batch may end before the end of the range that was read: at a bad record, a truncate, or a watermark
    at the bound. A record after that point is ignored.
    """
    return latest(*(record for record in records if record is not None and record.offset < following))


def _under(part: PartitionProgress, earlier_bound: int | None, bound: int | None) -> PartitionProgress:
    """Returns a partition's progress under a new bound (``bound``), from its progress under an earlier bound.

    If the bound changes, the next offset moves back, so that the rows that waited and the watermark at which
    reading ended are read again.
    """
    if earlier_bound is None and bound is not None:
        # Without a bound, the worker also read records after the watermark. These may be the beginning of a
        # re-send, so the watermark no longer proves that no re-send is open.
        return part._replace(watermark=None)
    if bound == earlier_bound or part.low_water_offset >= part.next_offset:
        return part
    mark = (
        part.watermark
        if part.watermark is None or earlier_bound is None
        else min(part.watermark, earlier_bound)
    )
    return part._replace(next_offset=part.low_water_offset, watermark=mark)


def marks_at(progress: Progress, topic: str, bound: int | None, ends: Mapping[int, int]) -> Marks:
    """Returns ``bound`` as the watermark of each partition that was read up to its end offset.

    ``ends``: the end offset of each partition, looked up after the source had passed the bound. So all rows
    with a commit_ts up to the bound have smaller offsets. If ``bound`` is None, the result is empty.
    """
    if bound is None:
        return NO_MARKS
    next_offsets = starts(progress, topic, bound)
    return {
        number: bound for number, offset in next_offsets.items() if number in ends and offset >= ends[number]
    }


def passed_partitions(progress: Progress, topic: str, bound: int | None, marks: Marks = NO_MARKS) -> set[int]:
    """Returns the numbers of the partitions in which every change up to ``bound`` is applied.

    These partitions are not read further under this bound: the records after the watermark at the bound may
    be the beginning of a re-send. ``marks``: for each partition, its newest watermark after the committed
    offset, if only watermarks lie between that offset and the watermark.
    """
    topic_progress = progress.topics.get(topic)
    if topic_progress is None or bound is None:
        return set()
    same = progress.bound == bound
    return {
        number
        for number, part in topic_progress.partitions.items()
        # Rows that waited under the previous bound may have a commit_ts up to this bound.
        if (same or part.low_water_offset >= part.next_offset)
        and (greatest([_under(part, progress.bound, bound).watermark, marks.get(number)]) or 0) >= bound
    }


def stands_at(
    progress: Progress, topic: str, partitions: Collection[int], bound: int, marks: Marks = NO_MARKS
) -> bool:
    """Returns True if the table holds exactly the changes up to ``bound``: all partitions have passed it.

    ``marks``: for each partition, its newest watermark after the committed offset, if only watermarks lie
    between that offset and the watermark.
    """
    topic_progress = progress.topics.get(topic)
    numbers = {*partitions, *(topic_progress.partitions if topic_progress else ())}
    return bool(numbers) and numbers <= passed_partitions(progress, topic, bound, marks)


def is_outside(progress: Progress, bound: int | None, *, loads: bool) -> bool:
    """Returns True if the cut at ``bound`` (the tables' state as of this commit_ts) must omit the table.

    A cut omits a table while its snapshot is loading, and as long as the snapshot's rows may be newer than
    the bound. ``loads``: True while the table's snapshot is not complete.
    """
    seen = progress.snapshot.seen if progress.snapshot is not None else None
    return loads or (seen is not None and (bound is None or seen > bound))


def least_bound(progress: Progress, *, outside: bool = False) -> int | None:
    """Returns the smallest bound (a commit_ts) under which a table can be read, or None for any bound.

    If cuts include the table, the bound must not be smaller than the greatest commit_ts that was applied.
    ``outside``: True if cuts omit the table. Then the applied changes do not restrict the bound.
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
    bound = newest - newest % step
    if above is not None:
        bound = max(bound, (above // step + 1) * step)
    if least is not None:
        bound = max(bound, -(-least // step) * step)
    return bound
