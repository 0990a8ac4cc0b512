"""Replay of dead letters: applies records to their tables that could not be decoded or applied earlier.

A dead letter is a record that was moved to the dead-letter topic because it could not be decoded or applied.
A replay decodes it again with the current config and schemas, and applies it. It must not undo changes that
were applied since then. So the replay also reads the later records of the letters' topic, and applies the
newest change of each row. "Letter" below always means a dead letter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tidesink.config import Config
from tidesink.errors import AccountingError, ConfigError, SchemaRefusedError, SourceError, StaleProgressError
from tidesink.events import TableId
from tidesink.sinks.batch.reports import KafkaRead
from tidesink.sinks.batch.source import KafkaSource, RecordReader
from tidesink.sinks.batch.tasks import RangeTask, RangeTooLargeError
from tidesink.sinks.jobs.base import (
    Attempt,
    BatchPlan,
    Go,
    Hold,
    Inputs,
    Job,
    ReadingJob,
    Reduction,
    Services,
    TaskRun,
    Verdict,
    next_batch,
)
from tidesink.sinks.jobs.changes import check_partitions, missed
from tidesink.sinks.jobs.executor import SparkExecutor, TaskResults, check_counted, released_on_error
from tidesink.sinks.jobs.run import run_batch
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.kafka.offsets import (
    OffsetRange,
    TopicOffsets,
    topic_progress,
)
from tidesink.sinks.laws.counts import Account, BatchSummary, EventCounts, account_of
from tidesink.sinks.letters.tasks import (
    Bounds,
    EventKeys,
    LetterFetch,
    LetterReader,
    LetterRows,
    SortedLetters,
    event_places,
    faults_in,
    limited_reads,
    offsets_by_partition,
    sorted_letters,
)
from tidesink.sinks.letters.topic import Chosen, DeadLetters, Letter, Outcome
from tidesink.sinks.runtime.context import StopFlag, WorkerContext, signals_kept, stop_on_signals
from tidesink.sinks.runtime.control import NOTHING_ASKED, Pauses, read_controls
from tidesink.sinks.runtime.observers import ALIVE_SECONDS, Heartbeat, is_alive, seconds_since_beat
from tidesink.sinks.snapshots.asked_keys import load_keys
from tidesink.sinks.snapshots.parts import Snapshot
from tidesink.sinks.snapshots.source_keys import (
    compared_columns,
    limits_at_target,
    no_resync,
    open_target_reader,
)
from tidesink.sinks.spark.digests import named_keys, with_matches
from tidesink.sinks.spark.errors import raised_task_errors
from tidesink.sinks.state.progress import TopicProgress
from tidesink.sinks.state.source_reads import SourceRead, Standing, standing_of
from tidesink.sinks.worker.counters import TableCounters
from tidesink.sinks.worker.open_table import OpenTable
from tidesink.sinks.worker.run import assembled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.sinks.decode.schema_source import Decoding
    from tidesink.sinks.schema_changes.decisions import SchemaDecision
    from tidesink.sinks.schema_changes.row_ddl import RowDecision
    from tidesink.sinks.spark.digests import ComparedColumn, Limit
    from tidesink.sinks.state.progress import Progress
    from tidesink.sinks.targets.base import ApplyResult, StagedPart, TaskRows


@dataclass(frozen=True)
class ReplayReport:
    """The result of a replay. ``account`` counts row events, the other fields count letters.

    Attributes:
        table: The table.
        account: The events of the letters that were replayed. Its ``dead_lettered`` counts letters that still
            cannot be decoded.
        waiting: Letters beyond the table's applied offsets. The worker reads these records itself.
        expired: Letters that were not replayed, because later records of their topic have expired.
        former: Letters that were not replayed, because their topic was since deleted and created again under
            the same name. The records that followed them no longer exist.
        version: The version of the table in the target after the replay.
        settled: Letters that need no replay, because a later resync repaired their rows.
        unsure: Letters that were not replayed, because a snapshot or resync read their rows, and it is
            unknown whether it did so before or after the letter's change.
        later: Letters that were not replayed yet, because they have changes above the bound of the next cut.
    """

    table: TableId
    account: Account = field(default_factory=Account)
    waiting: int = 0
    expired: int = 0
    former: int = 0
    version: str = ""
    settled: int = 0
    unsure: int = 0
    later: int = 0

    @property
    def left(self) -> int:
        """Number of chosen letters that stay in the dead-letter topic, because they were not replayed."""
        stay = self.waiting + self.expired + self.former + self.unsure + self.later
        return self.account.dead_lettered + stay


def replay(config: Config, chosen: Chosen) -> ReplayReport:
    """Replay the chosen letters of one table. No worker of the pipeline may run at the same time.

    Raises:
        ConfigError: the table's mode cannot apply changes out of order, its topic is compacted, or the
            letters come from several topics.
        StaleProgressError: a worker of the pipeline runs, or took over the table during the replay.
        SourceError: the table's topic does not exist, or was replaced.
        TidesinkError: a step failed. Nothing is lost: letters that were not replayed stay in the dead-letter
            topic.
    """
    _refuse_mode(config, TableId(*str(chosen.table).partition(".")[::2]))
    flag = StopFlag()
    with signals_kept(), assembled(config, (), flag) as context:
        _refuse_beside_worker(config, seconds_since_beat(context.store, config.pipeline))
        beat = Heartbeat(context.store, config.pipeline)
        beat.beat()
        stop_on_signals(flag)
        try:
            return _replay(context, chosen)
        finally:
            beat.end()


def _refuse_mode(config: Config, table: TableId) -> None:
    mode = config.table_config(table).mode
    if mode != "upsert":
        raise ConfigError(
            f"A table with mode: {mode} cannot replay dead letters. Only mode: upsert can decide which "
            "change of a row is newer. Load the table again, or drop the letters (`tidesink dlq drop "
            "TABLE`).",
            table=str(table),
        )


def refuse_replay(config: Config, table: TableId, seconds: float | None) -> None:
    """Check, before Spark starts, that dead letters of a table can be replayed now.

    ``seconds``: seconds since the last heartbeat of a worker of the pipeline; None if there was no worker.

    Raises:
        ConfigError: the table's mode cannot apply changes out of order.
        StaleProgressError: a worker of the pipeline runs.
    """
    _refuse_mode(config, table)
    _refuse_beside_worker(config, seconds)


def _refuse_beside_worker(config: Config, seconds: float | None) -> None:
    if is_alive(seconds):
        raise StaleProgressError(
            f"A worker of {config.pipeline} is running (last heartbeat {seconds:.0f} s ago), and a replay "
            "would take over its tables. Stop the worker first. If it was killed, wait until its last "
            f"heartbeat is {ALIVE_SECONDS:.0f} s old."
        )


def _replay(context: WorkerContext, chosen: Chosen) -> ReplayReport:
    letters = context.dead_letters()
    table = _table_of(context, str(chosen.table))
    _refuse_mode(context.config, table)
    topics = sorted({letter.topic for letter in letters.letters(chosen)})
    if not topics:
        return ReplayReport(table)
    if len(topics) > 1:
        raise ConfigError(
            f"The dead letters of {table} come from several topics: {', '.join(topics)}. Replay the letters "
            "of the table's current topic one by one, as TOPIC[PARTITION]@OFFSET, and drop the others.",
            table=str(table),
        )
    opened = OpenTable(context, topics[0], table, TableCounters(), Pauses(table))
    try:
        return ReplayTask(context, opened).replay(letters, replace(chosen, topic=topics[0]))
    finally:
        opened.close()


def _table_of(context: WorkerContext, name: str) -> TableId:
    """Return the table that ``name`` (``schema.table``) means. Schema and table names may contain dots.

    Raises:
        ConfigError: the name has no dot, and no known table has it.
    """
    tables = [status.table for status in context.store.statuses(context.config.pipeline)]
    matches = [table for table in tables if str(table) == name]
    schema, dot, rest = name.partition(".")
    if not matches and not (schema and dot and rest):
        raise ConfigError(f"{name!r} is not a table's name. Give it as schema.table.")
    return matches[0] if matches else TableId(schema, rest)


class ReplayTask:
    """Opens a table as a worker does, and replays its dead letters."""

    def __init__(self, context: WorkerContext, opened: OpenTable) -> None:
        """Create the task. ``opened``: the table, which may be closed."""
        self.topic = opened.topic
        self.table = opened.table
        self._context = context
        self._opened = opened
        self._snapshot = Snapshot(context, opened.settings)

    def replay(self, letters: DeadLetters, chosen: Chosen) -> ReplayReport:
        """Apply the chosen letters, mark them in the dead-letter topic as done, and return the counts."""
        offsets = self._context.offsets_of(self.topic, self.table)
        if offsets.compaction is not None and self._opened.settings.sequence_by == "kafka":
            raise ConfigError(
                f"The topic has cleanup.policy={offsets.compaction.policy}. Compaction may have removed "
                "newer changes and deletes of the letters' rows, and a replay would undo these. Load the "
                "table again, or drop the letters (`tidesink dlq drop TABLE`).",
                table=str(self.table),
                topic=self.topic,
            )
        retry = self._context.retry(self.table)
        hold = self._opened.open(offsets)
        progress = topic_progress(hold.progress, self.topic)
        ours = replace(chosen, topic_id=offsets.topic_id)
        every = letters.letters(chosen)
        mine = [letter for letter in every if ours.fits(letter, kind=letter.error)]
        report = ReplayReport(self.table, former=len(every) - len(mine))
        if progress is None:
            return replace(report, waiting=len(mine))
        if progress.read_again:
            raise ConfigError(
                "The table was rewound and is still below the offsets that it had reached before the rewind. "
                "Start the worker, and replay the letters once the table has reached these offsets again.",
                table=str(self.table),
            )
        self._opened.continuity.check_topic(progress, offsets)
        sorted_ = sorted_letters(mine, self._bounds(progress, offsets), self._source_reads)
        report = replace(report, waiting=sorted_.waiting, expired=sorted_.expired, unsure=sorted_.unsure)
        if sorted_.ready:
            done = self._replay(letters, sorted_, progress, found=offsets)
            report = replace(report, account=done.account, version=done.version, later=done.later)
            report = replace(report, settled=done.settled, unsure=report.unsure + done.unsure)
        outcomes = [*map(_dealt_with, sorted_.settled)]
        if outcomes:
            retry.call(lambda: letters.settle(outcomes, table=self.table))
        return replace(report, settled=report.settled + len(outcomes))

    @property
    def _source_reads(self) -> tuple[SourceRead, ...]:
        """The snapshots and resyncs of the table. Letters must not overwrite their rows with older values.

        Empty with ``sequence_by: source``, because then each row's position shows which value is newer.
        """
        progress = self._opened.progress
        assert progress is not None  # noqa: S101  (the table is open)
        return progress.source_reads if self._opened.settings.sequence_by == "kafka" else ()

    def _replay(
        self, letters: DeadLetters, chosen: SortedLetters, progress: TopicProgress, *, found: TopicOffsets
    ) -> Replayed:
        pipeline = self._context.config.pipeline
        every = letters.letters(Chosen(pipeline, str(self.table), self.topic, topic_id=found.topic_id))
        following = self._following(chosen.first, progress, found)
        reader = LetterReader.of(self._context.source, letters.topic, chosen.ready, every, following)
        # The letters were read before, so the log is not asked whether it still has earlier records.
        plan = BatchPlan(_ranges(self.topic, chosen.first, progress), found, follows=lambda *_: True)
        done = self._context.retry(self.table).call(lambda: self._replay_letters(plan, reader))
        self._context.failpoints.reach("replayed")
        self._save_batch()
        self._context.retry(self.table).call(lambda: letters.settle(done.outcomes, table=self.table))
        return done

    def _save_batch(self) -> None:
        """Save the number of the replay's batch in the table's status.

        So a worker notices if the table is later restored from a backup without this batch.
        """
        store = self._context.store
        held = self._opened.hold.table.committed() if self._opened.hold else None
        status = store.status_of(self._context.config.pipeline, self.table)
        if status is not None and held is not None:
            hold = self._opened.counters.life, self._opened.counters.epoch
            store.save_status(replace(status, life=hold[0], epoch=hold[1], batch=held.batch))

    def _replay_letters(self, plan: BatchPlan, reader: LetterReader) -> Replayed:
        opened = self._opened
        assert opened.decoding is not None  # noqa: S101  (opened before)
        # A letter that still cannot be decoded stays a dead letter, and does not stop the others.
        settings = opened.settings.model_copy(update={"bad_record": "dead-letter"})
        services = Services(self._context, opened.decoding, settings, SparkExecutor(opened.session))
        job = LettersJob(plan, reader, opened.session(), self._source_reads)
        return replay_letters(job, self._replay_hold(), services)

    def _replay_hold(self) -> Hold:
        """Return the open table with the decisions of people and the state of its snapshot as of now."""
        context, hold = self._context, self._opened.hold
        assert hold is not None  # noqa: S101  (opened before)
        asked = read_controls(context.store, context.config.pipeline).get(self.table, NOTHING_ASKED)
        self._snapshot.asked = asked.snapshot
        progress = hold.progress
        # The worker reads records that wait for a later bound again, including letters among them.
        bound = progress.bound
        loads = self._snapshot.is_under_way(progress)
        outside = self._snapshot.is_outside(progress, bound)
        return replace(hold, accepted=asked.accepted, loads=loads, bound=bound, outside=outside)

    def _bounds(self, progress: TopicProgress, offsets: TopicOffsets) -> dict[int, Bounds]:
        """Return the range of offsets per partition in which letters can be replayed.

        The range begins just before the oldest record in Kafka, because Kafka must still have all records
        that follow a letter. With ``sequence_by: source``, it begins at 0. It ends at the applied offset;
        with cuts, at the first row that waits for a later bound.
        """
        return {
            number: Bounds(self._since(number, offsets), partition.low_water_offset)
            for number, partition in progress.partitions.items()
        }

    def _since(self, partition: int, offsets: TopicOffsets) -> int:
        if self._opened.settings.sequence_by == "source":
            return 0  # the target stores each row's position, so later records are not needed
        lost = [n for n in self._added_after(partition, offsets) if offsets.partitions[n].earliest > 0]
        # Later changes may be in partitions that were added since. If records of these have expired, no
        # letter can be replayed.
        return offsets.partitions[partition].latest if lost else offsets.partitions[partition].earliest - 1

    def _following(
        self, first: Mapping[int, int], progress: TopicProgress, offsets: TopicOffsets
    ) -> tuple[FetchRange, ...]:
        """Return the ranges of applied records that may have newer changes of the letters' rows.

        Empty if the target stores each row's position, because then these records are not needed.
        ``first``: offset of the first letter per partition.
        """
        if self._opened.settings.sequence_by == "source":
            return ()
        starts = {number: offset + 1 for number, offset in first.items()}
        for number in first:
            for added in self._added_after(number, offsets):
                starts[added] = 0
        ends = {n: partition.next_offset for n, partition in progress.partitions.items()}
        return tuple(
            FetchRange(self.topic, n, min(start, ends[n]), ends[n], offsets.topic_id)
            for n, start in starts.items()
            if n in ends
        )

    def _added_after(self, partition: int, offsets: TopicOffsets) -> frozenset[int]:
        """Return the numbers of the partitions that were added to the topic after ``partition``.

        Later changes of a row may be in an added partition, because the number of partitions decides into
        which one a key is written.
        """
        grown = self._context.topics.grown(offsets)
        added = [frozenset(offsets.partitions) - frozenset(ends) for ends in grown if partition in ends]
        return frozenset().union(*added)


def _ranges(topic: str, first: Mapping[int, int], progress: TopicProgress) -> tuple[OffsetRange, ...]:
    ends = {number: partition.next_offset for number, partition in progress.partitions.items()}
    return tuple(OffsetRange(topic, number, offset, ends[number]) for number, offset in first.items())


_EMPTIED: Final = (
    "The table was truncated after the first of these letters, so a replay would bring deleted rows back. "
    "Drop the letters from before the truncation (`tidesink dlq drop TABLE --below {offset}`), then replay "
    "the others."
)


_TO_EMPTY: Final = (
    "A DDL statement that the worker has not yet applied empties the table. Let the worker apply it first, "
    "then replay the letters."
)


_NO_MATCHES: Final = "CAST(array() AS ARRAY<BOOLEAN>) AS matches"


_TOO_MANY: Final = (
    "The letters of one partition, together with later records of their rows, have more than {} MiB. Replay "
    "the letters in parts: those of one error (`tidesink dlq replay TABLE --error NAME`), or single letters "
    "(`tidesink dlq replay TABLE PLACE`)."
)


def _dealt_with(letter: Letter) -> Outcome:
    return Outcome(letter.topic_id, letter.topic, letter.partition, letter.offset)


class Replayed(NamedTuple):
    """The result of a replay's batch.

    ``account``: counts of the letters' events. ``outcomes``: each letter's result, which
    ``DeadLetters.settle`` records. ``version``: version of the table in the target after the batch, or empty
    if nothing was written. ``settled``, ``unsure``, ``later``: numbers of letters that were left out of the
    batch, for the reasons that ``ReplayReport`` describes.
    """

    account: Account
    outcomes: tuple[Outcome, ...]
    version: str
    settled: int = 0
    unsure: int = 0
    later: int = 0


class LetterEvent(NamedTuple):
    """A row event in a letter.

    ``commit_ts``: the event's commit_ts, or None. ``has_read``: for each snapshot or resync that was limited
    to some rows, by its number: True if it read the event's row, False if not, None if that is unknown.
    """

    commit_ts: int | None
    has_read: Mapping[int, bool | None]

    def of_row(self, read: SourceRead) -> bool | None:
        """Return True if a limited snapshot or resync has read the event's row; None if that is unknown.

        ``read``: the snapshot or resync.
        """
        return self.has_read.get(read.number)


def standing_of_letter(
    letter: Letter, events: Iterable[LetterEvent], reads: Sequence[SourceRead], bound: int | None
) -> Standing | Literal["later"]:
    """Decide from the events of a letter if it can be replayed. It is replayed as a whole or not at all.

    Args:
        letter: The letter.
        events: The letter's row events.
        reads: The table's snapshots and resyncs.
        bound: With cuts, the highest commit_ts that may be applied now.

    Returns:
        ``open``: the letter can be replayed. ``settled``: a later resync repaired its rows. ``unsure``: a
        snapshot or resync read its rows, possibly after the letter's change. ``later``: one of its changes is
        above the bound.
    """
    standings = set[Standing]()
    position = letter.topic, letter.partition, letter.offset
    for event in events:
        if bound is not None and event.commit_ts is not None and event.commit_ts > bound:
            return "later"
        standings.add(standing_of(reads, *position, event.of_row))
    if len(standings) > 1:
        return "unsure"
    return standings.pop() if standings else "open"  # a letter without row events changes no row


class LettersToday(NamedTuple):
    """The contents of the replayed letters, decoded with the current config and schemas.

    ``counts``: counts of the letters' events. ``read``: number of letters with records of this table.
    ``bad``: error class and reason of each letter that still cannot be decoded, by partition and offset.
    ``hashes``: hashes of the primary keys of the letters' rows.
    """

    counts: EventCounts
    read: int
    bad: Mapping[tuple[int, int], tuple[str, str]]
    hashes: npt.NDArray[np.uint64]

    @property
    def rows(self) -> int:
        """Number of row events in the letters."""
        return self.counts.applied + self.counts.superseded


@dataclass(frozen=True)
class LetterResults:
    """The results of the tasks that read letters, and later records of the letters' rows.

    Attributes:
        found: The results of the last read.
        today: The contents of the replayed letters.
        chosen: The replayed letters.
        left_out: Letters that are left out because of their events, by the reason (``standing_of_letter``).
    """

    found: TaskResults
    today: LettersToday
    chosen: tuple[Letter, ...]
    left_out: Mapping[str, Sequence[Letter]]

    @property
    def read(self) -> KafkaRead:
        """Nothing: letters are counted in the dead-letter topic, and later records were counted before."""
        return KafkaRead(0, 0)

    @property
    def summary(self) -> BatchSummary:
        """The summary of the last read."""
        return self.found.summary

    @property
    def staged(self) -> tuple[StagedPart, ...] | None:
        """None, because tasks must not stage the rows."""
        return self.found.staged

    @property
    def frame(self) -> DataFrame:
        """The reduced rows."""
        return self.found.frame

    @property
    def payloads(self) -> TaskRows | None:
        """The packed rows, or None if ranges were reduced together."""
        return self.found.payloads

    def rows_of(self, kind: str, columns: Sequence[str]) -> TaskRows:
        """Return columns of the reduced rows with this value of ``_op``."""
        return self.found.rows_of(kind, columns)

    @property
    def hashes(self) -> npt.NDArray[np.uint64]:
        """The hashes of the keys of all rows to apply."""
        return self.found.hashes

    @property
    def row_by_row_records(self) -> int:
        """The number of records that the slower row codec decoded."""
        return self.found.row_by_row_records

    def release(self) -> None:
        """Release the stored rows."""
        self.found.release()


@dataclass(frozen=True)
class LettersJob(ReadingJob):
    """Applies the newest change of each row in the letters.

    The newest change of a row may be in a later record of the topic and not in a letter. That change was
    applied before, and is then applied again.

    Attributes:
        plan: From the first letter of each partition to the table's offset. They do not change.
        reader: Reads the letters, and later records.
        session: The table's Spark session.
        reads: The table's snapshots and resyncs. Letters must not overwrite their rows with older values.
    """

    plan: BatchPlan
    reader: LetterReader
    session: SparkSession = field(repr=False)
    reads: Sequence[SourceRead] = ()

    @property
    def failpoints(self) -> Collection[str]:
        """The steps of the read, and the last one before the commit. ``replayed`` takes the others' place."""
        return ("read", "decoded", "reduced", "staged")

    @property
    def writes_letters(self) -> bool:
        """False: a letter that cannot be decoded stays the letter that it is."""
        return False

    def catch_up(self, decoding: Decoding) -> None:
        """Read schemas and DDL that must be known before the letters are decoded."""
        decoding.catch_up(self.plan.ranges, self.plan.found)

    def inputs(self, attempt: Attempt) -> Inputs:
        """Return the letters, and later records.

        Watermarks do not limit the task, because all its records were read before (``was_read``). Tasks must
        not stage rows: the rows to write are known only after the second read.
        """
        plan = attempt.plan
        task = RangeTask.of(plan.ranges, plan.found.topic_id, attempt.decode_plan)
        return Inputs(replace(task, was_read=True), self.reader, wish=None)

    def read(self, run: TaskRun, hold: Hold, services: Services) -> LetterResults:
        """Decode the letters, and reduce them to the newest change of each row.

        The first read decodes only the letters, to find the keys of their rows. The second one reads the
        letters and the later records of the topic, and keeps only rows with these keys. The second read is
        skipped if the target stores each row's position, or if a letter has a schema that the decode plan
        does not have yet.

        Raises:
            ConfigError: the letters and the later records are larger than a task may hold in memory.
        """
        table = services.settings.table
        reader, left_out = _Examination(self, run.task, hold, services).result()
        found = _results(run._replace(reader=reader.letters))
        with released_on_error(found.release):
            check_counted(found, table)
            bad = faults_in(found.frame) if found.summary.counts.bad else {}
            today = LettersToday(found.summary.counts, found.read.records, bad, found.hashes)
        if reader.following and not found.summary.counts.unplanned:
            found.release()
            found = _results(run._replace(task=_following(run.task, reader, today), reader=reader))
        return LetterResults(found, today, reader.chosen, left_out)

    def accept(self, reduction: Reduction, hold: Hold, services: Services) -> Verdict:  # noqa: ARG002
        """Decide if the letters can be applied as they were read.

        Raises:
            SourceError: the table was truncated after a letter.
        """
        again = missed(reduction, services)
        if again is not None:
            return again
        check_partitions(reduction, services)
        if reduction.truncates:
            truncate = reduction.summary.truncates[0]
            raise SourceError(
                _EMPTIED.format(offset=truncate.offset),
                topic=truncate.place.topic,
                partition=truncate.place.partition,
                offset=truncate.offset,
            )
        return Go()

    def emptied(self, rows: RowDecision, hold: Hold) -> Job:  # noqa: ARG002
        """Refuse the replay until the worker has emptied the table.

        Raises:
            SourceError: always.
        """
        raise SourceError(_TO_EMPTY, table=str(hold.progress.table))

    def applies(self, summary: BatchSummary) -> bool:
        """Return False if no letter changes a row."""
        return bool(summary.counts.rows)

    def progress(self, reduction: Reduction, hold: Hold, services: Services) -> Progress:  # noqa: ARG002
        """Return the table's progress, with unchanged offsets."""
        return next_batch(hold, reduction.summary.max_commit_ts)

    def decided(self, decision: SchemaDecision) -> SchemaDecision:
        """Return the decision without the columns to drop. The worker drops them."""
        return replace(decision, drops=())

    def account(
        self,
        reduction: Reduction,
        result: ApplyResult | None,
        rejected: int,  # noqa: ARG002
        services: Services,
    ) -> Account:
        """Return the counts of the batch's events, which must add up (read = applied + other outcomes).

        ``read`` is counted in the dead-letter topic. The tasks and the target count the other numbers.

        Raises:
            AccountingError: The target counts more or fewer rows than it was given.
        """
        results = reduction.results
        assert isinstance(results, LetterResults)  # noqa: S101  (``read`` returns them)
        _check_applied(reduction.summary.counts, result, services)
        count, today = len(results.chosen), results.today
        # letters whose records belong to another table by the current config
        foreign = count - today.read
        read = count + today.counts.read - today.counts.messages
        if services.sequenced:
            account = account_of(
                reduction.summary.counts,
                kafka_records=count,
                applied_rows=result.applied if result else 0,
                rejected=today.counts.bad,
                stale_rows=result.stale if result else 0,
            )
            return replace(account, read=read, without_row=account.without_row + foreign)
        stay, rows, bad = _events_that_stay(results), today.rows, today.counts.bad
        return Account(read, stay, rows - stay, today.counts.read - rows - bad + foreign, bad)


