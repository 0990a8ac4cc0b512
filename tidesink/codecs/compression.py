"""Compresses and decompresses Kafka messages as TiCDC does: with lz4 frames and raw snappy blocks.

``large-message-handle-compression`` compresses every canal-json value (tiflow c7b2588), and separately the
key and the value of every ``debezium`` message (b813e76).

A reader needs no option, because the first bytes show the compression. A JSON object begins with ``{``, and
an lz4 frame with its magic bytes. A snappy block begins with the length of its decompressed text, followed by
the tag of a literal and the literal's first byte ``{``. So no value can be mistaken for another kind of
value. A snappy block whose text has 123 bytes begins with ``{`` as well, but in JSON the tag of a literal
cannot follow ``{``. A snappy block that begins like the lz4 magic has a text of only 4 bytes, and no message
is that short.
"""

from __future__ import annotations

import re
import struct
from typing import Any, Final, Literal

from tidesink.errors import ConfigError, EncodeError, FramingError

Compression = Literal["none", "snappy", "lz4"]

LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
# TiDB's default limit for a row is 6 MiB. Even if its text is escaped twice, it is far below this size.
LARGEST: Final = 64 * 2**20

_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
# A row with TiDB's maximum of 4,096 columns has some hundred thousand bytes outside of its strings. Values up
# to the first size, in bytes, are not checked. The second is the limit for the bytes outside of strings.
_LOOKED_AT: Final = 2**20
_MOST_STRUCTURE: Final = 4 * 2**20

_BLOCK_SIZE: Final = struct.Struct("<I")
_BLOCK_MOST: Final = {4: 2**16, 5: 2**18, 6: 2**20, 7: 2**22}
_NOT_COMPRESSED: Final = 0x8000_0000
# Maximum number of bytes to which one compressed byte can decompress, by format.
_LZ4_RATIO: Final = 255
_SNAPPY_RATIO: Final = 32


def compression_of(value: bytes) -> Compression:
    """Returns the compression of a record value, as its first bytes show it; ``none`` if not compressed."""
    if value.startswith(LZ4_MAGIC):
        return "lz4"
    return "snappy" if _is_snappy(value) else "none"


def decompressed(value: bytes, *, most: int = LARGEST) -> bytes | None:
    """Returns a record key or value decompressed, or None if it is not compressed.

    Raises:
        FramingError: The compressed bytes are damaged, decompress to more than ``most`` bytes, or contain
            more JSON objects than a row can have.
        ConfigError: The value is compressed, but the ``large-messages`` extra is not installed.
    """
    kind = compression_of(value)
    if kind == "none":
        return None
    return checked_structure(_from_lz4(value, most) if kind == "lz4" else _from_snappy(value, most))


def compressed(value: bytes, kind: Compression) -> bytes:
    """Compresses a record key or value as TiCDC does. With the kind ``none`` it is returned unchanged.

    Raises:
        EncodeError: The value cannot be compressed.
        ConfigError: The ``large-messages`` extra is not installed.
    """
    if kind == "none":
        return value
    cramjam = _cramjam()
    try:
        if kind == "snappy":
            return bytes(cramjam.snappy.compress_raw(value))
        return bytes(cramjam.lz4.compress(value))
    except cramjam.CompressionError as error:
        raise EncodeError(f"The message cannot be compressed with {kind}.") from error


def checked_structure(text: bytes) -> bytes:
    """Returns a JSON text unchanged, after checking that it is not too expensive to parse.

    A text of many empty objects (``{},``) needs a hundred times its size in memory when it is parsed. So the
    number of bytes outside of JSON strings is limited to what the largest row needs. Kafka's limit on the
    size of messages does not suffice, because it does not apply to decompressed text.

    Raises:
        FramingError: The text has more bytes outside of strings than the largest row.
    """
    if len(text) <= _LOOKED_AT:
        return text
    beside = end = 0
    for string in _STRING.finditer(text):
        beside += string.start() - end
        end = string.end()
        if beside > _MOST_STRUCTURE:
            break
    else:
        beside += len(text) - end
    if beside > _MOST_STRUCTURE:
        raise FramingError(
            "The value contains far more JSON objects than a row can have columns. Check what wrote it."
        )
    return text


