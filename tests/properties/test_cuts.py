"""At every cut the tables hold what the source held at that instant, however it was sent, read and killed.

The source commits transactions over two tables. Its producer writes each table's rows in the order of their
commits into the partition of their key, watermarks once all rows up to them are written everywhere, and after
a restart all rows behind a checkpoint again. A worker reads batches that end anywhere, forgets what is not
committed when it is killed, and chooses bounds as the worker does.

A copy of a table is spoilt, and repaired by parts that are read from the source while all this goes on. Cuts
leave the table out until they are as late as what its parts show.

A database has two faces in the model: what is applied, and what its readers see. At every step readers see
each table as of the last cut, but for those that they are told of.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoded_batches import as_records
from tests.full import TEST_ALL
from tidesink.codecs.options import CanalJsonOptions
from tidesink.ddl.catalog import parse_create_table
from tidesink.events import Message, TableId
from tidesink.sinks.decode.bounded import up_to_bound
from tidesink.sinks.decode.canal_json import canal_json_plan
from tidesink.sinks.decode.records import DecodedRecords, EventRules, decoded_records
from tidesink.sinks.laws.bound import (
    is_outside,
    least_bound,
    next_bound,
    passed_partitions,
    stands_at,
    starts,
    topic_after,
)
from tidesink.sinks.laws.counts import PartitionSummary
from tidesink.sinks.state.progress import Progress, SnapshotProgress

NAMES: Final = ("a", "b")
PARTITIONS: Final = range(2)
OPTIONS: Final = CanalJsonOptions(enable_tidb_extension=True)
SCHEMAS: Final = {
    name: parse_create_table(f"CREATE TABLE s.{name} (id INT PRIMARY KEY, v INT)") for name in NAMES
}
PLANS: Final = {name: canal_json_plan(schema, options=OPTIONS) for name, schema in SCHEMAS.items()}
# One instant of the schedule: 2 ms of the source's time, in which a transaction of each ms is committed.
EVERY: Final = 0.002
_MS: Final = 1 << 18


class Row(NamedTuple):
    """A row as a transaction left it; ``value`` None: deleted."""

    name: str
    key: int
    value: int | None
    commit_ts: int

    def message(self) -> bytes:
        """As TiCDC writes it."""
        row = {"id": str(self.key), "v": "0" if self.value is None else str(self.value)}
        return json.dumps(
            {
                "id": 0,
                "database": "s",
                "table": self.name,
                "pkNames": ["id"],
                "isDdl": False,
                "type": "DELETE" if self.value is None else "INSERT",
                "es": 1,
                "ts": 1,
                "sql": "",
                "sqlType": {"id": 4, "v": 4},
                "mysqlType": {"id": "int", "v": "int"},
                "old": None,
                "data": [row],
                "_tidb": {"commitTs": self.commit_ts},
            }
        ).encode()


def watermark(commit_ts: int) -> bytes:
    """As TiCDC writes it."""
    return json.dumps(
        {
            "id": 0,
            "database": "",
            "table": "",
            "pkNames": None,
            "isDdl": False,
            "type": "TIDB_WATERMARK",
            "es": 1,
            "ts": 1,
            "sql": "",
            "sqlType": None,
            "mysqlType": None,
            "data": None,
            "old": None,
            "_tidb": {"watermarkTs": commit_ts},
        }
    ).encode()


@dataclass
class Source:
    """The tables, and their producer: ``sent`` is how many rows of each partition its session has written."""

    now: int = 0
    rows: dict[tuple[str, int], list[Row]] = field(
        default_factory=lambda: {(name, number): [] for name in NAMES for number in PARTITIONS}
    )
    logs: dict[tuple[str, int], list[bytes]] = field(
        default_factory=lambda: {(name, number): [] for name in NAMES for number in PARTITIONS}
    )
    sent: dict[tuple[str, int], int] = field(
        default_factory=lambda: {(name, number): 0 for name in NAMES for number in PARTITIONS}
    )
    checkpoint: int = 0

    def commit(self, changes: list[tuple[str, int, bool]]) -> None:
        """One transaction, which changes a row once."""
        self.now += _MS
        for (name, key), deletes in {(name, key): deletes for name, key, deletes in changes}.items():
            row = Row(name, key, None if deletes else self.now >> 18, self.now)
            self.rows[name, key % len(PARTITIONS)].append(row)

    def send(self, place: tuple[str, int], count: int) -> None:
        """Write the next rows of a partition."""
        at = self.sent[place]
        new = self.rows[place][at : at + count]
        self.logs[place] += [row.message() for row in new]
        self.sent[place] += len(new)

    def mark(self) -> None:
        """Write the watermark into every partition."""
        pending = [
            self.rows[place][at].commit_ts for place, at in self.sent.items() if at < len(self.rows[place])
        ]
        self.checkpoint = max(0, min(pending, default=self.now + 1) - 1)
        for log in self.logs.values():
            log.append(watermark(self.checkpoint))

    def restart(self, back: int) -> None:
        """Begin a new session behind a checkpoint that was kept some time ago."""
        self.checkpoint = max(0, self.checkpoint - back * _MS)
        for place, rows in self.rows.items():
            self.sent[place] = sum(row.commit_ts <= self.checkpoint for row in rows)

    def table_at(self, name: str, instant: int) -> dict[int, int]:
        """The rows of a table as of an instant."""
        found = dict[int, tuple[int, int | None]]()
        for (of, _), rows in self.rows.items():
            for row in rows:
                if of == name and row.commit_ts <= instant:
                    found[row.key] = max(
                        found.get(row.key, (0, None)), (row.commit_ts, row.value), key=lambda at: at[0]
                    )
        return {key: value for key, (_, value) in found.items() if value is not None}


@dataclass
class Pipeline:
    """The target: tables with their progress, and the cuts; and a worker that may be killed."""

    source: Source
    tables: dict[str, dict[int, int]] = field(default_factory=lambda: {name: {} for name in NAMES})
    progress: dict[str, Progress] = field(
        default_factory=lambda: {name: Progress(TableId("s", name), "p", 1, 0) for name in NAMES}
    )
    cut: int | None = None
    cuts: int = 0
    bound: int | None = None
    bounded: bool = True
    # The laws that are broken: "asks early", "names all"; and of a database "says nothing", "says late",
    # "gathers no more".
    broken: str = ""
    # Of a database: what its readers see, and the tables of which they are told that the cut has them not.
    shown: dict[str, dict[int, int]] = field(default_factory=lambda: {name: {} for name in NAMES})
    excluded: set[str] = field(default_factory=lambda: {*NAMES})
    # A part under way: of which table, when it began, under which bound.
    part: tuple[str, int, int | None] | None = None
    repaired: int = 0

    def is_loading(self, name: str) -> bool:
        """Whether a table's snapshot is not over."""
        found = self.progress[name].snapshot
        return found is not None and not found.done

    def is_outside(self, name: str) -> bool:
        """Whether cuts leave a table out."""
        return is_outside(self.progress[name], self.bound, loads=self.is_loading(name))

    def spoil(self, name: str, key: int) -> None:
        """Somebody writes to a copy, and asks for a resync."""
        if self.is_at_work(name) or not self.bounded:
            return
        self.tables[name] = {**self.tables[name], key: -1}
        before = self.progress[name]
        number = before.snapshot.number + 1 if before.snapshot else 1
        seen = before.snapshot.seen if before.snapshot else None
        self.progress[name] = replace(before, snapshot=SnapshotProgress(("id",), number=number, seen=seen))

    def begin_part(self, name: str) -> None:
        """Fix the offsets of a part. What is asked of the source too early is asked now."""
        found = self.progress[name].snapshot
        if found is not None and not found.done and self.part is None:
            if self.bound is None:
                self.choose(0)
            self.part = name, self.source.now, self.bound

    def is_at_work(self, name: str) -> bool:
        """Whether a part of a table is under way."""
        return self.part is not None and self.part[0] == name

    def end_part(self) -> None:
        """Read the rows of the next half of the keys, ask what the source has passed, and commit."""
        if self.part is None:
            return
        name, early, bound = self.part
        self.part, before = None, self.progress[name]
        found = before.snapshot
        assert found is not None
        keys = (3, 4) if found.after else (1, 2)
        rows = self.source.table_at(name, self.source.now)
        kept = {key: value for key, value in self.tables[name].items() if key not in keys}
        self.tables[name] = {**kept, **{key: rows[key] for key in keys if key in rows}}
        seen = early if self.broken == "asks early" else self.source.now
        offsets = starts(before, name, bound)
        topic = topic_after(before, name, "id", {at: (n, None) for at, n in offsets.items()}, bound)
        part = replace(found, after=("2",), done=found.after is not None, seen=seen)
        self.progress[name] = replace(
            before, batch=before.batch + 1, topics={name: topic}, bound=bound, snapshot=part
        )
        self.repaired += part.done
        self._merge(name, outside=True)

    def _merge(self, name: str, *, outside: bool) -> None:
        """What a database does with a batch that was applied: it merges all at once, or has it gathered."""
        if outside or not self.bounded or self.broken == "gathers no more":
            # With what was gathered before.
            self.shown[name] = {**self.tables[name]}
            if self.broken not in ("says nothing", "gathers no more"):
                self.excluded.add(name)

    def look(self) -> None:
        """Read a database in one snapshot."""
        for name in {*NAMES} - self.excluded:
            assert self.cut is not None
            assert self.shown[name] == self.source.table_at(name, self.cut), (name, self.cut)

    def choose(self, newest: int) -> None:
        """A new bound, of a worker that has none; one that has none below it never goes back."""
        least = [
            at
            for name, one in self.progress.items()
            if (at := least_bound(one, outside=self.is_outside(name))) is not None
        ]
        bound = next_bound(newest, every=EVERY, above=self.cut or 0, least=max(least, default=None))
        self.bound = bound if self.bound is None else max(bound, self.bound)

    def batch(self, name: str, sizes: Sequence[int], split: int) -> None:
        """Read and apply a batch of a table; ``split``: records of one fetch."""
        before, outside = self.progress[name], self.is_outside(name)
        if self.is_at_work(name):
            return
        bounded = self.bounded or before.bound is not None
        if bounded and self.bound is None:
            self.choose(0)
        bound = self.bound if bounded else None
        if bound is not None and stands_at(before, name, PARTITIONS, bound):
            return
        passed = passed_partitions(before, name, bound)
        known, rows = starts(before, name, bound), list[dict[str, Any]]()
        read: dict[int, tuple[int, PartitionSummary | None]] = {}
        for number in PARTITIONS:
            log, start = self.source.logs[name, number], known.get(number, 0)
            end = start if number in passed else min(len(log), start + sizes[number])
            found = self._read(name, number, start, end, split, bound)
            if found is not None:
                rows += [row for one in found.tables for row in one.rows.to_pylist()]
                read[number] = (end, self._findings(found))
            else:
                read[number] = (start, None)
        for row in sorted(rows, key=lambda row: row["offset"]):
            image = row["after"] or row["key"] or row["before"]
            if row["op"] == "delete":
                self.tables[name].pop(image["id"], None)
            else:
                self.tables[name][image["id"]] = image["v"]
        after = topic_after(before, name, "id", read, bound)
        greatest = [part.applied_commit_ts or 0 for part in after.partitions.values()]
        self.progress[name] = replace(
            before, batch=before.batch + 1, topics={name: after}, bound=bound, commit_ts=max(greatest) or None
        )
        self._merge(name, outside=outside)
        # One that is left out may be later than cuts are: it was read before there were any.
        assert bound is None or self.is_outside(name) or (self.progress[name].commit_ts or 0) <= bound

    def _read(
        self, name: str, number: int, start: int, end: int, split: int, bound: int | None
    ) -> DecodedRecords | None:
        log, plan, whole = self.source.logs[name, number], PLANS[name], DecodedRecords()

        def decode(records: pa.RecordBatch) -> DecodedRecords:
            return decoded_records(records, plan.decoder, plan.rows, rules=EventRules(bound=bound))

        messages = [Message(name, number, at, None, log[at]) for at in range(start, end)]
        batches = [as_records(messages[at : at + split]) for at in range(0, len(messages), split)]
        for one in up_to_bound(batches, decode, bound):
            whole.add(one)
        assert {one.kind for one in whole.others} <= {"watermark"}
        return whole if messages else None

    @staticmethod
    def _findings(found: DecodedRecords) -> PartitionSummary:
        moments = [row for one in found.tables for row in one.rows["commit_ts"].to_pylist()]
        marks = [one.commit_ts or 0 for one in found.others]
        return PartitionSummary(
            found.records, -1, max(moments, default=None), max(marks, default=None), found.waits, found.passed
        )

    def publish(self) -> None:
        """Publish the cut at the bound where all tables stand at it."""
        bound = self.bound
        if bound is None or not self.bounded or bound <= (self.cut or 0):
            return
        named = [name for name in NAMES if not self.is_outside(name) or self.broken == "names all"]
        if not named or not all(
            stands_at(self.progress[name], name, PARTITIONS, bound, self._marks(name)) for name in named
        ):
            return
        self.cut, self.cuts = bound, self.cuts + 1
        for name in named:
            assert self.tables[name] == self.source.table_at(name, bound), (name, bound)
            self.shown[name] = {**self.tables[name]}
        self.excluded -= {*named}
        if self.broken != "says late":
            self.excluded |= {*NAMES} - {*named}
        self.bound = None

    def _marks(self, name: str) -> dict[int, int]:
        """What a follower sees behind a table: watermarks, up to the first record that is none."""
        found = dict[int, int]()
        for number, at in starts(self.progress[name], name, self.bound).items():
            for value in self.source.logs[name, number][at:]:
                mark = json.loads(value)["_tidb"].get("watermarkTs")
                if mark is None:
                    break
                found[number] = max(mark, found.get(number, 0))
        return found


