"""Schemas with references to others: Apicurio's converter registers Debezium's envelopes so."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any, Final

import fastavro
import pytest

from tests.confluent_registry import Start, confluent_servers
from tests.lagging_registry import Clock
from tidesink.codecs import open_codec
from tidesink.codecs.base import header
from tidesink.errors import UnusableSchemaError
from tidesink.events import ChangeEvent, Message
from tidesink.schema_registry import open_registry
from tidesink.schema_registry.references import Reference, ReferringSchema, written_out
from tidesink.sinks.decode.writer_schemas import WriterSchemas, may_lag
from tidesink.sinks.runtime.context import RetryPolicy

start = pytest.fixture(confluent_servers, name="start")

Json = dict[str, Any]
SOURCE_NAME: Final = "io.debezium.connector.mysql.Source"
SOURCE: Final = {
    "type": "record",
    "name": "Source",
    "namespace": "io.debezium.connector.mysql",
    "fields": [{"name": name, "type": "string"} for name in ("version", "connector", "name", "db", "table")]
    + [{"name": "ts_ms", "type": "long"}],
    "connect.name": SOURCE_NAME,
}
VALUE: Final = {"type": "record", "name": "Value", "fields": [{"name": "id", "type": "int"}]}
ENVELOPE: Final = {
    "type": "record",
    "name": "Envelope",
    "namespace": "app.shop.t",
    "fields": [
        {"name": "before", "type": ["null", VALUE], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "source", "type": SOURCE_NAME},
        {"name": "op", "type": "string"},
    ],
    "connect.name": "app.shop.t.Envelope",
}
KEY: Final = {"type": "record", "name": "Key", "namespace": "app.shop.t", "fields": VALUE["fields"]}
TOPIC: Final = "app.shop.t"


def _answer(schema: Any, *references: tuple[str, str, int], **more: Any) -> Json:
    names = ("name", "subject", "version")
    listed = [dict(zip(names, one, strict=True)) for one in references]
    return {"schema": json.dumps(schema), "schemaType": "AVRO", "references": listed, **more}


def _out(schema: Any, **referred: tuple[Any, list[str]]) -> Any:
    """``referred``: by name the schema, and the names that it refers to."""

    def reference(name: str) -> Reference:
        return Reference(name, f"subject-of-{name}", 1)

    def look_up(one: Reference) -> ReferringSchema:
        found, names = referred[one.name]
        return ReferringSchema(json.dumps(found), tuple(map(reference, names)))

    whole = ReferringSchema(json.dumps(schema), tuple(map(reference, referred)))
    return json.loads(written_out(whole, look_up))


def _record(name: str, *types: Any, **more: Any) -> Json:
    fields = [{"name": f"f{at}", "type": one} for at, one in enumerate(types)]
    return {"type": "record", "name": name, **more, "fields": fields}


def test_a_debezium_topic_with_references_is_read(start: Start) -> None:
    server = start()
    reference = (SOURCE_NAME, SOURCE_NAME, 1)
    server.registry.referring |= {
        8: _answer(ENVELOPE, reference),
        9: _answer(KEY),
        (SOURCE_NAME, 1): _answer(SOURCE, subject=SOURCE_NAME, version=1, id=7),
    }
    row = dict.fromkeys(("version", "name"), "x") | {
        "connector": "mysql",
        "db": "shop",
        "table": "t",
        "ts_ms": 1,
    }
    record = {"before": None, "after": {"id": 5}, "source": row, "op": "c"}
    out = BytesIO()
    named: dict[str, Any] = {}
    fastavro.parse_schema(SOURCE, named_schemas=named)
    fastavro.schemaless_writer(out, fastavro.parse_schema(ENVELOPE, named_schemas=named), record)
    registry = open_registry(server.url)
    codec = open_codec("debezium-avro", registry=registry)
    (event,) = codec.decode(Message(TOPIC, 0, 0, header(9) + b"\x0a", header(8) + out.getvalue()))
    assert isinstance(event, ChangeEvent)
    assert (str(event.table), event.after, event.key) == ("shop.t", {"id": 5}, {"id": 5})
    registry.schema_by_id(8)
    assert sum(SOURCE_NAME in one for one in server.registry.log) == 1  # remembered


def test_names_resolve_in_their_namespace_and_are_defined_once() -> None:
    inner = _record("Inner", "int", namespace="a.b")
    mid = _record("Mid", "Inner", ["null", "a.b.Inner"], {"type": "array", "items": "Inner"}, namespace="a.b")
    found = _out(
        _record("Outer", "a.b.Mid", {"type": "map", "values": "a.b.Inner"}, "a.b.Mid", namespace="c"),
        **{"a.b.Mid": (mid, ["a.b.Inner"]), "a.b.Inner": (inner, [])},
    )
    first, second, third = (one["type"] for one in found["fields"])
    assert [one["type"] for one in first["fields"]] == [
        inner,
        ["null", "a.b.Inner"],
        {"type": "array", "items": "a.b.Inner"},
    ]
    assert (second, third) == ({"type": "map", "values": "a.b.Inner"}, "a.b.Mid")
    fastavro.parse_schema(found)


def test_a_definition_may_name_itself_and_need_no_namespace() -> None:
    tree = _record("Tree", "string", ["null", "Tree"])
    found = _out(_record("Top", "Tree", ["null", "Tree"]), Tree=(tree, []))
    assert found["fields"][0]["type"] == {**tree, "namespace": ""}
    assert found["fields"][1]["type"] == ["null", "Tree"]
    fastavro.parse_schema(found)
    colour = {"type": "enum", "name": "x.Colour", "symbols": ["RED"]}
    found = _out(_record("Top", {"type": "x.Colour", "connect.default": "RED"}), **{"x.Colour": (colour, [])})
    named = {**colour, "name": "Colour", "namespace": "x", "connect.default": "RED"}
    assert found["fields"][0]["type"] == named
    fastavro.parse_schema(found)


def test_a_schema_without_references_keeps_its_text() -> None:
    text = '{ "type":  "record", "name": "t", "fields": [] }'
    assert written_out(ReferringSchema(text), lambda _one: ReferringSchema("")) == text


def test_what_two_schemas_refer_to_is_no_circle() -> None:
    base, left, right = _record("B", "int"), _record("L", "B"), _record("R", "B")
    found = _out(_record("T", "L", "R"), L=(left, ["B"]), R=(right, ["B"]), B=(base, []))
    fastavro.parse_schema(found)
    assert found["fields"][1]["type"]["fields"][0]["type"] == "B"


@pytest.mark.parametrize(
    ("referring", "words"),
    [
        ({8: _answer(ENVELOPE, ("x", "x", 1))}, r"does not have x \(subject x, version 1\)"),
        (
            {8: _answer(ENVELOPE, ("a", "a", 1)), ("a", 1): _answer(_record("a"))},
            f"the type {SOURCE_NAME}, which",
        ),
        (
            {
                8: _answer(ENVELOPE, ("a", "a", 1)),
                ("a", 1): _answer(_record("a"), ("b", "b", 2)),
                ("b", 2): _answer(_record("b"), ("a", "a", 1)),
            },
            r"cycle, a \(subject a, version 1\) -> b \(subject b, version 2\) -> a \(",
        ),
        ({8: {"schema": "{}", "references": [{"name": "x"}]}}, "name, the subject or the version"),
        ({8: {"schema": "{}", "references": {"x": 1}}}, "name, the subject or the version"),
        ({8: {"schema": "message m {}", "schemaType": "PROTOBUF"}}, "The schema has type PROTOBUF"),
        ({8: {"schema": "{}", "schemaType": "JSON"}}, "The schema has type JSON"),
    ],
)
def test_what_cannot_be_followed_is_named_and_makes_only_its_records_bad(
    start: Start, referring: dict[Any, Any], words: str
) -> None:
    server = start()
    server.registry.referring |= referring
    server.registry.memory.register(f"{TOPIC}-value", json.dumps(VALUE))
    registry = open_registry(server.url)
    with pytest.raises(UnusableSchemaError, match=words) as caught:
        registry.schema_by_id(8)
    assert caught.value.context["schema_id"] == 8
    schemas = WriterSchemas(registry, TOPIC, lag=RetryPolicy(0, passes=may_lag), clock=Clock())
    schemas.look_up({"value": (1, 8)})
    assert schemas.texts["value"].keys() == {1}
    assert schemas.unknown[8].startswith(
        ("Schema id 8 cannot be used. This schema ", "Schema id 8 cannot be used. The schema ")
    )


def test_an_id_is_asked_for_with_the_subject_of_its_topic(start: Start) -> None:
    """In a registry context the same id is another schema than in the default one."""
    server = start()
    other, own = json.dumps(_record("other", "int")), json.dumps(_record("t", "int"))
    server.registry.memory.register("elsewhere", other)
    server.registry.contexts[f"{TOPIC}-value"] = {1: own}
    registry = open_registry(server.url)
    schemas = WriterSchemas(
        registry,
        TOPIC,
        lag=RetryPolicy(0, passes=may_lag),
        clock=Clock(),
        subject_of=lambda topic, part: f"{topic}-{part}",
    )
    schemas.look_up({"value": (1,)})
    assert schemas.texts["value"] == {1: own}
    assert registry.schema_by_id(1) == other
    assert "GET /schemas/ids/1?subject=app.shop.t-value" in server.registry.log
