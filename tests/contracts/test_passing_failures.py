"""A batch whose task lacked what its machine has to give is tried again, as ``retry.for`` says."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.contracts.coded_changes import CREATE, TABLE, Changefeed, first_changes, placed
from tests.contracts.coded_table import HeldFetch, HeldTopic, config_of, open_table
from tests.contracts.conftest import memory_bed
from tidesink.errors import SourceUnavailableError
from tidesink.events import Message, TableSchema
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.runtime.observers import Listeners, StepRetried, WorkerEvent
from tidesink.typemap.target_schema import shape_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@dataclass(frozen=True)
class FullDisk(HeldFetch):
    """The disk is full when a task fetches first, and has room from then on."""

    fetched: Path

    def __call__(self, wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        """The records of a range, for all but the first task."""
        if not self.fetched.exists():
            self.fetched.touch()
            raise OSError(errno.ENOSPC, "No space left on device", "s3cr3t")
        return super().__call__(wanted)


class Heard:
    """What a worker says of steps it tries again."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []

    def hear(self, event: WorkerEvent) -> None:
        """Keep the reason of another try."""
        if isinstance(event, StepRetried):
            self.errors.append(event.error)


def test_a_batch_is_applied_once_the_disk_has_room(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path
) -> None:
    feed = Changefeed("canal-json", TableSchema(TABLE, ()))
    feed.define(CREATE)
    first_changes(feed)

    def on_full_disk(messages: Sequence[Message]) -> HeldTopic:
        return HeldTopic(messages, fetch=FullDisk(tuple(messages), tmp_path / "fetched"))

    config, heard = config_of(feed, retry_for="600s"), Heard()
    table = open_table(
        memory_bed(request, tmp_path),
        spark,
        tmp_path,
        feed=feed,
        messages=placed(feed.records),
        config=config,
        held=on_full_disk,
    )
    table = replace(table, around=replace(table.around, listeners=Listeners([heard])))
    with table.table_task() as table_task:
        table.take(table_task, len(feed.records))
    assert [type(error) for error in heard.errors] == [SourceUnavailableError]
    assert "OSError: No space left on device" in str(heard.errors[0])
    assert "s3cr3t" not in str(heard.errors[0])
    assert table.rows(shape_of(feed.schema)) == [row for _, row in sorted(feed.rows.items())]
