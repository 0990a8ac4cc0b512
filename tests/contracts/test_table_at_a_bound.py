"""A table that is read under the bound of a cut: what its task says of where it stands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.contracts.coded_changes import CREATE, TABLE, TOPIC, Changefeed
from tests.contracts.coded_table import config_of, open_table
from tests.contracts.conftest import memory_bed
from tidesink.codecs.base import CodecOptions
from tidesink.events import Message, TableSchema
from tidesink.sinks.runtime.control import SnapshotControl, TableControl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_what_stands_behind_a_table_is_known_until_it_reads_on(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path
) -> None:
    """A watermark that was seen there lies behind rows that waited, once these are read again."""
    feed = Changefeed("canal-json", TableSchema(TABLE, ()), CodecOptions(enable_tidb_extension=True))
    feed.define(CREATE)
    for number in (1, 2):
        feed.put(number, 0, "one", number, None)
    messages = [Message(TOPIC, 0, at, one.key, one.value) for at, one in enumerate(feed.records)]
    bed, config = memory_bed(request, tmp_path), config_of(feed)
    table = open_table(bed, spark, tmp_path, feed=feed, messages=messages, config=config)
    with table.table_task() as table_task:
        table.take(table_task, len(messages) - 1)
        table_task.reading.marks = {0: 1 << 60}
        table.take(table_task, len(messages))
        assert table_task.reading.marks == {}
        assert not table_task.reading.outside
        # Rows of a snapshot are later than any cut before its end: cuts leave the table out, and do not wait.
        table_task.apply_control(TableControl(snapshot=SnapshotControl(5)))
        assert table_task.reading.outside
        table_task.apply_control(TableControl(snapshot=SnapshotControl(5, cancelled=5)))
        assert (table_task.reading.outside, table_task.status.obstacle) == (False, "")
