"""What a SQL target's tables hold, compared with what TiDB held."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from tests.contracts.sql_beds import reader
from tidesink.dev.shop import ExpectedTable
from tidesink.sinks.targets.sql.target import SqlTarget

_FRACTION = re.compile(r"(\d\d:\d\d:\d\d)(?:\.(\d*?)0*(?!\d))?", re.ASCII)


def wrong_in_database(target: SqlTarget, expected: Iterable[ExpectedTable]) -> list[str]:
    """Every difference between the target's rows and the expected ones."""
    read = reader(target)
    return [wrong for found in expected for wrong in wrong_rows(read(found.table), found)]


def wrong_rows(rows: list[dict[str, Any]], expected: ExpectedTable) -> list[str]:
    """Every difference of one table, in words."""
    names = list(expected.columns)
    found: dict[tuple[str | None, ...], dict[str, Any]] = {
        tuple(str(row[name]) for name in expected.key): row for row in rows
    }
    wanted = {
        tuple(row[names.index(name)] for name in expected.key): dict(zip(names, row, strict=True))
        for row in expected.rows
    }
    wrong = [f"{expected.table} {key}: missing" for key in wanted.keys() - found.keys()]
    wrong += [f"{expected.table} {key}: must not be there" for key in found.keys() - wanted.keys()]
    if len(found) != len(rows):
        wrong.append(f"{expected.table}: {len(rows) - len(found)} rows are there more than once")
    for key in wanted.keys() & found.keys():
        wrong += [
            f"{expected.table} {key} {name}: {found[key][name]!r}, must be {text!r}"
            for name, text in wanted[key].items()
            if not is_value(found[key][name], text)
        ]
    return wrong


def is_value(value: Any, text: str | None) -> bool:
    """Whether a value is the one that TiDB's SELECT showed."""
    if text is None or value is None:
        return value is None and (text is None or not in_calendar(text))
    if isinstance(value, bytes):
        return value == bytes.fromhex(text)
    if isinstance(value, int | Decimal):
        return Decimal(text) == value
    if isinstance(value, float):
        return value in (float(text), struct.unpack("f", struct.pack("f", float(text)))[0])
    if isinstance(value, datetime):
        return _plain_time(value.isoformat(sep=" ")) == _plain_time(text)
    if isinstance(value, date):
        return value.isoformat() == text
    return str(value) == text or _plain_time(str(value)) == _plain_time(text) or _digits(value, text)


def _digits(value: str, text: str) -> bool:
    """Decimals that Spark has no type for are read as their text."""
    try:
        return Decimal(value) == Decimal(text)
    except ArithmeticError:
        return False


def _plain_time(text: str) -> str:
    """A time without zeros at the end of its fraction."""
    return _FRACTION.sub(lambda found: found[1] + (f".{found[2]}" if found[2] else ""), text)


def in_calendar(text: str) -> bool:
    """Whether a date is one: those that no calendar has are null on their way (``zero-date: null``)."""
    try:
        date.fromisoformat(text[:10])
    except ValueError:
        return False
    return True
