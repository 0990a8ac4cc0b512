"""Options and fixtures of every test room."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

from tests.executors import on_both
from tests.full import TEST_ALL, is_full
from tests.mariadb import mariadb_url
from tests.postgres import postgres
from tests.s3_server import s3_bucket, s3_endpoint
from tests.servers import brokers, kafka_stack, registry_url, topic_prefix
from tests.sessions import kept_classes, let_go, spark
from tests.tidb_front import tidb_url
from tests.vectors import vectors_dir

__all__ = [
    "brokers",
    "kafka_stack",
    "kept_classes",
    "let_go",
    "mariadb_url",
    "postgres",
    "registry_url",
    "s3_bucket",
    "s3_endpoint",
    "spark",
    "tidb_url",
    "topic_prefix",
    "vectors_dir",
]

# How long an example takes says how busy the machine is: where time is what a test checks, it measures it.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

# A test that asks for one of these fixtures is marked by it, so that the fast set never starts a server.
_MARKED_BY: Final = {
    "kafka_stack": "servers",
    "mariadb_url": "servers",
    "postgres": "servers",
    "s3_endpoint": "servers",
    "kept_classes": "spark",
    "spark": "spark",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--vectors", metavar="DIR", help="golden vectors (default: ../shared/vectors, else tests/golden/data)"
    )


def pytest_configure() -> None:
    # A shell has its background jobs ignore Ctrl-C, and what they start as well: tests send it to programs.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    return "every test" if TEST_ALL else "without the tests marked full: TIDESINK_TEST_ALL=1 runs them too"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    on_both(metafunc)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not TEST_ALL:
        full = [item for item in items if is_full(item)]
        config.hook.pytest_deselected(items=full)
        omitted = {*full}
        items[:] = [item for item in items if item not in omitted]
    for item in items:
        # Thousands of examples take their time.
        if item.path.stem.endswith("_fuzz") or item.path.parent.name == "properties":
            item.add_marker("slow")
        for fixture, marker in _MARKED_BY.items():
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(marker)


@pytest.fixture(scope="session")
def vectors(pytestconfig: pytest.Config) -> Path:
    """The folder of golden vectors for this run."""
    return vectors_dir(pytestconfig)
