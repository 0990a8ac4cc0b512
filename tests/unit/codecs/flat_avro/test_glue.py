"""Flat-avro under AWS Glue's header: decoded with a source of schemas, else refused with both ways out."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from uuid import UUID

import pytest

from tests.cli.samples import KEY, KEY_SCHEMA, VALUE, VALUE_SCHEMA, capture, run
from tidesink.codecs import open_codec
from tidesink.codecs.flat_avro.codec import MOST_BYTES, FlatAvroCodec
from tidesink.errors import DecodeError, FramingError, SchemaMismatchError, SchemaNotFoundError
from tidesink.events import ChangeEvent, Message, Op, SchemaIds, TableId
from tidesink.schema_registry import MemorySchemaRegistry
from tidesink.schema_registry.client import GlueSchemas

KEY_ID = UUID("b7b4a7f0-9c96-4e4a-a687-fb5de9ef0c63")
VALUE_ID = UUID("b7b4a7f0-9c96-4e4a-a687-fb5de9ef0c64")
SOURCE = GlueSchemas({KEY_ID: json.dumps(KEY_SCHEMA), VALUE_ID: json.dumps(VALUE_SCHEMA)}, name="s.jsonl")
CONFLUENT = {257: json.dumps(KEY_SCHEMA), 258: json.dumps(VALUE_SCHEMA)}


def framed(confluent: bytes, uuid: UUID, *, compressed: bool = False) -> bytes:
    """A Confluent-framed message as Glue's serializer writes it."""
    payload = confluent[5:]
    return (
        bytes([3, 5 if compressed else 0]) + uuid.bytes + (zlib.compress(payload) if compressed else payload)
    )


def codec(source: GlueSchemas | None = SOURCE) -> FlatAvroCodec:
    opened = open_codec("flat-avro", registry=MemorySchemaRegistry(CONFLUENT), glue=source)
    assert isinstance(opened, FlatAvroCodec)
    return opened


def message(key: bytes | None, value: bytes | None, offset: int = 4) -> Message:
    return Message("shop_t", 0, offset, key, value)


def decoded(key: bytes | None, value: bytes | None) -> ChangeEvent:
    (event,) = codec().decode(message(key, value))
    assert isinstance(event, ChangeEvent)
    return event


@pytest.mark.parametrize("compressed", [False, True])
def test_rows_are_those_of_the_confluent_frame(compressed: bool) -> None:
    (expected,) = codec().decode(message(KEY, VALUE))
    assert isinstance(expected, ChangeEvent)
    event = decoded(
        framed(KEY, KEY_ID, compressed=compressed), framed(VALUE, VALUE_ID, compressed=compressed)
    )
    assert event == expected._replace(schema_id=SchemaIds(None, None))
    assert event.table == TableId("shop", "t")


def test_a_delete_is_a_key_alone() -> None:
    event = decoded(framed(KEY, KEY_ID), None)
    assert (event.op, event.key, event.after) == (Op.DELETE, {"id": 7}, None)


def test_one_codec_reads_both_frames_in_turn() -> None:
    opened = codec()
    for key, value in ((KEY, VALUE), (framed(KEY, KEY_ID), framed(VALUE, VALUE_ID)), (KEY, None)):
        for _ in range(2):
            (event,) = opened.decode(message(key, value))
            assert isinstance(event, ChangeEvent)
            assert event.key == {"id": 7}


def test_without_a_source_the_way_out_is_named() -> None:
    with pytest.raises(FramingError) as caught:
        codec(None).decode(message(framed(KEY, KEY_ID), framed(VALUE, VALUE_ID)))
    text = str(caught.value)
    assert text.startswith(
        f"shop_t[0]@4: The message has an AWS Glue schema registry header (schema version {KEY_ID})"
    )
    assert "--schemas FILE" in text


def test_a_uuid_that_the_source_lacks_is_the_records_own_fault() -> None:
    with pytest.raises(SchemaNotFoundError, match=r"s\.jsonl has no Glue schema version .*\. Add a line"):
        codec().decode(message(framed(KEY, UUID(int=1)), None))


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (KEY, framed(VALUE, VALUE_ID), "Only one of key and value has an AWS Glue header. The key"),
        (framed(KEY, KEY_ID), VALUE, "Only one of key and value has an AWS Glue header. The value"),
        (framed(KEY, KEY_ID)[:-1], None, "The key of .* bytes is shorter than its schema requires"),
        (b"\3\5" + KEY_ID.bytes + b"no zlib", None, "The key's payload is not a zlib stream"),
        (framed(KEY, KEY_ID, compressed=True)[:-1], None, "not exactly one zlib stream"),
        (framed(KEY, KEY_ID, compressed=True) + b"x", None, "not exactly one zlib stream"),
    ],
)
def test_damaged_frames_are_refused(key: bytes, value: bytes | None, words: str) -> None:
    with pytest.raises(DecodeError, match=words):
        codec().decode(message(key, value))


def test_a_payload_that_swells_is_refused_before_it_fills_the_memory() -> None:
    bomb = zlib.compress(bytes(MOST_BYTES + 1), 9)
    assert len(bomb) < 100_000
    with pytest.raises(SchemaMismatchError, match=f"decompresses to more than {MOST_BYTES} bytes"):
        codec().decode(message(b"\3\5" + KEY_ID.bytes + bomb, None))


def test_a_schema_of_another_shape_is_named_by_its_uuid() -> None:
    with pytest.raises(SchemaMismatchError, match=f"schema_id={KEY_ID}"):
        codec(GlueSchemas({KEY_ID: '"int"'})).decode(message(framed(KEY, KEY_ID), None))


def test_decode_reads_glue_by_a_schemas_file(tmp_path: Path) -> None:
    file = tmp_path / "schemas.jsonl"
    rows = [{"id": str(KEY_ID), "schema": KEY_SCHEMA}, {"id": str(VALUE_ID), "schema": VALUE_SCHEMA}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    args = ("decode", "--protocol", "avro", "--input", "-", "-o", "json", "--schemas", str(file))
    found = run(*args, stdin=capture(framed(KEY, KEY_ID), framed(VALUE, VALUE_ID)))
    assert found.exit_code == 0, found.output
    line = json.loads(found.stdout)
    assert (line["type"], line["after"]["id"], line["after"]["d"]) == ("upsert", 7, "-0.0001")
    file.write_text('{"id": "no uuid", "schema": "x"}')
    assert "line 1 is not a schema with its id. Give JSON Lines" in run(*args, stdin="").stderr


def test_decode_without_glues_schemas_says_what_to_do() -> None:
    args = ("decode", "--protocol", "avro", "--input", "-", "-o", "json", "--schema-registry", "memory://g")
    found = run(*args, stdin=capture(framed(KEY, KEY_ID), framed(VALUE, VALUE_ID)))
    line = json.loads(found.stdout)
    assert (found.exit_code, line["error"]) == (1, "FramingError")
    assert "--schemas FILE" in line["reason"]
