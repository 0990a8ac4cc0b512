"""Rows of two sides as digests, and the keys whose rows differ; no row passes the driver.

A *digest* of a row is a hash of its key and one of its values, 128 bits each (two of Spark's 64-bit hashes
with different beginnings), with the key itself. Whether a value is NULL is hashed too. Both sides are cast to
the same types first, so that values are compared, and not their spelling.

===============  =====================================================================================
column           of a digest
===============  =====================================================================================
``h0``, ``h1``   the hash of the key
``r0``, ``r1``   the hash of the other values
``key``          the key's values as texts, of bytes their hex digits
``columns``      a hash of each other value, in their order; only where asked for
``texts``        each other value as text, in its side's own spelling; only where asked for
``bad``          the source's row cannot be one of the target; the others are null then
===============  =====================================================================================

The *state* of a key on a side is the hash of its row and how many rows have the key; null: none has.

Two values are equal if they are the same value of the column's type: decimals of other scales, and JSON or
digits in another spelling, are. Of floating-point numbers ``0.0`` equals ``-0.0`` and every NaN is one value
(Spark's hash makes them one, as does ``=`` in databases). A value that the compared type does not hold
exactly is *odd*: it equals neither NULL nor what a cast makes of it, only the same text.
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
# What each of the two hashes begins with.
_SEEDS: Final = (0, 1)
# A column of rows that a reader gives: an array with the text of each value that its Spark type does not hold
# ("infinity" of a date, a day before Christ), null for all others.
ODD: Final = "_odd"


class ComparedColumn(NamedTuple):
    """A column of both sides: its Spark type, and how the target spells its texts."""

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
    """The digests of rows, whose columns are ``columns`` in their order, and perhaps flags behind them.

    The flags are ``bad``, and ``ODD``: the texts of values that their column's Spark type does not hold.
    ``detailed`` and ``shown``: with ``columns``, and ``texts``.
    """
    flags = rows.columns[len(columns) :]
    named = rows.toDF(*(f"c{at}" for at in range(len(columns))), *flags)
    kinds = [one.dataType.simpleString() for one in rows.schema.fields]
    odd = [F.col(ODD)[at] if ODD in flags else None for at in range(len(columns))]
    values = [_compared(f"c{at}", kinds[at], one, odd[at]) for at, one in enumerate(columns)]
    texts = [
        F.coalesce(_text(value.held if one.key else value.shown, one), value.odd)
        for value, one in zip(values, columns, strict=True)
    ]
    keys, others = _parted(values, columns)
    key_texts, other_texts = _parted(texts, columns)
    found = [
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
        found.append(F.array(*hashes).cast("array<bigint>").alias("columns"))
    if shown:
        found.append(F.array(*other_texts).cast("array<string>").alias("texts"))
    return named.select(found)


def sampled(found: DataFrame, share: float) -> DataFrame:
    """The digests whose keys' hashes fall to a share of all, the same on each side; ``bad`` ones, too."""
    if share >= 1:
        return found
    mine = F.pmod(F.col(HASH[0]), F.lit(_SHARES)) < int(share * _SHARES)
    return found.where(F.col("bad") | mine)


def once(found: DataFrame) -> DataFrame:
    """Digests of rows of which some were read more than once, for several keys that one row was found by."""
    return found.dropDuplicates([*HASH, *_ROW, "bad"])


class Limit(NamedTuple):
    """The bound of a column, by its name."""

    name: str
    bound: Bound


def within(rows: DataFrame, columns: Sequence[ComparedColumn], limits: Sequence[Limit]) -> DataFrame:
    """The rows, as those of ``digests``, whose values are within the limits; those that are ``bad``, too."""
    if not limits:
        return rows
    flags = rows.columns[len(columns) :]
    named = rows.toDF(*(f"c{at}" for at in range(len(columns))), *flags)
    kept = F.col("bad") if "bad" in flags else F.lit(False)
    return named.where(kept | _inside(columns, limits)).toDF(*rows.columns)


def _inside(columns: Sequence[ComparedColumn], limits: Sequence[Limit]) -> Column:
    """Whether the columns ``c0``, ``c1``, … are within the limits; NULL where a value is NULL."""
    places = {one.name: at for at, one in enumerate(columns)}
    inside = F.lit(True)
    for one in limits:
        at = places[one.name]
        value = F.expr(f"try_cast(c{at} AS {columns[at].type})")
        inside &= _is_within(value, columns[at].type, one.bound)
    return inside


