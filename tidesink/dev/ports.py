"""Loopback ports: who holds one, and free ones."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

LOOPBACK: Final = "127.0.0.1"
_LISTEN: Final = "0A"
# Below lie the ports of well-known services, above Kubernetes' NodePorts and those that systems give to
# connections.
_LOWEST: Final = 10_000
_HIGHEST: Final = 29_999
_GIVEN_OUT: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_ANY: Final = 0
_TRIES: Final = 100


def free_ports(count: int) -> list[int]:
    """Different ports that nothing listens on at this moment.

    The system gives none of them to a connection, or to who listens anywhere: a service takes seconds to
    start, and would find its port in use. Raises OSError where there is none to be had.
    """
    found: list[int] = []
    candidates = _candidates()
    with contextlib.ExitStack() as stack:
        while len(found) < count:
            found += _bound(stack.enter_context(socket.socket()), next(candidates))
    return found


def _bound(one: socket.socket, port: int) -> list[int]:
    """The port that the socket has now; none where that one cannot be had."""
    try:
        one.bind((LOOPBACK, port))
    except OSError:
        if port == _ANY:
            raise  # the system has none, and would say so for ever
        return []
    return [one.getsockname()[1]]


def _candidates() -> Iterator[int]:
    """Ports to try, in no order, so that two who look at once find others; then whatever the system gives."""
    highest = _HIGHEST
    with contextlib.suppress(OSError, ValueError):
        highest = min(highest, int(_GIVEN_OUT.read_text(encoding="ascii").split()[0]) - 1)
    ports = range(_LOWEST, highest + 1)
    yield from random.SystemRandom().sample(ports, min(len(ports), _TRIES))
    while True:
        yield _ANY


def port_owner(port: int) -> str:
    """`` by pid 12 (java)`` for the process that listens on the port, or nothing when it cannot be read."""
    inodes = _listening_inodes(port)
    for process in Path("/proc").glob("[0-9]*") if inodes else ():
        if inodes & _socket_inodes(process):
            return f" by pid {process.name} ({_command_name(process)})"
    return ""


def _listening_inodes(port: int) -> set[str]:
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    found.add(f"socket:[{fields[9]}]")
    return found


def _socket_inodes(process: Path) -> set[str]:
    links = set()
    with contextlib.suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                links.add(str(descriptor.readlink()))
    return links


def _command_name(process: Path) -> str:
    try:
        words = (process / "cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
    except OSError:
        return "?"
    return Path(words[0]).name or "?"
