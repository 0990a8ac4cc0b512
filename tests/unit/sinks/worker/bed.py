"""What tasks and a worker need around them before there is anything to read: no Spark, no Kafka."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

from tests.worker_contexts import no_fetch
from tidesink.config import Config
from tidesink.schema_registry import SchemaRegistry
from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.runtime.context import Failpoints, StopFlag, WorkerContext
from tidesink.sinks.runtime.observers import Listeners
from tidesink.sinks.runtime.shared_reads import Topics
from tidesink.sinks.spark.engine import SparkEngine
from tidesink.sinks.state.progress import StateStore


class _Session:
    """What a task and its thread ask of Spark before a record is read."""

    def __init__(self) -> None:
        self.conf = SimpleNamespace(set=lambda _name, _value: None)
        # By the name of each thread, the tag of its jobs.
        self.job_tags = dict[str, str]()
        self.sparkContext = SimpleNamespace(_gateway=None, addJobTag=self._tag, defaultParallelism=2)

    def _tag(self, tag: str) -> None:
        self.job_tags[threading.current_thread().name] = tag

    def newSession(self) -> _Session:  # noqa: N802  (Spark's own name)
        return _Session()


def worker_context(
    config: Config, *, store: StateStore, registry: SchemaRegistry | None = None
) -> WorkerContext:
    """The parts of a worker that never comes to open a table."""
    nothing: Any = None
    return WorkerContext(
        config=config,
        spark=SparkEngine.of(cast("Any", _Session())),
        source=KafkaSource(no_fetch),
        target=nothing,
        store=store,
        dead_letters=nothing,
        registry=registry,
        topics=Topics.of(config, KafkaSource(no_fetch), store),
        failpoints=Failpoints(None),
        listeners=Listeners(),
        stop=StopFlag(),
    )
