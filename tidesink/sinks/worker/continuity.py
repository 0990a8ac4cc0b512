"""Checks of a table and its topic before further records are applied: nothing may be lost unnoticed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, cast

from tidesink.config import TableConfig
from tidesink.errors import ConfigError, SourceError, StaleProgressError
from tidesink.events import TableId
from tidesink.sinks.batch.context import WorkerContext
from tidesink.sinks.batch.run import Hold
from tidesink.sinks.batch.schema_changes import KnownColumns
from tidesink.sinks.batch.schema_source import Decoding
from tidesink.sinks.kafka.compaction import CaughtUp, Compaction, digest_of, missed_deletes, refusal
from tidesink.sinks.kafka.leader_epochs import CheckedLogs, cut_error
from tidesink.sinks.kafka.offsets import (
    NO_ID,
    FirstRecord,
    KafkaOffsets,
    TopicOffsets,
    check_continuity,
    made_again,
)
from tidesink.sinks.state.progress import LastRecord, Progress, StateStore, TopicProgress
from tidesink.sinks.targets.base import SequencedTable, TargetTable
from tidesink.sinks.targets.modes import first_shape
from tidesink.sinks.worker.control import Pauses, Unaccepted, check_not_restored
from tidesink.sinks.worker.tally import Tally, Tombstones

_FIRST_RECORDS: Final = "first-records"
NO_RECORDS: Final[Mapping[int, LastRecord]] = {}


class Continuity:
    """Checks of one table's topic that need more than offsets. Used by one thread at a time."""

    def __init__(self, context: WorkerContext, topic: str, settings: TableConfig) -> None:
        self._context = context
        self._settings = settings
        self._logs = CheckedLogs(context.topics.log)
        self._first_records = FirstRecords(
            settings.table, topic, pipeline=context.config.pipeline, store=context.store
        )

    def refuse_mode(self, found: TopicOffsets) -> None:
        """Raise ConfigError if the table's mode does not work with a compacted topic."""
        if found.compaction is None:
            return
        reason = refusal(found.compaction, self._context.config.source, self._settings)
        if reason is not None:
            raise ConfigError(reason, table=str(self._settings.table), topic=found.topic)

    def check_topic(
        self,
        progress: TopicProgress | None,
        found: TopicOffsets,
        *,
        repaired: bool = False,
        passed: Mapping[int, LastRecord] = NO_RECORDS,
    ) -> bool:
        """Check that a topic was not replaced since it was read, and has the next records.

        Returns False if only records that were passed without a commit are lost: they must be read again from
        the applied offsets.

        ``repaired``: True if a resync will repair the table, so that records lost before the topic was first
        seen do not matter. ``passed``: the last record per partition that was passed without a commit.

        Raises:
            SourceError: the topic was replaced, has lost records, or a partition's log was truncated below
                the applied offset and has grown again.
            SourceUnavailableError: no broker answers.
            StateStoreError: the store does not answer.
        """
        if progress is not None and progress.topic_id:
            check_continuity(progress, found)
        elif progress is not None and not repaired:
            _check_beginning(found, self._settings)
        retry = self._context.retry(self._settings.table)
        retry.call(lambda: self._first_records.check(progress, found, lambda: self._context.brokers))
        return progress is None or retry.call(lambda: self._has_log(progress, found, passed))

    def follows(
        self, found: TopicOffsets, known: Mapping[int, LastRecord], read: Mapping[int, LastRecord]
    ) -> bool:
        """Return True if records that were read come from the log that has the known records.

        ``known``, ``read``: the last record of each partition.

        Raises:
            SourceError: they do not, and another check would not differ.
        """
        return self._logs.follows(found, known, read)

    def _has_log(
        self, progress: TopicProgress, found: TopicOffsets, passed: Mapping[int, LastRecord]
    ) -> bool:
        """Return True if the log has all read records; raise if it was cut below the applied offset."""
        known = {**progress.last_records, **passed}
        cuts = self._logs.cuts(found, known)
        for number, offset in sorted(cuts.items()):
            if number in progress.partitions and offset < progress.partitions[number].next_offset:
                raise cut_error(found.topic, number, known[number], offset)
        return not cuts

    def check(
        self,
        progress: TopicProgress | None,
        found: TopicOffsets,
        *,
        batch: int,
        caught_up: CaughtUp,
        pauses: Pauses,
        repaired: bool = False,
        passed: Mapping[int, LastRecord] = NO_RECORDS,
    ) -> bool:
        """Check that a topic continues what is applied; ``batch``: number of the last batch.

        ``progress``: None if nothing of the topic is applied, which begins ``caught_up``. The other
        parameters and the result are those of ``check_topic``.

        Raises:
            SourceError: the topic was replaced or has lost records, or deletes may be lost unread.
            SourceUnavailableError: no broker answers.
            StateStoreError: the store does not answer.
        """
        if not self.check_topic(progress, found, repaired=repaired, passed=passed):
            return False
        if found.compaction is None:
            return True
        retry, now = self._context.retry(self._settings.table), time.time()
        if progress is None:
            caught_up.begin(now, batch)
        elif not caught_up.holds(found.compaction, now):
            since = now - found.compaction.safe_seconds
            if retry.call(lambda: self._has_read(progress, found, since)):
                caught_up.begin(since, batch)
            else:
                self._accept_missed(progress, found.compaction, pauses)
                caught_up.begin(now, batch)
        pauses.missed = None
        return True

    def _accept_missed(self, progress: TopicProgress, compaction: Compaction, pauses: Pauses) -> None:
        """Raise SourceError unless a user accepted that deletes may be missing."""
        digest = digest_of(progress)
        if digest not in pauses.accepted:
            text = missed_deletes(compaction, str(self._settings.table))
            pauses.missed = Unaccepted(text, digest)
            raise SourceError(text, topic=progress.topic)

    def _has_read(self, progress: TopicProgress, found: TopicOffsets, since: float) -> bool:
        """Return True if everything written before a time is read, judged by the records that are left."""
        known = {number: at.next_offset for number, at in progress.partitions.items()}
        unread = [n for n, at in found.partitions.items() if known.get(n, at.earliest) < at.latest]
        first = self._context.brokers.first_since(found.topic, unread, since)
        return all(n in first and known.get(n, 0) >= first[n] for n in unread)


