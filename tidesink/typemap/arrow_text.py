"""Converts the texts of a column to Arrow, all at once, if they have their usual form.

``typemap.arrow`` converts all other texts one by one. Arrow's casts from text are exact, but they accept more
than MySQL writes (``0x1F``, ``.5``, ``2024-01-01``), and they fail for the whole array if one text is not
valid. So each type has two checks. The first check (``Look``) examines the bytes of the whole array, which
costs a few nanoseconds per value, and proves that the texts have the form that producers write. If this check
fails, a regular expression (RE2) selects the texts of the usual form, and only those are cast.

Whole arrays of local times are converted to UTC too, with the same results as ``datetime`` and ``zoneinfo``.
A time that the clocks show twice is left to the scalar reader, and a time that the clocks skip has the offset
from before the change (PEP 495, ``fold=0``). The zone's offset is looked up once per day of each year in the
array, never once per value. Between two days with different offsets, bisection finds the moment of the
change. In the time zone database two changes are at least three days apart.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidesink.events import ColumnType
from tidesink.typemap.table import Reader, row_of
from tidesink.typemap.values import (
    DATETIME,
    INSTANT,
    LOCAL_DATE,
    LOCAL_DATETIME,
    MYSQL_MAX_PRECISION,
    MYSQL_MAX_SCALE,
    TIME,
    integer_bounds,
    padded_decimal,
)

Mask = NDArray[np.bool_]
# The values, null if the text is null or left to the scalar reader; and a mask of the rows left, or None.
Converted = tuple[pa.Array, "Mask | None"]
Convert = Callable[[pa.Array], Converted]
# Returns True if texts have the usual shape; there is at least one text.
Look = Callable[["_View"], bool]

_ZERO, _MINUS, _POINT, _SPACE, _COLON = b"0-. :"
_INTEGER_DIGITS: Final = 20
# More digits than MySQL's DECIMAL has; RE2 counts to a thousand.
_MOST_DIGITS: Final = 100
# A number with this many digits before the point is a finite double, whatever follows the point.
_FLOAT_DIGITS: Final = 300
# Bytes checked together, so that they and the results stay in the processor's cache.
_BLOCK: Final = 1 << 16

_DAY: Final = (
    r"(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-"
    r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_CLOCK: Final = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
_OFFSET: Final = r"[+-](?:[01][0-9]|2[0-3]):[0-5][0-9]"
# Microseconds one day inside the calendar's ends: beyond them an offset may lead out of the calendar.
_FIRST_INSIDE: Final = -62_135_510_400_000_000
_END_INSIDE: Final = 253_402_214_400_000_000
_FIRST_DAY: Final = -719_162
_FIRST_MICROS: Final = -62_135_596_800_000_000


class _View(NamedTuple):
    """The bytes of an array of texts, without a copy.

    ``starts`` and ``ends`` hold, for each text that is not null, where it begins and ends in ``data``.
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int32]
    ends: NDArray[np.int32]

    def places(self, *places: int) -> list[NDArray[np.uint8]]:
        """Returns one array per position in ``places``, with the byte that each text has at this position.

        Every text must be longer than the greatest position.
        """
        size = int(self.ends[0] - self.starts[0])
        if int(self.ends[-1] - self.starts[0]) == size * len(self.starts) and self._one_size(size):
            table = self.data[self.starts[0] : self.ends[-1]].reshape(-1, size)
            return [table[:, position] for position in places]
        return [self.data[self.starts + position] for position in places]

    def _one_size(self, size: int) -> bool:
        return bool((self.ends - self.starts == size).all())


def _view(texts: pa.Array) -> _View:
    offsets = _offsets(texts)
    data = np.frombuffer(texts.buffers()[2] or b"", np.uint8)[: offsets[-1]]
    starts, ends = offsets[:-1], offsets[1:]
    if texts.null_count:
        valid = _valid(texts)
        starts, ends = starts[valid], ends[valid]
    return _View(data, starts, ends)


