"""Rows on both sides of DDL that changes what their texts mean: Spark reads each as the Python codec does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.full import FULL
from tests.spark.decoded import Decoded, Values, decode_here
from tidesink.codecs.canal_json.codec import CanalJsonCodec
from tidesink.ddl.catalog import TableDefinitions
from tidesink.events import ChangeEvent, Message, TableId, TableSchema
from tidesink.sinks.decode.canal_json import CanalJsonDecoder, canal_json_plan
from tidesink.sinks.decode.plans import DecodePlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = FULL

_TABLE: Final = TableId("shop", "t")
_MS: Final = 1 << 18
_TIMES: Final = (100 * _MS, 200 * _MS + 7, 300 * _MS)
_DDL: Final = (
    "CREATE TABLE t (k ENUM('a','b') PRIMARY KEY, e ENUM('x','y'), s SET('p','q','r'), w ENUM('u','v'), "
    "v VARCHAR(9), b VARBINARY(9), c VARCHAR(9), d DATE, n DECIMAL(9,4), i INT, z ENUM('m'))",
    "ALTER TABLE t MODIFY k ENUM('b','a'), MODIFY e ENUM('n','x','y'), MODIFY s SET('r','p','q'), "
    "MODIFY w VARCHAR(9), MODIFY v ENUM('s','t'), MODIFY b VARCHAR(9), MODIFY c VARBINARY(9), "
    "MODIFY d DATETIME, MODIFY n DECIMAL(9,2), MODIFY i BIGINT, MODIFY z ENUM('m','n')",
    "ALTER TABLE t MODIFY k ENUM('c','b','a'), MODIFY e ENUM('y'), MODIFY w SET('v','u'), "
    "MODIFY v VARCHAR(9), MODIFY n DECIMAL(6,2)",
)
# The texts of a row before the first change, between the two, and after them; and what TiDB held.
_ROWS: Final[tuple[tuple[Values, Values], ...]] = (
    (
        {"k": ("enum", "1"), "e": ("enum", "2"), "s": ("set", "5"), "w": ("enum", "2"), "v": ("varchar", "s"),
         "b": ("varbinary", "Ã©"), "c": ("varchar", "é"), "d": ("date", "2020-02-03"),
         "n": ("decimal", "1.2345"), "i": ("int", "-5"), "z": ("enum", "1")},
        {"k": "a", "e": "y", "s": "p,r", "w": "v", "v": "s", "b": "é", "c": "é".encode(),
         "d": datetime(2020, 2, 3), "n": Decimal("1.2345"), "i": -5, "z": "m"},
    ),
    (
        {"k": ("enum", "1"), "e": ("enum", "2"), "s": ("set", "5"), "w": ("varchar", "2"), "v": ("enum", "2"),
         "b": ("varchar", "Ã©"), "c": ("varbinary", "Ã©"), "d": ("datetime", "2020-02-03 04:05:06"),
         "n": ("decimal", "1.23"), "i": ("bigint", "5"), "z": ("enum", "2")},
        {"k": "b", "e": "x", "s": "r,q", "w": "2", "v": "t", "b": "Ã©", "c": "é".encode(),
         "d": datetime(2020, 2, 3, 4, 5, 6), "n": Decimal("1.2300"), "i": 5, "z": "n"},
    ),
    (
        {"k": ("enum", "1"), "e": ("enum", "1"), "s": ("set", "5"), "w": ("set", "3"), "v": ("varchar", "2"),
         "b": ("varchar", "é"), "c": ("varbinary", "\x00"), "d": ("datetime", "0000-00-00 00:00:00"),
         "n": ("decimal", "1.20"), "i": ("bigint", "5"), "z": ("enum", "0")},
        {"k": "c", "e": "y", "s": "r,q", "w": "v,u", "v": "2", "b": "é", "c": b"\x00",
         "d": None, "n": Decimal("1.2000"), "i": 5, "z": ""},
    ),
)  # fmt: skip


@pytest.fixture(scope="module")
def definitions() -> TableDefinitions:
    found = TableDefinitions()
    for sql, at in zip(_DDL, _TIMES, strict=True):
        found.apply(sql, "shop", since=at)
    return found


@pytest.fixture(scope="module")
def schema(definitions: TableDefinitions) -> TableSchema:
    found = definitions.get(_TABLE)
    assert found is not None
    return found


def _moments(number: int) -> Iterator[int]:
    """Commit ts a row of the part before, between or after can have: the first, one within, the last."""
    edges = (1, *_TIMES[1:], 400 * _MS)
    yield from (edges[number], edges[number] + _MS, edges[number + 1] - 1)


def _value(number: int, commit_ts: int, *, extension: bool, indent: int | None = None) -> bytes:
    texts, _ = _ROWS[number]
    message: dict[str, Any] = {
        "id": 0, "database": "shop", "table": "t", "pkNames": ["k"], "isDdl": False, "type": "UPDATE",
        "es": commit_ts >> 18, "ts": 1, "sql": "", "sqlType": {},
        "mysqlType": {name: word for name, (word, _) in texts.items()},
        "old": [{name: text for name, (_, text) in texts.items()} | {"k": "2"}],
        "data": [{name: text for name, (_, text) in texts.items()}],
    }  # fmt: skip
    if extension:
        message["_tidb"] = {"commitTs": commit_ts}
    separators = (",", ":") if indent is None else None
    return json.dumps(message, ensure_ascii=False, separators=separators, indent=indent).encode()


def _messages(*, extension: bool) -> dict[Message, int]:
    """Messages with the part of the story each is of; some not in TiCDC's form, which Python judges."""
    found: dict[Message, int] = {}
    for number in range(len(_ROWS)):
        for commit_ts in _moments(number):
            # Without the extension a whole millisecond is all that is informed of the time.
            at = commit_ts if extension else (commit_ts >> 18 << 18)
            part = number if extension else sum(at >> 18 >= since >> 18 for since in _TIMES[1:])
            for indent in (None, 1):
                value = _value(part, at, extension=extension, indent=indent)
                found[Message("cdc", 0, len(found), None, value)] = part
    return found


