"""Kafka's records of one batch as a Spark frame, and what Kafka itself gave.

Spark's tasks read ranges of offsets with librdkafka (``spark.record_frames``). What they give is counted as
it passes, before anything looks at it: that count is the ``read`` of the accounting law. Where tasks ran
again it is too large, and counted once more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import structlog

from tidesink.sinks.ranges import OffsetRange
from tidesink.sinks.spark.record_frames import opened_frame, record_frame
from tidesink.sinks.spark.task_errors import raised_task_errors

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation, SparkSession

    from tidesink.sinks.batch.tasks import Fetch
    from tidesink.sinks.decoding import Apart

_log = structlog.get_logger("tidesink.spark")

RECORD_COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value")
# Spark spreads the shuffle of a batch over so many records a task.
_RECORDS_A_SHUFFLE_TASK: Final = 25_000

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
        """The records in the ranges; lazy."""

    def read(
        self, session: SparkSession, ranges: Sequence[OffsetRange], *, apart: Apart | None = None
    ) -> ReadFrame:
        """The records in the ranges, counted as they are read, without those that ``apart`` leaves out."""

    @property
    def fetch(self) -> Fetch | None:
        """How tasks read a range by themselves; None where they cannot."""


class KafkaSource:
    """Reads ranges of offsets. ``fetch`` is how Spark's tasks read one, and may hold secrets.

    ``opens_up_to``: values may be compressed, and are opened before anything looks at them, up to so many
    bytes each. None: they are not looked at.
    """

    def __init__(self, fetch: Fetch, *, opens_up_to: int | None = None) -> None:
        self.fetch = fetch
        self._opens_up_to = opens_up_to

    def frame(self, session: SparkSession, ranges: Sequence[OffsetRange]) -> DataFrame:
        """The records in the ranges; lazy."""
        return record_frame(session, ranges, self.fetch, opens_up_to=self._opens_up_to)

    def records(self, session: SparkSession, ranges: Sequence[OffsetRange]) -> DataFrame:
        """The same as Kafka has them: values are not opened, and there is a column ``headers``."""
        return record_frame(session, ranges, self.fetch, headers=True)

    def opened(self, frame: DataFrame) -> DataFrame:
        """Records with their values opened, where the config says that they may be compressed."""
        return frame if self._opens_up_to is None else opened_frame(frame, self._opens_up_to)

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


def translated_read_errors(topic: str) -> AbstractContextManager[None]:
    """Raises the error of a task that read a topic as what it was in the task, not as Spark's."""
    return raised_task_errors(topic=topic)
