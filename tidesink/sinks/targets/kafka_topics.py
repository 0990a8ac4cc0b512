"""The topics of a Kafka target: whether they are there, and made where they are not."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # not in its stubs

from tidesink.config.client_properties import open_client
from tidesink.config.targets import KafkaSettings
from tidesink.errors import StaleProgressError, TargetError, TransientTargetError

_TIMEOUT: Final = 15.0
_PAUSE: Final = 0.2
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


class OpenTopic(NamedTuple):
    """A topic that is there, under Kafka's own id, which a topic made again does not share."""

    name: str
    topic_id: str
    partitions: int


class TargetTopics:
    """Asks the target's brokers; used by one thread at a time."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._admin = open_client(AdminClient, settings.confluent_properties(), _QUIET)

    def open(self, topic: str) -> OpenTopic:
        """A topic, made where it is not there.

        Raises:
            TargetError: it is not there and may not be made, or Kafka refuses us.
            TransientTargetError: no broker answers.
        """
        try:
            found = self._find(topic)
            return self._made(topic) if found is None else found
        except KafkaException as exc:
            raise admin_error(exc, topic) from exc

    def check(self, opened: OpenTopic) -> None:
        """Refuse a topic that is not the one that was opened; raises as ``open``, and StaleProgressError."""
        try:
            found = self._find(opened.name)
        except KafkaException as exc:
            raise admin_error(exc, opened.name) from exc
        if found is None or found.topic_id != opened.topic_id:
            raise StaleProgressError(
                "the topic was deleted or made again since the table was opened, and what was sent is gone: "
                "start the worker again, and the table is sent anew from the start of its source's topic",
                topic=opened.name,
            )

    def names(self) -> tuple[str, ...]:
        """Every topic; raises as ``open``."""
        try:
            return tuple(self._admin.list_topics(timeout=_TIMEOUT).topics)
        except KafkaException as exc:
            raise admin_error(exc, None) from exc

    def _find(self, topic: str) -> OpenTopic | None:
        future = self._admin.describe_topics(TopicCollection([topic]), request_timeout=_TIMEOUT)[topic]
        try:
            described = future.result()
            return OpenTopic(topic, str(described.topic_id), len(described.partitions))
        except KafkaException as exc:
            if exc.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise

    def _made(self, topic: str) -> OpenTopic:
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
        deadline = time.monotonic() + _TIMEOUT
        while time.monotonic() < deadline:
            found = self._find(topic)
            if found is not None:
                return found
            time.sleep(_PAUSE)  # not every broker knows at once
        raise TransientTargetError("the topic was made, and Kafka does not show it yet", topic=topic)


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
