"""What was read, where Spark observed more: it adds up what a task saw each time that the task has run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from tests.contracts.coded_changes import CREATE, TABLE, Changefeed, first_changes, placed
from tests.contracts.coded_lane import HeldTopic, config_of, open_table
from tests.contracts.conftest import memory_bed
from tidesink.ddl.catalog import parse_create_table
from tidesink.events import Message, TableSchema
from tidesink.sinks.batch.source import KafkaRead, ReadFrame
from tidesink.sinks.kafka.offsets import OffsetRange
from tidesink.sinks.schema_sources.base import Apart
from tidesink.typemap.target_schema import shape_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
Way = Callable[["DataFrame"], "DataFrame"]
OTHER: Final = "CREATE TABLE shop.items (id BIGINT PRIMARY KEY)"


class ReadAgain(HeldTopic):
    """A topic read by tasks of which half ran twice. ``way``: what becomes of its records on the way."""

    def __init__(self, way: Way, messages: Sequence[Message]) -> None:
        super().__init__(messages)
        self._way = way
        # Without it the batch is read as a frame.
        self.fetch = cast("Any", None)

    def read(
        self, session: SparkSession, ranges: Sequence[OffsetRange], *, apart: Apart | None = None
    ) -> ReadFrame:
        """The records in the ranges, of which too many are observed."""
        read = super().read(session, ranges, apart=apart)
        return ReadFrame(self._way(read.frame), lambda: _more(read.observed()), read.counted)


def _more(read: KafkaRead) -> KafkaRead:
    return KafkaRead(*(number + number // 2 for number in read))


def all_once(frame: DataFrame) -> DataFrame:
    """Every record arrives once."""
    return frame


def one_lost(frame: DataFrame) -> DataFrame:
    """One record does not arrive."""
    return frame.where("offset <> 3")


def one_twice(frame: DataFrame) -> DataFrame:
    """One record arrives twice."""
    times = "explode(if(offset = 3, array(1, 2), array(1))) AS times"
    return frame.selectExpr("*", times).drop("times")


@pytest.mark.parametrize(
    ("way", "error"),
    [(all_once, None), (one_lost, "1 events are missing"), (one_twice, "1 events are too many")],
)
def test_records_are_counted_anew_where_they_do_not_fit_what_arrived(
    way: Way, error: str | None, spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    feed = Changefeed("canal-json", TableSchema(TABLE, ()))
    feed.define(CREATE)
    first_changes(feed)
    other = Changefeed("canal-json", parse_create_table(OTHER))  # in the same topic, and nobody knows it yet
    for number in range(4):
        other.put(number)
    messages = placed([*feed.records[:6], *other.records, *feed.records[6:]])
    table = open_table(
        memory_bed(request, tmp_path),
        spark,
        tmp_path,
        feed=feed,
        messages=messages,
        config=config_of(feed),
        held=partial(ReadAgain, way),
    )
    with table.table_task() as table_task:
        table.offer(table_task, len(messages))
        report = table_task.report()
    if error is not None:
        assert report.state == "FAILING"
        assert error in (report.error or "")
        return
    assert (report.state, report.error) == ("RUNNING", None)
    assert report.counters["read"] == len(feed.records)
    assert table.rows(shape_of(feed.schema)) == [row for _, row in sorted(feed.rows.items())]
