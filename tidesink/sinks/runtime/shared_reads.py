"""Shared reads: tables whose next offsets in a topic are the same read the records from Kafka together.

Each table has its own progress in its target, and continues from there. Tables with the same next offsets use
the same ranges, which the first of these tables chooses. The records are read from Kafka once, and Spark or
this process stores them until the last of these tables has used them. A table with lower offsets reads on its
own, up to the offsets of the other tables. No table waits for it.

A table can skip records that contain nothing for it, without a commit. At intervals, all tables commit the
offsets of one shared read, so that they have the same next offsets again after a kill.

This state is only in memory. After a kill, each table continues at the offsets in its target.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa
import structlog
from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.codecs.canal_json.scan import TableNames
from tidesink.events import TableId
from tidesink.sinks.batch.record_frames import (
    KEPT_DDL,
    SplitByTable,
    StoredRanges,
    full_name,
    records_in,
    table_of,
)
from tidesink.sinks.batch.reports import raise_first
from tidesink.sinks.batch.source import KafkaSource, WorkerReader, translated_read_errors
from tidesink.sinks.batch.tasks import MOST_BYTES, Fetch, Work
from tidesink.sinks.decode.topic_ddl import TOPIC_ABSENT, TopicDdl, TopicTables
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.kafka.leader_epochs import LeaderEpochs
from tidesink.sinks.kafka.offsets import (
    Ends,
    KafkaOffsets,
    OffsetRange,
    RecordSize,
    TopicGrowth,
    TopicOffsets,
    budget_of,
    furthest,
    plan_ranges,
    sample_size,
    up_to,
)
from tidesink.sinks.laws.executors import BatchSize, LocalLimits
from tidesink.sinks.schema_changes.connector_topic import SchemaChangeTopic
from tidesink.sinks.spark.engine import SparkEngine
from tidesink.sinks.spark.errors import Reporting, raised_local_errors
from tidesink.sinks.spark.session import in_session
from tidesink.sinks.state.progress import LastRecord, StateStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.config import Config


class Sharing(NamedTuple):
    """How shared reads are committed and stored.

    ``interval``: the seconds between two shared reads whose offsets all tables commit (``TopicReads``).
    ``local``: the largest read that this process stores.
    """

    interval: float = 0.0
    local: LocalLimits = LocalLimits()


class Topics:
    """State that the tables of a topic share, for all topics of a pipeline. It is created on demand.

    Args:
        pipeline: The pipeline's name.
        source: Reads records from Kafka.
        store: The state store.
        ask: Creates the client that looks up topics and offsets.
        sharing: How shared reads are committed and stored.
        schema_changes: The name of a Debezium connector's schema change topic, or None.
        log: Detects whether Kafka lost the end of a partition's log. None: this is not checked.
    """

    def __init__(
        self,
        pipeline: str,
        source: KafkaSource,
        store: StateStore,
        *,
        ask: Callable[[], KafkaOffsets],
        sharing: Sharing = Sharing(),  # noqa: B008  (it is immutable)
        schema_changes: str | None = None,
        log: LeaderEpochs | None = None,
    ) -> None:
        self.log = log
        self.schema_changes = (
            None
            if schema_changes is None
            else SchemaChangeTopic(schema_changes, pipeline=pipeline, source=source, store=store, log=log)
        )
        self._pipeline, self._source, self._store = pipeline, source, store
        self._sharing, self._ask = sharing, ask
        self._brokers: KafkaOffsets | None = None
        self._lock = threading.Lock()
        self._ddl: dict[str, TopicDdl] = {}
        self._growth: dict[str, TopicGrowth] = {}
        self._tables: dict[str, TopicTables] = {}
        self._reads: dict[str, TopicReads[KeptRead]] = {}

    @classmethod
    def of(
        cls,
        config: Config,
        source: KafkaSource,
        store: StateStore,
        *,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> Topics:
        """Creates the shared state of all topics of a config. ``is_stopped``: returns True after a stop
        request.
        """

        def ask() -> KafkaOffsets:
            return KafkaOffsets(config.source.confluent_properties())

        return cls(
            config.pipeline,
            source,
            store,
            ask=ask,
            sharing=Sharing(config.batch.watermark_interval, LocalLimits.of(config.batch)),
            schema_changes=config.source.debezium.schema_change_topic,
            log=LeaderEpochs(config.source.confluent_properties(), is_stopped=is_stopped),
        )

    @property
    def brokers(self) -> KafkaOffsets:
        """The client that looks up topics and offsets.

        There is only one, because a client has threads and connections.

        Raises:
            ConfigError: The Kafka client does not accept the config's properties.
        """
        with self._lock:
            if self._brokers is None:
                self._brokers = self._ask()
            return self._brokers

    def ddl(self, topic: str) -> TopicDdl:
        """Returns the topic's table definitions, which come from its DDL events."""
        with self._lock:
            if topic not in self._ddl:
                self._ddl[topic] = TopicDdl(
                    topic,
                    pipeline=self._pipeline,
                    store=self._store,
                    log=self.log,
                    ends_now=self.ends_now,
                )
            return self._ddl[topic]

    def tables(self, topic: str) -> TopicTables:
        """Returns the object that records which tables have records in a topic."""
        with self._lock:
            if topic not in self._tables:
                self._tables[topic] = TopicTables(topic, pipeline=self._pipeline, store=self._store)
            return self._tables[topic]

    def details(self, topic: str) -> dict[str, Any]:
        """Returns the details about a table's topic, as JSON for ``tidesink status``."""
        return {"topic": topic, **({TOPIC_ABSENT: True} if self.tables(topic).absent else {})}

    def grown(self, topic_offsets: TopicOffsets) -> tuple[Ends, ...]:
        """Returns, for each time that new partitions of a topic were noticed, the end offsets that its
        earlier partitions had at that time.

        Raises:
            StateStoreError: The state store does not answer.
        """
        topic = topic_offsets.topic
        with self._lock:
            if topic not in self._growth:
                self._growth[topic] = TopicGrowth(topic, pipeline=self._pipeline, store=self._store)
            growth = self._growth[topic]
        return growth.see(topic_offsets)

    def reads(self, topic: str) -> TopicReads[KeptRead]:
        """Returns the shared reads of a topic."""
        tables, ddl = self.tables(topic), self.ddl(topic)

        def keep(ranges: tuple[OffsetRange, ...], topic_offsets: TopicOffsets, size: RecordSize) -> KeptRead:
            local = self._sharing.local
            return KeptRead(self._source, tables, ddl, ranges, topic_offsets, size, local=local)

        with self._lock:
            return self._reads.setdefault(topic, TopicReads(keep, interval=self._sharing.interval))

    def ends_now(self, topic_offsets: TopicOffsets) -> TopicOffsets:
        """Looks up a topic's offsets and returns them.

        If the topic was deleted or created again after ``topic_offsets`` was looked up, returns
        ``topic_offsets``.

        Raises:
            SourceUnavailableError: No broker answers.
            SourceError: The brokers refuse the request.
        """
        # The lock is not held, so that a table does not wait for the brokers' answer to another table.
        now = self.brokers.lookup([topic_offsets.topic]).get(topic_offsets.topic, topic_offsets)
        return now if not topic_offsets.topic_id or now.topic_id == topic_offsets.topic_id else topic_offsets

    def release(self) -> None:
        """Release the records of all shared reads."""
        with self._lock:
            reads = list(self._reads.values())
        for read in reads:
            read.release()


