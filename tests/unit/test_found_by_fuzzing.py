"""What the fuzzers found (``tests/fuzz``), each as small as it can be."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pytest

from tidesink.cli.json_lines import event_json, read_capture
from tidesink.codecs import open_codec
from tidesink.codecs.base import MOST_LEVELS, Codec, header, is_deep
from tidesink.codecs.debezium.codec import DebeziumJsonCodec
from tidesink.codecs.debezium.connect_schema import connect_schema_of_avro
from tidesink.codecs.debezium.formats import JsonParser
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import ConfigError, EncodeError, SchemaMismatchError, ValueOutOfRangeError, shown
from tidesink.events import ChangeEvent, DdlEvent, Message, Op, Position, TableId, Value
from tidesink.schema_registry import MemorySchemaRegistry
from tidesink.typemap.mysql_types import parse_sql_type

SOURCE = {"connector": "TiCDC", "db": "a", "table": "b", "commit_ts": 5}
CANAL = {
    **{"id": 0, "database": "s", "table": "t", "pkNames": ["id"], "isDdl": False, "type": "INSERT"},
    **{"es": 5, "ts": 6, "sql": "", "mysqlType": {"id": "int"}, "old": None, "data": [{"id": "1"}]},
}
NESTED: dict[str, tuple[str, dict[str, Any]]] = {
    "DDL's source": ("debezium-json", {"source": {**SOURCE, "x": 0}, "ddl": "x", "tableChanges": []}),
    "DDL's changes": ("debezium-json", {"source": SOURCE, "ddl": "x", "tableChanges": [{"x": 0}]}),
    "row's source": ("debezium-json", {"source": {**SOURCE, "x": 0}, "op": "c", "after": {"id": 1}}),
    "row's transaction": (
        "debezium-json",
        {"source": SOURCE, "op": "c", "after": {"id": 1}, "transaction": 0},
    ),
    "transaction": ("debezium-json", {"status": "BEGIN", "id": "x", "ts_ms": 0}),
    "canal's extension": ("canal-json", {**CANAL, "_tidb": {"commitTs": 5, "x": 0}}),
    "canal's es": ("canal-json", {**CANAL, "es": 0}),
    "canal's DDL": (
        "canal-json",
        {**CANAL, "isDdl": True, "type": "ALTER", "sql": "x", "data": None, "es": 0},
    ),
}


def _filled(value: Any, deep: Any) -> Any:
    """The value with each 0 replaced."""
    if isinstance(value, dict):
        return {
            name: deep if one == 0 and name in _HOLES else _filled(one, deep) for name, one in value.items()
        }
    return [_filled(one, deep) for one in value] if isinstance(value, list) else value


_HOLES = frozenset({"x", "transaction", "ts_ms", "es"})


def _nested(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


def _decoded(codec: Codec, value: Any) -> list[bytes]:
    events = codec.decode(Message("t", 0, 7, None, orjson.dumps(value)))
    return [orjson.dumps(event_json(event)) for event in events]


@pytest.mark.parametrize(("protocol", "value"), NESTED.values(), ids=NESTED)
def test_members_kept_as_they_are_are_not_nested_without_end(protocol: str, value: dict[str, Any]) -> None:
    """What orjson and Python cannot write was decoded, and ``tidesink decode`` ended with a traceback."""
    assert _decoded(open_codec(protocol), _filled(value, _nested(MOST_LEVELS // 2)))
    with pytest.raises(SchemaMismatchError, match="nested deeper"):
        _decoded(open_codec(protocol), _filled(value, _nested(200)))


def test_depth_is_counted_in_levels() -> None:
    assert not is_deep(1)
    assert not is_deep(_nested(3), most=3)
    assert is_deep(_nested(4), most=3)


def test_table_changes_of_any_content_are_written_or_refused() -> None:
    position = Position("t", 0, 0)
    codec = open_codec("debezium-json")

    def written(changes: Any) -> Any:
        event = DdlEvent(TableId("a", "b"), "x", "ALTER", 5, position, {"tableChanges": changes})
        encoded = codec.encode(event, topic="t")
        assert encoded is not None
        assert encoded.value is not None
        return json.loads(encoded.value)["payload"]["tableChanges"]

    record = {"payload": {"source": SOURCE, "ddl": "x", "tableChanges": [{"x": 1.5}]}}
    (event,) = codec.decode(Message("t", 0, 0, None, orjson.dumps(record)))
    assert isinstance(event, DdlEvent)
    assert written((event.extension or {})["tableChanges"]) == [{"x": 1.5}]
    with pytest.raises(EncodeError, match="JSON has no type"):
        written([{"x": b"1"}])
    with pytest.raises(EncodeError, match="tableChanges"):
        written([_nested(900)])


def test_an_avro_record_without_a_name_is_refused() -> None:
    with pytest.raises(SchemaMismatchError, match="has no name"):
        connect_schema_of_avro({"type": "record", "fields": []})


def test_a_value_too_deep_to_be_shown_is_told_all_the_same() -> None:
    assert shown(orjson.loads("[" * 1020 + "]" * 1020)) == "list nested too deep to be shown"


def test_a_damaged_gzip_file_is_told(tmp_path: Path) -> None:
    whole = gzip.compress(b'{"topic": "t"}\n' * 99)
    file = tmp_path / "capture.gz"
    file.write_bytes(whole[:10] + b"\xff" * 20 + whole[30:])
    with pytest.raises(ConfigError, match="cannot be read after line"):
        list(read_capture(str(file)))


@pytest.mark.parametrize(
    "empty",
    [
        "null",
        {"type": "null"},
        {"type": "record", "name": "Z", "fields": []},
        {"type": "record", "name": "Z", "fields": [{"name": "q", "type": "null"}]},
        {"type": "fixed", "name": "F", "size": 0},
        {"type": "array", "items": {"type": "fixed", "name": "F"}},
    ],
)
@pytest.mark.parametrize("place", ["field", "array", "map", "union"])
def test_no_part_of_an_avro_schema_takes_no_bytes(empty: Any, place: str) -> None:
    """Records of records of nothing doubled at each level: no bytes at all became gigabytes."""
    around = {
        "field": empty,
        "array": {"type": "array", "items": empty},
        "map": {"type": "map", "values": empty},
        "union": ["null", empty if empty != "null" else {"type": "null"}],
    }
    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": around[place]}]}
    codec = open_codec("debezium-avro", registry=MemorySchemaRegistry({1: json.dumps(schema)}))
    with pytest.raises(SchemaMismatchError, match="A part of the Avro schema is stored in no bytes"):
        codec.decode(Message("t", 0, 0, None, header(1) + b"\xfe\xff\xff\xff\xff\x0f" * 3))


def test_a_key_under_a_values_schema_is_refused() -> None:
    """Its extension came out as a column, which nothing could show."""
    fields = [
        {"name": "id", "type": {"type": "int", "connect.parameters": {"tidb_type": "INT"}}},
        {"name": "_tidb_op", "type": "string"},
        {"name": "_tidb_commit_ts", "type": "long"},
        {"name": "_tidb_commit_physical_time", "type": "long"},
    ]
    schema = {"type": "record", "name": "t", "namespace": "default.s", "fields": fields}
    codec = open_codec("flat-avro", registry=MemorySchemaRegistry({1: json.dumps(schema)}))
    (event,) = codec.decode(Message("t", 0, 0, None, header(1) + b"\x02\x02c\x02\x02"))
    assert isinstance(event, ChangeEvent)
    with pytest.raises(SchemaMismatchError, match="refers to the schema of a value"):
        codec.decode(Message("t", 0, 0, header(1) + b"\x02\x02c\x02\x02", None))


@pytest.mark.parametrize("number", ["1e300", "-1e39", "1" + "0" * 400, "1e400"])
def test_a_number_beyond_a_float_is_refused(number: str) -> None:
    """It was decoded, and then could not be shown."""
    definitions = TableDefinitions()
    definitions.declare("CREATE TABLE a.b (id INT PRIMARY KEY, f FLOAT)")
    codec = open_codec("debezium-json", definitions=definitions)
    row = f'{{"source":{json.dumps(SOURCE)},"op":"c","after":{{"id":1,"f":{number}}}}}'
    with pytest.raises(ValueOutOfRangeError, match="is not a valid"):
        codec.decode(Message("t", 0, 0, None, row.encode()))


# Each of them took minutes or gigabytes, or ended in a ValueError.
_STATEMENTS = {
    "parentheses": "CREATE TABLE t (a int default " + "(" * 50_000 + "1" + ")" * 50_000 + ")",
    "comments": "/*!" * 50_000 + "CREATE TABLE t (a int)",
    "comment": "CREATE TABLE t (a int) /* and so on",
    "exponent": "CREATE TABLE t (a decimal(10,2) default 1e999999999)",
    "huge exponent": "CREATE TABLE t (a decimal(10,2) default 1e99999999999999999999999)",
    "argument": f"CREATE TABLE t (a decimal({'9' * 5000}))",
    "fraction": "CREATE TABLE t (a decimal(1.5))",
    "bits": "CREATE TABLE t (a bit(8) default 1.5)",
    "many bits": f"CREATE TABLE t (a bit(8) default {'9' * 5000})",
    "label": "CREATE TABLE t (a enum('x') default 1.5)",
    "hex": "CREATE TABLE t (a int default 0x" + "f" * 50_000 + ")",
    "scale": "ALTER TABLE s.t ADD COLUMN a decimal(5,999999999) not null",
    "fraction of a second": "ALTER TABLE s.t ADD COLUMN a timestamp(999999999) not null",
    "width": "ALTER TABLE s.t ADD COLUMN a binary(999999999) not null",
    "name": "CREATE TABLE " + "a." * 50_000 + "a (a int)",
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("statement", _STATEMENTS.values(), ids=_STATEMENTS)
def test_no_statement_takes_for_ever(statement: str) -> None:
    definitions = TableDefinitions()
    definitions.declare("CREATE TABLE s.t (id INT PRIMARY KEY)")
    reported = ""
    try:
        definitions.apply(statement, "s")
    except ConfigError as error:
        reported = str(error)
    assert len(reported) < 1000


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text",
    [
        "int" + " " * 50_000 + "!",
        "a " * 50_000 + "!",
        "int" + " unsigned" * 20_000 + "!",
        " unsigned" * 20_000 + "!",
        "decimal" + "(" * 20_000 + ")" * 20_000,
        "x" * 50_000,
    ],
)
def test_no_type_takes_for_ever(text: str) -> None:
    """canal-json's ``mysqlType`` is such a text; the spaces were tried in every way."""
    with pytest.raises(ConfigError) as refused:
        parse_sql_type(text)
    assert len(str(refused.value)) < 2000


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("bigint\tunsigned", "bigint unsigned"),
        ("BIGINT(20)UNSIGNED", "bigint unsigned"),
        ("int (10)  unsigned\tzerofill ", "int unsigned"),
        (" double  precision", "double"),
        ("enum ('a)','b')", "enum"),
    ],
)
def test_types_are_spelt_with_spaces_as_before(text: str, name: str) -> None:
    assert parse_sql_type(text).name == name


