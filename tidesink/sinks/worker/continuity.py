"""What must hold of a table and its topic before the next records go to it: nothing was lost unseen."""

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
    """The checks of one table's topic that are not of offsets alone. Used by one thread at a time."""

    def __init__(self, context: WorkerContext, topic: str, settings: TableConfig) -> None:
        self._context = context
        self._settings = settings
        self._logs = CheckedLogs(context.topics.log)
        self._first_records = FirstRecords(
            settings.table, topic, pipeline=context.config.pipeline, store=context.store
        )

    def refuse_mode(self, found: TopicOffsets) -> None:
        """Raise ConfigError where the table cannot be kept from a compacted topic."""
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
        """Check that a topic is the one that was read, and holds what comes next.

        ``repaired``: the table is to be compared with its source, whatever the topic has lost of it before it
        was first seen. ``passed``: by partition, the last record that went by without a commit. Returns False
        if only such records are gone: they are to be read again from the offsets that are applied.

        Raises:
            SourceError: it is not, or a partition's log was cut below what is applied, and has grown again.
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
        """As ``CheckedLogs.follows``."""
        return self._logs.follows(found, known, read)

    def _has_log(
        self, progress: TopicProgress, found: TopicOffsets, passed: Mapping[int, LastRecord]
    ) -> bool:
        """Whether the log has what was read of it; raises where it was cut below what is applied."""
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
        """Check that a topic goes on from what is applied; ``batch``: the last one.

        ``progress``: None where nothing of the topic is applied, which begins ``caught_up``. ``repaired`` and
        ``passed``, and what is returned: as of ``check_topic``.

        Raises:
            SourceError: as ``check_topic``, or deletes may be gone unread.
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
        """Raise SourceError unless a person accepted that deletes may be missing."""
        digest = digest_of(progress)
        if digest not in pauses.accepted:
            text = missed_deletes(compaction, str(self._settings.table))
            pauses.missed = Unaccepted(text, digest)
            raise SourceError(text, topic=progress.topic)

    def _has_read(self, progress: TopicProgress, found: TopicOffsets, since: float) -> bool:
        """Whether all that was written before a time is read, as the records that are left say."""
        known = {number: at.next_offset for number, at in progress.partitions.items()}
        unread = [n for n, at in found.partitions.items() if known.get(n, at.earliest) < at.latest]
        first = self._context.brokers.first_since(found.topic, unread, since)
        return all(n in first and known.get(n, 0) >= first[n] for n in unread)


def late_start(topic: str, found: TopicOffsets) -> tuple[str, ...]:
    """What to say of a topic whose beginning had expired before it was first read."""
    late = _late(found)
    if not late:
        return ()
    return (
        f"topic {topic} was first read when its beginning had expired ({late}): rows that did not change "
        "since are missing, unless a snapshot was loaded before",
    )


def _check_beginning(found: TopicOffsets, settings: TableConfig) -> None:
    """Refuse a topic that lost its beginning unseen; the table was loaded when it was not there."""
    late, table = _late(found), settings.table
    if not late:
        return
    way = f"Repair the table: `tidesink resync {table}`, then `tidesink resume {table}`"
    if settings.mode != "upsert":
        way = (
            f"mode: {settings.mode} has no resync: load the table again (remove it at the target, or choose "
            "another pipeline name)"
        )
    raise SourceError(
        "the topic was not there when rows of the table were loaded, and its first records expired "
        f"before they were read ({late}): changes may be missing. {way}",
        topic=found.topic,
    )


def _late(found: TopicOffsets) -> str:
    late = [f"{n} at {at.earliest}" for n, at in found.partitions.items() if at.earliest > 0]
    return f"partition {', '.join(late)}" if late else ""


class FirstRecords:
    """The first records that one table's topic had when they were last seen, for topics without an id.

    Of one topic they only move on: retention and compaction take the oldest ones, and the record at an
    offset never changes. What is not noticed is a topic made again whose first records are gone as well.
    """

    def __init__(self, table: TableId, topic: str, *, pipeline: str, store: StateStore) -> None:
        self._name = f"{pipeline}/{table.schema}/{table.name}/{topic}"
        self._store = store
        self._known: dict[int, FirstRecord] | None = None

    def check(
        self, progress: TopicProgress | None, found: TopicOffsets, brokers: Callable[[], KafkaOffsets]
    ) -> None:
        """Compare a topic's first records with those of before; costs nothing while all are known.

        Without ``progress`` they are those of a topic that is read from its beginning.

        Raises:
            SourceError: the topic was made again; or the brokers refuse us.
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


# Taking a table


def opened(
    context: WorkerContext, decoding: Decoding, settings: TableConfig, tally: Tally, pauses: Pauses
) -> tuple[Hold, Tombstones | None]:
    """Open the target's table and take it; it is let go again where it cannot be held.

    Raises: as ``taken``, and what the target refuses.
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
    """Take a table's epoch, and know what is applied, and which deletes are remembered.

    Raises:
        AccountingError: a count of it did not add up before, and nobody accepted that.
        StaleProgressError: another worker took it meanwhile, or it was brought back from a backup.
    """
    pipeline, settings = context.config.pipeline, context.config.table_config(name)
    # Read before the claim: an epoch that is not above this one's began its count again.
    before, place = context.store.status_of(pipeline, name), context.place_of(name)
    pauses.check_law(before, place)
    claim = table.claim()
    tally.claimed(claim.epoch, before)
    progress = table.committed()
    if progress != claim.progress:
        raise StaleProgressError(
            "progress changed between the claim and the look at it: another worker holds the table",
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
    """See that nothing was applied to a table by a worker without cuts.

    Raises:
        ConfigError: nothing tells how late what it holds is.
    """
    if progress.topics and progress.bound is None:
        raise ConfigError(
            f"{progress.table} was read without cuts, and nothing says up to which position of the source's "
            "log: a cut might have a part of a transaction. Remove cuts from the config, or load the table "
            "again with them (another target.path, or remove the table at the target)",
            table=str(progress.table),
        )
