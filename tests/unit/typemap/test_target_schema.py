"""Table shapes: what they hold of a source table, and how they grow."""

from __future__ import annotations

import pytest

from tidesink.ddl.catalog import TableDefinitions, parse_create_table
from tidesink.errors import ConfigError, SchemaRefusedError
from tidesink.events import TableId, TableSchema
from tidesink.typemap.target_schema import (
    TargetSchema,
    merge_schemas,
    quoted,
    shape_of,
    wider_ddl,
    with_defaults,
)


def table(columns: str) -> TableSchema:
    return parse_create_table(f"create table shop.t ({columns})")


def shape(columns: str) -> TargetSchema:
    return shape_of(table(columns))


def test_a_shape_has_the_sources_columns_keys_and_reasons() -> None:
    found = shape(
        "a varchar(9), ID bigint unsigned, d decimal(65,30), v int as (1) virtual, primary key (ID)"
    )
    assert found.ddl == "`a` string, `ID` decimal(20,0), `d` string"
    assert found.keys == ("ID",)
    assert found.key_ddl == "`ID` decimal(20,0)"
    assert "more than 38 digits" in found.by_name["d"].comment


def test_keys_of_the_config_win_whatever_their_case() -> None:
    found = shape_of(table("a int primary key, B int"), keys=("b",))
    assert found.keys == ("B",)


def test_a_key_the_table_does_not_have_is_refused_with_the_columns_it_has() -> None:
    with pytest.raises(ConfigError, match="has no column nope; its columns are a, b"):
        shape_of(table("a int primary key, b int"), keys=("nope",))


def test_zero_date_text_makes_text_of_dates() -> None:
    assert shape_of(table("a int primary key, d date"), zero_date="text").by_name["d"].spark == "string"


def test_a_merge_adds_at_the_end_and_keeps_what_was_dropped() -> None:
    merged = merge_schemas(shape("a int primary key, old int"), shape("a int primary key, New int default 5"))
    assert merged.ddl == "`a` int, `old` int, `New` int"
    assert merged.by_name["new"].default == "5"


def test_a_merge_keeps_the_default_a_column_came_with() -> None:
    without, five, nine, null = (
        shape(f"a int primary key{column}")
        for column in ("", ", c int default 5", ", c int default 9", ", c int")
    )
    assert merge_schemas(merge_schemas(without, five), nine).by_name["c"].default == "5"
    assert merge_schemas(merge_schemas(without, null), nine).by_name["c"].default is None


def test_a_merge_knows_a_column_in_another_case() -> None:
    assert merge_schemas(shape("a int primary key, v int"), shape("A int primary key, V bigint")).ddl == (
        "`a` int, `v` bigint"
    )


def test_a_merge_takes_the_newer_members() -> None:
    merged = merge_schemas(
        shape("a int primary key, e enum('x')"), shape("a int primary key, e enum('x','y')")
    )
    assert merged.by_name["e"].type.members == ("x", "y")


def test_a_merge_is_done_once() -> None:
    old, new = shape("a int primary key, v int"), shape("a int primary key, v bigint, w int")
    once = merge_schemas(old, new)
    assert merge_schemas(once, new) == once
    assert merge_schemas(once, old).ddl == once.ddl


@pytest.mark.parametrize(
    ("old", "new", "wider"),
    [
        ("int", "int", "int"),
        ("int", "bigint", "bigint"),
        ("bigint", "int", "bigint"),
        ("float", "double", "double"),
        ("int", "decimal(4,2)", "decimal(12,2)"),
        ("bigint", "decimal(20,0)", "decimal(20,0)"),
        ("decimal(10,2)", "decimal(6,4)", "decimal(12,4)"),
        ("decimal(38,0)", "decimal(38,10)", None),
        ("int", "string", None),
        ("string", "int", None),
        ("date", "timestamp_ntz", None),
        ("int", "double", None),
    ],
)
def test_wider_types(old: str, new: str, wider: str | None) -> None:
    assert wider_ddl(old, new) == wider


def test_a_decimal_whose_precision_is_unknown_goes_into_the_column_there_is() -> None:
    assert wider_ddl("decimal(10,2)", "string", text_holds=True) == "decimal(10,2)"
    assert wider_ddl("string", "decimal(10,2)", text_holds=True) == "string"


def test_types_that_cannot_be_one_are_refused_with_both() -> None:
    with pytest.raises(SchemaRefusedError, match=r"'v' is int \(int.*\), and .* has string \(varchar\(9\)"):
        merge_schemas(shape("a int primary key, v int"), shape("a int primary key, v varchar(9)"))


def test_another_key_is_refused() -> None:
    with pytest.raises(SchemaRefusedError, match=r"The key changed from \(a\) to \(b\)"):
        merge_schemas(shape("a int primary key, b int"), shape("a int, b int primary key"))


def test_names_are_quoted() -> None:
    assert quoted("a`b") == "`a``b`"


def test_a_default_learnt_later_is_the_first_one() -> None:
    five, nine = (shape(f"a int primary key, c int default {number}") for number in (5, 9))
    corrected = with_defaults(merge_schemas(nine, shape("a int primary key, d int")), five)
    assert (corrected.by_name["c"].default, corrected.by_name["d"].default) == ("5", None)


def test_a_default_goes_with_its_columns_type() -> None:
    merged = merge_schemas(
        shape("a int primary key, b bit(9) default b'100000101', e enum('x','y') default 'y'"),
        shape("a int primary key, b bigint, e enum('x','y')"),
    )
    assert (merged.by_name["b"].type.name, merged.by_name["b"].default) == ("bigint", "261")
    assert merged.by_name["e"].default == "y"


def test_a_column_is_wide_enough_for_its_rows_from_before() -> None:
    definitions = TableDefinitions()
    create = "create table shop.t (a int primary key, d decimal(10,4), i bigint, v varchar(9))"
    definitions.apply(create, since=1)
    definitions.apply("alter table shop.t modify d decimal(6,2), modify i int, modify v int", since=2)
    schema = definitions.get(TableId("shop", "t"))
    assert schema is not None
    found = shape_of(schema)
    assert found.ddl == "`a` int, `d` decimal(10,4), `i` bigint, `v` int"
    assert (found.by_name["d"].type.precision, found.by_name["d"].type.scale) == (10, 4)
    assert merge_schemas(found, shape_of(schema)) == found


def test_an_enum_that_became_text_has_no_members() -> None:
    merged = merge_schemas(
        shape("a int primary key, e enum('x','y')"), shape("a int primary key, e varchar(9)")
    )
    assert (merged.by_name["e"].type.name, merged.by_name["e"].type.members) == ("varchar", None)