def _offsets(texts: pa.Array) -> NDArray[np.int32]:
    whole = np.frombuffer(texts.buffers()[1], np.int32)
    return whole[texts.offset : texts.offset + len(texts) + 1]


def _valid(texts: pa.Array) -> Mask:
    mask: Mask = texts.is_valid().to_numpy(zero_copy_only=False)
    return mask


def converter(column_type: ColumnType, target: pa.DataType, time_zone: tzinfo) -> Convert | None:
    """Returns the function that converts all texts of a column in their usual form at once.

    Returns None if there is no such function for the type; each distinct text must then be converted by
    itself.
    """
    reader = row_of(column_type).reader
    if reader in ("text", "binary"):
        return _as_is if reader == "text" else _latin1
    if target == pa.string():
        pattern = _text_pattern(column_type)
        return None if pattern is None else partial(_matching, pattern=pattern)
    bounds = integer_bounds(column_type)
    if bounds is not None:
        return _integers(*bounds, target)
    if reader == "decimal":
        return _decimals(column_type, target)
    if reader in ("float32", "float64"):
        return _FLOATS[reader]
    if reader == "timestamp":
        return _timestamps(time_zone) if has_known_offsets(time_zone) else None
    return _CALENDAR.get(reader)


def _as_is(texts: pa.Array) -> Converted:
    return texts, None


def _latin1(texts: pa.Array) -> Converted:
    """Converts text of U+0000 to U+00FF to bytes (TiCDC, tiflow c7b2588: ISO-8859-1)."""
    view = _view(texts)
    if not len(view.starts) or view.data[view.starts[0] :].max(initial=0) < 128:
        return texts.cast(pa.binary()), None
    try:
        return _encoded(texts), None
    except UnicodeError:
        beyond = pc.match_substring_regex(texts, r"[^\x{00}-\x{ff}]")
        left: Mask = pc.fill_null(beyond, False).to_numpy(zero_copy_only=False)
        # This also removes the bytes under a null, which if_else would keep.
        cleared = pc.replace_with_mask(texts, pc.fill_null(beyond, True), pa.scalar(None, pa.string()))
        return _encoded(cleared), left if left.any() else None


