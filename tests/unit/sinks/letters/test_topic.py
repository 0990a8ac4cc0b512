"""The form of dead letters, and which of them are left: no broker is asked."""

from __future__ import annotations

from concurrent.futures import Future
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import NewTopic
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.config.samples import CANAL_JSON, FLAT_AVRO, changed, right, wrong
from tidesink.cli.plan import stored_records
from tidesink.config import Config
from tidesink.errors import ConfigError
from tidesink.events import TableId
from tidesink.sinks.letters.topic import (
    DEALT_WITH,
    LETTER,
    STILL_BAD,
    Chosen,
    Letter,
    LetterStamp,
    LetterTopic,
    check_topic,
    dead_letters_of,
    letter_error,
    letter_headers,
    live_letters,
    mark_headers,
    moment,
    original_headers,
    read_headers,
)
from tidesink.sinks.state.progress import MOST_EVENTS, Progress, StoredDdl, load_ddl, store_ddl
from tidesink.sinks.state.sql_store import SqlStateStore

STAMP = LetterStamp("shop", "shop.orders", "topic-id", 3, 7, "tidesink.codecs.flat-avro")
ROW: dict[str, Any] = {
    "topic": "shop_orders",
    "partition": 2,
    "offset": 17,
    "timestamp": 1_700_000_000_000,
    "key": b"k",
    "value": b"\xff",
    "headers": [{"key": "trace", "value": b"\x00\xff"}, {"key": "none", "value": None}],
    "key_schema_id": 4,
    "value_schema_id": None,
    "error": "FramingError",
    "reason": "the value starts with 05, ‘not’ with a header",
}
SETTING = "dead-letters.errors.deadletterqueue.topic.name"


def test_a_letter_has_kafka_connects_headers_behind_its_own() -> None:
    headers = letter_headers(ROW, STAMP, task=5)
    assert original_headers(headers) == [("trace", b"\x00\xff"), ("none", None)]
    said = {name: value.decode() for name, value in headers[2:] if value is not None}
    assert said == {
        "__connect.errors.topic": "shop_orders",
        "__connect.errors.partition": "2",
        "__connect.errors.offset": "17",
        "__connect.errors.connector.name": "shop",
        "__connect.errors.task.id": "5",
        "__connect.errors.stage": "VALUE_CONVERTER",
        "__connect.errors.class.name": "tidesink.codecs.flat-avro",
        "__connect.errors.exception.class.name": "tidesink.errors.FramingError",
        "__connect.errors.exception.message": ROW["reason"],
        "__connect.errors.exception.stacktrace": f"tidesink.errors.FramingError: {ROW['reason']}",
        "__tidesink.errors.kind": "letter",
        "__tidesink.errors.table": "shop.orders",
        "__tidesink.errors.topic.id": "topic-id",
        "__tidesink.errors.timestamp": "1700000000000",
        "__tidesink.errors.key.schema.id": "4",
        "__tidesink.errors.value.schema.id": "",
        "__tidesink.errors.batch": "7",
        "__tidesink.errors.epoch": "3",
    }


def test_a_letter_and_its_marks_are_read_back() -> None:
    known = read_headers(letter_headers(ROW, STAMP), at=9)
    letter = Letter(
        "shop", "shop.orders", "topic-id", "shop_orders", 2, 17, "FramingError", ROW["reason"],
        1_700_000_000_000, None, 4, 7, 3, 9,
    )  # fmt: skip
    assert known == (LETTER, letter)
    done, bad = read_headers(mark_headers(letter)), read_headers(mark_headers(letter, "ChecksumError", "why"))
    assert done is not None
    assert bad is not None
    assert (done[0], done[1].identity) == (DEALT_WITH, letter.identity)
    assert (bad[0], bad[1].identity) == (STILL_BAD, letter.identity)
    assert (bad[1].error, bad[1].reason) == ("ChecksumError", "why")


