"""The contract of a schema registry as tidesink uses it, and its frozen values.

Two implementations have one contract: :class:`~tidesink.schema_registry.client.SchemaRegistryClient` over
HTTP and :class:`~tidesink.schema_registry.client.MemorySchemaRegistry` inside the process. Both may be
shared by threads. Here is also how a worker's stop ends a request.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeVar, get_args, runtime_checkable
from uuid import UUID

from tidesink.errors import ConfigError


@runtime_checkable
class SchemaReader(Protocol):
    """Read access to a schema registry."""

    def schema_by_id(self, schema_id: int) -> str:
        """The text of a schema; raises SchemaNotFoundError."""

    def latest(self, subject: str) -> RegisteredSchema:
        """The newest version of a subject; raises SchemaNotFoundError."""

    def lookup(self, subject: str, schema_text: str) -> RegisteredSchema | None:
        """Where a subject holds this schema, or None."""

    def versions(self, subject: str) -> list[int]:
        """The versions of a subject, ascending; raises SchemaNotFoundError."""

    def schema_by_version(self, subject: str, version: int) -> RegisteredSchema:
        """One version of a subject; raises SchemaNotFoundError."""

    def subjects(self) -> list[str]:
        """Every subject, sorted."""

    def places(self, schema_id: int) -> list[tuple[str, int]]:
        """The subjects and versions that hold a schema, sorted; raises SchemaNotFoundError."""


@runtime_checkable
class ContextReader(Protocol):
    """A registry whose ids are of a context, which the subject of a record tells."""

    def schema_of_subject(self, schema_id: int, subject: str) -> str:
        """The text of a schema, by an id that a record of a subject has; raises SchemaNotFoundError."""


@runtime_checkable
class SchemaWriter(Protocol):
    """What an encoder needs, and whoever sets the rules."""

    def register(self, subject: str, schema_text: str) -> int:
        """The id of a schema under a subject, new or not; raises IncompatibleSchemaError."""

    def check_compatibility(self, subject: str, schema_text: str) -> CompatibilityResult:
        """Whether ``register`` would take the schema now; a subject without versions takes any."""

    def compatibility_level(self, subject: str | None = None) -> CompatibilityLevel:
        """The level that holds for a subject, or the registry's own."""

    def set_compatibility_level(self, level: CompatibilityLevel, *, subject: str | None = None) -> None:
        """Set the level of a subject, or the registry's own."""


@runtime_checkable
class SchemaRegistry(SchemaReader, SchemaWriter, Protocol):
    """A registry to read and to write; close it when done."""

    def close(self) -> None:
        """Let go of connections; the registry must not be used afterwards."""


@runtime_checkable
class SchemaSource(Protocol):
    """Where the schema behind an AWS Glue UUID comes from. Threads may share one."""

    def schema_by_uuid(self, uuid: UUID) -> str:
        """The text of a schema version; raises SchemaNotFoundError, or another RegistryError."""


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


# A stop does not wait for a server that gives no answer: the request is left behind.

R = TypeVar("R")

# How long a request that is under way, or that comes later, is waited for once a stop is asked for.
LAST_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.2


class Stop(Protocol):
    """A wish to stop, as of ``threading.Event``; once there, it stays."""

    def wait(self, seconds: float, /) -> bool:
        """Wait for it, at most so long: whether it is there."""


class LeftBehindError(OSError):
    """A request had no answer when a stop was asked for, nor ``LAST_SECONDS`` later."""


def waited_for(ask: Callable[[], R], stop: Stop | None) -> R:
    """What ``ask`` gives or raises; without a ``stop``, that alone.

    Nothing ends a thread that waits for a server. So another thread does, which the process does not wait
    for at its end.

    Raises:
        LeftBehindError: a stop came first.
    """
    if stop is None:
        return ask()
    answered: Future[R] = Future()

    def run() -> None:
        try:
            answered.set_result(ask())
        except BaseException as exc:  # noqa: BLE001  (whoever waits for the future raises it)
            answered.set_exception(exc)

    threading.Thread(target=run, name="schema registry", daemon=True).start()
    while not wait([answered], timeout=_LOOK_SECONDS).done and not stop.wait(0):
        pass
    if not wait([answered], timeout=LAST_SECONDS).done:
        raise LeftBehindError
    return answered.result()
