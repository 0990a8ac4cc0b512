"""Spark that starts when something needs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidesink.errors import ConfigError, DevStackError, TransientTargetError
from tidesink.sinks.spark.engine import SparkEngine


class _Starts:
    """Starts a session, or fails with each of the errors first."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = [*errors]
        self.running = 0

    @contextmanager
    def __call__(self) -> Iterator[Any]:
        if self._errors:
            raise self._errors.pop(0)
        self.running += 1
        yield SimpleNamespace()
        self.running -= 1


def test_spark_starts_once_and_stops_at_the_end() -> None:
    starts = _Starts()
    engine = SparkEngine(starts)
    assert (engine.is_started, starts.running) == (False, 0)
    assert engine.session() is engine.session()
    assert (engine.is_started, starts.running) == (True, 1)
    engine.close()
    assert starts.running == 0


@pytest.mark.parametrize(
    "error", [OSError(28, "no space"), DevStackError("jars not fetched"), RuntimeError("JAVA_GATEWAY_EXITED")]
)
def test_a_start_that_fails_is_tried_again_by_the_table_that_needs_it(error: Exception) -> None:
    engine = SparkEngine(_Starts(error))
    with pytest.raises(TransientTargetError, match="Spark did not start"):
        engine.session()
    assert engine.session() is not None


def test_settings_that_spark_refuses_are_no_passing_fault() -> None:
    with pytest.raises(ConfigError):
        SparkEngine(_Starts(ConfigError("spark.conf"))).session()


def test_without_spark_there_is_nothing_to_check_or_to_cancel() -> None:
    engine = SparkEngine(cast("Any", None))
    engine.check()
    engine.cancel("tag")
    assert engine.thread(lambda: 7, name="table").result(60) == 7
    engine.close()
