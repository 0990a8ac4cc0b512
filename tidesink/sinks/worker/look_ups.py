"""Look-ups: search topics for the tables that they contain, in a background thread.

A look-up may wait for Kafka, for the schema registry, or for the first row of a topic. Meanwhile, the tables
of other topics continue. Each topic is searched for a limited time before the next topic is searched.

A second thread lists the tables of the source database, to find tables that have no record in the topics
(``QuietTables``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import structlog

from tidesink.codecs import CODECS, open_codec
from tidesink.codecs.batch import messages
from tidesink.config import Config
from tidesink.config.models import topic_tables
from tidesink.config.table_checks import loads_quiet_tables, quiet_tables, topic_without_records
from tidesink.errors import DecodeError, SchemaNotFoundError, TidesinkError
from tidesink.events import ChangeEvent, Message, TableId
from tidesink.sinks.batch.source import WorkerReader
from tidesink.sinks.kafka.offsets import OffsetRange, TopicOffsets, furthest, growing_parts
from tidesink.sinks.runtime.context import LONGEST_PAUSE, WorkerContext
from tidesink.sinks.snapshots.parts import open_source_database
from tidesink.sinks.spark.errors import fault_of
from tidesink.source_database.database import OPTION, stored_tables, translated

if TYPE_CHECKING:
    from tidesink.codecs.base import Codec


_log = structlog.get_logger("tidesink.worker")

# Returns the tables of a topic. Second argument: if all tasks of the topic have stopped, the offset per
# partition up to which they have read it; otherwise None, because running tasks find tables themselves.
TablesOfTopic = Callable[[TopicOffsets, Mapping[int, int] | None], tuple[TableId, ...]]
GoesOn = Callable[[], bool]

# Maximum seconds that one topic is searched before the next one's turn.
_LOOK_UP_SECONDS: Final = 10.0
# Minimum seconds between two searches of the same topic.
_AGAIN_SECONDS: Final = 5.0
# Seconds between two queries for the tables of the source database.
_TABLES_SECONDS: Final = 300.0
# Number of records that a search reads first. They are sent to the driver, and one row is enough.
_FIRST_RECORDS: Final = 100


class TableFinder(Protocol):
    """Finds the tables of a topic for one protocol.

    ``shares_topics``: True if a topic may have rows of several tables.
    """

    shares_topics: bool

    def known(self, topic: str) -> tuple[TableId, ...]:
        """Return the tables of a topic that were found so far, without a request to Kafka or the registry.

        Called by the main thread.

        Raises:
            StateStoreError: the store does not answer.
        """

    def look(self, offsets: TopicOffsets, read: Mapping[int, int] | None, goes_on: GoesOn) -> bool:
        """Search the topic for tables. ``known`` returns them afterwards. Called by the look-up thread.

        Args:
            offsets: The topic's current offsets.
            read: The offset per partition up to which the topic's tasks have read it, if all of them have
                stopped; else None.
            goes_on: Returns False when the time of the search is over.

        Returns:
            False if the time was over before the search was complete. The next call continues it.

        Raises:
            SourceError: Kafka refuses the request, or does not answer.
            RegistryError: the registry refuses the request, or does not answer.
            StateStoreError: the store does not answer.
            ConfigError: the config lacks a setting that is needed to find the tables.
        """


class NamedTables:
    """Finds the tables of a topic whose messages name their table, such as canal-json."""

    shares_topics = True

    def __init__(self, context: WorkerContext) -> None:
        self._context = context

    def known(self, topic: str) -> tuple[TableId, ...]:
        """Return the tables of a topic that were found in this run or an earlier one."""
        return self._context.topics.tables(topic).known()

    def look(self, offsets: TopicOffsets, read: Mapping[int, int] | None, goes_on: GoesOn) -> bool:
        """Search the records of the topic that neither this run's tasks nor earlier runs have read."""
        return self._context.topics.tables(offsets.topic).look(
            WorkerReader(self._context.source, self._context.spark),
            offsets,
            goes_on=goes_on,
            read=read if read is None else furthest((read, *self._recorded(offsets))),
        )

    def _recorded(self, offsets: TopicOffsets) -> Iterator[Mapping[int, int]]:
        """Yield the next offset per partition from the stored progress of each known table in the topic.

        Records before these offsets need no search, because the worker that read them has recorded their
        tables.
        """
        store, pipeline = self._context.store, self._context.config.pipeline
        for table in self.known(offsets.topic):
            status = store.status_of(pipeline, table)
            if status is None:
                continue
            progress = store.progress_of_batch(pipeline, table, status.batch)
            topic_progress = progress.topics.get(offsets.topic) if progress is not None else None
            if topic_progress is not None and topic_progress.topic_id == offsets.topic_id:
                yield {
                    number: partition.next_offset for number, partition in topic_progress.partitions.items()
                }


