"""``make bench``: one table of figures, all measured in one run on this machine.

``python -m benchmarks [PART…] [--json FILE]`` measures some of its parts: ``codecs``, in Python, which takes
less than two minutes, no server and no Java; ``fetch``, of records as Arrow; ``reduce``, reading and
reducing alone; ``start``, the first commit of a new process; the whole job into Delta (``delta``), into
Iceberg (``iceberg``), into Postgres and MariaDB (``sql``); ``protocols``, the first load of the others into
Delta beside flat-avro's; ``memory``, the driver's for many events beside few; ``sizes``, small batches into
tables of 200,000 and of ten million rows; ``age``, the thousandth small batch into a table; ``idle``, what
500 idle tables cost; ``tables``, the cost of many small tables and batches; ``cuts``, what cuts cost;
``snapshots``, the rows of a database; ``diff``, comparing them with their copy.
Everything is a ratio to a floor or a baseline of the same run, since machines differ and are noisy.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.cuts import cut_row
from benchmarks.diffs import diff_rows
from benchmarks.events import OPTIONS, write_events
from benchmarks.first_commit import BACKLOG, first_commit_row
from benchmarks.idle_tables import idle_row
from benchmarks.many_tables import TARGETS, table_rows
from benchmarks.processes import peak_memory
from benchmarks.rows import (
    Row,
    Rows,
    batch_rows,
    codec_rows,
    fetch_row,
    job_rows,
    memory_row,
    paired,
    show,
    write,
)
from benchmarks.snapshots import snapshot_rows
from benchmarks.sql_targets import sql_rows
from benchmarks.table_sizes import age_rows, size_rows
from tidesink.dev.stack import DevStack, free_ports
from tidesink.schema_registry import open_registry

EVENTS = 1_000_000
PARTS: Final = (
    *("codecs", "fetch", "reduce", "start"),
    *("delta", "iceberg", "sql", "protocols", "memory", "sizes", "age", "idle"),
    *("tables", "cuts", "snapshots", "diff"),
)
Settings = Mapping[str, Any]


def main() -> None:
    """Measure, print the table, leave nothing running."""
    arguments = _arguments()
    parts = arguments.parts or PARTS
    rows: Rows = []
    for found in _measured(parts, arguments):
        rows += found
        if arguments.json is not None:  # after each part: a later one that fails loses nothing
            write(rows, arguments.json)
    show(rows)


def _measured(parts: Sequence[str], arguments: argparse.Namespace) -> Iterator[Rows]:
    """The rows of each part."""
    if "codecs" in parts:
        yield _codecs()
    if _ON_STACK.keys() & set(parts):
        with _stack() as settings:
            settings |= {name: getattr(arguments, name) for name in ("tables", "targets", "seconds")}
            for part in PARTS:
                if part in parts and part in _ON_STACK:
                    yield _ON_STACK[part](settings, arguments.events)


def _codecs() -> Rows:
    _say("codecs in Python")
    rows = codec_rows(_measure("benchmarks.codec_python"))
    _say("batches as Arrow tables")
    rows += batch_rows(_measure("benchmarks.decode_batches"))
    _say("a wide table")
    return rows + batch_rows(_measure("benchmarks.wide_tables"))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    # argparse before 3.12 holds an empty list against choices.
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all without one")
    parser.add_argument("--events", type=int, default=EVENTS, help="of the whole job; half as many a codec")
    parser.add_argument("--tables", type=int, default=200, help="how many small tables (tables)")
    parser.add_argument("--seconds", type=int, default=300, help="of their freshness, or 0 (tables)")
    parser.add_argument(
        "--targets", nargs="+", choices=TARGETS, default=TARGETS, help="of small tables (tables)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
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
                "directory": directory,
            }
        finally:
            stack.down()


def _fetch(settings: Settings, events: int) -> Rows:
    _say("fetch: a topic's records as Arrow")
    given = {"brokers": settings["brokers"], "events": events}
    return [fetch_row(_measure("benchmarks.fetch", json.dumps(given)))]


def _reduce(settings: Settings, events: int) -> Rows:
    given = json.dumps({**settings, "topic": _written(settings, "flat-avro", events), "events": events})
    _say("read and reduce: the tasks, then Spark's own reader")
    taken = [_measure("benchmarks.read_reduce", side, given)["seconds"] for side in ("ours", "baseline")]
    return [paired("read-reduce.flat-avro", *(events / seconds for seconds in taken))]


def _delta(settings: Settings, events: int) -> Rows:
    figures = _both("benchmarks.whole_job", {**settings, "topic": "bench_delta", "events": events})
    return [*job_rows("delta", figures), memory_row(figures)]


def _start(settings: Settings, _events: int) -> Rows:
    _say("the first commit of a new process")
    topic = _written(settings, "flat-avro", BACKLOG, name="bench_first")
    return [first_commit_row(_measure, {**settings, "topic": topic})]


def _idle(settings: Settings, _events: int) -> Rows:
    _say("idle tables")
    return [idle_row(_measure, dict(settings))]


def _tables(settings: Settings, _events: int) -> Rows:
    return table_rows(_measure, dict(settings))


def _cuts(settings: Settings, _events: int) -> Rows:
    _say("cuts")
    return [cut_row(_measure, dict(settings))]


def _iceberg(settings: Settings, events: int) -> Rows:
    given = {**settings, "topic": "bench_iceberg", "events": events}
    return job_rows("iceberg", _both("benchmarks.iceberg_target", given))


def _sql(settings: Settings, events: int) -> Rows:
    return sql_rows({**settings, "topic": "bench_sql"}, events)


def _sizes(settings: Settings, _events: int) -> Rows:
    return size_rows({**settings, "topic": "bench_sizes"})


def _age(settings: Settings, _events: int) -> Rows:
    return age_rows({**settings, "topic": "bench_age"})


def _snapshots(settings: Settings, events: int) -> Rows:
    return snapshot_rows(_measure, {**settings, "topic": "bench_snapshots"}, events)


def _diff(settings: Settings, events: int) -> Rows:
    return diff_rows(_measure, {**settings, "topic": "bench_diff"}, events)


def _written(settings: Settings, protocol: str, events: int, *, name: str | None = None) -> str:
    """A topic of one protocol; its name."""
    topic = name or f"bench_{protocol.replace('-', '_')}"
    _say(f"writing {events:,} events as {protocol}")
    registry = open_registry(settings["registry"])
    write_events(settings["brokers"], registry, topic, events, protocol=protocol)
    return topic


def _both(module: str, settings: Settings) -> dict[str, dict[str, Any]]:
    """Our whole job and the hand-written one, each on a topic of its own with the same events."""
    figures = {}
    for side in ("ours", "baseline"):
        topic = f"{settings['topic']}_{side}"
        _say(f"writing {settings['events']:,} events")
        write_events(settings["brokers"], open_registry(settings["registry"]), topic, settings["events"])
        _say(f"{module}, {side}")
        figures[side] = _measure(module, side, json.dumps({**settings, "topic": topic}))
    return figures


def _protocols(settings: Settings, events: int) -> Rows:
    """The first load of each protocol, beside flat-avro's."""
    rates = {}
    for protocol in OPTIONS:
        topic = _written(settings, protocol, events, name=f"bench_load_{protocol}")
        directory = str(Path(settings["directory"]) / protocol)
        given = {**settings, "topic": topic, "events": events, "directory": directory, "protocol": protocol}
        _say(f"benchmarks.whole_job, load, {protocol}")
        rates[protocol] = _measure("benchmarks.whole_job", "load", json.dumps(given))["load"]
    flat_avro = rates.pop("flat-avro")
    return [paired(f"job.delta.load.{protocol}", rate, flat_avro) for protocol, rate in rates.items()]