# The maximum number of shared reads of a topic that tables can still join. With more, the oldest is closed.
MOST_KEPT: Final = 2

Offsets = Mapping[int, int]


class Kept(Protocol):
    """The records that are stored for a shared read."""

    def release(self) -> None:
        """Release the records. Never raises."""


K = TypeVar("K", bound=Kept)


class Limits(NamedTuple):
    """The limits of a batch.

    ``max_records``: the maximum number of records. ``max_bytes``: the maximum size in bytes. ``size``: the
    average size of the records that were read so far, from which the number of records is computed.
    """

    max_records: int
    max_bytes: int
    size: RecordSize


def sample(limits: Limits, available: Sequence[OffsetRange], fetch: Fetch) -> None:
    """Reads some records to measure their size, if no size is known and ``limits`` allow a larger batch.

    Without a known size, the first batch of a backlog would be much too small.

    Raises:
        SourceError: Kafka refuses the request, or does not answer.
    """
    waiting = sum(part.records for part in available)
    guessed = budget_of(limits.max_records, limits.max_bytes, limits.size)
    if limits.size.records or min(waiting, limits.max_records) <= guessed:
        return

    def weigh(part: OffsetRange) -> tuple[int, int]:
        wanted = FetchRange(*part, timestamps=False, headers=False)
        batches = [batch.select(["key", "value"]) for batch in fetch(wanted)]
        return sum(batch.num_rows for batch in batches), sum(int(batch.nbytes) for batch in batches)

    sample_size(limits.size, available, weigh)


