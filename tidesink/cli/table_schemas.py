"""Columns, key and types of a table as a worker opens it, without Spark and without a worker's state.

The table's own schema source (``sinks.decode.open``) is opened on the sampled records of its topic, as if
the topic ended with them. What it stores stays in memory.
"""

from __future__ import annotations

import pickle
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import pyarrow as pa

from tidesink.ddl.topic_statements import DdlStatement
from tidesink.events import Message, TableId, TableSchema
from tidesink.sinks.batch.record_frames import opened
from tidesink.sinks.batch.reports import raise_first
from tidesink.sinks.batch.summaries import joined_summaries
from tidesink.sinks.batch.tasks import RangeTask
from tidesink.sinks.decode.open import open_decoding, open_unprojected
from tidesink.sinks.decode.parts import DecodingParts
from tidesink.sinks.decode.plans import DecodePlan
from tidesink.sinks.decode.schema_source import Decoding, Missed, ProjectedDecoding, SourceColumns, TypesFrom
from tidesink.sinks.decode.topic_ddl import TopicDdl, TopicTables
from tidesink.sinks.kafka.fetch import SCHEMA, FetchRange
from tidesink.sinks.kafka.offsets import (
    NO_STARTS,
    OffsetRange,
    PartitionOffsets,
    Starts,
    TopicOffsets,
    started_at,
)
from tidesink.sinks.laws.counts import BatchSummary
from tidesink.sinks.runtime.context import RetryPolicy
from tidesink.typemap.target_schema import TargetSchema

if TYPE_CHECKING:
    from tidesink.config import Config
    from tidesink.schema_registry import SchemaRegistry
    from tidesink.sinks.state.progress import StateStore, TableStatus

R = TypeVar("R")
T = TypeVar("T")

# Number of sampled records that are decoded at once.
_AT_ONCE: Final = 2_000
# Maximum number of decode plans of a table. Each one has a schema or a column that the one before lacked.
_MOST_PLANS: Final = 1_000
# Answers of the source database that a worker has stored.
_ANSWERS: Final = ("looked-up-types", "looked-up-columns")


