"""A table's counters, for its status and report, and the removal of old tombstones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import structlog

from tidesink.errors import TidesinkError
from tidesink.events import LOGICAL_BITS, TableId
from tidesink.sinks.jobs.base import BatchOutcome
from tidesink.sinks.kafka.compaction import CaughtUp
from tidesink.sinks.laws.counts import Account, Filtered
from tidesink.sinks.laws.executors import Choice
from tidesink.sinks.runtime.context import WorkerContext
from tidesink.sinks.runtime.control import PLACE
from tidesink.sinks.state.progress import Progress, Rank, TableStatus
from tidesink.sinks.targets.base import Collected, SequencedTable

_log = structlog.get_logger("tidesink.worker")
_TOMBSTONES: Final = "tombstones"
# Key in a status's details: why the last batch into a lake was written by a Spark job and not by the tasks.
LEFT: Final = "left_to_spark"
# Key in a status's details: the executor that ran the last batch with records, and why.
EXECUTOR: Final = "executor"
_WARNED: Final = (
    "Rows were applied with a warning. The log has the reason and the first such row of each batch. Compare "
    "the table with the source (`tidesink diff`). If the rows' checksums do not match, set source.checksum: "
    "reject to keep such rows out. If the keys of deletes may be wrong, check the table's key and list its "
    "columns under tables: keys."
)


class TableCounters:
    """Counts a table's events in this run and in all runs. The state store keeps the counts of all runs.

    ``run``: counts of this run. ``total``: counts of all runs. ``batch``, ``commit_ts``: number and commit_ts
    of the last batch. ``place``: the table's location at the target. ``life``, ``epoch``: identify the worker
    that has claimed the table (``TableStatus``). ``ran``: the executor of the last batch with records, with
    the reason. ``caught_up``: when the table was last at the end of a compacted topic.
    """

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
        self.ran: Choice | None = None
        self._left = ""
        self._tombstones: Mapping[str, Any] = {}
        self._held = self._resumed = False
        self._known: Rank = (0, 0, -1)

    @property
    def rank(self) -> Rank:
        """Life, epoch and number of the last batch. Of two statuses, the one with the lower rank is older."""
        return self.life, self.epoch, self.batch

    def claimed(self, epoch: int, before: TableStatus | None) -> None:
        """Record that this worker has claimed the table with the epoch ``epoch``.

        ``before``: the table's status before the claim. If its epoch is not below the new epoch, the table at
        the target is new or was restored from a backup, so its epochs began again. Then ``life`` is
        increased.
        """
        self.life = before.life + (epoch <= before.epoch) if before is not None else 0
        self.epoch = epoch
        self._held, self._resumed = True, False

    def resume(self, context: WorkerContext, table: TableId) -> bool:
        """Load the counters of all runs from the state store, because another worker may have changed them.

        After this worker has claimed the table, the counters are loaded only once more, because from then on
        no other worker changes them. Always returns True.
        """
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
        ran = status.details.get(EXECUTOR)
        self.ran = None if ran is None else Choice(ran["name"], ran["reason"])
        self._tombstones = status.details.get(_TOMBSTONES) or {}
        self.caught_up = CaughtUp.known(status.details)
        self._known = status.rank
        if not self._held:
            self.life, self.epoch = status.life, status.epoch

    def stands(self, progress: Progress, location: str) -> None:
        """Record the table's location and progress in the target, when the table is opened."""
        if location != self.place:
            self._left = ""
        if location != self.place or progress.batch < self.caught_up.batch:
            # The recorded time belongs to another table, or to batches that a restore has removed.
            self.caught_up = CaughtUp()
        self.batch, self.commit_ts, self.place = progress.batch, progress.commit_ts, location

    def add(self, outcome: BatchOutcome) -> None:
        """Add the events and warnings of one batch to the table's counters."""
        account = outcome.account or Account()
        self.run, self.total = self.run + account, self.total + account
        self.batch, self.commit_ts = outcome.progress.batch, outcome.progress.commit_ts
        self._known = self.rank
        self.filtered += outcome.filtered
        self._left = self._left if outcome.left is None else outcome.left
        for counts in (self.run_zero_dates, self.zero_dates):
            counts.update(outcome.findings.zero_dates)
        for counts in (self.run_ambiguous_times, self.ambiguous_times):
            counts.update(outcome.findings.ambiguous_times)
        first_warnings = (_WARNED,) if outcome.findings.warned else ()
        self.warnings = tuple(dict.fromkeys((*self.warnings, *outcome.warnings, *first_warnings)))

    def left(self) -> dict[str, Any]:
        """Return the reason why a Spark job wrote the last batch, and not tidesink's own tasks.

        The reason is a detail of the table's status, under the key ``LEFT``. Empty if tidesink's tasks wrote
        the last batch with rows, or if the target is not a lake (Delta or Iceberg).
        """
        return {LEFT: self._left} if self._left else {}

    def executed(self) -> dict[str, Any]:
        """Return the executor of the last batch with records, as a detail of the table's status."""
        return {} if self.ran is None else {EXECUTOR: {"name": self.ran.executor, "reason": self.ran.reason}}

    def forgotten(self, tombstones: Tombstones | None) -> dict[str, Any]:
        """Return the result of the last removal of old tombstones, as a detail of the table's status.

        This worker or an earlier one has removed them.
        """
        if tombstones is not None and tombstones.last is not None:
            return {_TOMBSTONES: tombstones.last._asdict()}
        recorded = self._tombstones
        # If the table was created again, the recorded removal was in its predecessor.
        holds = tombstones is None or tombstones.horizon == recorded.get("horizon")
        return {_TOMBSTONES: dict(recorded)} if recorded and holds else {}


_TSO_PER_SECOND: Final = 1000 << LOGICAL_BITS
# Number of removals in the time of the retention. Each one scans all tombstones of the table.
_TIMES_A_RETENTION: Final = 4


def next_horizon(progress: Progress, topic: str, retention: float) -> int | None:
    """Return the horizon: the commit_ts up to which tombstones (keys of deleted rows) may be removed.

    It is ``retention`` seconds before the applied commit_ts or watermark of the slowest partition. None if
    this is not known yet, because nothing with a commit_ts was applied from some partition of ``topic``.
    """
    topic_progress = progress.topics.get(topic)
    passed = [
        max(part.applied_commit_ts or 0, part.watermark or 0)
        for part in (topic_progress.partitions.values() if topic_progress else ())
    ]
    least = min(passed, default=0) - int(retention * _TSO_PER_SECOND)
    return least if least > 0 else None


class Tombstones:
    """Removes old tombstones of one table. A tombstone is the key of a deleted row, stored in the target.

    Without its tombstone, a deleted row would come back if an older change of the row is applied later.
    ``retention``: seconds of the source's time after which tombstones are removed, or None to keep them
    forever. ``horizon``: commit_ts up to which tombstones were removed. It is never lowered, because removed
    tombstones cannot be restored. ``last``: result of the last removal in this run.
    """

    def __init__(self, table: SequencedTable, retention: float | None) -> None:
        self._table = table
        self._retention = retention
        self.horizon = table.horizon()
        self.last: Collected | None = None

    def collect_if_due(self, progress: Progress, topic: str) -> None:
        """Remove old tombstones if the last removal is long enough ago.

        A failure is logged, and the removal is tried again after a later batch.
        """
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
        """Return the target's horizon after a failed removal, or ``asked`` if the target does not answer."""
        try:
            return self._table.horizon()
        except TidesinkError:
            return asked
