"""Kafka's records of one batch as a Spark frame, and what Kafka itself gave.

Spark's own reader in batch form with explicit offsets: it spreads over executors and keeps no
checkpoint. What it hands over is counted as it passes, before anything looks at it: that count is the
``read`` of the accounting law. Where tasks ran again it is too large, and counted once more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import structlog
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from tidesink.errors import SourceError, SourceUnavailableError
from tidesink.sinks.ranges import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation, SparkSession

    from tidesink.sinks.batch.tasks import Fetch
    from tidesink.sinks.decoding import Apart

_log = structlog.get_logger("tidesink.spark")

RECORD_COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value")
# One task reads so many records at least: a short batch is not worth a second task on a partition.
_RECORDS_A_TASK: Final = 50_000
# Spark spreads the shuffle of a batch over so many records a task.
_RECORDS_A_SHUFFLE_TASK: Final = 25_000

# How the Java client is to read a batch, unless the config says otherwise. All offsets of a batch exist, so
# that there is nothing to wait for, and Spark asks the broker for the topic's bounds with each poll: behind
# a fetch that waits at the topic's end those questions would wait too, half a second each. Few polls of
# many records are cheaper for the same reason; bytes are still bounded by max.partition.fetch.bytes.
READER: Final[Mapping[str, str]] = {"kafka.fetch.max.wait.ms": "10", "kafka.max.poll.records": "20000"}
# Java class anywhere in the chain of causes -> what it means for the batch. The first that matches wins.
_LOST: Final = (
    "org.apache.kafka.clients.consumer.OffsetOutOfRangeException",
    "org.apache.kafka.common.errors.OffsetOutOfRangeException",
)
_KAFKA_TRIES_AGAIN: Final = "org.apache.kafka.common.errors.RetriableException"
_KAFKA: Final = "org.apache.kafka.common.KafkaException"


# A query that turns out empty is cut down to nothing by this rule, and what was counted with it: whoever
# waits for the count would wait for ever.
_EXCLUDED: Final = (
    "spark.sql.adaptive.optimizer.excludedRules",
    "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation",
)


class KafkaRead(NamedTuple):
    """Records and bytes of keys and values that Kafka gave; ``strangers`` are of tables nobody knows."""

    records: int
    bytes: int
    strangers: int = 0


class ReadFrame(NamedTuple):
    """A batch's raw frame; ``observed`` says what Kafka gave, once the frame was computed.

    ``counted`` says it too, of a read of its own.
    """

    frame: DataFrame
    observed: Callable[[], KafkaRead]
    counted: Callable[[], KafkaRead]

    def given(self, arrived: int) -> KafkaRead:
        """What Kafka gave, where so many records came out at the end of the batch's plan.

        Spark adds what a task observed each time the task has run, and tasks run again where their executor
        was lost before all had come for what they wrote. So what is observed may be too much, and is
        counted where it does not fit; a record that was lost, or came twice, shows then as it did before.
        """
        observed = self.observed()
        if observed.records == arrived:
            return observed
        counted = self.counted()
        if counted != observed:
            _log.info("records read were counted anew", observed=observed.records, counted=counted.records)
        return counted


class RecordReader(Protocol):
    """Gives the records of ranges of offsets."""

    def frame(self, session: SparkSession, ranges: Sequence[OffsetRange]) -> DataFrame:
        """The records in the ranges; lazy. At least one range must hold a record."""

    def read(
        self, session: SparkSession, ranges: Sequence[OffsetRange], *, apart: Apart | None = None
    ) -> ReadFrame:
        """The records in the ranges, counted as they are read, without those that ``apart`` leaves out."""

    @property
    def fetch(self) -> Fetch | None:
        """How tasks read a range by themselves; None where they cannot."""


class KafkaSource:
    """Reads ranges of offsets. ``properties`` are Spark's Kafka options and hold secrets.

    ``fetch``: how Spark's tasks read a range by themselves.

    ``opens_up_to``: values may be compressed, and are opened before anything looks at them, up to so many
    bytes each. None: they are not looked at.
    """

    def __init__(
        self, properties: Mapping[str, str], *, opens_up_to: int | None = None, fetch: Fetch | None = None
    ) -> None:
        self._opens_up_to = opens_up_to
        self.fetch = fetch
        self._properties = {**READER, **properties}

    def __repr__(self) -> str:
        return f"KafkaSource({self._properties.get('kafka.bootstrap.servers')!r})"

    def frame(self, session: SparkSession, ranges: Sequence[OffsetRange]) -> DataFrame:
        """The records in the ranges; lazy. At least one range must hold a record."""
        return self.opened(self._loaded(session, ranges).select(*RECORD_COLUMNS))

    def records(self, session: SparkSession, ranges: Sequence[OffsetRange]) -> DataFrame:
        """The same as Kafka has them: values are not opened, and there is a column ``headers``."""
        return self._loaded(session, ranges, headers=True).select(*RECORD_COLUMNS, "headers")

    def _loaded(
        self, session: SparkSession, ranges: Sequence[OffsetRange], *, headers: bool = False
    ) -> DataFrame:
        wanted = [part for part in ranges if part.records > 0]
        reader = session.read.format("kafka").options(**self._properties)
        reader = reader.options(
            **{
                "assign": json.dumps(_by_topic(wanted)),
                "startingOffsets": json.dumps(_offsets(wanted, "start")),
                "endingOffsets": json.dumps(_offsets(wanted, "end")),
                "failOnDataLoss": "true",
                "kafka.isolation.level": "read_committed",
                "minPartitions": str(_tasks(session, wanted)),
                "includeHeaders": str(headers).lower(),
            }
        )
        return reader.load()

    def opened(self, frame: DataFrame) -> DataFrame:
        """Records with their values opened, where the config says that they may be compressed."""
        if self._opens_up_to is None:
            return frame
        from pyspark.sql import functions as F  # noqa: N812  (PySpark's own name for it)

        from tidesink.codecs.columns_compression import opened

        return frame.withColumn("value", opened(F.col("value"), most=self._opens_up_to))

    def read(
        self, session: SparkSession, ranges: Sequence[OffsetRange], *, apart: Apart | None = None
    ) -> ReadFrame:
        """The records in the ranges, counted as they are read, without those that ``apart`` leaves out."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F  # noqa: N812  (PySpark's own name for it)

        observation = Observation()
        frame = self.frame(session, ranges)
        mine, stranger = (F.lit(True), F.lit(False)) if apart is None else (~apart.foreign, apart.stranger)
        size = record_bytes()
        counts = (
            F.count_if(mine).alias("records"),
            F.sum(F.when(mine, size)).alias("bytes"),
            F.count_if(stranger).alias("strangers"),
        )
        observed = frame.observe(observation, *counts)
        return ReadFrame(
            observed if apart is None else observed.where(mine),
            partial(_observed, observation),
            partial(_counted, frame, counts),
        )


