"""What a table's status has of an outage: when it is saved, and how old the oldest unapplied record is."""

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
# Of tries in quicker succession one in so many seconds is saved.
AGAIN_SECONDS: Final = 5.0
# How old the lag of a table that waits may be in its status, in seconds.
LAG_SECONDS: Final = 15.0
# Offsets can have no record: of a transaction's end, or of a record that was compacted away.
_LOOKED_AT: Final = 100


class SavedStatus:
    """What the state store was last told of a table; says whether it is to be told more.

    ``clock`` gives seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._at = float("-inf")
        self._lag: int | None = None
        self._has_failure = False

    def saved(self, status: TableStatus) -> None:
        """Take note of a status that is saved now."""
        self._at, self._lag = self._clock(), status.details.get(LAG)
        self._has_failure = failure_in(status.details) is not None

    def lacks(self, failure: Failure | None) -> bool:
        """Whether a failure is to be saved now, or that there is none any more."""
        if failure is None:
            return self._has_failure
        now = self._clock()
        pause = 0.0 if failure.next_try is None else failure.next_try - now
        if self._has_failure:
            return pause >= AGAIN_SECONDS or not 0 <= now - self._at < AGAIN_SECONDS
        return pause >= SAVE_SECONDS or now - failure.since >= SAVE_SECONDS

    def lacks_lag(self, lag: int) -> bool:
        """Whether the lag of a table that waits is to be saved now."""
        return lag != self._lag and not 0 <= self._clock() - self._at < LAG_SECONDS


class OldestRecords:
    """Looks up how old the oldest record is that a table did not apply. ``fetch`` reads records.

    While nothing is applied it is the same record, so that each partition is asked once.
    """

    def __init__(self, topic: str, fetch: Fetch) -> None:
        self._topic = topic
        self._fetch = fetch
        self._known: dict[int, tuple[int, int | None]] = {}

    def time(self, starts: Mapping[int, int], ends: Mapping[int, PartitionOffsets]) -> int | None:
        """Kafka's time of the oldest record from ``starts`` on, in ms since 1970; None if not known."""
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