def _encoded(texts: pa.Array) -> pa.Array:
    """Converts an array of texts to their bytes in ISO-8859-1, all at once.

    A text is shorter in ISO-8859-1 than in UTF-8, so its offsets are computed again.
    """
    offsets = _offsets(texts)
    data = np.frombuffer(texts.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    encoded = data.tobytes().decode("utf-8").encode("latin-1")
    more = np.append(np.int32(0), np.cumsum(data & 0xC0 == 0x80, dtype=np.int32))
    ends = offsets - offsets[0]
    buffers = [None, pa.py_buffer(ends - more[ends]), pa.py_buffer(encoded)]
    array = pa.Array.from_buffers(pa.binary(), len(texts), buffers)
    return pc.if_else(texts.is_valid(), array, pa.scalar(None, pa.binary())) if texts.null_count else array


def _text_pattern(column_type: ColumnType) -> str | None:
    """Returns the pattern of the texts that a string column of the target stores unchanged.

    Returns None if there is no such pattern; each distinct text must then be converted by itself.
    """
    reader, precision, scale = row_of(column_type).reader, column_type.precision, column_type.scale
    if reader == "decimal":
        if precision is None or scale is None:
            return r"-?(?:0|[1-9][0-9]{0,64})(?:\.[0-9]{1,30})?"
        if not 0 <= scale <= precision <= _MOST_DIGITS:
            return None
        whole = rf"(?:0|[1-9][0-9]{{0,{precision - scale - 1}}})" if precision > scale else "0"
        return rf"-?{whole}" + (rf"\.[0-9]{{{scale}}}" if scale else "")
    if reader in ("enum", "set"):
        return None if column_type.members is not None else r"0|[1-9][0-9]{0,18}"
    return _SHAPES.get(reader)


_SHAPES: Final[dict[Reader, str]] = {
    "date": r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
    "datetime": DATETIME.pattern,
    "timestamp": DATETIME.pattern,
    "time": TIME.pattern,
    "local_date": LOCAL_DATE.pattern,
    "local_datetime": LOCAL_DATETIME.pattern,
    "instant": INSTANT.pattern,
}


def _matching(texts: pa.Array, pattern: str) -> Converted:
    left = _valid(texts) & ~_matches(texts, pattern)
    return (texts, left) if left.any() else (texts, None)


def _matches(texts: pa.Array, pattern: str) -> Mask:
    """Returns a mask of the texts that match the whole pattern; False for null."""
    matches = pc.match_substring_regex(texts, rf"\A(?:{pattern})\z")
    usual: Mask = pc.fill_null(matches, False).to_numpy(zero_copy_only=False)
    return usual


def _cast_usual(
    texts: pa.Array,
    look: Look,
    pattern: str,
    cast: Convert,
    seldom: Callable[[pa.Array], Mask | None] | None = None,
    longest: int | None = None,
) -> Converted:
    """Casts the whole array if ``look`` accepts it, otherwise only the texts that match ``pattern``.

    ``seldom`` finds rare texts that the cast does not accept, such as zero dates; they are excluded first,
    because otherwise the cast of the whole array would fail. ``longest`` is the greatest length of a text; it
    is not part of the pattern, because RE2 is slow to compile counts in the hundreds. The result's mask marks
    the texts that were not cast.
    """
    apart = None if seldom is None else seldom(texts)
    tried = _cast_looked_at(texts if apart is None else _without(texts, apart), look, cast)
    if tried is not None:
        return tried if apart is None else _leaving(tried, apart)
    usual = _matches(texts, pattern)
    if longest is not None:
        usual &= pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False) <= longest
    return _leaving(cast(_without(texts, ~usual)), _valid(texts) & ~usual)


def _cast_looked_at(texts: pa.Array, look: Look, cast: Convert) -> Converted | None:
    view = _view(texts)
    try:
        return cast(texts) if not len(view.starts) or look(view) else None
    except pa.ArrowInvalid:
        return None


def _without(texts: pa.Array, left: Mask) -> pa.Array:
    return pc.if_else(pa.array(left), pa.scalar(None, texts.type), texts)


def _leaving(converted: Converted, left: Mask) -> Converted:
    values, own = converted
    left = left if own is None else left | own
    return values, left if left.any() else None


def _outside(values: pa.Array, low: int, high: int) -> Mask | None:
    """Returns a mask of the values below ``low`` or above ``high``; None if there are no such values."""
    ends = pc.min_max(values).as_py()
    if ends["min"] is None or (ends["min"] >= low and ends["max"] <= high):
        return None
    outside = pc.or_(
        pc.less(values, pa.scalar(low, values.type)), pc.greater(values, pa.scalar(high, values.type))
    )
    mask: Mask = pc.fill_null(outside, False).to_numpy(zero_copy_only=False)
    return mask


def _only(data: NDArray[np.uint8], extra: bytes) -> bool:
    """Returns True if all bytes are ASCII digits or one of the bytes in ``extra``."""
    for start in range(0, len(data), _BLOCK):
        block = data[start : start + _BLOCK]
        allowed = block - _ZERO <= 9
        for byte in extra:
            allowed |= block == byte
        if not allowed.all():
            return False
    return True


def _integers(low: int, high: int, target: pa.DataType) -> Convert:
    wide = pa.int64() if high < 1 << 63 else pa.uint64()

    def cast(texts: pa.Array) -> Converted:
        values = pc.cast(texts, wide)
        left = _outside(values, low, high)
        return pc.cast(values if left is None else _without(values, left), target), left

    pattern = r"-?[0-9]{1,18}" if low < 0 else r"[0-9]{1,18}"
    return partial(_cast_usual, look=_is_integer, pattern=pattern, cast=cast)


