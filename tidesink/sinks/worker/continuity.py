"""Checks before each batch that no record of a table's topic was lost.

Kafka can lose records without reporting an error: a topic is deleted and created again, retention or
compaction removes records before they are read, or a partition's log is truncated after a broker failed. Each
of these cases must stop the table with an error that names the remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tidesink.config import TableConfig
from tidesink.errors import ConfigError, SourceError, with_table
from tidesink.events import TableId
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
from tidesink.sinks.runtime.context import WorkerContext
from tidesink.sinks.runtime.control import Pauses, Unaccepted
from tidesink.sinks.state.documents import DocumentKind
from tidesink.sinks.state.progress import LastRecord, StateStore, TopicProgress

_FIRST_RECORDS: Final = DocumentKind("first-records", dict[int, FirstRecord])
NO_RECORDS: Final[Mapping[int, LastRecord]] = {}


class Continuity:
    """Checks that one table's topic was not replaced or truncated, and that no unread record expired.

    Used by one thread at a time.
    """

    def __init__(self, context: WorkerContext, topic: str, settings: TableConfig) -> None:
        self._context = context
        self._settings = settings
        self._logs = CheckedLogs(context.topics.log)
        self._first_records = FirstRecords(
            settings.table, topic, pipeline=context.config.pipeline, store=context.store
        )

    def refuse_mode(self, offsets: TopicOffsets) -> None:
        """Raise ConfigError if the table's mode does not work with a compacted topic."""
        if offsets.compaction is None:
            return
        reason = refusal(offsets.compaction, self._context.config.source, self._settings)
        if reason is not None:
            raise ConfigError(reason, table=str(self._settings.table), topic=offsets.topic)

    def check_topic(
        self,
        progress: TopicProgress | None,
        offsets: TopicOffsets,
        *,
        repaired: bool = False,
        passed: Mapping[int, LastRecord] = NO_RECORDS,
    ) -> bool:
        """Check that the topic is still the one that was read, and still has the records to read next.

        Args:
            progress: The table's progress in the topic, or None if nothing of the topic was applied.
            offsets: The topic's current offsets.
            repaired: True if a requested resync will repair the whole table. Then it does not matter that
                records expired before the topic was first read.
            passed: The last record per partition that was skipped without a commit, because it contained
                nothing for the table.

        Returns:
            True if the table can continue. False if Kafka has replaced skipped records by other records: then
            the caller must read again from the committed offsets.

        Raises:
            SourceError: the topic was replaced, unread records expired, or a partition's log was truncated
                below the applied offset.
            SourceUnavailableError: no broker answers.
            StateStoreError: the store does not answer.
        """
        if progress is not None and progress.topic_id:
            check_continuity(progress, offsets)
        elif progress is not None and not repaired:
            _check_beginning(offsets, self._settings)
        retry = self._context.retry(self._settings.table)
        retry.call(lambda: self._first_records.check(progress, offsets, lambda: self._context.brokers))
        return progress is None or retry.call(lambda: self._has_log(progress, offsets, passed))

    def follows(
        self, offsets: TopicOffsets, known: Mapping[int, LastRecord], read: Mapping[int, LastRecord]
    ) -> bool:
        """Return True if the records that were just read follow the records that were handled before.

        False if a new partition leader has truncated a log and written other records at the same offsets.
        ``known``: the last record per partition that was applied or skipped before. ``read``: the last record
        per partition that was just read.

        Raises:
            SourceError: a log was truncated below a record in ``known``, and a retry would not help.
        """
        return self._logs.follows(offsets, known, read)

    def _has_log(
        self, progress: TopicProgress, offsets: TopicOffsets, passed: Mapping[int, LastRecord]
    ) -> bool:
        """Return True if the partitions' logs still have all applied and skipped records.

        False if only skipped records are missing.

        Raises:
            SourceError: a log was truncated below the applied offset, so applied records no longer exist.
        """
        last_records = {**progress.last_records, **passed}
        cuts = self._logs.cuts(offsets, last_records)
        for number, offset in sorted(cuts.items()):
            if number in progress.partitions and offset < progress.partitions[number].next_offset:
                raise cut_error(offsets.topic, number, last_records[number], offset)
        return not cuts

    def check(
        self,
        progress: TopicProgress | None,
        offsets: TopicOffsets,
        *,
        batch: int,
        caught_up: CaughtUp,
        pauses: Pauses,
        repaired: bool = False,
        passed: Mapping[int, LastRecord] = NO_RECORDS,
    ) -> bool:
        """Run ``check_topic``, and for a compacted topic check that no delete expired before it was read.

        Compaction keeps a delete (a tombstone record) for ``delete.retention.ms`` at least. So a table that
        did not read to the end of its topic for a longer time may have missed deletes.

        Args:
            progress: The table's progress in the topic, or None if nothing of the topic was applied.
            offsets: The topic's current offsets.
            batch: Number of the table's last batch.
            caught_up: Remembers when the table was last at the end of its topic; is updated.
            pauses: Has the faults that users accepted. The fault "deletes may be missing" is stored in it.
            repaired: True if a requested resync will repair the whole table.
            passed: The last record per partition that was skipped without a commit.

        Returns:
            The result of ``check_topic``.

        Raises:
            SourceError: ``check_topic`` failed, or deletes may be missing and no user accepted that.
            SourceUnavailableError: no broker answers.
            StateStoreError: the store does not answer.
        """
        if not self.check_topic(progress, offsets, repaired=repaired, passed=passed):
            return False
        if offsets.compaction is None:
            return True
        retry, now = self._context.retry(self._settings.table), self._context.clock()
        if progress is None:
            caught_up.begin(now, batch)
        elif not caught_up.holds(offsets.compaction, now):
            since = now - offsets.compaction.safe_seconds
            if retry.call(lambda: self._has_read(progress, offsets, since)):
                caught_up.begin(since, batch)
            else:
                self._accept_missed(progress, offsets.compaction, pauses)
                caught_up.begin(now, batch)
        pauses.missed = None
        return True

    def _accept_missed(self, progress: TopicProgress, compaction: Compaction, pauses: Pauses) -> None:
        """Check that a user accepted that deletes may be missing.

        Raises:
            SourceError: no user accepted it. The fault is stored in ``pauses``, so that a user can accept it.
        """
        digest = digest_of(progress)
        if digest not in pauses.accepted:
            text = missed_deletes(compaction, str(self._settings.table))
            pauses.missed = Unaccepted(text, digest)
            raise SourceError(text, topic=progress.topic)

    def _has_read(self, progress: TopicProgress, offsets: TopicOffsets, since: float) -> bool:
        """Return True if the table has read every record that was written before ``since`` (s since 1970).

        This is the case if the oldest unread record that Kafka still has is from ``since`` or later.
        """
        next_offsets = {number: partition.next_offset for number, partition in progress.partitions.items()}
        unread = [
            n
            for n, partition in offsets.partitions.items()
            if next_offsets.get(n, partition.earliest) < partition.latest
        ]
        first = self._context.brokers.first_since(offsets.topic, unread, since)
        return all(n in first and next_offsets.get(n, 0) >= first[n] for n in unread)


