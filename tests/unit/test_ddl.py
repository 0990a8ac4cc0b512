"""Table definitions from SQL, statement by statement."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidesink.change import TableId, TableSchema
from tidesink.errors import ConfigError
from tidesink.typemap.ddl import TableDefinitions, parse_create_table

T = TableId("s", "t")


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
        ("set('x','y') default 'y,x'", "x,y"),
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


def _after(*statements: str) -> TableSchema:
    definitions = TableDefinitions()
    definitions.apply("create table t (id int primary key, a int, b varchar(5) not null)", "s")
    for statement in statements:
        definitions.apply(statement, "s")
    found = definitions.get(T)
    assert found is not None
    return found


def _names(schema: TableSchema) -> list[str]:
    return [column.name for column in schema.columns]


@pytest.mark.parametrize(
    ("statement", "names"),
    [
        ("alter table t add c int", ["id", "a", "b", "c"]),
        ("alter table t add column c int first", ["c", "id", "a", "b"]),
        ("alter table t add c int after a, add d int after c", ["id", "a", "c", "d", "b"]),
        ("alter table t add (c int, d int)", ["id", "a", "b", "c", "d"]),
        ("alter table t add column if not exists a int", ["id", "a", "b"]),
        ("alter table t drop a", ["id", "b"]),
        ("alter table t drop column if exists zz", ["id", "a", "b"]),
        ("alter table t modify column a bigint first", ["a", "id", "b"]),
        ("alter table t change a aa bigint after b", ["id", "b", "aa"]),
        ("alter table t rename column A to aa", ["id", "aa", "b"]),
        ("alter table t rename column a to aa, drop column b", ["id", "aa"]),
        ("alter table t comment = 'add c int'", ["id", "a", "b"]),
        ("alter table t add index i(a), add constraint f foreign key (a) references o(x)", ["id", "a", "b"]),
        ("alter table t add partition (partition p3 values less than (9))", ["id", "a", "b"]),
        ("alter table t convert to character set utf8mb4", ["id", "a", "b"]),
        ("truncate table t", ["id", "a", "b"]),
        ("create view v as select 1", ["id", "a", "b"]),
        ("create database t", ["id", "a", "b"]),
    ],
)
def test_columns_after_an_alter(statement: str, names: list[str]) -> None:
    assert _names(_after(statement)) == names
    assert _names(_after(statement, statement)) == names, "a statement sent again changes nothing"


def test_an_altered_column_keeps_its_place_and_gets_its_new_type() -> None:
    schema = _after("alter table t modify a decimal(5,2) not null default 1")
    assert _names(schema) == ["id", "a", "b"]
    column = schema.by_name["a"]
    assert (column.type.sql, column.nullable, column.default, column.column_id) == (
        "decimal(5,2)",
        False,
        "1",
        2,
    )


@pytest.mark.parametrize(
    ("column", "default"),
    [
        ("c int not null", "0"),
        ("c bigint unsigned not null", "0"),
        ("c decimal(5,2) not null", "0.00"),
        ("c varchar(3) not null", ""),
        ("c binary(2) not null", "\0\0"),
        ("c enum('p','q') not null", "p"),
        ("c set('p','q') not null", ""),
        ("c datetime(2) not null", "0000-00-00 00:00:00.00"),
        ("c time not null", "00:00:00"),
        ("c year not null", "0000"),
        ("c bit(3) not null", "\0"),
        ("c json not null", "null"),
        ("c int", None),
        ("c int not null default 4", "4"),
    ],
)
def test_a_column_added_has_a_value_for_the_rows_there(column: str, default: str | None) -> None:
    assert _after(f"alter table t add {column}").by_name["c"].default == default


def test_defaults_are_set_and_dropped() -> None:
    assert _after("alter table t alter column a set default 5").by_name["a"].default == "5"
    schema = _after("alter table t alter a set default 5", "alter table t alter a drop default")
    assert schema.by_name["a"].default is None


@pytest.mark.parametrize(
    ("statements", "handle"),
    [
        (["alter table t drop primary key"], []),
        (["alter table t drop primary key", "alter table t add unique u(b)"], ["b"]),
        (["alter table t drop primary key", "create unique index u on t (b)"], ["b"]),
        (["alter table t drop primary key", "create unique index u on t (b)", "drop index u on t"], []),
        (
            ["alter table t drop primary key", "alter table t add unique u(b)", "alter table t drop index u"],
            [],
        ),
        (
            [
                "alter table t drop primary key, add unique u(b)",
                "alter table t rename index u to w",
                "alter table t rename column b to bb",
            ],
            ["bb"],
        ),
        (["alter table t drop primary key", "alter table t add primary key (a, b)"], ["a", "b"]),
        (["create index i on t (a)"], ["id"]),
    ],
)
def test_keys_after_statements(statements: list[str], handle: list[str]) -> None:
    assert [c.name for c in _after(*statements).handle_columns] == handle


def _definitions() -> TableDefinitions:
    definitions = TableDefinitions()
    definitions.apply("create table t (id int primary key, a enum('x','y'))", "s")
    return definitions


def test_tables_are_renamed_dropped_and_copied() -> None:
    definitions = _definitions()
    assert definitions.apply("RENAME TABLE `s`.`t` TO `o`.`u`;") == (TableId("o", "u"),)
    assert T not in definitions
    assert definitions.apply("create table t like o.u", "s") == (T,)
    assert definitions.apply("alter table t rename to w", "s") == (TableId("s", "w"),)
    assert definitions.apply("drop table if exists w, nothing", "s") == (TableId("s", "w"),)
    assert definitions.apply("drop database o") == (TableId("o", "u"),)
    assert len(definitions) == 0


def test_names_compare_without_case() -> None:
    definitions = _definitions()
    definitions.apply("ALTER TABLE S.T DROP COLUMN A")
    found = definitions.get(TableId("S", "T"))
    assert found is not None
    assert found.table == T
    assert _names(found) == ["id"]


def test_an_alter_of_an_unknown_table_changes_nothing() -> None:
    assert TableDefinitions().apply("alter table t add c int", "s") == ()


def test_a_failing_alter_changes_no_table() -> None:
    definitions = _definitions()
    before, version = definitions.get(T), definitions.version
    with pytest.raises(ConfigError):
        definitions.apply("alter table t add c int, modify nothing int", "s")
    assert (definitions.get(T), definitions.version) == (before, version)


def test_a_declared_table_stands_before_the_topics_create_and_follows_its_alter() -> None:
    definitions = TableDefinitions()
    definitions.declare("create table t (id int primary key, d decimal(20,4))", "s")
    definitions.apply("create table t (id int primary key, d decimal(5,1))", "s")
    found = definitions.get(T)
    assert found is not None
    assert found.by_name["d"].type.precision == 20
    definitions.apply("alter table t modify d decimal(30,4)", "s")
    found = definitions.get(T)
    assert found is not None
    assert found.by_name["d"].type.precision == 30
    definitions.apply("drop table t", "s")
    definitions.apply("create table t (id bigint primary key)", "s")
    found = definitions.get(T)
    assert found is not None
    assert _names(found) == ["id"]


def test_a_table_declared_without_a_schema_stands_for_it_in_any() -> None:
    definitions = TableDefinitions()
    definitions.declare("create table t (id int primary key)")
    definitions.apply("create table t (id bigint primary key)", "s")
    found = definitions.get(T)
    assert found is not None
    assert found.table == T
    assert found.by_name["id"].type.name == "int"
    assert definitions.get(TableId("other", "t")) is not None
    assert definitions.get(TableId("s", "u")) is None


def test_definitions_survive_json() -> None:
    definitions = _definitions()
    definitions.apply("alter table t add unique (a), add c int not null", "s")
    again = TableDefinitions.from_json(definitions.to_json())
    assert again.get(T) == definitions.get(T)
    again.apply("alter table t add d int", "s")
    definitions.apply("alter table t add d int", "s")
    assert again.to_json() == definitions.to_json()
    with pytest.raises(ConfigError, match="version"):
        TableDefinitions.from_json('{"version": 99}')


def test_the_producers_backslashes_are_themselves_and_a_persons_are_escapes() -> None:
    producers, persons = TableDefinitions(), TableDefinitions()
    producers.apply(r"create table t (a enum('c:\new','b'))", "s")
    persons.declare(r"create table t (a enum('c:\\new','it\'s'))", "s")
    assert _members(producers) == ("c:\\new", "b")
    assert _members(persons) == ("c:\\new", "it's")


def _members(definitions: TableDefinitions) -> tuple[str, ...] | None:
    found = definitions.get(T)
    assert found is not None
    return found.columns[0].type.members


def test_a_schema_given_ready_made_can_be_altered() -> None:
    schema = parse_create_table("create table s.t (a int not null unique, b int)")
    definitions = TableDefinitions([schema])
    assert definitions.get(T) == schema
    definitions.apply("alter table t drop b", "s")
    found = definitions.get(T)
    assert found is not None
    assert [c.name for c in found.handle_columns] == ["a"]
