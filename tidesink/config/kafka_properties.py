"""Kafka client properties: an allow-list, the names in librdkafka and in the Java client, and checks.

The config uses one name for both. TLS files are PEM; SASL takes a user name and a password, from which the
Java client's JAAS line is built.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import SecretStr, ValidationInfo

from tidesink.config.fields import Problem, nearest, one_of

Properties = Mapping[str, SecretStr]


class _Property(NamedTuple):
    """``java`` is None where the Java client needs more than another name."""

    name: str
    java: str | None
    allowed: tuple[str, ...] = ()
    file: bool = False


_PROPERTIES = {
    row.name: row
    for row in (
        _Property(
            "security.protocol", "security.protocol", ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
        ),
        _Property("sasl.mechanism", "sasl.mechanism", ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")),
        _Property("sasl.username", None),
        _Property("sasl.password", None),
        _Property("ssl.ca.location", None, file=True),
        _Property("ssl.certificate.location", None, file=True),
        _Property("ssl.key.location", None, file=True),
        _Property("ssl.key.password", "ssl.key.password"),
        _Property("ssl.endpoint.identification.algorithm", None, ("https", "none")),
        _Property("client.id", "client.id"),
        _Property("client.rack", "client.rack"),
        _Property("fetch.max.bytes", "fetch.max.bytes"),
        _Property("max.partition.fetch.bytes", "max.partition.fetch.bytes"),
        _Property("metadata.max.age.ms", "metadata.max.age.ms"),
        _Property("reconnect.backoff.ms", "reconnect.backoff.ms"),
        _Property("reconnect.backoff.max.ms", "reconnect.backoff.max.ms"),
    )
}

ALLOWED = tuple(_PROPERTIES)
FILE_PROPERTIES = tuple(row.name for row in _PROPERTIES.values() if row.file)

# Names that users know from one client, and what to write here.
_INSTEAD = {
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.jaas.config": "sasl.username and sasl.password",
    "ssl.truststore.location": "ssl.ca.location with a PEM file",
    "ssl.keystore.location": "ssl.certificate.location and ssl.key.location with PEM files",
    "bootstrap.servers": "source.brokers",
    "group.id": "nothing: progress is kept in the target, not in a consumer group",
    "auto.offset.reset": "nothing: a table starts at the beginning of its topic",
}

_LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def normalised_kafka(value: Any, info: ValidationInfo) -> Any:
    """The properties as text, with paths read from beside the config."""
    if not isinstance(value, dict):
        return value
    base: Path = (info.context or {}).get("base") or Path()
    return {str(name): _text(str(name), part, base) for name, part in value.items()}


def _text(name: str, value: Any, base: Path) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value) if isinstance(value, int | str) else value
    row = _PROPERTIES.get(name)
    if row is not None and row.file and isinstance(text, str):
        return str(base / Path(text).expanduser())
    return text


def refusals(properties: Properties) -> Iterator[tuple[str, str, str]]:
    """Of each property that is not taken: its name, what is wrong, and what to write instead."""
    for name, value in properties.items():
        found = _refusal(name, value)
        if found is not None:
            yield (name, *found)


def _refusal(name: str, value: SecretStr) -> tuple[str, str] | None:
    if name in _INSTEAD:
        return "is not taken under this name", f"use {_INSTEAD[name]}"
    row = _PROPERTIES.get(name)
    if row is None:
        return (
            f"is not on the list of client properties{nearest(name, ALLOWED)}",
            one_of(name, ALLOWED),
        )
    if row.allowed and value.get_secret_value() not in row.allowed:
        return "has a value that is not allowed", f"use {' or '.join(row.allowed)}"
    return None


KafkaProperties = dict[str, SecretStr]


def _plain(properties: Properties) -> dict[str, str]:
    return {name: value.get_secret_value() for name, value in properties.items()}


def confluent_properties(brokers: str, properties: Properties) -> dict[str, str]:
    """What confluent-kafka takes: our names are librdkafka's."""
    return {"bootstrap.servers": brokers, **_plain(properties)}


def spark_properties(brokers: str, properties: Properties) -> dict[str, str]:
    """What Spark's Kafka reader takes: the Java client's names behind ``kafka.``.

    Certificate and key are given as text, since the Java client wants both in one place.

    Raises:
        OSError: a certificate or key file cannot be read.
    """
    plain = _plain(properties)
    java = {"bootstrap.servers": brokers}
    java.update({row.java: plain[row.name] for row in _PROPERTIES.values() if row.java and row.name in plain})
    java.update(_jaas(plain))
    java.update(_java_tls(plain))
    return {f"kafka.{name}": value for name, value in java.items()}


def _jaas(plain: Mapping[str, str]) -> dict[str, str]:
    module = _LOGIN.get(plain.get("sasl.mechanism", ""))
    if module is None:
        return {}
    username, password = (_quoted(plain.get(name, "")) for name in ("sasl.username", "sasl.password"))
    return {"sasl.jaas.config": f"{module} required username={username} password={password};"}


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _java_tls(plain: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    if "ssl.ca.location" in plain:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": plain["ssl.ca.location"]}
    if "ssl.certificate.location" in plain:
        found |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": Path(plain["ssl.certificate.location"]).read_text(
                encoding="utf-8"
            ),
            "ssl.keystore.key": Path(plain.get("ssl.key.location", "")).read_text(encoding="utf-8"),
        }
    algorithm = plain.get("ssl.endpoint.identification.algorithm")
    if algorithm is not None:
        # The Java client spells "no check" as an empty value.
        found["ssl.endpoint.identification.algorithm"] = "" if algorithm == "none" else algorithm
    return found


def kafka_problems(properties: KafkaProperties, place: str = "source.kafka") -> Iterator[Problem]:
    """Client properties that are not taken."""
    for name, reason, remedy in refusals(properties):
        yield Problem(f"{place}.{name}", reason, remedy)


def security_problems(properties: KafkaProperties, place: str) -> Iterator[Problem]:
    """Properties of SASL and TLS that need others, or have no effect."""
    # A name that is not on the list is told already, and what was meant by it may well have an effect.
    plain = {name: properties[name].get_secret_value() for name in properties if name in ALLOWED}
    security = plain.get("security.protocol", "PLAINTEXT")
    sasl = {name for name in plain if name.startswith("sasl.")}
    tls = {name for name in plain if name.startswith("ssl.")}
    if security.startswith("SASL_"):
        for name in sorted({"sasl.mechanism", "sasl.username", "sasl.password"} - sasl):
            yield Problem(f"{place}.{name}", f"required with security.protocol {security}", "add it")
    elif sasl:
        yield Problem(
            place,
            f"{', '.join(sorted(sasl))}: no effect with security.protocol {security}",
            "set security.protocol: SASL_SSL or SASL_PLAINTEXT, or remove them",
        )
    if tls and not security.endswith("SSL"):
        yield Problem(
            place,
            f"{', '.join(sorted(tls))}: no effect with security.protocol {security}",
            "set security.protocol: SSL or SASL_SSL, or remove them",
        )
    if ("ssl.certificate.location" in tls) != ("ssl.key.location" in tls):
        yield Problem(place, "ssl.certificate.location and ssl.key.location need each other", "give both")


def file_problems(properties: KafkaProperties, place: str) -> Iterator[Problem]:
    """Certificates and keys that are not there."""
    for name in FILE_PROPERTIES:
        value = properties.get(name)
        if value is not None and not Path(value.get_secret_value()).is_file():
            yield Problem(f"{place}.{name}", "there is no such file", "give a readable PEM file")
