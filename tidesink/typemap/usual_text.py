"""The usual texts of canal-json columns, told all at once: one pattern over a whole row.

``parse.text_reader`` reads a column's text and says what is wrong with it, at the price of some calls a
value. Most values need none of that. A type's usual texts have a pattern so narrow that a constructor of
Python reads each of them as ``text_reader`` would. The texts of a row's columns, joined, are matched once:
if they match, nothing can be wrong with them; if not, the readers say what they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, NamedTuple

from tidesink.events import ColumnType, Value
from tidesink.typemap.calendar_text import DATE
from tidesink.typemap.parse import DATETIME, DECIMAL, TIME, integer_bounds, padded_decimal
from tidesink.typemap.table import Reader, row_of

# In no usual text.
_BETWEEN: Final = "\0"
# Far from what a double cannot hold.
_DOUBLE: Final = r"-?[0-9]{1,40}(?:\.[0-9]{1,400})?"


class UsualText(NamedTuple):
    """A type's usual texts; ``convert`` reads them, None where the text is the value."""

    pattern: str
    convert: Callable[[str], Value] | None


class UsualRow(NamedTuple):
    """Reads the columns ``names`` of rows where all their texts are usual.

    ``read`` puts the values in the texts' place; where one is NULL or not usual it gives False, and the row
    is as it was.
    """

    names: frozenset[str]
    read: Callable[[dict[str, Any]], bool]


def usual_text(column_type: ColumnType) -> UsualText | None:
    """The usual texts of a type; None where only its reader can tell."""
    bounds = integer_bounds(column_type)
    if bounds is not None:
        return _integer(*bounds)
    if row_of(column_type).reader == "decimal":
        return UsualText((padded_decimal(column_type) or DECIMAL).pattern, Decimal)
    return _BY_READER.get(row_of(column_type).reader)


def _integer(low: int, high: int) -> UsualText | None:
    if low > 0 or high < 100:
        return None
    sign = "-?" if low <= -high else ""
    return UsualText(sign + _up_to(high), int)


def _up_to(high: int) -> str:
    """Digits that are at most ``high``, whatever they are: nearly all such numbers, since it is a quick look.

    By the first digit alone a year or a TINYINT would miss too many.
    """
    first, second, rest = str(high)[0], str(high)[1], len(str(high)) - 1
    if high < 10_000 and second > "0":
        lead = f"(?:[0-{int(first) - 1}][0-9]|{first}[0-{int(second) - 1}]|[0-9])"
        return f"{lead}?[0-9]{{1,{rest - 1}}}"
    return f"[0-{int(first) - 1}]?[0-9]{{1,{rest}}}"


_BY_READER: Final[dict[Reader, UsualText]] = {
    "float64": UsualText(_DOUBLE, float),
    "date": UsualText(DATE.pattern, None),
    "datetime": UsualText(DATETIME.pattern, None),
    "timestamp": UsualText(DATETIME.pattern, None),
    "time": UsualText(TIME.pattern, None),
}


def usual_row(columns: Iterable[tuple[str, ColumnType]]) -> UsualRow | None:
    """What reads the usual texts of these columns; None where none of them has any."""
    found = [(name, usual) for name, one in columns if (usual := usual_text(one)) is not None]
    if not found:
        return None
    names, patterns = [name for name, _ in found], [usual.pattern for _, usual in found]
    if len(found) == 1:
        # Of one name itemgetter gives the bare text.
        names, patterns = names * 2, patterns * 2
    conversions = tuple((name, usual.convert) for name, usual in found if usual.convert is not None)
    return UsualRow(frozenset(names), _reader(itemgetter(*names), _joined(tuple(patterns)), conversions))


def _reader(
    texts: Callable[[Any], Iterable[str]],
    pattern: re.Pattern[str],
    conversions: tuple[tuple[str, Callable[[str], Value]], ...],
) -> Callable[[dict[str, Any]], bool]:
    matches, join = pattern.fullmatch, _BETWEEN.join

    def read(row: dict[str, Any]) -> bool:
        try:
            if not matches(join(texts(row))):
                return False
        except TypeError:  # a NULL, or no text at all
            return False
        for name, convert in conversions:
            row[name] = convert(row[name])
        return True

    return read


@lru_cache(maxsize=256)
def _joined(patterns: tuple[str, ...]) -> re.Pattern[str]:
    # Rows of one table come and go in several shapes, and a pattern takes longer to compile than to use.
    return re.compile(_BETWEEN.join(f"(?:{_ungrouped(pattern)})" for pattern in patterns), re.ASCII)


def _ungrouped(pattern: str) -> str:
    """The pattern without capturing groups, each of which would cost something."""
    return re.sub(r"(?<!\\)\((?!\?)", "(?:", pattern)
