"""Ranges cut for tasks, records as Spark takes them, and compressed values, without Spark or Kafka."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.decoded_batches import as_records
from tidesink.codecs.compression import Compression, compressed
from tidesink.events import Message
from tidesink.sinks.batch.record_frames import FetchedRanges, Question, opened_values, split_ranges
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.kafka.offsets import OffsetRange

TEXT = b'{"id":1,"note":"' + b"x" * 200 + b'"}'


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 400_000)), max_size=5),
    st.integers(1, 8),
)
def test_ranges_are_cut_without_a_gap_into_parts_for_the_cores(
    found: list[tuple[int, int]], cores: int
) -> None:
    ranges = [OffsetRange("t", number, start, start + size) for number, (start, size) in enumerate(found)]
    parts = split_ranges(ranges, cores)
    for one in ranges:
        mine = [part for part in parts if part.partition == one.partition]
        assert [n for part in mine for n in (part.start, part.end)][:1] == ([one.start] if mine else [])
        assert all(part.start < part.end for part in mine)
        assert [part.end for part in mine[:-1]] == [part.start for part in mine[1:]]
        assert (mine[-1].end if mine else one.start) == one.end
    records = sum(one.records for one in ranges)
    most = -(-records // max(1, min(cores, records // 50_000)))
    assert all(part.end - part.start <= most for part in parts)
    assert len(parts) <= len(ranges) + cores


@dataclass(frozen=True)
class _Fetch:
    messages: tuple[Message, ...]

    def __call__(self, wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        yield as_records([one for one in self.messages if wanted.start <= one.offset < wanted.end])


def _values(wanted: FetchRange, records: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in records:
        starts = pa.array([wanted.start] * batch.num_rows)
        yield pa.record_batch({"start": starts, "value": batch.column("value")})


def test_a_task_works_on_the_ranges_whose_numbers_it_is_given() -> None:
    messages = tuple(Message("t", 0, n, b"k", b"v%d" % n, timestamp=n or None) for n in range(4))
    ranges = (FetchRange("t", 0, 0, 1), FetchRange("t", 0, 1, 2), FetchRange("t", 0, 2, 4))
    whole = FetchedRanges(ranges, _Fetch(messages), _values)
    task: FetchedRanges[FetchRange] = pickle.loads(pickle.dumps(whole))  # noqa: S301
    (first, second) = task([pa.record_batch({"id": [0, 2]})])
    assert first.to_pydict() == {"start": [0], "value": [b"v0"]}
    assert second.to_pydict() == {"start": [2, 2], "value": [b"v2", b"v3"]}


def _count(records: Iterator[pa.RecordBatch]) -> list[bytes | None]:
    return [value for batch in records for value in batch.column("value").to_pylist()]


def test_a_question_is_asked_of_opened_values() -> None:
    messages = [Message("t", 0, n, None, value) for n, value in enumerate([compressed(TEXT, "lz4"), None])]
    for most, expected in ((10_000, [TEXT, None]), (None, [messages[0].value, None])):
        (answer,) = Question(_count, most)(FetchRange("t", 0, 0, 2), iter([as_records(messages)]))
        assert pickle.loads(answer["answer"][0].as_py()) == expected  # noqa: S301


@pytest.mark.parametrize("kind", ["snappy", "lz4"])
def test_values_are_opened_or_stay_as_they_are(kind: Compression) -> None:
    closed = compressed(TEXT, kind)
    damaged = closed[:-9]
    batch = pa.record_batch({"value": pa.array([closed, None, TEXT, b"", damaged]), "n": range(5)})
    (found,) = opened_values(batch, 10_000)
    assert found["value"].to_pylist() == [TEXT, None, TEXT, b"", damaged]
    assert found["n"].to_pylist() == [0, 1, 2, 3, 4]
    (small,) = opened_values(batch, len(TEXT) - 1)
    assert small["value"].to_pylist() == batch["value"].to_pylist()


def test_a_batch_whose_values_grow_too_large_becomes_several() -> None:
    values = [compressed(TEXT, "lz4")] * 5
    batch = pa.record_batch({"value": pa.array(values, pa.binary()), "n": range(5)})
    found = list(opened_values(batch, 10_000, batch_bytes=2 * len(TEXT)))
    assert [one["n"].to_pylist() for one in found] == [[0, 1], [2, 3], [4]]
    assert [value for one in found for value in one["value"].to_pylist()] == [TEXT] * 5
    (empty,) = opened_values(batch.slice(0, 0), 10_000)
    assert empty.num_rows == 0
