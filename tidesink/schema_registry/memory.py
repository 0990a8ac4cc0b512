"""A schema registry inside the process, for tests, notebooks and ``memory://`` URLs.

It keeps the contract of the HTTP client: ids are global per schema, a subject's level is enforced. Two
texts are one schema when they are equal as JSON, as with Confluent's registry (Apicurio 3.0 compares text).
Like Apicurio's, it starts with level NONE.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from uuid import UUID

from tidesink.errors import SchemaNotFoundError
from tidesink.schema_registry import compatibility as refusals
from tidesink.schema_registry.base import (
    CompatibilityLevel,
    CompatibilityResult,
    RegisteredSchema,
    require_level,
)
from tidesink.schema_registry.compatibility import Incompatibility, incompatibilities, parse_avro


class MemorySchemaRegistry:
    """Schemas, subjects and levels in dictionaries; ``schemas`` are known by id from the start."""

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
        """The text first registered under an id; raises SchemaNotFoundError."""
        with self._lock:
            if schema_id not in self._texts:
                raise refusals.unknown_id(schema_id, self.url)
            return self._texts[schema_id]

    def latest(self, subject: str) -> RegisteredSchema:
        """The newest version of a subject; raises SchemaNotFoundError."""
        with self._lock:
            return self._history(subject)[-1]

    def lookup(self, subject: str, schema_text: str) -> RegisteredSchema | None:
        """Where a subject holds this schema, or None."""
        identity = _identity(schema_text)
        with self._lock:
            history = self._subjects.get(subject, ())
            return next((item for item in history if _identity(item.schema_text) == identity), None)

    def versions(self, subject: str) -> list[int]:
        """The versions of a subject, ascending; raises SchemaNotFoundError."""
        with self._lock:
            return [_version(item) for item in self._history(subject)]

    def schema_by_version(self, subject: str, version: int) -> RegisteredSchema:
        """One version of a subject; raises SchemaNotFoundError."""
        with self._lock:
            for item in self._history(subject):
                if item.version == version:
                    return item
        raise refusals.unknown_version(subject, version, self.url)

    def subjects(self) -> list[str]:
        """Every subject, sorted."""
        with self._lock:
            return sorted(self._subjects)

    def places(self, schema_id: int) -> list[tuple[str, int]]:
        """The subjects and versions that hold a schema, sorted; raises SchemaNotFoundError."""
        self.schema_by_id(schema_id)
        with self._lock:
            held = [item for history in self._subjects.values() for item in history if item.id == schema_id]
            return sorted((str(item.subject), _version(item)) for item in held)

    def register(self, subject: str, schema_text: str) -> int:
        """The id of a schema under a subject, new or not.

        Raises IncompatibleSchemaError, and RegistryError for what is no Avro schema.
        """
        parse_avro(schema_text)
        with self._lock:
            held = self.lookup(subject, schema_text)
            if held is not None:
                return held.id
            found = self._against(subject, schema_text)
            if found:
                level = self.compatibility_level(subject)
                raise refusals.incompatible(subject, level=level, found=found, said="", url=self.url)
            return self._add(subject, schema_text)

    def check_compatibility(self, subject: str, schema_text: str) -> CompatibilityResult:
        """Whether ``register`` would take the schema now."""
        with self._lock:
            found = self._against(subject, schema_text)
        return CompatibilityResult(not found, tuple(map(str, found)))

    def compatibility_level(self, subject: str | None = None) -> CompatibilityLevel:
        """The level that holds for a subject, or the registry's own."""
        with self._lock:
            return self._levels.get(subject) or self._levels[None]

    def set_compatibility_level(self, level: CompatibilityLevel, *, subject: str | None = None) -> None:
        """Set the level of a subject, or the registry's own."""
        with self._lock:
            self._levels[subject] = require_level(level)

    def close(self) -> None:
        """Nothing to let go of."""

    def _history(self, subject: str) -> list[RegisteredSchema]:
        if subject not in self._subjects:
            raise refusals.unknown_subject(subject, self.url)
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
    """Schemas that AWS Glue registered, by the UUID that TiCDC writes before each payload.

    ``name``: of the file that they come from, for messages.
    """

    def __init__(self, schemas: Mapping[UUID, str], *, name: str = "memory") -> None:
        self._schemas = dict(schemas)
        self._name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r}, {len(self._schemas)} schemas)"

    def schema_by_uuid(self, uuid: UUID) -> str:
        """The text of a schema version; raises SchemaNotFoundError."""
        if uuid not in self._schemas:
            raise SchemaNotFoundError(f"no Glue schema version {uuid} in {self._name}: add its line")
        return self._schemas[uuid]


def _version(item: RegisteredSchema) -> int:
    return item.version or 0


def _identity(schema_text: str) -> str:
    try:
        return json.dumps(json.loads(schema_text), sort_keys=True)
    except (ValueError, RecursionError):
        return schema_text
