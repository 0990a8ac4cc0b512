"""Determines the type in which Postgres or MySQL stores a column, spelled as in the database's catalog.

The type follows from the column's Spark type, unless the type table (``table``) has an exception. So a column
that becomes wider in Spark becomes wider in the database too, and no other column changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from tidesink.events import ColumnType
from tidesink.typemap.table import CALENDAR_READERS, SPARK_MAX_PRECISION, TypeRow, row_of
from tidesink.typemap.target_schema import TargetColumn
from tidesink.typemap.values import MYSQL_MAX_PRECISION, MYSQL_MAX_SCALE

Database = Literal["postgres", "mysql"]
# Changes that a database makes to the spelling of texts. ``digits``: zeros at the end of a fraction.
# ``json``: spaces, the order of members, and equal numbers.
Spelling = Literal["digits", "json"]


class FoundType(str):
    """The text of a column's type in the database's catalog, with facts that the text does not contain.

    ``base``: a domain's underlying type, otherwise the type itself. ``is_enum``: True for a user's enum, or
    an array of a user's enum. ``charset``: the column's character set, if it cannot hold every character.
    """

    base: str
    is_enum: bool
    charset: str | None

    def __new__(
        cls, text: str, base: str | None = None, *, is_enum: bool = False, charset: str | None = None
    ) -> FoundType:
        """Creates a type from its text in the catalog."""
        made = super().__new__(cls, text)
        made.base = base or text
        made.is_enum = is_enum
        made.charset = charset
        return made


def plain_type(database_type: str) -> str:
    """Returns the text of a type in the catalog; for a domain, the text of its underlying type."""
    return database_type.base if isinstance(database_type, FoundType) else database_type


# Spark type -> the type that holds the same values, in Postgres, and in MySQL and MariaDB.
OF_SPARK: Final[Mapping[Database, Mapping[str, str]]] = {
    "postgres": {
        "boolean": "boolean",
        "int": "integer",
        "bigint": "bigint",
        "float": "real",
        "double": "double precision",
        "string": "text",
        "binary": "bytea",
        "date": "date",
        "timestamp_ntz": "timestamp without time zone",
        "timestamp": "timestamp with time zone",
    },
    "mysql": {
        "boolean": "tinyint(1)",
        "int": "int",
        "bigint": "bigint",
        "float": "float",
        "double": "double",
        "string": "longtext",
        "binary": "longblob",
        "date": "date",
        "timestamp_ntz": "datetime(6)",
        "timestamp": "datetime(6)",
    },
}
DECIMAL_WORD: Final[Mapping[Database, str]] = {"postgres": "numeric", "mysql": "decimal"}
# MySQL's types with a length, which keys need.
_KEY_WORDS: Final = {"longtext": "varchar", "longblob": "varbinary"}
# Bytes per character in utf8mb4, which the texts of keys have, and in Postgres's UTF8.
_LONGEST_CHARACTER: Final = 4
# Length of a key's text or bytes in MySQL if unknown. InnoDB's indexes hold 3072 bytes, which is room for
# three such texts and a number.
KEY_LENGTH: Final = 255
_OF_ANY_LENGTH: Final = frozenset({"text", "binary", "enum", "set"})
_NUMBER_BYTES: Final = 8
_FIXED_BYTES: Final = {"int": 4, "integer": 4, "date": 3, "boolean": 1, "tinyint(1)": 1}


@dataclass(frozen=True)
class KeyLengthUnknownError(Exception):
    """Raised if a key column has a type without a length, but the database needs a length for its index."""

    column: str


def sql_type(column: TargetColumn, database: Database, key_length: int | None = None) -> str:
    """Returns the type in which a database stores a column.

    ``key_length``: length to use for a key column of text or bytes whose type has no length.

    Raises:
        KeyLengthUnknownError: The length of a key column is not known, and MySQL needs it for an index.
    """
    value_type = _of_value(column, database)
    if not column.key:
        return value_type
    if database == "postgres":
        return "text" if value_type == "json" else value_type  # json has no equality operator
    word = _key_word(value_type)
    if word is None:
        return value_type
    length = _length(column.type, key_length)
    if length is None:
        raise KeyLengthUnknownError(column.name)
    return f"{word}({length})"


def shown_type(column: TargetColumn, database: Database, key_length: int | None = None) -> str:
    """Returns the type in which a database stores a column, for display; an unknown length is shown as n."""
    try:
        return sql_type(column, database, key_length)
    except KeyLengthUnknownError:
        return f"{_key_word(_of_value(column, database))}(n)"


def key_bytes(column: TargetColumn, database: Database, key_length: int | None = None) -> int:
    """Returns how many bytes a key column's longest value can need in an index.

    For text or bytes of unknown length, returns 0.
    """
    value_type = _of_value(column, database)
    length = _length(column.type, key_length)
    if value_type in ("text", "json", "longtext"):
        return _LONGEST_CHARACTER * (length or 0)
    return (
        (length or 0) if value_type in ("bytea", "longblob") else _FIXED_BYTES.get(value_type, _NUMBER_BYTES)
    )


def _key_word(value_type: str) -> str | None:
    """Returns the MySQL type that a key column has instead of ``value_type``: ``varchar`` or ``varbinary``.

    In MySQL, a key needs a type with a length. Returns None for types that can be part of a key unchanged.
    """
    return _KEY_WORDS.get("longtext" if value_type == "json" else value_type)


def of_spark(ddl: str, database: Database) -> str:
    """Returns the column type, in the database's SQL, that holds all values of a Spark type."""
    if ddl.startswith("decimal"):
        return DECIMAL_WORD[database] + ddl.removeprefix("decimal")
    return OF_SPARK[database][ddl]


