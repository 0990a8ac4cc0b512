"""Records of a topic with many tables, read from Kafka once and kept for all of them.

One job reads the records, finds the table each of them names, and counts them by table: those counts are
the ``read`` of every table's accounting. Spark keeps the records beside the name, in memory and on disk;
a table then looks at the name and decodes what is its own. A block that is lost is read from the same
offsets again.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import structlog
from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own name for it)

from tidesink.events import TableId
from tidesink.sinks.ranges import OffsetRange, RecordSize
from tidesink.sinks.records_spark import full_name, named_table, named_tables
from tidesink.sinks.sessions_spark import in_session
from tidesink.sinks.source import RECORD_COLUMNS, KafkaRead, KafkaSource, ReadFrame, record_bytes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.sinks.decoding import Apart
    from tidesink.sinks.topic_tables import TopicTables

_log = structlog.get_logger("tidesink.spark")
_NAMED = "named_table"


class _Records(NamedTuple):
    """The kept frame, and what Kafka gave of each table by its full name; None for what names no table."""

    frame: DataFrame
    counts: Mapping[str | None, KafkaRead]


class KeptRead:
    """What some ranges of a topic hold. Used by several threads, each with a session of its own."""

    def __init__(
        self, source: KafkaSource, tables: TopicTables, ranges: tuple[OffsetRange, ...], size: RecordSize
    ) -> None:
        self.ranges = ranges
        self._source = source
        self._tables = tables
        self._size = size
        self._lock = threading.Lock()
        self._records: _Records | None = None
        self._failed: tuple[int, Exception | None] = (0, None)

    def records(self, session: SparkSession) -> _Records:
        """The records, read when they are asked for first; whoever asks meanwhile waits.

        Raises: what reading Kafka, and telling of its tables, raises, to all who waited for it; who asks
            then reads again.
        """
        asked_at, _ = self._failed
        with self._lock:
            failures, error = self._failed
            if self._records is None and error is not None and failures != asked_at:
                # One after the other would wait as long as this read did, also after a stop.
                raise error
            if self._records is None:
                self._records = self._read_or_fail(session)
            return self._records

    def _read_or_fail(self, session: SparkSession) -> _Records:
        try:
            return self._read(session)
        except Exception as exc:
            self._failed = self._failed[0] + 1, exc
            raise

    def release(self) -> None:
        """Let go of the records; who still has a frame of them would read Kafka."""
        with self._lock:
            records, self._records = self._records, None
        if records is not None:
            _unpersist(records.frame)

    def _read(self, session: SparkSession) -> _Records:
        raw = self._source.frame(session, self.ranges)
        frame = raw.withColumn(_NAMED, named_table()).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            counts = _counted(frame)
            self._tell(frame, counts)
        except BaseException:
            _unpersist(frame)
            raise
        self._size.learn(
            sum(read.records for read in counts.values()), sum(read.bytes for read in counts.values())
        )
        return _Records(frame, counts)

    def _tell(self, frame: DataFrame, counts: Mapping[str | None, KafkaRead]) -> None:
        """Tell of tables nobody knows which have a row here: they get lanes of their own."""
        known = {full_name(table) for table in self._tables.known()}
        strangers = [name for name in counts if name is not None and name not in known]
        if strangers:
            self._tables.add(named_tables(frame.where(F.col(_NAMED).isin(*strangers))))


class TableRecords:
    """One table's part of a kept read, in place of reading Kafka."""

    def __init__(self, kept: KeptRead, source: KafkaSource, table: TableId) -> None:
        self._kept = kept
        self._source = source
        self._name = full_name(table)

    @property
    def fetch(self) -> None:
        """None: the records were read once for all tables."""
        return None

    def frame(self, session: SparkSession, ranges: Sequence[OffsetRange]) -> DataFrame:
        """The records in the ranges; other ranges than the kept ones are read from Kafka."""
        if tuple(ranges) != self._kept.ranges:
            return self._source.frame(session, ranges)
        return self._frame(session)

    def read(
        self, session: SparkSession, ranges: Sequence[OffsetRange], *, apart: Apart | None = None
    ) -> ReadFrame:
        """As ``KafkaSource.read``: what names the table, and what names none."""
        if tuple(ranges) != self._kept.ranges:
            return self._source.read(session, ranges, apart=apart)
        counts = self._kept.records(session).counts
        found = [counts[name] for name in (self._name, None) if name in counts]
        read = KafkaRead(sum(one.records for one in found), sum(one.bytes for one in found))
        # The rows of a query's answer: a task that ran again is not in them twice.
        return ReadFrame(self._frame(session), lambda: read, lambda: read)

    def _frame(self, session: SparkSession) -> DataFrame:
        frame = in_session(self._kept.records(session).frame, session)
        named = F.col(_NAMED)
        return frame.where(named.isNull() | (named == self._name)).select(*RECORD_COLUMNS)


def _counted(frame: DataFrame) -> dict[str | None, KafkaRead]:
    rows = frame.groupBy(_NAMED).agg(F.count("*").alias("records"), F.sum(record_bytes()).alias("bytes"))
    return {row[_NAMED]: KafkaRead(int(row["records"]), int(row["bytes"] or 0)) for row in rows.collect()}


def _unpersist(frame: DataFrame) -> None:
    try:
        frame.unpersist()
    except (Py4JError, OSError) as exc:
        _log.debug("the JVM does not answer", error=type(exc).__name__)
