"""Partitions added to a topic wait for the ones before them, for a table read from its beginning too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tidesink.sinks.kafka.offsets import PartitionOffsets, TopicGrowth, TopicOffsets, held_back
from tidesink.sinks.state.sql_store import SqlStateStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStateStore]:
    opened = SqlStateStore(str(tmp_path / "state.db"))
    yield opened
    opened.close()


def _found(*latest: int, topic_id: str = "one", earliest: int = 0) -> TopicOffsets:
    return TopicOffsets("t", topic_id, {n: PartitionOffsets(earliest, end) for n, end in enumerate(latest)})


def _growth(store: SqlStateStore) -> TopicGrowth:
    return TopicGrowth("t", pipeline="p", store=store)


def test_a_topic_first_seen_has_no_order_among_its_partitions(store: SqlStateStore) -> None:
    assert _growth(store).see(_found(5, 5, 5)) == ()
    assert held_back((), {}, _found(5, 5, 5).partitions) == frozenset()


def test_what_was_seen_outlives_the_worker_and_not_the_topic(store: SqlStateStore) -> None:
    first = _growth(store)
    assert first.see(_found(50, 60)) == ()
    assert first.see(_found(55, 61, 3)) == ({0: 55, 1: 61},)
    # A broker that answers from before takes nothing back.
    assert first.see(_found(55, 61)) == ({0: 55, 1: 61},)
    again = _growth(store)
    grown = ({0: 55, 1: 61}, {0: 90, 1: 91, 2: 92})
    assert again.see(_found(90, 91, 92, 1)) == grown
    assert _growth(store).see(_found(99, 99, 99, 99)) == grown
    assert _growth(store).see(_found(9, 9, 9, 9, topic_id="made again")) == ()
    assert _growth(store).see(_found(9, 9, 9, 9, topic_id="made again")) == ()


def _order(grown: tuple[Mapping[int, int], ...], found: TopicOffsets) -> list[tuple[int, ...]]:
    """The partitions that are read one after the other by a table nothing was applied of, 10 records each."""
    known: dict[int, int] = {}
    order: list[tuple[int, ...]] = []
    while True:
        held = held_back(grown, known, found.partitions)
        ends = {n: at.latest for n, at in found.partitions.items() if n not in held}
        reading = tuple(n for n, end in ends.items() if known.get(n, found.partitions[n].earliest) < end)
        if not reading:
            return order
        order.append(reading)
        for number in reading:
            known[number] = min(known.get(number, found.partitions[number].earliest) + 10, ends[number])


def test_a_table_read_from_its_beginning_reads_in_the_order_of_growth() -> None:
    grown = ({0: 20}, {0: 25, 1: 5})
    assert _order(grown, _found(40, 10, 10)) == [(0,), (0,), (0, 1), (0, 2)]
    # What expired before is not waited for, and neither is what the brokers lost.
    assert _order(grown, _found(40, 40, 40, earliest=30)) == [(0, 1, 2)]
    assert _order(({0: 99},), _found(10, 10)) == [(0,), (1,)]
