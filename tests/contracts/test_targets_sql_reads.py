"""Rows that the tasks which reduce them bring to a database, before their batch is decided on.

The tasks are Spark's: in Postgres, the transaction that merges rows of the worker's process loads them, too.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.contracts.coded_changes import Changefeed, placed
from tests.contracts.coded_table import CodedTable, config_of, open_table
from tests.contracts.sql_beds import noting, target_of
from tests.contracts.targets_bed import Bed
from tests.full import quick_on
from tidesink.events import TableId, TableSchema
from tidesink.sinks.targets.base import SOFT_DELETE_COLUMN, RowSink
from tidesink.sinks.targets.sql.load import Loader
from tidesink.typemap.target_schema import shape_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers, quick_on("postgres", "mysql")]
TABLE = TableId("shop", "orders")
CREATE = "CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, name VARCHAR(9), size INT)"


def orders() -> Changefeed:
    feed = Changefeed("canal-json", TableSchema(TABLE, ()))
    feed.define(CREATE)
    feed.put(1, "one", 10)
    feed.put(2, "two", 20)
    return feed


def opened(sql: Bed, spark: SparkSession, folder: Path, feed: Changefeed) -> CodedTable:
    config = config_of(feed, executor="spark")
    return open_table(sql, spark, folder, feed=feed, messages=placed(feed.records), config=config)


def ends_right(sql: Bed, table: CodedTable, feed: Changefeed) -> None:
    """The source's rows are there, and no staging table is."""
    assert table.rows(shape_of(feed.schema)) == [row for _, row in sorted(feed.rows.items())]
    assert staging_tables(sql) == []


def staging_tables(sql: Bed) -> list[tuple[str, int | None]]:
    """Their names and, in Postgres, what tells a table from one that was made again."""
    dialect, place = target_of(sql).connections.dialect, target_of(sql).place_of(TABLE)
    with target_of(sql).connections.transaction("test", writes=False) as cursor:
        names = dialect.staging.tables(cursor, place)
        if dialect.database == "mysql":
            return [(name, None) for name in names]
        cursor.execute("SELECT relname, oid FROM pg_class WHERE relname = ANY(%s)", (names,))
        return list(cursor.fetchall())


def test_the_tasks_that_reduce_rows_bring_them(sql: Bed, spark: SparkSession, tmp_path: Path) -> None:
    noted, brought = noting(sql)
    feed = orders()
    feed.delete(1)
    feed.put(3, "three", None)
    feed.put(2, "zwei", 2)
    table = opened(noted, spark, tmp_path, feed)
    with table.table_task() as table_task:
        table.take(table_task, 3)
        table.take(table_task, len(feed.records))
    assert brought == [2, 3]
    ends_right(sql, table, feed)


def test_metadata_columns_and_marks_of_deleted_rows_are_brought_too(
    sql: Bed, spark: SparkSession, tmp_path: Path
) -> None:
    noted, brought = noting(sql)
    feed = orders()
    feed.delete(1)
    feed.put(3, "three", None)
    feed.delete(3)
    feed.put(2, "zwei", 2)
    config = config_of(feed, executor="spark", deletes="soft", metadata={"op": "_op", "offset": "_offset"})
    table = open_table(noted, spark, tmp_path, feed=feed, messages=placed(feed.records), config=config)
    with table.table_task() as table_task:
        table.take(table_task, 3)
        table.take(table_task, len(feed.records))
    assert brought == [2, 3]
    first = {"id": 1, "name": "one", "size": 10, "_op": "delete", "_offset": 3, SOFT_DELETE_COLUMN: True}
    second = {"id": 2, "name": "zwei", "size": 2, "_op": "update", "_offset": 6, SOFT_DELETE_COLUMN: False}
    assert sql.rows(TABLE) == [first, second]


def test_a_change_of_the_columns_within_a_batch_has_its_rows_brought_again(
    sql: Bed, spark: SparkSession, tmp_path: Path
) -> None:
    noted, brought = noting(sql)
    feed = orders()
    feed.put(3, "three", 30)
    feed.define("ALTER TABLE shop.orders ADD COLUMN more INT")
    feed.rows = {key: {**row, "more": None} for key, row in feed.rows.items()}
    feed.put(1, "uno", 11, 7)
    feed.put(4, "four", 40, 8)
    table = opened(noted, spark, tmp_path, feed)
    with table.table_task() as table_task:
        table.take(table_task, 3)
        table.take(table_task, len(feed.records) - 1)
        table.take(table_task, len(feed.records))
    assert brought == [2, None, 1]
    ends_right(sql, table, feed)


def test_what_is_staged_before_a_bad_record_is_read_again_up_to_it(
    sql: Bed, spark: SparkSession, tmp_path: Path
) -> None:
    noted, brought = noting(sql)
    feed = orders()
    feed.put(3, "three", 30)
    feed.put(4, "four", 40)
    messages = placed(feed.records)
    messages[-1] = replace(messages[-1], value=b"{no json")
    table = open_table(
        noted, spark, tmp_path, feed=feed, messages=messages, config=config_of(feed, executor="spark")
    )
    del feed.rows[(4,)]
    with table.table_task() as table_task:
        table.offer(table_task, len(messages))
        assert (table_task.state, table_task.report().counters["applied"]) == ("PAUSED", 3)
    assert brought == [3]
    ends_right(sql, table, feed)


def test_rows_that_the_tasks_cannot_bring_go_the_way_that_says_why(
    sql: Bed, spark: SparkSession, tmp_path: Path
) -> None:
    def into_nothing(sink: RowSink) -> RowSink:
        assert isinstance(sink, Loader)
        return replace(sink, statement=sink.statement.replace("_tidesink_staging", "_no_staging"))

    noted, brought = noting(sql, sink=into_nothing)
    feed = orders()
    table = opened(noted, spark, tmp_path, feed)
    with table.table_task() as table_task:
        table.take(table_task, len(feed.records))
    assert brought == [None]
    ends_right(sql, table, feed)


def test_batches_without_rows_need_no_ddl(sql: Bed, spark: SparkSession, tmp_path: Path) -> None:
    noted, brought = noting(sql)
    feed = orders()
    feed.define("ALTER TABLE shop.orders COMMENT 'one'")
    feed.define("ALTER TABLE shop.orders COMMENT 'two'")
    feed.put(2, "zwei", 2)
    table = opened(noted, spark, tmp_path, feed)
    with table.table_task() as table_task:
        table.take(table_task, 3)
        assert staging_tables(sql) == []
        table.take(table_task, 4)
        (made,) = staging_tables(sql)
        table.take(table_task, 5)
        assert staging_tables(sql) == [made]
        table.take(table_task, 6)
        assert staging_tables(sql) == []
    assert brought == [2, 0, 0, 1]
    ends_right(sql, table, feed)


def test_rows_behind_the_record_that_a_table_pauses_before_are_not_left_there(
    sql: Bed, spark: SparkSession, tmp_path: Path
) -> None:
    feed = orders()
    feed.put(3, "three", 30)
    feed.put(4, "four", 40)
    messages = placed(feed.records)
    messages[3] = replace(messages[3], value=b"{no json")
    table = open_table(
        sql, spark, tmp_path, feed=feed, messages=messages, config=config_of(feed, executor="spark")
    )
    with table.table_task() as table_task:
        table.take(table_task, 3)
        table.offer(table_task, 5)
        assert table_task.state == "PAUSED"
        assert staging_tables(sql) == []
