"""A range of a table's key that a person gives: ``id >= 100 and id < 200``.

It is no SQL that a database is given. It is read as comparisons of columns of the key with literals, all of
which hold; the literals become parameters, as texts that canal-json has of the columns' types. The types are
those that each database and Spark compare in the same way: numbers, dates and times.
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
    "give comparisons of columns of the source's key with literals, joined by and: id >= 100 and id < 200, "
    "day between '2026-01-01' and '2026-01-31', id = 7"
)
# The digits before the point, as many as a number has that each database and Spark compare exactly.
_MOST_DIGITS: Final = 20
_WHOLE: Final = frozenset({"integer", "unsigned64"})
_DATES: Final = frozenset({"date", "local_date"})
_MOMENTS: Final = frozenset({"datetime", "timestamp", "local_datetime", "instant"})
# What MySQL's TIMESTAMP can be, in UTC; it takes no other for a parameter.
_FIRST, _LAST = datetime(1970, 1, 1, 0, 0, 1), datetime(2038, 1, 19, 3, 14, 7)
_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?", re.ASCII)
_NUMERIC: Final = re.compile(r"numeric\((\d+),(\d+)\)")
_MOST_OID: Final = (1 << 32) - 1
_TIME: Final = re.compile(r"(-?)(\d{1,3}):([0-5]\d):([0-5]\d)(\.\d{1,6})?", re.ASCII)


class Bound(NamedTuple):
    """What the values of a column of the source's key are to be; ``text``: as canal-json has them."""

    column: str
    comparison: Comparison
    text: str

    def of(self, value: Any, other: Any) -> Any:
        """The comparison of a value with the bound's, of whatever kind both are."""
        return _COMPARES[self.comparison](value, other)

    def __str__(self) -> str:
        """As it is read."""
        return f"{self.column} {self.comparison} {self.text!r}"


def parse_bounds(text: str) -> tuple[Bound, ...]:
    """The comparisons of a condition, whose literals are not looked at yet.

    Raises:
        ConfigError: it is anything else.
    """
    import sqlglot
    from sqlglot.errors import SqlglotError

    try:
        trees = sqlglot.parse(text, dialect="spark")
    except (SqlglotError, RecursionError, ValueError):
        raise _refused(text, "is not SQL") from None
    if len(trees) != 1 or trees[0] is None:
        raise _refused(text, "is not one condition")
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
            raise _refused(text, "has a between that is not of a column and two literals")
        yield Bound(column, ">=", low)
        yield Bound(column, "<=", high)
    elif type(tree) in kinds:
        yield _comparison(text, kinds[type(tree)], tree.left, tree.right)
    else:
        raise _refused(text, f"has something that is no comparison ({tree.key})")


def _comparison(text: str, kind: Comparison, left: Any, right: Any) -> Bound:
    for column, literal, found in (
        (_column(left), _literal(right), kind),
        (_column(right), _literal(left), _MIRRORED[kind]),
    ):
        if column is not None and literal is not None:
            return Bound(column, found, literal)
    raise _refused(text, "compares something else than a column with a literal")


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
    return ConfigError(f"{text!r} {reason}: {_FORM}", key=OPTION)


def checked_bounds(bounds: Iterable[Bound], stored: StoredTable) -> tuple[Bound, ...]:
    """The same with the database's names of the columns, and canal-json's texts.

    Raises:
        ConfigError: a column is none of the key, or of a type whose order is not the same everywhere; a
            literal is none of its type.
    """
    fold = folding(stored.key)
    names, types = {fold(name): name for name in stored.key}, stored.key_types
    found = []
    for bound in bounds:
        name = names.get(fold(bound.column))
        if name is None:
            raise ConfigError(
                f"{bound.column} is no column of the key ({', '.join(stored.key)}): {_FORM}", key=OPTION
            )
        text = _text(bound, types[name])
        found.append(Bound(name, bound.comparison, text))
    return tuple(found)


def _text(bound: Bound, kind: ColumnType) -> str:
    """A literal as canal-json has the type's values."""
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
            f"{bound.text!r} is no value that {bound.column} ({kind.sql or kind.name}) is compared with: "
            "numbers and times are some that the column can have, dates are 2026-01-31, times 10:00:00 or "
            "2026-01-31 10:00:00, of a TIMESTAMP in UTC",
            key=OPTION,
        ) from None
    raise ConfigError(
        f"{bound.column} is of the type {kind.sql or kind.name}, whose values the source and the target may "
        "compare differently: a range is one of integers, decimals, dates and times",
        key=OPTION,
    )


def _of_column(text: str, kind: ColumnType) -> str:
    """The text of a number or a time that the column can have.

    A database would refuse another one as a parameter of the column's type, whenever it is asked.

    Raises:
        ValueError, DecodeError: the column cannot have it.
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
    """That of a decimal type, or of Postgres' numeric; None: it is none, or each value has its own."""
    if row_of(kind).reader == "decimal":
        return kind.scale or 0
    found = _NUMERIC.fullmatch(kind.sql or "")
    return int(found[2]) if found is not None else None


def _number(text: str, scale: int) -> str:
    whole, _, fraction = text.lstrip("-").partition(".")
    if _NUMBER.fullmatch(text) is None or len(whole) > _MOST_DIGITS or len(fraction) > scale:
        raise ValueError(text)
    return format(Decimal(text), "f")


def _moment(text: str, reader: str) -> str:
    fraction = text.partition(".")[2]
    found = datetime.fromisoformat(text)
    if (
        found.tzinfo is not None
        or len(fraction) > 6
        or (reader == "timestamp" and not _FIRST <= found <= _LAST)
    ):
        raise ValueError(text)
    return found.isoformat(sep=" ")


def _time(text: str) -> str:
    if _TIME.fullmatch(text) is None:
        raise ValueError(text)
    return text


def seconds_of(text: str) -> Decimal:
    """The seconds of a time of ``checked_bounds``, which may be below zero, or beyond a day."""
    found = _TIME.fullmatch(text)
    assert found is not None  # noqa: S101  (checked before)
    sign, hours, minutes, seconds, fraction = found.groups()
    whole = timedelta(hours=int(hours), minutes=int(minutes), seconds=int(seconds))
    value = Decimal(int(whole.total_seconds())) + Decimal(fraction or 0)
    return -value if sign else value


def within(
    bounds: Sequence[Bound], types: Mapping[str, ColumnType], dialect: SourceDialect
) -> ColumnElement[bool]:
    """Whether a row of the source is within the bounds, which become parameters."""
    import sqlalchemy as sa

    compared = (
        one.of(
            dialect.compared(one.column, types[one.column]),
            dialect.parameter_of(dialect.key_text(one.text, types[one.column]), types[one.column]),
        )
        for one in bounds
    )
    return sa.and_(sa.true(), *compared)


def from_lists(found: Iterable[Sequence[str]]) -> tuple[Bound, ...]:
    """Bounds that were kept as plain texts."""
    return tuple(Bound(column, cast(Comparison, kind), text) for column, kind, text in found)
