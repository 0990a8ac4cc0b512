"""Opens everything a worker needs from its config, and closes it again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING

from tidesink.config import Config
from tidesink.schema_registry import SchemaRegistry
from tidesink.sinks.failpoints import Failpoints
from tidesink.sinks.heartbeat import Heartbeat
from tidesink.sinks.kafka.fetch import KafkaFetch
from tidesink.sinks.kafka.letter_store import dead_letters_of
from tidesink.sinks.listener import Listener, Listeners
from tidesink.sinks.retry import RetryPolicy
from tidesink.sinks.session import build_session, running_session, stop_session
from tidesink.sinks.source import KafkaSource
from tidesink.sinks.sql_state_store import SqlStateStore
from tidesink.sinks.state_store import open_state_store
from tidesink.sinks.stopping import StopFlag
from tidesink.sinks.surroundings import Surroundings
from tidesink.sinks.targets import target_module
from tidesink.sinks.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def assembled(config: Config, listeners: Sequence[Listener], stop: StopFlag) -> Iterator[Surroundings]:
    """The parts of a worker, open while the context is.

    A Spark session that was there before is used and left alone; one started here is stopped.

    Raises:
        ConfigError: a part cannot be opened as configured.
        StateStoreError: the state store does not answer for as long as ``retry.for`` says.
        DevStackError: Java or Spark's connectors are not to be had.
    """
    failpoints = Failpoints.from_environment()
    with ExitStack() as closing:
        registry = _registry(config, closing)
        store = RetryPolicy(config.retry.for_, stop=stop).call(lambda: _store(config, closing))
        spark = closing.enter_context(_spark_of(config))
        fetch = KafkaFetch(config.source.confluent_properties())
        source = KafkaSource(fetch, opens_up_to=config.source.opens_up_to)
        yield Surroundings(
            config=config,
            spark=spark,
            source=source,
            topics=Topics(config.pipeline, source, store),
            target=target_module(config.target).open_target(config, spark, store),
            store=store,
            dead_letters=cache(partial(dead_letters_of, config)),
            registry=registry,
            failpoints=failpoints,
            listeners=Listeners((*listeners, Heartbeat(store, config.pipeline))),
            stop=stop,
        )


def _registry(config: Config, closing: ExitStack) -> SchemaRegistry | None:
    if config.source.schema_registry is None:
        return None
    registry = config.source.open_registry()
    closing.callback(registry.close)
    return registry


def _store(config: Config, closing: ExitStack) -> SqlStateStore:
    store = open_state_store(config.state)
    closing.callback(store.close)
    return store


@contextmanager
def _spark_of(config: Config) -> Iterator[SparkSession]:
    """The session that runs, or one of the config's, stopped at the end."""
    running = running_session()
    if running is not None:
        yield running
        return
    session = build_session(
        app_name=f"tidesink {config.pipeline}",
        master=config.spark.master,
        conf=config.spark.conf_values(),
        target=config.target.type,
    )
    try:
        yield session
    finally:
        stop_session(session)
