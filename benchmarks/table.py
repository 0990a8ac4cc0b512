"""The table of rates: one line a figure, with what it is compared to and the aim for that."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Mapping
from typing import Any, Final

Rows = list[tuple[str, str, str]]
Figures = Mapping[str, Mapping[str, Any]]

# What the codecs are held against in Python.
_PYTHON_FLOORS: Final = {
    "flat-avro decode": "bare fastavro",
    "flat-avro encode": "bare fastavro",
    "canal-json decode": "orjson.loads, conversion",
    "canal-json encode": "conversion, orjson.dumps",
    "debezium-json decode": "orjson.loads, conversion",
    "debezium-json encode": "conversion, orjson.dumps",
    "debezium-avro decode": "bare fastavro",
    "debezium-avro encode": "bare fastavro",
}
# What the table calls the figures of a whole job.
LOADS: Final = {"first load": "load", "as much again, warm": "warm"}
_PYTHON_AIMS: Final = {"canal-json decode": 0.6, "flat-avro encode": 0.8}
_FETCH_AIM: Final = 0.7
_SPARK_AIMS: Final = {"flat-avro": 0.6, "debezium-avro": 0.6, "canal-json": 0.35, "debezium-json": 0.35}


def python_rows(figures: Figures) -> Rows:
    """The codecs in Python, each below its floor."""
    rows: Rows = []
    for name, found in figures.items():
        part = f"{found['ratio']:.2f} of the floor{_aim(_PYTHON_AIMS.get(name))}"
        rows.append((f"{name}, {_PYTHON_FLOORS[name]}", rate(found["floor"]), ""))
        rows.append((f"{name}, tidesink", rate(found["ours"]), part))
        if "confluent" in found:
            times = f"we are {found['ours'] / found['confluent']:.1f}×"
            rows.append((f"{name}, confluent", rate(found["confluent"]), times))
    return rows


def fetch_rows(figures: Mapping[str, float]) -> Rows:
    """``fetch`` beside a bare consume loop."""
    part = f"{figures['ratio']:.2f} of it{_aim(_FETCH_AIM)}"
    return [
        ("fetch, bare consume loop", rate(figures["bare"]), ""),
        ("fetch, tidesink, as Arrow", rate(figures["ours"]), part),
    ]


def spark_rows(figures: Figures) -> Rows:
    """The stages of a batch, per protocol."""
    return [row for protocol, found in figures.items() for row in _stages(protocol, found)]


def _stages(protocol: str, found: Mapping[str, float]) -> Rows:
    decoded = _of_both(found, "decode") + _aim(_SPARK_AIMS.get(protocol))
    rows = [
        (f"Spark {protocol}, read only", rate(found["plain read"]), ""),
        (
            f"Spark {protocol}, read, our options",
            rate(found["read"]),
            f"{found['read of plain read']:.2f} of read only",
        ),
        (f"Spark {protocol}, + decode", rate(found["decode"]), decoded),
    ]
    if "reduce" in found:
        rows.append((f"Spark {protocol}, + reduce", rate(found["reduce"]), _of_both(found, "reduce")))
    return rows


def _of_both(found: Mapping[str, float], stage: str) -> str:
    plain, ours = (found[f"{stage} of {base}"] for base in ("plain read", "read"))
    return f"{plain:.2f} of read only, {ours:.2f} of read with our options"


def _aim(aim: float | None) -> str:
    return "" if aim is None else f" (aim {aim})"


def job_rows(figures: Figures, *, into: str = "") -> Rows:
    """A whole job beside the hand-written one: the first load, as much again once warm, a small batch."""
    ours, base = figures["ours"], figures["baseline"]
    rows: Rows = []
    for name, part in LOADS.items():
        mine, theirs = ours[part], base[part]
        rows.append((f"{name}{into}, foreachBatch", rate(theirs), ""))
        rows.append((f"{name}{into}, tidesink", rate(mine), f"{mine / theirs:.2f}× the baseline (aim 2)"))
    mine, theirs = (statistics.median(side["batch_seconds"]) for side in (ours, base))
    rows.append((f"1,000-event batch{into}, foreachBatch", f"{theirs:.2f} s", ""))
    rows.append((f"1,000-event batch{into}, tidesink", f"{mine:.2f} s", f"{theirs / mine:.2f}× the baseline"))
    return rows


def rate(found: float) -> str:
    """Events a second as the table shows them."""
    return f"{found:,.0f} events/s"


def show(rows: Rows) -> None:
    """Print the table, with the machine it was measured on."""
    cores, memory = os.cpu_count(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    print(f"\n{platform.machine()}, {cores} cores, {memory:.0f} GiB, Python {platform.python_version()}\n")
    for name, figure, note in rows:
        print(f"{name:<48} {figure:>20}   {note}")
