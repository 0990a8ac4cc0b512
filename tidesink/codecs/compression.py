"""Compressed Kafka messages, as TiCDC writes them: lz4 frames and raw snappy blocks.

``large-message-handle-compression`` compresses every canal-json value (tiflow c7b2588), and key and value of
every ``debezium`` message separately (b813e76). The bytes show how they are compressed. A JSON object begins
with ``{``, an lz4 frame with its magic, and a snappy block with the length of its text, followed by a literal
that begins like the text, since there is nothing to copy from yet. The three exclude each other: a block of
123 bytes begins with ``{`` too, but the tag of its literal cannot follow in JSON. A block that begins like
the magic has 4 bytes, and no message is that short. So a reader needs no option, and a damaged value is never
mistaken for an uncompressed one.
"""

from __future__ import annotations

import re
import struct
from typing import Any, Final, Literal

from tidesink.errors import ConfigError, EncodeError, FramingError

Compression = Literal["none", "snappy", "lz4"]

LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
# TiDB accepts transactions of 6 MiB by default. Even escaped twice, such a row stays far below this.
LARGEST: Final = 64 * 2**20

_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
# A row of 4,096 columns, TiDB's maximum, needs some hundred thousand bytes in addition to its texts.
_LOOKED_AT: Final = 2**20
_MOST_STRUCTURE: Final = 4 * 2**20

_BLOCK_SIZE: Final = struct.Struct("<I")
_BLOCK_MOST: Final = {4: 2**16, 5: 2**18, 6: 2**20, 7: 2**22}
_NOT_COMPRESSED: Final = 0x8000_0000
# The highest compression ratio of one byte in each format.
_LZ4_RATIO: Final = 255
_SNAPPY_RATIO: Final = 32


def compression_of(value: bytes) -> Compression:
    """The compression of a value; ``none`` if it begins like neither format."""
    if value.startswith(LZ4_MAGIC):
        return "lz4"
    return "snappy" if _is_snappy(value) else "none"


def decompressed(value: bytes, *, most: int = LARGEST) -> bytes | None:
    """Decompress a value; None if it is not compressed.

    Raises:
        FramingError: the bytes are damaged, decompress to more than ``most`` bytes, or have more objects than
            a row.
        ConfigError: the value is compressed, and the ``large-messages`` extra is not installed.
    """
    kind = compression_of(value)
    if kind == "none":
        return None
    return checked_structure(_from_lz4(value, most) if kind == "lz4" else _from_snappy(value, most))


def compressed(value: bytes, kind: Compression) -> bytes:
    """The bytes that TiCDC would send under this option.

    Raises:
        EncodeError: the value cannot be compressed.
        ConfigError: the ``large-messages`` extra is not installed.
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
    """Check that a text has only as much structure as a row needs, and return it.

    Parsed, ``{},`` needs a hundred times its size in memory. Kafka's limit does not bound decompressed texts,
    so they are bounded here.

    Raises:
        FramingError: the bytes outside of the strings exceed those of any row.
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
        raise FramingError("The value contains far more objects than a row has columns.")
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
    declared, at = _snappy_length(value)
    if declared is None or at >= len(value) or value[at] & 3:
        return False
    # Literals longer than 60 bytes have their length in 1 to 4 bytes after the tag.
    start = at + 1 + max(0, (value[at] >> 2) - 59)
    return value[start : start + 1] == b"{"


def _snappy_length(value: bytes) -> tuple[int | None, int]:
    """The length that a block declares, or None if it is invalid, and the index of the block's elements."""
    length = 0
    for at, byte in enumerate(value[:5]):
        length |= (byte & 0x7F) << (7 * at)
        if not byte & 0x80:
            return (length or None), at + 1
    return None, 0


def _from_snappy(value: bytes, most: int) -> bytes:
    declared, _ = _snappy_length(value)
    # Checked first, because the library allocates the declared length before it reads on.
    if declared is None or declared > _SNAPPY_RATIO * len(value):
        raise FramingError(
            "The value begins like a snappy block, but it declares a length that no block of its size can "
            "have."
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
    """An upper bound of the decompressed size of the frames in a value, from the sizes of their blocks.

    LZ4 frame format 1.6.3: the frame's own size is optional, and TiCDC omits it.
    """
    at, bound = 0, 0
    try:
        while at < len(value):
            at, found = _lz4_frame(value, at)
            bound += found
    except (IndexError, struct.error, KeyError) as error:
        raise FramingError("The value begins like an lz4 frame, but it is damaged.") from error
    return bound


def _lz4_frame(value: bytes, at: int) -> tuple[int, int]:
    """The index after a frame, and an upper bound of its decompressed size."""
    if value[at : at + 4] != LZ4_MAGIC:
        raise FramingError("The value has other bytes after its lz4 frame.")
    flags, most = value[at + 4], _BLOCK_MOST[value[at + 5] >> 4 & 7]
    # Content size, dictionary id, and the header's own checksum.
    at += 6 + (8 if flags & 8 else 0) + (4 if flags & 1 else 0) + 1
    bound = 0
    while size := _BLOCK_SIZE.unpack_from(value, at)[0]:
        stored = size & ~_NOT_COMPRESSED
        bound += stored if size & _NOT_COMPRESSED else min(most, _LZ4_RATIO * stored)
        at += 4 + stored + (4 if flags & 16 else 0)
    return at + 4 + (4 if flags & 4 else 0), bound
