"""Bounds of cuts: the points in the source's history up to which all tables are read before a cut (ADR 36).

A cut shows all tables of a pipeline as of one point in the source's history, the cut's bound. The worker
applies all changes up to the bound, publishes the cut, and chooses the next bound. There are two kinds of
bounds:

- TiCDC's topics have watermarks. A bound is a commit_ts that is a multiple of the cuts' interval
  (``WatermarkBounds``). A partition has passed the bound once it has a watermark at or after the bound.
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
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

from tidesink.codecs.debezium.commit_positions import binlog_position, log_position
from tidesink.config.models import CutSettings
from tidesink.errors import SourceError, TidesinkError
from tidesink.events import LOGICAL_BITS, Message, physical_ms
from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.cuts.checkpoints import Checkpoint, ConnectorCheckpoints
from tidesink.sinks.cuts.tables import BoundedTable
from tidesink.sinks.kafka.offsets import Look, OffsetRange, TopicOffsets
from tidesink.sinks.kafka.watermarks import MOST_WAITING
from tidesink.sinks.laws.bound import next_bound
from tidesink.sinks.laws.counts import greatest
from tidesink.sinks.runtime.context import WorkerContext
from tidesink.sinks.state.progress import Progress
from tidesink.source_database.database import OPTION, connected, translated, uses_xa

if TYPE_CHECKING:
    from tidesink.config.source import DatabaseSettings

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
    """Chooses for each cut its bound: the point in the source's history as of which it shows all tables.

    Used by the worker's main thread.
    """

    def look(self, tasks: Sequence[BoundedTable], seen: Look) -> None:
        """Update the information from which bounds are chosen, such as the newest watermarks.

        Must be called before ``next`` and ``after``. ``tasks``: the pipeline's tables. ``seen``: the current
        offsets of their topics.
        """

    def next(self, *, above: int | None, least: int | None) -> int | None:
        """Return the bound of the next cut, or None if there is no suitable bound yet.

        ``above``: the bound of the last cut; the result is greater. ``least``: the highest bound up to which
        any table was already read; the result is not lower.
        """

    def after(self, bound: int) -> int:
        """Return the next bound after ``bound``, or ``bound`` itself if there is no later bound yet.

        Called when the worker is done with the cut at ``bound``.
        """

    def tries_again(self) -> bool:
        """Return True if it is time to retry a cut that could not be written, at the same bound."""

    def ask_ends(self, partitions: Mapping[str, Collection[int]]) -> None:
        """Look up the end offsets that ``ends`` returns. ``partitions``: numbers of partitions by topic.

        Raises:
            SourceError: Kafka does not return the end offset of a partition.
        """

    def ends(self, topic: str) -> Mapping[int, int] | None:
        """Return an end offset per partition of the topic: all rows up to the bound have lower offsets.

        None if end offsets are not needed, because watermarks show when a partition has passed the bound.
        """

    def time_of(self, bound: int) -> datetime:
        """Return the source's time when its log reached the bound of a cut."""

    @property
    def waits(self) -> str | None:
        """The reason why there is no bound for the next cut yet, as text for users.

        Always None if bounds are times (commit_ts), because then there is always a next bound.
        """

    def close(self) -> None:
        """Close the clients of Kafka and the source database."""


class WatermarkBounds:
    """Chooses the bounds of cuts for topics with watermarks: commit_ts values that are multiples of
    ``every`` seconds.

    Prefers the newest multiple that the source has passed according to the watermarks. ``watermark_of``:
    returns the commit_ts of a record that is a watermark, else None.
    """

    waits = None

    def __init__(
        self, source: KafkaSource, every: float, watermark_of: Callable[[Message], int | None]
    ) -> None:
        self._source = source
        self._every = every
        self._watermark_of = watermark_of
        self._tasks: Sequence[BoundedTable] = ()
        self._seen = Look({}, {})

    def look(self, tasks: Sequence[BoundedTable], seen: Look) -> None:
        """Record the pipeline's tables and the current offsets of their topics."""
        self._tasks, self._seen = tasks, seen

    def next(self, *, above: int | None, least: int | None) -> int:
        """Return the newest multiple of ``every`` seconds that the source has passed, as a commit_ts.

        If it is not above the last cut (``above``), or is below ``least``, returns the first later multiple
        that meets both conditions.
        """
        return next_bound(self._newest(), every=self._every, above=above, least=least)

    def after(self, bound: int) -> int:
        """Return the newest multiple of ``every`` seconds that the source has passed, as the next bound.

        If it is not above ``bound``, returns the first multiple above ``bound``.
        """
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
        """Return the newest known watermark of any table. If there is none, the current time as a commit_ts.

        If a table has a large lag, watermarks at the end of its topic count too, although the table has not
        read them yet. So a backlog of days becomes one cut and not one cut per interval.
        """
        marks = [mark for task in self._tasks for mark in _watermarks(task)]
        late = max(self._tasks, key=lambda task: task.reading.lag)
        topic = self._seen.found.get(late.topic)
        if topic is not None and (not marks or late.reading.lag > MOST_WAITING):
            tail = self._tail(topic)
            marks += [] if tail is None else [tail]
        return max(marks, default=int(time.time() * 1000) << LOGICAL_BITS)

    def _tail(self, topic: TopicOffsets) -> int | None:
        """Return the newest watermark in the last ``_TAIL`` records of one partition of the topic.

        The partition is the one with the highest end offset. None if these records have no watermark, or
        cannot be read.
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


def _watermarks(task: BoundedTable) -> Iterator[int]:
    """Yield the newest known watermark of each of a table's partitions."""
    topic = task.opened.topic_progress
    committed = (part.watermark for part in topic.partitions.values()) if topic else ()
    yield from (mark for mark in (*committed, *task.reading.marks.values()) if mark is not None)


