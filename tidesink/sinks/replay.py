"""Replays dead letters: those that can be decoded now are applied, unless a newer change of their key was.

The order of steps makes a crash harmless: first the rows are applied, then the letters are settled. Whoever
replays a letter again applies what its key already has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from tidesink.config import Config
from tidesink.errors import ConfigError, StaleProgressError
from tidesink.events import TableId
from tidesink.sinks.accounting import Account
from tidesink.sinks.assembly import assembled
from tidesink.sinks.batch.run import BatchPlan
from tidesink.sinks.dead_letters_spark import letter_places, letters_frame
from tidesink.sinks.heartbeat import Heartbeat, seconds_since_beat
from tidesink.sinks.kafka.letter_store import Chosen, DeadLetters, Outcome
from tidesink.sinks.lane import Lane
from tidesink.sinks.offsets import KafkaOffsets, TopicOffsets
from tidesink.sinks.progress import TopicProgress
from tidesink.sinks.ranges import OffsetRange, check_continuity, topic_gone, topic_progress
from tidesink.sinks.replay_batch import ReplayBatch, Replayed
from tidesink.sinks.replay_spark import (
    Bounds,
    LetterCounts,
    LetterReader,
    letter_counts,
    ready_letters,
)
from tidesink.sinks.stopping import StopFlag, signals_kept, stop_on_signals
from tidesink.sinks.surroundings import Surroundings
from tidesink.sinks.table_control import NOTHING_ASKED, read_controls

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A worker leaves a mark every 5 seconds; one that did not for so long has ended.
ALIVE_SECONDS: Final = 60.0


@dataclass(frozen=True)
class ReplayReport:
    """What came of the chosen letters. ``account`` is in events, the others count letters.

    ``dead_lettered`` in the account are those that cannot be decoded today either. ``waiting`` lie behind
    what is applied: the worker reads them by itself. Of ``expired`` Kafka does not hold all that follows.
    ``former`` are of a topic that was made again under its name: what followed them is not known.
    """

    table: TableId
    account: Account = field(default_factory=Account)
    waiting: int = 0
    expired: int = 0
    former: int = 0
    version: str = ""

    @property
    def left(self) -> int:
        """Letters that are still there."""
        return self.account.dead_lettered + self.waiting + self.expired + self.former


def replay(config: Config, chosen: Chosen) -> ReplayReport:
    """Replay the chosen letters of one table, which no worker may be at work on.

    Raises:
        ConfigError: the table's mode takes no change out of order, or the letters are of several topics.
        StaleProgressError: a worker of the pipeline runs, or took the table meanwhile.
        SourceError: the topic is gone, or was made again.
        TidesinkError: a step failed; nothing is lost, and the letters that were not settled are still there.
    """
    _refuse_mode(config, TableId(*str(chosen.table).partition(".")[::2]))
    flag = StopFlag()
    with signals_kept(), assembled(config, (), flag) as around:
        _refuse_beside_worker(config, seconds_since_beat(around.store, config.pipeline))
        beat = Heartbeat(around.store, config.pipeline)
        beat.beat()
        stop_on_signals(flag)
        try:
            return _replay(around, chosen)
        finally:
            beat.end()


def _refuse_mode(config: Config, table: TableId) -> None:
    mode = config.table_config(table).mode
    if mode != "upsert":
        raise ConfigError(
            f"a table of mode {mode} takes no replay in this version, since only mode upsert tells which "
            "change of a row is the newer: load the table anew, or drop the letters",
            table=str(table),
        )


def refuse_replay(config: Config, table: TableId, seconds: float | None) -> None:
    """Refuse what is known to fail before Spark starts; ``seconds``: since a worker's last mark.

    Raises:
        ConfigError: the table's mode takes no change out of order.
        StaleProgressError: a worker of the pipeline runs.
    """
    _refuse_mode(config, table)
    _refuse_beside_worker(config, seconds)


def _refuse_beside_worker(config: Config, seconds: float | None) -> None:
    if seconds is not None and seconds <= ALIVE_SECONDS:
        raise StaleProgressError(
            f"a worker of {config.pipeline} is at work (seen {seconds:.0f} s ago), and a replay would "
            f"take its tables away: stop it first. One that was killed counts as gone after "
            f"{ALIVE_SECONDS:.0f} s"
        )


def _replay(around: Surroundings, chosen: Chosen) -> ReplayReport:
    letters = around.dead_letters()
    table = _table_of(around, str(chosen.table))
    _refuse_mode(around.config, table)
    topics = sorted({letter.topic for letter in letters.letters(chosen)})
    if not topics:
        return ReplayReport(table)
    if len(topics) > 1:
        raise ConfigError(
            f"the dead letters of {table} are of several topics, {', '.join(topics)}: replay those of the "
            "topic that the table is fed from, one by one, as TOPIC[PARTITION]@OFFSET, and drop the others",
            table=str(table),
        )
    lane = ReplayLane(around, topics[0], table)
    try:
        return lane.replay(letters, replace(chosen, topic=topics[0]))
    finally:
        lane.close()


def _table_of(around: Surroundings, name: str) -> TableId:
    """The table of a name: both its parts may hold a dot."""
    known = [status.table for status in around.store.statuses(around.config.pipeline)]
    found = [table for table in known if str(table) == name]
    schema, dot, rest = name.partition(".")
    if not found and not (schema and dot and rest):
        raise ConfigError(f"{name!r} is no table: give it as schema.table")
    return found[0] if found else TableId(schema, rest)


class ReplayLane(Lane):
    """A table opened for its dead letters alone."""

    def replay(self, letters: DeadLetters, chosen: Chosen) -> ReplayReport:
        """Apply the chosen letters of this lane's topic, then settle them."""
        found = self._found()
        retry = self._around.retry(self.table)
        self._hold = retry.call(lambda: self._open(found))
        progress = topic_progress(self._hold.progress, self.topic)
        ours = replace(chosen, topic_id=found.topic_id)
        every = letters.letters(chosen)
        mine = [letter for letter in every if ours.fits(letter, kind=letter.error)]
        report = ReplayReport(self.table, former=len(every) - len(mine))
        if progress is None:
            return replace(report, waiting=len(mine))
        check_continuity(progress, found)
        everything = letters_frame(self._session, letters.topic, mine).persist()
        try:
            return self._replay(letters, everything, progress, found=found, report=report)
        finally:
            everything.unpersist()

    def _replay(
        self,
        letters: DeadLetters,
        everything: DataFrame,
        progress: TopicProgress,
        *,
        found: TopicOffsets,
        report: ReplayReport,
    ) -> ReplayReport:
        bounds = self._bounds(progress, found)
        counts = letter_counts(everything, bounds)
        report = replace(report, waiting=counts.waiting, expired=counts.expired)
        if not counts.ready:
            return report
        ready = ready_letters(everything, bounds)
        pipeline = self._around.config.pipeline
        every = letters.letters(Chosen(pipeline, str(self.table), self.topic, topic_id=found.topic_id))
        places = letter_places(self._session, every)
        reader = LetterReader(self._around.source, ready, places, self._following(counts, progress, found))
        plan = BatchPlan(_ranges(self.topic, counts, progress), found)
        done = self._around.retry(self.table).call(
            lambda: self._replay_batch(plan, reader).take(reader, ready, counts.ready).replay()
        )
        self._around.failpoints.reach("replayed")
        self._save_batch()
        self._settle_letters(letters, done)
        return replace(report, account=done.account, version=done.version)

    def _save_batch(self) -> None:
        """Have the status say the newest batch: a target brought back from before it is to be noticed."""
        store = self._around.store
        held = self._hold.table.committed() if self._hold else None
        status = store.status_of(self._around.config.pipeline, self.table)
        if status is not None and held is not None:
            hold = self._tally.life, self._tally.epoch
            store.save_status(replace(status, life=hold[0], epoch=hold[1], batch=held.batch))

    def _settle_letters(self, letters: DeadLetters, done: Replayed) -> None:
        def settle() -> int:
            rows = done.outcomes.select(*Outcome._fields).toLocalIterator()
            return letters.settle((Outcome(*row) for row in rows), table=self.table)

        self._around.retry(self.table).call(settle)

    def _replay_batch(self, plan: BatchPlan, reader: LetterReader) -> ReplayBatch:
        assert self._hold is not None and self._decoding is not None  # noqa: S101, PT018  (opened before)
        around = self._around
        asked = read_controls(around.store, around.config.pipeline).get(self.table, NOTHING_ASKED)
        return ReplayBatch(
            self._around,
            replace(self._hold, accepted=asked.accepted),
            self._decoding,
            # What is bad still stays where it is, and keeps nothing else back.
            settings=self._settings.model_copy(update={"bad_record": "dead-letter"}),
            session=self._session,
            plan=plan,
            reader=reader,
        )

    def _found(self) -> TopicOffsets:
        offsets = KafkaOffsets(self._around.config.source.confluent_properties())
        found = self._around.retry(self.table).call(lambda: offsets.lookup([self.topic])).get(self.topic)
        if found is None:
            raise topic_gone(self.topic)
        return found

    def _bounds(self, progress: TopicProgress, found: TopicOffsets) -> dict[int, Bounds]:
        """Per partition the letters that can be replayed: Kafka holds all that was applied behind them."""
        return {
            number: Bounds(self._since(number, found), at.next_offset)
            for number, at in progress.partitions.items()
        }

    def _since(self, partition: int, found: TopicOffsets) -> int:
        if self._settings.sequence_by == "source":
            return 0  # the target itself knows what is newer
        lost = [n for n in self._added_after(partition, found) if found.partitions[n].earliest > 0]
        # A change in a partition that was added later is newer, and nobody knows whether one expired.
        return found.partitions[partition].latest if lost else found.partitions[partition].earliest - 1

    def _following(
        self, counts: LetterCounts, progress: TopicProgress, found: TopicOffsets
    ) -> tuple[OffsetRange, ...]:
        if self._settings.sequence_by == "source":
            return ()
        starts = {number: first + 1 for number, first in counts.first.items()}
        for number in counts.first:
            for added in self._added_after(number, found):
                starts[added] = 0
        ends = progress.partitions
        return tuple(
            OffsetRange(self.topic, n, min(start, ends[n].next_offset), ends[n].next_offset)
            for n, start in starts.items()
            if n in ends
        )

    def _added_after(self, partition: int, found: TopicOffsets) -> frozenset[int]:
        """The partitions that were added when this one was there already: keys may have moved to them."""
        grown = self._around.topics.grown(found)
        added = [frozenset(found.partitions) - frozenset(ends) for ends in grown if partition in ends]
        return frozenset().union(*added)


def _ranges(topic: str, counts: LetterCounts, progress: TopicProgress) -> tuple[OffsetRange, ...]:
    ends: Mapping[int, int] = {number: at.next_offset for number, at in progress.partitions.items()}
    return tuple(OffsetRange(topic, number, first, ends[number]) for number, first in counts.first.items())
