"""At every cut by a connector's checkpoint the tables are as the source was there, however it was sent.

The source commits transactions over two tables, one behind the other in its log. A connector sends their rows
in that order, each to the partition of its key, and partitions take them apart. Now and then it commits how
far everything was taken; a session that starts again sends from there. A worker reads that, asks where the
partitions end, reads batches that end anywhere, and is killed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoded_batches import as_records
from tests.full import TEST_ALL
from tests.properties.test_cuts import NAMES, PARTITIONS, PLANS, Row
from tidesink.events import Message, TableId
from tidesink.sinks.cuts.bounds import ConnectorBounds
from tidesink.sinks.cuts.checkpoints import Checkpoint, ConnectorCheckpoints
from tidesink.sinks.decode.bounded import up_to_bound
from tidesink.sinks.decode.records import DecodedRecords, EventRules, decoded_records
from tidesink.sinks.kafka.offsets import Look, PartitionOffsets, TopicOffsets, limited
from tidesink.sinks.laws.bound import (
    least_bound,
    marks_at,
    passed_partitions,
    stands_at,
    starts,
    topic_after,
)
from tidesink.sinks.laws.counts import PartitionSummary
from tidesink.sinks.state.progress import Progress

TopicPartition = tuple[str, int]
PLACES: Final = [(name, number) for name in NAMES for number in PARTITIONS]
# In the source's log: what begins and ends a transaction, and a row.
_STEP: Final = 10


class Sent(NamedTuple):
    """What a connector gives to Kafka Connect: a row, or a heartbeat without one.

    ``position``: where the connector would begin again; ``following``: the row that it would send first.
    """

    row: Row | None
    position: int
    following: int


@dataclass
class Source:
    """The tables, and the connector: ``waiting`` is what its session has sent, and whether it was taken.

    ``splits``: a checkpoint is where the last row stands, and not where its transaction begins.
    """

    splits: bool = False
    now: int = 4
    # Rows in the order of the log: with what their transaction's begin and end are.
    rows: list[tuple[Row, int, int]] = field(default_factory=list)
    logs: dict[TopicPartition, list[bytes]] = field(default_factory=lambda: {place: [] for place in PLACES})
    waiting: list[tuple[Sent, bool]] = field(default_factory=list)
    following: int = 0
    taken: Sent | None = None
    committed: Sent | None = None

    def commit(self, changes: list[tuple[str, int, bool]]) -> None:
        """One transaction; a row may change more than once."""
        begin, end = self.now, self.now + _STEP * (len(changes) + 1)
        for at, (name, key, deletes) in enumerate(changes, 1):
            position = begin + _STEP * at
            # A row's commit position is one above its place.
            self.rows.append((Row(name, key, None if deletes else position, position + 1), begin, end))
        self.now = end

    def send(self, count: int) -> None:
        """Give the next rows to Kafka Connect."""
        for row, begin, _ in self.rows[self.following : self.following + count]:
            self.following += 1
            position = row.commit_ts if self.splits else begin
            self.waiting.append((Sent(row, position, self.following), False))

    def beat(self) -> None:
        """A heartbeat: where the connector has come to, taken at once."""
        if self.following:
            _, begin, end = self.rows[self.following - 1]
            ended = self.following == len(self.rows) or self.rows[self.following][1] != begin
            self.waiting.append((Sent(None, end if ended else begin, self.following), True))

    def take(self, place: TopicPartition, count: int) -> None:
        """A partition takes rows, in their order; what comes before them elsewhere may still wait."""
        for at, (sent, taken) in enumerate(self.waiting):
            if count and not taken and sent.row is not None and _place(sent.row) == place:
                self.logs[place].append(sent.row.message())
                self.waiting[at] = sent, True
                count -= 1

    def flush(self) -> None:
        """Commit how far everything was taken."""
        while self.waiting and self.waiting[0][1]:
            self.taken = self.waiting.pop(0)[0]
        self.committed = self.taken

    def restart(self) -> None:
        """A new session: what no partition has taken is lost with the former."""
        self.waiting, self.taken = [], self.committed
        self.following = self.committed.following if self.committed is not None else 0

    def table_at(self, name: str, position: int) -> dict[int, int]:
        """A table with the transactions that began before a position of the log."""
        found = dict[int, int]()
        for row, begin, _ in self.rows:
            if row.name == name and begin < position:
                found.pop(row.key, None)
                if row.value is not None:
                    found[row.key] = row.value
        return found

    def ends(self) -> dict[str, dict[int, int]]:
        """Where the partitions end."""
        return {name: {number: len(self.logs[name, number]) for number in PARTITIONS} for name in NAMES}


def _place(row: Row) -> TopicPartition:
    return row.name, row.key % len(PARTITIONS)


@dataclass
class Broker:
    """What a worker asks: in place of ``ConnectorCheckpoints``. ``early``: the ends of a moment before."""

    source: Source
    newest: Checkpoint | None = None
    reason: str = ""
    early: dict[str, dict[int, int]] | None = None

    def look(self) -> None:
        """Read the newest checkpoint."""
        committed = self.source.committed
        self.newest = Checkpoint(committed.position, 0.0) if committed is not None else None

    def ends(self, partitions: Mapping[str, Iterable[int]]) -> dict[str, dict[int, int]]:
        """Where partitions end now."""
        found = self.source.ends() if self.early is None else self.early
        return {name: {number: found[name][number] for number in asked} for name, asked in partitions.items()}


@dataclass
class Pipeline:
    """The target: tables with their progress, and the cuts; and a worker that may be killed.

    ``broken``: the law that does not hold: "asks early", "splits", "reads all".
    """

    source: Source
    broken: str = ""
    tables: dict[str, dict[int, int]] = field(default_factory=lambda: {name: {} for name in NAMES})
    progress: dict[str, Progress] = field(
        default_factory=lambda: {name: Progress(TableId("s", name), "p", 1, 0) for name in NAMES}
    )
    cuts: list[int] = field(default_factory=list)
    bound: int | None = None

    def __post_init__(self) -> None:
        self.kill()

    def kill(self) -> None:
        """Nothing is known any more but what the target has."""
        self.bound, self._broker = None, Broker(self.source)
        self._bounds = ConnectorBounds(cast("ConnectorCheckpoints", self._broker), 0.0)

    def look(self) -> None:
        """A worker's turn: read the checkpoint, choose the bound, and ask where the partitions end."""
        if self.broken == "asks early":
            early, self._broker.early = self._broker.early, self.source.ends()
        self._bounds.look((), Look({}, {}))
        least = max(
            (at for one in self.progress.values() if (at := least_bound(one)) is not None), default=None
        )
        if self.bound is None:
            self.bound = self._bounds.next(above=max(self.cuts, default=None), least=least)
        elif self.cuts and self.bound <= self.cuts[-1]:
            self.bound = self._bounds.after(self.bound)
        if self.bound is not None:
            if self.broken == "asks early" and early is not None:
                self._broker.early = early
            self._bounds.ask_ends(dict.fromkeys(NAMES, PARTITIONS))
        self._publish()

    def batch(self, name: str, sizes: Sequence[int], split: int) -> None:
        """Read and apply a batch of a table; ``split``: records of one fetch."""
        before, bound = self.progress[name], self.bound
        if bound is None or self._stands(name):
            return
        passed = passed_partitions(before, name, bound, self._marks(name))
        found = TopicOffsets(
            name, "id", {n: PartitionOffsets(0, len(self.source.logs[name, n])) for n in PARTITIONS}
        )
        ends = limited(found, self._bounds.ends(name))
        known, read, rows = starts(before, name, bound), {}, list[dict[str, Any]]()
        for number in PARTITIONS:
            start = known.get(number, 0)
            end = start if number in passed else max(start, min(ends[number].latest, start + sizes[number]))
            records = self._read(name, number, start, end, split)
            rows += [row for one in records.tables for row in one.rows.to_pylist()]
            read[number] = (
                end,
                PartitionSummary(records.records, -1, None, None, records.waits, records.passed),
            )
        for row in sorted(rows, key=lambda row: row["offset"]):
            image = row["after"] or row["key"] or row["before"]
            if row["op"] == "delete":
                self.tables[name].pop(image["id"], None)
            else:
                self.tables[name][image["id"]] = image["v"]
        after = topic_after(before, name, "id", read, bound)
        self.progress[name] = replace(before, batch=before.batch + 1, topics={name: after}, bound=bound)
        self._publish()

    def _read(self, name: str, number: int, start: int, end: int, split: int) -> DecodedRecords:
        log, plan, whole = self.source.logs[name, number], PLANS[name], DecodedRecords()
        bound = None if self.broken == "reads all" else self.bound

        def decode(records: pa.RecordBatch) -> DecodedRecords:
            return decoded_records(records, plan.decoder, plan.rows, rules=EventRules(bound=bound))

        messages = [Message(name, number, at, None, log[at]) for at in range(start, end)]
        batches = [as_records(messages[at : at + split]) for at in range(0, len(messages), split)]
        for one in up_to_bound(batches, decode, bound):
            whole.add(one)
        return whole

    def _marks(self, name: str) -> Mapping[int, int]:
        return marks_at(self.progress[name], name, self.bound, self._bounds.ends(name))

    def _stands(self, name: str) -> bool:
        bound = self.bound
        return bound is not None and stands_at(
            self.progress[name], name, PARTITIONS, bound, self._marks(name)
        )

    def _publish(self) -> None:
        """Publish the cut at the bound where all tables stand at it."""
        if self.bound is None or not all(map(self._stands, NAMES)):
            return
        if not self.cuts or self.bound > self.cuts[-1]:
            for name in NAMES:
                assert self.tables[name] == self.source.table_at(name, self.bound), (name, self.bound)
            self.cuts.append(self.bound)