class FirstRowTables:
    """Finds the table of a topic that has rows of only one table: by the config or the topic's first row."""

    shares_topics = False

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._tables: dict[str, TableId] = {}
        # By topic: its id, and the offset per partition up to which it was searched.
        self._looked: dict[str, tuple[str, dict[int, int]]] = {}

    def known(self, topic: str) -> tuple[TableId, ...]:
        """Return the topic's table if the config names it or one of its rows was found; otherwise nothing."""
        table = self._context.config.named_table_of_topic(topic) or self._tables.get(topic)
        return () if table is None else (table,)

    def look(self, offsets: TopicOffsets, _read: Mapping[int, int] | None, goes_on: GoesOn) -> bool:
        """Search the topic for its first row, in parts that increase in size.

        Records that an earlier call has searched are not searched again.
        """
        topic_id, looked = self._looked.get(offsets.topic, ("", {}))
        if topic_id != offsets.topic_id:
            looked = {}
        self._looked[offsets.topic] = offsets.topic_id, looked
        left = [
            OffsetRange(
                offsets.topic,
                n,
                min(max(partition.earliest, looked.get(n, 0)), partition.latest),
                partition.latest,
            )
            for n, partition in offsets.partitions.items()
        ]
        codec = self._codec()
        for part in growing_parts(left, _FIRST_RECORDS):
            for table in self._tables_of_records(part, codec, looked):
                if table is not None:
                    self._tables[offsets.topic] = table
                    return True
                if not goes_on():
                    return False
        return True

    def _tables_of_records(
        self, ranges: Sequence[OffsetRange], codec: Codec, looked: dict[int, int]
    ) -> Iterator[TableId | None]:
        """Yield the table of each record in ``ranges``, or None if the record is not a row.

        After each record, ``looked`` is set to the next offset of the record's partition.
        """
        for part in ranges:
            if not part.records:
                continue
            for batch in self._context.source.read_here([part]):
                for message in messages(batch):
                    table = table_of_record(codec, message)
                    looked[part.partition] = message.offset + 1
                    yield table
            looked[part.partition] = part.end
            yield None

    def _codec(self) -> Codec:
        source = self._context.config.source
        return open_codec(source.protocol, options=source.codec_options(), registry=self._context.registry)


def table_of_record(codec: Codec, message: Message) -> TableId | None:
    """Return the table that a record of rows belongs to, even if its row cannot be decoded; or None."""
    if message.value is None:
        return None
    try:
        events = codec.decode(message)
    except (DecodeError, SchemaNotFoundError):
        return codec.table_of(message)  # the table's task reports the bad record
    return next((event.table for event in events if isinstance(event, ChangeEvent)), None)


class RuledTables:
    """Finds the table of a flat-avro topic without reading the topic, which has rows of only one table.

    The table is found in the config, by the rule by which the changefeed names topics, or in the schema
    registry.
    """

    shares_topics = False

    def __init__(self, context: WorkerContext) -> None:
        assert context.registry is not None  # noqa: S101  (flat-avro without a registry is refused before)
        self._config = context.config
        self._table_of = topic_tables(context.config, context.registry)
        self._tables: dict[str, TableId] = {}

    def known(self, topic: str) -> tuple[TableId, ...]:
        """Return the topic's table if the config or an answer of the registry names it; otherwise nothing."""
        table = self._tables.get(topic) or self._config.table_of_topic(topic)
        if table is None:
            return ()
        self._tables[topic] = table
        return (table,)

    def look(self, offsets: TopicOffsets, _read: Mapping[int, int] | None, _goes_on: GoesOn) -> bool:
        """Ask the schema registry which table the topic belongs to."""
        table = self._table_of(offsets.topic)
        if table is not None:
            self._tables[offsets.topic] = table
        return True


