"""Looks at many topics: what is asked again, and what one topic without an answer does to the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from tests.servers import create_topics
from tidesink.errors import SourceUnavailableError
from tidesink.kafka_client import OpenClient, open_client
from tidesink.sinks.kafka.compaction import Compaction
from tidesink.sinks.kafka.fetch import OpenConsumer
from tidesink.sinks.kafka.offsets import FirstRecord, KafkaOffsets, PartitionOffsets

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


def _asking(brokers: str, kinds: Mapping[Any, Any]) -> KafkaOffsets:
    """``kinds``: the classes of clients that are opened in place of confluent-kafka's own."""

    def opened(kind: Any, *given: Any, **more: Any) -> Any:
        return open_client(kinds.get(kind, kind), *given, **more)

    return KafkaOffsets({"bootstrap.servers": brokers}, open_client=opened)


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


def test_a_topic_that_changes_without_records_is_noticed(brokers: str, topics: list[str]) -> None:
    made_again, grown = topics
    now = 100.0
    asked, chosen = KafkaOffsets({"bootstrap.servers": brokers}, clock=lambda: now), _chosen(topics)
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
    assert asked.look(chosen, _nothing).found[made_again].partitions[0] == PartitionOffsets(0, 1)
    for future in admin.delete_records([TopicPartition(made_again, 0, 1)]).values():
        future.result(_PATIENCE)
    assert asked.look(chosen, _nothing).found[made_again].partitions[0] == PartitionOffsets(0, 1)
    now += 15
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


def test_one_topic_without_an_answer_hides_no_other(brokers: str, topics: list[str]) -> None:
    """No leader, as the metadata say it; no right, as the answer about offsets says it, or the whole call."""
    calm, broken = topics
    fault = ""

    class Faulty(Consumer):
        """A consumer, to which one topic has no leader, or whose offsets nobody may see."""

        def list_topics(self, *named: Any, **how: Any) -> Any:
            found = super().list_topics(*named, **how)
            if fault == "leaderless":
                found.topics[broken].partitions[0].leader = -1
            return found

        def offsets_for_times(
            self, partitions: list[TopicPartition], timeout: float = 60.0
        ) -> list[TopicPartition]:
            asks = broken in [one.topic for one in partitions]
            assert not (fault == "leaderless" and asks)
            if fault == "moved" and asks:
                raise KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
            answers = super().offsets_for_times(partitions, timeout)
            return [_Refused(broken) if fault and one.topic == broken else one for one in answers]

    class _Refused(TopicPartition):
        error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)

    asked, chosen = _asking(brokers, {Consumer: Faulty}), _chosen(topics)
    asked.look(chosen, _nothing)
    fault = "leaderless"
    seen = asked.look(chosen, _nothing)
    assert set(seen.found) == {calm}
    assert isinstance(seen.unanswered[broken], SourceUnavailableError)
    fault = "refused"
    for _ in range(2):
        seen = asked.look(chosen, _nothing)
        assert set(seen.found) == {calm}
        assert "TOPIC_AUTHORIZATION_FAILED" in str(seen.unanswered[broken])
    fault = "moved"
    for unread in (_nothing, {calm, broken}.__contains__):
        seen = asked.look(chosen, unread)
        assert set(seen.found) == {calm}
        assert isinstance(seen.unanswered[broken], SourceUnavailableError)
    fault = ""
    assert set(asked.look(chosen, _nothing).found) == set(topics)


def test_how_a_topic_is_compacted_is_asked_once(brokers: str, topics: list[str]) -> None:
    compacted, calm = f"{topics[0]}-compacted", topics[1]
    admin = AdminClient({"bootstrap.servers": brokers})
    settings = {"cleanup.policy": "compact,delete", "delete.retention.ms": "1500"}
    admin.create_topics([NewTopic(compacted, 1, 1, config=settings)])[compacted].result(_PATIENCE)
    asked = KafkaOffsets({"bootstrap.servers": brokers})
    found = asked.lookup([compacted, calm])
    assert found[compacted].compaction == Compaction("compact,delete", 1.5)
    assert found[calm].compaction is None
    # It is not asked again.
    for resource in ({compacted: "delete"}, {calm: "compact"}):
        ((name, policy),) = resource.items()
        entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
        change = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=[entry])
        admin.incremental_alter_configs([change])[change].result(_PATIENCE)
    assert asked.look(_chosen([compacted, calm])).found == found
    again = KafkaOffsets({"bootstrap.servers": brokers}).lookup([compacted, calm])
    assert again[compacted].compaction is None
    assert again[calm].compaction == Compaction("compact", 86_400.0)


