"""Parses CREATE TABLE and ALTER TABLE of MySQL and TiDB into a table's columns and keys.

Only columns and keys are parsed. Partitions, options, foreign keys, checks and comments are skipped. The
handle key is chosen as TiCDC chooses it (tiflow c7b2588): the primary key, or else the unique index of NOT
NULL stored columns that has the fewest columns. If several indexes have equally few, the oldest is chosen.

A column definition becomes a Column with the default and the type text that TiDB would show. The rules were
observed in the output of TiDB's own encoders (2026-06-25): display widths are kept, ``decimal`` becomes
``decimal(10,0)``, ``CHARACTER SET binary`` turns a text type into a binary type, and a NOT NULL YEAR without
a default has the default ``0000``. If ADD COLUMN adds a NOT NULL column without a default, the column has no
default, and existing rows hold the type's zero value.

A producer that restarts sends statements again. The parts of an ALTER TABLE that are already applied change
nothing when they are applied again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from typing import Any, Final, NamedTuple

from tidesink.errors import ConfigError, shown
from tidesink.events import UNKNOWN_DEFAULT, Column, ColumnType, TableId, TableSchema, fold_name
from tidesink.typemap.mysql_types import (
    CURRENT_TIME,
    SqlReader,
    Token,
    as_bytes,
    default_as,
    default_text,
    each_token,
    parse_sql_type,
    shown_type,
    split_by_comma,
    zero_text,
)
from tidesink.typemap.table import find_row

_ATTRIBUTES = frozenset({"UNSIGNED", "SIGNED", "ZEROFILL"})
_LONGEST_TYPE_NAME = 3  # "national character varying"


@dataclass
class _Options:
    """The options after the type in a column definition, such as NOT NULL, DEFAULT or AUTO_INCREMENT.

    ``default``: tokens of the expression after DEFAULT. ``counts``: True for AUTO_INCREMENT and AUTO_RANDOM.
    ``after``: name of the column given with ``AFTER``.
    """

    nullable: bool | None = None
    default: list[Token] | None = None
    on_update: bool = False
    counts: bool = False
    generated: bool = False
    stored: bool = False
    primary: bool = False
    unique: bool = False
    charset: str | None = None
    first: bool = False
    after: str | None = None


class ColumnDefinition(NamedTuple):
    """A parsed column, and the options of its definition, such as keys and the position."""

    column: Column
    options: _Options


def read_column(sql: SqlReader, *, charset: str | None = None) -> ColumnDefinition:
    """Parses the column definition at the reader's position and returns the column with its options.

    ``charset``: default character set of the table, in lower case, or None.

    Raises:
        ConfigError: The column's type is unknown, or the text is not a column definition.
    """
    name = sql.name()
    options = _Options(charset=charset)
    word, arguments, attributes = _read_type(sql, options)
    while not sql.done and not sql.sees(","):
        _read_option(sql, options)
    column_type = parse_sql_type(shown_type(word, arguments, attributes, charset=options.charset))
    nullable = options.nullable is not False and not options.primary
    default = _default(options, column_type, nullable)
    virtual = options.generated and not options.stored
    column = Column(name, column_type, nullable, default, virtual=virtual)
    if options.default is not None and computed_for_rows(ColumnDefinition(column, options)) and not default:
        column = _with_unknown_default(column)
    return ColumnDefinition(column, options)


def _with_unknown_default(column: Column) -> Column:
    """Marks a column so that its value counts as unknown in rows that existed when it was added."""
    return replace(column, origin_default=UNKNOWN_DEFAULT, redefaulted=True)


def _with_origin_default(definition: ColumnDefinition) -> Column:
    """Returns an added column with the value that it got in rows that existed when it was added.

    The value is the type's zero value if the column is NOT NULL and has no default. It is marked as unknown
    if the database computed it for each row (AUTO_INCREMENT, a stored generated column), because the
    statement does not contain it.
    """
    column, options = definition
    if options.counts or (options.generated and not column.virtual):
        return _with_unknown_default(column)
    if column.nullable or options.generated or options.default is not None or column.default is not None:
        return column
    return replace(column, origin_default=zero_text(column.type), redefaulted=True)


def _default(options: _Options, column_type: ColumnType, nullable: bool) -> str | None:
    if options.generated:
        return None
    if options.default is not None:
        return default_text(options.default, column_type)
    if column_type.name == "year" and not nullable:
        return "0000"
    if options.on_update and not nullable:
        return zero_text(column_type)
    return None


def _read_type(sql: SqlReader, options: _Options) -> tuple[str, list[Token], list[str]]:
    word = _type_name(sql)
    if word == "serial":
        # SERIAL is BIGINT UNSIGNED NOT NULL AUTO_INCREMENT UNIQUE.
        options.nullable, options.unique, options.counts = False, True, True
        return "bigint", [], ["unsigned"]
    if sql.skip("<"):  # VECTOR<FLOAT>(n)
        sql.take()
        sql.need(">")
    arguments = sql.group() if sql.sees("(") else []
    attributes = []
    while sql.peek().says(*_ATTRIBUTES):
        attributes.append(sql.take().text.lower())
    return word, arguments, attributes


def _type_name(sql: SqlReader) -> str:
    for count in range(_LONGEST_TYPE_NAME, 0, -1):
        words = [sql.peek(n) for n in range(count)]
        if any(token.kind != "word" for token in words):
            continue
        name = " ".join(token.text.lower() for token in words)
        is_type = name in ("bool", "boolean", "serial") or find_row(name) is not None
        if is_type and not name.endswith(" unsigned"):  # an attribute, which is parsed separately
            for _ in words:
                sql.take()
            return name
    raise ConfigError(f"the column definition has the unknown SQL type {shown(sql.peek().text)}")


# Options without a value.
_PLAIN_OPTIONS: Final[Mapping[tuple[str, ...], tuple[str, object]]] = {
    ("NOT", "NULL"): ("nullable", False),
    ("NULL",): ("nullable", True),
    ("PRIMARY", "KEY"): ("primary", True),
    ("PRIMARY",): ("primary", True),
    ("UNIQUE", "KEY"): ("unique", True),
    ("UNIQUE",): ("unique", True),
    ("KEY",): ("primary", True),
    ("AUTO_INCREMENT",): ("counts", True),
    ("AUTO_RANDOM",): ("counts", True),
    ("BYTE",): ("charset", "binary"),
    ("FIRST",): ("first", True),
}


def _read_option(sql: SqlReader, options: _Options) -> None:
    plain = next((setting for words, setting in _PLAIN_OPTIONS.items() if sql.skip(*words)), None)
    if plain is not None:
        setattr(options, *plain)
    elif sql.skip("DEFAULT"):
        options.default = _expression(sql)
    elif sql.skip("ON", "UPDATE"):
        options.on_update = True
        _expression(sql)
    elif sql.sees("AS", "(") or sql.sees("GENERATED"):
        _read_generated(sql, options)
    elif sql.skip("CHARACTER", "SET") or sql.skip("CHARSET") or sql.skip("CHAR", "SET"):
        sql.skip("=")
        options.charset = sql.take().text.lower()
    elif sql.skip("AFTER"):
        options.after = sql.name()
    elif sql.skip_any("COMMENT", "COLLATE", "COLUMN_FORMAT", "STORAGE"):
        sql.take()
    elif sql.skip("REFERENCES"):
        _skip_reference(sql)
    else:
        sql.skip_item()


_OPERATORS: Final = ("+", "-", "*", "/", "%", "|", "&", "^", "<", ">", "DIV", "MOD")


def _skip_reference(sql: SqlReader) -> None:
    # ON UPDATE SET NULL and SET DEFAULT must not be read as options of the column.
    while not sql.done and not sql.sees(","):
        if sql.skip("ON"):
            sql.take()
            sql.take()
            sql.skip_any("NULL", "DEFAULT", "ACTION")
        elif sql.sees("NOT") or sql.sees("NULL") or sql.sees("COMMENT"):
            return
        else:
            sql.skip_item()


def _read_generated(sql: SqlReader, options: _Options) -> None:
    sql.skip("GENERATED", "ALWAYS")
    sql.need("AS")
    sql.group()
    options.generated = True
    options.stored = not sql.skip("VIRTUAL") and sql.skip_any("STORED", "PERSISTENT")


def _expression(sql: SqlReader) -> list[Token]:
    """Reads the expression after DEFAULT or ON UPDATE, and returns its tokens.

    The expression consists of operands joined by operators. An operand is a literal with its sign, a function
    call, or an expression in parentheses.
    """
    expression = _operand(sql)
    while sql.peek().says(*_OPERATORS):
        expression += [sql.take(), *_operand(sql)]
    return expression


def _operand(sql: SqlReader) -> list[Token]:
    if sql.sees("("):
        return [Token("sign", "("), *sql.group(), Token("sign", ")")]
    expression = [sql.take()]
    if expression[0].says("-", "+"):
        expression.append(sql.take())
    if expression[0].says("{"):
        while not expression[-1].says("}"):
            expression.append(sql.take())
    elif expression[0].kind == "word" and sql.sees("("):
        expression += [Token("sign", "("), *sql.group(), Token("sign", ")")]
    elif expression[0].kind == "string" or expression[0].says("DATE", "TIME", "TIMESTAMP"):
        while sql.peek().kind == "string":
            expression.append(sql.take())
    return expression


@dataclass(frozen=True)
class Index:
    """A unique index. ``columns``: names of its columns, with an empty name for each indexed expression."""

    name: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class TableDefinition:
    """A table as DDL statements define it, with details that change events lack, such as all unique indexes.

    ``next_column_id``: id of the next column to be added, as TiDB numbers columns. ``charset``: default
    character set in lower case, or None. ``declared``: True if the user declared the table in the
    configuration. ``dropped``: folded names of dropped columns. ``renamed``: pairs of a column's former and
    current name, newest rename first.
    """

    table: TableId
    columns: tuple[Column, ...] = ()
    primary_key: tuple[str, ...] = ()
    uniques: tuple[Index, ...] = ()
    next_column_id: int = 1
    charset: str | None = None
    declared: bool = False
    dropped: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()

    @property
    def readded(self) -> tuple[str, ...]:
        """Names of columns that were dropped and later added again under the same name."""
        return tuple(column.name for column in self.columns if fold_name(column.name) in self.dropped)

    @property
    def names(self) -> frozenset[str]:
        """The folded names of the table's columns."""
        return frozenset(fold_name(column.name) for column in self.columns)

    @property
    def reused(self) -> frozenset[str]:
        """Folded names that more than one column has had, one after the other.

        The columns are the table's current columns, and its dropped and renamed columns under their former
        names.
        """
        times = Counter((*self.names, *self.dropped, *(fold_name(old) for old, _ in self.renamed)))
        return frozenset(name for name, columns in times.items() if columns > 1)

    def schema(self) -> TableSchema:
        """Returns the table schema, in which the columns of the primary key and handle key are marked."""
        primary = {fold_name(name) for name in self.primary_key}
        handle = primary or self._unique_handle()
        return TableSchema(
            self.table,
            tuple(
                replace(
                    column,
                    primary_key=fold_name(column.name) in primary,
                    handle=fold_name(column.name) in handle,
                    nullable=column.nullable and fold_name(column.name) not in primary,
                )
                for column in self.columns
            ),
        )

    def _unique_handle(self) -> set[str]:
        fit = {fold_name(c.name) for c in self.columns if not c.nullable and not c.virtual}
        eligible = [u for u in self.uniques if all(fold_name(name) in fit for name in u.columns)]
        best = min(eligible, key=lambda unique: len(unique.columns), default=None)
        return set() if best is None else {fold_name(name) for name in best.columns}

    def has(self, name: str) -> bool:
        """Returns True if the table has a column of this name. Case is ignored, as in MySQL."""
        return fold_name(name) in self.names

    def place_of(self, name: str) -> int:
        """Returns the index of the column with this name. Case is ignored, as in MySQL.

        Raises:
            ConfigError: The table has no column of this name.
        """
        for index, column in enumerate(self.columns):
            if fold_name(column.name) == fold_name(name):
                return index
        raise ConfigError(f"the table {self.table} has no column {name!r}")


