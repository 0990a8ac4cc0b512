"""Decoding under the bound of a cut (``laws.bound``): a range ends at its first watermark at the bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from tidesink.ddl.history import ddl_moment
from tidesink.sinks.decode.records import WATERMARK, DecodedRecords
from tidesink.sinks.laws.counts import least


def up_to_bound(
    batches: Iterable[pa.RecordBatch], decode: Callable[[pa.RecordBatch], DecodedRecords], bound: int | None
) -> Iterator[DecodedRecords]:
    """Decodes the records of a range up to its first watermark with a commit_ts at or above ``bound``.

    The batches must be in the order of their offsets. If a batch was split into one batch per table
    (``SplitByTable``), the records that name no table, which include the watermarks, must come first.

    Args:
        batches: Kafka records of one range.
        decode: Decodes one batch.
        bound: A commit_ts, or None to decode all records.
    """
    if bound is None:
        yield from map(decode, batches)
        return
    passed: int | None = None
    for batch in batches:
        records = batch if passed is None else _read_to(batch, passed)
        if passed is not None and not records.num_rows:
            if pc.min(batch.column("offset")).as_py() > passed:
                return
            continue
        decoded = decode(records)
        watermark_offset = _first_at(decoded, bound)
        if watermark_offset is not None and (passed is None or watermark_offset < passed):
            passed = watermark_offset
            decoded = decode(_read_to(records, passed))
            decoded.passed = passed
        decoded.waits = least([decoded.waits, *_ddl_above(decoded, bound)])
        yield decoded


def _read_to(batch: pa.RecordBatch, last: int) -> pa.RecordBatch:
    return batch.filter(pc.less_equal(batch.column("offset"), last))


def _ddl_above(decoded: DecodedRecords, bound: int) -> Iterator[int]:
    """Yields the offsets of DDL events with a commit time above the bound. These events wait, as rows do.

    An event with an impossible commit time is not yielded, because no bound would ever reach that time.
    """
    for event in decoded.others:
        statement = event.statement
        moment = None if statement is None else ddl_moment(event.commit_ts, None, statement.time)
        if moment is not None and moment > bound:
            yield event.offset


def _first_at(decoded: DecodedRecords, bound: int) -> int | None:
    """Returns the offset of the first watermark whose commit_ts is at or above the bound; None if there is no
    such watermark.
    """
    marks = (event for event in decoded.others if event.kind == WATERMARK and event.commit_ts is not None)
    return min((mark.offset for mark in marks if (mark.commit_ts or 0) >= bound), default=None)
