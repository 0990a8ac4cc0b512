"""What the worker asks of a Delta table's log between its batches costs no Spark job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tidesink.sinks.targets.delta.log import MARKER, DeltaLog
from tidesink.sinks.targets.lake.tables import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
APPLICATION = "marked"


@pytest.fixture
def log(spark: SparkSession, tmp_path: Path) -> DeltaLog:
    """The log of a table with one file, whose newest commit nobody has looked at."""
    session, table = open_session(spark), tmp_path / "table"
    session.sql(f"CREATE TABLE delta.`{table}` (id BIGINT) USING delta")
    session.sql(f"INSERT INTO delta.`{table}` VALUES (1)")  # noqa: S608
    return DeltaLog(session, str(table))


@contextmanager
def jobs(spark: SparkSession, group: str) -> Iterator[list[int]]:
    """The jobs that this thread runs meanwhile: known at the end."""
    found: list[int] = []
    spark.sparkContext.setJobGroup(group, group)
    try:
        yield found
    finally:
        # Of the jobs a bus tells, some time after they began.
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        found.extend(spark.sparkContext.statusTracker().getJobIdsForGroup(group))
        # None removes the property, which PySpark's types do not know.
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


def test_files_are_counted_from_the_checksum(spark: SparkSession, log: DeltaLog) -> None:
    with jobs(spark, "files") as ran:
        assert log.file_count() == 1
    assert ran == []


def test_files_are_counted_without_a_checksum_too(spark: SparkSession, log: DeltaLog) -> None:
    for checksum in Path(log.path, "_delta_log").glob("*.crc"):
        checksum.unlink()
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    with jobs(spark, "state") as ran:
        assert log.file_count() == 1
    assert ran


def test_a_marker_leaves_a_checksum_from_the_one_before(spark: SparkSession, log: DeltaLog) -> None:
    log.transaction_version(APPLICATION)  # the state that the marker's transaction reads
    with jobs(spark, "marker") as ran:
        version = log.commit_marker(APPLICATION, 1, "words")
        assert log.file_count() == 1
    assert ran == []
    assert version is not None
    commit = log.commit(version)
    assert commit is not None
    assert (commit.operation, commit.metadata) == (MARKER, "words")
    assert Path(log.path, "_delta_log", f"{version:020d}.crc").exists()
    assert log.transaction_version(APPLICATION) == 1


def test_a_property_and_a_fence_go_by_transaction_versions(log: DeltaLog) -> None:
    log.commit_marker("other", 1, "words", fences={APPLICATION: 5})
    assert not log.put_property(APPLICATION, 5, "theirs", "old", words="skipped")
    assert log.put_property(APPLICATION, 6, "ours", "it's", words="why")
    assert (log.property("theirs"), log.property("ours")) == (None, "it's")
    assert log.transaction_version(APPLICATION) == 6
    commit = log.commit(log.latest())
    assert commit is not None
    assert (commit.operation, commit.metadata) == ("SET TBLPROPERTIES", "why")
    assert not log.put_property(APPLICATION, 6, "ours", None, words="skipped")
    assert log.put_property(APPLICATION, 7, "ours", None, words="done")
    assert (log.property("ours"), log.transaction_version(APPLICATION)) == (None, 7)