def _is_within(value: Column, kind: str, bound: Bound) -> Column:
    if kind in ("date", "timestamp", "timestamp_ntz"):
        other = F.lit(bound.text).cast(kind)
    elif kind == "string":
        value, other = _seconds(value), F.lit(seconds_of(bound.text))
    else:
        other = F.lit(Decimal(bound.text))
    found: Column = bound.of(value, other)
    return found


def _seconds(time: Column) -> Column:
    """Those of a time that is kept as text; NULL of what is none."""
    parts = [F.split(F.regexp_replace(time, "^-", ""), ":")[at] for at in range(3)]
    factors = zip(parts, (3600, 60, 1), strict=True)
    whole = sum((one.cast("decimal(12,6)") * factor for one, factor in factors), F.lit(0))
    is_time = time.rlike(r"^-?\d{1,3}:\d{2}:\d{2}(\.\d{1,6})?$")
    return F.when(is_time & time.startswith("-"), -whole).when(is_time, whole)


def keys_of(rows: DataFrame, columns: Sequence[ComparedColumn], *, part: int, parts: int) -> DataFrame:
    """The keys of rows whose hash falls to this part of ``parts``, each once, without those that have a NULL.

    ``h0``, ``h1`` and ``key`` are those of ``digests``; ``value`` is a struct of the key's values, in the
    types of ``columns``, which are the key's alone.
    """
    named = rows.toDF(*(f"c{at}" for at in range(len(columns))))
    kinds = [one.dataType.simpleString() for one in rows.schema.fields]
    values = [_compared(f"c{at}", kinds[at], one) for at, one in enumerate(columns)]
    texts = [_text(value.held, one) for value, one in zip(values, columns, strict=True)]
    plain = (F.expr(f"try_cast(c{at} AS {one.type})").alias(f"c{at}") for at, one in enumerate(columns))
    found = named.select(*_hashes(values), F.array(*texts).alias("key"), F.struct(*plain).alias("value"))
    mine = found.where(F.pmod(F.col(HASH[0]), F.lit(parts)) == part)
    return mine.where(~F.exists("key", lambda text: text.isNull())).dropDuplicates([*HASH])


def named_keys(
    session: SparkSession, keys: Sequence[Sequence[str]], columns: Sequence[ComparedColumn]
) -> DataFrame:
    """Keys by the texts that ``digests`` has of them, as ``keys_of``.

    One that is no value of its columns is left out.
    """
    rows = session.createDataFrame([([*key],) for key in keys], "texts array<string>")
    texts = [F.col("texts")[at] for at in range(len(columns))]
    values = [F.unhex(one) if c.type == "binary" else one for one, c in zip(texts, columns, strict=True)]
    return keys_of(rows.select(values), columns, part=0, parts=1)


def with_matches(
    rows: DataFrame, columns: Sequence[ComparedColumn], wanted: Sequence[DataFrame | tuple[Limit, ...]]
) -> DataFrame:
    """Rows with keys, and of each of ``wanted`` whether it has the key: named keys, or limits.

    The first columns of ``rows`` are ``columns``, the key's alone. In their place come ``matches``, an array
    of booleans: NULL where nothing tells, as of a key that the target's types do not hold.
    """
    others = rows.columns[len(columns) :]
    named = rows.toDF(*(f"c{at}" for at in range(len(columns))), *others)
    kinds = [one.dataType.simpleString() for one in rows.schema.fields]
    values = [_compared(f"c{at}", kinds[at], one) for at, one in enumerate(columns)]
    known = F.lit(True)
    for value in values:
        known &= value.held.isNotNull()
    limited = {at: one for at, one in enumerate(wanted) if isinstance(one, tuple)}
    inside = (_inside(columns, one).alias(f"m{at}") for at, one in limited.items())
    found = named.select(*_hashes(values), *others, known.alias("known"), *inside)
    for at, one in enumerate(wanted):
        if not isinstance(one, tuple):
            keys = one.select(*HASH, F.lit(True).alias(f"m{at}"))
            found = found.join(keys, [*HASH], "left")
            found = found.withColumn(f"m{at}", F.coalesce(f"m{at}", F.lit(False)))
    flags = (F.when(F.col("known"), F.col(f"m{at}")) for at in range(len(wanted)))
    return found.select(*others, F.array(*flags).cast("array<boolean>").alias("matches"))


