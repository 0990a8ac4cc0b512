"""Replay of dead letters: applies records to their tables that could not be decoded or applied earlier.

A dead letter is a record that was moved to the dead-letter topic because it could not be decoded or applied.
A replay decodes it again with the current config and schemas, and applies it. It must not undo changes that
were applied since then. So the replay also reads the later records of the letters' topic, and applies the
newest change of each row. "Letter" below always means a dead letter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tidesink.config import Config
from tidesink.errors import AccountingError, ConfigError, SchemaRefusedError, SourceError, StaleProgressError
from tidesink.events import TableId
from tidesink.sinks.batch.context import StopFlag, WorkerContext, signals_kept, stop_on_signals
from tidesink.sinks.batch.counts import Account, BatchSummary, Truncate, account_of, greatest
from tidesink.sinks.batch.letters import (
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
from tidesink.sinks.batch.observers import ALIVE_SECONDS, Heartbeat, is_alive, seconds_since_beat
from tidesink.sinks.batch.row_ddl import TableEmptiesError
from tidesink.sinks.batch.run import Batch, BatchPlan, Reduction, released_on_error
from tidesink.sinks.batch.schema_changes import ChangesWaitError, Pending
from tidesink.sinks.batch.source import (
    KafkaRead,
    KafkaSource,
    RangeFrame,
    RecordReader,
    reduced_ranges,
    translated_read_errors,
)
from tidesink.sinks.batch.tasks import RangeTask, RangeTooLargeError
from tidesink.sinks.kafka.dead_letters import Chosen, DeadLetters, Letter, Outcome
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.kafka.offsets import (
    OffsetRange,
    TopicOffsets,
    topic_progress,
)
from tidesink.sinks.spark.digests import named_keys, with_matches
from tidesink.sinks.spark.errors import raised_task_errors
from tidesink.sinks.state.progress import SnapshotProgress, TopicProgress
from tidesink.sinks.state.source_reads import SourceRead, Standing, standing_of
from tidesink.sinks.targets.base import ApplyResult
from tidesink.sinks.targets.modes import kept_shape
from tidesink.sinks.worker.asked_keys import load_keys
from tidesink.sinks.worker.control import NOTHING_ASKED, Pauses, read_controls
from tidesink.sinks.worker.counters import TableCounters
from tidesink.sinks.worker.open_table import OpenTable
from tidesink.sinks.worker.run import assembled
from tidesink.sinks.worker.snapshot import Snapshot
from tidesink.sinks.worker.source_keys import (
    compared_columns,
    limits_at_target,
    no_resync,
    open_target_reader,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.sinks.spark.digests import ComparedColumn, Limit


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
        plan = BatchPlan(_ranges(self.topic, chosen.first, progress), found)
        done = self._context.retry(self.table).call(lambda: self._replay_batch(plan, reader).replay())
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

    def _replay_batch(self, plan: BatchPlan, reader: LetterReader) -> ReplayBatch:
        hold, decoding = self._opened.hold, self._opened.decoding
        assert hold is not None and decoding is not None  # noqa: S101, PT018  (opened before)
        context, progress = self._context, hold.progress
        asked = read_controls(context.store, context.config.pipeline).get(self.table, NOTHING_ASKED)
        self._snapshot.asked = asked.snapshot
        # The worker reads records that wait for a later bound again, including letters among them.
        bound = progress.bound
        loads = self._snapshot.is_under_way(progress)
        outside = self._snapshot.is_outside(progress, bound)
        return ReplayBatch(
            context,
            replace(hold, accepted=asked.accepted, loads=loads, bound=bound, outside=outside),
            decoding,
            # A letter that still cannot be decoded stays a dead letter, and does not stop the others.
            settings=self._opened.settings.model_copy(update={"bad_record": "dead-letter"}),
            session=self._opened.session,
            plan=plan,
            reader=reader,
            reads=self._source_reads,
        )

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

    ``summary``: counts of the letters' events. ``read``: number of letters with records of this table.
    ``bad``: error class and reason of each letter that still cannot be decoded, by partition and offset.
    ``hashes``: hashes of the primary keys of the letters' rows.
    """

    summary: BatchSummary
    read: int
    bad: Mapping[tuple[int, int], tuple[str, str]]
    hashes: npt.NDArray[np.uint64]

    @property
    def rows(self) -> int:
        """Number of row events in the letters."""
        return self.summary.applied + self.summary.superseded


