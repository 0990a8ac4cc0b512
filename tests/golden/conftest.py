"""Golden tests run over any folder of vectors; the end of the run names what passed and what is left out.

A test marked ``golden(codec, kind)`` is run once for each record of ``<codec>.<kind>.jsonl``: it asks for
``record`` and, if it likes, ``folder``. One marked ``golden_workload(protocol)`` asks for ``workload``.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import pytest

from tests.golden.exclusions import excluded
from tests.golden.vectors import Record, VectorFolder, find_folders, find_workloads
from tests.vectors import SUBSET, vectors_dir

_CASE = re.compile(r"::[^\[]*\[(?P<case>[^:\]]*/[^:\]]*?)(?:[#@:][^\]]*)?\]$")
_LISTED = ("passed", "failed", "skipped")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "golden(codec, kind): once for each golden record of that file")
    config.addinivalue_line("markers", "golden_workload(protocol): once for each workload of that protocol")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    root = vectors_dir(metafunc.config)
    golden = metafunc.definition.get_closest_marker("golden")
    if golden is not None:
        metafunc.parametrize("record", [_case(record) for record in _records(root, *golden.args)])
    workload = metafunc.definition.get_closest_marker("golden_workload")
    if workload is not None:
        found = find_workloads(root, *workload.args)
        metafunc.parametrize("workload", [pytest.param(one, id=one.name) for one in found])


def _case(record: Record) -> object:
    exclusion = excluded(record.name)
    marks = [pytest.mark.skip(reason=f"excluded: {exclusion.reason}")] if exclusion else []
    return pytest.param(record, id=record.name, marks=marks)


@cache
def _folders(root: Path) -> tuple[VectorFolder, ...]:
    return tuple(find_folders(root))


@cache
def _records(root: Path, codec: str, kind: str) -> tuple[Record, ...]:
    """The records of a codec; where the whole set has none, those of our subset."""
    read = VectorFolder.rows if kind == "rows" else VectorFolder.control
    found = tuple(record for folder in _folders(root) for record in read(folder, codec))
    return found if found or root == SUBSET else _records(SUBSET, codec, kind)


@pytest.fixture
def folder(record: Record, pytestconfig: pytest.Config) -> VectorFolder:
    """The folder a record stands in."""
    folders = (*_folders(vectors_dir(pytestconfig)), *_folders(SUBSET))
    return next(one for one in folders if one.name == record.folder)


@pytest.fixture(scope="session")
def golden_names(pytestconfig: pytest.Config) -> list[str]:
    """The names of all records of the run's vectors and of our own subset."""
    roots = {vectors_dir(pytestconfig), SUBSET}
    codecs = {file.name.partition(".")[0] for root in roots for file in root.rglob("*.rows.jsonl")}
    files = [(codec, kind) for codec in codecs for kind in ("rows", "control")]
    return [one.name for root in roots for pair in files for one in _records(root, *pair)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    outcomes: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in _LISTED:
        for report in terminalreporter.stats.get(outcome, ()):
            found = _CASE.search(report.nodeid)
            if found is not None:
                outcomes[found["case"]]["excluded" if _is_excluded(report) else outcome] += 1
    if not outcomes:
        return
    terminalreporter.section("golden cases")
    for case, counts in sorted(outcomes.items()):
        terminalreporter.write_line(f"{case}: " + ", ".join(f"{n} {what}" for what, n in counts.items()))


def _is_excluded(report: pytest.TestReport) -> bool:
    return isinstance(report.longrepr, tuple) and "excluded: " in report.longrepr[2]
