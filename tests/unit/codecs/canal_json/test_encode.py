"""Encoding canal-json: the producer's options, its order of members, and what cannot be written."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidesink.codecs.canal_json.codec import CanalJsonCodec, json_text
from tidesink.codecs.options import CanalJsonOptions
from tidesink.ddl.catalog import parse_create_table
from tidesink.errors import EncodeError
from tidesink.events import (
    ChangeEvent,
    Column,
    ColumnType,
    Message,
    Op,
    Position,
    TableId,
    TableSchema,
    Value,
    WatermarkEvent,
)

T = TableId("s", "t")
TS = 470608474040696834
SCHEMA = parse_create_table(
    "create table s.t (id int primary key, a varchar(9), u int unsigned, g int as (id) virtual)"
)


def _event(op: Op = Op.INSERT, **changes: Any) -> ChangeEvent:
    row: dict[str, Value] = {"id": 1, "a": "x", "u": 5}
    before: dict[str, Value] | None = None if op is Op.INSERT else {**row, "a": "w"}
    event = ChangeEvent(
        op=op,
        table=T,
        key={"id": 1},
        before=before,
        after=None if op is Op.DELETE else row,
        commit_ts=TS,
        position=Position("topic", 0, 0),
        schema=SCHEMA,
    )
    return event._replace(**changes)


def _encode(event: Any, **options: Any) -> dict[str, Any]:
    codec = CanalJsonCodec(options=CanalJsonOptions(**options), clock=lambda: 7)
    record = codec.encode(event, topic="topic")
    assert record is not None
    assert record.key is None
    found: dict[str, Any] = orjson.loads(record.value or b"")
    return found


def test_the_members_stand_in_the_producers_order() -> None:
    found = _encode(_event(Op.UPDATE), enable_tidb_extension=True)
    assert list(found) == [
        *("id", "database", "table", "pkNames", "isDdl", "type", "es", "ts", "sql", "sqlType", "mysqlType"),
        *("old", "data", "_tidb"),
    ]
    assert found["ts"] == 7
    assert found["es"] == TS >> 18
    assert found["old"] == [{"id": "1", "a": "w", "u": "5"}]


@pytest.mark.parametrize("option", ["only_output_updated_columns", "content_compatible"])
def test_only_updated_columns_are_in_old(option: str) -> None:
    assert _encode(_event(Op.UPDATE), **{option: True})["old"] == [{"a": "w"}]


def test_full_types_and_virtual_columns() -> None:
    found = _encode(_event(), content_compatible=True)
    assert found["mysqlType"] == {"id": "int(11)", "a": "varchar(9)", "u": "int(10) unsigned"}
    assert found["data"] == [{"id": "1", "a": "x", "u": "5"}]


@pytest.mark.parametrize(("value", "code"), [(None, 4), (2**31 - 1, 4), (2**31, -5)])
def test_sql_types_follow_the_value(value: int | None, code: int) -> None:
    found = _encode(_event(after={"id": 1, "a": "x", "u": value}))
    assert found["sqlType"] == {"id": 4, "a": 12, "u": code}


def test_a_delete_may_be_cut_down_to_its_key() -> None:
    found = _encode(_event(Op.DELETE), delete_only_output_handle_key_columns=True)
    assert found["data"] == [{"id": "1"}]
    assert (found["sqlType"], found["mysqlType"]) == ({"id": 4}, {"id": "int"})


def test_a_row_key_is_written_last() -> None:
    event = _event(extension={"_tidb": {"rowkey": "dIA="}})
    found = _encode(event, enable_tidb_extension=True, output_row_key=True)
    assert list(found["_tidb"].items()) == [("commitTs", TS), ("rowkey", "dIA=")]
    assert "_tidb" not in _encode(event, output_row_key=True)


@pytest.mark.parametrize(
    ("event", "options", "says"),
    [
        (_event(op=Op.UPSERT), {}, "upsert"),
        (_event(op=Op.TRUNCATE), {}, "truncate"),
        (_event(after=None), {}, "The insert lacks a row"),
        (_event(Op.UPDATE, before=None), {}, "The update lacks a row"),
        (_event(commit_ts=None), {}, "commit time"),
        (_event(commit_ts=None, extension={"es": 5}), {"enable_tidb_extension": True}, "has no commit_ts"),
        (_event(), {"enable_tidb_extension": True, "output_row_key": True}, "rowkey"),
        (_event(after={"id": "x"}), {}, "column=id"),
        (_event(after={"id": 2**40}), {}, "column=id"),
        (_event(after={"id": 1, "a": b"x"}), {}, "column=a"),
        (_event(after={"id": 1, "a": "\ud800"}), {}, "surrogate"),
        (_event(after={"id": 1, "zz": "x"}), {}, "column=zz"),
        (_event(schema=None), {}, "no column types"),
        (_event(after={"id": 1, "a": "x" * 900}), {"max_message_bytes": 800}, "too large"),
    ],
)
def test_events_that_cannot_be_written(event: ChangeEvent, options: dict[str, Any], says: str) -> None:
    with pytest.raises(EncodeError, match=says) as caught:
        _encode(event, **options)
    assert caught.value.context["topic"] == "topic"


def test_labels_without_their_members_are_refused() -> None:
    columns = (SCHEMA.columns[0], Column("a", ColumnType("enum", sql="enum")))
    schema = TableSchema(T, columns)
    with pytest.raises(EncodeError, match="only a table definition maps labels"):
        _encode(_event(after={"id": 1, "a": "red"}, schema=schema))
    assert _encode(_event(after={"id": 1, "a": 2}, schema=schema))["data"] == [{"id": "1", "a": "2"}]


def test_the_message_size_counts_the_records_overhead() -> None:
    record = CanalJsonCodec(clock=lambda: 7).encode(_event(), topic="t")
    assert record is not None
    size = len(record.value or b"")
    assert _encode(_event(), max_message_bytes=size + 36)
    with pytest.raises(EncodeError):
        _encode(_event(), max_message_bytes=size + 35)


def test_a_watermark_needs_the_extension() -> None:
    event = WatermarkEvent(TS, Position("topic", 0, 0))
    assert CanalJsonCodec().encode(event, topic="t") is None
    found = _encode(event, enable_tidb_extension=True)
    assert found["_tidb"] == {"watermarkTs": TS}
    assert list(found)[-3:] == ["data", "old", "_tidb"]


def test_escapes_are_gos() -> None:
    text = '<="x">&\u2028\u2029\b\f\n\r\t\x00\x7f\\ é😀'
    assert json_text(text) == (
        '"\\u003c=\\"x\\"\\u003e\\u0026\\u2028\\u2029\\u0008\\u000c\\n\\r\\t\\u0000\x7f\\\\ é😀"'
    )


@given(st.text())
def test_escaped_text_is_the_text(text: str) -> None:
    assert json.loads(json_text(text)) == text


def test_decode_and_encode_are_inverse_without_a_definition() -> None:
    sent = {
        "id": 0,
        "database": "s",
        "table": "t",
        "pkNames": [],
        "isDdl": False,
        "type": "UPDATE",
        "es": 5,
        "ts": 7,
        "sql": "",
        "sqlType": {"id": 4, "a": 4, "d": 3},
        "mysqlType": {"id": "int", "a": "enum", "d": "decimal"},
        "old": [{"d": "1.5"}],
        "data": [{"id": "1", "a": "2", "d": "1.50"}],
    }
    (event,) = CanalJsonCodec().decode(Message("topic", 0, 0, None, orjson.dumps(sent)))
    assert isinstance(event, ChangeEvent)
    assert _encode(event._replace(schema=None)) == sent
