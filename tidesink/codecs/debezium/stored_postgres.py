"""Converts values read from Postgres to the values that the PostgreSQL connector's records contain.

The database returns the texts of its types' output functions (``source_database.postgres``). Most of these
texts are equal to the values in records; this module converts the others. Sources: events of Debezium 3.5
from PostgreSQL 15, and its converter (``PostgresValueConverter``, ``HStoreConverter`` and ``PGInterval`` of
the driver) for cases without captures.

- A numeric without a scale has no zeros at its end in mode ``precise``. NaN cannot be represented in this
  mode.
- A ``timetz`` is converted to UTC; 24:00:00 becomes 00:00:00.
- An interval is a count of microseconds, with months of 30.4375 days, or ISO 8601 with all its parts.
- An hstore is a map, or JSON in the order of a Java ``HashMap``.
- An array inside an array is null in the connector's records.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple

from tidesink.codecs.debezium.readers import padded
from tidesink.codecs.debezium.values import json_text
from tidesink.codecs.options import BinaryHandling, DebeziumModes
from tidesink.errors import ConfigError, ValueOutOfRangeError, shown
from tidesink.events import Column, ColumnType, Value
from tidesink.typemap.table import Reader, row_of
from tidesink.typemap.values import Convert, unchanged

_NON_FINITE: Final = ("NaN", "Infinity", "-Infinity")
_SIZES: Final = re.compile(r"\((-?\d+)(?:,(-?\d+))?\)")
_NO_FORM: Final = (
    "Column {!r} is an array of {}, and the records have no schemas. With the connector's "
    "modes, tidesink cannot convert such arrays when it reads the table from the database. "
    "Exclude the column (except_column_list), or set value.converter.schemas.enable: true at "
    "the connector."
)


class Case(NamedTuple):
    """A column in the database (``stored``), and the type that its values have in the table's records.

    ``bare``: True if the records have no schemas.
    """

    stored: Column
    type: ColumnType
    modes: DebeziumModes
    is_ticdc: bool
    bare: bool = False

    @property
    def reader(self) -> Reader:
        return row_of(self.type).reader

    @property
    def in_milliseconds(self) -> bool:
        """True if times in records have no more than three fraction digits (milliseconds).

        This follows from the connector's ``time.precision.mode``, or from the column's type in the records.
        """
        local = self.type.name in ("local time", "local datetime") and self.type.fsp == 3
        return not self.is_ticdc and (local or self.modes.time_precision_mode == "connect")

    @property
    def in_iso(self) -> bool:
        """True if records have times as ISO 8601 text."""
        return not self.is_ticdc and self.modes.time_precision_mode == "isostring"

    @property
    def in_a_day(self) -> bool:
        """True if a TIME in a record must be a time of day, between 00:00:00 and 23:59:59."""
        return self.in_iso or self.in_milliseconds


def _refused(text: str, column: Column) -> ValueOutOfRangeError:
    return ValueOutOfRangeError(f"{shown(text)} is not a valid {column.type.sql or column.type.name}.")


def _on_texts(convert: Callable[[str], Value]) -> Convert:
    return lambda value: convert(value) if isinstance(value, str) else value


# Numbers


def numeric(case: Case) -> Convert | None:
    """Returns the function that converts numeric and money values.

    Returns None if the database's texts are equal to the values in records.
    """
    if case.reader in ("float32", "float64"):
        return _on_texts(float)
    if case.reader == "text":
        return None
    if case.type.precision is not None and case.type.scale is not None:
        return None
    if case.bare and case.modes.decimal_handling_mode == "string":
        return _on_texts(Decimal)
    return _on_texts(lambda text: _decimal(text, case.stored))


def _decimal(text: str, column: Column) -> Decimal:
    if text in _NON_FINITE:
        raise _refused(text, column)
    number = Decimal(text)
    return number if scale_of(column.type) is not None else _stripped(number)


def _stripped(value: Decimal) -> Decimal:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return value
    while exponent < 0 and digits[-1] == 0 and len(digits) > 1:
        digits, exponent = digits[:-1], exponent + 1
    return Decimal((sign, digits, exponent)) if any(digits) else Decimal(0)


def scale_of(column_type: ColumnType) -> int | None:
    """Returns the scale that a numeric type declares (2 for money); None if the type declares no scale."""
    match = _SIZES.search(column_type.sql or "")
    return 2 if column_type.sql == "money" else None if match is None else int(match[2] or 0)


# Times

_CLOCK: Final = re.compile(r"(.*:\d\d)(?:\.(\d{1,6}))?(.*)", re.ASCII)
_ZONED: Final = re.compile(
    r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?", re.ASCII
)
_DAY: Final = timedelta(days=1)


def moment(case: Case) -> Convert | None:
    """Returns the function that converts timestamps without a zone.

    Returns None if the database's texts are equal to the values in records.
    """
    return _on_texts(_cut) if case.in_milliseconds else None


def time_of_day(case: Case) -> Convert | None:
    """Returns the function that converts times without a zone.

    If records have ISO 8601 text, 24:00:00 becomes 00:00:00.
    """

    def convert(text: str) -> str:
        if case.in_iso and text.startswith("24"):
            text = f"00{text[2:]}"
        whole = _cut(text) if case.in_milliseconds else text
        return padded(whole, case.type) if case.reader == "time" else whole

    return _on_texts(convert)


def _cut(text: str) -> str:
    """Removes all fraction digits after milliseconds from the text of a time."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        return text
    digits = (match[2] or "")[:3].rstrip("0")
    return f"{match[1]}{'.' + digits if digits else ''}{match[3]}"