def _is_integer(view: _View) -> bool:
    lengths = view.ends - view.starts
    return bool(lengths.max() <= _INTEGER_DIGITS) and _only(view.data[view.starts[0] :], b"-")


def _decimals(column_type: ColumnType, target: pa.DataType) -> Convert | None:
    padded, scale = padded_decimal(column_type), column_type.scale or 0
    if padded is None or not 0 <= scale <= target.precision:
        return None
    # Additional leading zeros are accepted if an unpadded text is MySQL's, but not if it is another
    # database's.
    others = scale > MYSQL_MAX_SCALE
    whole = max(1, (column_type.precision or 0) - scale) if others else MYSQL_MAX_PRECISION
    return partial(
        _cast_usual,
        look=partial(_is_padded, whole=whole, scale=scale),
        pattern=padded.pattern,
        cast=lambda texts: (pc.cast(texts, target), None),
    )


def _is_padded(view: _View, whole: int, scale: int) -> bool:
    """Returns True if each text has ``scale`` digits after a point, and one to ``whole`` digits before it.

    The cast that follows fails if a minus is not at the start, or if there are two points.
    """
    lengths = view.ends - view.starts
    if lengths.max() > (scale + 1 if scale else 0) + whole or lengths.min() < (scale + 2 if scale else 1):
        return False
    if not scale:
        return _only(view.data[view.starts[0] :], b"-")
    points = view.ends - (scale + 1)
    return (
        _only(view.data[view.starts[0] :], b"-.")
        and bool((view.data[points] == _POINT).all())
        and bool((view.data[points - 1] != _MINUS).all())
    )


def _is_float(view: _View) -> bool:
    """Returns True if all texts look like floats: digits, minus and point, with no point at either end.

    The cast that follows fails for a second point, and for a minus inside a text.
    """
    lengths = view.ends - view.starts
    if lengths.max() > _FLOAT_DIGITS or lengths.min() < 1 or not _only(view.data[view.starts[0] :], b"-."):
        return False
    first, last = view.data[view.starts], view.data[view.ends - 1]
    second = view.data[np.minimum(view.starts + 1, view.ends - 1)]
    pointed = (first == _POINT) | ((first == _MINUS) & (second == _POINT)) | (last == _POINT)
    return not pointed.any()


def _floats(target: pa.DataType) -> Convert:
    def cast(texts: pa.Array) -> Converted:
        # A FLOAT's text is read as a double and then rounded, as in the scalar reader.
        values = pc.cast(pc.cast(texts, pa.float64()), target, safe=False)
        infinite = pc.is_inf(values)
        if not pc.any(infinite).as_py():
            return values, None
        return values, pc.fill_null(infinite, False).to_numpy(zero_copy_only=False)

    pattern = r"-?[0-9]+(?:\.[0-9]+)?"
    return partial(_cast_usual, look=_is_float, pattern=pattern, cast=cast, longest=_FLOAT_DIGITS)


_FLOATS: Final[dict[str, Convert]] = {"float32": _floats(pa.float32()), "float64": _floats(pa.float64())}


def _is_day(view: _View) -> bool:
    return bool((view.ends - view.starts == 10).all())


def _is_clock(view: _View, shortest: int = 19) -> bool:
    """Returns True if all texts look like a date and time: long enough, with a space and two colons.

    Only these three characters are checked, at their positions; the cast that follows checks all others.
    """
    if (view.ends - view.starts).min() < shortest:
        return False
    space, *colons = view.places(10, 13, 16)
    return bool((space == _SPACE).all() and all((colon == _COLON).all() for colon in colons))


def _is_instant(view: _View) -> bool:
    """Returns True if all texts look like a date and time with an offset in hours and minutes."""
    return _is_clock(view, 25) and bool((view.data[view.ends - 3] == _COLON).all())


