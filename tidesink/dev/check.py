"""Compares every column of every row in a Delta lake with what the source says it holds.

Values are compared as values of the column's type: 1.50 equals 1.5 in a decimal column, a TIMESTAMP
is an instant, a FLOAT is the 32-bit number. It imports nothing of ``tidesink.sinks``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

from tidesink.dev.lake_reader import open_lake_table
from tidesink.dev.workload.expected import ExpectedTable
from tidesink.typemap.parse import DECIMAL_CONTEXT

_SHOWN = 3


@dataclass(frozen=True)
class TableCheck:
    """One table's comparison: rows and columns that were compared, and the first differences."""

    table: str
    rows: int
    columns: int
    differences: tuple[str, ...]

    @property
    def right(self) -> bool:
        """True when every value is what it must be."""
        return not self.differences


def check_table(
    path: Path, expected: ExpectedTable, *, time_zone: str = "UTC", zero_date: str = "null"
) -> TableCheck:
    """Compare one Delta table at ``path`` with its expected rows.

    ``time_zone`` is the zone the expected TIMESTAMP texts are in.
    """
    try:
        lake = open_lake_table(path)
    except FileNotFoundError:
        missing = () if not expected.rows else (f"there is no Delta table at {path.name}",)
        return TableCheck(str(expected.table), 0, len(expected.columns), missing)
    names = list(expected.columns)
    absent = tuple(f"column {name} is missing" for name in names if name not in lake.columns)
    if absent:
        return TableCheck(str(expected.table), 0, len(names), absent)
    actual = lake.read().select(names).to_pydict()
    readers = [_reader(lake.columns[name], ZoneInfo(time_zone), zero_date) for name in names]
    wanted = [tuple(read(text) for read, text in zip(readers, row, strict=True)) for row in expected.rows]
    found = list(zip(*(actual[name] for name in names), strict=True))
    key = [names.index(name) for name in expected.key] or list(range(len(names)))
    differences = _differences(wanted, [_plain(row) for row in found], key, names)
    return TableCheck(str(expected.table), len(found), len(names), tuple(differences))


def _plain(row: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(
        value if not isinstance(value, datetime) or value.tzinfo is None else _utc(value) for value in row
    )


def _utc(value: datetime) -> datetime:
    return value.astimezone(timezone.utc).replace(tzinfo=None)


def _differences(
    wanted: list[tuple[object, ...]], found: list[tuple[object, ...]], key: Sequence[int], names: list[str]
) -> list[str]:
    by_key = {tuple(row[i] for i in key): row for row in found}
    messages = []
    if len(by_key) != len(found):
        messages.append(f"{len(found) - len(by_key)} rows are there more than once")
    for row in wanted:
        identity = tuple(row[i] for i in key)
        other = by_key.pop(identity, None)
        if other is None:
            messages.append(f"row {identity} is missing")
        elif other != row:
            unequal = [n for n, a, b in zip(names, row, other, strict=True) if a != b]
            column = names.index(unequal[0])
            messages.append(f"row {identity} column {unequal[0]}: {other[column]!r}, must be {row[column]!r}")
    messages.extend(f"row {identity} must not be there" for identity in by_key)
    return messages[:_SHOWN] + ([f"and {len(messages) - _SHOWN} more"] if len(messages) > _SHOWN else [])


def _reader(delta_type: str, zone: ZoneInfo, zero_date: str) -> Callable[[str | None], object]:
    read = _reader_of_type(delta_type, zone)
    nulls_zero_dates = delta_type in ("date", "timestamp", "timestamp_ntz") and zero_date == "null"

    def value(text: str | None) -> object:
        if text is None or (nulls_zero_dates and not _in_calendar(text)):
            return None
        return read(text)

    return value


def _reader_of_type(delta_type: str, zone: ZoneInfo) -> Callable[[str], object]:
    if delta_type.startswith("decimal"):
        unit = Decimal(1).scaleb(-int(delta_type.rstrip(")").rpartition(",")[2]))
        return lambda text: Decimal(text).quantize(unit, context=DECIMAL_CONTEXT)
    if delta_type == "timestamp":
        return lambda text: _instant(text, zone)
    return _READERS[delta_type]


def _in_calendar(text: str) -> bool:
    try:
        date.fromisoformat(text[:10])
    except ValueError:
        return False
    return True


def _instant(text: str, zone: ZoneInfo) -> datetime:
    return _utc(_datetime(text).replace(tzinfo=zone))


def _datetime(text: str) -> datetime:
    whole, _, fraction = text.partition(".")
    return datetime.fromisoformat(whole).replace(microsecond=int(fraction.ljust(6, "0") or 0))


def _float32(text: str) -> float:
    return float(struct.unpack("<f", struct.pack("<f", float(text)))[0])


_READERS: dict[str, Callable[[str], object]] = {
    "integer": int,
    "long": int,
    "short": int,
    "byte": int,
    "float": _float32,
    "double": float,
    "string": str,
    "binary": bytes.fromhex,
    "date": date.fromisoformat,
    "timestamp_ntz": _datetime,
}