def zoned_time(case: Case) -> Convert:
    """Returns the function that converts a timetz to UTC, in the form that Java writes."""
    return _on_texts(_zulu_time(case.stored))


def _zulu_time(column: Column) -> Callable[[str], str]:
    def convert(text: str) -> str:
        match = _ZONED.fullmatch(text)
        if match is None:
            raise _refused(text, column)
        hours, minutes, seconds = (int(part) for part in match.groups()[:3])
        offset = timedelta(hours=int(match[6]), minutes=int(match[7] or 0), seconds=int(match[8] or 0))
        clock = timedelta(hours=hours, minutes=minutes, seconds=seconds)
        in_utc = (clock - offset if match[5] == "+" else clock + offset) % _DAY
        fraction = (match[4] or "").rstrip("0")
        minute, second = divmod(in_utc.seconds, 60)
        text = f"{minute // 60:02d}:{minute % 60:02d}:{second:02d}"
        return f"{text}{'.' + fraction if fraction else ''}Z"

    return convert


class _Interval(NamedTuple):
    years: int
    months: int
    days: int
    microseconds: int


_UNITS: Final = re.compile(r"([+-]?\d+) (year|mon|day)s?", re.ASCII)
_SPAN: Final = re.compile(r"([+-]?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?\Z", re.ASCII)
_MONTH_SECONDS: Final = Decimal("30.4375") * 86_400


def interval(case: Case) -> Convert:
    """Returns the function that converts intervals to a count of microseconds or to ISO 8601 text."""

    def convert(text: str) -> Value:
        parsed = _interval(text)
        if case.reader == "integer":
            return _count(parsed)
        if case.type.name == "interval" and case.bare and case.modes.interval_handling_mode == "numeric":
            return _seconds_text(_count(parsed))
        return _iso(parsed)

    return _on_texts(convert)


def _interval(text: str) -> _Interval:
    units = {unit: int(count) for count, unit in _UNITS.findall(text)}
    clock, span = 0, _SPAN.search(text)
    if span is not None:
        hours, minutes, seconds = (int(part) for part in span.groups()[1:4])
        clock = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + int((span[5] or "").ljust(6, "0"))
    months = units.get("mon", 0)
    return _Interval(
        units.get("year", 0), months, units.get("day", 0), -clock if span and span[1] == "-" else clock
    )


def _count(interval: _Interval) -> int:
    months = Decimal(interval.years * 12 + interval.months) * _MONTH_SECONDS
    return int((months + interval.days * 86_400) * 1_000_000) + interval.microseconds


def _seconds_text(count: int) -> str:
    seconds = f"{abs(count) // 1_000_000}.{abs(count) % 1_000_000:06d}".rstrip("0").rstrip(".")
    return f"PT{'-' if count < 0 else ''}{seconds}S"