def _zero_dates(texts: pa.Array) -> Mask | None:
    """Returns a mask of the texts whose month or day is 00, such as MySQL's zero dates; None without such."""
    view = _view(texts)
    if not len(view.starts) or (view.ends - view.starts).min() < 10:
        return None
    digits = [bytes_there == _ZERO for bytes_there in view.places(5, 6, 8, 9)]
    zero: Mask = (digits[0] & digits[1]) | (digits[2] & digits[3])
    if texts.null_count:
        whole = np.zeros(len(texts), np.bool_)
        whole[_valid(texts)] = zero
        zero = whole
    return zero if np.count_nonzero(zero) else None


def _micros(values: pa.Array) -> pa.Array:
    return values.view(pa.int64())


def _in_range(texts: pa.Array, target: pa.DataType, low: int, high: int) -> Converted:
    values = pc.cast(texts, target)
    return values, _outside(_micros(values), low, high)


def _cast_day(texts: pa.Array) -> Converted:
    # Arrow's calendar has a year 0.
    values = pc.cast(texts, pa.date32())
    return values, _outside(values.view(pa.int32()), _FIRST_DAY, (1 << 31) - 1)


def _timestamps(zone: tzinfo) -> Convert:
    def cast(texts: pa.Array) -> Converted:
        local = _micros(pc.cast(texts, pa.timestamp("us")))
        left = _outside(local, _FIRST_INSIDE, _END_INSIDE)
        # Times outside, and values under a null, are replaced by a time that the zone can convert.
        inside = pc.fill_null(local if left is None else pc.if_else(pa.array(left), 0, local), 0)
        instants, twice = utc_micros(inside.to_numpy(), zone)
        if twice is not None:
            left = twice if left is None else left | twice
        nulls = None if not texts.null_count else ~_valid(texts)
        return pa.array(instants, pa.int64(), mask=nulls).view(pa.timestamp("us", "UTC")), left

    return partial(_cast_usual, look=_is_clock, pattern=f"{_DAY} {_CLOCK}", cast=cast, seldom=_zero_dates)


_calendar: Final = partial(_cast_usual, seldom=_zero_dates)
_day: Final = partial(_calendar, look=_is_day, pattern=_DAY, cast=_cast_day)
_local: Final = partial(
    _calendar,
    look=_is_clock,
    pattern=f"{_DAY} {_CLOCK}",
    cast=partial(_in_range, target=pa.timestamp("us"), low=_FIRST_MICROS, high=(1 << 63) - 1),
)
_instant: Final = partial(
    _cast_usual,
    look=_is_instant,
    pattern=f"{_DAY} {_CLOCK}{_OFFSET}",
    cast=partial(_in_range, target=pa.timestamp("us", "UTC"), low=_FIRST_INSIDE, high=_END_INSIDE),
)
_CALENDAR: Final[dict[Reader, Convert]] = {
    "date": _day,
    "local_date": _day,
    "datetime": _local,
    "local_datetime": _local,
    "instant": _instant,
}


# Local times to UTC

_MICROSECOND: Final = timedelta(microseconds=1)
_SECOND: Final = timedelta(seconds=1)
_EPOCH: Final = datetime(1970, 1, 1)
_LAST: Final = datetime.max.replace(microsecond=0)
# For fewer years than this, the whole range is used instead of the years that occur.
_FEW_YEARS: Final = 100

Micros = NDArray[np.int64]
Offset = Callable[[datetime], int]


def has_known_offsets(zone: tzinfo) -> bool:
    """Returns True if ``utc_micros`` accepts the zone: a ``zoneinfo`` zone or a fixed offset."""
    return isinstance(zone, ZoneInfo | timezone)


