"""Compares rows of the source database and the target by hashes, in Spark. No row passes through the driver.

A *digest* of a row has a hash of the row's key, a hash of its other values, and the key itself. Each hash has
128 bits (two of Spark's 64-bit hashes with different seeds), and also covers which values are NULL. The rows
of both sides (source and target) are first cast to the same types. So values are compared, and not the way in
which they are written.

===============  =====================================================================================
column           content
===============  =====================================================================================
``h0``, ``h1``   the hash of the key
``r0``, ``r1``   the hash of the other values
``key``          the key's values as texts, bytes as hex digits
``columns``      optional: a hash of each other value, in the columns' order
``texts``        optional: each other value as text, as its side writes it
``bad``          True if the source's row cannot be a row of the target; the other columns are then null
===============  =====================================================================================

The *state* of a key on a side is the hash of its row and the number of rows with the key, or null without a
row.

Two values are equal if they are the same value of the column's type. So decimals of different scales can be
equal, and so can JSON or numbers that are written differently. For floating-point numbers ``0.0`` equals
``-0.0``, and all NaNs are equal (as in Spark's hash, and with ``=`` in databases). A value that the compared
type cannot hold exactly is *odd*: it only equals a value with the same text, and differs from NULL and from
all values that can be cast.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.source_database.key_bounds import seconds_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from tidesink.source_database.key_bounds import Bound
    from tidesink.typemap.render_sql import Spelling

_T = TypeVar("_T")
HASH: Final = ("h0", "h1")
_ROW: Final = ("r0", "r1")
_SOURCE: Final = "_source"
_SHARES: Final = 1 << 40
# The seeds of the two hashes.
_SEEDS: Final = (0, 1)
# A column of a reader's rows: an array that has the text of each value that its Spark type cannot hold
# ("infinity" of a date, a day before Christ), and null for all other values.
ODD: Final = "_odd"


class ComparedColumn(NamedTuple):
    """A column that is compared.

    Attributes:
        type: The Spark type to which both sides are cast.
        key: True for a column of the key.
        spelling: How the texts of the column must be normalized before the comparison: as numbers or as JSON.
            None if they are compared as they are.
    """

    name: str
    type: str
    key: bool
    spelling: Spelling | None = None


def digests(
    rows: DataFrame,
    columns: Sequence[ComparedColumn],
    *,
    detailed: bool = False,
    shown: bool = False,
) -> DataFrame:
    """Returns the digests of rows.

    Args:
        rows: Rows of one side. Their first columns are ``columns``, in the same order. Optional columns
            follow: ``bad``, and ``ODD`` with the texts of values that their column's Spark type cannot hold.
        columns: The compared columns.
        detailed: True: the digests have the column ``columns``.
        shown: True: the digests have the column ``texts``.
    """
    flags = rows.columns[len(columns) :]
    named = rows.toDF(*(f"c{index}" for index in range(len(columns))), *flags)
    kinds = [field.dataType.simpleString() for field in rows.schema.fields]
    odd = [F.col(ODD)[index] if ODD in flags else None for index in range(len(columns))]
    values = [
        _compared(f"c{index}", kinds[index], column, odd[index]) for index, column in enumerate(columns)
    ]
    texts = [
        F.coalesce(_text(value.held if column.key else value.shown, column), value.odd)
        for value, column in zip(values, columns, strict=True)
    ]
    keys, others = _parted(values, columns)
    key_texts, other_texts = _parted(texts, columns)
    selected = [
        *_hashes(keys),
        *(
            F.xxhash64(F.lit(seed), *_with_nulls(others)).alias(name)
            for seed, name in zip(_SEEDS, _ROW, strict=True)
        ),
        F.array(*key_texts).alias("key"),
        (F.col("bad") if "bad" in flags else F.lit(False)).alias("bad"),
    ]
    if detailed:
        hashes = [F.xxhash64(*_with_nulls([value])) for value in others]
        selected.append(F.array(*hashes).cast("array<bigint>").alias("columns"))
    if shown:
        selected.append(F.array(*other_texts).cast("array<string>").alias("texts"))
    return named.select(selected)


def sampled(digest_rows: DataFrame, share: float) -> DataFrame:
    """Returns a sample of the digests, and all ``bad`` ones.

    ``share``: the size of the sample, from 0 to 1. Digests are chosen by the hash of the key, so that the
    samples of both sides have the same keys.
    """
    if share >= 1:
        return digest_rows
    mine = F.pmod(F.col(HASH[0]), F.lit(_SHARES)) < int(share * _SHARES)
    return digest_rows.where(F.col("bad") | mine)


def once(digest_rows: DataFrame) -> DataFrame:
    """Remove duplicate digests of rows that were read several times, because several requested keys found the
    same row.
    """
    return digest_rows.dropDuplicates([*HASH, *_ROW, "bad"])


class Limit(NamedTuple):
    """A bound of a key column, with the column's name in the compared rows."""

    name: str
    bound: Bound


