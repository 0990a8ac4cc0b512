"""Parses and checks row filters, and applies a table's projection: its chosen columns, names and filter.

A row filter is a condition on a table's rows in Spark's SQL. Spark evaluates the text of the condition as the
user wrote it; only column names are replaced. So this module decides which conditions are rejected, but not
what a condition means.

This module runs without Spark and Java, and rejects only what is certainly wrong. It takes the types of
expressions from sqlglot, and accepts an expression whose type sqlglot does not know. It rejects a regular
expression only if no version of ``java.util.regex.Pattern`` accepts it, because a part is not closed or
nothing precedes a repetition. Spark and Java check everything else when the filter runs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidesink.errors import ConfigError, SchemaRefusedError
from tidesink.events import NameFold, fold_name
from tidesink.typemap.target_schema import (
    MetadataKind,
    TargetColumn,
    TargetSchema,
    check_spelling,
    metadata_columns,
    quoted,
)

if TYPE_CHECKING:
    from sqlglot import exp


# The filter that keeps every row.
ALWAYS: Final = "true"

# Spark's own functions that depend only on one row's values: the result is the same at any time, on any
# machine.
_FUNCTIONS: Final = """
abs acos ascii asin atan atan2 base64 between bin bit_count bit_get bit_length bround btrim cardinality
cast cbrt ceil ceiling char char_length character_length chr coalesce concat concat_ws contains conv cos
crc32 date date_add date_diff date_format date_from_unix_date date_part date_sub date_trunc datediff
dateadd day dayname dayofmonth dayofweek dayofyear decimal decode degrees double elt encode endswith
equal_null exp extract factorial find_in_set float floor format_number format_string from_unixtime
get_json_object greatest hash hex hour if ifnull initcap int isnan isnotnull isnull json_array_length
json_object_keys last_day lcase least left length levenshtein ln locate log log10 log2 lower lpad ltrim
luhn_check make_date make_timestamp make_timestamp_ntz md5 minute mod month monthname months_between
next_day nullif nullifzero nvl nvl2 octet_length overlay pmod position pow power quarter radians regexp
regexp_count regexp_extract regexp_instr regexp_like regexp_replace regexp_substr repeat replace reverse
right rint rlike round rpad rtrim second sha sha1 sha2 sign signum sin smallint soundex split split_part
sqrt startswith string substr substring substring_index tan timestamp timestamp_micros timestamp_millis
timestamp_ntz timestamp_seconds timestampadd timestampdiff tinyint to_binary to_char to_date to_number
to_timestamp to_timestamp_ntz translate trim trunc try_add try_cast try_divide try_mod try_multiply
try_subtract try_to_binary try_to_number try_to_timestamp typeof ucase unbase64 unhex unix_date
unix_micros unix_millis unix_seconds upper url_decode url_encode weekday weekofyear width_bucket
xxhash64 year zeroifnull bigint boolean binary varchar numeric array_contains array
"""
FUNCTIONS: Final = frozenset(_FUNCTIONS.split())
# Spark replaces a text that begins with one of these words by the query's time when the text becomes a date
# or a timestamp, by a cast or only by a comparison. A zone may follow the word (Catalyst's
# ``SpecialDatetimeValues``). It is unknown here which texts become a date, so no text may begin this way.
_MOMENT: Final = re.compile(
    r"[\s\x00-\x1f\x7f-\x9f]*(now|today|tomorrow|yesterday)([\s\x00-\x1f\x7f-\x9f+-]|$)", re.IGNORECASE
)
_AS_TEXT: Final = (
    "The filter has the text {text!r}, which Spark replaces by the time of the query when it "
    "becomes a date or a timestamp. So the result is not the same at another time. Use a "
    "fixed time, for example TIMESTAMP'2026-01-01 00:00:00', or compare a text column by "
    "rlike '^{word}$'"
)
# Words that are not functions when a parenthesis follows.
_WORDS: Final = frozenset(
    {"and", "or", "not", "in", "is", "between", "like", "ilike", "rlike", "regexp", "case", "when", "then"}
    | {"else", "div", "from", "for"}
)


class _Mention(NamedTuple):
    """A column name in the text of a condition. ``text[start:end]`` is the name as it is written there."""

    name: str
    start: int
    end: int


@dataclass(frozen=True)
class RowFilter:
    """A row filter that passed the checks of ``read_filter``.

    ``mentions`` holds the column names in the condition, in the order of the text.
    """

    text: str
    mentions: tuple[_Mention, ...]

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that the condition uses.

        Names that differ only in case appear once, in their first spelling.
        """
        names: dict[str, str] = {}
        for mention in self.mentions:
            names.setdefault(fold_name(mention.name), mention.name)
        return tuple(names.values())

    def bound(self, row: str, columns: Mapping[str, str], fold: NameFold = fold_name) -> str:
        """Returns the condition with each column replaced by a field of the struct ``row``.

        ``columns`` maps names, folded by ``fold``, to the names of the struct's fields.
        """
        parts, done = [], 0
        for mention in self.mentions:
            parts.append(self.text[done : mention.start])
            parts.append(f"{quoted(row)}.{quoted(columns[fold(mention.name)])}")
            done = mention.end
        return "".join([*parts, self.text[done:]])


