"""canal-json messages that are none: each is refused by name, whatever the bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.codecs.canal_json.rows import ROW, TS, decode_row, record_of, sent
from tidesink.codecs.canal_json.codec import CanalJsonCodec
from tidesink.errors import (
    DecodeError,
    FramingError,
    RowUnavailableError,
    SchemaMismatchError,
    ValueOutOfRangeError,
)


@pytest.mark.parametrize(
    ("value", "kind", "says"),
    [
        (None, FramingError, "has no value"),
        (b"", FramingError, "has no value"),
        (b"not json", FramingError, "not JSON"),
        (b'{"id":0', FramingError, "not JSON"),
        (b'{"id":0}{"id":0}', FramingError, "not JSON"),
        (b'{"table":"\xff\xfe"}', FramingError, "not JSON"),
        (b'{"table":"\\ud800"}', FramingError, "not JSON"),
        (b"[" * 200_000, FramingError, "not JSON"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, FramingError, "not JSON"),
        (b"[]", SchemaMismatchError, "Expected a JSON object, but got list"),
        (b"12", SchemaMismatchError, "Expected a JSON object, but got int"),
        (b"{}", SchemaMismatchError, "no 'type'"),
        (b"\x04\x22\x4d\x18rest", FramingError, "lz4 frame, but it is damaged"),
        (b'\x40x{"id":0,"database":"test","tabl', FramingError, "snappy block, but it is damaged"),
        (b'\xd8\x0a\xf0\x77{"id":0,"database"', FramingError, "no block of its size"),
        (b"\x00\x00\x00\x01\x02avro", FramingError, "protocol canal-json"),
    ],
)
def test_bytes_that_are_no_message(value: bytes | None, kind: type[DecodeError], says: str) -> None:
    with pytest.raises(kind, match=says) as caught:
        CanalJsonCodec().decode(record_of(value))
    assert caught.value.context.items() >= {"topic": "topic", "partition": 2, "offset": 17}.items()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"data": None}, "'data' must be a list"),
        ({"data": []}, "'data' must be a list"),
        ({"data": {"id": "1"}}, "'data' must be a list"),
        ({"data": [None]}, "not a JSON object"),
        ({"data": [{}]}, "not a JSON object"),
        ({"data": [{"id": "1", "a": 5}]}, "text or null, but this value is int"),
        ({"data": [{"id": 1, "a": "x"}]}, "text or null, but this value is int"),
        ({"data": [{"id": "1", "a": ["x"]}]}, "this value is list"),
        ({"data": [{"id": {"x": 1}, "a": "x"}]}, "this value is dict"),
        ({"data": [{"id": True, "a": "x"}]}, "this value is bool"),
        ({"database": ...}, "names no table"),
        ({"table": None}, "names no table"),
        ({"table": ""}, "names no table"),
        ({"database": 5}, "names no table"),
        ({"database": ["s"]}, "names no table"),
        ({"mysqlType": "int"}, "'mysqlType' must be a JSON object"),
        ({"mysqlType": {"id": 4}}, "'mysqlType' must be a JSON object"),
        ({"pkNames": "id"}, "'pkNames' must be a list"),
        ({"pkNames": [1]}, "'pkNames' must be a list"),
        ({"pkNames": ["id", "ID"]}, "'pkNames' contains the same column twice"),
        ({"type": "UPSERT"}, "Unknown message"),
        ({"type": 5}, "no 'type'"),
        ({"type": ["INSERT"]}, "no 'type'"),
        ({"type": "QUERY"}, "Unknown message"),
        ({"isDdl": True}, "Unknown message"),
        ({"isDdl": True, "type": "ALTER", "sql": None}, "must have the member 'sql'"),
        ({"isDdl": True, "type": "ALTER", "database": None}, "must have the member 'database'"),
        ({"type": "UPDATE"}, "'old'"),
        ({"type": "UPDATE", "old": []}, "'old'"),
        ({"type": "UPDATE", "old": [None]}, "'old' contains a row that is not a JSON object"),
        ({"type": "UPDATE", "old": [{"a": "x"}, {"a": "y"}]}, "'old'"),
        ({"type": "UPDATE", "old": [{"zz": "x"}]}, "'old' has a column"),
        ({"type": "UPDATE", "old": [{"a": 1}]}, "text or null"),
        ({"_tidb": 5}, "'_tidb' must be a JSON object"),
        ({"_tidb": {"commitTs": "5"}}, "unsigned integer"),
        ({"_tidb": {"commitTs": -5}}, "unsigned integer"),
        ({"_tidb": {"commitTs": 1.5}}, "unsigned integer"),
        ({"_tidb": {"commitTs": True}}, "unsigned integer"),
        ({"type": "TIDB_WATERMARK"}, "no '_tidb.watermarkTs'"),
        ({"type": "TIDB_WATERMARK", "_tidb": {"watermarkTs": "x"}}, "unsigned integer"),
    ],
)
def test_json_of_the_wrong_shape(changes: Mapping[str, Any], says: str) -> None:
    with pytest.raises(SchemaMismatchError, match=says):
        CanalJsonCodec().decode(sent(**changes))


def test_a_commit_ts_beyond_64_bits_is_refused_not_rounded() -> None:
    value = orjson.dumps(ROW)[:-1] + b',"_tidb":{"commitTs":18446744073709551616}}'
    with pytest.raises(SchemaMismatchError, match="unsigned integer"):
        CanalJsonCodec().decode(record_of(value))


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({"commitTs": TS, "onlyHandleKey": True}, "Set upstream-url"),
        ({"commitTs": TS, "claimCheckLocation": "file:///x/y.json"}, "Set claim-check-storage-uri"),
    ],
)
def test_rows_cut_down_are_refused_with_what_to_configure(members: dict[str, Any], says: str) -> None:
    with pytest.raises(RowUnavailableError, match=says):
        decode_row(_tidb=members)


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("tinyint", "128"),
        ("tinyint unsigned", "-1"),
        ("int", "2147483648"),
        ("bigint unsigned", "18446744073709551616"),
        ("bigint", "١٢"),
        ("int", "1_0"),
        ("int", " 1"),
        ("int", ""),
        ("double", "nan"),
        ("double", "1e999"),
        ("float", "3.5e38"),
        ("decimal", "1e5"),
        ("decimal(5,2)", "1234.00"),
        ("decimal(5,2)", "1.001"),
        ("date", "2020-1-1"),
        ("datetime", "2020-01-01T00:00:00"),
        ("datetime", "2020-01-01 24:00:00"),
        ("time", "839:00:00"),
        ("time", "1:00:00"),
        ("time", "10:60:00"),
        ("bit(3)", "8"),
        ("enum('a','b')", "3"),
        ("set('a','b')", "4"),
        ("blob", "€"),
        ("year", "99999"),
    ],
)
def test_a_value_out_of_range_names_its_column(word: str, text: str) -> None:
    with pytest.raises(ValueOutOfRangeError) as caught:
        decode_row(mysqlType={"id": "int", "a": word}, data=[{"id": "1", "a": text}])
    assert caught.value.context["column"] == "a"
    assert caught.value.context["offset"] == 17


@given(st.binary(max_size=80))
def test_any_bytes_are_decoded_or_refused(value: bytes) -> None:
    assert _context(value).get("offset", 17) == 17


def _context(value: bytes) -> Mapping[str, Any]:
    """The context of the error that decoding gives, or nothing where it gives none; other errors pass."""
    try:
        CanalJsonCodec().decode(record_of(value))
    except DecodeError as error:
        return error.context
    return {}


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["id", "a"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(
    st.sampled_from([*sorted(ROW), "_tidb"]), _JSON, st.sampled_from(["INSERT", "UPDATE", "DELETE", "ALTER"])
)
def test_any_member_of_any_shape_is_decoded_or_refused(member: str, value: Any, kind: str) -> None:
    text = json.dumps({**ROW, "type": kind, "old": ROW["data"], member: value}).encode()
    assert _context(text).get("topic", "topic") == "topic"
