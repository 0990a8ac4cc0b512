"""Targets: places that keep tables true. ``TARGETS`` names them; ``base`` says what each promises.

A target is a module, a line here, its settings in ``config.target`` and a page; contract tests run over it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol, cast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidesink.change import TableId
    from tidesink.config import Config, TargetSettings
    from tidesink.sinks.state_store import StateStore
    from tidesink.sinks.targets.base import Capabilities, Target

# type in the config -> its TargetModule; loaded when asked for, since each brings libraries of its own.
TARGETS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "delta": "tidesink.sinks.targets.delta_target",
        "http": "tidesink.sinks.targets.http_target",
        "kafka": "tidesink.sinks.targets.kafka_target",
        "iceberg": "tidesink.sinks.targets.iceberg_target",
        "postgres": "tidesink.sinks.targets.postgres_target",
        "mysql": "tidesink.sinks.targets.mysql_target",
        "memory": "tidesink.sinks.targets.memory_target",
    }
)


class TargetModule(Protocol):
    """What the module of a target offers to whoever has its settings."""

    CAPABILITIES: Capabilities

    def open_target(self, config: Config, spark: SparkSession, store: StateStore) -> Target:
        """The target of a config.

        Raises:
            ConfigError: it cannot be opened as configured.
        """

    def place_of(self, settings: TargetSettings, table: TableId) -> str:
        """Where a table is kept, for people to read; asks nothing of the target."""

    def try_target(self, settings: TargetSettings) -> str:
        """What became of reaching the target, without leaving anything there.

        Raises:
            TidesinkError: it cannot be used, with the reason and what to do.
        """


def target_module(settings: TargetSettings) -> TargetModule:
    """The module of a target."""
    return cast(TargetModule, import_module(TARGETS[settings.type]))
