"""Bounds of cuts: a pipeline's tables are read up to one bound after the other (ADR 36).

If topics have watermarks, a bound is an instant of the schedule, and watermarks show if a table has passed
it. If a Debezium connector writes the topics, a bound is a checkpoint of the connector. The end offsets are
asked for after the checkpoint was read: every partition has passed the bound at its end offset. None of that
is stored: a new worker reads the newest checkpoint, and asks again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from tidesink.config.models import CutSettings
from tidesink.errors import SourceError, TidesinkError
from tidesink.events import LOGICAL_BITS, Message, physical_ms
from tidesink.sinks.batch.context import WorkerContext
from tidesink.sinks.batch.counts import greatest
from tidesink.sinks.batch.cuts import next_bound
from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.kafka.checkpoints import Checkpoint, ConnectorCheckpoints
from tidesink.sinks.kafka.offsets import Look, OffsetRange, TopicOffsets
from tidesink.sinks.state.progress import Progress
from tidesink.sinks.worker.watermarks import MOST_WAITING
from tidesink.source_database.database import translated, uses_xa

if TYPE_CHECKING:
    from tidesink.config.source import DatabaseSettings
    from tidesink.sinks.worker.table_task import TableTask

_log = structlog.get_logger("tidesink.worker")
# Seconds between two queries to the source database.
_ASKED_EVERY: Final = 10.0
_XA: Final = (
    "Applications have used XA transactions since the source's server started (SHOW GLOBAL STATUS LIKE "
    "'Com_xa%'), or one is open. Their rows reach Kafka before they are committed, so a cut could contain "
    "a part of a transaction. Remove cuts from the config."
)
# Number of records at the end of a partition that are searched for a watermark.
_TAIL: Final = 2000


class Bounds(Protocol):
    """The source of a pipeline's bounds. Used by the worker's main thread."""

    def look(self, tasks: Sequence[TableTask], seen: Look) -> None:
        """Receive the tables and the look at their topics, before a bound is requested."""

    def next(self, *, above: int | None, least: int | None) -> int | None:
        """Return a bound above the last cut and not below ``least``, or None if no such bound exists yet."""

    def after(self, bound: int) -> int:
        """Return the bound after a finished one, or the same bound if there is no later one yet."""

    def tries_again(self) -> bool:
        """Return True if a cut that could not be written should be tried again at its bound."""

    def ask_ends(self, partitions: Mapping[str, Collection[int]]) -> None:
        """Look up end offsets of the partitions that are after the bound; raises SourceError."""

    def ends(self, topic: str) -> Mapping[int, int] | None:
        """Return per partition an end offset that no record up to the bound follows; None with watermarks."""

    def time_of(self, bound: int) -> datetime:
        """Return the source's time of the bound."""

    @property
    def waits(self) -> str | None:
        """The reason why there is no other bound; None if bounds are times, which always pass."""

    def close(self) -> None:
        """Close the clients."""


