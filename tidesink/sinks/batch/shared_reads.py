"""Tables of one topic that stand at the same offsets are read together.

Every table has progress of its own in its target, and reads on from there. Tables at the same offsets get
the same ranges: the first to come decides them, the records are read from Kafka once and stored until the
last of these tables is done with them. A table that lags reads for itself, as far as the others have come;
nobody waits for it.

Records of a topic that hold nothing for a table can go by without a commit of it. One read each so often is
committed by all tables that are at it, so that after a kill they stand at the same offsets again.

Nothing here is remembered: after a kill the tables stand where their targets say.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

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
    table_of,
)
from tidesink.sinks.batch.schema_change_topic import SchemaChangeTopic
from tidesink.sinks.batch.source import KafkaSource, raise_first, translated_read_errors
from tidesink.sinks.batch.tasks import MOST_BYTES, Fetch, Work
from tidesink.sinks.batch.topic_ddl import TOPIC_ABSENT, TopicDdl, TopicTables
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
from tidesink.sinks.spark.errors import Reporting
from tidesink.sinks.spark.session import in_session
from tidesink.sinks.state.progress import LastRecord, StateStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.config import Config


class Topics:
    """The memories of a pipeline's topics, made when asked for.

    ``ask`` makes what asks the brokers. ``interval``: as of ``TopicReads``.
    """

    def __init__(
        self,
        pipeline: str,
        source: KafkaSource,
        store: StateStore,
        *,
        ask: Callable[[], KafkaOffsets],
        interval: float = 0.0,
        schema_changes: str | None = None,
        log: LeaderEpochs | None = None,
    ) -> None:
        # What notices that a partition's log was cut; None: nothing does.
        self.log = log
        # The topic of a connector's DDL; None where the config names none.
        self.schema_changes = (
            None
            if schema_changes is None
            else SchemaChangeTopic(schema_changes, pipeline=pipeline, source=source, store=store, log=log)
        )
        self._pipeline, self._source, self._store = pipeline, source, store
        self._interval, self._ask = interval, ask
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
        """The topics of a config's brokers. ``is_stopped``: whether a stop was requested."""

        def ask() -> KafkaOffsets:
            return KafkaOffsets(config.source.confluent_properties())

        return cls(
            config.pipeline,
            source,
            store,
            ask=ask,
            interval=config.batch.watermark_interval,
            schema_changes=config.source.debezium.schema_change_topic,
            log=LeaderEpochs(config.source.confluent_properties(), is_stopped=is_stopped),
        )

    @property
    def brokers(self) -> KafkaOffsets:
        """What answers questions on topics, for all tables: each client has threads and connections.

        Raises:
            ConfigError: the properties are refused.
        """
        with self._lock:
            if self._brokers is None:
                self._brokers = self._ask()
            return self._brokers

    def ddl(self, topic: str) -> TopicDdl:
        """The definitions a topic's DDL makes."""
        with self._lock:
            if topic not in self._ddl:
                self._ddl[topic] = TopicDdl(
                    topic,
                    pipeline=self._pipeline,
                    source=self._source,
                    store=self._store,
                    log=self.log,
                    ends_now=self.ends_now,
                )
            return self._ddl[topic]

    def tables(self, topic: str) -> TopicTables:
        """The tables a topic carries."""
        with self._lock:
            if topic not in self._tables:
                self._tables[topic] = TopicTables(
                    topic, pipeline=self._pipeline, source=self._source, store=self._store
                )
            return self._tables[topic]

    def details(self, topic: str) -> dict[str, Any]:
        """What the status of a table shows of its topic."""
        return {"topic": topic, **({TOPIC_ABSENT: True} if self.tables(topic).absent else {})}

    def grown(self, found: TopicOffsets) -> tuple[Ends, ...]:
        """Each time that partitions were added to a topic, as far as the pipeline saw it.

        Raises:
            StateStoreError: the store does not answer.
        """
        topic = found.topic
        with self._lock:
            if topic not in self._growth:
                self._growth[topic] = TopicGrowth(topic, pipeline=self._pipeline, store=self._store)
            growth = self._growth[topic]
        return growth.see(found)

    def reads(self, topic: str) -> TopicReads[KeptRead]:
        """What the tables of a topic read together."""
        tables, ddl = self.tables(topic), self.ddl(topic)

        def keep(ranges: tuple[OffsetRange, ...], found: TopicOffsets, size: RecordSize) -> KeptRead:
            return KeptRead(self._source, tables, ddl, ranges, found, size)

        with self._lock:
            return self._reads.setdefault(topic, TopicReads(keep, interval=self._interval))

    def ends_now(self, found: TopicOffsets) -> TopicOffsets:
        """Where a topic ends by now; as it was found where it is gone, or was made again.

        Raises:
            SourceUnavailableError: no broker answers.
            SourceError: the brokers refuse us.
        """
        # Outside of the lock: no table waits for another's answer.
        now = self.brokers.lookup([found.topic]).get(found.topic, found)
        return now if not found.topic_id or now.topic_id == found.topic_id else found

    def release(self) -> None:
        """Let go of every record kept for several tables."""
        with self._lock:
            reads = list(self._reads.values())
        for one in reads:
            one.release()


