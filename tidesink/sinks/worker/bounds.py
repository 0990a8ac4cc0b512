"""Bounds of cuts: the points in the source's history up to which all tables are read before a cut (ADR 36).

A cut shows all tables of a pipeline as of one point, its bound. The worker applies all changes up to the
bound, publishes the cut, and chooses the next bound. There are two kinds of bounds:

- TiCDC's topics have watermarks. A bound is a commit_ts on the schedule of cuts (``WatermarkBounds``). A
  partition has passed it once it has a watermark at or after it.
- The topics of a Debezium connector have no watermarks. A bound is a checkpoint of the connector: the
  position in the source's log up to which it has sent all rows (``ConnectorBounds``). The partitions' end
  offsets are looked up after the checkpoint was read, so all rows up to the bound are before these offsets.

Bounds are not stored here. After a restart, the worker chooses a new one.
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
# Seconds between two queries that ask the source database if it allows cuts.
_ASKED_EVERY: Final = 10.0
_XA: Final = (
    "Applications have used XA transactions since the source's server started (SHOW GLOBAL STATUS LIKE "
    "'Com_xa%'), or one is open. Their rows reach Kafka before they are committed, so a cut could contain "
    "a part of a transaction. Remove cuts from the config."
)
# Number of records at the end of a partition that are searched for a watermark.
_TAIL: Final = 2000


class Bounds(Protocol):
    """Chooses the bounds of a pipeline's cuts. Used by the worker's main thread."""

    def look(self, tasks: Sequence[TableTask], seen: Look) -> None:
        """Update the information by which bounds are chosen, such as the newest watermarks. Called before
        ``next`` and ``after``.

        ``tasks``: the pipeline's tables. ``seen``: the current offsets of their topics.
        """

    def next(self, *, above: int | None, least: int | None) -> int | None:
        """Return the bound of the next cut, or None if the source has no suitable one yet.

        ``above``: the bound of the last cut; the result is greater. ``least``: the lowest bound under which
        all tables can be read; the result is not lower.
        """

    def after(self, bound: int) -> int:
        """Return the bound that follows ``bound``, whose cut is done; ``bound`` itself if there is no later
        one yet.
        """

    def tries_again(self) -> bool:
        """Return True if it is time to retry a cut that could not be written, at the same bound."""

    def ask_ends(self, partitions: Mapping[str, Collection[int]]) -> None:
        """Look up the end offsets that ``ends`` returns. ``partitions``: numbers of partitions by topic.

        Raises:
            SourceError: a partition does not answer.
        """

    def ends(self, topic: str) -> Mapping[int, int] | None:
        """Return, per partition, an end offset before which all rows up to the bound are.

        None if watermarks show when a partition has passed the bound.
        """

    def time_of(self, bound: int) -> datetime:
        """Return the time at the source when its log was at the bound."""

    @property
    def waits(self) -> str | None:
        """The reason why there is no bound for the next cut yet; always None for bounds that are times."""

    def close(self) -> None:
        """Close the clients of Kafka and the source database."""


class WatermarkBounds:
    """Chooses the bounds of cuts for topics with watermarks: commit_ts values that are ``every`` seconds
    apart.

    Prefers the newest of them that the source has passed according to the watermarks. ``watermark_of``:
    returns a record's commit_ts if it is a watermark, else None.
    """

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
        """Record the pipeline's tables and the current offsets of their topics."""
        self._tasks, self._seen = tasks, seen

    def next(self, *, above: int | None, least: int | None) -> int:
        """Return the newest commit_ts on the schedule of cuts that is above the last cut and not below
        ``least``.
        """
        return next_bound(self._newest(), every=self._every, above=above, least=least)

    def after(self, bound: int) -> int:
        """Return the newest commit_ts on the schedule of cuts that is above ``bound``."""
        return self.next(above=bound, least=bound)

    def tries_again(self) -> bool:
        """Return False: a cut that could not be written is not retried, because the next one replaces it."""
        return False

    def ask_ends(self, partitions: Mapping[str, Collection[int]]) -> None:
        """Do nothing: watermarks show when a partition has passed the bound, so no end offsets are needed."""

    def ends(self, topic: str) -> None:
        """Return None: watermarks show when a partition has passed the bound, without end offsets."""

    def time_of(self, bound: int) -> datetime:
        """Return the physical time (the clock's part) of a bound, which is a commit_ts."""
        return datetime.fromtimestamp(physical_ms(bound) / 1000, timezone.utc)

    def close(self) -> None:
        """Do nothing: this class opens no clients."""

    def _newest(self) -> int:
        """Return the newest known watermark of any table, or the current time as a commit_ts without one.

        If a table has a large lag, watermarks at the end of its topic count too, although the table has not
        read them yet. So a backlog of days becomes one cut and not one cut per interval.
        """
        marks = [mark for task in self._tasks for mark in _watermarks(task)]
        late = max(self._tasks, key=lambda task: task.lag)
        topic = self._seen.found.get(late.topic)
        if topic is not None and (not marks or late.lag > MOST_WAITING):
            tail = self._tail(topic)
            marks += [] if tail is None else [tail]
        return max(marks, default=int(time.time() * 1000) << LOGICAL_BITS)

    def _tail(self, topic: TopicOffsets) -> int | None:
        """Return the newest watermark near the end of the topic's partition with the highest end offset.

        None if the last ``_TAIL`` records have no watermark, or cannot be read.
        """
        number, partition = max(topic.partitions.items(), key=lambda item: item[1].latest)
        part = OffsetRange(
            topic.topic, number, max(partition.earliest, partition.latest - _TAIL), partition.latest
        )
        if not part.records:
            return None
        try:
            marks = [self._watermark_of(message) for message in self._source.messages_here([part])]
        except TidesinkError as exc:
            _log.debug("the end of a topic was not read", topic=topic.topic, error=str(exc))
            return None
        return max((mark for mark in marks if mark is not None), default=None)