_PLACES: Final = st.sampled_from([(name, number) for name in NAMES for number in PARTITIONS])
_CHANGES: Final = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(1, 4), st.booleans()), min_size=1, max_size=4
)
_SEND: Final = st.tuples(st.just("send"), _PLACES, st.integers(1, 3))
_COMMIT: Final = st.tuples(st.just("commit"), _CHANGES)
_BATCH: Final = st.tuples(
    st.just("batch"), st.sampled_from(NAMES), st.tuples(*[st.integers(0, 6)] * 2), st.integers(1, 4)
)
_REPAIRS: Final = st.one_of(
    st.tuples(st.just("spoil"), st.sampled_from(NAMES), st.integers(1, 4)),
    st.tuples(st.just("begin"), st.sampled_from(NAMES)),
    st.just(("end",)),
)
_OTHERS: Final = st.sampled_from(
    [
        ("send all",),
        ("mark",),
        ("drain",),
        ("kill",),
        ("end",),
        ("raise", 0),
        ("raise", 2),
        ("restart", 1),
        ("restart", 4),
    ]
)
# What is sent, watermarks, and batches, in parts of any order: most rounds come to a cut.
_ROUND: Final = st.tuples(
    st.lists(_COMMIT, min_size=1, max_size=3),
    st.lists(st.one_of(_SEND, _COMMIT, _OTHERS, _REPAIRS), max_size=6),
    st.just([("mark",)]),
    st.lists(st.one_of(_BATCH, _SEND, _OTHERS, _REPAIRS), max_size=5),
    st.sampled_from([[], [("send all",), ("mark",)], [("restart", 2), ("send", ("a", 1), 1)]]),
    st.lists(st.one_of(_BATCH, st.just(("drain",))), min_size=1, max_size=3),
).map(lambda parts: [step for part in parts for step in part])
_STEPS: Final = st.tuples(
    st.one_of(st.just([]), _ROUND.map(lambda steps: [*steps, ("cuts",)])),
    st.lists(_ROUND, min_size=2, max_size=6),
).map(
    lambda parts: [
        *(step for one in (parts[0], *parts[1]) for step in one),
        *[("send all",), ("mark",), ("drain",)],
    ]
)


