"""Histories in SQL databases take what a snapshot read, batch by batch as ``tests.history_law`` does."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import pytest

from tests.contracts.targets_bed import Bed, progress
from tests.contracts.test_targets_history import Event, batch_of, did, held, part_of
from tests.full import FULL, quick_on
from tests.memory_target import MemoryTarget
from tidesink.sinks.laws.modes import FROM_COLUMN, READ_COLUMN, TO_COLUMN

pytestmark = [pytest.mark.spark, pytest.mark.servers, quick_on("postgres")]

_LAST: Final = 9


class Sent(NamedTuple):
    """Events of keys, or reads of them, that come in one batch."""

    rows: Sequence[Event]
    reads: bool


def batches(chosen: random.Random, *, keys: int, pieces: int) -> list[Sent]:
    """Events and reads of many keys, each somewhere in the batches, and half of them once more.

    A batch has nothing before a second of its own, so that old versions do not matter to each of them.
    """
    floors = [1, 1, *(chosen.randrange(1, _LAST) for _ in range(pieces - 2))]
    reading = [at % 2 == 0 for at in range(pieces)]
    found: list[dict[tuple[int, int], Event]] = [{} for _ in floors]
    for key in range(keys):
        sent = [(True, _read(chosen, key)) for _ in range(chosen.randrange(3))]
        sent += [(False, one) for _ in range(chosen.randrange(5)) for one in _change(chosen, key)]
        for reads, one in [*sent, *chosen.sample(sent, len(sent) // 2)]:
            ways = [at for at, kind in enumerate(reading) if kind is reads and floors[at] <= one.at]
            rows = found[chosen.choice(ways)]
            # Of a delete and a write at one moment a batch has the write.
            if one.name is not None or (key, one.at) not in rows:
                rows[(key, one.at)] = one
    order = [Sent([*rows.values()], reads) for rows, reads in zip(found, reading, strict=True) if rows]
    chosen.shuffle(order)
    return order


def _read(chosen: random.Random, key: int) -> Event:
    at = chosen.randint(1, _LAST)
    return Event(at, key, f"read {at}")


def _change(chosen: random.Random, key: int) -> list[Event]:
    """A delete, a write, or a delete and an insert at one moment, as an update may be sent."""
    at = chosen.randint(1, _LAST)
    names = chosen.choice(((None,), (f"event {at}",), (None, f"event {at}")))
    return [Event(at, key, name) for name in names]


def stored(bed: Bed) -> list[tuple[Any, ...]]:
    """The rows, without the times, whose types are a database's own."""
    names = ("id", FROM_COLUMN, TO_COLUMN, READ_COLUMN, "current", "name", "amount")
    return sorted(tuple(row[name] for name in names) for row in bed.rows())


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=FULL) for seed in (2, 3, 4))])
def test_each_batch_of_reads_or_events_does_what_the_law_says(sql: Bed, seed: int) -> None:
    memory = MemoryTarget()
    law = Bed("memory", memory, memory.rows, lambda: memory)
    tables = [(bed, *held(bed)) for bed in (sql, law)]
    order = batches(random.Random(seed), keys=200, pieces=10)
    # All of it once more: nothing is new.
    for number, sent in enumerate([*order, *order], 1):
        results = []
        for bed, table, epoch in tables:
            batch = (part_of if sent.reads else batch_of)(bed, sent.rows)
            results.append(did(table.apply(batch, progress(epoch, number))))
        assert results[0] == results[1]
        assert stored(sql) == stored(law)
        if number > len(order):
            assert results[0] == (0, 0, 0, len(sent.rows))
    assert {row[READ_COLUMN] for row in sql.rows()} == {True, False}
