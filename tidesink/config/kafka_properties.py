"""Kafka client properties of a config: as text, checked by ``client_properties``, and what they need.

Every value is a secret to pydantic, so that no error and no repr of a config shows one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr, ValidationInfo

from tidesink.config.client_properties import (
    PATHS,
    TOKEN_CALLBACK,
    ClientSettings,
    librdkafka_settings,
    property_problems,
    understood_settings,
)
from tidesink.config.fields import Problem

KafkaProperties = dict[str, SecretStr]

_SERVERS: Final = "bootstrap.servers"

_PASSWORD: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
# Prefix of a property -> the mechanisms that it has an effect with.
_OF_MECHANISMS: Final[Mapping[str, tuple[str, ...]]] = {
    "sasl.username": _PASSWORD,
    "sasl.password": _PASSWORD,
    "sasl.oauthbearer.": ("OAUTHBEARER",),
    "enable.sasl.oauthbearer.": ("OAUTHBEARER",),
    TOKEN_CALLBACK: ("OAUTHBEARER",),
    "sasl.kerberos.": ("GSSAPI",),
}
_OIDC: Final = (
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.token.endpoint.url",
)
_UNSECURED: Final = "enable.sasl.oauthbearer.unsecure.jwt"
_JAAS: Final = "sasl.jaas.config"
_READABLE: Final = "give a readable PEM file (ssl.keystore.location: PKCS#12)"
_CERTIFICATE: Final = frozenset({"ssl.certificate.location", "ssl.certificate.pem"})
_KEY: Final = frozenset({"ssl.key.location", "ssl.key.pem"})


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
    if name in PATHS and isinstance(text, str):
        return str(base / Path(text).expanduser())
    return text


def confluent_properties(brokers: str, properties: Mapping[str, SecretStr]) -> ClientSettings:
    """What confluent-kafka's clients take, by way of ``open_client``; can be pickled.

    Raises:
        ConfigError: a property is refused.
    """
    return librdkafka_settings({_SERVERS: brokers, **_plain(properties)})


def _plain(properties: Mapping[str, SecretStr]) -> dict[str, str]:
    return {name: value.get_secret_value() for name, value in properties.items()}


def kafka_problems(properties: KafkaProperties, place: str = "source.kafka") -> Iterator[Problem]:
    """Client properties that are not taken."""
    if _SERVERS in properties:
        remedy = f"use {place.rpartition('.')[0]}.brokers"
        yield Problem(f"{place}.{_SERVERS}", "is not taken under this name", remedy)
    for name, reason, remedy in property_problems(_plain(properties)):
        yield Problem(f"{place}.{name}", reason, remedy)


def security_problems(properties: KafkaProperties, place: str) -> Iterator[Problem]:
    """Properties of SASL and TLS that need others, or have no effect."""
    plain = _plain(properties)
    refused = {problem.name for problem in property_problems(plain)}
    # A name that is refused is reported already, and what was meant by it may well have an effect.
    taken = {name: value for name, value in plain.items() if name not in refused}
    if _JAAS in refused:
        refused |= {"sasl.mechanism", "sasl.username", "sasl.password"}
    settings = understood_settings(taken)
    security = str(settings.get("security.protocol", "PLAINTEXT"))
    sasl = {name for name in taken if name.startswith(("sasl.", "enable.sasl.")) or name == TOKEN_CALLBACK}
    tls = {name for name in taken if name.startswith(("ssl.", "enable.ssl."))}
    if security.startswith("SASL_"):
        yield from _login_problems(settings, refused, security, place)
    elif sasl:
        yield _without_effect(place, sasl, security, "SASL_SSL or SASL_PLAINTEXT")
    if tls and not security.endswith("SSL"):
        yield _without_effect(place, tls, security, "SSL or SASL_SSL")
    if bool(_CERTIFICATE & settings.keys()) != bool(_KEY & settings.keys()):
        yield Problem(place, "ssl.certificate.location and ssl.key.location need each other", "give both")


def _without_effect(place: str, names: set[str], security: str, needed: str) -> Problem:
    reason = f"{', '.join(sorted(names))}: no effect with security.protocol {security}"
    return Problem(place, reason, f"set security.protocol: {needed}, or remove them")


def _login_problems(
    settings: Mapping[str, Any], refused: set[str], security: str, place: str
) -> Iterator[Problem]:
    """What the mechanism lacks, and what has no effect with it."""
    mechanism = settings.get("sasl.mechanism")
    for name in _needed(settings):
        if name not in settings and name not in refused:
            yield Problem(f"{place}.{name}", f"required with security.protocol {security}", "add it")
    if mechanism == "OAUTHBEARER" and not _has_tokens(settings):
        yield Problem(
            f"{place}.{TOKEN_CALLBACK}",
            "required with sasl.mechanism OAUTHBEARER",
            "name a function that gives tokens, or set sasl.oauthbearer.method: oidc",
        )
    for prefix, mechanisms in _OF_MECHANISMS.items():
        idle = sorted(name for name in settings if name.startswith(prefix))
        if idle and mechanism is not None and mechanism not in mechanisms:
            yield Problem(
                place,
                f"{', '.join(idle)}: no effect with sasl.mechanism {mechanism}",
                f"set sasl.mechanism: {' or '.join(mechanisms)}, or remove them",
            )


def _needed(settings: Mapping[str, Any]) -> tuple[str, ...]:
    mechanism = settings.get("sasl.mechanism")
    if mechanism == "OAUTHBEARER":
        return _OIDC if settings.get("sasl.oauthbearer.method") == "oidc" else ()
    return () if mechanism == "GSSAPI" else ("sasl.mechanism", "sasl.password", "sasl.username")


def _has_tokens(settings: Mapping[str, Any]) -> bool:
    """Whether it is said where tokens come from."""
    by_itself = settings.get("sasl.oauthbearer.method") == "oidc" or settings.get(_UNSECURED) == "true"
    return by_itself or TOKEN_CALLBACK in settings


def file_problems(properties: KafkaProperties, place: str) -> Iterator[Problem]:
    """Certificates and keys that are not there."""
    refused = {problem.name for problem in property_problems(_plain(properties))}
    for name in sorted((PATHS & properties.keys()) - refused):
        if not Path(properties[name].get_secret_value()).exists():
            yield Problem(f"{place}.{name}", "there is no such file", _READABLE)
