"""The topics of a Kafka target: whether they are there, and made where they are not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # not in its stubs

from tidesink.config.target_messages import KafkaSettings
from tidesink.errors import TargetError, TransientTargetError

_TIMEOUT: Final = 15.0
_QUIET: Final[Mapping[str, Any]] = {"log_level": 0, "error_cb": lambda _error: None}
_REFUSED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.POLICY_VIOLATION,
        KafkaError._INVALID_ARG,
    }
)


class TargetTopics:
    """Asks the target's brokers; used by one thread at a time."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._admin = AdminClient({**_QUIET, **settings.confluent_properties()})

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has; it is made where it is not there.

        Raises:
            TargetError: it is not there and may not be made, or Kafka refuses us.
            TransientTargetError: no broker answers.
        """
        try:
            found = self._count(topic)
            return self._make(topic) if found is None else found
        except KafkaException as exc:
            raise admin_error(exc, topic) from exc

    def names(self) -> tuple[str, ...]:
        """Every topic; raises as ``partitions``."""
        try:
            return tuple(self._admin.list_topics(timeout=_TIMEOUT).topics)
        except KafkaException as exc:
            raise admin_error(exc, None) from exc

    def _count(self, topic: str) -> int | None:
        future = self._admin.describe_topics(TopicCollection([topic]), request_timeout=_TIMEOUT)[topic]
        try:
            return len(future.result().partitions)
        except KafkaException as exc:
            if exc.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise

    def _make(self, topic: str) -> int:
        settings = self._settings
        if not settings.auto_create_topic:
            raise TargetError(
                "the topic is not there, and target.auto-create-topic is false: make it", topic=topic
            )
        new = NewTopic(topic, settings.partition_num, settings.replication_factor)
        try:
            self._admin.create_topics([new], operation_timeout=_TIMEOUT)[topic].result()
        except KafkaException as exc:
            if exc.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            found = self._count(topic)
            if found is not None:
                return found
        return settings.partition_num


def admin_error(exc: KafkaException, topic: str | None) -> TargetError:
    """What Kafka answers about a topic as an error of ours, by its code."""
    error: KafkaError = exc.args[0]
    if error.code() in _REFUSED:
        return TargetError(
            f"the target's Kafka refuses ({error.name()}): check target.kafka, target.partition-num and "
            "target.replication-factor, and what this user may do",
            topic=topic,
        )
    return TransientTargetError(
        f"the target's Kafka does not answer ({error.name()}): are target.brokers right, and do they run?",
        topic=topic,
    )
