"""Native column types of Postgres, MySQL and MariaDB: which source types each one holds exactly, and how.

tidesink's own types (``render_sql``) accept the source's values as they are written. A table that a user
created may have other types: ``uuid``, ``jsonb``, an enum, ``smallint``. Their columns are filled in two
steps. The staging table has each value twice: in a column of a type that accepts it unchanged (``staged``),
and in a column of the native type, which the merge's transaction fills by the expression ``cast``. Then the
condition ``same`` must be true for every value. If the native type would cut, round, pad, fold or respell a
value, the condition is false, and the batch raises an error before any row of the table is written.

A rule's expressions contain ``{s}`` for the staged value, ``{t}`` for the native value, and ``{type}`` for
the native type. Types are those of Postgres 15, MySQL 8 and MariaDB 10.11, by their manuals and by the test
that writes a value of each (``tests/contracts/test_targets_sql_native.py``).
"""

# ruff: noqa: S608  the texts are fixed, and what fills them is a column's number or a catalog's type

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

from tidesink.events import folding
from tidesink.typemap.render_sql import (
    KEY_LENGTH,
    OF_SPARK,
    Database,
    FoundType,
    KeyLengthUnknownError,
    Spelling,
    plain_type,
    spark_of,
    spelling_of,
    sql_type,
)
from tidesink.typemap.table import CALENDAR_READERS, row_of
from tidesink.typemap.target_schema import TargetColumn

# The kind of a source's values for a database. ``shown``: dates and decimals that are stored as text.
Kind = Literal[
    "text",
    "char",
    "json",
    "list",
    "object",
    "integer",
    "bit",
    "boolean",
    "decimal",
    "float",
    "bytes",
    "spatial",
    "date",
    "datetime",
    "instant",
    "time",
    "zoned time",
    "interval",
    "shown",
]


@dataclass(frozen=True)
class Native:
    """How the values of a source column are stored in a column of a native type.

    ``found``: the native type. ``wanted``: the type that tidesink itself would give the column. ``staged``:
    type of the first staging column, into which the source's values are loaded. ``kept``: type of the second
    staging column, which is filled by ``cast``; None if the native type holds every value of the source's
    type, so that values are loaded in the native type and no second column is needed.
    """

    found: str
    wanted: str
    staged: str
    kept: str | None = None
    cast: str = "{s}"
    same: str = "{t} = {s}"

    def cast_of(self, staged: str) -> str:
        """Returns the SQL expression that converts the staged column to the native type."""
        return self.cast.format(s=staged, type=self.kept)

    def same_as(self, staged: str, stored: str) -> str:
        """Returns the SQL condition that a native value equals the staged value."""
        return self.same.format(s=staged, t=stored, type=self.kept, found=self.found)


class Wider(NamedTuple):
    """A native column whose type must be changed to ``wanted`` before it can hold the source's values."""

    wanted: str


class Refused(NamedTuple):
    """A native column that cannot hold the source's values, with the reason (``why``).

    ``wanted``: a type that holds them.
    """

    wanted: str
    why: str


@dataclass(frozen=True)
class _Rule:
    kinds: frozenset[Kind]
    cast: str = "({s})::{type}"
    same: str = "{t} = {s}"
    key: bool = True
    staged: str | None = None


def _rule(*kinds: Kind, **more: str | bool) -> _Rule:
    return replace(_Rule(frozenset(kinds)), **more)  # type: ignore[arg-type]


