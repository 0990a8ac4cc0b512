"""Converts whole columns of source values to Arrow arrays, with the same results as ``typemap.values``.

``arrow_type`` returns a column's Arrow type. ``from_text`` converts canal-json's texts, ``from_value`` an
Arrow array of a ``ChangeEvent``'s values, and ``from_python`` the same values as Python objects, one by one
with ``values.target_reader``. The scalar readers in ``typemap.values`` define the correct result. Values in
their usual form are converted all at once (``arrow_text``). All other values are converted by a scalar
reader, each distinct value once. A value that the scalar reader does not accept is marked as unproven.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime, tzinfo
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidesink.errors import ValueOutOfRangeError, shown
from tidesink.events import ColumnType, Value
from tidesink.typemap.arrow_text import Convert, converter
from tidesink.typemap.table import (
    SHAPED_READERS,
    SPARK_MAX_PRECISION,
    AmbiguousTime,
    ZeroDate,
    row_of,
    spark_type,
    type_words,
)
from tidesink.typemap.values import TargetValue, is_ambiguous, target_reader, text_reader

Mask = NDArray[np.bool_]
Read = Callable[[Any], TargetValue]

# Spark's types, each with its Arrow type and the Python type of its values.
_PLAIN_TYPES: Final[dict[str, tuple[pa.DataType, type]]] = {
    "int": (pa.int32(), int),
    "bigint": (pa.int64(), int),
    "float": (pa.float32(), float),
    "double": (pa.float64(), float),
    "string": (pa.string(), str),
    "binary": (pa.binary(), bytes),
    "boolean": (pa.bool_(), bool),
    "date": (pa.date32(), date),
    "timestamp": (pa.timestamp("us", "UTC"), datetime),
    "timestamp_ntz": (pa.timestamp("us"), datetime),
}
_ONLY_STRINGS: Final = (pa.string(), pa.large_string())


class ColumnResult(NamedTuple):
    """A converted column, with masks of the values that could not be converted or that a policy decided.

    ``values`` has the column's ``arrow_type``. A value is null if the source value is null, if it could not
    be converted, or if it is an invalid date that became null. ``unproven``: values that could not be
    converted. ``zero_dates``: invalid calendar dates that the policy made null. ``ambiguous_times``: local
    times that occur twice, for which the policy chose one. A mask is None if it marks no value.
    """

    values: pa.Array
    unproven: Mask | None
    zero_dates: Mask | None
    ambiguous_times: Mask | None


class PythonResult(NamedTuple):
    """A column that was converted value by value.

    ``errors`` holds, by index, the errors of values that could not be converted; they are null in ``values``.
    ``zero_dates``: mask of invalid dates that the policy made null. ``ambiguous_times``: mask of local times
    that occur twice, for which the policy chose one. A mask is None if it marks no value.
    """

    values: pa.Array
    errors: dict[int, ValueOutOfRangeError]
    zero_dates: Mask | None
    ambiguous_times: Mask | None


def arrow_type(column_type: ColumnType, *, zero_date: ZeroDate = "null") -> pa.DataType:
    """Returns the Arrow type that corresponds to a column's Spark type; it holds every value exactly."""
    return arrow_of_spark(spark_type(column_type, zero_date=zero_date).ddl)


def arrow_of_spark(ddl: str) -> pa.DataType:
    """Returns the Arrow type for a Spark type in DDL text."""
    plain = _PLAIN_TYPES.get(ddl)
    if plain is not None:
        return plain[0]
    precision, scale = map(int, ddl.removeprefix("decimal(").removesuffix(")").split(","))
    # Oracle's NUMBER(2,4) has zeros after the point that Arrow counts as digits.
    return pa.decimal128(max(precision, min(scale, SPARK_MAX_PRECISION), 1), scale)


def is_known_type(ddl: str) -> bool:
    """Returns True if ``arrow_of_spark`` knows the Spark type."""
    return ddl in _PLAIN_TYPES or ddl.startswith("decimal(")


