"""The worker's own memory beside the target: history, status, documents.

It is never more right than the target. History (batch -> progress) is written before the target's
commit and serves when the target's own record of old commits was cleaned away. Losing the store
loses status and history, not data. Targets that keep no rows (Kafka, HTTP) have their progress here
too: with the store it is lost, and everything is sent again under a greater epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, Protocol

from tidesink.events import TableId
from tidesink.sinks.state.progress import Progress

# Stands for the schema of a table whose name nobody knows: its topic's name is all there is to show, and
# the state store keeps no status of it.
UNKNOWN_SCHEMA: Final = "?"
TableState = Literal["RUNNING", "IDLE", "PAUSED", "FAILING"]
Rank = tuple[int, int, int]


@dataclass(frozen=True)
class TableStatus:
    """What ``tidesink status`` shows of one table.

    ``counters``: row events by kind, summed over all batches. ``zero_dates``: per column, how many dates
    no calendar has were turned to NULL. ``error``: class name and message of the last error.
    ``epoch``: of the hold on the table in which this was said; 0 before any, and in what earlier versions
    saved. ``life``: how often the table's epochs were seen to begin again, since it was made again or brought
    back from a backup. ``updated``: set by the store, UTC.
    """

    pipeline: str
    table: TableId
    state: TableState
    error: str | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    zero_dates: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    batch: int = 0
    commit_ts: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    updated: datetime | None = None
    life: int = 0
    epoch: int = 0

    @property
    def rank(self) -> Rank:
        """Which of two statuses is of the later hold on the table, and in it of the later batch."""
        return self.life, self.epoch, self.batch


class StateStore(Protocol):
    """Where a worker remembers; every method raises StateStoreError when the store does not answer."""

    def record_progress(self, progress: Progress) -> None:
        """Remember what a batch will have applied, before its commit."""

    def progress_of(self, pipeline: str, table: TableId, txn_version: int) -> Progress | None:
        """The progress of one batch by its transaction version; None where it is not known."""

    def save_status(self, status: TableStatus) -> bool:
        """Replace a table's status in one step unless it has a greater rank; whether it was replaced.

        A worker that lost the table to another never puts its word over the other's.
        """

    def statuses(self, pipeline: str) -> tuple[TableStatus, ...]:
        """The status of every table of a pipeline, by table name."""

    def status_of(self, pipeline: str, table: TableId) -> TableStatus | None:
        """The status of one table; None where none was saved."""

    def save_document(self, kind: str, name: str, document: Any) -> None:
        """Keep a JSON-able document, such as a stream's table definitions, under kind and name."""

    def load_document(self, kind: str, name: str) -> Any | None:
        """The document kept under kind and name; None where there is none."""

    def swap_document(self, kind: str, name: str, *, old: Any | None, new: Any) -> bool:
        """Replace a document in one step if it is still ``old`` (None: there is none); whether it was.

        ``old`` is as ``load_document`` gave it.
        """