def skip_definer(sql: SqlReader) -> bool:
    """Skips clauses such as DEFINER after CREATE or ALTER. Returns True if OR REPLACE is one of them.

    The clauses are OR REPLACE, DEFINER, SQL SECURITY and ALGORITHM. Afterwards the reader is at CREATE or
    ALTER, which is followed directly by the kind of the object, such as VIEW.
    """
    if not sql.peek().says("CREATE", "ALTER"):
        return False
    verb, replaces = sql.take(), sql.skip("OR", "REPLACE")
    while True:
        if sql.skip("DEFINER"):
            sql.need("=")
            sql.take()
            while sql.peek().text.startswith("@"):
                if sql.take().text == "@":
                    sql.take()
            if sql.sees("("):
                sql.group()
        elif sql.skip("SQL", "SECURITY"):
            sql.take()
        elif sql.sees("ALGORITHM", "="):
            sql.skip("ALGORITHM", "=")
            sql.take()
        else:
            sql.put_back(verb)
            return replaces


class TableCreation(NamedTuple):
    """The options of a CREATE TABLE statement that come before the table's name.

    ``replaces``: True for OR REPLACE (MariaDB), which first drops an existing table of that name.
    ``if_absent``: True for IF NOT EXISTS. ``temporary``: True for TEMPORARY, which creates a table that only
    the session sees.
    """

    replaces: bool = False
    if_absent: bool = False
    temporary: bool = False


