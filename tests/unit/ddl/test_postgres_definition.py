"""Postgres' CREATE TABLE as types for topics that tell none."""

from __future__ import annotations

import pytest

from tests.golden.debezium_tables import POSTGRES_TABLES, postgres_definitions, postgres_sql
from tests.unit.config.samples import FLAT_AVRO, changed, right, wrong
from tidesink.codecs.debezium.readers import definition_reader
from tidesink.codecs.options import DebeziumModes
from tidesink.ddl.catalog import read_postgres_tables
from tidesink.errors import ConfigError
from tidesink.events import ColumnType, TableId

_JSON = changed(FLAT_AVRO, source__protocol="debezium-json", source__schema_registry=None)


@pytest.mark.parametrize("table", POSTGRES_TABLES)
def test_the_captured_tables_have_the_types_a_person_would_declare(table: str) -> None:
    (found,) = read_postgres_tables(postgres_sql(table), "other")
    declared = postgres_definitions().get(TableId("lab", table))
    assert declared is not None
    assert found.table == declared.table
    assert [(one.name, one.type, one.default) for one in found.columns] == [
        (one.name, one.type, one.default) for one in declared.columns
    ]


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("int", ColumnType("int")),
        ("bigserial", ColumnType("bigint")),
        ("oid", ColumnType("bigint")),
        ("regclass", ColumnType("text")),
        ("numeric", ColumnType("decimal")),
        ("numeric(5)", ColumnType("decimal", precision=5, scale=0)),
        ("real", ColumnType("float")),
        ("timestamp without time zone", ColumnType("local datetime", fsp=6)),
        ("timestamp(4) without time zone", ColumnType("local datetime", fsp=6)),
        ("timestamp(3) without time zone", ColumnType("local datetime", fsp=3)),
        ("timestamp(0) without time zone", ColumnType("local datetime", fsp=3)),
        ("time without time zone", ColumnType("time", fsp=6)),
        ("time(2) without time zone", ColumnType("time", fsp=3)),
        ("timestamp with time zone", ColumnType("instant")),
        ("time with time zone", ColumnType("zoned time")),
        ("character varying(20)", ColumnType("text")),
        ("bit varying(10)", ColumnType("bit", length=10)),
        ("integer[]", ColumnType("array")),
        ("jsonb", ColumnType("json")),
        ("int4range", ColumnType("text")),
        ("shop.mood", ColumnType("text")),
        ("geometry(Point,4326)", ColumnType("geometry")),
        ("geography", ColumnType("geography")),
    ],
)
def test_types_as_pg_dump_prints_them(words: str, kind: ColumnType) -> None:
    (found,) = read_postgres_tables(f"CREATE TABLE shop.t (a {words} NOT NULL)", "public")
    assert [one.type for one in found.columns] == [kind]


def test_times_are_counted_as_their_digits_say() -> None:
    """Values as the connector (3.5) wrote them, in the mode that it has by default."""
    sql = "CREATE TABLE t (t time, t3 time(3), ts timestamp, ts3 timestamp(3), ts0 timestamp(0))"
    (found,) = read_postgres_tables(sql, "public")
    sent = {"t": 0, "t3": 45296789, "ts": -1, "ts3": 1709210096789, "ts0": 1709210096000}
    modes = DebeziumModes(time_precision_mode="adaptive")
    assert {name: definition_reader(found.by_name[name], modes=modes)(raw) for name, raw in sent.items()} == {
        "t": "00:00:00.000000",
        "t3": "12:34:56.789",
        "ts": "1969-12-31 23:59:59.999999",
        "ts3": "2024-02-29 12:34:56.789",
        "ts0": "2024-02-29 12:34:56",
    }


def test_keys_are_those_of_a_column_or_of_the_table() -> None:
    one = "CREATE TABLE a (x int PRIMARY KEY, y int)"
    both = "CREATE TABLE b (x int, y int, CONSTRAINT k PRIMARY KEY (x, y))"
    first, second = read_postgres_tables(f"{one}; {both}", "public")
    assert first.table == TableId("public", "a")
    assert [[one.name for one in table.primary_key] for table in (first, second)] == [["x"], ["x", "y"]]
    assert not first.columns[0].nullable


def test_what_is_no_sql_is_refused() -> None:
    with pytest.raises(ConfigError, match="not Postgres' SQL"):
        read_postgres_tables("CREATE TABLE t (", "public")


def test_a_config_takes_them_in_place_or_from_a_file() -> None:
    definition = {"sql": "CREATE TABLE b (id uuid PRIMARY KEY)", "dialect": "postgres"}
    config = right(changed(_JSON, tables=[{"name": "a.b", "definition": definition}]))
    assert config.tables[0].definition is not None
    assert config.tables[0].definition.dialect == "postgres"


def test_a_config_says_what_is_wrong_with_one() -> None:
    definition = {"sql": "CREATE TABLE c (id int)", "dialect": "postgres"}
    problem = wrong(changed(_JSON, tables=[{"name": "a.b", "definition": definition}]))
    assert "does not create a.b" in problem["tables[0].definition"].reason
    unread = {"sql": "CREATE TABLE b (", "dialect": "postgres"}
    problem = wrong(changed(_JSON, tables=[{"name": "a.b", "definition": unread}]))
    assert "pg_dump" in problem["tables[0].definition"].remedy
