"""Where a pipeline keeps dead letters and DDL events, and who opens them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from tidesink.change import TableId
from tidesink.config import Config, DeltaSettings
from tidesink.config.target_sql import MysqlSettings, PostgresSettings
from tidesink.errors import ConfigError
from tidesink.sinks.rejects import DDL_EVENTS, DeadLetters, Records, RecordStore, RecordTable
from tidesink.sinks.session import build_session, running_session, stop_session
from tidesink.sinks.targets.sql_dialect import Dialect
from tidesink.sinks.targets.sql_endpoint import Endpoint, endpoint_of
from tidesink.sinks.targets.sql_place import Place, place_in
from tidesink.sinks.targets.sql_record_tasks import dialect_of
from tidesink.sinks.targets.sql_records import SqlRecords, shown_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def lake_of(config: Config) -> str | None:
    """The folder under which a pipeline's records are kept; None where none is named."""
    if config.dead_letters.path is not None:
        return config.dead_letters.path
    return config.target.path if isinstance(config.target, DeltaSettings) else None


def kept_in(config: Config, table: RecordTable) -> str | None:
    """Where a pipeline keeps such records, for people to read; None where no place is named."""
    root = lake_of(config)
    if root is not None:
        return f"{root.rstrip('/')}/{table.name}"
    if isinstance(config.target, PostgresSettings | MysqlSettings):
        return shown_records(endpoint_of(config.target), table)
    return None


def dead_letters_of(config: Config, spark: SparkSession | None) -> DeadLetters:
    """The dead letters of a pipeline. ``spark`` may be None where ``needs_spark`` says so.

    Raises:
        ConfigError: the config names no place for them.
    """
    root = lake_of(config)
    if root is None and isinstance(config.target, PostgresSettings | MysqlSettings):
        from tidesink.sinks.targets.sql_dead_letters import SqlDeadLetters

        return SqlDeadLetters(*_database(config, config.target), spark)
    if root is None or spark is None:
        raise ConfigError("dead-letters.path says where dead letters are kept: set it")
    from tidesink.sinks.targets.delta_dead_letters import DeltaDeadLetters

    return DeltaDeadLetters(spark, root)


def ddl_events_of(config: Config, spark: SparkSession | None) -> RecordStore | None:
    """The DDL events of a pipeline; None where the config names no place for them: they are only counted."""
    root = lake_of(config)
    if root is None and isinstance(config.target, PostgresSettings | MysqlSettings):
        return SqlRecords(*_database(config, config.target), DDL_EVENTS)
    if root is None or spark is None:
        return None
    from tidesink.sinks.targets.delta_records import DeltaRecords

    return DeltaRecords(spark, root, DDL_EVENTS)


def _database(
    config: Config, target: PostgresSettings | MysqlSettings
) -> tuple[Dialect, Endpoint, Callable[[TableId], Place]]:
    """The database, and where in it a source table's rows are."""
    dialect = dialect_of(target.type)

    def place_of(table: TableId) -> Place:
        return replace(place_in(target.table, config.destination(table).table, dialect.quote), source=table)

    return dialect, endpoint_of(target), place_of


def needs_spark(config: Config) -> bool:
    """Whether looking at the records takes Spark: a lake's do, a database's do not."""
    return lake_of(config) is not None or not isinstance(config.target, PostgresSettings | MysqlSettings)


@contextmanager
def opened_records(config: Config) -> Iterator[Records]:
    """The stores of a pipeline, for whoever looks at them; a Spark session started here is stopped.

    Raises:
        ConfigError: the config names no place for them.
        DevStackError: Java or Spark's connectors are not to be had.
    """
    if lake_of(config) is None and needs_spark(config):
        raise ConfigError("dead-letters.path says where dead letters and DDL events are kept: set it")
    with spark_of(config) if needs_spark(config) else nullcontext() as spark:
        events = ddl_events_of(config, spark)
        assert events is not None  # noqa: S101  (there is a place)
        yield Records(dead_letters_of(config, spark), events)


@contextmanager
def spark_of(config: Config) -> Iterator[SparkSession]:
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
