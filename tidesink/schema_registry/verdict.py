"""Whether a subject would take a schema: by our own rules, by a live registry, and field by field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tidesink.errors import SchemaNotFoundError
from tidesink.schema_registry.base import SchemaReader, SchemaRegistry
from tidesink.schema_registry.compatibility import TRANSITIVE, incompatibilities
from tidesink.schema_registry.fields import FieldChange, compared
from tidesink.schema_registry.models import (
    COMPATIBILITY_LEVELS,
    CompatibilityLevel,
    RegisteredSchema,
)

Status = Literal["new subject", "registered", "compatible", "incompatible"]


@dataclass(frozen=True)
class Verdict:
    """What becomes of one schema under one subject.

    ``own``: by our rules. ``live``: by the registry, None where it was not asked. ``messages``: the
    registry's own words. ``held``: where the subject has this very schema already.
    """

    subject: str
    level: CompatibilityLevel
    status: Status
    schema_text: str
    fields: tuple[FieldChange, ...]
    own: bool
    live: bool | None = None
    messages: tuple[str, ...] = ()
    latest: RegisteredSchema | None = None
    held: RegisteredSchema | None = None
    levels: tuple[CompatibilityLevel, ...] = field(default=())

    @property
    def taken(self) -> bool:
        """Whether the registry takes it; its own word counts where it was asked."""
        return self.own if self.live is None else self.live

    @property
    def disagree(self) -> bool:
        """Whether the registry says otherwise than our rules."""
        return self.live is not None and self.live != self.own

    def as_json(self) -> dict[str, Any]:
        """The verdict as a JSON object."""
        return {
            "subject": self.subject,
            "level": self.level,
            "status": self.status,
            "taken": self.taken,
            "offline": self.own,
            "live": self.live,
            "registry_says": list(self.messages),
            "latest": _place(self.latest),
            "held": _place(self.held),
            "levels_that_take_it": list(self.levels),
            "fields": [change.as_json() for change in self.fields],
        }


def verdict(
    registry: SchemaRegistry,
    subject: str,
    schema_text: str,
    *,
    level: CompatibilityLevel | None = None,
    live: bool = False,
) -> Verdict:
    """Judge a schema against what a registry holds.

    ``level`` stands in for the subject's own; ``live`` also asks the registry, which judges by its own level.

    Raises:
        RegistryError: the registry does not answer, or the text is no Avro schema.
    """
    history = history_of(registry, subject)
    ruling = level or registry.compatibility_level(subject)
    held = registry.lookup(subject, schema_text) if history else None
    texts = [item.schema_text for item in history]
    found = () if held else incompatibilities(ruling, schema_text, texts)
    asked = registry.check_compatibility(subject, schema_text) if live and history and not held else None
    latest = history[-1] if history else None
    own = not found
    live_word = asked.compatible if asked else (own if live else None)
    return Verdict(
        subject=subject,
        level=ruling,
        status=_status(bool(history), held is not None, own if live_word is None else live_word),
        schema_text=schema_text,
        fields=compared(latest.schema_text if latest else None, schema_text, found),
        own=own,
        live=live_word,
        # Where a registry does not say why (Apicurio), the client says what our own rules found.
        messages=tuple(text for text in (asked.messages if asked else ()) if text not in map(str, found)),
        latest=latest,
        held=held,
        levels=levels_that_take(schema_text, texts),
    )


def history_of(registry: SchemaReader, subject: str) -> tuple[RegisteredSchema, ...]:
    """Every version of a subject, oldest first; empty where there is no such subject."""
    try:
        versions = registry.versions(subject)
    except SchemaNotFoundError:
        return ()
    return tuple(registry.schema_by_version(subject, version) for version in versions)


def levels_that_take(new_text: str, old_texts: Sequence[str]) -> tuple[CompatibilityLevel, ...]:
    """The levels under which a schema may follow these, by our rules."""
    taking = []
    for level in COMPATIBILITY_LEVELS:
        compared_with = old_texts if level.endswith(TRANSITIVE) else old_texts[-1:]
        if not incompatibilities(level, new_text, compared_with):
            taking.append(level)
    return tuple(taking)


def _status(known: bool, held: bool, taken: bool) -> Status:
    if held:
        return "registered"
    if not taken:
        return "incompatible"
    return "compatible" if known else "new subject"


def _place(schema: RegisteredSchema | None) -> dict[str, int | None] | None:
    return None if schema is None else {"id": schema.id, "version": schema.version}
