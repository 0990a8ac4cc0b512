"""Columns, names and filters of a table: in the config, and over a shape."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.config.samples import CANAL_JSON, changed, right, wrong
from tidesink.config.table_checks import OWN_PREFIX
from tidesink.errors import ConfigError, SchemaRefusedError, TidesinkError
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.sinks.laws.modes import FROM_COLUMN, INDEX, OP, TO_COLUMN, UNAVAILABLE
from tidesink.sinks.targets.base import OWN_COLUMNS
from tidesink.typemap.projection import Projection, project, read_filter
from tidesink.typemap.target_schema import default_name, shape_of

ID = Column("Id", ColumnType("bigint"), nullable=False, handle=True, primary_key=True)
SHAPE = shape_of(TableSchema(TableId("shop", "t"), (ID, *(Column(n, ColumnType("int")) for n in "abc"))))
DEFINITION = "create table shop.t (id bigint primary key, a int, b int)"


def _names(projection: Projection) -> dict[str, str]:
    return dict(project(projection, SHAPE, own=("_mark",)).sources)


@pytest.mark.parametrize(
    ("projection", "names"),
    [
        (Projection(), {"Id": "Id", "a": "a", "b": "b", "c": "c"}),
        (Projection(columns=("c", "ID")), {"Id": "Id", "c": "c"}),
        (Projection(except_columns=("B",)), {"Id": "Id", "a": "a", "c": "c"}),
        (Projection(columns=("id", "a", "b"), rename={"A": "b", "b": "A"}), {"Id": "Id", "b": "a", "A": "b"}),
        (
            Projection(except_columns=("a",), rename={"c": "A", "Id": "key"}),
            {"key": "Id", "b": "b", "A": "c"},
        ),
    ],
)
def test_a_layout_says_columns_and_names(projection: Projection, names: dict[str, str]) -> None:
    assert _names(projection) == names


def test_the_key_keeps_being_the_key_under_its_new_name() -> None:
    shape = project(Projection(rename={"id": "number"}), SHAPE, own=()).shape
    assert (shape.keys, [column.name for column in shape.key_columns]) == (("number",), ["number"])


@pytest.mark.parametrize(
    ("projection", "reason"),
    [
        (Projection(columns=("id", "d")), "columns: shop.t has no column d; its columns are Id, a, b, c"),
        (Projection(except_columns=("d",)), "except_column_list: shop.t has no column d"),
        (Projection(rename={"d": "x"}), "rename: shop.t has no column d"),
        (Projection(row_filter=read_filter("d > 1 or a > 1")), "filter: shop.t has no column d"),
        (Projection(columns=("a",)), r"key of shop.t is \(Id\), and Id is left out"),
        (Projection(except_columns=("id",)), "and Id is left out"),
        (Projection(rename={"a": "B"}), "two columns of shop.t would be called b"),
        (Projection(rename={"a": "_MARK"}), "called _mark, which is a column of tidesink's own"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused_by_name(projection: Projection, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        _names(projection)


@pytest.mark.parametrize(
    "projection",
    [
        Projection(columns=("id", "b")),
        Projection(rename={"B": "x"}),
        Projection(row_filter=read_filter("`b` = 1")),
    ],
)
def test_a_column_that_the_source_dropped_is_missed(projection: Projection) -> None:
    with pytest.raises(SchemaRefusedError, match="dropped or renamed"):
        project(projection, SHAPE, own=(), gone={"b"})
    project(Projection(except_columns=("b",)), SHAPE, own=(), gone={"b"})


def test_the_nearest_list_and_filter_hold() -> None:
    config = right(
        changed(
            CANAL_JSON,
            defaults={"except_column_list": ["a"], "filter": "a > 1", "rename": {"b": "x"}},
            tables=[
                {"name": "shop.t", "columns": "id,a", "filter": "true"},
                {"match": "shop.*", "rename": {}},
            ],
        )
    )
    named, fitting, other = (
        config.table_config(TableId(*name.split("."))).projection for name in ("shop.t", "shop.u", "pub.t")
    )
    assert named == Projection(columns=("id", "a"))
    assert (fitting.except_columns, fitting.rename) == (("a",), {})
    assert other == Projection(except_columns=("a",), rename={"b": "x"}, row_filter=read_filter("a > 1"))


@pytest.mark.parametrize(
    ("defaults", "field", "reason"),
    [
        (
            {"columns": ["id"], "except_column_list": ["a"]},
            "except_column_list",
            "cannot be used together with columns",
        ),
        ({"columns": ["id", "ID"]}, "columns", "id is listed twice"),
        ({"columns": []}, "columns", "wrong form"),
        ({"rename": {"a": "x", "b": "X"}}, "rename", "two columns would be called x"),
        ({"rename": {"a": "x", "A": "y"}}, "rename", "a is renamed twice"),
        ({"rename": {"a": " "}}, "rename", "empty name"),
        ({"rename": {"a": "_Tidesink_seq"}}, "rename", "_Tidesink_seq begins with _tidesink_"),
        ({"rename": {"a": "x"}, "except_column_list": ["A"]}, "rename", "no effect on a"),
        ({"rename": {"a": "x"}, "columns": ["id"]}, "rename", "no effect on a"),
        ({"filter": "a > now()"}, "filter", "not the same at another time"),
    ],
)
def test_a_layout_that_contradicts_itself_is_refused(
    defaults: dict[str, Any], field: str, reason: str
) -> None:
    assert reason in wrong(changed(CANAL_JSON, defaults=defaults))[f"defaults.{field}"].reason


def test_names_of_columns_of_its_own_have_one_beginning() -> None:
    own = {*OWN_COLUMNS, FROM_COLUMN, TO_COLUMN, OP, INDEX, UNAVAILABLE, default_name("op")}
    assert {name for name in own if not name.startswith(OWN_PREFIX)} == set()


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"filter": "d > 1"}, "filter: shop.t has no column d"),
        ({"columns": "a"}, "id is left out"),
        ({"rename": {"a": "b"}}, "two columns of shop.t would be called b"),
        ({"keys": "a", "except_column_list": "a"}, "a is left out"),
    ],
)
def test_a_definition_tells_before_the_run(entry: dict[str, Any], reason: str) -> None:
    tables = [{"name": "shop.t", "definition": DEFINITION, **entry}]
    assert reason in wrong(changed(CANAL_JSON, tables=tables))["tables[0]"].reason


def test_errors_of_a_layout_are_told_by_type() -> None:
    with pytest.raises(TidesinkError) as caught:
        _names(Projection(rename={"d": "x"}))
    assert caught.value.context == {"table": "shop.t", "column": "d"}


def test_metadata_is_named_or_has_its_own_names() -> None:
    config = right(
        changed(
            CANAL_JSON,
            source__enable_tidb_extension=True,
            defaults={"metadata": ["op", "commit_ts"]},
            tables=[
                {"name": "shop.t", "metadata": {"topic": "Came From"}},
                {"name": "shop.u", "metadata": {}},
            ],
        )
    )
    tables = [TableId("shop", name) for name in ("t", "u", "v")]
    named, none, other = (config.table_config(table).projection for table in tables)
    assert (named.metadata, none.metadata) == ({"topic": "Came From"}, {})
    assert other.metadata == {"op": "_tidesink_op", "commit_ts": "_tidesink_commit_ts"}
    shape, sources = project(other, SHAPE, own=())
    assert [(c.name, c.spark, c.key) for c in shape.columns[-2:]] == [
        ("_tidesink_op", "string", False),
        ("_tidesink_commit_ts", "bigint", False),
    ]
    assert "_tidesink_op" not in sources


@pytest.mark.parametrize(
    ("places", "field", "reason"),
    [
        ({"defaults": {"metadata": ["commit_ts"]}}, "metadata", "enable-tidb-extension=true"),
        ({"defaults": {"metadata": {"op": "a", "topic": "A"}}}, "metadata", "two columns would be called a"),
        ({"defaults": {"metadata": {"op": ""}}}, "metadata", "empty name"),
        ({"defaults": {"metadata": ["lsn"]}}, "metadata.lsn.[key]", "'lsn' is not allowed"),
        (
            {"defaults": {"ignore_null_updates": True, "sequence_by": "source"}},
            "ignore_null_updates",
            "with sequence_by: source",
        ),
        (
            {"defaults": {"ignore_null_updates": True}, "source__protocol": "debezium-json"},
            "ignore_null_updates",
            "leave out an unchanged value",
        ),
        ({"defaults": {"mode": "append", "filter": "a > 1"}}, "filter", "stores changes as they are"),
        (
            {"defaults": {"mode": "append", "ignore_null_updates": True}},
            "ignore_null_updates",
            "stores each row unchanged",
        ),
        (
            {
                "defaults": {"ignore_null_updates": True},
                "target": {"type": "http", "url": "http://127.0.0.1:1/x"},
            },
            "ignore_null_updates",
            "does not store rows",
        ),
    ],
)
def test_metadata_and_nulls_that_cannot_be_had_are_refused(
    places: dict[str, Any], field: str, reason: str
) -> None:
    problems = wrong(changed(CANAL_JSON, **places))
    assert reason in problems[f"defaults.{field}"].reason, problems


def test_positions_are_told_by_debezium_and_by_ticdc_with_its_extension() -> None:
    asked = changed(CANAL_JSON, defaults={"metadata": "position"})
    assert "enable-tidb-extension" in wrong(asked)["defaults.metadata"].reason
    for said in ({"source__protocol": "debezium-json"}, {"source__enable_tidb_extension": True}):
        found = right(changed(asked, **said)).table_config(TableId("shop", "t"))
        assert found.projection.metadata == {"position": "_tidesink_position"}


def test_a_metadata_column_cannot_have_a_columns_name() -> None:
    with pytest.raises(ConfigError, match=r"two columns of shop\.t would be called a"):
        project(Projection(metadata={"op": "A"}), SHAPE, own=())
    with pytest.raises(ConfigError, match="a column of tidesink's own"):
        project(Projection(metadata={"op": "_mark"}), SHAPE, own=("_mark",))
