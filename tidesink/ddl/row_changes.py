"""Determines how a DDL statement changes existing rows; ``ddl.catalog`` determines how it changes columns.

If a statement empties, drops or renames a table, or drops a partition, the topic has no events for the rows
that it removes. Only the DDL event shows that they were removed.
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
    DdlText,
    computed_for_rows,
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
# Renaming a column changes rows in targets where only the name identifies a column.
StatementKind = RowChangeKind | Literal["rename"]
# These statements remove all rows of the table.
EMPTYING: Final[frozenset[StatementKind]] = frozenset({"truncate", "drop-table"})


class RowChange(NamedTuple):
    """The effect of a DDL statement on the rows of a table.

    ``table``: table whose rows change. If its name is empty, this means all tables of the schema; if its
    schema is empty, the tables of this name in all schemas; if both are empty, all tables. ``kind``: kind of
    the statement. ``effect``: clause for users that says how the target's rows differ from the source
    database if the statement is not applied to the target.
    """

    table: TableId
    kind: StatementKind
    effect: str


_SHOWN_SQL: Final = 1000
_EPOCH: Final = datetime(1970, 1, 1)


class RowDdl(NamedTuple):
    """A DDL statement in a topic that changes existing rows of a table.

    ``statement``: SQL text, cut to its first 1000 characters. ``digest``: first 16 hex digits of the whole
    text's SHA-256. ``moment``: commit time as a TSO, or None if unknown. ``offset``: Kafka offset of the
    statement's record. ``odd_time``: text of the reported commit time if it cannot be correct, else empty.
    ``place``: position in the source database's log, for source databases without TSOs. ``seconds``: for such
    databases, the time at which the statement started, in seconds since 1970.
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
        """Creates a ``RowDdl`` from a row change, and the SQL text and the record of its DDL event."""
        digest = hashlib.sha256(sql.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        return cls(*change, sql[:_SHOWN_SQL], digest, moment, offset, odd_time)

    @property
    def at(self) -> str:
        """Text that identifies this execution of the statement.

        If the producer sends the statement again, the text is the same. If the same SQL is executed again
        later, the text is different.
        """
        position = self.place or f"@{self.offset}"
        return f"{position if self.moment is None else self.moment}/{self.digest}"

    @property
    def time(self) -> str:
        """The statement's commit time (or start time) as UTC text for users; empty if unknown."""
        if self.seconds:
            return shown_time(self.seconds * 1000)
        return "" if self.moment is None else shown_time(self.moment >> LOGICAL_BITS)

    def concerns(self, table: TableId) -> bool:
        """Returns True if the statement changes rows of this table."""
        return named_by(self.table, table)


def shown_time(ms: int) -> str:
    """Formats a time, in milliseconds since 1970, as UTC text for users."""
    return f"{(_EPOCH + timedelta(milliseconds=ms)).isoformat(' ', 'milliseconds')} UTC"


def named_by(name: TableId, table: TableId) -> bool:
    """Returns True if ``name`` matches a table. An empty schema or table name in ``name`` matches any."""
    if not any(name):
        return True
    schema, own = table_key(name)
    key = table_key(table)
    return schema in ("", key[0]) and own in ("", key[1])


class RenamedColumn(NamedTuple):
    """A column that an ALTER TABLE renames, with its old and new name."""

    table: TableId
    old: str
    new: str


class DdlEffects(DdlText):
    """The effects of the SQL text of a DDL event on rows, columns and tables.

    All questions are answered from the same statements, so the text is split only once.

    A statement that is not known counts as a statement on the table ``about``. If a table is renamed to an
    unqualified name, its database is that of ``about``.

    Each method raises ConfigError if the text is not SQL, or if a statement about a table cannot be parsed.
    """

    def row_changes(self) -> tuple[RowChange, ...]:
        """Returns the effects on existing rows, at most one per table and kind, in the statements' order.

        If several statements in the text have the same kind of effect on one table, the result has one
        ``RowChange`` with all their effect texts.
        """
        changes: dict[tuple[tuple[str, str], str], RowChange] = {}
        for sql in self.statements():
            for change in _row_changes(sql, self.default_schema, self.about):
                previous = changes.get((table_key(change.table), change.kind))
                effect = change.effect if previous is None else f"{previous.effect}; {change.effect}"
                changes[table_key(change.table), change.kind] = change._replace(effect=effect)
        return tuple(changes.values())

    def altered_tables(self) -> tuple[TableId, ...]:
        """Returns the tables whose columns or unique keys are changed by ALTER TABLE statements."""
        return tuple(dict.fromkeys(alter.table for alter, part in self._altered() if _changes_columns(part)))

    def tables_made_like(self) -> tuple[TableId, ...]:
        """Returns the new tables of CREATE TABLE … LIKE statements.

        Temporary tables are not returned.
        """
        tables = list[TableId]()
        for sql in self.statements():
            creation = read_creation(sql)
            made = None if creation is None or creation.temporary else read_like(sql, self.default_schema)
            tables += [] if made is None else [made[1]]
        return tuple(tables)

    def made_tables(self) -> tuple[TableId, ...]:
        """Returns the tables that CREATE TABLE statements create or replace.

        The result has no temporary tables, and no tables of statements with IF NOT EXISTS, because these do
        nothing if the table exists.
        """
        tables = list[TableId]()
        for sql in self.statements():
            creation = read_creation(sql)
            if creation is not None and not (creation.if_absent or creation.temporary):
                tables.append(read_table_name(sql, self.default_schema))
        return tuple(tables)

    def moved_tables(self) -> tuple[TableId, ...]:
        """Returns the tables whose rows get another TiDB table id by an ALTER TABLE.

        In TiDB each partition has its own table id. So a row gets another table id if it is moved to another
        partition, by a change of the partitioning or by EXCHANGE PARTITION.
        """
        tables: list[TableId] = []
        for alter, part in self._altered():
            other = _exchanged_with(alter, part)
            if other is not None:
                tables += (alter.table, other)
            elif _moves_rows(part):
                tables.append(alter.table)
        return tuple(dict.fromkeys(tables))

    def renamed_columns(self) -> tuple[RenamedColumn, ...]:
        """Returns the columns that are renamed by ALTER TABLE statements."""
        renames = (_renamed(alter.table, part) for alter, part in self._altered())
        return tuple(
            column
            for column in renames
            if column is not None and fold_name(column.old) != fold_name(column.new)
        )

    def converted_columns(self) -> tuple[tuple[TableId, str], ...]:
        """Returns the columns that are redefined by MODIFY or CHANGE in ALTER TABLE statements.

        Each element is a pair of the table and the column's new name.
        """
        columns = list[tuple[TableId, str]]()
        for alter, part in self._altered():
            if part.peek().says("MODIFY", "CHANGE"):
                columns += ((alter.table, definition.column.name) for definition in read_definitions(part))
        return tuple(dict.fromkeys(columns))

    def _altered(self) -> Iterator[tuple[AlterTable, SqlReader]]:
        """Yields a pair for each part of each ALTER TABLE: the statement and a reader of the part."""
        for sql in self.statements():
            alter = read_alter(sql, self.default_schema)
            if alter is not None:
                yield from ((alter, part) for part in alter.parts)


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
    """Yields the effects of RECOVER and FLASHBACK, with which TiDB restores rows without sending row events.

    ``about``: table named by the DDL event. It is the affected table if the statement names no table.
    """
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
    alter = read_alter(sql, default_schema, about)
    if alter is None:
        return
    listed = ordered = False
    for part in alter.parts:
        rule = part_rule(part)
        if rule is None and (listed or (ordered and _is_order(part))):
            # This is not a new part: it is another name in the list of the previous part.
            continue
        listed, ordered = (rule.lists, rule.meaning == "order") if rule is not None else (False, False)
        yield from _part(alter, part, rule.meaning if rule is not None else "options")


def _is_order(part: SqlReader) -> bool:
    """Returns True if a part of an ALTER TABLE is only a column name, possibly with ASC or DESC.

    After ORDER BY, such a part is not a change of the table: it is the next column by which rows are ordered.
    """
    return part.peek(1).text == "" or (part.peek(1).says("ASC", "DESC") and part.peek(2).text == "")


def _exchanged_with(alter: AlterTable, part: SqlReader) -> TableId | None:
    """Returns the table that EXCHANGE PARTITION … WITH TABLE names, or None if the part is another one."""
    if not part.skip("EXCHANGE", "PARTITION"):
        return None
    part.name()
    part.need("WITH", "TABLE")
    return read_table_name(part, alter.session_schema)


def _moves_rows(part: SqlReader) -> bool:
    """Returns True if TiDB moves rows between partitions to execute this part of an ALTER TABLE.

    For ADD PARTITION it does so only if the table has hash or key partitions, because a new range or list
    partition is empty.
    """
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
_BROUGHT_BACK: Final = "rows that the statement restored at the source are missing in the target"
NOT_UNDERSTOOD: Final = (
    "the statement is not understood, or it changes rows without row events, so rows that it changed at the "
    "source stay unchanged in the target"
)
_TAKEN_OUT: Final = "rows that the statement removed from the table at the source stay in the target"
_MADE_OF: Final = (
    "rows that the table received from a partition of {} at the source are missing in the target"
)
_PUT_IN: Final = "rows that the table received from {} at the source are missing in the target"
_GIVEN_AWAY: Final = "the table is now a partition of {} at the source, and its rows stay in the target"
_IGNORED_ROWS: Final = (
    "rows that violate the new definition were changed or removed at the source (ALTER IGNORE TABLE), and "
    "stay unchanged in the target"
)
# Such a statement is ignored unless the config sets otherwise, so these texts include the remedy.
_RESYNC: Final = "`tidesink resync TABLE` corrects them"
_COMPUTED: Final = (
    f"in rows that existed when column {{}} was added, the source has {{}} in this column, and the target "
    f"has NULL: {_RESYNC}"
)
_CONVERTED: Final = (
    f"texts with characters that the character set {{}} lacks were changed at the source, but not in the "
    f"target: {_RESYNC}"
)
# These character sets have all of Unicode, so a conversion to them changes no text.
_ALL_CHARACTERS: Final = frozenset({"utf8mb4", "utf16", "utf16le", "utf32"})


def _moved(old: TableId, new: TableId) -> Iterator[RowChange]:
    old_effect = f"the table was renamed to {new} at the source, and its rows stay in the target of {old}"
    yield RowChange(old, "rename-table", old_effect)
    come = (
        f"the table was renamed from {old} at the source, and rows from before the rename are missing in the "
        f"target of {new}"
    )
    yield RowChange(new, "rename-table", come)


def _exchanged(first: TableId, other: TableId) -> Iterator[RowChange]:
    for table, given_to in ((first, other), (other, first)):
        yield RowChange(
            table,
            "partition",
            f"rows that EXCHANGE PARTITION moved from {table} to {given_to} at the source stay in the target "
            f"of {table}, and the rows that it received in exchange are missing there",
        )


def _part(alter: AlterTable, part: SqlReader, meaning: PartMeaning) -> Iterator[RowChange]:
    """Yields the effects of one part of an ALTER TABLE on existing rows. ``meaning``: kind of the part."""
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
    """Yields the effects on existing rows of a part of ALTER TABLE that adds or redefines columns.

    Adding a column has an effect if the database computed the column's values in existing rows. Redefining
    columns has an effect with ALTER IGNORE TABLE.
    """
    adds = part.sees("ADD")
    try:
        definitions = read_definitions(part)
    except ConfigError:
        yield RowChange(alter.table, "unknown", NOT_UNDERSTOOD)
        return
    if not adds and alter.ignores:
        yield RowChange(alter.table, "unknown", _IGNORED_ROWS)
    for definition in definitions if adds else ():
        computed = computed_for_rows(definition)
        if computed:
            yield RowChange(alter.table, "values", _COMPUTED.format(definition.column.name, computed))


def _characters(alter: AlterTable, part: SqlReader) -> Iterator[RowChange]:
    charset = read_converted_characters(part)
    if charset not in _ALL_CHARACTERS:
        yield RowChange(alter.table, "values", _CONVERTED.format(charset))


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
