"""The setting ``start``: the offsets at which a new table begins to read its topic (ADR 32).

The setting is resolved to one offset per partition (the table's start), before any record is read or applied.
The start is stored in the state store, so that a restart of the worker does not change it. Records before the
start are treated as expired: they are not applied, and their columns, types and DDL are ignored.

With ``snapshot: initial``, no row is missing: the snapshot's rows are read from the database after the start
was fixed. So they contain every change before the start, and every later change is applied after them.
Without a snapshot, rows that have not changed since the start are missing.

A table with progress continues from its progress, even if the setting changes. A worker still needs the start
to learn the table's columns. If the state store was lost, the start is resolved again, but is never later
than the table's progress, so that no record is skipped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

import msgspec

from tidesink.config import TableConfig
from tidesink.errors import ConfigError
from tidesink.events import TableId
from tidesink.sinks.kafka.offsets import NO_STARTS, KafkaOffsets, Starts, TopicOffsets, is_other_topic
from tidesink.sinks.runtime.context import WorkerContext
from tidesink.sinks.runtime.control import PLACE
from tidesink.sinks.state.documents import DocumentKind, list_key
from tidesink.sinks.state.progress import Rank, StateStore

_FUTURE: Final = "start: {} is in the future. Give a time that has passed, or latest."
_LACKING: Final = (
    "start: has no offset for partition {}. Give an offset for each of the topic's partitions: {}."
)
_NO_PARTITION: Final = "start: the topic has no partition {}. Its partitions are: {}."
_EXPIRED: Final = (
    "start: Kafka no longer has offset {} of partition {}, whose first offset is {}. Give the first offset "
    "or a later one."
)
_AHEAD: Final = (
    "start: offset {} of partition {} is beyond its end ({}), so future records would be skipped. Give the "
    "end offset or an earlier one."
)
_NOT_APPLIED: Final = (
    "The table began at {places} of topic {topic} (start: {said}). Earlier records are not applied. {rows}"
)
_MISSING: Final = (
    "Rows that have not changed since then are missing. To also load them, run `tidesink snapshot start "
    "TABLE`."
)
_LOADED: Final = (
    "The snapshot loads the other rows from source.database (snapshot: initial), once the topic has a record "
    "after this start."
)


class KnownStart(msgspec.Struct, frozen=True, rename="kebab"):
    """The start of a table, as it is stored in the state store.

    ``said``: the setting ``start`` that was resolved, as text. ``topic_id``: Kafka's id of the topic.
    ``offsets``: first offset to read per partition. ``after``: life, epoch and batch number in the table's
    status when the start was resolved. If they are higher in a later status, records were applied from this
    start on.
    """

    said: str
    topic_id: str
    offsets: Starts
    after: Rank = (0, 0, 0)


_START: Final = DocumentKind("start-offsets", KnownStart, list_key)


def said_of(start: str | dict[int, int]) -> str:
    """Return the setting ``start`` as text. If it has an offset per partition, the text is JSON."""
    return (
        start
        if isinstance(start, str)
        else json.dumps({str(n): offset for n, offset in sorted(start.items())})
    )


def resolved(
    start: str | dict[int, int],
    offsets: TopicOffsets,
    brokers: Callable[[], KafkaOffsets],
    *,
    now: Callable[[], float] = time.time,
) -> Starts:
    """Resolve the setting ``start`` to the first offset to read per partition.

    The result is empty for ``earliest``, which means that the topic is read from its beginning. ``now``:
    returns the current time in seconds since 1970.

    Raises:
        ConfigError: the setting names offsets that the topic does not have, or a time in the future.
        SourceError: the brokers refuse the request, or do not answer.
    """
    parts = offsets.partitions
    if start == "earliest":
        return NO_STARTS
    if start == "latest":
        return {number: partition.latest for number, partition in parts.items()}
    if isinstance(start, str):
        seconds = datetime.fromisoformat(start).timestamp()
        if seconds > now():
            raise ConfigError(_FUTURE.format(start), topic=offsets.topic)
        first = brokers().first_since(offsets.topic, sorted(parts), seconds)
        return {number: first.get(number, partition.latest) for number, partition in parts.items()}
    refused = _refusal(start, offsets)
    if refused is not None:
        raise ConfigError(refused, topic=offsets.topic)
    return dict(start)


def _refusal(start: dict[int, int], offsets: TopicOffsets) -> str | None:
    parts = offsets.partitions
    numbers = ", ".join(map(str, sorted(parts)))
    for number in sorted(parts.keys() - start.keys()):
        return _LACKING.format(number, numbers)
    for number, offset in sorted(start.items()):
        if number not in parts:
            return _NO_PARTITION.format(number, numbers)
        if offset < parts[number].earliest:
            return _EXPIRED.format(offset, number, parts[number].earliest)
        if offset > parts[number].latest:
            return _AHEAD.format(offset, number, parts[number].latest)
    return None


def known_start(store: StateStore, pipeline: str, table: TableId, topic: str) -> KnownStart | None:
    """Return the start of a table in a topic from the state store, or None if it was not resolved yet.

    Raises:
        StateStoreError: the store does not answer.
    """
    return _START.of(store, pipeline, *table, topic).load()


class Start:
    """The start of one table in its topic: resolves the setting ``start``, and stores and loads the result.

    Used by one thread at a time. ``place``: returns the table's location at the target.
    """

    def __init__(
        self,
        settings: TableConfig,
        topic: str,
        *,
        pipeline: str,
        store: StateStore,
        brokers: Callable[[], KafkaOffsets],
        place: Callable[[], str],
    ) -> None:
        self._settings = settings
        self._place = place
        self._topic = topic
        self._pipeline = pipeline
        self._store = store
        self._brokers = brokers
        self._known: KnownStart | None = None
        # False if the state store does not have the start yet, because it did not answer.
        self._is_stored = True
        # The topic's offsets when this worker first saw it.
        self._seen: TopicOffsets | None = None
        # True if this worker resolved the start, and did not load it from the state store.
        self._is_new = False

    @classmethod
    def of(cls, context: WorkerContext, topic: str, settings: TableConfig) -> Start:
        """Create the object for a table of a worker, from the table's setting ``start``."""
        return cls(
            settings,
            topic,
            pipeline=context.config.pipeline,
            store=context.store,
            brokers=lambda: context.brokers,
            place=lambda: context.place_of(settings.table),
        )

    @property
    def moves_with_time(self) -> bool:
        """Return True for ``latest``, which must be resolved at once, before more records arrive."""
        return self._settings.start == "latest"

    @property
    def offsets(self) -> Starts:
        """First offset to read per partition; empty for ``earliest``, and before ``settle`` was called."""
        return self._known.offsets if self._known is not None else NO_STARTS

    def is_other_topic(self, offsets: TopicOffsets) -> bool:
        """Return True if the start was resolved for a topic that was since deleted and created again."""
        return self._known is not None and is_other_topic(self._known.topic_id, offsets.topic_id)

    def is_settled(self, offsets: TopicOffsets) -> bool:
        """Return True if the setting ``start`` was resolved, and the topic was not replaced since."""
        return self._known is not None and not is_other_topic(self._known.topic_id, offsets.topic_id)

    def is_stored(self, offsets: TopicOffsets) -> bool:
        """Return True if the setting ``start`` was resolved, and the state store has the result."""
        return self._is_stored and self.is_settled(offsets)

    def has_records(self, offsets: TopicOffsets) -> bool:
        """Return True if the topic has a record at or after the start of the table."""
        return any(
            partition.latest > max(partition.earliest, self.offsets.get(n, 0))
            for n, partition in offsets.partitions.items()
        )

    def settle(self, offsets: TopicOffsets) -> None:
        """Load the start from the state store. If the state store does not have it, resolve and store it.

        The stored start is resolved again if the setting has changed and nothing was applied yet, or if the
        topic was replaced. If the state store does not answer, ``latest`` keeps the end offsets that were
        seen first, and the next call stores them.

        Raises:
            ConfigError: the setting names offsets that the topic does not have, or a time in the future.
            SourceError: the brokers refuse the request, or do not answer.
            StateStoreError: the store does not answer.
        """
        if not offsets.partitions:
            return
        if self.is_settled(offsets):
            if not self._is_stored:
                self._store_known()
            return
        if self._seen is None or is_other_topic(self._seen.topic_id, offsets.topic_id):
            self._seen = offsets
        setting, table = said_of(self._settings.start), self._settings.table
        start = known_start(self._store, self._pipeline, table, self._topic)
        begun = self._begun(start)
        if start is not None and is_other_topic(start.topic_id, offsets.topic_id):
            start = None
        if start is not None and (begun or start.said == setting):
            self._known = start
        elif begun or setting == "earliest":
            # The table read its topic from the beginning: with ``earliest``, or before the setting existed.
            self._known = KnownStart("earliest", offsets.topic_id, NO_STARTS)
        else:
            self.begin(self._seen if self.moves_with_time else offsets)

    def begin(self, offsets: TopicOffsets) -> None:
        """Resolve and store the start of a table to which no record was applied yet.

        Raises:
            ConfigError: the setting names offsets that the topic does not have, or a time in the future.
            SourceError: the brokers refuse the request, or do not answer.
            StateStoreError: the store does not answer.
        """
        starts = resolved(self._settings.start, offsets, self._brokers)
        self._is_new = True
        self._save(offsets.topic_id, starts)

    def lower(self, applied: Mapping[int, int]) -> bool:
        """Lower the start to the applied offsets, if this worker has resolved it. Return True if it changed.

        If a table has progress but no stored start, the state store was lost, and this worker has resolved
        the start again. It may then be above the applied offsets, although all records after these must be
        read.

        Args:
            applied: The next offset to apply per partition in the table's progress.

        Raises:
            StateStoreError: the store does not answer.
        """
        if self._known is None or not self._is_new:
            return False
        lowered = {n: min(offset, applied.get(n, 0)) for n, offset in self.offsets.items()}
        if lowered == self.offsets:
            return False
        self._save(self._known.topic_id, lowered)
        return True

    def _save(self, topic_id: str, offsets: Starts) -> None:
        start = KnownStart(said_of(self._settings.start), topic_id, dict(sorted(offsets.items())))
        self._known, self._is_stored = start, False
        self._store_known()

    def _store_known(self) -> None:
        """Store the start. Before this succeeds, no record of the table may be applied."""
        assert self._known is not None  # noqa: S101  (it was resolved)
        status = self._store.status_of(self._pipeline, self._settings.table)
        after = status.rank if status is not None else (0, 0, 0)
        self._known = msgspec.structs.replace(self._known, after=after)
        _START.of(self._store, self._pipeline, *self._settings.table, self._topic).save(self._known)
        self._is_stored = True

    def is_stale(self) -> bool:
        """Return True if the start belongs to a previous table of the same name and must be resolved again.

        Must only be called if the table at the target has no progress. Then the previous table was removed at
        the target, and a new one is loaded.

        Raises:
            StateStoreError: the store does not answer.
        """
        start = self._known
        if start is None or (start.said, self._settings.start) == ("earliest", "earliest"):
            return False
        return self._begun(start)

    def _begun(self, known: KnownStart | None) -> bool:
        """Return True if a worker applied records of the table after the start ``known`` was resolved.

        The table's status shows this. A status of a table at another location in the target does not count.
        """
        status = self._store.status_of(self._pipeline, self._settings.table)
        if status is None or status.batch == 0 or status.rank <= (known.after if known else (0, 0, 0)):
            return False
        return bool(status.details.get(PLACE, "") in ("", self._place()))

    def warnings(self) -> tuple[str, ...]:
        """Return a warning that records before the start are not applied; empty if the start skips none."""
        offsets = {number: offset for number, offset in self.offsets.items() if offset > 0}
        if self._known is None or not offsets:
            return ()
        places = ", ".join(f"offset {offset} of partition {n}" for n, offset in sorted(offsets.items()))
        rows = _LOADED if self._settings.snapshot == "initial" else _MISSING
        return (_NOT_APPLIED.format(places=places, topic=self._topic, said=self._known.said, rows=rows),)
