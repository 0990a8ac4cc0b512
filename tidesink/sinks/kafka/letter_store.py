"""A pipeline's dead letters for those who look at them: counted, shown, dropped, settled; and their topic.

The letters themselves and their form are in ``dead_letters``. Everything here reads the topic from its
beginning to where it ends at that moment, and takes no Spark.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # not in its stubs
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tidesink.config import Config
from tidesink.errors import ConfigError, SourceError, SourceUnavailableError
from tidesink.events import TableId
from tidesink.kafka_client import open_client
from tidesink.sinks.kafka.dead_letters import (
    QUIET,
    Identity,
    Letter,
    LetterTopic,
    LetterWriter,
    mark_headers,
    original_headers,
    read_letters,
    records_at,
    translated_letter_errors,
)

_TIMEOUT: Final = 15.0
_PAUSE: Final = 0.2
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
# Letters stay until somebody deals with them.
_TOPIC_CONFIG: Final = {"cleanup.policy": "delete", "retention.ms": "-1"}


@dataclass(frozen=True)
class Chosen:
    """Which stored records of a pipeline: all that fit everything that is not None.

    ``topic_id`` is Kafka's. ``before``: those whose Kafka timestamp is older. ``below``: offsets under this
    one. ``kind``: the class of a letter's error, or what a DDL event did.
    """

    pipeline: str
    table: str | None = None
    topic: str | None = None
    topic_id: str | None = None
    partition: int | None = None
    offset: int | None = None
    below: int | None = None
    before: datetime | None = None
    kind: str | None = None

    def fits(self, record: Any, *, kind: str) -> bool:
        """Whether a record of the pipeline is chosen; it has the attributes of the same names, and a time."""
        same = ("table", "topic", "topic_id", "partition", "offset")
        for name in same:
            if getattr(self, name) not in (None, getattr(record, name)):
                return False
        if self.kind not in (None, kind) or (self.below is not None and record.offset >= self.below):
            return False
        return self.before is None or (record.time is not None and record.time < _ms(self.before))


@dataclass(frozen=True)
class RecordGroup:
    """Letters of one table, partition and error: how many, and from where to where."""

    table: str
    topic: str
    partition: int
    kind: str
    count: int
    first_offset: int
    last_offset: int
    first_time: datetime | None
    last_time: datetime | None
    topic_id: str | None = None


class Outcome(NamedTuple):
    """What became of a letter in a replay; no error: it is dealt with."""

    topic_id: str
    topic: str
    partition: int
    offset: int
    error: str | None = None
    reason: str | None = None


class DeadLetters:
    """The dead letters of one pipeline. May be used from several threads.

    Every method raises SourceError where Kafka refuses, SourceUnavailableError where it does not answer.
    """

    def __init__(self, pipeline: str, topic: LetterTopic) -> None:
        self.pipeline = pipeline
        self.topic = topic

    @property
    def place(self) -> str:
        """Where they are, for people to read."""
        return self.topic.place

    def prepare(self) -> None:
        """Have the topic ready to be written to: make it where it is not there.

        Raises: SourceError also for a topic whose clean-up policy would lose letters.
        """
        prepare_topic(self.topic)

    def letters(self, chosen: Chosen) -> list[Letter]:
        """The chosen letters, without their bytes, in the order they were written; none without a topic."""
        if not self._exists():
            return []
        found = read_letters(self.topic, pipeline=chosen.pipeline, table=chosen.table)
        return [letter for letter in found if chosen.fits(letter, kind=letter.error)]

    def groups(self, chosen: Chosen) -> tuple[RecordGroup, ...]:
        """The chosen letters counted by table, topic, partition and error, in that order."""
        parts: dict[tuple[str, str, str, int, str], list[Letter]] = {}
        for one in self.letters(chosen):
            place = one.table, one.topic, one.topic_id, one.partition, one.error
            parts.setdefault(place, []).append(one)
        return tuple(_group(part) for _, part in sorted(parts.items()))

    def rows(self, chosen: Chosen, *, limit: int) -> tuple[dict[str, Any], ...]:
        """The first ``limit`` of the chosen letters by table, topic, partition and offset, whole."""
        found = sorted(self.letters(chosen), key=lambda one: (one.table, *one.identity[3:]))[:limit]
        records = {one.offset(): one for one in records_at(self.topic, {letter.at for letter in found})}
        return tuple(_row(letter, records[letter.at]) for letter in found if letter.at in records)

    def remove(self, chosen: Chosen) -> int:
        """Drop the chosen letters; how many they were."""
        found = self.letters(chosen)
        with LetterWriter(self.topic) as writer:
            for letter in found:
                writer.send(None, None, mark_headers(letter))
        return len(found)

    def settle(self, outcomes: Iterable[Outcome], *, table: TableId) -> int:
        """Mark letters as dealt with, and give the others today's error; how many they were.

        Doing it again changes nothing, and an outcome of what is no letter is passed over.
        """
        letters: dict[Identity, Letter] = {
            letter.identity: letter for letter in self.letters(Chosen(self.pipeline, str(table)))
        }
        settled = 0
        with LetterWriter(self.topic) as writer:
            for topic_id, topic, partition, offset, error, reason in outcomes:
                letter = letters.get((self.pipeline, str(table), topic_id, topic, partition, offset))
                if letter is None:
                    continue
                settled += 1
                if (error, reason) != (letter.error, letter.reason):
                    writer.send(None, None, mark_headers(letter, error, reason))
        return settled

    def _exists(self) -> bool:
        return find_topic(self.topic, _admin(self.topic))


def dead_letters_of(config: Config) -> DeadLetters:
    """The dead letters of a pipeline; nothing is asked of Kafka yet.

    Raises:
        ConfigError: the config names no topic for them.
    """
    settings = config.dead_letters
    if settings.topic is None:
        raise ConfigError(
            "dead-letters names no topic: set errors.deadletterqueue.topic.name, such as "
            f"{config.pipeline}-dead-letters"
        )
    properties = config.source.confluent_properties()
    return DeadLetters(config.pipeline, LetterTopic(settings.topic, properties, settings.replication_factor))


def counted(groups: Sequence[RecordGroup]) -> int:
    """How many letters groups hold."""
    return sum(group.count for group in groups)


def moment(ms: int | None) -> datetime | None:
    """A Kafka timestamp as a time in UTC; None for one that Python's calendar does not have."""
    try:
        return None if ms is None else _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return None


