"""MySQL's type text to a ColumnType and back: ``decimal(10,2) unsigned``, ``enum('a','b')``.

The text is what ``SHOW CREATE TABLE`` and canal-json's content-compatible ``mysqlType`` hold
(TiCDC tiflow c7b2588: lower case, members quoted with ``'`` doubled inside).
"""

from __future__ import annotations

import re

from tidesink.change import ColumnType
from tidesink.errors import ConfigError
from tidesink.typemap.table import TypeRow, find_row, row_named

_SHAPE = re.compile(
    r"\s*([a-z0-9_ ]*?[a-z0-9_])\s*(?:\((.*)\))?\s*((?:unsigned|signed|zerofill|\s)*)\s*", re.I | re.S
)
_MEMBER = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.S)
_TEMPORAL = frozenset({"time", "datetime", "timestamp"})


def parse_sql_type(text: str) -> ColumnType:
    """The type a MySQL type text spells, with its arguments.

    Raises:
        ConfigError: the text names no type of the table.
    """
    found = _SHAPE.fullmatch(text)
    if found is None:
        raise ConfigError(f"{text!r} is no SQL type")
    word, arguments, attributes = found.group(1).lower(), found.group(2), found.group(3).lower()
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
    numbers = [int(part) for part in arguments.split(",")] if arguments else []
    first = numbers[0] if numbers else None
    if row.name == "decimal":
        scale = numbers[1] if len(numbers) > 1 else (0 if numbers else None)
        return ColumnType(row.name, precision=first, scale=scale, sql=text)
    if row.name in _TEMPORAL:
        return ColumnType(row.name, fsp=first, sql=text)
    if row.name == "float" and len(numbers) == 1 and numbers[0] > 24:
        return ColumnType("double", sql=text)
    return ColumnType(row.name, length=first, sql=text)


def parse_members(arguments: str) -> tuple[str, ...]:
    """The members of an ENUM or SET argument list, unquoted."""
    return tuple(_unquote(member) for member in _MEMBER.findall(arguments))


def _unquote(member: str) -> str:
    return re.sub(r"\\(.)", r"\1", member.replace("''", "'"), flags=re.S)
