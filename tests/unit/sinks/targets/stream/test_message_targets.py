"""Settings, errors and the ledger of targets that pass rows on; nothing is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.columns import ID
from tests.contracts.targets_bed import AMOUNT, NAME, TABLE, progress
from tests.http_receiver import Fault, http_receiver
from tests.unit.config.samples import CANAL_JSON, right, wrong
from tidesink.config import HttpSettings, KafkaSettings
from tidesink.config.fields import SchemaChanges
from tidesink.errors import ConfigError, ProgressError, StaleProgressError, TargetError, TransientTargetError
from tidesink.events import TableId, TableSchema
from tidesink.sinks.schema_changes.decisions import Policies, decide_changes
from tidesink.sinks.state.sql_store import SqlStateStore
from tidesink.sinks.targets.base import ReducedBatch
from tidesink.sinks.targets.stream import http_endpoint as http_target
from tidesink.sinks.targets.stream import kafka as kafka_target
from tidesink.sinks.targets.stream.kafka import admin_error, delivery_error
from tidesink.sinks.targets.stream.table import (
    LEDGER,
    MessageEntry,
    MessageTable,
    Sent,
    Stamp,
    StoreLedger,
    ledger_names,
    sent_result,
)
from tidesink.typemap.target_schema import shape_of

KAFKA: dict[str, Any] = {"type": "kafka", "brokers": "k:9092", "protocol": "canal-json"}
HTTP: dict[str, Any] = {"type": "http", "url": "https://api.example.com/{schema}/{table}?token=s3cr3t"}


def with_target(target: dict[str, Any]) -> dict[str, Any]:
    return {**CANAL_JSON, "target": target}


def kafka(**more: Any) -> KafkaSettings:
    found = right(with_target({**KAFKA, **more})).target
    assert isinstance(found, KafkaSettings)
    return found


def http(**more: Any) -> HttpSettings:
    found = right(with_target({**HTTP, **more})).target
    assert isinstance(found, HttpSettings)
    return found


class _Passing(MessageTable):
    def _send(self, batch: ReducedBatch, stamp: Stamp) -> Sent:  # noqa: ARG002
        return Sent(0, 0)


def test_a_column_that_was_never_sent_waits_under_add_pause(tmp_path: Path) -> None:
    store = SqlStateStore(str(tmp_path / "state.db"))
    ledger = StoreLedger(store, ("here",), TABLE, pipeline="p", keys=("id",))
    before, after = (shape_of(TableSchema(TABLE, columns)) for columns in ((ID, NAME), (ID, NAME, AMOUNT)))
    table = _Passing(before, ledger=ledger)
    table.claim()
    for policy, waits in (("pause", ["amount"]), ("apply", [])):
        policies = Policies(SchemaChanges.model_validate({"add": policy}), {}, kafka_target.CAPABILITIES)
        schema_decision = decide_changes(table.gap(after), after, policies, None)
        assert [one.change.column for one in schema_decision.pending] == waits
    store.close()


def test_protocols_have_the_names_of_the_codecs() -> None:
    registry = {"schema-registry": "http://127.0.0.1:8081"}
    assert kafka(protocol="avro", **registry).protocol == "flat-avro"
    assert KafkaSettings.model_validate({**KAFKA, "protocol": "Debezium"}).protocol == "debezium-json"
    avro = KafkaSettings.model_validate({**KAFKA, "protocol": "debezium-avro", **registry})
    assert avro.protocol == "debezium-avro"
    assert kafka().topic == "{schema}_{table}"
    assert kafka(topic="all").rule.topic_for(TABLE) == "all"


@pytest.mark.parametrize(
    ("more", "field", "words"),
    [
        ({"protocol": "flat-avro"}, "target", "needs schema-registry"),
        ({"protocol": "rich-avro"}, "target.protocol", "flat-avro"),
        ({"protocol": "open-protocol"}, "target.protocol", "Unknown protocol"),
        (
            {"protocol": "avro", "topic": "all", "schema-registry": "http://h:1"},
            "target",
            "must contain {schema} and {table}",
        ),
        ({"topic": "{table}{schema}"}, "target.topic", "in that order"),
        ({"schema-registry": "http://h:1"}, "target", "schema-registry has no effect with canal-json"),
        ({"cluster-id": "x"}, "target", "cluster-id has no effect"),
        ({"kafka": {"acks": 0}}, "target.kafka.acks", "is not a client property"),
        (
            {"kafka": {"enable.idempotence": False}},
            "target.kafka.enable.idempotence",
            "is not a client property",
        ),
        ({"kafka": {"sasl.username": "me"}}, "target.kafka", "no effect with security.protocol"),
        (
            {"kafka": {"security.protocol": "SSL", "ssl.ca.location": "/nowhere.pem"}},
            "target.kafka.ssl.ca.location",
            "the file does not exist",
        ),
        (
            {
                "protocol": "avro",
                "schema-registry": {
                    "url": "http://h:1",
                    "auth": {"username": "me"},
                    "tls": {"ca": "/nowhere"},
                },
            },
            "target.schema-registry.auth",
            "incomplete",
        ),
        ({"brokers": "k"}, "target.brokers[0]", "host:port"),
        ({"time-zone": "Mars"}, "target.time-zone", "IANA"),
        ({"partition-num": 0}, "target.partition-num", "1 or more"),
        ({"delete-only-output-handle-key-columns": True}, "target.delete-only-output-handle-key-columns", ""),
    ],
)
def test_what_is_wrong_with_a_kafka_target_is_said(more: dict[str, Any], field: str, words: str) -> None:
    problems = wrong(with_target({**KAFKA, **more}))
    assert words in str(problems[field])


@pytest.mark.parametrize(
    ("more", "field", "words"),
    [
        ({"url": "ftp://h/x"}, "target.url", "give a URL"),
        ({"url": "http://h:x/"}, "target.url", "give a URL"),
        ({"url": "http://me:s3cr3t@h/"}, "target.url", "target.auth"),
        ({"url": "http://{schema}.h/"}, "target.url", "host name"),
        ({"url": "http://h/{day}"}, "target.url", "unknown placeholder"),
        ({"url": "http://h/#a"}, "target.url", "fragment"),
        ({"auth": {"token": "s3cr3t", "username": "me"}}, "target.auth", "exclude each other"),
        ({"auth": {"username": "me"}}, "target.auth", "set username and password"),
        ({"tls": {"ca": "/nowhere.pem"}}, "target.tls.ca", "the file does not exist"),
        ({"method": "GET"}, "target.method", "POST"),
        ({"batch-rows": 0}, "target.batch-rows", "1 or more"),
    ],
)
def test_what_is_wrong_with_an_endpoint_is_said(more: dict[str, Any], field: str, words: str) -> None:
    problems = wrong(with_target({**HTTP, **more}))
    assert words in str(problems[field])
    assert "s3cr3t" not in str(problems)


def test_what_a_target_of_messages_cannot_do_is_said_before_the_run() -> None:
    soft = {
        **with_target(KAFKA),
        "defaults": {"deletes": "soft"},
        "tables": [{"name": "a.b", "deletes": "soft"}],
    }
    assert set(wrong(soft)) == {"defaults.deletes", "tables[0].deletes"}
    same = with_target({**KAFKA, "brokers": CANAL_JSON["source"]["brokers"][0], "topic": "app"})
    assert "a prefix" in str(wrong(same)["target.topic"])
    assert "source's records do not have one" in str(
        wrong(with_target({**KAFKA, "protocol": "debezium"}))["target.protocol"]
    )
    extended = wrong(with_target({**KAFKA, "enable-tidb-extension": True}))
    assert "source's records do not have one" in str(extended["target.enable-tidb-extension"])
    source = {**CANAL_JSON["source"], "enable-tidb-extension": True}
    right({**with_target({**KAFKA, "protocol": "debezium"}), "source": source})


def test_secrets_are_not_shown() -> None:
    settings = http(auth={"token": "t0ken"}, headers={"X-Key": "k3y"})
    shown = (
        f"{settings!r} {http_target.place_of(settings, TABLE)} {http_target.endpoint_of(settings, TABLE)!r}"
    )
    assert not [secret for secret in ("s3cr3t", "t0ken", "k3y") if secret in shown]
    assert http_target.place_of(settings, TableId("a/b", "ü")) == "https://api.example.com/a%2Fb/%C3%BC"


@pytest.mark.parametrize(
    ("code", "passes"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, False),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, False),
        (KafkaError._MSG_TIMED_OUT, True),
        (KafkaError.NOT_ENOUGH_REPLICAS, True),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, True),
    ],
)
def test_a_delivery_that_failed_is_judged_by_its_code(code: int, passes: bool) -> None:
    error = delivery_error(KafkaError(code), "t")
    assert isinstance(error, TransientTargetError) is passes
    assert error.context == {"topic": "t"}


def test_what_brokers_answer_is_judged_by_its_code() -> None:
    refused = admin_error(KafkaException(KafkaError(KafkaError.INVALID_REPLICATION_FACTOR)), "t")
    assert type(refused) is TargetError
    assert "Lower target.replication-factor" in refused.message
    for code, remedy in (
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "describe and write the topic"),
        (KafkaError.SASL_AUTHENTICATION_FAILED, "sasl.password under target.kafka"),
        (KafkaError.TOPIC_EXCEPTION, "Change target.topic"),
    ):
        assert remedy in admin_error(KafkaException(KafkaError(code)), "t").message
    silent = admin_error(KafkaException(KafkaError(KafkaError._TRANSPORT)), None)
    assert type(silent) is TransientTargetError


def test_the_place_of_a_table_in_kafka() -> None:
    assert kafka_target.place_of(kafka(topic="to-{schema}.{table}"), TABLE) == "kafka:to-shop.orders"


def test_validate_asks_an_endpoint_and_sends_nothing() -> None:
    with http_receiver() as receiver:
        settings = http(url=f"{receiver.url}/{{table}}")
        receiver.faults = [Fault(405)]
        assert http_target.try_target(settings).endswith("answers (HTTP 405 to HEAD)")
        receiver.faults = [Fault(401)]
        with pytest.raises(ConfigError, match=r"target\.auth"):
            http_target.try_target(settings)
        assert {request.method for request in receiver.requests} == {"HEAD"}
        assert receiver.taken == set()
        receiver.faults = [Fault(503)]
        with pytest.raises(
            TransientTargetError, match=r"HTTP 503\. The endpoint, or the server that it forwards to, is down"
        ):
            http_target.try_target(settings)
    with pytest.raises(TransientTargetError, match=r"no connection: connection refused; check target\.url"):
        http_target.try_target(settings)


@pytest.fixture
def store(tmp_path: Path) -> SqlStateStore:
    return SqlStateStore(str(tmp_path / "state.db"))


def ledger(store: SqlStateStore, pipeline: str = "shop", *, at: int = 1) -> StoreLedger:
    return StoreLedger(store, ("kafka", "t"), TABLE, pipeline=pipeline, keys=("id",), clock=lambda: at)


def claimed(store: SqlStateStore, *, at: int) -> tuple[StoreLedger, MessageEntry]:
    """A ledger that claimed at a time of the clock, and what it holds then."""
    held = ledger(store, at=at)
    held.claim()
    return held, held.held()


def test_a_ledger_that_cannot_be_read_is_no_ledger_that_is_empty(store: SqlStateStore) -> None:
    name = LEDGER.key(*ledger_names(("kafka", "t"), TABLE))
    documents: list[Any] = [{"version": 99}, {"version": 1}, [], "x"]
    for document in documents:
        store.save_document(LEDGER.name, name, document)
        with pytest.raises(ProgressError, match="The document 'target-ledger' with the key"):
            ledger(store).claim()


def test_a_ledger_knows_the_result_of_its_last_batch(store: SqlStateStore) -> None:
    held = ledger(store)
    assert held.claim().epoch == 1
    assert held.held(1).done(progress(1, 1)) is None
    held.write(progress(1, 1), sent_result(2, 1, "1/1"))
    assert held.held(1).done(progress(1, 1)) == sent_result(2, 1, "1/1")
    assert ledger(store).committed() == progress(1, 1)
    with pytest.raises(StaleProgressError, match="later batch"):
        held.held(1).done(progress(1, 0))
    with pytest.raises(StaleProgressError, match="pipeline 'shop'"):
        ledger(store, "other").claim()


def test_what_readers_are_told_grows_with_each_claim_whatever_the_clock_says(store: SqlStateStore) -> None:
    reported = [claimed(store, at=at)[1].sent_epoch for at in (500, 500, 20, 900)]
    assert reported == [500, 501, 502, 900]


def test_a_batch_follows_the_same_one_until_it_is_written_down(store: SqlStateStore) -> None:
    held, first = claimed(store, at=500)
    assert (first.sent_epoch, first.follows) == (500, 500)
    held, again = claimed(store, at=600)
    assert (again.sent_epoch, again.follows) == (600, 500), "it was killed, and sends its batch again"
    held.write(progress(2, 1), sent_result(1, 0, "600/1"))
    assert held.held().follows == 600
    assert claimed(store, at=700)[1].follows == 600


def test_a_store_from_a_backup_gives_no_worker_its_table_back(store: SqlStateStore) -> None:
    claimed(store, at=500)
    name = LEDGER.key(*ledger_names(("kafka", "t"), TABLE))
    backup = store.load_document(LEDGER.name, name)
    lost, before = claimed(store, at=600)
    store.save_document(LEDGER.name, name, backup)
    _, now = claimed(store, at=700)
    assert (now.epoch, now.sent_epoch) == (before.epoch, 700)
    with pytest.raises(StaleProgressError, match="Another worker holds this table"):
        lost.write(progress(2, 1), sent_result(1, 0, "600/1"))


def test_a_long_place_has_a_name_that_the_store_takes() -> None:
    table = TableId("s" * 64, "t" * 64)
    names = ledger_names(("http", "https://h/" + "x" * 5000), table)
    assert len(LEDGER.key(*names)) < 600
    assert names != ledger_names(("http", "https://h/" + "x" * 5001), table)