def read_filter(text: str) -> RowFilter | None:
    """Parses and checks a row filter. Returns None for the text ``true``, which every row satisfies.

    Raises:
        ConfigError: sqlglot is not installed, or the text is not a single condition on one row's columns, or
            it contains a subquery, an aggregate, a window function, a pattern that Java rejects, or a
            function that is not Spark's own or whose result depends on more than its arguments.
    """
    if text.strip().lower() == ALWAYS:
        return None
    tree = _parsed(text)
    for check in (_refuse_nodes, _refuse_moments, _refuse_no_condition):
        check(tree)
    _refuse_functions(text)
    refuse_types(text, tree, {})
    refuse_patterns(text)
    mentions = tuple(sorted(_mentions(tree, text), key=lambda mention: mention.start))
    if not mentions:
        raise ConfigError(
            "The filter uses no column, so it would keep every row or no row. Use a column of the table"
        )
    return RowFilter(text, mentions)


def check_types(row_filter: RowFilter, shape: TargetSchema) -> None:
    """Checks a row filter against the types of a table's columns, without Spark.

    Raises:
        ConfigError: The filter, or an operand of AND, OR or NOT in it, is certainly a value and not a
            condition.
    """
    types = {fold_name(name): shape.by_name[shape.fold(name)].spark for name in row_filter.columns}
    try:
        refuse_types(row_filter.text, _parsed(row_filter.text), types)
    except ConfigError as error:
        raise ConfigError(f"filter: {error.message}", table=str(shape.table)) from error


def _parsed(text: str) -> exp.Expression:
    try:
        import sqlglot
        from sqlglot.errors import SqlglotError
    except ImportError as error:
        raise ConfigError(
            "Filters need sqlglot, which is not installed. Install it: pip install 'tidesink[spark]'"
        ) from error
    try:
        trees: list[Any] = sqlglot.parse(text, dialect="spark")
    except (SqlglotError, RecursionError, ValueError) as error:  # some calls without arguments raise that
        first = str(error).splitlines()[0] if str(error) else "too deep"
        raise ConfigError(f"The filter is not Spark SQL: {first}") from error
    if len(trees) != 1 or trees[0] is None:
        raise ConfigError("The filter is not one condition: it is empty, or it has several statements")
    tree: exp.Expression = trees[0]
    return tree


