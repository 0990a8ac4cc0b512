"""How names and texts stand in SQL and in paths: the only place where they are quoted."""

from __future__ import annotations

import re
from typing import Final

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
