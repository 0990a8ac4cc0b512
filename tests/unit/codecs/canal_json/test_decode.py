"""Decoding canal-json messages of our own: shapes, errors, the order of types."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import orjson
import pytest

from tests.unit.codecs.canal_json.rows import ROW, TS, T, decode_row, record_of, sent
from tidesink.codecs import open_codec
from tidesink.codecs.canal_json.codec import CanalJsonCodec
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import UnnamedRowError
from tidesink.events import ChangeEvent, DdlEvent, Message, Op, Position, TableId, WatermarkEvent


def test_a_row_is_an_event_with_its_place_and_types() -> None:
    event = decode_row(_tidb={"commitTs": TS})
    assert (event.op, event.table, event.key) == (Op.INSERT, T, {"id": 1})
    assert (event.before, event.after) == (None, {"id": 1, "a": "x"})
    assert event.commit_ts == TS
    assert event.position == Position("topic", 2, 17, 0, (TS,))
    assert event.schema is not None
    assert [(c.name, c.type.name, c.handle, c.nullable) for c in event.schema.columns] == [
        ("id", "int", True, False),
        ("a", "varchar", False, True),
    ]


def test_several_rows_of_a_message_are_counted() -> None:
    message = sent(
        type="UPDATE", data=[{"id": "1", "a": "x"}, {"id": "2", "a": None}], old=[{"a": "w"}, {"a": "v"}]
    )
    events = [e for e in CanalJsonCodec().decode(message) if isinstance(e, ChangeEvent)]
    assert [(e.position.index, e.before, e.after) for e in events] == [
        (0, {"id": 1, "a": "w"}, {"id": 1, "a": "x"}),
        (1, {"id": 2, "a": "v"}, {"id": 2, "a": None}),
    ]


@pytest.mark.parametrize(
    ("old", "before"),
    [
        ({"id": "1", "a": "w"}, {"id": 1, "a": "w"}),
        ({"a": "w"}, {"id": 1, "a": "w"}),
        ({"a": None}, {"id": 1, "a": None}),
        ({}, {"id": 1, "a": "x"}),
    ],
)
def test_a_partial_old_row_is_completed(old: dict[str, Any], before: dict[str, Any]) -> None:
    assert decode_row(type="UPDATE", old=[old]).before == before


def test_a_delete_has_its_row_before() -> None:
    event = decode_row(type="DELETE")
    assert (event.before, event.after, event.key) == ({"id": 1, "a": "x"}, None, {"id": 1})


def test_the_literal_text_null_is_no_null() -> None:
    assert decode_row(data=[{"id": "1", "a": "null"}]).after == {"id": 1, "a": "null"}


def test_a_name_that_stands_twice_counts_as_its_last() -> None:
    value = orjson.dumps(ROW).replace(b'"a":"x"}]', b'"a":"x","a":"y"}]')
    (event,) = CanalJsonCodec().decode(record_of(value))
    assert isinstance(event, ChangeEvent)
    assert event.after == {"id": 1, "a": "y"}


def test_objects_joined_by_newlines_are_read_one_by_one() -> None:
    value = orjson.dumps(ROW) + b"\r\n" + orjson.dumps({**ROW, "data": [{"id": "2", "a": "\n"}]}) + b"\r\n"
    events = CanalJsonCodec().decode(record_of(value))
    assert [(e.position.index, e.after) for e in events if isinstance(e, ChangeEvent)] == [
        (0, {"id": 1, "a": "x"}),
        (1, {"id": 2, "a": "\n"}),
    ]


@pytest.mark.parametrize("pk_names", [[], None])
def test_a_table_without_a_primary_key_has_no_key(pk_names: object) -> None:
    assert decode_row(pkNames=pk_names).key is None


def test_keys_of_the_configuration_name_the_row() -> None:
    codec = CanalJsonCodec(keys={TableId("S", "T"): ["A"]})
    (event,) = codec.decode(sent(pkNames=[]))
    assert isinstance(event, ChangeEvent)
    assert event.key == {"a": "x"}
    with pytest.raises(UnnamedRowError, match="Key column a is NULL"):
        codec.decode(sent(pkNames=[], data=[{"id": "1", "a": None}]))


def test_ddl_and_watermark_are_events_of_their_own() -> None:
    query = "ALTER TABLE `s`.`t` ADD COLUMN `b` INT"
    (ddl,) = CanalJsonCodec().decode(
        sent(isDdl=True, type="ALTER", sql=query, data=None, mysqlType=None, _tidb={"commitTs": TS})
    )
    assert isinstance(ddl, DdlEvent)
    assert (ddl.table, ddl.query, ddl.kind, ddl.commit_ts) == (T, query, "ALTER", TS)
    (watermark,) = CanalJsonCodec().decode(
        sent(type="TIDB_WATERMARK", database="", table="", data=None, _tidb={"watermarkTs": 2**63 + 1})
    )
    assert watermark == WatermarkEvent(2**63 + 1, Position("topic", 2, 17, 0, (2**63 + 1,)))


def _value(word: str, text: str, *, definition: str | None = None, topic: str | None = None) -> object:
    definitions = TableDefinitions()
    if definition is not None:
        definitions.declare(f"create table t (id int primary key, a {definition})", "s")
    codec = CanalJsonCodec(definitions=definitions)
    if topic is not None:
        query = f"CREATE TABLE `s`.`t` (`id` INT PRIMARY KEY,`a` {topic})"
        codec.decode(sent(isDdl=True, type="CREATE", sql=query, data=None))
    (event,) = codec.decode(sent(mysqlType={"id": "int", "a": word}, data=[{"id": "1", "a": text}]))
    assert isinstance(event, ChangeEvent)
    assert event.after is not None
    return event.after["a"]


@pytest.mark.parametrize(
    ("word", "definition", "topic", "value"),
    [
        ("enum", None, None, 2),
        ("enum('x','y')", None, None, "y"),
        ("enum", None, "ENUM('p','q')", "q"),
        ("enum", "enum('d','e')", "ENUM('p','q')", "e"),
        ("enum", "enum('d','e')", None, "e"),
        # What the row itself says is never contradicted by an older or newer definition.
        ("enum('x','y')", "enum('d','e','f')", None, "y"),
        ("int", "enum('d','e')", None, 2),
        ("set", "set('d','e')", None, "e"),
        ("set", None, None, 2),
        ("hypercube", None, None, "2"),
        ("", None, None, "2"),
        ("", "int", None, 2),
    ],
)
def test_the_order_in_which_types_are_looked_for(
    word: str, definition: str | None, topic: str | None, value: object
) -> None:
    assert _value(word, "2", definition=definition, topic=topic) == value


def test_a_decimal_keeps_its_digits_where_no_precision_is_known() -> None:
    text = "-" + "9" * 35 + "." + "0" * 29 + "1"
    value = _value("decimal", text)
    assert isinstance(value, Decimal)
    assert format(value, "f") == text


def test_an_alter_changes_the_types_of_rows_after_it() -> None:
    codec = CanalJsonCodec()

    def decode(**changes: Any) -> Any:
        return codec.decode(sent(**changes))[0]

    decode(isDdl=True, type="CREATE", sql="CREATE TABLE `t` (`id` INT PRIMARY KEY,`a` ENUM('x'))", data=None)
    row: dict[str, Any] = {"mysqlType": {"id": "int", "a": "enum"}, "data": [{"id": "1", "a": "1"}]}
    assert decode(**row).after["a"] == "x"
    decode(isDdl=True, type="ALTER", sql="ALTER TABLE `t` MODIFY COLUMN `a` ENUM('z','x')", data=None)
    assert decode(**row).after["a"] == "z"


def test_ddl_that_cannot_be_read_is_kept_and_stops_nothing() -> None:
    codec = CanalJsonCodec()
    (event,) = codec.decode(sent(isDdl=True, type="CREATE", sql="CREATE TABLE t (a what)", data=None))
    assert isinstance(event, DdlEvent)
    assert list(codec.unread_ddl) == ["CREATE TABLE t (a what)"]


def test_the_codec_is_opened_by_name() -> None:
    assert open_codec("canal-json").name == "canal-json"


BEFORE, AFTER = TS, TS + (1 << 18)
ENUMS = ("CREATE TABLE t (id INT PRIMARY KEY, a ENUM('x','y'))", "ALTER TABLE t MODIFY a ENUM('y','x')")


def _ddl_at(sql: str, commit_ts: int, **more: Any) -> Message:
    return sent(isDdl=True, type="ALTER", sql=sql, data=None, pkNames=None, es=commit_ts >> 18, **more)


def _label(codec: CanalJsonCodec, **row: Any) -> object:
    row = {"mysqlType": {"id": "int", "a": "enum"}, "data": [{"id": "1", "a": "1"}], **row}
    (event,) = codec.decode(sent(**row))
    assert isinstance(event, ChangeEvent)
    assert event.after is not None
    return event.after["a"]


@pytest.mark.parametrize("extension", [True, False])
def test_a_row_is_read_by_the_definition_of_its_time(extension: bool) -> None:
    codec = CanalJsonCodec()

    def said(commit_ts: int) -> dict[str, Any]:
        return {"_tidb": {"commitTs": commit_ts}} if extension else {}

    codec.decode(_ddl_at(ENUMS[0], BEFORE - (9 << 18), **said(BEFORE - (9 << 18))))
    assert _label(codec, **said(BEFORE)) == "x"
    codec.decode(_ddl_at(ENUMS[1], AFTER, **said(AFTER)))
    # Read behind the DDL, and written before it: another partition, or sent again.
    assert _label(codec, es=BEFORE >> 18, **said(BEFORE)) == "x"
    assert _label(codec, es=AFTER >> 18, **said(AFTER)) == "y"
    assert _label(codec, es=BEFORE >> 18, **said(BEFORE)) == "x"
    # In the DDL's own millisecond only a commit ts says which came first.
    assert _label(codec, es=AFTER >> 18, **said(AFTER - 1)) == ("x" if extension else "y")
    assert _label(codec, es=...) == "y"


def test_a_full_type_word_comes_before_the_time() -> None:
    codec = CanalJsonCodec()
    codec.decode(_ddl_at(ENUMS[0], BEFORE))
    codec.decode(_ddl_at(ENUMS[1], AFTER))
    full = {"id": "int", "a": "enum('p','q')"}
    assert [_label(codec, mysqlType=full, es=at >> 18) for at in (BEFORE, AFTER)] == ["p", "p"]


def test_rows_from_before_a_column_was_renamed_or_its_table_dropped_have_its_labels() -> None:
    codec = CanalJsonCodec()
    codec.decode(_ddl_at(ENUMS[0], BEFORE))
    codec.decode(_ddl_at("ALTER TABLE t RENAME COLUMN a TO b", AFTER))
    assert _label(codec, es=BEFORE >> 18) == "x"
    codec.decode(_ddl_at("DROP TABLE t", AFTER))
    assert _label(codec, es=BEFORE >> 18) == "x"


def test_a_label_is_encoded_as_the_number_of_its_time() -> None:
    codec = CanalJsonCodec()
    codec.decode(_ddl_at(ENUMS[0], BEFORE))
    codec.decode(_ddl_at(ENUMS[1], AFTER))
    for commit_ts, number in ((BEFORE, "1"), (AFTER, "2")):
        event = ChangeEvent(
            Op.INSERT, T, {"id": 1}, None, {"id": 1, "a": "x"}, commit_ts, Position("topic", 0, 0)
        )
        record = codec.encode(event, topic="topic")
        assert record is not None
        assert record.value is not None
        assert orjson.loads(record.value)["data"] == [{"id": "1", "a": number}]


def test_the_columns_of_an_event_keep_their_first_default() -> None:
    codec = CanalJsonCodec()
    codec.decode(_ddl_at("CREATE TABLE t (id INT PRIMARY KEY)", BEFORE))
    codec.decode(_ddl_at("ALTER TABLE t ADD a INT DEFAULT 5", BEFORE + 1))
    codec.decode(_ddl_at("ALTER TABLE t ALTER a SET DEFAULT 9", AFTER))
    (event,) = codec.decode(sent(mysqlType={"id": "int", "a": "int"}, data=[{"id": "1", "a": "1"}]))
    assert isinstance(event, ChangeEvent)
    assert event.schema is not None
    column = event.schema.by_name["a"]
    assert (column.default, column.backfill) == ("9", "5")