class PlannedRead(NamedTuple, Generic[K]):
    """The next read of a table.

    Attributes:
        ranges: The range of offsets in each partition.
        found: The offsets and id of the topic when the ranges were chosen.
        kept: The shared read, or None if the table reads on its own.
        commits: True if the table must commit the offsets, even if it has no records among these records.
    """

    ranges: tuple[OffsetRange, ...]
    found: TopicOffsets
    kept: K | None
    commits: bool = True


@dataclass
class _Place:
    """The next offsets of a table.

    ``at``: the next offsets, or None if they are not known yet. ``heading``: the next offsets after the
    running batch, or None. ``away``: True if the table does not read, because it is paused, failed or done.
    """

    at: Offsets | None = None
    heading: Offsets | None = None
    away: bool = False

    def may_come(self, starts: Offsets) -> bool:
        """Returns True if the table's next read may begin at the offsets ``starts``."""
        stands = self.heading or self.at
        return not self.away and (stands is None or stands == starts)


@dataclass
class _Open(Generic[K]):
    """A shared read that has not ended.

    ``users``: the tables whose batch uses it now. ``closed``: True if no other table can join it.
    """

    ranges: tuple[OffsetRange, ...]
    found: TopicOffsets
    starts: Offsets
    kept: K
    commits: bool
    users: set[TableId] = field(default_factory=set)
    closed: bool = False