def _refuse_nodes(tree: exp.Expression) -> None:
    from sqlglot import exp

    refused: tuple[tuple[tuple[type, ...], str], ...] = (
        ((exp.Query, exp.Subquery, exp.Exists), "The filter has a subquery"),
        ((exp.Window,), "The filter has a window"),
        ((exp.AggFunc,), "The filter has an aggregate"),
        ((exp.Lambda, exp.Star), "The filter has a lambda or a star"),
        ((exp.Placeholder, exp.Parameter, exp.SessionParameter), "The filter has a parameter"),
        ((exp.Command, exp.DDL, exp.DML, exp.Alias), "The filter is a statement, not a condition"),
    )
    for node in tree.walk():
        for kinds, what in refused:
            if isinstance(node, kinds):
                raise ConfigError(f"{what}: {node.sql(dialect='spark')}")
        bare = isinstance(node, exp.Func) and not any(True for _ in node.iter_expressions())
        if bare and not isinstance(node, exp.Array):
            raise ConfigError(
                f"The filter has {node.sql(dialect='spark')}, whose value is not the same at another time. "
                "Use a constant instead"
            )
        if isinstance(node, exp.Column) and (node.table or not isinstance(node.this, exp.Identifier)):
            raise ConfigError(
                f"The filter uses {node.sql(dialect='spark')}. Write columns by their bare names, without "
                "the name of a table"
            )


def _refuse_moments(tree: exp.Expression) -> None:
    for text in _texts(tree):
        moment = _MOMENT.match(text)
        if moment is not None:
            raise ConfigError(_AS_TEXT.format(text=text, word=moment[1]))


def _texts(tree: exp.Expression) -> Iterator[str]:
    """Yields the strings in a condition, including strings that are joined, such as 'to' 'day'."""
    from sqlglot import exp

    for node in tree.find_all(exp.Literal, exp.RawString, exp.Concat):
        parts = node.expressions if isinstance(node, exp.Concat) else [node]
        if all(isinstance(part, exp.RawString) or part.is_string for part in parts):
            yield "".join(part.name for part in parts)


def _refuse_no_condition(tree: exp.Expression) -> None:
    from sqlglot import exp

    top = tree.unnest()
    arithmetic = isinstance(top, exp.Binary) and not isinstance(top, exp.Predicate | exp.Connector)
    if arithmetic or isinstance(top, exp.Literal | exp.Null | exp.Tuple | exp.Neg):
        raise ConfigError("The filter is a value, not a condition. Write a comparison, such as amount > 0")


def _refuse_functions(text: str) -> None:
    """Raises ConfigError if the condition calls a function that is not allowed.

    Looks at the words before parentheses, because sqlglot may parse a call into another function.
    """
    import sqlglot

    tokens = sqlglot.tokenize(text, dialect="spark")
    for index, token in enumerate(tokens[1:]):
        name = tokens[index].text.lower()
        is_call = token.token_type.name == "L_PAREN" and tokens[index].token_type.name not in (
            "NUMBER",
            "STRING",
        )
        if not is_call or not name.replace("_", "").isalnum() or name in FUNCTIONS | _WORDS:
            continue
        raise ConfigError(
            f"The filter calls {name}(), which is not allowed. A filter can call only Spark's own "
            "functions whose result depends on nothing but a row's values"
        )


def _mentions(tree: exp.Expression, text: str) -> Iterator[_Mention]:
    from sqlglot import exp

    for column in tree.find_all(exp.Column):
        name, span = column.name, column.this.meta
        start, end = span.get("start", 0), span.get("end", -1) + 1
        if text[start:end] not in (name, quoted(name)):
            raise ConfigError(
                "The filter cannot be parsed by the installed version of sqlglot. Install a newer version"
            )
        yield _Mention(name, start, end)


# Words that precede a pattern, and functions whose second argument is a pattern.
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
    """Raises if a row filter, or an operand of AND, OR or NOT in it, is a value and not a condition.

    ``text``: the row filter. ``tree``: the same, parsed by sqlglot. ``columns``: Spark types of the columns
    whose type is known, by lower-case name.

    Raises:
        ConfigError: The row filter or an operand has a type that is certainly not boolean.
    """
    from sqlglot import exp

    typed = _typed(tree, columns)
    if typed is None:
        return
    conditions = [typed, *(part for node in typed.find_all(exp.Connector, exp.Not) for part in _parts(node))]
    for part in conditions:
        named = _no_truth(part.unnest().type)
        # An operand of AND that is a text may be cast to boolean; the whole condition is not.
        if named is not None and (part is typed or named != "string"):
            shown = repr(text) if part is typed else f"an operand of AND, OR or NOT in {text!r}"
            raise ConfigError(
                f"{shown} is a value of type {named}, not a condition. Write a comparison instead"
            )


