"""Offline compatibility names the field; that it agrees with a real registry is a contract test."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tidesink.errors import RegistryError
from tidesink.schema_registry import incompatibilities
from tidesink.schema_registry.compatibility import parse_avro, type_text


def record(*fields: dict[str, Any], name: str = "t") -> str:
    return json.dumps({"type": "record", "name": name, "namespace": "default.test", "fields": fields})


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def before(*fields: dict[str, Any]) -> dict[str, Any]:
    inner = {"type": "record", "name": "t_before", "fields": list(fields)}
    return field("_ticdc_before", ["null", inner], default=None)


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
A = field("a", "int")
CASES = [
    ("BACKWARD", record(A), record(field("a", "string")), ["field 'a' changed from int to string"]),
    ("BACKWARD", record(A), record(field("a", "long")), []),
    ("FORWARD", record(A), record(field("a", "long")), ["field 'a' changed from int to long"]),
    ("BACKWARD", record(A), record(A, field("b", "int")), ["field 'b' was added without a default"]),
    ("BACKWARD", record(A), record(A, field("b", ["null", "int"], default=None)), []),
    ("FORWARD", record(A), record(A, field("b", "int")), []),
    ("FORWARD", record(A, field("b", "int")), record(A), ["field 'b' was removed and had no default"]),
    ("BACKWARD", record(A, field("b", "int")), record(A), []),
    (
        "FULL",
        record(A, field("b", "int")),
        record(A, field("c", "int")),
        ["field 'c' was added without a default", "field 'b' was removed and had no default"],
    ),
    ("BACKWARD", record(A), record(A, name="u"), ["the record was renamed from t to u"]),
    ("BACKWARD", record(field("a", ["int", "null"])), record(field("a", ["null", "int"])), []),
    (
        "BACKWARD",
        record(field("a", ["null", "int"])),
        record(field("a", "int")),
        ["field 'a' changed from null | int to int"],
    ),
    (
        "BACKWARD",
        record(field("a", "double")),
        record(field("a", DECIMAL)),
        ["field 'a' changed from double to decimal(10,2)"],
    ),
    (
        "BACKWARD",
        record(A, before(A)),
        record(A, before(field("a", "boolean"))),
        ["field '_ticdc_before.a' changed from int to boolean"],
    ),
    (
        "BACKWARD",
        record(A, field("b", "int")),
        record(field("a", "int", aliases=["b"])),
        ["field 'a' matches 'a' and 'b' of the old schema by its aliases"],
    ),
    ("BACKWARD", record(A), record(field("z", "long", aliases=["a", "gone"])), []),
    ("NONE", record(A), '"string"', []),
    ("BACKWARD", '"int"', '"string"', ["the record changed from int to string"]),
]


@pytest.mark.parametrize(("level", "old", "new", "expected"), CASES)
def test_what_stands_in_the_way_is_named(level: Any, old: str, new: str, expected: list[str]) -> None:
    assert [str(found) for found in incompatibilities(level, new, [old])] == expected


def test_only_transitive_levels_look_beyond_the_latest_version() -> None:
    history = [
        record(field("a", "string")),
        record(field("a", "bytes")),
        record(field("b", "int", default=0)),
    ]
    new = record(field("a", "int", default=0))
    assert incompatibilities("BACKWARD", new, history) == ()
    found = [str(item) for item in incompatibilities("BACKWARD_TRANSITIVE", new, history)]
    assert found == ["field 'a' changed from string to int", "field 'a' changed from bytes to int"]


def test_the_first_version_of_a_subject_is_always_welcome() -> None:
    assert incompatibilities("FULL_TRANSITIVE", record(A), []) == ()


def test_a_recursive_record_ends() -> None:
    node = field("next", ["null", "t"], default=None)
    new = record(field("a", "string"), node)
    assert [str(f) for f in incompatibilities("BACKWARD", new, [record(A, node)])] == [
        "field 'a' changed from int to string"
    ]


def test_defaults_that_avro_forbids_are_ticdcs_right() -> None:
    odd = record(field("d", "double", default=10000000000), field("x", "bytes", default="77+9AA=="))
    assert incompatibilities("FULL", odd, [odd]) == ()


@pytest.mark.parametrize("text", ["", "no json", '{"type": "nope"}', "7", '{"type": "record", "name": "t"}'])
def test_what_is_no_avro_schema_is_refused(text: str) -> None:
    with pytest.raises(RegistryError, match="The text is not an Avro schema"):
        parse_avro(text)


def test_types_in_a_few_words() -> None:
    kinds: list[Any] = [
        {"type": "array", "items": "int"},
        {"type": "map", "values": ["null", DECIMAL]},
        {"type": "fixed", "name": "f", "size": 16},
        {"type": "enum", "name": "e", "symbols": ["x", "y"]},
        {"type": "record", "name": "n.s.r", "fields": []},
    ]
    assert [type_text(kind) for kind in kinds] == [
        "array of int",
        "map of null | decimal(10,2)",
        "fixed(16)",
        "enum(x, y)",
        "record r",
    ]
