"""Renamed columns: what DDL tells of them, and what the target's own columns say became of a rename."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from tests.columns import ID
from tests.memory_target import CAPABILITIES, MemoryTable, MemoryTarget
from tidesink.config.fields import ChangePolicy, SchemaChanges
from tidesink.ddl.catalog import TableDefinitions
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.sinks.decode.schema_source import Decoding, Renamed, SourceColumns
from tidesink.sinks.schema_changes.decisions import Accepted, Pending, Policies, settle_names
from tidesink.typemap.target_schema import TargetSchema, shape_of

TABLE = TableId("shop", "orders")


def _shape(*names: str) -> TargetSchema:
    return shape_of(TableSchema(TABLE, (ID, *(Column(name, ColumnType("int")) for name in names))))


class _Reported:
    """A decoding that was informed of renames, and remembers by which names it is to read."""

    def __init__(self, renamed: Mapping[str, Renamed]) -> None:
        self.renamed = renamed
        self.read: Mapping[str, str] = {}

    def reported(self) -> SourceColumns:
        return SourceColumns(TableSchema(TABLE, (ID,)), renamed=self.renamed)

    def columns(self) -> Any:
        return _Plan()

    def read_as(self, renamed: Mapping[str, str], _held: Mapping[str, str]) -> None:
        self.read = dict(renamed)


class _Plan:
    shape = _shape()


def _table(*names: str) -> MemoryTable:
    table = MemoryTarget().open_table(_shape(*names), pipeline="shop")
    table.claim()
    return table


def _settled(
    table: MemoryTable,
    *,
    readable: bool = True,
    policy: ChangePolicy = "pause",
    reused: bool = False,
    accepted: Accepted | None = None,
) -> dict[str, str] | tuple[Pending, ...]:
    """By which names the rows are read, or the renames that wait."""
    decoding = _Reported({"Old": Renamed("new", readable, reused=reused)})
    policies = Policies(SchemaChanges.model_validate({"rename": policy}), accepted or {}, CAPABILITIES)
    names = settle_names(table, cast(Decoding, decoding), policies)
    return names.pending or dict(decoding.read)


def _waiting(table: MemoryTable, **settings: Any) -> tuple[Pending, ...]:
    pending = _settled(table, **settings)
    assert isinstance(pending, tuple)
    return pending


def test_the_old_name_alone_waits_or_is_renamed() -> None:
    (pending,) = _waiting(_table("old"))
    assert (pending.change.before, pending.change.after) == ("Old", "new")
    assert pending.accepts == ("apply", "ignore")
    table = _table("old")
    assert _settled(table, policy="apply") == {"Old": "new"}
    assert table.gap(_shape()).columns == ("id", "new")
    # Once renamed, nothing but the target's columns has to remember it.
    assert _settled(table) == {"Old": "new"}


@pytest.mark.parametrize(
    ("columns", "read"), [((), {"Old": "new"}), (("new",), {"Old": "new"}), (("old", "new"), {})]
)
def test_the_targets_columns_say_what_became_of_it(columns: tuple[str, ...], read: dict[str, str]) -> None:
    assert _settled(_table(*columns)) == read


def test_an_ignored_rename_keeps_both() -> None:
    assert _settled(_table("old"), policy="ignore") == {}


def test_what_cannot_be_read_under_its_new_name_is_never_renamed() -> None:
    (pending,) = _waiting(_table("old"), policy="apply", readable=False)
    assert pending.accepts == ("ignore",)
    assert _settled(_table("new"), readable=False) == {}


@pytest.mark.parametrize("columns", [(), ("old", "new")], ids=["neither", "both"])
@pytest.mark.parametrize("policy", ["pause", "apply"])
def test_a_name_that_another_column_had_waits_until_it_is_ignored(
    columns: tuple[str, ...], policy: ChangePolicy
) -> None:
    (pending,) = _waiting(_table(*columns), policy=policy, reused=True)
    assert pending.accepts == ("ignore",)
    accepted: Accepted = {pending.change.digest: "ignore"}
    table = _table(*columns)
    assert _settled(table, policy=policy, reused=True, accepted=accepted) == {}
    assert _settled(_table(*columns), policy="ignore", reused=True) == {}


def test_a_rename_that_is_done_waits_no_more_though_its_name_is_reused() -> None:
    assert _settled(_table("new"), reused=True) == {"Old": "new"}
    assert _settled(_table("new"), reused=True, readable=False) == {}


@pytest.mark.parametrize(
    ("statements", "reused"),
    [
        (("RENAME COLUMN a TO c", "RENAME COLUMN c TO a"), set()),
        (("RENAME COLUMN a TO c", "RENAME COLUMN c TO d"), set()),
        (("RENAME COLUMN a TO c, RENAME COLUMN b TO a",), {"a"}),
        (("RENAME COLUMN a TO t", "RENAME COLUMN b TO a", "RENAME COLUMN t TO b"), {"a", "b"}),
        (("DROP COLUMN b", "RENAME COLUMN a TO b"), {"b"}),
        (("RENAME COLUMN a TO c", "ADD COLUMN a INT"), {"a"}),
        (("RENAME COLUMN a TO c", "ADD COLUMN a INT", "DROP COLUMN a"), {"a"}),
        (("RENAME COLUMN a TO c", "ADD COLUMN a INT", "RENAME COLUMN a TO d"), {"a"}),
        (("RENAME COLUMN a TO c", "DROP COLUMN c", "RENAME COLUMN b TO a"), {"a"}),
    ],
)
def test_ddl_tells_of_names_that_several_columns_had(statements: tuple[str, ...], reused: set[str]) -> None:
    definitions = TableDefinitions()
    definitions.apply("CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, A INT, b INT)")
    for statement in statements:
        definitions.apply(f"ALTER TABLE shop.orders {statement}")
    assert definitions.reused(TABLE) == reused
    assert TableDefinitions.from_json(definitions.to_json()).reused(TABLE) == reused


@pytest.mark.parametrize(
    ("statements", "renamed"),
    [
        (("RENAME COLUMN A TO b",), {"A": "b"}),
        (("CHANGE A b BIGINT",), {"A": "b"}),
        (("RENAME COLUMN A TO b", "RENAME COLUMN b TO c"), {"b": "c", "A": "c"}),
        (("RENAME COLUMN A TO b", "RENAME COLUMN b TO A"), {"b": "A"}),
        (("RENAME COLUMN A TO b", "ADD COLUMN A INT"), {"A": "b"}),
        (("RENAME COLUMN A TO b", "ADD COLUMN A INT", "RENAME COLUMN A TO c"), {"A": "c"}),
        (("RENAME COLUMN A TO b, RENAME COLUMN id TO A",), {"id": "A", "A": "b"}),
        (("RENAME COLUMN A TO b", "DROP COLUMN b"), {}),
        (("CHANGE A A BIGINT",), {}),
    ],
)
def test_ddl_tells_of_renames(statements: tuple[str, ...], renamed: dict[str, str]) -> None:
    definitions = TableDefinitions()
    definitions.apply("CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, A INT)")
    for statement in statements:
        definitions.apply(f"ALTER TABLE shop.orders {statement}")
    assert definitions.renamed(TABLE) == renamed
    assert TableDefinitions.from_json(definitions.to_json()).renamed(TABLE) == renamed
