"""Events, which decoders return and encoders accept. They are frozen values without I/O.

Values in ``key``, ``before`` and ``after`` have the nearest exact Python type for their column:

=====================================  ==========================================================
integers, YEAR, BIT                    ``int`` (unsigned 64-bit too, never negative)
FLOAT, DOUBLE                          ``float`` (FLOAT: the exact value of the 32-bit number)
DECIMAL                                ``decimal.Decimal`` with the column's scale kept
text, JSON, VECTOR                     ``str``
ENUM, SET                              ``str`` labels, or ``int`` if the wire has no labels
DATE, TIME, DATETIME, TIMESTAMP        ``str``, MySQL's text, since 0000-00-00 and 838:59:59 are
                                       values; ``typemap.values`` turns them into dates and times
binary                                 ``bytes``
=====================================  ==========================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from decimal import Decimal
from enum import Enum
from functools import cached_property, lru_cache
from typing import Final, Literal, NamedTuple

SequenceBy = Literal["kafka", "source"]


# Member of an event's extension with the names of columns whose values the source did not send.
UNAVAILABLE: Final = "unavailable"
# The same for the row before the change.
UNAVAILABLE_BEFORE: Final = "unavailable_before"
# Separator between the numbers of a source position in text form.
SOURCE_SEPARATOR: Final = ":"

Value = int | float | Decimal | str | bytes | None
Row = Mapping[str, Value]


class Op(str, Enum):
    """Kind of a row change. ``UPSERT``: the message does not distinguish an insert from an update."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    UPSERT = "upsert"
    TRUNCATE = "truncate"


class TableId(NamedTuple):
    """A table's name in the source database. ``schema`` is the database in TiDB and MySQL."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


class Position(NamedTuple):
    """Position of one event in Kafka and, if the event has one, in its source database's log.

    ``index`` counts the events of one message. ``source`` has the source position as numbers (TiCDC:
    ``(commit_ts,)``; a binlog: ``(file number, pos, row)``), which are compared as numbers and never as text.
    """

    topic: str
    partition: int
    offset: int
    index: int = 0  # type: ignore[assignment]  # hides tuple.index, which is not used here
    source: tuple[int, ...] | None = None

    @property
    def source_text(self) -> str | None:
        """The source position as text for metadata columns: its numbers, separated by colons."""
        return None if self.source is None else SOURCE_SEPARATOR.join(map(str, self.source))


class SchemaIds(NamedTuple):
    """Registry ids of a message's key and value schemas. None: the message has no such id."""

    key: int | None
    value: int | None


@dataclass(frozen=True)
class ColumnType:
    """The type of a column.

    Attributes:
        name: A logical type of ``typemap.table``.
        precision, scale, fsp: None if the message does not have them.
        sql: The full type in SQL, if known: ``decimal(10,2) unsigned``.
        named: The type's name in a Kafka Connect schema, if tidesink does not know this name. Values are then
            read by the Connect type only.
    """

    name: str
    precision: int | None = None
    scale: int | None = None
    length: int | None = None
    fsp: int | None = None
    members: tuple[str, ...] | None = None
    sql: str | None = None
    named: str | None = None


class EarlierType(NamedTuple):
    """A former type of a column.

    Rows that were committed before ``until`` (a TiDB TSO) were written with it.
    """

    type: ColumnType
    until: int


# Default of a column that was added, if the values that the database wrote into existing rows are unknown.
UNKNOWN_DEFAULT: Final = "(computed by the database)"


@dataclass(frozen=True)
class Column:
    """A column of a table in the source database.

    Attributes:
        default: Text of the current default in TiDB; None: no default, or NULL.
        handle: True for a column of the handle key: the primary key, or the not-null unique key that TiCDC
            chose.
        redefaulted: True if rows from before the column was added have another value than ``default``,
            because the default was changed later, or the column was added NOT NULL without a default.
        origin_default: The column's value in these rows, as text, if ``redefaulted`` is True.
        earlier: Former types whose rows are read in another way, oldest first.
    """

    name: str
    type: ColumnType
    nullable: bool = True
    default: str | None = None
    handle: bool = False
    primary_key: bool = False
    column_id: int | None = None
    virtual: bool = False
    origin_default: str | None = None
    redefaulted: bool = False
    earlier: tuple[EarlierType, ...] = ()

    def type_at(self, commit_ts: int) -> ColumnType:
        """Returns the type with which a row of this commit_ts (a TiDB TSO) was written."""
        return next((was.type for was in self.earlier if commit_ts < was.until), self.type)

    @property
    def backfill(self) -> str | None:
        """The value, as text, in rows from before the column was added. Later changes of the default do not
        affect it.
        """
        return self.origin_default if self.redefaulted else self.default

    def redefined_by(self, new: Column) -> Column:
        """Returns the column with the definition ``new``.

        The value in rows from before the column was added does not change.
        """
        first = self.backfill
        changed = first != new.default
        return replace(
            new,
            column_id=self.column_id,
            origin_default=first if changed else None,
            redefaulted=changed,
        )