class _Plan(NamedTuple):
    """The functions that convert one column, and its types at the source and in Arrow.

    ``read_value`` converts a single value of a ChangeEvent, ``read_text`` a single text of canal-json.
    ``usual`` converts a whole array of texts in their usual form; it is None if there is no such function for
    the type.
    """

    type: ColumnType
    target: pa.DataType
    read_value: Read
    read_text: Read
    usual: Convert | None
    is_ambiguous: Callable[[Any], bool] | None


def canonical_floats(values: Any) -> Any:
    """Gives equal floating-point numbers the same bits: ``0.0`` for ``-0.0``, and one NaN for all NaNs.

    Arrow compares by bits when it encodes or looks up values. Postgres, MySQL and Spark treat ``0.0`` and
    ``-0.0`` as equal, and Postgres and Spark treat all NaNs as equal, also in keys. Accepts an array or a
    chunked array; arrays of other types are returned unchanged.
    """
    if not pa.types.is_floating(values.type):
        return values
    added = pc.add(values, pa.scalar(0, values.type))  # -0.0 + 0.0 is 0.0
    return pc.if_else(pc.is_nan(added), pa.scalar(float("nan"), values.type), added)


@lru_cache(maxsize=4096)
def _plan(
    column_type: ColumnType, zero_date: ZeroDate, time_zone: tzinfo, ambiguous_time: AmbiguousTime
) -> _Plan:
    target = arrow_type(column_type, zero_date=zero_date)
    read_text = text_reader(column_type)
    read_value = target_reader(
        column_type, time_zone=time_zone, zero_date=zero_date, ambiguous_time=ambiguous_time
    )
    is_local = row_of(column_type).reader == "timestamp" and target != pa.string()
    return _Plan(
        column_type,
        target,
        read_value,
        lambda text: read_value(read_text(text)),
        converter(column_type, target, time_zone),
        partial(is_ambiguous, zone=time_zone) if is_local else None,
    )


def from_text(
    texts: pa.Array,
    column_type: ColumnType,
    *,
    zero_date: ZeroDate,
    time_zone: tzinfo,
    ambiguous_time: AmbiguousTime = "first",
) -> ColumnResult:
    """Converts a column of canal-json's texts (a string or large_string array) to the target's Arrow type.

    Each value equals the result of ``text_reader`` and then ``target_reader`` for its text. A text that one
    of the two does not accept is marked as unproven.
    """
    plan = _plan(column_type, zero_date, time_zone, ambiguous_time)
    return _from_strings(_as_strings(texts), plan, plan.read_text)


def from_value(
    values: pa.Array,
    column_type: ColumnType,
    *,
    zero_date: ZeroDate,
    time_zone: tzinfo,
    ambiguous_time: AmbiguousTime = "first",
) -> ColumnResult:
    """Converts an array of a ChangeEvent's values to the target's Arrow type.

    Accepts integers of any width, floats, decimal128 and decimal256, strings (including dates and times),
    binary and booleans. Each value equals the result of ``target_reader``. A value that ``target_reader``
    does not accept, or that the column's Arrow type cannot hold, is marked as unproven.
    """
    plan = _plan(column_type, zero_date, time_zone, ambiguous_time)
    shaped = row_of(column_type).reader in SHAPED_READERS
    if shaped and values.type in _ONLY_STRINGS:
        # The value is text, and the reader of canal-json's text checks only its shape.
        return _from_strings(_as_strings(values), plan, plan.read_value)
    converted = None if shaped else _from_numbers(values, plan.target)
    if converted is not None:
        return ColumnResult(converted, None, None, None)
    return _by_distinct(values, plan, plan.read_value)


def from_python(
    values: Sequence[Value],
    column_type: ColumnType,
    *,
    zero_date: ZeroDate,
    time_zone: tzinfo,
    ambiguous_time: AmbiguousTime = "first",
) -> PythonResult:
    """Converts a ChangeEvent's values one by one to the target's Arrow type.

    ``from_text`` and ``from_value`` must have the same results as this function. ``errors`` in the result
    holds, by index, the errors of values that ``target_reader`` does not accept or that the column's Arrow
    type cannot hold.
    """
    plan = _plan(column_type, zero_date, time_zone, ambiguous_time)
    return _scalar_by_scalar(values, plan, plan.read_value)


