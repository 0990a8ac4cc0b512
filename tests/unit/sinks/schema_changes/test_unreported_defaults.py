"""Columns that are added with values that no event tells: rows from before are NULL, with a warning."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from tidesink.codecs import open_codec
from tidesink.codecs.debezium.connect_schema import ConnectSchema, connect_schema_of_json
from tidesink.codecs.debezium.envelope import Rows
from tidesink.codecs.options import DebeziumOptions
from tidesink.ddl.catalog import TableDefinitions, read_postgres_tables
from tidesink.ddl.row_changes import DdlEffects, RowDdl
from tidesink.ddl.topic_statements import DdlStatement, learn
from tidesink.events import UNKNOWN_DEFAULT, Column, Message, TableId, TableSchema
from tidesink.sinks.schema_changes.connector_topic import statements
from tidesink.sinks.targets.column_changes import default_texts
from tidesink.typemap.target_schema import merge_schemas, shape_of, with_defaults

T: Final = TableId("public", "t")
_UUID: Final = "io.debezium.data.Uuid"
_JSON: Final = "io.debezium.data.Json"
_DECIMAL: Final = {"name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}}


def _envelope(connector: str, **fields: dict[str, Any]) -> ConnectSchema:
    columns = [{"type": "int32", "optional": False, "field": "id"}]
    columns += [{"optional": False, **said, "field": name} for name, said in fields.items()]
    row = {"type": "struct", "optional": True, "name": "app.public.t.Value", "fields": columns}
    source = {"type": "struct", "optional": False, "fields": [], "field": "source"}
    source["name"] = f"io.debezium.connector.{connector}.Source"
    parts = [{**row, "field": "before"}, {**row, "field": "after"}, source]
    return connect_schema_of_json({"type": "struct", "optional": False, "name": "E", "fields": parts})


def _columns(schema: ConnectSchema) -> dict[str, Column]:
    row = schema.field("after")
    assert row is not None
    rows = Rows(DebeziumOptions().debezium, TableDefinitions())
    return {column.name: column for column in rows.shape(row, T).columns}


def _filled(columns: dict[str, Column]) -> tuple[dict[str, str], tuple[str, ...]]:
    """What old rows get, and what is said, where all columns but ``id`` are added."""
    schema = TableSchema(T, tuple(columns.values()))
    shape = shape_of(schema, keys=("id",))
    return default_texts(tuple(column for column in shape.columns if not column.key), shape)


ZEROS: Final[dict[str, dict[str, Any]]] = {
    "n": {"type": "int64", "default": 0},
    "u": {"type": "string", "name": _UUID, "default": ""},
    "t": {"type": "string", "default": ""},
    "f": {"type": "double", "default": 0.0},
    "b": {"type": "boolean", "default": False},
    "d": {"type": "bytes", **_DECIMAL, "default": "AA=="},
    "y": {"type": "bytes", "default": ""},
    "j": {"type": "string", "name": _JSON, "default": "{}"},
}


def test_postgres_writes_zeros_for_what_the_database_computes() -> None:
    """bigserial, gen_random_uuid(), nextval: old rows have values of their own, which are no zeros."""
    columns = _columns(_envelope("postgresql", **ZEROS))
    assert {column.backfill for name, column in columns.items() if name != "id"} == {UNKNOWN_DEFAULT}
    defaults, warnings = _filled(columns)
    assert (defaults, len(warnings)) == ({}, len(ZEROS))
    assert all(
        "NULL at the target until a resync loads them (`tidesink resync TABLE`)" in one for one in warnings
    )
    assert columns["n"].default == "0"  # as the schema has it


def test_other_zeros_are_told() -> None:
    """A nullable column of Postgres has no default that is made up, nor has one of MySQL."""
    nullable = {name: {**said, "optional": True} for name, said in ZEROS.items()}
    for schema in (_envelope("postgresql", **nullable), _envelope("mysql", n=ZEROS["n"], t=ZEROS["t"])):
        columns = _columns(schema)
        assert (columns["n"].backfill, columns["t"].backfill) == ("0", "")
    assert _filled(columns) == ({"n": "0", "t": ""}, ())
    said = _columns(_envelope("postgresql", n={"type": "int64", "default": 7}))
    assert _filled(said) == ({"n": "7"}, ())


@pytest.mark.parametrize("connector", ["mysql", "mariadb", "postgresql", "sqlserver"])
def test_a_column_that_is_not_null_without_a_default(connector: str) -> None:
    """MySQL gives old rows the type's zero, or computes (UUID()): the schema has no default for either."""
    columns = _columns(
        _envelope(connector, n={"type": "int64"}, u={"type": "string", "name": _UUID, "default": ""})
    )
    defaults, warnings = _filled(columns)
    assert (defaults, len(warnings)) == ({}, 2)


