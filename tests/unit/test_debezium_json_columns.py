"""What debezium-json's plans are made of, without Spark's JVM: heads, patterns, and what rows tell."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import pytest

from tidesink.codecs import open_codec
from tidesink.codecs.base import CodecOptions
from tidesink.codecs.columns_debezium_json_heads import MOST_HEADS, Heads
from tidesink.codecs.columns_debezium_json_judge import Judging, open_judge
from tidesink.codecs.columns_debezium_json_schema import Head, is_flattened_head, read_heads
from tidesink.codecs.debezium.inference import Told, first_row, told_column
from tidesink.events import ChangeEvent, Column, ColumnType, Message, Op, Position, TableId, TableSchema
from tidesink.typemap.target_schema import shape_of

Json = dict[str, Any]
_SOURCE: Final = {"connector": "mysql", "db": "shop", "table": "t"}


def _struct(*fields: Json, **members: object) -> Json:
    return {"type": "struct", "fields": list(fields), **members}


def _envelope(*columns: Json, source: tuple[str, ...] = ("connector", "db", "table")) -> Json:
    row = _struct(*columns, optional=True)
    named = _struct(*({"type": "string", "field": name} for name in source), field="source")
    return _struct(
        {**row, "field": "before"}, {**row, "field": "after"}, named, {"type": "string", "field": "op"}
    )


def _head(schema: Json) -> str:
    return f'{{"schema":{json.dumps(schema)},"payload":'


def _pattern(*columns: Json) -> re.Pattern[str]:
    (found,) = read_heads([_head(_envelope(*columns))], key=False).values()
    return _in_python(found.pattern)


def _in_python(pattern: str) -> re.Pattern[str]:
    """Python 3.10 has no possessive repetition, and spells the end of a text otherwise."""
    return re.compile(re.sub(r"(?<=[*?+}])\+(?!\?)", "", pattern).replace(r"\z", r"\Z"))


def _payload(text: str) -> str:
    source = json.dumps(_SOURCE, separators=(",", ":"))
    return f'{{"before":null,"after":{{"c":{text}}},"source":{source},"op":"c"}}'


@pytest.mark.parametrize(
    ("kind", "taken", "left"),
    [
        ("int32", ["1", "-2147483649", "null", "0"], ["01", "1.0", '"1"', "true", "1e3", "--1"]),
        ("string", ['"a"', '""', '"\\n"', '"é"', "null"], ["1", "a", '"\\ud800"', '"\n"', '"\\x"', '"a']),
        (
            "double",
            ["1", "1.5", "-1.5E10", "2.5E300", "4.9E-324"],
            ["1e400", "1.7E308", '"NaN"', "NaN", "1.", ".5"],
        ),
        ("float", ["1.5", "1E-45", "3.4E37"], ["1E39", "3.5E38", '"Infinity"']),
        ("boolean", ["true", "false"], ["1", '"true"', "True"]),
        ("bytes", ['"AA=="', '""', '"AAAA"'], ['"AA="', '"A-=="', "1", '" AA=="']),
    ],
)
def test_a_pattern_takes_what_the_schema_says_alone(kind: str, taken: list[str], left: list[str]) -> None:
    pattern = _pattern({"type": kind, "optional": True, "field": "c"})
    assert [text for text in taken if not pattern.match(_payload(text))] == []
    assert [text for text in left if pattern.match(_payload(text))] == []


def test_a_payload_of_another_form_is_not_the_patterns() -> None:
    pattern, whole = _pattern({"type": "int32", "field": "c"}), _payload("1")
    assert pattern.match(whole)
    for other in (whole + " ", whole[:-1], whole.replace(",", ", "), whole.replace('"c":1', '"c":1,"d":1')):
        assert not pattern.match(other)


def test_heads_that_the_jvm_does_not_read_are_left_out() -> None:
    documents = _envelope()
    documents["fields"][0] = documents["fields"][1] = {"type": "string", "field": "after"}
    flattened = _struct({"type": "int32", "field": "id"}, name="app.shop.t.Value")
    texts = [_head(_envelope()), _head(flattened), _head(documents), '{"schema":{"a,"payload":', _head({})]
    assert list(read_heads(texts, key=False)) == [0]
    assert [is_flattened_head(text) for text in texts] == [False, True, False, False, False]


def test_a_head_behind_the_payload_is_ticdcs() -> None:
    text = f',"schema":{json.dumps(_envelope(source=("connector", "commit_ts")))}}}'
    (found,) = read_heads([text], key=False).values()
    assert (found.head.before, found.head.behind, found.is_ticdc) == ('{"payload":', text, True)
    assert Head(text).schema() == found.connect


@pytest.mark.parametrize("extension", [False, True])
@pytest.mark.parametrize("start_ts", [False, True])
def test_ticdcs_rows_are_known_and_read_with_and_without_the_extension(
    extension: bool, start_ts: bool
) -> None:
    options = CodecOptions(enable_tidb_extension=extension, debezium_include_start_ts=start_ts)
    schema = TableSchema(TableId("shop", "t"), (Column("id", ColumnType("bigint"), handle=True),))
    extra = {"source": {"start_ts": 5}}
    event = ChangeEvent(
        Op.INSERT, schema.table, {"id": 1}, None, {"id": 1}, 9, Position("t", 0, 0), schema, None, extra
    )
    record = open_codec("debezium-json", options=options).encode(event, topic="t")
    assert record is not None
    assert record.value is not None
    payload, _, behind = record.value.decode().rpartition(',"schema":')
    (found,) = read_heads([f',"schema":{behind}'], key=False).values()
    assert found.is_ticdc
    assert _in_python(found.pattern).match(payload.removeprefix('{"payload":'))


def test_heads_are_kept_once_and_not_without_end() -> None:
    found = Heads(("a",), ("b",)).with_new(Heads(("a", "c"), tuple(map(str, range(2 * MOST_HEADS)))))
    assert found.key == ("a", "c")
    assert len(found.value) == MOST_HEADS
    assert found.value[0] == "b"


def test_a_told_column_comes_back_as_it_was() -> None:
    told = Told(Column("c", ColumnType("enum", members=("a", "b")), default="a"), guessed=False)
    assert told_column(told.text) == told


def _plain(row: Json, key: Json | None = None) -> Message:
    value = {"before": None, "after": row, "source": _SOURCE, "op": "c"}
    return Message(
        "app.shop.t",
        0,
        0,
        None if key is None else json.dumps(key).encode(),
        json.dumps(value).encode(),
    )


def test_columns_that_nothing_types_are_text() -> None:
    definition = TableSchema(TableId("shop", "t"), (Column("id", ColumnType("bigint")),))
    found = first_row([_plain({"id": 1, "n": 1.5}, {"id": 1})], CodecOptions(), definition)
    assert found is not None
    assert [(one.column.name, one.column.type.name, one.guessed) for one in found.columns] == [
        ("id", "bigint", False),
        ("n", "text", True),
    ]
    assert (found.table, found.keys, found.flattened) == (TableId("shop", "t"), ("id",), False)


def test_flattened_rows_are_told() -> None:
    message = Message("app.shop.t", 0, 0, b'{"id":1}', b'{"id":1,"__op":"c"}')
    found = first_row([Message("app.shop.t", 0, 0, None, b"no JSON"), message], CodecOptions())
    assert found is not None
    assert found.flattened


def _judging() -> Judging:
    columns = (Column("id", ColumnType("bigint"), handle=True), Column("n", ColumnType("text")))
    shape = shape_of(TableSchema(TableId("shop", "t"), columns))
    return Judging(shape, CodecOptions())


def _judged(row: Json, key: Json | None = None) -> Any:
    message = _plain(row, key)
    return open_judge(_judging())(message.topic, message.key, message.value)


def test_a_judged_row_comes_back_in_the_shapes_order() -> None:
    found = _judged({"n": 1.5, "id": 7}, {"id": 7})
    assert (found.kind, found.key, found.image) == (None, [b"\x017"], [b"\x017", b"\x011.5"])
    assert _judged({"id": 7}, {"id": 7}).image == [b"\x017", b"\5"]


def test_a_column_that_the_plan_lacks_is_told() -> None:
    found = _judged({"id": 7, "new": True}, {"id": 7})
    assert found.kind == "unplanned"
    assert [told_column(text).column.name for text in found.fields] == ["id", "new"]


def test_a_value_that_is_none_of_the_columns_is_a_bad_record() -> None:
    found = _judged({"id": "seven", "n": "a"})
    assert (found.kind, found.error) == ("bad", "SchemaMismatchError")
    assert "'id' is bigint" in found.reason


def test_half_a_surrogate_pair_is_a_bad_record() -> None:
    found = _judged({"id": 7, "n": "\ud800"}, {"id": 7})
    assert (found.kind, found.error) == ("bad", "SchemaMismatchError")
