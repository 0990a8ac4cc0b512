"""Spark's Python workers: the process that forks them, and their socket to the JVM.

The process imports what tasks need before it forks.
Each worker would import it by itself otherwise, in the first batch and whenever Spark starts one more:
0.4 s of CPU. ``session`` names this module for a local master alone, whose workers have this
process's packages. An executor of a cluster starts ``pyspark.daemon``: there tasks import what they need, and
say which package is missing.

Only modules may exist before the fork: no Kafka client, whose threads the child would not have, and nothing
of Arrow that starts its thread pools.
"""

from __future__ import annotations

import gc
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Final

# By room; a codec that lacks an optional package is imported by the task that needs it, and fails there.
MODULES: Final = (
    "pyarrow.compute",
    "tidesink.sinks.batch.tasks",
    "tidesink.sinks.kafka.fetch",
    "tidesink.sinks.plans.flat_avro",
    "tidesink.sinks.plans.canal_json",
    "tidesink.sinks.plans.debezium_avro",
    "tidesink.sinks.plans.debezium_json",
)


# Archives that Spark puts on the path of each worker, by the beginnings of their names.
_ARCHIVES: Final = ("pyspark", "py4j", "spark-core")


def leave_archives_out() -> None:
    """Import PySpark from where it is installed, not from Spark's archives.

    A worker looks into every archive on its path again before each task (``importlib.invalidate_caches``):
    0.1 s of CPU a task, most of a small batch. Where PySpark is in the archives alone, they stay.
    """
    before = list(sys.path)
    sys.path[:] = [place for place in before if not _is_archive(PurePath(place))]
    if find_spec("pyspark") is None or find_spec("py4j") is None:
        sys.path[:] = before
        return
    for place in [one for one in sys.path_importer_cache if _is_archive(PurePath(one))]:
        del sys.path_importer_cache[place]


def _is_archive(place: PurePath) -> bool:
    return place.suffix in (".zip", ".jar") and place.name.startswith(_ARCHIVES)


def import_modules() -> None:
    """Import what tasks use; what cannot be imported is left to the task that needs it."""
    for name in MODULES:
        with suppress(ImportError):
            import_module(name)


def answer_at_once() -> None:
    """Have this worker's socket to the JVM wait for nothing; called as a task begins.

    The JVM writes a task's code and then its rows, and the kernel holds the rows back until the code is
    acknowledged (Nagle), which the worker's kernel puts off for 40 ms. Both ways are Linux's.
    """
    quick = getattr(socket, "TCP_QUICKACK", None)
    if quick is None:
        return
    for number in _sockets():
        with suppress(OSError), _lent(number) as found:
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            found.setsockopt(socket.IPPROTO_TCP, quick, 1)  # until the kernel changes it back


@cache
def _sockets() -> tuple[int, ...]:
    """The connections of this process as its first task begins: Spark's alone, before tasks open others."""
    found = list[int]()
    for number in [int(place.name) for place in Path("/proc/self/fd").iterdir()]:
        with suppress(OSError), _lent(number) as one:
            if one.family in (socket.AF_INET, socket.AF_INET6) and one.getpeername():
                found.append(number)
    return tuple(found)


@contextmanager
def _lent(number: int) -> Iterator[socket.socket]:
    """The socket of a file descriptor, which stays open; OSError where it is none."""
    found = socket.socket(fileno=number)
    try:
        yield found
    finally:
        found.detach()


def main() -> None:
    """Run Spark's own daemon."""
    leave_archives_out()
    from pyspark.daemon import manager

    import_modules()
    # A worker collects all garbage after each task: what is there before the fork is none (0.1 s a task).
    gc.freeze()
    manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
