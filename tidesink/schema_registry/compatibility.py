"""Checks if an Avro schema may become the next version of a subject, and names the fields that prevent it.

The rules are Avro's schema resolution (specification 1.11), as implemented by the Java library that
Confluent's and Apicurio's registries use. Names are compared without their namespace, and logical types are
not compared. Registries describe refusals differently or not at all. This module's descriptions name the
field, and are the same for the HTTP client and the in-memory registry.

This module also compares two schemas field by field. A field of a nested record has its path as its name
(``_ticdc_before.id``). Types are described in a few words, with TiCDC's ``connect.parameters`` (tiflow
c7b2588), which no registry compares. ``verdict`` decides if a subject would accept a schema, by these rules
and optionally by asking the registry.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any, Final, Literal, NamedTuple

from fastavro.schema import SchemaParseException, UnknownType, parse_schema

from tidesink.errors import IncompatibleSchemaError, RegistryError, SchemaNotFoundError
from tidesink.schema_registry.base import (
    COMPATIBILITY_LEVELS,
    CompatibilityLevel,
    RegisteredSchema,
    SchemaReader,
    SchemaRegistry,
)

Node = Any  # an Avro schema as JSON: a name, a union (list) or an object
_HAS_DEFAULT = "tidesink.has-default"
TRANSITIVE = "_TRANSITIVE"

# Requirements of each level: the new schema reads data of the old schema, the old schema reads new data, or
# both.
_DIRECTIONS: dict[str, tuple[Literal["reads old", "is read by old"], ...]] = {
    "NONE": (),
    "BACKWARD": ("reads old",),
    "FORWARD": ("is read by old",),
    "FULL": ("reads old", "is read by old"),
}
_PROMOTIONS: dict[str, frozenset[str]] = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}


@dataclass(frozen=True)
class Incompatibility:
    """One reason why a schema is not compatible with an earlier version of its subject.

    ``field``: the field's dotted path; empty for the schema itself.
    """

    field: str
    problem: str

    def __str__(self) -> str:
        return f"field {self.field!r} {self.problem}" if self.field else f"the record {self.problem}"


class AvroSchema(NamedTuple):
    """A parsed Avro schema with full names, and the definitions of its named types."""

    root: Node
    names: dict[str, Node]


def parse_avro(schema_text: str) -> AvroSchema:
    """Parse an Avro schema without checking its default values.

    Some defaults in TiCDC's schemas are invalid: base64 texts, and integers for fields of type double.

    Raises:
        RegistryError: The text is not an Avro schema.
    """
    names: dict[str, Node] = {}
    try:
        root = parse_schema(_marked(json.loads(schema_text)), named_schemas=names)
    except (SchemaParseException, UnknownType, KeyError, TypeError, ValueError, AttributeError) as exc:
        raise RegistryError(f"The text is not an Avro schema ({type(exc).__name__}: {exc}).") from exc
    return AvroSchema(root, names)


def incompatibilities(
    level: CompatibilityLevel, new_text: str, old_texts: Sequence[str]
) -> tuple[Incompatibility, ...]:
    """Returns the reasons why a compatibility level does not allow a schema as the next version of a subject.

    ``old_texts``: the subject's versions, oldest first.

    Raises:
        RegistryError: One of the texts is not an Avro schema.
    """
    directions = _DIRECTIONS[level.removesuffix(TRANSITIVE)]
    compared = old_texts if level.endswith(TRANSITIVE) else old_texts[-1:]
    new = parse_avro(new_text)
    problems: dict[Incompatibility, None] = {}
    for old in map(parse_avro, compared):
        for direction in directions:
            reader, writer = (new, old) if direction == "reads old" else (old, new)
            resolution = _Resolution(reader.names, writer.names, new_reads=direction == "reads old")
            problems.update(dict.fromkeys(resolution.problems(reader.root, writer.root, "")))
    return tuple(problems)


def _marked(node: Node) -> Node:
    """Returns the schema with a mark in place of every default, so that the parser does not check default
    values.
    """
    if isinstance(node, list):
        return [_marked(item) for item in node]
    if not isinstance(node, dict):
        return node
    marked = {k: _marked(v) if k in {"type", "items", "values", "fields"} else v for k, v in node.items()}
    if marked.get("type") in ("record", "error") and "fields" not in marked:
        raise KeyError("fields")  # fastavro would accept it as a record without fields
    if "default" in marked:
        del marked["default"]
        marked[_HAS_DEFAULT] = True
    return marked


class _Resolution:
    """Compares two schemas in one direction: can ``reader`` read data that was written with ``writer``?"""

    def __init__(self, reader: dict[str, Node], writer: dict[str, Node], *, new_reads: bool) -> None:
        self._reader = reader
        self._writer = writer
        self._new_reads = new_reads
        self._open: set[tuple[str, str]] = set()

    def problems(self, reader: Node, writer: Node, path: str) -> Iterator[Incompatibility]:
        """Yields the reasons why ``reader`` cannot read ``writer``'s data, with the path of each field."""
        reader, writer = self._reader_node(reader), self._writer_node(writer)
        if isinstance(writer, list):
            for branch in writer:
                if not self._reads(reader, branch):
                    yield from self._in_branch(reader, branch, writer, path)
                    return
        elif isinstance(reader, list):
            if not any(self._reads(branch, writer) for branch in reader):
                yield from self._in_branch(reader, writer, writer, path)
        else:
            yield from self._plain(reader, writer, path)

    def _in_branch(self, reader: Node, branch: Node, writer: Node, path: str) -> Iterator[Incompatibility]:
        """Yields the reasons why ``reader`` cannot read ``branch``, which is ``writer`` or one type of its
        union.

        If both sides have a record of the same name, the reasons name its nested fields. Otherwise the only
        reason is that the type changed.
        """
        branch = self._writer_node(branch)
        options = reader if isinstance(reader, list) else [reader]
        records = [node for node in map(self._reader_node, options) if _kind(node) == "record"]
        same = [node for node in records if _kind(branch) == "record" and _same_name(node, branch)]
        if same:
            yield from self._plain(same[0], branch, path)
        else:
            yield self._changed(reader, writer, path)

    def _plain(self, reader: Node, writer: Node, path: str) -> Iterator[Incompatibility]:
        kind = _kind(reader)
        if kind != _kind(writer):
            if kind not in _PROMOTIONS.get(_kind(writer), ()):
                yield self._changed(reader, writer, path)
        elif kind == "record":
            yield from self._record(reader, writer, path)
        elif kind in {"array", "map"}:
            inner = "items" if kind == "array" else "values"
            yield from self.problems(reader[inner], writer[inner], path)
        elif not _same_values(kind, reader, writer):
            yield self._changed(reader, writer, path)

    def _record(self, reader: Node, writer: Node, path: str) -> Iterator[Incompatibility]:
        pair = (reader["name"], writer["name"])
        if pair in self._open:
            return  # a recursive record: an enclosing call already compares this pair
        self._open.add(pair)
        if not _same_name(reader, writer):
            yield self._worded(path, "was renamed", _short(reader), _short(writer))
        written = {field["name"]: field for field in writer["fields"]}
        for field in reader["fields"]:
            inside = f"{path}.{field['name']}" if path else field["name"]
            sources = [written[name] for name in _field_names(field) if name in written]
            if len(sources) > 1:
                yield Incompatibility(inside, self._ambiguity(sources))
            elif sources:
                yield from self.problems(field["type"], sources[0]["type"], inside)
            elif _HAS_DEFAULT not in field:
                yield Incompatibility(inside, self._absence())
        self._open.discard(pair)

    def _absence(self) -> str:
        return "was added without a default" if self._new_reads else "was removed and had no default"

    def _ambiguity(self, sources: Sequence[Node]) -> str:
        # The Java library fails here, so a registry responds with 422 and refuses such a schema.
        names = " and ".join(repr(source["name"]) for source in sources)
        return f"matches {names} of the {'old' if self._new_reads else 'new'} schema by its aliases"

    def _changed(self, reader: Node, writer: Node, path: str) -> Incompatibility:
        return self._worded(path, "changed", type_text(reader), type_text(writer))

    def _worded(self, path: str, verb: str, reader: str, writer: str) -> Incompatibility:
        old, new = (writer, reader) if self._new_reads else (reader, writer)
        return Incompatibility(path, f"{verb} from {old} to {new}")

    def _reads(self, reader: Node, writer: Node) -> bool:
        # The generator must run to its end. Otherwise its pair of records would stay in ``_open``.
        return not list(self.problems(reader, writer, ""))

    def _reader_node(self, node: Node) -> Node:
        return self._reader.get(node, node) if isinstance(node, str) else node

    def _writer_node(self, node: Node) -> Node:
        return self._writer.get(node, node) if isinstance(node, str) else node


