"""Columns that the config adds at the target, under DDL about columns of the source that had their names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.memory_target import CAPABILITIES
from tests.unit.config.samples import CANAL_JSON, changed, right
from tests.unit.sinks.schema_changes.ddl_bed import Bed, T
from tidesink.config.fields import ChangePolicy
from tidesink.events import ColumnType
from tidesink.sinks.laws.modes import HistoryNames
from tidesink.sinks.schema_changes.decisions import Policies
from tidesink.typemap.projection import Projection
from tidesink.typemap.target_schema import TargetColumn

AB = "id INT PRIMARY KEY, a INT, b INT"
WITH_OP = Projection(metadata={"op": "Op"})
CASES = {
    "dropped": (("ADD COLUMN op VARCHAR(16)", "DROP COLUMN op"), {"id", "a", "b", "Op"}),
    "renamed": (("ADD COLUMN op VARCHAR(16)", "RENAME COLUMN op TO c"), {"id", "a", "b", "Op", "c"}),
    "there and back": (("RENAME COLUMN b TO op", "RENAME COLUMN op TO b"), {"id", "a", "b", "Op"}),
}


@pytest.mark.parametrize("policy", ["pause", "ignore", "apply"])
@pytest.mark.parametrize("case", CASES)
def test_metadata_is_never_taken_for_a_column_that_went(case: str, policy: ChangePolicy) -> None:
    statements, ends = CASES[case]
    bed = Bed(AB, WITH_OP, drop=policy, rename=policy)
    assert bed.alter(*statements) == ()
    assert (len(bed.columns()), set(bed.columns())) == (len(ends), ends)
    bed.start()
    assert bed.batch() == ()
    assert set(bed.columns()) == ends


@pytest.mark.parametrize("policy", ["pause", "ignore", "apply"])
@pytest.mark.parametrize("statement", ["DROP COLUMN current", "RENAME COLUMN current TO c"])
def test_nor_is_a_column_of_the_mode(statement: str, policy: ChangePolicy) -> None:
    bed = Bed(AB, drop=policy, rename=policy)
    bed.added = ("current",)
    shape = bed.decoding.columns().shape
    current = TargetColumn("current", ColumnType("boolean"), "boolean")
    bed.table.evolve(replace(shape, columns=(*shape.columns, current)))
    assert bed.alter("ADD COLUMN current BOOLEAN", statement) == ()
    assert "current" in bed.columns()


def test_a_historys_columns_are_its_own() -> None:
    config = right(changed(CANAL_JSON, source__enable_tidb_extension=True, defaults={"mode": "history"}))
    own = Policies.of(config.table_config(T), {}, CAPABILITIES).own
    assert own >= {*HistoryNames().own}
