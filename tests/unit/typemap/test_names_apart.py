"""Columns of one table whose names differ only in case: each keeps its values, or the table is refused."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from tests.columns import ID
from tidesink.errors import ConfigError, SchemaRefusedError
from tidesink.events import Column, ColumnType, TableId, TableSchema, fold_name, folding
from tidesink.sinks.targets.column_changes import plan_evolution
from tidesink.sinks.targets.lake.tables import check_names
from tidesink.sinks.targets.sql.columns import MYSQL_LIMITS, POSTGRES_LIMITS, check_sql_shape, plan_columns
from tidesink.typemap.projection import Projection, project, read_filter
from tidesink.typemap.target_schema import TargetSchema, merge_schemas, merged_in_order, shape_of, without

T = TableId("public", "people")


def _shape(*names: str, keys: tuple[str, ...] | None = None) -> TargetSchema:
    columns = (ID, *(Column(name, ColumnType("varchar", length=9)) for name in names))
    return shape_of(TableSchema(T, columns), keys=keys)


def _names(shape: TargetSchema) -> list[str]:
    return [column.name for column in shape.columns]


ONE, BOTH = _shape("name"), _shape("name", "Name")


@pytest.mark.parametrize(
    ("lists", "name", "folded"),
    [
        ([["name"], ["Name"]], "NAME", "name"),
        ([["name", "Name"], ["NAME"]], "Name", "Name"),
        ([["name", "Name"], ["NAME"]], "NAME", "NAME"),
        ([["name"], ["name", "Name"]], "name", "name"),
        ([["Ä", "ä", "Id"]], "ID", "id"),
        ([["Ä", "ä", "Id"]], "Ä", "Ä"),
    ],
)
def test_names_are_compared_exactly_only_where_one_list_has_both(
    lists: list[list[str]], name: str, folded: str
) -> None:
    fold = folding(*lists)
    assert fold(name) == folded
    assert pickle.loads(pickle.dumps(fold))(name) == folded  # noqa: S301  (a task has its plan so)


def test_names_that_no_list_tells_apart_are_folded_as_ever() -> None:
    assert folding(["id", "Name"], ["NAME"]) is fold_name


def test_a_column_that_comes_later_is_another_one() -> None:
    assert _names(merge_schemas(ONE, BOTH)) == ["id", "name", "Name"]
    assert _names(merge_schemas(BOTH, ONE)) == ["id", "name", "Name"]
    assert _names(merged_in_order([ONE, BOTH])) == ["id", "name", "Name"]
    assert merged_in_order([ONE, BOTH]).by_name["Name"].instead_of == frozenset()


def test_a_column_that_goes_is_the_one_of_its_name() -> None:
    later = merged_in_order([BOTH, _shape("Name", "new")])
    assert later.by_name["new"].instead_of == {"name"}
    assert _names(without(BOTH, ["Name"])) == ["id", "name"]


def test_a_rename_in_case_alone_is_the_same_column() -> None:
    assert _names(merged_in_order([ONE, _shape("Name")])) == ["id", "name"]
    assert not plan_evolution({"id": "bigint", "NAME": "string"}, ONE).needed


def test_a_name_of_another_case_is_another_column_where_the_source_keeps_them_apart() -> None:
    """The same columns, whether one writer has both names, or each has one."""
    first, later = (replace(_shape(name, "x"), exact_names=True) for name in ("name", "Name"))
    whole = merged_in_order([first, later])
    assert _names(whole) == ["id", "name", "x", "Name"]
    assert whole.by_name["Name"].instead_of == {"name"}
    assert _names(merged_in_order([later], base=whole)) == _names(whole)
    assert _names(merged_in_order([later], base=first)) == _names(whole)
    # A definition, or a target, may spell a name in its own way.
    assert _names(merge_schemas(_shape("NAME", "x"), first)) == ["id", "NAME", "x"]


def test_a_key_is_the_column_of_its_exact_name() -> None:
    assert _shape("name", "Name", keys=("Name",)).keys == ("Name",)
    assert _shape("name", keys=("Name",)).keys == ("name",)
    with pytest.raises(ConfigError, match="no column NAME"):
        _shape("name", "Name", keys=("NAME",))


@pytest.mark.parametrize(
    ("present", "added"),
    [
        ({"id": "int", "name": "string"}, ["Name"]),
        ({"id": "int", "Name": "string"}, ["name"]),
        ({"id": "int", "Name": "string", "name": "string"}, []),
        ({"ID": "int", "NAME": "string"}, ["name", "Name"]),
    ],
)
def test_a_target_that_has_one_of_them_lacks_the_other(present: dict[str, str], added: list[str]) -> None:
    assert [column.name for column in plan_evolution(present, BOTH).added] == added
    stored = {name: "integer" if kind == "int" else "text" for name, kind in present.items()}
    assert [column.name for column, _ in plan_columns(stored, BOTH, "postgres").added] == added


@pytest.mark.parametrize("first", ["name", "Name"])
def test_a_lake_refuses_both_with_their_names(first: str) -> None:
    second = {"name": "Name", "Name": "name"}[first]
    with pytest.raises(SchemaRefusedError, match=r"name and Name have .*except_column_list.*rename"):
        check_names(BOTH)
    with pytest.raises(SchemaRefusedError, match=f"{first} and {second} have the same upper case"):
        check_names(merge_schemas(_shape(first), BOTH), ("id", first))
    check_names(_shape(second), ("id", first))


def test_mysql_refuses_both_and_postgres_does_not() -> None:
    with pytest.raises(SchemaRefusedError, match=r"name and Name differ only in case"):
        check_sql_shape(BOTH, MYSQL_LIMITS, lambda name: name)
    check_sql_shape(BOTH, POSTGRES_LIMITS, lambda name: name)
    check_sql_shape(_shape("name", "n\u00e4me"), MYSQL_LIMITS, lambda name: name)


@pytest.mark.parametrize(
    ("projection", "columns"),
    [
        (Projection(rename={"Name": "upper"}), ["id", "name", "upper"]),
        (Projection(rename={"name": "lower"}), ["id", "lower", "Name"]),
        (Projection(rename={"name": "Name", "Name": "name"}), ["id", "Name", "name"]),
        (Projection(except_columns=("Name",)), ["id", "name"]),
        (Projection(except_columns=("name",)), ["id", "Name"]),
        (Projection(columns=("ID", "Name")), ["id", "Name"]),
        (Projection(row_filter=read_filter("Name = 'a'")), ["id", "name", "Name"]),
    ],
)
def test_settings_name_one_of_them(projection: Projection, columns: list[str]) -> None:
    assert _names(project(projection, BOTH, own=()).shape) == columns


def test_a_setting_keeps_the_values_of_the_column_that_it_names() -> None:
    laid = project(Projection(rename={"Name": "upper", "name": "lower"}), BOTH, own=())
    assert dict(laid.sources) == {"id": "id", "lower": "name", "upper": "Name"}
    laid = project(Projection(except_columns=("name",)), BOTH, own=())
    assert laid.shape.omitted == {"name"}


@pytest.mark.parametrize(
    "projection",
    [
        Projection(rename={"NAME": "x"}),
        Projection(except_columns=("NAME",)),
        Projection(columns=("id", "NAME")),
        Projection(row_filter=read_filter("NAME = 'a'")),
    ],
)
def test_a_name_that_can_be_two_columns_is_refused(projection: Projection) -> None:
    with pytest.raises(ConfigError, match="NAME can be name or Name, which are different columns"):
        project(projection, BOTH, own=())


@pytest.mark.parametrize(
    ("projection", "message"),
    [
        (Projection(rename={"name": "NAME"}), "two columns of public.people would be called name"),
        (Projection(rename={"id": "Name"}), "two columns of public.people would be called"),
        (Projection(metadata={"op": "NAME"}), "two columns of public.people would be called name"),
        (Projection(row_filter=read_filter("name = Name")), "names the columns name and Name, and Spark"),
    ],
)
def test_what_a_setting_cannot_ask_for(projection: Projection, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        project(projection, BOTH, own=())