class _LookUp(NamedTuple):
    """A topic to search.

    ``found``: the topic's current offsets. ``read``: the offset per partition up to which the topic's tasks
    have read it, if all of them have stopped; else None.
    """

    found: TopicOffsets
    read: Mapping[int, int] | None


class TopicLookUps:
    """Returns the tables of a topic, and searches topics for tables in the background.

    A call returns at once with the tables that are known so far. It also queues the topic for a search if no
    table of it is known, or if the tasks of all its tables have stopped. A background thread searches one
    topic after the other, each for a limited time. Later calls also return the tables that this thread has
    found. Calls must come from one thread.

    ``seconds``: maximum seconds that one topic is searched before the next one's turn.
    """

    def __init__(
        self, context: WorkerContext, finder: TableFinder, *, seconds: float = _LOOK_UP_SECONDS
    ) -> None:
        self._context = context
        self._finder = finder
        self._seconds = seconds
        self._lock = threading.Lock()
        self._wanted: dict[str, _LookUp] = {}
        self._at_work: Future[None] | None = None
        self._running = False
        self._looking: str | None = None
        self._ended = False
        # By topic: the earliest time of its next search, and the error of its last search.
        self._again: dict[str, float] = {}
        self._failed: dict[str, TidesinkError] = {}

    @classmethod
    def of(cls, context: WorkerContext, *, seconds: float = _LOOK_UP_SECONDS) -> TopicLookUps:
        """Create the look-ups of a pipeline, which use the table finder of the pipeline's protocol."""
        protocol = context.config.source.protocol
        if CODECS[protocol].shares_topics:
            return cls(context, NamedTables(context), seconds=seconds)
        by_rule = protocol == "flat-avro"
        finder = RuledTables(context) if by_rule else FirstRowTables(context)
        return cls(context, finder, seconds=seconds)

    def __call__(self, offsets: TopicOffsets, read: Mapping[int, int] | None) -> tuple[TableId, ...]:
        """Return the topic's tables that are known so far, and queue a search if it is needed.

        ``read``: the offset per partition up to which the topic's tasks have read it, if all of them have
        stopped; else None.

        Raises:
            TidesinkError: the last search of the topic failed with this error (see ``TableFinder.look``).
        """
        topic = offsets.topic
        tables = self._finder.known(topic)
        with self._lock:
            if topic == self._looking or (tables and (read is None or not self._finder.shares_topics)):
                return tables
            if time.monotonic() >= self._again.get(topic, 0.0):
                self._wanted[topic] = _LookUp(offsets, read)
                self._failed.pop(topic, None)
                self._begin()
            elif topic in self._failed:
                raise self._failed[topic]
        return tables

    @property
    def under_way(self) -> Future[None] | None:
        """The future of the background thread that searches topics, until ``collect`` has handled its end."""
        return self._at_work

    def collect(self) -> None:
        """Forget the background thread if it has finished; raise its exception if it failed unexpectedly."""
        if self._at_work is not None and self._at_work.done():
            self._at_work.result()
            self._at_work = None

    def end(self) -> None:
        """Start no further search; the current one ends when its time is over."""
        self._ended = True

    def _begin(self) -> None:
        if not self._running:
            self._running = True
            self._at_work = self._context.spark.thread(self._work, name="tables of topics")

    def _work(self) -> None:
        while (wanted := self._next()) is not None:
            topic = wanted.found.topic
            try:
                done, error = self._look(wanted), None
            except TidesinkError as exc:
                done, error = True, exc
            except Exception as exc:  # noqa: BLE001
                if self._context.stop:  # a stop cancels Spark jobs
                    continue
                fault = fault_of(exc)
                _log.error("topic not looked into", topic=topic, trace=fault.trace)
                done, error = (
                    True,
                    TidesinkError(f"The search for the topic's tables failed: {fault}", topic=topic),
                )
            with self._lock:
                if not done:
                    self._wanted[topic] = wanted
                elif error is not None:
                    self._failed[topic] = error
                    self._again[topic] = time.monotonic() + max(
                        self._context.config.retry.for_, LONGEST_PAUSE
                    )
                elif wanted.read is not None or not self._finder.known(topic):
                    self._again[topic] = time.monotonic() + _AGAIN_SECONDS

    def _next(self) -> _LookUp | None:
        with self._lock:
            if not self._wanted or self._ended or self._context.stop:
                self._running, self._looking = False, None
                return None
            self._looking = next(iter(self._wanted))
            return self._wanted.pop(self._looking)

    def _look(self, wanted: _LookUp) -> bool:
        stop, ends = self._context.stop, time.monotonic() + self._seconds
        offsets, read = wanted
        return self._finder.look(offsets, read, lambda: not stop and time.monotonic() < ends)


