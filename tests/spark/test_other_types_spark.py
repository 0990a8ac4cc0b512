"""Text of other databases' dates, times and booleans: Spark reads and refuses it as Python does."""

from __future__ import annotations

from datetime import timezone
from typing import TYPE_CHECKING, Any, Final

import pytest
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tests.full import FULL
from tidesink.codecs.columns_types import read_text
from tidesink.errors import ValueOutOfRangeError
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.typemap.parse import target_reader, text_reader
from tidesink.typemap.target_schema import TableShape, shape_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidesink.typemap.render import ZeroDate

pytestmark = FULL

CLOCKS: Final = ("", " 00:00:00", " 23:59:59.999999", " 12:34:56.1234567", " 12:34:56.123456000", " 24:00:00")
DAYS: Final = (
    "0001-01-01",
    "9999-12-31",
    "10000-01-01",
    "0000-01-01",
    "2024-02-29",
    "2023-02-29",
    "1582-10-10",
)
OFFSETS: Final = ("", "+00:00", "+05:30", "-12:00", "+02:00:30", "Z")
TEXTS: Final = [
    f"{day}{clock}{offset}{era}"
    for day in DAYS
    for clock in CLOCKS
    for offset in OFFSETS
    for era in ("", " BC")
] + ["infinity", "-infinity", "+infinity", "", "true", "f", "1", "0", "yes", "T", " 1"]
TYPES: Final = ("boolean", "local date", "local datetime", "instant")


def _shape(name: str, zero_date: ZeroDate, fsp: int | None) -> TableShape:
    columns = (Column("id", ColumnType("int"), handle=True), Column("c", ColumnType(name, fsp=fsp)))
    return shape_of(TableSchema(TableId("s", "t"), columns), zero_date=zero_date)


def _in_python(text: str, column_type: ColumnType, zero_date: ZeroDate) -> tuple[Any, str]:
    """What a target stores, and whether the text is read, taken for a zero date, or refused."""
    read = target_reader(column_type, time_zone=timezone.utc, zero_date=zero_date)
    try:
        value = read(text_reader(column_type)(text))
    except ValueOutOfRangeError:
        return None, "refused"
    return value, "zero" if value is None else "read"


@pytest.mark.parametrize("zero_date", ["null", "error", "text"])
@pytest.mark.parametrize(("name", "fsp"), [*((name, None) for name in TYPES), ("local datetime", 7)])
def test_spark_reads_what_python_reads(
    spark: SparkSession, name: str, fsp: int | None, zero_date: ZeroDate
) -> None:
    shape = _shape(name, zero_date, fsp)
    target = shape.by_name["c"]
    reading = read_text(F.col("text"), target.type, target, shape)
    zero = reading.zero if reading.zero is not None else F.lit(False)
    frame = spark.createDataFrame([(text,) for text in TEXTS], "text string")
    rows = frame.select("text", reading.value.cast("string").alias("value"), zero.alias("zero")).collect()
    found = {row.text: (row.value, _verdict(row.value, zero=row.zero)) for row in rows}
    assert found == {text: _as_spark(*_in_python(text, target.type, zero_date)) for text in TEXTS}


def _verdict(value: str | None, *, zero: bool | None) -> str:
    if value is not None:
        return "read"
    return "zero" if zero else "refused"


def _as_spark(value: Any, verdict: str) -> tuple[str | None, str]:
    """A stored value as Spark casts it to text, in a session whose zone is UTC."""
    if value is None or isinstance(value, str):
        return value, verdict
    if isinstance(value, bool):
        return str(value).lower(), verdict
    if not hasattr(value, "hour"):
        return value.isoformat(), verdict
    text = value.replace(tzinfo=None).isoformat(" ")
    return (text.rstrip("0") if "." in text else text), verdict
