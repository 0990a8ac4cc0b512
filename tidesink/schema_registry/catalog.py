"""What a whole registry holds, and its form in a file.

A file is JSON Lines, one version a line, sorted by subject and version: ``{"id", "schema", "subject",
"version", "level"}``. ``schema`` is the text as registered, ``level`` the one that holds for the subject.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from tidesink.errors import RegistryError, RegistryUnavailableError, SchemaNotFoundError
from tidesink.schema_registry.base import SchemaRegistry
from tidesink.schema_registry.memory import MemorySchemaRegistry
from tidesink.schema_registry.models import CompatibilityLevel, RegisteredSchema, require_level
from tidesink.schema_registry.verdict import history_of

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
