"""What a schema registry answers: frozen values, no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from tidesink.errors import ConfigError

CompatibilityLevel = Literal[
    "NONE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
]
COMPATIBILITY_LEVELS: tuple[CompatibilityLevel, ...] = get_args(CompatibilityLevel)


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema as the registry keeps it; ``subject`` and ``version`` are None when asked for by id."""

    id: int
    schema_text: str
    subject: str | None = None
    version: int | None = None


@dataclass(frozen=True)
class CompatibilityResult:
    """Whether a subject would take a schema; ``messages`` say what speaks against it."""

    compatible: bool
    messages: tuple[str, ...] = ()


def require_level(text: str) -> CompatibilityLevel:
    """A compatibility level by name; raises :class:`ConfigError` for any other text."""
    for level in COMPATIBILITY_LEVELS:
        if level == text:
            return level
    raise ConfigError(
        f"{text!r} is not a compatibility level: one of {', '.join(COMPATIBILITY_LEVELS)}",
        key="compatibility",
    )
