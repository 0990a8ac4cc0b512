"""The one line of JAAS that Java's Kafka clients take as ``sasl.jaas.config``.

Syntax: ``module flag name=value name="value" ... ;`` as Java's ``java.io.StreamTokenizer`` reads it in
Apache Kafka's ``JaasConfig``: strings in single or double quotes with backslash escapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})
_TOKEN: Final = re.compile(
    r"""\s*(?:"((?:[^"\\\n]|\\.)*)"|'((?:[^'\\\n]|\\.)*)'|([=;])|([^\s"'=;]+))""",
)
_ESCAPE: Final = re.compile(r"\\(?:([0-7]{1,3})|(.))", re.DOTALL)
_CONTROL: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class JaasSyntaxError(ValueError):
    """The text is no entry of JAAS; the message shows nothing of it."""


class JaasEntry(NamedTuple):
    """A login module and its options; ``options`` may hold secrets."""

    module: str
    options: dict[str, str]

    def __repr__(self) -> str:
        return f"JaasEntry({self.module!r}, options {', '.join(self.options)})"


def parse_jaas(text: str) -> JaasEntry:
    """The one entry of ``text``.

    Raises:
        JaasSyntaxError: it is not one entry.
    """
    tokens = list(_tokens(text))
    if len(tokens) < 3 or tokens[-1] != (";", True):
        raise JaasSyntaxError("it must be one login module, a flag, options, and a semicolon")
    (module, _), (flag, _), *rest = tokens[:-1]
    if flag.lower() not in _FLAGS:
        raise JaasSyntaxError("the word after the login module must be 'required'")
    return JaasEntry(module, dict(_options(rest)))


def _tokens(text: str) -> Iterator[tuple[str, bool]]:
    """Each word with whether it is a sign."""
    at, text = 0, text.strip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise JaasSyntaxError("a quotation mark has no end")
        double, single, sign, word = found.groups()
        quoted = double if double is not None else single
        yield (_unescaped(quoted), False) if quoted is not None else (sign or word, sign is not None)
        at = found.end()


def _options(tokens: list[tuple[str, bool]]) -> Iterator[tuple[str, str]]:
    if len(tokens) % 3:
        raise JaasSyntaxError("an option must be name=value; a value with signs needs quotation marks")
    for at in range(0, len(tokens), 3):
        (name, bad), equals, (value, worse) = tokens[at : at + 3]
        if bad or worse or equals != ("=", True):
            raise JaasSyntaxError("an option must be name=value; a value with signs needs quotation marks")
        yield name, value


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(
        lambda found: chr(int(found[1], 8)) if found[1] else _CONTROL.get(found[2], found[2]), text
    )
