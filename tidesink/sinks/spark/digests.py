"""Rows of two sides as digests, and the keys whose rows differ. No row passes through the driver.

A *digest* of a row has a hash of its key and a hash of its values, 128 bits each (two of Spark's 64-bit
hashes with different seeds), and the key itself. The hash also covers which values are NULL. Both sides are
first cast to the same types, so that values are compared, and not their spelling.

===============  =====================================================================================
column           content
===============  =====================================================================================
``h0``, ``h1``   the hash of the key
``r0``, ``r1``   the hash of the other values
``key``          the key's values as texts, bytes as hex digits
``columns``      a hash of each other value, in their order; only on request
``texts``        each other value as text, in its side's own spelling; only on request
``bad``          the source's row cannot be a row of the target; then the others are null
===============  =====================================================================================

The *state* of a key on a side is the hash of its row and the number of rows with the key; null without a row.

Two values are equal if they are the same value of the column's type. So decimals of different scales are
equal, and so are JSON or digits in different spellings. For floating-point numbers ``0.0`` equals ``-0.0``,
and every NaN is one value (as in Spark's hash, and with ``=`` in databases). A value that the compared type
cannot hold exactly is *odd*: it equals neither NULL nor the result of a cast, only the same text.
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
# A column of a reader's rows: an array with the text of each value that its Spark type cannot hold
# ("infinity" of a date, a day before Christ), and null for all others.
ODD: Final = "_odd"


class ComparedColumn(NamedTuple):
    """A column of both sides: its Spark type, and the target's spelling of its texts."""

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
    """Returns the digests of rows whose columns are ``columns`` in their order, followed by optional flags.

    The flags are ``bad``, and ``ODD``: the texts of values that their column's Spark type cannot hold.
    ``detailed``: adds ``columns``. ``shown``: adds ``texts``.
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
    """Returns a share of the digests by their keys' hashes, the same on each side, and all ``bad`` ones."""
    if share >= 1:
        return found
    mine = F.pmod(F.col(HASH[0]), F.lit(_SHARES)) < int(share * _SHARES)
    return found.where(F.col("bad") | mine)


def once(found: DataFrame) -> DataFrame:
    """Remove duplicates of rows that were read more than once, because several keys found the same row."""
    return found.dropDuplicates([*HASH, *_ROW, "bad"])


class Limit(NamedTuple):
    """The bound of a column, with the column's name."""

    name: str
    bound: Bound


def within(rows: DataFrame, columns: Sequence[ComparedColumn], limits: Sequence[Limit]) -> DataFrame:
    """Returns rows, as for ``digests``, whose values are within the limits, and all ``bad`` rows."""
    if not limits:
        return rows
    flags = rows.columns[len(columns) :]
    named = rows.toDF(*(f"c{at}" for at in range(len(columns))), *flags)
    kept = F.col("bad") if "bad" in flags else F.lit(False)
    return named.where(kept | _inside(columns, limits)).toDF(*rows.columns)


def _inside(columns: Sequence[ComparedColumn], limits: Sequence[Limit]) -> Column:
    """True if the columns ``c0``, ``c1``, … are within the limits; NULL if a value is NULL."""
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
    """Converts a time that is stored as text to seconds; NULL if it is not a time."""
    parts = [F.split(F.regexp_replace(time, "^-", ""), ":")[at] for at in range(3)]
    factors = zip(parts, (3600, 60, 1), strict=True)
    whole = sum((one.cast("decimal(12,6)") * factor for one, factor in factors), F.lit(0))
    is_time = time.rlike(r"^-?\d{1,3}:\d{2}:\d{2}(\.\d{1,6})?$")
    return F.when(is_time & time.startswith("-"), -whole).when(is_time, whole)


