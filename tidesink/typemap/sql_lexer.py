"""MySQL statement text to tokens: just enough to read the DDL that TiCDC forwards or a person writes.

Reads the output of TiDB's restorer (tiflow c7b2588: back-quoted names, ``_UTF8MB4'..'`` defaults,
``/*T![feature] .. */``) and hand-written MySQL. Executable comments are read as if they stood there
bare; all others are dropped. The restorer does not escape backslashes, MySQL's own parser does, so
the caller says which it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from tidesink.errors import ConfigError

TokenKind = Literal["word", "quoted", "string", "number", "bits", "hex", "sign"]


class Token(NamedTuple):
    """One token. ``text`` is unquoted; ``bits`` and ``hex`` keep their digits alone."""

    kind: TokenKind
    text: str

    def says(self, *words: str) -> bool:
        """Whether this is one of these bare words or signs (words upper case)."""
        return self.kind in ("word", "sign") and self.text.upper() in words


_EXECUTABLE = re.compile(r"/\*(?:T!(?:\[[^\]]*\])?|!\d{0,6})(.*?)\*/", re.S)
_SKIPPED = re.compile(r"\s+|/\*.*?\*/|--(?=\s|$)[^\n]*|#[^\n]*", re.S)
_TOKEN = re.compile(
    r"""
      (?P<bits>b'[01]*'|0b[01]+(?![\w$]))
    | (?P<hex>x'[0-9a-f]*'|0x[0-9a-f]+(?![\w$]))
    | (?P<introducer>_[a-z0-9]+(?=\s*')|n(?='))
    | (?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?(?![\w$]))
    | (?P<word>[\w$]+|@@?[\w.$]+)
    | (?P<quoted>`(?:[^`]|``)*`)
    | (?P<sign>[(),.;=*+/%<>!:&|^~?@{}\[\]-])
    """,
    re.X | re.I,
)
_STRING = {
    (quote, escapes): re.compile(
        rf"{quote}(?:[^{quote}\\]|{quote}{quote}|\\.)*{quote}"
        if escapes
        else rf"{quote}(?:[^{quote}]|{quote}{quote})*{quote}",
        re.S,
    )
    for quote in ("'", '"')
    for escapes in (True, False)
}
# MySQL's escapes; before any other character the backslash just goes away.
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


def tokens(sql: str, *, backslash_escapes: bool = True) -> list[Token]:
    """The tokens of one or more statements.

    Raises:
        ConfigError: text that starts no token, such as a quote or a comment never closed.
    """
    return list(_tokens(sql, backslash_escapes))


def _tokens(sql: str, escapes: bool) -> Iterator[Token]:
    at = 0
    while at < len(sql):
        if sql.startswith("/*", at) and sql.find("*/", at + 2) < 0:
            # Looked for anew at each of them, the end of a thousand comments takes a thousand times as long.
            raise ConfigError(f"a comment is never closed in SQL at {sql[at : at + 30]!r}")
        executable = _EXECUTABLE.match(sql, at) if sql.startswith("/*", at) else None
        if executable is not None:
            yield from _tokens(executable.group(1), escapes)
            at = executable.end()
            continue
        skipped = _SKIPPED.match(sql, at)
        if skipped is not None:
            at = skipped.end()
            continue
        token, at = _next(sql, at, escapes)
        if token is not None:
            yield token


def _next(sql: str, at: int, escapes: bool) -> tuple[Token | None, int]:
    if sql[at] in "'\"":
        return _string(sql, at, escapes)
    found = _TOKEN.match(sql, at)
    if found is None:
        raise ConfigError(f"cannot read SQL at {sql[at : at + 30]!r}")
    kind, text = found.lastgroup, found.group()
    if kind == "introducer":
        return None, found.end()
    if kind == "quoted":
        return Token("quoted", text[1:-1].replace("``", "`")), found.end()
    if kind in ("bits", "hex"):
        return Token(
            "bits" if kind == "bits" else "hex", re.sub(r"^0[bx]|^[bx]'|'$", "", text, flags=re.I)
        ), found.end()
    return Token("number" if kind == "number" else "word" if kind == "word" else "sign", text), found.end()


def _string(sql: str, at: int, escapes: bool) -> tuple[Token, int]:
    quote = sql[at]
    found = _STRING[quote, escapes].match(sql, at)
    if found is None:
        raise ConfigError(f"a quote is never closed in SQL at {sql[at : at + 30]!r}")
    text = found.group()[1:-1]
    if not escapes:
        return Token("string", text.replace(quote * 2, quote)), found.end()
    unescaped = re.sub(rf"{quote}{quote}|\\(.)", lambda m: _unescape(m, quote), text, flags=re.S)
    return Token("string", unescaped), found.end()


def _unescape(found: re.Match[str], quote: str) -> str:
    letter = found.group(1)
    return quote if letter is None else _ESCAPES.get(letter, letter)


_MOST_DIGITS = 20


def whole_number(token: Token) -> int:
    """The number a token spells, as digits alone.

    Raises:
        ConfigError: it is none, or longer than any that a column's definition has.
    """
    if not (token.text.isascii() and token.text.isdigit()) or len(token.text) > _MOST_DIGITS:
        raise ConfigError(f"SQL: expected a whole number, not {token.text[:30]!r}")
    return int(token.text)
