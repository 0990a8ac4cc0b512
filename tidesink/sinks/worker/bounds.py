"""The bounds that the tables of a pipeline with cuts are read under, one behind the other (ADR 36).

Where topics have watermarks, a bound is an instant of the schedule, and watermarks tell where a table has
passed it. Of tables that a Debezium connector writes a bound is a checkpoint of the connector's that was
read: every partition has passed it at the end that it has when it is asked afterwards. Nothing of that is
kept: a worker that is started reads the newest checkpoint, and asks again.
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
# So many seconds lie between two questions to the source's database.
_ASKED_EVERY: Final = 10.0
_XA: Final = (
    "applications used XA transactions since the source's server started (SHOW GLOBAL STATUS LIKE "
    "'Com_xa%'), or one is open. Their rows reach Kafka before they are committed, so a cut could contain "
    "a part of a transaction. Remove cuts from the config"
)
# So many records from the end of a partition are looked through for a watermark.
_TAIL: Final = 2000


class Bounds(Protocol):
    """Where the bounds of cuts come from. Used by the worker's own thread."""

    def look(self, tasks: Sequence[TableTask], seen: Look) -> None:
        """Know the tables, and what was seen of their topics, before a bound is asked for."""

    def next(self, *, above: int | None, least: int | None) -> int | None:
        """A bound that is above the last cut, and not below ``least``; None where there is none yet."""

    def after(self, bound: int) -> int:
        """The bound behind one that is done with; the same where there is none yet."""

    def tries_again(self) -> bool:
        """Whether a cut that was passed over is to be tried again at its bound."""

    def ask_ends(self, partitions: Mapping[str, Collection[int]]) -> None:
        """Know where the partitions of topics end behind the bound; raises SourceError."""

    def ends(self, topic: str) -> Mapping[int, int] | None:
        """By partition the end behind which nothing comes up to the bound; None: watermarks tell it."""

    def time_of(self, bound: int) -> datetime:
        """The source's time of the bound."""

    @property
    def waits(self) -> str | None:
        """Why there is no other bound; None: bounds are times, and come by themselves."""

    def close(self) -> None:
        """Let go of the clients."""


class WatermarkBounds:
    """Instants of a schedule that the source is known to have passed, by watermarks; else the next one."""

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
        """As ``Bounds``."""
        self._tasks, self._seen = tasks, seen

    def next(self, *, above: int | None, least: int | None) -> int:
        """As ``Bounds``."""
        return next_bound(self._newest(), every=self._every, above=above, least=least)

    def after(self, bound: int) -> int:
        """As ``Bounds``: a later instant."""
        return self.next(above=bound, least=bound)

    def tries_again(self) -> bool:
        """There is always a later bound."""
        return False

    def ask_ends(self, partitions: Mapping[str, Collection[int]]) -> None:
        """Watermarks tell them."""

    def ends(self, topic: str) -> None:
        """Watermarks tell them."""

    def time_of(self, bound: int) -> datetime:
        """As ``Bounds``."""
        return datetime.fromtimestamp(physical_ms(bound) / 1000, timezone.utc)

    def close(self) -> None:
        """There is nothing."""

    def _newest(self) -> int:
        """What the source is known to have passed: by the end of the topic that is read least far, too.

        So a backlog of days is one cut, and not one for each minute of it.
        """
        found = [mark for one in self._tasks for mark in _watermarks(one)]
        late = max(self._tasks, key=lambda one: one.lag)
        topic = self._seen.found.get(late.topic)
        if topic is not None and (not found or late.lag > MOST_WAITING):
            tail = self._tail(topic)
            found += [] if tail is None else [tail]
        return max(found, default=int(time.time() * 1000) << LOGICAL_BITS)

    def _tail(self, topic: TopicOffsets) -> int | None:
        """The greatest watermark at the end of the topic's longest partition."""
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
    """The watermarks that a table's partitions have passed, as far as they are known."""
    topic = task.held.progress.topics.get(task.topic) if task.held else None
    known = (part.watermark for part in topic.partitions.values()) if topic else ()
    yield from (mark for mark in (*known, *task.marks.values()) if mark is not None)


