"""Kafka client properties: librdkafka's names, Java's equivalents, refusals, and no secret shown."""

from __future__ import annotations

import socket
import sys
import threading
import types
from contextlib import suppress
from typing import Any, Final

import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from tidesink.errors import ConfigError, SourceUnavailableError
from tidesink.kafka_client import (
    KERBEROS,
    KNOWN,
    REMEMBER_SECONDS,
    BrokerProbes,
    JaasSyntaxError,
    client_settings,
    librdkafka_settings,
    no_answer,
    parse_jaas,
    property_problems,
    why_silent,
)
from tidesink.sinks.kafka.fetch import open_consumer
from tidesink.sinks.kafka.offsets import KafkaOffsets

PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
SECRET: Final = "hunter2-and-more"


@pytest.mark.parametrize(
    ("given_properties", "settings"),
    [
        (
            {"ssl.truststore.type": "PEM", "ssl.truststore.location": "/ca.pem"},
            {"ssl.ca.location": "/ca.pem"},
        ),
        (
            {"ssl.keystore.type": "PEM", "ssl.keystore.location": "/me.pem", "ssl.key.password": "p"},
            {
                "ssl.certificate.location": "/me.pem",
                "ssl.key.location": "/me.pem",
                "ssl.key.password": "p",
            },
        ),
        (
            {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": "/me.p12", "ssl.keystore.password": "p"},
            {"ssl.keystore.location": "/me.p12", "ssl.keystore.password": "p"},
        ),
        (
            {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.certificate.chain": "chain",
                "ssl.keystore.key": "key",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.certificates": "ca",
            },
            {"ssl.certificate.pem": "chain", "ssl.key.pem": "key", "ssl.ca.pem": "ca"},
        ),
        (
            {"ssl.endpoint.identification.algorithm": ""},
            {"ssl.endpoint.identification.algorithm": "none"},
        ),
        (
            {
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": f'{PLAIN} required username="u;1" password="a\\"b\\\\";',
            },
            {"sasl.mechanism": "PLAIN", "sasl.username": "u;1", "sasl.password": 'a"b\\'},
        ),
        (
            {
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.jaas.config": f"{SCRAM} required username=u password='p' ;",
            },
            {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "u", "sasl.password": "p"},
        ),
        (
            {
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.login.callback.handler.class": OAUTH.replace("Module", "CallbackHandler"),
                "sasl.oauthbearer.token.endpoint.url": "https://idp/token",
                "sasl.jaas.config": f"{OAUTH} required clientId='c' clientSecret='s' scope='kafka';",
            },
            {
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.token.endpoint.url": "https://idp/token",
                "sasl.oauthbearer.client.id": "c",
                "sasl.oauthbearer.client.secret": "s",
                "sasl.oauthbearer.scope": "kafka",
            },
        ),
        ({"sasl.mechanisms": "PLAIN"}, {"sasl.mechanism": "PLAIN"}),
        ({"fetch.max.wait.ms": "7"}, {"fetch.wait.max.ms": "7"}),
    ],
)
def test_java_names_with_an_exact_equivalent(
    given_properties: dict[str, str], settings: dict[str, str]
) -> None:
    assert librdkafka_settings(given_properties) == settings


def test_every_name_that_releases_before_took_is_still_taken() -> None:
    before = (
        "security.protocol sasl.mechanism sasl.username sasl.password ssl.ca.location "
        "ssl.certificate.location ssl.key.location ssl.key.password ssl.endpoint.identification.algorithm "
        "client.id client.rack fetch.max.bytes max.partition.fetch.bytes metadata.max.age.ms "
        "reconnect.backoff.ms reconnect.backoff.max.ms"
    )
    assert set(before.split()) <= KNOWN


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("ssl.truststore.location", "/trust.jks", "keytool -importkeystore"),
        ("ssl.truststore.type", "JKS", "openssl pkcs12"),
        ("ssl.keystore.type", "JKS", "PKCS12"),
        ("ssl.keystore.location", "/key.jks", "PKCS12"),
        ("ssl.truststore.password", SECRET, "no password"),
        ("ssl.enabled.protocols", "TLSv1.3", "OpenSSL"),
        ("ssl.cipher.suites", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "OpenSSL's"),
        (
            "sasl.login.callback.handler.class",
            "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
            "oauth_cb",
        ),
        ("sasl.jaas.config", f"{SCRAM} required username=u password={SECRET};", "sasl.mechanism"),
        ("sasl.jaas.config", f'{PLAIN} required password="{SECRET};', "sasl.username"),
        (
            "sasl.jaas.config",
            "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true;",
            "keytab",
        ),
        ("sasl.mechanism", "plain", "PLAIN"),
        ("group.id", "g", "progress"),
        ("isolation.level", "read_uncommitted", "read_committed"),
        ("auto.offset.reset", "latest", "remove"),
        ("request.timeout.ms", "1", "socket.timeout.ms"),
        ("sasl.user", SECRET, "did you mean"),
        ("oauth_cb", "module", "module:function"),
    ],
)
def test_what_is_refused_says_what_to_write_and_shows_no_secret(name: str, value: str, says: str) -> None:
    (problem, *_) = property_problems({name: value})
    assert says in f"{problem.reason} {problem.remedy}"
    assert SECRET not in str(problem)
    with pytest.raises(ConfigError) as caught:
        librdkafka_settings({name: value})
    assert caught.value.context["key"] == problem.name
    assert SECRET not in repr(caught.value)


