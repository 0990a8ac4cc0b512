"""The effects of DDL on existing rows, statement by statement; ``ddl.catalog`` covers the columns.

No row event reports that a table was emptied, dropped or renamed, or lost a partition: only the DDL does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final, Literal, NamedTuple

from tidesink.ddl.history import table_key
from tidesink.ddl.statement_kinds import PartMeaning, part_rule, skip_options, statement_rule
from tidesink.ddl.statements import (
    AlterTable,
    computed_for_rows,
    producer_statements,
    read_alter,
    read_converted_characters,
    read_converted_partition,
    read_creation,
    read_definitions,
    read_dropped,
    read_like,
    read_renamed,
    read_table_name,
    session_schema_of,
    skip_definer,
    starts_constraint,
)
from tidesink.errors import ConfigError
from tidesink.events import LOGICAL_BITS, TableId, fold_name
from tidesink.typemap.mysql_types import SqlReader

RowChangeKind = Literal["truncate", "drop-table", "rename-table", "partition", "values", "unknown"]
# A renamed column changes rows if nothing else identifies the column.
StatementKind = RowChangeKind | Literal["rename"]
# After these statements none of the table's earlier rows exist.
EMPTYING: Final[frozenset[StatementKind]] = frozenset({"truncate", "drop-table"})


class RowChange(NamedTuple):
    """The effect of a statement on the rows of a table.

    An empty table name matches every table of the schema, an empty schema matches the table in every schema,
    and a name with both parts empty matches every table. ``effect`` describes the target's rows if the
    statement is not applied.
    """

    table: TableId
    kind: StatementKind
    effect: str


_SHOWN_SQL: Final = 1000
_EPOCH: Final = datetime(1970, 1, 1)


class RowDdl(NamedTuple):
    """A statement of a topic that changes rows of a table.

    ``statement``: text of the statement, cut if long. ``digest``: digest of the whole text. ``moment``:
    commit TSO, or None if unknown. ``odd_time``: the reported time, if it is impossible. ``offset``: offset
    of the statement's record. ``place``: position in the source's log, if known instead of a moment.
    ``seconds``: start time of the statement in that case, in seconds since 1970.
    """

    table: TableId
    kind: StatementKind
    effect: str
    statement: str
    digest: str
    moment: int | None
    offset: int
    odd_time: str = ""
    place: str = ""
    seconds: int = 0

    @classmethod
    def of(
        cls, change: RowChange, sql: str, *, moment: int | None, offset: int, odd_time: str = ""
    ) -> RowDdl:
        """Combines a change with its statement."""
        digest = hashlib.sha256(sql.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        return cls(*change, sql[:_SHOWN_SQL], digest, moment, offset, odd_time)

    @property
    def at(self) -> str:
        """Identifies this statement.

        The same statement has the same value when it is sent again, and another value at another time.
        """
        place = self.place or f"@{self.offset}"
        return f"{place if self.moment is None else self.moment}/{self.digest}"

    @property
    def time(self) -> str:
        """The commit time in readable form; empty if unknown."""
        if self.seconds:
            return shown_time(self.seconds * 1000)
        return "" if self.moment is None else shown_time(self.moment >> LOGICAL_BITS)

    def concerns(self, table: TableId) -> bool:
        """Returns True if the statement concerns a table."""
        return named_by(self.table, table)


def shown_time(ms: int) -> str:
    """Formats a time in ms since 1970 for users."""
    return f"{(_EPOCH + timedelta(milliseconds=ms)).isoformat(' ', 'milliseconds')} UTC"


def named_by(name: TableId, table: TableId) -> bool:
    """Returns True if the name of a ``RowChange`` matches a table."""
    if not any(name):
        return True
    schema, own = table_key(name)
    known = table_key(table)
    return schema in ("", known[0]) and own in ("", known[1])


def row_changes(
    query: str, default_schema: str = "", *, about: TableId | None = None
) -> tuple[RowChange, ...]:
    """Returns the effects of DDL text on existing rows: one per table and kind, in their order.

    ``about``: the table named by the event. It is used for a statement that is not understood and names no
    table, and for a new name without a database.

    Raises:
        ConfigError: The text is not SQL, or a statement about a table cannot be read.
    """
    found: dict[tuple[tuple[str, str], str], RowChange] = {}
    for sql in producer_statements(query):
        for one in _row_changes(sql, default_schema, about):
            known = found.get((table_key(one.table), one.kind))
            effect = one.effect if known is None else f"{known.effect}; {one.effect}"
            found[table_key(one.table), one.kind] = one._replace(effect=effect)
    return tuple(found.values())


def _row_changes(sql: SqlReader, default_schema: str, about: TableId | None) -> Iterator[RowChange]:
    replaces = skip_definer(sql)
    rule = statement_rule(sql)
    meaning = "unknown" if rule is None else rule.meaning
    if meaning == "truncate":
        sql.need("TRUNCATE")
        sql.skip("TABLE")
        yield RowChange(read_table_name(sql, default_schema), "truncate", _TRUNCATED)
    elif meaning == "drop-database" or (meaning == "create-database" and replaces):
        sql.take()
        sql.take()
        sql.skip("IF", "EXISTS")
        yield RowChange(TableId(sql.name(), ""), "drop-table", _DROPPED)
    elif meaning == "drop-table":
        sql.need("DROP", "TABLE")
        yield from (RowChange(table, "drop-table", _DROPPED) for table in read_dropped(sql, default_schema))
    elif meaning == "create-table" and replaces:
        sql.need("CREATE", "TABLE")
        yield RowChange(read_table_name(sql, default_schema), "drop-table", _DROPPED)
    elif meaning == "rename-table":
        sql.need("RENAME", "TABLE")
        for old, new in read_renamed(sql, default_schema, about):
            yield from _moved(old, new)
    elif meaning == "alter-table":
        yield from _altered_rows(sql, default_schema, about)
    elif meaning == "brought-back":
        yield from _brought_back(sql, default_schema, about)
    elif meaning == "unknown":
        yield RowChange(about or TableId(default_schema, ""), "unknown", NOT_UNDERSTOOD)


def _brought_back(sql: SqlReader, default_schema: str, about: TableId | None) -> Iterator[RowChange]:
    """Handles RECOVER and FLASHBACK, which may change any row of the named table, or of the event's table."""
    sql.take()
    if sql.skip("CLUSTER"):
        yield RowChange(TableId("", ""), "unknown", _BROUGHT_BACK)
    elif sql.skip_any("DATABASE", "SCHEMA"):
        yield RowChange(TableId(sql.name(), ""), "unknown", _BROUGHT_BACK)
    elif sql.skip("TABLE") and not sql.sees("BY"):
        session_schema = session_schema_of(sql, default_schema)
        yield RowChange(read_table_name(sql, default_schema), "unknown", _BROUGHT_BACK)
        if sql.skip("TO"):
            yield RowChange(read_table_name(sql, session_schema), "unknown", _BROUGHT_BACK)
    else:
        yield RowChange(about or TableId(default_schema, ""), "unknown", _BROUGHT_BACK)


