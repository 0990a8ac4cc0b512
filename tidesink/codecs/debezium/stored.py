"""Converts values read from the source database to the values that Debezium's records contain.

A snapshot reads rows by SQL: those of MySQL and its derivatives in canal-json's form, those of Postgres as
Postgres' own texts (``stored_postgres``). Records of the same rows differ from them, because of the
connector's modes and because the producer loses some information. This module reproduces the differences.
Sources: events of Debezium 3.5 from MariaDB 10.11, its documentation for MySQL's JSON, and TiCDC's encoder
(b813e76).

- The types are those of the table's records: BIGINT UNSIGNED may be a long that wraps around, a decimal or
  text; a DECIMAL may be a double; binary values may be text in base64 or hex; BIT(1) is a boolean.
- Years before 100 are read as two-digit years. An invalid calendar date becomes NULL, or 1970-01-01 in a
  column that is NOT NULL; TiCDC writes 1970-01-01 for every such TIMESTAMP.
- ``time.precision.mode`` ``connect`` cuts times to milliseconds. In this mode, and in ``isostring``, a TIME
  that is not a time of day becomes NULL.
- JSON texts that MySQL returns to a query have spaces between tokens; JSON texts in change events do not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal
from functools import partial
from typing import Final

from tidesink.codecs.debezium import stored_postgres
from tidesink.codecs.debezium.readers import padded
from tidesink.codecs.debezium.scalars import time_text
from tidesink.codecs.debezium.stored_postgres import BINARY_TEXTS, Case
from tidesink.codecs.debezium.values import ewkb
from tidesink.codecs.options import BinaryHandling, DebeziumModes
from tidesink.errors import ConfigError, ValueOutOfRangeError, shown
from tidesink.events import Column, ColumnType, Value
from tidesink.typemap.table import Reader, row_of
from tidesink.typemap.values import Convert, shortest_float32, unchanged

_INT64_END: Final = 1 << 63
_UINT64: Final = 1 << 64
_EPOCH_DAY: Final = "1970-01-01"
_EPOCH: Final = "1970-01-01 00:00:00"
_DAY: Final = 86_400_000_000
_MOMENT: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)(.*)", re.ASCII)
_TIME: Final = re.compile(r"(-?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?", re.ASCII)
# A JSON string, which is kept, or the white space between two tokens.
_JSON_SPACE: Final = re.compile(r'("(?:[^"\\]|\\.)*")|\s+')
_NO_FORM: Final = (
    "Column {!r} is text in the topic and binary in the database, so rows read from the "
    "database cannot be converted to the topic's form. Set binary-handling-mode under "
    "source.debezium to the mode that the connector uses."
)


def recorded_value(
    stored: Column, column_type: ColumnType, modes: DebeziumModes, *, is_ticdc: bool, bare: bool = False
) -> Convert | None:
    """Returns a function that converts a column's value in the database to the value that a record contains.

    Returns None if the two values are always equal. ``stored`` is the column in the database, ``column_type``
    its type in the table's records. A TIMESTAMP is in UTC both in the database and in records. ``bare``: True
    if the records have no schemas.

    Raises:
        ConfigError: the form of the values in records is not known; the message names the setting to add.
    """
    case = Case(stored, column_type, modes, is_ticdc, bare)
    make = _CASES.get(row_of(stored.type).reader)
    return None if make is None else make(case)


def _integer(case: Case) -> Convert | None:
    if case.reader == "boolean":
        return bool
    return _numeric(case)


def _numeric(case: Case) -> Convert | None:
    if case.reader == "decimal":
        return lambda value: Decimal(_whole(value))
    return (lambda value: str(_whole(value))) if case.reader == "text" else None


def _whole(value: Value) -> int:
    if not isinstance(value, int):
        raise ValueOutOfRangeError(f"{shown(value)} is not a whole number.")
    return value


def _unsigned(case: Case) -> Convert | None:
    if case.reader != "integer":
        return _numeric(case)

    def wrapped(value: Value) -> Value:
        number = _whole(value)
        return number - _UINT64 if number >= _INT64_END else number

    return wrapped


def _float32(case: Case) -> Convert | None:
    # TiCDC writes the fewest digits, Debezium the 32-bit number as a double.
    if case.is_ticdc and case.reader == "float64":
        return lambda value: shortest_float32(value) if isinstance(value, float) else value
    return None


def _decimal(case: Case) -> Convert | None:
    if case.reader in ("float32", "float64"):
        return lambda value: float(value) if isinstance(value, Decimal) else value
    if case.reader == "text":
        return lambda value: format(value, "f") if isinstance(value, Decimal) else value
    return None


def _binary(case: Case) -> Convert | None:
    if case.type.name in ("geometry", "geography"):
        # Postgres' own bytes already contain their SRID.
        return None if case.stored.type.name == "other binary" else _geometry
    if case.reader != "text":
        return None
    mode: BinaryHandling = "base64" if case.is_ticdc else case.modes.binary_handling_mode
    if mode == "bytes":
        raise ConfigError(_NO_FORM.format(case.stored.name), key="source.debezium.binary-handling-mode")
    spell = BINARY_TEXTS[mode]
    return lambda value: spell(value) if isinstance(value, bytes) else value


def _geometry(value: Value) -> Value:
    """Converts a geometry in MySQL's own form to EWKB.

    MySQL stores an SRID of four bytes, lowest byte first, followed by WKB.
    """
    if not isinstance(value, bytes) or len(value) < 4:
        return value
    srid = int.from_bytes(value[:4], "little")
    return ewkb({"wkb": value[4:], "srid": srid or None}, lambda raw: raw if isinstance(raw, bytes) else b"")


def _bit(case: Case) -> Convert | None:
    return bool if case.reader == "boolean" else None


def _label(_case: Case) -> Convert:
    """Returns a function that returns the label of an ENUM or SET value unchanged.

    The label is correct even if the list of members in the records is older than the one in the database.
    """
    return unchanged


def _text(case: Case) -> Convert | None:
    if case.is_ticdc:
        return None
    if case.stored.type.name != "json":
        return stored_postgres.of_text(case)
    return lambda value: _JSON_SPACE.sub(r"\1", value) if isinstance(value, str) else value


def _on_calendar(text: str) -> str | None:
    """Expands the two-digit year of a date, or of a date and time, as the producer of the records does.

    Returns None if the date does not exist in the calendar.

    Raises:
        ValueOutOfRangeError: the text is not a date.
    """
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise ValueOutOfRangeError(f"{shown(text)} is not a valid date.")
    year, month, day = (int(part) for part in match.groups()[:3])
    adjusted = year + (2000 if year < 70 else 1900 if year < 100 else 0)
    try:
        date(year or adjusted, month, day)
        return f"{date(adjusted, month, day)}{match[4]}"
    except ValueError:
        return None


def _calendar(absent: str, case: Case) -> Convert:
    """Returns the function that converts dates, or dates and times without a zone.

    ``absent`` replaces a date that is not in the calendar if the column is NOT NULL.
    """
    empty = None if case.stored.nullable else absent

    def convert(value: Value) -> Value:
        if not isinstance(value, str):
            return value
        text = _on_calendar(value)
        return empty if text is None else _fraction(text, case)

    return convert


def _timestamp(case: Case) -> Convert:
    offset = "+00:00" if case.reader == "instant" else ""
    empty = None if case.stored.nullable and not case.is_ticdc else f"{_EPOCH}{offset}"

    def convert(value: Value) -> Value:
        if not isinstance(value, str):
            return value
        if value.startswith("0000-00-00"):
            return empty
        # Debezium has no mode that cuts an instant.
        return f"{_trimmed(value, case.type)}{offset}"

    return convert


def _fraction(text: str, case: Case) -> str:
    whole, point, digits = text.partition(".")
    return _trimmed(f"{whole}.{digits[:3]}" if point and case.in_milliseconds else text, case.type)


def _trimmed(text: str, column_type: ColumnType) -> str:
    """Removes or adds zeros at the end of a time's fraction, so that the text is the same as in a record."""
    trimmed = text.rstrip("0").rstrip(".") if "." in text else text
    return padded(trimmed, column_type) if column_type.name in ("datetime", "timestamp") else trimmed


def _time(case: Case) -> Convert:
    def convert(value: Value) -> Value:
        match = _TIME.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            return value
        hours, minutes, seconds = (int(part) for part in match.groups()[1:4])
        size = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + int((match[5] or "").ljust(6, "0"))
        if case.in_a_day and not (size < _DAY and (size == 0 or not match[1])):
            return None
        size -= size % 1_000 if case.in_milliseconds else 0
        text = time_text(-size if match[1] else size, 1_000_000)
        return padded(text, case.type) if case.reader == "time" else text

    return convert


_CASES: Final[Mapping[Reader, Callable[[Case], Convert | None]]] = {
    "integer": _integer,
    "unsigned64": _unsigned,
    "float32": _float32,
    "decimal": _decimal,
    "binary": _binary,
    "bit": _bit,
    "enum": _label,
    "set": _label,
    "text": _text,
    "date": partial(_calendar, _EPOCH_DAY),
    "datetime": partial(_calendar, _EPOCH),
    "timestamp": _timestamp,
    "time": _time,
    "local_datetime": stored_postgres.moment,
}
