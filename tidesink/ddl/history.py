"""The history of a table's columns: their types and names over time.

A type is looked up by the column's name in a row and the row's commit time. canal-json writes ``enum`` and a
number: only the definition in force at the row's commit maps that number to a label. A type is stored only if
it reads old rows differently: an ENUM with members appended reads every old row the same way, and replaces
the old type.

TiCDC sends every row committed before a DDL's commit ts ahead of that DDL, and later rows after it (tiflow
c7b2588, ticdc b813e76). So a row's own time shows which definition applies to it, wherever the row is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

from tidesink.ddl.statements import TableDefinition
from tidesink.events import LOGICAL_BITS, Column, ColumnType, EarlierType, TableId, fold_name, physical_ms
from tidesink.typemap.table import Reader, row_of, spark_type
from tidesink.typemap.target_schema import wider_ddl

Key = tuple[str, str]

# The low 18 bits of a TiDB TSO are a counter; the physical milliseconds are above them.
LOGICAL: Final = (1 << LOGICAL_BITS) - 1
# Number of remembered statements. A producer that restarts repeats everything since its last checkpoint.
_MOST_HEARD: Final = 200
# Later than every commit ts; used for a row without a commit time.
NEVER: Final = 1 << 64
# A TSO has 46 bits of milliseconds, and Spark compares it as a signed number; no clock gets that far.
_LAST_TSO: Final = (1 << 63) - 1
LAST_MS: Final = _LAST_TSO >> LOGICAL_BITS
# A statement is committed before its record is sent; clocks do not differ by this much.
_MOST_AHEAD_MS: Final = 86_400_000


def table_key(table: TableId) -> Key:
    """Returns a table's name for comparison: without case, as in TiDB."""
    return fold_name(table.schema), fold_name(table.name)


def ddl_moment(commit_ts: int | None, es: object, sent: int | None = None) -> int | None:
    """Returns the TSO from which a DDL applies, or None if it has no usable time.

    ``es``: the message's time in ms since 1970. ``sent``: Kafka's time of the record, in ms since 1970; a DDL
    time far later than it is rejected.

    Without a commit ts a DDL applies from the beginning of its millisecond: a row of the same millisecond
    counts as later. This tie is the only inexact case, because TiCDC's ``es`` is the commit ts cut to
    milliseconds. With the TiDB extension there are no ties.
    """
    if commit_ts is not None:
        found = commit_ts if commit_ts <= _LAST_TSO else None
    else:
        # bool is an int but not a time. An impossible time would make every later DDL look old.
        found = es << LOGICAL_BITS if type(es) is int and 0 < es <= LAST_MS else None
    if found is not None and sent and physical_ms(found) > sent + _MOST_AHEAD_MS:
        # Every statement until that time would have no effect, or look like a repeated one.
        return None
    return found


def row_moment(commit_ts: int | None, es: object) -> int:
    """Returns the TSO of a row, to compare with ``ddl_moment``.

    If only ``es`` is known, this is the end of its millisecond.
    """
    if commit_ts is not None:
        return commit_ts
    return es << LOGICAL_BITS | LOGICAL if type(es) is int and 0 <= es <= LAST_MS else NEVER


# The earlier kinds of a column, by its current kind, that change the meaning of a row's text. For any other
# change of type, the text means the same to both (numbers), or the row's own type word differs and the row is
# refused by name.
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
    """Returns True if a text written as type ``was`` means the same when it is read as ``now``."""
    new, old = row_of(now).reader, row_of(was).reader
    if new == old and now.members is not None and was.members is not None:
        return now.members[: len(was.members)] == was.members
    return old not in _READ_APART.get(new, frozenset())


def _covers(now: ColumnType, was: ColumnType) -> bool:
    """Returns True if ``now`` can replace ``was`` in the history: same meaning, and room for all values."""
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
# Binary logarithm of one more than the longest value, for types whose definition has no length.
_TEXT_BYTES: Final[Mapping[str, int]] = {"tiny": 8, "text": 16, "blob": 16, "medium": 24, "long": 32}
_SIZED_READERS: Final[frozenset[Reader]] = frozenset({"text", "binary"})


def may_change_values(now: ColumnType, was: ColumnType) -> bool:
    """Returns True if a conversion from ``was`` to ``now`` may round, cut or otherwise change values."""
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
    names = [row_of(one).name for one in (now, was)]
    sizes = [_INTEGER_BYTES.get(name.removesuffix(" unsigned"), 0) for name in names]
    new_unsigned, old_unsigned = (name.endswith(" unsigned") for name in names)
    if not all(sizes) or (new_unsigned and not old_unsigned):
        return False
    return sizes[0] > sizes[1] or (sizes[0] == sizes[1] and new_unsigned == old_unsigned)


def _size(column_type: ColumnType) -> int:
    """Returns a type's length; without one, one more than the longest value of its kind of text."""
    if column_type.length is not None:
        return column_type.length
    name = row_of(column_type).name
    return 1 << next((bits for word, bits in _TEXT_BYTES.items() if name.startswith(word)), 0)


class TypeVersion(NamedTuple):
    """A type and the TSO from which rows have it. Rows from before the first version have the first type."""

    since: int
    type: ColumnType


_Versions = tuple[TypeVersion, ...]


class Parting(NamedTuple):
    """Count of drops and renames of columns of a name, and the TSO of the last one, if known."""

    times: int
    since: int | None

    @property
    def moment(self) -> str:
        """Identifies this drop or rename; every reader of the same DDL gets the same text."""
        return f"#{self.times}" if self.since is None else str(self.since)


