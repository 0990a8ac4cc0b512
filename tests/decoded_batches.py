"""Comparing decoded batches: by record, so that neither the order of tables nor their cut matters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tidesink.codecs.batch import ChangeTable, DecodedBatch
from tidesink.events import Message

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def as_records(messages: Iterable[Message]) -> pa.RecordBatch:
    """Messages as the record batch that ``decode_batch`` takes."""
    found = list(messages)
    return pa.record_batch(
        {
            "topic": pa.array([one.topic for one in found], pa.string()),
            "partition": pa.array([one.partition for one in found], pa.int32()),
            "offset": pa.array([one.offset for one in found], pa.int64()),
            "key": pa.array([one.key for one in found], pa.binary()),
            "value": pa.array([one.value for one in found], pa.binary()),
            "timestamp": pa.array([one.timestamp for one in found], pa.int64()),
            "headers": pa.array(
                [[{"key": k, "value": v} for k, v in one.headers] or None for one in found], _HEADERS
            ),
        }
    )


def with_part(message: Message, part: str, data: bytes) -> Message:
    """The message with another ``key`` or ``value``, whichever ``part`` names."""
    return replace(message, key=data) if part == "key" else replace(message, value=data)


def by_record(decoded: DecodedBatch) -> list[tuple[Any, ...]]:
    """Every row change with its schema and the types of its columns, in the order of the input."""
    rows = [
        (row.pop("record"), row.pop("index"), one.table, one.schema_id, _text(row), one.schema, _types(one))
        for one in decoded.tables
        for row in one.rows.to_pylist()
    ]
    return sorted(rows, key=lambda row: row[:2])


def _text(row: dict[str, Any]) -> str:
    # As text: NaN is not equal to itself, and -0.0 is to 0.0.
    return repr(row)


def _types(table: ChangeTable) -> str:
    return str(table.rows.schema)


def faults_of(decoded: DecodedBatch) -> list[tuple[int, str, str, dict[str, Any]]]:
    """Every fault: the record, the error's class, its message and its context."""
    return [
        (one.record, type(one.error).__name__, one.error.message, one.error.context) for one in decoded.faults
    ]


def assert_same(found: DecodedBatch, reference: DecodedBatch) -> None:
    """Hold a decoded batch to what the row path gives."""
    assert faults_of(found) == faults_of(reference)
    assert found.events == reference.events
    assert found.records == reference.records
    ours, theirs = by_record(found), by_record(reference)
    assert [row[:2] for row in ours] == [row[:2] for row in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert one == other
    for table in found.tables:
        table.rows.validate(full=True)