# Postgres: the text of its output function, which differs from a cast to text for some types (inet).
_WRITTEN: Final = "CASE WHEN {t} IS NOT NULL THEN concat({t}) END"
_AS_WRITTEN: Final = "concat({t}) = {s}"
_JSONB: Final = "({{t}}){}::jsonb = ({{s}})::jsonb"
_ELEMENTS: Final = (
    "CASE WHEN {s} IS NOT NULL THEN ARRAY(SELECT e.value FROM json_array_elements_text(({s})::json) "
    "WITH ORDINALITY AS e (value, at) ORDER BY e.at)::{type} END"
)
_QUOTED: Final = "'\"' || replace(replace({}, '\\', '\\\\'), '\"', '\\\"') || '\"'"
_PAIRS: Final = (
    "CASE WHEN {s} IS NOT NULL THEN coalesce((SELECT string_agg("
    + _QUOTED.format("e.key")
    + " || '=>' || coalesce("
    + _QUOTED.format("e.value")
    + ", 'NULL'), ',') FROM json_each_text(({s})::json) AS e), '')::{type} END"
)
# Fifteen characters: a time of day with six fraction digits.
_CLOCK: Final = "rpad(({x})::text || CASE WHEN strpos(({x})::text, '.') = 0 THEN '.' ELSE '' END, 15, '0')"
_SAME_CLOCK: Final = (
    f"{_CLOCK.replace('{x}', '{t}')} = {_CLOCK.replace('{x}', '{s}')} AND char_length({{s}}) <= 15"
)
_NUMBER: Final = "({t})::numeric = ({s})::numeric"
_RANGES: Final = ("int4range", "int8range", "numrange", "daterange", "tsrange", "tstzrange")
_NETWORK: Final = ("inet", "cidr", "macaddr", "macaddr8")

_POSTGRES: Final[Mapping[str, _Rule]] = {
    "enum": _rule("text", same=_AS_WRITTEN),
    "uuid": _rule("text", same=_AS_WRITTEN),
    **dict.fromkeys(_NETWORK, _rule("text", same=_AS_WRITTEN)),
    **dict.fromkeys(
        (*_RANGES, "xml", "tsvector", "ltree", "citext"), _rule("text", same=_AS_WRITTEN, key=False)
    ),
    # These types cut values that are too long.
    "name": _rule("text", "char", same=_AS_WRITTEN),
    "text": _rule("text", "char", same=_AS_WRITTEN),
    "character varying": _rule("text", "char", same=_AS_WRITTEN),
    # It pads a value with spaces: the comparison fails unless the source sent them.
    "character": _rule("text", same="rpad(({t})::text, {n}) = {s}"),
    "json": _rule("json", "list", "object", same=_AS_WRITTEN, key=False),
    "jsonb": _rule("json", "list", "object", same=_JSONB.format(""), key=False),
    "hstore": _rule("json", "object", cast=_PAIRS, same=_JSONB.format("::json"), key=False),
    "array": _rule("list", cast=_ELEMENTS, same="to_jsonb({t}) = ({s})::jsonb", key=False),
    "vector": _rule("list", "text", same=_JSONB.format("::text"), key=False),
    **dict.fromkeys(("smallint", "integer", "bigint"), _rule("integer", same=_NUMBER)),
    "numeric": _rule("integer", "decimal", same=_NUMBER),
    "real": _rule("float"),
    "double precision": _rule("float"),
    "boolean": _rule("boolean"),
    # A cast of a number to bit(n) keeps its last n bits.
    "bit": _rule("bit", cast="({s})::bigint::{type}", same="({t})::bigint = ({s})::numeric", key=False),
    "bytea": _rule("bytes", "spatial"),
    "date": _rule("date"),
    "timestamp without time zone": _rule("datetime"),
    "timestamp with time zone": _rule("instant"),
    "time without time zone": _rule("time", same=_SAME_CLOCK),
}
# Types of array elements that convert to and from JSON without a change of spelling.
_ELEMENT_TYPES: Final = frozenset(
    {
        "smallint",
        "integer",
        "bigint",
        "numeric",
        "real",
        "double precision",
        "boolean",
        "text",
        "uuid",
        "date",
    }
    | {"character varying", "enum", *_NETWORK, "json", "jsonb"}
)

