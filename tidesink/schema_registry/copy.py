"""Copying a registry: what it holds, that content as a file, and a file into another registry.

A file is JSON Lines, one version per line, sorted by subject and version: ``{"id", "schema", "subject",
"version", "level"}``. ``schema`` is the text as registered, ``level`` the one in force for the subject.

An import registers every version in order, under its own id where the registry can. Confluent's registry
takes ids and version numbers while a subject is in IMPORT mode. Apicurio's takes neither (3.0 has no modes,
3.3 ignores the id), so the ids are compared afterwards and differences are reported.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, NamedTuple, Protocol, runtime_checkable

from tidesink.errors import (
    IncompatibleSchemaError,
    RegistryError,
    RegistryUnavailableError,
    SchemaNotFoundError,
)
from tidesink.schema_registry.base import CompatibilityLevel, RegisteredSchema, SchemaRegistry, require_level
from tidesink.schema_registry.compatibility import history_of
from tidesink.schema_registry.memory import MemorySchemaRegistry

# Apicurio 3 lists this many subjects and no more, unless apicurio.ccompat.max-subjects says otherwise.
APICURIO_LISTS: Final = 1000
CUT_LIST: Final = (
    f"the registry lists exactly {APICURIO_LISTS} subjects, where Apicurio cuts its list: there may be more. "
    "Name the subjects (without a *), or raise apicurio.ccompat.max-subjects"
)
_AT_ONCE: Final = 8


@dataclass(frozen=True)
class SubjectEntry:
    """One subject: its versions, oldest first, and the level that holds for it.

    ``problem``: why its schemas are none of ours (Protobuf, JSON Schema, references).
    """

    subject: str
    level: CompatibilityLevel
    versions: tuple[RegisteredSchema, ...]
    problem: str = ""


def chosen_subjects(registry: SchemaRegistry, patterns: Sequence[str] = ()) -> tuple[list[str], bool]:
    """The subjects that a pattern fits (``shop_*``), sorted, and whether the registry's list may be cut.

    Names without a wildcard are not looked up in the list.

    Raises:
        SchemaNotFoundError: a name or a pattern fits no subject.
    """
    exact = {name for name in patterns if not _is_pattern(name)}
    globs = [name for name in patterns if _is_pattern(name)]
    if exact and not globs:
        for name in sorted(exact):
            registry.versions(name)
        return sorted(exact), False
    listed = registry.subjects()
    found = {name for name in listed if not patterns or any(fnmatchcase(name, glob) for glob in globs)}
    cut = len(listed) == APICURIO_LISTS
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name in listed):
            hint = CUT_LIST if cut else "tidesink registry list shows all of them"
            raise SchemaNotFoundError(f"no subject fits {glob!r}: {hint}")
    return sorted(found | exact), cut


def _is_pattern(name: str) -> bool:
    return any(char in name for char in "*?[")


def read_catalog(registry: SchemaRegistry, subjects: Iterable[str]) -> Iterator[SubjectEntry]:
    """The entries of these subjects, in order.

    Raises:
        RegistryUnavailableError: the registry does not answer.
    """

    def entry(subject: str) -> SubjectEntry:
        level = registry.compatibility_level(subject)
        try:
            return SubjectEntry(subject, level, history_of(registry, subject))
        except RegistryUnavailableError:
            raise
        except RegistryError as error:
            return SubjectEntry(subject, level, (), error.message)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield from pool.map(entry, subjects)


def export_lines(entries: Iterable[SubjectEntry]) -> Iterator[dict[str, Any]]:
    """The lines of a file, in the order of the entries."""
    for entry in entries:
        for item in entry.versions:
            yield {
                "id": item.id,
                "schema": item.schema_text,
                "subject": item.subject,
                "version": item.version,
                "level": entry.level,
            }


def entries_of(lines: Iterable[tuple[int, dict[str, Any]]], *, name: str) -> tuple[SubjectEntry, ...]:
    """The entries that a file's numbered lines say, subjects sorted; lines without a subject are passed over.

    Raises:
        RegistryError: a line is none of an export, or two lines contradict each other.
    """
    versions: dict[str, dict[int, RegisteredSchema]] = {}
    levels: dict[str, CompatibilityLevel] = {}
    for number, line in lines:
        if "subject" not in line:
            continue
        item = _registered(line, f"{name}, line {number}")
        level = require_level(str(line.get("level", "NONE")))
        subject, version = str(item.subject), int(item.version or 0)
        known = versions.setdefault(subject, {}).setdefault(version, item)
        if known != item or levels.setdefault(subject, level) != level:
            raise RegistryError(
                f"{name}, line {number} contradicts an earlier one: keep one", subject=subject
            )
    return tuple(
        SubjectEntry(subject, levels[subject], tuple(by_version[one] for one in sorted(by_version)))
        for subject, by_version in sorted(versions.items())
    )


def _registered(line: dict[str, Any], place: str) -> RegisteredSchema:
    schema_id, subject, version, schema = (line.get(k) for k in ("id", "subject", "version", "schema"))
    sound = isinstance(schema_id, int) and isinstance(subject, str) and isinstance(version, int)
    if not sound or not isinstance(schema, str | dict | list) or int(str(version)) < 1:
        raise RegistryError(
            f"{place} is none of an export: it needs id, schema, subject and version, as "
            "tidesink registry export writes them"
        )
    text = (
        schema if isinstance(schema, str) else json.dumps(schema, separators=(",", ":"), ensure_ascii=False)
    )
    return RegisteredSchema(int(str(schema_id)), text, str(subject), int(str(version)))


def memory_registry(entries: Iterable[SubjectEntry], *, name: str) -> MemorySchemaRegistry:
    """A registry in memory that holds these entries, levels and numbers and all."""
    registry = MemorySchemaRegistry(url=name)
    for entry in entries:
        registry.set_compatibility_level(entry.level, subject=entry.subject)
        for item in entry.versions:
            registry.put(item)
    return registry


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

    Versions are registered in the order of their ids, so that a new registry numbers them the same; a
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