def _cramjam() -> Any:
    try:
        import cramjam
    except ImportError as error:
        raise ConfigError(
            "Compressed messages need the large-messages extra. Run pip install 'tidesink[large-messages]'.",
            key="large-message-handle-compression",
        ) from error
    return cramjam


def _is_snappy(value: bytes) -> bool:
    declared, position = _snappy_length(value)
    if declared is None or position >= len(value) or value[position] & 3:
        return False
    # Literals longer than 60 bytes have their length in 1 to 4 bytes after the tag.
    start = position + 1 + max(0, (value[position] >> 2) - 59)
    return value[start : start + 1] == b"{"


def _snappy_length(value: bytes) -> tuple[int | None, int]:
    """Returns the decompressed length that a snappy block declares, and the index of the byte after it.

    The length is None if it is not valid.
    """
    length = 0
    for index, byte in enumerate(value[:5]):
        length |= (byte & 0x7F) << (7 * index)
        if not byte & 0x80:
            return (length or None), index + 1
    return None, 0


def _from_snappy(value: bytes, most: int) -> bytes:
    declared, _ = _snappy_length(value)
    # Checked first, because the library allocates the declared length before it decompresses.
    if declared is None or declared > _SNAPPY_RATIO * len(value):
        raise FramingError(
            "The value begins like a snappy block, but it declares a decompressed length that no block of "
            "its size can have."
        )
    if declared > most:
        raise _too_large("snappy", most)
    cramjam = _cramjam()
    try:
        return bytes(cramjam.snappy.decompress_raw(value))
    except cramjam.DecompressionError as error:
        raise FramingError("The value begins like a snappy block, but it is damaged.") from error


def _from_lz4(value: bytes, most: int) -> bytes:
    bound = _lz4_bound(value)
    cramjam = _cramjam()
    try:
        if bound <= most:
            return bytes(cramjam.lz4.decompress(value))
        room = bytearray(most)
        return bytes(memoryview(room)[: cramjam.lz4.decompress_into(value, room)])
    except cramjam.DecompressionError as error:
        if bound > most:
            raise _too_large("lz4", most) from error
        raise FramingError("The value begins like an lz4 frame, but it is damaged.") from error


def _too_large(kind: Compression, most: int) -> FramingError:
    return FramingError(
        f"The value ({kind}) decompresses to more than {most} bytes. Raise max-decompressed-bytes if the "
        "topic's rows are that large."
    )


def _lz4_bound(value: bytes) -> int:
    """Returns an upper bound, in bytes, of the decompressed size of a value that consists of lz4 frames.

    It is computed from the sizes of the frames' blocks, because a frame need not contain its decompressed
    size (LZ4 frame format 1.6.3), and TiCDC omits it.
    """
    position, bound = 0, 0
    try:
        while position < len(value):
            position, frame_bound = _lz4_frame(value, position)
            bound += frame_bound
    except (IndexError, struct.error, KeyError) as error:
        raise FramingError("The value begins like an lz4 frame, but it is damaged.") from error
    return bound


def _lz4_frame(value: bytes, position: int) -> tuple[int, int]:
    """Returns the index after the lz4 frame at ``position``, and an upper bound of its decompressed size."""
    if value[position : position + 4] != LZ4_MAGIC:
        raise FramingError("The value begins with an lz4 frame, but other bytes follow it. It is damaged.")
    flags, most = value[position + 4], _BLOCK_MOST[value[position + 5] >> 4 & 7]
    # Content size, dictionary id, and the header's own checksum.
    position += 6 + (8 if flags & 8 else 0) + (4 if flags & 1 else 0) + 1
    bound = 0
    while size := _BLOCK_SIZE.unpack_from(value, position)[0]:
        stored = size & ~_NOT_COMPRESSED
        bound += stored if size & _NOT_COMPRESSED else min(most, _LZ4_RATIO * stored)
        position += 4 + stored + (4 if flags & 16 else 0)
    return position + 4 + (4 if flags & 4 else 0), bound
