"""A schema field by field, and two schemas side by side.

A field inside a record is named by its path (``_ticdc_before.id``). Type and parameters are told in a few
words, with TiCDC's own ``connect.parameters`` (tiflow c7b2588), which no registry compares.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from tidesink.errors import RegistryError
from tidesink.schema_registry.compatibility import Incompatibility, type_text

Node = Any
Change = Literal["same", "added", "removed", "changed"]

_PARAMETERS: Final = "connect.parameters"
# What a schema of another shape than a record is called: it has no field to be named by.
ROOT: Final = "(schema)"
_DEEPEST: Final = 32
_SCALE: Final = re.compile(r"decimal\(\d+,(\d+)\)")


@dataclass(frozen=True)
class SchemaField:
    """One field: its Avro type in words, TiCDC's parameters, its default as JSON (None: it has none)."""

    path: str
    type: str
    parameters: Mapping[str, str]
    default: str | None

    @property
    def source_type(self) -> str:
        """The SQL type as the parameters tell it: ``DECIMAL``, ``ENUM(a,b)``."""
        rest = [value for name, value in sorted(self.parameters.items()) if name != "tidb_type"]
        name = self.parameters.get("tidb_type", "")
        return f"{name}({', '.join(rest)})" if rest else name

    @property
    def typed(self) -> str:
        """Avro type and SQL type: ``null | string (ENUM(a,b))``."""
        return f"{self.type} ({self.source_type})" if self.source_type else self.type

    @property
    def words(self) -> str:
        """Type, SQL type and default in one line."""
        return self.typed if self.default is None else f"{self.typed} default {self.default}"


class FieldChange(NamedTuple):
    """A field of two schemas; ``problem`` is why a registry refuses the new schema, ``note`` a warning."""

    path: str
    change: Change
    old: SchemaField | None
    new: SchemaField | None
    problem: str = ""
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """The change as a JSON object."""
        return {
            "field": self.path,
            "change": self.change,
            "old": None if self.old is None else self.old.words,
            "new": None if self.new is None else self.new.words,
            "problem": self.problem or None,
            "note": self.note or None,
        }


def schema_fields(schema_text: str) -> tuple[SchemaField, ...]:
    """Every field of a schema in order, those of records inside behind the field that holds them.

    Raises:
        RegistryError: the text is no JSON, or no schema.
    """
    try:
        return tuple(_fields(json.loads(schema_text), ""))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RegistryError(f"this is not an Avro schema ({type(error).__name__}: {error})") from error


def compared(
    old_text: str | None, new_text: str, found: Sequence[Incompatibility] = ()
) -> tuple[FieldChange, ...]:
    """Two schemas field by field, in the new one's order, removed fields last.

    ``found``: what speaks against the new schema; each stands at its field, or at a row of its own.

    Raises:
        RegistryError: one text is no schema.
    """
    new = {field.path: field for field in schema_fields(new_text)}
    old = new if old_text is None else {field.path: field for field in schema_fields(old_text)}
    heads = (None, None) if old_text is None else (_head(old_text), _head(new_text))
    rows = [] if heads[0] == heads[1] else [FieldChange(ROOT, "changed", *heads)]
    rows += [_row(path, old.get(path), new.get(path)) for path in dict.fromkeys([*new, *old])]
    return tuple(_with_problems(rows, found))


def _row(path: str, old: SchemaField | None, new: SchemaField | None) -> FieldChange:
    if old is None or new is None:
        return FieldChange(path, "added" if old is None else "removed", old, new)
    return FieldChange(path, "same" if old == new else "changed", old, new, note=_note(old, new))


def _note(old: SchemaField, new: SchemaField) -> str:
    if _SCALE.findall(old.type) and _SCALE.findall(new.type) not in ([], _SCALE.findall(old.type)):
        return "registries do not compare scales: who reads with the other schema gets wrong numbers"
    if old.type == new.type and old.parameters != new.parameters:
        return "registries do not compare the parameters"
    return ""


def _with_problems(rows: list[FieldChange], found: Sequence[Incompatibility]) -> Iterator[FieldChange]:
    problems: dict[str, list[str]] = {}
    for item in found:
        problems.setdefault(item.field or ROOT, []).append(item.problem)
    for row in rows:
        yield row._replace(problem="; ".join(problems.pop(row.path, ())))
    for path, texts in problems.items():
        yield FieldChange(path, "changed", None, None, problem="; ".join(texts))


def _head(schema_text: str) -> SchemaField:
    """The record itself: its name, which a rename of the table changes, and its aliases."""
    node = json.loads(schema_text)
    if not isinstance(node, dict):
        return SchemaField(ROOT, type_text(node), {}, None)
    name = ".".join(filter(None, (node.get("namespace"), str(node.get("name", "")))))
    aliases = f", once {', '.join(map(str, node['aliases']))}" if node.get("aliases") else ""
    return SchemaField(ROOT, f"{node['type']} {name}{aliases}".rstrip(), {}, None)


def _fields(node: Node, path: str) -> Iterator[SchemaField]:
    if path.count(".") > _DEEPEST:
        return
    for record in _records(node):
        for field in record["fields"]:
            inside = f"{path}.{field['name']}" if path else str(field["name"])
            default = json.dumps(field["default"], ensure_ascii=False) if "default" in field else None
            yield SchemaField(inside, _type(field["type"]), _parameters(field["type"]), default)
            yield from _fields(field["type"], inside)


def _records(node: Node) -> Iterator[Node]:
    """The records that are read where this type stands: itself, in a union, an array or a map."""
    if isinstance(node, list):
        for branch in node:
            yield from _records(branch)
    elif isinstance(node, dict):
        kind = node["type"]
        if kind in ("record", "error"):
            yield node
        elif isinstance(kind, dict | list):
            yield from _records(kind)
        elif kind in ("array", "map"):
            yield from _records(node["items" if kind == "array" else "values"])


def _type(node: Node) -> str:
    if isinstance(node, list):
        return " | ".join(map(_type, node))
    if isinstance(node, dict) and isinstance(node["type"], dict | list):
        return _type(node["type"])
    return type_text(node)


def _parameters(node: Node) -> dict[str, str]:
    if isinstance(node, list):
        return {name: text for branch in node for name, text in _parameters(branch).items()}
    if not isinstance(node, dict):
        return {}
    inner = node["type"]
    below = _parameters(inner) if isinstance(inner, dict | list) else {}
    return {**below, **{str(name): str(text) for name, text in (node.get(_PARAMETERS) or {}).items()}}
