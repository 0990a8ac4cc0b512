"""Reads from a broker with TLS and SASL: PEM, mutual TLS, PLAIN, SCRAM, and tokens of a named callback.

By the driver's clients, and in Spark's tasks.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.certificates import self_signed
from tests.contracts.targets_bed import shape
from tests.full import FULL
from tests.unit.config.samples import FLAT_AVRO, changed, right
from tidesink.cli.sources import Start, read_topic
from tidesink.config.targets import KafkaSettings
from tidesink.dev.stack import READY_SECONDS, Broker, free_ports, stop_daemons
from tidesink.errors import SourceError, SourceUnavailableError, TargetError, TransientTargetError
from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.kafka.fetch import FetchLimits, FetchRange, KafkaFetch, fetch
from tidesink.sinks.kafka.offsets import KafkaOffsets, OffsetRange
from tidesink.sinks.state.sql_store import SqlStateStore
from tidesink.sinks.targets.stream.kafka import KafkaTarget

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.servers, FULL]

_PATIENCE: Final = 60.0
_TOPIC: Final = "secured"
# A topic that only somebody else may use.
_CLOSED: Final = "closed"
_PASSWORD: Final = 'p"a\\ss'
_PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_OAUTH: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
# A backslash of a properties file is written twice.
_USER: Final = 'user_reader="p\\\\"a\\\\\\\\ss"'
_LISTENERS: Final = f"""
listeners=PLAINTEXT://127.0.0.1:{{port}},CONTROLLER://127.0.0.1:{{controller}},SASL://127.0.0.1:{{sasl}},\
TLS://127.0.0.1:{{tls}}
advertised.listeners=PLAINTEXT://127.0.0.1:{{port}},CONTROLLER://127.0.0.1:{{controller}},\
SASL://127.0.0.1:{{sasl}},TLS://127.0.0.1:{{tls}}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_SSL,TLS:SSL
ssl.keystore.type=PEM
ssl.keystore.location={{pem}}
ssl.truststore.type=PEM
ssl.truststore.location={{certificate}}
listener.name.tls.ssl.client.auth=required
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
allow.everyone.if.no.acl.found=true
listener.name.sasl.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER
listener.name.sasl.plain.sasl.jaas.config={_PLAIN} required {_USER};
listener.name.sasl.scram-sha-256.sasl.jaas.config={_SCRAM} required;
listener.name.sasl.scram-sha-512.sasl.jaas.config={_SCRAM} required;
listener.name.sasl.oauthbearer.sasl.jaas.config={_OAUTH} required unsecuredLoginStringClaim_sub="broker";
listener.name.sasl.oauthbearer.sasl.server.callback.handler.class=\
org.apache.kafka.common.security.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler
"""


class Secured(NamedTuple):
    sasl: str
    tls: str
    pem: Path
    certificate: Path


@pytest.fixture(scope="session", autouse=True)
def _kept_classes() -> None:
    """No worker starts here."""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A broker with a plain, a SASL and a mutual TLS listener, and a topic of three records."""
    folder = tmp_path_factory.mktemp("secured")
    port, controller, sasl, tls = free_ports(4)
    pem = self_signed(folder)
    certificate = folder / "certificate.pem"
    text = pem.read_text("ascii")
    certificate.write_text(text[: text.index("-----BEGIN PRIVATE")], "ascii")
    broker = Broker(folder, port, controller)
    broker.prepare(lambda _line: None)
    with (folder / "kafka" / "server.properties").open("a", encoding="utf-8") as properties:
        properties.write(
            _LISTENERS.format(
                port=port, controller=controller, sasl=sasl, tls=tls, pem=pem, certificate=certificate
            )
        )
    broker.start(lambda _line: None)
    try:
        deadline = time.monotonic() + READY_SECONDS
        while not broker.answers():
            assert time.monotonic() < deadline, broker.files.log_file.read_text("utf-8")[-3000:]
            time.sleep(0.2)
        _fill(broker.address)
        yield Secured(f"127.0.0.1:{sasl}", f"127.0.0.1:{tls}", pem, certificate)
    finally:
        stop_daemons([broker.files])


