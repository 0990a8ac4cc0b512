"""What a decoder yields and an encoder takes: frozen values, no I/O.

Values in ``key``, ``before`` and ``after`` are Python's nearest exact type for the column:

=====================================  ==========================================================
integers, YEAR, BIT                    ``int`` (unsigned 64-bit too, never negative)
FLOAT, DOUBLE                          ``float`` (FLOAT: the exact value of the 32-bit number)
DECIMAL                                ``decimal.Decimal`` with the column's scale kept
text, JSON, VECTOR                     ``str``
ENUM, SET                              ``str`` labels, or ``int`` where the wire has no labels
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


# The member of an event's extension that names the columns whose value the source did not send.
UNAVAILABLE: Final = "unavailable"
# The same of the row before the change.
UNAVAILABLE_BEFORE: Final = "unavailable_before"
# Between the numbers of a place at the source, as text.
SOURCE_SEPARATOR: Final = ":"

Value = int | float | Decimal | str | bytes | None
Row = Mapping[str, Value]


class Op(str, Enum):
    """What happened to a row. ``UPSERT``: the wire cannot tell an insert from an update."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    UPSERT = "upsert"
    TRUNCATE = "truncate"


class TableId(NamedTuple):
    """A table's name at the source; ``schema`` is TiDB's database."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


class Position(NamedTuple):
    """Where one event stands: in Kafka, and at its source where the event says so.

    ``index`` counts the events of one message. ``source`` is compared number by number
    (TiCDC: ``(commit_ts,)``; a binlog: ``(file number, pos, row)``), never as text.
    """

    topic: str
    partition: int
    offset: int
    index: int = 0  # type: ignore[assignment]  # the field hides tuple.index, which nobody wants here
    source: tuple[int, ...] | None = None

    @property
    def source_text(self) -> str | None:
        """``source`` as text, its numbers with a colon between them; what a metadata column has."""
        return None if self.source is None else SOURCE_SEPARATOR.join(map(str, self.source))


class SchemaIds(NamedTuple):
    """Registry ids a message was written with; None where it carries none."""

    key: int | None
    value: int | None


@dataclass(frozen=True)
class ColumnType:
    """One column's type; ``name`` is a logical type of ``typemap.table``.

    ``sql`` is the full MySQL text where it is known (``decimal(10,2) unsigned``). Precision, scale
    and fsp are None where the wire does not say. ``named`` is the name that a Kafka Connect schema gives the
    type where tidesink does not know it and reads the values by the Connect type alone.
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
    """A type that a column had; rows committed before ``until`` (a TiDB TSO) were written with it."""

    type: ColumnType
    until: int


# Of a column that was added: nothing tells what the database wrote into rows that were there.
UNTOLD_DEFAULT: Final = "(computed by the database)"


@dataclass(frozen=True)
class Column:
    """A column of a table at the source.

    ``default`` is the default's text as TiDB holds it now (None: no default, or NULL). Where rows from
    before the column have another value (``redefaulted``), that is ``origin_default``: the default was
    changed since, or the column was added NOT NULL without one.
    ``handle`` marks the handle key (primary key, or the not-null unique key TiCDC chose).
    ``earlier`` are the types before this one, oldest first, as far as rows of them read differently.
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
        """The type a row of this commit ts (a TiDB TSO) was written with."""
        return next((was.type for was in self.earlier if commit_ts < was.until), self.type)

    @property
    def backfill(self) -> str | None:
        """The default when the column was added, as text: rows from before have it, whatever came later."""
        return self.origin_default if self.redefaulted else self.default

    def redefined_by(self, new: Column) -> Column:
        """What a new definition makes of the column: its rows from before stay as they are."""
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
    """The columns of one table in table order."""

    table: TableId
    columns: tuple[Column, ...]

    @cached_property
    def by_name(self) -> Mapping[str, Column]:
        """Columns by name."""
        return {column.name: column for column in self.columns}

    @property
    def handle_columns(self) -> tuple[Column, ...]:
        """The handle key, in column order."""
        return tuple(column for column in self.columns if column.handle)

    @property
    def primary_key(self) -> tuple[Column, ...]:
        """The primary key, in column order; empty where there is none."""
        return tuple(column for column in self.columns if column.primary_key)


class ChangeEvent(NamedTuple):
    """One row change.

    ``schema`` holds the columns the writer knew, as far as the wire tells. ``extension`` holds the
    wire's own extras (``_tidb_…`` fields and envelope members) that are no columns.
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
    """A schema change as the topic carries it. ``kind`` is the codec's own word for it."""

    table: TableId
    query: str
    kind: str
    commit_ts: int | None
    position: Position
    extension: Mapping[str, object] | None = None


class WatermarkEvent(NamedTuple):
    """All changes up to ``commit_ts`` were sent (TiCDC's resolved ts)."""

    commit_ts: int
    position: Position


class MessageEvent(NamedTuple):
    """Something a topic carries that changes neither rows nor tables; nothing is to be applied.

    ``kind``: ``logical`` (Postgres' ``pg_logical_emit_message``, with its ``prefix`` and ``content``),
    ``transaction`` (where one begins or ends), ``heartbeat`` or ``notification``, whose members are in
    ``extension``.
    """

    kind: str
    prefix: str | None
    content: bytes | None
    position: Position
    extension: Mapping[str, object] | None = None


Event = ChangeEvent | DdlEvent | WatermarkEvent | MessageEvent


@dataclass(frozen=True)
class Message:
    """One Kafka record, as read or to be written. ``timestamp`` is in ms since 1970."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = field(default=())


# A TiDB TSO is ms since 1970, and so many bits that count within one.
LOGICAL_BITS: Final = 18


def physical_ms(commit_ts: int) -> int:
    """The wall clock of a TiDB TSO, in ms since 1970."""
    return commit_ts >> LOGICAL_BITS


def time_of(text: str) -> datetime:
    """A moment that a person gives as ISO 8601, which is UTC if it names no zone.

    Raises:
        ValueError: the text is no such time.
    """
    # Before Python 3.11 Z is not read.
    moment = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text))
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)


@lru_cache(maxsize=4096)  # asked for each column of a row; half the time
def fold_name(name: str) -> str:
    """The name of a schema, table or column in lower case, as TiDB compares it: by Go's ``strings.ToLower``.

    Go takes each character by itself. ``str.lower`` looks at its neighbours, and makes ς of the last Σ of
    a word; and of İ, which is i to Go, it makes two characters.
    """
    if name.isascii():
        return name.lower()
    return "".join(character.lower()[0] for character in name)


NameFold = Callable[[str], str]


@dataclass(frozen=True)
class _FoldApart:
    """Folds names, except those in ``apart`` (folded), which are compared as they are spelled."""

    apart: frozenset[str]

    def __call__(self, name: str) -> str:
        folded = fold_name(name)
        return name if folded in self.apart else folded


def folding(*lists: Iterable[str]) -> NameFold:
    """Returns the function under which the column names of these lists are compared.

    It is ``fold_name``, unless one list has two names that differ only in case, as Postgres and Oracle allow:
    such names are compared exactly in all the lists. So a column that one side spells otherwise is found
    wherever only one column can be meant.
    """
    apart = set[str]()
    for names in lists:
        spelled: dict[str, str] = {}
        for name in names:
            folded = fold_name(name)
            if spelled.setdefault(folded, name) != name:
                apart.add(folded)
    return _FoldApart(frozenset(apart)) if apart else fold_name
