"""Which changes of shape happen on their own, which are refused, and what defaults old rows get."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pytest

from tests.columns import ID
from tidesink.errors import SchemaRefusedError, ValueOutOfRangeError
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.sinks.targets.column_changes import literal_text, plan_evolution
from tidesink.typemap.target_schema import TargetSchema, default_value, shape_of


def shape(*columns: Column, **options: Any) -> TargetSchema:
    return shape_of(TableSchema(TableId("s", "t"), (ID, *columns)), **options)


def column(name: str, **arguments: Any) -> ColumnType:
    return ColumnType(name, **arguments)


def test_what_is_there_needs_nothing() -> None:
    plan = plan_evolution({"ID": "bigint", "x": "int"}, shape(Column("X", column("int"))))
    assert not plan.needed


def test_new_columns_come_in_the_shapes_order() -> None:
    wanted = shape(*(Column(name, column("int")) for name in "cab"))
    assert [c.name for c in plan_evolution({"id": "bigint", "a": "int"}, wanted).added] == ["c", "b"]


@pytest.mark.parametrize(
    ("present", "new", "wider"),
    [
        ("int", column("bigint"), "bigint"),
        ("bigint", column("int"), None),
        ("bigint", column("bigint unsigned"), "decimal(20,0)"),
        ("float", column("double"), "double"),
        ("decimal(5,2)", column("decimal", precision=7, scale=2), "decimal(7,2)"),
        ("decimal(5,2)", column("decimal", precision=5, scale=4), "decimal(7,4)"),
        ("decimal(9,4)", column("decimal", precision=5, scale=2), None),
        ("string", column("decimal", precision=5, scale=2), None),
    ],
)
def test_numbers_widen(present: str, new: ColumnType, wider: str | None) -> None:
    plan = plan_evolution({"id": "bigint", "Col": present}, shape(Column("col", new)))
    assert plan.widened == ({"Col": wider} if wider else {})


@pytest.mark.parametrize(
    ("present", "new"),
    [
        ("int", column("varchar")),
        ("string", column("int")),
        ("decimal(38,0)", column("decimal", precision=38, scale=2)),
        ("decimal(5,2)", column("decimal", precision=65, scale=2)),
        ("date", column("datetime")),
        ("binary", column("varchar")),
    ],
)
def test_what_would_lose_values_is_refused(present: str, new: ColumnType) -> None:
    with pytest.raises(SchemaRefusedError) as refused:
        plan_evolution({"id": "bigint", "col": present}, shape(Column("col", new)))
    assert present in refused.value.message
    assert refused.value.where() == "table=s.t column=col"
    assert {name: refused.value.context[name] for name in ("change", "before")} == {
        "change": "type",
        "before": present,
    }


def test_a_new_key_column_is_refused() -> None:
    with pytest.raises(SchemaRefusedError, match="no column id"):
        plan_evolution({"x": "int"}, shape(Column("x", column("int"))))


DEFAULTS: list[tuple[ColumnType, str | None, Any]] = [
    (column("int"), None, None),
    (column("int"), "-7", -7),
    (column("bigint unsigned"), "18446744073709551615", 2**64 - 1),
    (column("decimal", precision=5, scale=2), "1.25", Decimal("1.25")),
    (column("decimal", precision=60, scale=2), "1.25", "1.25"),
    (column("double"), "1.5", 1.5),
    (column("varchar", length=9), "", ""),
    (column("varchar", length=9), "it's", "it's"),
    (column("binary", length=3), "\xff\x00\x00", b"\xff\x00\x00"),
    (column("bit", length=4), "\x05", 5),
    (column("bit", length=16), "\x01\x00", 256),
    (column("date"), "2020-02-29", date(2020, 2, 29)),
    (column("date"), "0000-00-00", None),
    (column("datetime", fsp=3), "2020-01-01 00:00:00.123", datetime(2020, 1, 1, 0, 0, 0, 123000)),
    (column("time"), "-01:00:00", "-01:00:00"),
    (column("json"), "null", "null"),
    (column("enum", members=("a", "b")), "b", "b"),
]


@pytest.mark.parametrize(("kind", "text", "value"), DEFAULTS)
def test_defaults_are_read_as_the_columns_type(kind: ColumnType, text: str | None, value: Any) -> None:
    wanted = shape(Column("c", kind, default=text))
    assert default_value(wanted.by_name["c"], wanted) == value


def test_a_timestamp_default_is_read_in_the_tables_zone() -> None:
    default = "2020-07-01 12:00:00"
    wanted = shape(Column("c", column("timestamp"), default=default), time_zone="Europe/Berlin")
    value = default_value(wanted.by_name["c"], wanted)
    assert value == datetime(2020, 7, 1, 10, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (column("datetime"), "CURRENT_TIMESTAMP"),
        (column("timestamp", fsp=3), "current_timestamp(3)"),
        (column("int"), "seven"),
        (column("bit", length=9), "\u0141"),
    ],
)
def test_a_default_that_says_no_value_is_an_error(kind: ColumnType, text: str) -> None:
    wanted = shape(Column("c", kind, default=text))
    with pytest.raises(ValueOutOfRangeError):
        default_value(wanted.by_name["c"], wanted)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5, "5"),
        (0.1, "0.1"),
        (5e-324, "5e-324"),
        (Decimal("1E+3"), "1000"),
        (Decimal("1.50"), "1.50"),
        (b"\xff\x00", "ff00"),
        (date(2020, 1, 2), "2020-01-02"),
        (datetime(2020, 1, 2, 3, 4, 5, 6), "2020-01-02 03:04:05.000006"),
        (datetime(2020, 1, 2, tzinfo=timezone.utc), "2020-01-02 00:00:00+00:00"),
        ("it's", "it's"),
    ],
)
def test_literal_text(value: Any, text: str) -> None:
    assert literal_text(value) == text