def within(rows: DataFrame, columns: Sequence[ComparedColumn], limits: Sequence[Limit]) -> DataFrame:
    """Returns the rows whose values are within the limits, and all ``bad`` rows.

    ``rows``: first ``columns``, then optional columns such as ``bad``, as for ``digests``.
    """
    if not limits:
        return rows
    flags = rows.columns[len(columns) :]
    named = rows.toDF(*(f"c{index}" for index in range(len(columns))), *flags)
    is_bad = F.col("bad") if "bad" in flags else F.lit(False)
    return named.where(is_bad | _inside(columns, limits)).toDF(*rows.columns)


def _inside(columns: Sequence[ComparedColumn], limits: Sequence[Limit]) -> Column:
    """Returns an expression: True if the columns ``c0``, ``c1``, … are within the limits, NULL if a value is
    NULL.
    """
    places = {column.name: index for index, column in enumerate(columns)}
    inside = F.lit(True)
    for limit in limits:
        index = places[limit.name]
        value = F.expr(f"try_cast(c{index} AS {columns[index].type})")
        inside &= _is_within(value, columns[index].type, limit.bound)
    return inside


def _is_within(value: Column, kind: str, bound: Bound) -> Column:
    if kind in ("date", "timestamp", "timestamp_ntz"):
        other = F.lit(bound.text).cast(kind)
    elif kind == "string":
        value, other = _seconds(value), F.lit(seconds_of(bound.text))
    else:
        other = F.lit(Decimal(bound.text))
    is_inside: Column = bound.of(value, other)
    return is_inside


def _seconds(time: Column) -> Column:
    """Convert a time that is stored as text to seconds. The result is NULL if the text is not a time."""
    parts = [F.split(F.regexp_replace(time, "^-", ""), ":")[index] for index in range(3)]
    factors = zip(parts, (3600, 60, 1), strict=True)
    whole = sum((part.cast("decimal(12,6)") * factor for part, factor in factors), F.lit(0))
    is_time = time.rlike(r"^-?\d{1,3}:\d{2}:\d{2}(\.\d{1,6})?$")
    return F.when(is_time & time.startswith("-"), -whole).when(is_time, whole)


def keys_of(rows: DataFrame, columns: Sequence[ComparedColumn], *, part: int, parts: int) -> DataFrame:
    """Returns the distinct keys of rows, without keys that contain NULL.

    Keys are divided by their hashes into ``parts`` parts, and only those of part number ``part`` are
    returned. ``columns``: only the key columns. The result has ``h0``, ``h1`` and ``key`` as in ``digests``,
    and ``value``, a struct of the key's values in the types of ``columns``.
    """
    named = rows.toDF(*(f"c{index}" for index in range(len(columns))))
    kinds = [field.dataType.simpleString() for field in rows.schema.fields]
    values = [_compared(f"c{index}", kinds[index], column) for index, column in enumerate(columns)]
    texts = [_text(value.held, column) for value, column in zip(values, columns, strict=True)]
    plain = (
        F.expr(f"try_cast(c{index} AS {column.type})").alias(f"c{index}")
        for index, column in enumerate(columns)
    )
    keys = named.select(*_hashes(values), F.array(*texts).alias("key"), F.struct(*plain).alias("value"))
    mine = keys.where(F.pmod(F.col(HASH[0]), F.lit(parts)) == part)
    return mine.where(~F.exists("key", lambda text: text.isNull())).dropDuplicates([*HASH])