def _altered_rows(sql: SqlReader, default_schema: str, about: TableId | None) -> Iterator[RowChange]:
    found = read_alter(sql, default_schema, about)
    if found is None:
        return
    listed = ordered = False
    for part in found.parts:
        rule = part_rule(part)
        if rule is None and (listed or (ordered and _is_order(part))):
            # A further name of the previous part.
            continue
        listed, ordered = (rule.lists, rule.meaning == "order") if rule is not None else (False, False)
        yield from _part(found, part, rule.meaning if rule is not None else "options")


def _is_order(part: SqlReader) -> bool:
    """Returns True if a part is another column of ORDER BY."""
    return part.peek(1).text == "" or (part.peek(1).says("ASC", "DESC") and part.peek(2).text == "")


def _altered(sql: SqlReader, default_schema: str) -> Iterator[tuple[AlterTable, SqlReader]]:
    """Yields an ALTER TABLE with each of its parts."""
    found = read_alter(sql, default_schema)
    if found is not None:
        yield from ((found, part) for part in found.parts)


def altered_tables(query: str, default_schema: str = "") -> tuple[TableId, ...]:
    """Returns the tables whose columns or keys an ALTER TABLE changes.

    Raises:
        ConfigError: The text is not SQL, or a statement about a table cannot be read.
    """
    found = (one for sql in producer_statements(query) for one in _altered(sql, default_schema))
    return tuple(dict.fromkeys(alter.table for alter, part in found if _changes_columns(part)))


def tables_made_like(query: str, default_schema: str = "") -> tuple[TableId, ...]:
    """Returns the tables that CREATE TABLE … LIKE makes.

    Raises:
        ConfigError: The text is not SQL, or a statement about a table cannot be read.
    """
    found = list[TableId]()
    for sql in producer_statements(query):
        creation = read_creation(sql)
        made = None if creation is None or creation.temporary else read_like(sql, default_schema)
        found += [] if made is None else [made[1]]
    return tuple(found)


