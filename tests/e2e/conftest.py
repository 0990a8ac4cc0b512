"""Where the end-to-end tests find their servers and the captured changefeed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.replay import Servers
from tests.executors import executor

__all__ = ["executor"]


@pytest.fixture(scope="session")
def workload(vectors: Path) -> Path:
    """The captured changefeed; a clone without the whole set of vectors has none."""
    folder = vectors / "workload"
    if not folder.is_dir():
        pytest.skip("vectors/workload is not there: it is no part of the chosen subset")
    return folder


@pytest.fixture(scope="session", autouse=True)
def _kept_classes(kept_classes: bool) -> None:
    """Workers of their own processes start from them too."""


@pytest.fixture
def servers(brokers: str, registry_url: str, topic_prefix: str) -> Servers:
    """The session's broker and registry, and a topic prefix that no other test has."""
    return Servers(brokers=brokers, registry_url=registry_url, prefix=f"{topic_prefix}-")
