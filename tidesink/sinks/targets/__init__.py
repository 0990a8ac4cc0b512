"""Targets: places that keep tables true. ``TARGETS`` names them; ``base`` says what each promises.

A target is a module, a line here, its settings in ``config.target`` and a page; contract tests run over it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from tidesink.config import TargetSettings
    from tidesink.sinks.targets.base import TargetModule

# type in the config -> its TargetModule; loaded when asked for, since each brings libraries of its own.
TARGETS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "delta": "tidesink.sinks.targets.delta.table",
        "http": "tidesink.sinks.targets.stream.http_endpoint",
        "kafka": "tidesink.sinks.targets.stream.kafka",
        "iceberg": "tidesink.sinks.targets.iceberg.table",
        "postgres": "tidesink.sinks.targets.sql.postgres",
        "mysql": "tidesink.sinks.targets.sql.mysql",
    }
)


def target_module(settings: TargetSettings) -> TargetModule:
    """The module of a target."""
    return cast("TargetModule", import_module(TARGETS[settings.type]))
