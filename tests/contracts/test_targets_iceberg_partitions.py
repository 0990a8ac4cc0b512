"""Batches that partitioned Iceberg tables take as files, and Iceberg's own transforms beside ours."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pytest

from tests.columns import ID
from tests.contracts.iceberg_disturbed import compact, state_of
from tests.contracts.partitioned_rows import SHAPE as ODD
from tests.contracts.partitioned_rows import TYPED, moves, odd_rows
from tests.contracts.targets_bed import (
    AMOUNT,
    NAME,
    TABLE,
    Bed,
    applied_alike,
    merged,
    progress,
    row,
    shape,
    sql,
)
from tests.contracts.test_targets_iceberg_files import OTHER, PLACE, reason
from tests.full import FULL
from tidesink.events import Column, ColumnType
from tidesink.sinks.targets.iceberg.jvm import JvmTable
from tidesink.sinks.targets.iceberg.partitions import transformed
from tidesink.sinks.targets.iceberg.table import IcebergTable, IcebergTarget
from tidesink.typemap.target_schema import TargetSchema
from tidesink.typemap.values import DECIMAL_CONTEXT

# ruff: noqa: S608
pytestmark = pytest.mark.spark

TERMS: Final[Mapping[str, Sequence[str]]] = {
    "text": ("identity", "bucket[7]", "truncate[3]"),
    "day": ("identity", "bucket[7]", "year", "month", "day"),
    "noted": ("identity", "bucket[7]", "year", "month", "day", "hour"),
    "at": ("identity", "bucket[7]", "year", "month", "day", "hour"),
    "price": ("identity", "bucket[7]", "truncate[500]"),
    "number": ("identity", "bucket[7]", "truncate[100]"),
    "small": ("identity", "bucket[7]", "truncate[100]"),
}


def made(bed: Bed, given: TargetSchema, by: str = "") -> IcebergTable:
    """A table that was made by hand, and claimed."""
    assert isinstance(bed.target, IcebergTarget)
    columns = ", ".join(
        f"`{column.name}` {column.spark}{' NOT NULL' if column.key else ''}" for column in given.columns
    )
    place = bed.target.location_of(given.source)
    sql(bed, f"CREATE NAMESPACE IF NOT EXISTS {place.rpartition('.')[0]}")
    properties = ", ".join(f"'write.{kind}.mode' = 'merge-on-read'" for kind in ("merge", "update", "delete"))
    parts = f"PARTITIONED BY ({by})" if by else ""
    sql(
        bed,
        f"CREATE TABLE {place} ({columns}) USING iceberg {parts} TBLPROPERTIES ('format-version' = '2', "
        f"{properties})",
    )
    table = bed.target.open_table(given, pipeline="shop")
    assert isinstance(table, IcebergTable)
    table.claim()
    return table


def partition_by(bed: Bed, table: IcebergTable, terms: Sequence[tuple[str, str]]) -> None:
    """Give a table partition fields as the metadata spell them."""
    assert bed.spark is not None
    jvm = JvmTable(bed.spark, table.location)
    update, expressions = jvm.state().table.updateSpec(), jvm.java.expressions.Expressions
    for column, transform in terms:
        name, _, width = transform.rstrip("]").partition("[")
        build = getattr(expressions, "ref" if name == "identity" else name)
        update = update.addField(build(column, int(width)) if width else build(column))
    update.commit()


def partitions(bed: Bed, table: IcebergTable, *, content: int = 0) -> list[Any]:
    """The partitions of the files of a kind of what readers see."""
    found = sql(bed, f"SELECT partition, spec_id FROM {table.location}.files WHERE content = {content}")
    return sorted(((one["spec_id"], str(one["partition"])) for one in found), key=str)


@pytest.mark.parametrize("at", [0, pytest.param(1, marks=FULL), pytest.param(2, marks=FULL)])
def test_partitions_are_as_spark_writes_them(iceberg: Bed, at: int) -> None:
    """Spark's own INSERT of the rows makes another table; at each turn other transforms of all columns."""
    # Iceberg has no decimal that is truncated to more digits than its column has.
    rows = [one for one in odd_rows() if one["price"] is None or one["price"] > -(10**9)]
    tables = [made(iceberg, replace(ODD, table=name)) for name in (TABLE, OTHER)]
    terms = [(column, known[at % len(known)]) for column, known in TERMS.items()]
    for table in tables:
        partition_by(iceberg, table, terms)
    ours, theirs = tables
    batch = iceberg.batch(ODD, rows)
    assert reason(iceberg, ours, batch) is None
    ours.apply(batch, progress(1, 1))
    assert iceberg.rows() == rows
    sql(iceberg, f"INSERT INTO {theirs.location} SELECT * FROM {ours.location}")
    assert partitions(iceberg, ours) == partitions(iceberg, theirs)
    for column in TYPED:
        same = f"(SELECT {column.name} FROM {theirs.location} WHERE id = 3)"
        found = sql(iceberg, f"SELECT id FROM {ours.location} WHERE {column.name} = {same}")
        value = rows[3][column.name]
        assert {one["id"] for one in found} == {one["id"] for one in rows if one[column.name] == value}
    assert len(sql(iceberg, f"SELECT id FROM {ours.location} WHERE text = 'a b' AND day = '2024-02-29'")) == 1


