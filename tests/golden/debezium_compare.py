"""Values of Debezium's events against what the databases' own clients print, by the column's kind.

Nothing here comes from the readers under test: the texts of ``psql`` and ``mariadb`` are read again.
"""

from __future__ import annotations

import csv
import json
import math
import re
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from tests.golden.debezium_tables import kinds_of

_ZERO_FRACTION: Final = re.compile(r"(\.\d*?)0+(?=$|[+Z ])")
_UTC: Final = re.compile(r"(\+00(:00)?|Z)(?=$| )")
_INTERVAL: Final = re.compile(r"(-?\d+) (year|mon|day)s?|(-?)(\d+):(\d+):([\d.]+)$")
_ISO_INTERVAL: Final = re.compile(r"P(-?\d+)Y(-?\d+)M(-?\d+)DT(-?\d+)H(-?\d+)M(-?[\d.]+)S")
_COUNTED: Final = re.compile(r"PT(-?[\d.]+)S")  # a count of microseconds, in a column declared interval
_MONTH_DAYS: Final = Decimal("30.4375")  # Debezium counts a year as 365.25 days


def row_of(
    table: str, row: dict[str, str | None], rows: list[dict[str, Any]], *, keys: int
) -> dict[str, Any] | None:
    """The one of ``rows`` that is the client's ``row`` by its first ``keys`` columns."""
    names = list(row)[:keys]
    return next((one for one in rows if all(same_cell(table, name, row[name], one) for name in names)), None)


def same_cell(table: str, name: str, text: str | None, row: dict[str, Any]) -> bool:
    """Whether a row has a column, and in it what the client printed."""
    return name in row and same(kinds_of(table)[name], text, row[name])


def same(kind: str, text: str | None, value: Any) -> bool:
    """Whether a value is the one the database's client printed as ``text`` (None: NULL)."""
    if value is None or text is None:
        return value is None and (text is None or (kind == "bit" and text == "0x"))
    return _KINDS[kind](text, value)


def _int(text: str, value: Any) -> bool:
    return bool(int(text) == value)


def _decimal(text: str, value: Any) -> bool:
    if isinstance(value, float):  # decimal.handling.mode double
        return _float(text, value, "<d")
    return Decimal(text) == Decimal(str(value))


def _money(text: str, value: Any) -> bool:
    return _decimal(re.sub("[$,]", "", text), value)


def _float(text: str, value: Any, form: str) -> bool:
    mine, theirs = (struct.unpack(form, struct.pack(form, float(one)))[0] for one in (value, text))
    return bool(mine == theirs or (math.isnan(mine) and math.isnan(theirs)))


def _bool(text: str, value: Any) -> bool:
    return {"t": True, "f": False}[text] is value


def _text(text: str, value: Any) -> bool:
    return isinstance(value, str) and text == value


def _bytes(text: str, value: Any) -> bool:
    return bool(bytes.fromhex(text.removeprefix("\\x").removeprefix("0x")) == value)


def _bit(text: str, value: Any) -> bool:
    return int(text, 16) == int(value)


def _bits(text: str, value: Any) -> bool:
    return int(text, 2) == int(value)


def _moment(text: str, value: Any) -> bool:
    return _plain_moment(text) == _plain_moment(str(value))


def _plain_moment(text: str) -> str:
    return _ZERO_FRACTION.sub(lambda found: found[1].rstrip("."), _UTC.sub("", text.replace("T", " ")))


def _timetz(text: str, value: Any) -> bool:
    return _utc_seconds(text) == _utc_seconds(str(value))


def _utc_seconds(text: str) -> Decimal:
    found = re.fullmatch(r"(\d+):(\d+):([\d.]+)(?:Z|([+-])(\d\d)(?::(\d\d))?)", text)
    assert found is not None, text
    hour, minute, second, sign, hours, minutes = found.groups()
    east = (int(hours or 0) * 60 + int(minutes or 0)) * 60 * (-1 if sign == "-" else 1)
    return (86400 + (int(hour) * 60 + int(minute)) * 60 + Decimal(second) - east) % 86400


def _interval(text: str, value: Any) -> bool:
    months, days, seconds = 0, 0, Decimal(0)
    for count, unit, sign, hours, minutes, rest in _INTERVAL.findall(text):
        if unit:
            months += int(count) * {"year": 12, "mon": 1, "day": 0}[unit]
            days += int(count) if unit == "day" else 0
        else:
            seconds = ((int(hours) * 60 + int(minutes)) * 60 + Decimal(rest)) * (-1 if sign else 1)
    found = _ISO_INTERVAL.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        counted = _COUNTED.fullmatch(value) if isinstance(value, str) else None
        value = value if counted is None else Decimal(counted[1]) * 10**6
        return Decimal(value) == ((months * _MONTH_DAYS + days) * 86400 + seconds) * 10**6
    y, mon, d, h, m = map(int, found.groups()[:5])
    return (y * 12 + mon, d, (h * 60 + m) * 60 + Decimal(found[6])) == (months, days, seconds)


def _hstore(text: str, value: Any) -> bool:
    pairs = re.findall(r'"([^"]*)"=>(?:"([^"]*)"|(NULL))', text)
    return bool({key: None if null else one for key, one, null in pairs} == json.loads(value))


def _point(text: str, value: Any) -> bool:
    x, y = map(float, text.strip("()").split(","))
    return bool(value == struct.pack("<BIdd", 1, 1, x, y))


def _composite(text: str, value: Any) -> bool:
    return bool(text.encode() == value)


def _array(text: str, value: Any) -> bool:
    mine = json.loads(value, parse_float=str)
    quoted = text[1:-1].replace('\\"', '""').replace("\\\\", "\\")
    theirs = next(csv.reader([quoted]), []) if quoted else []
    return len(mine) == len(theirs) and all(map(_element, theirs, mine))


def _element(text: str, value: Any) -> bool:
    if value is None:
        return text == "NULL"
    if isinstance(value, bool):
        return _bool(text, value)
    return text == str(value) or _moment(text, value)


_KINDS: Final[dict[str, Callable[[str, Any], bool]]] = {
    "int": _int,
    "decimal": _decimal,
    "money": _money,
    "float32": lambda text, value: _float(text, value, "<f"),
    "float64": lambda text, value: _float(text, value, "<d"),
    "bool": _bool,
    "text": _text,
    "bytes": _bytes,
    "hex": _bytes,
    "bit": _bit,
    "bits": _bits,
    "date": _moment,
    "time": _moment,
    "datetime": _moment,
    "instant": _moment,
    "timetz": _timetz,
    "interval": _interval,
    "hstore": _hstore,
    "point": _point,
    "composite": _composite,
    "array": _array,
}
