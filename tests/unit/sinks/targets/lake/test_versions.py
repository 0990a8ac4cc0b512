"""Histories as files of a lake: any batches leave the versions of all events and reads, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timezone
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.columns import ID
from tests.history_law import Kind, Moment, Span, difference, instant_of
from tests.unit.sinks.targets.lake.test_files import new_files
from tidesink.errors import AccountingError
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.sinks.decode.target_rows import key_type, row_type
from tidesink.sinks.laws.modes import FROM_COLUMN, READ_COLUMN, TO_COLUMN, HistoryNames, history_shape
from tidesink.sinks.spark.payloads import ipc_stream
from tidesink.sinks.targets.base import ApplyOptions, ReducedBatch
from tidesink.sinks.targets.iceberg.deletes import PositionFiles
from tidesink.sinks.targets.lake.batches import columns_reason
from tidesink.sinks.targets.lake.files import (
    DataFile,
    KeysTask,
    LocateTask,
    RowsTask,
    SmallBatchTask,
    WrittenFile,
    joined_keys,
    locating,
)
from tidesink.sinks.targets.lake.rows import FileColumn, NotAsFilesError
from tidesink.sinks.targets.lake.storage import local_path
from tidesink.sinks.targets.lake.versions import Counts, VersionRules
from tidesink.typemap.target_schema import shape_of

SHAPE = shape_of(TableSchema(TableId("shop", "orders"), (ID, Column("v", ColumnType("bigint")))))
NAMES = HistoryNames()
SENT = frozenset(column.name for column in SHAPE.columns)
INSTANT = pa.timestamp("us", "UTC")
COLUMNS = (
    FileColumn("id", "id", pa.int64(), 1, True, True),
    FileColumn("f2", FROM_COLUMN, pa.int64(), 2, True, False),
    FileColumn("f3", TO_COLUMN, pa.int64(), 3, False, False),
    FileColumn("f4", "valid_from", INSTANT, 4, False, False),
    FileColumn("f5", "valid_to", INSTANT, 5, False, False),
    FileColumn("f6", "current", pa.bool_(), 6, False, False),
    FileColumn("f7", "v", pa.int64(), 7, False, False),
    FileColumn("f8", READ_COLUMN, pa.bool_(), 8, False, False),
)


class Event(NamedTuple):
    """One event or read of a key; what it writes says where it comes from."""

    key: int
    at: int
    kind: Kind

    @property
    def value(self) -> int | None:
        found = self.at * 10 + self.key
        return {Kind.READ: -found, Kind.WRITE: found}.get(self.kind)


def payloads(events: Sequence[Event]) -> Iterator[pa.RecordBatch]:
    """Two payloads, so that events of one key are in both."""
    schema = pa.schema(
        [
            ("_op", pa.string()),
            ("key", key_type(SHAPE)),
            ("after", row_type(SHAPE)),
            ("_commit_ts", pa.int64()),
        ]
    )
    rows = [
        {
            "_op": "delete" if one.value is None else "upsert",
            "key": {"id": one.key},
            "after": None if one.value is None else {"id": one.key, "v": one.value},
            "_commit_ts": one.at,
        }
        for one in events
    ]
    packed = [ipc_stream(pa.Table.from_pylist(rows[at::2], schema)) for at in (0, 1)]
    columns = [pa.array(packed, pa.binary()), pa.nulls(2, pa.binary())]
    yield pa.RecordBatch.from_arrays(columns, names=["payload", "error"])


class Lake:
    """A history's files, with the positions that are deleted of each."""

    def __init__(self, folder: Path) -> None:
        self.files: list[DataFile] = []
        self._folder, self._batches = folder, 0

    def apply(self, events: Sequence[Event], *, small: bool) -> Counts:
        self._batches += 1
        new = new_files(self._folder / str(self._batches))
        reads = any(one.kind is Kind.READ for one in events)
        rows = RowsTask(COLUMNS, new, VersionRules(NAMES, SENT, reads))
        groups = tuple((file,) for file in self.files)
        locate = LocateTask(groups, b"", COLUMNS, PositionFiles(new))
        given = [*payloads(events)]
        lines = SmallBatchTask(rows, locate)._lines(given) if small else large_lines(rows, locate, given)
        counts = Counts(**json.loads(next(one.counts for one in lines if one.counts is not None)))
        positions = [one for one in lines if one.found is not None and one.path is not None]
        added = [one for one in lines if one.found is None and one.path is not None]
        assert counts.in_files == (sum(one.rows for one in added), sum(one.rows for one in positions))
        marked = tuple(str(one.path) for one in positions)
        self.files = [file._replace(deletes=file.deletes + marked) for file in self.files]
        self.files += [DataFile(str(one.path), one.rows) for one in added]
        return counts

    def rows(self) -> dict[tuple[int, int], tuple[int | None, int | None, bool]]:
        """By key and begin the end, the value and whether it was read; times are held to the numbers."""
        found: list[dict[str, Any]] = []
        for file in self.files:
            gone = {
                row["pos"]
                for path in file.deletes
                for row in pq.read_table(local_path(path)).to_pylist()
                if row["file_path"] == file.path
            }
            rows = pq.read_table(local_path(file.path)).to_pylist()
            found += [row for at, row in enumerate(rows) if at not in gone]
        for row in found:
            begin, end = row["f2"], row["f3"]
            assert row["f4"] == instant_of(begin).replace(tzinfo=timezone.utc)
            assert row["f5"] == (None if end is None else instant_of(end).replace(tzinfo=timezone.utc))
            assert row["f6"] is (end is None)
        versions = {(row["id"], row["f2"]): (row["f3"], row["f7"], bool(row["f8"])) for row in found}
        assert len(versions) == len(found)
        return versions