def _parts(node: Any) -> Iterator[exp.Expression]:
    """Yields those operands of AND, OR or NOT whose type is certain: casts and columns.

    ``_typed`` replaces columns by casts. The type of a function call is not certain: sqlglot returns a number
    type for left(1, 2), which is a text.
    """
    from sqlglot import exp

    operands = (part for part in node.args.values() if hasattr(part, "unnest"))
    yield from (part for part in operands if isinstance(part.unnest(), exp.Cast))


def _typed(tree: exp.Expression, columns: Mapping[str, str]) -> exp.Expression | None:
    """Returns a parsed condition in which sqlglot added types to the nodes; None if sqlglot fails.

    Each column of a known type is replaced by a cast to this type.
    """
    from sqlglot import exp
    from sqlglot.errors import SqlglotError
    from sqlglot.optimizer.annotate_types import annotate_types

    def known(node: exp.Expression) -> exp.Expression:
        spark_type = columns.get(fold_name(node.name)) if isinstance(node, exp.Column) else None
        return node if spark_type is None else exp.cast(exp.Null(), spark_type, dialect="spark")

    try:
        annotated: exp.Expression = annotate_types(tree.copy().transform(known), dialect="spark")
    except (SqlglotError, LookupError, ValueError, TypeError, AttributeError, RecursionError):
        return None  # a correct filter must not be refused by an optional check
    return annotated


def _no_truth(data_type: exp.DataType | None) -> str | None:
    """Returns the name of an expression's type if an expression of this type cannot be a condition.

    Returns None if the type is boolean or not known for certain.
    """
    from sqlglot import exp

    if data_type is None:
        return None
    if data_type.this in exp.DataType.TEXT_TYPES:
        return "string"
    others = exp.DataType.NUMERIC_TYPES | exp.DataType.TEMPORAL_TYPES
    sure = data_type.this in others or data_type.this in (exp.DataType.Type.BINARY, exp.DataType.Type.ARRAY)
    return data_type.sql(dialect="spark").lower() if sure else None


def refuse_patterns(text: str) -> None:
    """Checks the regular expressions that a row filter contains as string literals.

    Raises:
        ConfigError: No version of Java accepts a pattern; the message names the pattern and its fault.
    """
    import sqlglot

    for pattern in _patterns(sqlglot.tokenize(text, dialect="spark")):
        fault = java_fault(pattern)
        if fault is not None:
            raise ConfigError(
                f"The filter has the pattern {pattern!r}, which {fault}. Java does not accept this pattern"
            )


def _patterns(tokens: Sequence[Any]) -> Iterator[str]:
    # Adjacent strings form one string; such a pattern is left to Spark.
    for index, (before, token) in enumerate(pairwise(tokens), start=1):
        after = tokens[index + 1].token_type.name if index + 1 < len(tokens) else ""
        if token.token_type.name not in _TEXTS or after in _TEXTS:
            continue
        if before.text.lower() in _MATCHING or (
            before.token_type.name == "COMMA" and _is_second(tokens, index - 1)
        ):
            yield token.text


def _is_second(tokens: Sequence[Any], comma: int) -> bool:
    """Returns True if a pattern follows the comma, because it precedes a call's second argument.

    This is so for the functions in ``_CALLS``. ``comma``: index of the comma among the tokens.
    """
    depth = 0
    for index in range(comma - 1, 0, -1):
        kind = tokens[index].token_type.name
        depth += {"R_PAREN": 1, "L_PAREN": -1}.get(kind, 0)
        if depth < 0:
            return tokens[index - 1].text.lower() in _CALLS
        if kind == "COMMA" and depth == 0:
            return False
    return False


