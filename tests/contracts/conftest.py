"""Beds for the target contracts: one for each entry of TARGETS, memory, and Iceberg's with another catalog.

Memory is the reference (``tests.memory_target``): what every target must do, in the fewest lines.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from tests.contracts.delta_beds import delta_bed
from tests.contracts.iceberg_beds import iceberg_bed, iceberg_jdbc_bed
from tests.contracts.message_beds import http_bed, kafka_bed
from tests.contracts.sql_beds import mysql_bed, postgres_bed
from tests.contracts.targets_bed import Bed
from tests.executors import executor
from tests.memory_target import MemoryTarget
from tidesink.sinks.targets import TARGETS

__all__ = ["executor"]


def memory_bed(_request: pytest.FixtureRequest, _folder: Path) -> Bed:
    """Memory: a second target object would be another memory."""
    target = MemoryTarget()
    return Bed("memory", target, target.rows, lambda: target)


BEDS = {
    "memory": memory_bed,
    "delta": delta_bed,
    "http": http_bed,
    "kafka": kafka_bed,
    "iceberg": iceberg_bed,
    "iceberg_jdbc": iceberg_jdbc_bed,
    "postgres": postgres_bed,
    "mysql": mysql_bed,
}
# What a bed starts: the fast set never does.
_SERVERS = ("kafka", "postgres", "mysql")
MARKS = {
    name: [pytest.mark.spark, *([pytest.mark.servers] if name in _SERVERS else [])]
    for name in BEDS
    if name != "memory"
}


# What the contracts run on.
BED_NAMES = (*TARGETS, "memory")
# Those that keep no rows.
MESSAGE_TARGETS = [
    name for name in TARGETS if "rows" not in import_module(TARGETS[name]).CAPABILITIES.features
]


@pytest.fixture(params=[pytest.param(name, marks=MARKS.get(name, [])) for name in BED_NAMES])
def bed(request: pytest.FixtureRequest, tmp_path: Path) -> Bed:
    """Every target in turn; a target without a bed fails here, so that none goes untested."""
    return opened_bed(request, request.param, tmp_path)


def opened_bed(request: pytest.FixtureRequest, name: str, folder: Path) -> Bed:
    """A target's bed; the test is skipped where the target lacks what it needs."""
    found = BEDS[name](request, folder / "lake")
    for mark in request.node.iter_markers("needs"):
        if mark.args[0] not in found.target.capabilities.features:
            pytest.skip(f"{name} does not have {mark.args[0]}, and says so")
    return found


@pytest.fixture
def delta(request: pytest.FixtureRequest, tmp_path: Path) -> Bed:
    """The Delta target alone."""
    return delta_bed(request, tmp_path / "lake")


@pytest.fixture
def iceberg(request: pytest.FixtureRequest, tmp_path: Path) -> Bed:
    """The Iceberg target alone, in a folder."""
    return iceberg_bed(request, tmp_path / "lake")


@pytest.fixture(params=[pytest.param(name, marks=MARKS[name]) for name in ("postgres", "mysql")])
def sql(request: pytest.FixtureRequest, tmp_path: Path) -> Bed:
    """Each SQL target in turn."""
    return BEDS[request.param](request, tmp_path)


@pytest.fixture
def postgres_sql(request: pytest.FixtureRequest, tmp_path: Path) -> Bed:
    """Postgres alone."""
    return postgres_bed(request, tmp_path)


@pytest.fixture
def mysql_sql(request: pytest.FixtureRequest, tmp_path: Path) -> Bed:
    """MariaDB alone."""
    return mysql_bed(request, tmp_path)