# MySQL and MariaDB convert a value on assignment. In strict mode they silently change only spaces, letters
# and digits, which they drop or fold; so values are compared as bytes.
_BYTEWISE: Final = "CAST(CAST({t} AS CHAR) AS BINARY) = CAST({s} AS BINARY)"
_ASSIGNED: Final = "{s}"
_INTEGERS: Final = ("tinyint", "smallint", "mediumint", "int", "bigint", "year")
_LABELS: Final = ("text", "char")
_MYSQL: Final[Mapping[str, _Rule]] = {
    **dict.fromkeys(_INTEGERS, _rule("integer", "boolean", "bit", same="{t} + 0 = {s}")),
    "bit": _rule("bit", "boolean", "integer", same="{t} + 0 = {s}"),
    "decimal": _rule("decimal", "integer", same="{t} = CAST({s} AS DECIMAL(65,30))"),
    **dict.fromkeys(
        (
            "enum",
            "set",
            "uuid",
            "inet4",
            "inet6",
            "char",
            "varchar",
            "tinytext",
            "text",
            "mediumtext",
            "longtext",
        ),
        _rule("text", "char", same=_BYTEWISE),
    ),
    "binary": _rule("bytes"),
    "tinyblob": _rule("bytes"),
    "datetime": _rule("datetime", "instant"),
    "timestamp": _rule("instant"),
    "time": _rule(
        "time",
        same="{t} = CAST({s} AS TIME(6)) AND (LOCATE('.', {s}) = 0 OR "
        "CHAR_LENGTH(SUBSTRING_INDEX({s}, '.', -1)) <= 6)",
        staged="longtext",
    ),
}
_RULES: Final[Mapping[Database, Mapping[str, _Rule]]] = {"postgres": _POSTGRES, "mysql": _MYSQL}
# Integers by their bits; unsigned types begin at zero.
_BITS: Final = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "integer": 32, "bigint": 64}
_ARGUMENTS: Final = re.compile(r"\(([^)]*)\)")
_FRACTIONS: Final = frozenset({"timestamp without time zone", "timestamp with time zone", "datetime"}) | {
    "time without time zone",
    "timestamp",
    "time",
}
_MOST_DIGITS: Final = 6
_EXTENSIONS: Final = frozenset({"citext", "hstore", "ltree", "vector"})
# The type words of tidesink's own columns, with any arguments; and complete types.
_OWN: Final[Mapping[Database, frozenset[str]]] = {
    "postgres": frozenset(OF_SPARK["postgres"].values()) | {"json", "character varying", "numeric"},
    "mysql": frozenset({"varchar", "varbinary", "decimal"}),
}
_OWN_WHOLE: Final = frozenset(OF_SPARK["mysql"].values()) | {
    "mediumtext",
    "text",
    "mediumblob",
    "blob",
    "json",
    "bigint unsigned",
    "time(6)",
}
_LIST_ROWS: Final = frozenset({"array", "vector"})
_OBJECT_ROWS: Final = frozenset({"map", "struct", "sparse vector"})
_TIME_ROWS: Final = {"time": "time", "local time": "time", "zoned time": "zoned time", "interval": "interval"}
_OF_READER: Final[Mapping[str, Kind]] = {
    "date": "date",
    "local_date": "date",
    "datetime": "datetime",
    "local_datetime": "datetime",
    "timestamp": "instant",
    "instant": "instant",
    "integer": "integer",
    "unsigned64": "integer",
    "float32": "float",
    "float64": "float",
    "bit": "bit",
    "boolean": "boolean",
    "decimal": "decimal",
}


def kind_of(column: TargetColumn) -> Kind:
    """Returns the kind of a column's values; the rules for native types depend on it."""
    row = row_of(column.type)
    if row.name in _TIME_ROWS:
        return _TIME_ROWS[row.name]  # type: ignore[return-value]
    if row.reader in CALENDAR_READERS and column.spark == "string":
        return "shown"
    if row.name in _LIST_ROWS:
        return "list"
    if row.name in _OBJECT_ROWS:
        return "object"
    if row.reader == "binary":
        return "spatial" if row.name in ("geometry", "geography") else "bytes"
    if row.name in ("json", "char"):
        return row.name  # type: ignore[return-value]
    return _OF_READER.get(row.reader, "text")


