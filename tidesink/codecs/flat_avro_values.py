"""One value between its Avro primitive and the form ``tidesink.events`` states.

fastavro reads and writes the primitives; only the columns named here need another step: DECIMAL, BIT and
BIGINT UNSIGNED. Logical types are left to these functions, since a decimal must keep its scale and BIT is
shortest bytes (TiCDC tiflow c7b2588) or full width (ticdc b813e76).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from tidesink.errors import EncodeError, ValueOutOfRangeError, shown
from tidesink.events import ColumnType, Value
from tidesink.typemap.parse import DECIMAL_CONTEXT, fit_decimal, text_reader, wire_unsigned
from tidesink.typemap.table import row_of

FromWire = Callable[[Any], Value]
ToWire = Callable[[Any], Any]

_INT32_END: Final = 1 << 31
_INT64_END: Final = 1 << 63
_UINT64_END: Final = 1 << 64
_MAX_FLOAT: Final = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]


def from_wire(column_type: ColumnType, avro: str) -> FromWire | None:
    """What turns a column's Avro value into ours; None where it is ours already.

    The function raises ValueOutOfRangeError.
    """
    reader = row_of(column_type).reader
    if avro == "string":
        return text_reader(column_type) if reader in ("decimal", "unsigned64") else None
    if reader == "unsigned64":
        return wire_unsigned
    if reader == "decimal":
        return _decimal_reader(column_type)
    return _bit_reader(column_type) if reader == "bit" else None


def _decimal_reader(column_type: ColumnType) -> FromWire:
    exponent, limit = -(column_type.scale or 0), 10 ** (column_type.precision or 65)

    def read(data: bytes) -> Decimal:
        unscaled = int.from_bytes(data, "big", signed=True)
        if not -limit < unscaled < limit:
            raise ValueOutOfRangeError(f"{len(data)} bytes of digits are no {_shown(column_type)}")
        return Decimal(unscaled).scaleb(exponent, DECIMAL_CONTEXT)

    return read


def _bit_reader(column_type: ColumnType) -> FromWire:
    limit = 1 << (column_type.length or 64)

    def read(data: bytes) -> int:
        value = int.from_bytes(data, "big")
        if value >= limit:
            raise ValueOutOfRangeError(f"0x{data[:9].hex()} has more bits than {_shown(column_type)}")
        return value

    return read


def _shown(column_type: ColumnType) -> str:
    arguments = [column_type.precision, column_type.scale, column_type.length]
    given = ",".join(str(argument) for argument in arguments if argument is not None)
    return column_type.sql or (f"{column_type.name}({given})" if given else column_type.name)


def to_wire(
    column_type: ColumnType, avro: str, *, nullable: bool = True, full_width_bit: bool = False
) -> ToWire | None:
    """What turns our value into the one fastavro writes; None where it is that already.

    The function raises EncodeError for a value the column cannot hold, unless fastavro refuses it itself:
    it checks a union's values, and of plain ones all but integers' types and floats' ranges.
    """
    reader = row_of(column_type).reader
    if reader == "bit":
        return _bit_writer(column_type, full_width_bit)
    if reader == "decimal":
        return _decimal_text_writer(column_type) if avro == "string" else _decimal_writer(column_type)
    if reader == "unsigned64":
        return _unsigned_text if avro == "string" else _unsigned_long
    if reader in ("enum", "set"):
        return _label_writer(column_type)
    if avro == "float":
        return _float
    return None if nullable else _PLAIN_WRITERS.get(avro)


def _refuse(value: object, column_type: ColumnType) -> EncodeError:
    return EncodeError(f"{shown(value)} is no {_shown(column_type)}")


def _bit_writer(column_type: ColumnType, full_width: bool) -> ToWire:
    bits = column_type.length or 64

    def write(value: int) -> bytes:
        if not isinstance(value, int) or not 0 <= value < 1 << bits:
            raise _refuse(value, column_type)
        size = bits if full_width else max(value.bit_length(), 1)
        return value.to_bytes((size + 7) // 8, "big")

    return write


# Written out, 1e999999999 would be a number of a billion digits; no DECIMAL has a hundred.
_MOST_EXPONENT = 1000


def _decimal_writer(column_type: ColumnType) -> ToWire:
    scale, limit = column_type.scale or 0, 10 ** (column_type.precision or 65)

    def write(value: Decimal) -> bytes:
        try:
            if value and abs(value.adjusted()) > _MOST_EXPONENT:
                raise _refuse(value, column_type)
            scaled = value.scaleb(scale, DECIMAL_CONTEXT)
            unscaled = int(scaled)
        except (ArithmeticError, ValueError, AttributeError) as error:
            raise _refuse(value, column_type) from error
        if unscaled != scaled or not -limit < unscaled < limit:
            raise _refuse(value, column_type)
        # Minimal two's complement: -128 takes one byte, 128 two.
        bits = (unscaled if unscaled >= 0 else ~unscaled).bit_length()
        return unscaled.to_bytes(bits // 8 + 1, "big", signed=True)

    return write


def _decimal_text_writer(column_type: ColumnType) -> ToWire:
    return lambda value: format(_fitted(value, column_type), "f")


def _fitted(value: object, column_type: ColumnType) -> Decimal:
    if not isinstance(value, (Decimal, int)):
        raise _refuse(value, column_type)
    try:
        return fit_decimal(Decimal(value), column_type)
    except ValueOutOfRangeError as error:
        raise _refuse(value, column_type) from error


def _unsigned_long(value: int) -> int:
    _check_unsigned(value)
    return value - _UINT64_END if value >= _INT64_END else value


def _unsigned_text(value: int) -> str:
    _check_unsigned(value)
    return str(value)


def _check_unsigned(value: object) -> None:
    if not isinstance(value, int) or not 0 <= value < _UINT64_END:
        raise EncodeError(f"{shown(value)} is no bigint unsigned")


def _label_writer(column_type: ColumnType) -> ToWire:
    members = frozenset(column_type.members or ())
    is_set = column_type.name == "set"

    def write(value: str) -> str:
        if not isinstance(value, str):
            raise EncodeError(f"{shown(value)} is a number: {_shown(column_type)} is written by its label")
        if members:
            parts = [part for part in value.split(",") if part] if is_set else [value]
            if not members.issuperset(parts):
                raise _refuse(value, column_type)
        return value

    return write


def _int(value: int) -> int:
    if not isinstance(value, int) or not -_INT32_END <= value < _INT32_END:
        raise EncodeError(f"{shown(value)} is no 32-bit integer")
    return value


def _long(value: int) -> int:
    if not isinstance(value, int) or not -_INT64_END <= value < _INT64_END:
        raise EncodeError(f"{shown(value)} is no 64-bit integer")
    return value


def _float(value: float) -> float:
    if not isinstance(value, (float, int)) or _MAX_FLOAT < abs(value) < float("inf"):
        raise EncodeError(f"{shown(value)} is no 32-bit float")
    return float(value)


_PLAIN_WRITERS: Final[dict[str, ToWire]] = {"int": _int, "long": _long}
