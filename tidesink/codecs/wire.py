"""The Confluent header before a payload: byte 00, then the schema's registry id as int32 big-endian.

Read per codec and never by a global guess: a DDL, a watermark and a delete marker of flat-avro start
with other bytes (TiCDC tiflow c7b2588 and ticdc b813e76).
"""

from __future__ import annotations

import struct
from typing import Final

from tidesink.errors import FramingError

MAGIC: Final = 0
HEADER_SIZE: Final = 5
_HEADER: Final = struct.Struct(">BI")
# AWS Glue: version byte 03, a compression byte (00 none, 05 zlib), then a schema version UUID.
GLUE_SIZE: Final = 18
_GLUE_COMPRESSION: Final = (0, 5)
_SHOWN_BYTES: Final = 8


def header(schema_id: int) -> bytes:
    """The five bytes before an Avro payload."""
    return _HEADER.pack(MAGIC, schema_id)


def schema_id_of(data: bytes, part: str) -> int:
    """The schema id a message's ``part`` (``key`` or ``value``) was written with.

    Raises:
        FramingError: the bytes do not start with a Confluent header; says what they look like.
    """
    if len(data) >= HEADER_SIZE and data[0] == MAGIC:
        schema_id: int = _HEADER.unpack_from(data)[1]
        return schema_id
    raise FramingError(f"the {part} {what_else(data)}")


def is_glue(data: bytes) -> bool:
    """Whether the bytes start with an AWS Glue header."""
    return len(data) >= GLUE_SIZE and data[0] == 3 and data[1] in _GLUE_COMPRESSION


def what_else(data: bytes) -> str:
    """What bytes look like that are not under a Confluent header."""
    if not data:
        return "is empty: a Confluent header of 5 bytes was expected"
    if is_glue(data):
        return (
            "has an AWS Glue schema registry header, which is not read here: set schema-registry at the "
            "changefeed, or read the topic with tidesink decode and its Glue schemas"
        )
    if data[0] == MAGIC:
        return f"has {len(data)} bytes: the Confluent header alone has 5"
    shown = data[:_SHOWN_BYTES].hex(" ")
    hint = ", which looks like JSON: is the protocol canal-json?" if data[:1] in (b"{", b"[") else ""
    return f"starts with {shown}, not with the magic byte 00 of a Confluent header{hint}"
