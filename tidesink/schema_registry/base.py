"""The schema registry as tidesink uses it: Confluent's REST API, reduced to what TiCDC needs.

Two implementations have one contract: :class:`~tidesink.schema_registry.client.SchemaRegistryClient` over
HTTP and :class:`~tidesink.schema_registry.memory.MemorySchemaRegistry` inside the process. Both may be
shared by threads. This module has the contract, its frozen values, a cache that threads can share, and the
meaning of a registry's HTTP answers.

Confluent's error codes (Schema Registry API v1), which Apicurio's ccompat v7 uses too: 40401 subject, 40402
version, 40403 schema not found; 409 incompatible; 422xx invalid request. An answer of any other form is a
sign that something else listens at the URL.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar, get_args, runtime_checkable
from uuid import UUID

from tidesink.errors import ConfigError, ContextValue, RegistryError, SchemaNotFoundError
from tidesink.schema_registry.transport import Answer


@runtime_checkable
class SchemaReader(Protocol):
    """What a decoder needs."""

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


NOT_FOUND_CODES = frozenset({40401, 40402, 40403})

T = TypeVar("T")

_SIGN_IN = {
    401: "it wants credentials, or other ones: check the registry's username and password or its token",
    403: "these credentials may not do this: give their owner the right, or use others",
}


def error_code(answer: Answer) -> int | None:
    """The registry's own code of an error, or None where it is not a registry's error."""
    code = answer.body.get("error_code") if isinstance(answer.body, dict) else None
    return code if isinstance(code, int) else None


def is_not_found(answer: Answer) -> bool:
    """Whether a registry says that it does not hold what was asked for."""
    return answer.status == 404 and error_code(answer) in NOT_FOUND_CODES


def expect(answer: Answer, kind: type[T], **context: ContextValue) -> T:
    """The body of a good answer; raises the error that any other answer stands for."""
    if answer.status // 100 != 2:
        raise refusal(answer, **context)
    if not isinstance(answer.body, kind):
        raise not_a_registry(answer)
    return answer.body


def member(answer: Answer, name: str, kind: type[T]) -> T:
    """One member of an answer's object; raises RegistryError where it is missing or of another type."""
    body: dict[str, Any] = expect(answer, dict)
    value = body.get(name)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise not_a_registry(answer)
    return value


def refusal(answer: Answer, **context: ContextValue) -> RegistryError:
    """The error for an answer that is neither good nor worth another try."""
    code = error_code(answer)
    if answer.status in _SIGN_IN:
        return RegistryError(
            f"the schema registry answers HTTP {answer.status}: {_SIGN_IN[answer.status]}",
            url=answer.url,
            **context,
        )
    if is_not_found(answer):
        return SchemaNotFoundError(f"not found: {said(answer)}", url=answer.url, **context)
    # Confluent answers an unknown path with the code 404: a registry, but not at this path.
    if code is None or code == 404:
        return not_a_registry(answer)
    return RegistryError(
        f"the schema registry refuses (HTTP {answer.status}, code {code}): {said(answer)}",
        url=answer.url,
        **context,
    )


def not_a_registry(answer: Answer) -> RegistryError:
    """The error for an answer which no schema registry gives."""
    shown = f": {answer.excerpt}" if answer.excerpt else ", nothing in it"
    return RegistryError(
        f"is this URL a schema registry? It answers HTTP {answer.status}{shown} "
        "(the URL may need a path, as Apicurio's /apis/ccompat/v7)",
        url=answer.url,
    )


def said(answer: Answer) -> str:
    """The registry's own words, on one line, as far as they are fit to be shown."""
    message = answer.body.get("message") if isinstance(answer.body, dict) else None
    return answer.fit(message) if isinstance(message, str) and message else answer.excerpt


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TtlCache(Generic[K, V]):
    """Values by key, forgotten ``ttl_seconds`` after they were put; None keeps them for ever.

    ``clock`` gives seconds and never runs backwards.
    """

    def __init__(self, ttl_seconds: float | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._ttl = ttl_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: dict[K, tuple[float, V]] = {}

    def get(self, key: K) -> V | None:
        """The value, or None when there is none or it is too old."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            put_at, value = entry
            if self._ttl is None or self._clock() - put_at < self._ttl:
                return value
            del self._entries[key]
            return None

    def put(self, key: K, value: V) -> V:
        """Remember a value and give it back."""
        with self._lock:
            self._entries[key] = (self._clock(), value)
        return value

    def forget(self, key: K) -> None:
        """Drop one value, if it is there."""
        with self._lock:
            self._entries.pop(key, None)
