"""The parts of a worker without its servers: nothing here asks Kafka, the registry or a lake."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.memory_target import MemoryTarget
from tidesink.config import Config
from tidesink.schema_registry import SchemaRegistry
from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.letters.topic import DeadLetters
from tidesink.sinks.runtime.context import Failpoints, StopFlag, WorkerContext
from tidesink.sinks.runtime.observers import Listener, Listeners
from tidesink.sinks.runtime.shared_reads import Topics
from tidesink.sinks.spark.engine import SparkEngine
from tidesink.sinks.state.sql_store import SqlStateStore

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def no_fetch(wanted: FetchRange) -> Iterator[pa.RecordBatch]:
    """For a source whose records nobody reads."""
    raise AssertionError(f"no records are expected to be read: {wanted}")


def no_spark() -> AbstractContextManager[SparkSession]:
    """For an engine that must not start."""
    raise AssertionError("Spark is not expected to start")


def worker_context(
    config: Config,
    spark: SparkSession,
    folder: Path,
    *,
    registry: SchemaRegistry | None = None,
    listeners: tuple[Listener, ...] = (),
) -> WorkerContext:
    """A worker's context over a state store in ``folder`` and a target in memory."""
    source = KafkaSource(no_fetch, opens_up_to=config.source.opens_up_to)
    store = SqlStateStore(str(folder / "state.db"))
    return WorkerContext(
        config=config,
        spark=SparkEngine.of(spark),
        source=source,
        target=MemoryTarget(),
        store=store,
        dead_letters=_none,
        registry=registry,
        topics=Topics.of(config, source, store),
        failpoints=Failpoints.from_environment(),
        listeners=Listeners(listeners),
        stop=StopFlag(),
    )


def _none() -> DeadLetters:
    raise AssertionError("no dead letters are expected here")
