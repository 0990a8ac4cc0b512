"""Random values of every type, extremes and NULL among them, from a seeded generator."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from decimal import Decimal
from random import Random

from tidesink.events import Column, Value
from tidesink.typemap.table import Reader, TypeRow, row_of

_WORDS = (
    "plain",
    "中文 😀",
    "O'Neill",
    'quote"d',
    "back\\slash",
    "null",
    "",
    " lead",
    "tab\tnew\nline",
    "<&>",
)
_ZERO_DATES = ("0000-00-00", "2020-00-00", "2020-02-30")


_EXTREMES = {
    "date": ("1000-01-01", "9999-12-31"),
    "datetime": ("1000-01-01 00:00:00", "9999-12-31 23:59:59"),
    "timestamp": ("1970-01-01 00:00:01", "2038-01-19 03:14:07"),
    "time": ("-838:59:59", "838:59:59", "00:00:00"),
}
_EXTREME_SHARE = 0.05
_FLOAT32_MAX = 3.4028234663852886e38
_FLOAT64_MAX = 1.7976931348623157e308


def random_value(random: Random, column: Column) -> Value:
    """A value the column can hold; NULL now and then where it may be."""
    if column.nullable and random.random() < 0.1:
        return None
    row = row_of(column.type)
    return _MAKERS[row.reader](random, column, row)


def _integer(random: Random, column: Column, row: TypeRow) -> Value:
    if row.name == "year":
        return random.choice((0, 1901, 2155, random.randint(1950, 2050)))
    low, high = row.minimum or 0, row.maximum or 0
    if column.type.length == 1 and row.name == "tinyint":
        return random.randint(0, 1)
    return random.choice((low, high, 0, random.randint(low, high), random.randint(0, 100)))


def _float32(random: Random, _column: Column, _row: TypeRow) -> Value:
    value = random.choice((0.0, 1.5, random.uniform(-1e6, 1e6), _FLOAT32_MAX, -_FLOAT32_MAX))
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def _float64(random: Random, _column: Column, _row: TypeRow) -> Value:
    return random.choice((0.0, -2.5e-3, random.uniform(-1e12, 1e12), _FLOAT64_MAX, -_FLOAT64_MAX))


def _decimal(random: Random, column: Column, _row: TypeRow) -> Value:
    precision, scale = column.type.precision or 10, column.type.scale or 0
    digits = random.choice((1, precision // 2 or 1, precision))
    unscaled = random.choice((0, 10**digits - 1, random.randrange(10**digits)))
    return Decimal((random.randint(0, 1) if unscaled else 0, _digits(unscaled), -scale))


def _digits(value: int) -> tuple[int, ...]:
    return tuple(int(digit) for digit in str(value))


def _text(random: Random, column: Column, row: TypeRow) -> Value:
    if row.name == "json":
        return random.choice(
            ("{}", "[1, 2.5, null]", json.dumps({"k": random.randint(0, 99), "v": "中"}, ensure_ascii=False))
        )
    if row.name == "vector":
        return "[" + ",".join(str(random.randint(-9, 9)) for _ in range(column.type.length or 3)) + "]"
    text = random.choice(_WORDS) + random.choice(("", str(random.randint(0, 999))))
    # TiDB strips the trailing spaces of CHAR.
    return text.rstrip(" ") if row.name == "char" else text


def _binary(random: Random, column: Column, row: TypeRow) -> Value:
    length = column.type.length or 24
    value = random.randbytes(random.randint(0, min(length, 24)))
    return value.ljust(length, b"\0") if row.name == "binary" else value


def _bit(random: Random, column: Column, _row: TypeRow) -> Value:
    bits = column.type.length or 1
    return random.choice((0, 2**bits - 1, random.getrandbits(bits)))


def _enum(random: Random, column: Column, _row: TypeRow) -> Value:
    return random.choice(column.type.members or ("",))


def _set(random: Random, column: Column, _row: TypeRow) -> Value:
    return ",".join(member for member in column.type.members or () if random.random() < 0.5)


def _fraction(random: Random, column: Column) -> str:
    digits = column.type.fsp or 0
    return f".{random.randrange(10**digits):0{digits}d}" if digits else ""


def _day(random: Random, first_year: int, last_year: int) -> str:
    return (
        f"{random.randint(first_year, last_year):04d}-{random.randint(1, 12):02d}-{random.randint(1, 28):02d}"
    )


def _clock(random: Random) -> str:
    return f"{random.randint(0, 23):02d}:{random.randint(0, 59):02d}:{random.randint(0, 59):02d}"


def _extreme(random: Random, row: TypeRow) -> str | None:
    return random.choice(_EXTREMES[row.name]) if random.random() < _EXTREME_SHARE else None


def _zero_date(random: Random) -> str | None:
    return random.choice(_ZERO_DATES) if random.random() < 0.03 else None


def _date(random: Random, _column: Column, row: TypeRow) -> Value:
    return _zero_date(random) or _extreme(random, row) or _day(random, 1900, 2100)


def _datetime(random: Random, column: Column, row: TypeRow) -> Value:
    zero = _zero_date(random)
    whole = (
        f"{zero} 00:00:00"
        if zero
        else _extreme(random, row) or f"{_day(random, 1900, 2100)} {_clock(random)}"
    )
    return whole + _fraction(random, column)


def _timestamp(random: Random, column: Column, row: TypeRow) -> Value:
    whole = _extreme(random, row) or f"{_day(random, 1971, 2037)} {_clock(random)}"
    return whole + _fraction(random, column)


def _time(random: Random, column: Column, row: TypeRow) -> Value:
    extreme = _extreme(random, row)
    if extreme:  # a fraction beyond the last second is out of MySQL's range
        return extreme + ("." + "0" * column.type.fsp if column.type.fsp else "")
    sign = random.choice(("", "-"))
    hours, minutes = random.randint(0, 837), random.randint(0, 59)
    return f"{sign}{hours:02d}:{minutes:02d}:{random.randint(0, 59):02d}{_fraction(random, column)}"


_MAKERS: dict[Reader, Callable[[Random, Column, TypeRow], Value]] = {
    "integer": _integer,
    "unsigned64": _integer,
    "float32": _float32,
    "float64": _float64,
    "decimal": _decimal,
    "text": _text,
    "binary": _binary,
    "bit": _bit,
    "enum": _enum,
    "set": _set,
    "date": _date,
    "datetime": _datetime,
    "timestamp": _timestamp,
    "time": _time,
}
