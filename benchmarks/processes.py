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
    """One process: its parent, its CPU seconds with those of its ended children, its RSS in MB."""

    parent: int
    cpu: float
    rss_mb: float


class Peak:
    """The highest RSS of a process and its descendants together, in MB."""

    mb: float = 0.0


def family(root: int) -> list[Process]:
    """A process and all that descend from it."""
    found = dict(_processes())
    members, added = {root}, True
    while added:
        more = {pid for pid, one in found.items() if one.parent in members} - members
        members |= more
        added = bool(more)
    return [found[pid] for pid in members if pid in found]


def cpu_seconds(root: int) -> float:
    """CPU time of a process and all that descend from it, with those that have ended."""
    return sum(one.cpu for one in family(root))


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
            ticks = sum(int(field) for field in fields[11:15])
            yield int(folder.name), Process(int(fields[1]), ticks / _TICKS, int(fields[21]) * _PAGE_MB)
