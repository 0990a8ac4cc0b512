"""Jobs that fail: what is said of them, and which may pass."""

from __future__ import annotations

import errno
import importlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.contracts.targets_bed import shape
from tidesink.errors import ConfigError, SourceError, SourceUnavailableError
from tidesink.sinks.batch.source import KafkaSource, translated_read_errors
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.runtime.context import may_pass
from tidesink.sinks.spark.errors import raised_task_errors as _errors
from tidesink.sinks.spark.frames import SparkRows
from tidesink.sinks.spark.payloads import UPSERT, ipc_stream
from tidesink.sinks.targets.base import ReducedBatch
from tidesink.sinks.targets.sql.load import IS_DELETE, Loader, StagedColumn, StagedRows, stage_rows
from tidesink.sinks.targets.sql.location import Endpoint
from tidesink.sinks.targets.stream.table import run_tasks

pytestmark = pytest.mark.spark


def test_a_module_that_executors_lack_is_named(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark sends a function by its module's name: the driver alone has this module."""
    (tmp_path / "on_the_driver.py").write_text("def same(batches):\n    yield from batches\n")
    monkeypatch.syspath_prepend(tmp_path)
    same = importlib.import_module("on_the_driver").same
    frame = spark.range(1).mapInArrow(same, "id bigint")
    with pytest.raises(ConfigError, match=r"executors has no module on_the_driver\. Install the"), _errors():
        frame.collect()


def _kill(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    os.kill(os.getpid(), signal.SIGKILL)
    yield from batches


def _fault(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        int(f"s3cr3t {batch.num_rows}")
    yield from batches


def test_a_job_whose_worker_was_killed_may_pass(spark: SparkSession) -> None:
    with pytest.raises(SourceUnavailableError, match="was interrupted") as caught, _errors(topic="t"):
        spark.range(1).mapInArrow(_kill, "id bigint").collect()
    assert may_pass(caught.value)
    assert caught.value.context == {"topic": "t"}


def test_a_fault_of_a_task_is_final_and_says_no_value(spark: SparkSession) -> None:
    with pytest.raises(SourceError, match=r"ValueError, test_failed_jobs\.py line \d+") as caught, _errors():
        spark.range(1).mapInArrow(_fault, "id bigint").collect()
    assert not may_pass(caught.value)
    assert "s3cr3t" not in str(caught.value)


@dataclass(frozen=True)
class _Failing:
    """What fails wherever a task calls it."""

    error: Exception

    def __call__(self, *_arguments: object) -> NoReturn:
        raise self.error


def _no_code(_error: BaseException) -> None:
    return None


def _sent(spark: SparkSession, error: Exception) -> None:
    """Rows that a task sends to a service."""
    run_tasks(SparkRows(spark.range(1)), _Failing(error), table="shop.t")


def _read(spark: SparkSession, error: Exception) -> None:
    """Records that a task fetches; the driver hears of them as of a batch."""
    with translated_read_errors("t"):
        KafkaSource(_Failing(error)).over(spark, [FetchRange("t", 0, 0, 1)], _taken, "id bigint").collect()


def _taken(_wanted: FetchRange, records: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from records


def _loaded(spark: SparkSession, error: Exception) -> None:
    """Rows that a task loads into a database."""
    rows = StagedRows(shape(), (StagedColumn(IS_DELETE, quoted=False),), "")
    loader = Loader(Endpoint("h", 1, "d", "u", "p"), "", _Failing(error), _no_code, False, rows)
    payload = ipc_stream(pa.record_batch({"_op": [UPSERT]}))
    payloads = spark.createDataFrame([(payload, None)], "payload binary, error binary")
    stage_rows(loader, ReducedBatch(shape(), 1, 0, payloads=SparkRows(payloads)))


_STEPS: Final = (_read, _sent, _loaded)
_LACKS: Final = {
    "a disk is full": OSError(errno.ENOSPC, "s3cr3t"),
    "a disk fails": OSError(errno.EIO, "s3cr3t"),
    "too many files are open": OSError(errno.EMFILE, "s3cr3t"),
    "no memory": MemoryError("s3cr3t"),
    "a connection is cut": ConnectionResetError("s3cr3t"),
}


@pytest.mark.parametrize("step", _STEPS)
@pytest.mark.parametrize("error", _LACKS.values(), ids=_LACKS.keys())
def test_a_task_whose_machine_lacks_something_may_pass(
    spark: SparkSession, error: Exception, step: Callable[[SparkSession, Exception], None]
) -> None:
    with pytest.raises(SourceUnavailableError, match="its host ran out of resources") as caught:
        step(spark, error)
    assert may_pass(caught.value)
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("step", _STEPS)
@pytest.mark.parametrize(
    "error", [FileNotFoundError(errno.ENOENT, "s3cr3t"), PermissionError(errno.EACCES, "s3cr3t")]
)
def test_a_file_that_is_missing_or_forbidden_is_final(
    spark: SparkSession, error: Exception, step: Callable[[SparkSession, Exception], None]
) -> None:
    with pytest.raises(SourceError, match=type(error).__name__) as caught:
        step(spark, error)
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