def read_creation(sql: SqlReader) -> TableCreation | None:
    """Reads CREATE [OR REPLACE] [TEMPORARY] TABLE [IF NOT EXISTS], and returns the options in brackets.

    Returns None for any other statement, and then does not move the reader.
    """
    replaces = sql.sees("CREATE", "OR", "REPLACE")
    ahead = 3 if replaces else 1
    temporary = sql.peek(ahead).says("TEMPORARY")
    if not (sql.sees("CREATE") and sql.peek(ahead + temporary).says("TABLE")):
        return None
    while not sql.skip("TABLE"):
        sql.take()
    return TableCreation(replaces, sql.skip("IF", "NOT", "EXISTS"), temporary)


def read_like(sql: SqlReader, default_schema: str) -> tuple[TableId, TableId] | None:
    """Returns the tables ``existing`` and ``new`` of the statement CREATE TABLE new LIKE existing.

    The form CREATE TABLE new (LIKE existing) is read as well. The reader must be after the words CREATE
    TABLE. If the name of the existing table is unqualified and the session's database is unknown, its schema
    is empty. Returns None for any other statement, and then does not move the reader.
    """
    ahead = 3 if sql.peek(1).says(".") else 1
    if not (sql.peek(ahead).says("LIKE") or (sql.peek(ahead).says("(") and sql.peek(ahead + 1).says("LIKE"))):
        return None
    session_schema = session_schema_of(sql, default_schema)
    new = read_table_name(sql, default_schema)
    sql.skip("(")
    sql.need("LIKE")
    return read_table_name(sql, session_schema), new


def read_create_table(sql: SqlReader, default_schema: str) -> TableDefinition:
    """Reads the table's name and definition after the words CREATE TABLE, and returns the definition.

    ``default_schema``: schema of the table if its name is unqualified.

    Raises:
        ConfigError: The definition cannot be parsed, or it has no columns.
    """
    table = read_table_name(sql, default_schema)
    parts = SqlReader(sql.group()).parts()
    charset = _table_charset(sql)
    definition = TableDefinition(table, charset=charset)
    columns = [read_column(part, charset=charset) for part in parts if not starts_constraint(part)]
    # TiDB numbers the table's indexes before those of the columns.
    for part in parts:
        if starts_constraint(part):
            definition = add_constraint(definition, part)
    for column in columns:
        definition = append_column(definition, column)
    for name in definition.primary_key:
        definition.place_of(name)
    if not definition.columns:
        raise ConfigError(f"the statement CREATE TABLE {definition.table} has no columns")
    return definition


def _table_charset(sql: SqlReader) -> str | None:
    charset = None
    while not sql.done:
        if sql.skip("CHARSET") or sql.skip("CHARACTER", "SET"):
            sql.skip("=")
            charset = sql.take().text.lower()
        else:
            sql.take()
    return charset


def statements(sql: Iterable[Token]) -> Iterator[SqlReader]:
    """Splits the tokens of SQL text into statements, and yields a reader of each statement.

    A reader does not include the delimiter at the end of the statement. It also does not include the prefix
    ``SET STATEMENT … FOR``, which sets MariaDB's variables for one statement.

    The definition of a procedure, function, trigger, event or package is one statement, and so is a block
    (``BEGIN NOT ATOMIC … END``). Their bodies are not parsed, because they may be in another language, and so
    the end of a body cannot be found. Such a statement extends to the delimiter that a ``DELIMITER`` line of
    the script set, or to the end of the text.
    """
    tokens = iter(sql)
    statement: list[Token] = []
    depth = 0
    for token in tokens:
        if token.kind == "end":
            if statement:
                yield SqlReader(_in_usual_words(statement))
            statement, depth = [], 0
            continue
        statement.append(token)
        depth += token.says("(") - token.says(")")
        if depth == 0 and token.says("FOR") and SqlReader(statement).sees("SET", "STATEMENT"):
            statement = []
        elif _begins_body(statement):
            _skip_body(tokens)
            yield SqlReader(_in_usual_words(statement))
            statement, depth = [], 0
    if statement:
        yield SqlReader(_in_usual_words(statement))


