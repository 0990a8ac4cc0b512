"""Conditions on a table's key that a user passes to the command line: ``id >= 100 and id < 200``.

The condition is not passed to a database as SQL. It is parsed into comparisons of key columns with literals,
all of which must be true. The literals become query parameters, in their canal-json text form. Only types
that each database and Spark compare in the same way are allowed: numbers, dates and times.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast

from tidesink.errors import ConfigError, DecodeError
from tidesink.events import ColumnType, folding
from tidesink.typemap.table import row_of
from tidesink.typemap.values import text_reader

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

    from tidesink.source_database.base import SourceDialect, StoredTable

OPTION: Final = "--where"
Comparison = Literal[">=", ">", "<=", "<", "="]
_COMPARES: Final[Mapping[Comparison, Callable[[Any, Any], Any]]] = {
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
    "<": operator.lt,
    "=": operator.eq,
}
_MIRRORED: Final[Mapping[Comparison, Comparison]] = {">=": "<=", ">": "<", "<=": ">=", "<": ">", "=": "="}
_FORM: Final = (
    "Use comparisons of the source table's key columns with literals, joined by `and`. Examples: id >= 100 "
    "and id < 200, day between '2026-01-01' and '2026-01-31', id = 7."
)
# Maximum number of digits before the decimal point with which each database and Spark compare numbers
# exactly.
_MOST_DIGITS: Final = 20
_WHOLE: Final = frozenset({"integer", "unsigned64"})
_DATES: Final = frozenset({"date", "local_date"})
_MOMENTS: Final = frozenset({"datetime", "timestamp", "local_datetime", "instant"})
# The range of MySQL's TIMESTAMP, in UTC. MySQL accepts no other parameter for such a column.
_FIRST, _LAST = datetime(1970, 1, 1, 0, 0, 1), datetime(2038, 1, 19, 3, 14, 7)
_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?", re.ASCII)
_NUMERIC: Final = re.compile(r"numeric\((\d+),(\d+)\)")
_MOST_OID: Final = (1 << 32) - 1
_TIME: Final = re.compile(r"(-?)(\d{1,3}):([0-5]\d):([0-5]\d)(\.\d{1,6})?", re.ASCII)


class Bound(NamedTuple):
    """A condition on one column of a source table's key.

    ``text``: the value to compare with, in canal-json form.
    """

    column: str
    comparison: Comparison
    text: str

    def of(self, value: Any, other: Any) -> Any:
        """Returns the result of comparing two values, or two expressions, with the bound's operator."""
        return _COMPARES[self.comparison](value, other)

    def __str__(self) -> str:
        """Returns the condition as text that ``parse_bounds`` can parse."""
        return f"{self.column} {self.comparison} {self.text!r}"


def parse_bounds(text: str) -> tuple[Bound, ...]:
    """Parse a condition into comparisons. The literals are not checked yet.

    Raises:
        ConfigError: The text is not a conjunction of comparisons between a column and a literal.
    """
    import sqlglot
    from sqlglot.errors import SqlglotError

    try:
        trees = sqlglot.parse(text, dialect="spark")
    except (SqlglotError, RecursionError, ValueError):
        raise _refused(text, "is not a valid SQL condition") from None
    if len(trees) != 1 or trees[0] is None:
        raise _refused(text, "is not a single condition")
    return tuple(_comparisons(text, trees[0]))


def _comparisons(text: str, tree: Any) -> Iterator[Bound]:
    from sqlglot import exp

    kinds: Mapping[type, Comparison] = {exp.GTE: ">=", exp.GT: ">", exp.LTE: "<=", exp.LT: "<", exp.EQ: "="}
    if isinstance(tree, exp.Paren):
        yield from _comparisons(text, tree.this)
    elif isinstance(tree, exp.And):
        yield from _comparisons(text, tree.left)
        yield from _comparisons(text, tree.right)
    elif isinstance(tree, exp.Between):
        column = _column(tree.this)
        low, high = _literal(tree.args["low"]), _literal(tree.args["high"])
        if column is None or low is None or high is None or tree.args.get("symmetric"):
            raise _refused(text, "contains a `between` that does not compare a column with two literals")
        yield Bound(column, ">=", low)
        yield Bound(column, "<=", high)
    elif type(tree) in kinds:
        yield _comparison(text, kinds[type(tree)], tree.left, tree.right)
    else:
        raise _refused(text, f"contains a part that is not a comparison ({tree.key})")


def _comparison(text: str, kind: Comparison, left: Any, right: Any) -> Bound:
    for column, literal, comparison in (
        (_column(left), _literal(right), kind),
        (_column(right), _literal(left), _MIRRORED[kind]),
    ):
        if column is not None and literal is not None:
            return Bound(column, comparison, literal)
    raise _refused(text, "contains a comparison that is not between a column and a literal")


def _column(tree: Any) -> str | None:
    from sqlglot import exp

    plain = isinstance(tree, exp.Column) and isinstance(tree.this, exp.Identifier) and not tree.table
    return str(tree.name) if plain else None


def _literal(tree: Any) -> str | None:
    from sqlglot import exp

    if isinstance(tree, exp.Neg) and isinstance(tree.this, exp.Literal) and not tree.this.is_string:
        return f"-{tree.this.name}"
    return str(tree.name) if isinstance(tree, exp.Literal) else None


