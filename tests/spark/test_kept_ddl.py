"""The DDL events of a batch, stored page by page: however many there are, few come to the driver at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson
import pytest

from tests.unit.codecs.canal_json.messages import row_message
from tests.unit.config.samples import CANAL_JSON, changed, right
from tests.worker_contexts import worker_context
from tidesink.events import TableId
from tidesink.sinks.decode.records import DDL
from tidesink.sinks.runtime.context import WorkerContext
from tidesink.sinks.runtime.stored_ddl import keep_ddl
from tidesink.sinks.state.progress import MOST_EVENTS, Progress, load_ddl
from tidesink.sinks.state.sql_store import SqlStateStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
ORDERS: Final = TableId("shop", "orders")
FRAME: Final = (
    "_op string, _topic string, _partition int, _offset bigint, "
    "_detail struct<key: binary, value: binary, time: bigint>"
)
# A page of three events: each weighs a KiB and its bytes.
PAGE: Final = 4 << 10
Place = tuple[int, int]


class _Store(SqlStateStore):
    """Takes note of the places that each save of DDL events brings."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.pages: list[list[Place]] = []

    def swap_document(self, kind: str, name: str, *, old: Any | None, new: Any) -> bool:
        known = {tuple(event[:4]) for event in old or ()}
        self.pages.append([tuple(event[2:4]) for event in new if tuple(event[:4]) not in known])
        return super().swap_document(kind, name, old=old, new=new)


@pytest.fixture
def around(spark: SparkSession, tmp_path: Path) -> Iterator[tuple[WorkerContext, _Store]]:
    config = right(changed(CANAL_JSON, source__enable_tidb_extension=True))
    store = _Store(str(tmp_path / "own.db"))
    yield replace(worker_context(config, spark, tmp_path), store=store), store
    store.close()


def _sql(partition: int, offset: int) -> str:
    return f"ALTER TABLE `orders` ADD COLUMN `c_{partition}_{offset}` INT"


def _event(partition: int, offset: int, commit_ts: int, *, padding: int = 0) -> tuple[Any, ...]:
    said = {"isDdl": True, "type": "ALTER", "sql": _sql(partition, offset), "data": None, "mysqlType": None}
    value = row_message({}, database="shop", table="orders", _tidb={"commitTs": commit_ts}, **said)
    value["padding"] = "x" * padding
    return (DDL, "app", partition, offset, (None, orjson.dumps(value), 1_000 + offset))


def _frame(spark: SparkSession, events: Iterable[tuple[Any, ...]]) -> DataFrame:
    row = ("upsert", "app", 0, 100, None)
    return spark.createDataFrame([*events, row], FRAME).repartition(3)


def test_ddl_comes_page_by_page_in_the_order_of_its_partitions(
    spark: SparkSession, around: tuple[WorkerContext, _Store]
) -> None:
    context, store = around
    places = [(partition, at) for partition in (0, 1) for at in range(4)]
    # One is larger than a page, and the newest is not the last.
    events = [
        _event(*place, 7 if place == (0, 2) else 5, padding=9_000 * (place == (1, 1))) for place in places
    ]
    progress = Progress(ORDERS, "shop", 1, 3)
    frame = _frame(spark, [*reversed(events), events[0]])
    last = keep_ddl(context, frame, "id", progress, page_bytes=PAGE)
    assert [place for page in store.pages for place in page] == places
    assert len(store.pages) >= 3
    assert all(len(page) <= 3 for page in store.pages)
    assert last == {"commit_ts": 7, "kind": "ALTER", "query": _sql(0, 2)}
    stored = load_ddl(store, "shop", [ORDERS])
    assert [(one.partition, one.offset, one.query, one.time) for one in stored] == [
        (*place, _sql(*place), 1_000 + place[1]) for place in places
    ]


def test_of_more_ddl_than_is_kept_the_newest_is(
    spark: SparkSession, around: tuple[WorkerContext, _Store]
) -> None:
    context, store = around
    events = [_event(0, at, at + 1) for at in range(MOST_EVENTS + 9)]
    progress = Progress(ORDERS, "shop", 1, 3)
    last = keep_ddl(context, _frame(spark, events), "id", progress, page_bytes=100 << 10)
    assert last is not None
    assert last["commit_ts"] == MOST_EVENTS + 9
    assert [one.offset for one in load_ddl(store, "shop", [ORDERS])] == list(range(9, MOST_EVENTS + 9))
    assert len(store.pages) > 1


def test_a_batch_without_ddl_stores_none(spark: SparkSession, around: tuple[WorkerContext, _Store]) -> None:
    context, store = around
    assert keep_ddl(context, _frame(spark, []), "id", Progress(ORDERS, "shop", 1, 3)) is None
    assert store.pages == []
