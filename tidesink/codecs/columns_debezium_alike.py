"""Writer schemas of Debezium's records that read alike, and the one Avro schema all of them are read into.

A connector that is restarted with another version, or a table that gets a column, registers a schema anew.
Its bytes are laid out differently, so that each needs a decoder of its own; what comes out is made into one
struct by Avro's own schema resolution, and its columns are converted once. Without that, the code Spark
generates grows with each schema, beyond what one method of the JVM may hold (64 KB).

Of the record only what a worker asks for is in the struct; Avro skips the rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tidesink.codecs.columns_avro_schema import MARK
from tidesink.codecs.columns_debezium_schema import RecordSchema, WireColumn

Json = Any
Facts = dict[tuple[str, str], object]

_AFTER: Final = "after"
_BEFORE: Final = "before"
_OP: Final = "op"
_SOURCE: Final = "source"
# What is asked of every source block.
SOURCE_MEMBERS: Final = ("connector", "db", "schema", "table", "commit_ts")
# A record without fields is none to Spark.
_NOTHING: Final = {"name": "nothing", "type": ["null", "int"], "default": None}


@dataclass(frozen=True)
class Alike:
    """Writer schemas that one reader reads, by registry id; ``schema`` has the columns of all of them."""

    members: Mapping[int, RecordSchema]
    schema: RecordSchema

    @property
    def writers(self) -> dict[str, list[int]]:
        """The ids of each layout of bytes, by the Avro schema that decodes it."""
        found: dict[str, list[int]] = {}
        for schema_id, schema in self.members.items():
            found.setdefault(json.dumps(schema.bare), []).append(schema_id)
        return found

    def reader(self, keys: frozenset[str], source: Iterable[str] = SOURCE_MEMBERS) -> str:
        """The Avro schema of the struct; of an old row it has the columns that ``keys`` names.

        ``source`` are the members of a source block.
        """
        bare = [schema.bare for schema in self.members.values()]
        if self.schema.kind == "row":
            wanted = {*(one.wire for one in self.schema.columns), MARK}
            return json.dumps(_record(bare, wanted))
        columns = {one.wire for one in self.schema.columns}
        inside = {_SOURCE: frozenset(source), _AFTER: columns}
        if keys:
            inside[_BEFORE] = {one.wire for one in self.schema.columns if one.field.name.lower() in keys}
        fields = [_image(name, bare, wanted) for name, wanted in inside.items()]
        rest = _record(bare, {_OP, MARK})
        return json.dumps({**rest, "fields": [*fields, *rest["fields"]]})


def alike(
    schemas: Mapping[int, RecordSchema],
    reading: Callable[[RecordSchema, WireColumn], object],
    source: Collection[str] = SOURCE_MEMBERS,
) -> tuple[Alike, ...]:
    """The schemas in as few groups as there are ways to read them.

    ``reading`` says of a schema's column all that its conversion depends on beyond its Avro type, ``source``
    which members of a source block are asked for. A column that some writers lack stands in nobody's way.
    """
    groups: list[tuple[Facts, Alike]] = []
    for schema_id, schema in sorted(schemas.items()):
        facts = _facts(schema_id, schema, reading, source)
        for number, (known, group) in enumerate(groups):
            if all(known.get(name, fact) == fact for name, fact in facts.items()):
                groups[number] = known | facts, _joined(group, schema_id, schema)
                break
        else:
            groups.append((facts, Alike({schema_id: schema}, schema)))
    return tuple(group for _, group in groups)


def _joined(group: Alike, schema_id: int, schema: RecordSchema) -> Alike:
    wires = {one.wire for one in group.schema.columns}
    added = tuple(one for one in schema.columns if one.wire not in wires)
    kind = group.schema.kind if group.schema.columns else schema.kind
    merged = replace(
        group.schema,
        kind=kind,
        columns=(*group.schema.columns, *added),
        source=group.schema.source | schema.source,
    )
    return Alike({**group.members, schema_id: schema}, merged)


def _facts(
    schema_id: int,
    schema: RecordSchema,
    reading: Callable[[RecordSchema, WireColumn], object],
    source: Collection[str],
) -> Facts:
    """What must not differ between two schemas that are read alike, where both have it."""
    facts: Facts = {("ticdc", ""): schema.is_ticdc}
    # Names that Spark does not tell apart are for nobody else to read alike.
    folded = {one.field.name.lower() for one in schema.columns}
    facts["single", ""] = None if len(folded) == len(schema.columns) else schema_id
    row = schema.bare if schema.kind == "row" else _inner(schema.bare, _AFTER)
    types = {one["name"]: json.dumps(_plain(one["type"])) for one in (row or {"fields": []})["fields"]}
    for column in schema.columns:
        name = column.field.name.lower()
        facts["wire", name] = column.wire
        facts["column", column.wire] = name, types[column.wire], reading(schema, column)
    for one in (_inner(schema.bare, _SOURCE) or {"fields": []})["fields"]:
        if one["name"] in source:
            facts["source", one["name"]] = json.dumps(_plain(one["type"]))
    return facts


def _image(name: str, bare: Iterable[Json], wanted: Iterable[str]) -> Json:
    """A member of the envelope that is a record itself, of what all writers have in it."""
    found = [inner for inner in (_inner(one, name) for one in bare) if inner is not None]
    record = _record(found, wanted) if found else {"type": "record", "name": name, "fields": []}
    record["fields"] = record["fields"] or [_NOTHING]
    return {"name": name, "type": ["null", record], "default": None}


def _record(records: Iterable[Json], wanted: Iterable[str]) -> dict[str, Json]:
    """The fields that are asked for of several records, null where a writer lacks one."""
    wanted, found, name = frozenset(wanted), dict[str, Json](), ""
    for record in records:
        name = record["name"]
        for one in _of(record, wanted):
            kind = ["null", *_branches(one["type"])]
            found.setdefault(one["name"], {"name": one["name"], "type": kind, "default": None})
    return {"type": "record", "name": name, "fields": list(found.values())}


def _of(record: Json, wanted: frozenset[str]) -> Iterator[Json]:
    return (one for one in record["fields"] if one["name"] in wanted)


def _inner(bare: Json, name: str) -> Json | None:
    """The record that a field holds, whether or not it may be null."""
    kind = next((one["type"] for one in bare["fields"] if one["name"] == name), None)
    return None if kind is None else next(iter(_branches(kind)), None)


def _branches(kind: Json) -> list[Json]:
    return [branch for branch in kind if branch != "null"] if isinstance(kind, list) else [kind]


def _plain(kind: Json) -> list[Json]:
    """A type without regard to whether it may be null."""
    return _branches(kind)
