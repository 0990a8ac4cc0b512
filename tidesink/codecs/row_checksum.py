"""Computes TiCDC's row checksums of flat-avro rows, and compares them with the checksums in the messages.

A checksum is the CRC32 (IEEE) of the bytes of all columns that are not NULL, in a fixed order of the columns
(TiCDC tiflow c7b2588 and ticdc b813e76):

- integers, YEAR, BIT, the index of an ENUM and the bit mask of a SET: 64 bits little-endian
- FLOAT and DOUBLE: the bits of a double
- text, bytes, DECIMAL, JSON, dates and times (TIMESTAMP in UTC): the length as uint32 little-endian, and the
  bytes of the text
- VECTOR: its dimension, and its elements as 32-bit floats

A row has several possible checksums if the message does not show which value TiDB used. This happens for a
TIMESTAMP in the hour that occurs twice when clocks are set back, and for an ENUM whose list of labels
(``allowed``) can be split in several ways.
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

from tidesink.codecs.options import FlatAvroOptions
from tidesink.errors import EncodeError
from tidesink.events import ChangeEvent, Column, ColumnType, Row
from tidesink.typemap.table import Reader, row_of
from tidesink.typemap.values import FoldedTime

# Returns the bytes that a value adds to the checksum; all possible bytes if the message does not show which.
PartReader = Callable[[Any], "bytes | tuple[bytes, ...]"]

# Maximum number of TIMESTAMP values of a row in the hour that occurs twice.
_MOST_TIMES: Final = 12
MOST_SUMS: Final = 2**_MOST_TIMES
_MASK: Final = (1 << 64) - 1
_LOCAL: Final = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(\.\d{1,6})?")


MISMATCH: Final = (
    "The row may have been changed on its way. Or the table has a TIMESTAMP column, and source.time-zone "
    "differs from the changefeed's time zone. Or new-architecture TiCDC wrote the row, and the table's "
    "columns are not in the order in which they were added. Compare the row with TiDB. If it is correct and "
    "the time zones are the same, set checksum: warn under source, so that such rows are applied."
)


# Errors that a ``PartReader`` raises for a value that does not fit its column's type.
_NO_VALUE: Final = (ValueError, ArithmeticError, TypeError, AttributeError)


class UnreportedError(ValueError):
    """The checksum of a row cannot be computed from the message. The error's text has the reason."""


def _part_reader(column_type: ColumnType, zone: str) -> PartReader:
    """Returns the function that converts a column's value to the bytes that it adds to the checksum.

    ``zone``: time zone of TIMESTAMP texts.
    """
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
    """Returns the bytes that a TIMESTAMP adds to the checksum. ``zone``: time zone of its text.

    The bytes are those of the text in UTC. If the local time occurs twice, both possible results are
    returned. A zero date is not converted.
    """
    match = _LOCAL.fullmatch(text)
    if match is None:
        return _text(text)
    try:
        local = datetime.fromisoformat(match[1])
        first, second = (local.replace(tzinfo=zone, fold=fold).astimezone(timezone.utc) for fold in (0, 1))
    except (ValueError, OverflowError):
        return _text(text)
    fraction = match[2] or ""
    texts = [_text(moment.replace(tzinfo=None).isoformat(" ") + fraction) for moment in (first, second)]
    if isinstance(text, FoldedTime):
        return texts[text.fold]
    return texts[0] if first == second else tuple(texts)


def _indexes(members: tuple[str, ...]) -> dict[str, bytes | tuple[bytes, ...]]:
    """Returns, by label of an ENUM, the bytes that the label adds to the checksum, which are its index.

    ``members``: labels as they were split from the message's list ``allowed``. In this list, a backslash
    followed by a comma may be an escaped comma inside a label, or the end of a label whose last character is
    a backslash. So after a label with a comma, the indices of the following labels are not certain, and all
    that are possible are returned.
    """
    indices: dict[str, list[int]] = {}
    parted = 0
    for index, member in enumerate(members, start=1):
        indices.setdefault(member, []).extend(range(index, index + parted + 1))
        parted += member.count(",")
    parts = {label: tuple(map(_integer, dict.fromkeys(places))) for label, places in indices.items()}
    return {label: several[0] if len(several) == 1 else several for label, several in parts.items()}


def _enum(parts: dict[str, bytes | tuple[bytes, ...]], value: str | int) -> bytes | tuple[bytes, ...]:
    if isinstance(value, int):
        return _integer(value)
    encoded = parts.get(value) or parts.get(_unquoted(value))
    if encoded is None:
        raise UnreportedError(f"{value[:40]!r} is not a member of its ENUM")
    return encoded


def _bits(members: tuple[str, ...]) -> dict[str, int]:
    # In MySQL a member of a SET cannot contain a comma, so a comma shows that `allowed` was split wrongly.
    if any("," in member for member in members):
        return {}
    return {member: 1 << index for index, member in enumerate(members) if members.count(member) == 1}


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
    # TiCDC writes \' and '' as ' in `allowed`, but not in the row's value.
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
# Checksum version of current TiDB. TiCDC computes the checksum in the message the same way for all versions.
CURRENT_VERSION: Final = 2
# Texts for "no checksum": of a row without a checksum in TiDB, and of a delete or insert of a split update.
NO_CHECKSUM: Final = ("", "0")

