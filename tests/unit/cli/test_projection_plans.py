"""What ``plan`` says of a table whose target has columns, names and rows of choice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.contracts.targets_bed import shape
from tests.unit.config.samples import CANAL_JSON, changed, right
from tidesink.cli.table_plans import TablePlan, _canal_table, plan_of
from tidesink.cli.table_schemas import SampledRecords, SampledTopic
from tidesink.ddl.topic_statements import DdlStatement
from tidesink.events import TableId
from tidesink.typemap.target_schema import merged_in_order


def _plan(**settings: object) -> TablePlan:
    config = right(changed(CANAL_JSON, defaults=settings))
    return plan_of(config, "app", shape(), types_from="ddl")


def test_the_targets_columns_are_planned() -> None:
    plan = _plan(except_column_list="amount", rename={"name": "title"}, metadata=["op"], filter="amount > 1")
    assert [column.name for column in plan.columns] == ["id", "title", "_tidesink_op"]
    assert [column.note for column in plan.columns] == ["", "name at the source", "op of the change"]
    assert (plan.omitted, plan.problem, plan.policies["filter"]) == (("amount",), None, "amount > 1")


def test_a_layout_that_does_not_fit_is_a_problem() -> None:
    plan = _plan(filter="price > 1")
    assert plan.problem == "filter: shop.orders has no column price; its columns are id, name, amount"
    assert _plan().policies.keys() == {*plan.policies} - {"filter"}


def test_a_modes_own_columns_are_no_warnings_and_settings_without_effect_are_not_shown() -> None:
    modes = {
        mode: plan_of(
            right(changed(CANAL_JSON, source__enable_tidb_extension=True, defaults={"mode": mode})),
            "app",
            shape(),
            types_from="ddl",
        )
        for mode in ("upsert", "append", "history")
    }
    assert [plan.warnings for plan in modes.values()] == [(), (), ()]
    assert modes["upsert"].policies.keys() - modes["history"].policies.keys() == {"sequence_by", "deletes"}
    assert {"valid_from", "current"} <= {column.name for column in modes["history"].columns}
    assert "rename" not in modes["append"].policies["schema-changes"]
    assert "rename" in modes["history"].policies["schema-changes"]


def test_a_column_that_may_be_one_left_out_is_a_warning() -> None:
    before, after = shape(), shape()
    renamed = replace(
        after,
        columns=tuple(replace(c, name="total") if c.name == "amount" else c for c in after.columns),
    )
    config = right(changed(CANAL_JSON, defaults={"except_column_list": "amount"}))
    plan = plan_of(config, "app", merged_in_order([before, renamed]), types_from="avro")
    (warning,) = plan.warnings
    assert warning.startswith("column total: it may be an excluded column under a new name, because amount")


def _canal_plan(*statements: str, **settings: object) -> TablePlan:
    """The plan of a canal-json table after these DDL statements of its topic."""
    config = right(changed(CANAL_JSON, defaults=settings))
    sampled = SampledTopic(config, SampledRecords("app", ()))
    for number, statement in enumerate(statements, start=1):
        sampled.define(DdlStatement("shop", statement, number))
    return _canal_table(config, sampled, TableId("shop", "t"))


CREATE = "CREATE TABLE t (id INT PRIMARY KEY, phone INT)"
RENAME = "ALTER TABLE t RENAME COLUMN phone TO mobile"


@pytest.mark.parametrize(("listed", "lacking"), [("phone", "mobile"), ("mobile", "phone")])
def test_a_rename_of_an_excluded_column_is_a_problem_until_both_names_are_listed(
    listed: str, lacking: str
) -> None:
    problem = _canal_plan(CREATE, RENAME, except_column_list=listed).problem or ""
    assert problem.startswith("column phone was renamed to mobile")
    assert f"Add {lacking} to it" in problem
    plan = _canal_plan(CREATE, RENAME, except_column_list=["phone", "mobile"])
    assert (plan.problem, plan.omitted, plan.warnings) == (None, ("mobile",), ())


def test_a_name_that_never_was_is_a_problem_after_ddl_too() -> None:
    plan = _canal_plan(CREATE, RENAME, except_column_list="fone")
    assert plan.problem == "except_column_list: shop.t has no column fone; its columns are id, mobile"
