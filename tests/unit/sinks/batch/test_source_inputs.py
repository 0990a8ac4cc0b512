"""What a task makes of rows of the source database, which are in no record of Kafka."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any, Final, cast

import pyarrow as pa
import pytest

from tests.unit.sinks.batch.test_range_tasks import summary
from tidesink.errors import TidesinkError
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.sinks.batch.source_rows import (
    KeyRange,
    KeySet,
    KeyShare,
    RowInput,
    log_offset,
    numbered_records,
    source_plan,
)
from tidesink.sinks.batch.tasks import RangeTask, RangeTooLargeError
from tidesink.sinks.decode.canal_json import canal_json_plan
from tidesink.sinks.decode.plans import PlanSettings
from tidesink.sinks.decode.records import Input
from tidesink.sinks.laws.counts import BadRow
from tidesink.sinks.spark.payloads import unpack
from tidesink.source_database.base import StoredTable
from tidesink.typemap.mysql_types import parse_sql_type

TABLE: Final = TableId("shop", "days")
SCHEMA: Final = TableSchema(
    TABLE, (Column("d", ColumnType("date"), handle=True), Column("n", ColumnType("int")))
)
STORED: Final = StoredTable({"d": parse_sql_type("date"), "n": parse_sql_type("int(11)")}, ("d",), 0, 0)
RANGE: Final = RowInput("days", 3, KeyRange(), 100, first=7)


def _task(wanted: Input, *, logs: bool = False) -> RangeTask:
    plan, _ = source_plan(canal_json_plan(SCHEMA, PlanSettings(logs=logs)), STORED)
    task: RangeTask = pickle.loads(pickle.dumps(RangeTask((wanted,), plan)))  # noqa: S301  (as to a task)
    return task


def _run(task: RangeTask, *days: str) -> list[dict[str, Any]]:
    """The rows of the task's payloads for source rows of these days."""
    (wanted,) = task.ranges
    texts = [pa.array(days), pa.array(["1"] * len(days))]
    first = wanted.first if isinstance(wanted, RowInput) else 0
    records = numbered_records(wanted, first, pa.StructArray.from_arrays(texts, names=["d", "n"]))
    return [row for batch in task.packed(wanted, [records]) for row in batch.to_pylist()]


def test_rows_have_counts_and_no_location_in_kafka() -> None:
    found = summary(_run(_task(RANGE), "2024-01-02", "2024-01-01"))
    assert (found.counts.read, found.counts.messages, found.counts.upserts) == (2, 2, 2)
    assert (found.places, found.bad_records, found.bad_rows) == ({}, (), ())


def test_a_bad_row_has_a_reason_and_no_location() -> None:
    found = summary(_run(_task(RANGE), "2024-01-01", "0000-00-00"))
    (bad,) = found.bad_rows
    assert isinstance(bad, BadRow)
    assert "column 'd'" in bad.reason
    assert (found.counts.bad, found.bad_records, found.places) == (1, (), {})


def test_a_change_log_stores_the_numbers_of_the_range_and_of_the_row() -> None:
    wanted = replace(RANGE, first=log_offset(5))
    payloads = _run(_task(wanted, logs=True), "2024-01-01", "2024-01-02")
    batch = pa.RecordBatch.from_pylist(
        [{name: row[name] for name in ("payload", "error")} for row in payloads]
    )
    batch = batch.cast(pa.schema([("payload", pa.binary()), ("error", pa.binary())]))
    rows = [row for part in unpack([batch]) for row in part.to_pylist()]
    assert [(row["_topic"], row["_partition"]) for row in rows] == [("days", 3)] * 2
    assert [row["_offset"] - log_offset(5) for row in rows] == [0, 1]


@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        (RANGE, "range 4 of the table's key"),
        (RowInput("days", 0, KeySet(("d",), (("2024-01-01",),)), 100), "the requested keys"),
        (KeyShare("days", 1), "share 2 of the keys"),
    ],
)
def test_an_error_names_the_range_and_no_values(wanted: Input, named: str) -> None:
    (row,) = _run(replace(_task(wanted), most_bytes=1), "2024-01-01")
    error: TidesinkError = pickle.loads(row["error"])  # noqa: S301  (our own task's)
    assert type(error) is RangeTooLargeError
    assert error.message.startswith(f"The rows of {named} have more than 0 MiB")
    assert "source.database.chunk-rows" in error.message
    assert not {"topic", "partition", "offset"} & error.context.keys()
    with pytest.raises(RuntimeError, match=named):
        # No records: an error that nobody foresaw.
        [*_task(wanted).packed(wanted, cast("Any", [None]))]
