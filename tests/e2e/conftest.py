"""One small Spark session for all end-to-end tests that run the worker in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.replay import SMALL_SPARK, Servers
from tidesink.sinks.session import build_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session with two cores and a small heap."""
    session = build_session(master="local[2]", conf=SMALL_SPARK)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def workload(vectors: Path) -> Path:
    """The captured changefeed; a clone without the whole set of vectors has none."""
    folder = vectors / "workload"
    if not folder.is_dir():
        pytest.skip("vectors/workload is not there: it is no part of the chosen subset")
    return folder


@pytest.fixture
def servers(brokers: str, registry_url: str, topic_prefix: str) -> Servers:
    """The session's broker and registry, and a topic prefix that no other test has."""
    return Servers(brokers=brokers, registry_url=registry_url, prefix=f"{topic_prefix}-")
