"""By which of a column's types a canal-json row is read: the one in force when it was committed.

A column that only ever had one reading costs nothing here. One that had several, such as an ENUM whose
members were numbered anew, is a CASE over them; a row's own full type word (content-compatible) that lists
the members comes before its time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import reduce
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.codecs.columns_types import Reading, read_text, try_cast
from tidesink.ddl.history import reads_alike
from tidesink.events import ColumnType, EarlierType
from tidesink.typemap.render import mysql_type_text
from tidesink.typemap.table import Reader, row_of
from tidesink.typemap.target_schema import ShapeColumn, TableShape

# The TSO a row is held against definitions with: see ``typemap.ddl_history.row_moment``.
WRITTEN_AT: Final = "written_at"
_LOGICAL_BITS: Final = 18
# Milliseconds beyond these bits have no place in a TSO; no clock shows them.
_LAST_MS: Final = (1 << 45) - 1


def is_timed(shape: TableShape) -> bool:
    """Whether a row's time says how one of the columns is read."""
    return any(_readings(column) for column in shape.columns)


def written_at(commit_ts: Column, es: Column) -> Column:
    """The TSO of a row; without a commit ts the end of its millisecond, and after all where it says none."""
    last = F.lit((1 << _LOGICAL_BITS) - 1)
    by_clock = F.shiftleft(F.least(es, F.lit(_LAST_MS)), _LOGICAL_BITS).bitwiseOR(last)
    return F.coalesce(commit_ts, by_clock, F.lit((1 << 63) - 1))


def _readings(column: ShapeColumn) -> tuple[EarlierType, ...]:
    """The types before the present one, each with what its rows are read as; none where all read alike."""
    types = [was.type for was in column.earlier]
    if all(reads_alike(column.type, was) for was in types):
        return ()
    return tuple(
        was._replace(type=column.type) if reads_alike(column.type, was.type) else was
        for was in column.earlier
    )


def _in_force(column: ShapeColumn, make: Callable[[ColumnType], Column]) -> Column:
    """What ``make`` makes of the type that a row is read by."""
    found: Column | None = None
    for was in _readings(column):
        before, made = _is_before(column, was), make(was.type)
        found = F.when(before, made) if found is None else found.when(before, made)
    now = make(column.type)
    return now if found is None else found.otherwise(now)


def _is_before(column: ShapeColumn, was: EarlierType) -> Column:
    earlier = F.col(WRITTEN_AT) < F.lit(was.until)
    text = _members_text(was.type)
    if text is None:
        return earlier
    word = F.col("message").getField("mysqlType").getField(column.name)
    return F.when(F.endswith(word, F.lit(")")), word == text).otherwise(earlier)


def read_in_force(wire: Column, column: ShapeColumn, shape: TableShape) -> Reading:
    """A reading of a column's text by the type in force when the row was committed."""
    now = read_text(wire, column.type, column, shape)
    if not _readings(column):
        return now
    return Reading(
        _in_force(column, lambda was: _fitting(read_text(wire, was, column, shape).value, was, column)),
        zero=_in_force(column, lambda was: _is_zero(read_text(wire, was, column, shape))),
    )


def _fitting(value: Column, was: ColumnType, column: ShapeColumn) -> Column:
    """A value of an earlier type as the present one holds it; null where it cannot."""
    cast = try_cast(value, column.spark)
    if column.spark == "string" and row_of(was).reader == "binary":
        return F.when(F.is_valid_utf8(cast), cast)
    return cast


def _is_zero(reading: Reading) -> Column:
    return F.lit(False) if reading.zero is None else reading.zero


# Readers whose texts mean something else than what they show, and the words of their types.
_CODED: Final[tuple[Reader, ...]] = ("enum", "set", "binary")


def contradictions(columns: Iterable[ShapeColumn], words: Column) -> Iterator[tuple[ShapeColumn, Column]]:
    """For each column whose texts could mean another thing: where a row's type word says they do."""
    for column in columns:
        if _may_be_coded(column):
            word = words.getField(column.name)
            differs = _in_force(column, lambda now, word=word: _contradicts(word, now))  # type: ignore[misc]
            yield column, word.isNotNull() & differs


def _may_be_coded(column: ShapeColumn) -> bool:
    types = (*(was.type for was in _readings(column)), column.type)
    return any(row_of(one).reader in ("text", *_CODED) for one in types)


def as_members(columns: Iterable[ShapeColumn], words: Column) -> list[tuple[ShapeColumn, Column]]:
    """For each of the other columns: where a row's type word says that the text is a member's number.

    A number stays what it is in any other type.
    """
    plain = [column for column in columns if not _may_be_coded(column)]
    named = [(column, words.getField(column.name)) for column in plain]
    return [(c, F.startswith(word, F.lit("enum")) | F.startswith(word, F.lit("set"))) for c, word in named]


def _contradicts(word: Column, column_type: ColumnType) -> Column:
    reader = row_of(column_type).reader
    coded = {
        "enum": F.startswith(word, F.lit("enum")),
        "set": F.startswith(word, F.lit("set")),
        "binary": F.contains(word, F.lit("binary")) | F.contains(word, F.lit("blob")),
    }
    if reader not in ("text", *_CODED):
        return F.lit(False)
    own = coded.get(reader)
    agrees = ~reduce(Column.__or__, coded.values()) if own is None else own
    return ~(agrees & _same_members(word, column_type))


def _same_members(word: Column, column_type: ColumnType) -> Column:
    """False where the word lists members, and others than the definition's: numbers mean those."""
    text = _members_text(column_type)
    return F.lit(True) if text is None else ~F.endswith(word, F.lit(")")) | (word == text)


def _members_text(column_type: ColumnType) -> str | None:
    return mysql_type_text(replace(column_type, sql=None)) if column_type.members is not None else None