def _run(steps: list[tuple[Any, ...]], broken: str = "") -> Pipeline:
    """``cuts``: the config gets them now; the worker before had none."""
    source = Source()
    pipeline = Pipeline(source, bounded=("cuts",) not in steps, broken=broken)
    for kind, *more in steps:
        if kind == "commit":
            source.commit(*more)
        elif kind == "send":
            source.send(*more)
        elif kind == "send all":
            for place in source.logs:
                source.send(place, len(source.rows[place]))
        elif kind == "mark":
            source.mark()
        elif kind == "restart":
            source.restart(*more)
        elif kind == "batch":
            pipeline.batch(*more)
        elif kind == "drain":
            for name in NAMES:
                pipeline.batch(name, [1000, 1000], 7)
        elif kind == "cuts":
            pipeline.bounded, pipeline.bound = True, None
        elif kind == "kill":
            pipeline.bound = pipeline.part = None
        elif kind == "spoil":
            pipeline.spoil(*more)
        elif kind == "begin":
            pipeline.begin_part(*more)
        elif kind == "end":
            pipeline.end_part()
        elif kind == "raise":
            pipeline.choose(source.now + more[0] * _MS)
        pipeline.publish()
        pipeline.look()
    return pipeline


@pytest.mark.law("L9")
@settings(max_examples=1000 if TEST_ALL else 30)
@given(_STEPS)
def test_at_every_cut_the_tables_are_as_the_source_was(steps: list[tuple[Any, ...]]) -> None:
    _finish(_run(steps))