def _as_strings(texts: pa.Array) -> pa.Array:
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    return texts if texts.type == pa.string() else texts.cast(pa.string())


def _from_strings(texts: pa.Array, plan: _Plan, read: Read) -> ColumnResult:
    if plan.usual is None:
        return _by_distinct(texts, plan, read)
    values, left = plan.usual(texts)
    if left is None:
        return ColumnResult(values, None, None, None)
    rows = pa.array(left)
    rest = _by_distinct(texts.filter(rows), plan, read)
    values = pc.replace_with_mask(values, rows, rest.values)
    return ColumnResult(values, *(_scattered(marks, left) for marks in rest[1:]))


def _scattered(part: Mask | None, rows: Mask) -> Mask | None:
    """Expands a mask of some rows to a mask of all rows. ``rows``: mask that selects these rows."""
    if part is None:
        return None
    whole = np.zeros(len(rows), np.bool_)
    whole[rows] = part
    return whole


def _by_distinct(values: pa.Array, plan: _Plan, read: Read) -> ColumnResult:
    """Converts each distinct value once with the scalar reader."""
    try:
        encoded = values.dictionary_encode()
        distinct, codes = encoded.dictionary.to_pylist(), encoded.indices
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        distinct, codes = values.to_pylist(), pa.array(np.arange(len(values), dtype=np.int32))
    result = _scalar_by_scalar(distinct, plan, read)
    refused = np.zeros(len(distinct), np.bool_)
    refused[list(result.errors)] = True
    marks = (refused if result.errors else None, result.zero_dates, result.ambiguous_times)
    return ColumnResult(result.values.take(codes), *(_at(flags, codes) for flags in marks))


def _at(flags: Mask | None, codes: pa.Array) -> Mask | None:
    """Expands flags of the distinct values to a mask of all rows; the mask is False for nulls.

    ``codes``: each row's index among the distinct values.
    """
    if flags is None:
        return None
    rows = codes.fill_null(len(flags)).to_numpy(zero_copy_only=False)
    mask: Mask = np.append(flags, False)[rows]
    return mask


def _scalar_by_scalar(values: Sequence[Any], plan: _Plan, read: Read) -> PythonResult:
    converted: list[TargetValue] = []
    errors: dict[int, ValueOutOfRangeError] = {}
    for index, value in enumerate(values):
        try:
            converted.append(None if value is None else read(value))
        except ValueOutOfRangeError as error:
            errors[index] = error
            converted.append(None)
    zero = np.array(
        [new is None and old is not None for old, new in zip(values, converted, strict=True)], np.bool_
    )
    zero[list(errors)] = False
    twice = np.zeros(0, np.bool_)
    if plan.is_ambiguous is not None:
        both = zip(values, converted, strict=True)
        twice = np.array([new is not None and plan.is_ambiguous(old) for old, new in both], np.bool_)
    array = _packed(converted, plan, errors)
    return PythonResult(array, errors, *(mask if mask.any() else None for mask in (zero, twice)))


_HELD: Final = {kind: frozenset({held}) for kind, held in _PLAIN_TYPES.values()}
_HELD_AS_DECIMAL: Final = frozenset({Decimal, int})
# Errors of pyarrow for a value that a type cannot hold. ArrowInvalid is a ValueError, and ArrowTypeError a
# TypeError. Lack of memory is not included: it does not depend on the value.
NOT_HELD: Final = (
    ValueError,
    TypeError,
    OverflowError,
    pa.ArrowNotImplementedError,
    pa.ArrowCapacityError,
)


