"""Batch summaries: a task summarizes each of its ranges, and the driver joins the summaries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tidesink.codecs.batch import ChangeTable
from tidesink.events import Op
from tidesink.sinks.decode.plans import schema_id_of
from tidesink.sinks.decode.records import (
    BAD,
    DDL,
    FILTERED_KINDS,
    TRUNCATE,
    UNPLANNED,
    WATERMARK,
    DecodedRecords,
    OtherRecord,
)
from tidesink.sinks.laws.counts import (
    BadRecord,
    BadRow,
    BatchSummary,
    DdlRecord,
    DdlStatement,
    EventCounts,
    PartitionSummary,
    RowFacts,
    RowFindings,
    RowWarning,
    TopicPartition,
    Truncate,
    UnplannedRecord,
    UnplannedSchemas,
    distinct,
    greatest,
    least,
)
from tidesink.sinks.laws.reduce import Reduction, unmatched_rows
from tidesink.sinks.laws.schema_rows import RowSpan, span_of
from tidesink.sinks.spark.payloads import UPSERT
from tidesink.sinks.state.progress import MOST_EVENTS
from tidesink.typemap.target_schema import TargetSchema

_DATES: Final = ("date", "timestamp", "timestamp_ntz")


def range_summary(
    place: TopicPartition | None,
    decoded: DecodedRecords,
    truncates: Sequence[OtherRecord],
    reduction: Reduction,
    rows: Sequence[pa.Table],
    shape: TargetSchema,
    *,
    dated: bool = True,
) -> BatchSummary:
    """Returns the summary of the records of one input.

    Args:
        place: The topic-partition of the records. None if they are rows of the source database.
        decoded: The decoded records.
        truncates: The truncates among them. Empty for a change log, where a truncate is a row.
        reduction: The reduced changes.
        rows: The rows to apply, in the columns of ``tasks.reduced_schema``.
        shape: The columns and key of the rows to apply.
        dated: True if a row's commit_ts is a time. False if it is a position in a connector's log. Then
            ``max_commit_ts`` is None.
    """
    counts = _event_counts(decoded, truncates, reduction)
    moments = [_extreme(table, "max", "commit_ts") for table in _moments(decoded.tables, apart=truncates)]
    summary = BatchSummary(
        counts,
        _findings(rows, shape),
        RowFacts(
            omitted=sum(_given(table, "_kept") for table in rows),
            min_commit_ts=least([_extreme(table, "min", "_commit_ts") for table in rows]),
            key_range=_key_range(rows, shape),
        ),
        _unplanned(place, decoded.others),
        max_commit_ts=greatest(moments) if dated else None,
    )
    if place is None:
        return replace(summary, bad_rows=_first_bad_row(decoded.others))
    return _placed(summary, place, decoded, truncates, rows)


def _placed(
    summary: BatchSummary,
    place: TopicPartition,
    decoded: DecodedRecords,
    truncates: Sequence[OtherRecord],
    rows: Sequence[pa.Table],
) -> BatchSummary:
    """Adds what has a location in Kafka to the summary of one range of offsets."""
    others = decoded.others
    watermarks = [record.commit_ts for record in others if record.kind == WATERMARK]
    return replace(
        summary,
        findings=replace(summary.findings, first_warnings=_first_warning(place, rows)),
        places={
            place: PartitionSummary(
                summary.counts.messages,
                _max_offset(decoded),
                summary.max_commit_ts,
                greatest(watermarks),
                decoded.waits,
                decoded.passed,
                _spans(decoded.tables),
                decoded.last,
            )
        },
        bad_records=_first(place, others),
        ddl=_newest_ddl(place, others),
        truncates=tuple(Truncate(place, truncate.offset) for truncate in truncates[:1]),
    )


def joined_summaries(summaries: Sequence[BatchSummary]) -> BatchSummary:
    """Returns the summary of a batch from the summaries of its ranges, which have different
    topic-partitions.
    """
    findings = [summary.findings for summary in summaries]
    facts = [summary.row_facts for summary in summaries]
    unplanned = [summary.unplanned for summary in summaries]
    ranges = [fact.key_range for fact in facts if fact.key_range is not None]
    lows, highs = ([key_range[end] for key_range in ranges] for end in (0, 1))
    return BatchSummary(
        EventCounts.sum_of([summary.counts for summary in summaries]),
        RowFindings(
            warned=sum(finding.warned for finding in findings),
            first_warnings=tuple(warning for finding in findings for warning in finding.first_warnings),
            zero_dates=_counted(finding.zero_dates for finding in findings),
            ambiguous_times=_counted(finding.ambiguous_times for finding in findings),
        ),
        RowFacts(
            omitted=sum(fact.omitted for fact in facts),
            min_commit_ts=least([fact.min_commit_ts for fact in facts]),
            key_range=(min(lows), max(highs)) if ranges else None,  # type: ignore[type-var]
        ),
        UnplannedSchemas(
            key_ids=distinct(key_id for one in unplanned for key_id in one.key_ids),
            value_ids=distinct(value_id for one in unplanned for value_id in one.value_ids),
            columns=distinct(column for one in unplanned for column in one.columns),
            records=tuple(record for one in unplanned for record in one.records),
        ),
        places={
            topic_partition: place_summary
            for summary in summaries
            for topic_partition, place_summary in summary.places.items()
        },
        max_commit_ts=greatest([summary.max_commit_ts for summary in summaries]),
        bad_records=tuple(bad for summary in summaries for bad in summary.bad_records),
        bad_rows=tuple(bad for summary in summaries for bad in summary.bad_rows),
        truncates=tuple(truncate for summary in summaries for truncate in summary.truncates),
        ddl=tuple(record for summary in summaries for record in summary.ddl),
    )


def summary_of_rows(summary: BatchSummary, rows: pa.Table, shape: TargetSchema) -> BatchSummary:
    """Returns the summary of a batch whose ranges were reduced together.

    ``summary``: the summary of all ranges. ``rows``: the rows that remain, in the columns of
    ``tasks.reduced_schema``. The other rows count as superseded.
    """
    upserts = int(pc.sum(pc.equal(rows["_op"], UPSERT)).as_py() or 0)
    deletes, halves = rows.num_rows - upserts, int(pc.sum(rows["_half"]).as_py() or 0)
    superseded = summary.counts.superseded + summary.counts.applied - (upserts + deletes - halves)
    names = ("_topic", "_partition")
    places = rows.select(list(names)).group_by(list(names)).aggregate([]).to_pylist()
    first_warnings = [
        _first_warning(TopicPartition(place["_topic"], place["_partition"]), [_rows_at(rows, place)])
        for place in places
    ]
    return replace(
        summary,
        counts=replace(
            summary.counts, upserts=upserts, deletes=deletes, split_halves=halves, superseded=superseded
        ),
        findings=replace(
            _findings([rows], shape),
            first_warnings=tuple(warning for warnings in first_warnings for warning in warnings),
        ),
    )


def _rows_at(rows: pa.Table, place: Mapping[str, Any]) -> pa.Table:
    there = (pc.equal(rows[name], value) for name, value in place.items())
    return rows.filter(pc.and_(*there))


def _event_counts(
    decoded: DecodedRecords, truncates: Sequence[OtherRecord], reduction: Reduction
) -> EventCounts:
    """Returns the counts of the events in one range of offsets."""
    others = decoded.others
    events = Counter(record.kind for record in (*others, *truncates))
    silent = sum(batch.num_rows for batch in decoded.silent)
    messages = silent + sum(record.index == 0 for record in others)
    messages += (
        sum(_messages(table) for table in decoded.tables) + decoded.void_records + decoded.waiting_records
    )
    return EventCounts(
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
        unmatched=sum(int(unmatched_rows(table).sum()) for table in decoded.tables),
    )


def _findings(rows: Sequence[pa.Table], shape: TargetSchema) -> RowFindings:
    """Returns what is reported about the rows to apply, without the locations of warnings."""
    return RowFindings(
        warned=sum(len(table) for table in _warned(rows)),
        zero_dates=_marked(rows, "_zero_dates", shape, _DATES) if shape.zero_date == "null" else {},
        ambiguous_times=_marked(rows, "_ambiguous_times", shape, ("timestamp",)),
    )


def _unplanned(place: TopicPartition | None, others: Iterable[OtherRecord]) -> UnplannedSchemas:
    """Returns the schemas and columns that the decode plan lacks.

    A record of which the plan lacks only columns is not one of ``records``.
    """
    unplanned = [record for record in others if record.kind == UNPLANNED]
    offsets = sorted(record.offset for record in unplanned if record.fields is None)
    return UnplannedSchemas(
        key_ids=distinct(record.key_id for record in unplanned),
        value_ids=distinct(record.value_id for record in unplanned),
        columns=distinct(name for record in unplanned for name in record.fields or ()),
        records=() if place is None else tuple(UnplannedRecord(place, offset) for offset in offsets[:1]),
    )


def truncated(tables: Iterable[ChangeTable]) -> list[OtherRecord]:
    """Returns the truncate events among the changes of ``tables``, in Kafka's order."""
    names = ["topic", "partition", "offset", "index", "commit_ts"]
    truncates = []
    for table in tables:
        empties = pc.equal(table.rows["op"].cast(pa.string()), Op.TRUNCATE.value)
        if pc.any(empties).as_py():
            rows = table.rows.select(names).filter(empties).to_pylist()
            truncates += [OtherRecord(TRUNCATE, *row.values()) for row in rows]
    return sorted(truncates, key=lambda record: (record.offset, record.index))


