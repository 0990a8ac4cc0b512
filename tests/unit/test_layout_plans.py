"""What ``plan`` says of a table whose target has columns, names and rows of choice."""

from __future__ import annotations

from tests.contracts.targets_bed import shape
from tests.unit.config_samples import CANAL_JSON, changed, right
from tidesink.cli.table_plans import TablePlan, plan_of


def _plan(**settings: object) -> TablePlan:
    config = right(changed(CANAL_JSON, defaults=settings))
    return plan_of(config, "app", shape(), types_from="ddl")


def test_the_targets_columns_are_planned() -> None:
    plan = _plan(except_column_list="amount", rename={"name": "title"}, metadata=["op"], filter="amount > 1")
    assert [column.name for column in plan.columns] == ["id", "title", "_tidesink_op"]
    assert [column.note for column in plan.columns] == ["", "name at the source", "op of the change"]
    assert (plan.left_out, plan.problem, plan.policies["filter"]) == (("amount",), None, "amount > 1")


def test_a_layout_that_does_not_fit_is_a_problem() -> None:
    plan = _plan(filter="price > 1")
    assert plan.problem == "filter: shop.orders has no column price; its columns are id, name, amount"
    assert _plan().policies.keys() == {*plan.policies} - {"filter"}
