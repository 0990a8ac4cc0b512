"""Looks at many topics: what is asked again, and what one topic without an answer does to the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.servers import create_topics
from tidesink.errors import SourceUnavailableError
from tidesink.sinks.kafka import offsets
from tidesink.sinks.kafka.offsets import KafkaOffsets, PartitionOffsets

pytestmark = pytest.mark.servers
_PATIENCE: Final = 60.0


def _nothing(_topic: str) -> bool:
    return False


class _Counting(KafkaOffsets):
    """Counts the topics whose ids and first offsets are asked for."""

    described: list[str]

    def _describe(self, topics: Sequence[str]) -> Any:
        self.described = list(topics)
        return super()._describe(topics)


def _chosen(topics: Iterable[str]) -> Callable[[Iterable[str]], list[str]]:
    return lambda names: sorted(set(topics) & set(names))


def _send(
    brokers: str, topic: str, *, partition: int = 0, settings: Mapping[str, str] | None = None
) -> Producer:
    producer = Producer({"bootstrap.servers": brokers, **(settings or {})})
    if settings:
        producer.init_transactions(_PATIENCE)
        producer.begin_transaction()
    producer.produce(topic, b"1", partition=partition)
    assert producer.flush(_PATIENCE) == 0
    return producer


@pytest.fixture
def topics(brokers: str, topic_prefix: str) -> list[str]:
    names = [f"{topic_prefix}-{name}" for name in ("calm", "busy")]
    create_topics(brokers, dict.fromkeys(names, 1))
    KafkaOffsets({"bootstrap.servers": brokers}).lookup(names)  # waits until the leader leads
    return names


def test_only_what_changed_is_asked_for_again(brokers: str, topics: list[str]) -> None:
    calm, busy = topics
    asked, chosen = _Counting({"bootstrap.servers": brokers}), _chosen(topics)
    first = asked.look(chosen, _nothing).found
    assert (first, sorted(asked.described)) == (asked.lookup(topics), sorted(topics))
    again = asked.look(chosen, _nothing).found
    assert asked.described == []
    assert all(again[topic] is first[topic] for topic in topics)
    _send(brokers, busy)
    now = asked.look(chosen, _nothing).found
    assert now[calm] is first[calm]
    assert now[busy].partitions == {0: PartitionOffsets(0, 1)}
    assert asked.described == [busy]
    # A table that may read what is there is not planned by what was remembered.
    asked.look(chosen, {calm}.__contains__)
    assert asked.described == [calm]


def test_a_topic_that_changes_without_records_is_noticed(
    brokers: str, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made_again, grown = topics
    asked, chosen = KafkaOffsets({"bootstrap.servers": brokers}), _chosen(topics)
    admin = AdminClient({"bootstrap.servers": brokers})
    first = asked.look(chosen, _nothing).found
    admin.create_partitions([NewPartitions(grown, 2)])[grown].result(_PATIENCE)
    _send(brokers, grown, partition=1)
    assert asked.look(chosen, _nothing).found[grown].partitions[1] == PartitionOffsets(0, 1)
    admin.delete_topics([made_again])[made_again].result(_PATIENCE)
    assert set(asked.look(chosen, _nothing).found) == {grown}
    create_topics(brokers, {made_again: 1})
    asked.lookup([made_again])
    assert asked.look(chosen, _nothing).found[made_again].topic_id != first[made_again].topic_id
    # Expired to the end: the end is where it was, and shows with the next question for all.
    _send(brokers, made_again)
    asked.lookup([made_again])
    for future in admin.delete_records([TopicPartition(made_again, 0, 1)]).values():
        future.result(_PATIENCE)
    monkeypatch.setattr(offsets, "_REMEMBERED_SECONDS", 0.0)
    assert asked.look(chosen, _nothing).found[made_again].partitions[0] == PartitionOffsets(1, 1)


def test_an_open_transaction_is_not_read(brokers: str, topics: list[str]) -> None:
    topic = topics[0]
    asked = KafkaOffsets({"bootstrap.servers": brokers})
    producer = _send(brokers, topic, settings={"transactional.id": topic})
    assert asked.look(_chosen([topic])).found[topic].partitions[0].latest == 0
    producer.commit_transaction(_PATIENCE)
    # The broker writes the marker after it has answered.
    deadline = time.monotonic() + _PATIENCE
    while asked.look(_chosen([topic])).found[topic].partitions[0].latest != 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_one_topic_without_an_answer_hides_no_other(
    brokers: str, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No leader, as the metadata say it; no right, as the answer about offsets says it, or the whole call."""
    calm, broken = topics
    asked, chosen = KafkaOffsets({"bootstrap.servers": brokers}), _chosen(topics)
    asked.look(chosen, _nothing)
    consumer = asked._consumer

    class Leaderless:
        """The consumer, to which one topic has no leader, or whose offsets nobody may see."""

        def __init__(self, *, listed: bool, whole: bool = False) -> None:
            self._listed, self._whole = listed, whole

        def poll(self, timeout: float) -> Any:
            return consumer.poll(timeout)

        def list_topics(self, **how: Any) -> Any:
            found = consumer.list_topics(**how)
            if self._listed:
                found.topics[broken].partitions[0].leader = -1
            return found

        def offsets_for_times(self, places: list[TopicPartition], **how: Any) -> list[TopicPartition]:
            assert not (self._listed and broken in [one.topic for one in places])
            if self._whole and broken in [one.topic for one in places]:
                raise KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
            answers = consumer.offsets_for_times(places, **how)
            return [_Refused(broken) if one.topic == broken else one for one in answers]

    class _Refused(TopicPartition):
        error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)

    monkeypatch.setattr(asked, "_consumer", Leaderless(listed=True))
    seen = asked.look(chosen, _nothing)
    assert set(seen.found) == {calm}
    assert isinstance(seen.unanswered[broken], SourceUnavailableError)
    monkeypatch.setattr(asked, "_consumer", Leaderless(listed=False))
    for _ in range(2):
        seen = asked.look(chosen, _nothing)
        assert set(seen.found) == {calm}
        assert "TOPIC_AUTHORIZATION_FAILED" in str(seen.unanswered[broken])
    monkeypatch.setattr(asked, "_consumer", Leaderless(listed=False, whole=True))
    for unread in (_nothing, {calm, broken}.__contains__):
        seen = asked.look(chosen, unread)
        assert set(seen.found) == {calm}
        assert isinstance(seen.unanswered[broken], SourceUnavailableError)
    monkeypatch.setattr(asked, "_consumer", consumer)
    assert set(asked.look(chosen, _nothing).found) == set(topics)