class WatermarkBounds:
    """Instants of a schedule that the source has passed according to watermarks, or else the next instant."""

    waits = None

    def __init__(
        self, source: KafkaSource, every: float, watermark_of: Callable[[Message], int | None]
    ) -> None:
        self._source = source
        self._every = every
        self._watermark_of = watermark_of
        self._tasks: Sequence[TableTask] = ()
        self._seen = Look({}, {})

    def look(self, tasks: Sequence[TableTask], seen: Look) -> None:
        """Record the tables and the look at their topics."""
        self._tasks, self._seen = tasks, seen

    def next(self, *, above: int | None, least: int | None) -> int:
        """Return an instant above the last cut and not below ``least``."""
        return next_bound(self._newest(), every=self._every, above=above, least=least)

    def after(self, bound: int) -> int:
        """Return the next instant."""
        return self.next(above=bound, least=bound)

    def tries_again(self) -> bool:
        """Return False: a later instant always comes."""
        return False

    def ask_ends(self, partitions: Mapping[str, Collection[int]]) -> None:
        """Do nothing: watermarks show when a partition has passed the bound."""

    def ends(self, topic: str) -> None:
        """Return None: watermarks show when a partition has passed the bound."""

    def time_of(self, bound: int) -> datetime:
        """Return the time of an instant."""
        return datetime.fromtimestamp(physical_ms(bound) / 1000, timezone.utc)

    def close(self) -> None:
        """Do nothing: there are no clients."""

    def _newest(self) -> int:
        """Return the newest instant that the source has passed, as a commit_ts.

        It includes the end of the topic with the largest lag, so that a backlog of days becomes one cut, and
        not one cut per interval.
        """
        found = [mark for one in self._tasks for mark in _watermarks(one)]
        late = max(self._tasks, key=lambda one: one.lag)
        topic = self._seen.found.get(late.topic)
        if topic is not None and (not found or late.lag > MOST_WAITING):
            tail = self._tail(topic)
            found += [] if tail is None else [tail]
        return max(found, default=int(time.time() * 1000) << LOGICAL_BITS)

    def _tail(self, topic: TopicOffsets) -> int | None:
        """Return the newest watermark at the end of the topic's longest partition."""
        number, at = max(topic.partitions.items(), key=lambda one: one[1].latest)
        part = OffsetRange(topic.topic, number, max(at.earliest, at.latest - _TAIL), at.latest)
        if not part.records:
            return None
        try:
            marks = [self._watermark_of(one) for one in self._source.messages_here([part])]
        except TidesinkError as exc:
            _log.debug("the end of a topic was not read", topic=topic.topic, error=str(exc))
            return None
        return max((mark for mark in marks if mark is not None), default=None)


def _watermarks(task: TableTask) -> Iterator[int]:
    """Yield the known watermarks that a table's partitions have passed."""
    topic = task.held.progress.topics.get(task.topic) if task.held else None
    known = (part.watermark for part in topic.partitions.values()) if topic else ()
    yield from (mark for mark in (*known, *task.marks.values()) if mark is not None)


