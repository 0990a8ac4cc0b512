"""A table that is passed on as messages: what all such targets do around the sending itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from tidesink.errors import SchemaRefusedError
from tidesink.sinks.evolve import gap_of, plan_evolution
from tidesink.sinks.progress import Progress
from tidesink.sinks.shape import TableShape
from tidesink.sinks.targets.base import ApplyResult, Claim, EvolveResult, ReducedBatch, SchemaGap
from tidesink.sinks.targets.message_batches import evolved
from tidesink.sinks.targets.store_ledger import LedgerEntry, StoreLedger, sent_result
from tidesink.sinks.targets.task_outcomes import Sent


class MessageTable(ABC):
    """One table, open for one worker thread; its progress is in the ledger."""

    def __init__(self, shape: TableShape, *, ledger: StoreLedger) -> None:
        self._shape = shape
        self._ledger = ledger
        self._created = False

    def claim(self) -> Claim:
        """Take the table's next epoch in the ledger, then say what is applied."""
        self._created = self._ledger.entry().columns is None
        claim = self._ledger.claim()
        if self._created:
            self._ledger.write_columns({column.name: column.spark for column in self._shape.columns})
        return claim

    def committed(self) -> Progress | None:
        """The progress that the ledger holds."""
        return self._ledger.committed()

    def gap(self, shape: TableShape) -> SchemaGap:
        """What the columns that were sent until now lack."""
        present = dict(self._ledger.entry().columns or {})
        return gap_of(present, plan_evolution(present, shape))

    def evolve(self, shape: TableShape) -> EvolveResult:
        """Make ready for rows of ``shape``; what was sent stays as it is."""
        result, columns = evolved(self._ledger.held(), shape, created=self._created)
        self._prepare(shape)
        if result.added or result.widened:
            self._ledger.write_columns(columns)
        self._created = False
        return result

    def rename_column(self, old: str, _new: str) -> None:
        """What was sent cannot be changed."""
        raise SchemaRefusedError("a column that was sent cannot be renamed", column=old)

    def drop_columns(self, names: Sequence[str]) -> None:
        """What was sent cannot be changed."""
        raise SchemaRefusedError("columns that were sent cannot be dropped", column=", ".join(names))

    def apply(self, batch: ReducedBatch, progress: Progress) -> ApplyResult:
        """Send a batch, wait until all of it is acknowledged, and write its progress down."""
        entry = self._ledger.held(progress.epoch)
        done = entry.done(progress)
        if done is not None:
            return done
        sent = Sent(0, 0) if batch.empty else self._send(batch, progress, entry)
        result = sent_result(*sent, f"{entry.told_epoch}/{progress.batch}")
        batch.on_staged()
        self._ledger.write(progress, result)
        return result

    def close(self) -> None:  # noqa: B027  (most hold nothing open)
        """Let go of what is held open."""

    def _prepare(self, shape: TableShape) -> None:  # noqa: B027  (most need nothing)
        """What must be there before rows of a shape are sent."""

    @abstractmethod
    def _send(self, batch: ReducedBatch, progress: Progress, entry: LedgerEntry) -> Sent:
        """Send a batch that is not empty, on what the ledger's entry says; what was acknowledged."""