def _fill(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(_TOPIC, 1, 1)])[_TOPIC].result(_PATIENCE)
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        user = UserScramCredentialUpsertion(
            "reader", ScramCredentialInfo(mechanism, 4096), _PASSWORD.encode()
        )
        for future in admin.alter_user_scram_credentials([user]).values():
            future.result(_PATIENCE)
    nobody = AclBinding(
        ResourceType.TOPIC,
        _CLOSED,
        ResourcePatternType.LITERAL,
        "User:nobody",
        "*",
        AclOperation.ALL,
        AclPermissionType.ALLOW,
    )
    for future in admin.create_acls([nobody]).values():
        future.result(_PATIENCE)
    producer = Producer({"bootstrap.servers": address})
    for number in range(3):
        producer.produce(_TOPIC, str(number).encode(), partition=0)
    assert producer.flush(_PATIENCE) == 0


def token(config: str) -> tuple[str, float]:
    """An unsecured token, as Kafka's own for tests: the named callback of this module."""
    assert config == "who=reader"
    expiry = time.time() + 600
    parts = ({"alg": "none"}, {"sub": "reader", "iat": time.time() - 5, "exp": expiry})
    coded = [base64.urlsafe_b64encode(json.dumps(one).encode()).decode().rstrip("=") for one in parts]
    return ".".join([*coded, ""]), expiry


def _read(properties: dict[str, str], limits: FetchLimits | None = None) -> list[bytes]:
    batches = fetch(FetchRange(_TOPIC, 0, 0, 3), properties, limits=limits or FetchLimits())
    return [value for batch in batches for value in batch["value"].to_pylist()]


def _sasl(secured: Secured, mechanism: str, **more: str) -> dict[str, str]:
    return {
        "bootstrap.servers": secured.sasl,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "ssl.ca.location": str(secured.certificate),
        **{name.replace("_", "."): value for name, value in more.items()},
    }


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_name_and_a_password(secured: Secured, mechanism: str) -> None:
    given = _sasl(secured, mechanism, sasl_username="reader", sasl_password=_PASSWORD)
    assert _read(given) == [b"0", b"1", b"2"]
    module = _PLAIN if mechanism == "PLAIN" else _SCRAM
    jaas = f'{module} required username="reader" password="p\\"a\\\\ss";'
    assert _read(_sasl(secured, mechanism, sasl_jaas_config=jaas)) == [b"0", b"1", b"2"]


def test_a_token_of_a_named_callback(secured: Secured) -> None:
    given = _sasl(secured, "OAUTHBEARER", sasl_oauthbearer_config="who=reader")
    assert _read({**given, "oauth_cb": f"{__name__}:token"}) == [b"0", b"1", b"2"]


_LOGINS: Final[dict[str, dict[str, str]]] = {
    "PLAIN": {"sasl.username": "reader", "sasl.password": _PASSWORD},
    "SCRAM-SHA-512": {"sasl.username": "reader", "sasl.password": _PASSWORD},
    "OAUTHBEARER": {"oauth_cb": f"{__name__}:token", "sasl.oauthbearer.config": "who=reader"},
    "mutual TLS": {},
}


def _values(records: Iterator[pa.RecordBatch]) -> list[bytes | None]:
    return [value for batch in records for value in batch.column("value").to_pylist()]


@pytest.mark.spark
@pytest.mark.parametrize("login", list(_LOGINS))
def test_a_config_serves_the_driver_and_the_tasks(secured: Secured, spark: SparkSession, login: str) -> None:
    if login == "mutual TLS":
        given, brokers = _mutual_tls(secured), secured.tls
    else:
        given, brokers = {**_sasl(secured, login), **_LOGINS[login]}, secured.sasl
    del given["bootstrap.servers"]
    config = right(changed(FLAT_AVRO, source__brokers=brokers, source__kafka=given), Path("/"))
    properties = config.source.confluent_properties()
    assert KafkaOffsets(properties).lookup([_TOPIC])[_TOPIC].partitions[0].latest == 3
    source = KafkaSource(KafkaFetch(properties))
    assert source.ask(spark, [OffsetRange(_TOPIC, 0, 0, 3)], _values) == [[b"0", b"1", b"2"]]
    read = [message.value for message in read_topic(properties, _TOPIC, start=Start("earliest"))]
    assert read == [b"0", b"1", b"2"]