def keys_of(rows: DataFrame, columns: Sequence[ComparedColumn], *, part: int, parts: int) -> DataFrame:
    """Returns the distinct keys of rows whose hash is in this part of ``parts``, without keys with a NULL.

    ``h0``, ``h1`` and ``key`` are those of ``digests``. ``value`` is a struct of the key's values, in the
    types of ``columns``, which are only the key's.
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
    """Returns keys from the texts that ``digests`` has of them, in the form of ``keys_of``.

    Texts that are not values of their columns are left out.
    """
    rows = session.createDataFrame([([*key],) for key in keys], "texts array<string>")
    texts = [F.col("texts")[at] for at in range(len(columns))]
    values = [F.unhex(one) if c.type == "binary" else one for one, c in zip(texts, columns, strict=True)]
    return keys_of(rows.select(values), columns, part=0, parts=1)


def with_matches(
    rows: DataFrame, columns: Sequence[ComparedColumn], wanted: Sequence[DataFrame | tuple[Limit, ...]]
) -> DataFrame:
    """Returns rows with keys, and for each of ``wanted`` (named keys, or limits) whether it has the key.

    The first columns of ``rows`` are ``columns``, which are only the key's. They are replaced by ``matches``,
    an array of booleans: NULL if it is not known, as for a key that the target's types cannot hold.
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
    """A value in its compared form.

    Attributes:
        held: The value in the compared type and in one spelling; null if it is NULL, or odd.
        odd: The text of an odd value, else null.
        shown: The value in the compared type, in its side's own spelling.
    """

    held: Column
    odd: Column
    shown: Column

    @property
    def parts(self) -> tuple[Column, Column]:
        """The hashed parts. Spark's hash ignores NULL, and one of the two is NULL."""
        return self.held, self.odd


def _hashes(keys: Sequence[_Value]) -> list[Column]:
    parts = [part for value in keys for part in value.parts]
    return [F.xxhash64(F.lit(seed), *parts).alias(name) for seed, name in zip(_SEEDS, HASH, strict=True)]


def _compared(name: str, kind: str, column: ComparedColumn, odd: Column | None = None) -> _Value:
    """Convert a column of type ``kind`` to the compared type. ``odd``: a reader's texts of odd values."""
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
    """True if a cast value equals the value that it was cast from; also True for NULL."""
    if kind == "string":
        same = _digits(raw) == _digits(value.cast("string")) if wanted.startswith("decimal") else F.lit(True)
        return raw.isNull() | (value.isNotNull() & same)
    return value.try_cast(kind).eqNullSafe(raw)


def _spelt(value: Column, column: ComparedColumn) -> Column:
    """Converts a value to the canonical spelling of its column."""
    if column.spelling == "digits":
        return _digits(value)
    return F.udf(canonical_json, "string")(value) if column.spelling == "json" else value


def _digits(value: Column) -> Column:
    """Removes zeros at the end of the fraction of digits or a time of day; a zero has no sign."""
    short = F.regexp_replace(F.regexp_replace(value, r"(\.\d*?)0+$", "$1"), r"\.$", "")
    return F.regexp_replace(short, "^-([0:]*)$", "$1")


# The last alternative matches characters that no JSON has.
_TOKENS: Final = re.compile(
    r'[ \t\n\r]+|[\[\]{},:]|"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"'
    r"|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null|.",
    re.DOTALL,
)
# Longer exponents stay as they are written: Python's int() refuses numbers of several thousand digits.
_LONGEST_EXPONENT: Final = 1000
_DIGITS: Final = frozenset("0123456789")
# The next expected token: a value, a member's name, the colon after it, or the token after a value.
_VALUE, _FIRST, _NAME, _FIRST_NAME, _COLON, _AFTER = range(6)
_Piece = str | list["_Piece"]