# Objects whose definition is a program (MySQL 8.4 and 9.5, MariaDB 12.1).
_PROGRAMS: Final = ("PROCEDURE", "FUNCTION", "TRIGGER", "EVENT", "PACKAGE", "LIBRARY")
# A statement with more tokens than this before one of the words above is not the definition of a program.
_MOST_BEFORE_PROGRAM: Final = 40
# Statements of programs that MariaDB also executes outside a program.
_BLOCKS: Final = ("DECLARE", "IF", "CASE", "LOOP", "WHILE", "REPEAT", "FOR")
# BEGIN followed by one of these words, or by nothing, begins a transaction.
_OF_TRANSACTION: Final = ("WORK", "OPTIMISTIC", "PESSIMISTIC")


def _begins_body(statement: Sequence[Token]) -> bool:
    """Returns True if the tokens are exactly the words that begin a procedure, another program or a block."""
    first, last = statement[0], statement[-1]
    if len(statement) == 1:
        return first.says(*_BLOCKS)
    if len(statement) == 2:
        # BEGIN NOT ATOMIC, a label, or a label in Oracle's dialect.
        begins = first.says("BEGIN") and not last.says(*_OF_TRANSACTION)
        if begins or last.says(":") or (first.says("<") and last.says("<")):
            return True
    if not last.says(*_PROGRAMS) or len(statement) > _MOST_BEFORE_PROGRAM:
        return False
    return _begins_program(SqlReader(statement))


def _begins_program(sql: SqlReader) -> bool:
    try:
        skip_definer(sql)
    except ConfigError:
        return False
    if not sql.skip_any("CREATE", "ALTER"):
        return False
    sql.skip("AGGREGATE")
    return sql.skip_any(*_PROGRAMS) and sql.done


def _skip_body(tokens: Iterator[Token]) -> None:
    try:
        next((token for token in tokens if token.kind == "end" and token.text != ";"), None)
    except ConfigError:
        # The body is not SQL, so no later statement can be found.
        return


def _in_usual_words(statement: Sequence[Token]) -> list[Token]:
    """Returns a statement's tokens, in which synonyms are replaced by the usual words.

    ``DROP TABLES`` becomes ``DROP TABLE``, ``ALTER ONLINE TABLE`` becomes ``ALTER TABLE``, and ``BEGIN`` of a
    transaction becomes ``START TRANSACTION``, because ``BEGIN`` can also start a block.
    """
    verb, *rest = statement
    if verb.says("ALTER"):
        how = [*takewhile(lambda token: token.says("IGNORE", "ONLINE", "OFFLINE"), rest)]
        rest = rest[len(how) :]
        if rest and rest[0].says("TABLE") and any(token.says("IGNORE") for token in how):
            rest = [rest[0], Token("word", _IGNORE), *rest[1:]]
    elif rest and verb.says("DROP", "RENAME") and rest[0].says("TABLES"):
        rest[0] = Token("word", "TABLE")
    elif verb.says("BEGIN") and (not rest or rest[0].says(*_OF_TRANSACTION)):
        return [Token("word", "START"), Token("word", "TRANSACTION")]
    return [verb, *rest]


# Inserted after ALTER TABLE to mark ALTER IGNORE TABLE. No table has this name.
_IGNORE: Final = "IGNORE ROWS"


class DdlText:
    """The SQL text of a DDL event, which is split into statements only once.

    ``query``: the text. ``default_schema``: database of unqualified names in the text. ``about``: table named
    by the event, or None.
    """

    def __init__(self, query: str, default_schema: str = "", *, about: TableId | None = None) -> None:
        self.query = query
        self.default_schema = default_schema
        self.about = about

    def statements(self) -> Iterator[SqlReader]:
        """Returns a reader of each statement.

        Raises:
            ConfigError: The text is not SQL.
        """
        return (reader.copy() for reader in self._readers)

    @cached_property
    def _readers(self) -> Sequence[SqlReader]:
        # TiDB's restorer does not escape backslashes (tiflow c7b2588); hand-written statements do.
        try:
            return [*statements(each_token(self.query, backslash_escapes=False))]
        except ConfigError:
            return [*statements(each_token(self.query))]


class AlterTable(NamedTuple):
    """An ALTER TABLE statement: its table, and its parts, such as ADD COLUMN, which commas separate.

    ``parts``: a reader of each part. ``session_schema``: database of unqualified table names in the parts,
    empty if unknown. ``ignores``: True for ALTER IGNORE TABLE, which changes or removes rows that violate the
    new definition.
    """

    table: TableId
    parts: list[SqlReader]
    session_schema: str
    ignores: bool = False


def read_alter(sql: SqlReader, default_schema: str, about: TableId | None = None) -> AlterTable | None:
    """Returns the table and the parts of an ALTER TABLE, or None for any other statement.

    ``default_schema``: database of the table if its name is unqualified. It is then also the session's
    database. ``about``: table named by the DDL event. If the statement renames its table to the name of
    ``about`` without a database, the session's database is that of ``about``.
    """
    if not sql.skip("ALTER", "TABLE"):
        return None
    ignores = sql.skip(_IGNORE)
    sql.skip("IF", "EXISTS")
    session_schema = session_schema_of(sql, default_schema)
    table = read_table_name(sql, default_schema)
    _skip_wait(sql)
    parts = sql.parts()
    if not session_schema and about is not None:
        new = [name for name in map(_new_name, parts) if name is not None]
        session_schema = _schema_by_event([table], new, about)
    return AlterTable(table, parts, session_schema, ignores)


def _new_name(part: SqlReader) -> TableId | None:
    """Returns the table's new name if this part of an ALTER TABLE renames it, else None.

    The reader of the part is not moved.
    """
    part = part.copy()
    if not part.skip("RENAME") or part.peek().says("COLUMN", "INDEX", "KEY"):
        return None
    part.skip_any("TO", "AS", "=")
    return read_table_name(part, "")