def type_text(node: Node) -> str:
    """Returns a short description of an Avro type: ``null | decimal(10,2)``, ``record t``."""
    if isinstance(node, str):
        return node
    if isinstance(node, list):
        return " | ".join(map(type_text, node))
    if isinstance(node["type"], dict | list):
        return type_text(node["type"])
    kind = _kind(node)
    texts = {
        "record": lambda: f"record {_short(node)}",
        "enum": lambda: f"enum({', '.join(node['symbols'])})",
        "fixed": lambda: f"fixed({node['size']})",
        "array": lambda: f"array of {type_text(node['items'])}",
        "map": lambda: f"map of {type_text(node['values'])}",
    }
    if node.get("logicalType") == "decimal":
        return f"decimal({node.get('precision')},{node.get('scale', 0)})"
    return texts[kind]() if kind in texts else kind


def _kind(node: Node) -> str:
    kind = node if isinstance(node, str) else node["type"]
    return "record" if kind == "error" else str(kind)


def _short(node: Node) -> str:
    return str(node["name"]).rpartition(".")[2]


def _same_name(reader: Node, writer: Node) -> bool:
    if _short(reader) == _short(writer):
        return True
    namespace = reader["name"].rpartition(".")[0]
    aliases = reader.get("aliases", ())
    return writer["name"] in {a if "." in a or not namespace else f"{namespace}.{a}" for a in aliases}