def native_of(column: TargetColumn, found: str, database: Database) -> Native | Wider | Refused | None:
    """Returns how a target column with the type ``found`` stores the source's values, or why it cannot.

    Returns None if ``found`` is one of tidesink's own types, whose values need no conversion.
    """
    wanted = _wanted(column, found, database)
    kind = kind_of(column)
    if _is_own(column, found, kind, wanted, database):
        return None
    base = plain_type(found)
    word, arguments = _parts(found)
    rule = _RULES[database].get(word)
    if rule is None or kind not in rule.kinds or not _is_known(word, arguments, found, kind, database):
        return Refused(wanted, "does not hold the values of")
    if column.key and not rule.key:
        return Refused(wanted, "treats different keys as equal, or writes keys differently from")
    if word in _FRACTIONS and _digits_of(column) > _fraction(word, arguments):
        if base != found:
            return Refused(wanted, "has fewer digits of a second than")
        return Wider(_with_all_digits(word, wanted, database))
    if word == "numeric" and kind == "decimal" and base == found:
        return Wider(word)  # of any precision: fewer digits after the point would round values
    if base == found and _holds_all(column, word, found, kind):
        return Native(found, wanted, found)
    same = rule.same.replace("{n}", arguments[0] if arguments else "1")
    if base != found:  # a domain may refuse NULL and values that fail its CHECK
        same += " AND (({t})::{found}) IS NOT NULL"
    staged = rule.staged or _staged(column, kind, database)
    if database == "postgres":
        return Native(found, wanted, staged, base, rule.cast, same)
    return Native(found, wanted, staged, _with_charset(found), _ASSIGNED, same)


def reading_type(column: TargetColumn | None, database_type: str, database: Database) -> str:
    """Returns the Spark type in which a column of the target table is read.

    If the column has a native type, this is the Spark type of the source's column.
    """
    if column is not None and isinstance(native_of(column, database_type, database), Native | Wider):
        return column.spark
    return spark_of(database_type, database)


def native_text(column: str, database_type: str, database: Database) -> str | None:
    """Returns the SQL expression that reads a native column as the text that the source has for its values.

    Returns None if no expression is needed.
    """
    word, arguments = _parts(database_type)
    if database == "mysql":
        return f"CAST({column} + 0 AS CHAR)" if word == "bit" else None
    if word == "character":
        return f"rpad(({column})::text, {arguments[0] if arguments else 1})"
    if word == "array":
        return f"array_to_json({column})::text"
    if word == "hstore":
        return f"({column})::json::text"
    if word == "bit":
        return f"({column})::bigint::text"
    written = ("enum", "uuid", "xml", "tsvector", "ltree", "citext", "vector", "name", *_NETWORK, *_RANGES)
    return _WRITTEN.format(t=column) if word in written else None


def native_spelling(column: TargetColumn, database_type: str, database: Database) -> Spelling | None:
    """Returns how a target column's type changes the spelling of the source's texts; None if it does not.

    ``digits``: zeros at the end of a fraction are added or removed. ``json``: spaces, the order of members
    and the form of numbers change.
    """
    word, _ = _parts(database_type)
    if kind_of(column) == "decimal" and column.spark == "string":
        return "digits"
    if database == "postgres" and word in ("jsonb", "hstore", "array", "vector"):
        return "json"
    if database == "postgres" and word == "time without time zone":
        return "digits"
    return spelling_of(plain_type(database_type), database)


def refused_natives(
    present: Mapping[str, str], columns: Iterable[TargetColumn], database: Database
) -> Iterator[tuple[str, TargetColumn, Refused]]:
    """Yields the columns whose native types cannot hold the source's values.

    Each item has the column's name in the target table, the column, and the reason. ``present`` maps the
    target table's column names to their types.
    """
    shape_columns = tuple(columns)
    fold = folding(present, (column.name for column in shape_columns))
    by_name = {fold(column.name): column for column in shape_columns}
    for name, database_type in present.items():
        column = by_name.get(fold(name))
        fit = None if column is None else native_of(column, database_type, database)
        if column is not None and isinstance(fit, Refused):
            yield name, column, fit


def _wanted(column: TargetColumn, database_type: str, database: Database) -> str:
    """Returns the type that tidesink itself would give the column.

    In MySQL, a text column in a key needs a length. If the length is not known, returns ``database_type``,
    the type that the column has.
    """
    try:
        return sql_type(column, database, KEY_LENGTH)
    except KeyLengthUnknownError:
        return database_type


