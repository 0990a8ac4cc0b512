"""What a small batch costs beside the size of its target, and beside its age.

``python -m benchmarks sizes``: a worker makes each table from a topic over 5,000 keys, then others put rows
into it, up to 200,000 and up to ten millions. Each time the worker takes batches of 1,000 events over keys at
random of all that are there. ``python -m benchmarks age``: a worker takes 1,000 batches of 1,000 events, of
200,000 keys, into one Delta table; its own packing is among them.

``python -m benchmarks.table_sizes PART NAME SETTINGS`` does it for one target in a process of its own and
prints one JSON object: the seconds a batch by what is before it, rows or batches.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.baseline import plain_session
from benchmarks.events import KEYS, STEADY_BATCH, STEADY_BATCHES, write_events
from benchmarks.rows import Row, Rows
from benchmarks.sql_targets import DIALECTS, SERVERS, target_settings
from benchmarks.whole_job import WARM_UP, drained, write_config
from tidesink.schema_registry import open_registry
from tidesink.sinks.targets.sql.dialect import Connections
from tidesink.sinks.targets.sql.location import Endpoint

TARGETS: Final = ("delta", "iceberg", "postgres", "mariadb")
SIZES: Final = {"200k": 200_000, "10M": 10_000_000}
AGES: Final = (20, 1_000)
# The batches around an age whose median is taken.
_AROUND: Final = 10
_KEYS: Final = 5_000
_COLUMNS: Final = "id, amount, total, name, note, ratio, price, at, digest, flag"
# The rows of others: a number each, in the words of Spark, Postgres and MariaDB.
_LAKE_ROWS: Final = (
    "id, cast(id % 1000000 as int), id * 7919, concat('name-', id), concat('a row of key ', id), "
    "rand(), cast(id as decimal(20,4)), timestamp_ntz'2026-01-01 00:00:00', cast(hex(id) as binary), 1 "
    "FROM range({start}, {end}, 1, 4)"
)
_SQL_ROWS: Final = {
    "postgres": "id, id % 1000000, id * 7919, 'name-' || id, 'a row of key ' || id, random(), id, "
    "timestamp '2026-01-01', decode(to_hex(id), 'escape'), 1 "
    "FROM generate_series({start}::bigint, {end} - 1) id",
    "mariadb": "seq, seq % 1000000, seq * 7919, concat('name-', seq), concat('a row of key ', seq), "
    "rand(), seq, '2026-01-01', hex(seq), 1 FROM bench.seq_{start}_to_{end}",
}
Grow = Callable[[int, int], None]


def size_rows(settings: dict[str, Any]) -> Rows:
    """One line a target: into the largest table, to the smallest."""
    rows: Rows = []
    for name in TARGETS:
        found = _in_its_own_process("sizes", name, {**settings, "topic": f"{settings['topic']}_{name}"})
        few, many = found.values()
        rows.append(Row(f"batch-1000.{name}.{[*found][-1]}-rows", many, "s", few, many / few))
    return rows


def age_rows(settings: dict[str, Any]) -> Rows:
    """One line: the last batches, to the first."""
    young, old = _in_its_own_process("age", "delta", settings).values()
    return [Row(f"batch-1000.delta.after-{AGES[-1]}", old, "s", young, old / young)]


def _in_its_own_process(part: str, name: str, settings: dict[str, Any]) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="tidesink-bench-sizes-") as place:
        given = {**settings, "directory": place}
        print(f"... {name}: {part}", file=sys.stderr, flush=True)
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.table_sizes", part, name, json.dumps(given)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


@dataclass(frozen=True)
class Bed:
    """A target's settings, and how others put the rows from one number to another into the table."""

    target: dict[str, Any]
    grow: Grow


def by_size(name: str, settings: dict[str, Any]) -> dict[str, float]:
    """The seconds of a steady batch, the median, by the rows that are in the table."""
    found: dict[str, float] = {}
    with _bed(name, Path(settings["directory"])) as bed:
        given = {**settings, "target": bed.target}
        _write(given, _KEYS, keys=_KEYS, seed=1)
        _drain(given, _KEYS)
        there = _KEYS
        for seed, (words, size) in enumerate(SIZES.items(), start=2):
            bed.grow(there, size)
            there = size
            _write(given, STEADY_BATCH * STEADY_BATCHES, keys=size, seed=seed)
            found[words] = statistics.median(_drain(given, STEADY_BATCH)[WARM_UP:])
    return found


def by_age(name: str, settings: dict[str, Any]) -> dict[str, float]:
    """The seconds of the batches around an age, the median, by the batches that were before."""
    with _bed(name, Path(settings["directory"])) as bed:
        given = {**settings, "target": bed.target}
        _write(given, STEADY_BATCH * (AGES[-1] + _AROUND), keys=KEYS, seed=1)
        seconds = _drain(given, STEADY_BATCH)
    return {str(age): statistics.median(seconds[age - _AROUND : age + _AROUND]) for age in AGES}


def _write(settings: dict[str, Any], count: int, *, keys: int, seed: int) -> None:
    registry = open_registry(settings["registry"])
    write_events(settings["brokers"], registry, settings["topic"], count, seed=seed, keys=keys)


def _drain(settings: dict[str, Any], max_records: int) -> list[float]:
    return [sum(steps.values()) for steps in drained(write_config(settings, max_records)).steps]


@contextmanager
def _bed(name: str, folder: Path) -> Iterator[Bed]:
    if name in SERVERS:
        with SERVERS[name](folder / "server") as endpoint:
            yield Bed(target_settings(name, endpoint), partial(_grow_database, name, endpoint))
        return
    lake = folder / "lake"
    if name == "delta":
        grow = partial(_grow_lake, f"delta.`{lake}/bench/events`", None, {})
        yield Bed({"type": "delta", "path": str(lake)}, grow)
        return
    catalog = {"type": "hadoop", "warehouse": str(lake)}
    named = {f"spark.sql.catalog.lake.{key}": value for key, value in catalog.items()}
    named["spark.sql.catalog.lake"] = "org.apache.iceberg.spark.SparkCatalog"
    grow = partial(_grow_lake, "lake.bench.events", "iceberg", named)
    yield Bed({"type": "iceberg", "catalog": "lake", "catalog-properties": catalog}, grow)


def _grow_lake(location: str, kind: str | None, more: dict[str, str], start: int, end: int) -> None:
    spark = plain_session(more, target=kind)
    spark.sql(f"INSERT INTO {location} ({_COLUMNS}) SELECT {_LAKE_ROWS.format(start=start, end=end)}")
    spark.stop()


def _grow_database(name: str, endpoint: Endpoint, start: int, end: int) -> None:
    connections = Connections(DIALECTS[name](), endpoint)
    last = end - 1 if name == "mariadb" else end
    rows = _SQL_ROWS[name].format(start=start, end=last)
    with connections.transaction("bench") as cursor:
        cursor.execute(f"INSERT INTO bench.events ({_COLUMNS}) SELECT {rows}")
    connections.close()


if __name__ == "__main__":
    print(json.dumps({"sizes": by_size, "age": by_age}[sys.argv[1]](sys.argv[2], json.loads(sys.argv[3]))))
