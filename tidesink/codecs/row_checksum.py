"""The bytes TiCDC sums for a row, and the sums a row can have; the standard library alone.

CRC32 (IEEE) over the columns that are not NULL, one after the other: integers, YEAR, an ENUM's index, a
SET's mask and BIT as 64 bits little-endian; FLOAT and DOUBLE as the bits of a double; text, bytes,
DECIMAL, JSON, dates and times as their length (uint32 little-endian) and their bytes, TIMESTAMP in UTC;
VECTOR as its dimension and its 32-bit floats (TiCDC tiflow c7b2588 and ticdc b813e76).

A row has several sums where the wire does not say which value TiDB held: a TIMESTAMP in the hour that
comes twice when clocks are set back, an ENUM whose ``allowed`` can be split in two ways.

Nothing of tidesink is imported and nothing here is beyond pickling, so that Spark's executors can be given
this module by value.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from decimal import Decimal
from functools import partial
from math import isfinite
from typing import Any, Final
from zlib import crc32
from zoneinfo import ZoneInfo

from tidesink.codecs.base import CodecOptions
from tidesink.errors import EncodeError
from tidesink.events import ChangeEvent, Column, ColumnType, Row
from tidesink.typemap.table import Reader, row_of

# Kind of column, members of an ENUM or SET, digits behind the point of a DECIMAL in bytes.
Summed = tuple[str, tuple[str, ...], int]
# A value to the bytes it adds; several where the wire does not say which.
PartReader = Callable[[Any], "bytes | tuple[bytes, ...]"]

# A DECIMAL in bytes that are its text, and not its unscaled digits.
TEXT_SCALE: Final = -1
# Twelve TIMESTAMP columns, each in the hour that comes twice.
MOST_SUMS: Final = 4096
_MASK: Final = (1 << 64) - 1
_LOCAL: Final = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(\.\d{1,6})?")


MISMATCH: Final = (
    "the row was damaged on its way, or source.time-zone is not the changefeed's and the table has a "
    "TIMESTAMP, or new-architecture TiCDC wrote it and the table's columns do not stand in the order they "
    "were added, which the topic does not tell. Compare the row with TiDB; checksum: warn applies such rows"
)


class UnreportedError(ValueError):
    """A row whose sum cannot be computed from what the wire says; the text says why."""


def part_readers(columns: Iterable[Summed], zone: str) -> tuple[PartReader, ...]:
    """What each column adds to the sum; ``zone`` is where TIMESTAMP texts are."""
    return tuple(_reader(kind, members, scale, zone) for kind, members, scale in columns)


def checksum_reason(said: str, readers: Sequence[PartReader], values: Iterable[Any]) -> str | None:
    """Why ``said`` is none of the sums the values can have; None where it is one."""
    try:
        sums = row_sums(readers, values)
    except (ValueError, ArithmeticError, TypeError) as error:
        return f"the row's checksum cannot be computed: {error!s:.120}"
    if said in map(str, sums):
        return None
    return f"the row's checksum is {sums[0]} and TiCDC wrote {said[:40]!r}: {MISMATCH}"


def row_sums(readers: Sequence[PartReader], values: Iterable[Any]) -> Sequence[int]:
    """Every sum the row can have, the likeliest first.

    Raises:
        UntoldError: none can be computed.
    """
    sums = [0]
    for reader, value in zip(readers, values, strict=True):
        if value is None:
            continue
        parts = reader(value)
        if isinstance(parts, bytes):
            sums = [crc32(parts, found) for found in sums]
            continue
        sums = [crc32(part, found) for found in sums for part in parts]
        if len(sums) > MOST_SUMS:
            raise UnreportedError(f"its TIMESTAMP columns can be read in more than {MOST_SUMS} ways")
    return sums


def _reader(kind: str, members: tuple[str, ...], scale: int, zone: str) -> PartReader:
    if kind == "timestamp":
        return _text if zone == "UTC" else partial(_timestamp, ZoneInfo(zone))
    if kind == "decimal":
        return partial(_decimal, scale)
    if kind == "enum":
        return partial(_enum, _indexes(members))
    if kind == "set":
        return partial(_set, _bits(members))
    return _SINGLE[kind]


def _text_of(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def _integer(value: int | bytes) -> bytes:
    return (int(value) & _MASK).to_bytes(8, "little")


def _float(value: float | bytes) -> bytes:
    number = float(value)
    return struct.pack("<d", number if isfinite(number) else 0.0)


def _sized(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


def _text(value: str | bytes) -> bytes:
    return _sized(value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value)


def _bit(value: int | bytes) -> bytes:
    return _integer(value if isinstance(value, int) else int.from_bytes(value, "big"))


def _vector(value: str | bytes) -> bytes:
    text = _text_of(value)
    inside = text.strip()[1:-1]
    try:
        numbers = [float(part) for part in inside.split(",")] if inside else []
        return struct.pack(f"<I{len(numbers)}f", len(numbers), *numbers)
    except (ValueError, OverflowError, struct.error) as error:
        raise UnreportedError(f"{text:.40} is no vector") from error


def _decimal(scale: int, value: Any) -> bytes:
    """A decimal's digits padded to its scale: from our value, from text, or from unscaled bytes."""
    if not isinstance(value, bytes):
        return _text(format(value, "f"))
    if scale == TEXT_SCALE:
        return _text(format(Decimal(value.decode("ascii", "replace")), "f"))
    unscaled = int.from_bytes(value, "big", signed=True)
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    sign = "-" if unscaled < 0 else ""
    return _text(sign + (f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits))


