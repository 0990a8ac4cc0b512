"""Postgres tables: COPY from the executors, one transaction for rows and progress."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from tidesink.events import TableId
from tidesink.sinks.targets.postgres_dialect import PostgresDialect
from tidesink.sinks.targets.sql_endpoint import endpoint_of
from tidesink.sinks.targets.sql_foreseen import SqlForesight
from tidesink.sinks.targets.sql_target import (
    SqlTarget,
    capabilities_of,
    open_sql,
    shown_place,
    try_connection,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidesink.config import Config
    from tidesink.config.targets import PostgresSettings
    from tidesink.sinks.state_store import StateStore

CAPABILITIES: Final = capabilities_of(PostgresDialect())
FORESIGHT: Final = SqlForesight(PostgresDialect())
_QUESTION: Final = (
    "SELECT format('Postgres %s: %s', current_setting('server_version'), CASE "
    "WHEN has_database_privilege(current_database(), 'CREATE') THEN 'schemas can be made' "
    "ELSE 'the user may make no schemas: they must be there' END)"
)


def open_target(config: Config, _spark: SparkSession, _store: StateStore) -> SqlTarget:
    """The Postgres tables of a config."""
    return open_sql(PostgresDialect(), cast("PostgresSettings", config.target))


def place_of(settings: PostgresSettings, table: TableId) -> str:
    """A table's server, schema and name."""
    return shown_place(PostgresDialect(), settings, table)


def try_target(settings: PostgresSettings) -> str:
    """The server's version, and whether the user may make schemas; raises ConfigError where it is none."""
    return try_connection(PostgresDialect(), endpoint_of(settings), _QUESTION)