CORRUPTED_REASON: Final = (
    "TiCDC marked the row as corrupted (_tidb_corrupted), because it did not match the checksum that TiDB "
    "stores with it. Check the table in TiDB with ADMIN CHECK TABLE."
)


def summed_order(columns: Iterable[Column], options: FlatAvroOptions) -> tuple[Column, ...]:
    """Returns a table's columns in the order in which TiCDC adds them to the checksum.

    ``columns``: columns in the order of the table.
    """
    if options.producer == "new":
        return tuple(columns)
    return tuple(sorted(columns, key=lambda column: column.column_id or 0))


class RowSums:
    """Computes the checksums of rows with one schema, and compares them with those in the messages.

    ``columns``: columns in the order of the checksum. ``time_zone``: zone of TIMESTAMP texts.
    """

    def __init__(self, columns: Sequence[Column], time_zone: str) -> None:
        self._names = tuple(column.name for column in columns)
        self._readers = tuple(_part_reader(column.type, time_zone) for column in columns)
        local = [row_of(column.type).reader == "timestamp" and time_zone != "UTC" for column in columns]
        self._local_times = tuple(compress(zip(self._names, self._readers, strict=True), local))

    @property
    def has_local_times(self) -> bool:
        """True if the schema has TIMESTAMP columns and their texts are not in UTC.

        Then a local time may occur twice, when clocks are set back.
        """
        return bool(self._local_times)

    def sum(self, row: Row) -> int:
        """Returns the checksum of a row.

        For a local time that occurs twice, the first of the two moments is used, unless the value is a
        ``FoldedTime``, which says which of them is meant.

        Raises:
            EncodeError: A value does not fit its column's type.
        """
        try:
            return self._sums(row)[0]
        except (KeyError, *_NO_VALUE) as error:
            raise EncodeError(f"The row's checksum cannot be computed: {error!s:.120}.") from error

    def fault(self, row: Row, extension: Mapping[str, object]) -> str | None:
        """Returns why a row does not match its checksum, as text for users; None if it matches.

        ``extension``: the event's extension with the checksum. A row without a checksum also returns None.
        """
        if extension.get(CORRUPTED) is True:
            return CORRUPTED_REASON
        checksum = str(extension.get(CHECKSUM, ""))
        if checksum in NO_CHECKSUM:
            return None
        try:
            sums = self._sums(row)
        except _NO_VALUE as error:
            return f"The row's checksum cannot be computed: {error!s:.120}."
        if checksum in map(str, sums):
            return None
        return f"The row's checksum is {sums[0]}, but TiCDC wrote {checksum[:40]!r}. {MISMATCH}"

    def meant_times(self, row: Row, extension: Mapping[str, object]) -> dict[str, FoldedTime]:
        """Determines from a row's checksum which moments its ambiguous local times mean.

        Returns, by column, the local times that occur twice, each with the occurrence that is meant. The dict
        is empty if the row has no such time, or if no combination of occurrences matches the checksum.
        """
        checksum = str(extension.get(CHECKSUM, ""))
        times = ((name, reader, row[name]) for name, reader in self._local_times)
        names = [name for name, reader, time in times if type(time) is str and type(reader(time)) is tuple]
        if checksum in NO_CHECKSUM or not 0 < len(names) <= _MOST_TIMES:
            return {}
        try:
            if checksum not in map(str, self._sums(row)):
                return {}
        except _NO_VALUE:
            return {}
        for folds in product((0, 1), repeat=len(names)):
            meant = {name: FoldedTime(str(row[name]), fold) for name, fold in zip(names, folds, strict=True)}
            if checksum in map(str, self._sums({**row, **meant})):
                return meant
        return {}

    def _sums(self, row: Row) -> Sequence[int]:
        """Returns all checksums that a row can have, beginning with the most likely one.

        Raises:
            UnreportedError: The row has too many possible checksums.
        """
        sums = [0]
        for reader, value in zip(self._readers, [row[name] for name in self._names], strict=True):
            parts = b"" if value is None else reader(value)
            if isinstance(parts, bytes):
                sums = [crc32(parts, previous) for previous in sums]
                continue
            sums = [crc32(part, previous) for previous in sums for part in parts]
            if len(sums) > MOST_SUMS:
                raise UnreportedError(f"its TIMESTAMP columns can be read in more than {MOST_SUMS} ways")
        return sums


def checksum_fault(event: ChangeEvent, *, time_zone: str = "UTC") -> str | None:
    """Returns why the row of a decoded flat-avro event does not match its checksum, as text for users.

    Returns None if it matches, or if there is no checksum. ``time_zone``: the changefeed's time zone, which
    is the zone of TIMESTAMP texts.
    """
    row = event.after if event.after is not None else event.before
    if row is None or event.schema is None or not event.extension or CHECKSUM not in event.extension:
        return None
    return RowSums(event.schema.columns, time_zone).fault(row, event.extension)
