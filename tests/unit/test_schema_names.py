"""Renamed columns: what DDL tells of them, and what the target's own columns say became of a rename."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from tidesink.change import Column, ColumnType, TableId, TableSchema
from tidesink.config.schema_changes import ChangePolicy, SchemaChanges
from tidesink.sinks.decoding import Decoding, Renamed, ToldColumns
from tidesink.sinks.schema_names import ChangesWaitError, settle_names
from tidesink.sinks.schema_policy import Policies
from tidesink.sinks.shape import TableShape, shape_of
from tidesink.sinks.targets.memory_target import CAPABILITIES, MemoryTable, MemoryTarget
from tidesink.typemap.ddl import TableDefinitions

TABLE = TableId("shop", "orders")
ID = Column("id", ColumnType("bigint"), nullable=False, handle=True, primary_key=True)


def _shape(*names: str) -> TableShape:
    return shape_of(TableSchema(TABLE, (ID, *(Column(name, ColumnType("int")) for name in names))))


class _Told:
    """A decoding that was told of renames, and remembers by which names it is to read."""

    def __init__(self, renamed: Mapping[str, Renamed]) -> None:
        self.renamed = renamed
        self.read: Mapping[str, str] = {}

    def told(self) -> ToldColumns:
        return ToldColumns(TableSchema(TABLE, (ID,)), renamed=self.renamed)

    def columns(self) -> Any:
        return _Plan()

    def read_as(self, renamed: Mapping[str, str]) -> None:
        self.read = dict(renamed)


class _Plan:
    shape = _shape()


def _table(*names: str) -> MemoryTable:
    table = MemoryTarget().open_table(_shape(*names), pipeline="shop")
    table.claim()
    return table


def _settled(table: MemoryTable, *, readable: bool = True, policy: ChangePolicy = "pause") -> dict[str, str]:
    decoding = _Told({"Old": Renamed("new", readable)})
    policies = Policies(SchemaChanges.model_validate({"rename": policy}), {}, CAPABILITIES)
    settle_names(table, cast(Decoding, decoding), policies)
    return dict(decoding.read)


def test_the_old_name_alone_waits_or_is_renamed() -> None:
    with pytest.raises(ChangesWaitError) as waits:
        _settled(_table("old"))
    (pending,) = waits.value.pending
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
    with pytest.raises(ChangesWaitError) as waits:
        _settled(_table("old"), policy="apply", readable=False)
    assert waits.value.pending[0].accepts == ("ignore",)
    assert _settled(_table("new"), readable=False) == {}


@pytest.mark.parametrize(
    ("statements", "renamed"),
    [
        (("RENAME COLUMN A TO b",), {"A": "b"}),
        (("CHANGE A b BIGINT",), {"A": "b"}),
        (("RENAME COLUMN A TO b", "RENAME COLUMN b TO c"), {"b": "c", "A": "c"}),
        (("RENAME COLUMN A TO b", "RENAME COLUMN b TO A"), {"b": "A"}),
        (("RENAME COLUMN A TO b", "ADD COLUMN A INT"), {}),
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
