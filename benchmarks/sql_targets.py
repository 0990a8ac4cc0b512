"""The whole job into Postgres and MariaDB, and the floors beside it: ``python -m benchmarks sql``.

A floor is one client that has the events parsed already, as CSV in a file: ``COPY`` or ``LOAD DATA`` of all
of them into a staging table, then one merge of each key's newest. The whole job runs in a process of its own:
``python -m benchmarks.sql_targets SETTINGS.json`` prints one JSON object, as ``whole_job`` does.
"""

from __future__ import annotations

import csv
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.events import KEYS, events, write_events
from benchmarks.rows import LOADS, Row, Rows, paired
from benchmarks.sql_servers import mariadb, postgres
from benchmarks.whole_job import ours
from tidesink.events import Op
from tidesink.schema_registry import open_registry
from tidesink.sinks.targets.sql.dialect import Connections
from tidesink.sinks.targets.sql.location import Endpoint
from tidesink.sinks.targets.sql.mysql import mysql_dialect
from tidesink.sinks.targets.sql.postgres import postgres_dialect

SERVERS = {"postgres": postgres, "mariadb": mariadb}
DIALECTS: dict[str, Callable[[], Any]] = {"postgres": postgres_dialect, "mariadb": mysql_dialect}
_NAMES = "id, amount, total, name, note, ratio, price, at, digest, flag"
_COLUMNS = {
    "postgres": "id bigint, amount int, total bigint, name text, note text, ratio double precision, "
    "price numeric(20,4), at timestamp, digest bytea, flag int",
    "mariadb": "id bigint, amount int, total bigint, name longtext, note longtext, ratio double, "
    "price decimal(20,4), at datetime(6), digest longblob, flag int",
}


def sql_rows(settings: dict[str, Any], count: int) -> Rows:
    """Both databases: the floor, the whole job, and a small batch."""
    rows: Rows = []
    with tempfile.TemporaryDirectory(prefix="tidesink-bench-sql-") as place:
        folder = Path(place)
        lines = folder / "events.csv"
        _write_lines(lines, count)
        for name in SERVERS:
            given = {**settings, "events": count, "topic": f"{settings['topic']}_{name}"}
            rows += _measured(name, folder / name, lines, given)
    return rows


def _measured(name: str, folder: Path, lines: Path, settings: dict[str, Any]) -> Rows:
    _say(f"writing {settings['events']:,} events")
    write_events(
        settings["brokers"], open_registry(settings["registry"]), settings["topic"], settings["events"]
    )
    with SERVERS[name](folder / "server") as endpoint:
        _say(f"{name}: the floor")
        floor = settings["events"] / _floor(name, endpoint, lines)
        _say(f"{name}: the whole job")
        given = {**settings, "directory": str(folder), "target": target_settings(name, endpoint)}
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.sql_targets", json.dumps(given)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    figures = json.loads(done.stdout.strip().splitlines()[-1])
    rows = [paired(f"job.{name}.{part}", figures[part], floor) for part in LOADS]
    batch = statistics.median(figures["batch_seconds"])
    return [*rows, Row(f"batch-1000.{name}", batch, "s")]


def target_settings(name: str, endpoint: Endpoint) -> dict[str, Any]:
    """What a config says of a server as its target."""
    scheme = "postgresql" if name == "postgres" else "mysql"
    kind = "postgres" if name == "postgres" else "mysql"
    url = f"{scheme}://{endpoint.host}:{endpoint.port}/{endpoint.database}".rstrip("/")
    return {"type": kind, "url": url, "user": endpoint.user}


def _write_lines(path: Path, count: int) -> None:
    """The events as a client that has parsed them: number, whether deleted, the row."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        for number, event in enumerate(events(count, seed=1, keys=KEYS)):
            row = event.before if event.op is Op.DELETE else event.after
            assert row is not None
            values = [value.hex() if isinstance(value, bytes) else value for value in row.values()]
            writer.writerow((number, int(event.op is Op.DELETE), *values))


def _floor(name: str, endpoint: Endpoint, lines: Path) -> float:
    """The seconds of one client with everything in one go."""
    connections = Connections(DIALECTS[name](), endpoint)
    run = _postgres_floor if name == "postgres" else _mariadb_floor
    try:
        return run(connections, lines)
    finally:
        connections.close()


def _postgres_floor(connections: Connections, lines: Path) -> float:
    stage = _COLUMNS["postgres"].replace("digest bytea", "digest text")
    with connections.transaction("bench") as cursor:
        cursor.execute(f"CREATE TABLE floor ({_COLUMNS['postgres']}, PRIMARY KEY (id))")
        cursor.execute(f"CREATE UNLOGGED TABLE floor_stage (n bigint, gone int, {stage})")
    started = time.perf_counter()
    with connections.transaction("bench") as cursor, lines.open("rb") as file:
        with cursor.copy(f"COPY floor_stage (n, gone, {_NAMES}) FROM STDIN (FORMAT csv)") as copy:
            while data := file.read(1 << 20):
                copy.write(data)
        values = _NAMES.replace("digest", "decode(digest, 'hex')")
        sets = ", ".join(f"{name} = EXCLUDED.{name}" for name in _NAMES.split(", ")[1:])
        cursor.execute(
            f"INSERT INTO floor ({_NAMES}) SELECT {values} FROM (SELECT DISTINCT ON (id) * FROM floor_stage "
            f"ORDER BY id, n DESC) newest WHERE gone = 0 ON CONFLICT (id) DO UPDATE SET {sets}"
        )
    return time.perf_counter() - started


def _mariadb_floor(connections: Connections, lines: Path) -> float:
    from tidesink.sinks.targets.sql.mysql import connect

    connection = connect(connections.endpoint, loads=True)
    with connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE floor")
        cursor.execute("USE floor")
        cursor.execute(f"CREATE TABLE t ({_COLUMNS['mariadb']}, PRIMARY KEY (id))")
        stage = f"n bigint, gone int, {_COLUMNS['mariadb']}, PRIMARY KEY (id)"
        cursor.execute(f"CREATE TABLE stage ({stage}) ENGINE=Aria TRANSACTIONAL=0")
        started = time.perf_counter()
        names = _NAMES.replace("digest", "@digest")
        cursor.execute(
            "LOAD DATA LOCAL INFILE %s REPLACE INTO TABLE stage FIELDS TERMINATED BY ',' "
            f"OPTIONALLY ENCLOSED BY '\"' ESCAPED BY '' LINES TERMINATED BY '\\r\\n' (n, gone, {names}) "
            "SET digest = UNHEX(@digest)",
            (str(lines),),
        )
        sets = ", ".join(f"t.{name} = stage.{name}" for name in _NAMES.split(", ")[1:])
        cursor.execute(
            f"INSERT INTO t ({_NAMES}) SELECT {_NAMES} FROM stage WHERE gone = 0 "
            f"ON DUPLICATE KEY UPDATE {sets}"
        )
        connection.commit()
    connection.close()
    return time.perf_counter() - started


def _say(text: str) -> None:
    print(f"... {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    print(json.dumps(ours(json.loads(sys.argv[1]))))
