"""A consumer requests the topics that its client does not know, so that librdkafka does not wait for them."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from tidesink.sinks.kafka.fetch import OpenConsumer


class Listing:
    """A client that lists topics, or fails."""

    def __init__(self, *topics: str) -> None:
        self.topics: Mapping[str, None] | None = dict.fromkeys(topics)
        self.asked = 0

    def opened(self, *_given: Any, **_more: Any) -> Listing:
        return self

    def list_topics(self, timeout: float) -> SimpleNamespace:
        self.asked += 1
        if self.topics is None:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return SimpleNamespace(topics=self.topics, timeout=timeout)


def _consumer(client: Listing) -> OpenConsumer:
    return OpenConsumer("", {"bootstrap.servers": "b"}, open_client=client.opened)


def test_a_client_of_one_topic_lists_no_topics() -> None:
    client = Listing("a", "b")
    consumer = _consumer(client)
    consumer.learn("a", 0.0)
    consumer.learn("a", 10.0)
    assert client.asked == 0


def test_one_request_is_enough_for_all_topics() -> None:
    client = Listing("a", "b", "c")
    consumer = _consumer(client)
    for topic in "abcba":
        consumer.learn(topic, 0.0)
    assert client.asked == 1


def test_a_topic_that_is_not_listed_is_requested_once() -> None:
    client = Listing("a", "b")
    consumer = _consumer(client)
    for topic in "abxx":
        consumer.learn(topic, 0.0)
    assert client.asked == 2


def test_topics_are_requested_again_before_librdkafka_forgets_them() -> None:
    client = Listing("a", "b")
    consumer = _consumer(client)
    for now in (0.0, 600.0, 601.0):
        consumer.learn("a", now)
        consumer.learn("b", now)
    assert client.asked == 2


def test_a_failed_request_is_left_to_the_read() -> None:
    client = Listing()
    client.topics = None
    consumer = _consumer(client)
    for topic in "abb":
        consumer.learn(topic, 0.0)
    assert client.asked == 1
