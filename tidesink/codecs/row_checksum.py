"""TiCDC's row checksums: the summed bytes of a row, its possible sums, and their comparison with the wire.

CRC32 (IEEE) over the columns that are not NULL, in order: integers, YEAR, an ENUM's index, a SET's mask and
BIT as 64 bits little-endian; FLOAT and DOUBLE as the bits of a double; text, bytes, DECIMAL, JSON, dates and
times as their length (uint32 little-endian) and their bytes, TIMESTAMP in UTC; VECTOR as its dimension and
its 32-bit floats (TiCDC tiflow c7b2588 and ticdc b813e76).

A row has several possible sums if the wire does not show TiDB's exact value: a TIMESTAMP in the hour that
occurs twice when clocks are set back, or an ENUM whose ``allowed`` can be split in two ways.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from decimal import Decimal
from functools import partial
from itertools import compress, product
from math import isfinite
from typing import Any, Final
from zlib import crc32
from zoneinfo import ZoneInfo

from tidesink.codecs.base import CodecOptions
from tidesink.errors import EncodeError
from tidesink.events import ChangeEvent, Column, ColumnType, Row
from tidesink.typemap.table import Reader, row_of
from tidesink.typemap.values import FoldedTime

# Maps a value to the bytes that it adds; to several if the wire does not show which.
PartReader = Callable[[Any], "bytes | tuple[bytes, ...]"]

# The most TIMESTAMP columns of a row that may be in the repeated hour.
_MOST_TIMES: Final = 12
MOST_SUMS: Final = 2**_MOST_TIMES
_MASK: Final = (1 << 64) - 1
_LOCAL: Final = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(\.\d{1,6})?")


MISMATCH: Final = (
    "Either the row was damaged on its way, or the table has a TIMESTAMP column and source.time-zone "
    "differs from the changefeed's, or new-architecture TiCDC wrote the row and the order of its columns "
    "differs from the order in which they were added. The topic does not contain that order. Compare the "
    "row with TiDB. checksum: warn applies such rows."
)


# Errors that a reader raises for a value that does not fit its column's type.
_NO_VALUE: Final = (ValueError, ArithmeticError, TypeError, AttributeError)


class UnreportedError(ValueError):
    """The sum of a row cannot be computed from the wire; the text has the reason."""


def _part_reader(column_type: ColumnType, zone: str) -> PartReader:
    """The function that returns the summed bytes of a value; ``zone`` is the zone of TIMESTAMP texts."""
    row = row_of(column_type)
    members = column_type.members or ()
    if row.reader == "timestamp":
        return _text if zone == "UTC" else partial(_timestamp, ZoneInfo(zone))
    if row.reader == "enum":
        return partial(_enum, _indexes(members))
    if row.reader == "set":
        return partial(_set, _bits(members))
    return _vector if row.name == "vector" else _READERS.get(row.reader, _text)


def _integer(value: int) -> bytes:
    return (value & _MASK).to_bytes(8, "little")


def _float(value: float) -> bytes:
    return struct.pack("<d", value if isfinite(value) else 0.0)


def _sized(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


def _text(value: str) -> bytes:
    return _sized(value.encode("utf-8", "surrogatepass"))


def _vector(text: str) -> bytes:
    inside = text.strip()[1:-1]
    try:
        numbers = [float(part) for part in inside.split(",")] if inside else []
        return struct.pack(f"<I{len(numbers)}f", len(numbers), *numbers)
    except (ValueError, OverflowError, struct.error) as error:
        raise UnreportedError(f"{text:.40} is not a vector") from error


def _decimal(value: Decimal) -> bytes:
    return _text(format(value, "f"))


def _timestamp(zone: ZoneInfo, text: str) -> bytes | tuple[bytes, ...]:
    """The text in UTC; two texts in the repeated hour. Text without a moment (0000-00-00) is unchanged."""
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
    if isinstance(text, FoldedTime):
        return texts[text.fold]
    return texts[0] if first == second else tuple(texts)


def _indexes(members: tuple[str, ...]) -> dict[str, bytes | tuple[bytes, ...]]:
    """The summed bytes of each ENUM label: its index, or each index that it may have.

    In ``allowed`` a comma after a backslash may also separate two members, the first ending in a backslash.
    """
    found: dict[str, list[int]] = {}
    parted = 0
    for place, member in enumerate(members, start=1):
        found.setdefault(member, []).extend(range(place, place + parted + 1))
        parted += member.count(",")
    parts = {label: tuple(map(_integer, dict.fromkeys(places))) for label, places in found.items()}
    return {label: several[0] if len(several) == 1 else several for label, several in parts.items()}


def _enum(parts: dict[str, bytes | tuple[bytes, ...]], value: str | int) -> bytes | tuple[bytes, ...]:
    if isinstance(value, int):
        return _integer(value)
    found = parts.get(value) or parts.get(_unquoted(value))
    if found is None:
        raise UnreportedError(f"{value[:40]!r} is not a member of its ENUM")
    return found


def _bits(members: tuple[str, ...]) -> dict[str, int]:
    # MySQL allows no comma in a SET's member, so a comma there shows that `allowed` was split wrongly.
    if any("," in member for member in members):
        return {}
    return {member: 1 << place for place, member in enumerate(members) if members.count(member) == 1}


def _set(bits: dict[str, int], value: str | int) -> bytes:
    if isinstance(value, int):
        return _integer(value)
    mask = 0
    for part in value.split(",") if value else ():
        bit = bits.get(part) or bits.get(_unquoted(part))
        if bit is None:
            raise UnreportedError(f"{part[:40]!r} is not an unambiguous member of its SET")
        mask |= bit
    return _integer(mask)


def _unquoted(label: str) -> str:
    # The producer writes \' and '' as ' in `allowed`, but leaves the value unchanged.
    return label.replace("\\'", "'").replace("''", "'")


_READERS: Final[Mapping[Reader, PartReader]] = {
    "integer": _integer,
    "unsigned64": _integer,
    "bit": _integer,
    "float32": _float,
    "float64": _float,
    "decimal": _decimal,
    "binary": _sized,
}


CHECKSUM: Final = "_tidb_row_level_checksum"
CORRUPTED: Final = "_tidb_corrupted"
VERSION: Final = "_tidb_checksum_version"
# The version that current TiDB stores; the sum on the wire is computed the same way for all versions.
CURRENT_VERSION: Final = 2
# A row without a checksum in TiDB, and the half of a split update.
NO_CHECKSUM: Final = ("", "0")

CORRUPTED_REASON: Final = (
    "TiCDC marked the row as corrupted (_tidb_corrupted), because it did not match the checksum that TiDB "
    "keeps for it. Check the row in TiDB (ADMIN CHECK TABLE)."
)


def summed_order(columns: Iterable[Column], options: CodecOptions) -> tuple[Column, ...]:
    """Sort columns, given in table order, into the order in which the producer sums them."""
    if options.producer == "new":
        return tuple(columns)
    return tuple(sorted(columns, key=lambda column: column.column_id or 0))


class RowSums:
    """Computes or checks the sums of rows of one schema, over ``columns`` in this order."""

    def __init__(self, columns: Sequence[Column], time_zone: str) -> None:
        self._names = tuple(column.name for column in columns)
        self._readers = tuple(_part_reader(column.type, time_zone) for column in columns)
        local = [row_of(column.type).reader == "timestamp" and time_zone != "UTC" for column in columns]
        self._local_times = tuple(compress(zip(self._names, self._readers, strict=True), local))

    @property
    def has_local_times(self) -> bool:
        """True if there are TIMESTAMP columns in a zone whose clocks may show a time twice."""
        return bool(self._local_times)

    def sum(self, row: Row) -> int:
        """The sum of a row; a time that occurs twice counts as the first, unless it has a fold.

        Raises:
            EncodeError: a value does not fit its column's type.
        """
        try:
            return self._sums(row)[0]
        except (KeyError, *_NO_VALUE) as error:
            raise EncodeError(f"The row's checksum cannot be computed: {error!s:.120}.") from error

    def fault(self, row: Row, extension: Mapping[str, object]) -> str | None:
        """The reason why the row does not match its checksum; None if it matches or has no checksum."""
        if extension.get(CORRUPTED) is True:
            return CORRUPTED_REASON
        said = str(extension.get(CHECKSUM, ""))
        if said in NO_CHECKSUM:
            return None
        try:
            sums = self._sums(row)
        except _NO_VALUE as error:
            return f"The row's checksum cannot be computed: {error!s:.120}."
        if said in map(str, sums):
            return None
        return f"The row's checksum is {sums[0]}, but TiCDC wrote {said[:40]!r}. {MISMATCH}"

    def meant_times(self, row: Row, extension: Mapping[str, object]) -> dict[str, FoldedTime]:
        """The row's times that occur twice, resolved by its checksum; empty if it does not decide them."""
        said = str(extension.get(CHECKSUM, ""))
        times = ((name, reader, row[name]) for name, reader in self._local_times)
        names = [name for name, reader, time in times if type(time) is str and type(reader(time)) is tuple]
        if said in NO_CHECKSUM or not 0 < len(names) <= _MOST_TIMES:
            return {}
        try:
            if said not in map(str, self._sums(row)):
                return {}
        except _NO_VALUE:
            return {}
        for folds in product((0, 1), repeat=len(names)):
            meant = {name: FoldedTime(str(row[name]), fold) for name, fold in zip(names, folds, strict=True)}
            if said in map(str, self._sums({**row, **meant})):
                return meant
        return {}

    def _sums(self, row: Row) -> Sequence[int]:
        """Every sum that the row can have, the likeliest first."""
        sums = [0]
        for reader, value in zip(self._readers, [row[name] for name in self._names], strict=True):
            parts = b"" if value is None else reader(value)
            if isinstance(parts, bytes):
                sums = [crc32(parts, found) for found in sums]
                continue
            sums = [crc32(part, found) for found in sums for part in parts]
            if len(sums) > MOST_SUMS:
                raise UnreportedError(f"its TIMESTAMP columns can be read in more than {MOST_SUMS} ways")
        return sums


def checksum_fault(event: ChangeEvent, *, time_zone: str = "UTC") -> str | None:
    """The reason why a decoded flat-avro event does not match its checksum, or None.

    ``time_zone`` is the changefeed's, because TIMESTAMP texts do not contain a zone.
    """
    row = event.after if event.after is not None else event.before
    if row is None or event.schema is None or not event.extension or CHECKSUM not in event.extension:
        return None
    return RowSums(event.schema.columns, time_zone).fault(row, event.extension)
