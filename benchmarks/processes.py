"""What this process and those it started take: memory and CPU time, from Linux's ``/proc``."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE_MB: Final = os.sysconf("SC_PAGE_SIZE") / 2**20
_PAUSE: Final = 0.2


class Process(NamedTuple):
    """One process: its number, its parent, its own CPU seconds, its RSS in MB."""

    number: int
    parent: int
    cpu: float
    rss_mb: float


class Peak:
    """The highest RSS of a process and its descendants together, in MB."""

    mb: float = 0.0


class CpuTime:
    """CPU seconds of a process and its descendants since this was made, as far as ``see`` saw them.

    Of a process that ends nobody hears how much it took in all: Spark's workers are reaped by nobody.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._before = {one.number: one.cpu for one in family(root)}
        self.seconds = 0.0

    def see(self) -> None:
        """Add what each has taken since the last time."""
        now = {one.number: one.cpu for one in family(self._root)}
        self.seconds += sum(cpu - self._before.get(number, 0.0) for number, cpu in now.items())
        self._before |= now


def family(root: int) -> list[Process]:
    """A process and all that descend from it."""
    found = dict(_processes())
    members, added = {root}, True
    while added:
        more = {pid for pid, one in found.items() if one.parent in members} - members
        members |= more
        added = bool(more)
    return [found[pid] for pid in members if pid in found]


def pss_mb(root: int) -> float:
    """Memory of a process and its descendants, in MB. Pages that they share count once (PSS)."""
    total = 0
    for one in family(root):
        try:
            lines = Path(f"/proc/{one.number}/smaps_rollup").read_text().splitlines()
        except OSError:  # it has ended
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


@contextmanager
def peak_memory(root: int) -> Iterator[Peak]:
    """Watch the memory of a process and its descendants. Pages that they share count once for each."""
    peak, stop = Peak(), threading.Event()

    def watch() -> None:
        while not stop.wait(_PAUSE):
            peak.mb = max(peak.mb, sum(one.rss_mb for one in family(root)))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()


def _processes() -> Iterator[tuple[int, Process]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                # The fields after the name, which may hold blanks: proc(5).
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            number, ticks = int(folder.name), int(fields[11]) + int(fields[12])
            yield (
                number,
                Process(number, int(fields[1]), ticks / _TICKS, int(fields[21]) * _PAGE_MB),
            )
