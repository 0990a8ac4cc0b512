"""Converts Debezium's values to Arrow arrays of the target's type, one column at a time.

A step converts all values of a column at once, with the same results as ``readers.reader_of`` followed by
``typemap.arrow.from_python``. The common formats are converted directly from the record's numbers and bytes
to the target's type, with numpy and Arrow. All other values are converted one by one with those two
functions. A value that cannot be converted is only marked; the row codec then decodes its record and raises
the error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.codecs.base import UNAVAILABLE_PLACEHOLDER
from tidesink.codecs.batch import ValueOptions
from tidesink.codecs.debezium.connect_schema import PRECISION, ConnectSchema
from tidesink.codecs.debezium.readers import has_own_type, reader_of
from tidesink.codecs.debezium.scalars import INFINITE_TIMESTAMPS, INTEGER_BITS, scale_of, whole_parameter
from tidesink.codecs.debezium.values import placeholders
from tidesink.codecs.options import DebeziumModes
from tidesink.errors import DecodeError
from tidesink.events import Column
from tidesink.typemap.arrow import arrow_type, from_python
from tidesink.typemap.table import TimePolicies, row_of, semantic_type
from tidesink.typemap.values import integer_bounds

Mask = npt.NDArray[np.bool_]
# A kernel's result: the target's values, and a mask of the values that it could not decide, or None.
Decided = tuple[pa.Array, "Mask | None"]
Kernel = Callable[[pa.Array], Decided]

_STRING: Final = pa.string()
_LOCAL: Final = pa.timestamp("us")
_UTC: Final = pa.timestamp("us", "UTC")
# The days, and the microseconds since 1970, of the years 1 to 9999.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_FIRST_SECOND, _END_SECOND = _FIRST_DAY * 86_400, (_LAST_DAY + 1) * 86_400
_MOST_DIGITS: Final = 38
_INT64_DIGITS: Final = 18
# A double identifies every decimal of this many digits.
_SURE_DIGITS: Final = 15


class TypedColumn(NamedTuple):
    """A column's values in the target's type, with masks of the values that are null for a special reason.

    ``unproven``: values that could not be converted. ``zero_dates`` and ``ambiguous_times``: invalid dates
    and ambiguous times that the table's policies for them decided. ``unavailable``: values that the source
    did not send. A mask is None if it marks no value.
    """

    values: pa.Array
    unproven: Mask | None = None
    zero_dates: Mask | None = None
    ambiguous_times: Mask | None = None
    unavailable: Mask | None = None


class ColumnStep:
    """Converts the values of one column.

    ``schema`` is the Connect schema of the field, and ``column`` the column that ``column_of`` or a table
    definition has for it. ``target`` is the same column in the table's schema; it determines the type of the
    result. ``policies`` are the time policies of the target column.
    """

    def __init__(
        self,
        schema: ConnectSchema,
        column: Column,
        target: Column,
        modes: DebeziumModes,
        options: ValueOptions,
        policies: TimePolicies,
    ) -> None:
        self.type = arrow_type(target.type, zero_date=policies["zero_date"])
        self._read = reader_of(schema, column=column, modes=modes)
        self._convert = partial(from_python, column_type=target.type, time_zone=options.zone, **policies)
        self._absent = placeholders(schema, modes) if schema.type in ("string", "bytes") else ()
        same = column.type == target.type
        self._kernel = _kernel_of(schema, column, modes, options, self.type) if same else None

    def read(self, wire: pa.Array | list[Any]) -> TypedColumn:
        """Converts a column's values from the form in records (``wire``) to the target's type.

        ``wire`` is an Arrow array, or a list, whose values are converted one by one.
        """
        if isinstance(wire, list):
            return self._each(wire)
        if wire.null_count == len(wire):
            return TypedColumn(pa.nulls(len(wire), self.type))
        if self._kernel is None:
            return self._each(wire.to_pylist())
        unavailable = self._placeholders(wire)
        if unavailable is not None:
            wire = pc.if_else(pa.array(unavailable), pa.scalar(None, wire.type), wire)
            if wire.null_count == len(wire):
                return TypedColumn(pa.nulls(len(wire), self.type), unavailable=unavailable)
        values, undecided = self._kernel(wire)
        if undecided is None or not undecided.any():
            return TypedColumn(values, unavailable=unavailable)
        return self._decided(wire, values, undecided)._replace(unavailable=unavailable)

    def _placeholders(self, wire: pa.Array) -> Mask | None:
        wanted = [
            placeholder
            for placeholder in self._absent
            if isinstance(placeholder, str) == (wire.type == _STRING)
        ]
        matches: Mask | None = None
        for placeholder in wanted:
            mask = pc.equal(wire, pa.scalar(placeholder, wire.type))
            if mask.true_count:
                same = _mask(mask)
                matches = same if matches is None else matches | same
        return matches

    def _decided(self, wire: pa.Array, values: pa.Array, undecided: Mask) -> TypedColumn:
        """Returns ``values``, with the ``undecided`` values replaced by values that are read one by one."""
        count = len(undecided)
        places = np.flatnonzero(undecided)
        some = self._each(wire.take(pa.array(places)).to_pylist())
        merged = pc.replace_with_mask(values, pa.array(undecided), some.values)
        return TypedColumn(merged, *(_spread(marks, places, count) for marks in some[1:4]))

    def _each(self, wire: Sequence[Any]) -> TypedColumn:
        values: list[Any] = []
        unproven: list[int] = []
        unavailable: list[int] = []
        for index, raw in enumerate(wire):
            value = None
            try:
                value = None if raw is None else self._read(raw)
            except DecodeError:
                unproven.append(index)
            if value is UNAVAILABLE_PLACEHOLDER:
                unavailable.append(index)
                value = None
            values.append(value)
        converted = self._convert(values)
        unproven += converted.errors
        unread, unsent = (_marked(places, len(values)) for places in (unproven, unavailable))
        return TypedColumn(converted.values, unread, converted.zero_dates, converted.ambiguous_times, unsent)


def _mask(array: pa.Array) -> Mask:
    """Converts a boolean Arrow array to numpy, with null as False."""
    mask: Mask = array.fill_null(False).to_numpy(zero_copy_only=False)
    return mask


def _marked(places: list[int], count: int) -> Mask | None:
    if not places:
        return None
    mask = np.zeros(count, np.bool_)
    mask[places] = True
    return mask


def _spread(some: Mask | None, places: npt.NDArray[np.int64], count: int) -> Mask | None:
    if some is None:
        return None
    mask = np.zeros(count, np.bool_)
    mask[places[some]] = True
    return mask


# Choice of a column's kernel


def _kernel_of(
    schema: ConnectSchema, column: Column, modes: DebeziumModes, options: ValueOptions, kind: pa.DataType
) -> Kernel | None:
    """Returns the function that converts a whole column; None if its values must be read one by one."""
    semantic = semantic_type(schema.name, schema.type)
    form = "plain" if semantic is None else semantic.form
    own = has_own_type(schema, column)
    if form == "plain":
        return _plain_kernel(schema, column, modes, kind, own=own)
    if form == "unscaled":
        return _unscaled_kernel(schema, column, kind, own=own)
    if form == "bits":
        return _bits_kernel(schema, kind) if own else None
    if form == "days":
        return _days if kind == pa.date32() else None
    if form in _UNITS:
        return _counted_kernel(form, column, kind, own=own)
    if form == "zoned_timestamp":
        return _instant_kernel(column, modes, options, kind, own=own)
    return None


_UNITS: Final = {
    "time_ms": 1_000,
    "time_us": 1_000_000,
    "time_ns": 1_000_000_000,
    "timestamp_ms": 1_000,
    "timestamp_us": 1_000_000,
}


def _plain_kernel(
    schema: ConnectSchema, column: Column, modes: DebeziumModes, kind: pa.DataType, *, own: bool
) -> Kernel | None:
    reader = row_of(column.type).reader
    if schema.type in INTEGER_BITS:
        return _integer_kernel(schema, column, kind, own=own)
    if schema.type in ("float32", "float64"):
        if reader == "decimal" and schema.type == "float64":
            return _sure_kernel(column, kind)
        return _float_kernel(schema, kind) if reader in ("float32", "float64") else None
    if schema.type == "boolean":
        return _same if own and kind == pa.bool_() else None
    if schema.type == "string":
        if reader in ("text", "enum", "set") and kind == _STRING:
            return _same
        base64 = reader == "binary" and modes.binary_handling_mode in ("bytes", "base64")
        return _base64 if base64 and kind == pa.binary() else None
    return _bytes if schema.type == "bytes" and reader == "binary" and kind == pa.binary() else None


def _same(wire: pa.Array) -> Decided:
    return wire, None


# Numbers


def _integer_kernel(schema: ConnectSchema, column: Column, kind: pa.DataType, *, own: bool) -> Kernel | None:
    limit = 1 << (INTEGER_BITS[schema.type] - 1)
    low, high = -limit, limit - 1
    if not pa.types.is_integer(kind):
        return None
    if not own:
        bounds = integer_bounds(column.type)
        if bounds is None or row_of(column.type).reader != "integer":
            return None
        low, high = max(low, bounds[0]), min(high, bounds[1])
    most = 1 << (kind.bit_width - 1)
    low, high = max(low, -most), min(high, most - 1)

    def integers(wire: pa.Array) -> Decided:
        bounds = pc.min_max(wire).as_py()
        if bounds["min"] >= low and bounds["max"] <= high:
            return wire.cast(kind), None
        outside = pc.or_(pc.less(wire, low), pc.greater(wire, high))
        return pc.if_else(outside, pa.scalar(None, wire.type), wire).cast(kind), _mask(outside)

    return integers


def _float_kernel(schema: ConnectSchema, kind: pa.DataType) -> Kernel | None:
    single = schema.type == "float32" or kind == pa.float32()

    def floats(wire: pa.Array) -> Decided:
        if not single or wire.type == pa.float32():
            return wire.cast(kind), None
        narrow = wire.cast(pa.float32())
        beyond = pc.and_(pc.is_inf(narrow), pc.is_finite(wire))
        return narrow.cast(kind), _mask(beyond) if beyond.true_count else None

    return floats if kind in (pa.float32(), pa.float64()) else None


def _sure_kernel(column: Column, kind: pa.DataType) -> Kernel | None:
    """Returns the function that converts a column of doubles to decimals, as TiCDC writes decimals.

    Doubles that do not identify exactly one decimal are marked as undecided, so that they are converted one
    by one. Returns None if the column's precision or scale is unknown, its scale is above 15, or its Arrow
    type is not a decimal.
    """
    precision, scale = column.type.precision, column.type.scale
    if not pa.types.is_decimal(kind) or precision is None or scale is None or not 0 <= scale <= _SURE_DIGITS:
        return None
    most, power = 10.0 ** (_SURE_DIGITS - scale), 10.0**scale
    digits = min(10**precision, 10**_SURE_DIGITS)

    def decimals(wire: pa.Array) -> Decided:
        value = wire.fill_null(0.0).to_numpy()
        small = np.abs(value) < most
        whole = np.rint(np.where(small, value, 0.0) * power)
        # With 15 digits at most, no two decimals share a double: this is the one with the fewest digits.
        sure = small & (whole / power == value) & (np.abs(whole) < digits)
        unscaled = np.where(sure, whole, 0.0).astype(np.int64)
        return _decimal128(unscaled, unscaled >> 63, wire, kind), None if sure.all() else ~sure

    return decimals


def _decimal128(
    low: npt.NDArray[np.int64], high: npt.NDArray[np.int64], wire: pa.Array, kind: pa.DataType
) -> pa.Array:
    halves = np.empty((len(low), 2), np.int64)
    halves[:, 0], halves[:, 1] = low, high
    return pa.Array.from_buffers(kind, len(low), [_validity(wire), pa.py_buffer(halves)])


def _validity(wire: pa.Array) -> pa.Buffer | None:
    """Returns an array's validity bitmap, whose first bit is that of the first value; None without nulls."""
    if not wire.null_count:
        return None
    return pa.py_buffer(np.packbits(_mask(pc.is_valid(wire)), bitorder="little"))


