"""The words for a registry's refusals, the same for the HTTP client and the one in memory."""

from __future__ import annotations

from collections.abc import Sequence

from tidesink.errors import IncompatibleSchemaError, SchemaNotFoundError
from tidesink.schema_registry.compatibility import Incompatibility

_SHOWN = 5


def unknown_id(schema_id: int, url: str) -> SchemaNotFoundError:
    """No schema has this id."""
    return SchemaNotFoundError(
        "no such schema id: is this the registry the producer writes to?", url=url, schema_id=schema_id
    )


def unknown_subject(subject: str, url: str) -> SchemaNotFoundError:
    """A subject has no versions."""
    return SchemaNotFoundError(
        "no such subject: has the producer written to its topic yet, and to this registry?",
        url=url,
        subject=subject,
    )


def unknown_version(subject: str, version: int, url: str) -> SchemaNotFoundError:
    """A subject, if it is there, lacks this version."""
    return SchemaNotFoundError(f"no version {version} of this subject", url=url, subject=subject)


def incompatible(
    subject: str, *, level: str | None, found: Sequence[Incompatibility], said: str, url: str
) -> IncompatibleSchemaError:
    """A subject does not take a schema; ``said`` is the registry's own word, cut and cleaned."""
    shown = "; ".join(map(str, found[:_SHOWN])) + ("; …" if len(found) > _SHOWN else "")
    reasons = "; ".join(filter(None, (shown, said and f"the registry says: {said}")))
    return IncompatibleSchemaError(
        f"the schema is refused under {level or 'the'} compatibility: {reasons or 'no reason given'}; "
        "change the table in a way that level allows, or lower the level of the subject",
        url=url,
        subject=subject,
        column=next((item.field for item in found if item.field), None),
    )