def test_two_names_of_one_property_must_agree() -> None:
    assert librdkafka_settings({"sasl.mechanism": "PLAIN", "sasl.mechanisms": "PLAIN"})
    with pytest.raises(ConfigError, match="another value"):
        librdkafka_settings({"sasl.mechanism": "PLAIN", "sasl.mechanisms": "SCRAM-SHA-256"})


def test_settings_show_no_secret() -> None:
    settings = librdkafka_settings({"sasl.username": "u", "sasl.password": SECRET, "ssl.key.pem": SECRET})
    assert SECRET not in repr(settings)
    assert settings["sasl.password"] == SECRET


def test_what_librdkafka_refuses_shows_no_secret() -> None:
    wrong = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SSL", "ssl.key.pem": SECRET}
    with pytest.raises(ConfigError, match="librdkafka refuses") as caught, open_consumer(wrong):
        pass
    assert SECRET not in repr(caught.value)
    assert caught.value.__cause__ is None


def test_kerberos_without_gssapi_says_how_to_get_it() -> None:
    wanted = {
        "bootstrap.servers": "127.0.0.1:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "GSSAPI",
    }
    with pytest.raises(ConfigError) as caught, open_consumer(wanted):
        pytest.skip("this confluent-kafka has GSSAPI")
    assert KERBEROS in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        KafkaOffsets(wanted)
    assert KERBEROS in str(caught.value)


def test_a_token_callback_is_imported_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("signer_of_a_test")
    module.token = lambda config: (f"token for {config}", 1.0)

    def fails(_config: str) -> None:
        raise ValueError(SECRET)

    module.fails = fails
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert client_settings({"oauth_cb": "signer_of_a_test:token"})["oauth_cb"]("x") == ("token for x", 1.0)
    with pytest.raises(SourceUnavailableError, match="ValueError") as caught:
        client_settings({"oauth_cb": "signer_of_a_test:fails"})["oauth_cb"]("")
    assert SECRET not in str(caught.value)
    for absent in ("signer_of_a_test:absent", "no_such_module_here:f"):
        with pytest.raises(ConfigError, match="cannot be imported"):
            client_settings({"oauth_cb": absent})


@given(st.text(), st.text())
def test_any_name_and_password_come_through_jaas(username: str, password: str) -> None:
    def quoted(text: str) -> str:
        text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{text}"'

    line = f"{PLAIN} required username={quoted(username)} password={quoted(password)};"
    assert parse_jaas(line).options == {"username": username, "password": password}


@given(st.text(alphabet="a=;\"'\\ \n") | st.text())
def test_any_text_is_an_entry_or_refused(text: str) -> None:
    with suppress(JaasSyntaxError):
        assert parse_jaas(f"module required {text}").module == "module"


def test_a_broker_that_is_silent_is_told_from_one_that_is_not_there() -> None:
    """librdkafka has one code for both."""
    failed = KafkaException(KafkaError(KafkaError._TRANSPORT))
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        listens = no_answer(address, failed)
        assert "security.protocol and sasl under source.kafka" in listens.message
        both = no_answer(f"127.0.0.1:1,{address}", failed)
        assert "security.protocol" in both.message
    refused = no_answer(address, failed)
    assert refused.message.endswith(
        "connection refused. Check that the brokers run, and that source.brokers is right"
    )
    assert "host not found" in no_answer("no.such.host.invalid:9092", failed).message
    assert "target.brokers" in why_silent(address, "target")
    assert "no connection" in why_silent(f"127.0.0.1:{10**30}")


def test_brokers_are_tried_at_the_same_time() -> None:
    every = threading.Barrier(3, timeout=60)

    def connect(_broker: str) -> str | None:
        every.wait()
        return "timeout"

    probes = BrokerProbes(connect)
    assert why_silent("a:1, b:1,c:1", probes=probes).startswith("timeout. Check that the brokers run")


def test_the_first_broker_that_accepts_is_the_answer() -> None:
    ends = threading.Event()

    def connect(broker: str) -> str | None:
        return None if broker == "b:1" else str(ends.wait(60))

    try:
        assert "security.protocol" in why_silent("a:1,b:1", probes=BrokerProbes(connect))
    finally:
        ends.set()


def test_an_answer_that_took_long_counts_for_the_next_errors_of_an_outage() -> None:
    tried: list[str] = []
    answers: dict[str, str | None] = {"a:1": "timeout", "b:1": "connection refused", "c:1": "host not found"}
    now = [0.0]

    def connect(broker: str) -> str | None:
        tried.append(broker)
        return answers[broker]

    probes = BrokerProbes(connect, lambda: now[0])
    for _ in range(3):
        assert why_silent("a:1,b:1,c:1", probes=probes).startswith(
            "timeout, connection refused, host not found. "
        )
    assert sorted(tried) == ["a:1", "b:1", "b:1", "b:1", "c:1"]
    # A broker that is there again is found at once, and after a while the others are tried again.
    answers["b:1"] = None
    assert "security.protocol" in why_silent("a:1,b:1,c:1", probes=probes)
    answers["b:1"], answers["a:1"] = "connection refused", "connection refused"
    now[0] += REMEMBER_SECONDS
    assert why_silent("a:1,b:1", probes=probes).startswith("connection refused. ")
