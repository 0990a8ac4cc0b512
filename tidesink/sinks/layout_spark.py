"""A layout over a plan's decoded frame: rows by the filter, columns and names as the target has them.

The target holds the rows for which the filter is true. A row for which it is false or null may have been
one before, so it is a delete of its key: what the target holds does not depend on where batches are cut.

**Errors of the filter.** Under ANSI rules a cast, a division or an overflow fails the query, and with it
every row of the batch. No function of Spark's tries a condition, but ``try_to_binary`` tries its whole
argument: its answer is null where, and only where, the condition failed. Spark computes what occurs twice
in a query once, before and outside of that, so the condition stands in a lambda, which is left as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from pyspark.sql.types import BooleanType

from tidesink.errors import ConfigError, FilterError
from tidesink.sinks.batch.decoded_frame import Decode
from tidesink.sinks.batch.records import BAD, DELETE, NO_RULES, UPSERT, EventRules
from tidesink.sinks.decoding_around import ColumnsAround
from tidesink.sinks.metadata_spark import unstamped
from tidesink.sinks.told_values_spark import null
from tidesink.typemap.projection import LaidOut, Layout
from tidesink.typemap.row_filter import RowFilter
from tidesink.typemap.target_schema import TableShape

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ROW: Final = "_row"
_VERDICT: Final = "_verdict"
_FAILED: Final = (
    "the table's filter fails on this row (a cast, a division, an overflow): {text}. Use try_cast, "
    "try_divide and the like, which give null, for rows as this one"
)
_NOT_SENT: Final = (
    "the table's filter ({text}) needs a value that the source did not send, since it did not change. Set "
    "REPLICA IDENTITY FULL on the table, or filter by columns whose values are always sent"
)
_TWO_MEANINGS: Final = (
    "ignore_null_updates: a record of this protocol can leave a value out, which is not the same as NULL, "
    "and the two are not told apart in this version: remove ignore_null_updates"
)
_NAMES: Final = ("_zero_dates", "_kept")


class LaidOutColumns(ColumnsAround):
    """A plan whose frame is another plan's, with the layout's rows, columns and names."""

    def __init__(self, inner: Decode, found: LaidOut, layout: Layout, session: SparkSession) -> None:
        super().__init__(inner)
        self._found = found
        self._filter = layout.row_filter
        self._metadata = layout.metadata
        self._ignores_nulls = layout.ignore_nulls
        if self._filter is not None:
            check_condition(self._filter, inner.shape, session)
        if self._ignores_nulls and inner.keeps_values:
            raise ConfigError(_TWO_MEANINGS, table=str(inner.shape.table))

    @property
    def shape(self) -> TableShape:
        """The target's shape."""
        return self._found.shape

    @property
    def keeps_values(self) -> bool:
        """As the plan below, or because a null stands for the stored value."""
        return self._inner.keeps_values or self._ignores_nulls

    @property
    def kept_columns(self) -> frozenset[str]:
        """The target's names of those of the plan below, or of all columns where a null is left out."""
        if self._ignores_nulls:
            return frozenset(self._found.sources)
        below = self._inner.kept_columns
        return frozenset(new for new, old in self._found.sources.items() if old in below)

    @property
    def gone(self) -> frozenset[str]:
        """The target's names of columns that the source does not have any more, in lower case."""
        return frozenset(
            new.lower() for new, old in self._found.sources.items() if old.lower() in self._inner.gone
        )

    def decode(self, raw: DataFrame, rules: EventRules = NO_RULES) -> DataFrame:
        """The decoded frame of a raw Kafka frame."""
        decoded = self._inner.decode(raw, rules)
        if self._filter is not None:
            decoded = decoded.withColumn(_VERDICT, self._verdict).withColumns(self._judged).drop(_VERDICT)
        old = self._logged if "before" in decoded.columns else {}
        return decoded.withColumns({**self._projected, **old})

    @cached_property
    def _verdict(self) -> Column:
        """Of an upsert the text of what the condition says, null where it fails."""
        assert self._filter is not None  # noqa: S101  (asked by decode alone)
        said = F.expr(_tried(condition(self._filter, self._inner.shape)))
        if self._inner.keeps_values:
            needed = F.array(*(F.lit(name) for name in _named(self._filter, self._inner.shape)))
            unsent = F.coalesce(F.arrays_overlap("_kept", needed), F.lit(False))
            said = F.when(unsent, F.lit(_NOT_SENT)).otherwise(said)
        return F.when(F.col("_kind") == UPSERT, said)

    @cached_property
    def _judged(self) -> dict[str, Column]:
        """What the verdict makes of an upsert: itself, a delete, or a bad record."""
        assert self._filter is not None  # noqa: S101  (asked by decode alone)
        verdict, upsert = F.col(_VERDICT), F.col("_kind") == UPSERT
        unsent = verdict.eqNullSafe(_NOT_SENT)
        bad = upsert & (verdict.isNull() | unsent)
        stays = ~upsert | verdict.eqNullSafe("true")
        reason = F.when(unsent, _NOT_SENT.format(text=self._filter.text)).otherwise(
            _FAILED.format(text=self._filter.text)
        )
        kind = F.when(bad, BAD).when(~stays, DELETE).otherwise(F.col("_kind"))
        emptied = ["after", "_zero_dates", *(["_kept"] if self._inner.keeps_values else [])]
        return {
            "_kind": kind,
            "_unmatched": ~bad & ~stays,
            "_error": F.when(bad, FilterError.__name__).otherwise(F.col("_error")),
            "_reason": F.when(bad, reason).otherwise(F.col("_reason")),
            "old_key": F.when(~bad, F.col("old_key")),
            **{name: F.when(stays, F.col(name)) for name in emptied},
        }

    @cached_property
    def _projected(self) -> dict[str, Column]:
        """The row's parts, and the lists of names, in the target's columns."""
        sources = self._found.sources
        keys = {column.name: sources[column.name] for column in self.shape.key_columns}
        # A table without a key, whose changes are kept, has an empty one.
        parts = {"key": keys, "old_key": keys} if keys else {}
        names = _NAMES if self._inner.keeps_values else _NAMES[:1]
        return {
            **{part: _as_named(F.col(part), columns) for part, columns in parts.items()},
            "after": _as_named(F.col("after"), sources, unstamped(self._metadata)),
            **{name: _renamed(F.col(name), sources) for name in names},
            **({"_kept": self._nulls()} if self._ignores_nulls else {}),
        }

    @cached_property
    def _logged(self) -> dict[str, Column]:
        """The old row of a plan that ``logs``."""
        sources = self._found.sources
        return {
            "before": _as_named(F.col("before"), sources, unstamped(self._metadata)),
            "_before_kept": _renamed(F.col("_before_kept"), sources),
        }

    def _nulls(self) -> Column:
        """The target's names of an upsert's columns that are null; null where none is."""
        keys = {column.name for column in self.shape.key_columns}
        others = ((new, old) for new, old in self._found.sources.items() if new not in keys)
        after = F.col("after")
        names = (F.when(after.getField(old).isNull(), F.lit(new)) for new, old in others)
        found = F.array_compact(F.array(null("string"), *names))
        return F.when(after.isNotNull() & (F.size(found) > 0), found)