def _results(run: TaskRun) -> TaskResults:
    try:
        return run.results()
    except RangeTooLargeError as exc:
        # Smaller ranges would not help: the batch has the same letters.
        raise ConfigError(_TOO_MANY.format(run.task.most_bytes >> 20), **exc.context) from exc


def _following(task: RangeTask, reader: LetterReader, today: LettersToday) -> RangeTask:
    """Return the task that reads the letters, and later changes of their rows."""
    own = offsets_by_partition(reader.chosen)
    places = {part.place for part in task.ranges}
    added = (part for part in reader.following if part.place not in places)
    return replace(task, ranges=(*task.ranges, *added), only=LetterRows(np.unique(today.hashes), own))


def _check_applied(counts: EventCounts, result: ApplyResult | None, services: Services) -> None:
    if result is not None and result.applied + result.stale != counts.rows:
        raise AccountingError(
            f"The batch had {counts.rows} rows to apply, but the target counts "
            f"{result.applied} applied rows and {result.stale} rows that are older than the stored ones. "
            "Compare the table with its source (`tidesink diff`), and report this as a bug.",
            table=str(services.settings.table),
        )


def _events_that_stay(results: LetterResults) -> int:
    """Return the number of rows to apply whose newest change is in a letter.

    The newest change of the other rows is in a later record of the topic.
    """
    if not results.summary.counts.rows:
        return 0
    own = {(letter.partition, letter.offset) for letter in results.chosen}
    return sum(position in own for position in event_places(results.frame))


