"""The topic of dead letters on a real broker, without Spark: written, read back once, settled, dropped."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kafka_topics import topic_messages
from tests.letters import distinct_letters, letter_topic, written_letters
from tests.servers import create_topics
from tidesink.errors import SourceError, SourceUnavailableError
from tidesink.events import TableId
from tidesink.sinks.letters.topic import (
    LETTER_SCHEMA,
    Chosen,
    DeadLetters,
    LetterStamp,
    LetterTopic,
    Outcome,
    RecordGroup,
    check_topic,
    read_records,
    write_letters,
)

pytestmark = pytest.mark.servers

TABLE = TableId("shop", "orders")
STAMP = LetterStamp("shop", str(TABLE), "i", 1, 1, "tidesink.codecs.flat-avro")
MINE = Chosen("shop", str(TABLE))


def at(second: int) -> datetime:
    return datetime(2026, 11, 21, 12, 0, second, tzinfo=timezone.utc)


def records(*rows: dict[str, Any]) -> list[pa.RecordBatch]:
    """Bad records; what is not given is as in the first of them."""
    first = {
        "topic": "t", "partition": 0, "timestamp": None, "key": b"k", "value": b"\xff", "headers": [],
        "key_schema_id": None, "value_schema_id": 7, "error": "FramingError", "reason": "no magic byte",
    }  # fmt: skip
    return [pa.RecordBatch.from_pylist([{**first, **row} for row in rows], LETTER_SCHEMA)]


def offsets(*numbers: int) -> list[pa.RecordBatch]:
    return records(*({"offset": number} for number in numbers))


@pytest.fixture
def letters(brokers: str, topic_prefix: str) -> DeadLetters:
    """A pipeline's letters; their topic is not there yet."""
    return DeadLetters("shop", LetterTopic(letter_topic(topic_prefix), {"bootstrap.servers": brokers}, 1))


def left(letters: DeadLetters, chosen: Chosen = MINE) -> list[int]:
    return [letter.offset for letter in letters.letters(chosen)]


def test_what_is_not_there_is_made_and_holds_nothing(letters: DeadLetters) -> None:
    # One broker: as many replicas, though nobody set a number.
    unset = check_topic(replace(letters.topic, replication_factor=None))
    assert (unset.is_there, unset.replicas) == (False, 1)
    assert (letters.groups(MINE), letters.rows(MINE, limit=9)) == ((), ())
    letters.prepare()
    letters.prepare()
    assert (check_topic(letters.topic).is_there, left(letters)) == (True, [])
    assert write_letters(letters.topic, STAMP, []) == 0


def test_letters_are_the_records_byte_for_byte(letters: DeadLetters, brokers: str, topic_prefix: str) -> None:
    letters.prepare()
    long = bytes(range(256)) * 25_000
    own = [{"key": "h", "value": b"\x00"}, {"key": "__connect.errors.topic", "value": b"another's"}]
    rows: list[dict[str, Any]] = [
        {"offset": 5, "timestamp": int(at(5).timestamp() * 1000), "headers": own},
        {"offset": 2, "key": None, "value": long, "reason": "a\x00b", "timestamp": 10**18},
        {"offset": 2, "partition": 1, "key": b"", "value": None, "error": "ChecksumError"},
    ]
    assert write_letters(letters.topic, STAMP, records(*rows)) == 3
    first, second, third = letters.rows(MINE, limit=9)
    assert (first["offset"], first["key"], first["value"], first["reason"]) == (2, None, long, "a\x00b")
    assert (second["key"], second["time"], second["schema_id"], second["batch"]) == (b"k", at(5), 7, 1)
    assert second["headers"] == [["h", "\x00"], ["__connect.errors.topic", "another's"]]
    assert (third["partition"], third["key"], third["value"]) == (1, b"", None)
    assert letters.groups(MINE) == (
        RecordGroup("shop.orders", "t", 0, "FramingError", 2, 2, 5, at(5), at(5), "i"),
        RecordGroup("shop.orders", "t", 1, "ChecksumError", 1, 2, 2, None, None, "i"),
    )
    everything = {letter.at for letter in letters.letters(MINE)}
    (read,) = read_records(letters.topic, everything)
    assert read.column("timestamp").to_pylist()[:1] == [int(at(5).timestamp() * 1000)]
    assert read.column("headers").to_pylist()[:1] == [own]
    assert read.column("value").to_pylist() == [b"\xff", long, None]
    (message, *_) = topic_messages(brokers, letter_topic(topic_prefix))
    assert message.headers[:2] == (("h", b"\x00"), ("__connect.errors.topic", b"another's"))


