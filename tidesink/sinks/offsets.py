"""Where Kafka's topics begin and end: one look-up for all tables of a pipeline.

Offsets are those of committed records (``read_committed``): what a transactional producer has not
committed is not there yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # not in its stubs

from tidesink.config.client_properties import open_client
from tidesink.errors import SourceError, SourceUnavailableError

TIMEOUT_SECONDS: Final = 15.0
_EARLIEST: Final[Any] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final[Any] = OffsetSpec.latest()  # type: ignore[no-untyped-call]
# librdkafka's own notes about lost connections; the answers below already say so.
_QUIET: Final[dict[str, Any]] = {"log_level": 0, "error_cb": lambda _error: None}

_UNAVAILABLE: Final = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._RESOLVE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,  # just deleted, or just made: the next look says which
    }
)


class PartitionOffsets(NamedTuple):
    """The first offset kept, and the one the next record will get."""

    earliest: int
    latest: int


class TopicOffsets(NamedTuple):
    """One topic under Kafka's own id, which a topic made again does not share."""

    topic: str
    topic_id: str
    partitions: Mapping[int, PartitionOffsets]


class KafkaOffsets:
    """Asks the brokers; may be used from several threads. ``properties``: ``client_properties``.

    Raises:
        ConfigError: the properties are refused.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._admin = open_client(AdminClient, properties, _QUIET)

    def topics(self) -> tuple[str, ...]:
        """The names of all topics.

        Raises:
            SourceUnavailableError: no broker answers.
            SourceError: the brokers refuse us.
        """
        with translated_kafka_errors():
            return tuple(self._admin.list_topics(timeout=TIMEOUT_SECONDS).topics)

    def lookup(self, topics: Sequence[str]) -> dict[str, TopicOffsets]:
        """Begin, end and id of every topic that is there; three calls, however many topics.

        Raises: as ``topics``.
        """
        if not topics:
            return {}
        with translated_kafka_errors():
            described = self._describe(topics)
            places = [
                TopicPartition(name, partition.id)
                for name, found in described.items()
                for partition in found.partitions
            ]
            earliest = self._offsets(places, _EARLIEST)
            latest = self._offsets(places, _LATEST)
        return {name: _topic_offsets(name, found, earliest, latest) for name, found in described.items()}

    def _describe(self, topics: Sequence[str]) -> dict[str, Any]:
        futures = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=TIMEOUT_SECONDS)
        return dict(_present(futures.items()))

    def _offsets(self, places: list[TopicPartition], spec: Any) -> dict[tuple[str, int], int]:
        futures = self._admin.list_offsets(
            dict.fromkeys(places, spec),
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=TIMEOUT_SECONDS,
        )
        return {(place.topic, place.partition): future.result().offset for place, future in futures.items()}


def _present(futures: Iterable[tuple[str, Future[Any]]]) -> Iterator[tuple[str, Any]]:
    for name, future in futures:
        try:
            yield name, future.result()
        except KafkaException as exc:
            # Gone between two looks: whoever reads the topic is told by its absence.
            if exc.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise


def _topic_offsets(
    name: str, described: Any, earliest: Mapping[tuple[str, int], int], latest: Mapping[tuple[str, int], int]
) -> TopicOffsets:
    numbers = sorted(partition.id for partition in described.partitions)
    partitions = {n: PartitionOffsets(earliest[name, n], latest[name, n]) for n in numbers}
    return TopicOffsets(name, str(described.topic_id), partitions)


@contextmanager
def translated_kafka_errors() -> Iterator[None]:
    """Raise confluent-kafka's exceptions as ours, by their code."""
    try:
        yield
    except KafkaException as exc:
        error: KafkaError = exc.args[0]
        if error.retriable() or error.code() in _UNAVAILABLE:
            raise SourceUnavailableError(
                f"Kafka does not answer ({error.name()}): are source.brokers right, and do they run?"
            ) from exc
        raise SourceError(
            f"Kafka refuses ({error.name()}): check source.kafka, and what this user may read"
        ) from exc
