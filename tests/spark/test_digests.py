"""Digests of rows on two sides: which keys differ, in which columns, and after which looks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import pytest
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tests.diff_law import Candidate, Version, next_look
from tidesink.sinks.spark.digests import (
    ComparedColumn,
    Limit,
    Verdict,
    candidates_of,
    canonical_json,
    compared,
    counts_of,
    differing,
    digests,
    keys_of,
    looked_at_source,
    looked_at_target,
    named_keys,
    sampled,
    verdict_of,
    within,
)
from tidesink.source_database.key_bounds import Bound

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

COLUMNS: Final = (
    ComparedColumn("a.b", "string", True),
    ComparedColumn("k", "binary", True),
    ComparedColumn("x", "bigint", False),
    ComparedColumn("y", "decimal(10,2)", False),
    ComparedColumn("z", "string", False, "digits"),
    ComparedColumn("j", "string", False, "json"),
)
DDL: Final = "`a.b` string, k binary, x int, y decimal(8,1), z string, j string"
ROW: Final = {
    "a.b": "a",
    "k": b"\x01",
    "x": 1,
    "y": Decimal("1.5"),
    "z": "1.50",
    "j": '{"b": 1.0, "a": null}',
}


def _row(key: str, **others: Any) -> tuple[Any, ...]:
    return tuple({**ROW, "a.b": key, **others}.values())


def _side(spark: SparkSession, rows: list[tuple[Any, ...]], **how: bool) -> DataFrame:
    return digests(spark.createDataFrame(rows, DDL), COLUMNS, **how)


def test_each_key_is_in_one_part_once_with_the_hash_of_its_digest(spark: SparkSession) -> None:
    rows = [_row(f"key {number % 90}") for number in range(100)]
    frame, columns = spark.createDataFrame([row[:2] for row in rows], "a string, k binary"), COLUMNS[:2]
    parts = [
        [*map(tuple, keys_of(frame, columns, part=part, parts=3).select("h0", "h1", "key").collect())]
        for part in range(3)
    ]
    assert all(parts)
    whole = _side(spark, rows).select("h0", "h1", "key").distinct().collect()
    assert sorted(one for part in parts for one in part) == sorted(map(tuple, whole))
    # No merge would find a row whose key has a NULL.
    without = spark.createDataFrame([("a", None)], "a string, k binary")
    assert keys_of(without, columns, part=0, parts=1).collect() == []
    (value,) = keys_of(frame.limit(1), columns, part=0, parts=1).select("value").collect()
    assert (*value["value"],) == rows[0][:2]


def test_keys_that_are_named_by_their_texts_are_those_of_the_rows(spark: SparkSession) -> None:
    columns = (
        ComparedColumn("k", "binary", True),
        ComparedColumn("n", "decimal(20,0)", True),
        ComparedColumn("f", "double", True),
        ComparedColumn("t", "timestamp", True),
        ComparedColumn("d", "date", True),
        ComparedColumn("b", "boolean", True),
        ComparedColumn("s", "string", True),
    )
    rows = spark.createDataFrame(
        [
            (
                b"\x00\xff",
                Decimal(2**64 - 1),
                0.1,
                datetime(2026, 3, 29, 1, 30, 0, 1),
                date.min,
                True,
                " a\n",
            ),
            (b"", Decimal(-1), 1e300, datetime(1969, 12, 31, 23, 59, 59), date.max, False, ""),
        ],
        "k binary, n decimal(20,0), f double, t timestamp, d date, b boolean, s string",
    )
    found = keys_of(rows, columns, part=0, parts=1)
    texts = [row["key"] for row in found.select("key").collect()]
    named = named_keys(spark, [*texts, texts[0], ["no hex", *texts[0][1:]]], columns)
    assert sorted(map(str, named.collect())) == sorted(map(str, found.collect()))


def test_a_sample_is_of_the_same_keys_on_both_sides(spark: SparkSession) -> None:
    here = [_row(f"key {number}", x=number) for number in range(2000)]
    there = [_row(f"key {number}", x=-number) for number in range(2000)]

    def keys(side: DataFrame, share: float) -> set[str]:
        return {row["key"][0] for row in sampled(side, share).collect()}

    found = keys(_side(spark, here), 0.1)
    assert 120 < len(found) < 280
    assert keys(_side(spark, there), 0.1) == found
    # A larger one has it, too.
    assert found < keys(_side(spark, here), 0.2)
    assert len(keys(_side(spark, here), 1.5)) == 2000
    bad = _side(spark, here).withColumn("bad", F.lit(True))
    assert len(keys(bad, 0.0)) == 2000


def test_rows_within_limits_by_the_values_and_not_their_texts(spark: SparkSession) -> None:
    columns = (
        ComparedColumn("a.n", "decimal(20,0)", True),
        ComparedColumn("t", "string", True),
        ComparedColumn("d", "date", True),
        ComparedColumn("m", "timestamp_ntz", True),
        ComparedColumn("i", "int", False),
    )
    rows = spark.createDataFrame(
        [
            (Decimal(9), "-01:00:00", None, datetime(2026, 1, 2, 0, 0, 0, 1), 1, False),
            (Decimal(10), "09:59:59.5", date(2026, 1, 2), datetime(2026, 1, 2), 2, False),
            (Decimal(2**64 - 1), "100:00:00", date(9999, 12, 31), datetime(2026, 1, 1), 3, False),
            (None, None, None, None, None, True),
        ],
        "`a.n` decimal(20,0), t string, d date, m timestamp_ntz, i int, bad boolean",
    )

    def found(*limits: tuple[str, Any, str]) -> list[int | None]:
        asked = [Limit(name, Bound(name, kind, text)) for name, kind, text in limits]
        return [row["i"] for row in within(rows, columns, asked).collect()]

    # What is no row of the target's is known to be none of its keys, and is told of.
    assert found() == [1, 2, 3, None]
    assert found(("a.n", ">", "9"), ("a.n", "<", "18446744073709551615")) == [2, None]
    assert found(("a.n", "=", "18446744073709551615")) == [3, None]
    assert found(("t", ">=", "-01:00:00"), ("t", "<=", "10:00:00")) == [1, 2, None]
    assert found(("t", ">", "09:59:59.5")) == [3, None]
    other = rows.withColumn("t", F.lit("no time"))
    assert within(other.where("NOT bad"), columns, [Limit("t", Bound("t", ">", "00:00:00"))]).isEmpty()
    # A date that no calendar has is within no bounds.
    assert found(("d", "<", "9999-12-31")) == [2, None]
    assert found(("m", ">", "2026-01-02 00:00:00")) == [1, None]
    assert within(rows, columns, [Limit("t", Bound("t", "=", "100:00:00"))]).columns == rows.columns


def _verdict(spark: SparkSession, here: list[tuple[Any, ...]], there: list[tuple[Any, ...]]) -> list[Any]:
    """The keys that differ, and in what, by looks at sides that rest."""
    keys = compared(_side(spark, here), _side(spark, there))
    candidates = candidates_of(keys)
    for _ in range(2):
        candidates = looked_at_source(candidates, _side(spark, here, detailed=True)).localCheckpoint()
        candidates = looked_at_target(candidates, _side(spark, there, detailed=True)).localCheckpoint()
    found = []
    for row in differing(candidates, looks=2).collect():
        columns = None
        if row["at_source"] and row["at_target"]:
            both = zip(row["of_source"]["columns"], row["of_target"]["columns"], strict=True)
            columns = [at for at, (one, other) in enumerate(both) if one != other]
        found.append((tuple(row["key"]), row["at_source"], row["at_target"], columns))
    return sorted(found, key=repr)


def test_which_keys_differ_and_in_which_columns(spark: SparkSession) -> None:
    """Values are compared, and not their spelling; a NULL by its place; and how many rows have a key."""
    here, there = [_row("same")], [_row("same", z="1.5", j='{"a":null,"b":1}')]
    expected: list[tuple[tuple[str, str], bool, bool, list[int] | None]] = []
    others = {"x": 2, "y": Decimal("1.4"), "z": "1.51", "j": '{"b": 1, "a": 0}'}
    for at, (name, value) in enumerate(others.items()):
        for other in (value, None):
            key = f"{name} {other}"
            here.append(_row(key))
            there.append(_row(key, **{name: other}))
            expected.append(((key, "01"), True, True, [at]))
    here.append(_row("nulls", y=None, z="1", j=None))
    there.append(_row("nulls", x=None, z=None, j="1"))
    expected.append((("nulls", "01"), True, True, [0, 1, 2, 3]))
    here += [_row("source alone"), _row("twice")]
    there += [_row("target alone"), _row("twice"), _row("twice")]
    expected.append((("source alone", "01"), True, False, None))
    expected.append((("target alone", "01"), False, True, None))
    expected.append((("twice", "01"), True, True, []))
    assert _verdict(spark, here, there) == sorted(expected, key=repr)
    counts = counts_of(compared(_side(spark, here), _side(spark, there)))
    assert counts == (len(here), len(there), 1)


_VERSIONS: Final[tuple[Version, ...]] = (None, 1, 2, 3)


def test_looks_follow_the_law(spark: SparkSession) -> None:
    """Every course of two looks after the first, each a key of its own."""
    courses = {
        f"{number}": course
        for number, course in enumerate(product(_VERSIONS, repeat=4))
        if course[0] != course[1]
    }

    def side(at: int) -> DataFrame:
        rows = [(key, course[at]) for key, course in courses.items() if course[at] is not None]
        frame = spark.createDataFrame(rows, "k string, v int")
        columns = (ComparedColumn("k", "string", True), ComparedColumn("v", "int", False))
        return digests(frame, columns, detailed=True)

    candidates = candidates_of(compared(side(0), side(1)))
    once = looked_at_target(looked_at_source(candidates, side(2)), side(3)).localCheckpoint()
    twice = looked_at_target(looked_at_source(once, side(2)), side(3))
    for frame, looks in ((once, 1), (twice, 2)):
        found = {row["key"][0]: row["agreed"] for row in frame.collect()}
        expected = dict(_after(courses, looks))
        assert found == expected
        settled = [courses[key] for key, agreed in expected.items() if agreed >= 1]
        verdict = verdict_of(frame, looks=1)
        assert verdict == Verdict(
            different=sum(None not in one[2:] for one in settled),
            only_at_source=sum(one[3] is None for one in settled),
            only_at_target=sum(one[2] is None for one in settled),
            open=len(expected) - len(settled),
        )


def _after(courses: dict[str, tuple[Version, ...]], looks: int) -> Iterator[tuple[str, int]]:
    for key, (s, t, s2, t2) in courses.items():
        found: Candidate | None = Candidate(s, t)
        for _ in range(looks):
            found = found and next_look(found, s2, t2)
        if found is not None:
            yield key, found.agreed


def test_json_has_one_spelling() -> None:
    """``tests/properties/test_canonical_json.py`` has the law."""
    assert canonical_json('{"b":1e2,"a":[1.50, "é"]}') == canonical_json('{ "a" : [1.5,"\\u00e9"], "b":100}')
    assert canonical_json("9007199254740993") != canonical_json("9007199254740992")
    assert canonical_json("no json") == "no json"
    assert canonical_json(None) is None


# Of a compared type and a spelling: texts of values with the type that a side has, in classes of equal ones.
_CLASSES: Final[tuple[tuple[ComparedColumn, tuple[tuple[str, ...], ...]], ...]] = (
    (
        ComparedColumn("double", "double", False),
        (
            ("0D", "-0D", "CAST(-0.0 AS FLOAT)"),
            ("CAST('NaN' AS DOUBLE)", "CAST('NaN' AS FLOAT)"),
            ("CAST('Infinity' AS DOUBLE)",),
            ("0.1D",),
            ("CAST(0.1 AS FLOAT)",),
            ("0.10000000000000002D",),
            ("CAST(NULL AS DOUBLE)",),
        ),
    ),
    (
        ComparedColumn("decimal", "decimal(38,2)", False),
        (
            ("1.5BD", "1.50BD", "'1.5'", "'1.500'", "CAST(1.5 AS decimal(38,10))"),
            ("1.51BD", "'1.51'"),
            ("CAST(1.505 AS decimal(38,10))", "1.505BD"),
            ("'infinity'",),
            ("CAST(NULL AS decimal(38,10))", "CAST(NULL AS string)"),
            ("0BD", "'0'", "'-0.000'"),
        ),
    ),
    (
        ComparedColumn("digits", "string", False, "digits"),
        (
            ("'100'", "'100.000'"),
            ("'1'", "'1.0'"),
            ("'00:00:00'", "'-00:00:00.000000'"),
            ("'0'", "'-0.00'"),
            ("'-00:00:00.5'", "'-00:00:00.500000'"),
            ("'NaN'",),
            ("''",),
            ("'NULL'",),
            ("CAST(NULL AS STRING)",),
        ),
    ),
    (
        ComparedColumn("json", "string", False, "json"),
        (
            ("'1'", "'1.0'"),
            ("'null'", "' null'"),
            ("""'"null"'""",),
            ("CAST(NULL AS STRING)",),
            ("'12345678901234567890.123'",),
            ("'12345678901234567890.124'",),
            ("""'{"a":1,"a":2}'""",),
            ("""'{"a":2}'""",),
        ),
    ),
    (
        ComparedColumn("text", "string", False),
        (("'NULL'",), ("'null'",), ("''",), ("' '",), ("'a,b'",), ("'b,a'",), ("CAST(NULL AS STRING)",)),
    ),
    (
        ComparedColumn("binary", "binary", False),
        (("x''",), ("x'00'",), ("x'0000'",), ("x'01'",), ("CAST(NULL AS BINARY)",)),
    ),
    (
        ComparedColumn("day", "date", False),
        (
            ("DATE'2026-01-02'", "'2026-01-02'"),
            ("DATE'0001-01-01'",),
            ("'infinity'",),
            ("'-infinity'",),
            ("'0044-03-15 BC'",),
            ("'0000-00-00'",),
            ("CAST(NULL AS DATE)", "CAST(NULL AS STRING)"),
        ),
    ),
    (
        ComparedColumn("time", "timestamp_ntz", False),
        (
            ("TIMESTAMP_NTZ'2026-01-02 03:04:05'", "'2026-01-02 03:04:05.000000'"),
            ("TIMESTAMP_NTZ'2026-01-02 03:04:05.000001'",),
            ("'infinity'",),
            ("CAST(NULL AS TIMESTAMP_NTZ)",),
        ),
    ),
    (
        ComparedColumn("number", "int", False),
        (("1", "'1'"), ("CAST(5000000000 AS BIGINT)",), ("'x'",), ("CAST(NULL AS INT)",)),
    ),
)


@pytest.mark.parametrize(("column", "classes"), _CLASSES, ids=lambda one: getattr(one, "name", ""))
def test_two_values_are_equal_if_and_only_if_they_are_one_value(
    spark: SparkSession, column: ComparedColumn, classes: tuple[tuple[str, ...], ...]
) -> None:
    """Of the value's own column, with its row, and beside a NULL; a key that is odd is no other key."""
    values = [(number, text) for number, texts in enumerate(classes) for text in texts]
    found: dict[int, list[tuple[Any, ...]]] = {}
    for number, text in values:
        frame = spark.sql(f"SELECT 1 AS k, {text} AS v, CAST(NULL AS INT) AS n")
        key = ComparedColumn("k", "int", True)
        last = ComparedColumn("n", "int", False)
        (row,) = digests(frame, (key, column, last), detailed=True).collect()
        keyed = digests(frame.select("v"), (column._replace(key=True),)).collect()[0]
        found.setdefault(number, []).append((row["r0"], row["r1"], *row["columns"], keyed["h0"], keyed["h1"]))
    assert all(len({*states}) == 1 for states in found.values())
    assert len({states[0] for states in found.values()}) == len(classes)
