"""The interface of a schema registry as tidesink uses it.

Two classes implement it: :class:`~tidesink.schema_registry.client.SchemaRegistryClient` over HTTP, and
:class:`~tidesink.schema_registry.client.MemorySchemaRegistry` inside the process. Both may be used from
several threads. This module also defines how a running request ends when a worker is asked to stop.
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
    """Read access to a schema registry.

    Methods for a schema id, subject or version raise SchemaNotFoundError if the registry does not have it.
    """

    def schema_by_id(self, schema_id: int) -> str:
        """Returns the text of the schema with this id."""

    def latest(self, subject: str) -> RegisteredSchema:
        """Returns the newest version of a subject."""

    def lookup(self, subject: str, schema_text: str) -> RegisteredSchema | None:
        """Returns the version of a subject that has this schema, or None if the subject does not have the
        schema.
        """

    def versions(self, subject: str) -> list[int]:
        """Returns the version numbers of a subject, ascending."""

    def schema_by_version(self, subject: str, version: int) -> RegisteredSchema:
        """Returns the version of a subject with this number."""

    def subjects(self) -> list[str]:
        """Returns all subjects, sorted."""

    def places(self, schema_id: int) -> list[tuple[str, int]]:
        """Returns the subjects that have the schema with this id, each with its version number, sorted."""


@runtime_checkable
class ContextReader(Protocol):
    """Read access to a registry whose schema ids are only unique within a context (a namespace of Confluent's
    registry).

    The subject of a record determines the context of its schema id.
    """

    def schema_of_subject(self, schema_id: int, subject: str) -> str:
        """Returns the text of the schema with an id from a record.

        ``subject``: the subject of the record.

        Raises:
            SchemaNotFoundError: The registry does not have the id.
        """


@runtime_checkable
class SchemaWriter(Protocol):
    """Registers schemas, for encoders, and reads and sets the compatibility levels of subjects."""

    def register(self, subject: str, schema_text: str) -> int:
        """Register a schema under a subject if the subject does not have it yet. Returns the schema's id.

        Raises:
            IncompatibleSchemaError: The subject's compatibility level does not allow the schema.
        """

    def check_compatibility(self, subject: str, schema_text: str) -> CompatibilityResult:
        """Check if ``register`` would accept the schema now.

        A subject without versions accepts any schema.
        """

    def compatibility_level(self, subject: str | None = None) -> CompatibilityLevel:
        """Returns the compatibility level that applies to a subject.

        Without a subject, returns the registry's global level.
        """

    def set_compatibility_level(self, level: CompatibilityLevel, *, subject: str | None = None) -> None:
        """Set the compatibility level of a subject. Without a subject, sets the registry's global level."""


@runtime_checkable
class SchemaRegistry(SchemaReader, SchemaWriter, Protocol):
    """A schema registry for reading and writing. Close it after use."""

    def close(self) -> None:
        """Close all connections. The registry cannot be used afterwards."""


@runtime_checkable
class SchemaSource(Protocol):
    """Reads schemas of the AWS Glue Schema Registry by UUID. May be used from several threads."""

    def schema_by_uuid(self, uuid: UUID) -> str:
        """Returns the text of the schema version with this UUID.

        Raises:
            SchemaNotFoundError: The UUID is not known.
            RegistryError: The schema cannot be read.
        """


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
    """A registered schema. ``subject`` and ``version`` are None if the schema was requested by its id."""

    id: int
    schema_text: str
    subject: str | None = None
    version: int | None = None


@dataclass(frozen=True)
class CompatibilityResult:
    """The result of checking a schema against a subject's versions. ``messages``: reasons for a refusal."""

    compatible: bool
    messages: tuple[str, ...] = ()


def require_level(text: str) -> CompatibilityLevel:
    """Returns the compatibility level with this name.

    Raises:
        ConfigError: No compatibility level has this name.
    """
    for level in COMPATIBILITY_LEVELS:
        if level == text:
            return level
    raise ConfigError(
        f"{text!r} is not a compatibility level. Use one of {', '.join(COMPATIBILITY_LEVELS)}.",
        key="compatibility",
    )


# A stop does not wait for a server that does not answer. The request is abandoned.

R = TypeVar("R")

# Seconds that a request may take once a stop was requested.
LAST_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.2


class Stop(Protocol):
    """A flag that requests a stop, such as a ``threading.Event``. Once it is set, it stays set."""

    def wait(self, seconds: float, /) -> bool:
        """Wait until a stop is requested, at most this many seconds. Returns True if a stop was requested."""


class LeftBehindError(OSError):
    """A request to the registry was not answered within ``LAST_SECONDS`` after a stop was requested."""


def waited_for(ask: Callable[[], R], stop: Stop | None) -> R:
    """Call ``ask`` and return its result. Once ``stop`` is requested, wait at most ``LAST_SECONDS`` longer.

    A thread that waits for a server cannot be interrupted. So ``ask`` runs in a daemon thread, which does not
    delay the end of the process. An error that ``ask`` raises is raised here.

    Raises:
        LeftBehindError: A stop was requested, and ``ask`` did not end within ``LAST_SECONDS``.
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
