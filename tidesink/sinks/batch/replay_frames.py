"""Dead letters and what follows them, as frames: what a replay reads, keeps of it, and says of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.sinks.batch.records import BAD, ROW_KINDS, TRUNCATE, UNPLANNED
from tidesink.sinks.batch.source import RECORD_COLUMNS, KafkaRead, KafkaSource, ReadFrame
from tidesink.sinks.kafka.offsets import OffsetRange
from tidesink.sinks.spark.threads import in_session

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from tidesink.sinks.schema_sources.base import Apart


PLACE: Final = ("topic", "partition", "offset")
_EVENT_PLACE: Final = tuple(f"_{name}" for name in PLACE)


class Bounds(NamedTuple):
    """Letters of a partition that can be replayed: offsets ``[since, below)``."""

    since: int
    below: int


class LetterCounts(NamedTuple):
    """Of the letters of a topic: how many can be replayed, and why the others cannot.

    ``first``: the first one's offset in each partition. ``waiting``: behind what is applied, so that the
    worker reads them by itself. ``expired``: Kafka no longer holds all that follows them.
    """

    ready: int
    waiting: int
    expired: int
    first: Mapping[int, int]


class LetterEvents(NamedTuple):
    """The events that letters are today: records, and events by what they are."""

    messages: int
    events: int
    rows: int
    bad: int


def letter_counts(letters: DataFrame, bounds: Mapping[int, Bounds]) -> LetterCounts:
    """Count letters by their bounds: one job."""
    since, below = (_bound(bounds, name) for name in ("since", "below"))
    behind = F.coalesce(F.col("offset") >= below, F.lit(True))
    lost = ~behind & (F.col("offset") < since)
    ready = ~behind & ~lost
    rows = (
        letters.groupBy("partition")
        .agg(
            F.count_if(ready).alias("ready"),
            F.count_if(behind).alias("waiting"),
            F.count_if(lost).alias("expired"),
            F.min(F.when(ready, F.col("offset"))).alias("first"),
        )
        .collect()
    )
    first = {int(row["partition"]): int(row["first"]) for row in rows if row["first"] is not None}
    count, waiting, expired = (sum(row[name] for row in rows) for name in ("ready", "waiting", "expired"))
    return LetterCounts(count, waiting, expired, first)


def ready_letters(letters: DataFrame, bounds: Mapping[int, Bounds]) -> DataFrame:
    """The letters within their bounds."""
    since, below = (_bound(bounds, name) for name in ("since", "below"))
    return letters.where((F.col("offset") >= since) & (F.col("offset") < below))


def _bound(bounds: Mapping[int, Bounds], name: str) -> Column:
    """A bound of the row's partition; null where nothing of the partition was applied."""
    by_partition: list[Column] = []
    for partition, found in bounds.items():
        by_partition += [F.lit(partition), F.lit(getattr(found, name)).cast("bigint")]
    if not by_partition:
        return F.lit(None).cast("bigint")
    return F.create_map(*by_partition)[F.col("partition")]


class LetterReader:
    """Gives a batch its letters, with their own bytes, and what Kafka has behind them.

    ``following``: ranges of Kafka to read besides. ``places`` are left out of them: those records
    are dead letters, chosen ones or others, and were never applied.
    """

    def __init__(
        self,
        source: KafkaSource,
        letters: DataFrame,
        places: DataFrame,
        following: Sequence[OffsetRange],
    ) -> None:
        self._source = source
        self._letters = letters
        self._places = places
        self._following = [part for part in following if part.records > 0]

    @property
    def fetch(self) -> None:
        """None: the letters are in a frame."""
        return None

    def frame(self, session: SparkSession, ranges: Sequence[OffsetRange]) -> DataFrame:
        """The records in ranges, as Kafka has them."""
        return self._source.frame(session, ranges)

    def letters(self, session: SparkSession, apart: Apart | None) -> DataFrame:
        """The letters alone, without those that name another table."""
        return _mine(self._source.opened(in_session(self._letters, session)), apart)

    def read(
        self, session: SparkSession, _ranges: Sequence[OffsetRange], *, apart: Apart | None = None
    ) -> ReadFrame:
        """The letters, and what follows them."""
        found, nothing = self.letters(session, apart), KafkaRead(0, 0)
        if self._following:
            places = in_session(self._places, session)
            raw = self._source.frame(session, self._following).join(places, list(PLACE), "left_anti")
            found = found.unionByName(_mine(raw.select(*RECORD_COLUMNS), apart))
        # What a replay has read is the letters, which are counted in their topic.
        return ReadFrame(found, lambda: nothing, lambda: nothing)


def _mine(frame: DataFrame, apart: Apart | None) -> DataFrame:
    return frame if apart is None else frame.where(~apart.foreign)


def concerning(whole: DataFrame, letters: DataFrame, grouped: DataFrame) -> DataFrame:
    """Of a reduced frame the rows of keys that letters name, and letters that are no rows.

    ``grouped`` is the reduced frame of the letters alone. What the plan does not know and what empties the
    table stays too: both must be dealt with first.
    """
    is_row = F.col("_op").isin(*ROW_KINDS)
    keys = grouped.where(is_row).select(F.col("key").alias("_its_key"), F.lit(True).alias("_wanted"))
    marked = whole.join(keys, F.col("key") == F.col("_its_key"), "left")
    places = letters.select(
        *(F.col(name).alias(f"_its_{name}") for name in PLACE), F.lit(True).alias("_here")
    )
    same = [F.col(name) == F.col(f"_its{name}") for name in _EVENT_PLACE]
    marked = marked.join(places, same, "left")
    other = F.col("_here").isNotNull() | F.col("_op").isin(UNPLANNED, TRUNCATE)
    wanted = (is_row & F.col("_wanted").isNotNull()) | (~is_row & other)
    return marked.where(wanted).select(*whole.columns)


def letter_events(decoded: DataFrame) -> LetterEvents:
    """What the letters are today: one job over the decoded letters."""
    kind = F.col("_kind")
    row = decoded.agg(
        F.count_if(F.col("_index") == 0).alias("messages"),
        F.count("*").alias("events"),
        F.count_if(kind.isin(*ROW_KINDS)).alias("rows"),
        F.count_if(kind == BAD).alias("bad"),
    ).collect()[0]
    return LetterEvents(row["messages"], row["events"], row["rows"], row["bad"])


def events_that_stay(reduced: DataFrame, letters: DataFrame) -> int:
    """How many of a reduced frame's rows are of the letters' own events: each is one event."""
    own = reduced.where(F.col("_op").isin(*ROW_KINDS) & ~F.col("_half"))
    places = letters.select(*(F.col(name).alias(f"_{name}") for name in PLACE))
    return own.join(places, list(_EVENT_PLACE), "left_semi").count()


def outcomes(letters: DataFrame, decoded: DataFrame, topic_id: str) -> DataFrame:
    """What became of each letter, all of one topic, for ``DeadLetters.settle``; no error: dealt with."""
    first = F.min_by(F.struct(F.col("_error").alias("error"), F.col("_reason").alias("reason")), "_index")
    bad = decoded.where(F.col("_kind") == BAD).groupBy(*_EVENT_PLACE).agg(first.alias("fault"))
    bad = bad.select(*(F.col(f"_{name}").alias(name) for name in PLACE), "fault.error", "fault.reason")
    reported = letters.select(*PLACE).join(bad, list(PLACE), "left")
    return reported.withColumn("topic_id", F.lit(topic_id))
