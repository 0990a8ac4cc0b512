"""What the Kafka client refuses before it asks a broker: its remedy is the target's, not the topic's."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from tests.contracts.targets_bed import progress
from tests.unit.written_rows import arrow_batch, shape_with
from tidesink.codecs.base import CodecOptions
from tidesink.errors import TargetError, TransientTargetError
from tidesink.events import Column, ColumnType
from tidesink.sinks.targets.stream.encoding import prepare
from tidesink.sinks.targets.stream.kafka import Delivery, delivery_error, producer_settings
from tidesink.sinks.targets.stream.table import LedgerEntry, Stamp

COMMIT_TS = 451_234_567_890_123_456
SHAPE = shape_with(Column("note", ColumnType("text")))


def _delivery(most: int) -> Delivery:
    """A delivery whose broker is not there."""
    options = CodecOptions(max_message_bytes=most)
    encoding = prepare(SHAPE, protocol="debezium-json", options=options, topic="t", registry=None)
    stamp = Stamp.of(LedgerEntry("p", ("id",)), progress(1, 1))
    return Delivery(encoding, {"bootstrap.servers": "127.0.0.1:9"}, 1, stamp, 0)


def test_a_message_above_the_clients_limit_says_to_raise_it_and_the_topics_with_it() -> None:
    batch = arrow_batch(SHAPE, [("upsert", {"id": 1, "note": "x" * 5000}, {"id": 1})], _commit_ts=[COMMIT_TS])
    with pytest.raises(
        TargetError,
        match=r"of [5-9]\d{3} bytes.*: raise target\.max-message-bytes, and the topic's max\.message\.bytes",
    ) as caught:
        list(_delivery(5000).run(iter([batch])))
    assert not isinstance(caught.value, TransientTargetError)


def test_the_producer_is_idempotent() -> None:
    assert producer_settings(_delivery(5000))["enable.idempotence"] is True


def test_a_broker_that_refuses_a_message_says_that_the_topics_limit_is_the_smaller_one() -> None:
    refused = delivery_error(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), "t")
    assert "max.message.bytes must be target.max-message-bytes or more" in refused.message
