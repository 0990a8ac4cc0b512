"""A table's status during an outage: when to save it, and the age of the oldest record not applied."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from tidesink.sinks.batch.tasks import Fetch
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.kafka.offsets import PartitionOffsets
from tidesink.sinks.state.failures import Failure, failure_in
from tidesink.sinks.state.progress import TableStatus

_log = structlog.get_logger("tidesink.worker")
# In a status's details: Kafka's time of the oldest record that is not applied, in ms since 1970.
OLDEST: Final = "oldest_unapplied"
LAG: Final = "lag"
# A failure shorter than this is not saved.
SAVE_SECONDS: Final = 1.0
# If tries follow each other faster than this, only one per this many seconds is saved.
AGAIN_SECONDS: Final = 5.0
# Maximum age, in seconds, of the lag in the status of a waiting table.
LAG_SECONDS: Final = 15.0
# Offsets may have no record, such as the end of a transaction, or a record removed by compaction.
_LOOKED_AT: Final = 100


class SavedStatus:
    """The last status of a table that was saved; decides if a new one must be saved.

    ``clock``: returns seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._at = float("-inf")
        self._lag: int | None = None
        self._has_failure = False

    def saved(self, status: TableStatus) -> None:
        """Record a status that is saved now."""
        self._at, self._lag = self._clock(), status.details.get(LAG)
        self._has_failure = failure_in(status.details) is not None

    def lacks(self, failure: Failure | None) -> bool:
        """Return True if a failure, or the end of one, must be saved now."""
        if failure is None:
            return self._has_failure
        now = self._clock()
        pause = 0.0 if failure.next_try is None else failure.next_try - now
        if self._has_failure:
            return pause >= AGAIN_SECONDS or not 0 <= now - self._at < AGAIN_SECONDS
        return pause >= SAVE_SECONDS or now - failure.since >= SAVE_SECONDS

    def lacks_lag(self, lag: int) -> bool:
        """Return True if the lag of a waiting table must be saved now."""
        return lag != self._lag and not 0 <= self._clock() - self._at < LAG_SECONDS


class OldestRecords:
    """Looks up the age of the oldest record that a table did not apply. ``fetch``: reads records.

    While nothing is applied the record stays the same, so each partition is asked only once.
    """

    def __init__(self, topic: str, fetch: Fetch) -> None:
        self._topic = topic
        self._fetch = fetch
        self._known: dict[int, tuple[int, int | None]] = {}

    def time(self, starts: Mapping[int, int], ends: Mapping[int, PartitionOffsets]) -> int | None:
        """Return Kafka's time of the oldest record from ``starts`` on, in ms since 1970; None if unknown."""
        times = []
        for number, at in ends.items():
            start = max(starts.get(number, at.earliest), at.earliest)
            if start >= at.latest:
                continue
            if self._known.get(number, (None,))[0] != start:
                self._known[number] = start, self._time_of(number, start, at.latest)
            times.append(self._known[number][1])
        return min((one for one in times if one is not None), default=None)

    def _time_of(self, number: int, start: int, end: int) -> int | None:
        wanted = FetchRange(self._topic, number, start, min(end, start + _LOOKED_AT), headers=False)
        try:
            for records in self._fetch(wanted):
                if records.num_rows:
                    found: int | None = records.column("timestamp")[0].as_py()
                    return found
        except Exception as exc:  # noqa: BLE001  (a status without it is better than none)
            _log.debug("age of the oldest record not known", topic=self._topic, error=type(exc).__name__)
        return None
