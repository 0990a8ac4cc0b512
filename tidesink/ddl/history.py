"""Records the history of tables' columns: the types and names that each column had over time.

To read a row, the types that its columns had at its commit time are needed. For example, canal-json writes
the number of an ENUM's label, and only the definition at that time shows which label it is. If a column's new
type gives all values in old rows the same meaning, it replaces the previous type in the history. An example
is an ENUM to which labels were appended.

TiCDC sends the rows committed before a DDL's commit ts before that DDL, and all later rows after it (tiflow
c7b2588, ticdc b813e76). So a row's commit time determines which definition applies to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

from tidesink.ddl.statements import TableDefinition
from tidesink.events import LOGICAL_BITS, Column, ColumnType, EarlierType, TableId, fold_name, physical_ms
from tidesink.typemap.table import Reader, row_of, spark_type
from tidesink.typemap.target_schema import wider_ddl

Key = tuple[str, str]

# The low 18 bits of a TiDB TSO are a counter; the physical milliseconds are above them.
LOGICAL: Final = (1 << LOGICAL_BITS) - 1
# Number of remembered statements. A restarted producer sends all statements since its checkpoint again.
_MOST_HEARD: Final = 200
# Later than every commit ts; used for a row without a commit time.
NEVER: Final = 1 << 64
# A TSO has 46 bits of milliseconds, but Spark compares it as a signed number. No real clock is that late.
_LAST_TSO: Final = (1 << 63) - 1
LAST_MS: Final = _LAST_TSO >> LOGICAL_BITS
# A DDL's commit time may be later than its record's Kafka timestamp by at most this difference of clocks.
_MOST_AHEAD_MS: Final = 86_400_000


def table_key(table: TableId) -> Key:
    """Returns a table's schema and name in folded case for comparison, because TiDB ignores case."""
    return fold_name(table.schema), fold_name(table.name)


def ddl_moment(commit_ts: int | None, es: object, sent: int | None = None) -> int | None:
    """Returns the TSO from which a DDL statement applies to rows, or None if it has no usable time.

    ``commit_ts``: commit TSO in the message's TiDB extension, or None. ``es``: commit time in the message, in
    ms since 1970. ``sent``: Kafka timestamp of the record, in ms since 1970. A commit time that is more than
    a day later than ``sent`` cannot be correct and is not used.

    Without ``commit_ts``, the result is the first TSO of the millisecond ``es``. All rows that were committed
    in this millisecond then count as later than the DDL, which may be wrong for some of them. No other rows
    are affected, because TiCDC's ``es`` is the commit TSO rounded down to milliseconds.
    """
    if commit_ts is not None:
        moment = commit_ts if commit_ts <= _LAST_TSO else None
    else:
        # bool is an int but not a time. After a time in the far future, all later DDL would look old.
        moment = es << LOGICAL_BITS if type(es) is int and 0 < es <= LAST_MS else None
    if moment is not None and sent and physical_ms(moment) > sent + _MOST_AHEAD_MS:
        # If this time were used, all DDL until then would count as sent again and be skipped.
        return None
    return moment


def row_moment(commit_ts: int | None, es: object) -> int:
    """Returns the commit TSO of a row, which can be compared with the result of ``ddl_moment``.

    ``commit_ts``: commit TSO in the message, or None. ``es``: commit time in the message, in ms since 1970.
    Without ``commit_ts``, the result is the last TSO of the millisecond ``es``. If ``es`` is not valid
    either, the result is NEVER, which is later than all TSOs.
    """
    if commit_ts is not None:
        return commit_ts
    return es << LOGICAL_BITS | LOGICAL if type(es) is int and 0 <= es <= LAST_MS else NEVER


# Kinds of former types by the kind of the current type, for which a row's text has another meaning in the two
# types. For any other change of type the text has the same meaning (numbers), or the type named in the row
# differs, which raises an error that names the column.
_READ_APART: Final[Mapping[Reader, frozenset[Reader]]] = {
    "text": frozenset({"enum", "set", "binary"}),
    "enum": frozenset({"text", "set", "binary"}),
    "set": frozenset({"text", "enum", "binary"}),
    "binary": frozenset({"text", "enum", "set"}),
    "date": frozenset({"datetime", "timestamp"}),
    "datetime": frozenset({"date"}),
    "timestamp": frozenset({"date"}),
}


def reads_same(now: ColumnType, was: ColumnType) -> bool:
    """Returns True if values written with the type ``was`` mean the same when read with the type ``now``."""
    new, old = row_of(now).reader, row_of(was).reader
    if new == old and now.members is not None and was.members is not None:
        return now.members[: len(was.members)] == was.members
    return old not in _READ_APART.get(new, frozenset())


def _covers(now: ColumnType, was: ColumnType) -> bool:
    """Returns True if the type ``now`` can replace the older type ``was`` in a column's history.

    It can if all values written with ``was`` mean the same when read with ``now``, and the Spark type of
    ``now`` can hold them.
    """
    if was.members is not None and row_of(now).reader != row_of(was).reader:
        return False
    now_ddl, was_ddl = spark_type(now).ddl, spark_type(was).ddl
    return reads_same(now, was) and wider_ddl(now_ddl, was_ddl) in (None, now_ddl)


