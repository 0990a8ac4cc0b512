"""A history in memory: what ``sinks.history`` says of each key, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tidesink.errors import TargetError
from tidesink.sinks.history import FROM_COLUMN, TO_COLUMN, Moment, Span, difference, span_values
from tidesink.sinks.targets.base import ApplyResult, ReducedBatch, ReducedRow, check_versions

Rows = dict[tuple[Any, ...], dict[str, Any]]
_COUNTED: Final = ("begun", "ends", "absent", "stale")


def merged_versions(
    rows: Rows, batch: ReducedBatch, events: Iterable[ReducedRow], *, version: int
) -> tuple[Rows, ApplyResult]:
    """The rows of a table, by key and begin, after a batch."""
    check_versions(batch)
    merged, counts = dict(rows), dict.fromkeys(_COUNTED, 0)
    for key, sent in _by_key(batch, events).items():
        stored = {row[FROM_COLUMN]: row for at, row in rows.items() if at[:-1] == key}
        spans = [Span(start, row[TO_COLUMN]) for start, row in stored.items()]
        found = difference(spans, [Moment(at, row.op == "upsert") for at, row in sent.items()])
        for at in found.forgotten:
            del merged[_place(key, at)]
        for span in found.ended:
            merged[_place(key, span.from_ts)] = {**stored[span.from_ts], **_times(span, batch)}
        for span in (*found.begun, *(Span(at, at) for at in found.marked)):
            row = sent.get(span.from_ts)
            values = dict(zip(batch.shape.keys, key, strict=True)) if row is None else _values(row)
            merged[_place(key, span.from_ts)] = {**values, **_times(span, batch)}
        for name in _COUNTED:
            counted = getattr(found, name)
            counts[name] += counted if isinstance(counted, int) else len(counted)
    result = ApplyResult(counts["begun"], 0, counts["ends"], counts["absent"], str(version), counts["stale"])
    return merged, result


def _by_key(
    batch: ReducedBatch, events: Iterable[ReducedRow]
) -> dict[tuple[Any, ...], dict[int, ReducedRow]]:
    found: dict[tuple[Any, ...], dict[int, ReducedRow]] = {}
    for row in events:
        if row.commit_ts is None:
            raise TargetError("a row of a history has no commit_ts", table=str(batch.shape.table))
        found.setdefault(tuple(row.key[name] for name in batch.shape.keys), {})[row.commit_ts] = row
    return found


def _place(key: tuple[Any, ...], from_ts: int) -> tuple[Any, ...]:
    return (*key, from_ts)


def _values(row: ReducedRow) -> Mapping[str, Any]:
    return row.key if row.after is None else row.after


def _times(span: Span, batch: ReducedBatch) -> dict[str, object]:
    if batch.history is None:
        raise TargetError("the batch does not name the columns of a history", table=str(batch.shape.table))
    return span_values(span, batch.history)
