"""Which changes of a table's columns are carried out, left undone, or wait."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from tests.columns import ID
from tests.memory_target import CAPABILITIES
from tests.unit.config.samples import CANAL_JSON, FLAT_AVRO, changed, right, wrong
from tidesink.config.fields import ChangeKind, ChangePolicy, SchemaChanges, allowed_policies
from tidesink.config.table_checks import shown_policies, unreported_changes
from tidesink.config.targets import ALL_FEATURES
from tidesink.errors import SchemaRefusedError
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.sinks.decode.schema_source import SourceColumns
from tidesink.sinks.schema_changes.decisions import (
    Accepted,
    Policies,
    SchemaChange,
    SchemaDecision,
    decide_changes,
    pending_of,
)
from tidesink.sinks.targets.base import SchemaGap
from tidesink.typemap.projection import Projection
from tidesink.typemap.target_schema import TargetSchema, merge_schemas, shape_of

TABLE = TableId("shop", "orders")
NAME = Column("Name", ColumnType("varchar", length=20))
PRICE = Column("price", ColumnType("bigint"))
GAP = SchemaGap(("id", "price"), ("Name",), {"price": ("int", "bigint")})


def _shape(*columns: Column) -> TargetSchema:
    return shape_of(TableSchema(TABLE, columns))


SHAPE = _shape(ID, NAME, PRICE)


def _judge(gap: SchemaGap, policies: SchemaChanges, accepted: Accepted | None = None) -> SchemaDecision:
    return decide_changes(gap, SHAPE, Policies(policies, accepted or {}, CAPABILITIES), None)


def _schema_decision(**policies: ChangePolicy) -> tuple[tuple[str, ...], tuple[str, ...], list[str]]:
    schema_decision = _judge(GAP, SchemaChanges.model_validate(policies))
    names = tuple(column.name for column in schema_decision.given.columns)
    return names, schema_decision.omitted, [one.change.kind for one in schema_decision.pending]


@pytest.mark.law("L7")
def test_what_only_adds_is_applied_where_nothing_is_said() -> None:
    assert _schema_decision() == (("id", "Name", "price"), (), [])


def test_a_column_can_be_left_out_and_is_told() -> None:
    assert _schema_decision(add="ignore") == (("id", "price"), ("Name",), [])
    schema_decision = _judge(GAP, SchemaChanges(add="ignore"))
    assert "Name" in schema_decision.warnings[0]
    assert "not stored" in schema_decision.warnings[0]


@pytest.mark.law("L7")
@pytest.mark.parametrize(
    ("kind", "accepts"), [("add", ("apply", "ignore")), ("widen", ("apply",))], ids=["add", "widen"]
)
def test_a_change_waits_until_exactly_it_is_accepted(kind: str, accepts: tuple[str, ...]) -> None:
    policies = SchemaChanges.model_validate({kind: "pause"})
    (pending,) = _judge(GAP, policies).pending
    assert (pending.change.kind, pending.accepts) == (kind, accepts)
    accepted = {pending.change.digest: pending.accepts[0]}
    assert _judge(GAP, policies, accepted).pending == ()
    # The same column, another change of it: that one was not shown to anybody.
    other = SchemaGap(GAP.columns, ("price",) if kind == "add" else (), {"price": ("int", "decimal(20,0)")})
    assert _judge(other, policies, accepted).pending


def test_an_added_column_can_be_accepted_as_left_out() -> None:
    policies = SchemaChanges(add="pause")
    (pending,) = _judge(GAP, policies).pending
    schema_decision = _judge(GAP, policies, {pending.change.digest: "ignore"})
    assert (schema_decision.omitted, schema_decision.pending) == (("Name",), ())


def test_types_that_cannot_be_one_wait_and_cannot_be_accepted() -> None:
    text = Column("price", ColumnType("varchar", length=5))
    with pytest.raises(SchemaRefusedError) as refused:
        merge_schemas(SHAPE, _shape(ID, NAME, text))
    pending = pending_of(refused.value)
    assert pending is not None
    assert pending.change == SchemaChange("type", "price", "bigint", "string")
    assert pending.accepts == ()
    assert "Load a table again" in pending.reason


def test_another_key_waits_and_cannot_be_accepted() -> None:
    with pytest.raises(SchemaRefusedError) as refused:
        merge_schemas(SHAPE, shape_of(TableSchema(TABLE, (ID, NAME, PRICE)), keys=("id", "name")))
    pending = pending_of(refused.value)
    assert pending is not None
    assert (pending.change.kind, pending.change.before, pending.accepts) == ("key", "id", ())


def test_what_else_a_target_refuses_is_no_change() -> None:
    assert pending_of(SchemaRefusedError("no key", table="shop.orders")) is None


def test_every_kind_of_change_has_its_policies_and_the_default_is_one() -> None:
    defaults = SchemaChanges()
    for kind in get_args(ChangeKind):
        assert defaults.policy(kind) == allowed_policies(kind)[0], kind
    settable = {kind for kind in get_args(ChangeKind) if len(allowed_policies(kind)) > 1}
    assert settable == {field.alias for field in SchemaChanges.model_fields.values()}


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


def _reported(
    *gone: Column, readded: tuple[str, ...] = (), current: tuple[Column, ...] = ()
) -> SourceColumns:
    schema = TableSchema(TABLE, current or (ID, PRICE))
    return SourceColumns(schema, gone, readded=frozenset(readded))


HAS_ALL = SchemaGap(("id", "name", "price"))


def _with_ddl(reported: SourceColumns, gap: SchemaGap = HAS_ALL, **policies: ChangePolicy) -> SchemaDecision:
    said = SchemaChanges.model_validate(policies)
    return decide_changes(gap, SHAPE, Policies(said, {}, CAPABILITIES), reported)


def test_a_dropped_column_stays_where_nothing_is_said() -> None:
    schema_decision = _with_ddl(_reported(NAME))
    assert (schema_decision.drops, schema_decision.omitted, schema_decision.pending) == ((), (), ())


def test_a_dropped_column_goes_and_old_rows_do_not_bring_it_back() -> None:
    schema_decision = _with_ddl(_reported(NAME), drop="apply")
    assert (schema_decision.drops, schema_decision.omitted) == (("name",), ("Name",))
    later = _with_ddl(_reported(NAME), SchemaGap(("id", "price"), ("Name",)), drop="apply")
    assert (later.drops, later.omitted, later.warnings) == ((), ("Name",), ())


def test_a_dropped_column_waits_only_where_the_target_has_it() -> None:
    (pending,) = _with_ddl(_reported(NAME), drop="pause").pending
    assert pending.accepts == ("ignore", "apply")
    assert _with_ddl(_reported(NAME), SchemaGap(("id", "price"), ("Name",)), drop="pause").pending == ()


def test_a_column_that_was_dropped_and_added_again_is_never_dropped_unasked() -> None:
    (pending,) = _with_ddl(_reported(readded=("name",)), drop="apply").pending
    assert pending.accepts == ("ignore",)
    assert "added again" in pending.reason
    assert _with_ddl(_reported(readded=("name",))).pending == ()


def test_a_narrower_type_is_told_where_it_is_asked_for() -> None:
    reported = _reported(current=(ID, NAME, Column("price", ColumnType("int"))))
    gap = HAS_ALL._replace(held={"ID": "bigint", "PRICE": "bigint"})
    assert _with_ddl(reported, gap).pending == ()
    (pending,) = _with_ddl(reported, gap, narrow="pause").pending
    assert pending.change == SchemaChange("narrow", "price", "bigint", "int")
    assert pending.accepts == ("ignore",)


def test_a_target_that_cannot_drop_is_not_asked_to() -> None:
    policies = Policies(
        SchemaChanges(drop="pause"), {}, replace(CAPABILITIES, features=ALL_FEATURES - {"drop"})
    )
    (pending,) = decide_changes(HAS_ALL, SHAPE, policies, _reported(NAME)).pending
    assert pending.accepts == ("ignore",)


@pytest.mark.parametrize("protocol", [FLAT_AVRO, CANAL_JSON], ids=["flat-avro", "canal-json"])
def test_what_only_ddl_tells_is_no_setting_without_it(protocol: dict[str, Any]) -> None:
    data = changed(protocol, **{"defaults__schema_changes": {"drop": "apply", "rename": "apply"}})
    if protocol is CANAL_JSON:
        assert right(data).defaults.schema_changes.rename == "apply"
        return
    assert "does not report" in wrong(data)["defaults.schema-changes.drop"].reason


def test_what_a_target_cannot_do_is_refused() -> None:
    http = {"type": "http", "url": "http://127.0.0.1:1/"}
    data = changed(CANAL_JSON, target=http, **{"defaults__schema_changes": {"rename": "apply"}})
    assert "sends each row" in wrong(data)["defaults.schema-changes.rename"].reason


def test_a_plan_says_what_nothing_tells() -> None:
    reported = right(CANAL_JSON)
    assert list(unreported_changes(reported)) == []
    assert "rename pause" in shown_policies(reported.defaults.schema_changes, reported)
    unreported = right(FLAT_AVRO)
    (said,) = unreported_changes(unreported)
    assert "flat-avro" in said
    assert "rename" not in shown_policies(unreported.defaults.schema_changes, unreported)
    passing = right(changed(CANAL_JSON, target={"type": "http", "url": "http://127.0.0.1:1/"}))
    assert "sends each row" in next(unreported_changes(passing))


def test_what_was_accepted_is_about_one_moment() -> None:
    """A column that is renamed again in the same way waits again."""
    first, again = (SchemaChange("rename", "a", "a", "b", moment) for moment in ("7", "8"))
    policies = Policies(SchemaChanges(), {first.digest: "ignore"}, CAPABILITIES)
    assert [policies.decide(change).policy for change in (first, again)] == ["ignore", "pause"]


@pytest.mark.parametrize("kind", ["drop", "rename", "narrow"])
def test_a_log_takes_no_policy_for_what_changes_nothing_in_it(kind: str) -> None:
    policies = {"schema-changes": {kind: "pause", "add": "pause"}}
    found = wrong(changed(CANAL_JSON, tables=[{"name": "shop.log", "mode": "append", **policies}]))
    assert list(found) == [f"tables[0].schema-changes.{kind}"]
    assert "has no effect in mode append" in next(iter(found.values())).reason
    for named in (
        found,
        wrong(changed(CANAL_JSON, defaults={"mode": "append"}, tables=[{"name": "shop.log", **policies}])),
    ):
        assert list(named) == [f"tables[0].schema-changes.{kind}"]
    # Said for all tables it falls away for the log.
    right(changed(CANAL_JSON, defaults=policies, tables=[{"name": "shop.log", "mode": "append"}]))
    config = right(changed(CANAL_JSON))
    assert kind not in shown_policies(SchemaChanges(), config, logs=True)


UPSERT = {"name": "shop.orders", "mode": "upsert", "keys": ["id"]}
DROPS = {"mode": "append", "schema-changes": {"drop": "apply"}}


@pytest.mark.parametrize(
    ("defaults", "tables"),
    [
        (DROPS, [UPSERT]),
        ({}, [UPSERT, {"match": "shop.*", **DROPS}]),
        (DROPS, [{"match": "shop.*", "mode": "upsert"}]),
    ],
)
def test_a_policy_beside_append_is_for_the_tables_of_other_modes_that_inherit_it(
    defaults: dict[str, Any], tables: list[dict[str, Any]]
) -> None:
    config = right(changed(CANAL_JSON, defaults=defaults, tables=tables))
    assert config.table_config(TABLE).schema_changes.drop == "apply"


@pytest.mark.parametrize("tables", [[], [{"name": "shop.log"}], [{"name": "shop.log", "mode": "append"}]])
@pytest.mark.parametrize("place", ["defaults", "pattern"])
def test_a_policy_that_only_logs_inherit_is_refused(place: str, tables: list[dict[str, Any]]) -> None:
    pattern = [{"match": "shop.*", **DROPS}]
    sections = {"defaults": DROPS, "tables": tables} if place == "defaults" else {"tables": pattern + tables}
    field = "defaults" if place == "defaults" else "tables[0]"
    assert list(wrong(changed(CANAL_JSON, **sections))) == [f"{field}.schema-changes.drop"]


@pytest.mark.parametrize("policy", ["ignore", "pause"])
def test_a_column_that_the_config_asks_for_is_nobodys_change(policy: ChangePolicy) -> None:
    """A metadata column, a new name or a listed column, configured when the table is there already."""
    listed = Projection(columns=("id", "name"))
    layouts = (Projection(metadata={"commit_ts": "Name"}), Projection(rename={"n": "NAME"}), listed)
    for projection in layouts:
        policies = Policies(
            SchemaChanges.model_validate({"add": policy}), {}, CAPABILITIES, projection=projection
        )
        schema_decision = decide_changes(GAP, SHAPE, policies, None)
        assert (schema_decision.omitted, schema_decision.pending, schema_decision.warnings) == ((), (), ())
    assert Projection(columns=("n",), rename={"n": "name"}).asked == {"name"}
