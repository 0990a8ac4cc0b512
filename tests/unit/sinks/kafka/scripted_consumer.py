"""A scripted consumer in place of confluent-kafka's: each consume call returns the next list of messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

TOPIC: Final = "t"


def record(
    offset: int,
    partition: int = 0,
    *,
    topic: str = TOPIC,
    time_ms: int = 0,
    key: bytes = b"k",
    value: bytes = b"v",
) -> Message:
    return Message(topic, partition, offset, key, value, [], None, (1, time_ms))


def end(offset: int, partition: int = 0) -> Message:
    return failure(KafkaError._PARTITION_EOF, partition, offset)


def failure(code: int, partition: int = 0, offset: int = -1) -> Message:
    return Message(TOPIC, partition, offset, error=KafkaError(code))


class ScriptedConsumer:
    """Returns the scripted lists, then nothing. A consume call without messages takes its whole timeout."""

    def __init__(self, calls: Iterable[list[Message]] = (), low: int = 0, high: int | None = None) -> None:
        self.calls, self.low, self.high = list(calls), low, high
        self.now, self.is_closed = 0.0, False
        self.asked: list[int] = []
        self.ends_asked = 0
        self.assigned: list[tuple[int, int]] = []
        self.dropped: list[int] = []
        self.paused: list[int] = []
        self.partitions = [0]
        self.error_cb: Callable[[KafkaError], None] = lambda _error: None

    def opened(
        self, _kind: object, _properties: object, own: Mapping[str, Any], **_more: Any
    ) -> ScriptedConsumer:
        self.error_cb = own["error_cb"]
        return self

    def assign(self, places: list[TopicPartition]) -> None:
        self.assigned = [(place.partition, place.offset) for place in places]

    def incremental_unassign(self, places: list[TopicPartition]) -> None:
        self.dropped += [place.partition for place in places]

    def pause(self, places: list[TopicPartition]) -> None:
        self.paused += [place.partition for place in places]

    def resume(self, places: list[TopicPartition]) -> None:
        for place in places:
            self.paused.remove(place.partition)

    def consume(self, most: int, timeout: float) -> list[Message]:
        self.asked.append(most)
        messages = self.calls.pop(0) if self.calls else []
        self.now += 0.0 if messages else timeout
        return messages

    def get_watermark_offsets(self, _place: TopicPartition, timeout: float) -> tuple[int, int]:
        self.ends_asked += 1
        self.now += timeout if self.high is None else 0.0
        if self.high is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return self.low, self.high

    def list_topics(self, topic: str, timeout: float) -> SimpleNamespace:
        listed = SimpleNamespace(error=None, partitions=dict.fromkeys(self.partitions))
        return SimpleNamespace(topics={topic: listed}, timeout=timeout)

    def close(self) -> None:
        self.is_closed = True
