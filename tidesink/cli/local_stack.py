"""The stack that ``tidesink dev up`` started here, for commands that were given no address."""

from __future__ import annotations

from pathlib import Path

from tidesink.dev.processes import find_running
from tidesink.dev.stack import DIRECTORY, Broker, Registry, StackAddresses


def running_stack(directory: Path = DIRECTORY) -> StackAddresses | None:
    """Where the broker and the registry of this directory run; None unless both do."""
    # The pid files know the ports, whatever options the stack was started with.
    broker = find_running(Broker(directory, 0, 0).files)
    registry = find_running(Registry(directory, 0).files)
    if broker is None or registry is None:
        return None
    return StackAddresses(
        Broker(directory, broker.port, 0).address, Registry(directory, registry.port).address
    )