class TypeHistory:
    """The types of every column named by DDL, including those of dropped columns and tables.

    A statement that the producer sends again after a restart is recognized in one of two ways. It is older
    than the latest statement of its table, or it is that latest statement and has the same text. Without the
    second check, a repeated RENAME of two tables would remove the second table.
    """

    def __init__(self) -> None:
        self._columns: dict[Key, dict[str, tuple[str, _Versions]]] = {}
        self._latest: dict[Key, int] = {}
        self._heard: dict[str, None] = {}
        self._parted: dict[Key, dict[str, Parting]] = {}
        self._renames: dict[Key, dict[tuple[str, str], None]] = {}

    def note(self, table: TableId, parted: Iterable[str], since: int | None) -> bool:
        """Records a statement that drops or renames these columns.

        Returns False if it is an old statement, sent again.
        """
        key = table_key(table)
        if since is not None:
            if since < self._latest.get(key, 0):
                return False
            self._latest[key] = since
        known = self._parted.setdefault(key, {})
        for name in sorted({fold_name(name) for name in parted}):
            times = known[name].times if name in known else 0
            known[name] = Parting(times + 1, since)
        return True

    def has_heard(self, since: int | None, schema: str, query: str) -> bool:
        """Returns True if exactly this statement of this time was applied."""
        return since is not None and _digest(since, schema, query) in self._heard

    def hear(self, since: int | None, schema: str, query: str) -> None:
        """Records that a statement was applied."""
        if since is not None:
            self._heard[_digest(since, schema, query)] = None
            for oldest in list(self._heard)[:-_MOST_HEARD]:
                del self._heard[oldest]

    def partings(self, table: TableId) -> dict[str, Parting]:
        """Returns, by folded name, when a column was last dropped or renamed."""
        return dict(self._parted.get(table_key(table), {}))

    def renames(self, table: TableId) -> tuple[tuple[str, str], ...]:
        """Returns earlier column names, each with a later one; dropped columns and tables are included."""
        return tuple(self._renames.get(table_key(table), ()))

    def timed(
        self, definition: TableDefinition, before: TableDefinition | None, since: int | None
    ) -> TableDefinition:
        """Returns the definition with the earlier types of its columns.

        ``since``: TSO from which the definition applies; None means that it always applied.
        """
        key = table_key(definition.table)
        if definition.renamed:
            self._renames.setdefault(key, {}).update(dict.fromkeys(definition.renamed))
        known = self._columns.setdefault(key, {})
        types = {} if before is None else {fold_name(c.name): c.type for c in before.columns}
        for column in definition.columns:
            name = fold_name(column.name)
            if name not in known or types.get(name) != column.type:
                first = (TypeVersion(0, types[name]),) if name in types else ()
                versions = known[name][1] if name in known else first
                known[name] = column.name, _extended(versions, since, column.type)
        columns = tuple(replace(c, earlier=_earlier(known[fold_name(c.name)][1])) for c in definition.columns)
        return replace(definition, columns=columns)

    def forget(self, table: TableId) -> None:
        """Forgets all that is known of a table."""
        for known in (self._columns, self._latest, self._parted, self._renames):
            known.pop(table_key(table), None)

    def columns(self, table: TableId) -> tuple[Column, ...]:
        """Returns every column that a table of this name ever had."""
        known = self._columns.get(table_key(table), {})
        return tuple(Column(name, v[-1].type, earlier=_earlier(v)) for name, v in known.values())

    @property
    def has_changes(self) -> bool:
        """True if any column had another type earlier."""
        return any(len(v) > 1 for known in self._columns.values() for _, v in known.values())

    def as_json(self) -> dict[str, Any]:
        """Returns the history as JSON data for ``read``."""
        tables = [
            [*key, [[name, [[v.since, asdict(v.type)] for v in versions]] for name, versions in of.values()]]
            for key, of in self._columns.items()
        ]
        latest = [[*key, since] for key, since in self._latest.items()]
        parted = [[*key, [[name, *one] for name, one in of.items()]] for key, of in self._parted.items()]
        names = [[*key, list(pairs)] for key, pairs in self._renames.items()]
        heard = list(self._heard)
        return {"tables": tables, "latest": latest, "heard": heard, "parted": parted, "names": names}

    def read(self, found: Mapping[str, Any]) -> None:
        """Restores what ``as_json`` wrote.

        Earlier versions of tidesink did not store renames, drops or applied statements.
        """
        self._heard = dict.fromkeys(found.get("heard", ()))
        self._latest = {(schema, table): since for schema, table, since in found["latest"]}
        self._parted = {
            (schema, table): {name: Parting(times, since) for name, times, since in names}
            for schema, table, names in found.get("parted", ())
        }
        self._renames = {
            (schema, table): dict.fromkeys((old, new) for old, new in pairs)
            for schema, table, pairs, *_ in found.get("names", ())
        }
        self._columns = {
            (schema, table): {fold_name(name): (name, _versions(versions)) for name, versions in columns}
            for schema, table, columns in found["tables"]
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


def _versions(found: Iterable[tuple[int, dict[str, Any]]]) -> _Versions:
    return tuple(TypeVersion(since, read_type(column_type)) for since, column_type in found)


def read_type(found: Mapping[str, Any]) -> ColumnType:
    """Rebuilds a ColumnType from the JSON of ``dataclasses.asdict``."""
    members = found["members"]
    return ColumnType(**{**found, "members": members if members is None else tuple(members)})
