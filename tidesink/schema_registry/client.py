"""Clients of schema registries: over HTTP, and an in-memory registry.

The HTTP client uses Confluent's REST API, which Apicurio serves too (ccompat v7). It supports only the
features that TiCDC and Debezium use: Avro, and registration with just ``{"schema": …}`` (tiflow c7b2588). A
schema with references, as registered by Apicurio's converter, is returned with its references resolved.
``open_registry`` opens a registry by its URL, including an in-memory one.

The in-memory registry follows the same contract as the HTTP client: each schema has one global id, and a
subject's compatibility level is enforced. Two texts are the same schema if they are equal as JSON, as in
Confluent's registry (Apicurio 3.0 compares text). Its default level is NONE, as in Apicurio.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import TracebackType
from typing import Generic, TypeVar
from urllib.parse import quote
from uuid import UUID

from tidesink.errors import ConfigError, RegistryError, SchemaNotFoundError, UnusableSchemaError
from tidesink.schema_registry import compatibility
from tidesink.schema_registry.base import (
    COMPATIBILITY_LEVELS,
    CompatibilityLevel,
    CompatibilityResult,
    RegisteredSchema,
    SchemaRegistry,
    Stop,
    require_level,
)
from tidesink.schema_registry.compatibility import Incompatibility, incompatibilities, parse_avro
from tidesink.schema_registry.references import (
    Reference,
    ReferringSchema,
    missing,
    references_of,
    written_out,
)
from tidesink.schema_registry.transport import (
    Answer,
    Auth,
    Endpoint,
    RetryPolicy,
    Timeouts,
    TlsOptions,
    Transport,
)


class MemorySchemaRegistry:
    """A schema registry in memory. ``schemas``: its initial schemas, by id."""

    def __init__(
        self,
        schemas: Mapping[int, str] | None = None,
        *,
        compatibility: CompatibilityLevel = "NONE",
        url: str = "memory://",
    ) -> None:
        self.url = url
        self._lock = threading.RLock()
        self._texts: dict[int, str] = dict(schemas or {})
        self._ids: dict[str, int] = {}
        self._subjects: dict[str, list[RegisteredSchema]] = {}
        self._levels: dict[str | None, CompatibilityLevel] = {None: require_level(compatibility)}
        for schema_id, text in self._texts.items():
            self._ids.setdefault(_identity(text), schema_id)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}, {len(self._texts)} schemas)"

    def schema_by_id(self, schema_id: int) -> str:
        """Returns the schema text that was first registered under an id.

        Raises:
            SchemaNotFoundError: The registry does not have the id.
        """
        with self._lock:
            if schema_id not in self._texts:
                raise compatibility.unknown_id(schema_id, self.url)
            return self._texts[schema_id]

    def latest(self, subject: str) -> RegisteredSchema:
        """Returns the newest version of a subject.

        Raises:
            SchemaNotFoundError: The subject does not exist.
        """
        with self._lock:
            return self._history(subject)[-1]

    def lookup(self, subject: str, schema_text: str) -> RegisteredSchema | None:
        """Returns the version of a subject that has this schema, or None if the subject does not have the
        schema.
        """
        identity = _identity(schema_text)
        with self._lock:
            history = self._subjects.get(subject, ())
            return next((item for item in history if _identity(item.schema_text) == identity), None)

    def versions(self, subject: str) -> list[int]:
        """Returns the version numbers of a subject, ascending.

        Raises:
            SchemaNotFoundError: The subject does not exist.
        """
        with self._lock:
            return [_version(item) for item in self._history(subject)]

    def schema_by_version(self, subject: str, version: int) -> RegisteredSchema:
        """Returns the version of a subject with this number.

        Raises:
            SchemaNotFoundError: The subject or the version does not exist.
        """
        with self._lock:
            for item in self._history(subject):
                if item.version == version:
                    return item
        raise compatibility.unknown_version(subject, version, self.url)

    def subjects(self) -> list[str]:
        """Returns all subjects, sorted."""
        with self._lock:
            return sorted(self._subjects)

    def places(self, schema_id: int) -> list[tuple[str, int]]:
        """Returns the subjects that have the schema with this id, each with its version number, sorted.

        Raises:
            SchemaNotFoundError: The registry does not have the id.
        """
        self.schema_by_id(schema_id)
        with self._lock:
            held = [item for history in self._subjects.values() for item in history if item.id == schema_id]
            return sorted((str(item.subject), _version(item)) for item in held)

    def register(self, subject: str, schema_text: str) -> int:
        """Register a schema under a subject if the subject does not have it yet. Returns the schema's id.

        Raises:
            IncompatibleSchemaError: The subject's compatibility level does not allow the schema.
            RegistryError: The text is not an Avro schema.
        """
        parse_avro(schema_text)
        with self._lock:
            held = self.lookup(subject, schema_text)
            if held is not None:
                return held.id
            findings = self._against(subject, schema_text)
            if findings:
                level = self.compatibility_level(subject)
                raise compatibility.incompatible(subject, level=level, found=findings, said="", url=self.url)
            return self._add(subject, schema_text)

    def check_compatibility(self, subject: str, schema_text: str) -> CompatibilityResult:
        """Check if ``register`` would accept the schema now."""
        with self._lock:
            findings = self._against(subject, schema_text)
        return CompatibilityResult(not findings, tuple(map(str, findings)))

    def compatibility_level(self, subject: str | None = None) -> CompatibilityLevel:
        """Returns the compatibility level that applies to a subject.

        Without a subject, returns the registry's global level.
        """
        with self._lock:
            return self._levels.get(subject) or self._levels[None]

    def set_compatibility_level(self, level: CompatibilityLevel, *, subject: str | None = None) -> None:
        """Set the compatibility level of a subject. Without a subject, sets the registry's global level."""
        with self._lock:
            self._levels[subject] = require_level(level)

    def close(self) -> None:
        """Does nothing, because an in-memory registry has no connections."""

    def _history(self, subject: str) -> list[RegisteredSchema]:
        if subject not in self._subjects:
            raise compatibility.unknown_subject(subject, self.url)
        return self._subjects[subject]

    def _against(self, subject: str, schema_text: str) -> tuple[Incompatibility, ...]:
        history = [item.schema_text for item in self._subjects.get(subject, ())]
        return incompatibilities(self.compatibility_level(subject), schema_text, history)

    def _add(self, subject: str, schema_text: str) -> int:
        schema_id = self._ids.setdefault(_identity(schema_text), max(self._texts, default=0) + 1)
        text = self._texts.setdefault(schema_id, schema_text)
        history = self._subjects.setdefault(subject, [])
        history.append(
            RegisteredSchema(schema_id, text, subject, _version(history[-1]) + 1 if history else 1)
        )
        return schema_id