def _watermarks(task: TableTask) -> Iterator[int]:
    """Yield the newest known watermark of each of a table's partitions."""
    topic = task.held.progress.topics.get(task.topic) if task.held else None
    committed = (part.watermark for part in topic.partitions.values()) if topic else ()
    yield from (mark for mark in (*committed, *task.marks.values()) if mark is not None)


class ConnectorBounds:
    """Chooses checkpoints of a Debezium connector as bounds, at least ``every`` seconds apart.

    ``reason``: the reason why no later bound exists yet. ``clock``: returns monotonic seconds. ``refusal``:
    queries the source database, and returns the reason why it does not allow cuts, or an empty text if it
    does; None if the config has no source database.
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
        """The reason why there is no bound for the next cut yet; empty if no reason is known."""
        return self.reason

    def time_of(self, bound: int) -> datetime:  # noqa: ARG002  (a position has no time)
        """Return the source's time at the checkpoint that was chosen last, which is the bound."""
        assert self._chosen is not None  # noqa: S101  (the bound is its position)
        return datetime.fromtimestamp(self._chosen.time, timezone.utc)

    def look(self, tasks: Sequence[TableTask], seen: Look) -> None:  # noqa: ARG002  (part of ``Bounds``)
        """Read the newest checkpoint from Kafka Connect's offsets topic; set ``reason`` on failure."""
        try:
            self._checkpoints.look()
        except SourceError as exc:
            if exc.message != self.reason:
                _log.warning("checkpoints cannot be read", error=str(exc))
            self.reason = exc.message
        else:
            self.reason = self._checkpoints.reason

    def next(self, *, above: int | None, least: int | None) -> int | None:
        """Return the position of the newest checkpoint if it is above the last cut and not below ``least``.

        Otherwise returns None, and sets ``reason`` if a user has to do something. A checkpoint below a
        position that tables have already reached means one of two things: the connector sends old changes
        again, or it reads another server. So nothing is read until the connector has passed that position.
        """
        newest, floor = self._checkpoints.newest, greatest([above, least])
        if newest is None:
            return None
        if floor is not None and newest.position < floor:
            self.reason = (
                f"The connector's checkpoint ({newest.position}) is below the position that the tables have "
                f"reached ({floor}). Either the connector sends changes again from an earlier position: wait "
                "until it has passed the tables' position. Or it reads another server, whose log has other "
                "positions: load the tables again, with another pipeline name."
            )
            return None
        if newest.position == above or self._is_refused():
            return None
        self._chosen, self._chosen_at, self._ends = newest, self._clock(), {}
        return newest.position

    def _is_refused(self) -> bool:
        """Return True if the source database does not allow a cut at the checkpoint, and set ``reason``.

        The database is queried at most every ``_ASKED_EVERY`` seconds.
        """
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
        """Return the connector's next checkpoint after ``bound``, whose cut is done.

        Returns ``bound`` until ``every`` seconds have passed since it was chosen, and while the connector has
        no later checkpoint.
        """
        if self._clock() - self._chosen_at < self._every:
            return bound
        checkpoint = self.next(above=bound, least=bound)
        return bound if checkpoint is None else checkpoint

    def tries_again(self) -> bool:
        """Return True once per ``every`` seconds: then a cut that could not be written is tried again."""
        if self._clock() - self._chosen_at < self._every:
            return False
        self._chosen_at = self._clock()
        return True

    def ask_ends(self, partitions: Mapping[str, Collection[int]]) -> None:
        """Look up the end offsets of ``partitions``, once per partition and bound.

        Raises:
            SourceError: a partition does not answer.
        """
        if self._chosen is None:
            return
        lacking = {
            topic: [number for number in numbers if number not in self._ends.get(topic, ())]
            for topic, numbers in partitions.items()
        }
        # The checkpoint was read before this look-up, so all rows up to it are before these end offsets.
        for topic, ends in self._checkpoints.ends({name: n for name, n in lacking.items() if n}).items():
            self._ends[topic] = {**self._ends.get(topic, {}), **ends}

    def ends(self, topic: str) -> Mapping[int, int]:
        """Return the end offsets of a topic's partitions that ``ask_ends`` looked up for the bound."""
        return self._ends.get(topic, {})

    def close(self) -> None:
        """Close the Kafka clients that read checkpoints and end offsets."""
        self._checkpoints.close()