def _schema_by_event(old: Iterable[TableId], new: Iterable[TableId], about: TableId) -> str:
    """Returns the session's database, as far as the DDL event of a rename shows it; empty if unknown.

    ``old`` and ``new``: tables before and after the rename, as the statement names them. ``about``: table
    named by the event, with the database and name after the rename (TiCDC, tiflow c7b2588). If ``new``
    contains the name of ``about`` without a database, the session's database is that of ``about``.
    """
    event = fold_name(about.schema), fold_name(about.name)
    if event in {(fold_name(schema), fold_name(name)) for schema, name in old}:
        return ""
    return about.schema if event[1] in {fold_name(name) for schema, name in new if not schema} else ""


def session_schema_of(sql: SqlReader, default_schema: str) -> str:
    """Returns the session's database, to which unqualified names in a statement belong; empty if unknown.

    ``default_schema``: database of the DDL event's table. It is the session's database if the statement's
    first table name is unqualified; otherwise the session's database is unknown. The reader must be at that
    table name.
    """
    return "" if sql.peek(1).says(".") else default_schema


def _skip_wait(sql: SqlReader) -> None:
    """Skips MariaDB's lock wait option: ``WAIT 5`` or ``NOWAIT``."""
    if not sql.skip("NOWAIT") and sql.skip("WAIT"):
        sql.take()


def read_converted_partition(alter: AlterTable, part: SqlReader) -> TableId:
    """Returns the table that CONVERT PARTITION p TO TABLE creates from a partition (MariaDB)."""
    part.need("CONVERT", "PARTITION")
    part.name()
    part.need("TO", "TABLE")
    return read_table_name(part, alter.session_schema)


def read_converted_characters(part: SqlReader) -> str:
    """Returns the character set of CONVERT TO CHARACTER SET in lower case.

    The result ``default`` means the database's character set.
    """
    part.need("CONVERT", "TO")
    if not part.skip_any("CHARSET"):
        part.take()
        part.need("SET")
    part.skip("=")
    return part.take().text.lower()


def read_definitions(part: SqlReader) -> list[ColumnDefinition]:
    """Returns the definitions of the columns that one part of an ALTER TABLE adds or redefines.

    Raises:
        ConfigError: The part cannot be parsed as a column definition.
    """
    verb = part.take()
    part.skip("COLUMN")
    part.skip("IF", "NOT", "EXISTS")
    part.skip("IF", "EXISTS")
    if verb.says("CHANGE"):
        part.name()
    if not (verb.says("ADD") and part.sees("(")):
        return [read_column(part)]
    return [
        read_column(reader) for reader in SqlReader(part.group()).parts() if not starts_constraint(reader)
    ]


def computed_for_rows(definition: ColumnDefinition) -> str:
    """Returns a text for users about the values that the database computed when it added a column.

    The values are those in the rows that existed then. The text is empty if the column's definition shows the
    value, for example as a constant default.
    """
    column, options = definition
    if options.generated:
        return "values that the database computed from each row"
    if options.counts:
        return "numbers that the database generated"
    if options.default is None or _is_null(options.default):
        return ""
    text = default_text(options.default, column.type)
    if text is None:
        return "values that the database computed for each row"
    return "the time of the statement" if text == CURRENT_TIME else ""


def _is_null(expression: Sequence[Token]) -> bool:
    return [token.text.upper() for token in expression if not token.says("(", ")")] == ["NULL"]


def read_dropped(sql: SqlReader, default_schema: str) -> list[TableId]:
    """Returns the tables that DROP TABLE removes. The schema is empty if a table's database is unknown."""
    sql.skip("IF", "EXISTS")
    session_schema = session_schema_of(sql, default_schema)
    return [read_table_name(part, session_schema) for part in sql.parts()]


def read_renamed(
    sql: SqlReader, default_schema: str, about: TableId | None = None
) -> Iterator[tuple[TableId, TableId]]:
    """Yields the old and the new name of each table in RENAME TABLE. An unknown schema is empty.

    ``about``: table named by the DDL event. If the statement renames a table to the name of ``about`` without
    a database, the session's database is that of ``about``.
    """
    sql.skip("IF", "EXISTS")
    session_schema = session_schema_of(sql, default_schema)
    pairs = [_renamed_table(pair, session_schema) for pair in sql.parts()]
    if not session_schema and about is not None:
        session_schema = _schema_by_event((old for old, _ in pairs), (new for _, new in pairs), about)
    for pair in pairs:
        old, new = (table if table.schema else TableId(session_schema, table.name) for table in pair)
        yield old, new


def _renamed_table(pair: SqlReader, session_schema: str) -> tuple[TableId, TableId]:
    old = read_table_name(pair, session_schema)
    _skip_wait(pair)
    pair.need("TO")
    return old, read_table_name(pair, session_schema)


def read_table_name(sql: SqlReader, default_schema: str) -> TableId:
    """Reads a table's name and returns the table. An unqualified name gets the default schema."""
    first = sql.name()
    return TableId(first, sql.name()) if sql.skip(".") else TableId(default_schema, first)


_CONSTRAINTS = ("CONSTRAINT", "PRIMARY", "UNIQUE", "KEY", "INDEX", "FULLTEXT", "SPATIAL", "FOREIGN", "CHECK")


def starts_constraint(sql: SqlReader) -> bool:
    """Returns True if the definition at the reader's position is a key, index or constraint, not a column."""
    if sql.sees("VECTOR", "INDEX") or sql.sees("COLUMNAR", "INDEX"):
        return True
    return sql.peek().says(*_CONSTRAINTS)


def add_constraint(definition: TableDefinition, sql: SqlReader) -> TableDefinition:
    """Adds the primary key or unique index at the reader's position to a table definition.

    Returns the changed definition. For other constraints, and indexes that are not unique, the definition is
    returned unchanged.
    """
    name = ""
    if sql.skip("CONSTRAINT") and not sql.peek().says("PRIMARY", "UNIQUE", "FOREIGN", "CHECK"):
        name = sql.name()
    if sql.skip("PRIMARY", "KEY"):
        return replace(definition, primary_key=tuple(_index_columns(sql)))
    if not sql.skip("UNIQUE"):
        return definition
    sql.skip_any("KEY", "INDEX")
    sql.skip("IF", "NOT", "EXISTS")
    if not sql.sees("(") and not sql.sees("USING"):
        name = sql.name()
    return add_unique(definition, name, _index_columns(sql))