def _iso(interval: _Interval) -> str:
    sign = -1 if interval.microseconds < 0 else 1
    minutes, rest = divmod(abs(interval.microseconds), 60_000_000)
    seconds = f"{rest // 1_000_000}.{rest % 1_000_000:06d}".rstrip("0").rstrip(".")
    minus = "-" if sign < 0 and rest else ""
    day = f"P{interval.years}Y{interval.months}M{interval.days}D"
    return f"{day}T{sign * (minutes // 60)}H{sign * (minutes % 60)}M{minus}{seconds}S"


# The text encodings of bytes by binary handling mode.
BINARY_TEXTS: Final[Mapping[BinaryHandling, Callable[[bytes], str]]] = {
    "base64": lambda value: base64.b64encode(value).decode("ascii"),
    "base64-url-safe": lambda value: base64.urlsafe_b64encode(value).decode("ascii"),
    "hex": bytes.hex,
}


# Points


def point(_case: Case) -> Convert:
    """Returns the function that converts points to WKB."""

    def convert(text: str) -> bytes:
        x, y = text.strip("()").split(",")
        return struct.pack("<BIdd", 1, 1, float(x), float(y))

    return _on_texts(convert)


# Maps

_PAIR: Final = re.compile(r'"((?:[^"\\]|\\.)*)"=>(?:NULL|"((?:[^"\\]|\\.)*)")', re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


def hstore(case: Case) -> Convert:
    """Returns the function that converts hstore values to JSON text."""
    if case.type.name == "map" and not (case.bare and case.modes.hstore_handling_mode == "json"):
        return _on_texts(lambda text: json_text(dict(_pairs(text))))
    return _on_texts(lambda text: _members(_java_order(dict(_pairs(text)))))


def _pairs(text: str) -> Iterator[tuple[str, str | None]]:
    for key, value in (match.groups() for match in _PAIR.finditer(text)):
        yield _ESCAPED.sub(r"\1", key), None if value is None else _ESCAPED.sub(r"\1", value)


def _members(pairs: Mapping[str, str | None]) -> str:
    """Returns the text of a JSON object with these pairs of key and value, in their given order."""
    return "{" + ",".join(f"{json_text(key)}:{json_text(value)}" for key, value in pairs.items()) + "}"


def _java_order(pairs: Mapping[str, str | None]) -> dict[str, str | None]:
    """Sorts pairs of key and value into the order in which a ``java.util.HashMap`` iterates over them."""
    size = 16
    while len(pairs) * 4 > size * 3:
        size *= 2
    return dict(sorted(pairs.items(), key=lambda pair: _java_hash(pair[0]) & (size - 1)))


def _java_hash(text: str) -> int:
    """Returns what Java's ``HashMap.hash`` returns for a ``String``."""
    data, hashed = text.encode("utf-16-be"), 0
    for index in range(0, len(data), 2):
        hashed = (hashed * 31 + int.from_bytes(data[index : index + 2], "big")) & 0xFFFF_FFFF
    return hashed ^ hashed >> 16


# Arrays


def array(case: Case) -> Convert:
    """Returns the function that converts arrays to JSON text, with items as records have them."""
    element = Column(case.stored.name, _element(case.stored.type))
    item = _bare_item(element, case.modes) if case.bare else _item(element, case)
    return _on_texts(
        lambda text: json_text([None if value is None else item(value) for value in _items(text)])
    )


# Types whose items are not plain texts, by the words of their names.
_ELEMENTS: Final = {
    "smallint": "smallint",
    "integer": "int",
    "bigint": "bigint",
    "oid": "bigint",
    "real": "float",
    "double precision": "double",
    "boolean": "boolean",
    "date": "local date",
    "timestamp without time zone": "local datetime",
    "timestamp with time zone": "instant",
    "time without time zone": "local time",
    "time with time zone": "zoned time",
    "bytea": "other binary",
}


def _element(column_type: ColumnType) -> ColumnType:
    sql = (column_type.sql or "").removesuffix("[]")
    words = " ".join(_SIZES.sub(" ", sql).split())
    return ColumnType(_ELEMENTS.get(words, "other text"), sql=sql)


def _items(text: str) -> Iterator[str | None]:
    """Yields the items in the text of an array; nested arrays are yielded as None."""
    inside = text[text.index("{") + 1 : -1]
    position = 0
    while position < len(inside):
        if inside[position] == "{":
            position = _behind(inside, position)
            yield None
        elif inside[position] == '"':
            end = _closing(inside, position)
            yield _ESCAPED.sub(r"\1", inside[position + 1 : end])
            position = end + 1
        else:
            end = inside.find(",", position)
            end = len(inside) if end < 0 else end
            yield None if inside[position:end] == "NULL" else inside[position:end]
            position = end
        position += 1


def _closing(text: str, position: int) -> int:
    """Returns the index of the quotation mark that ends the quoted text beginning at ``position``."""
    position += 1
    while text[position] != '"':
        position += 2 if text[position] == "\\" else 1
    return position


def _behind(text: str, position: int) -> int:
    """Returns the index after the end of the nested array beginning at ``position``."""
    level = 0
    while True:
        if text[position] == '"':
            position = _closing(text, position)
        level += (text[position] == "{") - (text[position] == "}")
        position += 1
        if not level:
            return position


Item = Callable[[str], object]


def _item(element: Column, case: Case) -> Item:
    """Returns the function that converts each item of an array, if the records have schemas."""
    kind, modes, reader = element.type.name, case.modes, _READ.get(element.type.name)
    if (element.type.sql or "").startswith("numeric"):
        if modes.decimal_handling_mode == "double":
            return float
        return str if modes.decimal_handling_mode == "string" else lambda text: _decimal(text, element)
    if kind == "other binary":
        return _binary(modes)
    if reader is not None:
        return reader
    inner = case._replace(stored=element, type=ColumnType(kind))
    convert = moment(inner) if kind == "local datetime" else of_text(inner)
    return str if convert is None else convert


def _float32(text: str) -> object:
    return struct.unpack("<f", struct.pack("<f", float(text)))[0]


_READ: Final[Mapping[str, Item]] = {
    **dict.fromkeys(("smallint", "int", "bigint"), int),
    "float": _float32,
    "double": float,
    "boolean": lambda text: text == "t",
    "instant": lambda text: text.replace("+00", "+00:00"),
}


def _binary(modes: DebeziumModes) -> Item:
    spell = BINARY_TEXTS.get(modes.binary_handling_mode)

    def item(text: str) -> object:
        data = bytes.fromhex(text.removeprefix("\\x"))
        return data if spell is None else spell(data)

    return item


def _bare_item(element: Column, modes: DebeziumModes) -> Item:
    """Returns the function that converts each item of an array, if the records have no schemas.

    Raises:
        ConfigError: the form of such items in records is not known.
    """
    kind = element.type.name
    if (element.type.sql or "").startswith("numeric"):
        return _bare_numeric(element, modes)
    if kind in ("local date", "local datetime", "local time"):
        if modes.time_precision_mode == "isostring":
            raise ConfigError(_NO_FORM.format(element.name, element.type.sql))
        return _BARE_TIMES[kind](element, modes)
    if kind == "instant":
        return lambda text: _zulu(text, element)
    if kind == "other binary":
        return _binary(modes)
    if kind == "zoned time":
        return _zulu_time(element)
    if kind in ("float", "double"):
        return _java_number
    return _READ.get(kind, str)


def _java_number(text: str) -> object:
    """Converts the text of a floating-point number to a number as Java's ``Double.toString`` writes it."""
    if text in _NON_FINITE:
        return text
    value = _stripped(Decimal(text))
    sign, digits, exponent = value.as_tuple()
    if value and not Decimal("0.001") <= abs(value) < 10_000_000:
        # One digit before the point, and at least one after it.
        significant = "".join(map(str, digits)).rstrip("0").ljust(2, "0")
        scale = value.adjusted() - len(significant) + 1
        return Decimal((sign, tuple(map(int, significant)), scale))
    return value if isinstance(exponent, int) and exponent < 0 else Decimal(f"{value:f}.0")


def _bare_numeric(element: Column, modes: DebeziumModes) -> Item:
    scale = scale_of(element.type)
    if modes.decimal_handling_mode == "string":
        return str
    if modes.decimal_handling_mode == "double":
        return lambda text: _java_number(text if text in _NON_FINITE else repr(float(text)))

    def item(text: str) -> object:
        value = _decimal(text, element)
        if scale is not None and modes.decimal_format == "numeric":
            return value
        sign, digits, exponent = value.as_tuple()
        number = int("".join(map(str, digits))) * (-1 if sign else 1)
        data = number.to_bytes((number.bit_length() + 8) // 8, "big", signed=True)
        unscaled = base64.b64encode(data).decode("ascii")
        return unscaled if scale is not None else {"scale": -int(exponent), "value": unscaled}

    return item


_EPOCH: Final = datetime(1970, 1, 1)
_MICROSECOND: Final = timedelta(microseconds=1)
_PER_MICROSECOND: Final = {3: Decimal("0.001"), 6: Decimal(1), 9: Decimal(1000)}


def _digits(element: Column) -> int:
    match = _SIZES.search(element.type.sql or "")
    return int(match[1]) if match else 6


def _unit(element: Column, modes: DebeziumModes) -> int:
    fixed = {"connect": 3, "microseconds": 6, "nanoseconds": 9}.get(modes.time_precision_mode)
    if fixed is None and modes.time_precision_mode == "adaptive_time_microseconds":
        fixed = 6 if element.type.name == "local time" else None
    return fixed if fixed is not None else 3 if _digits(element) <= 3 else 6


def _in_units(microseconds: int, unit: int) -> int:
    return int((microseconds * _PER_MICROSECOND[unit]).to_integral_value(rounding="ROUND_FLOOR"))


def _bare_date(element: Column, _modes: DebeziumModes) -> Item:
    def item(text: str) -> object:
        try:
            return (date.fromisoformat(text) - _EPOCH.date()).days
        except ValueError:
            raise _refused(text, element) from None

    return item


def _bare_moment(element: Column, modes: DebeziumModes) -> Item:
    unit = _unit(element, modes)

    def item(text: str) -> object:
        try:
            return _in_units((datetime.fromisoformat(_six(text)) - _EPOCH) // _MICROSECOND, unit)
        except ValueError:
            raise _refused(text, element) from None

    return item


def _bare_time(element: Column, modes: DebeziumModes) -> Item:
    unit = _unit(element, modes)

    def item(text: str) -> object:
        parsed = _interval(text)
        return _in_units(parsed.microseconds, unit)

    return item


def _six(text: str) -> str:
    """Pads the fraction of a date and time to six digits, as Python 3.10 needs it to parse the text."""
    whole, point, digits = text.partition(".")
    return f"{whole}.{digits.ljust(6, '0')}" if point else whole


def _zulu(text: str, element: Column) -> str:
    if text.endswith("infinity"):
        return text
    try:
        instant = datetime.fromisoformat(_six(text.removesuffix("+00")))
    except ValueError:  # BC, or after the year 9999
        raise _refused(text, element) from None
    digits = _digits(element)
    fraction = f".{instant.microsecond:06d}"[: digits + 1] if digits else ""
    return f"{instant.isoformat(timespec='seconds')}{fraction}Z"


_BARE_TIMES: Final[Mapping[str, Callable[[Column, Any], Item]]] = {
    "local date": _bare_date,
    "local datetime": _bare_moment,
    "local time": _bare_time,
}


def of_text(case: Case) -> Convert | None:
    """Returns the function that converts the text of a value in the database to the value in a record.

    Returns None if the record contains the same text.
    """
    if case.reader == "enum":
        return unchanged  # a label, independent of the records' lists
    sql = case.stored.type.sql or ""
    make = _BY_NAME.get(case.stored.type.name)
    if make is None and (sql.startswith("numeric") or sql == "money"):
        make = numeric
    if make is None and sql == "point":
        make = point
    return None if make is None else make(case)


_BY_NAME: Final[Mapping[str, Callable[[Any], Convert | None]]] = {
    "local time": time_of_day,
    "zoned time": zoned_time,
    "interval": interval,
    "map": hstore,
    "array": array,
}
