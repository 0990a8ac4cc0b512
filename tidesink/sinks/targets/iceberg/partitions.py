"""Iceberg's partition transforms (from its table specification), for the tasks that write files.

Tasks return partition values to the driver in Iceberg's JSON form, by the ids of the partition fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, NamedTuple
from urllib.parse import quote_plus

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.errors import TargetError
from tidesink.sinks.targets.lake.rows import Partition, folder_of, grouped, iso_text
from tidesink.typemap.values import DECIMAL_CONTEXT

Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint32]


class PartitionField(NamedTuple):
    """A field of a table's partition spec; ``column``: the name that its source column has in data files."""

    id: int
    name: str
    column: str
    transform: str


@dataclass(frozen=True)
class SplitBySpec:
    """Splits rows into the partitions of an Iceberg partition spec (a ``lake.rows.Split``)."""

    fields: tuple[PartitionField, ...]

    def __call__(self, rows: pa.Table) -> Iterator[tuple[Partition, pa.Table]]:
        """Yield each partition with its rows. No column is dropped, because Iceberg's files store all
        columns.
        """
        columns = [transformed(rows[field.column], field.transform) for field in self.fields]
        for first, part in grouped(rows, columns):
            values = [column[first] for column in columns]
            texts = [_in_folder(v, f.transform) for v, f in zip(values, self.fields, strict=True)]
            names = (
                f"{quote_plus(field.name)}={quote_plus(text)}"
                for field, text in zip(self.fields, texts, strict=True)
            )
            document = {
                str(f.id): _as_json(v) for f, v in zip(self.fields, values, strict=True) if v.is_valid
            }
            yield Partition(folder_of(names), json.dumps(document)), part


def is_known(transform: str) -> bool:
    """Return True if a transform, such as ``bucket[16]`` in Iceberg's metadata, is implemented here."""
    return _parsed(transform) is not None


def transformed(values: pa.ChunkedArray, transform: str) -> pa.ChunkedArray:
    """Apply a transform to a column's values. Null stays null.

    Raises:
        ValueError: the transform is not implemented here.
    """
    function, width = _parsed(transform) or (None, 0)
    if function is None:
        raise ValueError(f"Unknown transform {transform}.")
    return pa.chunked_array([function(chunk, width) for chunk in values.chunks])


def _parsed(transform: str) -> tuple[_Transform, int] | None:
    match = re.fullmatch(r"([a-z]+)(?:\[(\d+)\])?", transform)
    function = _TRANSFORMS.get((match[1], match[2] is not None)) if match else None
    return (function, int(match[2] or 0)) if match and function else None


def _identity(values: pa.Array, _: int) -> pa.Array:
    return values


def _void(values: pa.Array, _: int) -> pa.Array:
    return pa.nulls(len(values), values.type)


def _bucket(values: pa.Array, count: int) -> pa.Array:
    buckets = (murmur3(*_hashed_bytes(values)) & np.uint32(0x7FFF_FFFF)) % np.uint32(count)
    return pa.array(buckets.astype(np.int32), mask=_is_null(values))


def _truncate(values: pa.Array, width: int) -> pa.Array:
    kind = values.type
    if pa.types.is_string(kind):
        return pc.utf8_slice_codeunits(values, 0, width)
    if pa.types.is_binary(kind):
        return pc.binary_slice(values, 0, width)
    if pa.types.is_decimal(kind):
        return _truncated_decimals(values, width)
    # Integer arithmetic wraps at the ends of the type, in numpy as in Java.
    numbers = _numbers(values)
    size = numbers.dtype.type(width)
    return pa.array(numbers - np.fmod(np.fmod(numbers, size) + size, size), kind, mask=_is_null(values))


def _truncated_decimals(values: pa.Array, width: int) -> pa.Array:
    scale = values.type.scale
    encoded = values.dictionary_encode()
    whole = [int(value.scaleb(scale, DECIMAL_CONTEXT)) for value in encoded.dictionary.to_pylist()]
    cut = [Decimal(number - number % width).scaleb(-scale, DECIMAL_CONTEXT) for number in whole]
    try:
        return pa.array(cut, values.type).take(encoded.indices)
    except pa.ArrowInvalid as exc:  # -9.99 becomes -10.00
        raise TargetError(
            f"A partition value of a {values.type} column under truncate[{width}] has more digits than the "
            f"column's type, so Iceberg cannot store it ({exc}). Nothing was committed. Correct the row at "
            "the "
            "source, or change the table's partition spec."
        ) from exc


def _calendar(unit: str) -> _Transform:
    """Return a function that computes Iceberg's transform to years or months since 1970.

    It uses numpy's calendar, which covers any year.
    """

    def counted(values: pa.Array, _: int) -> pa.Array:
        moments = _days(values).astype("M8[D]").astype(f"M8[{unit}]")
        return pa.array(moments.astype(np.int64).astype(np.int32), mask=_is_null(values))

    return counted


def _day(values: pa.Array, _: int) -> pa.Array:
    return pa.array(_days(values).astype(np.int32), pa.int32(), mask=_is_null(values)).cast(pa.date32())


