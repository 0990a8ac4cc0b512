"""What is applied once a batch is: the progress that its commit carries."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tidesink.sinks.progress import PartitionProgress, Progress, TopicProgress
from tidesink.sinks.ranges import OffsetRange
from tidesink.sinks.summary import BatchSummary, Place

if TYPE_CHECKING:
    from tidesink.sinks.batch.run import BatchPlan, Hold, Reduction


def next_progress(hold: Hold, reduction: Reduction) -> Progress:
    """What will be applied once the batch is."""
    before, plan, summary = hold.progress, reduction.plan, reduction.summary
    return replace(
        before,
        epoch=hold.epoch,
        batch=before.batch + 1,
        topics={**before.topics, plan.found.topic: _topic_progress(before, plan, summary)},
        commit_ts=_later(before.commit_ts, summary.max_commit_ts),
    )


def _topic_progress(before: Progress, plan: BatchPlan, summary: BatchSummary) -> TopicProgress:
    topic = plan.found.topic
    old = before.topics[topic].partitions if topic in before.topics else {}
    new = {
        part.partition: _partition_progress(old.get(part.partition), part, summary) for part in plan.ranges
    }
    return TopicProgress(topic, plan.found.topic_id, {**old, **new})


def _partition_progress(
    old: PartitionProgress | None, part: OffsetRange, summary: BatchSummary
) -> PartitionProgress:
    here = summary.places.get(Place(part.topic, part.partition))
    return PartitionProgress(
        next_offset=part.end,
        low_water_offset=part.end,
        applied_commit_ts=_later(
            old.applied_commit_ts if old else None, here.max_commit_ts if here else None
        ),
        watermark=_later(old.watermark if old else None, here.watermark if here else None),
    )


def _later(*moments: int | None) -> int | None:
    return max((moment for moment in moments if moment is not None), default=None)
