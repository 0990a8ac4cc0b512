"""What a run of the worker says when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tidesink.events import TableId
from tidesink.sinks.state_store import TableState

DONE: Final = 0
UNWELL: Final = 3
INTERRUPTED: Final = 130


@dataclass(frozen=True)
class TableReport:
    """One table at the end of a run.

    ``batches`` and ``counters`` are of this run alone, ``batch`` and ``commit_ts`` of the table's whole
    life. ``lag``: messages in Kafka not yet applied at the last look. ``zero_dates``: dates no calendar has
    that were made null, by column, in this run.
    """

    table: TableId
    topic: str
    state: TableState
    batch: int = 0
    batches: int = 0
    commit_ts: int | None = None
    lag: int = 0
    counters: Mapping[str, int] = field(default_factory=dict)
    zero_dates: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class RunReport:
    """All tables at the end of a run. ``error``: what ails the run as a whole."""

    pipeline: str
    tables: tuple[TableReport, ...]
    interrupted: bool = False
    seconds: float = 0.0
    error: str | None = None

    @property
    def exit_code(self) -> int:
        """0 done; 3 done but some table is paused or failing; 130 interrupted."""
        if self.interrupted:
            return INTERRUPTED
        unwell = self.error or any(table.state in ("PAUSED", "FAILING") for table in self.tables)
        return UNWELL if unwell else DONE
