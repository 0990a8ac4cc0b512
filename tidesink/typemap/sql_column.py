"""A column definition of DDL to a Column, with the defaults and the type text TiDB would show.

Rules from TiDB (2026-06-25) as its own encoders showed them: display widths, ``decimal`` is
``decimal(10,0)``, ``CHARACTER SET binary`` turns text into binary, a NOT NULL YEAR without default
has ``0000``, a column added NOT NULL has its type's zero for the rows already there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidesink.errors import ConfigError, shown
from tidesink.events import Column, ColumnType
from tidesink.typemap.sql_default import default_text, zero_text
from tidesink.typemap.sql_lexer import Token
from tidesink.typemap.sql_reader import SqlReader
from tidesink.typemap.sql_type import parse_sql_type, shown_type
from tidesink.typemap.table import find_row

_ATTRIBUTES = frozenset({"UNSIGNED", "SIGNED", "ZEROFILL"})
_LONGEST_TYPE_NAME = 3  # "national character varying"


@dataclass(frozen=True)
class ColumnDefinition:
    """A parsed column with what the definition says about keys and its place."""

    column: Column
    primary: bool = False
    unique: bool = False
    place: str | None = None  # "FIRST", or "AFTER"
    after: str | None = None


@dataclass
class _Options:
    nullable: bool | None = None
    default: list[Token] | None = None
    on_update: bool = False
    generated: bool = False
    stored: bool = False
    primary: bool = False
    unique: bool = False
    charset: str | None = None
    place: str | None = None
    after: str | None = None


def read_column(sql: SqlReader, *, charset: str | None = None) -> ColumnDefinition:
    """The column definition that stands next; ``charset`` is the table's.

    Raises:
        ConfigError: an unknown type, or text that is no column definition.
    """
    name = sql.name()
    options = _Options(charset=charset)
    word, arguments, attributes = _read_type(sql, options)
    while not sql.done and not sql.sees(","):
        _read_option(sql, options)
    column_type = parse_sql_type(shown_type(word, arguments, attributes, charset=options.charset))
    nullable = options.nullable is not False and not options.primary
    column = Column(
        name=name,
        type=column_type,
        nullable=nullable,
        default=_default(options, column_type, nullable),
        virtual=options.generated and not options.stored,
    )
    return ColumnDefinition(column, options.primary, options.unique, options.place, options.after)


def with_origin_default(column: Column) -> Column:
    """The column as ADD COLUMN leaves it: NOT NULL without a default gives old rows the type's zero."""
    if column.nullable or column.virtual or column.default is not None:
        return column
    return replace(column, default=zero_text(column.type))


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
        options.nullable, options.unique = False, True
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
        known = name in ("bool", "boolean", "serial") or find_row(name) is not None
        if known and not name.endswith(" unsigned"):  # an attribute, read apart
            for _ in words:
                sql.take()
            return name
    raise ConfigError(f"unknown SQL type {shown(sql.peek().text)}")


def _read_option(sql: SqlReader, options: _Options) -> None:
    if sql.skip("NOT", "NULL"):
        options.nullable = False
    elif sql.skip("NULL"):
        options.nullable = True
    elif sql.skip("DEFAULT"):
        options.default = _expression(sql)
    elif sql.skip("ON", "UPDATE"):
        options.on_update = True
        _expression(sql)
    elif sql.skip_any("PRIMARY"):
        sql.skip("KEY")
        options.primary = True
    elif sql.skip_any("UNIQUE"):
        sql.skip("KEY")
        options.unique = True
    elif sql.skip("KEY"):
        options.primary = True
    elif sql.sees("AS", "(") or sql.sees("GENERATED"):
        _read_generated(sql, options)
    else:
        _read_plain_option(sql, options)


def _read_plain_option(sql: SqlReader, options: _Options) -> None:
    if sql.skip("CHARACTER", "SET") or sql.skip("CHARSET") or sql.skip("CHAR", "SET"):
        sql.skip("=")
        options.charset = sql.take().text.lower()
    elif sql.skip("BYTE"):
        options.charset = "binary"
    elif sql.skip("FIRST"):
        options.place = "FIRST"
    elif sql.skip("AFTER"):
        options.place, options.after = "AFTER", sql.name()
    elif sql.skip_any("COMMENT", "COLLATE", "COLUMN_FORMAT", "STORAGE"):
        sql.take()
    elif sql.skip("REFERENCES"):
        _skip_reference(sql)
    else:
        sql.skip_item()


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
    """One default or ON UPDATE value: a literal with its sign, a function call, or a group."""
    if sql.sees("("):
        return [Token("sign", "("), *sql.group(), Token("sign", ")")]
    expression = [sql.take()]
    if expression[0].says("-", "+"):
        expression.append(sql.take())
    if expression[0].kind == "word" and sql.sees("("):
        expression += [Token("sign", "("), *sql.group(), Token("sign", ")")]
    return expression
