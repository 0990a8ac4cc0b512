"""A session that runs already: its settings, and the jobs of others in it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tidesink.errors import ConfigError
from tidesink.sinks.spark.engine import SparkEngine, threads_tagged
from tidesink.sinks.spark.session import (
    FIXED,
    LOSES,
    build_session,
    cancel_jobs,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PATIENCE_SECONDS = 240


def test_a_session_that_runs_is_taken_as_it_is(spark: SparkSession) -> None:
    name = "spark.sql.shuffle.partitions"
    before = spark.conf.get(name)
    assert build_session(conf={name: "77"}) is spark
    assert spark.conf.get(name) == before


@pytest.fixture
def changed(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[str]:
    """The session that runs with another value of one setting, which it is called by."""
    name, value = request.param
    before = str(spark.conf.get(name))
    spark.conf.set(name, value)
    yield name
    spark.conf.set(name, before)


_OTHERS = {
    "spark.sql.session.timeZone": "Asia/Shanghai",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
}


@pytest.mark.parametrize(
    "changed",
    [*((name, _OTHERS.get(name, "true" if value == "false" else "false")) for name, value in FIXED.items())],
    indirect=True,
)
def test_a_session_that_runs_with_other_values_is_refused_by_name(spark: SparkSession, changed: str) -> None:
    found = str(spark.conf.get(changed))
    with pytest.raises(ConfigError) as caught:
        build_session()
    for part in (f"{changed} {found}, which must be {FIXED[changed]}", "SparkSession.builder.config"):
        assert part in str(caught.value)


@pytest.mark.parametrize("changed", LOSES.items(), indirect=True)
def test_a_session_that_cuts_values_short_is_refused_by_name(spark: SparkSession, changed: str) -> None:
    with pytest.raises(ConfigError, match=f"{changed} .* truncates values"):
        build_session()


def test_jobs_of_others_are_not_cancelled(spark: SparkSession, tmp_path: Path) -> None:
    goes_on = tmp_path / "goes-on"

    def job(name: str) -> int:
        started, asked = str(tmp_path / name), str(goes_on)

        def rest(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import time
            from pathlib import Path

            Path(started).touch()
            while not Path(asked).exists():
                time.sleep(0.02)
            yield from batches

        return spark.range(3, numPartitions=1).mapInArrow(rest, "id long").count()

    def below() -> int:
        return SparkEngine.of(spark).thread(lambda: job("ours"), name="below").result(_PATIENCE_SECONDS)

    theirs = SparkEngine.of(spark).thread(lambda: job("theirs"), name="theirs")
    with threads_tagged("tidesink-test"):
        ours = SparkEngine.of(spark).thread(below, name="above")
    _wait_for(tmp_path / "theirs", tmp_path / "ours")
    cancel_jobs(spark, "tidesink-test")
    with pytest.raises(Exception, match="cancelled"):
        ours.result(_PATIENCE_SECONDS)
    assert not theirs.done()
    goes_on.touch()
    assert theirs.result(_PATIENCE_SECONDS) == 3


def _wait_for(*files: Path) -> None:
    pause = threading.Event()
    for _ in range(50 * _PATIENCE_SECONDS):
        if all(file.exists() for file in files):
            return
        pause.wait(0.02)
    raise AssertionError(f"{files} are not there")