def named_keys(
    session: SparkSession, keys: Sequence[Sequence[str]], columns: Sequence[ComparedColumn]
) -> DataFrame:
    """Converts keys from texts, as in the column ``key`` of digests, to the frame that ``keys_of`` returns.

    A key is omitted if one of its texts is not a value of the column's type.
    """
    rows = session.createDataFrame([([*key],) for key in keys], "texts array<string>")
    texts = [F.col("texts")[index] for index in range(len(columns))]
    values = [F.unhex(text) if c.type == "binary" else text for text, c in zip(texts, columns, strict=True)]
    return keys_of(rows.select(values), columns, part=0, parts=1)


def with_matches(
    rows: DataFrame, columns: Sequence[ComparedColumn], wanted: Sequence[DataFrame | tuple[Limit, ...]]
) -> DataFrame:
    """Returns rows with a column ``matches``, an array with one boolean for each element of ``wanted``.

    The boolean is True if this element of ``wanted`` includes the row's key. It is NULL if this is not known,
    for example if the target's types cannot hold the key.

    Args:
        rows: Rows whose first columns are ``columns``. In the result ``matches`` replaces these columns.
        columns: The key columns.
        wanted: Each element is a set of keys (from ``named_keys``) or limits of the key columns.
    """
    others = rows.columns[len(columns) :]
    named = rows.toDF(*(f"c{index}" for index in range(len(columns))), *others)
    kinds = [field.dataType.simpleString() for field in rows.schema.fields]
    values = [_compared(f"c{index}", kinds[index], column) for index, column in enumerate(columns)]
    is_known = F.lit(True)
    for value in values:
        is_known &= value.held.isNotNull()
    limited = {index: item for index, item in enumerate(wanted) if isinstance(item, tuple)}
    inside = (_inside(columns, limits).alias(f"m{index}") for index, limits in limited.items())
    matched = named.select(*_hashes(values), *others, is_known.alias("known"), *inside)
    for index, item in enumerate(wanted):
        if not isinstance(item, tuple):
            keys = item.select(*HASH, F.lit(True).alias(f"m{index}"))
            matched = matched.join(keys, [*HASH], "left")
            matched = matched.withColumn(f"m{index}", F.coalesce(f"m{index}", F.lit(False)))
    flags = (F.when(F.col("known"), F.col(f"m{index}")) for index in range(len(wanted)))
    return matched.select(*others, F.array(*flags).cast("array<boolean>").alias("matches"))


class _Value(NamedTuple):
    """A value in the form in which it is compared.

    Attributes:
        held: The value in the compared type and in normalized form; null if the value is NULL or odd.
        odd: The text of an odd value, otherwise null.
        shown: The value in the compared type, as its side writes it.
    """

    held: Column
    odd: Column
    shown: Column

    @property
    def parts(self) -> tuple[Column, Column]:
        """The two parts that are hashed. At least one is NULL, which Spark's hash ignores."""
        return self.held, self.odd


def _hashes(keys: Sequence[_Value]) -> list[Column]:
    parts = [part for value in keys for part in value.parts]
    return [F.xxhash64(F.lit(seed), *parts).alias(name) for seed, name in zip(_SEEDS, HASH, strict=True)]


def _compared(name: str, kind: str, column: ComparedColumn, odd: Column | None = None) -> _Value:
    """Convert a column to the type in which it is compared.

    ``kind``: the type that it has now. ``odd``: the texts of values that the column's Spark type cannot hold,
    as the reader of the rows returned them, or None.
    """
    raw = F.col(name)
    value = F.expr(f"try_cast({name} AS {column.type})")
    odd_text = F.lit(None).cast("string") if odd is None else odd
    if kind != column.type:
        text = raw.cast("string")
        shown = _digits(text) if column.type.startswith("decimal") else text
        odd_text = F.coalesce(odd_text, F.when(~_is_exact(raw, kind, value, column.type), shown))
        value = F.when(odd_text.isNull(), value)
    return _Value(_spelt(value, column), odd_text, value)


