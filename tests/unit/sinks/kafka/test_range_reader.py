"""The one loop that reads ranges of offsets, and the commands that read topics with it.

A scripted consumer stands for librdkafka: each consume call returns the next list of real messages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from tests.unit.sinks.kafka.scripted_consumer import TOPIC, ScriptedConsumer, end, failure, record
from tidesink.cli.sources import Start, read_topic
from tidesink.errors import BrokerUnavailableError, SourceError, SourceUnavailableError
from tidesink.sinks.kafka.consume import AssignedConsumer, OffsetBounds, RangeReader, ReadLimits

Calls: TypeAlias = "list[list[Message]]"


def reader(
    consumer: ScriptedConsumer, ranges: Mapping[int, OffsetBounds], limits: ReadLimits | None = None
) -> RangeReader:
    opened = AssignedConsumer({"bootstrap.servers": "b"}, {"group.id": "g"}, open_client=consumer.opened)
    return RangeReader(opened, TOPIC, ranges, limits or ReadLimits(), clock=lambda: consumer.now)


def read(
    consumer: ScriptedConsumer, ranges: Mapping[int, OffsetBounds], limits: ReadLimits | None = None
) -> list[Any]:
    """All offsets of the ranges, with their partitions if there are several."""
    wanted = reader(consumer, ranges, limits)
    messages: list[Message] = []
    while not wanted.is_complete():
        messages += wanted.consume(100, 1.0)
    assert wanted.consume(100) == []
    assert wanted.unreached == wanted.open_partitions == frozenset()
    return [one.offset() if len(ranges) == 1 else (one.partition(), one.offset()) for one in messages]


@pytest.mark.parametrize(
    ("calls", "offsets"),
    [
        ([[record(3), record(4)], [record(5), record(6)]], [3, 4, 5, 6]),
        ([[record(3), record(6)]], [3, 6]),
        # Kafka returns whole record batches, so also records before and after the range.
        ([[record(1), record(2), record(3)], [record(6), record(7), record(8)]], [3, 6]),
        # The last offsets of the range have no record.
        ([[record(3), record(9)]], [3]),
        ([[record(3), end(7)]], [3]),
        ([[record(3)], [], [end(12)]], [3]),
        ([[end(7)]], []),
        # The partition's end was reported before its last records arrived.
        ([[record(3), end(4), record(4)], [end(5), record(5), record(6)]], [3, 4, 5, 6]),
        # Messages of an earlier use of the consumer.
        ([[record(3, 1), record(3), end(9, 1)], [record(4, topic="u"), record(6)]], [3, 6]),
    ],
)
def test_a_range_is_complete_at_its_end_or_at_the_partitions(calls: Calls, offsets: list[int]) -> None:
    consumer = ScriptedConsumer(calls)
    assert read(consumer, {0: OffsetBounds(3, 7)}) == offsets
    assert (consumer.assigned, consumer.calls, consumer.dropped) == ([(0, 3)], [], [])


def test_no_more_records_are_asked_for_than_the_range_has() -> None:
    consumer = ScriptedConsumer([[record(3), record(4)], [record(5), record(6)]])
    read(consumer, {0: OffsetBounds(3, 7)})
    assert consumer.asked == [4, 2]


def test_a_complete_partition_is_no_longer_read_beside_others() -> None:
    consumer = ScriptedConsumer([[record(0), record(0, 1)], [record(1), record(2), record(1, 1), end(2, 1)]])
    ranges = {0: OffsetBounds(0, 2), 1: OffsetBounds(0, 2), 2: OffsetBounds(5, 5)}
    assert read(consumer, ranges) == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert (consumer.assigned, consumer.dropped) == ([(0, 0), (1, 0)], [0])


def test_an_empty_range_asks_for_nothing() -> None:
    consumer = ScriptedConsumer()
    assert read(consumer, {0: OffsetBounds(3, 3)}) == []
    assert (consumer.assigned, consumer.asked) == ([], [])


def test_a_silent_partition_is_named_though_others_have_records() -> None:
    others: Calls = [call for n in range(70) for call in ([record(n)], [])]
    consumer = ScriptedConsumer([[record(4, 1)], *others])
    with pytest.raises(BrokerUnavailableError, match="did not answer for 60 seconds") as caught:
        read(consumer, {0: OffsetBounds(0, 100), 1: OffsetBounds(4, 9)})
    assert caught.value.context == {"topic": TOPIC, "partition": 1, "offset": 5}
    assert consumer.now == 61


def test_a_callers_own_time_and_a_pause_are_no_silence() -> None:
    consumer = ScriptedConsumer()
    wanted = reader(consumer, {0: OffsetBounds(0, 9), 1: OffsetBounds(0, 9)})
    wanted.pause(1)
    for offset in range(8):
        consumer.now += 1000
        consumer.calls = [[], [record(offset)]]
        assert wanted.consume(9, 50.0) == []
        assert len(wanted.consume(9, 50.0)) == 1
    wanted.resume(1)
    consumer.calls = [[record(8)]]
    assert len(wanted.consume(9, 50.0)) == 1
    assert (wanted.open_partitions, consumer.paused) == ({1}, [])
    with pytest.raises(BrokerUnavailableError):
        [wanted.consume(9, 50.0) for _ in range(2)]


def test_errors_that_may_pass_are_named_by_a_later_silence_and_forgotten_with_a_record() -> None:
    passing = failure(KafkaError.NOT_LEADER_FOR_PARTITION)
    assert read(
        ScriptedConsumer([[passing], [passing, record(0)], [record(1)]]), {0: OffsetBounds(0, 2)}
    ) == [0, 1]
    with pytest.raises(BrokerUnavailableError, match="NOT_LEADER_FOR_PARTITION"):
        read(ScriptedConsumer([[record(0)], [passing]]), {0: OffsetBounds(0, 2)})
    with pytest.raises(BrokerUnavailableError, match=r"60 seconds\. ") as caught:
        read(ScriptedConsumer([[passing], [record(0)]]), {0: OffsetBounds(0, 2)})
    assert caught.value.context["offset"] == 1
    # Nothing joins a group.
    group = failure(KafkaError.GROUP_AUTHORIZATION_FAILED)
    assert read(ScriptedConsumer([[group], [record(0)]]), {0: OffsetBounds(0, 1)}) == [0]


@pytest.mark.parametrize(
    ("code", "remedy", "text"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "stop", "needs permission to read"),
        (KafkaError._BAD_MSG, "stop", r"receive\.message\.max\.bytes \(100000000\)"),
        (KafkaError.INVALID_MSG, "stop", "See the broker's log"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, "retry", "does not have this partition"),
    ],
)
def test_other_errors_of_a_partition_are_raised_at_once(code: int, remedy: str, text: str) -> None:
    consumer = ScriptedConsumer([[record(0), failure(code)]])
    with pytest.raises(SourceError, match=text) as caught:
        read(consumer, {0: OffsetBounds(0, 9)})
    assert (caught.value.remedy, consumer.now) == (remedy, 0)
    assert caught.value.context == {"topic": TOPIC, "partition": 0, "offset": 1}
    # Not of a partition that was read to its end, and not once all were.
    assert read(
        ScriptedConsumer([[record(0), failure(code), failure(code, -1)]]), {0: OffsetBounds(0, 1)}
    ) == [0]
    ranges = {0: OffsetBounds(0, 1), 1: OffsetBounds(0, 1)}
    assert read(ScriptedConsumer([[record(0), failure(code)], [record(0, 1)]]), ranges) == [(0, 0), (1, 0)]


@pytest.mark.parametrize(
    ("code", "seconds"),
    [(KafkaError._AUTHENTICATION, 11), (KafkaError._UNKNOWN_TOPIC, 2), (KafkaError._ALL_BROKERS_DOWN, 61)],
)
def test_an_error_of_the_client_may_be_left_over_and_counts_after_a_while(code: int, seconds: int) -> None:
    consumer = ScriptedConsumer([[record(0)]])
    wanted = reader(consumer, {0: OffsetBounds(0, 2)})
    consumer.error_cb(KafkaError(code))
    assert len(wanted.consume(9)) == 1
    with pytest.raises(SourceError, match=KafkaError(code).name()):
        [wanted.consume(9, 1.0) for _ in range(100)]
    assert consumer.now == seconds


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (5, 9, "expired: the partition begins at 5 now"),
        (0, 2, "do not exist: the partition ends at 2"),
        (0, None, "do not exist: they expired"),
    ],
)
def test_an_offset_that_kafka_no_longer_has_is_an_error(low: int, high: int | None, text: str) -> None:
    consumer = ScriptedConsumer([[failure(KafkaError._AUTO_OFFSET_RESET)]], low, high)
    with pytest.raises(SourceError, match=rf"Offsets from 3 on {text}.*Nothing was skipped\. Do X\."):
        read(consumer, {0: OffsetBounds(3, 9)}, ReadLimits(expired="Do X."))


def test_a_partition_that_ends_before_the_range_lost_records() -> None:
    consumer = ScriptedConsumer([[record(0), end(1)]])
    with pytest.raises(
        SourceError, match=r"ends at offset 1, but .* offset 9 .*recreated\. Do X\."
    ) as caught:
        read(consumer, {0: OffsetBounds(0, 9)}, ReadLimits(short="Do X."))
    assert consumer.now == 11
    assert not isinstance(caught.value, SourceUnavailableError)
    # The end may be that of a broker that lags.
    late: Calls = [[end(1)], [], [record(1)], *[[] for _ in range(9)], [end(2)], [], [record(2)]]
    assert read(ScriptedConsumer([[record(0)], *late]), {0: OffsetBounds(0, 3)}) == [0, 1, 2]
    # A record after the end shows that the end is no longer there.
    later: Calls = [[end(1)], [record(1)], *[[] for _ in range(20)], [record(2)]]
    assert read(ScriptedConsumer([[record(0)], *later]), {0: OffsetBounds(0, 3)}) == [0, 1, 2]


def test_a_range_without_an_end_may_rest_where_the_partition_ends() -> None:
    consumer = ScriptedConsumer([[record(0), end(1)]], high=1)
    wanted = reader(consumer, {0: OffsetBounds(0)})
    assert wanted.unreached == {0}
    assert len(wanted.consume(9)) == 1
    assert wanted.unreached == set()
    for _ in range(1000):
        assert wanted.consume(9, 1.0) == []
    # After an error of the client, the brokers are asked whether they are there.
    for code in (KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION, KafkaError._UNKNOWN_TOPIC):
        consumer.error_cb(KafkaError(code))
        for _ in range(100):
            assert wanted.consume(9, 1.0) == []
    assert consumer.ends_asked == 3
    consumer.error_cb(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    consumer.high = None
    with pytest.raises(BrokerUnavailableError, match="_ALL_BROKERS_DOWN") as caught:
        [wanted.consume(9, 1.0) for _ in range(100)]
    assert caught.value.context["offset"] == 1


def test_an_error_that_may_pass_is_taken_once() -> None:
    passing = failure(KafkaError.LEADER_NOT_AVAILABLE, 1)
    consumer = ScriptedConsumer([[passing, record(0)], [passing], [end(0, 1)]])
    wanted = reader(consumer, {0: OffsetBounds(0), 1: OffsetBounds(0)}, ReadLimits(silence=math.inf))
    assert len(wanted.consume(9)) == 1
    taken = wanted.take_error()
    assert taken is not None
    assert taken.code() == KafkaError.LEADER_NOT_AVAILABLE
    assert wanted.take_error() is None
    assert [wanted.consume(9), wanted.consume(9), wanted.take_error()] == [[], [], None]


def test_a_client_that_refuses_an_assignment_is_an_error_of_the_range() -> None:
    class _Refusing(ScriptedConsumer):
        def assign(self, _places: list[TopicPartition]) -> None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    with pytest.raises(BrokerUnavailableError, match="_TIMED_OUT"):
        reader(_Refusing(), {0: OffsetBounds(0, 1)})


def _command(consumer: ScriptedConsumer, start: Start, **more: Any) -> Iterable[tuple[int, int]]:
    properties = {"bootstrap.servers": "b:9092"}
    messages = read_topic(properties, TOPIC, start=start, open_client=consumer.opened, **more)
    return ((message.partition, message.offset) for message in messages)


def test_a_command_merges_partitions_by_time() -> None:
    first = [record(n, 0, time_ms=10 * n) for n in range(3)]
    second = [record(n, 1, time_ms=10 * n + 5) for n in range(3)]
    consumer = ScriptedConsumer([[*first, *second]], high=3)
    consumer.partitions = [0, 1]
    assert list(_command(consumer, Start("earliest"))) == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
    assert consumer.is_closed
    # A partition may end with a transaction's marker.
    consumer.calls = [[*first[:2], *second], [end(3)]]
    assert list(_command(consumer, Start("offset", 1))) == [(0, 1), (1, 1), (1, 2)]
    consumer.calls = [[end(3)], [end(3, 1)], [record(3, 1), record(3)]]
    assert list(_command(consumer, Start("latest"), limit=2)) == [(1, 3), (0, 3)]


def test_a_command_gives_up_on_a_partition_that_stays_silent() -> None:
    """Its leader is down, or does not send what it says to have."""
    consumer = ScriptedConsumer([[record(4)]], low=4, high=9)
    with pytest.raises(BrokerUnavailableError, match="Check that the brokers run") as caught:
        list(_command(consumer, Start("earliest"), limits=ReadLimits(silence=0.01)))
    expected = {"topic": TOPIC, "partition": 0, "offset": 5, "brokers": "b:9092"}
    assert caught.value.context == expected
    assert ReadLimits().silence == 60
