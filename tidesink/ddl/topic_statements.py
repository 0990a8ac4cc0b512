"""The DDL statements of a topic: their effects on definitions and on existing rows, and warnings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from tidesink.ddl.catalog import TableDefinitions
from tidesink.ddl.history import may_change_values
from tidesink.ddl.row_changes import NOT_UNDERSTOOD, DdlEffects, RowChange, RowDdl, named_by
from tidesink.errors import ConfigError
from tidesink.events import TableId, TableSchema

# The number of characters of a statement that messages show.
SHOWN_SQL: Final = 200
# The number of newest statements that are stored per table and kind. To wait for a person or to empty the
# table, the newest one is enough.
_MOST_ROW_DDL: Final = 50
# The number of statements that are stored for all tables. Otherwise those of dropped tables would fill the
# state store.
_MOST_ROW_DDL_OF_ALL_TABLES: Final = 5_000
_REKEYED: Final = (
    "After this DDL, the rows of a table without a key have new row keys, and no event reports the new keys. "
    "If the config names no keys for the table, so that rows are identified by TiDB's row keys, load the "
    "table again."
)


class DdlStatement(NamedTuple):
    """The SQL statement of a DDL event.

    Attributes:
        database: The database in which the statement ran.
        sql: The statement's text.
        since: The TSO from which the statement is in effect, or None if it is not known.
        odd_time: If the event's time is impossible: this time as text. Else empty.
        table: The table that the event names, or empty.
        offset: The offset of the event's record.
    """

    database: str
    sql: str
    since: int | None = None
    odd_time: str = ""
    table: str = ""
    offset: int = 0

    @property
    def about(self) -> TableId | None:
        """The table that the event names, or None."""
        return TableId(self.database, self.table) if self.table else None

    def changes_rows(self, changes: Iterable[RowChange]) -> Iterator[RowDdl]:
        """Yields these changes of existing rows, together with the statement that makes them."""
        for change in changes:
            yield RowDdl.of(change, self.sql, moment=self.since, offset=self.offset, odd_time=self.odd_time)


class DdlWarning(NamedTuple):
    """A warning about a DDL statement.

    ``table``: the table that the warning is about. If the table's name is empty, the warning is about all
    tables of the database. None: the warning is about all tables of the topic. ``unreported``: True if the
    warning does not apply to a table that has a definition in the config.
    """

    text: str
    table: TableId | None = None
    unreported: bool = False

    def is_about(self, table: TableId) -> bool:
        """Returns True if the warning is about this table."""
        return self.table is None or named_by(self.table, table)


def with_rows(previous: Sequence[RowDdl], new: Iterable[RowDdl]) -> tuple[RowDdl, ...]:
    """Returns the newest of all known statements that change existing rows: ``previous``, and then ``new``.

    If a statement was sent twice, only its first record counts.
    """
    merged = dict[tuple[TableId, str, str], RowDdl]()
    for ddl in (*previous, *new):
        merged.setdefault((ddl.table, ddl.kind, ddl.at), ddl)
    return newest_row_ddl(merged.values())


def newest_row_ddl(statements: Iterable[RowDdl]) -> tuple[RowDdl, ...]:
    """Returns the newest of the statements that change rows: at most 50 per table and kind, and 5000 in
    total.
    """
    count, newest = Counter[tuple[TableId, str]](), list[RowDdl]()
    for ddl in reversed([*statements]):
        count[ddl.table, ddl.kind] += 1
        if count[ddl.table, ddl.kind] <= _MOST_ROW_DDL:
            newest.append(ddl)
    return tuple(reversed(newest[:_MOST_ROW_DDL_OF_ALL_TABLES]))


class Learned(NamedTuple):
    """The effects of DDL statements besides those on the definitions.

    ``warnings``: warnings for the user. ``rows``: statements that change existing rows.
    """

    warnings: list[DdlWarning]
    rows: list[RowDdl]


def learn(definitions: TableDefinitions, statements: Iterable[DdlStatement], topic: str) -> Learned:
    """Applies the statements to the definitions, in order, and returns their other effects.

    Each statement is split and parsed here once, for all tables of the topic.
    """
    learned = Learned([], [])
    for statement in statements:
        for warning in _learned(definitions, statement, topic, learned.rows):
            text = f"{warning.text} Statement: {statement.sql[:SHOWN_SQL]}"
            learned.warnings.append(warning._replace(text=text))
    return learned


def _learned(
    definitions: TableDefinitions, statement: DdlStatement, topic: str, rows: list[RowDdl]
) -> Iterator[DdlWarning]:
    """Applies one statement to the definitions, and adds its changes of existing rows to ``rows``.

    Yields a warning for each effect that is not applied.
    """
    effects = DdlEffects(statement.sql, statement.database, about=statement.about)
    try:
        # Read first: if it raises ConfigError, the definitions are not changed.
        changes = effects.row_changes()
    except ConfigError as exc:
        table = statement.about or TableId(statement.database, "")
        rows += statement.changes_rows([RowChange(table, "unknown", NOT_UNDERSTOOD)])
        yield _unreadable(statement, topic, exc)
        return
    rows += statement.changes_rows(changes)
    yield from _applied(definitions, statement, effects, topic)


def _applied(
    definitions: TableDefinitions, statement: DdlStatement, effects: DdlEffects, topic: str
) -> Iterator[DdlWarning]:
    readded = definitions.readded()
    try:
        for table, old, new in effects.renamed_columns():
            yield DdlWarning(_RENAMED.format(old=old, new=new), table)
        for table in effects.moved_tables():
            named = [table] if table.schema else [known for known in definitions if named_by(table, known)]
            schemas = [definitions.get(table_id) for table_id in named]
            if not schemas or not all(schema is not None and schema.handle_columns for schema in schemas):
                yield DdlWarning(_REKEYED, table)
        altered = effects.altered_tables()
        if statement.odd_time:
            yield from (_untimed(table, statement.odd_time) for table in altered)
        unreported = [table for table in altered if table not in definitions]
        made_like = effects.tables_made_like()
        before = {table: definitions.get(table) for table in altered}
        definitions.apply_text(effects, since=statement.since)
    except ConfigError as exc:
        yield _unreadable(statement, topic, exc)
        return
    for table in unreported:
        if table not in definitions:
            yield _unreported(table)
    for table in altered:
        yield from _converted(before[table], definitions.get(table))
    for table in made_like:
        if table not in definitions:
            yield DdlWarning(_UNLIKE.format(table), table, unreported=True)
    for table, column in sorted(definitions.readded() - readded):
        yield DdlWarning(
            f"Not applied: column {column} was dropped and added again. Rows written before the drop keep "
            "their old values of the column in the target.",
            table,
        )


def _unreadable(statement: DdlStatement, topic: str, error: ConfigError) -> DdlWarning:
    return DdlWarning(
        f"A DDL event of topic {topic} cannot be read ({error.message}), so its changes are not applied.",
        statement.about,
    )


_RENAMED: Final = (
    "Not applied: column {old} was renamed to {new}. If the target has a column {old}, existing values stay "
    "in that column."
)


_CONVERTED: Final = (
    "The type of column {} changed from {} to {}. Values that do not fit the new type were rounded or cut at "
    "the source, but are unchanged in the target. Run `tidesink resync TABLE` to correct them."
)


def _converted(before: TableSchema | None, now: TableSchema | None) -> Iterator[DdlWarning]:
    """Yields a warning for each column whose new type cannot hold all values of the old type."""
    if before is None or now is None:
        return
    previous_columns = {column.column_id: column for column in before.columns}
    for column in now.columns:
        was = previous_columns.get(column.column_id)
        if was is not None and may_change_values(column.type, was.type):
            words = (version.type.sql or version.type.name for version in (was, column))
            yield DdlWarning(_CONVERTED.format(column.name, *words), now.table)


_UNLIKE: Final = (
    "{} was created with CREATE TABLE LIKE from a table whose columns are not known, or whose database "
    "depends on the session. So the types and defaults of the new table are not known. Add a definition of "
    "it under tables."
)


def _untimed(table: TableId, time: str) -> DdlWarning:
    return DdlWarning(
        f"The DDL of {table} has an impossible time ({time}). The time is ignored, so rows from before the "
        "DDL are read with the types after the DDL. Check that the producer's es is in milliseconds.",
        table,
        unreported=True,
    )


def _unreported(table: TableId) -> DdlWarning:
    return DdlWarning(
        f"The DDL changes {table}, whose definition is not known. So the table's types and defaults are not "
        "used. Add a definition under tables.",
        table,
        unreported=True,
    )