def _unscaled_kernel(schema: ConnectSchema, column: Column, kind: pa.DataType, *, own: bool) -> Kernel | None:
    precision, scale = column.type.precision, column.type.scale
    if not pa.types.is_decimal(kind) or precision is None or scale is None or scale < 0:
        return None
    if not own and (row_of(column.type).reader != "decimal" or (scale_of(schema) or 0) != scale):
        return None
    written = whole_parameter(schema, PRECISION)
    digits = precision if written is None or written <= 0 else min(precision, written)
    if digits > _MOST_DIGITS:
        return None
    most = pa.scalar(Decimal(10**digits - 1), pa.decimal128(_MOST_DIGITS, 0))

    def decimals(wire: pa.Array) -> Decided:
        data, undecided = _base64(wire) if wire.type == _STRING else (wire, None)
        low, high, longest, bad = _big_endian(data)
        undecided = bad if undecided is None else undecided if bad is None else undecided | bad
        values = _decimal128(low, high, data, kind)
        if longest > 8 or digits <= _INT64_DIGITS:
            whole = pa.Array.from_buffers(most.type, len(values), values.buffers())
            beyond = _mask(pc.greater(pc.abs(whole), most))
            undecided = beyond if undecided is None else undecided | beyond
        return values, undecided

    return decimals if kind.scale == scale else None


