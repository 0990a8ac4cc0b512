"""Which debezium-json payloads the JVM reads by itself, told by a pattern made from their schema.

Spark's ``from_json`` is more lenient than the Python codec: it makes numbers text, leaves out what it does
not know and mends invalid UTF-8. So a payload is read in the JVM only where its text has the very form the
producers write (Kafka Connect 4.3's JsonConverter, TiCDC b813e76): no white space, the members of a row in
the order of its schema, each of its own kind. Such a text means the same to both. Any other is *irregular*
and the Python codec's to judge.

Every repetition that has no bound is possessive: a pattern goes over a text once, and a value of megabytes
overflows no stack. Commas are not counted: from_json refuses one that is missing or too many.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final

from tidesink.codecs.columns_debezium_schema import is_spark_decimal
from tidesink.codecs.debezium.connect_schema import ConnectSchema
from tidesink.errors import SchemaMismatchError

_PLAIN: Final = r'[^"\\\x00-\x1f]*+'
# Half a surrogate pair can only be written as an escape; no producer writes a surrogate as one.
_ESCAPE: Final = r'\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4})'
TEXT: Final = rf'"{_PLAIN}(?:{_ESCAPE}{_PLAIN})*+"'
INTEGER: Final = r"-?+(?:0|[1-9][0-9]{0,18}+)"
# Numbers of which no one is beyond its type: a 64-bit float, and a 32-bit one.
_DOUBLE: Final = (
    r"(?:-?+[0-9](?:\.[0-9]{1,60}+)?+[eE](?:-[0-9]{1,3}|\+?+(?:[0-9]{1,2}|[12][0-9]{2}|30[0-7]))|"
    r"-?+[0-9]{1,200}+(?:\.[0-9]{1,400}+)?+(?:[eE][+-]?+[0-9]{1,2})?+)"
)
_SINGLE: Final = (
    r"-?+[0-9]{1,36}+(?:\.[0-9]{1,60}+)?+(?:[eE]-[0-9]{1,2})?+|"
    r"-?+[0-9](?:\.[0-9]{1,60}+)?+[eE]\+?+(?:[0-9]|[12][0-9]|3[0-7])"
)
_QUAD: Final = "[A-Za-z0-9+/]{4}"
_LAST_QUAD: Final = f"(?:{_QUAD}|[A-Za-z0-9+/]{{3}}=|[A-Za-z0-9+/]{{2}}==)"
_BASE64: Final = f'"(?:{_QUAD})*+(?:[A-Za-z0-9+/]{{3}}=|[A-Za-z0-9+/]{{2}}==)?+"'
# At most fifteen bytes, which are less than 38 digits.
_DECIMAL: Final = f'"(?:{_QUAD}){{0,4}}{_LAST_QUAD}"'
_MOST_LEVELS: Final = 8

_SCALARS: Final = {
    **dict.fromkeys(("int8", "int16", "int32", "int64"), INTEGER),
    "float32": f"(?:{_SINGLE})",
    "float64": _DOUBLE,
    "boolean": "(?:true|false)",
    "string": TEXT,
}
_DDL: Final = {
    **dict.fromkeys(("int8", "int16", "int32"), "int"),
    "int64": "bigint",
    **dict.fromkeys(("float32", "float64"), "double"),
    "boolean": "boolean",
}


def row_pattern(schema: ConnectSchema) -> str:
    """The pattern of a payload that is a row itself, a key's.

    Raises:
        SchemaMismatchError: the schema is nested too deep for a pattern.
    """
    return rf"\A{_struct(schema, 0)}\z"


def envelope_pattern(schema: ConnectSchema, *, optional: bool) -> str:
    """The pattern of an envelope, whose members may come in any order, and each of whose structs in its own.

    ``optional``: its structs may lack members without a default, as TiCDC's virtual columns.

    Raises:
        SchemaMismatchError: the schema is nested too deep for a pattern.
    """
    members = [
        f"{_name(field.wire)}:(?:null|{_struct(field.schema, 1, optional=optional)}),?+"
        if field.schema.type == "struct"
        else f"{_name(field.wire)}:{_value(field.schema, 1)},?+"
        for field in schema.fields
    ]
    return rf"\A\{{(?:{'|'.join(members)})*+\}}\z"


def wire_ddl(schema: ConnectSchema) -> str:
    """A column's type as ``from_json`` takes it: what is neither number nor boolean is text."""
    return _DDL.get(schema.type, "string")


def _name(wire: str) -> str:
    # Jackson and Go escape different characters: a name that has one of them leaves its rows to Python.
    return f'"{_escaped(json.dumps(wire, ensure_ascii=False)[1:-1])}"'


def _escaped(text: str) -> str:
    # Python escapes blanks as Java takes them; what is no ASCII is left as it is by both.
    return re.escape(text)


def _struct(schema: ConnectSchema, level: int, *, optional: bool = False) -> str:
    members: dict[str, str] = {}
    for field in schema.fields:
        member = f"{_name(field.wire)}:{_value(field.schema, level + 1)},?+"
        # Left out is null, unless the column has a default.
        may_lack = optional and field.schema.default is None
        members[field.wire] = f"(?:{member})?+" if may_lack else member
    return rf"\{{{''.join(members.values())}\}}"


def _value(schema: ConnectSchema, level: int) -> str:
    if level > _MOST_LEVELS:
        raise SchemaMismatchError("the schema is nested too deep for a pattern")
    return f"(?:null|{_whole(schema, level)})"


def _whole(schema: ConnectSchema, level: int) -> str:
    if schema.type == "bytes":
        return _DECIMAL if is_spark_decimal(schema) else _BASE64
    nested = _NESTED.get(schema.type)
    return _SCALARS[schema.type] if nested is None else nested(schema, level)


def _array(schema: ConnectSchema, level: int) -> str:
    assert schema.items is not None  # noqa: S101 - an array's schema has them
    return rf"\[(?:{_value(schema.items, level + 1)},?+)*+\]"


def _map(schema: ConnectSchema, level: int) -> str:
    assert schema.values is not None  # noqa: S101 - a map's schema has them
    return rf"\{{(?:{TEXT}:{_value(schema.values, level + 1)},?+)*+\}}"


_NESTED: Final[dict[str, Callable[[ConnectSchema, int], str]]] = {
    "array": _array,
    "map": _map,
    "struct": _struct,
}
