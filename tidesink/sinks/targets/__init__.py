"""The targets, which are the systems that tidesink writes tables to. ``base`` defines their interface.

A new target needs a module, an entry in ``TARGETS``, its settings in ``config.targets``, and a page in the
documentation. The contract tests run against every target.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from tidesink.config import TargetSettings
    from tidesink.sinks.targets.base import TargetModule

# Module (a ``TargetModule``) of each target type in the config. Modules are imported on demand, because each
# imports its own client libraries.
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
    """Import and return the module that implements the type of target which the settings configure."""
    return cast("TargetModule", import_module(TARGETS[settings.type]))
