"""At least once, whatever a caller does: what is committed was given to it, and it had come back from it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.samples import CANAL
from tests.unit.config.samples import CANAL_JSON, right
from tidesink.codecs import open_codec
from tidesink.consumer import EventBatch, EventConsumer, Place
from tidesink.errors import DecodeError
from tidesink.events import Message

CONFIG = right(CANAL_JSON, Path("/base"))
# How many rows each record has; 0 is a record that cannot be decoded.
LOGS = st.lists(st.integers(0, 3), min_size=1, max_size=12)
ACTIONS = st.lists(
    st.tuples(st.sampled_from(["events", "batches", "crash", "leave", "stop"]), st.integers(1, 5)),
    max_size=12,
)


class Log:
    """A partition with a group's committed offset; it outlives the consumers of it."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.committed = 0
        self.returned: set[int] = set()  # records that a caller came back from

    def message(self, offset: int) -> Message:
        rows = [{"id": str(offset), "e": str(at)} for at in range(self.sizes[offset])]
        value = json.dumps(CANAL | {"data": rows}).encode() if rows else b"bad"
        return Message("app", 0, offset, None, value)


class Member:
    """Reads a log as a consumer group's member does."""

    topics = ("app",)

    def __init__(self, log: Log) -> None:
        self.log = log
        self.next = log.committed

    def waits_since(self) -> float:
        return 0.0

    def fetch(self, most: int) -> list[Message]:
        found = [self.log.message(at) for at in range(self.next, min(self.next + most, len(self.log.sizes)))]
        self.next += len(found)
        return found

    def commit(self, offsets: Mapping[Place, int]) -> None:
        for end in offsets.values():
            good = {at for at in range(end) if self.log.sizes[at]}
            assert good <= self.log.returned, "committed what no caller came back from"
            self.log.committed = end

    def close(self) -> None:
        """Nothing to leave."""


def opened(log: Log) -> EventConsumer:
    member: Any = Member(log)
    return EventConsumer(
        CONFIG, codec=open_codec("canal-json"), group=member, batch_records=3, stop_after_idle=0
    )


def take(log: Log, given_out: Iterator[Any], count: int = 10**6) -> tuple[Any, ...]:
    """Ask so many times; asking says that the caller is done with what it had. After the last one: break.

    What it had then, and did not come back from, is returned.
    """
    had: tuple[Any, ...] = ()
    for _ in range(count):
        _came_back(log, had)
        try:
            found = next(given_out)
        except (StopIteration, DecodeError):
            return ()
        had = found.events if isinstance(found, EventBatch) else (found,)
    return had


def take_one_more(log: Log, consumer: EventConsumer, had: tuple[Any, ...]) -> None:
    """The loop goes on with the event it had, and ends there."""
    _came_back(log, had)
    assert next(consumer, None) is None


def _came_back(log: Log, events: tuple[Any, ...]) -> None:
    for event in events:
        if event.position.index + 1 == log.sizes[event.position.offset]:
            log.returned.add(event.position.offset)


@settings(max_examples=400, deadline=None)
@given(LOGS, ACTIONS)
def test_what_is_committed_was_done_and_the_rest_comes_again(
    sizes: list[int], actions: list[tuple[str, int]]
) -> None:
    log = Log(sizes)
    consumer, had = opened(log), ()
    for action, count in actions:
        if action == "events":
            had = take(log, iter(consumer), count)
            continue
        if action == "batches":
            take(log, consumer.batches(), count)
        elif action == "stop":
            consumer.stop()
            take_one_more(log, consumer, had)
        elif action == "leave":
            consumer.close()
        if action != "batches":
            consumer = opened(log)
        had = ()
    with opened(log) as last:
        take(log, iter(last))
    bad = next((at for at, size in enumerate(sizes) if not size), len(sizes))
    assert log.returned == set(range(bad))
    assert log.committed == bad