def test_records_of_others_are_no_letters() -> None:
    connects = [header for header in letter_headers(ROW, STAMP) if header[0].startswith("__connect")]
    assert read_headers(connects) is None
    assert read_headers([]) is None


@pytest.mark.parametrize(
    "said",
    [
        {"__tidesink.errors.kind": b"note"},
        {"__tidesink.errors.kind": b"\xff"},
        {"__tidesink.errors.kind": None},
        {"__tidesink.errors.table": None},
        {"__connect.errors.connector.name": None},
        {"__connect.errors.topic": b""},
        *(
            {f"__connect.errors.{name}": value}
            for name in ("partition", "offset")
            for value in (None, b"", b"-1", b"x", b"1_0", b" 1", b"1.0", "\u0661".encode(), b"9" * 19)
        ),
    ],
)
def test_a_record_that_names_no_place_in_kafka_is_no_letter(said: dict[str, bytes | None]) -> None:
    """The topic may be shared: none of these may stop the commands that read it."""
    headers = [(name, said.get(name, value)) for name, value in letter_headers(ROW, STAMP)]
    assert read_headers(headers) is None
    lacks = [(name, value) for name, value in headers if name not in said]
    assert read_headers(lacks) is None


def test_a_copy_of_a_letter_that_connect_could_not_read_is_no_letter() -> None:
    """Its headers stand behind ours, whatever connector they name."""
    own = letter_headers(ROW, STAMP)
    connects = [header for header in own if header[0].startswith("__connect")]
    assert read_headers([*own, *connects]) is None
    assert read_headers([("__tidesink.errors.kind", b"letter"), *connects]) is None
    # Others may have been added on the way.
    assert read_headers([*own, ("traceparent", b"00")]) == read_headers(own)


@pytest.mark.parametrize("value", [b"x", b"-1", b"9" * 30, b"\xff"])
def test_a_letter_stays_one_without_the_numbers_that_only_inform(value: bytes) -> None:
    names = ("timestamp", "key.schema.id", "value.schema.id", "batch", "epoch")
    spoilt = {f"__tidesink.errors.{name}": value for name in names}
    found = read_headers([(name, spoilt.get(name, old)) for name, old in letter_headers(ROW, STAMP)])
    assert found is not None
    letter = found[1]
    assert (letter.time, letter.schema_id, letter.key_schema_id, letter.batch, letter.epoch) == (
        None,
        None,
        None,
        0,
        0,
    )
    assert letter.identity == ("shop", "shop.orders", "topic-id", "shop_orders", 2, 17)


def test_a_record_that_was_a_letter_or_a_mark_itself_is_a_letter() -> None:
    """The source may be a copy of a topic of dead letters."""
    first = read_headers(letter_headers(ROW, STAMP))
    assert first is not None
    inner = mark_headers(first[1])
    own = [{"key": name, "value": value} for name, value in inner]
    headers = letter_headers({**ROW, "offset": 99, "headers": own}, STAMP)
    assert original_headers(headers) == inner
    outer = read_headers(headers)
    assert outer is not None
    assert (outer[0], outer[1].offset) == (LETTER, 99)


@pytest.mark.parametrize(
    ("code", "remedy", "text"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "stop", "describe, read and write the topic"),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, "stop", "create"),
        (KafkaError.MSG_SIZE_TOO_LARGE, "stop", "max.message.bytes"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, "retry", "does not exist"),
        (KafkaError._ALL_BROKERS_DOWN, "retry", "source.brokers"),
    ],
)
def test_what_kafka_answers_is_an_error_of_ours(code: int, remedy: str, text: str) -> None:
    error = letter_error(KafkaError(code), LetterTopic("dlq", {"sasl.password": "s3cr3t"}))
    assert (error.remedy, error.context) == (remedy, {"topic": "dlq"})
    assert text in error.message