def _timestamp(zone: ZoneInfo, value: str | bytes) -> bytes | tuple[bytes, ...]:
    """The text in UTC; two where the clock shows it twice. What is no moment, as 0000-00-00, stays."""
    text = _text_of(value)
    found = _LOCAL.fullmatch(text)
    if found is None:
        return _text(text)
    try:
        local = datetime.fromisoformat(found[1])
        first, second = (local.replace(tzinfo=zone, fold=fold).astimezone(timezone.utc) for fold in (0, 1))
    except (ValueError, OverflowError):
        return _text(text)
    fraction = found[2] or ""
    texts = [_text(moment.replace(tzinfo=None).isoformat(" ") + fraction) for moment in (first, second)]
    return texts[0] if first == second else tuple(texts)


def _indexes(members: tuple[str, ...]) -> dict[str, bytes | tuple[bytes, ...]]:
    """What an ENUM's label adds: its index, or each index it may have.

    In ``allowed`` a comma behind a backslash may as well part two members, the first ending in a backslash.
    """
    found: dict[str, list[int]] = {}
    parted = 0
    for place, member in enumerate(members, start=1):
        found.setdefault(member, []).extend(range(place, place + parted + 1))
        parted += member.count(",")
    parts = {label: tuple(map(_integer, dict.fromkeys(places))) for label, places in found.items()}
    return {label: several[0] if len(several) == 1 else several for label, several in parts.items()}


def _enum(parts: dict[str, bytes | tuple[bytes, ...]], value: str | bytes | int) -> bytes | tuple[bytes, ...]:
    if isinstance(value, int):
        return _integer(value)
    label = _text_of(value)
    found = parts.get(label) or parts.get(_unquoted(label))
    if found is None:
        raise UnreportedError(f"{label[:40]!r} is none of the members of its ENUM")
    return found


def _bits(members: tuple[str, ...]) -> dict[str, int]:
    # MySQL allows no comma in a SET's member: one there shows that `allowed` was split wrongly.
    if any("," in member for member in members):
        return {}
    return {member: 1 << place for place, member in enumerate(members) if members.count(member) == 1}


def _set(bits: dict[str, int], value: str | bytes | int) -> bytes:
    if isinstance(value, int):
        return _integer(value)
    mask, label = 0, _text_of(value)
    for part in label.split(",") if label else ():
        bit = bits.get(part) or bits.get(_unquoted(part))
        if bit is None:
            raise UnreportedError(f"{part[:40]!r} is no certain member of its SET")
        mask |= bit
    return _integer(mask)