def add_unique(definition: TableDefinition, name: str, columns: Iterable[str]) -> TableDefinition:
    """Returns the table definition with a unique index added.

    If ``name`` is empty, the index is named after its first column, as in MySQL.
    """
    names = tuple(columns)
    return replace(definition, uniques=(*definition.uniques, Index(name or names[0], names)))


def _index_columns(sql: SqlReader) -> list[str]:
    while not sql.sees("("):
        sql.take()  # USING BTREE
    return read_index_columns(sql.group())


def read_index_columns(inside: list[Token]) -> list[str]:
    """Returns the column names of an index. An indexed expression becomes an empty name."""
    return ["" if part[0].says("(") else part[0].text for part in split_by_comma(inside) if part]


def append_column(definition: TableDefinition, column_definition: ColumnDefinition) -> TableDefinition:
    """Returns the table definition with a column added at the end, and with the keys that it declares."""
    column = replace(column_definition.column, column_id=definition.next_column_id)
    columns = (*definition.columns, column)
    changed = replace(definition, columns=columns, next_column_id=definition.next_column_id + 1)
    return with_own_keys(changed, column_definition)


def with_own_keys(definition: TableDefinition, column_definition: ColumnDefinition) -> TableDefinition:
    """Returns the table definition with the keys that a column definition declares (PRIMARY KEY, UNIQUE)."""
    name = column_definition.column.name
    if column_definition.options.primary:
        definition = replace(definition, primary_key=(name,))
    if column_definition.options.unique:
        definition = add_unique(definition, name, (name,))
    return definition


class AlteredTable(NamedTuple):
    """A table after an ALTER TABLE.

    ``definition``: the new definition. ``parted``: folded old names of the columns that the statement dropped
    or renamed.
    """

    definition: TableDefinition
    parted: frozenset[str]


@dataclass
class _Changes:
    """The changes that one ALTER TABLE makes. Columns are named as they were before the statement.

    ``dropped``: names of dropped columns. ``renamed``: for each RENAME COLUMN, CHANGE and MODIFY the old
    name, the new name, the new definition or None, and True for IF EXISTS, which accepts that the column is
    missing. ``defaults``: tokens of new defaults by folded column name; None for DROP DEFAULT. ``defined``:
    definitions in ADD, CHANGE and MODIFY, in the statement's order. ``lost_keys``: names of dropped indexes;
    an empty name means the primary key. ``index_names``: old and new name of each renamed index.
    ``constraints``: readers of added keys and constraints. ``table``: the table's new name, or None.
    """

    dropped: list[str] = field(default_factory=list)
    renamed: list[tuple[str, str, ColumnDefinition | None, bool]] = field(default_factory=list)
    defaults: dict[str, list[Token] | None] = field(default_factory=dict)
    defined: list[ColumnDefinition] = field(default_factory=list)
    lost_keys: list[str] = field(default_factory=list)
    index_names: list[tuple[str, str]] = field(default_factory=list)
    constraints: list[SqlReader] = field(default_factory=list)
    table: TableId | None = None


def alter(definition: TableDefinition, statement: AlterTable) -> AlteredTable:
    """Applies an ALTER TABLE to a table definition and returns the altered table.

    Parts that concern neither columns nor keys are ignored. Parts refer to columns by the names before the
    statement, so that two columns can swap their names (MySQL 8.4, ALTER TABLE; the server's
    ``mysql_prepare_alter_table``). Only ``AFTER`` and new keys refer to the names after the statement.

    Raises:
        ConfigError: A column does not exist, two columns would have the same name, or a part cannot be
            parsed.
    """
    for part in statement.parts:
        definition = _with_charset(definition, part)
    changes = _Changes()
    for part in statement.parts:
        _read_part(changes, definition, part, statement.session_schema)
    for name in changes.lost_keys:
        definition = drop_index(definition, name) if name else replace(definition, primary_key=())
    for old, new in changes.index_names:
        definition = _with_index_name(definition, old, new)
    altered = _with_columns(definition, changes)
    definition = altered.definition
    for constraint in changes.constraints:
        definition = add_constraint(definition, constraint)
    table = changes.table or definition.table
    return AlteredTable(replace(definition, table=table), altered.parted)


def _read_part(changes: _Changes, definition: TableDefinition, sql: SqlReader, session_schema: str) -> None:
    verb = sql.take()
    if verb.says("RENAME") and not sql.peek().says("COLUMN", "INDEX", "KEY"):
        sql.skip_any("TO", "AS", "=")
        changes.table = read_table_name(sql, session_schema)
        return
    read = _VERBS.get(verb.text.upper()) if verb.kind == "word" else None
    if read is not None:
        read(changes, definition, sql)


def _with_charset(definition: TableDefinition, sql: SqlReader) -> TableDefinition:
    """Returns the table definition with the character set that a part of an ALTER TABLE sets.

    If the part sets none, the definition is returned unchanged.

    The character set applies to columns that are added later. CONVERT TO CHARACTER SET binary also turns the
    existing text columns into binary columns.
    """
    converts = sql.sees("CONVERT", "TO")
    ahead = 2 if converts else int(sql.sees("DEFAULT"))
    if sql.peek(ahead).says("CHARSET"):
        ahead += 1
    elif sql.peek(ahead).says("CHARACTER", "CHAR") and sql.peek(ahead + 1).says("SET"):
        ahead += 2
    else:
        return definition
    charset = sql.peek(ahead + sql.peek(ahead).says("=")).text.lower()
    if not converts or charset != "binary":
        return replace(definition, charset=charset)
    columns = (replace(c, type=as_bytes(c.type)) for c in definition.columns)
    return replace(definition, charset=charset, columns=tuple(columns))


