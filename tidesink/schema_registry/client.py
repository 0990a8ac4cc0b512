"""The schema registry over HTTP: Confluent's REST API, as Confluent and Apicurio (ccompat v7) serve it.

Only what TiCDC uses: Avro, no references, and registration with ``{"schema": …}`` alone (tiflow c7b2588).
``open_registry`` opens a registry by its URL, the one in memory included.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import TypeVar
from urllib.parse import quote

from tidesink.errors import ConfigError, RegistryError
from tidesink.schema_registry import compatibility
from tidesink.schema_registry.auth import Auth, Endpoint, TlsOptions
from tidesink.schema_registry.base import (
    COMPATIBILITY_LEVELS,
    CompatibilityLevel,
    CompatibilityResult,
    RegisteredSchema,
    SchemaRegistry,
    TtlCache,
    error_code,
    expect,
    is_not_found,
    member,
    not_a_registry,
    refusal,
    require_level,
    said,
)
from tidesink.schema_registry.compatibility import Incompatibility, incompatibilities, parse_avro
from tidesink.schema_registry.memory import MemorySchemaRegistry
from tidesink.schema_registry.transport import Answer, RetryPolicy, Timeouts, Transport

T = TypeVar("T")

LATEST_TTL_SECONDS = 30.0
# Long enough that a run of records with one bad id costs one request, short enough for a lagging replica.
_UNKNOWN_ID_TTL_SECONDS = 1.0


class SchemaRegistryClient:
    """A schema registry at one or more addresses, tried in turn. Threads may share it.

    ``urls`` may carry user and password; they are moved out of sight. Schemas by id are kept for ever,
    ``latest`` and what was registered for ``latest_ttl_seconds``. Every method raises
    RegistryUnavailableError when no address gives an answer, and RegistryError when the answer is final.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        auth: Auth | None = None,
        tls: TlsOptions | None = None,
        timeouts: Timeouts | None = None,
        retry: RetryPolicy | None = None,
        latest_ttl_seconds: float = LATEST_TTL_SECONDS,
    ) -> None:
        endpoints = [Endpoint.parse(url, auth) for url in ([urls] if isinstance(urls, str) else urls)]
        if not endpoints:
            raise ConfigError("no URL of a schema registry is given", key="url")
        self.urls = tuple(endpoint.url for endpoint in endpoints)
        self._transport = Transport(
            endpoints, tls or TlsOptions(), timeouts or Timeouts(), retry or RetryPolicy()
        )
        self._texts: TtlCache[int, str] = TtlCache(None)
        self._unknown: TtlCache[int, str] = TtlCache(_UNKNOWN_ID_TTL_SECONDS)
        self._latest: TtlCache[str, RegisteredSchema] = TtlCache(latest_ttl_seconds)
        self._registered: TtlCache[tuple[str, str], int] = TtlCache(latest_ttl_seconds)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.urls))})"

    def __enter__(self) -> SchemaRegistryClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        self._transport.close()

    def schema_by_id(self, schema_id: int) -> str:
        """The text of a schema; raises SchemaNotFoundError."""
        text = self._texts.get(schema_id)
        if text is not None:
            return text
        unknown_at = self._unknown.get(schema_id)
        if unknown_at is not None:
            raise compatibility.unknown_id(schema_id, unknown_at)
        answer = self._transport.send("GET", f"/schemas/ids/{schema_id}")
        if is_not_found(answer):
            raise compatibility.unknown_id(schema_id, self._unknown.put(schema_id, answer.url))
        return self._texts.put(schema_id, _avro_text(answer))

    def latest(self, subject: str) -> RegisteredSchema:
        """The newest version of a subject; raises SchemaNotFoundError."""
        known = self._latest.get(subject)
        return known or self._latest.put(subject, self._version(subject, "latest"))

    def lookup(self, subject: str, schema_text: str) -> RegisteredSchema | None:
        """Where a subject holds this schema, or None."""
        answer = self._transport.send("POST", f"/subjects/{_escaped(subject)}", {"schema": schema_text})
        return None if is_not_found(answer) else _registered(answer)

    def versions(self, subject: str) -> list[int]:
        """The versions of a subject, ascending; raises SchemaNotFoundError."""
        answer = self._transport.send("GET", f"/subjects/{_escaped(subject)}/versions")
        if is_not_found(answer):
            raise compatibility.unknown_subject(subject, answer.url)
        return sorted(_items(answer, int))

    def schema_by_version(self, subject: str, version: int) -> RegisteredSchema:
        """One version of a subject; raises SchemaNotFoundError."""
        return self._version(subject, version)

    def subjects(self) -> list[str]:
        """Every subject, sorted (Apicurio gives the first 1000 by default)."""
        return sorted(_items(self._transport.send("GET", "/subjects"), str))

    def places(self, schema_id: int) -> list[tuple[str, int]]:
        """The subjects and versions that hold a schema, sorted; raises SchemaNotFoundError."""
        answer = self._transport.send("GET", f"/schemas/ids/{schema_id}/versions")
        if is_not_found(answer):
            raise compatibility.unknown_id(schema_id, answer.url)
        found = [(item.get("subject"), item.get("version")) for item in _items(answer, dict)]
        return sorted((str(subject), version) for subject, version in found if isinstance(version, int))

    def register(self, subject: str, schema_text: str) -> int:
        """The id of a schema under a subject, new or not; raises IncompatibleSchemaError."""
        known = self._registered.get((subject, schema_text))
        if known is not None:
            return known
        path = f"/subjects/{_escaped(subject)}/versions"
        answer = self._transport.send("POST", path, {"schema": schema_text})
        if answer.status == 409 and error_code(answer) is not None:
            raise self._incompatible(subject, schema_text, answer)
        expect(answer, dict, subject=subject)
        schema_id = member(answer, "id", int)
        self._latest.forget(subject)
        return self._registered.put((subject, schema_text), schema_id)

    def check_compatibility(self, subject: str, schema_text: str) -> CompatibilityResult:
        """Whether ``register`` would take the schema now; a subject without versions takes any."""
        answer = self._ask_compatibility(subject, schema_text)
        if is_not_found(answer):
            return CompatibilityResult(compatible=True)
        if answer.status == 422 and error_code(answer) is not None:
            parse_avro(schema_text)  # where it is no schema, this says so
            return CompatibilityResult(False, (said(answer),))
        compatible = member(answer, "is_compatible", bool)
        messages = _messages(answer)
        if not (compatible or messages):  # Apicurio does not say why
            messages = tuple(map(str, self._own_findings(subject, schema_text)[1]))
        return CompatibilityResult(compatible, messages)

    def compatibility_level(self, subject: str | None = None) -> CompatibilityLevel:
        """The level that holds for a subject, or the registry's own."""
        if subject is not None:
            answer = self._transport.send("GET", f"/config/{_escaped(subject)}?defaultToGlobal=true")
            # Confluent has codes of its own for a subject without a level (40408) or without versions.
            if answer.status != 404 or error_code(answer) is None:
                return _level(answer)
        return _level(self._transport.send("GET", "/config"))

    def set_compatibility_level(self, level: CompatibilityLevel, *, subject: str | None = None) -> None:
        """Set the level of a subject, or the registry's own."""
        path = "/config" if subject is None else f"/config/{_escaped(subject)}"
        answer = self._transport.send("PUT", path, {"compatibility": require_level(level)})
        expect(answer, dict, subject=subject)

    def _version(self, subject: str, version: int | str) -> RegisteredSchema:
        answer = self._transport.send("GET", f"/subjects/{_escaped(subject)}/versions/{version}")
        if not is_not_found(answer):
            return _registered(answer)
        if isinstance(version, int) and error_code(answer) == 40402:
            raise compatibility.unknown_version(subject, version, answer.url)
        raise compatibility.unknown_subject(subject, answer.url)

    def _ask_compatibility(self, subject: str, schema_text: str) -> Answer:
        """Ask against the versions that the level names: all of them only where it is transitive.

        Confluent's would find out by itself; Apicurio's compares with whatever it is asked for.
        """
        path = f"/compatibility/subjects/{_escaped(subject)}/versions"
        if self.compatibility_level(subject).endswith("_TRANSITIVE"):
            answer = self._transport.send("POST", f"{path}?verbose=true", {"schema": schema_text})
            if answer.status not in {404, 405} or is_not_found(answer):
                return answer  # else an older registry, which compares with one version at a time
        return self._transport.send("POST", f"{path}/latest?verbose=true", {"schema": schema_text})

    def _incompatible(self, subject: str, schema_text: str, answer: Answer) -> RegistryError:
        try:
            level, found = self._own_findings(subject, schema_text)
            messages = _messages(self._ask_compatibility(subject, schema_text))
        except RegistryError:  # the refusal itself is known: do not hide it behind a second error
            level, found, messages = None, (), ()
        return compatibility.incompatible(
            subject, level=level, found=found, said=next(iter(messages), said(answer)), url=answer.url
        )

    def _own_findings(
        self, subject: str, schema_text: str
    ) -> tuple[CompatibilityLevel, tuple[Incompatibility, ...]]:
        level = self.compatibility_level(subject)
        versions = self.versions(subject)
        compared = versions if level.endswith("_TRANSITIVE") else versions[-1:]
        old = [self.schema_by_version(subject, version).schema_text for version in compared]
        return level, incompatibilities(level, schema_text, old)