def row_type(row: TypeRow, database: Database, spark: str | None = None) -> str:
    """Returns the database type for an entry of the type table (``TypeRow``).

    ``spark``: the column's Spark type, which may be wider than the entry's Spark type. If it is None, the
    result has the letters ``p`` and ``s`` for the precision and scale of a decimal.
    """
    named = row.named.postgres if database == "postgres" else row.named.mysql
    if named and spark in (None, row.spark):
        return named
    return of_spark(spark or row.spark.format(p="p", s="s"), database)


def _of_value(column: TargetColumn, database: Database) -> str:
    row = row_of(column.type)
    if column.spark != "string":
        return row_type(row, database, column.spark)
    if row.reader == "decimal":
        return _wide_decimal(column.type, database)
    if row.reader in CALENDAR_READERS:  # as text: invalid calendar dates, or nanoseconds
        return OF_SPARK[database]["string"]
    return row_type(row, database)


def _wide_decimal(column_type: ColumnType, database: Database) -> str:
    """Returns the database type for decimals that are text in Spark."""
    precision, scale = column_type.precision, column_type.scale
    if database == "postgres":
        return "numeric" if precision is None or scale is None else f"numeric({precision},{scale})"
    if precision is None or scale is None or precision > MYSQL_MAX_PRECISION or scale > MYSQL_MAX_SCALE:
        return "longtext"
    return f"decimal({precision},{scale})"


def spark_of(database_type: str, database: Database) -> str:
    """Returns the Spark type for a database type as the catalog spells it.

    A type that is not known is returned unchanged.
    """
    word = DECIMAL_WORD[database]
    digits = (
        database_type.removeprefix(f"{word}(").removesuffix(")").partition(",")
        if "(" in database_type
        else None
    )
    if digits and database_type.startswith(word) and digits[0].isdigit():
        wide = int(digits[0]) > SPARK_MAX_PRECISION
        return "string" if wide else f"decimal({digits[0]},{digits[2] or '0'})"
    if database_type.partition("(")[0] in _TEXTS[database]:
        return "string"
    if database_type.partition("(")[0] in ("varbinary", "blob", "mediumblob", "longblob"):
        return "binary"
    return _SPARK_OF[database].get(database_type, database_type)


def spelling_of(database_type: str, database: Database) -> Spelling | None:
    """Returns how a database type changes the spelling of texts that it stores; None if it does not.

    ``digits``: zeros at the end of a fraction are added or removed. ``json``: spaces, the order of members
    and the form of numbers change.
    """
    word = database_type.partition("(")[0]
    if word == "json" and database == "mysql":
        return "json"
    formed = word in ("time", DECIMAL_WORD[database]) and spark_of(database_type, database) == "string"
    return "digits" if formed else None


_TEXTS: Final[Mapping[Database, frozenset[str]]] = {
    "postgres": frozenset({"text", "json", "numeric", "character varying"}),
    "mysql": frozenset({"longtext", "mediumtext", "text", "varchar", "json", "time"}),
}
_SPARK_OF: Final[Mapping[Database, Mapping[str, str]]] = {
    "postgres": {found: spark for spark, found in OF_SPARK["postgres"].items()},
    "mysql": {
        **{found: spark for spark, found in OF_SPARK["mysql"].items()},
        "datetime(6)": "timestamp_ntz",
        "timestamp(6)": "timestamp",
        "bigint unsigned": "decimal(20,0)",
    },
}


def _length(column_type: ColumnType, unknown: int | None = None) -> int | None:
    """Returns the greatest length that a column's values can have, in characters of text or in bytes.

    Returns ``unknown`` if the type does not limit the length.
    """
    row = row_of(column_type)
    members = column_type.members if row.parameter == "allowed" else None
    if members is not None:
        joined = sum(map(len, members)) + len(members) if row.reader == "set" else 0
        return max([1, joined, *map(len, members)])
    length = column_type.length if row.parameter is None else None
    return unknown if length is None and row.reader in _OF_ANY_LENGTH else length