def _is_exact(raw: Column, kind: str, value: Column, wanted: str) -> Column:
    """Returns an expression that is True if a cast did not change the value, or if the value is NULL."""
    if kind == "string":
        same = _digits(raw) == _digits(value.cast("string")) if wanted.startswith("decimal") else F.lit(True)
        return raw.isNull() | (value.isNotNull() & same)
    return value.try_cast(kind).eqNullSafe(raw)


def _spelt(value: Column, column: ComparedColumn) -> Column:
    """Normalize the text of a value: numbers and JSON texts that mean the same become the same text."""
    if column.spelling == "digits":
        return _digits(value)
    return F.udf(canonical_json, "string")(value) if column.spelling == "json" else value


def _digits(value: Column) -> Column:
    """Remove trailing zeros of the fraction from a number or a time of day, and the sign of a zero."""
    short = F.regexp_replace(F.regexp_replace(value, r"(\.\d*?)0+$", "$1"), r"\.$", "")
    return F.regexp_replace(short, "^-([0:]*)$", "$1")


# The last alternative matches characters that cannot be in JSON.
_TOKENS: Final = re.compile(
    r'[ \t\n\r]+|[\[\]{},:]|"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"'
    r"|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null|.",
    re.DOTALL,
)
# Longer exponents are compared as text, because Python's int() refuses numbers of several thousand digits.
_LONGEST_EXPONENT: Final = 1000
_DIGITS: Final = frozenset("0123456789")
# The token that is expected next: a value, a member's name, the colon after it, or the token after a value.
_VALUE, _FIRST, _NAME, _FIRST_NAME, _COLON, _AFTER = range(6)
_Piece = str | list["_Piece"]


def canonical_json(text: str | None) -> str | None:
    """Normalize a JSON text. A text that is not JSON (RFC 8259) is returned unchanged.

    Two normalized texts are equal if and only if the JSON texts differ only in white space, in escapes inside
    strings, in the order of members with different names, and in how equal numbers are written. Numbers are
    compared as decimals of any size, and ``-0`` equals ``0``. Exponents of more than 1000 digits are compared
    as text. All members with the same name are kept, in their order. Values may be nested to any depth.
    """
    if text is None:
        return None
    try:
        return "".join(_flattened(_json_value(text)))
    except ValueError:
        return text


class _Container:
    """A JSON array, or an object if ``names`` is not None, of which the end was not read yet."""

    def __init__(self, *, named: bool) -> None:
        self.values: list[_Piece] = []
        self.names: list[str] | None = [] if named else None

    def add_name(self, name: str) -> None:
        """Add the name of the next member, if this is a JSON object."""
        if self.names is not None:
            self.names.append(name)

    def closed(self) -> _Piece:
        """Returns the whole array or object.

        Members are sorted by name, and members with the same name keep their order.
        """
        if self.names is None:
            inner = [[value, ","] for value in self.values]
            opening, closing = "[]"
        else:
            members = sorted(zip(self.names, self.values, strict=True), key=lambda member: member[0])
            inner = [[f"{name}:", value, ","] for name, value in members]
            opening, closing = "{}"
        if inner:
            inner[-1].pop()
        return [opening, *inner, closing]


def _json_value(text: str) -> _Piece:
    """Parse a JSON text into nested lists of texts.

    Raises:
        ValueError: The text is not JSON.
    """
    open_: list[_Container] = []
    state, value = _VALUE, None
    for token in _TOKENS.findall(text):
        mark = token[0]
        if mark in " \t\n\r":
            continue
        if mark == "," and state == _AFTER and open_:
            state = _VALUE if open_[-1].names is None else _NAME
        elif mark == ":" and state == _COLON:
            state = _VALUE
        elif mark in "[{" and state in (_VALUE, _FIRST):
            open_.append(_Container(named=mark == "{"))
            state = _FIRST if mark == "[" else _FIRST_NAME
        elif state in (_NAME, _FIRST_NAME) and mark == '"' and len(token) > 1:
            open_[-1].add_name(_text_spelt(token))
            state = _COLON
        else:
            if mark in "]}" and open_ and _may_close(open_[-1], mark, state):
                value = open_.pop().closed()
            elif state in (_VALUE, _FIRST):
                value = _scalar(token)
            else:
                raise ValueError("no JSON")
            state = _AFTER
            if open_:
                open_[-1].values.append(value)
    if value is None or open_ or state != _AFTER:
        raise ValueError("no JSON")
    return value