# So many kept reads of one topic wait for tables that have yet to come; of more, the oldest lets go.
MOST_KEPT: Final = 2

Offsets = Mapping[int, int]


class Kept(Protocol):
    """What several tables read together."""

    def release(self) -> None:
        """Let go of the records. Never fails."""


K = TypeVar("K", bound=Kept)


class Limits(NamedTuple):
    """The bounds of a batch, and what a record of the table that asks weighs."""

    max_records: int
    max_bytes: int
    size: RecordSize


def sample(limits: Limits, available: Sequence[OffsetRange], fetch: Fetch) -> None:
    """Learn what records weigh, where a guess would cut the first batch of a backlog short.

    Raises:
        SourceError: Kafka refuses, or does not answer.
    """
    waiting = sum(part.records for part in available)
    guessed = budget_of(limits.max_records, limits.max_bytes, limits.size)
    if limits.size.records or min(waiting, limits.max_records) <= guessed:
        return

    def weigh(part: OffsetRange) -> tuple[int, int]:
        wanted = FetchRange(*part, timestamps=False, headers=False)
        found = [one.select(["key", "value"]) for one in fetch(wanted)]
        return sum(one.num_rows for one in found), sum(int(one.nbytes) for one in found)

    sample_size(limits.size, available, weigh)


class PlannedRead(NamedTuple, Generic[K]):
    """The offsets of one batch, and what is kept of them: None where the table reads for itself.

    ``commits``: the table commits how far it has come, whatever the records hold.
    """

    ranges: tuple[OffsetRange, ...]
    found: TopicOffsets
    kept: K | None
    commits: bool = True


@dataclass
class _Place:
    """Where a table stands by its next offsets (None: not known yet), and will stand after its batch.

    ``away``: it is paused, has failed or is done, and comes for nothing.
    """

    at: Offsets | None = None
    heading: Offsets | None = None
    away: bool = False

    def may_come(self, starts: Offsets) -> bool:
        """Whether the table is to read from these offsets, as far as one can tell."""
        stands = self.heading or self.at
        return not self.away and (stands is None or stands == starts)


@dataclass
class _Open(Generic[K]):
    """A read that tables share: who is at it, and whether others may still join."""

    ranges: tuple[OffsetRange, ...]
    found: TopicOffsets
    starts: Offsets
    kept: K
    commits: bool
    users: set[TableId] = field(default_factory=set)
    closed: bool = False


