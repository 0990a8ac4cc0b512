"""The process that forks Spark's Python workers, and their socket to the JVM.

The process imports what tasks need before it forks. Otherwise each worker would import it again, in the first
batch and whenever Spark starts one more: 0.4 s of CPU. ``session`` uses this module only for a local master,
whose workers have this process's packages. An executor of a cluster starts ``pyspark.daemon``: there tasks
import what they need, and report which package is missing.

Only modules may exist before the fork: no Kafka client, whose threads the child would not have, and nothing
of Arrow that starts its thread pools.
"""

from __future__ import annotations

import gc
import socket
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path, PurePath
from typing import Final

# A codec without its optional package is imported by the task that needs it, and fails there.
MODULES: Final = (
    "pyarrow.compute",
    "tidesink.sinks.batch.tasks",
    "tidesink.sinks.kafka.fetch",
    "tidesink.sinks.plans.flat_avro",
    "tidesink.sinks.plans.canal_json",
    "tidesink.sinks.plans.debezium_avro",
    "tidesink.sinks.plans.debezium_json",
)


_ARCHIVES: Final = (".zip", ".jar")


def leave_archives_out() -> None:
    """Import PySpark from its installation, and not from the archives of it that Spark puts on the path.

    A worker searches every archive on its path again before each task (``importlib.invalidate_caches``). This
    takes 0.1 s of CPU per task, most of a small batch. Archives of another PySpark (``SPARK_HOME``) and
    users' own archives stay on the path.
    """
    others = [place for place in sys.path if PurePath(place).suffix not in _ARCHIVES]
    installed = PathFinder.find_spec("pyspark", others)
    if installed is None or installed.origin is None or PathFinder.find_spec("py4j", others) is None:
        return
    home = Path(installed.origin).resolve().parent
    ours = {one for one in sys.path if one not in others and Path(one).resolve().is_relative_to(home)}
    sys.path[:] = [place for place in sys.path if place not in ours]
    for place in ours & sys.path_importer_cache.keys():
        del sys.path_importer_cache[place]


def import_modules(names: Iterable[str] = MODULES) -> None:
    """Import what tasks use. A failed import is left to the task that needs the module."""
    for name in names:
        with suppress(ImportError):
            import_module(name)


def answer_at_once() -> None:
    """Remove delays of this worker's socket to the JVM. Called when a task starts.

    The JVM writes a task's code and then its rows. The kernel holds the rows back until the code is
    acknowledged (Nagle), which the worker's kernel delays for 40 ms. Both options are Linux's.
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
    """Returns the connections of this process at its first task: only Spark's, before tasks open others."""
    found, numbers = list[int](), list[int]()
    with suppress(OSError):  # the system may not have this folder
        numbers += [int(place.name) for place in Path("/proc/self/fd").iterdir()]
    for number in numbers:
        with suppress(OSError), _lent(number) as one:
            if one.family in (socket.AF_INET, socket.AF_INET6) and one.getpeername():
                found.append(number)
    return tuple(found)


@contextmanager
def _lent(number: int) -> Iterator[socket.socket]:
    """Open the socket of a file descriptor, which stays open. Raises OSError if it is not a socket."""
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
    # A worker collects all garbage after each task. Objects from before the fork are not garbage (0.1 s a
    # task).
    gc.freeze()
    manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
