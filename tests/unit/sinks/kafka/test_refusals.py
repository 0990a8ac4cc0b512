"""Errors of Kafka: which pass by themselves, and which a user has to mend."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from tidesink.errors import BrokerUnavailableError, SourceError
from tidesink.sinks.kafka.offsets import translated_error


# Retriable in Kafka's protocol (its guide, "Error Codes"): a leader changes, or a broker restarts.
@pytest.mark.parametrize(
    "code",
    [
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._TRANSPORT,
    ],
)
def test_an_error_that_passes_is_tried_again(code: int) -> None:
    error = translated_error(KafkaError(code), "shop")
    assert isinstance(error, BrokerUnavailableError)
    assert "Kafka does not answer" in error.message


def test_a_refusal_is_not_tried_again() -> None:
    error = translated_error(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), "shop")
    assert isinstance(error, SourceError)
    assert not isinstance(error, BrokerUnavailableError)
    assert "TOPIC_AUTHORIZATION_FAILED" in error.message
