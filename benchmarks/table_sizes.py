"""What a small batch costs beside the size of its target: ``python -m benchmarks sizes``.

A worker makes each table from a topic over 5,000 keys. Then others put rows with keys above those into the
table, up to a million and up to ten millions, and each time the worker takes batches of 1,000 events over its
own 5,000 keys: changes whose keys cluster, as those of new rows do. ``python -m benchmarks.table_sizes NAME
SETTINGS.json`` does it for one target in a process of its own and prints one JSON object, the seconds a batch
by the rows there.
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
from benchmarks.events import STEADY_BATCH, STEADY_BATCHES, write_events
from benchmarks.rows import Row, Rows
from benchmarks.sql_targets import DIALECTS, SERVERS, target_settings
from benchmarks.whole_job import WARM_UP, drained, write_config
from tidesink.schema_registry import open_registry
from tidesink.sinks.targets.sql.dialect import Connections
from tidesink.sinks.targets.sql.location import Endpoint

TARGETS: Final = ("delta", "iceberg", "postgres", "mariadb")
SIZES: Final = (1_000_000, 10_000_000)
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
    """One line a target and size."""
    rows: Rows = []
    for name in TARGETS:
        found = _in_its_own_process(name, {**settings, "topic": f"{settings['topic']}_{name}"})
        least = found[str(SIZES[0])]
        for size, seconds in found.items():
            rows.append(Row(f"batch-1000.{name}.{size}-rows", seconds, "s", least, least / seconds))
    return rows


def _in_its_own_process(name: str, settings: dict[str, Any]) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="tidesink-bench-sizes-") as place:
        given = {**settings, "directory": place}
        print(f"... {name}: a table that grows", file=sys.stderr, flush=True)
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.table_sizes", name, json.dumps(given)],
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


def measured(name: str, settings: dict[str, Any]) -> dict[int, float]:
    """The seconds of a steady batch, the median, by the rows that others have in the table."""
    found: dict[int, float] = {}
    with _bed(name, Path(settings["directory"])) as bed:
        given = {**settings, "target": bed.target}
        _write(given, _KEYS, seed=1)
        _drain(given, _KEYS)
        there = 0
        for seed, size in enumerate(SIZES, start=2):
            # No key of the topic's is among the rows of others.
            bed.grow(1_000_000 + there, 1_000_000 + size)
            _write(given, STEADY_BATCH * STEADY_BATCHES, seed=seed)
            seconds = _drain(given, STEADY_BATCH)
            found[size], there = statistics.median(seconds[WARM_UP:]), size
    return found


def _write(settings: dict[str, Any], count: int, *, seed: int) -> None:
    registry = open_registry(settings["registry"])
    write_events(settings["brokers"], registry, settings["topic"], count, seed=seed, keys=_KEYS)


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
    print(json.dumps(measured(sys.argv[1], json.loads(sys.argv[2]))))