@dataclass(frozen=True)
class _Examination:
    """Decides from the events of a job's letters which of them can be replayed.

    ``task``: decodes the letters.
    """

    job: LettersJob
    task: RangeTask
    hold: Hold
    services: Services

    def result(self) -> tuple[LetterReader, Mapping[str, Sequence[Letter]]]:
        """Return a reader of the letters that can be replayed, and the other letters by the reason.

        Letters are only examined with cuts, by their events' commit_ts, or after a snapshot that was limited
        to some rows, by their events' keys.
        """
        bound, everything, reads = self.hold.bound, self.job.reader, self.job.reads
        asked = [letter for letter in everything.chosen if bound is not None or limited_reads(letter, reads)]
        if not asked:
            return everything, {}
        events = self._events(tuple(asked))
        left_out = dict[str, list[Letter]]()
        for letter in asked:
            position = letter.partition, letter.offset
            standing = standing_of_letter(letter, events.get(position, ()), reads, bound)
            if standing != "open":
                left_out.setdefault(standing, []).append(letter)
        out = {(excluded.partition, excluded.offset) for some in left_out.values() for excluded in some}
        if not out:
            return everything, {}
        chosen = tuple(letter for letter in everything.chosen if (letter.partition, letter.offset) not in out)
        return everything.of_some(self.services.context.dead_letters().topic, chosen), left_out

    def _events(self, letters: tuple[Letter, ...]) -> Mapping[tuple[int, int], list[LetterEvent]]:
        """Return the row events of each letter, by the letter's partition and offset."""
        context, name, task = self.services.context, self.services.settings.table, self.task
        keys = EventKeys(task.plan)
        limited = [read for read in self.job.reads if read.limited]
        source: RecordReader = KafkaSource(LetterFetch.of(context.dead_letters().topic, letters))
        with ExitStack() as opened, raised_task_errors(table=str(name)):
            session = self.job.session
            columns: tuple[ComparedColumn, ...] = ()
            if limited:
                missing, shape = no_resync(name), task.plan.shape
                reader = opened.enter_context(open_target_reader(context, shape, missing=missing))
                session, columns = reader.session, compared_columns(reader, shape.key_columns)
            frame = source.over(session, task.ranges, keys, keys.ddl)
            if not limited:
                frame = frame.selectExpr("partition", "offset", "commit_ts", _NO_MATCHES)
            else:
                wanted = {read.number: self._wanted(read, columns, session) for read in limited}
                covered = {number: rows for number, rows in wanted.items() if rows is not None}
                limited = [read for read in limited if read.number in covered]
                frame = with_matches(frame, columns, [*covered.values()])
            events = dict[tuple[int, int], list[LetterEvent]]()
            for row in frame.collect():
                matches = zip((read.number for read in limited), row["matches"], strict=True)
                event = LetterEvent(row["commit_ts"], dict(matches))
                events.setdefault((row["partition"], row["offset"]), []).append(event)
        return events

    def _wanted(
        self, read: SourceRead, columns: Sequence[ComparedColumn], session: SparkSession
    ) -> DataFrame | tuple[Limit, ...] | None:
        """Return the keys, or the bounds of the key, to which a snapshot or resync was limited.

        None if they are no longer known, because the state store has lost the keys or the table's key has
        changed.
        """
        if read.keys is None:
            return limits_at_target(self.task.plan, read.where)
        asked = load_keys(self.services.context.store, read.keys)
        names = [column.name for column in columns]
        if asked is None or {*names} != {*asked.columns}:
            return None
        return named_keys(session, [*asked.in_order_of(names)], columns)