def late_start(topic: str, found: TopicOffsets) -> tuple[str, ...]:
    """Return a warning if a topic's beginning had expired before it was first read."""
    late = _late(found)
    if not late:
        return ()
    return (
        f"The beginning of topic {topic} had expired when it was first read ({late}). Rows that have not "
        "changed since are missing, unless a snapshot was loaded before.",
    )


def _check_beginning(found: TopicOffsets, settings: TableConfig) -> None:
    """Refuse a topic that lost its beginning unnoticed: it did not exist when the table was loaded."""
    late, table = _late(found), settings.table
    if not late:
        return
    way = f"Repair the table: `tidesink resync {table}`, then `tidesink resume {table}`."
    if settings.mode != "upsert":
        way = (
            f"mode: {settings.mode} has no resync, so load the table again (remove it at the target, or "
            "choose another pipeline name)."
        )
    raise SourceError(
        "The topic did not exist when rows of the table were loaded, and its first records expired "
        f"before they were read ({late}). Changes may be missing. {way}",
        topic=found.topic,
    )


def _late(found: TopicOffsets) -> str:
    late = [f"{n} at {at.earliest}" for n, at in found.partitions.items() if at.earliest > 0]
    return f"partition {', '.join(late)}" if late else ""


class FirstRecords:
    """The first records of one table's topic when last seen, for topics without an id.

    They only move forward while the topic is the same: retention and compaction remove the oldest records,
    and the record at an offset never changes. A replaced topic is not noticed if its first records are
    removed, too.
    """

    def __init__(self, table: TableId, topic: str, *, pipeline: str, store: StateStore) -> None:
        self._name = f"{pipeline}/{table.schema}/{table.name}/{topic}"
        self._store = store
        self._known: dict[int, FirstRecord] | None = None

    def check(
        self, progress: TopicProgress | None, found: TopicOffsets, brokers: Callable[[], KafkaOffsets]
    ) -> None:
        """Compare a topic's first records with the known ones; asks no broker while all are known.

        Without ``progress`` the topic is read from its beginning, and the records are only stored.

        Raises:
            SourceError: the topic was replaced, or the brokers refuse the request.
            StateStoreError: the store does not answer.
        """
        if NO_ID not in (found.topic_id, progress.topic_id if progress else found.topic_id):
            return
        filled = {n for n, at in found.partitions.items() if at.latest > at.earliest}
        if progress is not None and self._known is not None and filled <= self._known.keys():
            return
        known = self._loaded() if progress is not None else {}
        now = brokers().first_records(found.topic, sorted(found.partitions))
        for number, first in known.items():
            _compare(found.topic, number, first, now.get(number))
        self._known = {**known, **now}
        if self._known != known:
            document = {str(number): list(first) for number, first in self._known.items()}
            self._store.save_document(_FIRST_RECORDS, self._name, document)

    def _loaded(self) -> Mapping[int, FirstRecord]:
        kept = self._store.load_document(_FIRST_RECORDS, self._name) or {}
        return {int(number): FirstRecord(*first) for number, first in kept.items()}


