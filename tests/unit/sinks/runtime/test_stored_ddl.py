"""The DDL events that the tasks of a batch decoded, as the state store has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from tests.decoded_batches import as_records
from tests.worker_contexts import no_fetch
from tidesink.events import Message, TableId
from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.laws.counts import DdlRecord, DdlStatement, TopicPartition
from tidesink.sinks.runtime.stored_ddl import keep_ddl, with_time
from tidesink.sinks.state.progress import MOST_EVENTS, Progress, StoredDdl, load_ddl
from tidesink.sinks.state.sql_store import SqlStateStore

ORDERS: Final = TableId("shop", "orders")
PROGRESS: Final = Progress(ORDERS, "shop", 1, 3)
UNREAD: Final = KafkaSource(no_fetch)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStateStore]:
    store = SqlStateStore(str(tmp_path / "own.db"))
    yield store
    store.close()


def _record(partition: int, offset: int, commit_ts: int | None, query: str | None = None) -> DdlRecord:
    query = query or f"ALTER TABLE `orders` ADD COLUMN `c_{partition}_{offset}` INT"
    statement = DdlStatement(commit_ts, "ALTER", query, 1_000 + offset)
    return DdlRecord(TopicPartition("app", partition), offset, statement)


def test_ddl_is_stored_in_the_order_of_its_partitions(store: SqlStateStore) -> None:
    # The newest event is not the last one.
    records = [_record(1, 0, 5), _record(0, 2, 7), _record(0, 0, None)]
    last = keep_ddl(store, UNREAD, records, "id", PROGRESS)
    assert last == {"commit_ts": 7, "kind": "ALTER", "query": records[1].statement.query}
    stored = load_ddl(store, "shop", [ORDERS])
    assert [(event.topic, event.topic_id, event.batch) for event in stored] == [("app", "id", 3)] * 3
    assert [
        (event.partition, event.offset, event.commit_ts, event.kind, event.query, event.time)
        for event in stored
    ] == [
        (record.place.partition, record.offset, *record.statement)
        for record in (records[2], records[1], records[0])
    ]


def test_of_more_ddl_than_is_kept_the_newest_is(store: SqlStateStore) -> None:
    records = [_record(0, offset, MOST_EVENTS - offset) for offset in range(MOST_EVENTS + 9)]
    last = keep_ddl(store, UNREAD, records, "id", PROGRESS)
    assert last is not None
    assert last["commit_ts"] == MOST_EVENTS
    kept = load_ddl(store, "shop", [ORDERS])
    assert [one.offset for one in kept] == list(range(9, MOST_EVENTS + 9))


def test_a_status_shows_the_beginning_of_a_long_statement(store: SqlStateStore) -> None:
    last = keep_ddl(store, UNREAD, [_record(0, 0, 1, "x" * 900)], "id", PROGRESS)
    assert last is not None
    assert last["query"] == "x" * 200
    assert load_ddl(store, "shop", [ORDERS])[0].query == "x" * 900


def test_a_batch_without_ddl_stores_none(store: SqlStateStore) -> None:
    assert keep_ddl(store, UNREAD, [], "id", PROGRESS) is None
    assert load_ddl(store, "shop", [ORDERS]) == []


def test_a_ddl_event_whose_task_read_no_timestamps_has_kafkas_time_all_the_same() -> None:
    asked: list[FetchRange] = []

    def fetch(wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        asked.append(wanted)
        yield as_records([Message("t", 1, 7, None, b"ddl", timestamp=1700)])

    event = StoredDdl("t", "id", 1, 7, None, "ALTER", "ALTER TABLE a", None)
    assert with_time(event, KafkaSource(fetch)) == event._replace(time=1700)
    assert asked == [FetchRange("t", 1, 7, 8)]
    known = event._replace(time=5)
    assert with_time(known, KafkaSource(fetch)) is known
    assert len(asked) == 1