def _parts(array: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Returns the offsets of text or bytes values, and the bytes of all values joined.

    Value ``i`` is at ``offsets[i]`` up to ``offsets[i + 1]`` of the bytes.
    """
    buffers = array.buffers()
    offsets = np.frombuffer(buffers[1], np.int32, len(array) + 1, array.offset * 4).astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    data = np.frombuffer(buffers[2], np.uint8, last - first, first) if last > first else np.empty(0, np.uint8)
    return offsets - first, data


def _big_endian(
    array: pa.Array,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int, Mask | None]:
    """Reads two's complement numbers of up to 16 bytes from an array of bytes.

    Returns the low and the high 64 bits of the numbers, the length of the longest number in bytes, and a mask
    of the values that are empty or longer than 16 bytes (None if there are none).
    """
    offsets, data = _parts(array)
    padded = np.zeros(len(data) + 16, np.uint8)
    padded[8 : 8 + len(data)] = data
    words = np.ndarray((len(data) + 9,), ">u8", buffer=padded, strides=(1,))
    lengths, ends = np.diff(offsets), offsets[1:]
    bad = (lengths > 16) | (lengths == 0)
    low = _signed(words[ends], np.minimum(lengths, 8))
    high = low >> 63
    longest = int(lengths.max(initial=0))
    if longest > 8:
        long = np.flatnonzero((lengths > 8) & ~bad)
        low[long] = words[ends[long]].astype(np.uint64).view(np.int64)
        high[long] = _signed(words[ends[long] - 8], lengths[long] - 8)
    # A null has no bytes.
    undecided = bad & _mask(pc.is_valid(array)) if bad.any() else None
    return low, high, longest, undecided


def _signed(words: npt.NDArray[Any], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Reads the last bytes of each 8-byte big-endian word as a signed number.

    ``lengths`` holds, per word, how many of its bytes belong to the number.
    """
    shift = np.minimum((8 - lengths) * 8, 63)
    signed: npt.NDArray[np.int64] = (words.astype(np.uint64).view(np.int64) << shift) >> shift
    return signed


def _bits_kernel(schema: ConnectSchema, kind: pa.DataType) -> Kernel | None:
    length = whole_parameter(schema, "length") or 64
    if not 0 < length < 64 or kind != pa.int64():
        return None

    def bits(wire: pa.Array) -> Decided:
        data, undecided = _base64(wire) if wire.type == _STRING else (wire, None)
        offsets, raw = _parts(data)
        padded = np.zeros(len(raw) + 8, np.uint8)
        padded[: len(raw)] = raw
        words = np.ndarray((len(raw) + 1,), "<u8", buffer=padded, strides=(1,))
        lengths = np.diff(offsets)
        # Debezium writes the lowest byte first.
        shift = (8 * np.minimum(lengths, 8)).astype(np.uint64)
        one = np.uint64(1)
        mask = np.where(shift < 64, (one << (shift % np.uint64(64))) - one, np.uint64(2**64 - 1))
        numbers = words[offsets[:-1]] & mask
        bad = (lengths > 8) | (numbers >> np.uint64(length) != 0)
        values = pa.array(np.where(bad, np.uint64(0), numbers).view(np.int64))
        values = pc.if_else(pc.is_valid(data), values, pa.scalar(None, pa.int64()))
        bad = bad if undecided is None else bad | undecided
        return values, bad if bad.any() else None

    return bits


# Bytes


def _bytes(wire: pa.Array) -> Decided:
    return _base64(wire) if wire.type == _STRING else (wire, None)


_BAD: Final = np.uint8(255)
_SIX: Final = np.full(256, _BAD)
for _six, _letter in enumerate(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"):
    _SIX[_letter] = _six
_PAD: Final = ord("=")


def _base64(texts: pa.Array) -> Decided:
    """Decodes base64 texts to bytes, and returns them with a mask of the texts that it did not decode.

    Such texts have no padding, contain white space, or are not valid. The mask is None if all were decoded.
    """
    offsets, data = _parts(texts)
    uneven = np.diff(offsets) % 4 != 0
    if uneven.any():
        texts = pc.if_else(pa.array(uneven), pa.scalar("", texts.type), texts)
        offsets, data = _parts(texts)
    six, one_pad, two_pads = _six_bits(offsets, data)
    bad = _bad_text(offsets, six, one_pad, two_pads)
    undecided = uneven if bad is None else uneven | bad
    values = _joined(texts, offsets, six, one_pad, two_pads)
    return values, undecided if undecided.any() else None


def _six_bits(
    offsets: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]
) -> tuple[npt.NDArray[np.uint8], Mask, Mask]:
    """Returns the six bits of each base64 character, zero for a padding character.

    Also returns a mask of the texts that end with ``=``, and a mask of the texts that end with ``==``.
    """
    six = _SIX[data]
    ends, filled = offsets[1:], np.diff(offsets) > 0
    last = np.maximum(ends - 1, 0)
    if not len(data):
        return six, filled, filled
    one_pad = filled & (data[last] == _PAD)
    two_pads = one_pad & (data[np.maximum(last - 1, 0)] == _PAD)
    six[last[one_pad]] = 0
    six[last[two_pads] - 1] = 0
    return six, one_pad, two_pads


def _bad_text(
    offsets: npt.NDArray[np.int64], six: npt.NDArray[np.uint8], one_pad: Mask, two_pads: Mask
) -> Mask | None:
    """Returns a mask of the texts that are not valid base64, or None if all are valid.

    A text is not valid if it has a character outside of the alphabet, or bits in the unused part of its last
    character.
    """
    bad = np.zeros(len(one_pad), np.bool_)
    wrong = np.flatnonzero(six == _BAD)
    bad[np.searchsorted(offsets, wrong, side="right") - 1] = True
    ends = offsets[1:]
    single = one_pad & ~two_pads
    bad[single] |= six[ends[single] - 2] & 3 != 0
    bad[two_pads] |= six[ends[two_pads] - 3] & 15 != 0
    six[wrong] = 0
    return bad if bad.any() else None


def _joined(
    texts: pa.Array,
    offsets: npt.NDArray[np.int64],
    six: npt.NDArray[np.uint8],
    one_pad: Mask,
    two_pads: Mask,
) -> pa.Array:
    quads = six.reshape(-1, 4)
    out = np.empty((len(quads), 3), np.uint8)
    out[:, 0] = quads[:, 0] << 2 | quads[:, 1] >> 4
    out[:, 1] = quads[:, 1] << 4 | quads[:, 2] >> 2
    out[:, 2] = quads[:, 2] << 6 | quads[:, 3]
    ends = offsets[1:] // 4 * 3
    flat = out.reshape(-1)
    if one_pad.any():
        used = np.ones(len(flat), np.bool_)
        used[ends[one_pad] - 1] = False
        used[ends[two_pads] - 2] = False
        flat = flat[used]
    pads = np.cumsum(one_pad.astype(np.int64) + two_pads)
    where = np.zeros(len(texts) + 1, np.int32)
    where[1:] = ends - pads
    buffers = [_validity(texts), pa.py_buffer(where), pa.py_buffer(flat)]
    return pa.Array.from_buffers(pa.binary(), len(texts), buffers)


# Dates and times


def _days(wire: pa.Array) -> Decided:
    bounds = pc.min_max(wire).as_py()
    if bounds["min"] >= _FIRST_DAY and bounds["max"] <= _LAST_DAY:
        return wire.cast(pa.int32()).cast(pa.date32()), None
    outside = pc.or_(pc.less(wire, _FIRST_DAY), pc.greater(wire, _LAST_DAY))
    inside = pc.if_else(outside, pa.scalar(None, wire.type), wire)
    return inside.cast(pa.int32()).cast(pa.date32()), _mask(outside)


def _counted_kernel(form: str, column: Column, kind: pa.DataType, *, own: bool) -> Kernel | None:
    """Returns the function that converts times and timestamps counted in units from midnight or from 1970.

    Returns None if these values must be read one by one.
    """
    reader = row_of(column.type).reader
    if form.startswith("timestamp"):
        supported = kind == _LOCAL and (own or reader == "datetime")
        return _timestamps(_UNITS[form], None if own else column.type.fsp) if supported else None
    if kind != _STRING or not (own or reader == "time"):
        return None
    return _times(_UNITS[form], None if own else column.type.fsp)


def _numbers(wire: pa.Array) -> npt.NDArray[np.int64]:
    numbers: npt.NDArray[np.int64] = wire.cast(pa.int64()).fill_null(0).to_numpy()
    return numbers


def _beyond_digits(microseconds: npt.NDArray[np.int64], fsp: int | None) -> Mask | None:
    """Returns a mask of the values with more fraction digits than the column allows.

    Returns None if the column allows six digits or more, or its number of digits is not known.
    """
    if fsp is None or fsp >= 6:
        return None
    finer: Mask = microseconds % 10 ** (6 - fsp) != 0
    return finer


def _timestamps(per_second: int, fsp: int | None) -> Kernel:
    step = 1_000_000 // per_second
    first, end = _FIRST_SECOND * per_second, _END_SECOND * per_second
    infinite = [units for units in INFINITE_TIMESTAMPS if first <= units < end]

    def timestamps(wire: pa.Array) -> Decided:
        units = _numbers(wire)
        bad = (units < first) | (units >= end)
        for infinity in infinite:
            bad |= units == infinity
        microseconds = np.where(bad, 0, units) * step
        finer = _beyond_digits(microseconds, fsp)
        bad = bad if finer is None else bad | finer
        values = pa.Array.from_buffers(_LOCAL, len(units), [_validity(wire), pa.py_buffer(microseconds)])
        return values, bad if bad.any() else None

    return timestamps


def _times(per_second: int, fsp: int | None) -> Kernel:
    def times(wire: pa.Array) -> Decided:
        units = _numbers(wire)
        bad = (units < 0) | (units >= 86_400 * per_second)
        if per_second > 1_000_000:
            bad |= units % 1_000 != 0
        scaled = units // (per_second // 1_000_000) if per_second > 1_000_000 else units * _step(per_second)
        microseconds = np.where(bad, 0, scaled)
        finer = _beyond_digits(microseconds, fsp)
        bad = bad if finer is None else bad | finer
        clock = pa.Array.from_buffers(
            pa.time64("us"), len(units), [_validity(wire), pa.py_buffer(microseconds)]
        )
        return _clock_text(clock.cast(_STRING), fsp), bad if bad.any() else None

    return times


def _step(per_second: int) -> int:
    return 1_000_000 // per_second


def _clock_text(text: pa.Array, fsp: int | None) -> pa.Array:
    """Cuts times such as ``12:34:56.500000`` to the column's fraction digits.

    If the number of digits is not known, the zeros at the end are removed.
    """
    if fsp is None:
        return pc.utf8_rtrim(pc.utf8_rtrim(text, "0"), ".")
    return pc.utf8_slice_codeunits(text, 0, 8 if fsp == 0 else 9 + fsp) if fsp < 6 else text


def _instant_kernel(
    column: Column, modes: DebeziumModes, options: ValueOptions, kind: pa.DataType, *, own: bool
) -> Kernel | None:
    """Returns the function that converts ISO 8601 text in UTC, such as ``2026-01-31T12:34:56.789Z``.

    Returns None if these values must be read one by one.
    """
    if kind != _UTC:
        return None
    if own:
        return _instants(None)
    utc = modes.time_zone == options.time_zone == "UTC"
    return _instants(column.type.fsp) if utc and row_of(column.type).reader == "timestamp" else None


# The positions of separators in ``YYYY-MM-DDTHH:MM:SS``, and the length limits of text with a Z.
_MARKS: Final = ((4, ord("-")), (7, ord("-")), (10, ord("T")), (13, ord(":")), (16, ord(":")))
_SHORTEST, _LONGEST = 20, 27


def _instants(fsp: int | None) -> Kernel:
    def instants(wire: pa.Array) -> Decided:
        bad = ~_utc_shape(wire)
        usual = pc.if_else(pa.array(bad), pa.scalar(None, _STRING), wire) if bad.any() else wire
        try:
            values = usual.cast(_UTC)
        except pa.ArrowInvalid:
            return pa.nulls(len(wire), _UTC), _mask(pc.is_valid(wire))
        microseconds = values.cast(pa.int64()).fill_null(0).to_numpy()
        bad |= microseconds < _FIRST_SECOND * 1_000_000
        finer = _beyond_digits(microseconds, fsp)
        bad = bad if finer is None else bad | finer
        return values, bad if bad.any() else None

    return instants


def _utc_shape(wire: pa.Array) -> Mask:
    """Returns a mask of the texts with the length and the separators of a time in UTC; True for nulls."""
    offsets, data = _parts(wire)
    lengths = np.diff(offsets)
    good = (lengths >= _SHORTEST) & (lengths <= _LONGEST) & (lengths != _SHORTEST + 1)
    if not good.any():
        return ~_mask(pc.is_valid(wire))
    start = np.where(good, offsets[:-1], int(offsets[:-1][good][0]))
    for position, mark in _MARKS:
        good &= data[start + position] == mark
    good &= data[np.where(good, offsets[1:] - 1, 0)] == ord("Z")
    fraction = data[start + 19]
    good &= (fraction == ord(".")) | (fraction == ord("Z"))
    shaped: Mask = good | ~_mask(pc.is_valid(wire))
    return shaped
