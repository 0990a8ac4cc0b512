"""The law of DDL that empties a table (ADR 34): whatever writes, deliveries, batches and kills surround it.

A source commits writes and TRUNCATEs. Its changefeed sends each row to the partition of its key, in any
order among partitions, and DDL to partition 0 behind all rows before it and ahead of all later ones; it may
be restarted and send a suffix again. A worker plans batches, reads the DDL ahead and applies them, or dies,
and may lose its memory of the DDL; between batches it may read a snapshot of the source. The bytes, the
reading of DDL, the decision and the tasks are the real ones.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoded_batches import as_records
from tests.memory_target import CAPABILITIES
from tidesink.codecs import open_codec
from tidesink.codecs.base import CodecOptions
from tidesink.config.fields import SchemaChanges
from tidesink.ddl.catalog import TableDefinitions, parse_create_table
from tidesink.ddl.row_changes import RowDdl
from tidesink.ddl.topic_statements import learn, with_rows
from tidesink.events import ChangeEvent, DdlEvent, Message, Op, Position, TableId
from tidesink.sinks.batch.summaries import joined_summaries
from tidesink.sinks.batch.tasks import RangeTask
from tidesink.sinks.decode.canal_json import canal_json_plan
from tidesink.sinks.decode.records import EventRules
from tidesink.sinks.decode.topic_ddl import ddl_statement
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.schema_changes.decisions import Policies
from tidesink.sinks.schema_changes.row_ddl import decide_rows
from tidesink.sinks.spark.payloads import UPSERT, unpack
from tidesink.sinks.state.progress import PartitionProgress, Progress, TopicProgress

TABLE: Final = TableId("shop", "t")
SCHEMA: Final = parse_create_table("CREATE TABLE shop.t (id INT PRIMARY KEY, n INT)")
PLAN: Final = canal_json_plan(SCHEMA)
PARTITIONS: Final = 2
KEYS: Final = range(4)
POLICIES: Final = Policies(SchemaChanges(truncate="apply"), {}, CAPABILITIES)


@dataclass(frozen=True)
class Sent:
    """What the changefeed has to send: a record, and its partition; DDL is a barrier between rows."""

    value: bytes
    partition: int
    barrier: bool = False


@dataclass
class World:
    """The source, its topic, and a worker. ``asks_late``: the law is broken, DDL is not read ahead."""

    extended: bool = True
    asks_late: bool = False
    source: dict[int, int] = field(default_factory=dict)
    log: list[Sent] = field(default_factory=list)
    # By partition what of the log is sent: the numbers of its records there, in order.
    sent: list[set[int]] = field(default_factory=lambda: [set() for _ in range(PARTITIONS)])
    topic: list[list[bytes]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    target: dict[int, int] = field(default_factory=dict)
    progress: Progress = field(default_factory=lambda: Progress(TABLE, "shop", 1, 0))
    ddl: tuple[RowDdl, ...] = ()
    ddl_read: int = 0
    planned: list[tuple[int, int]] | None = None
    superseded: int = 0
    clock: int = 1000
    # Where partition 1 begins by now.
    first: int = 0
    wants_snapshot: bool = False

    def __post_init__(self) -> None:
        self.codec = open_codec("canal-json", options=CodecOptions(enable_tidb_extension=self.extended))

    def write(self, key: int, deletes: bool) -> None:
        """A write at the source."""
        before = self.source.pop(key, None)
        if deletes and before is None:
            return
        row = {"id": key, "n": self.clock if not deletes else before}
        if not deletes:
            self.source[key] = self.clock
        op = Op.DELETE if deletes else Op.INSERT
        old, new = (row, None) if deletes else (None, row)
        at, place = self._commit(), Position("cdc", 0, 0)
        self._log(ChangeEvent(op, TABLE, {"id": key}, old, new, at, place, SCHEMA), key % PARTITIONS)

    def truncate(self) -> None:
        """A TRUNCATE at the source."""
        self.source.clear()
        event = DdlEvent(
            TABLE, "TRUNCATE TABLE `shop`.`t`", "TRUNCATE", self._commit(), Position("cdc", 0, 0)
        )
        self._log(event, 0, barrier=True)

    def _commit(self) -> int:
        self.clock += 1
        return self.clock << 18

    def _log(self, event: ChangeEvent | DdlEvent, partition: int, *, barrier: bool = False) -> None:
        record = self.codec.encode(event, topic="cdc")
        assert record is not None
        assert record.value is not None
        self.log.append(Sent(record.value, partition, barrier))

    def deliver(self, partition: int) -> None:
        """The next record of a partition comes to the topic, unless a DDL is to be sent first."""
        every = set[int]().union(*self.sent)
        for number, one in enumerate(self.log):
            if number in every:
                continue
            if one.partition == partition and not (one.barrier and not every.issuperset(range(number))):
                self.sent[partition].add(number)
                self.topic[partition].append(one.value)
                return
            if one.barrier:
                return

    def restart_feed(self, back: int) -> None:
        """The changefeed goes back to where all is sent, or before, and sends all from there again."""
        every = set[int]().union(*self.sent)
        checkpoint = next((n for n in range(len(self.log)) if n not in every), len(self.log))
        for sent in self.sent:
            sent.intersection_update(range(max(0, checkpoint - back)))

    def plan(self, most: int) -> None:
        """Fix the offsets of a batch."""
        starts = [self.progress.next_offset("cdc", n) or n * self.first for n in range(PARTITIONS)]
        self.planned = [(start, min(start + most, len(self.topic[n]))) for n, start in enumerate(starts)]

    def apply(self) -> None:
        """Read the DDL ahead, and apply the planned batch, or the DDL that goes before it."""
        if self.planned is None:
            self.plan(2)
        ranges = self.planned or []
        if not any(start < end for start, end in ranges):
            return
        self._read_ddl(ranges[0][1] if self.asks_late else len(self.topic[0]))
        if self._decided():
            self._apply_rows(ranges)
            parts = {n: PartitionProgress(end, end) for n, (_, end) in enumerate(ranges)}
            self.progress = replace(self.progress, topics={"cdc": TopicProgress("cdc", "id", parts)})
        self.kill()

    def _decided(self) -> bool:
        """Commit what is decided on the DDL that is known; False where that empties the table."""
        decision = decide_rows(self.ddl, POLICIES, self.progress, "cdc")
        assert not decision.pending
        self.progress = replace(self.progress, batch=self.progress.batch + 1, decided=decision.decided)
        if decision.empties is not None:
            self.target = {}
            self.progress = replace(self.progress, emptied=decision.empties)
        return decision.empties is None

    def _read_ddl(self, end: int) -> None:
        unread = enumerate(self.topic[0][self.ddl_read : end], self.ddl_read)
        found = [one for one in (ddl_statement(value, at) for at, value in unread) if one is not None]
        rows = learn(TableDefinitions(), found, "cdc").rows
        self.ddl, self.ddl_read = with_rows(self.ddl, rows), max(self.ddl_read, end)

    def _apply_rows(self, ranges: list[tuple[int, int]]) -> None:
        plan = PLAN.for_batch(1, EventRules(emptied=self.progress.emptied), marks_deletes=False)
        heads: list[dict[str, Any]] = []
        for number, (start, end) in enumerate(ranges):
            messages = [Message("cdc", number, at, None, self.topic[number][at]) for at in range(start, end)]
            task = RangeTask((), plan)
            for payload in task.packed(FetchRange("cdc", number, start, end), [as_records(messages)]):
                heads += payload.drop_columns(["payload"]).to_pylist()
                for batch in unpack([payload.select(["payload", "error"])]):
                    self._take(batch.to_pylist())
        assert not any(head["error"] for head in heads)
        summaries = [pickle.loads(head["summary"]) for head in heads if head["summary"]]  # noqa: S301
        counts = joined_summaries(summaries).counts
        assert counts.messages == sum(end - start for start, end in ranges)
        assert counts.read == counts.applied + counts.superseded + counts.filtered
        self.superseded += counts.superseded

    def _take(self, rows: list[dict[str, Any]]) -> None:
        for row in (one for one in rows if one["key"] is not None):
            if row["_op"] == UPSERT:
                self.target[row["key"]["id"]] = row["after"]["n"]
            else:
                self.target.pop(row["key"]["id"], None)

    def read_snapshot(self) -> None:
        """A part of a snapshot: the rows that the source has now, behind the offsets that are applied.

        Or the DDL that goes before it: what it has is behind all that was sent.
        """
        if self.planned is None:
            self._read_ddl(0 if self.asks_late else len(self.topic[0]))
            if self._decided():
                self.target |= self.source
                self.wants_snapshot = False

    def expire(self) -> None:
        """Before anything is applied, rows that were sent to the partition without DDL go from the topic.

        A snapshot has to bring what they wrote.
        """
        if not self.progress.topics:
            self.first = len(self.topic[1])
            self.wants_snapshot = True

    def kill(self) -> None:
        """What was not committed is gone."""
        self.planned = None

    def forget(self) -> None:
        """The state store is lost."""
        self.kill()
        self.ddl, self.ddl_read = (), 0

    def finish(self) -> None:
        """All is delivered and applied."""
        for _ in self.log:
            for number in range(PARTITIONS):
                self.deliver(number)
        self.kill()
        while self.wants_snapshot:
            self.read_snapshot()
        for _ in range(3 * len(self.topic[0] + self.topic[1]) + 3):
            self.apply()


_STEPS: Final = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(KEYS), st.booleans()),
    st.tuples(st.just("write"), st.sampled_from(KEYS), st.just(value=False)),
    st.tuples(st.just("truncate")),
    st.tuples(st.just("deliver"), st.integers(0, PARTITIONS - 1)),
    st.tuples(st.just("deliver"), st.integers(0, PARTITIONS - 1)),
    st.tuples(st.just("restart_feed"), st.integers(0, 4)),
    st.tuples(st.just("plan"), st.integers(1, 3)),
    st.tuples(st.just("apply")),
    st.tuples(st.just("read_snapshot")),
    st.tuples(st.just("expire")),
    st.tuples(st.just("kill")),
    st.tuples(st.just("forget")),
)


def _lived(world: World, steps: list[tuple[object, ...]]) -> World:
    for name, *given_ in steps:
        getattr(world, str(name))(*given_)
    world.finish()
    return world


@pytest.mark.law("L3")
@pytest.mark.parametrize("extended", [True, False])
@settings(max_examples=40)
@given(steps=st.lists(_STEPS, max_size=30))
def test_the_target_becomes_the_source(extended: bool, steps: list[tuple[object, ...]]) -> None:
    world = _lived(World(extended), steps)
    assert world.target == world.source


# A row of before in each partition; then a TRUNCATE, and a row of after on the partition without the DDL.
_LATE: Final[list[tuple[object, ...]]] = [
    ("write", 0, False),
    ("write", 1, False),
    ("deliver", 0),
    ("deliver", 1),
    ("truncate",),
    ("write", 3, False),
    ("deliver", 0),
    ("deliver", 1),
]


def test_rows_from_before_are_superseded_wherever_they_are_read() -> None:
    world = _lived(World(), _LATE)
    assert (world.target, world.superseded) == ({3: 1003}, 2)
    assert world.progress.emptied == 1003 << 18
    world.restart_feed(4)
    world.finish()
    assert (world.target, world.superseded) == ({3: 1003}, 4)


def test_ddl_that_is_not_read_ahead_takes_rows_of_a_snapshot_away() -> None:
    """Guards the law: what the snapshot has of after the TRUNCATE is in no partition any more."""
    worlds = [World(asks_late=late) for late in (True, False)]
    for world in worlds:
        _lived(world, [*_LATE, ("expire",), ("read_snapshot",), ("read_snapshot",)])
    assert [world.target for world in worlds] == [{}, {3: 1003}]


def test_ddl_that_is_not_read_ahead_takes_a_later_row_away() -> None:
    """Guards the law: the model can fail."""
    worlds = [World(asks_late=late) for late in (True, False)]
    for world in worlds:
        for name, *given_ in [*_LATE, ("plan", 1), ("apply",)]:
            getattr(world, str(name))(*given_)
        # The later row alone: the DDL of the other partition comes in the batch behind it.
        world.planned = [(1, 1), (1, 2)] if world.asks_late else None
        world.apply()
        world.finish()
    assert [world.target == world.source for world in worlds] == [False, True]