def record_bytes() -> Column:
    """The bytes of a record's key and value."""
    from pyspark.sql import functions as F  # noqa: N812  (PySpark's own name for it)

    return F.coalesce(F.length("key"), F.lit(0)) + F.coalesce(F.length("value"), F.lit(0))


def _observed(observation: Observation) -> KafkaRead:
    return _read_of(observation.get)


def _counted(frame: DataFrame, counts: Sequence[Column]) -> KafkaRead:
    return _read_of(frame.agg(*counts).collect()[0].asDict())


def _read_of(found: Mapping[str, Any]) -> KafkaRead:
    return KafkaRead(int(found["records"]), int(found["bytes"] or 0), int(found["strangers"] or 0))


def open_reading_session(spark: SparkSession) -> SparkSession:
    """A session beside ``spark`` in which what is read is always counted."""
    session = spark.newSession()
    session.conf.set(*_EXCLUDED)
    return session


def fit_shuffle(session: SparkSession, records: int) -> None:
    """Have the session spread the shuffle of so many records over tasks that are worth their start."""
    tasks = max(1, min(2 * session.sparkContext.defaultParallelism, records // _RECORDS_A_SHUFFLE_TASK))
    session.conf.set("spark.sql.shuffle.partitions", str(tasks))


def _by_topic(ranges: Sequence[OffsetRange]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for part in ranges:
        found.setdefault(part.topic, []).append(part.partition)
    return found


def _offsets(ranges: Sequence[OffsetRange], end: str) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for part in ranges:
        found.setdefault(part.topic, {})[str(part.partition)] = getattr(part, end)
    return found


def _tasks(session: SparkSession, ranges: Sequence[OffsetRange]) -> int:
    """Enough tasks to keep the cores busy with a large batch, and one a partition for a small one."""
    records = sum(part.records for part in ranges)
    cores = session.sparkContext.defaultParallelism
    return max(1, len(ranges), min(cores, records // _RECORDS_A_TASK))


@contextmanager
def translated_read_errors(topic: str) -> Iterator[None]:
    """Raise what Spark says of a failed Kafka read as ours, by the Java classes of its causes."""
    try:
        yield
    except (Py4JError, PySparkException) as exc:
        names = frozenset(_class_names(exc))
        if names.intersection(_LOST):
            raise SourceError(
                "Kafka no longer holds offsets that were there when the batch was planned: they expired, or "
                "the topic was made again. Start the worker again to see which",
                topic=topic,
            ) from exc
        if _KAFKA_TRIES_AGAIN in names:
            raise SourceUnavailableError("Kafka did not answer while a batch was read", topic=topic) from exc
        if _KAFKA in names:
            raise SourceError("Kafka refuses to give the records: check source.kafka", topic=topic) from exc
        raise


def _class_names(exc: BaseException) -> Iterator[str]:
    throwable: Any = exc.java_exception if isinstance(exc, Py4JJavaError) else getattr(exc, "_origin", None)
    for _ in range(20):
        if throwable is None:
            return
        java_class = throwable.getClass()
        while java_class is not None:
            yield str(java_class.getName())
            java_class = java_class.getSuperclass()
        throwable = throwable.getCause()