def _compare(topic: str, number: int, before: FirstRecord, now: FirstRecord | None) -> None:
    if now is None or now.offset > before.offset or now == before:
        return
    raise made_again(
        topic,
        f"partition {number} begins with offset {now.offset} of time {now.timestamp}, and began with offset "
        f"{before.offset} of time {before.timestamp}; it has no topic id",
    )


# Claiming a table


def opened(
    context: WorkerContext, decoding: Decoding, settings: TableConfig, tally: Tally, pauses: Pauses
) -> tuple[Hold, Tombstones | None]:
    """Open the target's table and claim it; close it again on failure.

    Raises:
        AccountingError: a count did not add up before, and no user accepted that.
        ConfigError: the table was read without cuts, and now has them.
        StaleProgressError: another worker took over the table, or it was restored from a backup.
        TargetError: the target refuses the table.
    """
    shape = first_shape(decoding.columns().shape, settings)
    pipeline = context.config.pipeline
    table = context.target.open_table(shape, pipeline=pipeline, delete_mode=settings.deletes)
    try:
        hold, tombstones = taken(context, table, settings.table, tally, pauses)
        if context.config.source.has_commit_positions:
            check_bounded(hold.progress)
    except BaseException:
        table.close()
        raise
    return hold, tombstones


def taken(
    context: WorkerContext, table: TargetTable, name: TableId, tally: Tally, pauses: Pauses
) -> tuple[Hold, Tombstones | None]:
    """Claim a table's epoch, and load its progress and its tombstones.

    Raises:
        AccountingError: a count did not add up before, and no user accepted that.
        StaleProgressError: another worker took over the table, or it was restored from a backup.
    """
    pipeline, settings = context.config.pipeline, context.config.table_config(name)
    # Must be read before the claim: an epoch that is not above the status's belongs to a new life.
    before, place = context.store.status_of(pipeline, name), context.place_of(name)
    pauses.check_law(before, place)
    claim = table.claim()
    tally.claimed(claim.epoch, before)
    progress = table.committed()
    if progress != claim.progress:
        raise StaleProgressError(
            "The progress changed between the claim and the first read. Another worker holds the table.",
            table=str(name),
        )
    check_not_restored(context.store, progress, place, life=tally.life)
    tally.resume(context, name)
    fresh = Progress(name, pipeline, claim.epoch, 0, sequence_by=settings.sequence_by)
    known = progress if progress is not None else fresh
    tally.stands(known, place)
    tombstones = _tombstones(table, settings)
    horizon = tombstones.horizon if tombstones else None
    columns = KnownColumns(context.store, known, settings.layout)
    known = replace(known, sequence_by=settings.sequence_by)
    return Hold(table, claim.epoch, known, horizon=horizon, known=columns), tombstones


def _tombstones(table: TargetTable, settings: TableConfig) -> Tombstones | None:
    if settings.sequence_by != "source" or settings.mode != "upsert":
        return None
    retention = settings.tombstone_retention if settings.deletes == "hard" else None
    return Tombstones(cast(SequencedTable, table), retention)


def check_bounded(progress: Progress) -> None:
    """Check that no worker without cuts has applied records to a table.

    Raises:
        ConfigError: such a worker has, so the source position of the table's rows is unknown.
    """
    if progress.topics and progress.bound is None:
        raise ConfigError(
            f"{progress.table} was read without cuts, so its position in the source's log is unknown, and a "
            "cut could show a part of a transaction. Remove cuts from the config, or load the table again "
            "with them (another target.path, or remove the table at the target).",
            table=str(progress.table),
        )
