"""Rows of a database into a lake: a snapshot beside Spark's JDBC source and beside one bare cursor.

``python -m benchmarks snapshots``: a MariaDB has a table of a million rows, with keys from 1 up, and the
topic one change of it. Each side runs in a process of its own: ``python -m benchmarks.snapshots
ours|jdbc|cursor SETTINGS`` prints one JSON object, ``{"seconds": ...}``, from where Spark has started. JDBC
reads as many parts at once as the snapshot has connections, and appends them to a Delta table; the cursor
reads all rows and does nothing with them.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from benchmarks.baseline import plain_session
from benchmarks.events import DDL, KEYS, write_events
from benchmarks.first_commit import Measure
from benchmarks.rows import Rows, paired
from benchmarks.sql_servers import mariadb
from benchmarks.whole_job import drained, write_config
from tidesink.schema_registry import open_registry
from tidesink.sinks.spark.jvm import Coordinate, JarSet, fetch
from tidesink.sinks.targets.sql.dialect import Connections
from tidesink.sinks.targets.sql.location import Endpoint
from tidesink.sinks.targets.sql.mysql import mysql_dialect

_AT_ONCE: Final = 2
_FETCHED: Final = 10_000
_DRIVER: Final = JarSet("mariadb-jdbc", (Coordinate("org.mariadb.jdbc", "mariadb-java-client", "3.5.6"),))
_FILL: Final = (
    "INSERT INTO bench.events SELECT seq, seq % 1000000, seq * 7919, concat('name-', seq), "
    "concat('a row of key ', seq, ', with a little text to carry'), rand(), seq / 7, "
    "'2026-01-01 00:00:00.123', unhex(md5(seq)), seq % 2 FROM bench.seq_1_to_{count}"
)


def snapshot_rows(measure: Measure, settings: dict[str, Any], count: int) -> Rows:
    """Two lines: beside Spark's JDBC source, and beside the cursor."""
    seconds = seconds_of_sides("snapshots", _SIDES, measure, settings, count)
    rates: dict[str, float] = {side: count / taken for side, taken in seconds.items()}
    return [
        paired("snapshot.mariadb.jdbc", rates["ours"], rates["jdbc"], unit="rows/s"),
        paired("snapshot.mariadb.cursor", rates["ours"], rates["cursor"], unit="rows/s"),
    ]


def seconds_of_sides(
    module: str,
    sides: Iterable[str],
    measure: Measure,
    settings: dict[str, Any],
    count: int,
    *,
    keys: int = KEYS,
    before: Callable[[Endpoint], None] = lambda _endpoint: None,
) -> dict[str, float]:
    """What each side takes over a table of ``count`` rows in a MariaDB, and one change of it in the topic.

    ``keys``: the change is of one of so many. ``before`` adds to the table.
    """
    seconds = {}
    with (
        tempfile.TemporaryDirectory(prefix=f"tidesink-bench-{module}-") as place,
        mariadb(Path(place) / "server") as endpoint,
    ):
        fill(endpoint, count)
        before(endpoint)
        registry = open_registry(settings["registry"])
        write_events(settings["brokers"], registry, settings["topic"], 1, keys=keys)
        given = {**settings, "directory": place, "host": endpoint.host, "port": endpoint.port, "count": count}
        for side in sides:
            print(f"... {module}: {side}", file=sys.stderr, flush=True)
            seconds[side] = measure(f"benchmarks.{module}", side, json.dumps(given))["seconds"]
    return seconds


def fill(endpoint: Endpoint, count: int) -> None:
    """Make the table."""
    connections = Connections(mysql_dialect(), endpoint)
    with connections.transaction("bench") as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS bench")
        cursor.execute(DDL)
        cursor.execute(_FILL.format(count=count))
    connections.close()


def snapshot_config(settings: dict[str, Any]) -> Path:
    """The worker's config, with the database."""
    path = write_config(settings, settings["count"])
    config = json.loads(path.read_text(encoding="utf-8"))
    url = f"mysql+pymysql://root@{settings['host']}:{settings['port']}"
    config["source"]["database"] = {"url": url, "connections": _AT_ONCE}
    config["tables"][0] |= {"snapshot": "initial"}
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def load(settings: dict[str, Any]) -> float:
    """A snapshot of the table into Delta; its seconds."""
    laps = drained(snapshot_config(settings)).laps
    read = sum(lap.events for lap in laps)
    if read < settings["count"]:
        raise SystemExit(f"{read} rows were read, of {settings['count']}")
    return sum(lap.seconds for lap in laps)


def jdbc_session() -> SparkSession:
    """A plain session with the database's driver."""
    (driver,) = fetch(_DRIVER).glob("mariadb-java-client*.jar")
    return plain_session({"spark.driver.extraClassPath": str(driver)})


def jdbc_rows(spark: SparkSession, settings: dict[str, Any]) -> DataFrame:
    """The table by as many connections as the worker has."""
    return spark.read.jdbc(
        # Spark quotes names as MariaDB does where the URL says MySQL.
        f"jdbc:mysql://{settings['host']}:{settings['port']}/bench?permitMysqlScheme",
        "events",
        column="id",
        lowerBound=1,
        upperBound=settings["count"] + 1,
        numPartitions=_AT_ONCE,
        properties={"user": "root", "driver": "org.mariadb.jdbc.Driver", "fetchsize": str(_FETCHED)},
    )


def _jdbc(settings: dict[str, Any]) -> float:
    spark = jdbc_session()
    began = time.perf_counter()
    place = f"{settings['directory']}/jdbc"
    jdbc_rows(spark, settings).write.format("delta").save(place)
    seconds = time.perf_counter() - began
    if spark.read.format("delta").load(place).count() != settings["count"]:
        raise SystemExit("JDBC wrote other rows than the table has")
    spark.stop()
    return seconds


def _cursor(settings: dict[str, Any]) -> float:
    from pymysql import connect
    from pymysql.cursors import SSCursor

    with connect(host=settings["host"], port=settings["port"], user="root", cursorclass=SSCursor) as server:
        cursor = server.cursor()
        began = time.perf_counter()
        cursor.execute("SELECT * FROM bench.events")
        read = 0
        while rows := cursor.fetchmany(_FETCHED):
            read += len(rows)
        seconds = time.perf_counter() - began
    if read != settings["count"]:
        raise SystemExit(f"{read} rows were read, of {settings['count']}")
    return seconds


_SIDES: Final[dict[str, Callable[[dict[str, Any]], float]]] = {
    "ours": load,
    "jdbc": _jdbc,
    "cursor": _cursor,
}

if __name__ == "__main__":
    print(json.dumps({"seconds": _SIDES[sys.argv[1]](json.loads(sys.argv[2]))}))