class SampledRecords:
    """The sampled records of one topic, as the reader of a schema source (``TopicReader``).

    ``messages``: the records, in any order. ``opens_up_to``: compressed values are decompressed for a
    question, if they then have at most this number of bytes. ``schemas``: the schemas of all rows in the
    records, or None if the rows were not decoded.
    """

    def __init__(
        self,
        topic: str,
        messages: Iterable[Message],
        *,
        opens_up_to: int | None = None,
        schemas: Sequence[TableSchema] | None = None,
    ) -> None:
        self.topic = topic
        self.schemas = schemas
        self._opens_up_to = opens_up_to
        self._messages: dict[int, list[Message]] = defaultdict(list)
        by_place = {(message.partition, message.offset): message for message in messages}
        for _, message in sorted(by_place.items()):
            self._messages[message.partition].append(message)

    @property
    def tasks(self) -> int:
        """The number of tasks that answer a question at the same time: only this process does."""
        return 1

    @property
    def offsets(self) -> TopicOffsets:
        """The offsets of a topic that has only these records."""
        ends = {n: PartitionOffsets(found[0].offset, found[-1].offset + 1) for n, found in self._parts}
        return TopicOffsets(self.topic, "", ends)

    def ranges(self, starts: Starts = NO_STARTS) -> tuple[OffsetRange, ...]:
        """Returns the ranges of these records, from the first offset of each partition in ``starts`` on."""
        partitions = started_at(self.offsets, starts).partitions
        return tuple(OffsetRange(self.topic, n, *ends) for n, ends in partitions.items())

    def first_since(self, milliseconds: float) -> dict[int, int]:
        """Returns the first offset of each partition with this Kafka timestamp or a later one.

        ``milliseconds``: the time since 1970. Partitions without such a record are left out.
        """
        offsets: dict[int, int] = {}
        for number, messages in self._parts:
            for message in messages:
                if message.timestamp is not None and message.timestamp >= milliseconds:
                    offsets[number] = message.offset
                    break
        return offsets

    @property
    def _parts(self) -> list[tuple[int, list[Message]]]:
        return sorted(self._messages.items())

    def ask(
        self, ranges: Sequence[OffsetRange], question: Callable[[Iterator[pa.RecordBatch]], R]
    ) -> list[R]:
        """Returns the answers to ``question`` on the sampled records of each range."""
        return [question(self.read_here([part])) for part in ranges if part.records > 0]

    def read_here(self, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        """Yields the sampled records of the ranges."""
        return opened(self.as_stored(ranges), self._opens_up_to)

    def messages_here(self, ranges: Sequence[OffsetRange]) -> Iterator[Message]:
        """Yields the sampled records of the ranges as messages, without Kafka tombstones."""
        return (message for part in ranges for message in self._within(part) if message.value is not None)

    def as_stored(self, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        """Yields the sampled records of the ranges with their values as in Kafka, compressed or not."""
        for part in ranges:
            within = self._within(part)
            for start in range(0, len(within), _AT_ONCE):
                yield _batch(within[start : start + _AT_ONCE])

    def _within(self, part: OffsetRange) -> list[Message]:
        messages = self._messages.get(part.partition, [])
        start, end = (bisect_left(messages, at, key=lambda m: m.offset) for at in (part.start, part.end))
        return messages[start:end]


def _batch(messages: Sequence[Message]) -> pa.RecordBatch:
    """Returns messages as a record batch with the columns of ``SCHEMA``."""
    headers = [[{"key": name, "value": value} for name, value in m.headers] or None for m in messages]
    values: dict[str, list[Any]] = {
        "topic": [m.topic for m in messages],
        "partition": [m.partition for m in messages],
        "offset": [m.offset for m in messages],
        "timestamp": [m.timestamp for m in messages],
        "key": [m.key for m in messages],
        "value": [m.value for m in messages],
        "headers": headers,
        "leader_epoch": [None] * len(messages),
    }
    return pa.RecordBatch.from_arrays([pa.array(values[f.name], f.type) for f in SCHEMA], schema=SCHEMA)


class _MemoryStore:
    """A state store in memory for one command.

    Of ``stored``, the pipeline's own store, only answers of the source database and statuses are read. None:
    no worker has created the store.
    """

    def __init__(self, stored: StateStore | None) -> None:
        self._stored = stored
        self._documents: dict[tuple[str, str], Any] = {}

    def save_document(self, kind: str, name: str, document: Any) -> None:
        self._documents[kind, name] = document

    def load_document(self, kind: str, name: str) -> Any | None:
        if (kind, name) not in self._documents and kind in _ANSWERS and self._stored is not None:
            return self._stored.load_document(kind, name)
        return self._documents.get((kind, name))

    def swap_document(self, kind: str, name: str, *, old: Any | None, new: Any) -> bool:
        if self.load_document(kind, name) != old:
            return False
        self.save_document(kind, name, new)
        return True

    def status_of(self, pipeline: str, table: TableId) -> TableStatus | None:
        return None if self._stored is None else self._stored.status_of(pipeline, table)


class SampledTopic:
    """The tables of one topic, each opened on the topic's sampled records.

    Args:
        config: The pipeline's config.
        records: The sampled records. Empty for a topic whose columns are in the registry.
        registry: The schema registry, or None if the config names none.
        stored: The pipeline's state store, or None if no worker has created it.
    """

    def __init__(
        self,
        config: Config,
        records: SampledRecords,
        *,
        registry: SchemaRegistry | None = None,
        stored: StateStore | None = None,
    ) -> None:
        self._config = config
        self._records = records
        self._registry = registry
        self._store = _MemoryStore(stored)
        self.topic = records.topic
        self._ddl = TopicDdl(
            self.topic, pipeline=config.pipeline, store=self._store, tell=lambda _topic, _warning: None
        )
        self._tables = TopicTables(self.topic, pipeline=config.pipeline, store=self._store)

    def read_ddl(self) -> None:
        """Read the DDL events among the records once, for all tables of the topic."""
        self._ddl.scan(self._records, self._records.offsets)

    def define(self, statement: DdlStatement) -> None:
        """Apply a statement that is not in the topic, as if it had been read just now."""
        self._ddl.define(self._records.offsets, statement)

    def of_records(self, records: SampledRecords) -> SampledTopic:
        """Returns the same topic with only these records, for example the ones of one table.

        Both share the topic's table definitions, and what schema sources have stored.
        """
        topic = copy(self)
        topic._records = records
        return topic

    def ddl(self, _topic: str) -> TopicDdl:
        """Returns the topic's table definitions, which come from the DDL events among the records."""
        return self._ddl

    def tables(self, _topic: str) -> TopicTables:
        """Returns the known tables of the topic."""
        return self._tables

    def ends_now(self, topic_offsets: TopicOffsets) -> TopicOffsets:
        """Returns the offsets themselves, because no record is added to the sample."""
        return topic_offsets

    def open(self, table: TableId, *, starts: Starts = NO_STARTS) -> OpenedTable:
        """Open a table as a worker does, and learn all columns that its records have.

        ``starts``: the first offset of the table in each partition.

        Raises:
            TidesinkError: The worker would not open the table either. The message names the reason.
        """
        return self._opened(open_decoding(self._parts(self._config), self.topic, table), starts)

    def open_keyless(self, table: TableId, *, starts: Starts = NO_STARTS) -> OpenedTable:
        """Open a table that needs no key, without the config's selection of columns.

        Raises:
            TidesinkError: The table's columns cannot be found either. The message names the reason.
        """
        parts = self._parts(_as_log(self._config))
        return self._opened(open_unprojected(parts, self.topic, table), starts)

    def _opened(self, decoding: Decoding, starts: Starts) -> OpenedTable:
        decoding.prepare(self._records.offsets, starts)
        self._learn(decoding, self._records.ranges(starts))
        source = decoding.unprojected if isinstance(decoding, ProjectedDecoding) else decoding
        return OpenedTable(decoding.columns(), source.types_from, source.warnings, source.reported())

    def _learn(self, decoding: Decoding, ranges: Sequence[OffsetRange]) -> None:
        """Build decode plans until one has all schemas and columns of the records, as in a worker's batch.

        ``ranges``: the records.
        """
        offsets = self._records.offsets
        for _ in range(_MOST_PLANS if any(part.records for part in ranges) else 0):
            if self._has_all_columns(decoding.columns()):
                return
            summary = self._summary(decoding.columns(), ranges)
            if not (summary.is_to_learn and decoding.learn(Missed(summary, ranges, offsets))):
                return

    def _has_all_columns(self, plan: DecodePlan) -> bool:
        """Returns True if the records were decoded before and their rows show nothing to learn.

        With a source database, the records are decoded again: a value that does not fit its column's type
        makes a worker look up the type again.
        """
        if self._records.schemas is None or self._config.source.database is not None:
            return False
        names = {column.name for schema in self._records.schemas for column in schema.columns}
        return not plan.rows.new_columns(names)

    def _summary(self, plan: DecodePlan, ranges: Sequence[OffsetRange]) -> BatchSummary:
        """Returns the counts of a batch that decodes the ranges. The table's filter is not evaluated."""
        task = RangeTask((), replace(plan, row_filter=None))
        heads = [
            row
            for part in ranges
            if part.records
            for batch in task.packed(FetchRange(*part), self._records.as_stored([part]))
            for row in batch.select(["summary", "error"]).to_pylist()
        ]
        raise_first(heads)
        return joined_summaries([pickle.loads(row["summary"]) for row in heads if row["summary"]])  # noqa: S301  (made above)

    def _parts(self, config: Config) -> DecodingParts:
        return DecodingParts(
            config,
            self._store,
            self._registry,
            self,
            self._records,
            check_filter=lambda _filter, _shape: None,
            retries=lambda _table, *, seconds, passes: RetryPolicy(0, passes=passes),  # noqa: ARG005
            noting=_noting,
            check_stop=lambda: None,
        )


class OpenedTable(NamedTuple):
    """A table as its schema source opens it.

    Attributes:
        plan: The decode plan, with the columns that the target gets.
        types_from: Where the column types come from.
        all_warnings: All warnings of the schema source.
        reported: The table's columns as reported by DDL, or None.
    """

    plan: DecodePlan
    types_from: TypesFrom
    all_warnings: tuple[str, ...]
    reported: SourceColumns | None

    @property
    def shape(self) -> TargetSchema:
        """The table's own columns, with the source's names."""
        return self.plan.rows.shape

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of the schema source, except reasons of column types, which depend on the target."""
        reasons = {f"column {column.name}: {column.reason}" for column in self.shape.columns}
        return tuple(text for text in self.all_warnings if text not in reasons)

    @property
    def renames(self) -> tuple[tuple[str, str], ...]:
        """Pairs of a column's old and new name, from the table's DDL."""
        return self.reported.renames if self.reported is not None else ()

    @property
    def past(self) -> tuple[str, ...]:
        """Names of columns that the table's DDL dropped."""
        dropped = self.reported.dropped_columns if self.reported is not None else ()
        return tuple(column.name for column in dropped)


def _as_log(config: Config) -> Config:
    """Returns the config with ``mode: append`` for every table, in which no table needs a key."""
    tables = [entry.model_copy(update={"mode": None}) for entry in config.tables]
    defaults = config.defaults.model_copy(update={"mode": "append"})
    return config.model_copy(update={"defaults": defaults, "tables": tables})


def _noting(_table: TableId, step: Callable[[], T], *, unless: str) -> T | None:  # noqa: ARG001
    return step()