def test_a_schema_nested_too_deep_is_kept_as_a_text() -> None:
    deep = '{"type":"array","items":' * 20_000 + '"int"' + "}" * 20_000
    for protocol in ("debezium-avro", "flat-avro"):
        codec = open_codec(protocol, registry=MemorySchemaRegistry({1: deep}))
        with pytest.raises(SchemaMismatchError):
            codec.decode(Message("t", 0, 0, None, header(1) + b"\x02"))


_NO_VALUES = [
    *[("decimal(10,2)", Decimal(text)) for text in ("1e999999999", "1e-999999999", "1e99999", "sNaN")],
    *[("bit(9)", 2**70), ("bit(9)", -1), ("bit", 2), ("int", 2**70), ("bigint unsigned", -1)],
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("kind", "value"), _NO_VALUES)
@pytest.mark.parametrize("protocol", ["debezium-json", "debezium-avro", "flat-avro", "canal-json"])
def test_what_a_column_cannot_hold_is_not_written(protocol: str, kind: str, value: Value) -> None:
    """Some were written as another number, some took minutes, some ended in an OverflowError."""
    definitions = TableDefinitions()
    definitions.declare(f"CREATE TABLE s.t (id INT PRIMARY KEY, v {kind})")
    schema = definitions.get(TableId("s", "t"))
    row: dict[str, Value] = {"id": 1, "v": value}
    event = ChangeEvent(Op.INSERT, TableId("s", "t"), {"id": 1}, None, row, 5, Position("t", 0, 0), schema)
    codec = open_codec(protocol, registry=MemorySchemaRegistry(), definitions=definitions)
    with pytest.raises(EncodeError, match=r"is no|does not have the field's type"):
        codec.encode(event, topic="t")


def test_what_debezium_json_keeps_is_bounded() -> None:
    """A schema is kept by its text, and so is DDL that cannot be read: neither without end."""
    parser = JsonParser()
    empty = '{"schema":{"type":"struct","fields":[],"doc":"%s"},"payload":{}}'
    for at in range(20):
        for part in (empty, '{"payload":{},"schema":{"type":"struct","fields":[],"doc":"%s"}}'):
            text = part % (str(at % 10) * (4 << 20))
            assert parser.read(Message(f"t{at}", 0, 0, None, text.encode()), "value") is not None
        kept = [*parser._tails, *(text for text, _ in parser._heads.values())]
        assert sum(map(len, kept)) < 160 << 20
    codec = DebeziumJsonCodec()
    for at in range(1100):
        ddl = {"source": SOURCE, "ddl": f"CREATE TABLE t{at} (", "tableChanges": []}
        codec.decode(Message("t", 0, 0, None, orjson.dumps(ddl)))
    assert len(codec.unread_ddl) == 1000
