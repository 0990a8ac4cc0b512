"""Avro schemas one of which was made from the other: as TiCDC writes them, and everything else Avro has.

Names follow from the place in the schema, so that a type which was kept has kept its name. Defaults are
always of the type: what a registry says of wrong ones is no question of compatibility.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from tidesink.codecs.flat_avro.schema import key_record, value_record
from tidesink.codecs.options import FlatAvroOptions
from tidesink.ddl.catalog import parse_create_table
from tidesink.events import TableId, TableSchema

Node = Any

_NUMBERS = ("int", "long", "float", "double")
_PRIMITIVES = (*_NUMBERS, "boolean", "string", "bytes")
_COLUMNS = "abcd"
_DEFAULTS: dict[str, Any] = {
    "null": None, "int": 7, "long": -1, "float": 3.140000104904175, "double": 10000000000, "boolean": False,
    "string": "x", "bytes": "77+9AA==",
}  # fmt: skip


def kind_of(node: Node) -> str:
    """The Avro type's word; ``union`` for a list."""
    if isinstance(node, list):
        return "union"
    return node if isinstance(node, str) else str(node["type"])


def default_of(node: Node) -> Any:
    """A value that may stand as a default of this type; a union's is of its first branch."""
    made: dict[str, Callable[[], Any]] = {
        "union": lambda: default_of(node[0]),
        "enum": lambda: node["symbols"][0],
        "fixed": lambda: "\0" * node["size"],
        "array": list,
        "map": dict,
        "record": lambda: {field["name"]: default_of(field["type"]) for field in node["fields"]},
    }
    kind = kind_of(node)
    return made[kind]() if kind in made else _DEFAULTS[kind]


def decimals() -> SearchStrategy[Node]:
    """Decimals as TiCDC writes them, and their parameters."""
    parts = st.tuples(st.sampled_from([4, 10, 38]), st.sampled_from([0, 2]))
    return parts.map(
        lambda found: {"type": "bytes", "logicalType": "decimal", "precision": found[0], "scale": found[1]}
    )


@st.composite
def nodes(draw: DrawFn, place: str, depth: int = 2) -> Node:
    """A type at a place; its own name, where it has one, may differ from the one it had before."""
    kinds = ["primitive"] * 4 + ["decimal", "enum", "fixed"]
    kind = draw(st.sampled_from(kinds + (["union", "union", "array", "map", "record"] if depth else [])))
    if kind == "union":
        return draw(unions(place, depth))
    return draw(_plain(kind, place, depth))


@st.composite
def _plain(draw: DrawFn, kind: str, place: str, depth: int) -> Node:
    name = place + draw(st.sampled_from(["", "", "", "_2"]))
    if kind == "primitive":
        return draw(st.sampled_from(_PRIMITIVES))
    if kind == "decimal":
        return draw(decimals())
    if kind == "enum":
        return draw(_enums(name))
    if kind == "fixed":
        return {"type": "fixed", "name": f"{name}_f", "size": draw(st.integers(1, 2))}
    if kind in ("array", "map"):
        inner = "items" if kind == "array" else "values"
        return {"type": kind, inner: draw(nodes(f"{place}_i", depth - 1))}
    return draw(records(f"{name}_r", depth - 1))


@st.composite
def _enums(draw: DrawFn, name: str) -> Node:
    symbols = draw(st.lists(st.sampled_from(["X", "Y", "Z"]), min_size=1, unique=True))
    default = {"default": symbols[0]} if draw(st.booleans()) else {}
    return {"type": "enum", "name": f"{name}_e", "symbols": symbols, **default}


@st.composite
def unions(draw: DrawFn, place: str, depth: int) -> Node:
    """Branches of different kinds, null among them more often than not."""
    kinds = draw(st.lists(st.sampled_from(["null", *_PRIMITIVES, "enum", "record", "array"]), min_size=1,
                          max_size=3, unique=True))  # fmt: skip
    if draw(st.integers(0, 3)):
        kinds = draw(st.permutations(["null", *[kind for kind in kinds if kind != "null"][:2]]))
    return [
        kind if kind in _DEFAULTS else draw(_plain(kind, f"{place}_u", depth - 1))
        for kind in kinds
    ]  # fmt: skip


@st.composite
def fields(draw: DrawFn, name: str, place: str, depth: int) -> Node:
    """A field, with a default or without."""
    node = draw(nodes(f"{place}_{name}", depth))
    return _field(name, node, with_default=draw(st.booleans()))


def _field(name: str, node: Node, *, with_default: bool) -> Node:
    return {"name": name, "type": node, **({"default": default_of(node)} if with_default else {})}


@st.composite
def records(draw: DrawFn, name: str, depth: int = 2) -> Node:
    """A record of up to three fields."""
    names = draw(st.lists(st.sampled_from(_COLUMNS), max_size=3, unique=True))
    made = [draw(fields(column, name, depth)) for column in names]
    return {"type": "record", "name": name, "fields": made}


