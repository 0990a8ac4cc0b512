"""Column types of every kind, and the comparison of a column in Arrow with the scalar readers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timezone, tzinfo
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidesink.errors import ValueOutOfRangeError
from tidesink.events import ColumnType
from tidesink.typemap.arrow import arrow_type, from_text
from tidesink.typemap.table import OTHER_TYPES, TYPES, AmbiguousTime, ZeroDate, row_of
from tidesink.typemap.values import target_reader, text_reader, to_datetime

POLICIES: Final[tuple[ZeroDate, ...]] = ("null", "error", "text")
_DIGITS: Final = (
    (10, 2),
    (5, 0),
    (4, 4),
    (18, 6),
    (38, 10),
    (38, 38),
    (40, 0),
    (40, 2),
    (65, 30),
    (2, 4),
    (1500, 2),
)
COLUMN_TYPES: Final = (
    *(ColumnType(row.name) for row in (*TYPES, *OTHER_TYPES)),
    *(ColumnType("decimal", precision, scale) for precision, scale in _DIGITS),
    ColumnType("decimal", 12),
    *(ColumnType("bit", length=length) for length in (1, 8, 63, 64, 70)),
    ColumnType("enum", members=("a", "b", "")),
    ColumnType("set", members=("x", "y", "z")),
    ColumnType("set", members=tuple(f"m{bit}" for bit in range(64))),
    ColumnType("local datetime", fsp=9),
    ColumnType("instant", fsp=9),
)


def flagged(mask: Any, rows: int) -> list[bool]:
    """A mask as a list; None flags no row."""
    return [False] * rows if mask is None else np.asarray(mask).tolist()


def assert_reads_as_scalar(
    texts: Sequence[str | None],
    column_type: ColumnType,
    *,
    zero_date: ZeroDate,
    time_zone: tzinfo,
    ambiguous_time: AmbiguousTime = "first",
    array: pa.Array | None = None,
) -> None:
    """``from_text`` of the texts (``array`` holds them) is ``target_reader`` of ``text_reader`` of each."""
    column = pa.array(texts, pa.string()) if array is None else array
    policies: dict[str, Any] = {"zero_date": zero_date, "ambiguous_time": ambiguous_time}
    found = from_text(column, column_type, time_zone=time_zone, **policies)
    read_text = text_reader(column_type)
    read = target_reader(column_type, time_zone=time_zone, **policies)
    values: list[Any] = []
    refused = [False] * len(texts)
    for index, text in enumerate(texts):
        try:
            values.append(None if text is None else read(read_text(text)))
        except ValueOutOfRangeError:
            values.append(None)
            refused[index] = True
    zero = [t is not None and v is None and not r for t, v, r in zip(texts, values, refused, strict=True)]
    is_local = row_of(column_type).reader == "timestamp" and zero_date != "text"
    both = zip(texts, values, strict=True)
    twice = [is_local and v is not None and _comes_twice(str(t), time_zone) for t, v in both]
    found.values.validate(full=True)
    assert found.values.type == arrow_type(column_type, zero_date=zero_date)
    _same(flagged(found.unproven, len(texts)), refused, texts)
    _same(flagged(found.zero_dates, len(texts)), zero, texts)
    _same(flagged(found.ambiguous_times, len(texts)), twice, texts)
    # As text too: -0.0 equals 0.0.
    expected = pa.array(values, found.values.type)
    _same([str(v) for v in found.values.to_pylist()], [str(v) for v in expected.to_pylist()], texts)
    assert found.unproven is None or found.unproven.any()
    assert found.zero_dates is None or found.zero_dates.any()
    assert found.ambiguous_times is None or found.ambiguous_times.any()


def _comes_twice(text: str, zone: tzinfo) -> bool:
    local = to_datetime(text).replace(tzinfo=zone)
    first, second = (local.replace(fold=fold).astimezone(timezone.utc) for fold in (0, 1))
    return second > first


def _same(found: list[Any], expected: list[Any], texts: Sequence[str | None]) -> None:
    differing = [row for row in zip(texts, found, expected, strict=True) if row[1] != row[2]]
    assert differing == []