def replay_letters(job: LettersJob, hold: Hold, services: Services) -> Replayed:
    """Apply the newest change of each row in the letters, and return counts and outcomes.

    Raises:
        SourceError: the table was truncated after a letter, or Kafka cannot be read.
        SchemaRefusedError: the letters need a schema change that waits for a user's decision.
        TidesinkError: the target or the state store failed.
    """
    outcome = run_batch(job, hold, services)
    if outcome.pending:
        raise SchemaRefusedError(
            "The letters need a change of the table's columns that waits for a decision "
            f"({outcome.pending[0].change}). Start the worker. Once it reports the change, decide with "
            "`tidesink ddl approve TABLE` or `tidesink ddl reject TABLE`.",
            table=str(services.settings.table),
        )
    results = outcome.results
    assert isinstance(results, LetterResults) and outcome.account is not None  # noqa: S101, PT018
    bad, topic = results.today.bad, job.plan.found
    outcomes = tuple(
        Outcome(topic.topic_id, topic.topic, *position, *bad.get(position, (None, None)))
        for position in ((letter.partition, letter.offset) for letter in results.chosen)
    )
    left = results.left_out
    settled = map(_dealt_with, left.get("settled", ()))
    return Replayed(
        outcome.account,
        (*outcomes, *settled),
        outcome.version,
        *(len(left.get(name, ())) for name in ("settled", "unsure", "later")),
    )
