"""A read that several tables share: what each is given of it; one that fails fails for all who waited."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from tests.decoded_batches import as_records
from tests.unit.codecs.canal_json.messages import row_bytes
from tests.watched_lock import WatchedLock
from tests.worker_contexts import no_fetch
from tidesink.codecs.canal_json.scan import TableNames
from tidesink.ddl.catalog import parse_create_table
from tidesink.errors import SourceUnavailableError
from tidesink.events import Message, TableId
from tidesink.sinks.batch.record_frames import SplitByTable, StoredRanges, full_name, table_of
from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.batch.tasks import RangeTask, RangeTooLargeError
from tidesink.sinks.decode.canal_json import canal_json_plan
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.kafka.offsets import OffsetRange, PartitionOffsets, RecordSize, TopicOffsets
from tidesink.sinks.laws.executors import LocalLimits
from tidesink.sinks.runtime.shared_reads import KeptRead, TableRecords
from tidesink.sinks.state.progress import LastRecord

RANGES = (OffsetRange("t", 0, 0, 9),)


def _session() -> Any:
    """No session: what stands for Spark here asks none."""


TABLES = cast("Any", SimpleNamespace(known=lambda: ()))
DDL = cast("Any", None)
FOUND = TopicOffsets("t", "topic id", {0: PartitionOffsets(0, 9)})


class _Silent(KafkaSource):
    """Kafka, which says after a while that it does not answer."""

    def __init__(self) -> None:
        super().__init__(no_fetch)
        self.asked = 0
        self.begun, self.gives_up = threading.Event(), threading.Event()

    def over(self, *_asked: Any) -> Any:
        self.asked += 1
        self.begun.set()
        assert self.gives_up.wait(240)
        raise SourceUnavailableError("silence")


class _Asking(threading.Thread):
    """A table that asks for the records."""

    def __init__(self, kept: KeptRead) -> None:
        super().__init__(daemon=True)
        self._kept = kept
        self.heard: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self._kept.stored(_session)
        except SourceUnavailableError as exc:
            self.heard = exc


def test_a_read_that_fails_fails_for_all_who_waited() -> None:
    source = _Silent()
    kept = KeptRead(source, TABLES, DDL, RANGES, FOUND, RecordSize())
    kept._lock = lock = cast("Any", WatchedLock())
    first = _Asking(kept)
    assert source.begun.wait(240)
    others = [_Asking(kept) for _ in range(3)]
    lock.wait_for(1 + len(others))  # they wait for the first one's answer
    assert all(other.is_alive() for other in others)
    source.gives_up.set()
    for thread in (first, *others):
        thread.join(240)
    assert source.asked == 1
    assert all(isinstance(thread.heard, SourceUnavailableError) for thread in (first, *others))
    with pytest.raises(SourceUnavailableError):
        kept.stored(_session)
    assert source.asked == 2


T, U = TableId("s", "t"), TableId("s", "u")
WANTED = (FetchRange("cdc", 0, 0, 9), FetchRange("cdc", 2, 0, 9))
NAMELESS = b'{"id":0}'


def _split(
    values: Sequence[bytes | None], *, most: int = 1 << 20, epochs: Sequence[int] = ()
) -> list[dict[str, Any]]:
    """The payloads of records of partition 2, read in two batches."""
    records = as_records(Message("cdc", 2, at, None, value) for at, value in enumerate(values))
    if epochs:
        records = records.append_column("leader_epoch", pa.array(epochs, pa.int32()))
    split: SplitByTable = pickle.loads(pickle.dumps(SplitByTable(TableNames(frozenset({T, U})), most)))  # noqa: S301
    found = split(WANTED[1], iter([records.slice(0, 4), records.slice(4)]))
    return [row for batch in found for row in batch.to_pylist()]


def _offsets(wanted: FetchRange, records: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    found = [(wanted.partition, offset) for one in records for offset in one.column("offset").to_pylist()]
    yield pa.record_batch({"place": [str(found)]})


def _worked(rows: Sequence[dict[str, Any]], table: TableId) -> list[str]:
    """What a table's task is given."""
    mine = [row for row in rows if row["named"] in (None, full_name(table))]
    columns = {"partition": pa.int32(), "payload": pa.binary(), "error": pa.binary()}
    batches = [
        pa.RecordBatch.from_pylist([row], schema=pa.schema(list(columns.items())))
        for row in ({name: one[name] for name in columns} for one in mine)
    ]
    found = StoredRanges(WANTED, _offsets)(batches)
    return [text for batch in found for text in batch.column("place").to_pylist()]


def test_each_table_is_given_its_records_and_those_without_a_name() -> None:
    t, u, x = (row_bytes({"id": "1"}, table=name) for name in "tux")
    rows = _split([t, u, NAMELESS, t, None, u, x, t])
    assert sum(row["records"] for row in rows) == 8
    assert {row["named"]: row["unlisted"] for row in rows if row["unlisted"]} == {
        full_name(TableId("s", "x")): 1
    }
    assert sum(row["watermarks"] + row["ddl"] for row in rows) == 0
    assert _worked(rows, T) == ["[(2, 2), (2, 0), (2, 3), (2, 4), (2, 7)]"]
    assert _worked(rows, U) == ["[(2, 2), (2, 1), (2, 4), (2, 5)]"]
    assert table_of(full_name(T)) == T


class _Frame:
    """A frame of Spark's with the payloads that tasks gave."""

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self._rows = rows

    def persist(self, _level: object) -> _Frame:
        return self

    def drop(self, _name: str) -> _Frame:
        return self

    def collect(self) -> Sequence[dict[str, Any]]:
        return self._rows


