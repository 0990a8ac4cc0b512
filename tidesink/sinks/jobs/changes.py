"""The job that applies changes from Kafka, and the decisions of jobs about what the tasks have read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidesink.errors import MixedPartitionsError, SchemaMismatchError
from tidesink.sinks.batch.tasks import RangeTask
from tidesink.sinks.decode.schema_source import Decoding, Missed
from tidesink.sinks.jobs.base import (
    Again,
    Attempt,
    BatchPlan,
    Cut,
    Empty,
    Go,
    Hold,
    Inputs,
    Job,
    ReadingJob,
    Reduction,
    Services,
    SinkWish,
    Verdict,
    next_progress,
    without_records,
)
from tidesink.sinks.kafka.offsets import cut_before
from tidesink.sinks.laws.reduce import mixed_message
from tidesink.sinks.runtime.shared_reads import TableRecords

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidesink.sinks.batch.source import RecordReader
    from tidesink.sinks.schema_changes.row_ddl import RowDecision
    from tidesink.sinks.state.progress import LastRecord, Progress


@dataclass(frozen=True)
class Changes(ReadingJob):
    """Applies changes from the table's topic.

    ``reader``: reads the records from Kafka, or from a read that several tables share.
    """

    plan: BatchPlan
    reader: RecordReader

    def catch_up(self, decoding: Decoding) -> None:
        """Read schemas and DDL that must be known before these offsets are decoded."""
        decoding.catch_up(self.plan.ranges, self.plan.found)

    def inputs(self, attempt: Attempt) -> Inputs:
        """Returns the offset ranges, and their reader."""
        ranges, topic_id = attempt.plan.ranges, attempt.plan.found.topic_id
        # The size of a range that several tables read together does not show how many rows this table has.
        wish = SinkWish.of(ranges, fewest=not isinstance(self.reader, TableRecords))
        return Inputs(RangeTask.of(ranges, topic_id, attempt.decode_plan), self.reader, wish)

    def accept(self, reduction: Reduction, hold: Hold, services: Services) -> Verdict:  # noqa: ARG002
        """Decide if the batch can be applied as it was read."""
        again = missed(reduction, services)
        if again is not None:
            return again
        check_partitions(reduction, services)
        if reduction.summary.counts.bad and services.settings.bad_record != "dead-letter":
            return cut_at_bad_record(reduction)
        return cut_at_truncate(reduction) if reduction.truncates else Go()

    def emptied(self, rows: RowDecision, hold: Hold) -> Job:  # noqa: ARG002
        """Returns the job that empties the table. The changes are read by the next batch."""
        return Empty(without_records(self.plan), rows, self._shared)

    @property
    def _shared(self) -> Mapping[int, LastRecord]:
        return self.reader.last if isinstance(self.reader, TableRecords) else {}

    def progress(self, reduction: Reduction, hold: Hold, services: Services) -> Progress:  # noqa: ARG002
        """Returns the table's progress after these offsets."""
        after = next_progress(
            hold,
            reduction.plan,
            commit_ts=reduction.summary.max_commit_ts,
            places=reduction.summary.places,
            shared=self._shared,
        )
        return replace(after, decided=reduction.settled.rows.decided)


def missed(reduction: Reduction, services: Services) -> Again | None:
    """Look up schemas, columns and DDL that the decode plan lacked for a batch.

    Returns Again if the batch must be read with the new plan, else None.

    Raises:
        SchemaMismatchError: A schema or a column cannot be found.
    """
    decoding, summary, read = services.decoding, reduction.summary, reduction.results.read
    lacking = Missed(summary, reduction.plan.ranges, reduction.plan.found)
    if read.unlisted:
        decoding.meet_others(lacking)
        return Again()
    if reduction.truncates and len(reduction.plan.found.partitions) > 1:
        return Again(truncates=False)
    # DDL of other tables is included: it may exchange a partition or a name with this table.
    if read.ddl and decoding.take_ddl(lacking):
        return Again()
    if summary.is_to_learn and _learnt(lacking, services):
        return Again()
    # If DDL of rows was read after the batch started, rows of the batch may be later than this DDL.
    return Again() if decoding.row_ddl() != reduction.settled.statements else None


def _learnt(lacking: Missed, services: Services) -> bool:
    if services.decoding.learn(lacking):
        return True
    unplanned = lacking.summary.unplanned
    if lacking.summary.counts.unplanned:
        raise SchemaMismatchError(
            "The schemas of some records, or columns of their rows, cannot be found: "
            f"ids {unplanned.value_ids}, columns {unplanned.columns}. "
            "Check that the schema registry has these ids, or add a definition of the table under tables.",
            table=str(services.settings.table),
        )
    return False


def check_partitions(reduction: Reduction, services: Services) -> None:
    """Check that all changes of a key are in one partition, unless the table is ordered by the source.

    Raises:
        MixedPartitionsError: A key is in several partitions.
    """
    mixed = reduction.summary.mixed_keys
    if mixed and not services.sequenced and services.history is None:
        raise MixedPartitionsError(mixed_message(mixed), table=str(services.settings.table))


def cut_at_bad_record(reduction: Reduction) -> Cut:
    """Returns the batch that ends, in each partition, before the first bad record."""
    bad_records = reduction.summary.bad_records
    first = {(bad.place.topic, bad.place.partition): bad.offset for bad in bad_records}
    ranges = cut_before(reduction.plan.ranges, first)
    return Cut(replace(reduction.plan, ranges=ranges), bad_records[0])


def cut_at_truncate(reduction: Reduction) -> Cut | Go:
    """Returns the batch that ends before the truncate, or has only the truncate if this is its first record.

    The truncate can be applied if the batch has no other record.
    """
    (part,), (truncate,) = reduction.plan.ranges, reduction.summary.truncates
    if part.records == 1:
        return Go()
    end = truncate.offset if truncate.offset > part.start else part.start + 1
    # A bad record after the truncate is found again in a later batch. The table must not pause at it while
    # rows before it are not applied.
    return Cut(replace(reduction.plan, ranges=(part._replace(end=end),)))
