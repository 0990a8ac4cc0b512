"""The cost of many small tables and batches: ``python -m benchmarks tables``.

``small_tables`` measures ``tables.active``, ``tables.freshness``, ``cpu.small`` and ``memory.small``, with
``--tables`` tables that have a topic each, into each of the ``--targets``. Further rows:

- ``tables.open``: seconds per table to start a process that has no records to read, until it ends, without
  the seconds for a single table.
- ``first-commit.small``: seconds from the start of a process to its first commit, of 1,000 records of one
  table. For Delta, the baseline is a bare Spark session that appends one row.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.first_commit import Measure
from benchmarks.rows import Row, Rows
from benchmarks.small_changes import KEYS, topics_of, write
from benchmarks.sql_targets import SERVERS, target_settings
from tidesink.dev.workload import create_topics

TARGETS: Final = ("postgres", "mariadb", "delta", "iceberg")
# All rows are measured for these targets, and only the rate for the others.
WHOLE: Final = ("postgres", "delta")
_BACKLOG: Final = 1_000
_STARTS: Final = 3
_MODULE: Final = "benchmarks.small_tables"
_PID_FILES: Final = {"postgres": "data/postmaster.pid", "mariadb": "mariadb/data/mariadb.pid"}


def table_rows(measure: Measure, settings: dict[str, Any]) -> Rows:
    """The rows of ``settings["targets"]``."""
    rows: Rows = []
    for target in settings["targets"]:
        rows += _many(measure, target, settings)
        if target in WHOLE:
            rows.append(_first_commit(measure, target, settings))
    return rows


def _many(measure: Measure, target: str, settings: dict[str, Any]) -> Rows:
    """The rows of many tables of one target."""
    count, seconds = settings["tables"], settings["seconds"] if target in WHOLE else 0
    schema = f"small_{target}"
    with _running(target) as place:
        given = {**settings, **place, **_source(schema, count), "seconds": seconds}
        _written(given, KEYS)
        _say(f"{target}: {count} active tables")
        found = measure(_MODULE, "active", json.dumps(given))
        rows = [Row(f"tables.active.{target}", found["rate"], "tables/s")]
        if target not in WHOLE:
            return rows
        _say(f"{target}: opening {count} tables, and one")
        one = {**given, "topics": [topic for topic, _ in topics_of({**given, "tables": 1})]}
        many, single = (_seconds(measure, (_MODULE, "drained"), each, "drained") for each in (given, one))
    rows.append(Row(f"tables.open.{target}", (many - single) / (count - 1), "s"))
    if found["freshness"] is not None:
        rows += (Row(f"tables.freshness.{target}.{name}", s, "s") for name, s in found["freshness"].items())
    rows.append(Row(f"cpu.small.{target}", found["cpu"], "s/1000"))
    if target == "postgres":
        rows.append(Row("cpu.small.postgres.server", found["server_cpu"], "s/1000"))
        rows.append(Row("memory.small", found["memory_mb"], "MB"))
    return rows


def _first_commit(measure: Measure, target: str, settings: dict[str, Any]) -> Row:
    _say(f"{target}: the first commit of a new process")
    given = {**settings, **_source(f"small_first_{target}", 1)}
    _written(given, _BACKLOG)
    ours, bare = list[float](), list[float]()
    for _ in range(_STARTS):
        with _running(target) as place:
            ours.append(_seconds(measure, (_MODULE, "drained"), {**given, **place}, "first"))
            if target == "delta":
                command = ("benchmarks.first_commit", "baseline")
                bare.append(_seconds(measure, command, {**given, **place}, "committed"))
    mine, base = statistics.median(ours), statistics.median(bare) if bare else None
    return Row(f"first-commit.small.{target}", mine, "s", base, mine / base if base else None)


def _seconds(measure: Measure, command: tuple[str, str], settings: dict[str, Any], until: str) -> float:
    """Seconds from the start of a process to one of the times that it prints."""
    started = time.time()
    return float(measure(*command, json.dumps(settings))[until]) - started


def _source(schema: str, tables: int) -> dict[str, Any]:
    # A worker reads every topic that fits: those of other targets must not.
    return {"schema": schema, "tables": tables, "topics": f"{schema}.{{schema}}_{{table}}"}


def _written(settings: dict[str, Any], count: int) -> None:
    create_topics(settings["brokers"], [topic for topic, _ in topics_of(settings)], 1)
    write(settings, 0, count)


@contextmanager
def _running(target: str) -> Iterator[dict[str, Any]]:
    """An empty target: its settings, a folder for the worker, and the process of its server or -1."""
    with tempfile.TemporaryDirectory(prefix="tidesink-bench-tables-") as place:
        folder = Path(place)
        found = {"directory": place, "server": -1}
        if target in SERVERS:
            with SERVERS[target](folder / "server") as endpoint:
                pid = (folder / "server" / _PID_FILES[target]).read_text().split()[0]
                yield {**found, "server": int(pid), "target": target_settings(target, endpoint)}
        elif target == "delta":
            yield {**found, "target": {"type": "delta", "path": "./lake"}}
        else:
            catalog = {"type": "hadoop", "warehouse": str(folder / "lake")}
            yield {
                **found,
                "target": {"type": "iceberg", "catalog": "lake", "catalog-properties": catalog},
            }


def _say(text: str) -> None:
    print(f"... {text}", file=sys.stderr, flush=True)
