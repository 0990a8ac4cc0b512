"""Every type of the table goes into every target and comes back, at its limits and as NULL."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest

from tests.columns import ID
from tests.contracts.targets_bed import Bed, progress, shape
from tests.full import quick_on
from tidesink.events import Column, ColumnType, TableId
from tidesink.typemap.render_sql import KEY_LENGTH
from tidesink.typemap.table import OTHER_TYPES, TYPES, TypeRow, spark_type

NUL = "\0"
LAST = datetime(9999, 12, 31, 23, 59, 59, 999999)

# Two values of each reader, as target_reader gives them.
EXTREMES: dict[str, tuple[Any, Any]] = {
    "float32": (-3.4028234663852886e38, 1.401298464324817e-45),
    "float64": (-1.7976931348623157e308, 5e-324),
    "text": ("", f"größe 数量 😀 '\"\\`\n\t{NUL}"),
    "binary": (b"", bytes(range(256))),
    "enum": ("", "a,b'c"),
    "set": ("", "x,y"),
    "date": (date(1, 1, 1), date(9999, 12, 31)),
    "datetime": (datetime(1000, 1, 1), LAST),
    "timestamp": (datetime(1970, 1, 1, 0, 0, 1), datetime(2038, 1, 19, 3, 14, 7, 999999)),
    "time": ("-838:59:59.999999", "838:59:59.999999"),
    "boolean": (False, True),
    "local_date": (date(1, 1, 1), date(9999, 12, 31)),
    "local_datetime": (datetime(1, 1, 1), LAST),
    "instant": (datetime(1000, 1, 1), LAST),
}
JSON = ('""', '{"größe": [1.50, "😀\\\\n"], "b": null, "a": {}}')
LENGTHS = {"char": 40, "varchar": 40, "binary": 256, "varbinary": 256}
DECIMALS = {
    (38, 0): (Decimal("9" * 38), Decimal("-" + "9" * 38)),
    (38, 30): (Decimal("99999999." + "9" * 30), Decimal("-0." + "0" * 29 + "1")),
    (5, 2): (Decimal("999.99"), Decimal("-0.01")),
    (65, 30): ("9" * 35 + "." + "9" * 30, "-" + "9" * 35 + "." + "0" * 30),
}
MEMBERS = {"enum": ("a,b'c",), "set": ("x", "y")}
BITS = {1: (0, 1), 63: (0, 2**63 - 1), 64: (Decimal(0), Decimal(2**64 - 1))}


def cases() -> list[tuple[Column, tuple[Any, Any]]]:
    """A column and its two extremes for each type, and for each shape of decimal and bit."""
    found: list[tuple[Column, tuple[Any, Any]]] = []
    for type_row in (*TYPES, *OTHER_TYPES):
        for column_type, values in forms(type_row):
            found.append((Column(f"c{len(found)} {type_row.name}", column_type), values))
    return found


def forms(type_row: TypeRow) -> list[tuple[ColumnType, tuple[Any, Any]]]:
    name = type_row.name
    if type_row.reader == "decimal":
        return [(ColumnType(name, precision=p, scale=s), values) for (p, s), values in DECIMALS.items()]
    if type_row.reader == "bit":
        return [(ColumnType(name, length=length), values) for length, values in BITS.items()]
    if type_row.reader in ("integer", "unsigned64"):
        limits = type_row.bounds or (1901, 2155)
        if type_row.reader == "unsigned64":
            return [(ColumnType(name), (Decimal(limits[0]), Decimal(limits[1])))]
        return [(ColumnType(name), limits)]
    values = JSON if name == "json" else EXTREMES[type_row.reader]
    return [(ColumnType(name, members=MEMBERS.get(name), length=LENGTHS.get(name)), values)]


def held(bed: Bed, values: tuple[Any, Any]) -> tuple[Any, Any]:
    """The values without what the target says that no text of it holds."""
    if bed.target.capabilities.nul_in_text or not isinstance(values[1], str):
        return values
    return values[0], values[1].replace(NUL, "")


@pytest.mark.law("L6")
def test_every_type_keeps_its_extremes_and_null(bed: Bed) -> None:
    columns = [(column, held(bed, values)) for column, values in cases()]
    assert len(columns) >= len(TYPES)
    wide = shape(ID, *(column for column, _ in columns))
    table = bed.target.open_table(wide, pipeline="shop")
    epoch = table.claim().epoch
    rows = [{"id": n, **{column.name: values[n] for column, values in columns}} for n in (0, 1)]
    rows.append({"id": 2, **{column.name: None for column, _ in columns}})
    table.apply(bed.batch(wide, rows), progress(epoch, 1))  # appended to an empty table
    # Merged: each row gets the values of the one before it.
    turned = [{**row, "id": (row["id"] + 1) % 3} for row in rows]
    table.apply(bed.batch(wide, turned), progress(epoch, 2))
    expected = sorted(turned, key=lambda row: row["id"])
    for got, wanted in zip(bed.rows(), expected, strict=True):
        for column, _ in columns:
            value = got[column.name]
            assert (value, type(value)) == (wanted[column.name], type(wanted[column.name])), column.name


def unbounded(column: Column) -> bool:
    """A text or bytes of any length."""
    text = spark_type(column.type).ddl in ("string", "binary") and column.type.name not in ("time", "decimal")
    return text and column.type.length is None and column.type.members is None


@quick_on("memory", "postgres", "mysql")
def test_every_type_can_be_a_key(bed: Bed) -> None:
    for number, (column, extremes) in enumerate(cases()):
        values = held(bed, extremes)
        key = Column(column.name, column.type, nullable=False, handle=True, primary_key=True)
        if spark_type(column.type).ddl in ("float", "double"):
            continue  # TiDB allows it, and equality of floats is not what a key needs
        if bed.spark is not None and number % (10 if bed.keeps_rows else 15):
            continue  # not each type with Spark, since each is a table of its own
        one = shape(key, Column("v", ColumnType("int")), table=TableId("shop", f"k{number}"))
        if bed.name == "mysql" and unbounded(key):
            values = values[0], values[1][:KEY_LENGTH]
        table = bed.target.open_table(one, pipeline="shop")
        epoch = table.claim().epoch
        rows = [{key.name: value, "v": n} for n, value in enumerate(values)]
        table.apply(bed.batch(one, rows), progress(epoch, 1, table=one.table))
        again = table.apply(
            bed.batch(one, [{**rows[0], "v": 9}], [{key.name: values[1]}]),
            progress(epoch, 2, table=one.table),
        )
        assert bed.did(again, (0, 1, 1, 0)), column.name
        assert bed.rows(one.table, by="v") == [{**rows[0], "v": 9}]