class TopicReads(Generic[K]):
    """Plans the reads of one topic for all its tables. Used from several threads.

    Args:
        keep: Creates the shared read of some ranges. It reads nothing until a table needs the records.
        interval: The seconds between two shared reads whose offsets all tables commit.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        keep: Callable[[tuple[OffsetRange, ...], TopicOffsets, RecordSize], K],
        *,
        interval: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keep = keep
        self._interval, self._clock = interval, clock
        self._committed: float | None = None
        self._size = RecordSize()
        self._lock = threading.Lock()
        self._places: dict[TableId, _Place] = {}
        self._open: list[_Open[K]] = []

    def expect(self, table: TableId) -> None:
        """Register a table that will read the topic. Its next offsets need not be known yet."""
        with self._lock:
            self._places.setdefault(table, _Place())

    def plan(
        self, table: TableId, available: Sequence[OffsetRange], topic_offsets: TopicOffsets, *, limits: Limits
    ) -> PlannedRead[K]:
        """Plans the next read of a table within the ranges ``available``, and marks the table as busy.

        The table is busy until ``settle`` is called. Only a read that another table may join is shared.
        """
        starts = {part.partition: part.start for part in available}
        with self._lock:
            place = self._places.setdefault(table, _Place())
            place.at, place.heading, place.away = starts, None, False
            joined = self._joined(starts, topic_offsets)
            if joined is None:
                others = any(other.may_come(starts) for name, other in self._places.items() if name != table)
                ranges = self._ranges(available, limits._replace(size=self._size) if others else limits)
                if not others or not any(part.records for part in ranges):
                    place.heading = _ends(ranges)
                    self._let_go()
                    return PlannedRead(ranges, topic_offsets, None)
                joined = self._opened(ranges, topic_offsets, starts)
            joined.users.add(table)
            place.heading = _ends(joined.ranges)
            self._let_go()
            return PlannedRead(joined.ranges, joined.found, joined.kept, joined.commits)

    def settle(self, table: TableId, offsets: Offsets | None, *, away: bool) -> None:
        """Ends the read of a table, after its batch is committed or failed.

        ``offsets``: the table's next offsets, or None if they did not change. ``away``: True if the table
        will not read for now, because it is paused, failed or done.
        """
        with self._lock:
            place = self._places.setdefault(table, _Place())
            place.at, place.heading, place.away = offsets or place.at, None, away
            for read in self._open:
                read.users.discard(table)
            self._let_go()

    def release(self) -> None:
        """Release all shared reads, because the worker ends."""
        with self._lock:
            for read in self._open:
                read.kept.release()
            self._open = []

    def _joined(self, starts: Offsets, topic_offsets: TopicOffsets) -> _Open[K] | None:
        for read in self._open:
            # After a change of leader, Kafka may have dropped records that were read before the change
            # (``kafka.leader_epochs``).
            same = (read.found.topic_id, read.found.leader_epochs) == (
                topic_offsets.topic_id,
                topic_offsets.leader_epochs,
            )
            if not read.closed and read.starts == starts and same:
                return read
        return None

    def _ranges(self, available: Sequence[OffsetRange], limits: Limits) -> tuple[OffsetRange, ...]:
        stands = [place.heading or place.at for place in self._places.values()]
        meeting = furthest(offsets for offsets in stands if offsets is not None)
        most = budget_of(limits.max_records, limits.max_bytes, limits.size)
        return plan_ranges(up_to(available, meeting), max_records=most)

    def _opened(
        self, ranges: tuple[OffsetRange, ...], topic_offsets: TopicOffsets, starts: Offsets
    ) -> _Open[K]:
        now = self._clock()
        commits = self._committed is None or now - self._committed >= self._interval
        if commits:
            self._committed = now
        read = _Open(ranges, topic_offsets, starts, self._keep(ranges, topic_offsets, self._size), commits)
        self._open.append(read)
        joinable = [open_read for open_read in self._open if not open_read.closed]
        for old in joinable[:-MOST_KEPT]:
            # Tables that did not join this read are two batches slower than the others. They will read on
            # their own.
            old.closed = True
        return read

    def _let_go(self) -> None:
        """Releases the shared reads that no table uses now or may join in the future."""
        for read in list(self._open):
            coming = not read.closed and any(place.may_come(read.starts) for place in self._places.values())
            if not read.users and not coming:
                self._open.remove(read)
                read.kept.release()


def _ends(ranges: Sequence[OffsetRange]) -> dict[int, int]:
    return {part.partition: part.end for part in ranges}


_log = structlog.get_logger("tidesink.spark")

_PAYLOADS: Final = ("partition", "payload", "error")
_PAYLOADS_DDL: Final = "partition int, payload binary, error binary"
_PAYLOAD_ROWS: Final = pa.schema(
    [("partition", pa.int32()), ("payload", pa.binary()), ("error", pa.binary())]
)
# The size of the records is only estimated. This process stores up to this many times the limit.
_MOST_TIMES: Final = 2


@dataclass(frozen=True)
class _InSpark:
    """Records of a shared read that Spark stores. ``frame``: payloads (``KEPT_DDL``)."""

    frame: DataFrame

    @property
    def heads(self) -> Sequence[Any]:
        """The rows without their payloads."""
        heads: list[Any] = self.frame.drop("payload").collect()
        return heads

    def over(self, session: SparkSession, table: TableId, work: StoredRanges, ddl: str) -> DataFrame:
        """Returns a lazy frame with the results of ``work`` on the records that name this table or none."""
        named = F.col("named")
        mine = in_session(self.frame, session).where(named.isNull() | (named == full_name(table)))
        return mine.select(*_PAYLOADS).mapInArrow(Reporting(work), ddl)

    def release(self) -> None:
        """Free the memory and disk blocks. If the frame is still in use, Spark reads Kafka again for it."""
        _unpersist(self.frame)


@dataclass(frozen=True)
class _InProcess:
    """Records of a shared read that this process stores. ``batches``: payloads (``KEPT_DDL``)."""

    batches: Sequence[pa.RecordBatch]

    @property
    def heads(self) -> Sequence[Any]:
        """The rows without their payloads."""
        return [head for batch in self.batches for head in batch.drop_columns("payload").to_pylist()]

    def over(self, session: SparkSession, table: TableId, work: StoredRanges, ddl: str) -> DataFrame:
        """Returns a lazy frame with the results of ``work`` on the records that name this table or none."""
        partitions = sorted({partition for _, partition in self._places})
        mine = [rows for partition in partitions for rows in self._mine(table, partition)]
        rows = pa.Table.from_batches(mine, _PAYLOAD_ROWS)
        # The payloads of a range must stay together.
        frame = session.createDataFrame(rows, _PAYLOADS_DDL).coalesce(1)
        return frame.mapInArrow(Reporting(work), ddl)

    def records_of(self, table: TableId, partition: int) -> Iterator[pa.RecordBatch]:
        """Yields the records of a partition that name this table or no table."""
        for rows in self._mine(table, partition):
            yield from records_in(rows)

    def release(self) -> None:
        """Do nothing: the memory is freed when no table uses the records."""

    def _mine(self, table: TableId, partition: int) -> Iterator[pa.RecordBatch]:
        """Yields the payloads of a partition whose records name this table or none, in their order."""
        names = (full_name(table), None)
        found = sorted(number for name in names for number in self._places.get((name, partition), ()))
        return (self.batches[number].select(list(_PAYLOADS)) for number in found)

    @cached_property
    def _places(self) -> Mapping[tuple[str | None, int], Sequence[int]]:
        """The numbers of the batches by the table that their records name, and by partition.

        A batch has one row (``SplitByTable``).
        """
        places = dict[tuple[str | None, int], list[int]]()
        for number, batch in enumerate(self.batches):
            (name,), (partition,) = batch.column("named").to_pylist(), batch.column("partition").to_pylist()
            places.setdefault((name, partition), []).append(number)
        return places


_Stored = _InSpark | _InProcess
# Returns a Spark session, which may have to start first.
AskSession = Callable[[], "SparkSession"]


class KeptRead:
    """The records of some ranges of a topic, grouped by table and stored by Spark or in this process.

    Several threads, each with its own Spark session, use the object.

    Args:
        source: Reads records from Kafka.
        tables: The known tables of the topic.
        ddl: The table definitions from the topic's DDL.
        ranges: The ranges to read.
        found: The offsets and id of the topic when the ranges were chosen. The read fails if Kafka then
            reports another id.
        size: The measured size of a record, which this read updates.
        local: The limits within which this process reads and stores the records.
    """

    def __init__(
        self,
        source: KafkaSource,
        tables: TopicTables,
        ddl: TopicDdl,
        ranges: Sequence[OffsetRange],
        topic_offsets: TopicOffsets,
        size: RecordSize,
        *,
        local: LocalLimits = LocalLimits(),  # noqa: B008  (it is immutable)
    ) -> None:
        wanted = (FetchRange(*part, topic_offsets.topic_id, headers=False) for part in ranges if part.records)
        self.ranges = tuple(wanted)
        self._source = source
        self._tables = tables
        self._ddl = ddl
        self._found = topic_offsets
        self._size = size
        self._local = local
        # False once the records turned out to be too large.
        batch = BatchSize(sum(part.records for part in ranges), size.estimate)
        self.is_local = batch.records > 0 and local.hold(batch)
        self._lock = threading.Lock()
        self._stored: _Stored | None = None
        # The tables that records name, and True if a record that is not a watermark names no table.
        self._named, self._for_all = frozenset[str](), True
        # The last record of each partition, if it has a leader epoch. Empty before the records are read.
        self.last: Mapping[int, LastRecord] = {}
        self._failed: tuple[int, Exception | None] = (0, None)

    def stored(self, session: AskSession) -> _Stored:
        """Returns the stored payloads.

        The first call reads them from Kafka. Calls during the read wait for it. ``session``: returns the
        calling table's Spark session. It is called if Spark must read the records.

        Raises:
            SourceError: Kafka refuses the request, or does not answer. All waiting calls raise the same
                error, and the next call reads again.
            StateStoreError: The names of new tables, or the DDL, cannot be stored.
        """
        stored = self._read_once(session)
        assert stored is not None  # noqa: S101  (Spark stores any number of bytes)
        return stored

    def stored_here(self, session: AskSession) -> _InProcess | None:
        """Returns the payloads that this process stores, or None if they have too many bytes.

        Raises:
            SourceError, StateStoreError: For the same reasons as ``stored``.
        """
        stored = self._read_once(session, only_here=True) if self.is_local else None
        return stored if isinstance(stored, _InProcess) else None

    def _read_once(self, session: AskSession, *, only_here: bool = False) -> _Stored | None:
        asked_at, _ = self._failed
        with self._lock:
            failures, error = self._failed
            if self._stored is None and error is not None and failures != asked_at:
                # Otherwise each waiting call would try the slow read again, one after the other, even after a
                # stop request.
                raise error
            if self._stored is None:
                self._stored = self._read_or_fail(session, only_here=only_here)
            return self._stored

    def concerns(self, table: TableId, session: AskSession) -> bool:
        """Returns True if one of the records names this table or no table. Watermarks do not count.

        Raises:
            SourceError, StateStoreError: For the same reasons as ``stored``.
        """
        self.stored(session)
        return self._for_all or full_name(table) in self._named

    def _read_or_fail(self, session: AskSession, *, only_here: bool) -> _Stored | None:
        try:
            return self._read(session, only_here=only_here)
        except Exception as exc:
            self._failed = self._failed[0] + 1, exc
            raise

    def release(self) -> None:
        """Release the stored records."""
        with self._lock:
            stored, self._stored = self._stored, None
        if stored is not None:
            stored.release()

    def _read(self, session: AskSession, *, only_here: bool) -> _Stored | None:
        """Reads and stores the records.

        ``only_here``: return None if this process does not store so many bytes.
        """
        split = SplitByTable(
            TableNames(frozenset(self._tables.known()), self._source.opens_up_to), MOST_BYTES
        )
        stored: _Stored | None = self._read_here(split) if self.is_local else None
        self.is_local = stored is not None
        if stored is None:
            if only_here:
                return None
            frame = self._source.over(session(), self.ranges, split, KEPT_DDL)
            stored = _InSpark(frame.persist(StorageLevel.MEMORY_AND_DISK))
        try:
            heads = stored.heads
            raise_first(heads)
            # The worker starts a new table when it has a row. After only a CREATE there is nothing to apply.
            self._tables.add(sorted({table_of(head["named"]) for head in heads if head["unlisted"]}))
            if any(head["ddl"] for head in heads):
                # DDL may affect tables that it does not name. Their tasks do not get the DDL record.
                engine = SparkEngine(lambda: nullcontext(session()))
                self._ddl.scan(WorkerReader(self._source, engine), self._found)
            self.last = _last_records(heads)
            self._named = frozenset(head["named"] for head in heads if head["named"] is not None)
            self._for_all = any(
                head["named"] is None and head["watermarks"] < head["records"] for head in heads
            )
        except BaseException:
            stored.release()
            raise
        self._size.learn(*(sum(head[name] for head in heads) for name in ("records", "bytes")))
        return stored

    def _read_here(self, split: SplitByTable) -> _InProcess | None:
        """Reads the records in this process. Returns None if this process does not store so many bytes."""
        batches, size = list[pa.RecordBatch](), 0
        for part in self.ranges:
            with raised_local_errors():
                for batch in split(part, self._source.records_of(part)):
                    size += batch.nbytes
                    if size > _MOST_TIMES * self._local.bytes:
                        return None
                    batches.append(batch)
        return _InProcess(batches)


def _last_records(heads: Iterable[Any]) -> dict[int, LastRecord]:
    last_records = dict[int, LastRecord]()
    for head in heads:
        if head["last_epoch"] is not None:
            record = LastRecord(head["last_offset"], head["last_epoch"])
            last_records[head["partition"]] = max(record, last_records.get(head["partition"], record))
    return last_records


class TableRecords:
    """Reads the records of one table from a shared read. Used in place of a reader of Kafka.

    ``session``: returns the table's Spark session. It is called if Spark must read the records. ``commits``:
    True if the table must commit the offsets, even if the read has no records for it.
    """

    def __init__(
        self,
        kept_read: KeptRead,
        source: KafkaSource,
        table: TableId,
        session: AskSession,
        *,
        commits: bool,
    ) -> None:
        self.commits = commits
        self._session = session
        self._kept = kept_read
        self._source = source
        self._table = table

    def concern(self) -> bool:
        """Returns True if the read has records for the table. Watermarks do not count.

        Raises:
            SourceError: Kafka refuses the request, or does not answer.
        """
        with translated_read_errors(self._kept.ranges[0].topic):
            return self._kept.concerns(self._table, self._session)

    def can_read_here(self) -> bool:
        """Returns True if this process stores the shared records. The first call reads them.

        Raises:
            SourceError: Kafka refuses the request, or does not answer.
        """
        return self._kept.stored_here(self._session) is not None

    @property
    def last(self) -> Mapping[int, LastRecord]:
        """The last record of each partition, of any table. Empty until the records are read."""
        return self._kept.last

    def over(self, session: SparkSession, ranges: Sequence[FetchRange], work: Work, ddl: str) -> DataFrame:
        """Returns a lazy frame with the results of ``work`` on the records that name this table or no table.

        If ``ranges`` are not the ranges of the shared read, the records are read from Kafka.
        """
        if tuple(ranges) != self._kept.ranges:
            return self._source.over(session, ranges, work, ddl)
        stored = self._kept.stored(lambda: session)
        return stored.over(session, self._table, StoredRanges(self._kept.ranges, work), ddl)

    def records_of(self, wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        """Yields the records of a range that name this table or no table.

        If ``wanted`` is not a range of the shared read, the records are read from Kafka.

        Raises:
            SourceError: Kafka refuses the request, or does not answer.
        """
        stored = self._kept.stored_here(self._session) if wanted in self._kept.ranges else None
        if stored is None:
            return self._source.records_of(wanted)
        return stored.records_of(self._table, wanted.partition)


class PassedRecords:
    """The offsets of records that a table has skipped without a commit, because none of them is about it.

    After a kill these records are read again. Once the first of them was skipped ``interval`` seconds ago,
    the table must commit its offsets (``owe_commit``). Otherwise its committed offsets could point to records
    that retention has deleted.
    """

    def __init__(self, interval: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval, self._clock = interval, clock
        self._ends = dict[int, int]()
        self._since = 0.0
        # The last skipped record of each partition, if it has a leader epoch.
        self.last: Mapping[int, LastRecord] = {}

    @property
    def owe_commit(self) -> bool:
        """True if records were skipped at least ``interval`` seconds ago and are not committed yet."""
        return bool(self._ends) and self._clock() - self._since >= self._interval

    def add(self, ranges: Iterable[OffsetRange], last: Mapping[int, LastRecord] | None = None) -> None:
        """Add skipped ranges. ``last``: the last record of each partition, if it has a leader epoch."""
        if not self._ends:
            self._since = self._clock()
        self._ends |= {part.partition: part.end for part in ranges if part.records}
        self.last = {**self.last, **(last or {})}

    def behind(self, committed: Mapping[int, int]) -> dict[int, int]:
        """Returns, for each partition, the first offset after the committed and the skipped records."""
        offsets = {**self._ends, **committed}
        return {number: max(offset, self._ends.get(number, offset)) for number, offset in offsets.items()}

    def step_back(self) -> None:
        """Count the last skipped record of one partition as not read. The next batch then has a record to
        read, and so commits the table's offsets.
        """
        self._ends[next(iter(self._ends))] -= 1

    def clear(self) -> None:
        """Forget the skipped records, because the table's offsets are committed."""
        self._ends.clear()
        self.last = {}


def _unpersist(frame: DataFrame) -> None:
    try:
        frame.unpersist()
    except (Py4JError, OSError) as exc:
        _log.debug("the JVM does not answer", error=type(exc).__name__)