def _refused(text: str, reason: str) -> ConfigError:
    return ConfigError(f"{text!r} {reason}. {_FORM}", key=OPTION)


def checked_bounds(bounds: Iterable[Bound], stored: StoredTable) -> tuple[Bound, ...]:
    """Check bounds against a table's key. Returns them with the database's column names and canal-json texts.

    Raises:
        ConfigError: A column is not in the key, the databases may order its type differently, or a literal
            does not fit the column's type.
    """
    fold = folding(stored.key)
    names, types = {fold(name): name for name in stored.key}, stored.key_types
    checked = []
    for bound in bounds:
        name = names.get(fold(bound.column))
        if name is None:
            raise ConfigError(
                f"{bound.column} is not a column of the source table's key ({', '.join(stored.key)}). "
                f"{_FORM}",
                key=OPTION,
            )
        text = _text(bound, types[name])
        checked.append(Bound(name, bound.comparison, text))
    return tuple(checked)


def _text(bound: Bound, kind: ColumnType) -> str:
    """Convert a bound's literal to the canal-json form of the column's type."""
    reader = row_of(kind).reader
    try:
        if reader in _WHOLE and kind.name != "year":
            return _of_column(_number(bound.text, 0), kind)
        if (scale := _scale(kind)) is not None:
            return _of_column(_number(bound.text, scale), kind)
        if reader in _DATES:
            return date.fromisoformat(bound.text).isoformat()
        if reader in _MOMENTS:
            return _moment(bound.text, reader)
        if reader == "time":
            return _of_column(_time(bound.text), kind)
    except (ValueError, DecodeError):
        raise ConfigError(
            f"{bound.text!r} cannot be compared with {bound.column} ({kind.sql or kind.name}). "
            "Use numbers and times in the column's range, dates like 2026-01-31, and times like 10:00:00 "
            "or 2026-01-31 10:00:00 (a TIMESTAMP is in UTC).",
            key=OPTION,
        ) from None
    raise ConfigError(
        f"{bound.column} has the type {kind.sql or kind.name}, whose values the source database and the "
        "target may compare differently. Conditions are possible for integers, decimals, dates and times.",
        key=OPTION,
    )


def _of_column(text: str, kind: ColumnType) -> str:
    """Check that a number or a time is in the column's range, and return its text.

    The database would refuse a value outside the range as a parameter.

    Raises:
        ValueError, DecodeError: The value is outside the range.
    """
    numeric = _NUMERIC.fullmatch(kind.sql or "")
    if numeric is None:
        text_reader(kind)(text)
        most = _MOST_OID if kind.sql == "oid" else None
        inside = most is None or 0 <= int(text) <= most
    else:
        precision, scale = map(int, numeric.groups())
        inside = abs(Decimal(text)) < Decimal(10) ** (precision - scale)
    if not inside:
        raise ValueError(text)
    return text


def _scale(kind: ColumnType) -> int | None:
    """Returns the scale of a decimal type or of Postgres' numeric.

    Returns None if the type has no fixed scale.
    """
    if row_of(kind).reader == "decimal":
        return kind.scale or 0
    match = _NUMERIC.fullmatch(kind.sql or "")
    return int(match[2]) if match is not None else None


def _number(text: str, scale: int) -> str:
    whole, _, fraction = text.lstrip("-").partition(".")
    if _NUMBER.fullmatch(text) is None or len(whole) > _MOST_DIGITS or len(fraction) > scale:
        raise ValueError(text)
    return format(Decimal(text), "f")


def _moment(text: str, reader: str) -> str:
    fraction = text.partition(".")[2]
    moment = datetime.fromisoformat(text)
    if (
        moment.tzinfo is not None
        or len(fraction) > 6
        or (reader == "timestamp" and not _FIRST <= moment <= _LAST)
    ):
        raise ValueError(text)
    return moment.isoformat(sep=" ")


def _time(text: str) -> str:
    if _TIME.fullmatch(text) is None:
        raise ValueError(text)
    return text


def seconds_of(text: str) -> Decimal:
    """Returns the seconds of a time that ``checked_bounds`` returned.

    It may be negative, or longer than a day.
    """
    match = _TIME.fullmatch(text)
    assert match is not None  # noqa: S101  (checked before)
    sign, hours, minutes, seconds, fraction = match.groups()
    whole = timedelta(hours=int(hours), minutes=int(minutes), seconds=int(seconds))
    value = Decimal(int(whole.total_seconds())) + Decimal(fraction or 0)
    return -value if sign else value


def within(
    bounds: Sequence[Bound], types: Mapping[str, ColumnType], dialect: SourceDialect
) -> ColumnElement[bool]:
    """Returns the SQL condition that a source row is within all bounds.

    The bounds' values become parameters.
    """
    import sqlalchemy as sa

    compared = (
        bound.of(
            dialect.compared(bound.column, types[bound.column]),
            dialect.parameter_of(dialect.key_text(bound.text, types[bound.column]), types[bound.column]),
        )
        for bound in bounds
    )
    return sa.and_(sa.true(), *compared)


def from_lists(lists: Iterable[Sequence[str]]) -> tuple[Bound, ...]:
    """Restore bounds from lists of column, comparison and text."""
    return tuple(Bound(column, cast(Comparison, kind), text) for column, kind, text in lists)
