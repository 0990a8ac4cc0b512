"""``make bench``: one table of rates, all measured in one run on this machine.

Everything is a ratio to a floor or a baseline of the same run, since machines differ and are noisy.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.events import STEADY_BATCH, STEADY_BATCHES, write_events
from tidesink.dev.ports import free_ports
from tidesink.dev.stack import DevStack
from tidesink.schema_registry import open_registry

EVENTS = 1_000_000
Rows = list[tuple[str, str, str]]


def main() -> None:
    """Measure, print the table, leave nothing running."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="tidesink-bench-") as directory:
        kafka, controller, registry = free_ports(3)
        stack = DevStack(
            Path(directory) / "stack", kafka_port=kafka, controller_port=controller, registry_port=registry
        )
        try:
            addresses = stack.up(_say)
            settings = {
                "brokers": addresses.brokers,
                "registry": addresses.registry_url,
                "topic": "bench_events",
                "directory": directory,
                "steady_seed": 2,
                "events": arguments.events,
            }
            _say(f"writing {arguments.events:,} events")
            write_events(
                addresses.brokers, open_registry(addresses.registry_url), "bench_events", arguments.events
            )
            rows = [*_codec(), *_stages(settings), *_jobs(settings, arguments.events)]
        finally:
            stack.down()
    _print(rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=EVENTS)
    return parser.parse_args()


def _codec() -> Rows:
    _say("Python codec")
    found = _measure("benchmarks.codec_python")
    return [
        ("Python decode, bare fastavro", _rate(found["fastavro"]), ""),
        (
            "Python decode, tidesink",
            _rate(found["tidesink"]),
            f"{found['tidesink'] / found['fastavro']:.2f} of bare",
        ),
        (
            "Python decode, confluent",
            _rate(found["confluent"]),
            f"we are {found['tidesink'] / found['confluent']:.1f}×",
        ),
    ]


def _stages(settings: dict[str, Any]) -> Rows:
    _say("Spark stages: read, decode, reduce")
    found = _measure("benchmarks.spark_stages", json.dumps(settings))
    plain, read = found["plain read"], found["read"]
    stages = (("+ decode", "decode"), ("+ reduce", "reduce"))
    return [
        ("Spark Kafka read only, as it comes", _rate(plain), ""),
        ("Spark Kafka read only, our options", _rate(read), f"{read / plain:.2f} of read only as it comes"),
        *(
            (
                f"Spark {name}",
                _rate(found[key]),
                f"{found[key] / plain:.2f}, {found[key] / read:.2f} of these",
            )
            for name, key in stages
        ),
    ]


def _jobs(settings: dict[str, Any], events: int) -> Rows:
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
        ("first load, foreachBatch", _rate(base_rate), ""),
        ("first load, tidesink", _rate(our_rate), f"{our_rate / base_rate:.2f}× the baseline"),
        ("1,000-event batch, foreachBatch", f"{base_batch:.2f} s", ""),
        (
            "1,000-event batch, tidesink",
            f"{ours_batch:.2f} s",
            f"{base_batch / ours_batch:.2f}× the baseline",
        ),
        ("driver memory, all events", f"{ours['driver_mb']:.0f} MB", f"{small:.0f} MB for a tenth of them"),
    ]


def _driver_memory(settings: dict[str, Any]) -> float:
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


def _rate(rate: float) -> str:
    return f"{rate:,.0f} events/s"


def _say(text: str) -> None:
    print(f"... {text}", file=sys.stderr, flush=True)


def _print(rows: Rows) -> None:
    cores, memory = os.cpu_count(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    print(f"\n{platform.machine()}, {cores} cores, {memory:.0f} GiB, Python {platform.python_version()}\n")
    for name, figure, note in rows:
        print(f"{name:<36} {figure:>20}   {note}")


if __name__ == "__main__":
    main()