class ConnectorBounds:
    """Checkpoints of a connector, ``every`` seconds apart.

    ``reason``: why there is no other bound. ``clock``: returns seconds that never decrease. ``refusal``: asks
    the source database why it does not allow cuts, and returns an empty text if it does; None without one.
    """

    def __init__(
        self,
        checkpoints: ConnectorCheckpoints,
        every: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        refusal: Callable[[], str] | None = None,
    ) -> None:
        self.reason = ""
        self._refusal = refusal
        # Time and text of the database's last refusal.
        self._refused_at, self._refused = 0.0, ""
        self._checkpoints = checkpoints
        self._every = every
        self._clock = clock
        self._chosen: Checkpoint | None = None
        self._chosen_at = 0.0
        self._ends: dict[str, dict[int, int]] = {}

    @property
    def waits(self) -> str:
        """The reason why there is no other bound."""
        return self.reason

    def time_of(self, bound: int) -> datetime:  # noqa: ARG002  (a position has no time)
        """Return the source's time of the bound that was chosen last."""
        assert self._chosen is not None  # noqa: S101  (the bound is its position)
        return datetime.fromtimestamp(self._chosen.time, timezone.utc)

    def look(self, tasks: Sequence[TableTask], seen: Look) -> None:  # noqa: ARG002  (part of ``Bounds``)
        """Read the newest checkpoint; if that fails, set ``reason``."""
        try:
            self._checkpoints.look()
        except SourceError as exc:
            if exc.message != self.reason:
                _log.warning("checkpoints cannot be read", error=str(exc))
            self.reason = exc.message
        else:
            self.reason = self._checkpoints.reason

    def next(self, *, above: int | None, least: int | None) -> int | None:
        """Return the newest checkpoint if it is above the last cut and not below ``least``.

        A checkpoint below the tables' position means that the connector sends from an earlier position, or
        reads another server. Nothing is read until the connector has passed the tables' position.
        """
        newest, floor = self._checkpoints.newest, greatest([above, least])
        if newest is None:
            return None
        if floor is not None and newest.position < floor:
            self.reason = (
                f"The connector's checkpoint ({newest.position}) is below the tables' position ({floor}). "
                "Either the connector sends again from an earlier position: wait until it has passed the "
                "tables. Or it reads another server, whose log has other positions: load the tables again, "
                "with another pipeline name."
            )
            return None
        if newest.position == above or self._is_refused():
            return None
        self._chosen, self._chosen_at, self._ends = newest, self._clock(), {}
        return newest.position

    def _is_refused(self) -> bool:
        """Return True if the source database does not allow a cut at the checkpoint, and set ``reason``."""
        if self._refusal is None:
            return False
        if not self._refused or self._clock() - self._refused_at >= _ASKED_EVERY:
            try:
                self._refused = self._refusal()
            except TidesinkError as exc:
                self._refused = exc.message
            self._refused_at = self._clock()
        self.reason = self._refused or self.reason
        return bool(self._refused)

    def after(self, bound: int) -> int:
        """Return the bound after a finished one when its time has come; until then the same bound."""
        if self._clock() - self._chosen_at < self._every:
            return bound
        found = self.next(above=bound, least=bound)
        return bound if found is None else found

    def tries_again(self) -> bool:
        """Return True, every ``every`` seconds, if a cut that could not be written should be tried again."""
        if self._clock() - self._chosen_at < self._every:
            return False
        self._chosen_at = self._clock()
        return True

    def ask_ends(self, partitions: Mapping[str, Collection[int]]) -> None:
        """Look up the partitions' end offsets after the bound, once per partition.

        Raises:
            SourceError: a partition does not answer.
        """
        if self._chosen is None:
            return
        lacking = {
            topic: [number for number in numbers if number not in self._ends.get(topic, ())]
            for topic, numbers in partitions.items()
        }
        # The checkpoint was read earlier, so end offsets of now follow all its rows.
        for topic, ends in self._checkpoints.ends({one: n for one, n in lacking.items() if n}).items():
            self._ends[topic] = {**self._ends.get(topic, {}), **ends}

    def ends(self, topic: str) -> Mapping[int, int]:
        """Return the known end offsets per partition that no record up to the bound follows."""
        return self._ends.get(topic, {})

    def close(self) -> None:
        """Close the clients."""
        self._checkpoints.close()


def is_empty(progress: Progress | None, starts: Mapping[int, int], ends: Mapping[int, int]) -> bool:
    """Return True if a topic has nothing for a table up to the bound, and nothing was ever applied to it.

    ``starts``: the first available offset per partition.
    """
    if progress is not None and progress.topics:
        return False
    return all(number in ends and ends[number] <= start for number, start in starts.items())


def open_bounds(
    context: WorkerContext, cuts: CutSettings, watermark_of: Callable[[Message], int | None]
) -> Bounds:
    """Return the bounds of a pipeline's cuts. ``watermark_of``: the result of ``watermark_reader``."""
    source = context.config.source
    debezium = source.debezium
    if debezium.offsets_topic is None or debezium.connector_name is None:
        return WatermarkBounds(context.source, cuts.every, watermark_of)
    found = ConnectorCheckpoints(source.confluent_properties, debezium.offsets_topic, debezium.connector_name)
    refusal = None if source.database is None else partial(_refusal, source.database)
    return ConnectorBounds(found, cuts.every, refusal=refusal)


def _refusal(settings: DatabaseSettings) -> str:
    """Return the reason why the source database allows no cuts, or an empty text.

    Raises:
        ConfigError: the database refuses the user.
        SourceUnavailableError: the database does not answer.
    """
    # Imported here, because the module imports what only Spark tasks need.
    from tidesink.sinks.batch.source_rows import OPTION, connected

    url, replica = settings.url.get_secret_value(), settings.replica
    with connected(url, replica=replica) as connection, translated(OPTION):
        return _XA if uses_xa(connection) else ""
