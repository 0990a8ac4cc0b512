"""What the target contracts run on: batches from plain rows, and a way to read each target back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tests.columns import ID
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.sinks.decode.target_rows import key_type, row_type
from tidesink.sinks.spark.frames import SparkRows
from tidesink.sinks.state.progress import PartitionProgress, Progress, TopicProgress
from tidesink.sinks.targets.base import (
    SEQUENCE_COLUMN,
    SEQUENCE_DDL,
    SOFT_DELETE_COLUMN,
    ApplyOptions,
    ApplyResult,
    DeleteMode,
    ReducedBatch,
    ReducedRow,
    RowSequence,
    Target,
    TargetTable,
)
from tidesink.sinks.targets.lake.rows import sequence_type
from tidesink.typemap.target_schema import TargetSchema, shape_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLE = TableId("shop", "orders")
NAME = Column("name", ColumnType("varchar", length=20))
AMOUNT = Column("amount", ColumnType("int"))

Reader = Callable[[TableId], list[dict[str, Any]]]


def shape(*columns: Column, table: TableId = TABLE) -> TargetSchema:
    """A shape of some columns, by default the key, a name and an amount."""
    return shape_of(TableSchema(table, columns or (ID, NAME, AMOUNT)))


def row(number: object, name: str | None = "a", amount: int | None = 1) -> dict[str, Any]:
    """A row of that shape."""
    return {"id": number, "name": name, "amount": amount}


def progress(epoch: int, batch: int, *, table: TableId = TABLE, pipeline: str = "shop") -> Progress:
    """Progress which says batch ``batch``: ten offsets a batch."""
    at = PartitionProgress(batch * 10, batch * 10, 400 + batch, 401 + batch)
    topics = {"shop_orders": TopicProgress("shop_orders", "topic-id", {0: at})}
    return Progress(table, pipeline, epoch, batch, topics, commit_ts=400 + batch)


@dataclass(frozen=True)
class Bed:
    """A target under test, with what differs between targets in a test.

    ``packs``: batches have the payloads that a worker's have, for targets that take them.
    """

    name: str
    target: Target
    read: Reader
    reopen: Callable[[], Target]
    spark: SparkSession | None = None
    packs: bool = False

    @property
    def session(self) -> SparkSession:
        """The session of a target that Spark writes."""
        assert self.spark is not None
        return self.spark

    @property
    def keeps_rows(self) -> bool:
        """False for a target that passes changes on as messages: the bed's ``read`` plays their reader."""
        return "rows" in self.target.capabilities.features

    def did(self, result: ApplyResult, expected: tuple[int, int, int, int]) -> bool:
        """Whether a commit says these rows inserted, updated, deleted and absent, as far as it can tell."""
        if self.keeps_rows:
            return (result.inserted, result.updated, result.deleted, result.absent) == expected
        return (result.upserted, result.deleted + result.absent) == (sum(expected[:2]), sum(expected[2:]))

    def rows(self, table: TableId = TABLE, *, by: str = "id") -> list[dict[str, Any]]:
        """A table's rows in the order of a column."""
        return sorted(self.read(table), key=lambda row: row[by])

    def batch(
        self,
        shape: TargetSchema,
        upserts: Sequence[dict[str, Any]] = (),
        deletes: Sequence[dict[str, Any]] = (),
        *,
        delete_mode: DeleteMode = "hard",
        kept: tuple[str, ...] = (),
        after_delete: bool = False,
        at: Sequence[int] = (),
        on_delete: Mapping[str, Any] | None = None,
    ) -> ReducedBatch:
        """A batch of whole rows to upsert and keys to delete; upserts leave out the ``kept`` columns.

        ``on_delete``: what deletes write besides their mark.
        ``at``: the commit ts of each upsert and then of each delete, for a batch in the source's order.
        """
        rows = [
            ReducedRow("upsert", {k: row[k] for k in shape.keys}, row, kept, after_delete) for row in upserts
        ]
        gone = None if on_delete is None else {**{c.name: None for c in shape.columns}, **on_delete}
        rows += [ReducedRow("delete", key, gone) for key in deletes]
        rows = (
            [
                row._replace(sequence=RowSequence((ts,), row.op == "upsert", 0, number, 0))
                for number, (row, ts) in enumerate(zip(rows, at, strict=True))
            ]
            if at
            else rows
        )
        return ReducedBatch(
            shape,
            len(upserts),
            len(deletes),
            make_frame=partial(frame_of, self.spark, shape, rows) if self.spark else None,
            rows=None if self.spark else rows,
            payloads=payloads_of(self.spark, shape, rows) if self.spark and self.packs else None,
            key_range=key_range(shape, rows),
            keeps=bool(kept),
            sequenced=bool(at),
            how=ApplyOptions(delete_mode=delete_mode, on_delete=tuple(on_delete or ())),
        )

    def living(self, table: TableId = TABLE) -> list[dict[str, Any]]:
        """The rows a reader is meant to see of a table in the source's order, without its own columns."""
        own = (SOFT_DELETE_COLUMN, SEQUENCE_COLUMN)
        return [
            {name: value for name, value in row.items() if name not in own}
            for row in self.rows(table)
            if not row[SOFT_DELETE_COLUMN]
        ]