def _parts(database_type: str) -> tuple[str, tuple[str, ...]]:
    """Returns the word by which a native type is looked up in the rules, and the type's arguments."""
    base = plain_type(database_type)
    arguments = _ARGUMENTS.search(base)
    given = tuple(argument.strip() for argument in arguments[1].split(",")) if arguments else ()
    if base.endswith("[]"):
        return "array", given
    if isinstance(database_type, FoundType) and database_type.is_enum:
        return "enum", ()
    word = " ".join(_ARGUMENTS.sub("", base).split()).removesuffix(" zerofill").removesuffix(" unsigned")
    extension = word.rpartition(".")[2]  # if its schema is not in the search path
    return (extension if extension in _EXTENSIONS else word), given


def _is_own(column: TargetColumn, database_type: str, kind: Kind, wanted: str, database: Database) -> bool:
    """Returns True if a column's type is one that tidesink itself creates.

    Such types need no rule here; ``columns.plan_columns`` checks them.
    """
    if plain_type(database_type) != database_type or (
        isinstance(database_type, FoundType) and (database_type.is_enum or database_type.charset)
    ):
        return False
    if database_type == wanted and not (column.key and kind == "text"):
        return True
    if (
        kind == "decimal"
        and column.spark == "string"
        and spark_of(database_type, database).startswith("decimal")
    ):
        return False
    word = database_type.partition("(")[0]
    if database == "postgres":
        return word in _OWN["postgres"] and not database_type.endswith("[]")
    if database_type in {"time(6)", "datetime(6)"}:
        return kind not in ("time", "instant")
    if database_type == "tinyint(1)":
        return column.spark == "boolean"
    if database_type == "timestamp(6)":
        return kind == "instant"
    return database_type in _OWN_WHOLE or (
        word in _OWN["mysql"] and not database_type.endswith(("unsigned", "zerofill"))
    )


def _is_known(
    word: str, arguments: tuple[str, ...], database_type: str, kind: Kind, database: Database
) -> bool:
    """Returns True if the rule for ``word`` applies to a type with these arguments or array elements."""
    if word == "array":
        element = " ".join(_ARGUMENTS.sub("", plain_type(database_type).removesuffix("[]")).split())
        return element in _ELEMENT_TYPES or (isinstance(database_type, FoundType) and database_type.is_enum)
    if database == "postgres" and word == "bit":
        return int(arguments[0] if arguments else 1) < _BITS["bigint"]
    return word != "year" or kind == "integer"


def _digits_of(column: TargetColumn) -> int:
    """Returns the largest number of fraction digits of a second that the source's values can have."""
    return _MOST_DIGITS if column.type.fsp is None else column.type.fsp


def _fraction(word: str, arguments: tuple[str, ...]) -> int:
    """Returns the number of fraction digits of a second that a native type stores.

    Without an argument Postgres's types store six digits, and MySQL's types none.
    """
    return int(arguments[0]) if arguments else _MOST_DIGITS if word.endswith("time zone") else 0


def _with_all_digits(word: str, wanted: str, database: Database) -> str:
    if database == "postgres":
        return word
    return wanted if wanted.startswith(f"{word}(") else f"{word}({_MOST_DIGITS})"


def _holds_all(column: TargetColumn, word: str, database_type: str, kind: Kind) -> bool:
    """Returns True if a native integer type has room for every value of the source's type."""
    bits, row = _BITS.get(word), row_of(column.type)
    if bits is None or kind != "integer" or row.bounds is None:
        return False
    least, most = (
        (0, 2**bits - 1) if "unsigned" in database_type else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    )
    return least <= row.bounds[0] and row.bounds[1] <= most


def _staged(column: TargetColumn, kind: Kind, database: Database) -> str:
    """Returns the type of the staging column: tidesink's own type, which accepts every value unchanged."""
    if kind in ("text", "char", "json", "list", "object", "time"):
        return OF_SPARK[database]["string"]
    return sql_type(replace(column, key=False), database)


def _with_charset(database_type: str) -> str:
    charset = database_type.charset if isinstance(database_type, FoundType) else None
    return f"{database_type} CHARACTER SET {charset}" if charset else str(database_type)