_CHANGES: Final = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(1, 4), st.booleans()), min_size=1, max_size=4
)
_BATCH: Final = st.tuples(
    st.just("batch"), st.sampled_from(NAMES), st.tuples(*[st.integers(0, 6)] * 2), st.integers(1, 4)
)
_STEP_OF: Final = st.one_of(
    st.tuples(st.just("commit"), _CHANGES),
    st.tuples(st.just("send"), st.integers(1, 4)),
    st.tuples(st.just("take"), st.sampled_from(PLACES), st.integers(1, 3)),
    _BATCH,
    st.sampled_from([("beat",), ("take all",), ("flush",), ("restart",), ("look",), ("drain",), ("kill",)]),
)
# Most rounds have rows that were sent and taken in part, a checkpoint between, and come to a cut.
_ROUND: Final = st.tuples(
    st.tuples(st.just("commit"), _CHANGES),
    st.lists(_STEP_OF, max_size=8),
    st.sampled_from([("take all",), ("flush",), ("send", 3)]),
    st.lists(_STEP_OF, max_size=6),
    st.just(("flush",)),
    st.lists(_STEP_OF, max_size=4),
    st.just(("look",)),
    st.lists(_STEP_OF, max_size=4),
    st.just(("drain",)),
).map(lambda parts: [step for one in parts for step in (one if isinstance(one, list) else [one])])
_STEPS: Final = st.lists(_ROUND, min_size=2, max_size=6).map(
    lambda rounds: [step for one in rounds for step in one]
)


