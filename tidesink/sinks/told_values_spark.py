"""Values a row leaves out, from the rows of its key before it in the batch: a part of the reduction.

A source may not send a value that did not change (Postgres' TOAST). The last row of a key then has it
from the latest row before it that does; a delete in between ends the search.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.sinks.batch.records import DELETE

STRINGS: Final = "array<string>"
_LAST_DELETE: Final = "last_delete"


def null(ddl: str) -> Column:
    """A null of a type."""
    return F.lit(None).cast(ddl)


class ToldValues(NamedTuple):
    """A table's columns, those among them that may be left out, and what a key's events are ordered by."""

    columns: Sequence[str]
    names: Sequence[str]
    order: Column

    def aggregates(self) -> Iterator[Column]:
        """For each column the latest value that was sent, and its place in the order."""
        deleted = F.col("_op") == DELETE
        yield F.max_by(F.col("_kept"), self.order).alias("left_out")
        yield F.max(F.when(deleted, self.order)).alias(_LAST_DELETE)
        for number, name in enumerate(self.names):
            sent = ~deleted & ~F.coalesce(F.array_contains("_kept", name), F.lit(False))
            value = F.struct(F.col("after").getField(name).alias("value"), self.order.alias("at"))
            yield F.max_by(value, F.when(sent, self.order)).alias(_told(number))

    def completed(self, grouped: DataFrame) -> DataFrame:
        """The groups, their row with what was told, and the names of what is still left out."""
        after = F.col("kept").getField("after")
        told = {name: self._is_told(number, name) for number, name in enumerate(self.names)}
        row = F.struct(*(self._value(name, after, told).alias(name) for name in self.columns))
        left = F.array_compact(
            F.array(*(F.when(_is_left_out(name) & ~answer, F.lit(name)) for name, answer in told.items()))
        )
        kept = F.when(after.isNotNull() & (F.size(left) > 0), left)
        return grouped.withColumns(
            {
                "kept": F.col("kept").withField("after", F.when(after.isNotNull(), row)),
                "_kept": kept,
                "_anew": kept.isNotNull() & F.col(_LAST_DELETE).isNotNull(),
            }
        )

    def _value(self, name: str, after: Column, told: Mapping[str, Column]) -> Column:
        own = after.getField(name)
        if name not in told:
            return own
        return F.when(told[name], F.col(_told(self.names.index(name))).getField("value")).otherwise(own)

    def _is_told(self, number: int, name: str) -> Column:
        at = F.col(_told(number)).getField("at")
        since_delete = F.col(_LAST_DELETE).isNull() | (at > F.col(_LAST_DELETE))
        return _is_left_out(name) & at.isNotNull() & since_delete


def _is_left_out(name: str) -> Column:
    return F.coalesce(F.array_contains("left_out", name), F.lit(False))


def _told(number: int) -> str:
    return f"told_{number}"