class _Split(KafkaSource):
    """Kafka, whose records the tasks have split."""

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        super().__init__(no_fetch)
        self._rows = rows

    def over(self, *_asked: Any) -> Any:
        return _Frame(self._rows)


def test_a_table_knows_the_last_record_of_a_shared_read_of_whatever_table() -> None:
    """Or a log that is cut behind its own records would lose it what was written there since."""
    rows = _split(
        [row_bytes({"id": "1"}, table=name) for name in "tuuutuuu"], epochs=[3, 3, 4, 4, 4, 4, 6, 6]
    )
    tables = cast("Any", SimpleNamespace(known=lambda: (T, U), add=lambda _names: None))
    source = _Split(rows)
    kept = KeptRead(source, tables, DDL, (OffsetRange("cdc", 2, 0, 9),), FOUND, RecordSize())
    mine = TableRecords(kept, source, T, _session, commits=True)
    assert mine.last == {}
    kept.stored(_session)
    assert mine.last == {2: LastRecord(7, 6)}
    # Records from before Kafka 0.11 have no epoch.
    plain = KeptRead(_Split(_split([NAMELESS] * 8)), tables, DDL, RANGES, FOUND, RecordSize())
    plain.stored(_session)
    assert plain.last == {}


def test_an_error_of_the_read_keeps_its_class_also_where_a_lost_payload_is_read_again() -> None:
    rows = _split([row_bytes({"id": "1"}, table="t")] * 8, most=1000)
    assert [row["error"] is None for row in rows] == [True, False]
    with pytest.raises(RangeTooLargeError, match="more than 0 MiB"):
        _worked(rows, U)


def test_a_tables_batch_has_the_ranges_of_the_read_that_it_shares() -> None:
    """Other ranges are read from Kafka, by each table for itself."""
    ranges = (*RANGES, OffsetRange("t", 1, 4, 4))
    plan = canal_json_plan(parse_create_table("CREATE TABLE s.t (id INT PRIMARY KEY)"))
    kept = KeptRead(KafkaSource(no_fetch), TABLES, DDL, ranges, FOUND, RecordSize())
    assert kept.ranges == RangeTask.of(ranges, "topic id", plan).ranges


def _local(
    values: Sequence[bytes], *, tables: Any, ddl: Any = DDL, most: int = 1 << 20
) -> tuple[KeptRead, KafkaSource, list[FetchRange]]:
    """A read of partitions 0 and 2, which this process stores up to a size, and what is fetched for it."""
    fetched = list[FetchRange]()
    records = as_records(Message("cdc", 2, at, None, value) for at, value in enumerate(values))
    records = records.append_column("leader_epoch", pa.array([7] * len(values), pa.int32()))

    def fetch(wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        fetched.append(wanted)
        if wanted.partition == 2:
            yield from (part for part in (records.slice(0, 4), records.slice(4)) if part.num_rows)

    source = _Local(fetch)
    ranges = (OffsetRange("cdc", 0, 0, 9), OffsetRange("cdc", 2, 0, 9))
    size = RecordSize()
    size.learn(1, 1)
    return KeptRead(source, tables, ddl, ranges, FOUND, size, local=LocalLimits(100, most)), source, fetched


class _Local(KafkaSource):
    """Kafka, which is only read in this process."""

    def over(self, *_asked: Any) -> Any:
        return _Frame([])


def _read(records: Iterable[pa.RecordBatch]) -> list[int]:
    return [offset for batch in records for offset in batch.column("offset").to_pylist()]


def test_a_small_read_is_stored_in_this_process_and_read_once() -> None:
    t, u, x = (row_bytes({"id": "1"}, table=name) for name in "tux")
    met = list[Sequence[TableId]]()
    tables = cast("Any", SimpleNamespace(known=lambda: (T, U), add=met.append))
    kept, source, fetched = _local([t, u, NAMELESS, t, NAMELESS, u, x, t], tables=tables)
    mine, other = (TableRecords(kept, source, table, _session, commits=True) for table in (T, U))
    assert mine.can_read_here()
    assert mine.concern()
    assert _read(mine.records_of(kept.ranges[1])) == [2, 0, 3, 4, 7]
    assert _read(other.records_of(kept.ranges[1])) == [2, 1, 4, 5]
    assert _read(mine.records_of(kept.ranges[0])) == []
    assert fetched == list(kept.ranges)
    assert met == [[TableId("s", "x")]]
    assert mine.last == {2: LastRecord(7, 7)}
    # Other ranges are read from Kafka.
    part = kept.ranges[1]._replace(end=3)
    assert len(_read(mine.records_of(part))) == 8
    assert fetched[2:] == [part]


def test_a_read_without_records_of_a_table_does_not_concern_it() -> None:
    tables = cast("Any", SimpleNamespace(known=lambda: (T, U), add=lambda _names: None))
    kept, source, _ = _local([row_bytes({"id": "1"}, table="t")], tables=tables)
    assert TableRecords(kept, source, T, _session, commits=False).concern()
    assert not TableRecords(kept, source, U, _session, commits=False).concern()


def test_a_read_that_is_larger_than_expected_is_left_to_spark() -> None:
    tables = cast("Any", SimpleNamespace(known=lambda: (T, U), add=lambda _names: None))
    values = [row_bytes({"id": "1", "name": "x" * 900}, table="t")] * 8
    kept, source, fetched = _local(values, tables=tables, most=500)
    mine = TableRecords(kept, source, T, _session, commits=True)
    assert not mine.can_read_here()
    kept.stored(_session)
    assert not mine.can_read_here()
    assert [wanted.partition for wanted in fetched] == [0, 2]
