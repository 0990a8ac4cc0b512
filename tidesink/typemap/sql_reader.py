"""A cursor over SQL tokens."""

from __future__ import annotations

from collections.abc import Sequence

from tidesink.errors import ConfigError, shown
from tidesink.typemap.sql_lexer import Token

_END = Token("sign", "")


class SqlReader:
    """Reads tokens one by one; ``skip``-named methods answer whether they took something."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._at = 0

    @property
    def done(self) -> bool:
        """Whether all tokens are read."""
        return self._at >= len(self._tokens)

    def peek(self, ahead: int = 0) -> Token:
        """The token to come, or one that says nothing at the end."""
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else _END

    def take(self) -> Token:
        """The next token.

        Raises:
            ConfigError: the statement ends here.
        """
        token = self.peek()
        if token is _END:
            raise ConfigError("the SQL statement ends too early")
        self._at += 1
        return token

    def sees(self, *words: str) -> bool:
        """Whether these words come next, in this order."""
        return all(self.peek(n).says(word) for n, word in enumerate(words))

    def skip(self, *words: str) -> bool:
        """Takes these words where they come next, in this order."""
        if not self.sees(*words):
            return False
        self._at += len(words)
        return True

    def skip_any(self, *words: str) -> bool:
        """Takes one of these words where it comes next."""
        if not self.peek().says(*words):
            return False
        self._at += 1
        return True

    def need(self, *words: str) -> None:
        """Takes these words.

        Raises:
            ConfigError: something else stands there.
        """
        if not self.skip(*words):
            raise ConfigError(f"SQL: expected {' '.join(words)} before {shown(self.peek().text)}")

    def name(self) -> str:
        """An identifier: bare, back-quoted, or double-quoted as under ANSI_QUOTES.

        Raises:
            ConfigError: no identifier stands there.
        """
        token = self.take()
        if token.kind not in ("word", "quoted", "string"):
            raise ConfigError(f"SQL: expected a name before {shown(token.text)}")
        return token.text

    def group(self) -> list[Token]:
        """The tokens inside the parentheses that open here; both parentheses are taken."""
        self.need("(")
        inside: list[Token] = []
        depth = 1
        while True:
            token = self.take()
            depth += token.says("(") - token.says(")")
            if depth == 0:
                return inside
            inside.append(token)

    def skip_item(self) -> None:
        """Takes one token, or a whole parenthesised group."""
        if self.sees("("):
            self.group()
        else:
            self.take()


def split_by_comma(tokens: Sequence[Token]) -> list[list[Token]]:
    """The parts between the commas outside parentheses."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += token.says("(") - token.says(")")
        if depth == 0 and token.says(","):
            parts.append([])
        else:
            parts[-1].append(token)
    return parts
