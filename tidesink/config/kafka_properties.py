"""Kafka client properties in the configuration file: their model, and what is wrong with them together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr, ValidationInfo

from tidesink.config.fields import Problem
from tidesink.kafka_client import (
    PATHS,
    TOKEN_CALLBACK,
    ClientSettings,
    _Translation,
    librdkafka_settings,
    property_problems,
)

KafkaProperties = dict[str, SecretStr]

_SERVERS: Final = "bootstrap.servers"

_PASSWORD_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
# Prefix of a property -> the mechanisms that it has an effect with.
_OF_MECHANISMS: Final[Mapping[str, tuple[str, ...]]] = {
    "sasl.username": _PASSWORD_MECHANISMS,
    "sasl.password": _PASSWORD_MECHANISMS,
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
    """The settings of confluent-kafka's clients, for ``open_client``; they can be pickled.

    Raises:
        ConfigError: a property is refused.
    """
    return librdkafka_settings({_SERVERS: brokers, **_plain(properties)})


def _plain(properties: Mapping[str, SecretStr]) -> dict[str, str]:
    return {name: value.get_secret_value() for name, value in properties.items()}


def kafka_problems(properties: KafkaProperties, place: str = "source.kafka") -> Iterator[Problem]:
    """Client properties that are refused."""
    if _SERVERS in properties:
        remedy = f"use {place.rpartition('.')[0]}.brokers"
        yield Problem(f"{place}.{_SERVERS}", "is not a property here", remedy)
    for name, reason, remedy in property_problems(_plain(properties)):
        yield Problem(f"{place}.{name}", reason, remedy)


def security_problems(properties: KafkaProperties, place: str) -> Iterator[Problem]:
    """Properties of SASL and TLS that need others, or have no effect."""
    plain = _plain(properties)
    refused = {problem.name for problem in property_problems(plain)}
    # A refused name is reported already, and what it was meant to set may well have an effect.
    taken = {name: value for name, value in plain.items() if name not in refused}
    if _JAAS in refused:
        refused |= {"sasl.mechanism", "sasl.username", "sasl.password"}
    settings = _Translation(taken).settings
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
    is_oidc = settings.get("sasl.oauthbearer.method") == "oidc"
    needed: tuple[str, ...] = ("sasl.mechanism", "sasl.password", "sasl.username")
    if mechanism in ("OAUTHBEARER", "GSSAPI"):
        needed = _OIDC if mechanism == "OAUTHBEARER" and is_oidc else ()
    for name in needed:
        if name not in settings and name not in refused:
            yield Problem(f"{place}.{name}", f"required with security.protocol {security}", "add it")
    has_tokens = is_oidc or settings.get(_UNSECURED) == "true" or TOKEN_CALLBACK in settings
    if mechanism == "OAUTHBEARER" and not has_tokens:
        yield Problem(
            f"{place}.{TOKEN_CALLBACK}",
            "required with sasl.mechanism OAUTHBEARER",
            "name a function that returns tokens, or set sasl.oauthbearer.method: oidc",
        )
    for prefix, mechanisms in _OF_MECHANISMS.items():
        idle = sorted(name for name in settings if name.startswith(prefix))
        if idle and mechanism is not None and mechanism not in mechanisms:
            yield Problem(
                place,
                f"{', '.join(idle)}: no effect with sasl.mechanism {mechanism}",
                f"set sasl.mechanism: {' or '.join(mechanisms)}, or remove them",
            )


def file_problems(properties: KafkaProperties, place: str) -> Iterator[Problem]:
    """Certificates and keys that do not exist."""
    refused = {problem.name for problem in property_problems(_plain(properties))}
    for name in sorted((PATHS & properties.keys()) - refused):
        if not Path(properties[name].get_secret_value()).exists():
            yield Problem(f"{place}.{name}", "there is no such file", _READABLE)
