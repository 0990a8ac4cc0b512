"""Batch summaries: a task counts each of its ranges, and the driver joins the counts of all ranges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tidesink.codecs.batch import ChangeTable
from tidesink.events import Op
from tidesink.sinks.batch.counts import (
    SUMS,
    BadRecord,
    BatchSummary,
    PartitionSummary,
    RowWarning,
    TopicPartition,
    Truncate,
    UnplannedRecord,
    distinct,
    greatest,
    least,
)
from tidesink.sinks.batch.decoders import schema_id_of
from tidesink.sinks.batch.records import (
    BAD,
    DDL,
    FILTERED_KINDS,
    TRUNCATE,
    UNPLANNED,
    WATERMARK,
    DecodedRecords,
    OtherRecord,
)
from tidesink.sinks.batch.reduce import Reduction, unmatched_rows
from tidesink.sinks.batch.schema_rows import RowSpan, span_of
from tidesink.typemap.target_schema import TargetSchema

_DATES: Final = ("date", "timestamp", "timestamp_ntz")


def range_summary(
    place: TopicPartition,
    found: DecodedRecords,
    truncates: Sequence[OtherRecord],
    reduction: Reduction,
    rows: Sequence[pa.Table],
    shape: TargetSchema,
    *,
    dated: bool = True,
) -> BatchSummary:
    """Returns the counts of one range.

    Args:
        place: The topic-partition.
        found: The decoded records.
        truncates: The truncates in the range. Empty for a change log, where a truncate is a row.
        reduction: The reduced changes.
        rows: The rows to apply, in the columns of the reduced frame.
        shape: The columns and key of the rows to apply.
        dated: True if a row's commit_ts is a time. False if it is a position in a connector's log. Then
            ``max_commit_ts`` is None.
    """
    others = found.others
    events = Counter(one.kind for one in (*others, *truncates))
    silent = sum(batch.num_rows for batch in found.silent)
    watermarks = [one.commit_ts for one in others if one.kind == WATERMARK]
    moments = [_extreme(one, "max", "commit_ts") for one in _moments(found.tables, apart=truncates)]
    messages = silent + sum(one.index == 0 for one in others)
    messages += sum(_messages(one) for one in found.tables) + found.void_records + found.waiting_records
    last = greatest(moments) if dated else None
    unplanned = [one for one in others if one.kind == UNPLANNED]
    offsets = sorted(one.offset for one in unplanned if one.fields is None)
    return BatchSummary(
        messages=messages,
        read=reduction.events + events.total() + silent,
        upserts=reduction.upserts,
        deletes=reduction.deletes,
        split_halves=reduction.halves,
        superseded=reduction.superseded,
        filtered=silent + sum(events[kind] for kind in FILTERED_KINDS),
        ddl=events[DDL],
        watermarks=events[WATERMARK],
        bad=events[BAD],
        unplanned=events[UNPLANNED],
        warned=sum(len(one) for one in _warned(rows)),
        omitted=sum(_given(one, "_kept") for one in rows),
        unmatched=sum(int(unmatched_rows(one).sum()) for one in found.tables),
        max_commit_ts=last,
        min_commit_ts=least([_extreme(one, "min", "_commit_ts") for one in rows]),
        key_range=_key_range(rows, shape),
        places={
            place: PartitionSummary(
                messages,
                _max_offset(found),
                last,
                greatest(watermarks),
                found.waits,
                found.passed,
                _spans(found.tables),
                found.last,
            )
        },
        zero_dates=_marked(rows, "_zero_dates", shape, _DATES) if shape.zero_date == "null" else {},
        ambiguous_times=_marked(rows, "_ambiguous_times", shape, ("timestamp",)),
        bad_records=_first(place, others),
        first_warnings=_first_warning(place, rows),
        truncates=tuple(Truncate(place, one.offset) for one in truncates[:1]),
        unplanned_key_ids=distinct(one.key_id for one in unplanned),
        unplanned_value_ids=distinct(one.value_id for one in unplanned),
        unplanned_columns=distinct(name for one in unplanned for name in one.fields or ()),
        unplanned_records=tuple(UnplannedRecord(place, one) for one in offsets[:1]),
    )


def joined_summaries(summaries: Sequence[BatchSummary]) -> BatchSummary:
    """Returns the counts of a batch from the counts of its ranges, which have different topic-partitions."""
    ranges = [one.key_range for one in summaries if one.key_range is not None]
    lows, highs = ([one[at] for one in ranges] for at in (0, 1))
    return BatchSummary(
        **{name: sum(getattr(one, name) for one in summaries) for name in SUMS},
        max_commit_ts=greatest([one.max_commit_ts for one in summaries]),
        min_commit_ts=least([one.min_commit_ts for one in summaries]),
        key_range=(min(lows), max(highs)) if ranges else None,  # type: ignore[type-var]
        places={place: found for one in summaries for place, found in one.places.items()},
        zero_dates=_counted(one.zero_dates for one in summaries),
        ambiguous_times=_counted(one.ambiguous_times for one in summaries),
        bad_records=tuple(bad for one in summaries for bad in one.bad_records),
        first_warnings=tuple(warning for one in summaries for warning in one.first_warnings),
        truncates=tuple(truncate for one in summaries for truncate in one.truncates),
        unplanned_key_ids=distinct(i for one in summaries for i in one.unplanned_key_ids),
        unplanned_value_ids=distinct(i for one in summaries for i in one.unplanned_value_ids),
        unplanned_columns=distinct(i for one in summaries for i in one.unplanned_columns),
        unplanned_records=tuple(i for one in summaries for i in one.unplanned_records),
    )


def truncated(tables: Iterable[ChangeTable]) -> list[OtherRecord]:
    """Returns the truncate events among the changes of ``tables``, in Kafka's order."""
    names = ["topic", "partition", "offset", "index", "commit_ts"]
    found = []
    for one in tables:
        empties = pc.equal(one.rows["op"].cast(pa.string()), Op.TRUNCATE.value)
        if pc.any(empties).as_py():
            rows = one.rows.select(names).filter(empties).to_pylist()
            found += [OtherRecord(TRUNCATE, *row.values()) for row in rows]
    return sorted(found, key=lambda one: (one.offset, one.index))


