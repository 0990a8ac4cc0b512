"""A worker's own task over records that this process holds: all of a worker but Kafka itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tests.contracts.coded_changes import TOPIC, Changefeed
from tests.contracts.message_beds import MessagesBed
from tests.contracts.targets_bed import Bed
from tests.decoded_batches import as_records
from tests.executors import executor_of_test
from tests.unit.config.samples import right
from tests.worker_contexts import worker_context
from tidesink.codecs.open import CODECS, without_effect
from tidesink.config import Config
from tidesink.config.source import SourceSettings
from tidesink.events import Message, TableId
from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.kafka.offsets import KafkaOffsets, PartitionOffsets, TopicOffsets
from tidesink.sinks.runtime.context import WorkerContext
from tidesink.sinks.runtime.shared_reads import Topics
from tidesink.sinks.worker.table_task import TableTask
from tidesink.typemap.target_schema import TargetSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class HeldFetch:
    """The records of a range for the tasks that read one by themselves."""

    messages: tuple[Message, ...]

    def __call__(self, wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        """The records of a range."""
        held = [
            one
            for one in self.messages
            if one.partition == wanted.partition and wanted.start <= one.offset < wanted.end
        ]
        assert len(held) == wanted.end - wanted.start
        yield as_records(held)


class HeldTopic(KafkaSource):
    """A topic's records, of which the first ``sent`` are there so far; ``fetch`` gives them to tasks."""

    def __init__(self, messages: Sequence[Message], *, fetch: HeldFetch | None = None) -> None:
        super().__init__(fetch or HeldFetch(tuple(messages)))
        self._messages = messages
        self.sent = 0

    def found(self) -> TopicOffsets:
        """Where the topic ends by now."""
        ends = dict.fromkeys(sorted({one.partition for one in self._messages}), 0)
        for one in self._messages[: self.sent]:
            ends[one.partition] = one.offset + 1
        return TopicOffsets(TOPIC, "topic-id", {n: PartitionOffsets(0, end) for n, end in ends.items()})


class _HeldOffsets(KafkaOffsets):
    def __init__(self, topic: HeldTopic) -> None:
        self._topic = topic

    def lookup(self, topics: Sequence[str]) -> dict[str, TopicOffsets]:
        return {topic: self._topic.found() for topic in topics}

    def first_since(self, _topic: str, _partitions: Iterable[int], _seconds: float) -> dict[int, int]:
        """No record of the topic is young."""
        return {}


def config_of(
    feed: Changefeed,
    *,
    definition: str | None = None,
    keys: Sequence[str] = (),
    retry_for: str = "0s",
    table: Mapping[str, Any] | None = None,
    executor: str | None = None,
    schema_changes: Mapping[str, str] | None = None,
    **defaults: Any,
) -> Config:
    """A pipeline that says of its changefeed what the changefeed's own options say."""
    if schema_changes is not None:
        defaults["schema-changes"] = dict(schema_changes)
    taken = SourceSettings.model_fields.keys() - without_effect(feed.protocol, "reads")
    source = {
        name.replace("_", "-"): value
        for name in (option.name for option in fields(feed.options) if option.name in taken)
        if (value := getattr(feed.options, name)) != getattr(type(feed.options)(), name)
    }
    if CODECS[feed.protocol].registry:
        source["schema-registry"] = "http://127.0.0.1:9"  # the registry itself is handed over
    given: dict[str, Any] = {
        "pipeline": "shop",
        "source": {
            "brokers": "127.0.0.1:9",
            "protocol": feed.protocol,
            "topics": "{schema}_{table}",
            **source,
        },
        "target": {"type": "delta", "path": "/unused"},
        "defaults": defaults,
        "retry": {"for": retry_for},
        "batch": {"executor": executor or executor_of_test()},
    }
    said = {word: what for word, what in (("definition", definition), ("keys", list(keys))) if what}
    if said or table:
        given["tables"] = [{"name": str(feed.schema.table), **said, **(table or {})}]
    return right(given)


@dataclass(frozen=True)
class CodedTable:
    """A bed's table behind a topic of coded records. ``around`` is a worker's, but for what it reads."""

    bed: Bed
    table: TableId
    topic: HeldTopic
    around: WorkerContext

    @contextmanager
    def table_task(self) -> Iterator[TableTask]:
        """The task of a worker that was just started."""
        table_task = TableTask(replace(self.around, target=self.bed.reopen()), TOPIC, self.table)
        yield table_task
        table_task.close()

    def take(self, table_task: TableTask, upto: int) -> None:
        """One batch, of the records that were sent by then."""
        before = table_task.batches
        self.offer(table_task, upto)
        assert (table_task.state, table_task.batches) == ("RUNNING", before + 1), table_task.report().error

    def offer(self, table_task: TableTask, upto: int) -> None:
        """The same, whatever becomes of it."""
        self.topic.sent = upto
        found = self.topic.found()
        table_task.look(found)
        table_task.work(found)

    def rows(self, shape: TargetSchema) -> list[dict[str, Any]]:
        """What a reader of the target sees, who knows the shape; in the order of the key."""
        if isinstance(self.bed, MessagesBed):
            self.bed.shapes[self.table] = shape
        rows = [_plain(row) for row in self.bed.read(self.table)]
        return sorted(rows, key=lambda row: [row[name] for name in shape.keys])


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with bytes as bytes, which memory has as Spark gives them."""
    return {name: bytes(value) if isinstance(value, bytearray) else value for name, value in row.items()}


def open_table(
    bed: Bed,
    spark: SparkSession,
    folder: Path,
    *,
    feed: Changefeed,
    messages: Sequence[Message],
    config: Config,
    held: Callable[[Sequence[Message]], HeldTopic] = HeldTopic,
) -> CodedTable:
    """A bed's table behind the records of a changefeed; ``held`` makes their topic."""
    topic = held(messages)
    around = worker_context(config, spark, folder, registry=feed.registry)
    topics = Topics(config.pipeline, topic, around.store, ask=lambda: _HeldOffsets(topic))
    return CodedTable(bed, feed.schema.table, topic, replace(around, source=topic, topics=topics))
