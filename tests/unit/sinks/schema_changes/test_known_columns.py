"""Which columns bring their default to rows already there: those that are new at the source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.columns import ID
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.sinks.decode.schema_source import Decoding, SourceColumns
from tidesink.sinks.schema_changes.decisions import KnownColumns, SchemaDecision
from tidesink.sinks.state.progress import Progress
from tidesink.sinks.state.sql_store import SqlStateStore
from tidesink.typemap.projection import Projection, project
from tidesink.typemap.target_schema import TargetSchema, shape_of

TABLE = TableId("shop", "orders")
STATUS = Column("Status", ColumnType("varchar", length=9), default="new")
BEFORE = Progress(TABLE, "shop", 1, 4)
ALL = Projection()


def shape(projection: Projection, *columns: Column) -> TargetSchema:
    return project(projection, shape_of(TableSchema(TABLE, (ID, *columns))), own=()).shape


def decoding(found: TargetSchema, *dropped_columns: Column) -> Decoding:
    """All that is asked of one here."""
    reported = SourceColumns(TableSchema(TABLE, ()), dropped_columns)
    columns = SimpleNamespace(shape=found, rows=SimpleNamespace(shape=found))
    return cast("Decoding", SimpleNamespace(columns=lambda: columns, reported=lambda: reported))


def default_after(store: SqlStateStore, projection: Projection, at: Progress = BEFORE) -> tuple[Any, int]:
    """The default that the column comes with under a layout, and how many warnings there are."""
    known = KnownColumns(store, at, projection)
    found = shape(projection, STATUS)
    name = projection.target_name("Status")
    schema_decision = known.schema_decision(SchemaDecision(found), (name,))
    return schema_decision.given.by_name[name.lower()].default, len(schema_decision.warnings)


def take_note(known: KnownColumns, of: Decoding) -> None:
    known.applied(of, BEFORE)
    known.keep()


@pytest.mark.parametrize(
    ("projection", "later"),
    [
        (Projection(except_columns=("status",)), ALL),
        (Projection(columns=("id",)), Projection(columns=("id", "status"))),
        (ALL, Projection(rename={"status": "state"})),
        (Projection(rename={"Status": "state"}), ALL),
    ],
)
def test_a_column_that_is_chosen_later_brings_no_default(
    tmp_path: Path, projection: Projection, later: Projection
) -> None:
    store = SqlStateStore(str(tmp_path / "state.db"))
    assert default_after(store, later) == ("new", 0)
    take_note(KnownColumns(store, BEFORE, projection), decoding(shape(projection, STATUS)))
    assert default_after(store, later) == (None, 1)
    # Of other rows nothing is known: the table was loaded again, or is one from an old backup.
    assert default_after(store, later, replace(BEFORE, batch=3)) == ("new", 0)


def test_a_column_that_was_dropped_is_new_when_it_comes_again(tmp_path: Path) -> None:
    store = SqlStateStore(str(tmp_path / "state.db"))
    known = KnownColumns(store, BEFORE, ALL)
    take_note(known, decoding(shape(ALL, STATUS)))
    assert default_after(store, ALL) == (None, 1)
    take_note(known, decoding(shape(ALL, STATUS), STATUS))
    assert default_after(store, ALL) == ("new", 0)


def test_what_another_worker_wrote_meanwhile_stays(tmp_path: Path) -> None:
    store = SqlStateStore(str(tmp_path / "state.db"))
    lost, holds = KnownColumns(store, BEFORE, ALL), KnownColumns(store, BEFORE, ALL)
    take_note(holds, decoding(shape(ALL)))
    take_note(lost, decoding(shape(ALL, STATUS)))
    assert default_after(store, ALL) == ("new", 0)
    take_note(holds, decoding(shape(ALL, STATUS)))
    assert default_after(store, ALL) == (None, 1)
