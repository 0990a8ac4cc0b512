"""The bytes TiCDC sums for a row, and the sums a row can have; the standard library alone.

CRC32 (IEEE) over the columns that are not NULL, one after the other: integers, YEAR, an ENUM's index, a
SET's mask and BIT as 64 bits little-endian; FLOAT and DOUBLE as the bits of a double; text, bytes,
DECIMAL, JSON, dates and times as their length (uint32 little-endian) and their bytes, TIMESTAMP in UTC;
VECTOR as its dimension and its 32-bit floats (TiCDC tiflow c7b2588 and ticdc b813e76).

A row has several sums where the wire does not say which value TiDB held: a TIMESTAMP in the hour that
comes twice when clocks are set back, an ENUM whose ``allowed`` can be split in two ways.

Nothing of tidesink is imported, so that Spark's executors can be given this module by value.
"""

from __future__ import annotations

import math
import re
import struct
import zlib
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any, Final
from zoneinfo import ZoneInfo

# Kind of column, members of an ENUM or SET, digits behind the point of a DECIMAL in bytes.
Summed = tuple[str, tuple[str, ...], int]

# A DECIMAL in bytes that are its text, and not its unscaled digits.
TEXT_SCALE: Final = -1
# Twelve TIMESTAMP columns, each in the hour that comes twice.
MOST_SUMS: Final = 4096
_MASK: Final = (1 << 64) - 1
_LOCAL: Final = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(\.\d{1,6})?")
_SECOND: Final = "%Y-%m-%d %H:%M:%S"


MISMATCH: Final = (
    "the row was damaged on its way, or source.time-zone is not the changefeed's and the table has a "
    "TIMESTAMP, or new-architecture TiCDC wrote it and the table's columns do not stand in the order they "
    "were added, which the topic does not tell. Compare the row with TiDB; checksum: warn applies such rows"
)


class UntoldError(ValueError):
    """A row whose sum cannot be computed from what the wire says; the text says why."""


def checksum_reason(said: str, columns: Iterable[Summed], values: Iterable[Any], zone: str) -> str | None:
    """Why ``said`` is none of the sums the values can have; None where it is one."""
    try:
        sums = row_sums(columns, values, zone)
    except (ValueError, ArithmeticError, TypeError) as error:
        return f"the row's checksum cannot be computed: {error!s:.120}"
    if said in map(str, sums):
        return None
    return f"the row's checksum is {sums[0]} and TiCDC wrote {said[:40]!r}: {MISMATCH}"


def row_sums(columns: Iterable[Summed], values: Iterable[Any], zone: str) -> tuple[int, ...]:
    """Every sum the row can have, the likeliest first; ``zone`` is where TIMESTAMP texts are.

    Raises:
        UntoldError: none can be computed.
    """
    sums = [0]
    for (kind, members, scale), value in zip(columns, values, strict=True):
        if value is None:
            continue
        parts = _SINGLE[kind](value) if kind in _SINGLE else _several(kind, value, members, scale, zone)
        if isinstance(parts, bytes):
            sums = [zlib.crc32(parts, found) for found in sums]
            continue
        sums = [zlib.crc32(part, found) for found in sums for part in parts]
        if len(sums) > MOST_SUMS:
            raise UntoldError(f"its TIMESTAMP columns can be read in more than {MOST_SUMS} ways")
    return tuple(sums)


def _several(
    kind: str, value: Any, members: tuple[str, ...], scale: int, zone: str
) -> bytes | tuple[bytes, ...]:
    if kind == "timestamp":
        return _timestamp(_text_of(value), zone)
    if kind == "decimal":
        return _sized(_decimal_text(value, scale).encode())
    label = value if isinstance(value, int) else _text_of(value)
    return _enum(label, members) if kind == "enum" else _set(label, members)


def _text_of(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def _integer(value: int | bytes) -> bytes:
    return (int(value) & _MASK).to_bytes(8, "little")


def _float(value: float | bytes) -> bytes:
    number = float(value)
    return struct.pack("<d", number if math.isfinite(number) else 0.0)


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
        raise UntoldError(f"{text:.40} is no vector") from error


def _decimal_text(value: Any, scale: int) -> str:
    """A decimal's digits padded to its scale: from our value, from text, or from unscaled bytes."""
    if not isinstance(value, bytes):
        return format(value, "f")
    if scale == TEXT_SCALE:
        return format(Decimal(value.decode("ascii", "replace")), "f")
    unscaled = int.from_bytes(value, "big", signed=True)
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    sign = "-" if unscaled < 0 else ""
    return sign + (f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits)


def _timestamp(text: str, zone: str) -> bytes | tuple[bytes, ...]:
    """The text in UTC; two where the clock shows it twice. What is no moment, as 0000-00-00, stays."""
    found = _LOCAL.fullmatch(text)
    if zone == "UTC" or found is None:
        return _sized(text.encode())
    try:
        local = datetime.strptime(found[1], _SECOND)
        moments = [
            local.replace(tzinfo=ZoneInfo(zone), fold=fold).astimezone(timezone.utc).replace(tzinfo=None)
            for fold in (0, 1)
        ]
    except (ValueError, OverflowError):
        return _sized(text.encode())
    texts = dict.fromkeys(moment.isoformat(" ") + (found[2] or "") for moment in moments)
    return tuple(_sized(one.encode()) for one in texts)


def _enum(label: str | int, members: tuple[str, ...]) -> bytes | tuple[bytes, ...]:
    if isinstance(label, int):
        return _integer(label)
    places = _places(label, members)
    if not places:
        raise UntoldError(f"{label[:40]!r} is none of the members of its ENUM")
    # In `allowed` a comma behind a backslash may as well part two members, the first ending in a backslash.
    indexes = [
        place + 1 + parted
        for place in places
        for parted in range(sum(m.count(",") for m in members[:place]) + 1)
    ]
    return tuple(_integer(index) for index in dict.fromkeys(indexes))


def _set(label: str | int, members: tuple[str, ...]) -> bytes:
    if isinstance(label, int):
        return _integer(label)
    mask = 0
    for part in label.split(",") if label else ():
        places = _places(part, members)
        # MySQL allows no comma in a SET's member: one there shows that `allowed` was split wrongly.
        if len(places) != 1 or any("," in member for member in members):
            raise UntoldError(f"{part[:40]!r} is no certain member of its SET")
        mask |= 1 << places[0]
    return _integer(mask)


def _places(label: str, members: tuple[str, ...]) -> list[int]:
    # The producer writes \' and '' as ' in `allowed`, and the value as it is.
    quoted = label.replace("\\'", "'").replace("''", "'")
    exact = [place for place, member in enumerate(members) if member == label]
    return exact or [place for place, member in enumerate(members) if member == quoted]


_SINGLE: Final[dict[str, Callable[[Any], bytes]]] = {
    "integer": _integer,
    "float": _float,
    "text": _text,
    "bytes": _sized,
    "bit": _bit,
    "vector": _vector,
}
