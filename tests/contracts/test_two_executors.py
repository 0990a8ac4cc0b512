"""Two workers on one table, whose batches run on different executors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.contracts.coded_changes import NAME, TABLE, Changefeed, placed
from tests.contracts.coded_table import HeldFetch, HeldTopic, config_of, open_table
from tests.contracts.targets_bed import Bed
from tests.full import quick_on
from tidesink.events import TableSchema
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.typemap.target_schema import shape_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
# The DDL that makes the table, and a row.
FIRST: Final = 2


@dataclass(frozen=True)
class NotedFetch(HeldFetch):
    """Writes into a file which process reads a range."""

    file: Path

    def __call__(self, wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        """The records of a range."""
        with self.file.open("a", encoding="utf-8") as file:
            file.write(f"{os.getpid()}\n")
        yield from super().__call__(wanted)

    def by_others(self) -> bool:
        """Whether another process than this one has read since this was asked last."""
        readers = {int(line) for line in self.file.read_text(encoding="utf-8").split()}
        self.file.unlink()
        return readers - {os.getpid()} != set()


@pytest.mark.law("L10")
@quick_on("delta", "postgres")
@pytest.mark.parametrize("executors", [("local", "spark"), ("spark", "local")], ids="-".join)
def test_the_worker_that_came_first_has_lost_the_table(
    bed: Bed, spark: SparkSession, tmp_path: Path, executors: tuple[str, str]
) -> None:
    feed = Changefeed("canal-json", TableSchema(TABLE, ()))
    feed.define(f"CREATE TABLE {NAME} (id BIGINT PRIMARY KEY, size INT)")
    for number in range(4):
        feed.put(number % 2, number)
    messages = placed(feed.records)
    fetch = NotedFetch(tuple(messages), tmp_path / "readers")
    first, second = (config_of(feed, executor=one) for one in executors)
    older = open_table(
        bed,
        spark,
        tmp_path,
        feed=feed,
        messages=messages,
        config=first,
        held=lambda held: HeldTopic(held, fetch=fetch),
    )
    newer = replace(older, around=replace(older.around, config=second))
    with older.table_task() as loses, newer.table_task() as holds:
        older.take(loses, FIRST)
        assert fetch.by_others() == (executors[0] == "spark")
        newer.take(holds, FIRST + 1)
        assert fetch.by_others() == (executors[1] == "spark")
        older.offer(loses, len(messages))
        assert loses.state == "FAILING"
        assert str(loses.report().error).startswith("StaleProgressError: ")
        newer.take(holds, len(messages))
    assert older.rows(shape_of(feed.schema)) == [row for _, row in sorted(feed.rows.items())]