_COUNT: Final = re.compile(r"\{[0-9]+(,[0-9]*)?\}")
_FLAGS: Final = re.compile(r"[a-zA-Z-]*:?")
# In comments mode, spaces and everything after a # are not part of the pattern.
_COMMENTS: Final = re.compile(r"\(\?[a-zA-Z]*x")
_QUOTE, _UNQUOTE = r"\Q", r"\E"
# Escapes that continue in braces, such as \p{L} and \x{10FFFF}.
_BRACED: Final = "pPxkN"


class _Step(NamedTuple):
    """Result of parsing one part of a regular expression.

    ``end``: index after the part. ``fault``: why Java rejects the part; empty if it does not.
    """

    end: int
    fault: str = ""


def java_fault(pattern: str) -> str | None:
    """Returns why no version of Java accepts a regular expression; None if a version may accept it."""
    if _COMMENTS.search(pattern):
        return None
    index, depth, repeatable = 0, 0, False
    while index < len(pattern):
        char = pattern[index]
        if char in "*+?{":
            step = _repetition(pattern, index, repeatable=repeatable)
            repeatable = char == "{"
        elif char == "(":
            step, depth, repeatable = _opening(pattern, index), depth + 1, False
        elif char == ")" and depth == 0:
            return "has a ) without a ("
        else:
            step = _atom(pattern, index)
            depth, repeatable = depth - (char == ")"), char != "|"
        if step.fault:
            return step.fault
        index = step.end
    return "has a ( without a )" if depth else None


def _repetition(pattern: str, index: int, *, repeatable: bool) -> _Step:
    """Parses a repetition in a pattern: ``*``, ``+``, ``?`` or ``{n,m}``, which ``+`` or ``?`` may follow.

    ``repeatable``: True if something that can be repeated precedes the repetition.
    """
    end = index + 1
    if pattern[index] == "{":
        count = _COUNT.match(pattern, index)
        if count is None:
            return _Step(index, "has a { that does not begin a count (write it as \\\\{)")
        end = count.end()
    elif not repeatable:
        return _Step(index, f"has a {pattern[index]} with nothing before it to repeat")
    return _Step(end + 1 if pattern[end : end + 1] in ("+", "?") else end)


def _opening(pattern: str, index: int) -> _Step:
    """Parses the opening of a group: ``(``, ``(?:``, ``(?=``, ``(?<=``, ``(?<name>`` or ``(?flags``."""
    if pattern[index + 1 : index + 2] != "?":
        return _Step(index + 1)
    kind = pattern[index + 2 : index + 3]
    if kind and kind in ":=!>":
        return _Step(index + 3)
    if kind == "<":
        behind = pattern[index + 3 : index + 4]
        named = pattern.find(">", index + 3)
        end = index + 4 if behind and behind in "=!" else named + 1
        return _Step(end or len(pattern))
    flags = _FLAGS.match(pattern, index + 2)
    return _Step(flags.end() if flags else index + 2)


def _atom(pattern: str, index: int) -> _Step:
    if pattern[index] == "[":
        end = _class_end(pattern, index)
        return _Step(end) if end else _Step(index, "has a [ without a ]")
    if pattern[index] != "\\":
        return _Step(index + 1)
    if index + 1 == len(pattern):
        return _Step(index, "ends in a backslash")
    return _Step(_escape_end(pattern, index))


def _escape_end(pattern: str, index: int) -> int:
    if pattern.startswith(_QUOTE, index):
        end = pattern.find(_UNQUOTE, index + 2)
        return len(pattern) if end < 0 else end + 2
    if pattern[index + 1] in _BRACED and pattern[index + 2 : index + 3] == "{":
        return (pattern.find("}", index) + 1) or len(pattern)
    return index + (3 if pattern[index + 1] == "c" else 2)


def _class_end(pattern: str, index: int) -> int:
    """Returns the index after the ``]`` of a character class; 0 if the class is not closed.

    The class may contain other classes.
    """
    depth, empty = 0, False
    while index < len(pattern):
        char = pattern[index]
        if char == "[":
            depth, empty = depth + 1, True
            index += 2 if pattern[index + 1 : index + 2] == "^" else 1
            continue
        if char == "]" and not empty:  # as the first character it is literal
            depth -= 1
            if depth == 0:
                return index + 1
        empty = False
        index = _escape_end(pattern, index) if char == "\\" and index + 1 < len(pattern) else index + 1
    return 0


