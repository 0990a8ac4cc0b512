"""Whether a log has the record that was read, by a broker in this process, whose log has leader epoch 0.

``tests/e2e/test_cut_logs.py`` has two real brokers and an unclean election.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest
from confluent_kafka import Producer

from tidesink.errors import SourceError
from tidesink.events import TableId
from tidesink.sinks.batch.cuts import topic_after
from tidesink.sinks.kafka.leader_epochs import LeaderEpochs
from tidesink.sinks.kafka.offsets import PartitionOffsets
from tidesink.sinks.state.progress import (
    LastRecord,
    PartitionProgress,
    Progress,
    TopicProgress,
    from_json,
    to_json,
)

TABLE: Final = TableId("shop", "orders")
COUNT: Final = 40
FOUND: Final = {0: PartitionOffsets(0, COUNT)}


@pytest.fixture(scope="module")
def brokers() -> Iterator[str]:
    """librdkafka's own broker, with a topic of one partition."""
    producer = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 0})
    for number in range(COUNT):
        producer.produce("t", value=str(number), partition=0)
    assert producer.flush(60) == 0
    (broker,) = producer.list_topics(timeout=60).brokers.values()
    yield f"{broker.host}:{broker.port}"
    producer.flush(60)  # the broker is there as long as the producer


@pytest.fixture
def log(brokers: str) -> LeaderEpochs:
    return LeaderEpochs({"bootstrap.servers": brokers})


def test_the_record_at_an_end_is_found_again(log: LeaderEpochs) -> None:
    last = log.checked("t", "id", {}, {0: 10}, FOUND)
    assert last == {0: LastRecord(9, 0)}
    for _ in range(3):
        assert log.checked("t", "id", last, {0: COUNT}, FOUND) == {0: LastRecord(COUNT - 1, 0)}
    assert log.last("t", {0: 1}, FOUND) == {0: LastRecord(0, 0)}
    # Nothing to read, a partition that is not there, an end that a broker does not know of.
    assert log.last("t", {0: 0, 7: 5}, FOUND) == {}
    assert log.last("t", {0: COUNT + 1}, FOUND) == {}


def test_another_record_at_its_offset_is_an_error_that_says_what_to_do(log: LeaderEpochs) -> None:
    """The log was written by an earlier leader than the one that is known: no order of events gives that."""
    with pytest.raises(SourceError, match="was cut and has grown again") as caught:
        log.check("t", {0: LastRecord(30, 4)}, FOUND)
    text = str(caught.value)
    assert "offset 30, which was read under leader epoch 4" in text
    for words in ("tidesink offsets rewind TABLE --to-offset 0=", "tidesink resync TABLE"):
        assert words in text


def test_what_other_checks_report_is_left_to_them(log: LeaderEpochs) -> None:
    later = {0: PartitionOffsets(20, COUNT)}
    for record in (LastRecord(COUNT, 4), LastRecord(COUNT + 9, 4)):
        assert log.cuts("t", {0: record}, FOUND) == {}
    assert log.cuts("t", {0: LastRecord(19, 4), 3: LastRecord(1, 4)}, later) == {}


def test_without_a_record_at_the_offset_the_leader_is_asked(log: LeaderEpochs) -> None:
    assert not log._is_cut("t", 0, LastRecord(30, 0))


def _progress(at: PartitionProgress) -> Progress:
    return Progress(TABLE, "shop", 1, 1, {"t": TopicProgress("t", "id", {0: at})})


def test_progress_keeps_the_record_and_reads_what_earlier_versions_stored() -> None:
    for again in (None, 9):
        for last in (None, LastRecord(4, 7)):
            progress = _progress(PartitionProgress(5, 5, 3, None, again, last))
            assert from_json(to_json(progress)) == progress
    plain = to_json(_progress(PartitionProgress(5, 5)))
    assert "[5,5,null,null]" in plain
    stored = plain.replace("[5,5,null,null]", "[5,5,null,null,9]")
    assert from_json(stored).topics["t"].partitions[0] == PartitionProgress(5, 5, again_to=9)


def test_a_batch_brings_a_newer_record_and_a_rewind_forgets_it() -> None:
    before = _progress(PartitionProgress(100, 100, last=LastRecord(99, 1)))

    def after(end: int, last: dict[int, LastRecord]) -> LastRecord | None:
        return topic_after(before, "t", "id", {0: (end, None)}, None, last).partitions[0].last

    assert after(150, {0: LastRecord(149, 2)}) == LastRecord(149, 2)
    assert after(150, {}) == LastRecord(99, 1)
    assert after(100, {}) == LastRecord(99, 1)
    assert after(90, {}) is None
    assert after(20, {}) is None
