"""The command lines of the processes that a process starts, which every user of the machine can read."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

Seen = TypeVar("Seen")
_PAUSE_SECONDS = 0.03  # Spark's launcher lives for some 0.3 s


@contextmanager
def command_lines_below(pid: int) -> Iterator[set[bytes]]:
    """Collect those of all that come below a process until the end; arguments end with a zero byte.

    A process has the command line of its parent until it runs its own program. So lines that were there
    before are left out, as are the processes.
    """
    before = {*_processes_below(pid)}
    lines = {_command_line(one) for one in before}

    def look() -> Iterator[bytes]:
        found = (_command_line(one) for one in _processes_below(pid) if one not in before)
        return (line for line in found if line not in lines)

    with seen_meanwhile(look) as seen:
        yield seen


@contextmanager
def seen_meanwhile(look: Callable[[], Iterable[Seen]]) -> Iterator[set[Seen]]:
    """Collect what looks see, again and again until the end."""
    seen, ended = set[Seen](), threading.Event()

    def watch() -> None:
        while not ended.wait(_PAUSE_SECONDS):
            seen.update(look())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield seen
    finally:
        ended.set()
        watcher.join()


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _processes_below(pid: int) -> list[int]:
    children = defaultdict[int, list[int]](list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            children[_parent(entry)].append(int(entry.name))
    found = [pid]
    for one in found:
        found += children[one]
    return found


def _parent(entry: Path) -> int:
    try:
        return int((entry / "stat").read_text("ascii", "replace").rpartition(")")[2].split()[1])
    except OSError:
        return -1
