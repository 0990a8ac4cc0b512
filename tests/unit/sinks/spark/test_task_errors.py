"""Errors of Spark tasks, as text and back."""

from __future__ import annotations

import errno
import re
import traceback
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PythonException

from tidesink.errors import SourceError, SourceUnavailableError, TidesinkError
from tidesink.sinks.batch.source import translated_read_errors
from tidesink.sinks.spark.errors import (
    Reporting,
    TaskError,
    fault_of,
    raised_task_errors,
    reported,
    task_error,
)

# As Spark puts a task's traceback into an exception of its own.
_SPARK = "Job aborted due to stage failure: Task 0 failed: PythonException: {}\n\nDriver stacktrace:"


def _as_spark_says(error: TidesinkError) -> Exception:
    try:
        with reported():
            raise error
    except TaskError as failed:
        return RuntimeError(_SPARK.format("".join(traceback.format_exception(failed))))


@given(
    st.sampled_from([SourceError, SourceUnavailableError, TidesinkError]),
    st.text(),
    st.dictionaries(st.text(min_size=1), st.integers() | st.text(), max_size=3),
)
def test_an_error_is_itself_again(kind: type[TidesinkError], message: str, context: dict[str, Any]) -> None:
    error = kind(message)
    error.context = context
    found = task_error(_as_spark_says(error))
    assert type(found) is kind
    assert (found.message, found.context) == (message, context)


def test_the_nearest_class_that_is_known_stands_for_one_that_is_not() -> None:
    class OwnError(SourceError):
        """A class of a task alone."""

    shown = _as_spark_says(OwnError("no"))
    OwnError.__name__ = "NotImportedHere"
    assert type(task_error(shown)) is SourceError


@pytest.mark.parametrize(
    "text",
    ["", "[tidesink error AAAA]", "[tidesink error bnVsbA==]", "[tidesink error W10=]", "[tidesink error x"],
)
def test_a_text_that_only_looks_like_one_is_none(text: str) -> None:
    assert task_error(RuntimeError(text)) is None


def test_other_errors_pass() -> None:
    with pytest.raises(ValueError, match=r"^mine$"), reported():
        raise ValueError("mine")
    with pytest.raises(ValueError, match=r"^mine$"), translated_read_errors("t"):
        raise ValueError("mine")


def test_the_context_of_the_error_wins() -> None:
    failed = PythonException(str(_as_spark_says(SourceError("gone", topic="its own"))))
    with pytest.raises(SourceError) as caught, raised_task_errors(topic="t", table="a.b"):
        raise failed
    assert caught.value.context == {"topic": "its own", "table": "a.b"}
    assert caught.value.__cause__ is failed


def test_batches_pass_until_the_error() -> None:
    batch = pa.record_batch({"a": [1]})

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield batch
        raise SourceUnavailableError("silence")

    found = Reporting(run)([batch])
    assert next(found) is batch
    with pytest.raises(TaskError, match=r"^silence "):
        next(found)


def test_a_fault_is_told_by_class_and_place_and_by_those_of_its_causes() -> None:
    def fail(value: str) -> int:
        return int(value)

    with pytest.raises(ValueError, match="4711x") as found:
        fail("4711x")
    fault, here = fault_of(found.value), r"spark/test_task_errors\.py:\d+"
    assert re.fullmatch(rf"ValueError at {here}\. Report this .*", str(fault))
    assert re.fullmatch(rf"ValueError \({here} < {here}\)", fault.trace)
    full = OSError(errno.ENOSPC, "No space left on device", "/a/b")
    full.__context__ = found.value
    assert fault_of(full).kind == "OSError ENOSPC"
    assert re.search(rf" from ValueError \({here} < {here}\)", fault_of(full).trace)
    full.__suppress_context__ = True
    assert "ValueError" not in fault_of(full).trace
    full.__cause__ = full
    assert str(fault_of(full)).startswith("OSError ENOSPC at an unknown place. ")
