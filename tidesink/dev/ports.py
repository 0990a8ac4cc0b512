"""Loopback ports: who holds one, and free ones."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import Final

LOOPBACK: Final = "127.0.0.1"
_LISTEN: Final = "0A"


def free_ports(count: int) -> list[int]:
    """Different ports that nothing listens on at this moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((LOOPBACK, 0))
        return [one.getsockname()[1] for one in sockets]


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
