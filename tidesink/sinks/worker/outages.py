"""The status of a failing or waiting table: when to save it, and the age of its oldest unapplied record."""

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
# Key in a status's details: Kafka's timestamp of the oldest unapplied record, in ms since 1970.
OLDEST: Final = "oldest_unapplied"
LAG: Final = "lag"
# A failure that lasts less than this many seconds is not saved.
SAVE_SECONDS: Final = 1.0
# If retries follow each other in less than this many seconds, the status is saved once per interval.
AGAIN_SECONDS: Final = 5.0
# Seconds after which the changed lag of a paused or failing table is saved.
LAG_SECONDS: Final = 15.0
# Number of offsets that are read to find a record. An offset may have no record: it is the end of a
# transaction, or compaction removed the record.
_LOOKED_AT: Final = 100


class SavedStatus:
    """Decides if a table's status must be saved again, by comparison with the status that was saved last.

    ``clock``: returns seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._at = float("-inf")
        self._lag: int | None = None
        self._has_failure = False

    def saved(self, status: TableStatus) -> None:
        """Record that ``status`` was saved at this time."""
        self._at, self._lag = self._clock(), status.details.get(LAG)
        self._has_failure = failure_in(status.details) is not None

    def lacks(self, failure: Failure | None) -> bool:
        """Return True if the table's status must be saved again because a failure began, continues or ended.

        Short failures are not saved. Of retries in quick succession, only one per ``AGAIN_SECONDS`` is saved.
        ``failure``: the table's current failure, or None.
        """
        if failure is None:
            return self._has_failure
        now = self._clock()
        pause = 0.0 if failure.next_try is None else failure.next_try - now
        if self._has_failure:
            return pause >= AGAIN_SECONDS or not 0 <= now - self._at < AGAIN_SECONDS
        return pause >= SAVE_SECONDS or now - failure.since >= SAVE_SECONDS

    def lacks_lag(self, lag: int) -> bool:
        """Return True if the status of a paused or failing table must be saved because its lag changed."""
        return lag != self._lag and not 0 <= self._clock() - self._at < LAG_SECONDS


class OldestRecords:
    """Looks up the timestamp of the oldest record that a table has not applied.

    The timestamp is remembered per partition until the table applies further records. ``fetch``: reads
    records from Kafka.
    """

    def __init__(self, topic: str, fetch: Fetch) -> None:
        self._topic = topic
        self._fetch = fetch
        self._known: dict[int, tuple[int, int | None]] = {}

    def time(self, starts: Mapping[int, int], ends: Mapping[int, PartitionOffsets]) -> int | None:
        """Return Kafka's timestamp of the oldest unapplied record, in ms since 1970, or None if unknown.

        ``starts``: the next offset to apply per partition. ``ends``: the first and end offset per partition.
        """
        times = []
        for number, partition in ends.items():
            start = max(starts.get(number, partition.earliest), partition.earliest)
            if start >= partition.latest:
                continue
            if self._known.get(number, (None,))[0] != start:
                self._known[number] = start, self._time_of(number, start, partition.latest)
            times.append(self._known[number][1])
        return min((timestamp for timestamp in times if timestamp is not None), default=None)

    def _time_of(self, number: int, start: int, end: int) -> int | None:
        wanted = FetchRange(self._topic, number, start, min(end, start + _LOOKED_AT), headers=False)
        try:
            for records in self._fetch(wanted):
                if records.num_rows:
                    timestamp: int | None = records.column("timestamp")[0].as_py()
                    return timestamp
        except Exception as exc:  # noqa: BLE001  (a status without the timestamp is better than no status)
            _log.debug("age of the oldest record not known", topic=self._topic, error=type(exc).__name__)
        return None