def large_lines(rows: RowsTask, locate: LocateTask, given: Sequence[pa.RecordBatch]) -> list[WrittenFile]:
    """As the driver runs the tasks; each payload's rows are written by a task of its own."""
    lines = [*KeysTask(rows).keys(given)]
    locate = replace(locating(locate, rows.rules, lines), ends=attempt(rows, "ends"))
    keys = joined_keys(lines)
    lines += [one for number in range(len(locate.groups)) for one in locate.located(number, keys)]
    last, line = rows.given(lines, ended=True)
    parts = [batch.slice(at, 1) for batch in given for at in range(batch.num_rows)]
    lines += [one for at, part in enumerate(parts) for one in attempt(last, str(at)).written([part])]
    return [*lines, line]


def attempt(task: RowsTask, name: str) -> RowsTask:
    """A task of its own, which names its files so."""
    return replace(task, files=replace(task.files, location=f"{task.files.location}-{name}.parquet"))


moments = st.integers(1, 12).map(lambda second: second * (1000 << 18) + second % 2)
places = st.tuples(st.integers(0, 2), moments)
event_kinds = st.sampled_from([Kind.DELETE, Kind.WRITE])
sent = st.dictionaries(places, event_kinds, min_size=1, max_size=8) | st.dictionaries(
    places, st.just(Kind.READ), min_size=1, max_size=5
)
batches = st.lists(st.tuples(sent, st.booleans()), min_size=1, max_size=5)


@given(batches)
def test_any_batches_leave_the_versions_of_all_events_and_reads(
    stream: list[tuple[dict[tuple[int, int], Kind], bool]],
) -> None:
    with TemporaryDirectory() as folder:
        lake, known = Lake(Path(folder)), dict[tuple[int, int], Kind]()
        for given_events, small in stream:
            events = [Event(*place, kind) for place, kind in given_events.items()]
            stored = lake.rows()
            counts = lake.apply(events, small=small)
            changed = {
                number: difference(
                    [
                        Span(begin, end, read)
                        for (key, begin), (end, _, read) in stored.items()
                        if key == number
                    ],
                    [Moment(one.at, one.kind) for one in events if one.key == number],
                )
                for number in {one.key for one in events}
            }
            written = {(key, span.from_ts) for key, one in changed.items() for span in one.begun}
            written |= {(key, at) for key, one in changed.items() for at in one.marked}
            sums = [
                sum(len(getattr(one, name)) for one in changed.values())
                for name in ("begun", "ended", "marked", "forgotten")
            ]
            sums += [
                sum(getattr(one, name) for one in changed.values()) for name in ("ends", "absent", "stale")
            ]
            assert counts._replace(kept=0) == Counts(sums[0], len(written & stored.keys()), *sums[1:])
            for place, kind in given_events.items():
                known[place] = max(known.get(place, kind), kind)
            assert lake.rows() == versions_of_all(known)