def test_a_user_who_may_not_ask_for_the_policy_reads_on(brokers: str, topics: list[str]) -> None:
    told = list[str]()
    error = KafkaError.TOPIC_AUTHORIZATION_FAILED

    class Refused(AdminClient):
        """The client of a user who may not see the settings of topics."""

        def describe_configs(  # type: ignore[override]  # the library's stub lacks the answer
            self, resources: list[ConfigResource], **_how: Any
        ) -> dict[ConfigResource, Future[Any]]:
            told.extend(one.name for one in resources)
            found: dict[ConfigResource, Future[Any]] = {one: Future() for one in resources}
            for future in found.values():
                future.set_exception(KafkaException(KafkaError(error)))
            return found

    asked = _asking(brokers, {AdminClient: Refused})
    found = asked.lookup(topics)
    assert [one.compaction for one in found.values()] == [None, None]
    assert (asked.lookup(topics), sorted(told)) == (found, sorted(topics))
    # What passes is not taken for an answer.
    error = KafkaError.REQUEST_TIMED_OUT
    seen = _asking(brokers, {AdminClient: Refused}).look(_chosen(topics))
    assert (seen.found, set(seen.unanswered)) == ({}, set(topics))
    assert isinstance(seen.unanswered[topics[0]], SourceUnavailableError)


def test_a_topic_that_is_not_there_hides_no_other(brokers: str, topics: list[str]) -> None:
    """Nor does it take long: a name that is asked for alone, and one that was chosen and is gone."""
    asked, gone = KafkaOffsets({"bootstrap.servers": brokers}), f"{topics[0]}-never"
    started = time.monotonic()
    assert set(asked.lookup([gone, *topics])) == set(topics)
    assert asked.lookup([gone]) == {}
    busy = topics[1]
    asked.look(_chosen(topics))

    def chosen(names: Iterable[str]) -> list[str]:
        found = sorted(set(topics) & set(names))
        admin = AdminClient({"bootstrap.servers": brokers})
        # It goes between the list of topics and the questions about them.
        admin.delete_topics([busy])[busy].result(_PATIENCE)
        return found

    seen = asked.look(chosen)
    assert (set(seen.found), seen.unanswered) == ({topics[0]}, {})
    assert time.monotonic() - started < _PATIENCE / 2


def test_the_first_records_of_partitions(brokers: str, topics: list[str]) -> None:
    topic, empty = topics
    asked = KafkaOffsets({"bootstrap.servers": brokers})
    assert asked.first_records(empty, [0]) == {}
    producer = Producer({"bootstrap.servers": brokers})
    for moment in (1000, 5000, 3000, 9000):
        producer.produce(topic, b"1", partition=0, timestamp=moment)
        producer.flush(_PATIENCE)
    assert asked.first_records(topic, [0]) == {0: FirstRecord(0, 1000)}
    assert asked.first_since(topic, [0], 4.0) == {0: 1}
    assert asked.first_since(topic, [0], 9.5) == {}
    admin = AdminClient({"bootstrap.servers": brokers})
    for future in admin.delete_records([TopicPartition(topic, 0, 2)]).values():
        future.result(_PATIENCE)
    assert asked.first_records(topic, [0]) == {0: FirstRecord(2, 3000)}
    assert asked.first_records(topic, []) == {}


def test_a_controller_that_is_down_is_not_waited_for(brokers: str, topics: list[str]) -> None:
    """As the answer of a client that knows the dead one; a new client learns the living one."""

    class Waits:
        asked = 0

        def describe_topics(self, _topics: Any, **_how: Any) -> dict[str, Future[Any]]:
            self.asked += 1
            found: dict[str, Future[Any]] = {topic: Future() for topic in topics}
            for future in found.values():
                future.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
            return found

    waits = Waits()

    def waits_first() -> OpenClient:
        """Opens a client of the dead controller before any other."""
        waiting = [waits]

        def opened(kind: Any, *given: Any, **more: Any) -> Any:
            return waiting.pop() if kind is AdminClient and waiting else open_client(kind, *given, **more)

        return opened

    asked = KafkaOffsets({"bootstrap.servers": brokers}, open_client=waits_first())
    for _ in range(2):
        assert set(asked.lookup(topics)) == set(topics)
    assert waits.asked == 1
    opened = OpenConsumer("", {"bootstrap.servers": brokers}, open_client=waits_first())
    wanted = asked.lookup(topics)[topics[0]].topic_id
    assert [opened.topic_id(topics[0]), opened.topic_id(topics[0])] == [wanted] * 2
    assert waits.asked == 2
    opened.close()
