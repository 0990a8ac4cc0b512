"""In what the database's columns differ from those of a table's records, and which of them are read."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pytest

from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.sinks.batch.source_rows import ColumnGap, KeyShare, SourceDecoder, numbered_records, source_plan
from tidesink.sinks.decode.canal_json import canal_json_plan
from tidesink.sinks.decode.plans import DecodePlan, PlanSettings
from tidesink.source_database.base import StoredTable
from tidesink.typemap.mysql_types import parse_sql_type
from tidesink.typemap.projection import Projection

TABLE: Final = TableId("shop", "orders")


def _plan(*columns: str, was: tuple[str, ...] = ()) -> DecodePlan:
    """A plan of int columns; ``was``: columns that the table had before, too."""
    base = canal_json_plan(_schema(*columns, *was)).shape if was else None
    return canal_json_plan(_schema(*columns), PlanSettings(base=base))


def _schema(*names: str) -> TableSchema:
    return TableSchema(TABLE, tuple(Column(name, ColumnType("int"), handle=name == "id") for name in names))


def _stored(*names: str, virtual: tuple[str, ...] = ()) -> StoredTable:
    types, others = (dict.fromkeys(some, parse_sql_type("int(11)")) for some in (names, virtual))
    return StoredTable(types, ("id",), 0, 0, others)


@pytest.mark.parametrize(
    ("plan", "stored", "read", "gap"),
    [
        (_plan("id", "a"), _stored("id", "A"), ["id", "a"], ColumnGap()),
        (_plan("id", "a"), _stored("id", "a", "b"), ["id", "a"], ColumnGap(new=("b",))),
        (_plan("id", "a"), _stored("id", "b"), ["id"], ColumnGap(("a",), ("b",))),
        # That it was dropped is known: nothing is waited for.
        (_plan("id", "b", was=("a",)), _stored("id", "b"), ["id", "b"], ColumnGap()),
        # TiCDC lists a virtual column, and has no value of it.
        (_plan("id", "v"), _stored("id", virtual=("v",)), ["id"], ColumnGap()),
        # Avro's names of columns, unless another column has that name.
        (_plan("id", "a_b", "_1st"), _stored("id", "a b", "1st"), ["id", "a_b", "_1st"], ColumnGap()),
        (_plan("id", "a_b"), _stored("id", "a b", "a_b"), ["id", "a_b"], ColumnGap(new=("a b",))),
    ],
)
def test_columns_that_are_read(
    plan: DecodePlan, stored: StoredTable, read: list[str], gap: ColumnGap
) -> None:
    found, differs = source_plan(plan, stored)
    assert isinstance(found.decoder, SourceDecoder)
    assert [column.recorded.name for column in found.decoder.columns] == read
    assert differs == gap


def test_a_column_that_the_target_does_not_hold_is_not_read() -> None:
    """Its type in the database may be another than the records have, and is no reason to wait."""
    projection = Projection(except_columns=("a",))
    plan = canal_json_plan(_schema("id", "a", "b"), PlanSettings(left_out=projection.leaves_out))
    stored = StoredTable(
        {"id": parse_sql_type("int(11)"), "a": parse_sql_type("date"), "b": parse_sql_type("int(11)")},
        ("id",),
        0,
        0,
    )
    found, gap = source_plan(plan, stored)
    assert isinstance(found.decoder, SourceDecoder)
    assert [column.recorded.name for column in found.decoder.columns] == ["id", "b"]
    assert gap == ColumnGap()


def test_a_timestamp_that_is_kept_as_text_is_in_the_zone_of_its_records() -> None:
    kind = parse_sql_type("timestamp(3)")
    columns = (Column("id", ColumnType("int"), handle=True), Column("t", kind))
    plan = canal_json_plan(
        TableSchema(TABLE, columns), PlanSettings(zero_date="text", time_zone="Asia/Shanghai")
    )
    stored = StoredTable({"id": parse_sql_type("int(11)"), "t": kind}, ("id",), 0, 0)
    texts = pa.array(["2024-01-01 00:00:00.120", "0000-00-00 00:00:00.000", None])
    rows_read = pa.StructArray.from_arrays([pa.array(["1", "2", "3"]), texts], names=["id", "t"])
    records = numbered_records(KeyShare("rows"), 0, rows_read)
    found, _ = source_plan(plan, stored)
    (rows,) = found.decoder.decode_batch(records).tables
    assert [row["t"] for row in rows.rows["after"].to_pylist()] == [
        "2024-01-01 08:00:00.120",
        "0000-00-00 00:00:00.000",
        None,
    ]
