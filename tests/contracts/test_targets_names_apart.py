"""Columns that only their case tells apart, through a worker's task: both are kept, or no row is written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.columns import ID
from tests.contracts.coded_changes import TOPIC, Changefeed
from tests.contracts.coded_table import CodedTable, config_of, open_table
from tests.contracts.message_beds import MessagesBed
from tests.contracts.targets_bed import Bed
from tests.full import quick_on
from tidesink.events import Column, ColumnType, Message, TableId, TableSchema
from tidesink.typemap.target_schema import TargetSchema, shape_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A lake, where the two are one, and a database that keeps them apart.
pytestmark = quick_on("delta", "postgres")

TABLE: Final = TableId("public", "people")
SOURCE: Final = {"connector": "postgresql", "name": "app", "db": "app", "schema": "public", "table": "people"}
ROWS: Final[tuple[dict[str, Any], ...]] = (
    {"id": 1, "name": "first"},
    {"id": 1, "name": "lower", "Name": "UPPER"},
    {"id": 2, "name": "a", "Name": "B"},
    {"id": 3, "name": None, "Name": "C"},
    {"id": 4, "name": "d", "Name": None},
)
APART: Final = ("memory", "postgres", "kafka", "http")


def _struct(names: dict[str, str], **members: Any) -> dict[str, Any]:
    fields = [{"field": name, "type": kind, "optional": name != "id"} for name, kind in names.items()]
    return {"type": "struct", "fields": fields, **members}


def _message(offset: int, row: dict[str, Any]) -> Message:
    """As Debezium's connector for Postgres writes it, with its schema."""
    image = _struct({name: "int32" if name == "id" else "string" for name in row}, optional=True)
    schema = {
        "type": "struct",
        "fields": [
            {**image, "field": "before"},
            {**image, "field": "after"},
            {**_struct(dict.fromkeys(SOURCE, "string")), "field": "source"},
            {"field": "op", "type": "string"},
        ],
    }
    payload = {"before": None, "after": row, "source": SOURCE, "op": "c"}
    key = {"schema": _struct({"id": "int32"}), "payload": {"id": row["id"]}}
    value = {"schema": schema, "payload": payload}
    return Message(TOPIC, 0, offset, json.dumps(key).encode(), json.dumps(value).encode(), 1000 + offset)


def _opened(bed: Bed, spark: SparkSession, folder: Path, **settings: Any) -> CodedTable:
    feed = Changefeed("debezium-json", TableSchema(TABLE, ()))
    config = config_of(feed, table=settings)
    messages = [_message(at, row) for at, row in enumerate(ROWS)]
    return open_table(bed, spark, folder, feed=feed, messages=messages, config=config)


def _shape(*names: str) -> TargetSchema:
    columns = (Column(name, ColumnType("text")) for name in names)
    return shape_of(TableSchema(TABLE, (ID, *columns)))


def _rows(bed: Bed, table: CodedTable, *names: str) -> list[dict[str, Any]]:
    found = table.rows(_shape(*names))
    if isinstance(bed, MessagesBed):
        return found
    return [{name: row[name] for name in ("id", *names)} for row in found]


@pytest.mark.parametrize("first", [1, 2])
def test_both_are_kept_or_no_row_is_written(
    bed: Bed, spark: SparkSession, tmp_path: Path, first: int
) -> None:
    """``first``: records of the first batch, in which the second column is, or which it comes behind."""
    table = _opened(bed, spark, tmp_path)
    with table.table_task() as task:
        if bed.name.partition("-")[0] in APART:
            table.take(task, first)
            table.take(task, len(ROWS))
            assert _rows(bed, table, "name", "Name") == [*ROWS[1:]]
            return
        if first == 1:
            table.take(task, first)
        table.offer(task, len(ROWS))
        assert re.search("columns name and Name .*same column", str(task.report().error))
    kept = [ROWS[0]] if first == 1 else []
    assert (_rows(bed, table, "name") if kept else []) == kept


# A target gets the names that the config chose.
@quick_on("memory")
def test_one_of_them_is_renamed(bed: Bed, spark: SparkSession, tmp_path: Path) -> None:
    """The way out where a target takes both for one."""
    table = _opened(bed, spark, tmp_path, rename={"Name": "upper"})
    with table.table_task() as task:
        table.take(task, len(ROWS))
    expected = [{"id": row["id"], "name": row["name"], "upper": row["Name"]} for row in ROWS[1:]]
    assert _rows(bed, table, "name", "upper") == expected
