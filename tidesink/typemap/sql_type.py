"""MySQL's type text to a ColumnType and back: ``decimal(10,2) unsigned``, ``enum('a','b')``.

The text is what ``SHOW CREATE TABLE`` and canal-json's content-compatible ``mysqlType`` hold
(TiCDC, tiflow c7b2588: lower case, members quoted with ``'`` doubled inside, a backslash is itself).
``shown_type`` makes it from the words of a DDL statement as TiDB does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tidesink.errors import ConfigError, shown
from tidesink.events import ColumnType
from tidesink.typemap.sql_lexer import Token, whole_number
from tidesink.typemap.table import TypeRow, find_row, row_named

_SHAPE = re.compile(
    # No two parts may take the same spaces: a type is text from outside, and a thousand spaces are possible.
    r"\s*([a-z0-9_]+(?:\s+[a-z0-9_]+)*)(?:\s*\((.*)\)((?:\s*(?:unsigned|signed|zerofill))*))?\s*",
    re.I | re.S,
)
_MEMBER = re.compile(r"'((?:[^']|'')*)'", re.S)
_NUMBERS = re.compile(r"\s*\d{1,9}\s*(?:,\s*\d{1,9}\s*)?", re.ASCII)
_TEMPORAL = frozenset(
    {"time", "datetime", "timestamp", "local time", "local datetime", "zoned time", "instant"}
)
# Far above every database's own limits. Defaults are filled up to these sizes.
_MOST_ARGUMENT = {"decimal": 131_072, "binary": 65_535, "bit": 8_192, "time": 12}
# FLOAT(p) is a 32-bit number up to 24 bits of precision.
_FLOAT_BITS = 24


def parse_sql_type(text: str) -> ColumnType:
    """The type a MySQL type text spells, with its arguments.

    Raises:
        ConfigError: the text names no type of the table.
    """
    found = _SHAPE.fullmatch(text)
    if found is None:
        raise ConfigError(f"{shown(text)} is no SQL type")
    word, arguments, attributes = found[1].lower(), found[2], (found[3] or "").lower()
    word, attributes = _split_attributes(word, attributes)
    row = _row(word, "unsigned" in attributes or "zerofill" in attributes)
    return _with_arguments(row, arguments, text.strip())


def _split_attributes(word: str, attributes: str) -> tuple[str, str]:
    words = [part for part in word.split() if part not in ("unsigned", "signed", "zerofill")]
    return " ".join(words), attributes + " " + word


def _row(word: str, unsigned: bool) -> TypeRow:
    if word in ("bool", "boolean"):
        return row_named("tinyint")
    base = row_named(word)
    return (find_row(base.name + " unsigned") or base) if unsigned else base


def _with_arguments(row: TypeRow, arguments: str | None, text: str) -> ColumnType:
    if row.parameter == "allowed":
        members = parse_members(arguments) if arguments is not None else None
        return ColumnType(row.name, members=members, sql=text)
    if arguments and _NUMBERS.fullmatch(arguments) is None:
        raise ConfigError(f"{shown(text)} is no SQL type: its arguments are no numbers")
    numbers = [int(part) for part in arguments.split(",")] if arguments else []
    first = numbers[0] if numbers else None
    if numbers and max(numbers) > _MOST_ARGUMENT.get(
        "time" if row.name in _TEMPORAL else row.name, max(numbers)
    ):
        raise ConfigError(f"{shown(text)} is no SQL type: {max(numbers)} is more than any database takes")
    if row.name == "decimal":
        scale = numbers[1] if len(numbers) > 1 else (0 if numbers else None)
        return ColumnType(row.name, precision=first, scale=scale, sql=text)
    if row.name in _TEMPORAL:
        return ColumnType(row.name, fsp=first, sql=text)
    if row.name == "float" and len(numbers) == 1 and numbers[0] > _FLOAT_BITS:
        return ColumnType("double", sql=text)
    return ColumnType(row.name, length=first, sql=text)


def parse_members(arguments: str) -> tuple[str, ...]:
    """The members of an ENUM or SET argument list, unquoted."""
    return tuple(member.replace("''", "'") for member in _MEMBER.findall(arguments))


def render_members(members: Sequence[str]) -> str:
    """The argument list of an ENUM or SET."""
    return ",".join("'" + member.replace("'", "''") + "'" for member in members)


def shown_type(
    word: str, arguments: Sequence[Token], attributes: Sequence[str], *, charset: str | None
) -> str:
    """The full type text TiDB shows for a type as DDL spells it.

    Raises:
        ConfigError: an unknown type.
    """
    if word in ("bool", "boolean"):
        return "tinyint(1)"
    row = row_named(word)
    if row.parameter == "allowed":
        members = [token.text.rstrip(" ") for token in arguments if token.kind == "string"]
        return f"{row.name}({render_members(members)})"
    numbers = [whole_number(token) for token in arguments if token.kind == "number"]
    name = row.name if charset != "binary" else _BINARY.get(row.name, row.name)
    unsigned = "unsigned" in attributes or "zerofill" in attributes
    text = _shown(name, numbers, unsigned=unsigned, bytes_each=_bytes_each(name, charset))
    return text + (" unsigned" if unsigned else "") + (" zerofill" if "zerofill" in attributes else "")


# CHARACTER SET binary makes bytes of text.
_BINARY = {
    "char": "binary",
    "varchar": "varbinary",
    "tinytext": "tinyblob",
    "text": "blob",
    "mediumtext": "mediumblob",
    "longtext": "longblob",
}
_CHARSET_BYTES = {"latin1": 1, "ascii": 1, "binary": 1, "gbk": 2, "utf8": 3, "utf8mb3": 3}
# TEXT(n) and BLOB(n) become the smallest kind that holds n characters.
_SIZED = ((255, "tiny"), (65535, ""), (16777215, "medium"))


def _bytes_each(name: str, charset: str | None) -> int:
    return 1 if name.endswith("blob") else _CHARSET_BYTES.get(charset or "", 4)


def _shown(name: str, numbers: list[int], *, unsigned: bool, bytes_each: int) -> str:
    if name in ("text", "blob") and numbers:
        size = numbers[0] * bytes_each
        return next((kind for limit, kind in _SIZED if size <= limit), "long") + name
    if name == "decimal":
        precision, scale = (*numbers, 0)[:2] if numbers else (10, 0)
        return f"decimal({precision or 10},{scale})"
    if name in _TEMPORAL:
        return f"{name}({numbers[0]})" if numbers and numbers[0] else name
    if name in ("float", "double") and len(numbers) < 2:
        return "double" if name == "double" or (numbers and numbers[0] > _FLOAT_BITS) else "float"
    return name + _shown_arguments(name, numbers, unsigned=unsigned)


def _shown_arguments(name: str, numbers: list[int], *, unsigned: bool) -> str:
    if name == "year":
        return "(4)"
    if name in ("char", "binary") and not numbers:
        return "(1)"
    if numbers:
        return f"({','.join(map(str, numbers))})"
    row = find_row(name + " unsigned") if unsigned else None
    width = (row or row_named(name)).display_width
    return f"({width})" if width is not None else ""