def made_tables(query: str, default_schema: str = "") -> tuple[TableId, ...]:
    """Returns the tables that CREATE TABLE makes or replaces.

    IF NOT EXISTS is left out: if the table exists, it does nothing.

    Raises:
        ConfigError: The text is not SQL, or a statement about a table cannot be read.
    """
    found = list[TableId]()
    for sql in producer_statements(query):
        creation = read_creation(sql)
        if creation is not None and not (creation.if_absent or creation.temporary):
            found.append(read_table_name(sql, default_schema))
    return tuple(found)


def moved_tables(query: str, default_schema: str = "") -> tuple[TableId, ...]:
    """Returns the tables whose rows an ALTER TABLE moves to other table ids, of partitions or other tables.

    Raises:
        ConfigError: The text is not SQL, or a statement about a table cannot be read.
    """
    found: list[TableId] = []
    for sql in producer_statements(query):
        for alter, part in _altered(sql, default_schema):
            other = _exchanged_with(alter, part)
            if other is not None:
                found += (alter.table, other)
            elif _moves_rows(part):
                found.append(alter.table)
    return tuple(dict.fromkeys(found))


def _exchanged_with(alter: AlterTable, part: SqlReader) -> TableId | None:
    """Returns the table that exchanges its rows with a partition of this one."""
    if not part.skip("EXCHANGE", "PARTITION"):
        return None
    part.name()
    part.need("WITH", "TABLE")
    return read_table_name(part, alter.session_schema)


def _moves_rows(part: SqlReader) -> bool:
    """Returns True if TiDB copies rows; a partition added to ranges or lists is still empty."""
    if part.skip("PARTITION", "BY") or part.skip("REMOVE", "PARTITIONING"):
        return True
    if part.skip("ADD", "PARTITION"):
        part.skip("IF", "NOT", "EXISTS")
        part.skip_any("NO_WRITE_TO_BINLOG", "LOCAL")
        return part.skip("PARTITIONS")
    return part.skip("REORGANIZE", "PARTITION") or part.skip("COALESCE", "PARTITION")


def _changes_columns(part: SqlReader) -> bool:
    verb = part.take()
    if verb.says("RENAME"):
        return part.sees("COLUMN")
    if not verb.says("ADD", "DROP", "MODIFY", "CHANGE", "ALTER"):
        return False
    keys = part.sees("PRIMARY") or part.sees("UNIQUE")
    return keys or not (starts_constraint(part) or part.peek().says("PARTITION"))


_TRUNCATED: Final = "rows that TRUNCATE removed at the source stay in the target"
_DROPPED: Final = (
    "rows that DROP removed at the source stay in the target, even if the table is created again"
)
_BROUGHT_BACK: Final = "rows that it restored at the source are missing in the target"
NOT_UNDERSTOOD: Final = (
    "the statement is not understood, or changes rows without row events: rows that it changed at the source "
    "stay unchanged in the target"
)
_TAKEN_OUT: Final = "rows that it removed from the table at the source stay in the target"
_MADE_OF: Final = "rows that the table received from a partition of {} are missing in the target"
_PUT_IN: Final = "rows that the table received from {} at the source are missing in the target"
_GIVEN_AWAY: Final = "the table is now a partition of {} at the source, and its rows stay in the target"
_IGNORED_ROWS: Final = (
    "rows that did not fit were changed or removed at the source (IGNORE), and stay unchanged in the target"
)
# Each of these texts includes the remedy: such a statement is ignored unless the config sets otherwise.
_RESYNC: Final = "tidesink resync loads them"
_COMPUTED: Final = (
    f"rows older than column {{}} have {{}} in it at the source, but NULL in the target: {_RESYNC}"
)
_CONVERTED: Final = (
    f"texts with characters that {{}} lacks were changed at the source, but not in the target: {_RESYNC}"
)
# These character sets lose no characters.
_ALL_CHARACTERS: Final = frozenset({"utf8mb4", "utf16", "utf16le", "utf32"})


def _moved(old: TableId, new: TableId) -> Iterator[RowChange]:
    gone = f"the table is now {new} at the source; its rows stay in the target of {old}"
    yield RowChange(old, "rename-table", gone)
    come = f"the table was {old} at the source; its earlier rows are missing in the target of {new}"
    yield RowChange(new, "rename-table", come)