_OPEN: Final = "incremental_snapshot_"
_LOADS: Final = "The Debezium connector's snapshot has not finished. Cuts are published once it has."
_NO_POSITION: Final = (
    "The Debezium connector's offset has no position that rows can be compared with. Connectors for MySQL, "
    "MariaDB and Postgres have a position once they have sent a transaction or a heartbeat. Wait for the "
    "next transaction, or set heartbeat.interval.ms at the connector."
)


def read_checkpoint(offset: Mapping[str, Any]) -> Checkpoint | str:
    """Convert a connector's stored offset to a checkpoint.

    Returns a text with the reason if the offset has no position up to which all rows were sent. Source: the
    offsets of Debezium 3.5.0.Final for MariaDB and Postgres, captured.
    """
    if offset.get("snapshot") not in (None, False, "false"):
        return _LOADS
    if any(value is not None for name, value in offset.items() if name.startswith(_OPEN)):
        return _LOADS
    if "file" in offset:
        position, at = binlog_position(offset["file"], offset.get("pos")), offset.get("ts_sec")
        return _NO_POSITION if position is None else Checkpoint(position, _seconds(at, 1))
    position, at = log_position(offset.get("lsn_commit")), offset.get("ts_usec")
    return _NO_POSITION if position is None else Checkpoint(position, _seconds(at, 1_000_000))


def _seconds(value: object, unit: int) -> float:
    return value / unit if isinstance(value, int) and not isinstance(value, bool) else 0.0


class ConnectorBounds:
    """Chooses checkpoints of a Debezium connector as bounds, at least ``every`` seconds apart.

    ``reason``: the reason why no later bound exists yet, as text for users. ``clock``: returns monotonic
    seconds. ``refusal``: a function that queries the source database, and returns the reason why its
    transactions do not allow cuts, or an empty text; None if the config has no source database.
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
        """Return the source's time at the checkpoint that was chosen last, which is the cut's bound."""
        assert self._chosen is not None  # noqa: S101  (the bound is its position)
        return datetime.fromtimestamp(self._chosen.time, timezone.utc)

    def look(self, tasks: Sequence[BoundedTable], seen: Look) -> None:  # noqa: ARG002  (part of ``Bounds``)
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

        Otherwise returns None, and sets ``reason`` if a user has to do something. If the checkpoint is below
        a position that tables have already reached, the connector sends old changes again, or it reads
        another server. Then the tables read nothing until the connector has passed their position.
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
        """Return True and set ``reason`` if the source database does not allow a cut at the checkpoint.

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
        """Return the position of the connector's newest checkpoint, as the next bound after ``bound``.

        Returns ``bound`` itself if it was chosen less than ``every`` seconds ago, or if the connector has no
        later checkpoint.
        """
        if self._clock() - self._chosen_at < self._every:
            return bound
        checkpoint = self.next(above=bound, least=bound)
        return bound if checkpoint is None else checkpoint

    def tries_again(self) -> bool:
        """Return True once per ``every`` seconds, to retry a cut that could not be written."""
        if self._clock() - self._chosen_at < self._every:
            return False
        self._chosen_at = self._clock()
        return True

    def ask_ends(self, partitions: Mapping[str, Collection[int]]) -> None:
        """Look up the end offsets of ``partitions``, once per partition and bound.

        Raises:
            SourceError: Kafka does not return the end offset of a partition.
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
    partition that the table can read. ``ends``: the end offset per partition, looked up after the bound was
    chosen.
    """
    if progress is not None and progress.topics:
        return False
    return all(number in ends and ends[number] <= start for number, start in starts.items())


def open_bounds(
    context: WorkerContext, cuts: CutSettings, watermark_of: Callable[[Message], int | None]
) -> Bounds:
    """Return the object that chooses the bounds of a pipeline's cuts.

    It chooses a connector's checkpoints if the config names a connector, else times from watermarks.
    ``watermark_of``: returns the commit_ts of a record that is a watermark, else None.
    """
    source = context.config.source
    debezium = source.debezium
    if debezium.offsets_topic is None or debezium.connector_name is None:
        return WatermarkBounds(context.source, cuts.every, watermark_of)
    checkpoints = ConnectorCheckpoints(
        source.confluent_properties, debezium.offsets_topic, debezium.connector_name, read_checkpoint
    )
    refusal = None if source.database is None else partial(_refusal, source.database)
    return ConnectorBounds(checkpoints, cuts.every, refusal=refusal)


def _refusal(settings: DatabaseSettings) -> str:
    """Return the reason why the source database does not allow cuts, or an empty text if it allows them.

    The reason is that it has XA transactions.

    Raises:
        ConfigError: the database refuses the user.
        SourceUnavailableError: the database does not answer.
    """
    url, replica = settings.url.get_secret_value(), settings.replica
    with connected(url, replica=replica) as connection, translated(OPTION):
        return _XA if uses_xa(connection) else ""