@st.composite
def changed(draw: DrawFn, record: Node, place: str) -> Node:
    """The record after some of the changes that a table or a hand may make to it."""
    made = []
    for field in record["fields"]:
        made += draw(_changed_field(field, place))
    # A field that was renamed still has its types, whose names follow from the old one.
    names = {field["name"].partition("_")[0] for field in made}
    spare = [name for name in _COLUMNS if name not in names]
    if spare and draw(st.integers(0, 2)) == 0:
        made.append(draw(fields(spare[0], place, 1)))
    if draw(st.integers(0, 4)) == 0:
        made = draw(st.permutations(made))
    return {**record, "fields": made}


@st.composite
def _changed_field(draw: DrawFn, field: Node, place: str) -> list[Node]:
    how = draw(st.sampled_from(["keep", "keep", "keep", "drop", "type", "promote", "optional", "turn",
                                "default", "alias", "inside"]))  # fmt: skip
    name, node = field["name"], field["type"]
    if how == "drop":
        return []
    if how == "alias":
        return [{**field, "name": f"{name}_new", "aliases": [name]}]
    if how == "default":
        return [_field(name, node, with_default="default" not in field)]
    makers: dict[str, Callable[[], Node]] = {
        "type": lambda: draw(nodes(f"{place}_{name}", 1)),
        "promote": lambda: draw(st.sampled_from(_PRIMITIVES)),
        "optional": lambda: node if "null" in node or kind_of(node) == "union" else ["null", node],
        "turn": lambda: node[::-1] if kind_of(node) == "union" else node,
        "inside": lambda: draw(changed(node, node["name"])) if kind_of(node) == "record" else node,
    }
    made = makers.get(how, lambda: node)()
    return [_field(name, made, with_default="default" in field)]


@st.composite
def histories(draw: DrawFn) -> list[str]:
    """Two to four schemas of one subject, each made from the one before or on its own."""
    name = "t"
    found = [draw(records(name))]
    for _ in range(draw(st.integers(1, 3))):
        found.append(draw(st.one_of(changed(found[-1], name), changed(found[-1], name), records(name))))
    return [json.dumps(draw(_named(record))) for record in found]


@st.composite
def _named(draw: DrawFn, record: Node) -> Node:
    """The record under its own name or another, with an alias that leads back, or not."""
    namespace = draw(st.sampled_from(["default.shop"] * 4 + ["default.other"]))
    if draw(st.integers(0, 6)):
        return {"namespace": namespace, **record}
    aliases = draw(st.sampled_from([[], ["t"], ["default.shop.t"], ["v"]]))
    return {**record, "namespace": namespace, "name": "u", **({"aliases": aliases} if aliases else {})}


_SQL_TYPES = (
    "INT", "INT UNSIGNED", "TINYINT", "BIGINT", "BIGINT UNSIGNED", "FLOAT", "DOUBLE", "DECIMAL(10,2)",
    "DECIMAL(12,2)", "VARCHAR(20)", "TEXT", "VARBINARY(8)", "BLOB", "BIT(9)", "ENUM('x','y')",
    "ENUM('x','y','z')", "SET('a','b')", "JSON", "DATE", "DATETIME(3)", "TIMESTAMP(6)", "TIME", "YEAR",
)  # fmt: skip
_TEXTUAL = {"VARCHAR(20)": "'x'", "INT": "7", "DOUBLE": "1e10", "DECIMAL(10,2)": "1.50", "FLOAT": "3.14"}


@st.composite
def tables(draw: DrawFn, name: str = "t") -> TableSchema:
    """A table of up to four columns behind its key, of every SQL type."""
    lines = ["id BIGINT PRIMARY KEY" if draw(st.integers(0, 5)) else "id INT PRIMARY KEY"]
    for column in draw(st.lists(st.sampled_from(_COLUMNS), max_size=4, unique=True)):
        sql = draw(st.sampled_from(_SQL_TYPES))
        null = draw(st.sampled_from(["", " NOT NULL"]))
        default = f" DEFAULT {_TEXTUAL[sql]}" if sql in _TEXTUAL and draw(st.booleans()) else ""
        lines.append(f"{column} {sql}{null}{default}")
    return parse_create_table(f"CREATE TABLE shop.{name} ({', '.join(lines)})")


@st.composite
def producer_options(draw: DrawFn) -> FlatAvroOptions:
    """What a changefeed may say about its Avro schemas."""
    extension = draw(st.booleans())
    return FlatAvroOptions(
        enable_tidb_extension=extension,
        row_checksum=extension and draw(st.booleans()),
        avro_decimal_handling_mode=draw(st.sampled_from(["precise", "string"])),
        avro_bigint_unsigned_handling_mode=draw(st.sampled_from(["long", "string"])),
        avro_include_before_value=draw(st.booleans()),
        producer=draw(st.sampled_from(["classic", "new"])),
    )


@st.composite
def ticdc_histories(draw: DrawFn) -> list[str]:
    """Two or three schemas that TiCDC registers for one table as it changes, or its options do."""
    options = draw(producer_options())
    found = []
    for _ in range(draw(st.integers(2, 3))):
        table = TableId("shop", draw(st.sampled_from(["t", "t", "t", "renamed"])))
        schema = draw(tables())
        build = key_record if draw(st.integers(0, 4)) == 0 else value_record
        built = build(schema, table, draw(st.sampled_from([options, options, draw(producer_options())])))
        assert built is not None
        found.append(built.text)
    return found