def _unquoted(label: str) -> str:
    # The producer writes \' and '' as ' in `allowed`, and the value as it is.
    return label.replace("\\'", "'").replace("''", "'")


_SINGLE: Final[dict[str, PartReader]] = {
    "integer": _integer,
    "float": _float,
    "text": _text,
    "bytes": _sized,
    "bit": _bit,
    "vector": _vector,
}


CHECKSUM: Final = "_tidb_row_level_checksum"
CORRUPTED: Final = "_tidb_corrupted"
VERSION: Final = "_tidb_checksum_version"
# What current TiDB stores; the sum on the wire is computed the same for all.
CURRENT_VERSION: Final = 2
# A row of which TiDB keeps no checksum, and the half of a split update.
NO_CHECKSUM: Final = ("", "0")

CORRUPTED_REASON: Final = (
    "TiCDC marks the row as corrupted (_tidb_corrupted): it did not match the checksum TiDB keeps of it. "
    "Look at the row in TiDB (ADMIN CHECK TABLE)"
)
_KINDS: Final[Mapping[Reader, str]] = {
    "integer": "integer",
    "unsigned64": "integer",
    "float32": "float",
    "float64": "float",
    "decimal": "decimal",
    "binary": "bytes",
    "bit": "bit",
    "enum": "enum",
    "set": "set",
    "timestamp": "timestamp",
}


def summed(column_type: ColumnType) -> Summed:
    """How a column of this type goes into the sum."""
    row = row_of(column_type)
    kind = "vector" if row.name == "vector" else _KINDS.get(row.reader, "text")
    return kind, column_type.members or (), column_type.scale or 0


def checksum_of(columns: Sequence[Column], row: Row, *, time_zone: str = "UTC") -> int:
    """The sum of a row over ``columns`` in this order; of an hour that comes twice, the first is meant.

    Raises:
        EncodeError: a value is none of its column's type.
    """
    return RowSums(columns, time_zone).sum(row)


def _summed_column(column: Column) -> Summed:
    return summed(column.type)


def summed_order(columns: Iterable[Column], options: CodecOptions) -> tuple[Column, ...]:
    """The columns in the order the producer sums them, of the columns in table order."""
    if options.producer == "new":
        return tuple(columns)
    return tuple(sorted(columns, key=lambda column: column.column_id or 0))


class RowSums:
    """Sums the rows of one table, or checks those of one writer schema, over ``columns`` in this order."""

    def __init__(self, columns: Sequence[Column], time_zone: str) -> None:
        self._names = tuple(column.name for column in columns)
        self._readers = part_readers(map(_summed_column, columns), time_zone)

    def sum(self, row: Row) -> int:
        """The sum of a row; of an hour that comes twice, the first is meant.

        Raises:
            EncodeError: a value is none of its column's type.
        """
        try:
            return row_sums(self._readers, [row[name] for name in self._names])[0]
        except (KeyError, ValueError, ArithmeticError, TypeError) as error:
            raise EncodeError(f"the row's checksum cannot be computed: {error!s:.120}") from error

    def fault(self, row: Row, extension: Mapping[str, object]) -> str | None:
        """Why the row is not what its checksum says; None where it is, or has none.

        Deterministic in the row alone, and the same text as the Spark path's.
        """
        if extension.get(CORRUPTED) is True:
            return CORRUPTED_REASON
        said = extension.get(CHECKSUM, "")
        if said in NO_CHECKSUM:
            return None
        return checksum_reason(str(said), self._readers, [row[name] for name in self._names])


def checksum_fault(event: ChangeEvent, *, time_zone: str = "UTC") -> str | None:
    """Why a decoded flat-avro event is not what its checksum says; None where it is, or has none.

    ``time_zone`` is the changefeed's: TIMESTAMP texts carry none.
    """
    row = event.after if event.after is not None else event.before
    if row is None or event.schema is None or not event.extension or CHECKSUM not in event.extension:
        return None
    return RowSums(event.schema.columns, time_zone).fault(row, event.extension)
