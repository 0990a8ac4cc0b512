"""Targets: places that keep tables true. ``TARGETS`` names them; ``base`` says what each promises.

A target is one module, one line here and one page in the docs; the contract tests run over this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

# type in the config -> module:class; loaded when asked for, since Delta needs Spark.
TARGETS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "delta": "tidesink.sinks.targets.delta_target:DeltaTarget",
        "memory": "tidesink.sinks.targets.memory_target:MemoryTarget",
    }
)
