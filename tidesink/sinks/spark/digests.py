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
``texts``        each other value as text; only where asked for
``bad``          the source's row cannot be one of the target; the others are null then
===============  =====================================================================================

The *state* of a key on a side is the hash of its row and how many rows have the key; null: none has.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.source_database.key_bounds import seconds_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from tidesink.source_database.key_bounds import Bound
    from tidesink.typemap.render_sql import Spelling

HASH: Final = ("h0", "h1")
_ROW: Final = ("r0", "r1")
_SOURCE: Final = "_source"
_SHARES: Final = 1 << 40
# What each of the two hashes begins with.
_SEEDS: Final = (0, 1)


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
    """The digests of rows, whose columns are ``columns`` in their order, and perhaps ``bad`` behind them.

    ``detailed`` and ``shown``: with ``columns``, and ``texts``.
    """
    flags = rows.columns[len(columns) :]
    named = rows.toDF(*(f"c{at}" for at in range(len(columns))), *flags)
    values = [_compared(f"c{at}", one) for at, one in enumerate(columns)]
    texts = [_text(value, one) for value, one in zip(values, columns, strict=True)]
    keys, others = _parted(values, columns)
    key_texts, other_texts = _parted(texts, columns)
    found = [
        *_hashes(keys),
        *(
            F.xxhash64(F.lit(seed), *_with_nulls(others)).alias(name)
            for seed, name in zip(_SEEDS, _ROW, strict=True)
        ),
        F.array(*key_texts).alias("key"),
        (F.col("bad") if flags else F.lit(False)).alias("bad"),
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
    places = {one.name: at for at, one in enumerate(columns)}
    kept = F.col("bad") if flags else F.lit(False)
    inside = F.lit(True)
    for one in limits:
        at = places[one.name]
        value = F.expr(f"try_cast(c{at} AS {columns[at].type})")
        inside &= _is_within(value, columns[at].type, one.bound)
    return named.where(kept | inside).toDF(*rows.columns)


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
    values = [_compared(f"c{at}", one) for at, one in enumerate(columns)]
    texts = [_text(value, one) for value, one in zip(values, columns, strict=True)]
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


def _hashes(keys: Sequence[Column]) -> list[Column]:
    return [F.xxhash64(F.lit(seed), *keys).alias(name) for seed, name in zip(_SEEDS, HASH, strict=True)]


def _compared(name: str, column: ComparedColumn) -> Column:
    value = F.expr(f"try_cast({name} AS {column.type})")
    if column.spelling == "digits":
        return F.regexp_replace(F.regexp_replace(value, r"(\.\d*?)0+$", "$1"), r"\.$", "")
    return F.udf(canonical_json, "string")(value) if column.spelling == "json" else value


def canonical_json(text: str | None) -> str | None:
    """A JSON text in the one spelling of its value; what is no JSON stays as it is."""
    if text is None:
        return None
    try:
        found = json.loads(text, parse_float=_number)
    except ValueError:
        return text
    return json.dumps(found, sort_keys=True, ensure_ascii=True, separators=(",", ":"))


def _number(text: str) -> float | int:
    """A number with a point, or an exponent, that is whole is the integer."""
    value = float(text)
    return int(value) if value.is_integer() else value


def _with_nulls(values: Sequence[Column]) -> list[Column]:
    # Spark's hash passes over NULL, so that (NULL, 1) and (1, NULL) would be one.
    return [part for value in values for part in (value.isNull(), value)]


def _parted(values: Sequence[Column], columns: Sequence[ComparedColumn]) -> tuple[list[Column], list[Column]]:
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