def _finish(pipeline: Pipeline) -> None:
    """Whatever was spoilt is repaired, and all tables are in the next cut."""
    pipeline.part, source = None, pipeline.source
    for name in NAMES:
        while pipeline.is_loading(name):
            pipeline.begin_part(name)
            pipeline.end_part()
    pipeline.bounded = True
    pipeline.choose(source.now + 2 * _MS)
    assert pipeline.bound is not None
    while source.now <= pipeline.bound:
        source.commit([("a", 1, False)])
    for place in source.logs:
        source.send(place, len(source.rows[place]))
    source.mark()
    bound = pipeline.bound
    for name in NAMES:
        pipeline.batch(name, [1000, 1000], 7)
    pipeline.batch("a", [1000, 1000], 7)
    assert [name for name in NAMES if pipeline.is_outside(name)] == []
    pipeline.publish()
    assert pipeline.cut == bound
    assert (pipeline.shown, pipeline.excluded) == (pipeline.tables, set())


# A part is read behind the bound, and a change comes between its beginning and its rows.
_REPAIR: Final[list[tuple[Any, ...]]] = [
    ("commit", [("a", 1, False), ("a", 3, False), ("b", 1, False)]),
    ("send all",),
    ("mark",),
    ("drain",),
    ("raise", 2),
    ("spoil", "a", 1),
    ("begin", "a"),
    ("end",),
    ("begin", "a"),
    *[("commit", [("b", 1, False)])] * 8,
    ("commit", [("a", 3, False)]),
    ("end",),
    ("send all",),
    ("mark",),
    ("drain",),
]