class _Value(NamedTuple):
    """A value as it is compared.

    ``held``: in the compared type, in one spelling; null if it is NULL, or odd. ``odd``: its text if it is.
    ``shown``: in the compared type, in its side's own spelling.
    """

    held: Column
    odd: Column
    shown: Column

    @property
    def parts(self) -> tuple[Column, Column]:
        """What is hashed of it. Spark's hash passes over NULL, and one of the two is NULL."""
        return self.held, self.odd


def _hashes(keys: Sequence[_Value]) -> list[Column]:
    parts = [part for value in keys for part in value.parts]
    return [F.xxhash64(F.lit(seed), *parts).alias(name) for seed, name in zip(_SEEDS, HASH, strict=True)]


def _compared(name: str, kind: str, column: ComparedColumn, odd: Column | None = None) -> _Value:
    """A column of type ``kind`` as the compared type has it. ``odd``: a reader's texts of odd values."""
    raw = F.col(name)
    value = F.expr(f"try_cast({name} AS {column.type})")
    found = F.lit(None).cast("string") if odd is None else odd
    if kind != column.type:
        text = raw.cast("string")
        shown = _digits(text) if column.type.startswith("decimal") else text
        found = F.coalesce(found, F.when(~_is_exact(raw, kind, value, column.type), shown))
        value = F.when(found.isNull(), value)
    return _Value(_spelt(value, column), found, value)


def _is_exact(raw: Column, kind: str, value: Column, wanted: str) -> Column:
    """Whether a cast value is the one that it was cast from; true for NULL."""
    if kind == "string":
        same = _digits(raw) == _digits(value.cast("string")) if wanted.startswith("decimal") else F.lit(True)
        return raw.isNull() | (value.isNotNull() & same)
    return value.try_cast(kind).eqNullSafe(raw)


def _spelt(value: Column, column: ComparedColumn) -> Column:
    """A value in the one spelling of its column."""
    if column.spelling == "digits":
        return _digits(value)
    return F.udf(canonical_json, "string")(value) if column.spelling == "json" else value


def _digits(value: Column) -> Column:
    """Digits, or a time of day, without zeros at the end of the fraction; a zero has no sign."""
    short = F.regexp_replace(F.regexp_replace(value, r"(\.\d*?)0+$", "$1"), r"\.$", "")
    return F.regexp_replace(short, "^-([0:]*)$", "$1")


# The last kind is what no JSON has.
_TOKENS: Final = re.compile(
    r'[ \t\n\r]+|[\[\]{},:]|"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"'
    r"|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null|.",
    re.DOTALL,
)
# Longer exponents stay as they are written: Python's int() refuses some thousand digits.
_LONGEST_EXPONENT: Final = 1000
_DIGITS: Final = frozenset("0123456789")
# What may come next: a value, the name of a member, the colon behind it, or what follows a value.
_VALUE, _FIRST, _NAME, _FIRST_NAME, _COLON, _AFTER = range(6)
_Piece = str | list["_Piece"]


def canonical_json(text: str | None) -> str | None:
    """The one spelling of a JSON text's value; a text that is no JSON (RFC 8259) stays as it is.

    Two texts have one spelling if and only if they differ in no more than white space, escapes in texts,
    the order of members with different names, and the way in which equal numbers are written. Numbers are
    compared as decimals of any size (exponents of more than 1000 digits as they are written), and ``-0`` is
    ``0``. All members of one name are kept, in their order. Nesting may be of any depth.
    """
    if text is None:
        return None
    try:
        return "".join(_flattened(_json_value(text)))
    except ValueError:
        return text


class _Container:
    """An array, or an object if ``names`` is not None, whose end was not seen yet."""

    def __init__(self, *, named: bool) -> None:
        self.values: list[_Piece] = []
        self.names: list[str] | None = [] if named else None

    def add_name(self, name: str) -> None:
        """The name of the next member."""
        if self.names is not None:
            self.names.append(name)

    def closed(self) -> _Piece:
        """All of it; members in the order of their names, those of one name in theirs."""
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
    """The value of a JSON text. Raises: ValueError, if it is none."""
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
    """A number as its digits without zeros at either end, and the power of ten by which to multiply them."""
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
    """The texts of nested lists, in their order."""
    left = [piece]
    while left:
        one = left.pop()
        if isinstance(one, str):
            yield one
        else:
            left.extend(reversed(one))