def _escaped(subject: str) -> str:
    return quote(subject, safe="")


def _avro_text(answer: Answer) -> str:
    text = member(answer, "schema", str)
    body = expect(answer, dict)
    kind = body.get("schemaType") or "AVRO"
    if kind != "AVRO" or body.get("references"):
        what = f"of type {kind}" if kind != "AVRO" else "with references to others"
        raise RegistryError(
            f"this is a schema {what}, and TiCDC writes plain Avro ones: is the topic TiCDC's?",
            url=answer.url,
        )
    return text


def _registered(answer: Answer) -> RegisteredSchema:
    text = _avro_text(answer)
    subject, version = member(answer, "subject", str), member(answer, "version", int)
    return RegisteredSchema(member(answer, "id", int), text, subject, version)


def _items(answer: Answer, kind: type[T]) -> list[T]:
    items: list[T] = expect(answer, list)
    if not all(isinstance(item, kind) for item in items):
        raise not_a_registry(answer)
    return items


def _level(answer: Answer) -> CompatibilityLevel:
    if answer.status // 100 != 2:
        raise refusal(answer)
    name = expect(answer, dict).get("compatibilityLevel")
    if name not in COMPATIBILITY_LEVELS:
        raise not_a_registry(answer)
    return require_level(name)


def _messages(answer: Answer) -> tuple[str, ...]:
    body = answer.body if isinstance(answer.body, dict) else {}
    return tuple(answer.fit(text) for text in body.get("messages") or () if isinstance(text, str))


_MEMORY = "memory://"
# A comma inside a password is no separator.
_BETWEEN_URLS = re.compile(r"\s*,\s*(?=(?:https?|memory)://)")

_in_process: dict[str, MemorySchemaRegistry] = {}
_lock = threading.Lock()


def open_registry(
    url: str | Sequence[str],
    *,
    auth: Auth | None = None,
    tls: TlsOptions | None = None,
    timeouts: Timeouts | None = None,
    retry: RetryPolicy | None = None,
) -> SchemaRegistry:
    """The registry at a URL, or at the first that answers of several (a sequence, or joined by commas).

    ``memory://name`` is one registry for the whole process, the same each time it is opened.
    """
    urls = _BETWEEN_URLS.split(url.strip()) if isinstance(url, str) else list(url)
    if not any(one.startswith(_MEMORY) for one in urls):
        return SchemaRegistryClient(urls, auth=auth, tls=tls, timeouts=timeouts, retry=retry)
    if len(urls) > 1:
        raise ConfigError("a memory:// registry stands alone: it has no second address", key="url")
    with _lock:
        return _in_process.setdefault(urls[0], MemorySchemaRegistry(url=urls[0]))