_INTEGER_BYTES: Final[Mapping[str, int]] = {
    "tinyint": 1,
    "smallint": 2,
    "mediumint": 3,
    "int": 4,
    "bigint": 8,
}
# Maximum size of a value in bytes, as a power of two, by the first word of types without a length.
_TEXT_BYTES: Final[Mapping[str, int]] = {"tiny": 8, "text": 16, "blob": 16, "medium": 24, "long": 32}
_SIZED_READERS: Final[frozenset[Reader]] = frozenset({"text", "binary"})


def may_change_values(now: ColumnType, was: ColumnType) -> bool:
    """Returns True if changing a column's type from ``was`` to ``now`` may change values in existing rows.

    The database may have to round, cut off or convert values that do not fit the new type.
    """
    if now == was or now.sql == was.sql:
        return False
    new, old = row_of(now), row_of(was)
    if {new.name, old.name} == {"float", "double"}:
        return new.name == "float"
    if new.reader != old.reader:
        return {new.reader, old.reader} != {"integer", "unsigned64"} or not _holds_integers(now, was)
    if old.name.removesuffix(" unsigned") in _INTEGER_BYTES:
        return not _holds_integers(now, was)
    if new.reader == "decimal":
        digits = (was.precision or 10) - (was.scale or 0)
        return (now.precision or 10) - (now.scale or 0) < digits or (now.scale or 0) < (was.scale or 0)
    if now.members is not None and was.members is not None:
        return not set(was.members) <= set(now.members)
    if new.reader in _SIZED_READERS:
        return _size(now) < _size(was)
    return new.name != old.name or (now.fsp or 0) < (was.fsp or 0) or (now.length or 0) < (was.length or 0)


def _holds_integers(now: ColumnType, was: ColumnType) -> bool:
    names = [row_of(column_type).name for column_type in (now, was)]
    sizes = [_INTEGER_BYTES.get(name.removesuffix(" unsigned"), 0) for name in names]
    new_unsigned, old_unsigned = (name.endswith(" unsigned") for name in names)
    if not all(sizes) or (new_unsigned and not old_unsigned):
        return False
    return sizes[0] > sizes[1] or (sizes[0] == sizes[1] and new_unsigned == old_unsigned)


def _size(column_type: ColumnType) -> int:
    """Returns the length of a text or binary type. If it has none, returns the type's limit in bytes."""
    if column_type.length is not None:
        return column_type.length
    name = row_of(column_type).name
    return 1 << next((bits for word, bits in _TEXT_BYTES.items() if name.startswith(word)), 0)


class TypeVersion(NamedTuple):
    """A column type and the TSO from which rows are written with it.

    ``since``: the TSO. Rows that were committed before the first version of a column also have its type.
    """

    since: int
    type: ColumnType


_Versions = tuple[TypeVersion, ...]


class Removal(NamedTuple):
    """The drops and renames that ended the use of a column name in a table.

    Such a name may be used again by another column later. ``times``: number of drops and renames of the name.
    ``since``: commit TSO of the last of them, or None if unknown.
    """

    times: int
    since: int | None

    @property
    def moment(self) -> str:
        """Text that identifies the last drop or rename: its TSO, or ``#`` and the count if there is no TSO.

        All processes that read the same DDL get the same text.
        """
        return f"#{self.times}" if self.since is None else str(self.since)


class StoredHistory(msgspec.Struct):
    """A ``TypeHistory`` as it is stored. Each item of a list, except ``heard``, begins with a table's key.

    Attributes:
        tables: The types of each column, also of dropped columns.
        latest: Commit TSO of the latest statement on the table.
        heard: Digests of the newest statements that were applied.
        parted: For each dropped or renamed column name, the members of its ``Removal``.
        names: Column renames, as pairs of the old and the new name.
    """

    tables: list[tuple[str, str, list[tuple[str, _Versions]]]]
    latest: list[tuple[str, str, int]]
    heard: list[str]
    parted: list[tuple[str, str, list[tuple[str, int, int | None]]]]
    names: list[tuple[str, str, list[tuple[str, str]]]]


