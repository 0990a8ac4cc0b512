"""Connect's plain values: integers, floats, booleans, text and bytes, as Avro and JSON have them."""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Final

from tidesink.codecs.connect_schema import ConnectSchema
from tidesink.errors import SchemaMismatchError, ValueOutOfRangeError, shown

_FLOAT32: Final = struct.Struct("<f")
INTEGER_BITS: Final = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
# Kafka Connect's JsonConverter writes these as text.
WORDS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def mismatch(raw: object, schema: ConnectSchema) -> SchemaMismatchError:
    """The error of a value that is not of its schema's type."""

    return SchemaMismatchError(f"{type(raw).__name__} {shown(raw)} is no {schema.name or schema.type}")


def integer(schema: ConnectSchema) -> Callable[[object], int]:
    """A reader of integers of 8 to 64 bits; a boolean is none."""

    limit = 1 << (INTEGER_BITS[schema.type] - 1)

    def read(raw: object) -> int:
        if type(raw) is not int:
            raise mismatch(raw, schema)
        if not -limit <= raw < limit:
            raise ValueOutOfRangeError(f"{shown(raw)} is no {schema.name or schema.type}")
        return raw

    return read


def floating(schema: ConnectSchema) -> Callable[[object], float]:
    """A reader of floats: numbers, and the words that stand for what JSON has no number for."""

    single = schema.type == "float32"

    def read(raw: object) -> float:
        if isinstance(raw, str) and raw in WORDS:
            return WORDS[raw]
        if isinstance(raw, bool) or not isinstance(raw, float | int | Decimal):
            raise mismatch(raw, schema)
        try:
            value = float(raw)
            value = float(_FLOAT32.unpack(_FLOAT32.pack(value))[0]) if single else value
        except (OverflowError, ValueError) as error:
            raise ValueOutOfRangeError(f"{shown(raw)} is no {schema.type}") from error
        if math.isinf(value) and not isinstance(raw, float):
            raise ValueOutOfRangeError(f"{shown(raw)} is no {schema.type}")
        return value

    return read


def boolean(schema: ConnectSchema) -> Callable[[object], bool]:
    """A reader of true and false."""

    def read(raw: object) -> bool:
        if not isinstance(raw, bool):
            raise mismatch(raw, schema)
        return raw

    return read


def checked_text(schema: ConnectSchema) -> Callable[[object], str]:
    """A reader of text."""

    def read(raw: object) -> str:
        if not isinstance(raw, str):
            raise mismatch(raw, schema)
        return raw

    return read


def bytes_reader(schema: ConnectSchema) -> Callable[[object], bytes]:
    """A reader of bytes: Avro's, or JSON's base64."""

    def read(raw: object) -> bytes:
        if isinstance(raw, bytes):
            return raw
        if not isinstance(raw, str):
            raise mismatch(raw, schema)
        try:
            return base64.b64decode(raw, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ValueOutOfRangeError(f"{shown(raw)} is no base64 of {schema.name or 'bytes'}") from error

    return read
