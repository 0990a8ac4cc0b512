"""``make bench``: one table of rates, all measured in one run on this machine.

``python -m benchmarks [codecs] [spark] [jobs] [iceberg] [sql]`` measures some of its parts: the codecs in
Python, which takes a minute and no Java; their stages on Spark; the whole job into Delta, into Iceberg, and
into Postgres and MariaDB.
Everything is a ratio to a floor or a baseline of the same run, since machines differ and are noisy.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.events import OPTIONS, STEADY_BATCH, STEADY_BATCHES, write_events
from benchmarks.iceberg_target import iceberg_rows
from benchmarks.sql_targets import sql_rows
from benchmarks.table import Rows, python_rows, rate, show, spark_rows
from tidesink.dev.ports import free_ports
from tidesink.dev.stack import DevStack
from tidesink.schema_registry import open_registry

EVENTS = 1_000_000
PARTS: Final = ("codecs", "spark", "jobs", "iceberg", "sql")
# Of the parts those that need a broker.
_WITH_STACK: Final = frozenset(PARTS) - {"codecs"}
Settings = Mapping[str, Any]


def main() -> None:
    """Measure, print the table, leave nothing running."""
    arguments = _arguments()
    parts = arguments.parts or PARTS
    rows: Rows = []
    if "codecs" in parts:
        _say("codecs in Python")
        rows += python_rows(_measure("benchmarks.codec_python"))
    if _WITH_STACK.intersection(parts):
        with _stack() as settings:
            rows += _on_spark(settings, parts, arguments.events)
    show(rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    # argparse before 3.12 holds an empty list against choices.
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all without one")
    parser.add_argument("--events", type=int, default=EVENTS, help="of the whole job; half as many a codec")
    arguments = parser.parse_args()
    unknown = [part for part in arguments.parts if part not in PARTS]
    if unknown:
        parser.error(f"no part {unknown[0]!r}: there are {', '.join(PARTS)}")
    return arguments


@contextmanager
def _stack() -> Iterator[dict[str, Any]]:
    """A broker and a registry for the time of the measurements."""
    with tempfile.TemporaryDirectory(prefix="tidesink-bench-") as directory:
        kafka, controller, registry = free_ports(3)
        stack = DevStack(
            Path(directory) / "stack", kafka_port=kafka, controller_port=controller, registry_port=registry
        )
        try:
            addresses = stack.up(_say)
            yield {
                "brokers": addresses.brokers,
                "registry": addresses.registry_url,
                "topic": "bench_events",
                "directory": directory,
                "steady_seed": 2,
            }
        finally:
            stack.down()


def _on_spark(settings: dict[str, Any], parts: Sequence[str], events: int) -> Rows:
    rows: Rows = []
    if "spark" in parts:
        topics = {protocol: _written(settings, protocol, events // 2) for protocol in OPTIONS}
        _say("Spark stages: read, decode, reduce")
        rows += spark_rows(_measure("benchmarks.spark_stages", json.dumps({**settings, "topics": topics})))
    if "jobs" in parts:
        _say(f"writing {events:,} events")
        write_events(settings["brokers"], open_registry(settings["registry"]), settings["topic"], events)
        rows += _jobs({**settings, "events": events}, events)
    if "iceberg" in parts:
        rows += _iceberg({**settings, "topic": "bench_iceberg", "events": events}, events)
    if "sql" in parts:
        rows += sql_rows({**settings, "topic": "bench_sql"}, events)
    return rows


def _written(settings: Settings, protocol: str, events: int) -> dict[str, Any]:
    """A topic of one protocol."""
    topic = f"bench_{protocol.replace('-', '_')}"
    _say(f"writing {events:,} events as {protocol}")
    registry = open_registry(settings["registry"])
    write_events(settings["brokers"], registry, topic, events, protocol=protocol)
    return {"name": topic, "events": events}


def _jobs(settings: Settings, events: int) -> Rows:
    _say("whole job, ours")
    ours = _measure("benchmarks.whole_job", "ours", json.dumps(settings))
    small = _driver_memory(settings)
    _say("whole job, baseline")
    baseline = _measure("benchmarks.whole_job", "baseline", json.dumps({**settings, "steady_seed": 3}))
    ours_batch, base_batch = (statistics.median(side["batch_seconds"]) for side in (ours, baseline))
    our_rate = events / ours["load_seconds"]
    # The baseline comes second and finds our steady batches in the topic too.
    base_rate = (events + STEADY_BATCH * STEADY_BATCHES) / baseline["load_seconds"]
    return [
        ("first load, foreachBatch", rate(base_rate), ""),
        ("first load, tidesink", rate(our_rate), f"{our_rate / base_rate:.2f}× the baseline"),
        ("1,000-event batch, foreachBatch", f"{base_batch:.2f} s", ""),
        (
            "1,000-event batch, tidesink",
            f"{ours_batch:.2f} s",
            f"{base_batch / ours_batch:.2f}× the baseline",
        ),
        ("driver memory, all events", f"{ours['driver_mb']:.0f} MB", f"{small:.0f} MB for a tenth of them"),
    ]


def _iceberg(settings: Settings, events: int) -> Rows:
    _say(f"writing {events:,} events")
    write_events(settings["brokers"], open_registry(settings["registry"]), settings["topic"], events)
    figures = {}
    for seed, side in enumerate(("ours", "baseline"), 2):
        _say(f"whole job into Iceberg, {side}")
        given = json.dumps({**settings, "steady_seed": seed})
        figures[side] = _measure("benchmarks.iceberg_target", side, given)
    return iceberg_rows(figures, events)


def _driver_memory(settings: Settings) -> float:
    """The Python driver's peak memory for a tenth of the events."""
    topic = "bench_tenth"
    write_events(
        settings["brokers"], open_registry(settings["registry"]), topic, settings["events"] // 10, keys=20_000
    )
    directory = Path(settings["directory"]) / "tenth"
    found = _measure(
        "benchmarks.whole_job", "ours", json.dumps({**settings, "topic": topic, "directory": str(directory)})
    )
    return float(found["driver_mb"])


def _measure(module: str, *arguments: str) -> dict[str, Any]:
    """A measurement in a fresh process: its last line is the figures."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE, text=True, check=True
    )
    figures: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def _say(text: str) -> None:
    print(f"... {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
