"""What counts as idle for ``stop_after_idle``: only the time in which nothing but records is missing."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from confluent_kafka import TopicPartition

from tests.unit.config.samples import CANAL_JSON, right
from tidesink.codecs import open_codec
from tidesink.consumer import ConsumerGroup, EventConsumer

PLACES: Final = [TopicPartition("app", 0, 7)]
ROUNDS: Final = 8
FETCH: Final = 0.5
# Less than the rounds take, and longer than a busy machine pauses between a round and the look at the clock.
IDLE: Final = FETCH * (ROUNDS - 2)


class Library:
    """A consumer of confluent-kafka without records, whose group meets within each of its first fetches."""

    def __init__(self, *_settings: Any, **_more: Any) -> None:
        self.fetches = 0
        self.callbacks: list[Callable[..., None]] = []

    def list_topics(self, **_how: Any) -> SimpleNamespace:
        return SimpleNamespace(topics={"app": SimpleNamespace(partitions={0: None})})

    def subscribe(self, _topics: list[str], on_assign: Any, on_revoke: Any) -> None:
        self.callbacks = [on_revoke, on_assign]

    def consume(self, _most: int, **_how: Any) -> list[Any]:
        time.sleep(FETCH)
        self.fetches += 1
        for callback in self.callbacks if self.fetches <= ROUNDS else ():
            callback(self, PLACES)
        return []

    def committed(self, places: list[TopicPartition], **_how: Any) -> list[TopicPartition]:
        return places

    def assign(self, _places: list[TopicPartition]) -> None:
        """What is assigned has no records."""

    def close(self) -> None:
        """Nothing to leave."""


def test_a_round_that_begins_and_ends_within_a_fetch_is_no_idle_time() -> None:
    library = Library()
    members = ConsumerGroup(
        {"bootstrap.servers": "nowhere"}, tuple, group="g", open_client=lambda *_settings, **_more: library
    )
    members.open()
    config = right(CANAL_JSON, Path("/base"))
    events = EventConsumer(config, codec=open_codec("canal-json"), group=members, stop_after_idle=IDLE)
    assert list(events) == []
    assert library.fetches > ROUNDS