def _hour(values: pa.Array, _: int) -> pa.Array:
    return pa.array((_numbers(values) // 3_600_000_000).astype(np.int32), mask=_is_null(values))


_Transform = Callable[[pa.Array, int], pa.Array]
# By the transform's name, and True if a number in brackets follows it.
_TRANSFORMS: Final[Mapping[tuple[str, bool], _Transform]] = {
    ("identity", False): _identity,
    ("void", False): _void,
    ("bucket", True): _bucket,
    ("truncate", True): _truncate,
    ("year", False): _calendar("Y"),
    ("month", False): _calendar("M"),
    ("day", False): _day,
    ("hour", False): _hour,
}


def _is_null(values: pa.Array) -> npt.NDArray[np.bool_]:
    return np.asarray(values.is_null().to_numpy(zero_copy_only=False))


def _numbers(values: pa.Array) -> Any:
    """Convert integers, dates (to days) or timestamps (to microseconds) to numpy numbers, with 0 for null."""
    kind = values.type
    if not pa.types.is_integer(kind):
        values = values.cast(pa.int32() if pa.types.is_date(kind) else pa.int64())
    return values.fill_null(0).to_numpy()


def _days(values: pa.Array) -> Ints:
    numbers: Ints = _numbers(values).astype(np.int64)
    return numbers if pa.types.is_date(values.type) else numbers // 86_400_000_000


def _hashed_bytes(values: pa.Array) -> tuple[npt.NDArray[np.uint8], Ints, Ints]:
    """Return the bytes of the values that Iceberg hashes: one buffer, and each value's start and length in
    it.
    """
    kind, count = values.type, len(values)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        whole = pa.concat_arrays([values.cast(pa.large_binary()).fill_null(b"")])
        ends = np.frombuffer(whole.buffers()[1], np.int64)[whole.offset : whole.offset + count + 1]
        data = whole.buffers()[2]
        return np.frombuffer(data or b"", np.uint8), ends[:-1], np.diff(ends)
    if pa.types.is_decimal(kind):
        return _decimal_bytes(values)
    numbers = _numbers(values).astype("<i8")
    return numbers.view(np.uint8), np.arange(count) * 8, np.full(count, 8)


def _decimal_bytes(values: pa.Array) -> tuple[npt.NDArray[np.uint8], Ints, Ints]:
    """Return the bytes of decimals that Iceberg hashes, in the form that ``_hashed_bytes`` returns.

    A value's bytes are its unscaled number, big-endian, in the fewest bytes that hold it with its sign.
    """
    count = len(values)
    little = np.frombuffer(values.buffers()[1], np.uint8)[16 * values.offset :][: 16 * count]
    big = little.reshape(count, 16)[:, ::-1]
    sign = np.where(big[:, 0] >= 0x80, 0xFF, 0).astype(np.uint8)
    differs = big != sign[:, None]
    first = np.where(differs.any(axis=1), differs.argmax(axis=1), 15)
    top = big[np.arange(count), first]
    lengths = 16 - first + ((top >= 0x80) != (sign >= 0x80))
    return np.ascontiguousarray(big).reshape(-1), np.arange(count) * 16 + 16 - lengths, lengths


_C1, _C2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)


def murmur3(data: npt.NDArray[np.uint8], starts: Ints, lengths: Ints) -> Hashes:
    """Compute the 32-bit Murmur3 hash (x86 variant, seed 0) of each slice of ``data``."""
    sorted_hashes = np.zeros(len(starts), np.uint32)
    # Longest slices first, so that the slices with a further block of four bytes are always the first ones.
    order = np.argsort(-lengths, kind="stable")
    starts, lengths = starts[order], lengths[order]
    blocks = lengths // 4
    for block in range(int(blocks[0]) if len(blocks) else 0):
        more = int(np.searchsorted(-blocks, -block))
        indexes = starts[:more, None] + (4 * block + np.arange(4))
        mixed = sorted_hashes[:more] ^ _mixed(data[indexes].view("<u4").reshape(more))
        sorted_hashes[:more] = _rotated(mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    tail = np.zeros(len(starts), np.uint32)
    for byte in range(3):
        has = lengths % 4 > byte
        last = data[(starts + 4 * blocks + byte)[has]].astype(np.uint32)
        tail[has] |= last << np.uint32(8 * byte)
    sorted_hashes ^= _mixed(tail)
    sorted_hashes ^= lengths.astype(np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        sorted_hashes = (sorted_hashes ^ (sorted_hashes >> np.uint32(shift))) * np.uint32(factor)
    sorted_hashes ^= sorted_hashes >> np.uint32(16)
    hashes = np.empty_like(sorted_hashes)
    hashes[order] = sorted_hashes
    return hashes


def _mixed(block: Hashes) -> Hashes:
    mixed: Hashes = _rotated(block * _C1, 15) * _C2
    return mixed


def _rotated(bits: Hashes, by: int) -> Hashes:
    rotated: Hashes = (bits << np.uint32(by)) | (bits >> np.uint32(32 - by))
    return rotated


def _as_json(value: pa.Scalar) -> Any:
    """Return a partition value in Iceberg's JSON form."""
    kind = value.type
    if pa.types.is_decimal(kind):
        return f"{value.as_py():f}"
    if pa.types.is_binary(kind):
        return value.as_py().hex().upper()
    if pa.types.is_date(kind):
        return iso_text(value)
    if pa.types.is_timestamp(kind):
        return iso_text(value) + "+00:00" * bool(kind.tz)
    return value.as_py()


_UNITS: Final = {"year": "Y", "month": "M", "hour": "h"}


def _in_folder(value: pa.Scalar, transform: str) -> str:
    """Return a partition value as text for a folder name, roughly as Iceberg writes it.

    The text need not be exact, because readers ignore folder names.
    """
    if not value.is_valid:
        return "null"
    if transform in _UNITS:
        since = np.array([value.as_py()]).astype(f"M8[{_UNITS[transform]}]")
        return str(since[0]).replace("T", "-")
    json_value = _as_json(value)
    return json_value if isinstance(json_value, str) else json.dumps(json_value)
