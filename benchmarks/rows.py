"""The rows of the benchmark's table: a figure, what it is compared to in the same run, and its aim."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

Figures = Mapping[str, Mapping[str, Any]]

# Name of a row -> the ratio to reach on two quiet cores. Ratios of memory, of idle work, of the first
# commit, of larger and of older tables are good when they are small.
AIMS: Final[Mapping[str, float]] = {
    "decode.flat-avro.batch": 8,
    "decode.debezium-avro.batch": 8,
    "decode.canal-json.batch": 1.6,
    "decode.debezium-json.batch": 8,
    "fetch": 0.7,
    "read-reduce.flat-avro": 3,
    "job.delta.load": 2.5,
    "job.delta.warm": 4,
    "job.delta.load.canal-json": 0.6,
    "job.delta.load.debezium-avro": 0.6,
    "job.delta.load.debezium-json": 0.6,
    "job.iceberg.load": 1.5,
    "job.iceberg.warm": 1.8,
    "job.postgres.load": 0.6,
    "job.postgres.warm": 1.0,
    "job.mariadb.load": 0.6,
    "job.mariadb.warm": 1.0,
    "batch-1000.delta": 4,
    "batch-1000.iceberg": 2,
    "batch-1000.delta.10M-rows": 1.5,
    "batch-1000.delta.after-1000": 1.3,
    "driver-memory": 1.2,
    "first-commit.5000": 1.6,
    "tables.500-idle": 2,
    "cut.every-second": 0.6,
    "snapshot.mariadb.jdbc": 2,
    "snapshot.mariadb.cursor": 0.5,
    "wide.1000-columns": 0.5,
    "first-commit.small.delta": 1.0,
}
# Rows whose aim is a value, in their unit: a figure at most as large is good.
MOST: Final[Mapping[str, float]] = {
    "batch-1000.postgres": 0.4,
    "memory.peak": 2_500,
    "tables.open.postgres": 0.02,
    "tables.open.delta": 0.02,
    "tables.freshness.postgres.p50": 2,
    "tables.freshness.postgres.p99": 5,
    "tables.freshness.delta.p50": 15,
    "tables.freshness.delta.p99": 25,
    "first-commit.small.postgres": 3,
    "memory.small": 400,
    "cpu.small.postgres": 25,
    "cpu.small.delta": 120,
}
# Rows whose aim is a value, in their unit: a figure at least as large is good.
LEAST: Final[Mapping[str, float]] = {
    "tables.active.postgres": 60,
    "tables.active.mariadb": 40,
    "tables.active.delta": 12,
    "tables.active.iceberg": 12,
}
# The parts of a whole job that a row each is about.
LOADS: Final = ("load", "warm")


class Row(NamedTuple):
    """One figure. ``baseline`` is what it is compared to, in the same unit, and ``ratio`` how it compares.

    Both come from one run, in turns where they can. ``ratio`` is above 1 where tidesink is the better, except
    where a row is about memory, the first commit, idle tables, larger or older tables: there it is what ours
    takes to the other's.
    """

    name: str
    value: float
    unit: str
    baseline: float | None = None
    ratio: float | None = None

    @property
    def note(self) -> str:
        """The ratio and the aim, for the table."""
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        for word, aims in (("most", MOST), ("least", LEAST)):
            if self.name in aims:
                return f"{ratio} (aim: at {word} {aims[self.name]:g} {self.unit})".lstrip()
        return f"{ratio} (aim {AIMS[self.name]:g})" if self.name in AIMS else ratio


Rows = list[Row]


def paired(name: str, value: float, baseline: float, *, unit: str = "events/s") -> Row:
    """A rate beside that of its baseline."""
    return Row(name, value, unit, baseline, value / baseline)


def codec_rows(figures: Figures) -> Rows:
    """The row codecs, each beside its floor."""
    return [
        Row(f"{direction}.{protocol}.row", found["ours"], "events/s", found["floor"], found["ratio"])
        for name, found in figures.items()
        for protocol, direction in [name.rsplit(" ", 1)]
    ]


def batch_rows(figures: Figures) -> Rows:
    """``decode_batch`` of each protocol, beside the reader that somebody would write by hand."""
    return [Row(**found) for found in figures.values()]


def fetch_row(figures: Mapping[str, float]) -> Row:
    """``fetch`` beside a bare consume loop."""
    return Row("fetch", figures["ours"], "records/s", figures["bare"], figures["ratio"])


def job_rows(target: str, figures: Figures) -> Rows:
    """A whole job beside the hand-written one: the first load, as much again once warm, a small batch."""
    ours, base = figures["ours"], figures["baseline"]
    rows = [paired(f"job.{target}.{part}", ours[part], base[part]) for part in LOADS]
    mine, theirs = (statistics.median(side["batch_seconds"]) for side in (ours, base))
    return [*rows, Row(f"batch-1000.{target}", mine, "s", theirs, theirs / mine)]


def memory_row(figures: Figures) -> Row:
    """The most memory of a whole job's processes together, the JVM's and the tasks' among them."""
    mine, theirs = (figures[side]["peak_mb"] for side in ("ours", "baseline"))
    return Row("memory.peak", mine, "MB", theirs, mine / theirs)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
    }


def show(rows: Iterable[Row]) -> None:
    """Print the table, with the machine it was measured on."""
    found = machine()
    size = f"{found['cores']} cores, {found['memory_gib']} GiB"
    print(f"\n{found['architecture']}, {size}, Python {found['python']}\n")
    print(f"{'name':<36}{'value':>14} {'unit':<10}{'baseline':>14}   ratio")
    for row in rows:
        baseline = "" if row.baseline is None else _number(row.baseline)
        print(f"{row.name:<36}{_number(row.value):>14} {row.unit:<10}{baseline:>14}   {row.note}")


def write(rows: Iterable[Row], path: Path) -> None:
    """Write the rows as JSON: the machine, and of each row its name, value, unit, baseline and ratio."""
    found = {"machine": machine(), "rows": [row._asdict() for row in rows]}
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"
