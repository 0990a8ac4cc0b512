"""A task over a compacted topic: it saves when it has read all, and stops where a delete may be gone."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.contracts.coded_changes import TABLE, Changefeed, placed
from tests.contracts.coded_table import CodedTable, config_of, open_table
from tests.contracts.conftest import memory_bed
from tidesink.events import Column, ColumnType, TableSchema
from tidesink.sinks.kafka.compaction import Compaction
from tidesink.sinks.runtime.control import NOTHING_ASKED
from tidesink.sinks.state.progress import TableStatus
from tidesink.sinks.worker.table_task import TableTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
DAY: Final = 86_400.0
SCHEMA: Final = TableSchema(
    TABLE,
    (
        Column("id", ColumnType("bigint"), nullable=False, handle=True, primary_key=True),
        Column("size", ColumnType("int")),
    ),
)


@pytest.fixture
def table(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> CodedTable:
    """A table in memory, behind three rows."""
    feed = Changefeed("flat-avro", SCHEMA)
    for number in range(3):
        feed.put(number, number)
    bed, messages = memory_bed(request, tmp_path), placed(feed.records)
    return open_table(bed, spark, tmp_path, feed=feed, messages=messages, config=config_of(feed))


def _offer(table: CodedTable, table_task: TableTask, upto: int) -> TableStatus:
    """What a worker does when the topic ends there, and has rested."""
    table.topic.sent = upto
    found = table.topic.found()._replace(compaction=Compaction("compact", DAY))
    table_task.look(found)
    table_task.work(found)
    table_task.look(found)
    table_task.rest()
    status = table.around.store.status_of("shop", TABLE)
    assert status is not None
    return status


def test_a_table_that_stood_still_for_too_long_stops_until_it_is_accepted(
    table: CodedTable,
) -> None:
    before, moved = time.time(), 0.0
    table = replace(table, around=replace(table.around, clock=lambda: before + moved))
    with table.table_task() as table_task:
        status = _offer(table, table_task, 1)
        assert (status.state, status.details["caught-up"]) == ("IDLE", {"time": round(before, 3), "batch": 1})
    # Half a day is not too long.
    moved = DAY / 2
    with table.table_task() as table_task:
        status = _offer(table, table_task, 2)
        assert status.details["caught-up"] == {"time": round(before + moved, 3), "batch": 2}
    moved = 2 * DAY
    with table.table_task() as table_task:
        status = _offer(table, table_task, 3)
        assert status.state == "FAILING"
        assert str(status.error).startswith("SourceError: ")
        assert "Deletes may be missing" in str(status.error)
        missed = status.details["missed-deletes"]
    # Another worker stops too, until a person says that it may go on.
    with table.table_task() as table_task:
        assert _offer(table, table_task, 3).details["missed-deletes"] == missed
        table_task.apply_control(NOTHING_ASKED)
        table_task.apply_control(NOTHING_ASKED.resume({missed["digest"]: "apply"}))
        status = _offer(table, table_task, 3)
        assert (status.state, status.error) == ("IDLE", None)
        assert status.details["caught-up"] == {"time": round(before + moved, 3), "batch": 3}
        assert "missed-deletes" not in status.details
    assert sorted(row["id"] for row in table.bed.read(TABLE)) == [0, 1, 2]
