"""Random and damaged records of debezium-json: Spark reads, and refuses, what the Python codec does.

The columns and their values are those of the Avro test; here they stand in JSON, where a value can be of
another type than its schema says, and a record can be cut, written otherwise, or hold what is no JSON.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.full import FULL
from tests.properties.test_spark_debezium import COLUMNS
from tests.spark.debezium_rows import differences
from tests.spark.decoded import decode_here
from tests.spark.test_golden_debezium_spark import writers_of
from tidesink.codecs import open_codec
from tidesink.codecs.base import CodecOptions
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
from tidesink.sinks.decode.debezium_json import debezium_json_plan, writer_of
from tidesink.sinks.decode.plans import DecodePlan, PlanSettings
from tidesink.typemap.table import ZeroDate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = FULL

Json = Any
EXAMPLES: Final = 3
_TABLE: Final = TableId("lab", "t")
_CONNECT: Final = {"int": "int32", "long": "int64"}
_WHERE: Final = {"connector": "postgresql", "db": "shop", "schema": "lab", "table": "t"}
_ID: Final = Column("id", ColumnType("bigint", sql="bigint"), nullable=False, handle=True, primary_key=True)
# What a member can hold that its schema does not say.
_ODD: Final = (
    *('"text"', '"12"', "12", "1.5", "1e400", "-0", "true", "[]", "[1,null]", "{}", '{"a":1}', '""'),
    *('"\\u00e9"', "NaN", "01", '"a', "99999999999999999999", '"=="', '"AA=="', '"AB=="'),
    *('" AA=="', '"\\n"', '"\n"', "null", "nul", "1.0", '"NaN"', '"Infinity"', "3.5e38", "-1E-400"),
)


def _connect(avro: Json) -> dict[str, Json]:
    """The Connect schema in JSON of an Avro type that Connect wrote."""
    if isinstance(avro, list):
        return {**_connect(next(one for one in avro if one != "null")), "optional": True}
    if isinstance(avro, str):
        return {"type": _CONNECT.get(avro, avro), "optional": False}
    kind = avro["type"]
    found: dict[str, Json] = {**_connect(avro.get("connect.type", kind)), "optional": False}
    if kind == "record":
        found = {"type": "struct", "fields": [_field(one) for one in avro["fields"]]}
    elif kind == "array":
        found["items"] = _connect(avro["items"])
    elif kind == "map":
        found |= {"keys": _connect("string"), "values": _connect(avro["values"])}
    reported = {"name": avro.get("connect.name"), "parameters": avro.get("connect.parameters")}
    return {**found, **{name: one for name, one in reported.items() if one is not None}}


def _field(avro: Json) -> Json:
    return {**_connect(avro["type"]), "field": avro["name"]}


def _plain(value: Json) -> Json:
    """A value of Avro's as JsonConverter writes it."""
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):  # noqa: PLR0124
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"  # noqa: PLR0124
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value


_ROW: Final[dict[str, Any]] = {
    "type": "struct",
    "optional": True,
    "fields": [
        {"type": "int64", "optional": False, "field": "id"},
        *({**_connect(kind), "optional": True, "field": name} for name, (kind, _) in COLUMNS.items()),
    ],
}
_KEY: Final = {"type": "struct", "optional": False, "fields": _ROW["fields"][:1]}
_SOURCE: Final = {
    "type": "struct",
    "fields": [{"type": "string", "field": name} for name in ("connector", "db", "schema", "table")],
    "field": "source",
}
_ENVELOPE: Final = {
    "type": "struct",
    "optional": False,
    "name": "app.lab.t.Envelope",
    "fields": [
        {**_ROW, "field": "before"},
        {**_ROW, "field": "after"},
        _SOURCE,
        {"type": "string", "field": "op"},
    ],
}


