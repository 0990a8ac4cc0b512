"""An answer of Kafka that is larger than the client takes is named by its setting."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from tidesink.errors import BrokerUnavailableError, SourceError
from tidesink.sinks.kafka.fetch import FetchLimits, FetchRange, fetch


def test_an_answer_above_the_limit_is_named_by_its_setting() -> None:
    producer = Producer(
        {
            "bootstrap.servers": "none",
            "test.mock.num.brokers": 1,
            "message.max.bytes": 5_000_000,
            "log_level": 0,
        }
    )
    producer.produce("t", value=b"x" * 300_000, partition=0)
    assert producer.flush(60) == 0
    (broker,) = producer.list_topics(timeout=60).brokers.values()
    small = {"message.max.bytes": "1000", "fetch.max.bytes": "1000", "fetch.message.max.bytes": "1000"}
    properties = {"bootstrap.servers": f"{broker.host}:{broker.port}", **small}
    limits = FetchLimits(silence=60, refusal=1)
    with pytest.raises(SourceError, match=r"source\.kafka\.receive\.message\.max\.bytes") as caught:
        list(
            fetch(
                FetchRange("t", 0, 0, 1), {**properties, "receive.message.max.bytes": "2000"}, limits=limits
            )
        )
    assert not isinstance(caught.value, BrokerUnavailableError)
    assert "(2000)" in str(caught.value)
    # With room for it the record is read, though it is larger than what one answer is to have.
    (batch,) = fetch(FetchRange("t", 0, 0, 1), properties, limits=limits)
    assert batch.num_rows == 1
    producer.flush(60)  # the broker is there as long as the producer