def _decoded(plan: DecodePlan, messages: list[Message], spark: SparkSession) -> dict[int, Decoded]:
    return {row.offset: row for row in decode_here(plan, messages)}


@pytest.mark.parametrize("extension", [True, False])
def test_each_row_is_read_by_the_types_of_its_time(
    spark: SparkSession, definitions: TableDefinitions, schema: TableSchema, extension: bool
) -> None:
    plan = canal_json_plan(schema)
    messages = _messages(extension=extension)
    found = _decoded(plan, list(messages), spark)
    codec = CanalJsonCodec(definitions=definitions)
    for message, part in messages.items():
        row, (_, held) = found[message.offset], _ROWS[part]
        assert (row.kind, row.reason) == ("upsert", None)
        assert row.after == held
        assert row.old_key == {"k": ("b", "a", "b")[part]}
        (event,) = codec.decode(message)
        assert isinstance(event, ChangeEvent)
        assert event.after is not None
        assert event.key == row.key == {"k": held["k"]}
        for name, value in event.after.items():
            stored = value.encode() if name == "c" and isinstance(value, str) else value
            stored = stored.decode() if name == "b" and isinstance(stored, bytes) else stored
            if name != "d":
                assert stored == held[name], name


def test_values_that_no_type_of_their_time_has_are_bad(spark: SparkSession, schema: TableSchema) -> None:
    def spoilt(number: int, name: str, text: str, word: str | None = None) -> Message:
        parsed = json.loads(_value(number, _TIMES[number] + 1, extension=True))
        parsed["data"][0][name] = text
        parsed["mysqlType"][name] = word or parsed["mysqlType"][name]
        value = json.dumps(parsed, separators=(",", ":"), ensure_ascii=False).encode()
        return Message("cdc", 0, 10 * number + len(name + text), None, value)

    messages = {
        "no enum": spoilt(0, "e", "3"),
        "no enum any more": spoilt(2, "e", "22"),
        "bytes that are no text": spoilt(0, "b", "ÿ1234"),
        "a number for a label": spoilt(1, "e", "2ab", "int"),
        "a label's number": spoilt(2, "i", "2", "enum"),
        "labels' number": spoilt(1, "n", "12", "set('a','b')"),
        "other members": spoilt(0, "s", "1234567", "set('r','p')"),
    }
    plan = canal_json_plan(schema)
    for why, message in messages.items():
        (row,) = _decoded(plan, [message], spark).values()
        assert row.kind == "bad", why


def test_a_full_type_word_comes_before_the_time(spark: SparkSession, schema: TableSchema) -> None:
    parsed = json.loads(_value(2, _TIMES[2] + 1, extension=True))
    parsed["mysqlType"]["e"] = "enum('x','y')"
    value = json.dumps(parsed, separators=(",", ":"), ensure_ascii=False).encode()
    (row,) = _decoded(canal_json_plan(schema), [Message("cdc", 0, 0, None, value)], spark).values()
    assert row.after is not None
    assert row.after["e"] == "x"


def test_columns_of_one_reading_ask_for_no_time(schema: TableSchema) -> None:
    def timed(schema: TableSchema) -> set[str]:
        decoder = canal_json_plan(schema).decoder
        assert isinstance(decoder, CanalJsonDecoder)
        return {column.name for column in decoder.schema.columns if column.earlier}

    definitions = TableDefinitions()
    definitions.apply("CREATE TABLE t (k INT PRIMARY KEY, e ENUM('x'), v VARCHAR(3))", "shop", since=1)
    alter = "ALTER TABLE t MODIFY e ENUM('x','y'), MODIFY v VARCHAR(9), MODIFY k BIGINT"
    definitions.apply(alter, "shop", since=2)
    once = definitions.get(_TABLE)
    assert once is not None
    assert {"k", "e"} < timed(schema) < set(schema.by_name)
    assert timed(once) == set()
