"""Copying subjects into a registry: every version in order, under its own id where the registry can.

Confluent's registry takes ids and version numbers while a subject is in IMPORT mode. Apicurio's takes
neither (3.0 has no modes, 3.3 ignores the id), so the ids are compared afterwards and told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from tidesink.errors import IncompatibleSchemaError
from tidesink.schema_registry.base import SchemaRegistry
from tidesink.schema_registry.catalog import SubjectEntry
from tidesink.schema_registry.models import CompatibilityLevel, RegisteredSchema
from tidesink.schema_registry.verdict import history_of

What = Literal["kept", "register", "set level"]


@runtime_checkable
class ImportingRegistry(Protocol):
    """What a registry needs to take ids and versions as they are."""

    def begin_import(self, subject: str) -> bool:
        """Put a subject without versions in IMPORT mode; False where the registry has no modes."""

    def import_version(self, schema: RegisteredSchema) -> int:
        """Register a schema under its own id and version; the id that it got."""

    def end_import(self, subject: str) -> None:
        """Back to what the mode was."""


class Step(NamedTuple):
    """One thing to do, or that needs no doing; ``version`` is None where it is about the level."""

    what: What
    subject: str
    version: int | None
    wanted_id: int | None
    id: int | None = None
    level: CompatibilityLevel | None = None

    @property
    def id_differs(self) -> bool:
        """Whether the schema has another id than where it came from."""
        return self.id is not None and self.id != self.wanted_id


def import_steps(registry: SchemaRegistry, entries: Sequence[SubjectEntry]) -> tuple[Step, ...]:
    """What an import would do. Doing it twice does nothing the second time."""
    return tuple(step for entry in entries for step in _steps(registry, entry))


def _steps(registry: SchemaRegistry, entry: SubjectEntry) -> Iterator[Step]:
    held = {item.schema_text: item.id for item in history_of(registry, entry.subject)}
    for item in entry.versions:
        known = held.get(item.schema_text)
        if known is None and held:
            found = registry.lookup(entry.subject, item.schema_text)  # a text that differs in white space
            known = None if found is None else found.id
        what: What = "register" if known is None else "kept"
        yield Step(what, entry.subject, item.version, item.id, known)
    if registry.compatibility_level(entry.subject) != entry.level:
        yield Step("set level", entry.subject, None, None, level=entry.level)


def run_import(
    registry: SchemaRegistry, entries: Sequence[SubjectEntry], steps: Sequence[Step], *, new_ids: bool = False
) -> Iterator[Step]:
    """Do the steps; each is given back with the id that the schema got.

    Versions are registered in the order of their ids, so that a new registry numbers them alike; a
    subject's own keep their order. Levels come last. ``new_ids``: do not ask for the old ids.

    Raises:
        RegistryError: the registry refuses or does not answer; what was done stays, and a second run goes on.
    """
    items = {(item.subject, item.version): item for entry in entries for item in entry.versions}
    fresh = {step.subject for step in steps} - {step.subject for step in steps if step.what == "kept"}
    importing: list[str] = []
    try:
        if isinstance(registry, ImportingRegistry) and not new_ids:
            absent = sorted(fresh & {step.subject for step in steps if step.what == "register"})
            importing += (subject for subject in absent if registry.begin_import(subject))
        for step in _in_order(steps):
            item = items.get((step.subject, step.version))
            if step.what == "register" and item is not None:
                yield step._replace(id=_register(registry, item, imports=step.subject in importing))
            elif step.what == "kept":
                yield step
    finally:
        for subject in importing:
            _as_importing(registry).end_import(subject)
    for step in steps:
        if step.level is not None:
            registry.set_compatibility_level(step.level, subject=step.subject)
            yield step


def _in_order(steps: Sequence[Step]) -> list[Step]:
    """By id, but no version before the one in front of it in its subject."""
    latest: dict[str, int] = {}
    ranked = []
    for step in steps:
        if step.version is not None:
            latest[step.subject] = max(latest.get(step.subject, 0), step.wanted_id or 0)
            ranked.append((latest[step.subject], step.subject, step.version, step))
    return [entry[-1] for entry in sorted(ranked, key=lambda entry: entry[:3])]


def _as_importing(registry: SchemaRegistry) -> ImportingRegistry:
    assert isinstance(registry, ImportingRegistry)  # noqa: S101  # only such ones have begun
    return registry


def _register(registry: SchemaRegistry, item: RegisteredSchema, *, imports: bool) -> int:
    if imports:
        return _as_importing(registry).import_version(item)
    subject = str(item.subject)
    try:
        return registry.register(subject, item.schema_text)
    except IncompatibleSchemaError:
        # A history may hold what today's level forbids: it was allowed when it was written.
        level = registry.compatibility_level(subject)
        registry.set_compatibility_level("NONE", subject=subject)
        try:
            return registry.register(subject, item.schema_text)
        finally:
            registry.set_compatibility_level(level, subject=subject)
