"""What is certainly wrong with a filter's types and patterns, found without Spark.

Types are sqlglot's, which is not asked where it knows none; what may be right is left to Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from tidesink.errors import ConfigError
from tidesink.typemap.java_pattern import java_fault

if TYPE_CHECKING:
    from sqlglot import exp

# Words before a pattern, and functions whose second argument is one.
_MATCHING: Final = frozenset({"rlike", "regexp"})
_CALLS: Final = _MATCHING | {
    "regexp_like",
    "regexp_count",
    "regexp_extract",
    "regexp_instr",
    "regexp_replace",
    "regexp_substr",
}
_TEXTS: Final = ("STRING", "RAW_STRING")


def refuse_types(text: str, tree: exp.Expression, columns: Mapping[str, str]) -> None:
    """Refuse what is a value and no condition. ``tree`` is what sqlglot reads of ``text``.

    ``columns``: Spark's types of the columns that are known, by lower-case name.

    Raises:
        ConfigError: the whole, or a part beside AND, OR or NOT, has a type that is no truth value.
    """
    from sqlglot import exp

    typed = _typed(tree, columns)
    if typed is None:
        return
    conditions = [typed, *(part for node in typed.find_all(exp.Connector, exp.Not) for part in _parts(node))]
    for part in conditions:
        named = _no_truth(part.unnest().type)
        # A text beside AND may be cast to a truth value; the whole is not.
        if named is not None and (part is typed or named != "string"):
            shown = repr(text) if part is typed else f"a part of {text!r}, beside AND, OR or NOT,"
            raise ConfigError(f"{shown} is a value of type {named} and no condition")


def _parts(node: Any) -> Iterator[exp.Expression]:
    """What stands beside AND, OR or NOT and has a type for sure: casts, and columns, which are casts here.

    Of calls it is not: sqlglot takes left(1, 2) for a number, which is a text.
    """
    from sqlglot import exp

    found = (part for part in node.args.values() if hasattr(part, "unnest"))
    yield from (part for part in found if isinstance(part.unnest(), exp.Cast))


def _typed(tree: exp.Expression, columns: Mapping[str, str]) -> exp.Expression | None:
    """The tree with sqlglot's types; None where it fails to tell them."""
    from sqlglot import exp
    from sqlglot.errors import SqlglotError
    from sqlglot.optimizer.annotate_types import annotate_types

    def known(node: exp.Expression) -> exp.Expression:
        found = columns.get(node.name.lower()) if isinstance(node, exp.Column) else None
        return node if found is None else exp.cast(exp.Null(), found, dialect="spark")

    try:
        found: exp.Expression = annotate_types(tree.copy().transform(known), dialect="spark")
    except (SqlglotError, LookupError, ValueError, TypeError, AttributeError, RecursionError):
        return None  # a filter that is right must not be refused for what only helps
    return found


def _no_truth(found: exp.DataType | None) -> str | None:
    """The name of a type that is certainly none of truth values."""
    from sqlglot import exp

    if found is None:
        return None
    if found.this in exp.DataType.TEXT_TYPES:
        return "string"
    others = exp.DataType.NUMERIC_TYPES | exp.DataType.TEMPORAL_TYPES
    sure = found.this in others or found.this in (exp.DataType.Type.BINARY, exp.DataType.Type.ARRAY)
    return found.sql(dialect="spark").lower() if sure else None


def refuse_patterns(text: str) -> None:
    """Refuse a regular expression, given as a text, that Java takes in no version.

    Raises:
        ConfigError: says which pattern, and what is wrong with it.
    """
    import sqlglot

    for pattern in _patterns(sqlglot.tokenize(text, dialect="spark")):
        fault = java_fault(pattern)
        if fault is not None:
            raise ConfigError(f"has the pattern {pattern!r}, which {fault}: no row could be matched by it")


def _patterns(tokens: Sequence[Any]) -> Iterator[str]:
    # Texts side by side are one text: such a pattern is left to Spark.
    for at, (before, token) in enumerate(pairwise(tokens), start=1):
        after = tokens[at + 1].token_type.name if at + 1 < len(tokens) else ""
        if token.token_type.name not in _TEXTS or after in _TEXTS:
            continue
        if before.text.lower() in _MATCHING or (
            before.token_type.name == "COMMA" and _is_second(tokens, at - 1)
        ):
            yield token.text


def _is_second(tokens: Sequence[Any], comma: int) -> bool:
    """Whether a comma is the first one of a call that takes a pattern behind it."""
    depth = 0
    for at in range(comma - 1, 0, -1):
        kind = tokens[at].token_type.name
        depth += {"R_PAREN": 1, "L_PAREN": -1}.get(kind, 0)
        if depth < 0:
            return tokens[at - 1].text.lower() in _CALLS
        if kind == "COMMA" and depth == 0:
            return False
    return False
