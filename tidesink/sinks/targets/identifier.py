"""How names and texts stand in SQL and in paths: the only place where they are quoted."""

from __future__ import annotations

import re
from typing import Final, Literal

from tidesink.errors import SchemaRefusedError

# Kept as they are in a path: letters and digits of any script, and what every file system takes.
_PLAIN: Final = re.compile(r"[\w.-]", re.UNICODE)


def quote_identifier(name: str) -> str:
    """A name as one Spark SQL identifier: backquoted, backquotes doubled.

    Raises ValueError for an empty name, which no SQL has.
    """
    if not name:
        raise ValueError("an identifier is empty")
    return "`" + name.replace("`", "``") + "`"


def quote_path(*names: str) -> str:
    """A dotted path of identifiers, such as alias, struct and field."""
    return ".".join(map(quote_identifier, names))


def quote_text(text: str) -> str:
    """A text as a Spark SQL string literal.

    Every character but letters, digits and space is written as its code, so that neither
    ``escapedStringLiterals`` nor a comment sign inside can change what is read.
    """
    return "'" + "".join(map(_escaped, text)) + "'"


def path_segment(name: str) -> str:
    """A name as one path segment; different names give different segments.

    ``~`` and two hex digits stand for each byte of a character that is not plain, and for a leading dot
    or underscore, since Spark takes such folders for hidden ones.
    """
    return "".join(
        character
        if _PLAIN.match(character) and not (index == 0 and character in "._")
        else _encoded(character)
        for index, character in enumerate(name)
    )


def _encoded(character: str) -> str:
    return "".join(f"~{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))


def _escaped(character: str) -> str:
    if character == " " or (character.isascii() and character.isalnum()):
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


# Postgres cuts a longer name off without a word (NAMEDATALEN 64), MySQL and MariaDB refuse it.
POSTGRES_BYTES: Final = 63
MYSQL_CHARACTERS: Final = 64


def quote_postgres(name: str) -> str:
    """A name as one Postgres identifier.

    Raises:
        SchemaRefusedError: Postgres has no such name; says why.
    """
    size = len(name.encode("utf-8", "surrogatepass"))
    _check_name(name, "Postgres", too_long=size > POSTGRES_BYTES and f"{size} bytes, and {POSTGRES_BYTES}")
    return '"' + name.replace('"', '""') + '"'


def quote_mysql(name: str) -> str:
    """A name as one identifier of MySQL or MariaDB.

    Raises:
        SchemaRefusedError: MySQL has no such name; says why.
    """
    size = len(name)
    long = size > MYSQL_CHARACTERS and f"{size} characters, and {MYSQL_CHARACTERS}"
    _check_name(name, "MySQL", too_long=long)
    if name.endswith(" ") or any(ord(character) > 0xFFFF for character in name):
        raise SchemaRefusedError(
            f"MySQL takes no name that ends in a space or has characters above U+FFFF, as {name!r}: give "
            "the column another under rename in the config, or the table under routes or in target.table"
        )
    return "`" + name.replace("`", "``") + "`"


def _check_name(name: str, database: str, *, too_long: str | Literal[False]) -> None:
    if not name or "\0" in name:
        raise SchemaRefusedError(f"{name!r} is no name in {database}: rename it at the source")
    if too_long:
        raise SchemaRefusedError(
            f"the name {name!r} has {too_long} are the most that {database} takes: give the column another "
            "under rename in the config, or the table under routes or by a shorter template in target.table"
        )


def text_postgres(text: str) -> str:
    """A text as a Postgres string literal (``standard_conforming_strings`` is on in our sessions)."""
    return "'" + text.replace("'", "''").replace("\0", "") + "'"


def text_mysql(text: str) -> str:
    """A text as a string literal of MySQL (without ``NO_BACKSLASH_ESCAPES``, as our sessions are)."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''").replace("\0", "\\0") + "'"
