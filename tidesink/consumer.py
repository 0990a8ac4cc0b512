"""Read a changefeed's topics in plain Python: ``tidesink.consume`` returns typed events, at least once.

Offsets are committed when the caller requests the next event or batch, and when the iteration ends normally.
Events that the caller did not finish are returned again, to the caller or to another member of the consumer
group.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, TypeVar

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from tidesink.codecs import open_codec
from tidesink.codecs.base import Codec
from tidesink.config import Config, load_config
from tidesink.config.models import keeps_bad_records, stated_keys, topic_tables
from tidesink.errors import (
    ConfigError,
    DecodeError,
    SchemaNotFoundError,
    SourceError,
    SourceUnavailableError,
    TidesinkError,
)
from tidesink.events import Event, Message
from tidesink.kafka_client import OpenClient, no_answer, open_client

Place = tuple[str, int]
Start = Literal["earliest", "latest"]

_TIMEOUT: Final = 15.0
_POLL: Final = 0.5
# Time in ms after which a member that was killed loses its partitions to other members.
_SESSION_MS: Final = 15_000
# Seconds for which brokers may not answer before the caller gets an error.
_PATIENCE: Final = 60.0
# Keeps librdkafka from writing to stderr, because errors are raised.
_LOG: Final = logging.getLogger("tidesink.consumer")
_LOG.addHandler(logging.NullHandler())
# Error codes: another member has the partitions now, and reads the records again.
_MOVED: Final = frozenset(
    (
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError._ASSIGNMENT_LOST,
        KafkaError._STATE,
    )
)
# Error codes: no broker answers, or not in time.
_SILENT: Final = frozenset((KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._TIMED_OUT))
# Error codes: the topic is being created or deleted. The next request for all topics shows which.
_TEMPORARY: Final = frozenset((KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC))


def message_of(record: Any) -> Message:
    """Convert a record of confluent-kafka to the ``Message`` that codecs decode."""
    kind, milliseconds = record.timestamp()
    return Message(
        topic=record.topic(),
        partition=record.partition(),
        offset=record.offset(),
        key=record.key(),
        value=record.value(),
        timestamp=milliseconds if kind else None,
        headers=tuple(record.headers() or ()),
    )


class ConsumerGroup:
    """Fetches the records of the topics that ``wanted`` selects, and looks for new topics every ``refresh``
    seconds.

    Partitions without a committed offset begin at ``start``. ``open_client`` opens the Kafka consumer.

    Used by one thread at a time.
    """

    def __init__(
        self,
        properties: Mapping[str, str],
        wanted: Callable[[Iterable[str]], tuple[str, ...]],
        *,
        group: str,
        start: Start = "earliest",
        refresh: float = 10.0,
        open_client: OpenClient = open_client,
    ) -> None:
        self._brokers = properties["bootstrap.servers"]
        self._wanted = wanted
        self._refresh = refresh
        self._start = start
        self._first: frozenset[Place] | None = None  # partitions that existed at the first request
        # An offset that Kafka no longer has is an error, because starting at another offset would hide a
        # loss.
        own = {
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "session.timeout.ms": _SESSION_MS,
        }
        self._consumer = open_client(Consumer, properties, own, logger=_LOG)
        self._topics: tuple[str, ...] = ()
        self._looked = self._answered = 0.0
        self._unread: list[TopicPartition] | None = None  # assigned to us, but not read yet
        # By partition: the leader epochs of the records that were read, each with the offset of its first
        # record.
        self._epochs: dict[Place, list[tuple[int, int]]] = {}
        self._joined: float | None = None  # when the group last assigned partitions to this member

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are read now."""
        return self._topics

    def waits_since(self) -> float:
        """Returns the time (``time.monotonic()``) since which this member waits for records.

        While the group assigns partitions, returns the current time. If the member has no topics, returns 0.
        """
        if not self._topics:
            return 0.0
        return time.monotonic() if self._joined is None else self._joined

    def open(self) -> None:
        """Join the consumer group.

        Raises:
            SourceUnavailableError: The brokers do not answer.
        """
        try:
            self._look()
        except KafkaException as error:
            raise no_answer(self._brokers, error) from error

    def fetch(self, most: int) -> list[Message]:
        """Returns up to ``most`` records, in the order of their partitions. Waits up to half a second for the
        first record.

        Raises:
            SourceUnavailableError: The brokers have not answered for a minute, or have not sent the committed
                offsets.
            SourceError: Kafka refuses a request, or no longer has the next records.
        """
        self._look_again()
        if not self._topics:
            time.sleep(min(_POLL, self._refresh))
            return []
        try:
            if self._unread is not None:
                self._begin(self._unread)
            records = self._consumer.consume(most, timeout=_POLL)
        except KafkaException as error:
            raise self._failure(error.args[0]) from error
        return [message_of(record) for record in records if self._is_message(record)]

    def _is_message(self, record: Any) -> bool:
        error = record.error()
        if error is None:
            self._answered = time.monotonic()
            self._note_epoch(record)
            return True
        if error.code() in _TEMPORARY or (error.retriable() and not error.fatal()):
            self._looked = 0.0
            return False
        raise self._failure(error, topic=record.topic(), partition=record.partition())

    def _note_epoch(self, record: Any) -> None:
        epochs = self._epochs.setdefault((record.topic(), record.partition()), [])
        epoch = record.leader_epoch()
        if epoch is not None and (not epochs or epochs[-1][1] != epoch):
            epochs.append((record.offset(), epoch))

    def _committed(self, partition: Place, offset: int) -> TopicPartition:
        """Returns an offset to commit, with the leader epoch of the record before it.

        A consumer that begins at this offset asks the leader to confirm the epoch (KIP-320), which shows if
        the log was cut.
        """
        epochs = self._epochs.get(partition, [])
        while len(epochs) > 1 and epochs[1][0] < offset:
            del epochs[0]
        if epochs and epochs[0][0] < offset:
            return TopicPartition(*partition, offset, leader_epoch=epochs[0][1])
        return TopicPartition(*partition, offset)

    def commit(self, offsets: Mapping[Place, int]) -> None:
        """Commit the offsets up to which the caller has finished the records of each partition.

        For a partition that was assigned to another member, nothing is committed, because that member reads
        the records again.

        Raises:
            SourceUnavailableError: The brokers do not answer.
        """
        places = [self._committed(partition, offset) for partition, offset in offsets.items()]
        if not places:
            return
        failed: list[KafkaException] = []
        try:
            done = self._consumer.commit(offsets=places, asynchronous=False)
            failed += [
                KafkaException(partition.error) for partition in done or () if partition.error is not None
            ]
        except KafkaException as error:
            failed.append(error)
        for failure in failed:
            if failure.args[0].code() not in _MOVED:
                raise no_answer(self._brokers, failure) from failure
            _LOG.warning(
                "the partitions were assigned to another member of the group, which reads these records again"
            )

    def close(self) -> None:
        """Leave the consumer group."""
        self._consumer.close()

    def _look_again(self) -> None:
        now = time.monotonic()
        if now - self._looked < self._refresh:
            return
        try:
            self._look()
        except KafkaException as error:
            self._looked = now
            if now - self._answered > _PATIENCE:
                raise no_answer(self._brokers, error) from error

    def _look(self) -> None:
        """Request the list of topics, and subscribe to the topics that ``wanted`` selects."""
        there = self._consumer.list_topics(timeout=_TIMEOUT).topics
        topics = self._wanted(there)
        self._looked = self._answered = time.monotonic()
        if self._first is None:
            self._first = frozenset((name, number) for name in topics for number in there[name].partitions)
        if topics != self._topics:
            self._topics = topics
            if topics:
                self._consumer.subscribe(list(topics), on_assign=self._assigned, on_revoke=self._revoked)
            else:
                self._consumer.unsubscribe()

    def _assigned(self, _consumer: Consumer, places: list[TopicPartition]) -> None:
        # If the next line fails, the partitions stay assigned to this member, and the next fetch begins to
        # read them.
        self._unread = places
        self._begin(places)

    def _begin(self, places: list[TopicPartition]) -> None:
        """Begin to read assigned partitions from their committed offsets, or else from ``start``."""
        begins = self._consumer.committed(places, timeout=_TIMEOUT)
        for partition in begins:
            if partition.error is not None:  # otherwise the partition would count as one without a commit
                raise KafkaException(partition.error)
        new = [partition for partition in begins if partition.offset < 0]
        for partition in new:
            partition.offset = self._beginning(partition)
        self._consumer.assign(begins)
        self._unread, self._joined = None, time.monotonic()
        self._epochs = {}
        ends = [partition for partition in new if partition.offset >= 0]
        if ends:
            # Without this commit, the next owner of the partition would skip records that arrive before the
            # first commit.
            self._consumer.commit(offsets=ends, asynchronous=False)

    def _revoked(self, _consumer: Consumer, _places: list[TopicPartition]) -> None:
        """Called when the group takes this member's partitions away to assign them again."""
        self._unread = self._joined = None

    def _beginning(self, partition: TopicPartition) -> int:
        """Returns the first offset to read of a partition without a committed offset.

        A partition that was added later is read from its first record.
        """
        if self._start == "earliest" or (partition.topic, partition.partition) not in (self._first or ()):
            return int(OFFSET_BEGINNING)
        _, end = self._consumer.get_watermark_offsets(partition, timeout=_TIMEOUT)
        return int(end)

    def _failure(self, error: KafkaError, **where: Any) -> SourceError:
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION):
            return SourceError(
                "Kafka no longer has the next records, or it lost records that were already read (unclean "
                f"leader election): {error.str()}. So some records cannot be read. Reset the group's "
                "offsets (kafka-consumer-groups --reset-offsets), or use a new consumer group.",
                **where,
            )
        if error.retriable() or error.code() in _SILENT:
            return SourceUnavailableError(
                f"No answer from {self._brokers}: {error.str()}. Check that the brokers run.", **where
            )
        return SourceError(
            f"Kafka refuses the request: {error.str()}. Check that this user may read the "
            f"topic and use the consumer group.",
            **where,
        )