class TopicReads(Generic[K]):
    """The reads of one topic. Used by the tasks of all its tables, from several threads.

    ``keep`` makes what is kept of ranges of a topic as it was found; nothing is read before somebody asks for
    it.
    ``interval``: seconds after which a read is again one that all its tables commit.
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
        """Know of a table that is going to read; where it stands is not known yet."""
        with self._lock:
            self._places.setdefault(table, _Place())

    def plan(
        self, table: TableId, available: Sequence[OffsetRange], found: TopicOffsets, *, limits: Limits
    ) -> PlannedRead[K]:
        """What a table reads next of what is ``available`` to it; it is at work until it has ``settled``."""
        starts = {part.partition: part.start for part in available}
        with self._lock:
            place = self._places.setdefault(table, _Place())
            place.at, place.heading, place.away = starts, None, False
            joined = self._joined(starts, found)
            if joined is None:
                others = any(other.may_come(starts) for name, other in self._places.items() if name != table)
                ranges = self._ranges(available, limits._replace(size=self._size) if others else limits)
                if not others or not any(part.records for part in ranges):
                    place.heading = _ends(ranges)
                    self._let_go()
                    return PlannedRead(ranges, found, None)
                joined = self._opened(ranges, found, starts)
            joined.users.add(table)
            place.heading = _ends(joined.ranges)
            self._let_go()
            return PlannedRead(joined.ranges, joined.found, joined.kept, joined.commits)

    def settle(self, table: TableId, at: Offsets | None, *, away: bool) -> None:
        """A table is done with its batch, or failed, and stands where it says; None: where it stood."""
        with self._lock:
            place = self._places.setdefault(table, _Place())
            place.at, place.heading, place.away = at or place.at, None, away
            for read in self._open:
                read.users.discard(table)
            self._let_go()

    def release(self) -> None:
        """Let go of everything: the worker ends."""
        with self._lock:
            for read in self._open:
                read.kept.release()
            self._open = []

    def _joined(self, starts: Offsets, found: TopicOffsets) -> _Open[K] | None:
        for read in self._open:
            # What was read under another leader may be cut off by now (``kafka.leader_epochs``).
            same = (read.found.topic_id, read.found.leader_epochs) == (found.topic_id, found.leader_epochs)
            if not read.closed and read.starts == starts and same:
                return read
        return None

    def _ranges(self, available: Sequence[OffsetRange], limits: Limits) -> tuple[OffsetRange, ...]:
        stands = [place.heading or place.at for place in self._places.values()]
        meeting = furthest(offsets for offsets in stands if offsets is not None)
        most = budget_of(limits.max_records, limits.max_bytes, limits.size)
        return plan_ranges(up_to(available, meeting), max_records=most)

    def _opened(self, ranges: tuple[OffsetRange, ...], found: TopicOffsets, starts: Offsets) -> _Open[K]:
        now = self._clock()
        commits = self._committed is None or now - self._committed >= self._interval
        if commits:
            self._committed = now
        read = _Open(ranges, found, starts, self._keep(ranges, found, self._size), commits)
        self._open.append(read)
        joinable = [one for one in self._open if not one.closed]
        for old in joinable[:-MOST_KEPT]:
            # Its last tables are so slow that the others are two batches ahead: they lag, and read alone.
            old.closed = True
        return read

    def _let_go(self) -> None:
        """Release what nobody is at and nobody is going to come for."""
        for read in list(self._open):
            coming = not read.closed and any(one.may_come(read.starts) for one in self._places.values())
            if not read.users and not coming:
                self._open.remove(read)
                read.kept.release()


def _ends(ranges: Sequence[OffsetRange]) -> dict[int, int]:
    return {part.partition: part.end for part in ranges}


_log = structlog.get_logger("tidesink.spark")


class KeptRead:
    """What some ranges of a topic hold, packed by table. Used by several threads, each with a session.

    ``found``: the topic as it stood when they were chosen, whose id Kafka must still say after the read.
    ``size`` learns what a record weighs.
    """

    def __init__(
        self,
        source: KafkaSource,
        tables: TopicTables,
        ddl: TopicDdl,
        ranges: Sequence[OffsetRange],
        found: TopicOffsets,
        size: RecordSize,
    ) -> None:
        wanted = (FetchRange(*part, found.topic_id, headers=False) for part in ranges if part.records)
        self.ranges = tuple(wanted)
        self._source = source
        self._tables = tables
        self._ddl = ddl
        self._found = found
        self._size = size
        self._lock = threading.Lock()
        self._frame: DataFrame | None = None
        # The tables that are named, and whether something names none and is no watermark.
        self._named, self._for_all = frozenset[str](), True
        # By partition the last record, if it has a leader epoch; known once the records were read.
        self.last: Mapping[int, LastRecord] = {}
        self._failed: tuple[int, Exception | None] = (0, None)

    def frame(self, session: SparkSession) -> DataFrame:
        """The payloads (``KEPT_DDL``), read when they are asked for first; whoever asks meanwhile waits.

        Raises: what reading Kafka, and telling of its tables, raises, to all who waited for it; who asks
            then reads again.
        """
        asked_at, _ = self._failed
        with self._lock:
            failures, error = self._failed
            if self._frame is None and error is not None and failures != asked_at:
                # One after the other would wait as long as this read did, also after a stop.
                raise error
            if self._frame is None:
                self._frame = self._read_or_fail(session)
            return in_session(self._frame, session)

    def concerns(self, table: TableId, session: SparkSession) -> bool:
        """Whether something but watermarks is there for a table; reads and raises as ``frame``."""
        self.frame(session)
        return self._for_all or full_name(table) in self._named

    def _read_or_fail(self, session: SparkSession) -> DataFrame:
        try:
            return self._read(session)
        except Exception as exc:
            self._failed = self._failed[0] + 1, exc
            raise

    def release(self) -> None:
        """Let go of the records; who still has a frame of them would read Kafka."""
        with self._lock:
            frame, self._frame = self._frame, None
        if frame is not None:
            _unpersist(frame)

    def _read(self, session: SparkSession) -> DataFrame:
        names = TableNames(frozenset(self._tables.known()), self._source.opens_up_to)
        frame = self._source.over(session, self.ranges, SplitByTable(names, MOST_BYTES), KEPT_DDL)
        frame = frame.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            heads = frame.drop("payload").collect()
            raise_first(heads)
            # They get tasks of their own by their first row: a CREATE alone leaves nothing to apply.
            self._tables.add(sorted({table_of(head["named"]) for head in heads if head["strangers"]}))
            if any(head["ddl"] for head in heads):
                # It may be about tables that it does not name, to which it is given no more than to others.
                self._ddl.scan(session, self._found)
            self.last = _last_records(heads)
            self._named = frozenset(head["named"] for head in heads if head["named"] is not None)
            self._for_all = any(
                head["named"] is None and head["watermarks"] < head["records"] for head in heads
            )
        except BaseException:
            _unpersist(frame)
            raise
        self._size.learn(*(sum(head[name] for head in heads) for name in ("records", "bytes")))
        return frame


def _last_records(heads: Iterable[Any]) -> dict[int, LastRecord]:
    found = dict[int, LastRecord]()
    for head in heads:
        if head["last_epoch"] is not None:
            record = LastRecord(head["last_offset"], head["last_epoch"])
            found[head["partition"]] = max(record, found.get(head["partition"], record))
    return found


class TableRecords:
    """One table's part of a kept read, in place of reading Kafka; ``commits``: as of ``PlannedRead``."""

    def __init__(self, kept: KeptRead, source: KafkaSource, table: TableId, *, commits: bool) -> None:
        self.commits = commits
        self._kept = kept
        self._source = source
        self._table = table

    def concern(self, session: SparkSession) -> bool:
        """Whether the records hold anything for the table but watermarks; raises as a batch of them."""
        with translated_read_errors(self._kept.ranges[0].topic):
            return self._kept.concerns(self._table, session)

    @property
    def last(self) -> Mapping[int, LastRecord]:
        """The last record of each partition, of whatever table; empty before the records were read."""
        return self._kept.last

    def over(self, session: SparkSession, ranges: Sequence[FetchRange], work: Work, ddl: str) -> DataFrame:
        """As ``KafkaSource.over``: of what names the table, and what names none.

        Other ranges than the kept ones are read from Kafka.
        """
        if tuple(ranges) != self._kept.ranges:
            return self._source.over(session, ranges, work, ddl)
        named = F.col("named")
        mine = self._kept.frame(session).where(named.isNull() | (named == full_name(self._table)))
        rows = mine.select("partition", "payload", "error")
        return rows.mapInArrow(Reporting(StoredRanges(self._kept.ranges, work)), ddl)