def _moments(tables: Iterable[ChangeTable], *, apart: Sequence[OtherRecord]) -> Iterator[pa.Table]:
    """Yields the operation and commit_ts of each change.

    ``apart``: truncates that are counted separately. If there are any, truncates are not yielded.
    """
    for one in tables:
        found = one.rows.select(["op", "commit_ts"])
        yield found.filter(pc.not_equal(found["op"].cast(pa.string()), Op.TRUNCATE.value)) if apart else found


def _messages(changes: ChangeTable) -> int:
    """Returns the number of Kafka records of these changes. Only the first event of a record is counted."""
    return int(pc.sum(pc.equal(changes.rows["index"], 0)).as_py() or 0)


def _extreme(rows: pa.Table, kind: str, name: str) -> Any:
    return pc.min_max(rows[name])[kind].as_py()


def _spans(tables: Iterable[ChangeTable]) -> dict[int, RowSpan]:
    """Returns the first and last row (``RowSpan``) of each writer schema, by registry id."""
    found: dict[int, RowSpan] = {}
    for one in tables:
        schema_id = None if one.schema_id is None else one.schema_id.value
        if schema_id is not None and one.rows.num_rows:
            span = span_of(one.rows)
            found[schema_id] = span.joined(found.get(schema_id, span))
    return found


def _offset(row: OtherRecord) -> int:
    return row.offset


def _given(rows: pa.Table, name: str) -> int:
    return len(rows) - rows[name].null_count if name in rows.schema.names else 0


def _max_offset(found: DecodedRecords) -> int:
    offsets = [_extreme(one.rows, "max", "offset") for one in found.tables]
    offsets += [one.offset for one in found.others]
    offsets += [pc.max(one.column("offset")).as_py() for one in found.silent]
    return max(offsets, default=-1)


def _key_range(rows: Sequence[pa.Table], shape: TargetSchema) -> tuple[object, object] | None:
    """Returns the smallest and the greatest value of the rows' first key column; None if there are no rows or
    no order.
    """
    first = shape.key_columns[0].name
    keys = [pc.struct_field(one["key"].combine_chunks(), [first]) for one in rows if len(one)]
    try:
        found = [pc.min_max(one) for one in keys]
    except pa.ArrowNotImplementedError:
        return None
    if not found:
        return None
    return min(one["min"].as_py() for one in found), max(one["max"].as_py() for one in found)


def _marked(
    rows: Sequence[pa.Table], mark: str, shape: TargetSchema, types: Collection[str]
) -> Mapping[str, int]:
    """Returns, by column, the number of rows to apply that carry a mark such as ``zero_dates``.

    Only columns of these Spark types count.
    """
    names = {column.name for column in shape.columns if column.spark in types}
    counts = _counted(Counter(pc.list_flatten(one[mark].combine_chunks()).to_pylist()) for one in rows)
    return {name: count for name, count in counts.items() if name in names}


def _counted(several: Iterable[Mapping[str, int]]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for one in several:
        counts.update(one)
    return dict(counts)


def _warned(rows: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yields tables with the offset and the warning of each row that is applied with a warning."""
    for one in rows:
        reasons = pc.struct_field(one["_detail"].combine_chunks(), ["reason"])
        if reasons.null_count < len(reasons):
            found = pa.table({"offset": one["_offset"], "reason": reasons})
            yield found.filter(pc.and_(pc.is_valid(reasons), pc.invert(one["_half"].combine_chunks())))


def _first_warning(place: TopicPartition, rows: Iterable[pa.Table]) -> tuple[RowWarning, ...]:
    """Returns the first row that is applied with a warning, in a tuple; an empty tuple without such a row."""
    found = [tuple(one.values()) for table in _warned(rows) for one in table.to_pylist()]
    return (RowWarning(place, *min(found)),) if found else ()


def _first(place: TopicPartition, others: Iterable[OtherRecord]) -> tuple[BadRecord, ...]:
    """Returns the first bad record in a tuple; an empty tuple without bad records."""
    bad = min((one for one in others if one.kind == BAD), key=_offset, default=None)
    if bad is None:
        return ()
    ids = [schema_id_of(part) for part in (bad.value, bad.key) if part is not None]
    schema_id = ids[0] if ids and None not in ids else None
    return (BadRecord(place, bad.offset, bad.error or "", bad.reason or "", schema_id),)