def _scalar(token: str) -> str:
    if token[0] == '"' and len(token) > 1:
        return _text_spelt(token)
    if token[-1] in _DIGITS:
        return _number_spelt(token)
    if token in ("true", "false", "null"):
        return token
    raise ValueError("no JSON")


def _may_close(container: _Container, mark: str, state: int) -> bool:
    if container.names is None:
        return mark == "]" and state in (_AFTER, _FIRST)
    return mark == "}" and state in (_AFTER, _FIRST_NAME)


def _text_spelt(token: str) -> str:
    return encode_basestring_ascii(json.loads(token))


def _number_spelt(token: str) -> str:
    """Returns a number as digits without leading and trailing zeros, followed by ``E`` and an exponent."""
    mantissa, _, exponent = token.lower().partition("e")
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    short = digits.rstrip("0")
    if not short:
        return "0"
    if len(exponent) > _LONGEST_EXPONENT:
        return token
    power = int(exponent or 0) + len(digits) - len(short) - len(fraction)
    return f"{'-' if token[0] == '-' else ''}{short}E{power}"


def _flattened(piece: _Piece) -> Iterator[str]:
    """Yields the texts in nested lists, in their order."""
    left = [piece]
    while left:
        item = left.pop()
        if isinstance(item, str):
            yield item
        else:
            left.extend(reversed(item))


def _with_nulls(values: Sequence[_Value]) -> list[Column]:
    # With the NULL flags, (NULL, 1) and (1, NULL) have different hashes.
    nulls = [value.held.isNull() & value.odd.isNull() for value in values]
    return [part for null, value in zip(nulls, values, strict=True) for part in (null, *value.parts)]


def _parted(values: Sequence[_T], columns: Sequence[ComparedColumn]) -> tuple[list[_T], list[_T]]:
    """Divide values into those of the key columns and those of all other columns."""
    pairs = [*zip(values, columns, strict=True)]
    return [value for value, column in pairs if column.key], [
        value for value, column in pairs if not column.key
    ]


def _text(value: Column, column: ComparedColumn) -> Column:
    return F.hex(value) if column.type == "binary" else value.cast("string")


def compared(source: DataFrame, target: DataFrame) -> DataFrame:
    """Compare the digests of both sides. Returns one row for each key.

    The row has the key's hash, ``same`` (True if both sides have the same state of the key), and the numbers
    of rows ``at_source`` and ``at_target``. If the states differ, it also has ``key`` and the states ``s``
    (source) and ``t`` (target).
    """
    asked = [*HASH, *_ROW, "key"]
    sides = source.select(*asked, F.lit(True).alias(_SOURCE)).unionByName(
        target.select(*asked, F.lit(False).alias(_SOURCE))
    )
    side = F.col(_SOURCE)
    keys = sides.groupBy(*HASH).agg(F.first("key").alias("key"), _state(side, "s"), _state(~side, "t"))
    same = F.col("s").eqNullSafe(F.col("t"))
    return keys.select(
        *HASH,
        same.alias("same"),
        *(F.coalesce(f"{state}.rows", F.lit(0)).alias(f"at_{name}") for state, name in _SIDES),
        *(F.when(~same, F.col(name)).alias(name) for name in ("key", "s", "t")),
    )


_SIDES: Final = (("s", "source"), ("t", "target"))


def _state(of_side: Column, name: str) -> Column:
    count = F.count_if(of_side)
    row = [F.max(F.when(of_side, F.col(part))).alias(part) for part in _ROW]
    return F.when(count > 0, F.struct(*row, count.alias("rows"))).alias(name)