def test_any_stream_leaves_what_merge_leaves(iceberg: Bed) -> None:
    """Partitions by a column of the key, and by one that changes; then another spec, and packed files."""
    shapes = [shape(ID, PLACE, NAME, AMOUNT, table=name) for name in (TABLE, OTHER)]
    tables = [made(iceberg, one, "name, bucket(2, id), truncate(1, place)") for one in shapes]
    for number, (rows, gone, wanted) in enumerate(moves(5), 1):
        if number == 3:
            partition_by(iceberg, tables[0], [("amount", "identity")])
        if number == 5:
            compact(iceberg)
        batches = [iceberg.batch(one, rows, gone) for one in shapes]
        assert reason(iceberg, tables[0], batches[0]) is None
        applied_alike(tables, (batches[0], merged(batches[1])), number)
        for name in (TABLE, OTHER):
            assert sorted(iceberg.read(name), key=lambda r: (r["id"], r["place"])) == wanted
        if number == 4:  # positions are of the partitions of old files, under the spec of each
            marked = partitions(iceberg, tables[0], content=1)
            assert {spec for spec, _ in marked} == {0, 1}
            assert {*marked} <= {*partitions(iceberg, tables[0])}
    for text in (None, "x/y", "z"):
        quoted = "NULL" if text is None else f"'{text}'"
        found = sql(iceberg, f"SELECT * FROM {tables[0].location} WHERE name <=> {quoted}")
        assert len(found) == sum(one["name"] == text for one in wanted)


@FULL
def test_files_under_a_spec_that_was_replaced_are_known_until_its_column_goes(iceberg: Bed) -> None:
    """Iceberg 1.10 has no type for such a partition then: its own MERGE fails, too."""
    given = shape()
    table = made(iceberg, shape(ID, NAME, AMOUNT), "amount")
    table.apply(iceberg.batch(given, [row(at, amount=at) for at in range(3)]), progress(1, 1))
    state_of(iceberg, table).table.updateSpec().removeField("amount").commit()
    batch = iceberg.batch(given, [row(1, "b")], [{"id": 2}])
    assert reason(iceberg, table, batch) is None
    assert table.apply(batch, progress(1, 2)).updated == 1
    sql(iceberg, f"ALTER TABLE {table.location} DROP COLUMN amount")
    narrow = shape(ID, NAME)
    batch = iceberg.batch(narrow, [{"id": 1, "name": "c"}])
    again = iceberg.reopen().open_table(narrow, pipeline="shop")
    assert isinstance(again, IcebergTable)
    again.claim()
    assert reason(iceberg, again, batch) == "the partition field amount is based on a column that was dropped"


@FULL
def test_floats_are_merged(iceberg: Bed) -> None:
    given = shape(ID, Column("share", ColumnType("double")))
    table = made(iceberg, given, "share")
    batch = iceberg.batch(given, [{"id": 1, "share": 0.5}])
    assert reason(iceberg, table, batch) == "the partition field share is based on a double column"
    table.apply(batch, progress(1, 1))
    assert iceberg.rows() == [{"id": 1, "share": 0.5}]


DICE: Final = random.Random(5)


def integers(bits: int) -> list[int]:
    """Of any size, and the limits."""
    limits = [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, 0, -1]
    return limits + [
        DICE.randrange(-(1 << DICE.randrange(1, bits)), 1 << DICE.randrange(1, bits)) for _ in range(300)
    ]


def decimals(digits: int, scale: int) -> pa.Array:
    kind = pa.decimal128(digits, scale)
    numbers = [DICE.randrange(-(10**size), 10**size) for size in range(1, digits) for _ in range(10)]
    return pa.array(
        [
            Decimal(number).scaleb(-scale, DECIMAL_CONTEXT)
            for number in [0, -1, 127, 128, -128, -129, *numbers]
        ],
        kind,
    )


def texts() -> list[str]:
    return [
        "",
        *("".join(DICE.choices("aß\u6570\U0001f600 ", k=size)) for size in range(40) for _ in range(8)),
    ]


MICROS: Final = pa.array([DICE.randrange(-(10**17), 10**18) for _ in range(300)] + [-1, 0], pa.int64())
VALUES: Final[Mapping[str, tuple[pa.Array, tuple[str, ...]]]] = {
    "int": (pa.array(integers(32), pa.int32()), ("bucket", "truncate")),
    "long": (pa.array(integers(64), pa.int64()), ("bucket", "truncate")),
    "decimal(9,2)": (decimals(9, 2), ("bucket", "truncate")),
    "decimal(38,10)": (decimals(38, 10), ("bucket", "truncate")),
    "string": (pa.array(texts()), ("bucket", "truncate")),
    "binary": (pa.array([one.encode() for one in texts()]), ("bucket", "truncate")),
    "date": (
        pa.array([DICE.randrange(-1_000_000, 4_000_000) for _ in range(300)], pa.int32()).cast(pa.date32()),
        ("bucket", "year", "month", "day"),
    ),
    "timestamp_ntz": (MICROS.cast(pa.timestamp("us")), ("bucket", "year", "month", "day", "hour")),
    "timestamp": (MICROS.cast(pa.timestamp("us", "UTC")), ("bucket", "year", "month", "day", "hour")),
}


def test_transforms_are_as_icebergs_own(iceberg: Bed) -> None:
    assert iceberg.spark is not None
    for kind, (values, names) in VALUES.items():
        column = pa.chunked_array([values, pa.nulls(1, values.type)])
        frame = iceberg.spark.createDataFrame(pa.table({"n": range(len(column)), "v": column}))
        terms = [
            (name, width)
            for name in names
            for width in ((1, 7, 1000) if name in ("bucket", "truncate") else (0,))
        ]
        calls = [
            f"lake.system.{name}({width}, v)" if width else f"lake.system.{name}s(v)" for name, width in terms
        ]
        found = frame.selectExpr("n", *calls).toArrow().sort_by("n")
        for at, (name, width) in enumerate(terms, 1):
            ours = transformed(column, f"{name}[{width}]" if width else name)
            theirs = found.column(at).cast(ours.type)
            wrong = [one for one in zip(column, ours, theirs, strict=True) if not one[1].equals(one[2])]
            assert wrong == [], (kind, name, width)
