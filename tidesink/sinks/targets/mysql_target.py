"""MySQL and MariaDB tables: LOAD DATA LOCAL from the executors, one transaction for rows and progress."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from tidesink.errors import ConfigError
from tidesink.events import TableId
from tidesink.sinks.targets.mysql_dialect import MysqlDialect
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
    from tidesink.config.targets import MysqlSettings
    from tidesink.sinks.state_store import StateStore

CAPABILITIES: Final = capabilities_of(MysqlDialect())
FORESIGHT: Final = SqlForesight(MysqlDialect())
_QUESTION: Final = "SELECT CONCAT(VERSION(), IF(@@GLOBAL.local_infile, '', ' without local_infile'))"
_WITHOUT: Final = "without local_infile"


def open_target(config: Config, _spark: SparkSession, _store: StateStore) -> SqlTarget:
    """The MySQL tables of a config."""
    return open_sql(MysqlDialect(), cast("MysqlSettings", config.target))


def place_of(settings: MysqlSettings, table: TableId) -> str:
    """A table's server, database and name."""
    return shown_place(MysqlDialect(), settings, table)


def try_target(settings: MysqlSettings) -> str:
    """The server's version; raises ConfigError where it cannot be used."""
    endpoint = endpoint_of(settings)
    answer = try_connection(MysqlDialect(), endpoint, _QUESTION)
    if answer.endswith(_WITHOUT):
        raise ConfigError(
            f"target.url {endpoint.shown} takes no LOAD DATA LOCAL: set its variable local_infile to 1"
        )
    return f"{answer}, takes LOAD DATA LOCAL"