@pytest.mark.spark
def test_a_refused_login_in_a_task_is_our_error(secured: Secured, spark: SparkSession) -> None:
    given = _sasl(secured, "PLAIN", sasl_username="reader", sasl_password="wrong-password")
    source = KafkaSource(KafkaFetch(given))
    with pytest.raises(SourceError, match="_AUTHENTICATION") as caught:
        source.ask(spark, [OffsetRange(_TOPIC, 0, 0, 3)], _values)
    assert "wrong-password" not in f"{caught.value!r} {caught.value.__cause__}"


def _mutual_tls(secured: Secured) -> dict[str, str]:
    return {
        "bootstrap.servers": secured.tls,
        "security.protocol": "SSL",
        "ssl.ca.location": str(secured.certificate),
        "ssl.certificate.location": str(secured.pem),
        "ssl.key.location": str(secured.pem),
    }


def test_mutual_tls(secured: Secured) -> None:
    whole = _mutual_tls(secured)
    files = {name: whole.pop(name) for name in ("ssl.certificate.location", "ssl.key.location")}
    server = whole
    assert _read({**server, **files}) == [b"0", b"1", b"2"]
    java = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(secured.pem)}
    assert _read({**server, **java}) == [b"0", b"1", b"2"]
    with pytest.raises(SourceError):
        _read(server, FetchLimits(refusal=3, silence=10))


def test_a_wrong_password_is_an_error_and_no_wait_for_brokers(secured: Secured) -> None:
    given = _sasl(secured, "SCRAM-SHA-256", sasl_username="reader", sasl_password="wrong-password")
    with pytest.raises(SourceError, match="_AUTHENTICATION") as caught:
        _read(given, FetchLimits(refusal=2))
    assert not isinstance(caught.value, SourceUnavailableError)
    assert "wrong-password" not in repr(caught.value)


def test_an_unknown_authority_is_an_error(secured: Secured) -> None:
    given = _sasl(secured, "PLAIN", sasl_username="reader", sasl_password=_PASSWORD)
    del given["ssl.ca.location"]
    with pytest.raises(SourceError, match=r"_SSL.*ssl\.ca\.location") as caught:
        _read(given, FetchLimits(refusal=2))
    assert not isinstance(caught.value, SourceUnavailableError)


def _target(secured: Secured, properties: dict[str, str], **more: Any) -> KafkaTarget:
    kafka = {name: value for name, value in properties.items() if name != "bootstrap.servers"}
    given = {"type": "kafka", "brokers": properties["bootstrap.servers"], "protocol": "canal-json"}
    settings = KafkaSettings.model_validate({**given, "kafka": kafka, **more})
    return KafkaTarget(settings, SqlStateStore(":memory:"))


def test_each_way_a_target_refuses_has_its_own_remedy(secured: Secured) -> None:
    def refused(properties: dict[str, str], **more: Any) -> TargetError:
        with pytest.raises(TargetError) as caught:
            _target(secured, properties, **more).open_table(shape(), pipeline="shop")
        assert "wrong-password" not in repr(caught.value)
        return caught.value

    given = _sasl(secured, "SCRAM-SHA-256", sasl_username="reader", sasl_password=_PASSWORD)
    password = refused({**given, "sasl.password": "wrong-password"})
    assert type(password) is TargetError
    assert "sasl.password and sasl.mechanism under target.kafka" in password.message
    authority = refused({name: value for name, value in given.items() if name != "ssl.ca.location"})
    assert type(authority) is TransientTargetError
    assert "ssl.ca.location under target.kafka" in authority.message
    plain = refused({"bootstrap.servers": secured.sasl})
    assert type(plain) is TransientTargetError
    assert "Check security.protocol and sasl under target.kafka" in plain.message
    closed = refused(given, topic=_CLOSED)
    assert type(closed) is TargetError
    assert "describe and write the topic" in closed.message
    assert closed.context["topic"] == _CLOSED
