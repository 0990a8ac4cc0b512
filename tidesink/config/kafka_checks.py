"""What is wrong with Kafka client properties, wherever the config has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tidesink.config.kafka import ALLOWED, FILE_PROPERTIES, KafkaProperties, refusals
from tidesink.config.problems import Problem


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