def _field_names(field: Node) -> tuple[str, ...]:
    return tuple(dict.fromkeys((field["name"], *field.get("aliases", ()))))


def _same_values(kind: str, reader: Node, writer: Node) -> bool:
    if kind == "enum":
        removed = set(writer["symbols"]) - set(reader["symbols"])
        return _same_name(reader, writer) and (not removed or _HAS_DEFAULT in reader)
    if kind == "fixed":
        return _same_name(reader, writer) and bool(reader["size"] == writer["size"])
    return True


Change = Literal["same", "added", "removed", "changed"]

_PARAMETERS: Final = "connect.parameters"
# The path of a schema that is not a record and so has no fields.
ROOT: Final = "(schema)"
_DEEPEST: Final = 32
_SCALE: Final = re.compile(r"decimal\(\d+,(\d+)\)")


@dataclass(frozen=True)
class SchemaField:
    """One field of a schema.

    Attributes:
        path: Dotted path of the field.
        type: Description of its Avro type.
        parameters: TiCDC's ``connect.parameters``.
        default: The default as JSON; None: no default.
    """

    path: str
    type: str
    parameters: Mapping[str, str]
    default: str | None

    @property
    def source_type(self) -> str:
        """The column's SQL type from TiCDC's ``connect.parameters``, for example ``DECIMAL(10, 2)``.

        Empty if the field has no such parameters.
        """
        rest = [value for name, value in sorted(self.parameters.items()) if name != "tidb_type"]
        name = self.parameters.get("tidb_type", "")
        return f"{name}({', '.join(rest)})" if rest else name

    @property
    def typed(self) -> str:
        """Avro type and SQL type, for example ``null | string (ENUM(a,b))``."""
        return f"{self.type} ({self.source_type})" if self.source_type else self.type

    @property
    def words(self) -> str:
        """Avro type, SQL type and default in one line."""
        return self.typed if self.default is None else f"{self.typed} default {self.default}"


class FieldChange(NamedTuple):
    """The difference of one field between two schemas.

    Attributes:
        old: The field in the old schema, or None.
        new: The field in the new schema, or None.
        problem: Reason why a registry refuses the new schema; empty if it accepts this field.
        note: Warning about a difference that registries do not notice; empty if there is no such difference.
    """

    path: str
    change: Change
    old: SchemaField | None
    new: SchemaField | None
    problem: str = ""
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """Returns the change as a JSON object."""
        return {
            "field": self.path,
            "change": self.change,
            "old": None if self.old is None else self.old.words,
            "new": None if self.new is None else self.new.words,
            "problem": self.problem or None,
            "note": self.note or None,
        }