def _packed(values: list[TargetValue], plan: _Plan, errors: dict[int, ValueOutOfRangeError]) -> pa.Array:
    """Returns the values as an Arrow array.

    Values that the Arrow type cannot hold become null, and their errors are added to ``errors``.
    """
    kinds = _HELD.get(plan.target, _HELD_AS_DECIMAL)
    if kinds.issuperset({type(value) for value in values if value is not None}):
        try:
            packed = pa.array(values, plan.target)
        except NOT_HELD:
            pass
        else:
            if plan.target != pa.float32() or not _overflowed(values, packed):
                return packed
    for index, value in enumerate(values):
        if value is not None and not _holds(plan.target, kinds, value):
            errors[index] = ValueOutOfRangeError(
                f"{shown(value)} is not a valid {type_words(plan.type)}: {plan.target} cannot hold it."
            )
            values[index] = None
    return pa.array(values, plan.target)


def _holds(target: pa.DataType, kinds: frozenset[type], value: Any) -> bool:
    try:
        packed = pa.array([value], target)
    except NOT_HELD:
        return False
    return type(value) in kinds and (target != pa.float32() or not _overflowed([value], packed))


def _overflowed(values: Sequence[Any], packed: pa.Array) -> bool:
    """Returns True if a finite number became infinite in ``packed``, the same numbers as 32-bit floats."""
    infinite = pc.sum(pc.is_inf(packed)).as_py() or 0
    return bool(infinite != sum(value in (float("inf"), float("-inf")) for value in values))


def _from_numbers(values: pa.Array, target: pa.DataType) -> pa.Array | None:
    """Converts all values at once by an exact cast.

    Returns None if there is no exact cast to the type ``target``, or if it fails for a value.
    """
    cast = _cast_of(values.type, target)
    if cast is None:
        return None
    try:
        return cast(values)
    except pa.ArrowInvalid:
        return None


Cast = Callable[[pa.Array], "pa.Array | None"]


def _cast_of(wire: pa.DataType, target: pa.DataType) -> Cast | None:
    if wire == target:
        return lambda values: values
    is_int, is_decimal = pa.types.is_integer(wire), pa.types.is_decimal(wire)
    if pa.types.is_floating(wire) and pa.types.is_floating(target):
        return partial(_cast_float, target=target)
    if is_decimal and target == pa.string():
        return _decimal_text
    to_number = pa.types.is_integer(target) or pa.types.is_decimal(target)
    exact = (
        (is_int and (to_number or target == pa.string()))
        or (is_decimal and pa.types.is_decimal(target))
        or (wire, target) in ((pa.large_string(), pa.string()), (pa.large_binary(), pa.binary()))
    )
    return partial(pc.cast, target_type=target) if exact else None


def _cast_float(values: pa.Array, target: pa.DataType) -> pa.Array | None:
    floats = pc.cast(values, target, safe=False)
    lost = pc.any(pc.and_(pc.is_inf(floats), pc.invert(pc.is_inf(values)))).as_py()
    return None if lost else floats


def _decimal_text(values: pa.Array) -> pa.Array:
    """Formats decimals with all digits of their scale.

    Arrow itself formats small decimals with an exponent.
    """
    scale = values.type.scale
    unscaled = _with_scale_zero(values)
    if scale <= 0:
        return pc.cast(unscaled, pa.string())
    digits = pc.cast(pc.abs(unscaled), pa.string())
    padded = pc.ascii_lpad(digits, scale + 1, "0")
    sign = pc.if_else(pc.less(unscaled, pc.cast(pa.scalar(0), unscaled.type)), "-", "")
    whole = pc.binary_join_element_wise(sign, pc.utf8_slice_codeunits(padded, 0, -scale), "")
    return pc.binary_join_element_wise(whole, pc.utf8_slice_codeunits(padded, -scale), ".")


def _with_scale_zero(values: pa.Array) -> pa.Array:
    make = pa.decimal128 if values.type.bit_width == 128 else pa.decimal256
    kind = make(values.type.precision, 0)
    return pa.Array.from_buffers(kind, len(values), values.buffers(), offset=values.offset)
