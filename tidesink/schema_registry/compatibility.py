"""Whether one Avro schema may follow another, and which field stands in the way.

The rules are Avro's schema resolution (specification 1.11) as the Java library applies it, which is what
Confluent's and Apicurio's registries run: names are compared without namespace, and logical types not at
all. Servers word their refusals differently or not at all; these words name the field.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from fastavro.schema import SchemaParseException, UnknownType, parse_schema

from tidesink.errors import RegistryError
from tidesink.schema_registry.models import CompatibilityLevel

Node = Any  # an Avro schema as JSON: a name, a union (list) or an object
_HAS_DEFAULT = "tidesink.has-default"
TRANSITIVE = "_TRANSITIVE"

# What the new schema must be able to do with data of the old one, and the other way round.
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
    """One thing that speaks against a schema; ``field`` is a dotted path, empty for the schema itself."""

    field: str
    problem: str

    def __str__(self) -> str:
        return f"field {self.field!r} {self.problem}" if self.field else f"the record {self.problem}"


class AvroSchema(NamedTuple):
    """A parsed schema: every name in full, and the definitions by name."""

    root: Node
    names: dict[str, Node]


def parse_avro(schema_text: str) -> AvroSchema:
    """Parse a schema, without judging its defaults: TiCDC's are not all Avro's (base64, integers for double).

    Raises :class:`RegistryError` for what is no Avro schema.
    """
    names: dict[str, Node] = {}
    try:
        root = parse_schema(_marked(json.loads(schema_text)), named_schemas=names)
    except (SchemaParseException, UnknownType, KeyError, TypeError, ValueError, AttributeError) as exc:
        raise RegistryError(f"this is not an Avro schema ({type(exc).__name__}: {exc})") from exc
    return AvroSchema(root, names)


def incompatibilities(
    level: CompatibilityLevel, new_text: str, old_texts: Sequence[str]
) -> tuple[Incompatibility, ...]:
    """What keeps a schema from following a subject's versions (oldest first) under a level.

    Raises :class:`RegistryError` when one of the texts is no Avro schema.
    """
    directions = _DIRECTIONS[level.removesuffix(TRANSITIVE)]
    compared = old_texts if level.endswith(TRANSITIVE) else old_texts[-1:]
    new = parse_avro(new_text)
    found: dict[Incompatibility, None] = {}
    for old in map(parse_avro, compared):
        for direction in directions:
            reader, writer = (new, old) if direction == "reads old" else (old, new)
            resolution = _Resolution(reader.names, writer.names, new_reads=direction == "reads old")
            found.update(dict.fromkeys(resolution.problems(reader.root, writer.root, "")))
    return tuple(found)


def _marked(node: Node) -> Node:
    """The schema with every default turned into a mark, so that its value is not checked."""
    if isinstance(node, list):
        return [_marked(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {k: _marked(v) if k in {"type", "items", "values", "fields"} else v for k, v in node.items()}
    if kept.get("type") in ("record", "error") and "fields" not in kept:
        raise KeyError("fields")  # fastavro would take it for a record without any
    if "default" in kept:
        del kept["default"]
        kept[_HAS_DEFAULT] = True
    return kept


class _Resolution:
    """One direction of a comparison: can data of ``writer`` be read with ``reader``?"""

    def __init__(self, reader: dict[str, Node], writer: dict[str, Node], *, new_reads: bool) -> None:
        self._reader = reader
        self._writer = writer
        self._new_reads = new_reads
        self._open: set[tuple[str, str]] = set()

    def problems(self, reader: Node, writer: Node, path: str) -> Iterator[Incompatibility]:
        """Everything that keeps ``writer``'s data from being read, by field."""
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
        """Why a union's branch cannot be read: the field inside, where it is a record on both sides."""
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
            return  # a recursive record: this pair is being compared further up
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
        # The Java library raises here, so that a registry answers 422 and takes no such schema.
        names = " and ".join(repr(source["name"]) for source in sources)
        return f"means {names} of the {'old' if self._new_reads else 'new'} schema at once, by its aliases"

    def _changed(self, reader: Node, writer: Node, path: str) -> Incompatibility:
        return self._worded(path, "changed", type_text(reader), type_text(writer))

    def _worded(self, path: str, verb: str, reader: str, writer: str) -> Incompatibility:
        old, new = (writer, reader) if self._new_reads else (reader, writer)
        return Incompatibility(path, f"{verb} from {old} to {new}")

    def _reads(self, reader: Node, writer: Node) -> bool:
        # Run to the end: a generator left half-way would keep its pair of records open.
        return not list(self.problems(reader, writer, ""))

    def _reader_node(self, node: Node) -> Node:
        return self._reader.get(node, node) if isinstance(node, str) else node

    def _writer_node(self, node: Node) -> Node:
        return self._writer.get(node, node) if isinstance(node, str) else node


def type_text(node: Node) -> str:
    """A type in a few words: ``null | decimal(10,2)``, ``record t``."""
    if isinstance(node, str):
        return node
    if isinstance(node, list):
        return " | ".join(map(type_text, node))
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
        gone = set(writer["symbols"]) - set(reader["symbols"])
        return _same_name(reader, writer) and (not gone or _HAS_DEFAULT in reader)
    if kind == "fixed":
        return _same_name(reader, writer) and bool(reader["size"] == writer["size"])
    return True
