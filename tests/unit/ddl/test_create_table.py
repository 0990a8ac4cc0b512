"""CREATE TABLE to a table's columns and keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidesink.ddl.catalog import TableDefinitions, parse_create_table
from tidesink.errors import ConfigError
from tidesink.events import TableId


def _types(columns: str, options: str = "") -> list[str | None]:
    return [c.type.sql for c in parse_create_table(f"CREATE TABLE t ({columns}) {options}").columns]


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("bool", "tinyint(1)"),
        ("int", "int(11)"),
        ("INTEGER UNSIGNED", "int(10) unsigned"),
        ("int(5) zerofill", "int(5) unsigned zerofill"),
        ("int1 unsigned", "tinyint(3) unsigned"),
        ("mediumint unsigned", "mediumint(8) unsigned"),
        ("int8", "bigint(20)"),
        ("decimal", "decimal(10,0)"),
        ("numeric(6)", "decimal(6,0)"),
        ("dec(5, 2) unsigned", "decimal(5,2) unsigned"),
        ("float(24)", "float"),
        ("float(25)", "double"),
        ("float(10,3)", "float(10,3)"),
        ("double precision unsigned", "double unsigned"),
        ("real", "double"),
        ("bit", "bit(1)"),
        ("bit(64)", "bit(64)"),
        ("year", "year(4)"),
        ("char", "char(1)"),
        ("national varchar(7)", "varchar(7)"),
        ("character varying(10)", "varchar(10)"),
        ("long varchar", "mediumtext"),
        ("long varbinary", "mediumblob"),
        ("char(5) character set binary", "binary(5)"),
        ("varchar(5) charset binary", "varbinary(5)"),
        ("text charset binary", "blob"),
        ("char(5) byte", "binary(5)"),
        ("text(100)", "text"),
        ("text(60)", "tinytext"),
        ("text(100) character set latin1", "tinytext"),
        ("blob(70000)", "mediumblob"),
        ("datetime(0)", "datetime"),
        ("timestamp(6) null", "timestamp(6)"),
        ("enum('a','it''s', 'b,c ')", "enum('a','it''s','b,c')"),
        ("set(\"x\",'y')", "set('x','y')"),
        ("json", "json"),
        ("vector(3)", "vector(3)"),
        ("vector<float>(3)", "vector(3)"),
    ],
)
def test_types_are_shown_as_tidb_shows_them(written: str, shown: str) -> None:
    assert _types(f"a {written}") == [shown]


def test_binary_tables_hold_bytes() -> None:
    assert _types("a varchar(3), b text, c varchar(3) character set utf8mb4", "DEFAULT CHARSET=binary") == [
        "varbinary(3)",
        "blob",
        "varchar(3)",
    ]


@pytest.mark.parametrize(
    ("column", "default"),
    [
        ("int default -7", "-7"),
        ("int default null", None),
        ("int", None),
        ("bool default true", "1"),
        ("double default 1e10", "10000000000"),
        ("double default 1.5", "1.5"),
        ("decimal(10,2) default 2.5", "2.5"),
        ("decimal(10,2) default '2.50'", "2.50"),
        ("varchar(5) default ''", ""),
        ("varchar(5) default _UTF8MB4'it''s'", "it's"),
        ("varchar(5) default 'a\\'b'", "a'b"),
        ("varchar(5) default ('x')", "x"),
        ("varchar(36) default (uuid())", None),
        ("varchar(5) default 5", "5"),
        ("binary(4) default 'ab'", "ab\0\0"),
        ("varbinary(4) default x'ff00'", "\xff\0"),
        ("varbinary(4) default 0xFF", "\xff"),
        ("int default x'10'", "16"),
        ("bit(10) default b'1010101010'", "\x02\xaa"),
        ("bit(10) default 5", "\0\x05"),
        ("enum('a','B') default 'b'", "B"),
        ("enum('a','b') default 2", "b"),
        ("enum('straße','strasse') default 'strasse'", "strasse"),
        ("enum('a','A') default 'A '", "A"),
        ("set('x','y') default 'y,x'", "x,y"),
        ("set('straße','strasse','X') default 'strasse,x'", "strasse,X"),
        ("datetime(3) default '2020-01-02'", "2020-01-02 00:00:00.000"),
        ("timestamp default now() on update now()", "CURRENT_TIMESTAMP"),
        ("timestamp(3) default current_timestamp(3)", "CURRENT_TIMESTAMP"),
        ("date default '2022-02-02'", "2022-02-02"),
        ("year not null", "0000"),
        ("year default 70", "1970"),
        ("int as (1+1) stored", None),
    ],
)
def test_defaults_are_held_as_tidb_holds_them(column: str, default: str | None) -> None:
    assert parse_create_table(f"create table t (a {column})").columns[0].default == default


def _handle(columns: str) -> list[str]:
    return [c.name for c in parse_create_table(f"create table t ({columns})").handle_columns]


@pytest.mark.parametrize(
    ("columns", "handle"),
    [
        ("a int primary key, b int not null unique", ["a"]),
        ("a int, b int, primary key(b, a)", ["a", "b"]),
        ("a int not null unique, b int", ["a"]),
        ("a int unique, b int", []),
        ("a int not null, b int not null, c int not null, unique u(a,b), unique key v (c)", ["c"]),
        ("a int not null, b int not null unique, unique u(a)", ["a"]),
        ("a int not null, b int as (a) virtual not null, unique u(b)", []),
        ("a int not null, unique u ((a+1))", []),
        ("a varchar(9) not null, constraint c unique using btree (a(3))", ["a"]),
        ("a serial, b int", ["a"]),
        ("a int key, b int", ["a"]),
        ("a int comment 'primary key', b int", []),
        ("a int, key(a), index i(a), foreign key (a) references o(x), check (a > 0)", []),
        ("a int references o(x) on delete set null not null unique", ["a"]),
    ],
)
def test_the_handle_key_is_the_one_ticdc_takes(columns: str, handle: list[str]) -> None:
    assert _handle(columns) == handle


def test_a_primary_key_is_not_null_even_where_the_text_does_not_say_so() -> None:
    schema = parse_create_table("create table t (a int, b int null, primary key (a))")
    assert [c.nullable for c in schema.columns] == [False, True]


def test_everything_around_columns_is_passed_over() -> None:
    schema = parse_create_table(
        """
        -- a comment, with ' a quote
        CREATE TABLE IF NOT EXISTS `my db`.`ta``ble` ( # another
          `id` BIGINT UNSIGNED NOT NULL /*T![auto_rand] AUTO_RANDOM(5) */ COMMENT 'a, (b) ''c''',
          `select` VARCHAR(10) COLLATE utf8mb4_bin DEFAULT 'x' /* NOT NULL */,
          `g` INT GENERATED ALWAYS AS (JSON_EXTRACT(`j`, '$.a, b')) VIRTUAL,
          `j` JSON NOT NULL CHECK (JSON_VALID(`j`)),
          PRIMARY KEY (`id`) /*T![clustered_index] CLUSTERED */,
          KEY `k` (`select`)
        ) ENGINE=InnoDB /*!40101 DEFAULT CHARSET=utf8mb4 */ PARTITION BY HASH (`id`) PARTITIONS 4
        """
    )
    assert schema.table == TableId("my db", "ta`ble")
    assert [(c.name, c.nullable, c.primary_key, c.virtual) for c in schema.columns] == [
        ("id", False, True, False),
        ("select", True, False, False),
        ("g", True, False, True),
        ("j", False, False, False),
    ]
    assert schema.by_name["select"].default == "x"


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "select 1",
        "create table t",
        "create table t (a int",
        "create table t (a nosuchtype)",
        "create table t (a int, primary key (b))",
        "create table t ('a' int default 'x)",
        "create table t ()",
        "create table t (a \x01)",
    ],
)
def test_what_cannot_be_read_is_a_config_error(sql: str) -> None:
    with pytest.raises(ConfigError):
        parse_create_table(sql)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    definitions = TableDefinitions()
    for sql in (text, f"create table t (a {text})", f"alter table t {text}"):
        try:
            definitions.apply(sql, "s")
        except ConfigError:
            continue