def utc_micros(local: Micros, zone: tzinfo) -> tuple[Micros, Mask | None]:
    """Converts local times to UTC, both in microseconds since 1970.

    The local times must be in the years 1 to 9999; the results may lie outside. Returns the UTC times, and a
    mask of the times that the clocks show twice, or None if there are no such times. For those the result is
    the first of the two times.
    """
    if not len(local) or zone is timezone.utc:
        return local, None
    if isinstance(zone, timezone):
        return local - zone.utcoffset(None) // _MICROSECOND, None
    starts, offsets, shown_twice = _periods(_years(local), zone)
    first, last = np.searchsorted(starts, (local.min(), local.max()), side="right") - 1
    if first == last and not shown_twice[first]:
        return _less(local, offsets[first]), None
    periods = np.searchsorted(starts, local, side="right") - 1
    twice = shown_twice[periods]
    return _less(local, offsets[periods]), twice if twice.any() else None


def _less(local: Micros, offset: Micros | np.int64) -> Micros:
    return local if not np.any(offset) else np.subtract(local, offset)


def _years(local: Micros) -> tuple[int, ...]:
    """Returns the years of the local times, in ascending order.

    If the first and the last year are less than 100 years apart, all years between them are included.
    """
    first, last = _year(local.min()), _year(local.max())
    if last - first < _FEW_YEARS:
        return tuple(range(first, last + 1))
    years = local.view("datetime64[us]").astype("datetime64[Y]").astype(np.int64) + 1970
    return tuple(np.unique(years).tolist())


def sets_clocks_back(zone: tzinfo, year: int) -> bool:
    """Returns True if the zone's clocks show some local times twice in ``year`` or in the next year."""
    return has_known_offsets(zone) and bool(_periods((year, year + 1), zone)[2].any())


@lru_cache(maxsize=256)
def _periods(years: tuple[int, ...], zone: tzinfo) -> tuple[Micros, Micros, Mask]:
    """Returns the periods of these years in which the zone's offset is constant.

    The result has three arrays: the start of each period in local time, its offset (both in microseconds),
    and True for a period of times that the clocks show twice. For such a period the offset is that of the
    first time.
    """
    first, second = (
        np.array([period for year in years for period in _year_periods(zone, year, fold)], np.int64).T
        for fold in (0, 1)
    )
    starts = np.union1d(first[0], second[0])
    offsets, later = (
        periods[1][np.searchsorted(periods[0], starts, side="right") - 1] for periods in (first, second)
    )
    changes = np.append(True, (np.diff(offsets) != 0) | (np.diff(later) != 0))
    return starts[changes], offsets[changes], (later < offsets)[changes]


def _year(micros: Any) -> int:
    return (_EPOCH + int(micros) * _MICROSECOND).year


@lru_cache(maxsize=4096)
def _year_periods(zone: tzinfo, year: int, fold: int) -> tuple[tuple[int, int], ...]:
    """Returns the periods of one year in which the zone's offset is constant.

    Each period is a pair of its start, in local microseconds since 1970, and its offset in microseconds.
    """

    def offset(moment: datetime) -> int:
        return (zone.utcoffset(moment.replace(fold=fold)) or timedelta()) // _MICROSECOND

    day = datetime(year, 1, 1)
    held = offset(day)
    periods = [((day - _EPOCH) // _MICROSECOND, held)]
    while day < _LAST and day.year == year:
        following = day + timedelta(days=1) if _LAST - day > timedelta(days=1) else _LAST
        if (now := offset(following)) != held:
            change = _change(day, following, held, offset)
            periods.append(((change - _EPOCH) // _MICROSECOND, now))
        day, held = following, now
    return tuple(periods)


def _change(before: datetime, after: datetime, held: int, offset: Offset) -> datetime:
    """Returns the first whole second between ``before`` and ``after`` at which the zone's offset has changed.

    ``held``: the offset at ``before``, in microseconds.
    """
    while after - before > _SECOND:
        middle = before + (after - before) // _SECOND // 2 * _SECOND
        if offset(middle) == held:
            before = middle
        else:
            after = middle
    return after