@dataclass(frozen=True)
class Projection:
    """A table's projection: which columns and rows of the source its target has, and under which names.

    ``columns``: names of the source columns that the target has; None for all columns. ``except_columns``:
    names of source columns that it does not have. ``rename``: target names by source names. ``row_filter``:
    condition on the source's columns; only rows that satisfy it are in the target. ``metadata``: names of the
    target columns that describe a row's last change, by kind. ``ignore_nulls``: True if a null in a change
    keeps the stored value. ``fold``: function that folds names for comparison (``within`` sets it).
    """

    columns: tuple[str, ...] | None = None
    except_columns: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    row_filter: RowFilter | None = None
    metadata: Mapping[MetadataKind, str] = field(default_factory=dict)
    ignore_nulls: bool = False
    fold: NameFold = field(default=fold_name, compare=False)

    def within(self, source: TargetSchema) -> Projection:
        """Returns the projection with ``fold`` set to the function that folds the names of ``source``.

        Names are then compared as this table compares them, with or without regard to case.
        """
        return self if source.fold is fold_name else replace(self, fold=source.fold)

    def chooses(self, name: str) -> bool:
        """Returns True if the target has this source column."""
        name = self.fold(name)
        if name in {self.fold(omitted) for omitted in self.except_columns}:
            return False
        return self.columns is None or name in {self.fold(wanted) for wanted in self.columns}

    def leaves_out(self, name: str, fold: NameFold) -> bool:
        """Returns True if a source column's values are not needed.

        This is so if the target does not have the column and the row filter does not use it. ``fold``:
        function that folds the source's names for comparison.
        """
        if self.columns is None and not self.except_columns:
            return False
        read = self.row_filter.columns if self.row_filter else ()
        return not replace(self, fold=fold).chooses(name) and fold(name) not in {
            fold(column) for column in read
        }

    def target_name(self, name: str) -> str:
        """Returns the name that a source column has at the target: the one under ``rename``, or its own."""
        names = {self.fold(old): new for old, new in self.rename.items()}
        return names.get(self.fold(name), name)

    @property
    def asked(self) -> frozenset[str]:
        """Lower-case names of the target columns that ``columns``, ``rename`` and ``metadata`` list."""
        listed = (self.target_name(name) for name in self.columns or ())
        names = (*listed, *self.rename.values(), *self.metadata.values())
        return frozenset(fold_name(name) for name in names)

    def may_be_excluded(self, column: TargetColumn) -> bool:
        """Returns True if a new column may be an excluded column that was renamed at the source.

        Key columns, and columns that the config lists under their new name, are never taken for excluded
        columns.
        """
        may_be = not column.key and self.excluded_among(column.instead_of)
        return bool(may_be) and fold_name(column.name) not in self.asked

    def excluded_among(self, names: frozenset[str]) -> tuple[str, ...]:
        """Returns those names in ``except_column_list`` that match one of the given names.

        The names are returned in the config's spelling. Names that differ only in case match too: to pause
        the table for such a column is safer than to add a column that must be excluded.
        """
        found = {fold_name(name) for name in names}
        excluded_among = (name for name in self.except_columns if fold_name(name) in found)
        return tuple(sorted(excluded_among, key=lambda name: (fold_name(name), name)))

    @property
    def plain(self) -> bool:
        """True if the target has the same columns and rows as the source."""
        return self == _PLAIN


_PLAIN = Projection()


class LaidOut(NamedTuple):
    """Result of ``project``: the schema of a target table (``shape``), and where its columns come from.

    ``sources`` maps the names of target columns to the names of their source columns.
    """

    shape: TargetSchema
    sources: Mapping[str, str]


