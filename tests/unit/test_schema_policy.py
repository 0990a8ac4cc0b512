"""Which changes of a table's columns are carried out, left undone, or wait."""

from __future__ import annotations

from typing import get_args

import pytest

from tests.unit.config_samples import FLAT_AVRO, changed, right, wrong
from tidesink.change import Column, ColumnType, TableId, TableSchema
from tidesink.config.schema_changes import CHANGE_RULES, ChangePolicy, SchemaChanges
from tidesink.errors import SchemaRefusedError
from tidesink.sinks.schema_policy import SchemaChange, judge, pending_of
from tidesink.sinks.shape import TableShape, merge_shape, shape_of
from tidesink.sinks.targets.base import SchemaGap

TABLE = TableId("shop", "orders")
ID = Column("id", ColumnType("bigint"), nullable=False, handle=True, primary_key=True)
NAME = Column("Name", ColumnType("varchar", length=20))
PRICE = Column("price", ColumnType("bigint"))
GAP = SchemaGap(("id", "price"), ("Name",), {"price": ("int", "bigint")})


def _shape(*columns: Column) -> TableShape:
    return shape_of(TableSchema(TABLE, columns))


SHAPE = _shape(ID, NAME, PRICE)


def _judged(**policies: ChangePolicy) -> tuple[tuple[str, ...], tuple[str, ...], list[str]]:
    judged = judge(GAP, SHAPE, policies=SchemaChanges.model_validate(policies), accepted={})
    names = tuple(column.name for column in judged.given.columns)
    return names, judged.left_out, [one.change.kind for one in judged.pending]


def test_what_only_adds_is_applied_where_nothing_is_said() -> None:
    assert _judged() == (("id", "Name", "price"), (), [])


def test_a_column_can_be_left_out_and_is_told() -> None:
    assert _judged(add="ignore") == (("id", "price"), ("Name",), [])
    judged = judge(GAP, SHAPE, policies=SchemaChanges(add="ignore"), accepted={})
    assert "Name" in judged.warnings[0]
    assert "lost" in judged.warnings[0]


@pytest.mark.parametrize(
    ("kind", "accepts"), [("add", ("apply", "ignore")), ("widen", ("apply",))], ids=["add", "widen"]
)
def test_a_change_waits_until_exactly_it_is_accepted(kind: str, accepts: tuple[str, ...]) -> None:
    policies = SchemaChanges.model_validate({kind: "pause"})
    (pending,) = judge(GAP, SHAPE, policies=policies, accepted={}).pending
    assert (pending.change.kind, pending.accepts) == (kind, accepts)
    accepted = {pending.change.digest: accepts[0]}
    assert judge(GAP, SHAPE, policies=policies, accepted=accepted).pending == ()  # type: ignore[arg-type]
    # The same column, another change of it: that one was not shown to anybody.
    other = SchemaGap(GAP.columns, ("price",) if kind == "add" else (), {"price": ("int", "decimal(20,0)")})
    assert judge(other, SHAPE, policies=policies, accepted=accepted).pending  # type: ignore[arg-type]


def test_an_added_column_can_be_accepted_as_left_out() -> None:
    policies = SchemaChanges(add="pause")
    (pending,) = judge(GAP, SHAPE, policies=policies, accepted={}).pending
    judged = judge(GAP, SHAPE, policies=policies, accepted={pending.change.digest: "ignore"})
    assert (judged.left_out, judged.pending) == (("Name",), ())


def test_types_that_cannot_be_one_wait_and_cannot_be_accepted() -> None:
    text = Column("price", ColumnType("varchar", length=5))
    with pytest.raises(SchemaRefusedError) as refused:
        merge_shape(SHAPE, _shape(ID, NAME, text))
    pending = pending_of(refused.value)
    assert pending is not None
    assert pending.change == SchemaChange("type", "price", "bigint", "string")
    assert pending.accepts == ()
    assert "under another name" in pending.reason


def test_another_key_waits_and_cannot_be_accepted() -> None:
    with pytest.raises(SchemaRefusedError) as refused:
        merge_shape(SHAPE, shape_of(TableSchema(TABLE, (ID, NAME, PRICE)), keys=("id", "name")))
    pending = pending_of(refused.value)
    assert pending is not None
    assert (pending.change.kind, pending.change.before, pending.accepts) == ("key", "id", ())


def test_what_else_a_target_refuses_is_no_change() -> None:
    assert pending_of(SchemaRefusedError("no key", table="shop.orders")) is None


def test_every_setting_takes_the_policies_of_its_rule() -> None:
    for kind, field in SchemaChanges.model_fields.items():
        rule = CHANGE_RULES[kind]  # type: ignore[index]
        assert set(get_args(field.annotation)) == set(rule.allowed), kind
        assert field.default == rule.default, kind
    assert {kind for kind, rule in CHANGE_RULES.items() if len(rule.allowed) > 1} == set(
        SchemaChanges.model_fields
    )


def test_a_table_says_only_what_it_wants_other() -> None:
    data = changed(FLAT_AVRO, **{"defaults__schema_changes": {"widen": "pause"}})
    data["tables"] = [
        {"name": "shop.orders", "schema-changes": {"add": "ignore"}},
        {"match": "shop.*", "schema-changes": {"add": "pause", "widen": "apply"}},
    ]
    config = right(data)
    found = config.table_config(TABLE).schema_changes
    assert (found.add, found.widen) == ("ignore", "apply")
    found = config.table_config(TableId("other", "t")).schema_changes
    assert (found.add, found.widen) == ("apply", "pause")


def test_a_policy_that_is_none_is_refused() -> None:
    problems = wrong(changed(FLAT_AVRO, **{"defaults__schema_changes": {"widen": "ignore"}}))
    assert "defaults.schema-changes.widen" in problems
