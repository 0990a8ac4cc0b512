"""The stream source never gives Spark an end below what was read, and refuses one that a checkpoint has."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pytest
from pyspark.sql.types import StructType

from tidesink.errors import ConfigError, SourceError
from tidesink.sinks.kafka.leader_epochs import LeaderEpochs
from tidesink.sinks.kafka.offsets import NO_ID, KafkaOffsets, PartitionOffsets, TopicOffsets
from tidesink.sinks.spark.data_source import (
    ChangeBatchReader,
    ChangeStreamReader,
    RangePartition,
    ReadOptions,
    _Task,
)
from tidesink.sinks.state.progress import LastRecord

GIVEN: Final = {"kafka.bootstrap.servers": "h:9092", "topic": "t", "protocol": "canal-json"}


class Answers(KafkaOffsets):
    """The ends that the brokers give, one look after the other; the last one stays. ``log`` has leaders."""

    def __init__(self, *ends: Sequence[int], ids: Iterable[str] = ("id",), log: Log | None = None) -> None:
        self._ends, self._ids, self._log = [*ends], [*ids], log

    def lookup(self, topics: Sequence[str]) -> dict[str, TopicOffsets]:
        ends = self._ends.pop(0) if len(self._ends) > 1 else self._ends[0]
        topic_id = self._ids.pop(0) if len(self._ids) > 1 else self._ids[0]
        epochs = {} if self._log is None else dict.fromkeys(range(len(ends)), self._log.epochs[-1][1])
        return {
            topic: TopicOffsets(topic, topic_id, _partitions(ends), leader_epochs=epochs) for topic in topics
        }


def _partitions(ends: Sequence[int]) -> Mapping[int, PartitionOffsets]:
    return {number: PartitionOffsets(0, end) for number, end in enumerate(ends)}


def _task(**more: str) -> _Task:
    return _Task(ReadOptions.of({**GIVEN, **more}, streaming=True), StructType(), None)


def stream(*ends: Sequence[int], ids: Iterable[str] = ("id",), **more: str) -> ChangeStreamReader:
    return ChangeStreamReader(_task(**more), Answers(*ends, ids=ids), pause=0)


def _ranges(reader: ChangeStreamReader, start: Any, end: Any) -> list[tuple[int, int, int]]:
    found = reader.partitions(start, end)
    assert all(isinstance(one, RangePartition) for one in found)
    return [
        (w.partition, w.start, w.end)
        for one in found
        if isinstance(one, RangePartition)
        for w in [one.wanted]
    ]


def _offset(*ends: int, topic_id: str = "id") -> dict[str, Any]:
    return {"topic": "t", "topic_id": topic_id, "partitions": {str(n): at for n, at in enumerate(ends)}}


def test_an_end_that_goes_back_for_a_moment_is_looked_at_again() -> None:
    reader = stream((0,), (100,), (60,), (60,), (120,), startingOffsets="earliest")
    start = reader.initialOffset()
    first = reader.latestOffset()
    assert _ranges(reader, start, first) == [(0, 0, 100)]
    second = reader.latestOffset()
    assert _ranges(reader, first, second) == [(0, 100, 120)]


@pytest.mark.parametrize(
    ("ends", "says"), [((60, 9), "ends at offset 60"), ((120,), "Kafka no longer has this partition")]
)
def test_an_end_that_stays_back_is_an_error_before_spark_stores_it(ends: Sequence[int], says: str) -> None:
    reader = stream((100, 9), ends)
    reader.latestOffset()
    with pytest.raises(SourceError, match=says) as caught:
        reader.latestOffset()
    assert "The checkpoint was not changed" in str(caught.value)
    # Nor later, as long as it stays so.
    with pytest.raises(SourceError, match=says):
        reader.latestOffset()


def test_what_was_read_is_known_by_the_ranges_after_a_restart() -> None:
    """Spark asks a new reader for the ranges of the batch that was not done, or for an end first."""
    again = stream((60,))
    assert _ranges(again, _offset(80), _offset(100)) == [(0, 80, 100)]
    with pytest.raises(SourceError, match="ends at offset 60, but the stream has read up to offset 100"):
        again.latestOffset()
    new = stream((60,))
    end = json.loads(json.dumps(new.latestOffset()))
    with pytest.raises(SourceError, match="delete the newest file in the folder `offsets`"):
        new.partitions(_offset(100), end)
    # As often as Spark tries the batch, and whatever the end is by then.
    with pytest.raises(SourceError, match="the stream has read up to offset 100"):
        stream((120,)).partitions(_offset(100), end)


def test_one_end_for_all_available_records_is_what_is_read() -> None:
    """Trigger.AvailableNow asks for the end once, and plans batches up to it."""
    reader = stream((100,), (60,))
    end = reader.latestOffset()
    assert _ranges(reader, _offset(40), end) == [(0, 40, 100)]
    assert _ranges(reader, end, end) == []


def test_partitions_come_and_a_topic_is_made_again() -> None:
    reader = stream((10,), (10, 5), (3, 1), ids=("id", "id", "other"))
    first = reader.latestOffset()
    second = reader.latestOffset()
    assert _ranges(reader, first, second) == [(1, 0, 5)]
    with pytest.raises(SourceError, match="deleted and recreated"):
        reader.latestOffset()
    with pytest.raises(SourceError, match="deleted and recreated"):
        reader.partitions(second, _offset(20, 20, topic_id="other"))
    with pytest.raises(SourceError, match="no longer has this partition"):
        reader.partitions(second, _offset(20))
    # A broker without topic ids says nothing about it.
    assert _ranges(stream((9,)), _offset(4, topic_id=NO_ID), _offset(9)) == [(0, 4, 9)]


def test_a_start_behind_the_end_is_not_moved_to_it() -> None:
    given = {"startingOffsets": '{"t": {"0": 500}}'}
    reader = stream((100,), **given)
    reader.initialOffset()
    with pytest.raises(SourceError, match="ends at offset 100, but the stream has read up to offset 500"):
        reader.latestOffset()


class Log(LeaderEpochs):
    """A log of one partition: at which offset which leader epoch begins. ``asked``: how many looks it had."""

    def __init__(self, *epochs: tuple[int, int]) -> None:
        self.epochs, self.asked = [*epochs], 0

    def _epoch(self, offset: int) -> int:
        return next(epoch for start, epoch in reversed(self.epochs) if start <= offset)

    def last(self, found: TopicOffsets, ends: Mapping[int, int]) -> dict[int, LastRecord]:  # noqa: ARG002
        self.asked += bool(ends)
        return {n: LastRecord(end - 1, self._epoch(end - 1)) for n, end in ends.items() if end}

    def cuts(self, found: TopicOffsets, known: Mapping[int, LastRecord]) -> dict[int, int]:  # noqa: ARG002
        self.asked += 1
        return {n: self.epochs[-1][0] for n, one in known.items() if self._epoch(one.offset) != one.epoch}


def _logged(log: Log, *ends: Sequence[int]) -> ChangeStreamReader:
    return ChangeStreamReader(_task(), Answers(*ends, log=log), log=log, pause=0)


def test_a_log_that_was_cut_and_grew_is_an_error_also_after_a_restart() -> None:
    log = Log((0, 1))
    reader = _logged(log, (100,), (150,), (160,))
    first = reader.latestOffset()
    assert first["last"] == {"0": [99, 1]}
    second = json.loads(json.dumps(reader.latestOffset()))
    assert _ranges(reader, first, second) == [(0, 100, 150)]
    log.epochs.append((120, 3))
    with pytest.raises(SourceError, match=r"cut at offset 120 .* The checkpoint was not changed"):
        reader.latestOffset()
    again = _logged(log, (160,))
    third = again.latestOffset()
    with pytest.raises(SourceError, match=r"cut at offset 120 .* No record was read"):
        again.partitions(second, third)
    # The first offset of a stream has no such record, and one from before the cut is right.
    plain = {**_offset(150), "partitions": {"0": 150}}
    assert _ranges(again, plain, third) == [(0, 150, 160)]
    assert _ranges(again, first, third) == [(0, 100, 160)]


def test_an_end_with_nothing_new_is_the_same_offset() -> None:
    reader = _logged(Log((0, 1)), (100,))
    assert reader.latestOffset() == reader.latestOffset()


def test_a_batch_asks_for_no_record_while_the_leader_is_the_same() -> None:
    log = Log((0, 1))
    reader = _logged(log, (100,), (150,), (200,), (250,), (300,), (350,))
    offsets = [reader.latestOffset() for _ in range(3)]
    assert [one["last"]["0"] for one in offsets] == [[99, 1], [149, 1], [199, 1]]
    assert _ranges(reader, offsets[1], offsets[2]) == [(0, 150, 200)]
    assert log.asked == 1
    # A new leader, whose log has what was read: that is looked at, and once the last record.
    log.epochs.append((230, 2))
    assert [reader.latestOffset()["last"]["0"] for _ in range(3)] == [[249, 2], [299, 2], [349, 2]]
    assert log.asked == 3


class _Elected(Log):
    """A log that gets a leader with epoch 3 between a look at its end and one at its records."""

    def last(self, found: TopicOffsets, ends: Mapping[int, int]) -> dict[int, LastRecord]:
        if found.leader_epochs == {0: 2}:
            self.epochs = [(0, 1), (140, 3)]
        return super().last(found, ends)


def test_an_end_is_given_once_it_was_checked_under_the_leader_that_wrote_it() -> None:
    log = _Elected((0, 1))
    reader = _logged(log, (100,), (150,))
    first = reader.latestOffset()
    log.epochs.append((120, 2))
    assert reader.latestOffset() == first
    assert reader.latestOffset()["last"] == {"0": [149, 3]}


def test_without_leader_epochs_nothing_is_checked() -> None:
    log = Log((0, 1))
    reader = ChangeStreamReader(_task(), Answers((100,), (150,)), log=log, pause=0)
    first, second = reader.latestOffset(), reader.latestOffset()
    log.epochs.append((90, 3))
    assert _ranges(reader, first, second) == [(0, 100, 150)]


@pytest.mark.parametrize("more", [{}, {"endingOffsets": '{"t": {"0": 400}}'}])
def test_a_batch_that_would_end_before_it_starts_is_refused(more: dict[str, str]) -> None:
    options = ReadOptions.of({**GIVEN, "startingOffsets": '{"t": {"0": 500}}', **more})
    reader = ChangeBatchReader(_Task(options, StructType(), None), Answers((100,)))
    with pytest.raises(ConfigError, match=r"would be read from offset 500 to [14]00, but it ends at 100"):
        reader.partitions()


def test_a_reader_travels_to_the_tasks() -> None:
    reader = stream((100,))
    reader.latestOffset()
    again = pickle.loads(pickle.dumps(reader))  # noqa: S301  (written here)
    assert again.__getstate__() == reader.__getstate__()
