"""Records kept whole where a person can look at them: dead letters, and beside them DDL events.

The two tables are part of the public interface; their columns are these, in this order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from tidesink.change import TableId
from tidesink.sinks.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DEAD_LETTERS_NAME: Final = "_tidesink_dead_letters"
DDL_EVENTS_NAME: Final = "_tidesink_ddl"
PLACE: Final = ("topic", "partition", "offset")
# A record is kept once, whichever batch meets it how often: by its place, and by Kafka's id of the topic,
# since in one that was made again under its name a place is another record's.
IDENTITY: Final = ("topic_id", *PLACE)

# (column, Spark type, comment)
DEAD_LETTER_COLUMNS: Final = (
    ("pipeline", "string", "the pipeline that read the record"),
    ("table", "string", "the source table as schema.name"),
    ("topic", "string", "Kafka topic"),
    ("topic_id", "string", "Kafka's id of that topic: one made again under its name has another"),
    ("partition", "int", "Kafka partition"),
    ("offset", "bigint", "Kafka offset"),
    ("key", "binary", "the record's key as it was read"),
    ("value", "binary", "the record's value as it was read"),
    ("schema_id", "int", "registry id the value was written with"),
    ("error", "string", "class of the error"),
    ("reason", "string", "what is wrong, and what mends it"),
    ("time", "timestamp", "Kafka timestamp of the record"),
    ("batch", "bigint", "the batch that met it first"),
)
DDL_COLUMNS: Final = (
    ("pipeline", "string", "the pipeline that read the event"),
    ("table", "string", "the source table whose worker read it, as schema.name"),
    ("topic", "string", "Kafka topic"),
    ("topic_id", "string", "Kafka's id of that topic: one made again under its name has another"),
    ("partition", "int", "Kafka partition"),
    ("offset", "bigint", "Kafka offset"),
    ("commit_ts", "bigint", "when the source committed it (TiDB TSO), where the event says so"),
    ("kind", "string", "the codec's word for the change: TiCDC's name or number of it"),
    ("query", "string", "the statement; empty where the event has none"),
    ("key", "binary", "the record's key as it was read"),
    ("value", "binary", "the record's value as it was read"),
    ("time", "timestamp", "Kafka timestamp of the record"),
    ("batch", "bigint", "the batch that met it first"),
)


class RecordTable(NamedTuple):
    """A table of kept records; ``kind`` is the column that says of which sort one is."""

    name: str
    comment: str
    kind: str
    columns: tuple[tuple[str, str, str], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names."""
        return tuple(name for name, _, _ in self.columns)


DEAD_LETTERS: Final = RecordTable(
    DEAD_LETTERS_NAME, "records tidesink could not decode", "error", DEAD_LETTER_COLUMNS
)
DDL_EVENTS: Final = RecordTable(DDL_EVENTS_NAME, "DDL events that tidesink read", "kind", DDL_COLUMNS)


@dataclass(frozen=True)
class Chosen:
    """Which kept records of a pipeline: all that fit everything that is not None.

    ``topic_id`` is Kafka's. ``before``: those whose Kafka timestamp is older. ``below``: offsets under this
    one.
    """

    pipeline: str
    table: str | None = None
    topic: str | None = None
    topic_id: str | None = None
    partition: int | None = None
    offset: int | None = None
    below: int | None = None
    before: datetime | None = None
    kind: str | None = None


@dataclass(frozen=True)
class RecordGroup:
    """Kept records of one table, partition and sort: how many, and from where to where.

    ``topic_id`` is None for those that an earlier version kept.
    """

    table: str
    topic: str
    partition: int
    kind: str
    count: int
    first_offset: int
    last_offset: int
    first_time: datetime | None
    last_time: datetime | None
    topic_id: str | None = None


class RecordStore(Protocol):
    """One of the two tables, wherever it is kept."""

    @property
    def place(self) -> str:
        """Where it is, for people to read."""

    def append(self, records: DataFrame, progress: Progress) -> int:
        """Keep records of one batch, before the batch itself is applied; how many of them are kept now.

        ``records`` has the table's columns but pipeline, table and batch, which ``progress`` says.
        A record kept before (same pipeline, table and ``IDENTITY``) is not kept twice, so
        a batch that is read again after a crash, cut otherwise or in a later epoch too, adds nothing and
        finds all of its records kept.

        Raises: as ``TargetTable.apply``.
        """

    def count(self, table: TableId) -> int:
        """How many records of a table are kept, of all pipelines."""

    def groups(self, chosen: Chosen) -> tuple[RecordGroup, ...]:
        """The chosen records counted by table, partition and sort, in that order."""

    def rows(self, chosen: Chosen, *, limit: int) -> tuple[dict[str, Any], ...]:
        """The first ``limit`` of the chosen records by table, topic, partition and offset, whole."""

    def remove(self, chosen: Chosen) -> int:
        """Forget the chosen records; how many they were."""


class DeadLetters(RecordStore, Protocol):
    """Where bad records go under ``bad-record: dead-letter``."""

    def frame(self, chosen: Chosen) -> DataFrame:
        """The chosen records as Spark reads Kafka's: topic, partition, offset, timestamp, key and value."""

    def settle(self, outcomes: DataFrame, *, pipeline: str, table: TableId) -> int:
        """Forget the letters that are dealt with, and keep the new reason of the others.

        ``outcomes`` has the columns of ``IDENTITY``, error and reason; error is null for a letter dealt with.
        Returns how many letters it met.
        """


class Records(NamedTuple):
    """The two stores of a pipeline."""

    dead_letters: DeadLetters
    ddl_events: RecordStore


def counted(groups: Sequence[RecordGroup]) -> int:
    """How many records groups hold."""
    return sum(group.count for group in groups)


def in_order(groups: Sequence[RecordGroup]) -> tuple[RecordGroup, ...]:
    """Groups by table, topic, its id, partition and sort."""

    def place(one: RecordGroup) -> tuple[Any, ...]:
        return one.table, one.topic, one.topic_id or "", one.partition, one.kind

    return tuple(sorted(groups, key=place))
