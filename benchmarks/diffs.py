"""Whether a table of a database is equal to its copy: ``tidesink diff`` beside what Spark's user writes.

``python -m benchmarks diff``: a MariaDB has a table of a million rows, a snapshot brought them to Delta, and
nothing differs. Each side runs in a process of its own: ``python -m benchmarks.diffs copy|ours|except
SETTINGS`` prints one JSON object, ``{"seconds": ...}``, from where Spark has started. By hand the table is
read through JDBC, by as many connections as the diff has, and ``exceptAll`` is asked both ways, of rows that
are kept between. Both sides hear how many rows are equal. ``copy`` makes the copy.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.baseline import COLUMNS
from benchmarks.events import TABLE, events, write_events
from benchmarks.first_commit import Measure
from benchmarks.rows import Rows, paired
from benchmarks.snapshots import fill, jdbc_rows, jdbc_session, load, snapshot_config
from benchmarks.sql_servers import mariadb
from tidesink.config import load_config
from tidesink.events import ChangeEvent
from tidesink.schema_registry import open_registry
from tidesink.sinks.targets.sql.dialect import Connections
from tidesink.sinks.targets.sql.location import Endpoint
from tidesink.sinks.targets.sql.mysql import MysqlDialect

_SEED: Final = 1  # its first event is of a row


def diff_rows(measure: Measure, settings: dict[str, Any], count: int) -> Rows:
    """One line: rows compared a second, beside two ``exceptAll``."""
    seconds = {}
    with (
        tempfile.TemporaryDirectory(prefix="tidesink-bench-diffs-") as place,
        mariadb(Path(place) / "server") as endpoint,
    ):
        fill(endpoint, count)
        registry = open_registry(settings["registry"])
        _add(endpoint, next(events(1, seed=_SEED, keys=1)))
        write_events(settings["brokers"], registry, settings["topic"], 1, seed=_SEED, keys=1)
        given = {**settings, "directory": place, "host": endpoint.host, "port": endpoint.port, "count": count}
        for side in _SIDES:
            print(f"... diff: {side}", file=sys.stderr, flush=True)
            seconds[side] = measure("benchmarks.diffs", side, json.dumps(given))["seconds"]
    return [paired("diff.mariadb", count / seconds["ours"], count / seconds["except"], unit="rows/s")]


def _add(endpoint: Endpoint, event: ChangeEvent) -> None:
    """The row of a change, which the table has then too: it is 0, before all others."""
    assert event.after is not None
    connections = Connections(MysqlDialect(), endpoint)
    with connections.transaction("bench") as cursor:
        values = ", ".join("%s" for _ in event.after)
        cursor.execute(f"INSERT INTO bench.events VALUES ({values})", (*event.after.values(),))
    connections.close()


def _ours(settings: dict[str, Any]) -> float:
    from tidesink.sinks.spark.session import build_session, stop_session
    from tidesink.sinks.worker.diff import DiffOptions, diff

    config = load_config(snapshot_config(settings))
    spark = build_session(
        master=config.spark.master, conf=config.spark.conf_values(), target=config.target.type
    )
    began = time.perf_counter()
    (found,) = diff(config, [TABLE], DiffOptions(), tell=lambda _: None)
    seconds = time.perf_counter() - began
    stop_session(spark)
    _check(found.equal, settings, differs=found.differs)
    return seconds


def _except(settings: dict[str, Any]) -> float:
    spark = jdbc_session()
    began = time.perf_counter()
    source = jdbc_rows(spark, settings).select(*COLUMNS).persist()
    copy = spark.read.format("delta").load(f"{settings['directory']}/ours/lake/bench/events")
    target = copy.select(*(copy[name].cast(source.schema[name].dataType) for name in COLUMNS)).persist()
    missing, more = source.exceptAll(target).count(), target.exceptAll(source).count()
    equal = source.count() - missing
    seconds = time.perf_counter() - began
    spark.stop()
    _check(equal, settings, differs=bool(more))
    return seconds


def _check(equal: int, settings: dict[str, Any], *, differs: bool) -> None:
    if differs or equal != settings["count"] + 1:
        raise SystemExit(f"the copy is another: {equal} rows are equal, of {settings['count'] + 1}")


_SIDES: Final[dict[str, Callable[[dict[str, Any]], float]]] = {
    "copy": load,
    "ours": _ours,
    "except": _except,
}

if __name__ == "__main__":
    print(json.dumps({"seconds": _SIDES[sys.argv[1]](json.loads(sys.argv[2]))}))