def _read_added(changes: _Changes, definition: TableDefinition, sql: SqlReader) -> None:
    if starts_constraint(sql):
        changes.constraints.append(sql)
        return
    if sql.peek().says("PARTITION", "PERIOD") or sql.sees("SYSTEM", "VERSIONING"):
        return
    sql.skip("COLUMN")
    sql.skip("IF", "NOT", "EXISTS")
    if not sql.sees("("):
        changes.defined.append(read_column(sql, charset=definition.charset))
        return
    for inside in SqlReader(sql.group()).parts():
        if starts_constraint(inside):
            changes.constraints.append(inside)
        else:
            changes.defined.append(read_column(inside, charset=definition.charset))


def _read_dropped(changes: _Changes, definition: TableDefinition, sql: SqlReader) -> None:
    if sql.skip("PRIMARY", "KEY"):
        changes.lost_keys.append("")
        return
    if sql.skip_any("INDEX", "KEY") or sql.skip("CONSTRAINT"):
        sql.skip("IF", "EXISTS")
        changes.lost_keys.append(sql.name())
        return
    if sql.peek().says("FOREIGN", "CHECK", "PARTITION", "PERIOD") or sql.sees("SYSTEM", "VERSIONING"):
        return
    sql.skip("COLUMN")
    sql.skip("IF", "EXISTS")
    name = sql.name()
    if definition.has(name):
        changes.dropped.append(name)


def _read_modified(changes: _Changes, definition: TableDefinition, sql: SqlReader) -> None:
    sql.skip("COLUMN")
    lenient = sql.skip("IF", "EXISTS")
    redefinition = read_column(sql, charset=definition.charset)
    changes.renamed.append((redefinition.column.name, redefinition.column.name, redefinition, lenient))
    changes.defined.append(redefinition)


def _read_changed(changes: _Changes, definition: TableDefinition, sql: SqlReader) -> None:
    sql.skip("COLUMN")
    lenient = sql.skip("IF", "EXISTS")
    old = sql.name()
    redefinition = read_column(sql, charset=definition.charset)
    changes.renamed.append((old, redefinition.column.name, redefinition, lenient))
    changes.defined.append(redefinition)


def _read_renamed(changes: _Changes, _definition: TableDefinition, sql: SqlReader) -> None:
    kind = sql.take()
    lenient = sql.skip("IF", "EXISTS")
    old = sql.name()
    sql.need("TO")
    new = sql.name()
    if kind.says("COLUMN"):
        changes.renamed.append((old, new, None, lenient))
    else:
        changes.index_names.append((old, new))


def _read_altered(changes: _Changes, definition: TableDefinition, sql: SqlReader) -> None:
    if sql.peek().says("INDEX", "KEY", "CHECK", "CONSTRAINT"):
        return
    sql.skip("COLUMN")
    lenient = sql.skip("IF", "EXISTS")
    name = sql.name()
    if lenient and not definition.has(name):
        return
    old = fold_name(definition.columns[definition.place_of(name)].name)
    if sql.skip("DROP", "DEFAULT"):
        changes.defaults[old] = None
    elif sql.skip("SET", "DEFAULT"):
        changes.defaults[old] = sql.rest()
    elif not (sql.sees("SET", "VISIBLE") or sql.sees("SET", "INVISIBLE")):
        sql.need("SET", "DEFAULT")


_VERBS: dict[str, Callable[[_Changes, TableDefinition, SqlReader], None]] = {
    "ADD": _read_added,
    "DROP": _read_dropped,
    "MODIFY": _read_modified,
    "CHANGE": _read_changed,
    "RENAME": _read_renamed,
    "ALTER": _read_altered,
}


def _was_done(definition: TableDefinition, changes: _Changes) -> bool:
    """Returns True if the columns that an ALTER TABLE renames show that it was already applied.

    It was applied if, for one of its renames, the table has a column with the new name but none with the old
    name. It was also applied if a new name belongs to a column that the statement neither drops nor renames:
    otherwise the server would have rejected the statement.
    """
    leaving = {fold_name(name) for name in changes.dropped}
    leaving |= {fold_name(old) for old, _, _, _ in changes.renamed}
    return any(
        definition.has(new) and (not definition.has(old) or fold_name(new) not in leaving)
        for old, new, _, _ in changes.renamed
        if fold_name(old) != fold_name(new)
    )


def _with_columns(definition: TableDefinition, changes: _Changes) -> AlteredTable:
    """Drops, renames, redefines and adds the columns of one ALTER TABLE, and returns the altered table.

    All changes refer to columns by their names before the statement.
    """
    done = _was_done(definition, changes)
    made = {fold_name(new) for old, new, _, _ in changes.renamed if fold_name(old) != fold_name(new)}
    dropped = [name for name in changes.dropped if not (done and fold_name(name) in made)]
    names, redefined = dict[str, str](), dict[str, ColumnDefinition]()
    for old, new, redefinition, lenient in changes.renamed:
        is_new = definition.has(new) and (done or not definition.has(old))
        if lenient and not is_new and not definition.has(old):
            continue
        now = definition.columns[definition.place_of(new if is_new else old)]
        names[fold_name(now.name)] = new
        if redefinition is not None:
            redefined[fold_name(now.name)] = redefinition
    columns, moved = list[Column](), dict[str, Column]()
    before, dropped_names = definition.columns, {fold_name(name) for name in dropped}
    for column in before:
        old = fold_name(column.name)
        if old in dropped_names:
            continue
        altered = _altered_column(column, names.get(old), redefined.get(old), changes.defaults.get(old, ...))
        options = redefined[old].options if old in redefined else _Options()
        columns.append(altered)
        if options.first or options.after is not None:
            moved[fold_name(altered.name)] = altered
    for name in dropped:
        definition = _without(definition, name)
    definition = _renamed_in_keys(definition, names)
    anew = [id(redefinition) for _, _, redefinition, _ in changes.renamed]
    defined = [
        column_definition
        for column_definition in changes.defined
        if id(column_definition) not in anew or column_definition in redefined.values()
    ]
    definition = _placed(definition, columns, moved, defined, names)
    parted = dropped_names | {old for old, new in names.items() if old != fold_name(new)}
    return AlteredTable(definition, frozenset(parted))


