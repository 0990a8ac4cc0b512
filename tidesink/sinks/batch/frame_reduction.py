"""The law of ``reduce`` on a decoded frame: one row a key, in one pass, nothing on the driver.

The reduced frame has, for each key, what is to be done with it, and beside those rows the records that
are no rows: each bad record, each DDL and each unplanned message by itself, watermarks and messages
one a topic-partition.

====================  ================  ==========================================================
column                type              meaning
====================  ================  ==========================================================
``_op``               string            one of ``records.KINDS``: ``upsert``, ``delete``, ...
``key``               struct            the key, null for what is no row
``after``             struct            the row to write, for ``upsert`` alone
``_topic``            string
``_partition``        int
``_offset``           bigint            of the event that stays
``_commit_ts``        bigint            of the event that stays
``_half``             boolean           the delete half of a key change: no event of its own
``_events``           bigint            row events of this key, the one that stays included
``_superseded``       bigint            row events that a later one of their key replaced
``_messages``         bigint            Kafka records among them
``_max_offset``       bigint            the largest offset among them
``_max_commit_ts``    bigint            the largest commit_ts among them
``_mixed``            boolean           the key came in two topic-partitions
``_zero_dates``       array<string>     columns whose date no calendar has was made null
``_detail``           struct            what is no row: error, reason, key_id, value_id, fields, key, value;
                                        of a row to apply with a warning: the reason
``_kept``             array<string>     with ``kept_columns`` alone: columns of ``after`` whose value the
                                        source did not send, so that what is stored stays; null for none
``_after_delete``     boolean           with ``kept_columns`` alone: the batch deletes the key before
                                        this row, so that nothing stored is the row's
``_unmatched``        bigint            under a filter alone: events among them whose row does not satisfy it
``_position``         string            where the decoded frame has it and it is asked for: of the event that
                                        stays
``_seq``              struct            in the source's order alone: the position of the event that stays,
                                        as ``targets.base.SEQUENCE_DDL`` says
====================  ================  ==========================================================

Keys are compared as Spark compares values, text byte by byte, whatever collation the source has: a
source that holds 'a' and 'A' for one key never sends them as two rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.sinks.batch.decoded_frame import POSITION
from tidesink.sinks.batch.records import COUNTED_KINDS, DELETE, ROW_KINDS, UPSERT
from tidesink.typemap.target_schema import TableShape

if TYPE_CHECKING:
    from tidesink.events import SequenceBy


# What is kept of the event that stays.
_OF_THE_EVENT: Final = (
    "_op",
    "after",
    "_topic",
    "_partition",
    "_offset",
    "_commit_ts",
    "_half",
    "_zero_dates",
    "_detail",
)
_WHOLE: Final = "whole"
_DELETE_HALF: Final = "delete half"
_INSERT_HALF: Final = "insert half"


def reduce_frame(  # noqa: PLR0913  (all that a reduction rests on)
    decoded: DataFrame,
    shape: TableShape,
    sequence_by: SequenceBy = "kafka",
    *,
    changes_keys: bool = True,
    kept_columns: Collection[str] | None = None,
    versions: bool = False,
    filters: bool = False,
    positions: bool = False,
) -> DataFrame:
    """The reduced frame of a decoded one; lazy.

    ``changes_keys``: whether a record may stand for several rows: for an update that comes with its old
    key, or because it holds several events (a plan's ``changes_keys``). False spares the step, and the
    offset alone is the order. ``kept_columns``: what ``_kept`` may name (a plan's ``kept_columns``), None
    where the frame has none.
    Order by ``source`` needs a ``_commit_ts`` in every row event (``EventRules``), and no kept values.
    ``versions``: a key has a row for each commit_ts, as ``history`` says, whatever ``sequence_by``; it needs
    one in every row event too (``EventRules``). ``filters``: whether the frame has ``_unmatched``;
    ``positions``: ``_position``.
    """
    rows = _halves(decoded) if changes_keys else decoded.withColumn("part", F.lit(_WHOLE))
    keys = [column.name for column in shape.key_columns]
    key_names = [f"key_{number}" for number in range(len(keys))]
    reported = (*_OF_THE_EVENT, POSITION) if positions else _OF_THE_EVENT
    output = [*_output(keys, key_names, reported), *([F.col("_unmatched")] if filters else [])]
    unmatched = [F.count_if("_unmatched").alias("_unmatched")] if filters else []
    more = [*([_own_unmatched()] if filters else []), *([F.col(POSITION)] if positions else [])]
    if versions:
        grouped = _prepared(rows, keys, more=more).groupBy(
            "group_hash", *key_names, _moment().alias("moment")
        )
        return grouped.agg(*_aggregates(_first_write(), reported), *unmatched).select(*output)
    order = _order(sequence_by, changes_keys=changes_keys)
    kept = [] if kept_columns is None else [F.col("_kept")]
    groups = _prepared(rows, keys, more=[*kept, *more]).groupBy("group_hash", *key_names)
    aggregates = [*_aggregates(order, reported), *unmatched]
    if sequence_by == "source":
        greatest = F.max(order).alias("greatest")
        return groups.agg(*aggregates, greatest).select(*output, _sequence(F.col("greatest")))
    if kept_columns is None:
        return groups.agg(*aggregates).select(*output)
    names = [column.name for column in shape.columns]
    may_lack = [name for name in names if name in kept_columns and name not in keys]
    if not may_lack:
        nothing = (null(STRINGS).alias("_kept"), F.lit(False).alias("_after_delete"))
        return groups.agg(*aggregates).select(*output, *nothing)
    values = AvailableValues(names, may_lack, order)
    completed = values.completed(groups.agg(*aggregates, *values.aggregates()))
    return completed.select(*output, "_kept", "_after_delete")


def rows_to_apply(reduced: DataFrame) -> DataFrame:
    """The rows of a reduced frame that a merge takes: upserts and deletes."""
    return reduced.where(F.col("_op").isin(*ROW_KINDS))


def _halves(decoded: DataFrame) -> DataFrame:
    """A key change as two rows: its old key is deleted, its new one written."""
    parts = F.when(F.col("old_key").isNull(), F.array(F.lit(_WHOLE))).otherwise(
        F.array(F.lit(_DELETE_HALF), F.lit(_INSERT_HALF))
    )
    exploded = decoded.withColumn("part", F.explode(parts))
    half = F.col("part") == _DELETE_HALF
    return exploded.withColumns(
        {
            "key": F.when(half, F.col("old_key")).otherwise(F.col("key")),
            "_kind": F.when(half, DELETE).otherwise(F.col("_kind")),
            "after": F.when(~half, F.col("after")),
            "_zero_dates": F.when(~half, F.col("_zero_dates")),
        }
    )


def _own_unmatched() -> Column:
    """Whether an event is one that its filter took out, counted once, and no bad record since."""
    counted = F.col("_kind").isin(*ROW_KINDS) & (F.col("part") != _DELETE_HALF)
    return (F.col("_unmatched") & counted).alias("_unmatched")


def _prepared(rows: DataFrame, keys: list[str], *, more: Sequence[Column]) -> DataFrame:
    """What is grouped by, and what the group keeps.

    The hash comes first, so that sorting compares one number; rows whose hashes meet are still known
    apart by their keys. What is no row has no key and a hash of its own place: of one topic-partition
    no two offsets have the same hash, since hashing one bigint loses nothing.
    """
    is_row = F.col("_kind").isin(*ROW_KINDS)
    half = F.col("part") == _DELETE_HALF
    key_columns = [F.col("key").getField(name) for name in keys]
    place = F.xxhash64("_topic", "_partition")
    own = F.when(F.col("_kind").isin(*COUNTED_KINDS), F.lit(-1)).otherwise(F.col("_offset"))
    other = F.xxhash64("_topic", "_partition", "_kind", "_index", own)
    return rows.select(
        F.when(is_row, F.xxhash64(*key_columns)).otherwise(other).alias("group_hash"),
        *(column.alias(f"key_{number}") for number, column in enumerate(key_columns)),
        place.alias("place"),
        "_topic",
        "_partition",
        "_offset",
        "_index",
        "_commit_ts",
        F.col("_kind").alias("_op"),
        half.alias("_half"),
        "_zero_dates",
        "after",
        *more,
        F.when(~is_row | (F.col("_reason").isNotNull() & ~half), detail_of()).alias("_detail"),
    )


def detail_of() -> Column:
    """What a decoded frame says of a record that is no row, or of a row with a warning."""
    return F.struct(
        F.col("_error").alias("error"),
        F.col("_reason").alias("reason"),
        F.col("_schema_key_id").alias("key_id"),
        F.col("_schema_value_id").alias("value_id"),
        F.col("_fields").alias("fields"),
        F.col("_key").alias("key"),
        F.col("_value").alias("value"),
    )


def _aggregates(order: Column, reported: Sequence[str]) -> list[Column]:
    whole = F.when(~F.col("_half"), 1).otherwise(0)
    message = F.when(~F.col("_half") & (F.col("_index") == 0), 1).otherwise(0)
    return [
        F.max_by(F.struct(*reported), order).alias("kept"),
        F.sum(whole).alias("events"),
        F.sum(message).alias("messages"),
        F.max("_offset").alias("max_offset"),
        F.max("_commit_ts").alias("max_commit_ts"),
        F.min("place").alias("first_place"),
        F.max("place").alias("last_place"),
    ]


def _order(sequence_by: SequenceBy, *, changes_keys: bool) -> Column:
    if sequence_by == "kafka" and not changes_keys:
        return F.col("_offset")  # one partition, or the batch is refused; a number is quicker to compare
    writes = (F.col("_op") == UPSERT).alias("writes")
    kafka = (F.col("_partition"), F.col("_offset"), F.col("_index"))
    return F.struct(*kafka, writes) if sequence_by == "kafka" else F.struct("_commit_ts", writes, *kafka)


def _moment() -> Column:
    """What tells a key's versions apart."""
    return F.when(F.col("_op").isin(*ROW_KINDS), F.col("_commit_ts"))


def _first_write() -> Column:
    """Of events of one commit_ts a write stays, and of equal ones the first."""
    first = (-F.col(name) for name in ("_partition", "_offset", "_index"))
    return F.struct(F.col("_op") == UPSERT, *first)


def _sequence(order: Column) -> Column:
    members = {
        "source": F.array(order.getField("_commit_ts")),
        **{name: order.getField(f"_{name}") for name in ("partition", "offset", "index")},
    }
    source, *kafka = (member.alias(name) for name, member in members.items())
    return F.struct(source, order.getField("writes").alias("writes"), *kafka).alias("_seq")


def _output(keys: list[str], key_names: list[str], reported: Sequence[str]) -> list[Column]:
    kept = F.col("kept")
    is_row = kept.getField("_op").isin(*ROW_KINDS)
    key = F.struct(*(F.col(name).alias(key) for name, key in zip(key_names, keys, strict=True)))
    own_event = F.when(is_row & ~kept.getField("_half"), 1).otherwise(0)
    return [
        F.when(is_row, key).alias("key"),
        *(kept.getField(name).alias(name) for name in reported),
        F.col("events").alias("_events"),
        F.when(is_row, F.col("events") - own_event).otherwise(0).alias("_superseded"),
        F.col("messages").alias("_messages"),
        F.col("max_offset").alias("_max_offset"),
        F.col("max_commit_ts").alias("_max_commit_ts"),
        (is_row & (F.col("first_place") != F.col("last_place"))).alias("_mixed"),
    ]


STRINGS: Final = "array<string>"
_LAST_DELETE: Final = "last_delete"


def null(ddl: str) -> Column:
    """A null of a type."""
    return F.lit(None).cast(ddl)


class AvailableValues(NamedTuple):
    """A table's columns, those among them that may be left out, and what a key's events are ordered by."""

    columns: Sequence[str]
    names: Sequence[str]
    order: Column

    def aggregates(self) -> Iterator[Column]:
        """For each column the latest value that was sent, and its place in the order."""
        deleted = F.col("_op") == DELETE
        yield F.max_by(F.col("_kept"), self.order).alias("omitted")
        yield F.max(F.when(deleted, self.order)).alias(_LAST_DELETE)
        for number, name in enumerate(self.names):
            sent = ~deleted & ~F.coalesce(F.array_contains("_kept", name), F.lit(False))
            value = F.struct(F.col("after").getField(name).alias("value"), self.order.alias("at"))
            yield F.max_by(value, F.when(sent, self.order)).alias(_reported(number))

    def completed(self, grouped: DataFrame) -> DataFrame:
        """The groups, their row with what is known, and the names of what is still left out."""
        after = F.col("kept").getField("after")
        reported = {name: self._is_available(number, name) for number, name in enumerate(self.names)}
        row = F.struct(*(self._value(name, after, reported).alias(name) for name in self.columns))
        left = F.array_compact(
            F.array(*(F.when(_is_omitted(name) & ~answer, F.lit(name)) for name, answer in reported.items()))
        )
        kept = F.when(after.isNotNull() & (F.size(left) > 0), left)
        return grouped.withColumns(
            {
                "kept": F.col("kept").withField("after", F.when(after.isNotNull(), row)),
                "_kept": kept,
                "_after_delete": kept.isNotNull() & F.col(_LAST_DELETE).isNotNull(),
            }
        )

    def _value(self, name: str, after: Column, reported: Mapping[str, Column]) -> Column:
        own = after.getField(name)
        if name not in reported:
            return own
        return F.when(reported[name], F.col(_reported(self.names.index(name))).getField("value")).otherwise(
            own
        )

    def _is_available(self, number: int, name: str) -> Column:
        at = F.col(_reported(number)).getField("at")
        since_delete = F.col(_LAST_DELETE).isNull() | (at > F.col(_LAST_DELETE))
        return _is_omitted(name) & at.isNotNull() & since_delete


def _is_omitted(name: str) -> Column:
    return F.coalesce(F.array_contains("omitted", name), F.lit(False))


def _reported(number: int) -> str:
    return f"reported_{number}"