def project(
    projection: Projection,
    source: TargetSchema,
    *,
    own: Iterable[str],
    gone: Iterable[str] = (),
    past: Iterable[str] = (),
) -> LaidOut:
    """Applies a projection to a source table's schema, and returns the schema of the target table.

    ``own``: names of the columns that tidesink itself adds to the target. ``gone``: lower-case names of
    columns in ``source`` that the source table no longer has. ``past``: lower-case names of all columns that
    the source table ever had, even if they are not in ``source``.

    Raises:
        ConfigError: The projection uses a column that does not exist, or spells it in another case although
            the source distinguishes case, or uses it twice; or it omits a key column, or uses one name for
            two columns; or its filter is a value and not a condition.
        SchemaRefusedError: The projection uses a column that the source no longer has, so that later rows
            have no value for it.
    """
    projection = projection.within(source)
    _check_named(projection, source, frozenset(gone), frozenset(past))
    if projection.row_filter is not None:
        _check_spark_names(projection.row_filter, source)
        check_types(projection.row_filter, source)
    chosen = tuple(_chosen(projection, source))
    _check_keys(chosen, source)
    named = tuple(replace(column, name=projection.target_name(column.name)) for column in chosen)
    columns = (*named, *metadata_columns(projection.metadata))
    _check_apart(columns, source, own)
    omitted = source.by_name.keys() - {source.fold(column.name) for column in chosen}
    keys = tuple(column.name for column in columns if column.key)
    shape = replace(source, columns=columns, keys=keys, omitted=frozenset(omitted))
    return LaidOut(shape, {new.name: old.name for new, old in zip(named, chosen, strict=True)})


def named_columns(projection: Projection) -> Iterator[tuple[str, str]]:
    """Yields each source column that a projection names, as a pair of the config setting and the name."""
    yield from (("columns", name) for name in projection.columns or ())
    yield from (("except_column_list", name) for name in projection.except_columns)
    yield from (("rename", name) for name in projection.rename)
    mentions = projection.row_filter.mentions if projection.row_filter else ()
    yield from (("filter", name) for name in dict.fromkeys(mention.name for mention in mentions))


def check_renames(projection: Projection, source: TargetSchema, renames: Iterable[tuple[str, str]]) -> None:
    """Raises if a column that was renamed at the source is excluded under only one of its two names.

    Rows in which the column has its old name may still arrive, and so may rows with its new name.
    ``renames``: pairs of the old and the new name of a column, as DDL reported them. Renamed key columns are
    ignored, because key columns are never excluded.

    Raises:
        SchemaRefusedError: One of the two names of a renamed column is in ``except_column_list``, and the
            other is not. The table pauses.
    """
    fold = source.fold
    excluded = {fold(name) for name in projection.except_columns}
    keys = {fold(name) for name in source.keys}
    for old, new in renames:
        names = {fold(old), fold(new)}
        if len(names & excluded) == 1 and len(names) == 2 and not names & keys:
            lacking = old if fold(new) in excluded else new
            raise SchemaRefusedError(
                f"column {old} was renamed to {new} at the source, and except_column_list has only one of "
                f"the two names. Add {lacking} to it, so that the column is left out of rows under either "
                "name, or list the target's columns under columns instead.",
                table=str(source.table),
                column=old,
                change="rename",
                before=old,
                after=new,
            )


def _chosen(projection: Projection, source: TargetSchema) -> Iterator[TargetColumn]:
    """Yields the source columns that the target has, in the source's order.

    The order in the config does not matter. So a column that is added at the source later comes last.
    """
    return (column for column in source.columns if column.hidden or projection.chooses(column.name))


