"""``routes`` in a config: where each table goes, and what contradicts itself is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.config.samples import FLAT_AVRO, changed, right, wrong
from tidesink.cli.plan import distinct_targets
from tidesink.cli.table_plans import TablePlan
from tidesink.config.models import Destination, Route
from tidesink.errors import ConfigError, SchemaRefusedError
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.sinks.laws.modes import routed_shape
from tidesink.sinks.worker.preflight import Goals, shown_target
from tidesink.typemap.target_schema import Shard, shape_of

SHARDS = {"match": r"shop_(\d+)\.(\w+)", "to": "shop.$2", "shard-column": "shard"}

POSTGRES = {"type": "postgres", "url": "postgresql://127.0.0.1:5432/shop", "user": "u"}
MYSQL = {"type": "mysql", "url": "mysql://127.0.0.1:3306/", "user": "u"}
KAFKA = {"type": "kafka", "brokers": "127.0.0.1:9093", "protocol": "debezium-json"}


def config(*routes: dict[str, Any], target: dict[str, Any] | None = None) -> dict[str, Any]:
    return changed(FLAT_AVRO, routes=list(routes), target=target or {"type": "delta", "path": "/lake"})


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (
            TableId("shop_1", "t"),
            Destination(TableId("shop", "t"), Shard("shard", "shop_1.t")),
        ),
        (
            TableId("SHOP_2", "T"),
            Destination(TableId("shop", "T"), Shard("shard", "SHOP_2.T")),
        ),
        (TableId("bank", "account"), Destination(TableId("money", "account"))),
        (TableId("a.b", "odd$"), Destination(TableId("a", "odd$b"))),
        (TableId("shop_x", "orders"), Destination(TableId("shop_x", "orders"))),
        (TableId("my_shop_1", "orders"), Destination(TableId("my_shop_1", "orders"))),
    ],
    ids=str,
)
def test_the_first_route_that_matches_the_whole_name_counts(table: TableId, expected: Destination) -> None:
    bank = {"match": r"bank\.(\w+)", "to": "money.$1"}
    odd = {"match": r"a\.b\.odd\$", "to": "a.odd$$b"}
    later = {"match": r"(?:shop_1|bank)\.(\w+)", "to": "never.$1", "shard-column": "s"}
    found = right(config(SHARDS, bank, odd, later))
    assert found.destination(table) == expected


def test_a_shard_may_be_a_group() -> None:
    found = right(config({**SHARDS, "shard": "no $1"}))
    assert found.destination(TableId("shop_7", "x")).shard == Shard("shard", "no 7")


@pytest.mark.parametrize(
    ("match", "to", "merges"),
    [
        (r"shop\.orders", "a.b", False),
        (r"shop.orders", "a.b", True),
        (r"shop\.(.*)", "a.$1", False),
        (r"(\w+)\.(\w+)", "$2.$1", False),
        (r"(\w+)\.(\w+)", "all.$2", True),
        (r"shop_\d\.(\w+)", "shop.$1", True),
        (r"(?P<s>\w+)\.(a|b)", "$1.$2", False),
        (r"(?:a|b)\.x", "c.x", True),
        (r"(s)+\.x", "$1.x", True),
        (r"s(hop)?\.x", "s$1.x", True),
        (r"a\(b\.c", "a.c", False),
    ],
)
def test_routes_that_may_merge_tables_are_known(match: str, to: str, merges: bool) -> None:
    assert Route(match=match, to=to).merges is merges


@pytest.mark.parametrize(
    ("route", "field", "words"),
    [
        ({**SHARDS, "match": "shop_("}, "routes[0].match", "correct the regular expression"),
        ({**SHARDS, "to": "orders"}, "routes[0].to", "schema.table"),
        ({**SHARDS, "to": "a.b.c"}, "routes[0].to", "schema.table"),
        ({**SHARDS, "to": "shop.$0"}, "routes[0].to", "$1 to $9"),
        ({**SHARDS, "to": "shop.$3"}, "routes[0].to", "names group $3"),
        ({**SHARDS, "shard": "$3"}, "routes[0].shard", "names group $3"),
        (
            {**SHARDS, "shard": "one"},
            "routes[0].shard",
            "is the same text for all source tables, so their rows could not be distinguished",
        ),
        ({**SHARDS, "shard-column": None}, "routes[0].shard-column", "overwrite each other"),
        ({"match": r"a\.b", "to": "c.d", "shard": "x"}, "routes[0].shard", "without shard-column"),
    ],
)
def test_a_route_that_cannot_be_is_refused(route: dict[str, Any], field: str, words: str) -> None:
    given = {name: value for name, value in route.items() if value is not None}
    problem = wrong(config(given))[field]
    assert words in problem.reason + problem.remedy


def test_two_routes_to_one_table_need_one_shard_column() -> None:
    plain = [{"match": rf"{name}\.t", "to": "all.t"} for name in "ab"]
    assert "two routes to all.t" in wrong(config(*plain))["routes[1].shard-column"].reason
    with_columns = [{**route, "shard-column": name} for route, name in zip(plain, "xy", strict=True)]
    assert "x and y" in wrong(config(*with_columns))["routes[1].shard-column"].reason
    right(config(*({**route, "shard-column": "x"} for route in plain)))
    assert "never used" in wrong(config(plain[0], plain[0]))["routes[1].match"].reason


def test_what_shared_tables_cannot_be_yet_is_refused() -> None:
    ordered = changed(config(SHARDS), defaults__sequence_by="source", source__enable_tidb_extension=True)
    assert "tables with sequence_by: source" in wrong(ordered)["routes[0].shard-column"].reason


def test_a_name_that_becomes_nothing_is_refused() -> None:
    found = right(config({"match": r"s\.(x*)(y*)", "to": "s.$1$2"}, {**SHARDS, "match": r"t\.(x?)y(.*)"}))
    with pytest.raises(ConfigError, match="makes no valid table name"):
        found.destination(TableId("s", ""))
    with pytest.raises(ConfigError, match="characters"):
        found.destination(TableId("t", "y" + "z" * 300))


def test_two_tables_of_a_run_never_share_a_place() -> None:
    found = right(config({**SHARDS, "shard": "$1"}, {"match": r"(\w+)_x\.(\w+)", "to": "$1.$2"}))
    goals = Goals(found.destination)
    assert goals.refusal(TableId("shop_1", "t"), "t") is None
    assert goals.refusal(TableId("shop_2", "t"), "t") is None
    assert goals.refusal(TableId("shop_1", "t"), "t") is None
    unrouted = goals.refusal(TableId("shop", "t"), "t")
    assert unrouted is not None
    assert "shard columns: shard and (none)" in unrouted.message
    assert goals.refusal(TableId("bank_x", "t"), "t") is None
    twice = goals.refusal(TableId("bank", "t"), "t")
    assert twice is not None
    assert "bank_x.t goes to bank.t already" in twice.message
    same = Goals(lambda _: Destination(TableId("a", "b"), Shard("s", "1")))
    assert same.refusal(TableId("a", "x"), "t") is None
    assert same.refusal(TableId("a", "y"), "t") is not None


def test_a_plan_shows_tables_that_would_overwrite_each_other() -> None:
    found = right(config({**SHARDS, "shard": "$1", "to": "shop.all"}))
    names = [TableId("shop_1", "a"), TableId("shop_2", "a"), TableId("shop_2", "b"), None]
    plans = distinct_targets(found, [TablePlan(name, "t") for name in names])
    assert [entry.problem is None for entry in plans] == [True, True, False, True]
    assert "shop_2.a goes to shop.all as shard '2' already" in (plans[2].problem or "")


_SHARED_NAMES = (TableId("a", "b_c"), TableId("a_b", "c"))


@pytest.mark.parametrize(
    ("target", "tables", "apart"),
    [
        ({"type": "delta", "path": "/lake", "table": "{schema}_{table}"}, _SHARED_NAMES, False),
        ({"type": "delta", "path": "/lake", "table": "{schema}-{table}"}, _SHARED_NAMES, True),
        ({"type": "delta", "path": "/lake"}, _SHARED_NAMES, True),
        ({"type": "delta", "path": "/lake"}, (TableId("a", "T"), TableId("a", "t")), True),
        ({"type": "iceberg", "table": "lake.{schema}_{table}"}, _SHARED_NAMES, False),
        ({**POSTGRES, "table": "lake.{schema}_{table}"}, _SHARED_NAMES, False),
        (POSTGRES, (TableId("a", "T"), TableId("a", "t")), True),
        ({**MYSQL, "table": "lake.{schema}_{table}"}, _SHARED_NAMES, False),
        (KAFKA, (TableId("a", "b$c"), TableId("a", "b_c")), False),
        ({**KAFKA, "protocol": "canal-json"}, (TableId("a", "b$c"), TableId("a", "b_c")), True),
        ({**KAFKA, "topic": "all"}, _SHARED_NAMES, True),
        ({"type": "http", "url": "http://127.0.0.1/rows"}, _SHARED_NAMES, True),
    ],
    ids=str,
)
def test_two_tables_whose_names_the_target_makes_one_are_refused(
    target: dict[str, Any], tables: tuple[TableId, TableId], apart: bool
) -> None:
    found = right(changed(config(target=target), source__enable_tidb_extension=True))
    first, second = distinct_targets(found, [TablePlan(name, "t") for name in tables])
    assert first.problem is None
    assert (second.problem is None) is apart
    if not apart:
        assert f"{tables[0]} goes to " in (second.problem or "")
        assert f"{tables[1]} would go there, too" in (second.problem or "")
    goals = Goals.of(found)
    assert [goals.refusal(table, "t") is None for table in (*tables, tables[0])] == [True, apart, True]


def test_status_is_told_of_routed_tables_alone() -> None:
    found = right(config(SHARDS))
    assert shown_target(found, TableId("bank", "account")) == {}
    goal = {"target_table": "shop.t", "shard": "shop_1.t"}
    assert shown_target(found, TableId("shop_1", "t")) == goal


def test_the_shape_has_the_shard_last_in_its_key() -> None:
    key = Column("id", ColumnType("bigint"), nullable=False, handle=True, primary_key=True)
    source = TableId("shop_1", "t")
    shape = shape_of(TableSchema(source, (key, Column("name", ColumnType("varchar")))))
    goal = Destination(TableId("shop", "t"), Shard("shard", "shop_1.t"))
    found = routed_shape(shape, goal)
    assert (found.table, found.source, found.keys) == (goal.table, source, ("id", "shard"))
    assert [column.name for column in found.columns] == ["id", "name", "shard"]
    assert routed_shape(shape, Destination(goal.table)).columns == shape.columns
    with pytest.raises(SchemaRefusedError, match="has a column NAME"):
        routed_shape(shape, Destination(goal.table, Shard("NAME", "x")))
