"""What the Kafka client refuses before it asks a broker: its remedy is the target's, not the topic's."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection

from tests.contracts.targets_bed import progress
from tests.unit.config.samples import CANAL_JSON, right
from tests.unit.sinks.targets.stream.written_rows import arrow_batch, shape_with
from tidesink.codecs.base import CodecOptions
from tidesink.config.targets import KafkaSettings
from tidesink.errors import TargetError, TransientTargetError
from tidesink.events import Column, ColumnType
from tidesink.sinks.targets.stream.encoding import prepare
from tidesink.sinks.targets.stream.kafka import (
    Delivery,
    OpenTopic,
    TargetTopics,
    delivery_error,
    producer_settings,
)
from tidesink.sinks.targets.stream.table import MessageEntry, Stamp

COMMIT_TS = 451_234_567_890_123_456
SHAPE = shape_with(Column("note", ColumnType("text")))


def _delivery(most: int) -> Delivery:
    """A delivery whose broker is not there."""
    options = CodecOptions(max_message_bytes=most)
    encoding = prepare(SHAPE, protocol="debezium-json", options=options, topic="t", registry=None)
    stamp = Stamp.of(MessageEntry("p", ("id",)), progress(1, 1))
    return Delivery(encoding, {"bootstrap.servers": "127.0.0.1:9"}, 1, stamp, 0)


def test_a_message_above_the_clients_limit_says_to_raise_it_and_the_topics_with_it() -> None:
    batch = arrow_batch(SHAPE, [("upsert", {"id": 1, "note": "x" * 5000}, {"id": 1})], _commit_ts=[COMMIT_TS])
    with pytest.raises(
        TargetError,
        match=r"of [5-9]\d{3} bytes.*\. Raise target\.max-message-bytes, and the topic's max\.message\.bytes",
    ) as caught:
        list(_delivery(5000).run(iter([batch])))
    assert not isinstance(caught.value, TransientTargetError)


def test_the_producer_is_idempotent() -> None:
    assert producer_settings(_delivery(5000))["enable.idempotence"] is True


def test_a_broker_that_refuses_a_message_says_that_the_topics_limit_is_the_smaller_one() -> None:
    refused = delivery_error(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), "t")
    assert "max.message.bytes must be at least target.max-message-bytes" in refused.message


class _Admin:
    """An admin client that gives one answer for every topic."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def describe_topics(self, topics: TopicCollection, **_how: Any) -> dict[str, Future[Any]]:
        found: dict[str, Future[Any]] = {name: Future() for name in topics.topic_names}
        for future in found.values():
            if isinstance(self._answer, Exception):
                future.set_exception(self._answer)
            else:
                future.set_result(self._answer)
        return found


def test_a_controller_that_is_down_is_not_waited_for() -> None:
    """A client that knows it waits for it; a new one learns the living one."""
    waits = _Admin(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
    opened = [waits, _Admin(SimpleNamespace(topic_id="one", partitions=[0, 1]))]
    settings = right({**CANAL_JSON, "target": {"type": "kafka", "brokers": "k:1", "protocol": "canal-json"}})
    topics = TargetTopics(cast("KafkaSettings", settings.target), open_client=lambda *_: opened.pop(0))
    assert topics.open("t") == OpenTopic("t", "one", 2)
    assert opened == []
    topics.check(OpenTopic("t", "one", 2))
