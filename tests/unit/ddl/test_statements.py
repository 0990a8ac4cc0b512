"""Table definitions, statement by statement."""

from __future__ import annotations

import json

import pytest

from tidesink.codecs.flat_avro.schema import value_record
from tidesink.codecs.options import FlatAvroOptions
from tidesink.ddl.catalog import TableDefinitions, parse_create_table
from tidesink.ddl.row_changes import DdlEffects
from tidesink.errors import ConfigError
from tidesink.events import UNKNOWN_DEFAULT, TableId, TableSchema
from tidesink.typemap.target_schema import default_value, shape_of

T = TableId("s", "t")


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
    ("column", "backfill"),
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
        ("c bit(3) not null", "\0"),
        ("c json not null", "null"),
        ("c int", None),
        # What an expression gave the rows that were there is not told.
        ("c int not null default (id + 1)", UNKNOWN_DEFAULT),
        ("c varchar(36) not null default (uuid())", UNKNOWN_DEFAULT),
        ("c varchar(36) default (uuid())", UNKNOWN_DEFAULT),
        ("c int as (id + 1) stored not null", UNKNOWN_DEFAULT),
        ("c int not null auto_increment unique", UNKNOWN_DEFAULT),
        ("c int default (null)", None),
    ],
)
def test_a_column_added_without_default_has_a_value_for_the_rows_there(
    column: str, backfill: str | None
) -> None:
    added = _after(f"alter table t add {column}")
    assert (added.by_name["c"].default, added.by_name["c"].backfill) == (None, backfill)
    fields = json.loads(value_record(added, T, FlatAvroOptions()).text)["fields"]
    assert fields[-1].get("default") is None


@pytest.mark.parametrize(
    ("column", "default"),
    [("c int not null default 4", "4"), ("c year not null", "0000")],
)
def test_a_column_added_with_a_default_has_it_for_the_rows_there_too(column: str, default: str) -> None:
    added = _after(f"alter table t add {column}").by_name["c"]
    assert (added.default, added.backfill) == (default, default)


def test_defaults_are_set_and_dropped() -> None:
    assert _after("alter table t alter column a set default 5").by_name["a"].default == "5"
    schema = _after("alter table t alter a set default 5", "alter table t alter a drop default")
    assert schema.by_name["a"].default is None


@pytest.mark.parametrize(
    ("added", "later", "backfill", "default"),
    [
        ("c int not null default 5", ["alter c drop default"], "5", None),
        ("c int not null default 5", ["alter c set default 9"], "5", "9"),
        ("c int not null default 5", ["modify c bigint not null"], "5", None),
        ("c int not null default 5", ["change c d bigint not null default 7"], "5", "7"),
        ("c int not null default 5", ["alter c set default 9", "alter c set default 5"], "5", "5"),
        ("c int not null default 5", ["alter c set default 9", "modify c bigint"], "5", None),
        ("c int not null", ["modify c bigint not null"], "0", None),
        ("c int not null", ["alter c set default 9"], "0", "9"),
        ("c int not null", ["alter c set default 9", "alter c drop default"], "0", None),
        ("c enum('p','q') not null", ["modify c enum('p','q') not null default 'q'"], "p", "q"),
        ("c int", ["alter c set default 9"], None, "9"),
        ("c int default 5", ["drop c", "add c int default 7"], "7", "7"),
        ("c int default 5", ["rename column c to d"], "5", "5"),
    ],
)
def test_rows_from_before_keep_the_default_a_column_was_added_with(
    added: str, later: list[str], backfill: str | None, default: str | None
) -> None:
    definitions = _definitions()
    for part in (f"add {added}", *later):
        definitions.apply(f"alter table t {part}", "s")
    found = TableDefinitions.from_json(definitions.to_json()).get(T)
    assert found is not None
    assert found == definitions.get(T)
    assert (found.columns[-1].backfill, found.columns[-1].default) == (backfill, default)
    assert shape_of(found).columns[-1].default == backfill


@pytest.mark.parametrize(
    ("statement", "readded"),
    [
        ("alter table t drop a", set()),
        ("alter table t drop a, add A int", {(T, "A")}),
        ("alter table t drop a, add a int; rename table t to u", set()),
        ("alter table t drop a, add a int, rename to u", set()),
        ("alter table t drop a, add a int; create table u like t", {(T, "a")}),
    ],
)
def test_columns_added_under_the_name_of_a_dropped_one(
    statement: str, readded: set[tuple[TableId, str]]
) -> None:
    definitions = _definitions()
    definitions.apply(statement, "s")
    again = TableDefinitions.from_json(definitions.to_json())
    assert definitions.readded() == again.readded() == readded


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


