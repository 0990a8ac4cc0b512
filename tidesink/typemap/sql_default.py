"""The text of a column default as TiDB holds it.

Binary and BIT defaults are bytes at TiDB; here they are text of U+0000 to U+00FF, a byte each.
``CURRENT_TIMESTAMP`` stands for every spelling of the current time. An expression that only the
database can compute has no text.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from tidesink.errors import ConfigError
from tidesink.events import ColumnType
from tidesink.typemap.sql_lexer import Token, whole_number
from tidesink.typemap.table import row_of

_NOW = frozenset({"CURRENT_TIMESTAMP", "NOW", "LOCALTIME", "LOCALTIMESTAMP", "CURRENT_DATE", "CURDATE"})
_WORDS = {"TRUE": "1", "FALSE": "0", "NULL": None}
_MAX_SHORT_YEAR = 69
# A DECIMAL has 65 digits, a DOUBLE's exponent three; these are bounds of memory, not of any database.
_MOST_NUMBER = 1024
_MOST_EXPONENT = 1024


def default_text(expression: Sequence[Token], column_type: ColumnType) -> str | None:
    """The default a DDL expression gives a column; None for NULL and for what only the database computes."""
    tokens = list(expression)
    inside = 0
    while len(tokens) > 2 * inside + 2 and tokens[inside].says("(") and tokens[-1 - inside].says(")"):
        inside += 1
    tokens = tokens[inside : len(tokens) - inside]
    negative = bool(tokens) and tokens[0].says("-")
    if tokens and tokens[0].says("-", "+"):
        tokens = tokens[1:]
    if not tokens:
        return None
    literal, *rest = tokens
    if literal.kind == "word":
        if literal.text.upper() in _NOW:
            return "CURRENT_TIMESTAMP"
        return _WORDS.get(literal.text.upper()) if not rest else None
    if rest:
        return None
    return _literal(literal, column_type, "-" if negative else "")


def _literal(literal: Token, column_type: ColumnType, sign: str) -> str | None:
    reader = row_of(column_type).reader
    if literal.kind in ("bits", "hex"):
        return _from_bytes(_bytes(literal), reader)
    text = sign + (literal.text if literal.kind == "string" else _plain_number(literal.text, reader))
    if reader == "bit":
        return _bit(literal, column_type)
    if reader == "binary":
        return _padded(text.encode().decode("latin-1"), column_type)
    if reader in ("enum", "set"):
        return _labels(literal, column_type)
    if reader in ("datetime", "timestamp"):
        return _datetime(text, column_type.fsp or 0)
    if column_type.name == "year":
        return _year(text)
    return text


def _bytes(literal: Token) -> bytes:
    if literal.kind == "hex":
        return bytes.fromhex(literal.text.zfill(len(literal.text) + len(literal.text) % 2))
    size = (len(literal.text) + 7) // 8
    return int(literal.text or "0", 2).to_bytes(size, "big")


def _from_bytes(raw: bytes, reader: str) -> str:
    if reader in ("bit", "binary"):
        return raw.decode("latin-1")
    if reader in ("integer", "unsigned64", "float32", "float64", "decimal"):
        if len(raw) > _MOST_NUMBER:
            raise ConfigError(f"SQL: a number of {len(raw)} bytes is no default of a column")
        return str(int.from_bytes(raw, "big"))
    return raw.decode("utf-8", "replace")


def _plain_number(text: str, reader: str) -> str:
    if "e" not in text.lower() or reader not in ("float32", "float64", "decimal", "integer", "unsigned64"):
        return text
    try:
        number = Decimal(text)
    except ArithmeticError:
        number = None
    # Written out, 1e999999999 would take a gigabyte.
    if number is None or abs(number.adjusted()) > _MOST_EXPONENT:
        raise ConfigError(f"SQL: {text[:30]!r} is no default that a column can hold")
    return format(number, "f")


def _bit(literal: Token, column_type: ColumnType) -> str:
    if literal.kind == "string":
        return literal.text.encode().decode("latin-1")
    width = ((column_type.length or 1) + 7) // 8
    number = whole_number(literal)
    size = max(width, (number.bit_length() + 7) // 8)
    return number.to_bytes(size, "big")[-width:].decode("latin-1")


def _padded(text: str, column_type: ColumnType) -> str:
    return text.ljust(column_type.length or 1, "\0") if column_type.name == "binary" else text


def _labels(literal: Token, column_type: ColumnType) -> str:
    members = column_type.members or ()
    if literal.kind == "number":
        number = whole_number(literal)
        if column_type.name == "enum":
            return members[number - 1] if 0 < number <= len(members) else ""
        return ",".join(m for bit, m in enumerate(members) if number >> bit & 1)
    if column_type.name == "enum":
        return next((m for m in members if m.casefold() == literal.text.rstrip().casefold()), literal.text)
    wanted = {part.casefold() for part in literal.text.split(",")}
    return ",".join(member for member in members if member.casefold() in wanted)


def _datetime(text: str, fsp: int) -> str:
    day, _, clock = text.replace("T", " ").partition(" ")
    whole, _, fraction = clock.partition(".")
    shown = f"{day} {whole or '00:00:00'}"
    return f"{shown}.{fraction[:fsp].ljust(fsp, '0')}" if fsp else shown


def _year(text: str) -> str:
    if not text.isdigit() or len(text) > 2:
        return text
    number = int(text)
    return str(number + (2000 if number <= _MAX_SHORT_YEAR else 1900)) if number or text == "00" else "0000"


_ZERO = {
    "text": "",
    "set": "",
    "date": "0000-00-00",
    "datetime": "0000-00-00 00:00:00",
    "timestamp": "0000-00-00 00:00:00",
    "time": "00:00:00",
    "bit": "\0",
}


def zero_text(column_type: ColumnType) -> str | None:
    """What TiDB gives old rows of a column added NOT NULL without a default."""
    row = row_of(column_type)
    if column_type.name == "json":
        return "null"
    if column_type.name == "vector":
        return "[]"
    if row.reader == "binary":
        return _padded("", column_type)
    if row.reader == "enum":
        return (column_type.members or ("",))[0]
    zero = _ZERO.get(row.reader, "0")
    if row.reader == "decimal" and column_type.scale:
        return "0." + "0" * column_type.scale
    if row.reader in ("datetime", "timestamp", "time") and column_type.fsp:
        return f"{zero}.{'0' * column_type.fsp}"
    return zero if column_type.name != "year" else "0000"


# Readers of numbers, whose defaults are digits.
_NUMBERS = frozenset({"integer", "unsigned64", "float32", "float64", "decimal"})


def default_as(text: str | None, was: ColumnType, now: ColumnType) -> str | None:
    """A default's text of one type as the text of another: where bytes are held, and where numbers.

    A column that was added as BIT and is INT now keeps the default it was added with.
    """
    old, new = row_of(was).reader, row_of(now).reader
    if text is None or old == new:
        return text
    if old == "bit" and new in _NUMBERS:
        return str(int.from_bytes(text.encode("latin-1", "replace"), "big"))
    if old in _NUMBERS and new == "bit" and text.isascii() and text.isdigit() and len(text) <= _MOST_NUMBER:
        number, width = int(text), ((now.length or 1) + 7) // 8
        return number.to_bytes(max(width, (number.bit_length() + 7) // 8), "big").decode("latin-1")
    if old == "binary" and new == "text":
        return text.encode("latin-1", "replace").decode("utf-8", "replace")
    if old == "text" and new == "binary":
        return text.encode().decode("latin-1")
    if old == "enum" and new in _NUMBERS and was.members is not None and text in was.members:
        return str(1 + was.members.index(text))
    return text