class ReplayBatch(Batch):
    """Applies letters in one batch. An object runs once; a retry needs a new object.

    ``reads``: the table's snapshots and resyncs. Letters must not overwrite their rows with older values.
    """

    _letters: LettersToday

    def __init__(
        self, *parts: Any, reader: LetterReader, reads: Sequence[SourceRead] = (), **named: Any
    ) -> None:
        super().__init__(*parts, reader=reader, **named)
        self._reads = reads
        self._all = self._chosen = reader
        # Letters that are left out because of their events, by the reason (``standing_of_letter``).
        self._left_out: dict[str, list[Letter]] = {}

    def replay(self) -> Replayed:
        """Apply the newest change of each row in the letters, and return counts and outcomes.

        The newest change of a row may be in a later record of the topic and not in a letter. That change was
        applied before, and is then applied again.

        Raises:
            SourceError: the table was truncated after a letter, or Kafka cannot be read.
            SchemaRefusedError: the letters need a schema change that waits for a user's decision.
            TidesinkError: the target or the state store failed.
        """
        with translated_read_errors(self._plan.found.topic):
            self._decoding.catch_up(self._plan.ranges, self._plan.found)
            try:
                reduction = self._reduced(self._plan)
            except ChangesWaitError as exc:
                raise self._waits(exc.pending[0]) from exc
            except TableEmptiesError as exc:
                raise SourceError(_TO_EMPTY, table=str(self._settings.table)) from exc
        try:
            if reduction.truncates:
                self._refuse(reduction.summary.truncates[0])
            return self._replayed(reduction)
        finally:
            reduction.release()

    def _reduce_once(self, plan: BatchPlan) -> Reduction:
        """Decode the letters, and reduce them to the newest change of each row.

        The first read decodes only the letters, to find the keys of their rows. The second one reads the
        letters and the later records of the topic, and keeps only rows with these keys. The second read is
        skipped if the target stores each row's position, or if a letter has a schema that the decode plan
        does not have yet.
        """
        # Tasks must not write files yet: the rows to write are known only after the second read.
        self._stages = False
        task = self._range_task(plan)
        with self._step("read"):
            self._chosen = reader = self._examined(task)
            reduced = self._reduced_by(task, reader.letters)
            with released_on_error(reduced.release):
                self._letters = self._today(reduced)
            if reader.following and not reduced.summary.unplanned:
                reduced.release()
                reduced = self._reduced_by(self._following(task), reader)
        for done in ("decoded", "reduced"):  # the same tasks do both
            self._context.failpoints.reach(done)
        # Only letters count as read, and they are counted in the dead-letter topic.
        return Reduction(plan, replace(reduced, read=KafkaRead(0, 0)))

    def _range_task(self, plan: BatchPlan) -> RangeTask:
        """Return the Spark task that reads the batch's records.

        Watermarks do not limit it, because all its records were read before (``was_read``).
        """
        return replace(super()._range_task(plan), was_read=True)

    def _examined(self, task: RangeTask) -> LetterReader:
        """Return a reader of the letters that can be replayed. Put the other letters into ``_left_out``.

        Letters are only examined with cuts, by their events' commit_ts, or after a snapshot that was limited
        to some rows, by their events' keys.
        """
        bound, letters = self._hold.bound, self._all.chosen
        asked = [
            candidate for candidate in letters if bound is not None or limited_reads(candidate, self._reads)
        ]
        self._left_out = {}
        if not asked:
            return self._all
        events = self._events(task, tuple(asked))
        for letter in asked:
            position = letter.partition, letter.offset
            standing = standing_of_letter(letter, events.get(position, ()), self._reads, bound)
            if standing != "open":
                self._left_out.setdefault(standing, []).append(letter)
        out = {(excluded.partition, excluded.offset) for some in self._left_out.values() for excluded in some}
        if not out:
            return self._all
        chosen = tuple(
            candidate for candidate in letters if (candidate.partition, candidate.offset) not in out
        )
        return self._all.of_some(self._context.dead_letters().topic, chosen)

    def _events(
        self, task: RangeTask, letters: tuple[Letter, ...]
    ) -> Mapping[tuple[int, int], list[LetterEvent]]:
        """Return the row events of each letter, by the letter's partition and offset."""
        table, keys = str(self._settings.table), EventKeys(task.plan)
        limited = [read for read in self._reads if read.limited]
        source = KafkaSource(LetterFetch.of(self._context.dead_letters().topic, letters))
        with ExitStack() as opened, raised_task_errors(table=table):
            session = self._session
            columns: tuple[ComparedColumn, ...] = ()
            if limited:
                missing = no_resync(self._settings.table)
                shape = task.plan.shape
                reader = opened.enter_context(open_target_reader(self._context, shape, missing=missing))
                session, columns = reader.session, compared_columns(reader, shape.key_columns)
            frame = source.over(session, task.ranges, keys, keys.ddl)
            if not limited:
                frame = frame.selectExpr("partition", "offset", "commit_ts", _NO_MATCHES)
            else:
                wanted = {read.number: self._wanted(task, read, columns, session) for read in limited}
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
        self, task: RangeTask, read: SourceRead, columns: Sequence[ComparedColumn], session: SparkSession
    ) -> DataFrame | tuple[Limit, ...] | None:
        """Return the keys, or the bounds of the key, to which a snapshot or resync was limited.

        None if they are no longer known, because the state store has lost the keys or the table's key has
        changed.
        """
        if read.keys is None:
            return limits_at_target(task.plan, read.where)
        asked = load_keys(self._context.store, read.keys)
        names = [column.name for column in columns]
        if asked is None or {*names} != {*asked.columns}:
            return None
        return named_keys(session, [*asked.in_order_of(names)], columns)

    def _reduced_by(self, task: RangeTask, reader: RecordReader) -> RangeFrame:
        try:
            return reduced_ranges(self._session, task, reader, checkpoint=self._checkpoints)
        except RangeTooLargeError as exc:
            # Smaller ranges would not help: the batch has the same letters.
            raise ConfigError(_TOO_MANY.format(task.most_bytes >> 20), **exc.context) from exc

    def _following(self, task: RangeTask) -> RangeTask:
        own = offsets_by_partition(self._chosen.chosen)
        partitions = {part.partition for part in task.ranges}
        added = (part for part in self._chosen.following if part.partition not in partitions)
        return replace(
            task, ranges=(*task.ranges, *added), only=LetterRows(np.unique(self._letters.hashes), own)
        )

    def _today(self, reduced: RangeFrame) -> LettersToday:
        self._check_counted(reduced)
        bad = faults_in(reduced.frame) if reduced.summary.bad else {}
        return LettersToday(reduced.summary, reduced.read.records, bad, reduced.hashes)

    def _cut_at_truncate(self, reduction: Reduction) -> Reduction:
        return reduction

    def _refuse(self, truncate: Truncate) -> None:
        raise SourceError(
            _EMPTIED.format(offset=truncate.offset),
            topic=truncate.place.topic,
            partition=truncate.place.partition,
            offset=truncate.offset,
        )

    def _replayed(self, reduction: Reduction) -> Replayed:
        result = self._write(reduction) if reduction.summary.rows else None
        account = self._account(reduction, result)
        account.check(table=str(self._settings.table))
        bad, topic = self._letters.bad, self._plan.found
        outcomes = tuple(
            Outcome(topic.topic_id, topic.topic, *position, *bad.get(position, (None, None)))
            for position in ((letter.partition, letter.offset) for letter in self._chosen.chosen)
        )
        left = self._left_out
        settled = map(_dealt_with, left.get("settled", ()))
        return Replayed(
            account,
            (*outcomes, *settled),
            result.version if result else "",
            *(len(left.get(name, ())) for name in ("settled", "unsure", "later")),
        )

    def _write(self, reduction: Reduction) -> ApplyResult:
        """Commit the rows to the target in a batch that does not change the table's offsets.

        Raises:
            SchemaRefusedError: the letters need a schema change that waits for a user's decision.
            AccountingError: the target counts more or fewer rows than it was given.
        """
        before = self._hold.progress
        schema_decision = self._schema_decision(self._shape())
        if schema_decision.pending:
            raise self._waits(schema_decision.pending[0])
        progress = replace(
            before,
            epoch=self._hold.epoch,
            batch=before.batch + 1,
            commit_ts=greatest([before.commit_ts, reduction.summary.max_commit_ts]),
            snapshot=before.snapshot or (SnapshotProgress(()) if self._hold.loads else None),
        )
        self._context.stop.check()
        self._context.store.record_progress(progress)
        self._context.choices.keep(self._policy_choices(schema_decision), progress)
        self._hold.table.evolve(kept_shape(schema_decision.given, self._settings))
        result = self._commit(self._reduced_batch(reduction, schema_decision), progress)
        if result.applied + result.stale != reduction.summary.rows:
            raise AccountingError(
                f"The batch had {reduction.summary.rows} rows to apply, but the target counts "
                f"{result.applied} applied rows and {result.stale} rows that are older than the stored ones. "
                "Compare the table with its source (`tidesink diff`), and report this as a bug.",
                table=str(self._settings.table),
            )
        return result

    def _waits(self, pending: Pending) -> SchemaRefusedError:
        return SchemaRefusedError(
            f"The letters need a change of the table's columns that waits for a decision ({pending.change}). "
            "Start the worker. Once it reports the change, decide with `tidesink ddl approve TABLE` or "
            "`tidesink ddl reject TABLE`.",
            table=str(self._settings.table),
        )

    def _account(self, reduction: Reduction, result: ApplyResult | None) -> Account:
        """Return the counts of the batch's events, which must add up (read = applied + other outcomes).

        ``read`` is counted in the dead-letter topic. The tasks and the target count the other numbers.
        """
        letters, count = self._letters, len(self._chosen.chosen)
        today = letters.summary
        foreign = count - letters.read  # letters whose records belong to another table by the current config
        read = count + today.read - today.messages
        if self._sequenced:
            account = account_of(
                reduction.summary,
                kafka_records=count,
                applied_rows=result.applied if result else 0,
                rejected=today.bad,
                stale_rows=result.stale if result else 0,
            )
            return replace(account, read=read, without_row=account.without_row + foreign)
        stay = self._events_that_stay(reduction)
        others = today.read - letters.rows - today.bad
        return Account(read, stay, letters.rows - stay, others + foreign, today.bad)

    def _events_that_stay(self, reduction: Reduction) -> int:
        """Return the number of rows to apply whose newest change is in a letter.

        The newest change of the other rows is in a later record of the topic.
        """
        if not reduction.summary.rows:
            return 0
        own = {(letter.partition, letter.offset) for letter in self._chosen.chosen}
        return sum(position in own for position in event_places(reduction.frame))