def is_empty(progress: Progress | None, starts: Mapping[int, int], ends: Mapping[int, int]) -> bool:
    """Return True if nothing was applied to a table, and its topic has no records up to the bound.

    ``progress``: the table's progress, or None if the table is not open. ``starts``: the first offset per
    partition that the table can read. ``ends``: the end offset per partition after the bound was chosen.
    """
    if progress is not None and progress.topics:
        return False
    return all(number in ends and ends[number] <= start for number, start in starts.items())


def open_bounds(
    context: WorkerContext, cuts: CutSettings, watermark_of: Callable[[Message], int | None]
) -> Bounds:
    """Return the bounds of a pipeline's cuts: checkpoints if the config names a connector, else watermarks.

    ``watermark_of``: returns a record's commit_ts if it is a watermark, else None.
    """
    source = context.config.source
    debezium = source.debezium
    if debezium.offsets_topic is None or debezium.connector_name is None:
        return WatermarkBounds(context.source, cuts.every, watermark_of)
    checkpoints = ConnectorCheckpoints(
        source.confluent_properties, debezium.offsets_topic, debezium.connector_name
    )
    refusal = None if source.database is None else partial(_refusal, source.database)
    return ConnectorBounds(checkpoints, cuts.every, refusal=refusal)


def _refusal(settings: DatabaseSettings) -> str:
    """Query the source database, and return the reason why it does not allow cuts, or an empty text.

    Raises:
        ConfigError: the database refuses the user.
        SourceUnavailableError: the database does not answer.
    """
    # Imported here, because the module imports what only Spark tasks need.
    from tidesink.sinks.batch.source_rows import OPTION, connected

    url, replica = settings.url.get_secret_value(), settings.replica
    with connected(url, replica=replica) as connection, translated(OPTION):
        return _XA if uses_xa(connection) else ""