def _run(steps: list[tuple[Any, ...]], broken: str = "") -> Pipeline:
    source = Source(splits=broken == "splits")
    pipeline = Pipeline(source, broken=broken)
    for kind, *more in steps:
        if kind == "take all":
            for place in PLACES:
                source.take(place, len(source.waiting))
        elif kind == "drain":
            for name in NAMES:
                pipeline.batch(name, [1000, 1000], 7)
        elif kind in ("batch", "look", "kill"):
            getattr(pipeline, kind)(*more)
        else:
            getattr(source, kind)(*more)
    return pipeline


@pytest.mark.law("L9")
@settings(max_examples=1000 if TEST_ALL else 40)
@given(_STEPS)
def test_at_every_cut_the_tables_are_as_the_source_was(steps: list[tuple[Any, ...]]) -> None:
    pipeline = _run(steps)
    pipeline = _finish(pipeline)
    # Where all is sent and known, the last cut has all.
    assert {name: pipeline.source.table_at(name, pipeline.source.now) for name in NAMES} == pipeline.tables


def _finish(pipeline: Pipeline) -> Pipeline:
    source = pipeline.source
    source.send(len(source.rows))
    source.beat()
    for place in PLACES:
        source.take(place, len(source.waiting))
    source.flush()
    for _ in range(2):
        pipeline.look()
        for name in NAMES:
            pipeline.batch(name, [1000, 1000], 7)
    pipeline.look()
    return pipeline


_TRANSFER: Final[tuple[Any, ...]] = ("commit", [("a", 1, False), ("b", 1, False)])
# A checkpoint comes when one of two partitions has taken its row.
_APART: Final[list[tuple[Any, ...]]] = [
    _TRANSFER,
    ("send", 2),
    ("take all",),
    ("flush",),
    ("look",),
    _TRANSFER,
    ("send", 2),
    ("beat",),
    ("take all",),
    ("flush",),
    ("look",),
    ("drain",),
    ("look",),
    ("drain",),
]

_LOOK: Final[list[tuple[Any, ...]]] = [("take all",), ("flush",), ("look",), ("drain",)]


def test_checkpoints_make_cuts_whatever_is_sent_again() -> None:
    """What the model proves is of use: there are cuts in it, also within sessions that send again."""
    turn: list[tuple[Any, ...]] = [
        _TRANSFER,
        ("send", 2),
        ("take", ("a", 1), 1),
        ("flush",),
        ("restart",),
        ("send", 9),
        ("take all",),
        ("flush",),
        ("look",),
        ("drain",),
        ("kill",),
    ]
    assert len(_run(turn * 6).cuts) >= 5
    assert len(_run(_APART).cuts) == 2


@pytest.mark.parametrize(
    ("broken", "steps"),
    [
        ("asks early", _APART),
        ("reads all", [_TRANSFER, _TRANSFER, ("send", 3), *_LOOK]),
        ("splits", [_TRANSFER, ("send", 1), *_LOOK]),
    ],
)
def test_a_cut_is_torn_where_a_law_is_broken(broken: str, steps: list[tuple[Any, ...]]) -> None:
    """Guards the test above: the model can fail."""
    _run(steps)
    with pytest.raises(AssertionError):
        _run(steps, broken)