def condition(row_filter: RowFilter, shape: TableShape) -> str:
    """The filter's text over a struct ``_row`` of a shape's columns. Its end may be a comment."""
    names = {name: column.name for name, column in shape.by_name.items()}
    return f"(\n{row_filter.bound(_ROW, names)}\n)"


def check_condition(row_filter: RowFilter, shape: TableShape, session: SparkSession) -> None:
    """Have Spark look at the filter, without a row.

    Raises:
        ConfigError: Spark cannot take it, or it is no condition.
    """
    row = null(f"struct<{shape.ddl}>").alias(_ROW)
    try:
        found = session.range(0).select(row).select(F.expr(condition(row_filter, shape))).schema[0].dataType
    except PySparkException as exc:
        said = str(exc).splitlines()[0]
        raise ConfigError(
            f"filter: Spark does not take {row_filter.text!r}: {said}", table=str(shape.table)
        ) from exc
    if not isinstance(found, BooleanType):
        raise ConfigError(
            f"filter: {row_filter.text!r} is a value of type {found.simpleString()} and no condition",
            table=str(shape.table),
        )


def _tried(text: str) -> str:
    said = f"coalesce(cast({text} as string), 'null')"
    return f"cast(get(transform(array(after), {_ROW} -> try_to_binary({said}, 'utf-8')), 0) as string)"


def _named(row_filter: RowFilter, shape: TableShape) -> list[str]:
    return [shape.by_name[name.lower()].name for name in row_filter.columns]


def _as_named(struct: Column, sources: Mapping[str, str], more: Sequence[Column] = ()) -> Column:
    fields = (struct.getField(old).alias(new) for new, old in sources.items())
    return F.when(struct.isNotNull(), F.struct(*fields, *more))


def _renamed(names: Column, sources: Mapping[str, str]) -> Column:
    """A list of the source's names in the target's; null where none is left."""
    pairs = [F.lit(name) for new, old in sources.items() for name in (old, new)]
    kept = F.array_compact(F.transform(names, lambda name: F.element_at(F.create_map(*pairs), name)))
    return F.when(F.size(kept) > 0, kept)
