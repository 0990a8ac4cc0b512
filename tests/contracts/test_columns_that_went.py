"""A column that the source dropped or renamed stays at the target: what its rows have in it afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.contracts.coded_changes import Changefeed, placed
from tests.contracts.coded_table import CodedTable, config_of, open_table
from tests.contracts.targets_bed import Bed
from tests.full import FULL
from tests.memory_target import MemoryTarget
from tidesink.events import TableId, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
TABLE = TableId("shop", "orders")
CREATE = "CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, name VARCHAR(9) NOT NULL, size SMALLINT NOT NULL)"
WIDEN = "ALTER TABLE shop.orders MODIFY COLUMN size INT NOT NULL"


def _feed(ddl: str, *row: Any) -> Changefeed:
    """Two rows, one of which is updated after a DDL."""
    feed = Changefeed("canal-json", TableSchema(TABLE, ()))
    feed.define(CREATE)
    feed.put(1, "one", 10)
    feed.define(WIDEN)
    feed.put(2, "two", 70_000)
    feed.define(ddl)
    now = [column.name for column in feed.schema.columns]
    feed.rows = {key: dict(zip(now, row.values(), strict=False)) for key, row in feed.rows.items()}
    feed.put(*row)
    return feed


def _at_once(table: CodedTable, records: int) -> None:
    with table.table_task() as table_task:
        table.take(table_task, records)


def _by_one_worker(table: CodedTable, records: int) -> None:
    with table.table_task() as table_task:
        table.take(table_task, records - 2)
        table.take(table_task, records)


def _by_another_worker(table: CodedTable, records: int) -> None:
    for upto in (records - 2, records):
        with table.table_task() as table_task:
            table.take(table_task, upto)


# DDL, a row inserted after it, settings of the table, and the rows at the end.
CASES: Final[dict[str, tuple[str, tuple[Any, ...], dict[str, Any], list[dict[str, Any]]]]] = {
    "dropped": (
        "ALTER TABLE shop.orders DROP COLUMN size",
        (1, "uno"),
        {"rename": {"name": "label"}},
        [{"id": 1, "label": "uno", "size": None}, {"id": 2, "label": "two", "size": 70_000}],
    ),
    "renamed": (
        "ALTER TABLE shop.orders RENAME COLUMN size TO amount",
        (1, "uno", 11),
        {"schema_changes": {"rename": "ignore"}},
        [
            {"id": 1, "name": "uno", "size": None, "amount": 11},
            {"id": 2, "name": "two", "size": 70_000, "amount": None},
        ],
    ),
}


@pytest.mark.parametrize(
    ("case", "read"),
    [
        ("dropped", _at_once),
        ("renamed", _by_another_worker),
        *(
            pytest.param(case, read, marks=FULL)
            for case, read in (
                ("dropped", _by_one_worker),
                ("dropped", _by_another_worker),
                ("renamed", _by_one_worker),
            )
        ),
    ],
)
def test_it_is_null_in_rows_written_since_whoever_reads_them(
    spark: SparkSession, tmp_path: Path, case: str, read: Callable[[CodedTable, int], None]
) -> None:
    ddl, row, projection, ends = CASES[case]
    feed, target = _feed(ddl, *row), MemoryTarget()
    bed = Bed("memory", target, target.rows, lambda: target)
    messages, config = placed(feed.records), config_of(feed, **projection)
    table = open_table(bed, spark, tmp_path, feed=feed, messages=messages, config=config)
    read(table, len(messages))
    assert sorted(target.rows(TABLE), key=lambda row: str(row["id"])) == ends
