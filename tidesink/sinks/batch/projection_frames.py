"""Frames as the config has a table: columns, filters, metadata columns, routes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from pyspark.sql.types import BooleanType

from tidesink.config.models import Destination
from tidesink.errors import ConfigError, FilterError
from tidesink.sinks.batch.change_log import OP
from tidesink.sinks.batch.decoded_frame import POSITION, Decode, DecodePlan
from tidesink.sinks.batch.filtering import RowFilterRule
from tidesink.sinks.batch.frame_reduction import null
from tidesink.sinks.batch.modes import routed_shape
from tidesink.sinks.batch.records import BAD, DELETE, NO_RULES, UPSERT, EventRules
from tidesink.sinks.batch.schema_changes import SchemaDecision
from tidesink.sinks.batch.target_rows import OutputRows
from tidesink.sinks.schema_sources.base import ColumnsAround
from tidesink.typemap.projection import LaidOut, Layout, RowFilter
from tidesink.typemap.target_schema import (
    MetadataKind,
    ShapeColumn,
    TableShape,
    columns_ddl,
    metadata_columns,
    quoted,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.config import TableConfig


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
    "and the two are not identified in this version: remove ignore_null_updates"
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

    def laid_out(self, plan: DecodePlan) -> DecodePlan:
        """The same for the tasks of a range: rows in the target's columns, and those that satisfy alone."""
        return replace(
            plan,
            output=OutputRows(self._found.shape, self._found.sources, op=self._metadata.get("op")),
            row_filter=None if self._filter is None else filter_rule(self._filter, plan.shape),
            ignores_nulls=self._ignores_nulls,
        )

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
            decoded = (
                decoded.withColumn(_VERDICT, self._verdict).withColumns(self._schema_decision).drop(_VERDICT)
            )
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
    def _schema_decision(self) -> dict[str, Column]:
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


def filter_rule(row_filter: RowFilter, shape: TableShape) -> RowFilterRule:
    """A filter over rows of a shape, as the tasks of a range apply it."""
    named = {shape.by_name[name.lower()].name for name in row_filter.columns}
    columns = tuple(column for column in shape.columns if column.name in named)
    return RowFilterRule(
        row_filter.text,
        _tried(condition(row_filter, shape)),
        tuple(column.name for column in columns),
        columns_ddl(columns),
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


class RoutedColumns(ColumnsAround):
    """A plan whose rows are ``destination``'s; one pass with the plan that it is around."""

    def __init__(self, inner: Decode, destination: Destination) -> None:
        super().__init__(inner)
        self._destination = destination

    @cached_property
    def shape(self) -> TableShape:
        """The shape at the target."""
        return routed_shape(self._inner.shape, self._destination)

    def decode(self, raw: DataFrame, rules: EventRules = NO_RULES) -> DataFrame:
        """The decoded frame; what is no row stays without key and values."""
        decoded = self._inner.decode(raw, rules)
        if self._destination.shard is None:
            return decoded
        return decoded.withColumns({name: self._placed(name) for name in ("key", "old_key", "after")})

    def _placed(self, name: str) -> Column:
        """A struct with the shard in it; null stays null."""
        assert self._destination.shard is not None  # noqa: S101  (asked before)
        return F.col(name).withField(
            quoted(self._destination.shard.column), F.lit(self._destination.shard.value)
        )


def unstamped(names: Mapping[MetadataKind, str]) -> list[Column]:
    """The places of the metadata columns in a decoded row, with what only its event tells."""
    places = {column.name: null(column.spark) for column in metadata_columns(names)}
    if "op" in names:
        places[names["op"]] = F.coalesce("_wire_op", F.lit(UPSERT))
    return [place.alias(name) for name, place in places.items()]


def on_delete(settings: TableConfig, shape: TableShape) -> tuple[str, ...]:
    """The columns of ``shape`` that a delete of the table writes (``ReducedBatch.on_delete``)."""
    names = settings.metadata_columns.values() if settings.deletes == "soft" else ()
    return tuple(name for name in names if name.lower() in shape.by_name)


def stamped(rows: DataFrame, shape: TableShape, settings: TableConfig, batch: int) -> DataFrame:
    """The rows of a reduced frame with the metadata asked for; ``batch`` is the batch's number."""
    names = settings.metadata_columns
    if not names:
        return rows
    reported = {name: _value(kind, settings, batch) for kind, name in names.items() if kind != "position"}
    if "position" in names:
        reported[names["position"]] = _position(rows)
    fields = (_field(column, reported).alias(column.name) for column in shape.columns)
    upserts = F.col("_op") == UPSERT
    written = upserts | (F.col("_op") == DELETE) if settings.deletes == "soft" else upserts
    return rows.withColumn("after", F.when(written, F.struct(*fields)))


def _field(column: ShapeColumn, reported: Mapping[str, Column]) -> Column:
    if column.name in reported:
        return reported[column.name].cast(column.spark)
    return F.col("after").getField(column.name)


def _position(rows: DataFrame) -> Column:
    # TiCDC's place in TiDB's log is the commit_ts: frames of its own codecs have that alone.
    return F.col(POSITION if POSITION in rows.columns else "_commit_ts")


def _value(kind: MetadataKind, settings: TableConfig, batch: int) -> Column:
    fixed = {"database": settings.table.schema, "table": settings.table.name, "batch": batch}
    if kind in fixed:
        return F.lit(fixed[kind])
    if kind == "op":
        said = F.col("after").getField(OP if settings.mode == "append" else settings.metadata_columns[kind])
        return F.when(F.col("_op") == DELETE, F.lit(DELETE)).otherwise(said)
    return F.col(f"_{kind}")


def omitting(frame: DataFrame, schema_decision: SchemaDecision) -> DataFrame:
    """The rows of a reduced frame with the columns that the target gets."""
    if not schema_decision.omitted:
        return frame
    after = F.col("after")
    given = [after.getField(column.name).alias(column.name) for column in schema_decision.given.columns]
    changed = {"after": F.when(after.isNotNull(), F.struct(*given))}
    if "_kept" in frame.columns:
        omitted = F.array(*(F.lit(name) for name in schema_decision.omitted))
        changed["_kept"] = F.array_except("_kept", omitted)
    return frame.withColumns(changed)
