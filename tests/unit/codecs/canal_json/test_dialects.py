"""canal-json that TiCDC's documentation does not describe: bytes as UTF-8, and the dialects of others."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from tests.decoded_batches import as_records, assert_same, by_record
from tests.unit.config.samples import CANAL_JSON, FLAT_AVRO, changed, right, wrong
from tidesink.codecs.batch import ValueOptions, rows_from_events
from tidesink.codecs.canal_json.codec import CanalJsonCodec
from tidesink.codecs.options import BinaryText, CanalJsonOptions
from tidesink.errors import DecodeError, SchemaMismatchError, ValueOutOfRangeError
from tidesink.events import ChangeEvent, Message

ROW: Final[dict[str, Any]] = {
    "id": 0, "database": "shop", "table": "t", "pkNames": ["id"], "isDdl": False, "type": "INSERT",
    "es": 1700000000000, "ts": 1700000000500, "sql": "", "sqlType": {"id": 4, "a": 2004},
    "mysqlType": {"id": "int", "a": "longblob"}, "old": None, "data": [{"id": "1", "a": "x"}],
}  # fmt: skip


def _message(value: object, *, at: int = 0) -> Message:
    return Message("cdc", 0, at, None, json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def _blob(text: str | None, word: str = "longblob", *, at: int = 0) -> Message:
    return _message({**ROW, "mysqlType": {"id": "int", "a": word}, "data": [{"id": "1", "a": text}]}, at=at)


def _codec(binary_text: BinaryText) -> CanalJsonCodec:
    return CanalJsonCodec(options=CanalJsonOptions(binary_text=binary_text))


def _value(message: Message, binary_text: BinaryText) -> object:
    (event,) = _codec(binary_text).decode(message)
    assert isinstance(event, ChangeEvent)
    assert event.after is not None
    return event.after["a"]


@pytest.mark.parametrize("word", ["longblob", "tinyblob", "blob", "varbinary", "binary", "varbinary(9)"])
@pytest.mark.parametrize(
    ("text", "as_latin1", "as_utf8"),
    [
        ("é", b"\xe9", b"\xc3\xa9"),
        ("中", None, b"\xe4\xb8\xad"),
        ("😀a", None, b"\xf0\x9f\x98\x80a"),
        ("\x00\x7f", b"\x00\x7f", b"\x00\x7f"),
        ("", b"", b""),
        ("a\ufffd", None, None),
    ],
)
def test_a_binary_column_is_read_as_the_setting_says(
    text: str, as_latin1: bytes | None, as_utf8: bytes | None, word: str
) -> None:
    readings: dict[BinaryText, bytes | None] = {"iso-8859-1": as_latin1, "utf-8": as_utf8}
    for binary_text, expected in readings.items():
        if expected is not None:
            assert _value(_blob(text, word), binary_text) == expected
            continue
        with pytest.raises(ValueOutOfRangeError, match=r"ISO-8859-1") as refused:
            _value(_blob(text, word), binary_text)
        assert text not in refused.value.message


def test_a_record_that_proves_the_other_rule_says_so() -> None:
    with pytest.raises(
        ValueOutOfRangeError, match=r"5\.3 and 7\.5\.4 .*set binary-text: utf-8 .*load"
    ) as refused:
        _value(_blob("中"), "iso-8859-1")
    assert refused.value.context["column"] == "a"
    with pytest.raises(ValueOutOfRangeError, match=r"U\+FFFD, .*These bytes are lost"):
        _value(_blob("\ufffdz"), "utf-8")


@pytest.mark.parametrize("binary_text", ["iso-8859-1", "utf-8"])
def test_columns_read_bytes_as_the_row_codec_does(binary_text: BinaryText) -> None:
    texts = ("é", "中", "\ufffd", "", None, "ÿ\x80", "a😀", "\\")
    records = as_records(_blob(text, at=at) for at, text in enumerate(texts))
    found = _codec(binary_text).decode_batch(records)
    assert_same(found, rows_from_events(records, _codec(binary_text).decode, ValueOptions()))
    assert len(by_record(found)) == len(texts) - (1 if binary_text == "utf-8" else 3)


def test_text_columns_are_not_read_by_the_rule_for_bytes() -> None:
    assert _value(_blob("\ufffd é", "varchar"), "utf-8") == "\ufffd é"


def test_the_setting_is_canal_jsons() -> None:
    assert right(CANAL_JSON).source.options_of(CanalJsonOptions).binary_text == "iso-8859-1"
    found = changed(CANAL_JSON, source__binary_text="utf-8")
    assert right(found).source.options_of(CanalJsonOptions).binary_text == "utf-8"
    assert "source.binary-text" in wrong(changed(FLAT_AVRO, source__binary_text="utf-8"))
    found["source"] |= {"large-message-handle-option": "handle-key-only", "enable-tidb-extension": True}
    assert "handle-key-only" in str(wrong(found)["source.binary-text"])


FLINK_CDC: Final = {
    "type": "INSERT",
    "database": "shop",
    "table": "s",
    "pkNames": ["id"],
    "ts": 1700000000000,
}
MAXWELL: Final = {"database": "shop", "table": "s", "type": "insert", "ts": 1, "data": {"id": 8, "a": "x"}}
DEBEZIUM: Final = {"before": None, "after": {"id": 1}, "source": {"db": "shop"}, "op": "c"}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"data": [{"id": 101, "name": "car"}], "type": "INSERT"}, "as Flink's canal-json format writes it"),
        ({"data": [{"id": "101"}], "type": "DELETE"}, "as Flink's canal-json format writes it"),
        ({**FLINK_CDC, "old": None, "data": [{"id": 8, "age": 30}]}, "of a Flink CDC pipeline"),
        ({**FLINK_CDC, "type": "DELETE", "old": [{"id": 8}], "data": None}, "of a Flink CDC pipeline"),
        ({**FLINK_CDC, "database": None, "old": None, "data": [{"id": "8"}]}, "of a Flink CDC pipeline"),
        ({**FLINK_CDC, "type": "UPDATE", "old": [{"id": 8}], "data": [{"id": 8}]}, "of a Flink CDC pipeline"),
        ({**MAXWELL, "xid": 7, "commit": True}, "comes from Maxwell"),
        ({**MAXWELL, "type": "update", "xid": 7, "xoffset": 1, "old": {"a": "y"}}, "comes from Maxwell"),
        ({**MAXWELL, "type": "delete", "xid": 7, "commit": True}, "comes from Maxwell"),
        ({**MAXWELL, "type": "bootstrap-start", "data": {}}, "comes from Maxwell"),
        ({**MAXWELL, "type": "bootstrap-insert"}, "comes from Maxwell"),
        (DEBEZIUM, "Set protocol: debezium-json"),
        ({"schema": {}, "payload": DEBEZIUM}, "Set protocol: debezium-json"),
        ({"schema": {"type": "struct"}, "payload": {"id": 1, "name": "x"}}, "JsonConverter writes it"),
        ({"schema": None, "payload": ROW}, "ByteArrayConverter"),
        ({"payload": json.dumps(ROW), "schema": {"type": "string"}}, "ByteArrayConverter"),
        ({"schema": {"type": "struct"}, "payload": None}, "set protocol: debezium-json"),
        ({"id": 1, "name": "x", "__deleted": "false"}, "ExtractNewRecordState flattened"),
        ({**ROW, "data": [{"id": 1, "a": "x"}]}, "another program wrote or changed the message"),
        ({**ROW, "data": [{"id": 1.5, "a": "x"}]}, "another program wrote or changed the message"),
    ],
)
def test_the_reason_says_whose_dialect_it_is(value: dict[str, Any], says: str) -> None:
    with pytest.raises(SchemaMismatchError, match=says) as refused:
        CanalJsonCodec().decode(_message(value, at=7))
    assert refused.value.context["offset"] == 7


def test_several_rows_of_alibabas_canal_are_as_many_events() -> None:
    events = CanalJsonCodec().decode(
        _message({**ROW, "data": [{"id": "1", "a": "x"}, {"id": "2", "a": "y"}]})
    )
    assert [event.after for event in events if isinstance(event, ChangeEvent)] == [
        {"id": 1, "a": b"x"},
        {"id": 2, "a": b"y"},
    ]


@pytest.mark.parametrize(
    "value",
    [
        {**ROW, "data": None},
        {**ROW, "type": "OTHER"},
        # Neither form is Flink's or Maxwell's.
        {"data": [{"id": 8}], "type": "OTHER", "database": "shop", "table": "s"},
        {"data": [{"id": 8}], "type": "INSERT", "database": "shop", "table": "s", "xid": 7},
        {"data": {"id": 8}, "type": "INSERT", "database": "shop", "table": "s"},
        {"data": [{"id": 8}], "type": "insert", "database": "shop", "table": "s"},
        {"type": "insert", "database": "shop", "table": "s"},
        {"data": [{"id": 8}], "type": ["INSERT"], "database": "shop", "table": "s"},
        [],
        5,
    ],
)
def test_what_is_no_known_dialect_keeps_its_own_reason(value: Any) -> None:
    with pytest.raises(DecodeError) as refused:
        CanalJsonCodec().decode(_message(value))
    assert "Flink" not in refused.value.message
    assert "Maxwell" not in refused.value.message
