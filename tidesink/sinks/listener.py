"""Observers of the worker: they hear every step and can never fail a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from tidesink.errors import TidesinkError
from tidesink.events import TableId
from tidesink.sinks.accounting import Account
from tidesink.sinks.state_store import TableStatus
from tidesink.sinks.summary import Doubt

_log = structlog.get_logger("tidesink.worker")


@dataclass(frozen=True)
class BatchStarted:
    """A batch is fixed: so many records between its offsets."""

    table: TableId
    batch: int
    records: int


@dataclass(frozen=True)
class BatchApplied:
    """A batch and its progress are in the target. ``seconds`` by step, in the order of the batch.

    ``doubted``: rows among it whose checksum does not match; ``doubts``: the first of each partition.
    """

    table: TableId
    batch: int
    account: Account
    version: str
    commit_ts: int | None
    bytes_read: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    doubted: int = 0
    doubts: tuple[Doubt, ...] = ()


@dataclass(frozen=True)
class StepRetried:
    """A step failed and is tried again after ``pause`` seconds. ``table`` is None for a shared step."""

    table: TableId | None
    error: TidesinkError
    pause: float


@dataclass(frozen=True)
class TableChanged:
    """A table's status is another than before."""

    status: TableStatus


WorkerEvent = BatchStarted | BatchApplied | StepRetried | TableChanged


class Listener(Protocol):
    """Hears the worker. Called from several threads; what it raises is logged and goes no further."""

    def hear(self, event: WorkerEvent) -> None:
        """Take note of one event."""


class Listeners:
    """All observers of a worker as one."""

    def __init__(self, listeners: Sequence[Listener] = ()) -> None:
        self._listeners = tuple(listeners)

    def hear(self, event: WorkerEvent) -> None:
        """Tell every observer."""
        for listener in self._listeners:
            try:
                listener.hear(event)
            except Exception as exc:  # noqa: BLE001  (an observer's fault must not stop a table)
                _log.warning("observer failed", observer=type(listener).__name__, error=type(exc).__name__)
