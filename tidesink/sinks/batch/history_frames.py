"""The law of ``history`` on frames: what a batch changes in the stored versions of its keys.

=========  =================================================================================
``_op``    what is to be done with the row of ``key``
=========  =================================================================================
``begin``  write the version ``after``; the mark of a delete may stand in its place
``end``    a stored version ends at ``_to``
``mark``   write the mark of a delete that ended no version
``forget`` remove such a mark: the delete ends a version that came later
null       nothing: an event that needs no row of its own, or one that is stored already
=========  =================================================================================

``key`` is a struct of the key columns and ``FROM_COLUMN``, ``_to`` the end, null for none. Rows with and
without an ``_op`` are counted by ``count``, in one job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import Column, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.sinks.batch.modes import FROM_COLUMN, TO_COLUMN
from tidesink.sinks.batch.records import UPSERT
from tidesink.typemap.target_schema import TableShape

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


BEGIN: Final = "begin"
END: Final = "end"
MARK: Final = "mark"
FORGET: Final = "forget"


class Counts(NamedTuple):
    """What a difference holds, in rows: what is to be done, and what became of the batch's events.

    ``begun`` of which ``replaced`` stand in a mark's place, ``ended``, ``marked`` and ``forgotten`` are rows
    to write or remove; ``ends``, ``absent`` and ``stale`` are of the events, as ``history.Difference`` says.
    """

    begun: int = 0
    replaced: int = 0
    ended: int = 0
    marked: int = 0
    forgotten: int = 0
    ends: int = 0
    absent: int = 0
    stale: int = 0

    @property
    def rows(self) -> tuple[int, int, int]:
        """Rows that the target inserts, updates and deletes."""
        return self.begun - self.replaced + self.marked, self.ended + self.replaced, self.forgotten


def difference_frame(
    batch: DataFrame,
    shape: TableShape,
    *,
    stored: DataFrame | None = None,
    types: Mapping[str, str] | None = None,
) -> DataFrame:
    """What a batch of a history changes; lazy.

    ``stored`` has the key columns, ``FROM_COLUMN`` and ``TO_COLUMN`` of the rows without an end, or with one
    not before the batch's first event; None for a table without rows. ``types`` are the target's types
    of the key columns, where they may differ from the shape's.
    """
    names = [column.name for column in shape.key_columns]
    keys = [f"key_{number}" for number in range(len(names))]
    events = _events(batch, shape, keys, types or {})
    moments = events.repartition(*keys) if stored is None else _joined(events, stored, names, keys)
    timeline = Window.partitionBy(*keys).orderBy("at")
    ordered = moments.withColumns(
        {
            "next_at": F.lead("at").over(timeline),
            "writes": F.greatest("stored", "sent") == 1,
            "before": F.coalesce(F.lag(F.greatest("stored", "sent")).over(timeline) == 1, F.lit(False)),
        }
    )
    key = [F.col(column).alias(name) for column, name in zip(keys, names, strict=True)]
    return ordered.select(
        _operation().alias("_op"),
        F.struct(*key, F.col("at").alias(FROM_COLUMN)).alias("key"),
        "after",
        F.when(F.col("writes"), F.col("next_at")).otherwise(F.col("at")).alias("_to"),
        "mark",
        "stored",
        "sent",
        "before",
    )


def count(difference: DataFrame) -> Counts:
    """What a difference holds; one job."""
    op, stored, sent = (F.col(name) for name in ("_op", "stored", "sent"))
    deleted = (sent == 0) & stored.isNull()
    found = difference.agg(
        F.count_if(op == BEGIN).alias("begun"),
        F.count_if((op == BEGIN) & F.col("mark")).alias("replaced"),
        F.count_if(op == END).alias("ended"),
        F.count_if(op == MARK).alias("marked"),
        F.count_if(op == FORGET).alias("forgotten"),
        F.count_if(deleted & F.col("before")).alias("ends"),
        F.count_if(deleted & ~F.col("before")).alias("absent"),
        F.count_if(stored >= sent).alias("stale"),
    ).collect()[0]
    return Counts(**found.asDict())


def _events(batch: DataFrame, shape: TableShape, keys: Sequence[str], types: Mapping[str, str]) -> DataFrame:
    """The batch's events, of each key one a moment; ``sent`` is 1 for a write and 0 for a delete."""
    values = [
        F.col("key").getField(column.name).cast(types.get(column.name, column.spark)).alias(name)
        for name, column in zip(keys, shape.key_columns, strict=True)
    ]
    return batch.select(
        *values,
        F.col("_commit_ts").alias("at"),
        (F.col("_op") == UPSERT).cast("int").alias("sent"),
        "after",
        F.lit(None).cast("int").alias("stored"),
        F.lit(False).alias("mark"),
        F.lit(None).cast("bigint").alias("until"),
    )


def _joined(events: DataFrame, stored: DataFrame, names: Sequence[str], keys: Sequence[str]) -> DataFrame:
    """The events of a batch and those that the stored rows of its keys tell of, one a key and moment.

    They are spread by key alone, so that the windows after it move nothing again.
    """
    named = [F.col(f"`{name.replace('`', '``')}`").alias(key) for name, key in zip(names, keys, strict=True)]
    spans = stored.select(*named, F.col(FROM_COLUMN).alias("start"), F.col(TO_COLUMN).alias("until"))
    touched = spans.join(events.select(*keys), list(keys), "left_semi")
    reported = touched.select(*keys, F.explode(_reported()).alias("reported")).select(*keys, "reported.*")
    both = events.unionByName(reported, allowMissingColumns=True)
    return (
        both.repartition(*keys)
        .groupBy(*keys, "at")
        .agg(
            F.max("sent").alias("sent"),
            F.first("after", ignorenulls=True).alias("after"),
            F.max("stored").alias("stored"),
            F.max("mark").alias("mark"),
            F.max("until").alias("until"),
        )
    )


def _reported() -> Column:
    """The events that one stored row tells of: a version's write, and the delete it may have ended with."""
    start, until = F.col("start"), F.col("until")
    mark = F.coalesce(start == until, F.lit(False))
    begin = F.struct(
        start.alias("at"),
        (~mark).cast("int").alias("stored"),
        mark.alias("mark"),
        F.when(~mark, until).alias("until"),
    )
    end = F.struct(
        until.alias("at"),
        F.lit(0).alias("stored"),
        F.lit(False).alias("mark"),
        F.lit(None).cast("bigint").alias("until"),
    )
    return F.when(mark | until.isNull(), F.array(begin)).otherwise(F.array(begin, end))


def _operation() -> Column:
    writes, before, mark = F.col("writes"), F.col("before"), F.col("mark")
    known = F.coalesce(F.col("stored") == 1, F.lit(False))
    moved = ~F.col("until").eqNullSafe(F.col("next_at"))
    return (
        F.when(writes & ~known, BEGIN)
        .when(writes & moved, END)
        .when(~writes & mark & before, FORGET)
        .when(~writes & ~mark & ~before, MARK)
    )