def _ms(time: datetime) -> float:
    return (time - _EPOCH) / timedelta(milliseconds=1)


def _group(part: Sequence[Letter]) -> RecordGroup:
    one, offsets = part[0], [letter.offset for letter in part]
    times = [time for time in (moment(letter.time) for letter in part) if time is not None]
    return RecordGroup(
        one.table,
        one.topic,
        one.partition,
        one.error,
        len(part),
        min(offsets),
        max(offsets),
        min(times, default=None),
        max(times, default=None),
        one.topic_id,
    )


def _row(letter: Letter, record: Any) -> dict[str, Any]:
    own = original_headers(record.headers() or ())
    shown = [[name, None if value is None else value.decode("utf-8", "replace")] for name, value in own]
    known = {name: value for name, value in letter._asdict().items() if name != "at"}
    return {
        **known,
        "key": record.key(),
        "value": record.value(),
        "time": moment(letter.time),
        "headers": shown,
    }


# The topic


def _admin(topic: LetterTopic) -> AdminClient:
    return open_client(AdminClient, topic.properties, QUIET)


def find_topic(topic: LetterTopic, admin: AdminClient) -> bool:
    """Whether the topic is there; asking does not make it."""
    with translated_letter_errors(topic):
        asked = admin.describe_topics(TopicCollection([topic.name]), request_timeout=_TIMEOUT)[topic.name]
        try:
            asked.result()
        except KafkaException as exc:
            if exc.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return False
            raise
        return True


def check_topic(topic: LetterTopic) -> bool:
    """Whether the topic is there; where it is not, that it may be made. Nothing is changed.

    Raises: as ``prepare_topic``.
    """
    admin = _admin(topic)
    found = find_topic(topic, admin)
    if found:
        _check_policy(topic, admin)
    else:
        _create(topic, admin, validate_only=True)
    return found


def prepare_topic(topic: LetterTopic) -> None:
    """Make the topic where it is not there, with one partition, and without an end of its records' time.

    Raises:
        SourceError: it may not be made, or its clean-up policy loses letters.
        SourceUnavailableError: Kafka does not answer.
    """
    admin = _admin(topic)
    if find_topic(topic, admin):
        _check_policy(topic, admin)
        return
    _create(topic, admin)
    deadline = time.monotonic() + _TIMEOUT
    while not find_topic(topic, admin):
        if time.monotonic() > deadline:
            raise SourceUnavailableError(
                "the dead letter topic was made, and Kafka does not show it yet", topic=topic.name
            )
        time.sleep(_PAUSE)


def _create(topic: LetterTopic, admin: AdminClient, *, validate_only: bool = False) -> None:
    new = NewTopic(topic.name, 1, topic.replication_factor, config=_TOPIC_CONFIG)
    with translated_letter_errors(topic):
        asked = admin.create_topics([new], operation_timeout=_TIMEOUT, validate_only=validate_only)
        try:
            asked[topic.name].result()
        except KafkaException as exc:
            if exc.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


def _check_policy(topic: LetterTopic, admin: AdminClient) -> None:
    """Refuse compaction: of letters with one key it would leave one. Who may not ask is not refused."""
    resource = ConfigResource(ResourceType.TOPIC, topic.name)
    try:
        found = admin.describe_configs([resource], request_timeout=_TIMEOUT)[resource].result()
    except KafkaException as exc:
        if exc.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return
        with translated_letter_errors(topic):
            raise
    policy = found["cleanup.policy"].value if "cleanup.policy" in found else "delete"
    if "compact" in policy:
        raise SourceError(
            f"the dead letter topic has cleanup.policy={policy}, which loses letters that have one key: set "
            "cleanup.policy=delete, or name another topic",
            topic=topic.name,
        )