class _Admin:
    """An admin client that gives one answer to every question."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def describe_topics(self, topics: TopicCollection, **_how: Any) -> dict[str, Future[Any]]:
        return {name: self._future() for name in topics.topic_names}

    def describe_configs(self, resources: list[Any], **_how: Any) -> dict[Any, Future[Any]]:
        return {one: self._future() for one in resources}

    def _future(self) -> Future[Any]:
        future = Future[Any]()
        if isinstance(self._answer, Exception):
            future.set_exception(self._answer)
        else:
            future.set_result(self._answer)
        return future


def test_a_controller_that_is_down_is_not_waited_for() -> None:
    """A client that knows it waits for it; a new one learns the living one, and answers what follows too."""
    waits, answers = _Admin(KafkaException(KafkaError(KafkaError._TIMED_OUT))), _Admin({})
    opened = [waits, answers]
    assert check_topic(LetterTopic("dlq", {}), open_client=lambda *_: opened.pop(0)).is_there
    assert opened == []


EVENTS = st.tuples(st.sampled_from((LETTER, DEALT_WITH, STILL_BAD)), st.integers(0, 3), st.integers(0, 1))


@given(st.lists(EVENTS, max_size=30))
def test_of_each_letter_one_is_left_unless_it_is_dealt_with(events: list[tuple[str, int, int]]) -> None:
    """Whoever wrote it how often: the last word but ``still-bad`` says whether it is there."""
    records = [
        (kind, Letter("shop", "t", f"id{topic}", "t", 0, offset, f"E{at}", "", at=at))
        for at, (kind, offset, topic) in enumerate(events)
    ]
    left = live_letters(records)
    assert len({letter.identity for letter in left}) == len(left)
    for identity in {letter.identity for _, letter in records}:
        said = [(kind, letter) for kind, letter in records if letter.identity == identity]
        ends = [at for at, (kind, _) in enumerate(said) if kind == DEALT_WITH]
        rest = said[ends[-1] + 1 :] if ends else said
        written = [at for at, (kind, _) in enumerate(rest) if kind == LETTER]
        found = [letter for letter in left if letter.identity == identity]
        assert bool(found) == bool(written)
        if written:
            errors = [letter.error for kind, letter in rest[written[0] + 1 :] if kind == STILL_BAD]
            first = rest[written[0]][1]
            assert found == [first._replace(error=errors[-1] if errors else first.error)]


def test_letters_are_chosen_by_what_is_said() -> None:
    letter = Letter("shop", "shop.orders", "i", "t", 1, 5, "FramingError", "", time=1_000)
    at = datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc)

    def chosen(**more: Any) -> bool:
        return Chosen("shop", **more).fits(letter, kind=letter.error)

    assert chosen()
    assert chosen(table="shop.orders", topic="t", topic_id="i", partition=1, offset=5, kind="FramingError")
    others = ({"table": "x"}, {"topic_id": "j"}, {"partition": 0}, {"offset": 4}, {"kind": "E"}, {"below": 5})
    assert not any(chosen(**other) for other in others)
    # What has no time is older than nothing.
    assert [chosen(before=at), chosen(before=at.replace(year=2026)), chosen(below=6)] == [False, True, True]
    assert not Chosen("shop", before=at).fits(letter._replace(time=None), kind="")
    assert moment(10**18) is None


def test_the_config_names_the_topic_in_kafka_connects_words() -> None:
    config = right(changed(FLAT_AVRO, defaults__bad_record="dead-letter", **topic("shop-dlq", 1)))
    letters = dead_letters_of(config)
    assert (letters.topic.name, letters.topic.replication_factor) == ("shop-dlq", 1)
    assert letters.place == "topic shop-dlq of 127.0.0.1:9092"
    assert "properties" not in repr(letters.topic)
    with pytest.raises(ConfigError, match=r"errors\.deadletterqueue\.topic\.name"):
        dead_letters_of(Config.model_validate(FLAT_AVRO))


def topic(name: str, replicas: int | None = None) -> dict[str, Any]:
    """The settings of a topic for ``changed``."""
    place = "dead_letters__errors.deadletterqueue.topic"
    return {f"{place}.name": name, **({f"{place}.replication.factor": replicas} if replicas else {})}


@pytest.mark.parametrize(
    ("settings", "field", "reason"),
    [
        ({"defaults__bad_record": "dead-letter"}, SETTING, "required by bad-record"),
        (topic("shop-dlq"), SETTING, "has no effect"),
        ({"defaults__bad_record": "dead-letter", **topic("app")}, SETTING, "app matches source.topics"),
        ({"defaults__bad_record": "dead-letter", **topic("no/name")}, SETTING, "wrong form"),
        ({"dead_letters__path": "./kept"}, "dead-letters.path", "unknown setting"),
    ],
)
def test_a_topic_that_cannot_be_is_refused(settings: dict[str, Any], field: str, reason: str) -> None:
    problem = wrong(changed(CANAL_JSON, **settings))[field]
    assert reason in problem.reason
    if field == "dead-letters.path":
        assert "errors.deadletterqueue.topic.name" in problem.remedy


def test_plan_says_where_records_are_stored() -> None:
    assert stored_records(right(FLAT_AVRO)) == {}
    given_topic = changed(CANAL_JSON, defaults__bad_record="dead-letter", **topic("shop-dlq"))
    assert stored_records(right(changed(given_topic, state="sqlite:////var/lib/t.db"))) == {
        "dead_letters": "topic shop-dlq of a:1,b:2",
        "ddl_events": "sqlite:////var/lib/t.db",
    }


def test_ddl_events_are_stored_once_and_the_newest_of_each_table(tmp_path: Any) -> None:
    store, table = SqlStateStore(str(tmp_path / "state.db")), TableId("shop", "orders")
    events = [StoredDdl("t", "i", 0, at, at, "ALTER", f"ALTER {at}", None) for at in range(MOST_EVENTS + 5)]
    for epoch in (1, 2):
        store_ddl(store, Progress(table, "shop", epoch, 3), events[:2])
    assert [(event.offset, event.batch, event.table) for event in load_ddl(store, "shop", [table])] == [
        (0, 3, "shop.orders"), (1, 3, "shop.orders"),
    ]  # fmt: skip
    store_ddl(store, Progress(table, "shop", 2, 4), events[2:])
    left = load_ddl(store, "shop", [table, TableId("shop", "other")])
    assert (len(left), left[0].offset, left[-1].query) == (MOST_EVENTS, 5, events[-1].query)
    assert load_ddl(store, "other", [table]) == []
    store.close()


class _Cluster:
    """An admin client of a cluster that lacks the topic and takes any."""

    def __init__(self, brokers: int) -> None:
        self._brokers = brokers
        self.made = list[NewTopic]()

    def describe_topics(self, topics: TopicCollection, **_how: Any) -> dict[str, Future[Any]]:
        refused = Future[Any]()
        refused.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
        return dict.fromkeys(topics.topic_names, refused)

    def list_topics(self, **_how: Any) -> Any:
        return SimpleNamespace(brokers=dict.fromkeys(range(self._brokers)))

    def create_topics(self, topics: list[NewTopic], **_how: Any) -> dict[str, Future[Any]]:
        self.made += topics
        made = Future[Any]()
        made.set_result(None)
        return {one.topic: made for one in topics}


@pytest.mark.parametrize(
    ("brokers", "setting", "replicas", "shown"),
    [
        (1, None, 1, "with 1 replica"),
        (2, None, 2, "with 2 replicas"),
        (9, None, 3, "with 3 replicas"),
        (9, 5, 5, "with 5 replicas"),
        (1, -1, -1, "with the brokers' default number of replicas"),
    ],
)
def test_the_topic_has_as_many_replicas_as_the_cluster_can_have(
    brokers: int, setting: int | None, replicas: int, shown: str
) -> None:
    cluster = _Cluster(brokers)
    found = check_topic(LetterTopic("dlq", {}, setting), open_client=lambda *_: cluster)
    assert (found.is_there, found.replicas) == (False, replicas)
    assert shown in found.shown
    assert [one.replication_factor for one in cluster.made] == [replicas]