def spark_rows(frame: DataFrame) -> list[dict[str, Any]]:
    """A frame's rows, binary as bytes: Spark gives it as bytearray."""
    return [
        {
            name: bytes(value) if isinstance(value, bytearray) else value
            for name, value in row.asDict().items()
        }
        for row in frame.collect()
    ]


def sql(bed: Bed, text: str) -> list[Any]:
    """What a Spark statement of another program answers."""
    assert bed.spark is not None
    return bed.spark.sql(text).collect()


def key_range(shape: TargetSchema, rows: Sequence[ReducedRow]) -> dict[str, tuple[Any, Any]]:
    """The least and greatest value of each key column."""
    if not rows:
        return {}
    values = {name: [row.key[name] for row in rows] for name in shape.keys}
    return {name: (min(column), max(column)) for name, column in values.items()}


def applied_alike(
    tables: Sequence[TargetTable],
    batches: Sequence[ReducedBatch],
    number: int,
    *,
    epochs: Sequence[int] = (1, 1),
) -> ApplyResult:
    """What batches with the same rows did to two tables, which must be the same, as the first one says it."""
    first, second = (
        table.apply(batch, progress(epoch, number, table=batch.shape.table))
        for table, batch, epoch in zip(tables, batches, epochs, strict=True)
    )
    assert replace(first, version="") == replace(second, version="")
    return first


def merged(batch: ReducedBatch) -> ReducedBatch:
    """A batch that a lake takes by MERGE: it has no payloads."""
    return replace(batch, payloads=None)


def frame_of(spark: SparkSession, shape: TargetSchema, rows: Sequence[ReducedRow]) -> Any:
    """The frame a worker would hand to a target."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import (
        ArrayType,
        BooleanType,
        DataType,
        IntegerType,
        LongType,
        StringType,
        StructField,
        StructType,
    )

    after = StructType.fromDDL(shape.ddl)
    key = StructType.fromDDL(shape.key_ddl)
    schema = StructType(
        [
            StructField("_op", StringType()),
            StructField("key", key),
            StructField("after", after),
            StructField("_kept", ArrayType(StringType())),
            StructField("_after_delete", BooleanType()),
            StructField("_topic", StringType()),
            StructField("_partition", IntegerType()),
            StructField("_offset", LongType()),
            StructField("_seq", DataType.fromDDL(SEQUENCE_DDL)),
            *(StructField("_commit_ts", LongType()) for row in rows[:1] if row.commit_ts is not None),
        ]
    )
    # A small Arrow table is a relation of the plan's own; rows of Python are a job of Python workers.
    table = pa.Table.from_pylist(_values(rows), to_arrow_schema(schema))
    return spark.createDataFrame(table, schema).persist()


def payloads_of(spark: SparkSession, shape: TargetSchema, rows: Sequence[ReducedRow]) -> SparkRows:
    """The rows as a worker's tasks pack them, in Spark."""
    payloads = spark.createDataFrame(packed_rows(shape, rows), "payload binary, error binary")
    return SparkRows(payloads.persist())


def packed_rows(shape: TargetSchema, rows: Sequence[ReducedRow]) -> pa.Table:
    """The rows as a worker's tasks pack them: two payloads, and one without rows."""
    schema = pa.schema(
        [
            ("_op", pa.string()),
            ("key", key_type(shape)),
            ("after", row_type(shape)),
            ("_kept", pa.list_(pa.string())),
            ("_after_delete", pa.bool_()),
            ("_topic", pa.string()),
            ("_partition", pa.int32()),
            ("_offset", pa.int64()),
            ("_seq", sequence_type([(name, None) for name in RowSequence._fields])),
            ("_commit_ts", pa.int64()),
        ]
    )
    values, half = _values(rows), len(rows) // 2
    packed = [_packed(pa.Table.from_pylist(part, schema)) for part in (values[:half], values[half:])]
    types = pa.schema([("payload", pa.binary()), ("error", pa.binary())])
    return pa.table([[*packed, None], [None] * 3], schema=types)


def _values(rows: Sequence[ReducedRow]) -> list[dict[str, Any]]:
    return [
        {
            "_op": row.op,
            "key": dict(row.key),
            "after": None if row.after is None else dict(row.after),
            "_kept": list(row.kept) or None,
            "_after_delete": row.after_delete,
            "_topic": "shop_orders",
            "_partition": 0,
            "_offset": at,
            "_seq": row.sequence and _sequence(row.sequence),
            "_commit_ts": row.commit_ts,
        }
        for at, row in enumerate(rows)
    ]


def _packed(rows: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(out.getvalue())


def _sequence(sequence: RowSequence) -> dict[str, Any]:
    return sequence._asdict() | {"source": [*sequence.source]}


def lenient(batch: ReducedBatch) -> ReducedBatch:
    """The batch, with NULL for left out values that are not stored."""
    return replace(batch, how=replace(batch.how, lenient=True))
