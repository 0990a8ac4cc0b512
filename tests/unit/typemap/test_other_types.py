"""Text of other databases' dates, times and booleans: columns of it are read and refused as single values."""

from __future__ import annotations

from datetime import timezone
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

from tidesink.errors import ValueOutOfRangeError
from tidesink.events import ColumnType
from tidesink.typemap.arrow import from_text
from tidesink.typemap.values import target_reader, text_reader

if TYPE_CHECKING:
    from tidesink.typemap.table import ZeroDate

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
def test_columns_read_what_single_values_are(name: str, fsp: int | None, zero_date: ZeroDate) -> None:
    kind = ColumnType(name, fsp=fsp)
    found = from_text(pa.array(TEXTS), kind, zero_date=zero_date, time_zone=timezone.utc)
    values, count = found.values.to_pylist(), len(TEXTS)
    unproven = [False] * count if found.unproven is None else found.unproven.tolist()
    zeros = [False] * count if found.zero_dates is None else found.zero_dates.tolist()
    for text, value, left, zero in zip(TEXTS, values, unproven, zeros, strict=True):
        read, verdict = _in_python(text, kind, zero_date)
        reported = "refused" if left else "zero" if zero else "read"
        assert (text, value, reported) == (text, read, verdict)