@pytest.mark.parametrize(
    ("sql", "event", "now"),
    [
        # The event has the new name, which so is in the event's database.
        ("ALTER TABLE `other`.`b` RENAME TO `a`", "other.a", "other.a"),
        ("ALTER TABLE other.b RENAME a", "other.A", "other.a"),
        ("ALTER TABLE other.b RENAME AS b", "s.b", "s.b"),
        ("ALTER TABLE other.b ADD c INT, RENAME TO a", "s.a", "s.a"),
        ("RENAME TABLE other.b TO a", "s.a", "s.a"),
        ("RENAME TABLE other.b WAIT 5 TO a", "other.a", "other.a"),
        ("ALTER TABLE other.b RENAME TO s.a", "s.a", "s.a"),
        ("ALTER TABLE b RENAME TO a", "other.a", "other.a"),
        # It does not tell: it names another table, or the old one, or none.
        ("ALTER TABLE other.b RENAME TO a", "other.x", ""),
        ("ALTER TABLE other.b RENAME TO a", "other.b", ""),
        ("ALTER TABLE other.b RENAME TO b", "other.b", ""),
        ("RENAME TABLE other.b TO a", "other.", ""),
    ],
)
def test_the_event_of_a_rename_has_the_new_name(sql: str, event: str, now: str) -> None:
    definitions = TableDefinitions()
    definitions.apply("create table b (id int primary key)", "other")
    about = TableId(*event.split("."))
    definitions.apply(sql, about.schema, about=about)
    assert [str(table) for table in definitions] == ([now] if now else [])
    told = [str(one.table) for one in DdlEffects(sql, about.schema, about=about).row_changes()]
    new = "b" if sql.endswith("b") else "a"
    assert told == ["other.b", now or f".{new}"]


def test_events_of_two_renames_tell_the_database_of_both() -> None:
    definitions = TableDefinitions()
    for name in ("a", "b"):
        definitions.apply(f"create table {name} (id int primary key)", "other")
    sql = "RENAME TABLE other.a TO x, other.b TO y"
    for name in ("x", "y"):
        definitions.apply(sql, "s", about=TableId("s", name), since=5)
    assert {*definitions} == {TableId("s", "x"), TableId("s", "y")}


def test_names_compare_without_case() -> None:
    definitions = _definitions()
    definitions.apply("ALTER TABLE S.T DROP COLUMN A")
    found = definitions.get(TableId("S", "T"))
    assert found is not None
    assert found.table == T
    assert _names(found) == ["id"]


def test_names_that_only_a_case_folding_makes_one_are_two() -> None:
    """TiDB compares names in lower case (``ast.CIStr``): straße is not STRASSE."""
    definitions = TableDefinitions()
    definitions.apply("create table t (id int primary key, `straße` int, strasse varchar(9))", "s")
    definitions.apply("alter table t modify `straße` bigint, drop column STRASSE", "S")
    found = definitions.get(T)
    assert found is not None
    assert [(column.name, column.type.name) for column in found.columns] == [
        ("id", "int"),
        ("straße", "bigint"),
    ]
    definitions.apply("create table `straße` (id int primary key)", "s")
    assert TableId("s", "STRASSE") not in definitions


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
    with pytest.raises(ConfigError, match=r"definitions are damaged \(.*`history`"):
        TableDefinitions.from_json('{"version": 1, "tables": []}')


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


@pytest.mark.parametrize(
    ("added", "modified", "backfill"),
    [
        ("bit(9) default b'101'", "int", "5"),
        ("bit(9) default b'101'", "bigint default 7", "5"),
        ("int default 5", "bit(9)", "\0\x05"),
        ("varbinary(9) default x'c3a9'", "varchar(9)", "é"),
        ("varchar(9) default 'é'", "varbinary(9)", "Ã©"),
        ("enum('a','b') default 'b'", "int", "2"),
        ("enum('a','b') default 'b'", "varchar(9)", "b"),
        ("set('a','b','c') default 'a,c'", "int", "5"),
        ("set('a','b') not null", "bigint not null", "0"),
        ("bit(4)", "int", None),
        ("decimal(10,2) not null", "bigint not null", "0"),
        ("decimal(5,2) not null default 2.50", "int not null", "3"),
        ("decimal(5,2) default -1.25", "decimal(5,1)", "-1.3"),
        ("decimal(5,2) default 1.25", "decimal(9,4)", "1.25"),
        ("double not null default 2.5", "int not null", "2"),
        ("datetime(3) not null", "date not null", "0000-00-00"),
        ("datetime default '2024-02-29 12:34:56'", "date", "2024-02-29"),
        ("date not null", "datetime(2) not null", "0000-00-00 00:00:00.00"),
        ("date default '2024-02-29'", "timestamp", "2024-02-29 00:00:00"),
        ("datetime default current_timestamp", "date", "CURRENT_TIMESTAMP"),
    ],
)
def test_the_default_of_rows_from_before_goes_with_the_columns_type(
    added: str, modified: str, backfill: str | None
) -> None:
    definitions = TableDefinitions()
    definitions.apply("create table t (id int primary key)", "s")
    definitions.apply(f"alter table t add c {added}", "s")
    definitions.apply(f"alter table t modify c {modified}", "s")
    found = definitions.get(TableId("s", "t"))
    assert found is not None
    assert found.by_name["c"].backfill == backfill
    if backfill not in (None, "CURRENT_TIMESTAMP"):
        shape = shape_of(found)
        default_value(shape.by_name["c"], shape)  # it is a value of the type