def _check_named(
    projection: Projection, source: TargetSchema, gone: frozenset[str], past: frozenset[str] = frozenset()
) -> None:
    """Raises if a setting of the projection names a column that does not exist, or must not be named there.

    Raises:
        ConfigError: The name is not a column, matches several columns, is part of the row key, or names the
            same column as another name.
        SchemaRefusedError: The source no longer has the column.
    """
    named: dict[tuple[str, str], str] = {}
    for setting, name in named_columns(projection):
        check_spelling(setting, name, source)
        source_column = source.find(name)
        if source_column is None:
            _check_ambiguous(setting, name, source)
            if setting == "except_column_list" and source.fold(name) in past:
                continue  # omitted in case an older row has it
            names = ", ".join(column.name for column in source.columns)
            raise ConfigError(
                f"{setting}: {source.table} has no column {name}; its columns are {names}",
                table=str(source.table),
                column=name,
            )
        other = named.setdefault((setting, source_column.name), name)
        if other != name and setting != "filter":
            raise ConfigError(
                f"{setting}: {other} and {name} are the same column of {source.table}, {source_column.name}, "
                "because no record so far has two columns whose names differ only in case. Remove one of "
                "the names.",
                table=str(source.table),
                column=name,
            )
        if source_column.hidden and setting != "filter":
            raise ConfigError(
                f"{setting}: {name} is not a column of {source.table}, but the row key that identifies "
                "its rows, which always has this name. Remove it from the setting, or list columns that "
                "identify the rows under tables: keys.",
                table=str(source.table),
                column=name,
            )
        if source.fold(name) in gone and setting != "except_column_list":
            raise SchemaRefusedError(
                f"{setting} names {name}, a column that the source has dropped or renamed, so later rows "
                f"have no value for it. Remove it from {setting}, or name the column that replaced it. If "
                "the existing rows are wrong, load the table again.",
                table=str(source.table),
                column=name,
            )


def _check_ambiguous(setting: str, name: str, source: TargetSchema) -> None:
    fitting = [column.name for column in source.columns if fold_name(column.name) == fold_name(name)]
    if fitting:
        raise ConfigError(
            f"{setting}: {name} can be {' or '.join(fitting)}, which are different columns of "
            f"{source.table}. Use the source's spelling of the name.",
            table=str(source.table),
            column=name,
        )


def _check_spark_names(row_filter: RowFilter, source: TargetSchema) -> None:
    """Raises ConfigError if a filter uses two columns whose names differ only in case.

    Spark, which evaluates the filter, cannot distinguish them.
    """
    names: dict[str, str] = {}
    for mention in row_filter.mentions:
        name = source.by_name[source.fold(mention.name)].name if source.find(mention.name) else mention.name
        other = names.setdefault(fold_name(name), name)
        if other != name:
            raise ConfigError(
                f"filter: The filter names the columns {other} and {name}, and Spark, which evaluates the "
                "filter, does not distinguish the two. Use only one of them in the filter.",
                table=str(source.table),
                column=name,
            )


def _check_keys(chosen: Iterable[TargetColumn], source: TargetSchema) -> None:
    there = {column.name for column in chosen}
    missing = [column.name for column in source.key_columns if column.name not in there]
    if missing:
        raise ConfigError(
            f"The key of {source.table} is ({', '.join(source.keys)}), and {', '.join(missing)} is "
            "left out, so rows could not be identified. Add it to columns, or remove it from "
            "except_column_list.",
            table=str(source.table),
        )


def _check_apart(columns: Iterable[TargetColumn], source: TargetSchema, own: Iterable[str]) -> None:
    # If only the source's case distinguishes two names, the target decides if it accepts both.
    own_pairs = {column.name for column in source.columns if source.fold(column.name) == column.name}
    names = Counter(fold_name(column.name) for column in columns)
    exact = Counter(column.name for column in columns)
    apart = {
        name
        for name in names
        if all(column.name in own_pairs for column in columns if fold_name(column.name) == name)
    }
    twice = [name for name, times in names.items() if times > 1 and name not in apart]
    twice += [name for name, times in exact.items() if times > 1 and fold_name(name) in apart]
    if twice:
        raise ConfigError(
            f"rename, metadata: two columns of {source.table} would be called {', '.join(twice)}. "
            "Rename one of them.",
            table=str(source.table),
        )
    taken = sorted(names.keys() & {fold_name(name) for name in own})
    if taken:
        raise ConfigError(
            f"A column of {source.table} would be called {', '.join(taken)}, which is a column of "
            "tidesink's own. Rename it under rename or metadata.",
            table=str(source.table),
        )
