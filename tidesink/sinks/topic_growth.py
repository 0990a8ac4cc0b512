"""When partitions were added to a topic, and where the ones before them ended then.

A table that has progress sees by it which partitions are new. One that is read for the first time, or anew,
does not: what the pipeline saw of its topic before tells it, and it reads in the same order. The state store
remembers it; a topic that is first seen with all its partitions has no order among them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from tidesink.sinks.offsets import PartitionOffsets, TopicOffsets
from tidesink.sinks.state_store import StateStore

_KIND: Final = "topic-partitions"

# By partition, where those ended that were there before others were added.
Ends = Mapping[int, int]


class _Seen(NamedTuple):
    """The partitions of a topic under Kafka's id, and each time that there were more."""

    topic_id: str
    partitions: frozenset[int]
    grown: tuple[Ends, ...]


class TopicGrowth:
    """The growth of one topic. Shared by the lanes of its tables."""

    def __init__(self, topic: str, *, pipeline: str, store: StateStore) -> None:
        self._name = f"{pipeline}/{topic}"
        self._store = store
        self._lock = threading.Lock()
        self._seen: _Seen | None = None

    def see(self, found: TopicOffsets) -> tuple[Ends, ...]:
        """Take note of a topic as it is now; each time it grew, the oldest first.

        Raises:
            StateStoreError: the store does not answer.
        """
        with self._lock:
            seen = self._seen if self._seen is not None else self._loaded()
            now = _followed(seen, found)
            if now != seen:
                self._save(now)
            self._seen = now
            return now.grown

    def _loaded(self) -> _Seen | None:
        kept: Any = self._store.load_document(_KIND, self._name)
        if kept is None:
            return None
        grown = tuple(dict(ends) for ends in kept["grown"])
        return _Seen(kept["topic_id"], frozenset(kept["partitions"]), grown)

    def _save(self, seen: _Seen) -> None:
        document = {
            "topic_id": seen.topic_id,
            "partitions": sorted(seen.partitions),
            "grown": [sorted(ends.items()) for ends in seen.grown],
        }
        self._store.save_document(_KIND, self._name, document)


def _followed(seen: _Seen | None, found: TopicOffsets) -> _Seen:
    numbers = frozenset(found.partitions)
    if seen is None or seen.topic_id != found.topic_id:
        return _Seen(found.topic_id, numbers, ())
    if numbers <= seen.partitions:
        return seen  # all known; or a broker answers from before
    ends = {number: found.partitions[number].latest for number in seen.partitions & numbers}
    return _Seen(found.topic_id, seen.partitions | numbers, (*seen.grown, ends))


def held_back(
    grown: Sequence[Ends], known: Mapping[int, int], found: Mapping[int, PartitionOffsets]
) -> frozenset[int]:
    """The partitions not to be read yet; ``known``: the next offset of each one that was read before.

    Those that were added wait until the ones before them are read to where they ended then.
    """
    for ends in grown:
        there = {number: min(end, found[number].latest) for number, end in ends.items() if number in found}
        if any(known.get(number, found[number].earliest) < end for number, end in there.items()):
            return frozenset(found) - frozenset(ends)
    return frozenset()
