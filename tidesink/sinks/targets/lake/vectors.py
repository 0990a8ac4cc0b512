"""Deletion vectors as Delta and Iceberg store them in files.

A deletion vector is the set of a data file's deleted row positions. Its bytes are the length, a Roaring
bitmap array in the portable layout, and a checksum.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from tidesink.sinks.targets.lake.files import FileRefusedError
from tidesink.sinks.targets.lake.rows import Places
from tidesink.sinks.targets.lake.storage import Storage

# Number of bytes of the length and the checksum around a vector's array.
FRAME_BYTES: Final = 8


def framed_vector(positions: Places) -> bytes:
    """Return the bytes of a deletion vector, with length and checksum.

    ``positions``: the deleted row positions, sorted and distinct.
    """
    data = roaring_array(positions)
    return struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))


def read_vector(storage: Storage, path: str, offset: int, size: int, *, of: str) -> bytes:
    """Read a vector's array from a file, and check its length and checksum.

    ``offset``, ``size``: place of the array with its length and checksum, in bytes.
    ``of``: path of the data file that the vector belongs to, for the error.

    Raises:
        FileRefusedError: the length or the checksum does not match the table's metadata.
    """
    with storage.reading(path) as file:
        frame = file.read_at(size, offset)
    data: bytes = frame[4:-4]
    ends = struct.pack(">i", size - FRAME_BYTES), struct.pack(">I", zlib.crc32(data))
    if (frame[:4], frame[-4:]) != ends:
        raise FileRefusedError(f"the deletion vector in {path} does not match the table's metadata", url=of)
    return data


def array_positions(data: bytes, rows: int, *, of: str) -> Places:
    """Return the deleted row positions in a vector's array, in ascending order.

    ``rows``: the number of positions, from the table's metadata.
    ``of``: path of the data file that the vector belongs to, for the error.

    Raises:
        FileRefusedError: the array has another number of positions, or an unknown layout.
    """
    positions = np.concatenate([np.empty(0, np.int64), *_bitmaps(data, of)])
    if len(positions) != rows:
        raise FileRefusedError(
            f"the deletion vector of {of} has {len(positions)} rows, which the table's metadata contradicts",
            url=of,
        )
    return positions


_ARRAY_MAGIC: Final = 1_681_511_377
_WITHOUT_RUNS: Final = 12_346
_WITH_RUNS: Final = 12_347
# A container of the array with more values than this is stored as a bitmap of 8 KiB instead of a list.
_MOST_LISTED: Final = 4096
_Lows = npt.NDArray[np.uint16]


def roaring_array(positions: Places) -> bytes:
    """Encode sorted distinct positions as a Roaring bitmap array."""
    highs = positions >> 32
    parts = [struct.pack("<iq", _ARRAY_MAGIC, len(np.unique(highs)))]
    for high in np.unique(highs):
        parts += [struct.pack("<i", high), _bitmap(positions[highs == high] & 0xFFFF_FFFF)]
    return b"".join(parts)


def _bitmap(values: Places) -> bytes:
    keys, starts = np.unique(values >> 16, return_index=True)
    lows = np.split((values & 0xFFFF).astype("<u2"), starts[1:])
    containers = [_container(low) for low in lows]
    head = np.stack([keys, [len(low) - 1 for low in lows]], axis=1).astype("<u2").tobytes()
    sizes = np.cumsum([8 + 8 * len(keys), *map(len, containers)])[:-1].astype("<u4").tobytes()
    return b"".join([struct.pack("<II", _WITHOUT_RUNS, len(keys)), head, sizes, *containers])


def _container(lows: _Lows) -> bytes:
    if len(lows) <= _MOST_LISTED:
        return lows.tobytes()
    bits = np.zeros(1 << 16, bool)
    bits[lows] = True
    return np.packbits(bits, bitorder="little").tobytes()


def _bitmaps(data: bytes, of: str) -> Iterator[Places]:
    magic, bitmaps = struct.unpack_from("<iq", data)
    if magic != _ARRAY_MAGIC:
        raise FileRefusedError(f"a deletion vector has the unknown layout {magic}", url=of)
    position = 12
    for _ in range(bitmaps):
        (high,) = struct.unpack_from("<i", data, position)
        position += 4
        (cookie,) = struct.unpack_from("<I", data, position)
        runs = np.empty(0, bool)
        if cookie & 0xFFFF == _WITH_RUNS:
            count, position = (cookie >> 16) + 1, position + 4
            size = (count + 7) // 8
            runs = np.unpackbits(np.frombuffer(data, np.uint8, size, position), bitorder="little").astype(
                bool
            )
            position += size
        else:
            count, position = struct.unpack_from("<I", data, position + 4)[0], position + 8
            runs = np.zeros(count, bool)
        heads = np.frombuffer(data, "<u2", 2 * count, position).reshape(count, 2).astype(np.int64)
        # Skip the containers' offsets: the containers follow each other.
        position += 4 * count + (4 * count if cookie == _WITHOUT_RUNS or count >= 4 else 0)
        for (key, less), is_run in zip(heads, runs, strict=False):
            lows, position = _lows(data, position, int(less) + 1, is_run=bool(is_run))
            yield (high << 32) + (int(key) << 16) + lows.astype(np.int64)


def _lows(data: bytes, position: int, count: int, *, is_run: bool) -> tuple[_Lows, int]:
    if is_run:
        (runs,) = struct.unpack_from("<H", data, position)
        pairs = np.frombuffer(data, "<u2", 2 * runs, position + 2).reshape(runs, 2).astype(np.int64)
        spans = [np.arange(first, first + more + 1) for first, more in pairs]
        return np.concatenate(spans).astype(np.uint16), position + 2 + 4 * runs
    if count <= _MOST_LISTED:
        return np.frombuffer(data, "<u2", count, position), position + 2 * count
    bits = np.unpackbits(np.frombuffer(data, np.uint8, 8192, position), bitorder="little")
    return np.flatnonzero(bits).astype(np.uint16), position + 8192
