"""What of a regular expression Java certainly refuses, found without Java.

Only what no version of ``java.util.regex.Pattern`` takes: parts that are not closed, and repetitions of
nothing. Whatever may be right, or is of a kind not known here, is left to Java.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_COUNT: Final = re.compile(r"\{[0-9]+(,[0-9]*)?\}")
_FLAGS: Final = re.compile(r"[a-zA-Z-]*:?")
# In the comments mode spaces, and all behind a #, are no part of the pattern.
_COMMENTS: Final = re.compile(r"\(\?[a-zA-Z]*x")
_QUOTE, _UNQUOTE = r"\Q", r"\E"
# Escapes that go on in braces, as \p{L} and \x{10FFFF}.
_BRACED: Final = "pPxkN"


class _Step(NamedTuple):
    """How far a part of the pattern goes, and what is wrong with it."""

    end: int
    fault: str = ""


def java_fault(pattern: str) -> str | None:
    """Why Java takes no such pattern; None where it may take it."""
    if _COMMENTS.search(pattern):
        return None
    at, depth, repeatable = 0, 0, False
    while at < len(pattern):
        char = pattern[at]
        if char in "*+?{":
            step = _repetition(pattern, at, repeatable=repeatable)
            repeatable = char == "{"
        elif char == "(":
            step, depth, repeatable = _opening(pattern, at), depth + 1, False
        elif char == ")" and depth == 0:
            return "has a ) that no ( opens"
        else:
            step = _atom(pattern, at)
            depth, repeatable = depth - (char == ")"), char != "|"
        if step.fault:
            return step.fault
        at = step.end
    return "has a ( that no ) closes" if depth else None


def _repetition(pattern: str, at: int, *, repeatable: bool) -> _Step:
    """``*``, ``+``, ``?`` or ``{n,m}``, and the mark behind it that says how it repeats."""
    end = at + 1
    if pattern[at] == "{":
        count = _COUNT.match(pattern, at)
        if count is None:
            return _Step(at, "has a { that begins no count: write it as \\\\{")
        end = count.end()
    elif not repeatable:
        return _Step(at, f"has a {pattern[at]} with nothing before it to repeat")
    return _Step(end + 1 if pattern[end : end + 1] in ("+", "?") else end)


def _opening(pattern: str, at: int) -> _Step:
    """A group's ``(`` and what says its kind; a name or look-behind goes up to its ``<``."""
    if pattern[at + 1 : at + 2] != "?":
        return _Step(at + 1)
    kind = pattern[at + 2 : at + 3]
    if kind and kind in ":=!>":
        return _Step(at + 3)
    if kind == "<":
        behind = pattern[at + 3 : at + 4]
        named = pattern.find(">", at + 3)
        end = at + 4 if behind and behind in "=!" else named + 1
        return _Step(end or len(pattern))
    flags = _FLAGS.match(pattern, at + 2)
    return _Step(flags.end() if flags else at + 2)


def _atom(pattern: str, at: int) -> _Step:
    if pattern[at] == "[":
        end = _class_end(pattern, at)
        return _Step(end) if end else _Step(at, "has a [ that no ] closes")
    if pattern[at] != "\\":
        return _Step(at + 1)
    if at + 1 == len(pattern):
        return _Step(at, "ends in a backslash")
    return _Step(_escape_end(pattern, at))


def _escape_end(pattern: str, at: int) -> int:
    if pattern.startswith(_QUOTE, at):
        end = pattern.find(_UNQUOTE, at + 2)
        return len(pattern) if end < 0 else end + 2
    if pattern[at + 1] in _BRACED and pattern[at + 2 : at + 3] == "{":
        return (pattern.find("}", at) + 1) or len(pattern)
    return at + (3 if pattern[at + 1] == "c" else 2)


def _class_end(pattern: str, at: int) -> int:
    """Behind the ``]`` of a class, which may hold others; 0 where there is none."""
    depth, empty = 0, False
    while at < len(pattern):
        char = pattern[at]
        if char == "[":
            depth, empty = depth + 1, True
            at += 2 if pattern[at + 1 : at + 2] == "^" else 1
            continue
        if char == "]" and not empty:  # the first of a class is a character of it
            depth -= 1
            if depth == 0:
                return at + 1
        empty = False
        at = _escape_end(pattern, at) if char == "\\" and at + 1 < len(pattern) else at + 1
    return 0