def canonical_json(text: str | None) -> str | None:
    """Returns the canonical spelling of a JSON text. A text that is not JSON (RFC 8259) stays as it is.

    Two texts have the same spelling if and only if they differ only in white space, escapes in texts,
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
    """An array, or an object if ``names`` is not None, whose end was not read yet."""

    def __init__(self, *, named: bool) -> None:
        self.values: list[_Piece] = []
        self.names: list[str] | None = [] if named else None

    def add_name(self, name: str) -> None:
        """Add the name of the next member."""
        if self.names is not None:
            self.names.append(name)

    def closed(self) -> _Piece:
        """Returns the whole container. Members are sorted by name; those of one name keep their order."""
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
    """Parse a JSON text. Raises ValueError if it is not JSON."""
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
    """Returns a number as digits without zeros at either end, and the power of ten of their factor."""
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
    """Yields the texts of nested lists, in their order."""
    left = [piece]
    while left:
        one = left.pop()
        if isinstance(one, str):
            yield one
        else:
            left.extend(reversed(one))


def _with_nulls(values: Sequence[_Value]) -> list[Column]:
    # So that (NULL, 1) and (1, NULL) differ.
    nulls = [value.held.isNull() & value.odd.isNull() for value in values]
    return [part for null, value in zip(nulls, values, strict=True) for part in (null, *value.parts)]


def _parted(values: Sequence[_T], columns: Sequence[ComparedColumn]) -> tuple[list[_T], list[_T]]:
    """Returns the key's values, and the others."""
    pairs = [*zip(values, columns, strict=True)]
    return [value for value, one in pairs if one.key], [value for value, one in pairs if not one.key]


def _text(value: Column, column: ComparedColumn) -> Column:
    return F.hex(value) if column.type == "binary" else value.cast("string")


def compared(source: DataFrame, target: DataFrame) -> DataFrame:
    """Returns each key in the digests of both sides once: its hash, the flag ``same``, and counts.

    ``at_source`` and ``at_target`` are numbers of rows. ``key`` and the states ``s`` and ``t`` are set if the
    states differ.
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
    """Returns the keys of ``compared`` that differ. ``agreed``: number of earlier looks with equal states."""
    return keys.where(~F.col("same")).select(*HASH, "key", "s", "t", F.lit(0).alias("agreed"))


def looked_at_source(candidates: DataFrame, source: DataFrame) -> DataFrame:
    """Returns the candidates with their states at the source from a newer look, ``s2``, and its details.

    Candidates whose target state ``t`` the source has by now are left out, because the target follows.
    """
    candidates = candidates.drop("of_source", "of_target")
    found = candidates.join(_states(source, candidates, "s2", "of_source").hint("merge"), [*HASH], "left")
    return found.where(~F.col("t").eqNullSafe(F.col("s2")))


def looked_at_target(candidates: DataFrame, target: DataFrame) -> DataFrame:
    """Returns the candidates of ``looked_at_source`` after a newer look at the target.

    Candidates whose states are equal are left out. ``agreed`` grows by one for keys whose states are the same
    as at the look before.
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
    """Rows of each side, and keys whose states are equal."""

    at_source: int
    at_target: int
    equal: int


def counts_of(keys: DataFrame) -> KeyCounts:
    """Returns the counts of ``compared``."""
    (row,) = keys.agg(
        F.coalesce(F.sum("at_source"), F.lit(0)),
        F.coalesce(F.sum("at_target"), F.lit(0)),
        F.count_if("same"),
    ).collect()
    return KeyCounts(*map(int, row))


class Verdict(NamedTuple):
    """Numbers of keys that differ after enough looks, by kind, and of keys that are not settled."""

    different: int
    only_at_source: int
    only_at_target: int
    open: int


def verdict_of(candidates: DataFrame, *, looks: int) -> Verdict:
    """Count the candidates by result. A key differs once ``looks`` looks agreed with the look before."""
    settled = F.col("agreed") >= looks
    s, t = F.col("s").isNull(), F.col("t").isNull()
    (row,) = candidates.agg(
        F.count_if(settled & ~s & ~t), F.count_if(settled & t), F.count_if(settled & s), F.count_if(~settled)
    ).collect()
    return Verdict(*map(int, row))


def differing(candidates: DataFrame, *, looks: int) -> DataFrame:
    """Returns the candidates that differ: ``key``, which sides have it, and the details of both."""
    return candidates.where(F.col("agreed") >= looks).select(
        "key",
        F.col("s").isNotNull().alias("at_source"),
        F.col("t").isNotNull().alias("at_target"),
        "of_source",
        "of_target",
    )
