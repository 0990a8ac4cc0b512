"""A worker's claim on one Delta table: checks that it still holds, and finds the worker's commits."""

from __future__ import annotations

from tidesink.errors import StaleProgressError
from tidesink.sinks.spark.errors import SPARK_ERRORS
from tidesink.sinks.state.progress import Progress
from tidesink.sinks.targets.delta.ledger import DeltaEntry, Ledger
from tidesink.sinks.targets.ledger import required_claim


class DeltaHold:
    """A worker's claim on one Delta table."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._held: DeltaEntry | None = None
        # The version up to which the log was read.
        self.seen = -1

    @property
    def held(self) -> DeltaEntry:
        """The newest ledger entry of this worker.

        Raises:
            StaleProgressError: this worker has not claimed the table.
        """
        return required_claim(self._held, table=self._ledger.table)

    def claim(self) -> DeltaEntry:
        """Claim the table with the next epoch, which fences older workers. Returns the new ledger entry."""
        entry = self._ledger.claim()
        self._held, self.seen = entry, entry.commit.version
        return entry

    def check(self) -> list[DeltaEntry]:
        """Check that this worker still holds the table. Returns the ledger's entries that were committed
        since the last call, newest first.

        Raises:
            StaleProgressError: another worker claimed the table, or the table was restored or replaced.
        """
        epoch = self.held.epoch
        latest, entries = self._ledger.since(self.seen)
        for entry in entries:
            if entry.epoch != epoch:
                raise self._ledger.lost_to(entry)
        self.seen = latest
        if entries:
            self._held = entries[0]
        return entries

    def done(self, progress: Progress) -> DeltaEntry | None:
        """Return the ledger entry of a batch if the batch is committed; None otherwise.

        Raises:
            StaleProgressError: another worker claimed the table, the table was restored or replaced, or
                another batch was committed under this batch number.
        """
        held = self.held
        if progress.epoch != held.epoch:
            raise StaleProgressError(
                f"This worker holds epoch {held.epoch}, but the batch has epoch {progress.epoch}.",
                table=str(self._ledger.table),
            )
        entries = [*self.check(), held]
        done = next((e for e in entries if (e.kind, e.batch) == ("batch", progress.batch)), None)
        if done and done.progress and done.progress != progress:
            raise StaleProgressError(
                f"Epoch {progress.epoch} batch {progress.batch} is committed at version "
                f"{done.commit.version} with other progress than this batch's. Start again from the "
                "committed progress.",
                table=str(self._ledger.table),
            )
        return done

    def landed(self, progress: Progress) -> bool | None:
        """Return whether a batch's commit is in the log although Spark raised an error; None if the log
        cannot be read.
        """
        try:
            return self.done(progress) is not None
        except SPARK_ERRORS:
            return None
