"""The daemon process that forks Spark's Python workers, and settings of the workers' sockets to the JVM.

The daemon imports the modules that tasks need before it forks. Otherwise each worker would import them again,
in the first batch and whenever Spark starts another worker, which takes 0.4 s of CPU. ``session`` uses this
module only for a local master, whose workers have this process's packages. An executor of a cluster starts
``pyspark.daemon``. There, tasks import what they need, and report a missing package.

Before the fork, nothing may be started that uses threads, because a child process does not have these
threads: no Kafka client, and nothing of Arrow that starts thread pools.
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

# The task that uses a codec imports the codec's optional packages, and fails if they are missing.
MODULES: Final = (
    "pyarrow.compute",
    "tidesink.sinks.batch.tasks",
    "tidesink.sinks.kafka.fetch",
    "tidesink.sinks.decode.flat_avro",
    "tidesink.sinks.decode.canal_json",
    "tidesink.sinks.decode.debezium_avro",
    "tidesink.sinks.decode.debezium_json",
)


_ARCHIVES: Final = (".zip", ".jar")


def leave_archives_out() -> None:
    """Remove the zip archives of PySpark from the path, so that PySpark is imported from its installation.

    Spark puts these archives on the path. Before each task, a worker searches every archive on its path again
    (``importlib.invalidate_caches``). This takes 0.1 s of CPU per task, which is most of a small batch.
    Archives of another PySpark (``SPARK_HOME``) and of users stay on the path.
    """
    others = [entry for entry in sys.path if PurePath(entry).suffix not in _ARCHIVES]
    installed = PathFinder.find_spec("pyspark", others)
    if installed is None or installed.origin is None or PathFinder.find_spec("py4j", others) is None:
        return
    home = Path(installed.origin).resolve().parent
    ours = {entry for entry in sys.path if entry not in others and Path(entry).resolve().is_relative_to(home)}
    sys.path[:] = [entry for entry in sys.path if entry not in ours]
    for entry in ours & sys.path_importer_cache.keys():
        del sys.path_importer_cache[entry]


def import_modules(names: Iterable[str] = MODULES) -> None:
    """Import modules that tasks use.

    A module that cannot be imported is skipped. The task that needs it then fails.
    """
    for name in names:
        with suppress(ImportError):
            import_module(name)


def answer_at_once() -> None:
    """Remove delays on this worker's socket to the JVM. Called when a task starts.

    The JVM writes a task's code and then its rows. The kernel holds the rows back until the code is
    acknowledged (Nagle's algorithm), and the worker's kernel delays that acknowledgement by 40 ms. Both
    socket options exist on Linux.
    """
    quick = getattr(socket, "TCP_QUICKACK", None)
    if quick is None:
        return
    for number in _sockets():
        with suppress(OSError), _lent(number) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.IPPROTO_TCP, quick, 1)  # until the kernel resets it


@cache
def _sockets() -> tuple[int, ...]:
    """Returns the file descriptors of this process's connections to the JVM.

    They are looked up at the first task, when the process has no other connections.
    """
    descriptors, numbers = list[int](), list[int]()
    with suppress(OSError):  # not every system has this folder
        numbers += [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
    for number in numbers:
        with suppress(OSError), _lent(number) as connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.getpeername():
                descriptors.append(number)
    return tuple(descriptors)


@contextmanager
def _lent(number: int) -> Iterator[socket.socket]:
    """Yield a socket object for a file descriptor, which stays open.

    Raises:
        OSError: The descriptor is not a socket.
    """
    socket_object = socket.socket(fileno=number)
    try:
        yield socket_object
    finally:
        socket_object.detach()


def main() -> None:
    """Run PySpark's daemon, after importing the modules that tasks need."""
    leave_archives_out()
    from pyspark.daemon import manager

    import_modules()
    # A worker runs a full garbage collection after each task. Frozen objects from before the fork are skipped
    # (0.1 s per task).
    gc.freeze()
    manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
