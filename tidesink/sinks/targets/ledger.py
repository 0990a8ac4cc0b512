"""A table's entry in the ledger of its target.

Each target stores the entry in its own way: Delta in the commits of its log, Iceberg in a table property,
databases in a row of a ledger table, and targets of messages in the state store.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from tidesink.errors import StaleProgressError
from tidesink.sinks.state.progress import Hold, Progress, done_before
from tidesink.sinks.targets.base import ApplyResult

E = TypeVar("E", bound="Entry")
T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """A table's entry in the ledger, or the entry of one shard of a table that several source tables share.

    Attributes:
        pipeline: The pipeline that writes the table.
        keys: The key columns under which the rows were written.
        epoch: Number of claims of the table.
        progress: The applied progress; None if no batch was ever applied.
        result: Row counts of the last batch; None after a claim. Delta has them in the commit instead.
        known: For a shard, the columns of its rows; None if the shard has no rows.
    """

    pipeline: str
    keys: tuple[str, ...]
    epoch: int = 0
    progress: Progress | None = None
    result: ApplyResult | None = None
    known: tuple[str, ...] | None = None

    @property
    def batch(self) -> int:
        """The number of the last applied batch; 0 if no batch was ever applied."""
        return self.progress.batch if self.progress else 0

    @property
    def hold(self) -> Hold:
        """The claim of the worker that holds the table."""
        return (self.epoch,)

    def claimed(self: E, keys: tuple[str, ...]) -> E:
        """Return the entry after the next claim of the table, which has the next epoch and no result.

        ``keys``: the key columns of the worker that claims the table. The result belongs to a batch of the
        previous epoch.
        """
        epoch = self.epoch + 1
        progress = replace(self.progress, epoch=epoch) if self.progress else None
        return replace(self, keys=keys, epoch=epoch, progress=progress, result=None)

    def done(self, progress: Progress) -> ApplyResult | None:
        """Return the result of a batch that is applied already; None if the batch must be applied now.

        ``progress``: the progress that includes the batch.

        Raises:
            StaleProgressError: A later batch is applied, or ``progress`` does not follow the applied one.
        """
        return done_before(progress, self.progress, self.result)


def required_claim(claimed: T | None, *, table: object) -> T:
    """Return a worker's claim on a table, in the target's own form.

    Raises:
        StaleProgressError: this worker has not claimed the table.
    """
    if claimed is None:
        raise StaleProgressError(
            "The table must be claimed before a batch is applied. Call `claim` first.", table=str(table)
        )
    return claimed