def test_what_is_not_told_stays_so_in_later_schemas() -> None:
    first = shape_of(
        TableSchema(T, tuple(_columns(_envelope("postgresql", n=ZEROS["n"])).values())), keys=("id",)
    )
    later = _columns(_envelope("postgresql", n={"type": "int64", "default": 5}))
    merged = merge_schemas(first, shape_of(TableSchema(T, tuple(later.values())), keys=("id",)))
    assert merged.by_name["n"].default == UNKNOWN_DEFAULT
    wider = _columns(_envelope("postgresql", n={"type": "bytes", **_DECIMAL, "default": "Bw=="}))
    shape = shape_of(TableSchema(T, tuple(wider.values())), keys=("id",))
    assert with_defaults(shape, first).by_name["n"].default == UNKNOWN_DEFAULT


@pytest.mark.parametrize(
    "column",
    [
        "d DATETIME DEFAULT CURRENT_TIMESTAMP",
        "d DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)",
        "d TIMESTAMP NULL DEFAULT NOW()",
        "d TIMESTAMP(3) DEFAULT LOCALTIMESTAMP(3)",
        "d DATE DEFAULT (CURRENT_DATE)",
        "d DATE DEFAULT (CURRENT_DATE())",
        "d DATETIME(3) DEFAULT ((now(3)))",
        "d DATETIME DEFAULT LOCALTIME()",
    ],
)
def test_the_time_of_the_statement_is_in_no_event(column: str) -> None:
    """TiDB takes it when the statement begins, and the event has the time at which it was done."""
    definitions = TableDefinitions()
    definitions.apply("CREATE TABLE t (id INT PRIMARY KEY)", "public", since=1)
    sql = f"ALTER TABLE t ADD COLUMN {column}"
    definitions.apply(sql, "public", since=455000002000000000)
    schema = definitions.get(T)
    assert schema is not None
    shape = shape_of(schema)
    defaults, (warning,) = default_texts((shape.by_name["d"],), shape)
    assert (
        defaults,
        "NULL at the target until a resync loads them (`tidesink resync TABLE`)" in warning,
    ) == (
        {},
        True,
    )
    (change,) = DdlEffects(sql, "public").row_changes()
    said = RowDdl.of(change, sql, moment=1, offset=0)
    assert (said.kind, "the time of the statement" in said.effect) == ("values", True)
    assert "tidesink resync" in said.effect


@pytest.mark.parametrize(
    ("column", "backfill"),
    [
        ("n BIGINT NOT NULL AUTO_INCREMENT UNIQUE", UNKNOWN_DEFAULT),
        ("n SERIAL", UNKNOWN_DEFAULT),
        ("u CHAR(36) NOT NULL DEFAULT (UUID())", UNKNOWN_DEFAULT),
        ("n INT NOT NULL DEFAULT (FLOOR(RAND() * 9))", UNKNOWN_DEFAULT),
        ("n BIGINT NOT NULL DEFAULT NEXT VALUE FOR q", UNKNOWN_DEFAULT),
        # More than the time of the statement.
        ("d DATE DEFAULT (CURDATE() + INTERVAL 1 DAY)", UNKNOWN_DEFAULT),
        ("d DATETIME DEFAULT (now() + interval 1 day)", UNKNOWN_DEFAULT),
        ("d DATETIME(6) NOT NULL DEFAULT (CURRENT_TIMESTAMP(6) - INTERVAL 1 HOUR)", UNKNOWN_DEFAULT),
        ("d DATE DEFAULT ((CURRENT_DATE) + INTERVAL 1 DAY)", UNKNOWN_DEFAULT),
        ("d DATETIME DEFAULT (NOW() + 0)", UNKNOWN_DEFAULT),
        ("d DATETIME DEFAULT NOW() + INTERVAL 1 DAY", UNKNOWN_DEFAULT),
        ("d DATETIME DEFAULT (DATE_ADD(NOW(), INTERVAL 1 DAY))", UNKNOWN_DEFAULT),
        ("d DATE DEFAULT (DATE(NOW()))", UNKNOWN_DEFAULT),
        ("n INT DEFAULT (TRUE + a)", UNKNOWN_DEFAULT),
        ("d BIGINT DEFAULT (-NOW())", UNKNOWN_DEFAULT),
        # Constants, however they are written.
        ("d DATE NOT NULL DEFAULT DATE'2020-01-02'", "2020-01-02"),
        ("d DATE DEFAULT (date '2020-01-02')", "2020-01-02"),
        ("d DATE DEFAULT {d '2020-01-02'}", "2020-01-02"),
        ("d TIME DEFAULT TIME'10:11:12'", "10:11:12"),
        ("d DATETIME DEFAULT TIMESTAMP'2020-01-02 10:11:12' NULL", "2020-01-02 10:11:12"),
        ("d DATETIME DEFAULT ({ts '2020-01-02 10:11:12'})", "2020-01-02 10:11:12"),
        ("c VARCHAR(9) DEFAULT X'4142'", "AB"),
        ("c VARCHAR(9) DEFAULT (x'4142')", "AB"),
        ("c VARCHAR(9) DEFAULT 0x4142", "AB"),
        ("n INT DEFAULT b'101'", "5"),
        ("c BIT(3) DEFAULT B'101'", "\x05"),
        ("c VARCHAR(9) DEFAULT _utf8mb4'ab' COLLATE utf8mb4_bin", "ab"),
        ("c VARCHAR(9) DEFAULT (_utf8mb4'ab')", "ab"),
        ('c VARCHAR(9) DEFAULT _utf8mb4 "ab"', "ab"),
        ("c VARCHAR(9) DEFAULT _latin1 X'4142'", "AB"),
        ("c VARCHAR(9) DEFAULT _binary 0x4142", "AB"),
        ("c VARCHAR(9) DEFAULT N'ab'", "ab"),
        ("c VARCHAR(9) DEFAULT 'a' 'b' COMMENT 'c'", "ab"),
        ("n INT DEFAULT (-5)", "-5"),
        ("n INT DEFAULT TRUE", "1"),
        ("n BIGINT NOT NULL", "0"),
        ("n BIGINT NOT NULL DEFAULT 0", "0"),
    ],
)
def test_no_zero_stands_for_what_the_database_computed(column: str, backfill: str) -> None:
    definitions = TableDefinitions()
    definitions.apply("CREATE TABLE t (id INT PRIMARY KEY)", "public")
    sql = f"ALTER TABLE t ADD COLUMN {column}"
    definitions.apply(sql, "public")
    schema = definitions.get(T)
    assert schema is not None
    assert schema.columns[1].backfill == backfill
    effects = [
        (one.kind, "the time of the statement" in one.effect)
        for one in DdlEffects(sql, "public").row_changes()
    ]
    assert effects == ([("values", False)] if backfill == UNKNOWN_DEFAULT else [])


