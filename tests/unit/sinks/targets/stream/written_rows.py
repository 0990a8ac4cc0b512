"""Rows of every type as Arrow batches, as a task of a target of messages gets them; without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tests.columns import ID
from tidesink.events import Column, ColumnType, TableId, TableSchema, Value
from tidesink.typemap.table import OTHER_TYPES, TYPES, TypeRow, spark_type
from tidesink.typemap.target_schema import TargetSchema, shape_of

TABLE = TableId("shop", "orders")
_ARROW = {
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp_ntz": pa.timestamp("us"),
    "timestamp": pa.timestamp("us", "Europe/Berlin"),
}


class Case:
    """A column, a value as a target stores it, and what a reader of the messages must find."""

    def __init__(self, column_type: ColumnType, stored: Any, source: Value) -> None:
        self.type, self.stored, self.source = column_type, stored, source


MOMENT = datetime(2024, 2, 29, 23, 59, 58, 123456)
# What another database's type is written as, and its value there.
_BY_READER: dict[str, list[tuple[dict[str, Any], Any, Value]]] = {
    "float32": [({}, -3.4028234663852886e38, -3.4028234663852886e38), ({}, 0.5, 0.5)],
    "float64": [({}, -1.7976931348623157e308, -1.7976931348623157e308), ({}, 5e-324, 5e-324)],
    "text": [({}, "größe 数量 😀 '\"\\\n\t", "größe 数量 😀 '\"\\\n\t"), ({}, "", "")],
    "binary": [({}, bytes(range(256)), bytes(range(256))), ({}, b"", b"")],
    "enum": [({"members": ("x", "y,z")}, "y,z", "y,z")],
    "set": [({"members": ("x", "y")}, "x,y", "x,y"), ({"members": ("x", "y")}, "", "")],
    "date": [({}, date(1000, 1, 1), "1000-01-01"), ({}, date(9999, 12, 31), "9999-12-31")],
    "datetime": [
        ({"fsp": 6}, MOMENT, "2024-02-29 23:59:58.123456"),
        ({"fsp": 0}, MOMENT.replace(microsecond=0), "2024-02-29 23:59:58"),
        ({"fsp": 3}, MOMENT.replace(microsecond=120000), "2024-02-29 23:59:58.120"),
    ],
    "timestamp": [({"fsp": 6}, MOMENT, "2024-02-29 23:59:58.123456")],
    "time": [({"fsp": 6}, "-838:59:59.999999", "-838:59:59.999999"), ({"fsp": 0}, "12:00:00", "12:00:00")],
    "boolean": [({}, True, 1), ({}, False, 0)],
    "local_date": [({}, date(1000, 1, 1), "1000-01-01")],
    "local_datetime": [({}, MOMENT, "2024-02-29 23:59:58.123456")],
    "instant": [({}, MOMENT, "2024-02-29 23:59:58.123456")],
    "bit": [
        ({"length": 1}, 1, 1),
        ({"length": 63}, 2**63 - 1, 2**63 - 1),
        ({"length": 64}, Decimal(2**64 - 1), 2**64 - 1),
    ],
    "decimal": [
        (
            {"precision": 38, "scale": 10},
            Decimal("9" * 28 + ".0000000001"),
            Decimal("9" * 28 + ".0000000001"),
        ),
        ({"precision": 5, "scale": 2}, Decimal("-0.01"), Decimal("-0.01")),
        ({"precision": 65, "scale": 30}, "9" * 35 + "." + "9" * 30, Decimal("9" * 35 + "." + "9" * 30)),
    ],
}


def cases() -> list[tuple[str, Case]]:
    """Every type of the table with its values."""
    return [(f"{row.name} {at}", case) for row in (*TYPES, *OTHER_TYPES) for at, case in enumerate(_of(row))]


def _of(row: TypeRow) -> list[Case]:
    if row.reader in ("integer", "unsigned64"):
        least, most = row.bounds or (0, 0)
        least = 1901 if row.name == "year" else least
        decimal = row.reader == "unsigned64"
        return [
            Case(ColumnType(row.name), Decimal(value) if decimal else value, value) for value in (least, most)
        ]
    return [
        Case(ColumnType(row.name, **parameters), stored, source)
        for parameters, stored, source in _BY_READER[row.reader]
    ]


def shape_with(*columns: Column, keys: tuple[str, ...] | None = None) -> TargetSchema:
    """The shape of a table of these columns behind the key ``id``."""
    return shape_of(TableSchema(TABLE, (ID, *columns)), keys=keys)


def arrow_batch(
    shape: TargetSchema, rows: Sequence[tuple[str, Mapping[str, Any] | None, Mapping[str, Any]]], **more: Any
) -> pa.RecordBatch:
    """Rows (op, after, key) as Spark gives them to ``mapInArrow``; ``more``: other columns, as lists."""
    keys = _struct(shape.key_columns)
    columns = {
        "_op": pa.array([op for op, _, _ in rows], pa.string()),
        "key": pa.array([key for _, _, key in rows], keys),
        "after": pa.array([after for _, after, _ in rows], _struct(shape.columns)),
        **more,
    }
    return pa.RecordBatch.from_pydict(columns)


def _struct(columns: Any) -> pa.DataType:
    return pa.struct([(column.name, arrow_type(column.spark)) for column in columns])


def arrow_type(ddl: str) -> pa.DataType:
    """The Arrow type Spark has for one of its own."""
    if ddl.startswith("decimal"):
        precision, scale = ddl.removeprefix("decimal(").removesuffix(")").split(",")
        return pa.decimal128(int(precision), int(scale))
    return _ARROW[ddl]


def named(name: str, column_type: ColumnType) -> Column:
    """A nullable column; the Spark type is said where it is asked for."""
    assert spark_type(column_type).ddl
    return Column(name, column_type)
