"""The contract of a schema registry as tidesink uses it, and its frozen values.

There are two implementations: :class:`~tidesink.schema_registry.client.SchemaRegistryClient` over HTTP and
:class:`~tidesink.schema_registry.client.MemorySchemaRegistry` inside the process. Threads may share both.
This module also defines how a worker's stop ends a request.
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
        """Returns the text of a schema; raises SchemaNotFoundError."""

    def latest(self, subject: str) -> RegisteredSchema:
        """Returns the newest version of a subject; raises SchemaNotFoundError."""

    def lookup(self, subject: str, schema_text: str) -> RegisteredSchema | None:
        """Returns the subject's version with this schema, or None."""

    def versions(self, subject: str) -> list[int]:
        """Returns the versions of a subject, ascending; raises SchemaNotFoundError."""

    def schema_by_version(self, subject: str, version: int) -> RegisteredSchema:
        """Returns one version of a subject; raises SchemaNotFoundError."""

    def subjects(self) -> list[str]:
        """Returns all subjects, sorted."""

    def places(self, schema_id: int) -> list[tuple[str, int]]:
        """Returns the subjects and versions with a schema, sorted; raises SchemaNotFoundError."""


@runtime_checkable
class ContextReader(Protocol):
    """A registry whose ids belong to a context, which the record's subject determines."""

    def schema_of_subject(self, schema_id: int, subject: str) -> str:
        """Returns the text of a schema by the id in a record of a subject; raises SchemaNotFoundError."""


@runtime_checkable
class SchemaWriter(Protocol):
    """Write access for encoders, and the settings of compatibility."""

    def register(self, subject: str, schema_text: str) -> int:
        """Registers a schema if it is new, and returns its id; raises IncompatibleSchemaError."""

    def check_compatibility(self, subject: str, schema_text: str) -> CompatibilityResult:
        """Checks if ``register`` would accept the schema now; a subject without versions accepts any."""

    def compatibility_level(self, subject: str | None = None) -> CompatibilityLevel:
        """Returns the effective level of a subject, or the registry's global level."""

    def set_compatibility_level(self, level: CompatibilityLevel, *, subject: str | None = None) -> None:
        """Sets the level of a subject, or the registry's global level."""


@runtime_checkable
class SchemaRegistry(SchemaReader, SchemaWriter, Protocol):
    """A registry for reading and writing; close it after use."""

    def close(self) -> None:
        """Closes connections; the registry must not be used afterwards."""


@runtime_checkable
class SchemaSource(Protocol):
    """A source of the schemas of AWS Glue UUIDs. Threads may share it."""

    def schema_by_uuid(self, uuid: UUID) -> str:
        """Returns the text of a schema version; raises SchemaNotFoundError, or another RegistryError."""


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
    """A schema in the registry; ``subject`` and ``version`` are None if it was requested by id."""

    id: int
    schema_text: str
    subject: str | None = None
    version: int | None = None


@dataclass(frozen=True)
class CompatibilityResult:
    """The result of a compatibility check. ``messages``: reasons why the subject refuses the schema."""

    compatible: bool
    messages: tuple[str, ...] = ()


def require_level(text: str) -> CompatibilityLevel:
    """Returns a compatibility level by name; raises :class:`ConfigError` for any other text."""
    for level in COMPATIBILITY_LEVELS:
        if level == text:
            return level
    raise ConfigError(
        f"{text!r} is not a compatibility level. Use one of {', '.join(COMPATIBILITY_LEVELS)}.",
        key="compatibility",
    )


# A stop does not wait for a server that does not answer: the request is abandoned.

R = TypeVar("R")

# Time limit for a running or later request once a stop was requested.
LAST_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.2


class Stop(Protocol):
    """A request to stop, such as ``threading.Event``; it cannot be withdrawn."""

    def wait(self, seconds: float, /) -> bool:
        """Waits at most this long for the stop; returns True if it was requested."""


class LeftBehindError(OSError):
    """A request was not answered within ``LAST_SECONDS`` after a stop was requested."""


def waited_for(ask: Callable[[], R], stop: Stop | None) -> R:
    """Returns the result of ``ask``, or raises its error; a ``stop`` limits the wait.

    A thread that waits for a server cannot be ended. So ``ask`` runs in another thread, which does not delay
    the end of the process.

    Raises:
        LeftBehindError: A stop was requested first.
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
