"""A row's position as bytes that a database compares as ``RowSequence`` compares.

Of the source's numbers each is the byte 1 and eight bytes, and after the last stands the byte 0, so that a
position which begins another comes before it; then whether the change writes (1 byte), its partition (4),
offset (8) and index (4). All numbers are big-endian, and none is below 0. Of TiCDC's changes it is 27 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from tidesink.typemap.render_sql import Database

if TYPE_CHECKING:
    from pyspark.sql import Column

# Bytes in each database; of a source's position there is room for 26 numbers.
SEQUENCE_TYPES: Final[Mapping[Database, str]] = MappingProxyType(
    {"postgres": "bytea", "mysql": "varbinary(255)"}
)
_MEMBER: Final = "01"
_END: Final = "00"
_LONG: Final = 16  # hex digits
_INT: Final = 8


def packed_hex(sequence: Column) -> Column:
    """The hex digits of a position's bytes, of a column of ``SEQUENCE_DDL``."""
    from pyspark.sql import functions as F  # noqa: N812

    def number(value: Column, digits: int) -> Column:
        return F.lpad(F.hex(value), digits, "0")

    members = F.transform(
        sequence.getField("source"), lambda value: F.concat(F.lit(_MEMBER), number(value, _LONG))
    )
    return F.concat(
        F.array_join(members, ""),
        F.when(sequence.getField("writes"), F.lit(_END + "01")).otherwise(F.lit(_END + "00")),
        number(sequence.getField("partition"), _INT),
        number(sequence.getField("offset"), _LONG),
        number(sequence.getField("index"), _INT),
    )


def hex_above(commit_ts: int) -> str:
    """The hex digits that every position up to a commit_ts is below, and every later one is not."""
    return f"{_MEMBER}{commit_ts + 1:0{_LONG}x}"


def commit_ts_in(digits: str) -> int:
    """The commit_ts, the source's first number, in a position's hex digits."""
    return int(digits[len(_MEMBER) : len(_MEMBER) + _LONG], 16)
