"""Jobs that fail: what is said of them, and which may pass."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tidesink.errors import ConfigError, SourceError, SourceUnavailableError
from tidesink.sinks.batch.context import may_pass
from tidesink.sinks.spark.errors import raised_task_errors as _errors

pytestmark = pytest.mark.spark


def test_a_module_that_executors_lack_is_named(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark sends a function by its module's name: the driver alone has this module."""
    (tmp_path / "on_the_driver.py").write_text("def same(batches):\n    yield from batches\n")
    monkeypatch.syspath_prepend(tmp_path)
    same = importlib.import_module("on_the_driver").same
    frame = spark.range(1).mapInArrow(same, "id bigint")
    with pytest.raises(ConfigError, match="executors has no module on_the_driver: install there"), _errors():
        frame.collect()


def _kill(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    os.kill(os.getpid(), signal.SIGKILL)
    yield from batches


def _fault(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        int(f"s3cr3t {batch.num_rows}")
    yield from batches


def test_a_job_whose_worker_was_killed_may_pass(spark: SparkSession) -> None:
    with pytest.raises(SourceUnavailableError, match="was cut off") as caught, _errors(topic="t"):
        spark.range(1).mapInArrow(_kill, "id bigint").collect()
    assert may_pass(caught.value)
    assert caught.value.context == {"topic": "t"}


def test_a_fault_of_a_task_is_final_and_says_no_value(spark: SparkSession) -> None:
    with pytest.raises(SourceError, match=r"ValueError, test_failed_jobs\.py line \d+") as caught, _errors():
        spark.range(1).mapInArrow(_fault, "id bigint").collect()
    assert not may_pass(caught.value)
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize(
    ("query", "what"),
    [("SELECT nothing", "AnalysisException"), ("SELECT 1 / id FROM range(1)", "DIVIDE_BY_ZERO")],
)
def test_what_a_plan_is_wrong_in_is_final(spark: SparkSession, query: str, what: str) -> None:
    with pytest.raises(SourceError, match=what) as caught, _errors():
        spark.sql(query).collect()
    assert not may_pass(caught.value)
