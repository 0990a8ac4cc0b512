"""Which native types of databases hold which source types, without a database."""

from __future__ import annotations

from typing import Any

import pytest

from tests.columns import ID
from tests.contracts.targets_bed import shape
from tidesink.errors import SchemaRefusedError
from tidesink.events import Column, ColumnType
from tidesink.sinks.targets.sql.columns import plan_columns
from tidesink.typemap.native_sql import Native, Refused, Wider, native_of
from tidesink.typemap.render_sql import FoundType


@pytest.mark.parametrize(
    ("database", "found", "kind", "fit"),
    [
        ("postgres", "uuid", ColumnType("uuid"), Native),
        ("postgres", "integer", ColumnType("int"), type(None)),
        ("postgres", "integer", ColumnType("bigint"), type(None)),  # gets wider, as ever
        ("postgres", "smallint", ColumnType("int"), Native),
        ("postgres", FoundType("mood", is_enum=True), ColumnType("text"), Native),
        ("postgres", FoundType("three", "character varying(3)"), ColumnType("text"), Native),
        ("postgres", "timestamp(3) without time zone", ColumnType("local datetime"), Wider),
        ("postgres", "timestamp(3) without time zone", ColumnType("local datetime", fsp=3), Native),
        ("postgres", "numeric(9,2)", ColumnType("decimal"), Wider),
        ("postgres", "interval", ColumnType("interval"), Refused),
        ("postgres", "jsonb", ColumnType("text"), Refused),
        ("postgres", "public.citext", ColumnType("text"), Native),
        ("mysql", "timestamp", ColumnType("timestamp", fsp=6), Wider),
        ("mysql", "time", ColumnType("time", fsp=6), Wider),
        ("mysql", "time(6)", ColumnType("time", fsp=6), type(None)),
        ("mysql", "datetime(3)", ColumnType("datetime"), Wider),
        ("mysql", "datetime(3)", ColumnType("datetime", fsp=2), Native),
        ("mysql", "timestamp(6)", ColumnType("datetime", fsp=6), Refused),
        ("mysql", "float(7,2)", ColumnType("float"), Refused),
        ("mysql", "float", ColumnType("float"), type(None)),
        ("mysql", FoundType("longtext", charset="latin1"), ColumnType("text"), Native),
        ("mysql", FoundType("longtext"), ColumnType("text"), type(None)),
    ],
)
def test_what_a_native_type_does_with_a_source_type(
    database: Any, found: str, kind: ColumnType, fit: type
) -> None:
    column = shape(ID, Column("a", kind)).columns[1]
    assert type(native_of(column, found, database)) is fit


def test_a_type_that_holds_all_values_needs_no_cast() -> None:
    column = shape(ID, Column("a", ColumnType("tinyint unsigned"))).columns[1]
    for found, cast in (("smallint", False), ("tinyint", True), ("tinyint unsigned", False)):
        fit = native_of(column, found, "mysql")
        assert isinstance(fit, Native)
        assert (fit.kept is not None) is cast


def test_a_refusal_names_the_column_and_the_native_type_and_not_the_source() -> None:
    present = {"id": "bigint", "a": "interval"}
    text = r"column=a.*change its type to text and start again"
    with pytest.raises(SchemaRefusedError, match=text) as refused:
        plan_columns(present, shape(ID, Column("a", ColumnType("interval"))), "postgres")
    assert "interval" in refused.value.message


def test_a_native_key_is_not_a_missing_one() -> None:
    key = Column("code", ColumnType("uuid"), nullable=False, handle=True, primary_key=True)
    for database in ("postgres", "mysql"):
        assert not plan_columns({"code": "uuid"}, shape(key), database).needed