class QuietTables:
    """Finds tables that must be loaded from the source database although the topics have no record of them.

    For canal-json. If a table has not changed for a long time, Kafka no longer has a record of it. Its rows
    exist only in the source database. It is loaded if it matches an entry under ``tables`` that has
    ``snapshot: initial``, or if a user requested a snapshot. A background thread lists the database's tables
    when the worker starts, and then every few minutes. Used by one thread at a time.

    ``asked``: returns the tables for which a user requested a snapshot. ``ask``: returns all tables of the
    source database, and raises the errors of ``open_source_database``.
    """

    def __init__(
        self,
        context: WorkerContext,
        asked: Callable[[], Iterable[TableId]],
        ask: Callable[[Config], Iterable[TableId]] | None = None,
    ) -> None:
        self._context = context
        self._asked = asked
        self._ask = ask or tables_of_database
        self._looks = loads_quiet_tables(context.config)
        self._found: tuple[tuple[str, TableId], ...] = ()
        self._look: Future[Sequence[TableId]] | None = None
        self._again = 0.0

    def tables(self) -> tuple[tuple[str, TableId], ...]:
        """Return the topic and name of each table that was found.

        If the last list of the database's tables is old, also start a query for a new list.
        """
        config = self._context.config
        if self._looks and self._look is None and time.monotonic() >= self._again:
            self._again = time.monotonic() + _TABLES_SECONDS
            self._look = self._context.spark.thread(
                lambda: tuple(self._ask(config)), name="tables of the database"
            )
        asked = ((topic_without_records(config, table), table) for table in self._asked())
        pairs = (*self._found, *((topic, table) for topic, table in asked if topic is not None))
        return tuple(dict.fromkeys(pairs))

    @property
    def under_way(self) -> Future[Sequence[TableId]] | None:
        """The future of the query that lists the database's tables, until ``collect`` handles its result."""
        return self._look

    def collect(self) -> None:
        """Take over the list of the database's tables if the query has finished; log a failed query."""
        look = self._look
        if look is None or not look.done():
            return
        self._look = None
        try:
            self._found = tuple(quiet_tables(self._context.config, look.result()))
        except TidesinkError as exc:
            _log.warning("tables without records are not known", error=str(exc))
        except Exception as exc:  # noqa: BLE001  (a driver's, for example: the other tables must continue)
            # The exception's text may contain values of the config, such as the password.
            _log.warning("tables without records are not known", error=type(exc).__name__)


def tables_of_database(config: Config) -> tuple[TableId, ...]:
    """Return the names of all tables of the source database.

    Raises:
        ConfigError: no database is configured, or it refuses the user.
        SourceUnavailableError: the database does not answer.
    """
    with open_source_database(config) as database, translated(OPTION):
        return stored_tables(database.connection)
