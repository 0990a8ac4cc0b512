"""Dead letters as a plain consumer reads them: nothing of tidesink's own reader is used."""

from __future__ import annotations

from typing import Any, NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.kafka_topics import topic_messages


class RawLetter(NamedTuple):
    """A letter by its headers: the last of each name."""

    key: bytes | None
    value: bytes | None
    said: dict[str, str]

    @property
    def place(self) -> tuple[str, int, int]:
        """Where in Kafka its record is."""
        return self.connect("topic"), int(self.connect("partition")), int(self.connect("offset"))

    def connect(self, name: str) -> str:
        """A header of Kafka Connect's."""
        return self.said[f"__connect.errors.{name}"]

    def ours(self, name: str) -> str:
        """A header of tidesink's."""
        return self.said[f"__tidesink.errors.{name}"]


def letter_settings(prefix: str) -> dict[str, Any]:
    """The config's section of a test's topic; the tests' broker is one."""
    name = "errors.deadletterqueue.topic"
    return {f"{name}.name": letter_topic(prefix), f"{name}.replication.factor": 1}


def letter_topic(prefix: str) -> str:
    """The topic of a test's dead letters."""
    return f"{prefix}dead-letters"


def written_letters(brokers: str, prefix: str) -> list[RawLetter]:
    """Every letter that was written, in order, and each as often as it was; marks are left out."""
    admin = AdminClient({"bootstrap.servers": brokers})
    topic = letter_topic(prefix)
    try:
        if topic not in admin.list_topics(timeout=60).topics:
            return []
    except KafkaException as exc:
        raise AssertionError("the broker does not answer") from exc
    found = [
        RawLetter(
            message.key,
            message.value,
            {name: (value or b"").decode(errors="replace") for name, value in message.headers},
        )
        for message in topic_messages(brokers, topic)
    ]
    return [letter for letter in found if letter.ours("kind") == "letter"]


def distinct_letters(brokers: str, prefix: str) -> list[RawLetter]:
    """One letter of each table and place in Kafka; copies of one have the same bytes."""
    found: dict[tuple[Any, ...], RawLetter] = {}
    for letter in written_letters(brokers, prefix):
        first = found.setdefault((letter.ours("table"), letter.ours("topic.id"), *letter.place), letter)
        assert (letter.key, letter.value) == (first.key, first.value)
    return list(found.values())