_BATCH: Final = 500
Self = TypeVar("Self", bound="EventConsumer")


class BadRecord(NamedTuple):
    """A record that cannot be decoded, with the error."""

    message: Message
    error: DecodeError | SchemaNotFoundError


@dataclass(frozen=True)
class EventBatch:
    """Events of several records, in the order of their partitions.

    ``offsets``: the next offset of each partition.
    """

    events: tuple[Event, ...]
    offsets: Mapping[Place, int]


class _Decoded(NamedTuple):
    message: Message
    events: tuple[Event, ...]


def _offsets(records: list[_Decoded]) -> dict[Place, int]:
    """Returns the next offset of each partition after these records."""
    return {(record.message.topic, record.message.partition): record.message.offset + 1 for record in records}


OnBadRecord = Callable[[BadRecord], None]


class EventConsumer:
    """Returns events one by one (iterate over it) or in batches (``batches()``). ``consume`` creates it.

    Used by one thread. Only ``stop`` may be called from other threads and from signal handlers. As a context
    manager it commits the finished events and leaves the group, also after ``break``. If the block raises an
    exception, nothing of the current batch is committed. A second loop begins with the events that the first
    loop did not finish.
    """

    def __init__(
        self,
        config: Config,
        *,
        codec: Codec,
        group: ConsumerGroup,
        on_bad_record: OnBadRecord | None = None,
        batch_records: int = _BATCH,
        stop_after_idle: float | None = None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._config = config
        self._codec = codec
        self._group = group
        self._on_bad_record = on_bad_record
        self._batch_records = batch_records
        self._stop_after_idle = stop_after_idle
        self._on_close = on_close
        self._stopped = threading.Event()
        self._closed = False
        self._fetched: deque[Message] = deque()  # not decoded yet
        self._waiting: deque[_Decoded] = deque()  # decoded, but not completely returned yet
        self._out: list[_Decoded] = []  # returned to the caller, but not finished by it
        self._events: Iterator[Event] | None = None  # events of ``_out`` to return; None for a batch
        self._done: dict[Place, int] = {}  # finished by the caller, not committed yet

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are read now. New topics that match the config's rule are added later."""
        return self._group.topics

    def stop(self) -> None:
        """End the iteration before the next event. Events that the caller has finished are committed."""
        self._stopped.set()

    def __iter__(self: Self) -> Self:
        self._put_back()
        return self

    def __next__(self) -> Event:
        """Wait for the next event and return it.

        Raises:
            StopIteration: ``stop`` was called, or no record arrived for ``stop_after_idle`` seconds.
            DecodeError: The next record cannot be decoded, and its table has ``bad-record: pause``. All
                earlier records are committed, and the next call reads the record again.
            RegistryUnavailableError: The schema registry does not answer. Call again later; no event is lost.
            SourceUnavailableError: The brokers do not answer. Call again later; no event is lost.
            SourceError, RegistryError: Kafka or the schema registry refuses a request. A person has to fix
                the cause.
        """
        if self._events is None:
            self._put_back()  # the caller left the loop over a batch with break
        while not self._stopped.is_set():
            event = next(self._events or iter(()), None)
            if event is not None:
                return event
            self._finished()
            if not self._waiting:
                self._commit()
                if not self._decode_more():
                    break
            self._hand_out([self._waiting.popleft()])
            self._events = iter(self._out[0].events)
        self._finished()
        self.close()
        raise StopIteration

    def _hand_out(self, records: list[_Decoded]) -> None:
        self._out, self._events = records, None

    def _finished(self) -> None:
        """Mark the records that were returned last as finished, if all their events were returned."""
        if next(self._events or iter(()), None) is None:
            self._done.update(_offsets(self._out))
            self._hand_out([])

    def _put_back(self) -> None:
        """Put unfinished records back, so that they are returned next."""
        self._waiting.extendleft(reversed(self._out))
        self._hand_out([])

    def batches(self) -> Iterator[EventBatch]:
        """Yield batches of events. A batch is committed when the next batch is requested, or when the
        iteration ends normally.

        Raises:
            DecodeError: The next record cannot be decoded, and its table has ``bad-record: pause``.
            SourceError, RegistryError: Kafka or the schema registry refuses a request, or does not answer.
        """
        self._put_back()
        while not self._stopped.is_set():
            self._commit()
            if not self._waiting and not self._decode_more():
                break
            self._hand_out(list(self._waiting))
            self._waiting.clear()
            events = tuple(event for record in self._out for event in record.events)
            if events:
                yield EventBatch(events, _offsets(self._out))
            self._finished()
        self.close()

    def _decode_more(self) -> bool:
        """Wait for records, and decode them up to the first bad record.

        Returns False if the iteration ends.
        """
        if not self._fetched and not self._fetch():
            return False
        while self._fetched:
            message = self._fetched[0]
            try:
                events = self._decoded(message)
            except TidesinkError:
                if self._waiting:
                    return True  # the earlier records are returned first, then this record is tried again
                raise
            self._fetched.popleft()
            self._waiting.append(_Decoded(message, events))
        return True

    def _fetch(self) -> bool:
        began = time.monotonic()
        while not self._stopped.is_set():
            self._fetched.extend(self._group.fetch(self._batch_records))
            if self._fetched:
                return True
            # Time in which the group assigns partitions does not count as idle, also within a fetch.
            since = max(began, self._group.waits_since())
            if self._stop_after_idle is not None and time.monotonic() - since >= self._stop_after_idle:
                return False
        return False

    def _decoded(self, message: Message) -> tuple[Event, ...]:
        try:
            return self._codec.decode(message)
        except (DecodeError, SchemaNotFoundError) as error:
            error.with_context(topic=message.topic, partition=message.partition, offset=message.offset)
            table = self._config.table_of_topic(message.topic)
            settings = self._config.table_config(table) if table else self._config.defaults
            if settings.bad_record == "pause" or self._on_bad_record is None:
                raise
            self._on_bad_record(BadRecord(message, error))
            return ()

    def _commit(self) -> None:
        """Commit the events that the caller has finished. If the commit fails, the next call repeats it."""
        self._group.commit(self._done)
        self._done = {}

    def close(self, *, commit: bool = True) -> None:
        """Leave the consumer group. ``commit``: commit the events that the caller has finished.

        Raises:
            SourceUnavailableError: The brokers do not answer, so finished events will be returned again.
        """
        if self._closed:
            return
        self._closed = True
        self._stopped.set()
        try:
            if commit:
                self._commit()
        finally:
            self._group.close()
            self._on_close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if kind is None and not self._closed:
            self._finished()  # the end of the block finishes the returned events
        self.close(commit=kind is None)


def consume(
    config: Config | str | Path,
    *,
    group: str | None = None,
    start: Start = "earliest",
    on_bad_record: OnBadRecord | None = None,
    batch_records: int = _BATCH,
    stop_after_idle: float | None = None,
    refresh: float = 10.0,
) -> EventConsumer:
    """Returns the events of a pipeline's topics, at least once.

    Use it as ``for event in tidesink.consume("tidesink.yaml")``.

    Args:
        config: The pipeline's config, or its file.
        group: The consumer group. None: the pipeline's name.
        start: The beginning (``earliest`` or ``latest``) of partitions without a committed offset.
        on_bad_record: Called for each record that cannot be decoded, in tables with ``bad-record:
            dead-letter``. Reading continues when it returns.
        batch_records: Maximum number of records that are fetched at a time.
        stop_after_idle: The iteration ends after this many seconds without a record. None: it never ends.
        refresh: Seconds within which new topics that match the config's rule are found.

    Raises:
        ConfigError: The config is invalid, or has ``bad-record: dead-letter`` but no ``on_bad_record`` is
            passed.
        SourceUnavailableError: The brokers do not answer.
    """
    loaded = config if isinstance(config, Config) else load_config(config)
    if keeps_bad_records(loaded) and on_bad_record is None:
        raise ConfigError(
            "The config has bad-record: dead-letter, but consume has no function for bad records. Pass "
            "on_bad_record, or set bad-record: pause.",
            key="bad-record",
        )
    registry = loaded.source.open_registry() if loaded.source.schema_registry else None
    codec = open_codec(
        loaded.source.protocol,
        options=loaded.source.codec_options(),
        registry=registry,
        table_of_topic=topic_tables(loaded, registry) if registry else None,
        definitions=loaded.definitions(),
        keys=stated_keys(loaded),
    )
    members = ConsumerGroup(
        loaded.source.confluent_properties(),
        loaded.topics_among,
        group=group or loaded.pipeline,
        start=start,
        refresh=refresh,
    )
    members.open()
    return EventConsumer(
        loaded,
        codec=codec,
        group=members,
        on_bad_record=on_bad_record,
        batch_records=batch_records,
        stop_after_idle=stop_after_idle,
        on_close=registry.close if registry else lambda: None,
    )
