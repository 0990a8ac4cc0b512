"""``tidesink.consume``: the events of a changefeed's topics, at least once.

Offsets are committed when the next batch is asked for, and on a clean end: what a caller was given and did
not come back from is given again, to it or to another member of the group.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, TypeVar

from tidesink.codecs import open_codec
from tidesink.codecs.base import Codec
from tidesink.config import Config, load_config
from tidesink.config.models import stated_keys, topic_tables
from tidesink.consumer.group import ConsumerGroup, Place, Start
from tidesink.errors import ConfigError, DecodeError, SchemaNotFoundError, TidesinkError
from tidesink.events import Event, Message

_BATCH: Final = 500
Self = TypeVar("Self", bound="EventConsumer")


class BadRecord(NamedTuple):
    """A record that cannot be decoded: its bytes, and why."""

    message: Message
    error: DecodeError | SchemaNotFoundError


@dataclass(frozen=True)
class EventBatch:
    """Events of several records in each partition's order. ``offsets``: where each partition goes on."""

    events: tuple[Event, ...]
    offsets: Mapping[Place, int]


class _Decoded(NamedTuple):
    message: Message
    events: tuple[Event, ...]


def _offsets(records: list[_Decoded]) -> dict[Place, int]:
    """Where each partition goes on after these records."""
    return {(one.message.topic, one.message.partition): one.message.offset + 1 for one in records}


OnBadRecord = Callable[[BadRecord], None]


class EventConsumer:
    """Gives events one by one (iterate over it) or in batches (``batches()``); made by ``consume``.

    Used by one thread; ``stop`` may be called from any other, and from a signal handler. As a context manager
    it commits what was done and leaves the group, also after ``break``; after an exception in the block
    nothing of the batch at hand is committed. A second loop over it begins with what the first one did not
    come back from.
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
        self._waiting: deque[_Decoded] = deque()  # decoded, not all of them given to the caller
        self._out: list[_Decoded] = []  # with the caller, who has not come back from them
        self._at_hand: Iterator[Event] | None = None  # what is left of them; None where they are a batch
        self._given: dict[Place, int] = {}  # given to the caller whole, not committed yet

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are read now; new ones that fit the config's rule are picked up."""
        return self._group.topics

    def stop(self) -> None:
        """End the iteration before the next event; what the caller has done is committed."""
        self._stopped.set()

    def __iter__(self: Self) -> Self:
        self._put_back()
        return self

    def __next__(self) -> Event:
        """The next event, waiting for it.

        Raises:
            StopIteration: ``stop`` was called, or nothing came for ``stop_after_idle`` seconds.
            DecodeError: the next record is bad and its table's policy is ``pause``: all before it is
                committed, and the next call comes to it again.
            RegistryUnavailableError, SourceUnavailableError: call again a little later, nothing is lost.
            SourceError, RegistryError: a person has to look.
        """
        if self._at_hand is None:
            self._put_back()  # a batch that was left by break
        while not self._stopped.is_set():
            event = next(self._at_hand or iter(()), None)
            if event is not None:
                return event
            self._came_back()
            if not self._waiting:
                self._commit()
                if not self._decode_more():
                    break
            self._hand_out([self._waiting.popleft()])
            self._at_hand = iter(self._out[0].events)
        self._came_back()
        self.close()
        raise StopIteration

    def _hand_out(self, records: list[_Decoded]) -> None:
        self._out, self._at_hand = records, None

    def _came_back(self) -> None:
        """The caller is done with what it was given; with a record only if it was given all of its events."""
        if next(self._at_hand or iter(()), None) is None:
            self._given.update(_offsets(self._out))
            self._hand_out([])

    def _put_back(self) -> None:
        """What the caller was given and did not come back from comes next."""
        self._waiting.extendleft(reversed(self._out))
        self._hand_out([])

    def batches(self) -> Iterator[EventBatch]:
        """Batches of events; one is committed when the next one is asked for, or on a clean end.

        Raises: as iterating over events does.
        """
        self._put_back()
        while not self._stopped.is_set():
            self._commit()
            if not self._waiting and not self._decode_more():
                break
            self._hand_out(list(self._waiting))
            self._waiting.clear()
            events = tuple(event for one in self._out for event in one.events)
            if events:
                yield EventBatch(events, _offsets(self._out))
            self._came_back()
        self.close()

    def _decode_more(self) -> bool:
        """Wait for records and decode them, up to one that fails; False at a clean end."""
        if not self._fetched and not self._fetch():
            return False
        while self._fetched:
            message = self._fetched[0]
            try:
                events = self._decoded(message)
            except TidesinkError:
                if self._waiting:
                    return True  # what came before first; then this record is tried again
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
            # What the group takes to say which partitions are ours, within a fetch too, is no idle time.
            since = max(began, self._group.waits_since())
            if self._stop_after_idle is not None and time.monotonic() - since >= self._stop_after_idle:
                return False
        return False

    def _decoded(self, message: Message) -> tuple[Event, ...]:
        try:
            return self._codec.decode(message)
        except (DecodeError, SchemaNotFoundError) as error:
            error.with_context(topic=message.topic, partition=message.partition, offset=message.offset)
            if self._policy(message.topic) == "pause" or self._on_bad_record is None:
                raise
            self._on_bad_record(BadRecord(message, error))
            return ()

    def _policy(self, topic: str) -> str:
        table = self._config.table_of_topic(topic)
        return self._config.table_config(table).bad_record if table else self._config.defaults.bad_record

    def _commit(self) -> None:
        """Commit what the caller was given whole; a failed commit is tried again by the next call."""
        self._group.commit(self._given)
        self._given = {}

    def close(self, *, commit: bool = True) -> None:
        """Leave the group; ``commit``: what the caller was given counts as done.

        Raises:
            SourceUnavailableError: the brokers do not answer, so what was done will be given again.
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
            self._came_back()  # by leaving the block
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
    """The events of a pipeline's topics, at least once: ``for event in tidesink.consume("tidesink.yaml")``.

    ``group`` is the consumer group, the pipeline's name if not given. A partition that the group has not
    committed yet begins at ``start``. ``on_bad_record`` gets what cannot be decoded of tables whose policy
    is ``bad-record: dead-letter``, and returns to go on. ``stop_after_idle`` ends the iteration after so
    many seconds without a record. Topics that begin to fit the rule are found within ``refresh`` seconds.

    Raises:
        ConfigError: the config is wrong, or asks for dead letters and there is no ``on_bad_record``.
        SourceUnavailableError: the brokers do not answer.
    """
    loaded = config if isinstance(config, Config) else load_config(config)
    _require_callback(loaded, on_bad_record)
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


def _require_callback(config: Config, on_bad_record: OnBadRecord | None) -> None:
    policies = [config.defaults.bad_record, *(entry.bad_record for entry in config.tables)]
    if "dead-letter" in policies and on_bad_record is None:
        raise ConfigError(
            "bad-record: dead-letter needs somewhere to put bad records: give on_bad_record, or set "
            "bad-record: pause",
            key="bad-record",
        )
