"""A table's counters over its life, and its tombstones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import structlog

from tidesink.errors import TidesinkError
from tidesink.events import LOGICAL_BITS, TableId
from tidesink.sinks.batch.context import WorkerContext
from tidesink.sinks.batch.counts import Account, Filtered
from tidesink.sinks.batch.run import BatchOutcome
from tidesink.sinks.kafka.compaction import CaughtUp
from tidesink.sinks.state.progress import Progress, Rank, TableStatus
from tidesink.sinks.targets.base import Collected, SequencedTable
from tidesink.sinks.worker.control import PLACE

_log = structlog.get_logger("tidesink.worker")
_TOMBSTONES: Final = "tombstones"
# In a status's details: the work that Spark did for a lake's last batch instead of writing files, and why.
LEFT: Final = "left_to_spark"
_DOUBTED: Final = (
    "Rows were applied with a warning: the log has the first of each batch and the reason. Compare the table "
    "with the source. If their checksums do not match, source.checksum: reject keeps such rows out. If the "
    "keys of deletes may be wrong, list the table's key under tables: keys if it is right."
)


class Tally:
    """Counters of this run, and of the table's life as recorded in the state store."""

    def __init__(self) -> None:
        self.run, self.total = Account(), Account()
        self.filtered = Filtered()
        self.run_zero_dates, self.zero_dates = Counter[str](), Counter[str]()
        self.run_ambiguous_times, self.ambiguous_times = Counter[str](), Counter[str]()
        self.warnings: tuple[str, ...] = ()
        self.batch = 0
        self.commit_ts: int | None = None
        self.place = ""
        self.life, self.epoch = 0, 0
        self.caught_up = CaughtUp()
        self._left = ""
        self._tombstones: Mapping[str, Any] = {}
        self._held = self._resumed = False
        self._known: Rank = (0, 0, -1)

    @property
    def rank(self) -> Rank:
        """The rank of the hold and its last batch."""
        return self.life, self.epoch, self.batch

    def claimed(self, epoch: int, before: TableStatus | None) -> None:
        """Continue counting under a new claim of the table; ``before``: its status from before the claim.

        An epoch that is not above that status's epoch belongs to a new table, or to one from a backup.
        """
        self.life = before.life + (epoch <= before.epoch) if before is not None else 0
        self.epoch = epoch
        self._held, self._resumed = True, False

    def resume(self, context: WorkerContext, table: TableId) -> bool:
        """Load the state store's counters, until the table is held: from then on no other worker counts."""
        if not self._resumed:
            status = context.store.status_of(context.config.pipeline, table)
            if status is not None and status.rank > self._known:
                self._adopt(status)
            self._resumed = self._held
        return True

    def _adopt(self, status: TableStatus) -> None:
        self.total = Account.from_counters(status.counters)
        self.filtered = Filtered.from_details(status.details)
        self.zero_dates = Counter(status.zero_dates)
        self.ambiguous_times = Counter(status.ambiguous_times)
        self.batch, self.commit_ts = status.batch, status.commit_ts
        self.place = str(status.details.get(PLACE, ""))
        self._left = str(status.details.get(LEFT, ""))
        self._tombstones = status.details.get(_TOMBSTONES) or {}
        self.caught_up = CaughtUp.known(status.details)
        self._known = status.rank
        if not self._held:
            self.life, self.epoch = status.life, status.epoch

    def stands(self, progress: Progress, place: str) -> None:
        """Record what the target holds, and its location, when the table is opened."""
        if place != self.place:
            self._left = ""
        if place != self.place or progress.batch < self.caught_up.batch:
            # These belong to another table, or to batches that a restore has removed.
            self.caught_up = CaughtUp()
        self.batch, self.commit_ts, self.place = progress.batch, progress.commit_ts, place

    def add(self, outcome: BatchOutcome) -> None:
        """Count one batch."""
        account = outcome.account or Account()
        self.run, self.total = self.run + account, self.total + account
        self.batch, self.commit_ts = outcome.progress.batch, outcome.progress.commit_ts
        self._known = self.rank
        self.filtered += outcome.filtered
        self._left = self._left if outcome.left is None else outcome.left
        for counts in (self.run_zero_dates, self.zero_dates):
            counts.update(outcome.zero_dates)
        for counts in (self.run_ambiguous_times, self.ambiguous_times):
            counts.update(outcome.ambiguous_times)
        doubts = (_DOUBTED,) if outcome.doubted else ()
        self.warnings = tuple(dict.fromkeys((*self.warnings, *outcome.warnings, *doubts)))

    def left(self) -> dict[str, Any]:
        """Return the detail of the last batch with rows if Spark wrote it, by any worker."""
        return {LEFT: self._left} if self._left else {}

    def forgotten(self, tombstones: Tombstones | None) -> dict[str, Any]:
        """Return the detail of the tombstones, as of the last collection by any worker."""
        if tombstones is not None and tombstones.last is not None:
            return {_TOMBSTONES: tombstones.last._asdict()}
        known = self._tombstones
        # A table that was created again has collected nothing.
        holds = tombstones is None or tombstones.horizon == known.get("horizon")
        return {_TOMBSTONES: dict(known)} if known and holds else {}


_TSO_PER_SECOND: Final = 1000 << LOGICAL_BITS
# Number of collections per retention: each one scans the table's tombstones once.
_TIMES_A_RETENTION: Final = 4


def next_horizon(progress: Progress, topic: str, retention: float) -> int | None:
    """Return the commit_ts up to which tombstones may be removed.

    It is ``retention`` seconds before the applied commit_ts of the slowest partition; None if a partition
    has applied nothing that has a commit_ts.
    """
    at = progress.topics.get(topic)
    passed = [
        max(part.applied_commit_ts or 0, part.watermark or 0)
        for part in (at.partitions.values() if at else ())
    ]
    least = min(passed, default=0) - int(retention * _TSO_PER_SECOND)
    return least if least > 0 else None


class Tombstones:
    """The tombstones of one table. ``retention``: seconds of the source's time; None keeps them forever.

    A horizon is never lowered: tombstones that were removed before it cannot be restored.
    """

    def __init__(self, table: SequencedTable, retention: float | None) -> None:
        self._table = table
        self._retention = retention
        self.horizon = table.horizon()
        self.last: Collected | None = None

    def collect_if_due(self, progress: Progress, topic: str) -> None:
        """Remove old tombstones from time to time; a failure is logged, and a later batch tries again."""
        if self._retention is None:
            return
        horizon = next_horizon(progress, topic, self._retention)
        if horizon is None:
            return
        step = self._retention * _TSO_PER_SECOND / _TIMES_A_RETENTION
        if self.horizon is not None and horizon - self.horizon < max(step, 1):
            return
        try:
            self.last = self._table.collect(horizon)
            self.horizon = self.last.horizon
        except TidesinkError as exc:
            _log.warning("deletes not collected", topic=topic, error=str(exc))
            self.horizon = self._known(horizon)

    def _known(self, asked: int) -> int | None:
        """Return the horizon after a failed collection; ``asked`` if the table does not answer."""
        try:
            return self._table.horizon()
        except TidesinkError:
            return asked