def _with_nulls(values: Sequence[_Value]) -> list[Column]:
    # So that (NULL, 1) and (1, NULL) are two.
    nulls = [value.held.isNull() & value.odd.isNull() for value in values]
    return [part for null, value in zip(nulls, values, strict=True) for part in (null, *value.parts)]


def _parted(values: Sequence[_T], columns: Sequence[ComparedColumn]) -> tuple[list[_T], list[_T]]:
    """Those of the key, and the others."""
    pairs = [*zip(values, columns, strict=True)]
    return [value for value, one in pairs if one.key], [value for value, one in pairs if not one.key]


def _text(value: Column, column: ComparedColumn) -> Column:
    return F.hex(value) if column.type == "binary" else value.cast("string")


def compared(source: DataFrame, target: DataFrame) -> DataFrame:
    """Each key of the digests of both sides, once: its hash, whether the states are ``same``, and counts.

    ``at_source`` and ``at_target`` are numbers of rows. ``key`` and the states ``s`` and ``t`` are given
    where the states differ.
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
    """The keys of ``compared`` that differ; ``agreed``: how many looks before found the same states."""
    return keys.where(~F.col("same")).select(*HASH, "key", "s", "t", F.lit(0).alias("agreed"))


def looked_at_source(candidates: DataFrame, source: DataFrame) -> DataFrame:
    """The candidates with their states at the source by a newer look, ``s2``, and its details.

    Left out are those whose state at the target, ``t``, the source has by now: the target follows.
    """
    candidates = candidates.drop("of_source", "of_target")
    found = candidates.join(_states(source, candidates, "s2", "of_source").hint("merge"), [*HASH], "left")
    return found.where(~F.col("t").eqNullSafe(F.col("s2")))


def looked_at_target(candidates: DataFrame, target: DataFrame) -> DataFrame:
    """The candidates of ``looked_at_source`` after a newer look at the target.

    Left out are those whose states are one. Of a key whose states were the same at the look before
    ``agreed`` is one more.
    """
    found = candidates.join(_states(target, candidates, "t2", "of_target").hint("merge"), [*HASH], "left")
    found = found.where(~F.col("s2").eqNullSafe(F.col("t2")))
    stands = F.col("s").eqNullSafe(F.col("s2")) & F.col("t").eqNullSafe(F.col("t2"))
    return found.select(
        *HASH,
        "key",
        F.col("s2").alias("s"),
        F.col("t2").alias("t"),
        F.when(stands, F.col("agreed") + 1).otherwise(0).alias("agreed"),
        "of_source",
        "of_target",
    )


def _states(side: DataFrame, candidates: DataFrame, state: str, details: str) -> DataFrame:
    kept = [name for name in ("columns", "texts") if name in side.columns]
    mine = side.join(candidates.select(*HASH).hint("merge"), [*HASH], "left_semi")
    detail = F.first(F.struct(*kept)).alias(details)
    return mine.groupBy(*HASH).agg(_state(F.lit(True), state), detail)


class KeyCounts(NamedTuple):
    """Rows of each side, and keys whose states are one."""

    at_source: int
    at_target: int
    equal: int


def counts_of(keys: DataFrame) -> KeyCounts:
    """The counts of ``compared``."""
    (row,) = keys.agg(
        F.coalesce(F.sum("at_source"), F.lit(0)),
        F.coalesce(F.sum("at_target"), F.lit(0)),
        F.count_if("same"),
    ).collect()
    return KeyCounts(*map(int, row))


class Verdict(NamedTuple):
    """Keys that differ after enough looks, by how, and those that are not settled."""

    different: int
    only_at_source: int
    only_at_target: int
    open: int


def verdict_of(candidates: DataFrame, *, looks: int) -> Verdict:
    """What is known of the candidates: a key differs once ``looks`` looks agreed with the one before."""
    settled = F.col("agreed") >= looks
    s, t = F.col("s").isNull(), F.col("t").isNull()
    (row,) = candidates.agg(
        F.count_if(settled & ~s & ~t), F.count_if(settled & t), F.count_if(settled & s), F.count_if(~settled)
    ).collect()
    return Verdict(*map(int, row))


def differing(candidates: DataFrame, *, looks: int) -> DataFrame:
    """The candidates that differ: ``key``, whether each side has it, and the details of both."""
    return candidates.where(F.col("agreed") >= looks).select(
        "key",
        F.col("s").isNotNull().alias("at_source"),
        F.col("t").isNotNull().alias("at_target"),
        "of_source",
        "of_target",
    )