class TypeHistory:
    """Records the types that columns had over time, including those of dropped columns and tables.

    After a restart the producer sends statements again. They are recognized in two ways: the commit time is
    earlier than that of the latest statement on the same table, or a statement with the same commit time and
    text was already applied. The second check is needed for a RENAME that swaps two tables: applied twice, it
    would remove one of them.
    """

    def __init__(self) -> None:
        self._columns: dict[Key, dict[str, tuple[str, _Versions]]] = {}
        self._latest: dict[Key, int] = {}
        self._heard: dict[str, None] = {}
        self._parted: dict[Key, dict[str, Removal]] = {}
        self._renames: dict[Key, dict[tuple[str, str], None]] = {}

    def note(self, table: TableId, parted: Iterable[str], since: int | None) -> bool:
        """Records that a statement on a table was applied. ``parted``: columns that it drops or renames.

        ``since``: commit TSO of the statement, or None if unknown. If a later statement on the table was
        already recorded, nothing is recorded, and the result is False.
        """
        key = table_key(table)
        if since is not None:
            if since < self._latest.get(key, 0):
                return False
            self._latest[key] = since
        partings = self._parted.setdefault(key, {})
        for name in sorted({fold_name(name) for name in parted}):
            times = partings[name].times if name in partings else 0
            partings[name] = Removal(times + 1, since)
        return True

    def has_heard(self, since: int | None, schema: str, query: str) -> bool:
        """Returns True if a DDL text with this commit time was already applied.

        ``since``: the commit TSO. If it is None, the result is False. ``schema``: database of unqualified
        names in the text.
        """
        return since is not None and _digest(since, schema, query) in self._heard

    def hear(self, since: int | None, schema: str, query: str) -> None:
        """Records that a DDL text with this commit time was applied, for ``has_heard``."""
        if since is not None:
            self._heard[_digest(since, schema, query)] = None
            for oldest in list(self._heard)[:-_MOST_HEARD]:
                del self._heard[oldest]

    def removals(self, table: TableId) -> dict[str, Removal]:
        """Returns the drops and renames of a table's columns, by folded column name."""
        return dict(self._parted.get(table_key(table), {}))

    def renames(self, table: TableId) -> tuple[tuple[str, str], ...]:
        """Returns the column renames of a table as pairs of the old and the new name.

        Renames are included even if the column or the table was dropped later.
        """
        return tuple(self._renames.get(table_key(table), ()))

    def timed(
        self, definition: TableDefinition, before: TableDefinition | None, since: int | None
    ) -> TableDefinition:
        """Records the column types of a new table definition, and returns it with the columns' earlier types.

        ``before``: the table's previous definition, if any. ``since``: TSO from which the new definition
        applies; None means that it applies to rows of any time.
        """
        key = table_key(definition.table)
        if definition.renamed:
            self._renames.setdefault(key, {}).update(dict.fromkeys(definition.renamed))
        histories = self._columns.setdefault(key, {})
        types = {} if before is None else {fold_name(c.name): c.type for c in before.columns}
        for column in definition.columns:
            name = fold_name(column.name)
            if name not in histories or types.get(name) != column.type:
                first = (TypeVersion(0, types[name]),) if name in types else ()
                versions = histories[name][1] if name in histories else first
                histories[name] = column.name, _extended(versions, since, column.type)
        columns = tuple(
            replace(c, earlier=_earlier(histories[fold_name(c.name)][1])) for c in definition.columns
        )
        return replace(definition, columns=columns)

    def forget(self, table: TableId) -> None:
        """Removes all that was recorded about a table."""
        for by_table in (self._columns, self._latest, self._parted, self._renames):
            by_table.pop(table_key(table), None)

    def columns(self, table: TableId) -> tuple[Column, ...]:
        """Returns all columns that a table of this name ever had, with their last type and earlier types."""
        histories = self._columns.get(table_key(table), {})
        return tuple(Column(name, v[-1].type, earlier=_earlier(v)) for name, v in histories.values())

    @property
    def has_changes(self) -> bool:
        """True if some column of some table had another type earlier."""
        return any(len(v) > 1 for columns in self._columns.values() for _, v in columns.values())

    @property
    def stored(self) -> StoredHistory:
        """The history as it is stored, from which ``restore`` reads it."""
        return StoredHistory(
            tables=[(*key, list(of.values())) for key, of in self._columns.items()],
            latest=[(*key, since) for key, since in self._latest.items()],
            heard=list(self._heard),
            parted=[
                (*key, [(name, *removal) for name, removal in of.items()]) for key, of in self._parted.items()
            ],
            names=[(*key, list(pairs)) for key, pairs in self._renames.items()],
        )

    def restore(self, stored: StoredHistory) -> None:
        """Replace this history by a stored one."""
        self._heard = dict.fromkeys(stored.heard)
        self._latest = {(schema, table): since for schema, table, since in stored.latest}
        self._parted = {
            (schema, table): {name: Removal(times, since) for name, times, since in names}
            for schema, table, names in stored.parted
        }
        self._renames = {(schema, table): dict.fromkeys(pairs) for schema, table, pairs in stored.names}
        self._columns = {
            (schema, table): {fold_name(name): (name, versions) for name, versions in columns}
            for schema, table, columns in stored.tables
        }


def _digest(since: int, schema: str, query: str) -> str:
    return hashlib.sha256(f"{since}\0{schema}\0{query}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _extended(versions: _Versions, since: int | None, column_type: ColumnType) -> _Versions:
    if since is None:
        return (TypeVersion(0, column_type),)
    if not versions:
        return (TypeVersion(since, column_type),)
    *before, last = versions
    if last.since >= since or _covers(column_type, last.type):
        return (*before, TypeVersion(last.since, column_type))
    return (*versions, TypeVersion(since, column_type))


def _earlier(versions: _Versions) -> tuple[EarlierType, ...]:
    return tuple(EarlierType(was.type, until=later.since) for was, later in pairwise(versions))