def _moments(tables: Iterable[ChangeTable], *, apart: Sequence[OtherRecord]) -> Iterator[pa.Table]:
    """Yields the operation and commit_ts of each change, as tables.

    ``apart``: the truncates that are counted separately from the changes. If there are any, truncates are
    omitted from the tables.
    """
    for table in tables:
        moments = table.rows.select(["op", "commit_ts"])
        yield (
            moments.filter(pc.not_equal(moments["op"].cast(pa.string()), Op.TRUNCATE.value))
            if apart
            else moments
        )


def _messages(changes: ChangeTable) -> int:
    """Returns the number of Kafka records of these changes. Only the first event of a record is counted."""
    return int(pc.sum(pc.equal(changes.rows["index"], 0)).as_py() or 0)


def _extreme(rows: pa.Table, kind: str, name: str) -> Any:
    return pc.min_max(rows[name])[kind].as_py()


def _spans(tables: Iterable[ChangeTable]) -> dict[int, RowSpan]:
    """Returns the first and last row (``RowSpan``) of each writer schema, by registry id."""
    spans: dict[int, RowSpan] = {}
    for table in tables:
        schema_id = None if table.schema_id is None else table.schema_id.value
        if schema_id is not None and table.rows.num_rows:
            span = span_of(table.rows)
            spans[schema_id] = span.joined(spans.get(schema_id, span))
    return spans


