"""A table's log, folded by a reader, is the table, wherever the stream was cut into batches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tests.contracts.targets_bed import progress
from tests.memory_target import MemoryTarget
from tests.spark.decoded import reduced_here
from tests.spark.test_append_frame import change, messages, row
from tidesink.ddl.catalog import parse_create_table
from tidesink.events import Message, TableId
from tidesink.sinks.decode.canal_json import canal_json_plan
from tidesink.sinks.decode.plans import PlanSettings
from tidesink.sinks.laws.modes import INDEX, OFFSET, OP, PARTITION, PREIMAGE, log_shape
from tidesink.sinks.targets.base import ApplyOptions, ReducedBatch, ReducedRow

if TYPE_CHECKING:
    pass

TABLE = TableId("s", "t")
SCHEMA = parse_create_table("CREATE TABLE s.t (id INT PRIMARY KEY, v VARCHAR(9), d DATE, n INT)")
State = dict[str, dict[str, str | None]]


@dataclass
class Source:
    """A table at the source, and the record of each change of it; ``whole``: with all of the old row."""

    random: Random
    whole: bool
    rows: State

    def changed(self) -> bytes:
        key = str(self.random.randrange(4))
        new = row(id=key, v=self.random.choice(["a", "b", None]), n=self.random.choice(["1", "2", None]))
        there = self.rows.pop(key, None)
        if there is None:
            self.rows[key] = new
            return change(new)
        if self.random.random() < 0.3:
            return change(there, "DELETE")
        free = str(4 + self.random.randrange(4))
        new["id"] = free if free not in self.rows and self.random.random() < 0.4 else key
        self.rows[str(new["id"])] = new
        old = there if self.whole else {name: there[name] for name in there if there[name] != new[name]}
        return change(new, "UPDATE", old=[old])


@pytest.mark.parametrize(("seed", "whole"), [(1, True), (2, False)])
def test_a_folded_log_is_the_table_at_the_source(seed: int, *, whole: bool) -> None:
    random = Random(seed)
    source = Source(random, whole, {})
    stream = messages(*(source.changed() for _ in range(60)))
    target = MemoryTarget()
    table = target.open_table(log_shape(canal_json_plan(SCHEMA).shape), pipeline="shop")
    epoch = table.claim().epoch
    cuts = [0, *sorted(random.sample(range(1, 60), 3)), 60]
    for number, (start, end) in enumerate(pairwise(cuts), 1):
        batch = batch_of(stream[start:end])
        done = progress(epoch, number, table=TABLE)
        assert table.apply(batch, done).inserted == batch.upserts
        assert table.apply(batch, done).inserted == batch.upserts
    assert folded(target.rows(TABLE)) == {key: typed(found) for key, found in source.rows.items()}


def batch_of(stream: list[Message]) -> ReducedBatch:
    plan = canal_json_plan(SCHEMA, PlanSettings(logs=True))
    found = reduced_here(plan, stream)
    counts = found.summary.counts
    assert (counts.read, counts.applied, counts.deletes) == (len(stream), len(stream), 0)
    rows = [ReducedRow("upsert", row["key"], row["after"]) for row in found.to_apply]
    batch = ReducedBatch(log_shape(plan.shape), counts.upserts, 0, rows=rows)
    return replace(batch, how=ApplyOptions(mode="append"))


def folded(rows: list[dict[str, Any]]) -> dict[str, tuple[Any, ...]]:
    state: dict[str, tuple[Any, ...]] = {}
    for found in sorted(rows, key=lambda one: (one[PARTITION], one[OFFSET], one[INDEX])):
        key = str(found["id"])
        if found[OP] in ("delete", PREIMAGE):
            assert state.pop(key) == values(found), "the old row is what was there"
        else:
            state[key] = values(found)
    return state


def values(found: dict[str, Any]) -> tuple[Any, ...]:
    return found["v"], str(found["d"]), found["n"]


def typed(found: dict[str, str | None]) -> tuple[Any, ...]:
    return found["v"], found["d"], None if found["n"] is None else int(found["n"])