def _memory(settings: Settings, events: int) -> Rows:
    """The Python driver's peak memory for five times the events, and for 100,000 or a tenth of them."""
    peaks = []
    for size in (5 * events, min(events // 10, 100_000)):
        topic = _written(settings, "flat-avro", size, name=f"bench_memory_{size}")
        given = {**settings, "topic": topic, "events": size, "directory": f"{settings['directory']}/{size}"}
        _say(f"benchmarks.whole_job, load, {size:,} events")
        peaks.append(_measure("benchmarks.whole_job", "load", json.dumps(given))["driver_mb"])
    many, few = peaks
    return [Row("driver-memory", many, "MB", few, many / few)]


def _measure(module: str, *arguments: str) -> dict[str, Any]:
    """A measurement in a fresh process: its last line is the figures."""
    command = [sys.executable, "-m", module, *arguments]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,
        peak_memory(process.pid) as peak,
    ):
        printed, _ = process.communicate()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    figures: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
    return {**figures, "peak_mb": peak.mb} if module == "benchmarks.whole_job" else figures


def _say(text: str) -> None:
    print(f"... {text}", file=sys.stderr, flush=True)


# The parts that need a broker.
_ON_STACK: Final[Mapping[str, Callable[[Settings, int], Rows]]] = {
    "fetch": _fetch,
    "reduce": _reduce,
    "start": _start,
    "delta": _delta,
    "iceberg": _iceberg,
    "sql": _sql,
    "protocols": _protocols,
    "memory": _memory,
    "sizes": _sizes,
    "age": _age,
    "idle": _idle,
    "tables": _tables,
    "cuts": _cuts,
    "snapshots": _snapshots,
    "diff": _diff,
}

if __name__ == "__main__":
    main()