class ConnectorBounds:
    """Checkpoints of a connector, ``every`` seconds apart.

    ``reason``: why there is no other bound. ``clock`` gives seconds and never runs backwards. ``refusal``
    asks the source's database why it allows no cuts, and gives an empty text if it does; None: there is none.
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
        # When the database refused last, and why.
        self._refused_at, self._refused = 0.0, ""
        self._checkpoints = checkpoints
        self._every = every
        self._clock = clock
        self._chosen: Checkpoint | None = None
        self._chosen_at = 0.0
        self._ends: dict[str, dict[int, int]] = {}

    @property
    def waits(self) -> str:
        """As ``Bounds``."""
        return self.reason

    def time_of(self, bound: int) -> datetime:  # noqa: ARG002  (a position does not tell it)
        """As ``Bounds``, of the bound that was chosen last."""
        assert self._chosen is not None  # noqa: S101  (the bound is its position)
        return datetime.fromtimestamp(self._chosen.time, timezone.utc)

    def look(self, tasks: Sequence[TableTask], seen: Look) -> None:  # noqa: ARG002  (as Bounds has it)
        """Read the newest checkpoint; what keeps it from being read is the ``reason``."""
        try:
            self._checkpoints.look()
        except SourceError as exc:
            if exc.message != self.reason:
                _log.warning("checkpoints cannot be read", error=str(exc))
            self.reason = exc.message
        else:
            self.reason = self._checkpoints.reason

    def next(self, *, above: int | None, least: int | None) -> int | None:
        """The newest checkpoint as the bound, if it is above the last cut, and not below ``least``.

        One that is below what tables have is of a connector that sends from an earlier position, or of
        another server: nothing is read until it has come to there.
        """
        newest, floor = self._checkpoints.newest, greatest([above, least])
        if newest is None:
            return None
        if floor is not None and newest.position < floor:
            self.reason = (
                f"the connector's checkpoint ({newest.position}) is below what the tables have ({floor}): it "
                "sends again from an earlier position, or reads another server, whose log has other "
                "positions. Wait until it has come after; of another server load the tables again, under "
                "another pipeline's name"
            )
            return None
        if newest.position == above or self._is_refused():
            return None
        self._chosen, self._chosen_at, self._ends = newest, self._clock(), {}
        return newest.position

    def _is_refused(self) -> bool:
        """Whether the source's database allows no cut at a checkpoint that was read; the reason says why."""
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
        """The bound behind one that is done with, once its time has come; until then the same."""
        if self._clock() - self._chosen_at < self._every:
            return bound
        found = self.next(above=bound, least=bound)
        return bound if found is None else found

    def tries_again(self) -> bool:
        """Whether a cut that was passed over is to be tried again: each ``every`` seconds."""
        if self._clock() - self._chosen_at < self._every:
            return False
        self._chosen_at = self._clock()
        return True

    def ask_ends(self, partitions: Mapping[str, Collection[int]]) -> None:
        """Know where the partitions end behind the bound; of each it is asked once.

        Raises:
            SourceError: a partition gives no answer.
        """
        if self._chosen is None:
            return
        lacking = {
            topic: [number for number in numbers if number not in self._ends.get(topic, ())]
            for topic, numbers in partitions.items()
        }
        # The bound was read before: what is asked now is behind all its rows.
        for topic, ends in self._checkpoints.ends({one: n for one, n in lacking.items() if n}).items():
            self._ends[topic] = {**self._ends.get(topic, {}), **ends}

    def ends(self, topic: str) -> Mapping[int, int]:
        """By partition of a topic the end behind which nothing comes up to the bound, where it is known."""
        return self._ends.get(topic, {})

    def close(self) -> None:
        """Let go of the clients."""
        self._checkpoints.close()


def is_empty(progress: Progress | None, starts: Mapping[int, int], ends: Mapping[int, int]) -> bool:
    """Whether a topic has nothing for a table up to the bound, which was never applied to it either.

    ``starts``: the first offset that each partition keeps.
    """
    if progress is not None and progress.topics:
        return False
    return all(number in ends and ends[number] <= start for number, start in starts.items())


def open_bounds(
    context: WorkerContext, cuts: CutSettings, watermark_of: Callable[[Message], int | None]
) -> Bounds:
    """The bounds of a pipeline's cuts. ``watermark_of``: as ``watermark_reader``."""
    source = context.config.source
    debezium = source.debezium
    if debezium.offsets_topic is None or debezium.connector_name is None:
        return WatermarkBounds(context.source, cuts.every, watermark_of)
    found = ConnectorCheckpoints(source.confluent_properties, debezium.offsets_topic, debezium.connector_name)
    refusal = None if source.database is None else partial(_refusal, source.database)
    return ConnectorBounds(found, cuts.every, refusal=refusal)


def _refusal(settings: DatabaseSettings) -> str:
    """Why the source's database allows no cuts; raises ConfigError or SourceUnavailableError."""
    # Here, since it takes what Spark's tasks do.
    from tidesink.sinks.batch.source_rows import OPTION, connected

    url, replica = settings.url.get_secret_value(), settings.replica
    with connected(url, replica=replica) as connection, translated(OPTION):
        return _XA if uses_xa(connection) else ""