class GlueSchemas:
    """Schemas of AWS Glue by UUID. TiCDC writes the UUID of the schema before each payload.

    ``name``: name of the file from which the schemas were loaded, for messages.
    """

    def __init__(self, schemas: Mapping[UUID, str], *, name: str = "memory") -> None:
        self._schemas = dict(schemas)
        self._name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r}, {len(self._schemas)} schemas)"

    def schema_by_uuid(self, uuid: UUID) -> str:
        """Returns the text of the schema version with this UUID.

        Raises:
            SchemaNotFoundError: The file does not have the UUID.
        """
        if uuid not in self._schemas:
            raise SchemaNotFoundError(
                f"{self._name} has no Glue schema version {uuid}. Add a line with its schema to the file."
            )
        return self._schemas[uuid]


def _version(item: RegisteredSchema) -> int:
    return item.version or 0


def _identity(schema_text: str) -> str:
    try:
        return json.dumps(json.loads(schema_text), sort_keys=True)
    except (ValueError, RecursionError):
        return schema_text


T = TypeVar("T")

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TtlCache(Generic[K, V]):
    """Caches each value for ``ttl_seconds`` after it was stored. With None, values never expire.

    ``clock`` returns monotonic time in seconds.
    """

    def __init__(self, ttl_seconds: float | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._ttl = ttl_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: dict[K, tuple[float, V]] = {}

    def get(self, key: K) -> V | None:
        """Returns the cached value, or None if it is missing or too old."""
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
        """Store a value and return it."""
        with self._lock:
            self._entries[key] = (self._clock(), value)
        return value

    def forget(self, key: K) -> None:
        """Drop the value of a key, if it is cached."""
        with self._lock:
            self._entries.pop(key, None)


LATEST_TTL_SECONDS = 30.0
# Long enough that many records with one unknown id cause one request. Short enough for a replica that lags
# behind.
_UNKNOWN_ID_TTL_SECONDS = 1.0


class SchemaRegistryClient:
    """Client of a schema registry at one or more addresses, which are tried in turn. May be used from several
    threads.

    URLs in ``urls`` may contain a user and a password, which are never shown. Schemas by id are cached
    forever. Results of ``latest`` and ``register`` are cached for ``latest_ttl_seconds``. Every method raises
    RegistryUnavailableError if no address answers, and RegistryError if the registry refuses the request.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        auth: Auth | None = None,
        tls: TlsOptions | None = None,
        timeouts: Timeouts | None = None,
        retry: RetryPolicy | None = None,
        stop: Stop | None = None,
        latest_ttl_seconds: float = LATEST_TTL_SECONDS,
    ) -> None:
        endpoints = [Endpoint.parse(url, auth) for url in ([urls] if isinstance(urls, str) else urls)]
        if not endpoints:
            raise ConfigError(
                "No URL of a schema registry is set. Set at least one URL under schema-registry.", key="url"
            )
        self.urls = tuple(endpoint.url for endpoint in endpoints)
        self._transport = Transport(
            endpoints, tls or TlsOptions(), timeouts or Timeouts(), retry or RetryPolicy(), stop=stop
        )
        self._texts: TtlCache[tuple[int, str | None], str] = TtlCache(None)
        self._referred: TtlCache[Reference, ReferringSchema] = TtlCache(None)
        self._unknown: TtlCache[tuple[int, str | None], str] = TtlCache(_UNKNOWN_ID_TTL_SECONDS)
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
        """Closes all connections."""
        self._transport.close()

    def schema_by_id(self, schema_id: int) -> str:
        """Returns the text of the schema with this id.

        Raises:
            SchemaNotFoundError: The registry does not have the id.
        """
        return self._by_id(schema_id, None)

    def schema_of_subject(self, schema_id: int, subject: str) -> str:
        """Returns the text of the schema with an id from a record. ``subject``: the subject of the record.

        Ids belong to a registry context. Confluent's registry searches all contexts for the subject,
        beginning with the default context, and answers from the context that has it (Schema Registry API
        reference, 7.x).

        Raises:
            SchemaNotFoundError: The registry does not have the id.
        """
        return self._by_id(schema_id, subject)

    def _by_id(self, schema_id: int, subject: str | None) -> str:
        key = schema_id, subject
        text = self._texts.get(key)
        if text is not None:
            return text
        unknown_at = self._unknown.get(key)
        if unknown_at is not None:
            raise compatibility.unknown_id(schema_id, unknown_at)
        query = "" if subject is None else f"?subject={_escaped(subject)}"
        answer = self._transport.send("GET", f"/schemas/ids/{schema_id}{query}")
        if answer.is_not_found:
            raise compatibility.unknown_id(schema_id, self._unknown.put(key, answer.url))
        try:
            return self._texts.put(key, self._text(answer))
        except UnusableSchemaError as error:
            raise error.with_context(schema_id=schema_id, url=answer.url) from error

    def latest(self, subject: str) -> RegisteredSchema:
        """Returns the newest version of a subject.

        Raises:
            SchemaNotFoundError: The subject does not exist.
        """
        cached = self._latest.get(subject)
        return cached or self._latest.put(subject, self._version(subject, "latest"))

    def lookup(self, subject: str, schema_text: str) -> RegisteredSchema | None:
        """Returns the version of a subject that has this schema, or None if the subject does not have the
        schema.
        """
        answer = self._transport.send("POST", f"/subjects/{_escaped(subject)}", {"schema": schema_text})
        return None if answer.is_not_found else self._registered_schema(answer)

    def versions(self, subject: str) -> list[int]:
        """Returns the version numbers of a subject, ascending.

        Raises:
            SchemaNotFoundError: The subject does not exist.
        """
        answer = self._transport.send("GET", f"/subjects/{_escaped(subject)}/versions")
        if answer.is_not_found:
            raise compatibility.unknown_subject(subject, answer.url)
        return sorted(_items(answer, int))

    def schema_by_version(self, subject: str, version: int) -> RegisteredSchema:
        """Returns the version of a subject with this number.

        Raises:
            SchemaNotFoundError: The subject or the version does not exist.
        """
        return self._version(subject, version)

    def subjects(self) -> list[str]:
        """Returns all subjects, sorted. Apicurio returns only the first 1000 by default."""
        return sorted(_items(self._transport.send("GET", "/subjects"), str))

    def places(self, schema_id: int) -> list[tuple[str, int]]:
        """Returns the subjects that have the schema with this id, each with its version number, sorted.

        Raises:
            SchemaNotFoundError: The registry does not have the id.
        """
        answer = self._transport.send("GET", f"/schemas/ids/{schema_id}/versions")
        if answer.is_not_found:
            raise compatibility.unknown_id(schema_id, answer.url)
        versions = [(item.get("subject"), item.get("version")) for item in _items(answer, dict)]
        return sorted((str(subject), version) for subject, version in versions if isinstance(version, int))

    def register(self, subject: str, schema_text: str) -> int:
        """Register a schema under a subject if the subject does not have it yet. Returns the schema's id.

        Raises:
            IncompatibleSchemaError: The subject's compatibility level does not allow the schema.
        """
        cached = self._registered.get((subject, schema_text))
        if cached is not None:
            return cached
        path = f"/subjects/{_escaped(subject)}/versions"
        answer = self._transport.send("POST", path, {"schema": schema_text})
        if answer.status == 409 and answer.error_code is not None:
            raise self._incompatible(subject, schema_text, answer)
        answer.expect(dict, subject=subject)
        schema_id = answer.member("id", int)
        self._latest.forget(subject)
        return self._registered.put((subject, schema_text), schema_id)

    def check_compatibility(self, subject: str, schema_text: str) -> CompatibilityResult:
        """Check if ``register`` would accept the schema now.

        A subject without versions accepts any schema.
        """
        answer = self._ask_compatibility(subject, schema_text)
        if answer.is_not_found:
            return CompatibilityResult(compatible=True)
        if answer.status == 422 and answer.error_code is not None:
            parse_avro(schema_text)  # raises if it is not a schema
            return CompatibilityResult(False, (answer.said,))
        compatible = answer.member("is_compatible", bool)
        messages = _messages(answer)
        if not (compatible or messages):  # Apicurio reports no reason
            messages = tuple(map(str, self._own_findings(subject, schema_text)[1]))
        return CompatibilityResult(compatible, messages)

    def compatibility_level(self, subject: str | None = None) -> CompatibilityLevel:
        """Returns the compatibility level that applies to a subject.

        Without a subject, returns the registry's global level.
        """
        if subject is not None:
            answer = self._transport.send("GET", f"/config/{_escaped(subject)}?defaultToGlobal=true")
            # Confluent has separate error codes for a subject without its own level (40408) and a subject
            # without versions.
            if answer.status != 404 or answer.error_code is None:
                return _level(answer)
        return _level(self._transport.send("GET", "/config"))

    def set_compatibility_level(self, level: CompatibilityLevel, *, subject: str | None = None) -> None:
        """Set the compatibility level of a subject. Without a subject, sets the registry's global level."""
        path = "/config" if subject is None else f"/config/{_escaped(subject)}"
        answer = self._transport.send("PUT", path, {"compatibility": require_level(level)})
        answer.expect(dict, subject=subject)

    def _version(self, subject: str, version: int | str) -> RegisteredSchema:
        answer = self._transport.send("GET", f"/subjects/{_escaped(subject)}/versions/{version}")
        if not answer.is_not_found:
            return self._registered_schema(answer)
        if isinstance(version, int) and answer.error_code == 40402:
            raise compatibility.unknown_version(subject, version, answer.url)
        raise compatibility.unknown_subject(subject, answer.url)

    def _registered_schema(self, answer: Answer) -> RegisteredSchema:
        schema_id = answer.member("id", int)
        subject, version = answer.member("subject", str), answer.member("version", int)
        try:
            return RegisteredSchema(schema_id, self._text(answer), subject, version)
        except UnusableSchemaError as error:
            raise error.with_context(schema_id=schema_id, subject=subject, url=answer.url) from error

    def _text(self, answer: Answer) -> str:
        """Returns the schema text in a registry's answer, with its references resolved."""
        return written_out(_referring(answer), self._refer)

    def _refer(self, reference: Reference) -> ReferringSchema:
        cached = self._referred.get(reference)
        if cached is not None:
            return cached
        path = f"/subjects/{_escaped(reference.subject)}/versions/{reference.version}"
        answer = self._transport.send("GET", path)
        if answer.is_not_found:
            raise missing(reference, compatibility.unknown_subject(reference.subject, answer.url))
        return self._referred.put(reference, _referring(answer))

    def _ask_compatibility(self, subject: str, schema_text: str) -> Answer:
        """Ask the registry if a schema is compatible with a subject.

        The request asks for a comparison with all versions if the subject's level is transitive, otherwise
        with the latest version. Apicurio's registry compares with the requested versions. Confluent's
        registry would choose them by the level.
        """
        path = f"/compatibility/subjects/{_escaped(subject)}/versions"
        if self.compatibility_level(subject).endswith("_TRANSITIVE"):
            answer = self._transport.send("POST", f"{path}?verbose=true", {"schema": schema_text})
            if answer.status not in {404, 405} or answer.is_not_found:
                return answer  # otherwise an older registry, which only compares with one version at a time
        return self._transport.send("POST", f"{path}/latest?verbose=true", {"schema": schema_text})

    def _incompatible(self, subject: str, schema_text: str, answer: Answer) -> RegistryError:
        try:
            level, findings = self._own_findings(subject, schema_text)
            messages = _messages(self._ask_compatibility(subject, schema_text))
        except RegistryError:  # the registry's refusal is known, and must not be replaced by a second error
            level, findings, messages = None, (), ()
        return compatibility.incompatible(
            subject, level=level, found=findings, said=next(iter(messages), answer.said), url=answer.url
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


def _referring(answer: Answer) -> ReferringSchema:
    """Returns the schema in a registry's answer. Its references to other schemas are not resolved yet.

    Raises:
        UnusableSchemaError: The schema is not Avro.
    """
    text = answer.member("schema", str)
    body = answer.expect(dict)
    kind = body.get("schemaType") or "AVRO"
    if kind != "AVRO":
        raise UnusableSchemaError(
            f"The schema has type {answer.fit(str(kind))}, but TiCDC writes Avro schemas. Check that TiCDC "
            "writes the topic. If a Debezium connector writes it, set key.converter and value.converter to "
            "AvroConverter.",
            url=answer.url,
        )
    return ReferringSchema(text, references_of(body.get("references")))


def _items(answer: Answer, kind: type[T]) -> list[T]:
    items: list[T] = answer.expect(list)
    if not all(isinstance(item, kind) for item in items):
        raise answer.not_a_registry()
    return items


def _level(answer: Answer) -> CompatibilityLevel:
    if answer.status // 100 != 2:
        raise answer.refusal()
    name = answer.expect(dict).get("compatibilityLevel")
    if name not in COMPATIBILITY_LEVELS:
        raise answer.not_a_registry()
    return require_level(name)


def _messages(answer: Answer) -> tuple[str, ...]:
    body = answer.body if isinstance(answer.body, dict) else {}
    return tuple(answer.fit(text) for text in body.get("messages") or () if isinstance(text, str))


_MEMORY = "memory://"
# Separates several URLs. A comma inside a password is not a separator.
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
    stop: Stop | None = None,
) -> SchemaRegistry:
    """Open the schema registry at a URL.

    ``url``: one URL, a sequence of URLs, or URLs joined by commas. Several URLs are tried in turn. Once
    ``stop`` is requested, a request ends after at most two seconds and is not retried. ``memory://name`` is
    an in-memory registry, the same one each time that it is opened in a process.

    Raises:
        ConfigError: A URL is invalid.
    """
    urls = _BETWEEN_URLS.split(url.strip()) if isinstance(url, str) else list(url)
    if not any(address.startswith(_MEMORY) for address in urls):
        return SchemaRegistryClient(urls, auth=auth, tls=tls, timeouts=timeouts, retry=retry, stop=stop)
    if len(urls) > 1:
        raise ConfigError(
            "A memory:// registry cannot be combined with another address. Remove one of the two.", key="url"
        )
    with _lock:
        return _in_process.setdefault(urls[0], MemorySchemaRegistry(url=urls[0]))