@dataclass(frozen=True)
class TableSchema:
    """The columns of one table, in the table's order."""

    table: TableId
    columns: tuple[Column, ...]

    @cached_property
    def by_name(self) -> Mapping[str, Column]:
        """Columns by name."""
        return {column.name: column for column in self.columns}

    @property
    def handle_columns(self) -> tuple[Column, ...]:
        """The columns of the handle key, in column order."""
        return tuple(column for column in self.columns if column.handle)

    @property
    def primary_key(self) -> tuple[Column, ...]:
        """The columns of the primary key, in column order; empty for a table without a primary key."""
        return tuple(column for column in self.columns if column.primary_key)


class ChangeEvent(NamedTuple):
    """One row change.

    Attributes:
        schema: The writer's columns, without those that the message omits.
        extension: Members of the message that are not columns (``_tidb_…`` fields and envelope members).
    """

    op: Op
    table: TableId
    key: Row | None
    before: Row | None
    after: Row | None
    commit_ts: int | None
    position: Position
    schema: TableSchema | None = None
    schema_id: SchemaIds | None = None
    extension: Mapping[str, object] | None = None


class DdlEvent(NamedTuple):
    """A schema change in a topic. ``kind``: the codec's name for the kind of change."""

    table: TableId
    query: str
    kind: str
    commit_ts: int | None
    position: Position
    extension: Mapping[str, object] | None = None


class WatermarkEvent(NamedTuple):
    """A watermark: all changes up to ``commit_ts`` were sent (TiCDC's resolved ts)."""

    commit_ts: int
    position: Position


class MessageEvent(NamedTuple):
    """A message that changes neither rows nor tables, so nothing is applied.

    ``kind`` is ``logical`` (Postgres' ``pg_logical_emit_message``, with its ``prefix`` and ``content``),
    ``transaction`` (the begin or end of one), ``heartbeat`` or ``notification``. Other members of the message
    are in ``extension``.
    """

    kind: str
    prefix: str | None
    content: bytes | None
    position: Position
    extension: Mapping[str, object] | None = None


Event = ChangeEvent | DdlEvent | WatermarkEvent | MessageEvent


@dataclass(frozen=True)
class Message:
    """One Kafka record, either read or to be written. ``timestamp`` is in ms since 1970."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = field(default=())


# Number of low bits of a TiDB TSO that count within a millisecond. The bits above are ms since 1970.
LOGICAL_BITS: Final = 18


def physical_ms(commit_ts: int) -> int:
    """Returns the wall-clock time of a TiDB TSO, in ms since 1970."""
    return commit_ts >> LOGICAL_BITS


def time_of(text: str) -> datetime:
    """Parse a time in ISO 8601, which is in UTC if it has no zone.

    Raises:
        ValueError: The text is not such a time.
    """
    # Python accepts the Z only from version 3.11 on.
    moment = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text))
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)


@lru_cache(maxsize=4096)  # called for each column of a row; saves half the time
def fold_name(name: str) -> str:
    """Returns the name of a schema, table or column in lower case, like Go's ``strings.ToLower`` in TiDB.

    Go converts each character separately. ``str.lower`` depends on the characters around: it converts the
    last Σ of a word to ς, and İ to two characters, which is i in Go.
    """
    if name.isascii():
        return name.lower()
    return "".join(character.lower()[0] for character in name)


NameFold = Callable[[str], str]


@dataclass(frozen=True)
class _FoldApart:
    """Folds names to lower case, except names whose folded form is in ``apart``.

    Those names stay unchanged, so that they are compared exactly.
    """

    apart: frozenset[str]

    def __call__(self, name: str) -> str:
        folded = fold_name(name)
        return name if folded in self.apart else folded


def folding(*lists: Iterable[str]) -> NameFold:
    """Returns the function that folds the column names of these lists for comparisons.

    It is ``fold_name``, unless one list has two names that differ only in case, as Postgres and Oracle allow.
    Such names are compared exactly in all lists. All other names match even if their case differs between the
    lists.
    """
    apart = set[str]()
    for names in lists:
        spelled: dict[str, str] = {}
        for name in names:
            folded = fold_name(name)
            if spelled.setdefault(folded, name) != name:
                apart.add(folded)
    return _FoldApart(frozenset(apart)) if apart else fold_name
