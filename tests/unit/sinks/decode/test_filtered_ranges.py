"""The two parts of a task around a row filter: what the first gives the second, however Spark cuts it."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.sinks.batch.test_range_tasks import OLD, WANTED, Topic, shape, summary
from tidesink.errors import FilterError, SourceError, SourceUnavailableError
from tidesink.events import Op
from tidesink.sinks.batch.source_rows import MatchingRows
from tidesink.sinks.batch.tasks import RangeTask, RangeTooLargeError
from tidesink.sinks.decode.filtering import CHUNK, FILTERED, RowFilterRule
from tidesink.sinks.decode.target_rows import TargetRows
from tidesink.sinks.spark.payloads import unpack

RULE = RowFilterRule("name < 'm'", "", ("name",), "`name` string")
OTHER = WANTED._replace(partition=1)


def task_of(topic: Topic) -> RangeTask:
    """The task over both ranges, under the filter."""
    task = topic.task(TargetRows(shape(OLD)))
    return replace(task, ranges=(WANTED, OTHER), plan=replace(task.plan, row_filter=RULE))


def judged(chunks: Iterator[pa.RecordBatch], size: int) -> list[pa.RecordBatch]:
    """What Spark makes of chunks: a verdict for each row, in batches of its own size."""
    whole = pa.Table.from_batches(list(chunks))
    said = [_verdict(row[FILTERED]) for row in whole.to_pylist()]
    judgements = pa.table({CHUNK: whole[CHUNK], "verdict": pa.array(said, pa.string())})
    batches: list[pa.RecordBatch] = judgements.to_batches(size)
    return batches


def _verdict(row: dict[str, Any] | None) -> str | None:
    name = None if row is None else row["name"]
    return "null" if name is None else None if name == "fails" else str(name < "m").lower()


def packed(
    task: RangeTask, batches: list[pa.RecordBatch]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows to apply and what is no row, and the payloads."""
    payloads = [row for one in task.filtered(batches) for row in one.to_pylist()]
    found = (
        pa.Table.from_pylist(payloads)
        .select(["payload", "error"])
        .cast(pa.schema([("payload", pa.binary()), ("error", pa.binary())]))
    )
    return [row for one in unpack(found.to_batches()) for row in one.to_pylist()], payloads


@pytest.mark.parametrize("fetched", [1, 3, 100])
@pytest.mark.parametrize("size", [1, 2, 100])
def test_rows_that_do_not_satisfy_are_deletes_however_batches_are_cut(fetched: int, size: int) -> None:
    topic = Topic()
    for key, name in ((1, "a"), (2, "x"), (3, "a"), (3, "x"), (4, "x"), (4, "b"), (5, None), (6, "fails")):
        topic.write(OLD, {"id": key, "name": name})
    topic.write(OLD, {"id": 7, "name": "z"}, Op.DELETE)
    topic.send(None, b"\x02" + (95).to_bytes(8, "big"))
    task = task_of(topic)
    # A range with records, and one without.
    chunks = [*task.chunks(WANTED, topic.batches(fetched)), *task.chunks(OTHER, [])]
    rows, payloads = packed(task, judged(iter(chunks), size))
    applied = {row["key"]["id"]: row["_op"] for row in rows if row["key"] is not None}
    assert applied == {
        1: "upsert", 2: "delete", 3: "delete", 4: "upsert", 5: "delete", 7: "delete"
    }  # fmt: skip
    (bad,) = (row["_detail"] for row in rows if row["key"] is None)
    assert (bad["error"], "name < 'm'" in bad["reason"]) == (FilterError.__name__, True)
    counts = summary([one for one in payloads if one["partition"] == 0]).counts
    assert (counts.read, counts.messages, counts.superseded, counts.bad) == (10, 10, 2, 1)
    assert (counts.upserts, counts.deletes, counts.unmatched, counts.watermarks) == (2, 4, 4, 1)
    (nothing,) = (one for one in payloads if one["partition"] == 1)
    assert (nothing["records"], nothing["error"]) == (0, None)


def test_of_rows_that_are_read_for_a_history_those_that_satisfy_are_left() -> None:
    topic = Topic()
    for key, name in ((1, "a"), (2, "x"), (3, None), (4, "b")):
        topic.write(OLD, {"id": key, "name": name})
    task = replace(task_of(topic), only=MatchingRows())
    rows, payloads = packed(task, judged(task.chunks(WANTED, topic.batches(100)), 100))
    assert {row["key"]["id"]: row["_op"] for row in rows} == {1: "upsert", 4: "upsert"}
    counts = summary(payloads).counts
    assert (counts.read, counts.upserts, counts.deletes) == (4, 2, 0)
    assert (counts.superseded, counts.unmatched) == (2, 2)


def test_an_error_keeps_its_class_through_both_parts() -> None:
    topic = Topic()
    topic.write(OLD, {"id": 1, "name": "a"})

    def fails() -> Iterator[pa.RecordBatch]:
        yield from topic.batches(1)
        raise SourceUnavailableError("gone")

    task = task_of(topic)
    chunks = [*task.chunks(WANTED, fails()), *task.chunks(OTHER, topic.batches(1))]
    first, *rest = [row for one in task.filtered(judged(iter(chunks), 100)) for row in one.to_pylist()]
    error = pickle.loads(first["error"])  # noqa: S301  (our own)
    assert isinstance(error, SourceError)
    assert type(error) is SourceUnavailableError
    assert [(one["partition"], one["error"]) for one in rest] == [(1, None)]


def test_a_range_that_is_too_heavy_is_refused_before_its_chunks_go_through_spark() -> None:
    topic = Topic()
    for number in range(9):
        topic.write(OLD, {"id": number, "name": "n" * 100})
    task = replace(task_of(topic), most_bytes=400)
    chunks = [*task.chunks(WANTED, topic.batches(2))]
    assert sum(one.num_rows for one in chunks) < 9
    (payload,) = (row for one in task.filtered(judged(iter(chunks), 100)) for row in one.to_pylist())
    assert type(pickle.loads(payload["error"])) is RangeTooLargeError  # noqa: S301  (our own)
