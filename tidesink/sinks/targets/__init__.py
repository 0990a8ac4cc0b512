"""Targets: systems that store the tables. ``TARGETS`` lists them; ``base`` defines their contract.

A new target needs a module, a line here, its settings in ``config.target``, and a page. The contract tests
run against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from tidesink.config import TargetSettings
    from tidesink.sinks.targets.base import TargetModule

# Target type in the config -> module (a TargetModule). Loaded on demand, because each imports its own
# libraries.
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
    """Return the module of a target."""
    return cast("TargetModule", import_module(TARGETS[settings.type]))