def test_a_table_that_is_repaired_is_in_the_cuts_again() -> None:
    pipeline = _run(_REPAIR)
    assert pipeline.repaired == 1
    _finish(pipeline)


@pytest.mark.parametrize("broken", ["asks early", "names all"])
def test_a_cut_has_rows_of_later_where_a_law_of_repairs_is_broken(broken: str) -> None:
    """Guards the tests above: the model can fail."""
    with pytest.raises(AssertionError):
        _run(_REPAIR, broken)


# Changes are gathered of a table that is repaired then, and of the other.
_GATHERED: Final[list[tuple[Any, ...]]] = [
    *[("commit", [("a", 1, False), ("b", 1, False)])] * 2,
    ("send all",),
    ("mark",),
    ("drain",),
    ("commit", [("a", 1, False), ("b", 1, False)]),
    ("raise", 1),
    ("send all",),
    ("batch", "a", (6, 6), 4),
    ("batch", "b", (6, 6), 4),
    ("spoil", "a", 1),
]


@pytest.mark.parametrize(
    ("broken", "steps"),
    [
        ("says nothing", [*_GATHERED, ("begin", "a"), ("end",)]),
        # A cut comes before a part does.
        (
            "says late",
            [*_GATHERED, ("commit", [("b", 1, False)]), ("send all",), ("mark",), ("batch", "b", (9, 9), 4)],
        ),
        ("gathers no more", _GATHERED),
    ],
)
def test_readers_of_a_database_see_more_than_the_cut_where_a_law_is_broken(
    broken: str, steps: list[tuple[Any, ...]]
) -> None:
    """Guards the model of a database, which holds where none is."""
    assert _run(steps).cuts > 0
    with pytest.raises(AssertionError):
        _run(steps, broken)


@pytest.mark.law("L9")
def test_cuts_are_published_whatever_is_sent_again() -> None:
    """What the model proves is of use: there are cuts in it, of idle tables too."""
    turn: list[tuple[Any, ...]] = [
        ("commit", [("a", 1, False), ("b", 1, False)]),
        ("commit", [("a", 2, False)]),
        ("send all",),
        ("mark",),
        ("drain",),
        ("restart", 3),
        ("send", ("a", 1), 1),
        ("drain",),
        ("kill",),
    ]
    assert _run(turn * 8).cuts >= 6


def test_a_watermark_that_was_read_before_there_were_cuts_does_not_count() -> None:
    """What is sent again behind it may be read in part."""
    pipeline = _run([*_TWICE, ("drain",), *_HALF_AGAIN, ("drain",), ("cuts",), ("drain",)])
    assert (pipeline.tables["a"], pipeline.cuts) == ({1: 1}, 0)


_TWICE: Final[list[tuple[Any, ...]]] = [
    ("commit", [("a", 1, False)]),
    ("commit", [("a", 1, False)]),
    ("send all",),
    ("mark",),
]
# A new session sends the first of two changes of a row again, and not yet the second.
_HALF_AGAIN: Final[list[tuple[Any, ...]]] = [("restart", 3), ("send", ("a", 1), 1)]


def test_what_is_sent_again_in_part_behind_the_watermark_is_not_read() -> None:
    pipeline = _run([*_TWICE, *_HALF_AGAIN, ("drain",)])
    assert (pipeline.tables["a"], pipeline.cuts) == ({1: 2}, 1)


def test_nor_is_it_when_another_partition_is_behind() -> None:
    pipeline = _run([*_TWICE, ("batch", "a", (0, 6), 4), *_HALF_AGAIN, ("drain",)])
    assert (pipeline.tables["a"], pipeline.cuts) == ({1: 2}, 1)
