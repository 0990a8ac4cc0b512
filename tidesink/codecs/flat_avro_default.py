"""A column's default in an Avro schema, as TiCDC writes it, and back to TiDB's text.

The quirks are the producer's (tiflow c7b2588 and ticdc b813e76): bytes defaults are base64 and not Avro's
ISO-8859-1 text, bytes that are no UTF-8 were damaged on the way, FLOAT shows its 32-bit value widened,
a whole DOUBLE is an integer, BIGINT UNSIGNED wraps negative, a precise DECIMAL has no default.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Callable
from typing import Final

from tidesink.errors import EncodeError, SchemaMismatchError, shown
from tidesink.events import Column
from tidesink.typemap.parse import shortest_float32, wire_unsigned
from tidesink.typemap.table import Reader, row_of

JsonDefault = int | float | str | None
# Go writes a float without exponent below this.
_GO_PLAIN_BELOW: Final = 1e21
_SIGN_BIT: Final = 1 << 63


def to_json(column: Column, avro: str) -> JsonDefault:
    """The ``default`` of a column's field; None where the field has no default of its own.

    Raises:
        EncodeError: the text is no value of the column's type.
    """
    if column.default is None:
        return None
    reader = row_of(column.type).reader
    if reader == "decimal" and avro == "bytes":
        return None
    if avro == "string":
        return column.default
    try:
        return _TO_JSON[reader](column.default)
    except (ValueError, OverflowError) as error:
        raise EncodeError(
            f"the default {shown(column.default)} is no {column.type.sql or column.type.name}",
            column=column.name,
        ) from error


def _signed_long(text: str) -> int:
    value = int(text)
    return value - (1 << 64) if value >= _SIGN_BIT else value


def _go_number(value: float) -> float | int:
    return int(value) if value.is_integer() and abs(value) < _GO_PLAIN_BELOW else value


def _widened(text: str) -> float | int:
    (value,) = struct.unpack("<f", struct.pack("<f", float(text)))
    return _go_number(value)


def _base64(text: str) -> str:
    return base64.b64encode(_damaged(text.encode("latin-1"))).decode("ascii")


def _bits_base64(text: str) -> str:
    return base64.b64encode(text.encode("latin-1")).decode("ascii")


def _damaged(raw: bytes) -> bytes:
    # TiDB keeps the default as JSON text, where each byte that is no UTF-8 becomes U+FFFD.
    kept, at = "", 0
    while at < len(raw):
        for size in (1, 2, 3, 4):
            try:
                kept += raw[at : at + size].decode("utf-8")
            except UnicodeDecodeError:
                continue
            at += size
            break
        else:
            kept, at = kept + "\ufffd", at + 1
    return kept.encode("utf-8")


_TO_JSON: Final[dict[Reader, Callable[[str], JsonDefault]]] = {
    "integer": int,
    "unsigned64": _signed_long,
    "float32": _widened,
    "float64": lambda text: _go_number(float(text)),
    "binary": _base64,
    "bit": _bits_base64,
}


def to_text(default: object, reader: Reader, avro: str) -> str | None:
    """TiDB's text of a field's default; binary as text of U+0000 to U+00FF, a byte each.

    Raises:
        SchemaMismatchError: the default is of another JSON type than TiCDC writes.
    """
    if default is None:
        return None
    try:
        if avro == "bytes":
            return base64.b64decode(str(default), validate=True).decode("latin-1")
    except (binascii.Error, ValueError) as error:
        raise SchemaMismatchError(f"the default {shown(default)} is not base64") from error
    if isinstance(default, str):
        return default
    if isinstance(default, bool) or not isinstance(default, (int, float)):
        raise SchemaMismatchError(f"the default {shown(default)} is no number and no text")
    if isinstance(default, int):
        return str(wire_unsigned(default) if reader == "unsigned64" else default)
    return repr(shortest_float32(default) if reader == "float32" else default)
