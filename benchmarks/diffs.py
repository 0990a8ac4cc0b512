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
import time
from collections.abc import Callable
from typing import Any, Final

from benchmarks.baseline import COLUMNS
from benchmarks.events import TABLE, events
from benchmarks.first_commit import Measure
from benchmarks.rows import Rows, paired
from benchmarks.snapshots import jdbc_rows, jdbc_session, load, seconds_of_sides, snapshot_config
from tidesink.config import load_config
from tidesink.events import ChangeEvent
from tidesink.sinks.targets.sql.dialect import Connections
from tidesink.sinks.targets.sql.location import Endpoint
from tidesink.sinks.targets.sql.mysql import mysql_dialect


def diff_rows(measure: Measure, settings: dict[str, Any], count: int) -> Rows:
    """One line: rows compared a second, beside two ``exceptAll``."""
    change = next(events(1, seed=1, keys=1))
    seconds = seconds_of_sides(
        "diffs",
        _SIDES,
        measure,
        settings,
        count,
        keys=1,
        before=lambda endpoint: _add(endpoint, change),
    )
    return [paired("diff.mariadb", count / seconds["ours"], count / seconds["except"], unit="rows/s")]


def _add(endpoint: Endpoint, event: ChangeEvent) -> None:
    """The row of a change, which the table has then too: it is 0, before all others."""
    assert event.after is not None
    connections = Connections(mysql_dialect(), endpoint)
    with connections.transaction("bench") as cursor:
        values = ", ".join("%s" for _ in event.after)
        cursor.execute(f"INSERT INTO bench.events VALUES ({values})", (*event.after.values(),))
    connections.close()


def _ours(settings: dict[str, Any]) -> float:
    from tidesink.sinks.diff.comparison import DiffOptions
    from tidesink.sinks.diff.run import diff
    from tidesink.sinks.spark.session import session_of

    config = load_config(snapshot_config(settings))
    with session_of(config):
        began = time.perf_counter()
        (found,) = diff(config, [TABLE], DiffOptions(), tell=lambda _: None)
        seconds = time.perf_counter() - began
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
