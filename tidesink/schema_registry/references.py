"""Resolves references between Avro schemas by inserting each referenced definition at its first use.

Apicurio's converter registers a nested record of an envelope (``source``) as a separate schema and refers to
it (``apicurio.registry.dereference-schema: false``). Confluent's registry has the same form of
``references``, with name, subject and version. Names resolve as in Avro's specification (1.12, "Names"): a
name with a dot is a full name, any other name is in the enclosing namespace. A definition may refer to
itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tidesink.errors import RegistryError, UnusableSchemaError

Json = Any
_PRIMITIVES: Final = frozenset(
    {"null", "boolean", "int", "long", "float", "double", "bytes", "string", "array", "map"}
)
_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
# Maximum number of references of one schema, including indirect references. The depth of nesting is limited
# when schemas are parsed.
_MOST_REFERENCES: Final = 1_000
# The common part of all messages about references.
_FAULT: Final = (
    "This schema has references to other schemas that cannot be resolved: {}. Register the schemas that it "
    "refers to again, or configure the converter to write complete schemas (key.converter. and "
    "value.converter.apicurio.registry.dereference-schema set to true)."
)


class Reference(NamedTuple):
    """A reference from one schema to another."""

    name: str
    subject: str
    version: int

    def __str__(self) -> str:
        return f"{self.name} (subject {self.subject}, version {self.version})"


class ReferringSchema(NamedTuple):
    """A schema as the registry stores it: its text, and its references to other schemas."""

    text: str
    references: tuple[Reference, ...] = ()


def references_of(answer: object) -> tuple[Reference, ...]:
    """Parse the references in a registry's answer.

    Raises:
        UnusableSchemaError: An entry does not have the form of a reference.
    """
    if not answer:
        return ()
    items = answer if isinstance(answer, list) else [None]
    references = []
    for item in items:
        values: tuple[Any, ...] = ()
        if isinstance(item, dict):
            values = tuple(item.get(name) for name in Reference._fields)
        if [type(value) for value in values] != [str, str, int]:
            raise _fault(
                "a reference lacks the name, the subject or the version that Confluent's API requires"
            )
        references.append(Reference(*values))
    return tuple(references)


def written_out(schema: ReferringSchema, look_up: Callable[[Reference], ReferringSchema]) -> str:
    """Returns the text of a schema with its references resolved.

    ``look_up`` reads a referenced schema from the registry.

    Raises:
        UnusableSchemaError: The references form a cycle, are too many or missing, or a name is not defined.
        RegistryError: ``look_up`` failed.
    """
    if not schema.references:
        return schema.text
    definitions: dict[str, Json] = {}
    _collect(schema, look_up, definitions, (), set())
    return json.dumps(_Inlining(definitions).of(_parsed(schema.text, "the schema"), ""), ensure_ascii=False)


def _collect(
    schema: ReferringSchema,
    look_up: Callable[[Reference], ReferringSchema],
    definitions: dict[str, Json],
    path: Sequence[Reference],
    seen: set[tuple[str, int]],
) -> None:
    """Read all referenced schemas, and add their named types to ``definitions`` by full name."""
    for reference in schema.references:
        key = reference.subject, reference.version
        if any(key == (before.subject, before.version) for before in path):
            circle = " -> ".join(str(before) for before in (*path, reference))
            raise _fault(f"the references form a cycle, {circle}")
        if key in seen:
            continue
        seen.add(key)
        if len(seen) > _MOST_REFERENCES:
            raise _fault(f"there are more than {_MOST_REFERENCES} references")
        referred = look_up(reference)
        _collect(referred, look_up, definitions, (*path, reference), seen)
        _define(_parsed(referred.text, str(reference)), "", definitions)


def _parsed(text: str, what: str) -> Json:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        # The text of a primitive type may be stored without quotes.
        if text in _PRIMITIVES:
            return text
        raise UnusableSchemaError(
            f"The schema registry's text of {what} is not JSON: {error!s:.120}"
        ) from error


def _full_name(schema: Mapping[str, Json], namespace: str) -> str:
    name = str(schema.get("name"))
    if "." in name:
        return name
    within = schema.get("namespace", namespace)
    return f"{within}.{name}" if within else name


def _define(schema: Json, namespace: str, definitions: dict[str, Json]) -> None:
    """Add every named type of a schema to ``definitions``, with its namespace made explicit."""
    if isinstance(schema, list):
        for branch in schema:
            _define(branch, namespace, definitions)
    elif isinstance(schema, dict):
        inside = namespace
        if schema.get("type") in _NAMED:
            name = _full_name(schema, namespace)
            inside = name.rpartition(".")[0]
            definitions.setdefault(name, {**schema, "name": name.rpartition(".")[2], "namespace": inside})
        for member in ("items", "values", "type"):
            if isinstance(schema.get(member), dict | list):
                _define(schema[member], inside, definitions)
        for field in schema.get("fields") or ():
            if isinstance(field, dict):
                _define(field.get("type"), inside, definitions)


class _Inlining:
    """Inserts the definition of each referenced type where a schema first uses it.

    Later uses have only the type's full name.
    """

    def __init__(self, definitions: Mapping[str, Json]) -> None:
        self._definitions = definitions
        self._defined: set[str] = set()

    def of(self, schema: Json, namespace: str) -> Json:
        """Returns a schema in which the definitions of referenced types are inserted.

        ``namespace``: the namespace in which the schema is used.
        """
        if isinstance(schema, list):
            return [self.of(branch, namespace) for branch in schema]
        if isinstance(schema, str):
            return self._named(schema, namespace)
        if not isinstance(schema, dict):
            return schema
        kind = schema.get("type")
        if kind in _NAMED:
            return self._definition(schema, namespace)
        inlined = dict(schema)
        if isinstance(kind, dict | list) or (isinstance(kind, str) and kind not in _PRIMITIVES):
            inlined["type"] = self.of(kind, namespace)
        if isinstance(kind, str) and isinstance(inlined["type"], dict):
            # The definition replaces the name of its type. Attributes such as connect.default are kept.
            return inlined["type"] | {name: value for name, value in schema.items() if name != "type"}
        for member in ("items", "values"):
            if member in inlined:
                inlined[member] = self.of(inlined[member], namespace)
        return inlined

    def _definition(self, schema: dict[str, Json], namespace: str) -> Json:
        name = _full_name(schema, namespace)
        if name in self._defined:
            return name
        self._defined.add(name)
        if schema.get("type") not in {"record", "error"}:
            return schema
        inside = name.rpartition(".")[0]
        fields = [
            {**field, "type": self.of(field.get("type"), inside)} if isinstance(field, dict) else field
            for field in schema.get("fields") or ()
        ]
        return {**schema, "fields": fields}

    def _named(self, name: str, namespace: str) -> Json:
        if name in _PRIMITIVES:
            return name
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        # A name without a dot may also have no namespace, because older libraries wrote such names inside
        # namespaces.
        for candidate in (full, name):
            if candidate in self._defined:
                return candidate
            if candidate in self._definitions:
                return self._definition(self._definitions[candidate], "")
        raise _fault(f"the schema uses the type {name}, which neither it nor a referenced schema defines")


def missing(reference: Reference, error: RegistryError) -> UnusableSchemaError:
    """Returns the error for a referenced schema that the registry does not have."""
    return _fault(f"the registry does not have {reference} ({error.message})")


def _fault(what: str) -> UnusableSchemaError:
    return UnusableSchemaError(_FAULT.format(what))