def _offset(row: OtherRecord) -> int:
    return row.offset


def _given(rows: pa.Table, name: str) -> int:
    return len(rows) - rows[name].null_count if name in rows.schema.names else 0


def _max_offset(decoded: DecodedRecords) -> int:
    offsets = [_extreme(table.rows, "max", "offset") for table in decoded.tables]
    offsets += [record.offset for record in decoded.others]
    offsets += [pc.max(batch.column("offset")).as_py() for batch in decoded.silent]
    return max(offsets, default=-1)


def _key_range(rows: Sequence[pa.Table], shape: TargetSchema) -> tuple[object, object] | None:
    """Returns the smallest and the greatest value of the rows' first key column.

    Returns None if there are no rows, or if values of the column's type cannot be ordered.
    """
    first = shape.key_columns[0].name
    keys = [pc.struct_field(table["key"].combine_chunks(), [first]) for table in rows if len(table)]
    try:
        extremes = [pc.min_max(column) for column in keys]
    except pa.ArrowNotImplementedError:
        return None
    if not extremes:
        return None
    return min(extreme["min"].as_py() for extreme in extremes), max(
        extreme["max"].as_py() for extreme in extremes
    )


def _marked(
    rows: Sequence[pa.Table], mark: str, shape: TargetSchema, types: Collection[str]
) -> Mapping[str, int]:
    """Returns, by column, the number of rows to apply whose value carries a mark such as ``zero_dates``.

    Only columns with one of the Spark types ``types`` are counted.
    """
    names = {column.name for column in shape.columns if column.spark in types}
    counts = _counted(Counter(pc.list_flatten(table[mark].combine_chunks()).to_pylist()) for table in rows)
    return {name: count for name, count in counts.items() if name in names}


def _counted(several: Iterable[Mapping[str, int]]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for column_counts in several:
        counts.update(column_counts)
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


def _newest_ddl(place: TopicPartition, others: Iterable[OtherRecord]) -> tuple[DdlRecord, ...]:
    """Returns the newest DDL records in the order of their offsets, with the first event of each record."""
    statements = dict[int, DdlStatement]()
    for record in others:
        if record.statement is not None:
            statements.setdefault(record.offset, record.statement)
    return tuple(DdlRecord(place, *item) for item in sorted(statements.items())[-MOST_EVENTS:])


def _first_bad(others: Iterable[OtherRecord]) -> OtherRecord | None:
    return min((record for record in others if record.kind == BAD), key=_offset, default=None)


def _first_bad_row(others: Iterable[OtherRecord]) -> tuple[BadRow, ...]:
    """Returns the first bad row in a tuple; an empty tuple without bad rows."""
    bad = _first_bad(others)
    return () if bad is None else (BadRow(bad.error or "", bad.reason or ""),)


def _first(topic_partition: TopicPartition, others: Iterable[OtherRecord]) -> tuple[BadRecord, ...]:
    """Returns the first bad record in a tuple; an empty tuple without bad records."""
    bad = _first_bad(others)
    if bad is None:
        return ()
    ids = [schema_id_of(part) for part in (bad.value, bad.key) if part is not None]
    schema_id = ids[0] if ids and None not in ids else None
    return (BadRecord(topic_partition, bad.offset, bad.error or "", bad.reason or "", schema_id),)
