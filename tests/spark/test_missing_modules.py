"""A task whose executor's Python lacks what the driver has."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tidesink.errors import ConfigError
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