def versions_of_all(known: dict[tuple[int, int], Kind]) -> dict[tuple[int, int], Any]:
    """The table of a set of events and reads, by the words of the docs."""
    found = dict[tuple[int, int], Any]()
    for number in range(3):
        every = sorted(at for key, at in known if key == number)
        ordered = [at for at in every if at == every[0] or known[number, at] is not Kind.READ]
        before = False
        for at, end in zip(ordered, [*ordered[1:], None], strict=False):
            event = Event(number, at, known[number, at])
            if event.value is not None:
                found[number, at] = (end, event.value, event.kind is Kind.READ)
            elif not before:
                found[number, at] = (at, None, False)
            before = event.value is not None
    return found


def test_a_mark_that_was_located_for_nothing_stays_as_it_was(tmp_path: Path) -> None:
    """A write comes before it, and a delete that is stored stands between the two."""
    lake = Lake(tmp_path)
    lake.apply([Event(0, 10, Kind.DELETE)], small=True)
    lake.apply([Event(0, 8, Kind.DELETE)], small=True)
    before = lake.rows()
    counts = lake.apply([Event(0, 6, Kind.WRITE)], small=True)
    assert counts == Counts(begun=1, forgotten=1, kept=1)
    assert lake.rows() == {(0, 6): (8, 60, False), (0, 10): before[0, 10]}


@pytest.mark.parametrize("small", [True, False])
def test_rows_of_other_programs_are_not_written_over(tmp_path: Path, small: bool) -> None:
    lake = Lake(tmp_path)
    lake.apply([Event(0, 10, Kind.WRITE)], small=True)
    other = Lake(tmp_path / "other")
    other.apply([Event(0, 10, Kind.WRITE)], small=True)
    lake.files += other.files
    with pytest.raises(AccountingError, match="another program wrote rows"):
        lake.apply([Event(0, 20, Kind.WRITE)], small=small)
    other.files = lake.files[:1]
    third = Lake(tmp_path / "third")
    third.apply([Event(0, 15, Kind.WRITE)], small=True)
    other.files += third.files
    with pytest.raises(NotAsFilesError, match="overlap"):
        other.apply([Event(0, 20, Kind.WRITE)], small=small)


def test_a_column_that_only_the_table_has_is_null_in_new_versions(tmp_path: Path) -> None:
    """Also if the payloads have a column of its name, which the batch does not have."""
    task = RowsTask(COLUMNS, new_files(tmp_path), VersionRules(NAMES, SENT - {"v"}))
    written, _ = task.given([*KeysTask(task).keys([*payloads([Event(0, 10, Kind.WRITE)])])])
    paths = [one.path for one in written.written([*payloads([Event(0, 10, Kind.WRITE)])])]
    assert [pq.read_table(local_path(str(path)))["f7"].to_pylist() for path in paths] == [[None]]


def test_a_history_whose_decimals_became_a_text_column_takes_decimals() -> None:
    """Their precision was unknown when the table was made, and a definition names it now."""
    amount = Column("d", ColumnType("decimal", precision=10, scale=8))
    shape = shape_of(TableSchema(TableId("shop", "orders"), (ID, amount)))
    there = {column.name: column.spark for column in history_shape(shape, NAMES).columns} | {"d": "string"}
    history = ReducedBatch(shape, 1, 0, how=ApplyOptions(mode="history", history=NAMES))
    assert columns_reason(history, there) is None
    rows = {"id": "bigint", "d": "string"}
    assert "the column d is string" in (columns_reason(ReducedBatch(shape, 1, 0), rows) or "")
    numbers = pa.array([Decimal("0.00000001"), None, Decimal("-1.50000000")], pa.decimal128(10, 8))
    texts = ["0.00000001", None, "-1.50000000"]
    column = FileColumn("f7", "d", pa.string(), 7, False, False)
    assert column.cast(numbers).to_pylist() == texts
    assert column.cast(pa.chunked_array([numbers])).to_pylist() == texts