@pytest.mark.parametrize(
    ("column", "backfill"),
    [
        ("n bigserial", UNKNOWN_DEFAULT),
        ("n bigint GENERATED ALWAYS AS IDENTITY", UNKNOWN_DEFAULT),
        ("n int NOT NULL DEFAULT nextval('q')", UNKNOWN_DEFAULT),
        ("u uuid NOT NULL DEFAULT gen_random_uuid()", UNKNOWN_DEFAULT),
        ("at timestamptz DEFAULT now()", UNKNOWN_DEFAULT),
        ("n int NOT NULL DEFAULT 0", "0"),
        ("n int DEFAULT -5", "-5"),
        ("n text DEFAULT 'x'::text", "x"),
        ("b boolean DEFAULT true", "true"),
        ("n int DEFAULT NULL", None),
        ("n int", None),
    ],
)
def test_a_definition_of_postgres_tells_constants_alone(column: str, backfill: str | None) -> None:
    (schema,) = read_postgres_tables(f"CREATE TABLE t (id int PRIMARY KEY, {column})", "public")
    assert schema.columns[1].backfill == backfill


@pytest.mark.parametrize(
    ("was", "now", "changes"),
    [
        ("DECIMAL(10,2)", "DECIMAL(10,0)", True),
        ("DECIMAL(10,2)", "DECIMAL(12,2)", False),
        ("DECIMAL(10,2)", "INT", True),
        ("INT", "BIGINT", False),
        ("BIGINT", "INT", True),
        ("INT UNSIGNED", "BIGINT", False),
        ("INT", "INT UNSIGNED", True),
        ("BIGINT UNSIGNED", "BIGINT", True),
        ("INT(11)", "INT(5)", False),
        ("VARCHAR(20)", "VARCHAR(5)", True),
        ("VARCHAR(20)", "TEXT", False),
        ("TEXT", "VARCHAR(20)", True),
        ("MEDIUMBLOB", "BLOB", True),
        ("DATETIME(6)", "DATETIME(3)", True),
        ("DATETIME", "DATETIME(3)", False),
        ("DATETIME", "DATE", True),
        ("DOUBLE", "FLOAT", True),
        ("FLOAT", "DOUBLE", False),
        ("ENUM('a','b')", "ENUM('b')", True),
        ("ENUM('a')", "ENUM('b','a')", False),
        ("VARCHAR(9)", "VARBINARY(9)", True),
    ],
)
def test_a_conversion_that_may_change_values_is_told(was: str, now: str, changes: bool) -> None:
    definitions = TableDefinitions()
    definitions.apply(f"CREATE TABLE t (id INT PRIMARY KEY, c {was})", "s")
    statement = DdlStatement("s", f"ALTER TABLE t CHANGE c d {now}", since=5, table="t")
    said = [one.text for one in learn(definitions, [statement], "cdc").warnings]
    assert ["rounded or cut" in one and "tidesink resync" in one for one in said[1:]] == [True] * changes


def test_a_connector_tells_of_columns_that_are_defined_anew_and_not_what_they_were() -> None:
    value = {
        "source": {"connector": "mysql", "db": "s", "table": "t", "snapshot": "false"},
        "databaseName": "s",
        "ddl": "ALTER TABLE t MODIFY c DECIMAL(10,0), CHANGE d e INT, ADD f INT",
        "tableChanges": [],
    }
    decode = open_codec("debezium-json").decode
    found = [*statements(Message("app", 0, 1, b"{}", json.dumps(value).encode()), decode)]
    assert [(one.ddl.kind, "c, e" in one.ddl.effect) for one in found] == [
        ("rename", False),
        ("values", True),
    ]
