"""How long deletes are remembered under ``sequence_by: source``, and when they are forgotten.

The horizon is counted in the source's time, from what every partition of the topic has surely passed: a
partition that lags, or is idle without watermarks, holds it back. What is at or below the horizon when it
arrives is a bad record (``EventRules``), never applied in silence.
"""

from __future__ import annotations

from typing import Final

import structlog

from tidesink.errors import TidesinkError
from tidesink.sinks.progress import Progress
from tidesink.sinks.targets.base import Collected, SequencedTable

_log = structlog.get_logger("tidesink.worker")
# A TiDB TSO is milliseconds since 1970, and 18 bits that count within one.
_TSO_PER_SECOND: Final = 1000 << 18
# Deletes are collected so many times in a retention: each time the table's marks are read once.
_TIMES_A_RETENTION: Final = 4


def next_horizon(progress: Progress, topic: str, retention: float) -> int | None:
    """The commit_ts up to which deletes may be forgotten, ``retention`` seconds behind what is applied.

    None where some partition has applied nothing that has a commit_ts.
    """
    at = progress.topics.get(topic)
    passed = [
        max(part.applied_commit_ts or 0, part.watermark or 0)
        for part in (at.partitions.values() if at else ())
    ]
    least = min(passed, default=0) - int(retention * _TSO_PER_SECOND)
    return least if least > 0 else None


class Tombstones:
    """The marked deletes of one table; ``retention`` in seconds of the source's time, None: kept for ever.

    The horizon that was ever raised holds all the same: what was forgotten before is not known again.
    """

    def __init__(self, table: SequencedTable, retention: float | None) -> None:
        self._table = table
        self._retention = retention
        self.horizon = table.horizon()
        self.last: Collected | None = None

    def collect_if_due(self, progress: Progress, topic: str) -> None:
        """Forget old deletes, seldom; a failure is said and tried again after a later batch."""
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
        """The horizon after a collection that failed; where the table does not answer, as if it had not."""
        try:
            return self._table.horizon()
        except TidesinkError:
            return asked
