"""Whether a topic without an id was made again, by the first record of each of its partitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tidesink.events import TableId
from tidesink.sinks.kafka.offsets import NO_ID, FirstRecord, KafkaOffsets, TopicOffsets, made_again
from tidesink.sinks.state.progress import StateStore, TopicProgress

_KIND: Final = "first-records"


class FirstRecords:
    """The first records that one table's topic had when they were last seen.

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
            self._store.save_document(_KIND, self._name, document)

    def _loaded(self) -> Mapping[int, FirstRecord]:
        kept = self._store.load_document(_KIND, self._name) or {}
        return {int(number): FirstRecord(*first) for number, first in kept.items()}


def _compare(topic: str, number: int, before: FirstRecord, now: FirstRecord | None) -> None:
    if now is None or now.offset > before.offset or now == before:
        return
    raise made_again(
        topic,
        f"partition {number} begins with offset {now.offset} of time {now.timestamp}, and began with offset "
        f"{before.offset} of time {before.timestamp}; it has no topic id",
    )