def test_a_batch_that_is_tried_again_writes_its_letters_again_and_they_are_read_once(
    letters: DeadLetters, brokers: str, topic_prefix: str
) -> None:
    """Also cut otherwise, in another epoch, beside another pipeline, table and topic of the same place."""
    letters.prepare()
    assert write_letters(letters.topic, STAMP, offsets(1, 2, 3)) == 3
    assert write_letters(letters.topic, STAMP, offsets(1)) == 1
    assert write_letters(letters.topic, replace(STAMP, epoch=2, batch=2), offsets(2, 3, 4)) == 3
    others = replace(STAMP, pipeline="other"), replace(STAMP, table="shop.it's"), replace(STAMP, topic_id="j")
    for other in others:
        assert write_letters(letters.topic, other, offsets(1)) == 1
    assert len(written_letters(brokers, topic_prefix)) == 10
    assert len(distinct_letters(brokers, topic_prefix)) == 6
    assert [(one.topic_id, one.offset, one.batch) for one in letters.letters(MINE)] == [
        ("i", 1, 1), ("i", 2, 1), ("i", 3, 1), ("i", 4, 2), ("j", 1, 1),
    ]  # fmt: skip
    assert left(letters, Chosen("other")) == [1]
    assert left(letters, Chosen("shop")) == [1, 2, 3, 4, 1, 1]


def test_settled_letters_go_and_the_others_say_why_they_stay(letters: DeadLetters) -> None:
    letters.prepare()
    write_letters(letters.topic, STAMP, offsets(1, 2, 3))
    outcomes = [Outcome("i", "t", 0, 1), Outcome("i", "t", 0, 2, "ChecksumError", "now this")]
    for expected in (2, 1):  # the second time the first letter is gone already
        assert letters.settle([*outcomes, Outcome("i", "t", 0, 9)], table=TABLE) == expected
    said = [(one.offset, one.error, one.reason) for one in letters.letters(MINE)]
    assert said == [(2, "ChecksumError", "now this"), (3, "FramingError", "no magic byte")]
    assert (letters.remove(Chosen("shop", kind="ChecksumError")), left(letters)) == (1, [3])
    # A table that is loaded again meets its record again.
    write_letters(letters.topic, STAMP, offsets(1))
    assert left(letters) == [3, 1]


def test_records_of_others_are_passed_over(letters: DeadLetters, brokers: str) -> None:
    """Kafka Connect may write to the topic, in a transaction too, and to partitions that are not ours."""
    create_topics(brokers, {letters.topic.name: 2})
    theirs = Producer({"bootstrap.servers": brokers, "transactional.id": letters.topic.name})
    theirs.init_transactions()
    write_letters(letters.topic, STAMP, offsets(1))
    for ends in (theirs.commit_transaction, theirs.abort_transaction):
        theirs.begin_transaction()
        for partition in (0, 1):
            theirs.produce(
                letters.topic.name, b"v", partition=partition, headers={"__connect.errors.topic": b"t"}
            )
        ends()
    # The last offset of the topic is a transaction's mark.
    assert left(letters) == [1]
    theirs.begin_transaction()
    theirs.produce(letters.topic.name, b"open", partition=0)
    theirs.flush()
    write_letters(letters.topic, STAMP, offsets(2))
    assert left(letters) == [1, 2]
    theirs.abort_transaction()


def _made(brokers: str, name: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": brokers})
    (done,) = admin.create_topics([NewTopic(name, 1, 1, config=config)], operation_timeout=30).values()
    done.result(30)


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_topic_that_loses_letters_is_refused(letters: DeadLetters, brokers: str, policy: str) -> None:
    _made(brokers, letters.topic.name, **{"cleanup.policy": policy})
    for step in (letters.prepare, lambda: check_topic(letters.topic)):
        with pytest.raises(SourceError, match=r"cleanup\.policy=delete"):
            step()


def test_what_kafka_refuses_says_what_mends_it(letters: DeadLetters, brokers: str) -> None:
    def refused(steps: Sequence[Any]) -> list[str]:
        found = []
        for step in steps:
            with pytest.raises(SourceError) as caught:
                step()
            assert not isinstance(caught.value, SourceUnavailableError)
            found.append(caught.value.message)
        return found

    many = DeadLetters("shop", LetterTopic(letters.topic.name, letters.topic.properties, 3))
    for message in refused((many.prepare, lambda: check_topic(many.topic))):
        assert "errors.deadletterqueue.topic.replication.factor" in message
    _made(brokers, letters.topic.name, **{"max.message.bytes": "2000"})
    value = random.Random(1).randbytes(5000)
    (message,) = refused(
        [lambda: write_letters(letters.topic, STAMP, records({"offset": 1, "value": value}))]
    )
    assert "max.message.bytes" in message
    assert left(letters) == []
