"""The first commit of a new process: ours of a small backlog, beside a bare session that appends one row.

``python -m benchmarks.first_commit ours|baseline SETTINGS.json`` prints ``{"committed": …}``, the time of day
of its first commit in seconds since 1970. ``first_commit_row`` starts each in turn and takes the medians.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.rows import Row

BACKLOG: Final = 5_000
_ROUNDS: Final = 3
# A module and its arguments -> the figures that it prints, from a process of its own.
Measure = Callable[..., dict[str, Any]]


def first_commit_row(measure: Measure, settings: dict[str, Any]) -> Row:
    """The row of ``first-commit.5000``: seconds from the start of the process."""
    seconds: dict[str, list[float]] = {"ours": [], "baseline": []}
    for number in range(_ROUNDS):
        for side, found in seconds.items():
            directory = Path(settings["directory"]) / f"first-{number}-{side}"
            given = json.dumps({**settings, "directory": str(directory)})
            started = time.time()
            found.append(measure("benchmarks.first_commit", side, given)["committed"] - started)
    mine, bare = (statistics.median(found) for found in seconds.values())
    return Row(f"first-commit.{BACKLOG}", mine, "s", bare, mine / bare)


def ours(settings: dict[str, Any]) -> float:
    """A worker that reads the backlog in one batch."""
    from benchmarks.whole_job import write_config
    from tidesink.config import load_config
    from tidesink.sinks.runtime.observers import BatchApplied, WorkerEvent
    from tidesink.sinks.worker.run import run

    @dataclass
    class First:
        at: float = 0.0

        def hear(self, event: WorkerEvent) -> None:
            if isinstance(event, BatchApplied) and not self.at:
                self.at = time.time()

    first = First()
    report = run(load_config(write_config(settings, BACKLOG)), until="drained", listeners=[first])
    if report.exit_code:
        raise SystemExit(f"the worker failed: {[table.error for table in report.tables]}")
    return first.at


def baseline(settings: dict[str, Any]) -> float:
    """A bare session appends one row to a Delta table."""
    from benchmarks.baseline import plain_session

    spark = plain_session()
    spark.range(1).write.format("delta").mode("append").save(str(Path(settings["directory"]) / "table"))
    committed = time.time()
    spark.stop()
    return committed


if __name__ == "__main__":
    side = {"ours": ours, "baseline": baseline}[sys.argv[1]]
    print(json.dumps({"committed": side(json.loads(sys.argv[2]))}))
