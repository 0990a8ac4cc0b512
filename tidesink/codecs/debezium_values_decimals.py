"""Decimals and bits of Connect schemas: numbers that are written as bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Final

from tidesink.codecs.connect_schema import PRECISION, ConnectSchema
from tidesink.codecs.debezium_values_scalars import bytes_reader, mismatch
from tidesink.errors import SchemaMismatchError, ValueOutOfRangeError, shown
from tidesink.typemap.parse import DECIMAL_CONTEXT

# PostgreSQL's numeric has at most 131072 digits before the point and 16383 after it.
_MOST_SCALE: Final = 20_000
_MOST_BYTES: Final = 65_536
_MOST_BITS: Final = 64
# More digits than DECIMAL_CONTEXT keeps are moved by hand: 41 bytes may have 99.
_EXACT_BYTES: Final = 41
_MOST_PRECISION: Final = 80


def unscaled(schema: ConnectSchema) -> Callable[[object], Decimal]:
    """A reader of a decimal with the schema's scale: an unscaled number's bytes, or the number itself."""
    scale, precision = scale_of(schema), whole_parameter(schema, PRECISION)
    read = bytes_reader(schema)
    limit = 10**precision if precision is not None and 0 < precision <= _MOST_PRECISION else None

    def decimal(raw: object) -> Decimal:
        # JsonConverter's decimal.format NUMERIC: a number, which a parser may shorten to an integer.
        if isinstance(raw, Decimal | int) and not isinstance(raw, bool):
            value = at_scale(Decimal(raw), scale, schema)
        else:
            value = scaled(read(raw), scale or 0, schema)
        if limit is not None and not -limit < value.scaleb(scale or 0, DECIMAL_CONTEXT) < limit:
            raise ValueOutOfRangeError(f"{shown(value)} has more than {precision} digits")
        return value

    return decimal


def scale_of(schema: ConnectSchema) -> int | None:
    """The digits after the point of a decimal's schema, None where it says none.

    Raises:
        SchemaMismatchError: the scale is no number, or more than any database has.
    """
    scale = whole_parameter(schema, "scale")
    if scale is not None and abs(scale) > _MOST_SCALE:
        raise SchemaMismatchError(f"scale of {schema.name or schema.type} is {scale}: no database has it")
    return scale


def at_scale(value: Decimal, scale: int | None, schema: ConnectSchema) -> Decimal:
    """The value with as many digits after the point as its schema says; as it is where it says none.

    Raises:
        ValueOutOfRangeError: it has more that are not zero, or is no number.
    """
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or abs(exponent) > _MOST_SCALE:
        raise ValueOutOfRangeError(f"{shown(value)} is no {schema.name or 'decimal'}")
    if scale is None:
        return value
    missing = scale + exponent
    if missing < 0:
        if any(digits[missing:]):
            raise ValueOutOfRangeError(f"{shown(value)} has more than {scale} digits after the point")
        return Decimal((sign, digits[:missing] or (0,), -scale))
    return Decimal((sign, digits + (0,) * missing, -scale))


def scaled(data: bytes, scale: int, schema: ConnectSchema) -> Decimal:
    """The decimal of an unscaled number's bytes (big-endian two's complement), with all its digits.

    Raises:
        ValueOutOfRangeError: more digits or a wider scale than a database has.
    """
    if len(data) > _MOST_BYTES or abs(scale) > _MOST_SCALE:
        raise ValueOutOfRangeError(f"{len(data)} bytes at scale {scale} are no {schema.name or 'decimal'}")
    unscaled_value = Decimal(int.from_bytes(data, "big", signed=True))
    if len(data) <= _EXACT_BYTES:
        return unscaled_value.scaleb(-scale, DECIMAL_CONTEXT)
    sign, digits, _ = unscaled_value.as_tuple()
    return Decimal((sign, digits, -scale))


def variable_scale(schema: ConnectSchema) -> Callable[[object], Decimal]:
    """A reader of a decimal that brings its scale with it."""
    read = bytes_reader(schema)

    def decimal(raw: object) -> Decimal:
        if not isinstance(raw, Mapping) or not isinstance(raw.get("scale"), int):
            raise mismatch(raw, schema)
        return scaled(read(raw.get("value")), raw["scale"], schema)

    return decimal


def bits(schema: ConnectSchema) -> Callable[[object], int | bytes]:
    """A reader of a bit string: a number of up to 64 bits, the bytes as they are beyond."""
    length = whole_parameter(schema, "length") or _MOST_BITS
    read = bytes_reader(schema)
    if not 0 < length <= _MOST_BITS:
        return read

    def number(raw: object) -> int:
        # Debezium writes the lowest byte first, and as many as the value needs (PostgreSQL) or has (MySQL).
        value = int.from_bytes(read(raw), "little")
        if value >> length:
            raise ValueOutOfRangeError(f"{shown(raw)} has more than {length} bits")
        return value

    return number


def whole_parameter(schema: ConnectSchema, name: str) -> int | None:
    """A parameter that is a whole number, or None where the schema has none.

    Raises:
        SchemaMismatchError: it is something else.
    """
    text = schema.parameters.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError as error:
        raise SchemaMismatchError(f"{name} of {schema.name or schema.type} is {shown(text)}") from error