def _dumped(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


_KEY_HEAD: Final = f'{{"schema":{_dumped(_KEY)},"payload":'
_HEAD: Final = f'{{"schema":{_dumped(_ENVELOPE)},"payload":'


def _record(offset: int, name: str, text: str) -> Message:
    """A record whose one column has this JSON text; a delete now and then."""
    row = {"id": offset, **dict.fromkeys(COLUMNS)}
    whole = _dumped({**row, name: "\0"}).replace('"\\u0000"', text)
    deleted = offset % 5 == 0
    images = f'"before":{_dumped(row)},"after":null' if deleted else f'"before":null,"after":{whole}'
    payload = f'{{{images},"source":{_dumped(_WHERE)},"op":"{"d" if deleted else "c"}"}}'
    return _message(offset, f'{_KEY_HEAD}{{"id":{offset}}}}}', f"{_HEAD}{payload}}}")


def _message(offset: int, key: str | bytes | None, value: str | bytes | None) -> Message:
    return Message("app.lab.t", 0, offset, _bytes(key), _bytes(value))


def _bytes(part: str | bytes | None) -> bytes | None:
    return part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part


def _plan(zero_date: ZeroDate = "null", lacking: Iterable[str] = ()) -> DecodePlan:
    """Of a topic whose records have the schemas above, and those of the writers that it lacked."""
    writers = writers_of([_record(1, "flag", "true")]).with_new(map(writer_of, lacking))
    return debezium_json_plan(_TABLE, writers, PlanSettings(zero_date=zero_date))


def _differing(spark: SparkSession, messages: list[Message], zero_date: ZeroDate = "null") -> list[str]:
    codec, plan = open_codec("debezium-json"), _plan(zero_date)
    rows = decode_here(plan, messages)
    lacking = {text for row in rows for text in row.raw["_fields"] or ()}
    if lacking:
        plan = _plan(zero_date, lacking)
        rows = decode_here(plan, messages)
    return [
        f"{(message.value or b'')[len(_HEAD) :]!r}: {line}"
        for message, row in zip(messages, rows, strict=True)
        for line in differences(codec, message, row, plan)
    ]


def test_a_row_of_another_table_is_a_bad_record(spark: SparkSession) -> None:
    samples = [
        _record(1, "label", '"b"'),
        _record(2, "double", "1e400"),
    ]  # one each to the columnar step and the row codec
    others = (('"table":"t"', '"table":"other"'), ('"schema":"lab"', '"schema":null'))
    messages = [
        replace(sample, offset=offset, value=(sample.value or b"").replace(own.encode(), other.encode()))
        for offset, (sample, own, other) in enumerate((s, *pair) for pair in others for s in samples)
    ]
    plan = _plan()
    rows = decode_here(plan, messages)
    assert [(row.kind, row.error) for row in rows[::2]] == [("bad", "SchemaMismatchError")] * 2
    assert all(row.kind == "bad" for row in rows)


@pytest.mark.parametrize("zero_date", ["null", "text", "error"])
# A failure names the values by itself, and shrinking it would take a Spark job a step.
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_spark_reads_what_the_python_codec_reads(
    spark: SparkSession, zero_date: ZeroDate, data: st.DataObject
) -> None:
    cells = [
        (name, _dumped(_plain(value)))
        for name, (_, values) in COLUMNS.items()
        for value in data.draw(st.lists(values, min_size=20, max_size=20), label=name)
    ]
    cells += [(name, text) for name in COLUMNS for text in _ODD]
    wrong = _differing(spark, [_record(n, *cell) for n, cell in enumerate(cells)], zero_date)
    assert not wrong, "\n".join(wrong[:40])


_CHANGES: Final[tuple[Callable[[str], str | bytes | None], ...]] = (
    lambda _: None,
    lambda _: "",
    lambda text: text[:-1],
    lambda text: text + " ",
    lambda text: text + "}",
    lambda text: text.replace(",", ", "),
    lambda text: text.replace('"op":"c"', '"op":"x"'),
    lambda text: text.replace('"op":"c"', '"op":null'),
    lambda text: text.replace('"op":"c"', '"op":"m"'),
    lambda text: text.replace('"op":"c"', '"op":"t"'),
    lambda text: text.replace('"op":"c"', '"op":"u","op":"c"'),
    lambda text: text.replace(',"op":"c"', ""),
    lambda text: text.replace(',"op":"c"', ',"op":"c","more":[{"deep":[1]}]'),
    lambda text: text.replace('"table":"t"', '"table":7'),
    lambda text: text.replace('"before":null,', ""),
    lambda text: text.replace('"after":{', '"after":{"unknown":1,'),
    lambda text: text.replace('"after":{', '"after":null,"before":{'),
    lambda text: text.replace('"tiny":null,', ""),
    lambda text: text.replace('"tiny":null,', '"tiny":null,"tiny":3,'),
    lambda text: text.replace('"words":null', '"words":"a\xff"').encode("latin-1", "replace"),
    lambda text: text.replace('"words":null', '"words":"\ud800"'),
    lambda text: text[len(_HEAD) : -1],
    lambda text: '{"payload":' + text[len(_HEAD) :],
    lambda text: '{"payload":' + text[len(_HEAD) : -1] + f',"schema":{_dumped(_ENVELOPE)}}}',
    lambda text: text.replace('"schema":', '"schema" :', 1),
    lambda _: '{"schema":null,"payload":null}',
    lambda _: '{"ts_ms":1}',
    lambda _: "[]",
    lambda _: '{"status":"BEGIN","id":"1","event_count":null,"data_collections":null,"ts_ms":1}',
)


def test_what_is_damaged_is_refused_as_python_refuses_it(spark: SparkSession) -> None:
    whole = [_record(offset, "label", '"b"') for offset in range(1, 5)]
    messages: list[Message] = []
    for change in _CHANGES:
        for sample in whole:
            assert sample.key is not None
            assert sample.value is not None
            value = change(sample.value.decode())
            messages.append(_message(len(messages), sample.key, value))
        key = whole[0].key
        assert key is not None
        broken = change(key.decode())
        messages.append(_message(len(messages), broken, whole[0].value))
    wrong = _differing(spark, messages)
    assert not wrong, "\n".join(wrong[:40])


def test_a_value_that_was_not_sent_is_a_connectors_and_a_text_ticdcs_in_one_topic(
    spark: SparkSession,
) -> None:
    """TiCDC sends every value; the connector that wrote to the topic before it did not."""
    text = "__debezium_unavailable_value"
    codec = open_codec("debezium-json", options=CodecOptions(enable_tidb_extension=True))
    schema, row = TableSchema(_TABLE, (_ID, Column("words", ColumnType("text", sql="text")))), {"words": text}
    event = ChangeEvent(Op.INSERT, _TABLE, {"id": 7}, None, {"id": 7, **row}, 5, Position("", 0, 1), schema)
    sent = codec.encode(event, topic="t")
    assert sent is not None
    messages = [_record(6, "words", _dumped(text)), _message(7, sent.key, sent.value)]
    plan = debezium_json_plan(_TABLE, writers_of(messages))
    rows = decode_here(plan, messages)
    assert [one.raw["_kept"] for one in rows] == [["words"], None]
    assert (rows[1].after or {})["words"] == text


def test_ticdcs_watermarks_and_rows_are_read(spark: SparkSession) -> None:
    columns = (
        _ID,
        Column("n", ColumnType("varchar", length=9, sql="varchar(9)")),
    )
    codec = open_codec("debezium-json", options=CodecOptions(enable_tidb_extension=True))
    schema, at = TableSchema(_TABLE, columns), Position("", 0, 0)
    row: dict[str, Value] = {"id": 7, "n": "é\n"}
    events: list[ChangeEvent | WatermarkEvent] = [
        ChangeEvent(Op.INSERT, _TABLE, {"id": 7}, None, row, 1 << 40, at, schema),
        WatermarkEvent(2 << 40, at),
    ]
    records = [codec.encode(event, topic="t") for event in events]
    messages = [_message(n, one.key, one.value) for n, one in enumerate(records) if one is not None]
    plan = debezium_json_plan(_TABLE, writers_of(messages))
    found = decode_here(plan, messages)
    assert [(one.kind, one.commit_ts, one.after) for one in found] == [
        ("upsert", 1 << 40, row),
        ("watermark", 2 << 40, None),
    ]