def candidates_of(keys: DataFrame) -> DataFrame:
    """Returns candidates: the keys whose states differ in the result of ``compared``. They are looked up
    again on both sides, because the target may only have been behind.

    The column ``agreed`` counts the later look-ups in which both sides' states were the same as in the
    previous one. It begins at 0.
    """
    return keys.where(~F.col("same")).select(*HASH, "key", "s", "t", F.lit(0).alias("agreed"))


def looked_at_source(candidates: DataFrame, source: DataFrame) -> DataFrame:
    """Adds to the candidates ``s2``, their states in the source database by a newer look-up, and its details.

    A candidate whose ``s2`` equals its state in the target is omitted. Its states differed only because the
    two sides were read at different times.
    """
    candidates = candidates.drop("of_source", "of_target")
    joined = candidates.join(_states(source, candidates, "s2", "of_source").hint("merge"), [*HASH], "left")
    return joined.where(~F.col("t").eqNullSafe(F.col("s2")))


def looked_at_target(candidates: DataFrame, target: DataFrame) -> DataFrame:
    """Returns the candidates from ``looked_at_source`` with their states in the target by a newer look-up.

    Candidates whose states are now equal on both sides are omitted. ``agreed`` grows by one if each side's
    state is the same as in the previous look-up, and is otherwise 0.
    """
    joined = candidates.join(_states(target, candidates, "t2", "of_target").hint("merge"), [*HASH], "left")
    joined = joined.where(~F.col("s2").eqNullSafe(F.col("t2")))
    stands = F.col("s").eqNullSafe(F.col("s2")) & F.col("t").eqNullSafe(F.col("t2"))
    return joined.select(
        *HASH,
        "key",
        F.col("s2").alias("s"),
        F.col("t2").alias("t"),
        F.when(stands, F.col("agreed") + 1).otherwise(0).alias("agreed"),
        "of_source",
        "of_target",
    )


def _states(side: DataFrame, candidates: DataFrame, state: str, details: str) -> DataFrame:
    names = [name for name in ("columns", "texts") if name in side.columns]
    mine = side.join(candidates.select(*HASH).hint("merge"), [*HASH], "left_semi")
    detail = F.first(F.struct(*names)).alias(details)
    return mine.groupBy(*HASH).agg(_state(F.lit(True), state), detail)


class KeyCounts(NamedTuple):
    """The number of rows on each side, and the number of keys whose states are equal."""

    at_source: int
    at_target: int
    equal: int


def counts_of(keys: DataFrame) -> KeyCounts:
    """Count the rows and the equal keys in the result of ``compared``."""
    (row,) = keys.agg(
        F.coalesce(F.sum("at_source"), F.lit(0)),
        F.coalesce(F.sum("at_target"), F.lit(0)),
        F.count_if("same"),
    ).collect()
    return KeyCounts(*map(int, row))


class Verdict(NamedTuple):
    """The number of keys that differ, by the kind of difference, and of keys not decided yet (``open``)."""

    different: int
    only_at_source: int
    only_at_target: int
    open: int


def verdict_of(candidates: DataFrame, *, looks: int) -> Verdict:
    """Count the candidates by result. One is known to differ once its ``agreed`` is at least ``looks``."""
    settled = F.col("agreed") >= looks
    s, t = F.col("s").isNull(), F.col("t").isNull()
    (row,) = candidates.agg(
        F.count_if(settled & ~s & ~t), F.count_if(settled & t), F.count_if(settled & s), F.count_if(~settled)
    ).collect()
    return Verdict(*map(int, row))


def differing(candidates: DataFrame, *, looks: int) -> DataFrame:
    """Returns the keys that differ, with the flags ``at_source`` and ``at_target`` (True if this side has the
    key), and the details of both sides.
    """
    return candidates.where(F.col("agreed") >= looks).select(
        "key",
        F.col("s").isNotNull().alias("at_source"),
        F.col("t").isNotNull().alias("at_target"),
        "of_source",
        "of_target",
    )