def schema_fields(schema_text: str) -> tuple[SchemaField, ...]:
    """Returns all fields of a schema in order. The fields of a nested record follow the field that has the
    record.

    Raises:
        RegistryError: The text is not JSON, or not a schema.
    """
    try:
        return tuple(_fields(json.loads(schema_text), ""))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RegistryError(f"The text is not an Avro schema ({type(error).__name__}: {error}).") from error


def compared(
    old_text: str | None, new_text: str, found: Sequence[Incompatibility] = ()
) -> tuple[FieldChange, ...]:
    """Compare two schemas field by field.

    Returns the fields in the new schema's order, then the removed fields. ``found``: reasons why the new
    schema is incompatible. Each reason is added to the field that it names, or becomes an entry of its own if
    neither schema has that field.

    Raises:
        RegistryError: One of the texts is not a schema.
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
        return (
            "registries do not compare the scales of decimals, so readers that use the other schema get "
            "wrong numbers"
        )
    if old.type == new.type and old.parameters != new.parameters:
        return "registries do not compare connect.parameters"
    return ""


def _with_problems(rows: list[FieldChange], reasons: Sequence[Incompatibility]) -> Iterator[FieldChange]:
    problems: dict[str, list[str]] = {}
    for item in reasons:
        problems.setdefault(item.field or ROOT, []).append(item.problem)
    for row in rows:
        yield row._replace(problem="; ".join(problems.pop(row.path, ())))
    for path, texts in problems.items():
        yield FieldChange(path, "changed", None, None, problem="; ".join(texts))


def _head(schema_text: str) -> SchemaField:
    """Describes the record itself as a field, whose type shows the record's name and its aliases.

    So a renamed table, whose record has another name, is shown as a changed field.
    """
    node = json.loads(schema_text)
    if not isinstance(node, dict):
        return SchemaField(ROOT, type_text(node), {}, None)
    name = ".".join(filter(None, (node.get("namespace"), str(node.get("name", "")))))
    aliases = f", formerly {', '.join(map(str, node['aliases']))}" if node.get("aliases") else ""
    return SchemaField(ROOT, f"{node['type']} {name}{aliases}".rstrip(), {}, None)


def _fields(node: Node, path: str) -> Iterator[SchemaField]:
    if path.count(".") > _DEEPEST:
        return
    for record in _records(node):
        for field in record["fields"]:
            inside = f"{path}.{field['name']}" if path else str(field["name"])
            default = json.dumps(field["default"], ensure_ascii=False) if "default" in field else None
            yield SchemaField(inside, type_text(field["type"]), _parameters(field["type"]), default)
            yield from _fields(field["type"], inside)


def _records(node: Node) -> Iterator[Node]:
    """Yields the records of a type: the type itself, or the records in a union, an array or a map."""
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


def _parameters(node: Node) -> dict[str, str]:
    if isinstance(node, list):
        return {name: text for branch in node for name, text in _parameters(branch).items()}
    if not isinstance(node, dict):
        return {}
    inner = node["type"]
    below = _parameters(inner) if isinstance(inner, dict | list) else {}
    return {**below, **{str(name): str(text) for name, text in (node.get(_PARAMETERS) or {}).items()}}


_SHOWN = 5


def unknown_id(schema_id: int, url: str) -> SchemaNotFoundError:
    """Returns the error for a schema id that the registry does not have."""
    return SchemaNotFoundError(
        "The registry does not have this schema id. Check that it is the registry that the producer uses.",
        url=url,
        schema_id=schema_id,
    )


def unknown_subject(subject: str, url: str) -> SchemaNotFoundError:
    """Returns the error for a subject that has no versions."""
    return SchemaNotFoundError(
        "The registry does not have this subject. Check that the producer has written to the topic, and "
        "that it uses this registry.",
        url=url,
        subject=subject,
    )


def unknown_version(subject: str, version: int, url: str) -> SchemaNotFoundError:
    """Returns the error for a version that the subject does not have."""
    return SchemaNotFoundError(f"The subject has no version {version}.", url=url, subject=subject)


def incompatible(
    subject: str, *, level: str | None, found: Sequence[Incompatibility], said: str, url: str
) -> IncompatibleSchemaError:
    """Returns the error for a refused schema.

    ``said``: the registry's message, shortened and without secrets.
    """
    shown = "; ".join(map(str, found[:_SHOWN])) + ("; …" if len(found) > _SHOWN else "")
    reasons = "; ".join(filter(None, (shown, said and f"message of the registry: {said}")))
    return IncompatibleSchemaError(
        f"The schema registry refuses the schema under {level or 'the'} compatibility: "
        f"{reasons or 'no reason given'}. Change the table in a way that the compatibility level allows, "
        "or lower the subject's level.",
        url=url,
        subject=subject,
        column=next((item.field for item in found if item.field), None),
    )


Status = Literal["new subject", "registered", "compatible", "incompatible"]


@dataclass(frozen=True)
class Verdict:
    """The decision about whether a subject accepts a schema.

    Attributes:
        level: The compatibility level of the decision.
        fields: Comparison with the subject's latest version.
        own: True if tidesink's rules accept the schema.
        live: True if the registry accepts the schema. None if the registry was not asked.
        messages: The registry's messages.
        latest: The subject's latest version, if it has one.
        held: The subject's version with exactly this schema, if it has one.
        levels: The compatibility levels under which tidesink's rules accept the schema.
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
    levels: tuple[CompatibilityLevel, ...] = dataclass_field(default=())

    @property
    def taken(self) -> bool:
        """True if the schema is accepted: by the registry if it was asked, otherwise by tidesink's rules."""
        return self.own if self.live is None else self.live

    @property
    def disagree(self) -> bool:
        """True if the registry and tidesink's rules decide differently."""
        return self.live is not None and self.live != self.own

    def as_json(self) -> dict[str, Any]:
        """Returns the decision as a JSON object."""
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
    """Check if a subject of a registry accepts a schema.

    ``level`` replaces the subject's compatibility level in tidesink's rules. If ``live`` is True, the
    registry is asked too, which uses the level that it has stored.

    Raises:
        RegistryError: The registry does not answer, or the text is not an Avro schema.
    """
    history = history_of(registry, subject)
    ruling = level or registry.compatibility_level(subject)
    held = registry.lookup(subject, schema_text) if history else None
    texts = [item.schema_text for item in history]
    findings = () if held else incompatibilities(ruling, schema_text, texts)
    asked = registry.check_compatibility(subject, schema_text) if live and history and not held else None
    latest = history[-1] if history else None
    own = not findings
    live_word = asked.compatible if asked else (own if live else None)
    return Verdict(
        subject=subject,
        level=ruling,
        status=_status(bool(history), held is not None, own if live_word is None else live_word),
        schema_text=schema_text,
        fields=compared(latest.schema_text if latest else None, schema_text, findings),
        own=own,
        live=live_word,
        # If a registry reports no reason (Apicurio), the client reports the reasons that tidesink's rules
        # found.
        messages=tuple(text for text in (asked.messages if asked else ()) if text not in map(str, findings)),
        latest=latest,
        held=held,
        levels=levels_that_take(schema_text, texts),
    )


def history_of(registry: SchemaReader, subject: str) -> tuple[RegisteredSchema, ...]:
    """Returns all versions of a subject, oldest first.

    Returns an empty tuple if the subject does not exist.
    """
    try:
        versions = registry.versions(subject)
    except SchemaNotFoundError:
        return ()
    return tuple(registry.schema_by_version(subject, version) for version in versions)


def levels_that_take(new_text: str, old_texts: Sequence[str]) -> tuple[CompatibilityLevel, ...]:
    """Returns the levels under which tidesink's rules allow a schema as a subject's next version."""
    taking = []
    for level in COMPATIBILITY_LEVELS:
        compared_with = old_texts if level.endswith(TRANSITIVE) else old_texts[-1:]
        if not incompatibilities(level, new_text, compared_with):
            taking.append(level)
    return tuple(taking)


def _status(has_history: bool, held: bool, taken: bool) -> Status:
    if held:
        return "registered"
    if not taken:
        return "incompatible"
    return "compatible" if has_history else "new subject"


def _place(schema: RegisteredSchema | None) -> dict[str, int | None] | None:
    return None if schema is None else {"id": schema.id, "version": schema.version}