def late_start(topic: str, offsets: TopicOffsets) -> tuple[str, ...]:
    """Return a warning if the first records of a topic expired before it was first read, else nothing."""
    late = _late(offsets)
    if not late:
        return ()
    return (
        f"The first records of topic {topic} had expired when it was first read ({late}). Rows that have not "
        "changed since then are missing, unless the table was loaded from a snapshot. To load them, run "
        "`tidesink snapshot start TABLE`.",
    )


def _check_beginning(offsets: TopicOffsets, settings: TableConfig) -> None:
    """Check that a topic still has its first records, if it was created after the table was loaded.

    Raises:
        SourceError: the topic's first records expired before they were read.
    """
    late, table = _late(offsets), settings.table
    if not late:
        return
    way = with_table("Repair the table: `tidesink resync TABLE`, then `tidesink resume TABLE`.", table)
    if settings.mode != "upsert":
        way = (
            f"A table with mode: {settings.mode} cannot be repaired by a resync. Load it again: remove it at "
            "the target, or choose another pipeline name."
        )
    raise SourceError(
        "The topic did not exist when rows of the table were loaded, and its first records expired "
        f"before they were read ({late}). Changes may be missing. {way}",
        topic=offsets.topic,
    )


def _late(offsets: TopicOffsets) -> str:
    late = [
        f"{n} at {partition.earliest}"
        for n, partition in offsets.partitions.items()
        if partition.earliest > 0
    ]
    return f"partition {', '.join(late)}" if late else ""


class FirstRecords:
    """Detects a replaced topic by its first records, for brokers without topic ids.

    Remembers the offset and timestamp of each partition's first record. As long as the topic is not replaced,
    its first offset only grows, because retention and compaction remove records, and the record at an offset
    never changes. Limitation: a replaced topic is not noticed if its first record has a higher offset than
    the remembered one, because older records of the new topic were removed already.
    """

    def __init__(self, table: TableId, topic: str, *, pipeline: str, store: StateStore) -> None:
        self._document = _FIRST_RECORDS.of(store, pipeline, *table, topic)
        self._known: dict[int, FirstRecord] | None = None

    def check(
        self, progress: TopicProgress | None, offsets: TopicOffsets, brokers: Callable[[], KafkaOffsets]
    ) -> None:
        """Compare each partition's first record with the one that an earlier call stored, and store it.

        Without ``progress``, the records are stored and not compared, because the topic is read from its
        beginning. The brokers are only queried if this run does not know a partition's first record yet.

        Raises:
            SourceError: the topic was replaced, or the brokers refuse the request.
            StateStoreError: the store does not answer.
        """
        if NO_ID not in (offsets.topic_id, progress.topic_id if progress else offsets.topic_id):
            return
        filled = {n for n, partition in offsets.partitions.items() if partition.latest > partition.earliest}
        if progress is not None and self._known is not None and filled <= self._known.keys():
            return
        stored = (self._document.load() or {}) if progress is not None else {}
        now = brokers().first_records(offsets.topic, sorted(offsets.partitions))
        for number, first in stored.items():
            _compare(offsets.topic, number, first, now.get(number))
        self._known = {**stored, **now}
        if self._known != stored:
            self._document.save(self._known)


def _compare(topic: str, number: int, before: FirstRecord, now: FirstRecord | None) -> None:
    if now is None or now.offset > before.offset or now == before:
        return
    raise made_again(
        topic,
        f"partition {number} begins with offset {now.offset} of time {now.timestamp}, and began with offset "
        f"{before.offset} of time {before.timestamp}; the brokers have no id for the topic",
    )
