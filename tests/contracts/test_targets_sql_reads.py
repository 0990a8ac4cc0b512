"""Rows that the tasks which reduce them bring to a database, before their batch is decided on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.contracts.coded_changes import Changefeed, placed
from tests.contracts.coded_lane import CodedTable, config_of, open_table
from tests.contracts.sql_beds import note_brought, target_of
from tests.contracts.targets_bed import Bed
from tests.full import quick_on
from tidesink.events import TableId, TableSchema
from tidesink.sinks.targets.base import SOFT_DELETE_COLUMN, RowFormat, RowSink
from tidesink.sinks.targets.sql.load import Loader
from tidesink.sinks.targets.sql.table import SqlTable
from tidesink.typemap.target_schema import shape_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers, quick_on("postgres", "mysql")]
TABLE = TableId("shop", "orders")
CREATE = "CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, name VARCHAR(9), size INT)"


@pytest.fixture
def brought(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """Of each batch that is applied, the rows that its own tasks brought; None: others had to."""
    return note_brought(monkeypatch.setattr)


def orders() -> Changefeed:
    feed = Changefeed("canal-json", TableSchema(TABLE, ()))
    feed.define(CREATE)
    feed.put(1, "one", 10)
    feed.put(2, "two", 20)
    return feed


def opened(sql: Bed, spark: SparkSession, folder: Path, feed: Changefeed) -> CodedTable:
    config = config_of(feed)
    return open_table(sql, spark, folder, feed=feed, messages=placed(feed.records), config=config)


def ends_right(sql: Bed, table: CodedTable, feed: Changefeed) -> None:
    """The source's rows are there, and no staging table is."""
    assert table.rows(shape_of(feed.schema)) == [row for _, row in sorted(feed.rows.items())]
    connections = target_of(sql).connections
    with connections.transaction("test", writes=False) as cursor:
        assert connections.dialect.staging_tables(cursor, target_of(sql).place_of(TABLE)) == []


def test_the_tasks_that_reduce_rows_bring_them(
    sql: Bed, spark: SparkSession, tmp_path: Path, brought: list[int | None]
) -> None:
    feed = orders()
    feed.delete(1)
    feed.put(3, "three", None)
    feed.put(2, "zwei", 2)
    table = opened(sql, spark, tmp_path, feed)
    with table.table_task() as table_task:
        table.take(table_task, 3)
        table.take(table_task, len(feed.records))
    assert brought == [2, 3]
    ends_right(sql, table, feed)


def test_metadata_columns_and_marks_of_deleted_rows_are_brought_too(
    sql: Bed, spark: SparkSession, tmp_path: Path, brought: list[int | None]
) -> None:
    feed = orders()
    feed.delete(1)
    feed.put(3, "three", None)
    feed.delete(3)
    feed.put(2, "zwei", 2)
    config = config_of(feed, deletes="soft", metadata={"op": "_op", "offset": "_offset"})
    table = open_table(sql, spark, tmp_path, feed=feed, messages=placed(feed.records), config=config)
    with table.table_task() as table_task:
        table.take(table_task, 3)
        table.take(table_task, len(feed.records))
    assert brought == [2, 3]
    first = {"id": 1, "name": "one", "size": 10, "_op": "delete", "_offset": 3, SOFT_DELETE_COLUMN: True}
    second = {"id": 2, "name": "zwei", "size": 2, "_op": "update", "_offset": 6, SOFT_DELETE_COLUMN: False}
    assert sql.rows(TABLE) == [first, second]


def test_a_change_of_the_columns_within_a_batch_has_its_rows_brought_again(
    sql: Bed, spark: SparkSession, tmp_path: Path, brought: list[int | None]
) -> None:
    feed = orders()
    feed.put(3, "three", 30)
    feed.define("ALTER TABLE shop.orders ADD COLUMN more INT")
    feed.rows = {key: {**row, "more": None} for key, row in feed.rows.items()}
    feed.put(1, "uno", 11, 7)
    feed.put(4, "four", 40, 8)
    table = opened(sql, spark, tmp_path, feed)
    with table.table_task() as table_task:
        table.take(table_task, 3)
        table.take(table_task, len(feed.records) - 1)
        table.take(table_task, len(feed.records))
    assert brought == [2, None, 1]
    ends_right(sql, table, feed)


def test_what_is_staged_before_a_bad_record_is_read_again_up_to_it(
    sql: Bed, spark: SparkSession, tmp_path: Path, brought: list[int | None]
) -> None:
    feed = orders()
    feed.put(3, "three", 30)
    feed.put(4, "four", 40)
    messages = placed(feed.records)
    messages[-1] = replace(messages[-1], value=b"{no json")
    table = open_table(sql, spark, tmp_path, feed=feed, messages=messages, config=config_of(feed))
    del feed.rows[(4,)]
    with table.table_task() as table_task:
        table.offer(table_task, len(messages))
        assert (table_task.state, table_task.report().counters["applied"]) == ("PAUSED", 3)
    assert brought == [3]
    ends_right(sql, table, feed)


def test_rows_that_the_tasks_cannot_bring_go_the_way_that_says_why(
    sql: Bed, spark: SparkSession, tmp_path: Path, brought: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = orders()
    make = SqlTable.row_sink

    def into_nothing(self: SqlTable, rows: RowFormat) -> RowSink | None:
        sink = make(self, rows)
        assert isinstance(sink, Loader)
        return replace(sink, statement=sink.statement.replace("_tidesink_staging", "_no_staging"))

    monkeypatch.setattr(SqlTable, "row_sink", into_nothing)
    table = opened(sql, spark, tmp_path, feed)
    with table.table_task() as table_task:
        table.take(table_task, len(feed.records))
    assert brought == [None]
    ends_right(sql, table, feed)