class PassedRecords:
    """Records that held nothing for a table and went by without a commit of it.

    After a kill they are read again. The table commits all the same within ``interval`` seconds, or it would
    one day stand at records that expired.
    """

    def __init__(self, interval: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval, self._clock = interval, clock
        self._ends = dict[int, int]()
        self._since = 0.0
        # The last record of each partition that went by, if it has a leader epoch.
        self.last: Mapping[int, LastRecord] = {}

    @property
    def owe_commit(self) -> bool:
        """Whether the first of them went by as long ago as may be."""
        return bool(self._ends) and self._clock() - self._since >= self._interval

    def add(self, ranges: Iterable[OffsetRange], last: Mapping[int, LastRecord] | None = None) -> None:
        """Have records gone by; ``last``: the last one of each partition, if it has a leader epoch."""
        if not self._ends:
            self._since = self._clock()
        self._ends |= {part.partition: part.end for part in ranges if part.records}
        self.last = {**self.last, **(last or {})}

    def behind(self, committed: Mapping[int, int]) -> dict[int, int]:
        """The next offset of each partition, also of one that nothing is committed of."""
        known = {**self._ends, **committed}
        return {number: max(at, self._ends.get(number, at)) for number, at in known.items()}

    def step_back(self) -> None:
        """Have the last record read again, by a batch that commits how far the table has come."""
        self._ends[next(iter(self._ends))] -= 1

    def clear(self) -> None:
        """The table stands where its target says."""
        self._ends.clear()
        self.last = {}


def _unpersist(frame: DataFrame) -> None:
    try:
        frame.unpersist()
    except (Py4JError, OSError) as exc:
        _log.debug("the JVM does not answer", error=type(exc).__name__)
