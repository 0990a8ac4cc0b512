"""What the module of a target offers to whoever has its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidesink.config import Config, TargetSettings
    from tidesink.events import TableId
    from tidesink.sinks.state_store import StateStore
    from tidesink.sinks.targets.base import Capabilities, Target
    from tidesink.sinks.targets.foreseen import Foresight


class TargetModule(Protocol):
    """The names in a target's module. Nothing but ``open_target`` and ``try_target`` asks the target."""

    CAPABILITIES: Capabilities
    FORESIGHT: Foresight

    def open_target(self, config: Config, spark: SparkSession, store: StateStore) -> Target:
        """The target of a config.

        Raises:
            ConfigError: it cannot be opened as configured.
        """

    def place_of(self, settings: TargetSettings, table: TableId) -> str:
        """Where a table is kept, for people to read; asks nothing of the target.

        Raises:
            SchemaRefusedError: the target has no such name.
        """

    def try_target(self, settings: TargetSettings) -> str:
        """What became of reaching the target, without leaving anything there.

        Raises:
            TidesinkError: it cannot be used, with the reason and what to do.
        """