def _altered_column(
    column: Column, name: str | None, definition: ColumnDefinition | None, default: Any
) -> Column:
    """Returns a column with a new name, definition and default.

    ``name`` and ``definition``: new name and new definition, or None if they do not change. ``default``:
    tokens of the new default, None if the default is dropped, ``...`` if it does not change.
    """
    if definition is not None:
        new = definition.column
        before = replace(
            column,
            default=default_as(column.default, column.type, new.type),
            origin_default=default_as(column.origin_default, column.type, new.type),
        )
        column = before.redefined_by(new)
    if default is not ...:
        text = None if default is None else default_text(default, column.type)
        column = column.redefined_by(replace(column, default=text))
    return column if name is None else replace(column, name=name)


def _placed(
    definition: TableDefinition,
    columns: list[Column],
    moved: Mapping[str, Column],
    defined: Iterable[ColumnDefinition],
    names: Mapping[str, str],
) -> TableDefinition:
    """Returns the table definition with the added columns, and with moved columns at their new positions.

    ``columns``: the existing columns as altered, in their old order; the list is changed. ``moved``: columns
    that ``FIRST`` or ``AFTER`` moves, by folded new name. ``defined``: definitions of added and redefined
    columns, in the statement's order. ``names``: new names by folded old names.

    Raises:
        ConfigError: Two columns would have the same name, or the column given with ``AFTER`` does not exist.
    """
    new_keys = list[ColumnDefinition]()
    again = {fold_name(new) for new in names.values()}
    for column_definition in defined:
        name = fold_name(column_definition.column.name)
        if name in moved:
            column = moved[name]
            columns.remove(column)
        elif any(fold_name(existing.name) == name for existing in columns):
            # The column is redefined in place, or the statement added it before it was sent again.
            new_keys += [column_definition] if name in again else []
            continue
        else:
            column = replace(_with_origin_default(column_definition), column_id=definition.next_column_id)
            definition = replace(definition, next_column_id=definition.next_column_id + 1)
        columns.insert(_place_among(columns, column_definition.options, names, definition), column)
        new_keys.append(column_definition)
    taken = Counter(fold_name(column.name) for column in columns)
    for name, times in taken.items():
        if times > 1:
            raise ConfigError(
                f"the statement would leave the table {definition.table} with two columns named {name!r}"
            )
    definition = replace(definition, columns=tuple(columns))
    for column_definition in new_keys:
        definition = with_own_keys(definition, column_definition)
    return definition


def _place_among(
    columns: Sequence[Column], options: _Options, names: Mapping[str, str], definition: TableDefinition
) -> int:
    if options.first or options.after is None:
        return 0 if options.first else len(columns)
    # AFTER names a column by its new name. If no column has that name, it is looked up as an old name.
    for after in (options.after, names.get(fold_name(options.after), options.after)):
        for index, column in enumerate(columns):
            if fold_name(column.name) == fold_name(after):
                return index + 1
    raise ConfigError(f"the table {definition.table} has no column {options.after!r}")


def drop_index(definition: TableDefinition, name: str) -> TableDefinition:
    """Returns the table definition without the unique index ``name``. If it has none, nothing changes."""
    uniques = tuple(unique for unique in definition.uniques if fold_name(unique.name) != fold_name(name))
    return replace(definition, uniques=uniques)


def _without(definition: TableDefinition, name: str) -> TableDefinition:
    index = definition.place_of(name)
    columns = definition.columns[:index] + definition.columns[index + 1 :]
    uniques = tuple(u for u in definition.uniques if fold_name(name) not in (fold_name(c) for c in u.columns))
    # A dropped column counts as dropped under its former names, too.
    its = (fold_name(old) for old, new in definition.renamed if fold_name(new) == fold_name(name))
    dropped = tuple(dict.fromkeys((*definition.dropped, fold_name(name), *its)))
    renamed = tuple(pair for pair in definition.renamed if fold_name(pair[1]) != fold_name(name))
    return replace(definition, columns=columns, uniques=uniques, dropped=dropped, renamed=renamed)


def _with_index_name(definition: TableDefinition, old: str, new: str) -> TableDefinition:
    uniques = tuple(
        replace(u, name=new) if fold_name(u.name) == fold_name(old) else u for u in definition.uniques
    )
    return replace(definition, uniques=uniques)


def _renamed_in_keys(definition: TableDefinition, names: Mapping[str, str]) -> TableDefinition:
    """Renames columns in the keys of a table definition, and adds the renames to its list ``renamed``.

    ``names``: new column names by folded old names.
    """

    def renamed(columns: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(fold_name(name), name) for name in columns)

    before = {fold_name(column.name): column.name for column in definition.columns}
    pairs = [(before.get(old, old), new) for old, new in names.items() if old != fold_name(new)]
    return replace(
        definition,
        renamed=_renames(definition.renamed, names, pairs),
        primary_key=renamed(definition.primary_key),
        uniques=tuple(replace(u, columns=renamed(u.columns)) for u in definition.uniques),
    )


def _renames(
    previous: tuple[tuple[str, str], ...], names: Mapping[str, str], pairs: Sequence[tuple[str, str]]
) -> tuple[tuple[str, str], ...]:
    """Returns pairs of the former and the current name of each renamed column, newest rename first.

    A column that was renamed twice has two pairs. ``previous``: pairs before the statement. ``names``: new
    names by folded old names. ``pairs``: pairs of old and new name that the statement adds.
    """
    followed = tuple((was, names.get(fold_name(now), now)) for was, now in previous)
    # A column that was renamed back to its former name counts as never renamed.
    remaining = ((was, now) for was, now in followed if fold_name(was) != fold_name(now))
    return (*reversed(pairs), *remaining) if pairs else followed
