"""Partitions added to a topic, and a table that is read again from its beginning afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.replay import Servers
from tests.e2e.writing import TableWriter, lake_rows, schema_of, shop_config
from tests.full import FULL
from tests.servers import add_partitions
from tidesink.config import load_config
from tidesink.sinks.runtime.observers import RunReport
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 30


def _run(folder: Path, servers: Servers, *, records: int) -> RunReport:
    folder.mkdir(exist_ok=True)
    # The pipeline is the same, and so is what it remembers; the lake is another one.
    more = {"batch": {"max-records": records}, "state": str(folder.parent / "state.db")}
    return run(load_config(shop_config(folder, servers, more)), until="drained")


@pytest.mark.law("L1")
@FULL
def test_a_table_read_anew_reads_the_old_partitions_first(
    spark: SparkSession, tmp_path: Path, servers: Servers
) -> None:
    """Its keys moved: read side by side, an old change would be applied behind a newer one."""
    writer = TableWriter(servers, schema_of("grown"))
    for key in range(ROWS):
        writer.upsert({"id": key, "name": "old"})
    assert _run(tmp_path / "one", servers, records=1_000).exit_code == 0
    add_partitions(servers["brokers"], writer.topic, 2)
    # A producer made before does not know the partition yet.
    writer = TableWriter(servers, writer.schema, topic=writer.topic)
    for key in range(ROWS):
        writer.upsert({"id": key, "name": "new"}, partition=1)
    for folder, records in (("one", 1_000), ("again", 14)):
        report = _run(tmp_path / folder, servers, records=records)
        assert report.exit_code == 0, [(table.table, table.error) for table in report.tables]
        assert {row["name"] for row in lake_rows(tmp_path / folder, "grown").values()} == {"new"}


def test_a_topic_first_seen_when_its_keys_had_moved_is_refused(
    spark: SparkSession, tmp_path: Path, servers: Servers
) -> None:
    """Nothing tells which partition came first: keys that are met in both stop the table."""
    writer = TableWriter(servers, schema_of("moved"), partitions=2)
    for partition in (0, 1):
        for key in range(ROWS):
            writer.upsert({"id": key, "name": f"{partition}"}, partition=partition)
    report = _run(tmp_path / "one", servers, records=1_000)
    (table,) = report.tables
    assert report.exit_code == 3
    assert table.error is not None
    assert table.error.startswith("MixedPartitionsError: ")