def _exchanged(one: TableId, other: TableId) -> Iterator[RowChange]:
    for table, given_to in ((one, other), (other, one)):
        yield RowChange(
            table,
            "partition",
            f"rows that {table} gave to {given_to} at the source stay in the target of {table}, and the rows "
            "that it received in return are missing there",
        )


def _part(alter: AlterTable, part: SqlReader, meaning: PartMeaning) -> Iterator[RowChange]:
    """Yields the effects of a part of an ALTER TABLE on rows."""
    table = alter.table
    if meaning == "exchange-partition":
        yield from _exchanged(table, _exchanged_with(alter, part) or table)
    elif meaning == "partition":
        yield RowChange(table, "partition", _TAKEN_OUT)
    elif meaning == "convert-partition":
        made = read_converted_partition(alter, part)
        yield RowChange(table, "partition", _TAKEN_OUT)
        yield RowChange(made, "partition", _MADE_OF.format(table))
    elif meaning == "convert-table":
        part.need("CONVERT", "TABLE")
        taken = read_table_name(part, alter.session_schema)
        yield RowChange(table, "partition", _PUT_IN.format(taken))
        yield RowChange(taken, "drop-table", _GIVEN_AWAY.format(table))
    elif meaning == "rename-table":
        part.need("RENAME")
        part.skip_any("TO", "AS", "=")
        yield from _moved(table, read_table_name(part, alter.session_schema))
    elif meaning == "column":
        yield from _column_values(alter, part)
    elif meaning == "convert-characters":
        yield from _characters(alter, part)
    elif meaning == "keys" and alter.ignores and (part.sees("ADD", "PRIMARY") or _adds_unique(part)):
        yield RowChange(table, "unknown", _IGNORED_ROWS)
    elif meaning == "unknown" or (meaning == "options" and not skip_options(part)):
        yield RowChange(table, "unknown", NOT_UNDERSTOOD)


def _adds_unique(part: SqlReader) -> bool:
    return any(part.peek(ahead).says("UNIQUE", "PRIMARY") for ahead in (1, 2, 3))


def _column_values(alter: AlterTable, part: SqlReader) -> Iterator[RowChange]:
    """Yields the values that the database writes into existing rows of an added or redefined column."""
    adds = part.sees("ADD")
    try:
        found = read_definitions(part)
    except ConfigError:
        yield RowChange(alter.table, "unknown", NOT_UNDERSTOOD)
        return
    if not adds and alter.ignores:
        yield RowChange(alter.table, "unknown", _IGNORED_ROWS)
    for one in found if adds else ():
        computed = computed_for_rows(one)
        if computed:
            yield RowChange(alter.table, "values", _COMPUTED.format(one.column.name, computed))


def _characters(alter: AlterTable, part: SqlReader) -> Iterator[RowChange]:
    charset = read_converted_characters(part)
    if charset not in _ALL_CHARACTERS:
        yield RowChange(alter.table, "values", _CONVERTED.format(charset))


class RenamedColumn(NamedTuple):
    """A column that an ALTER TABLE renames."""

    table: TableId
    old: str
    new: str


def renamed_columns(query: str, default_schema: str = "") -> tuple[RenamedColumn, ...]:
    """Returns the columns that DDL text renames.

    Raises:
        ConfigError: The text is not SQL, or a statement about a table cannot be read.
    """
    altered = (one for sql in producer_statements(query) for one in _altered(sql, default_schema))
    found = (_renamed(alter.table, part) for alter, part in altered)
    return tuple(one for one in found if one is not None and fold_name(one.old) != fold_name(one.new))


def converted_columns(query: str, default_schema: str = "") -> tuple[tuple[TableId, str], ...]:
    """Returns the columns, by table, that DDL text redefines, under their new names.

    Raises:
        ConfigError: The text is not SQL, or a statement about a table cannot be read.
    """
    found = list[tuple[TableId, str]]()
    for sql in producer_statements(query):
        for alter, part in _altered(sql, default_schema):
            if part.peek().says("MODIFY", "CHANGE"):
                found += ((alter.table, one.column.name) for one in read_definitions(part))
    return tuple(dict.fromkeys(found))


def _renamed(table: TableId, part: SqlReader) -> RenamedColumn | None:
    if part.skip("CHANGE"):
        part.skip("COLUMN")
        part.skip("IF", "EXISTS")
        return RenamedColumn(table, part.name(), part.name())
    if not part.skip("RENAME", "COLUMN"):
        return None
    part.skip("IF", "EXISTS")
    old = part.name()
    part.need("TO")
    return RenamedColumn(table, old, part.name())
