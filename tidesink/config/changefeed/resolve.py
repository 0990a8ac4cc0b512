"""A changefeed's settings as TiCDC resolves them, or every reason why TiCDC refuses them.

The rules are those for a changefeed that writes to Kafka, and each says what to do. A rule is reported
once, in the stage where TiCDC finds it (tiflow c7b2588: the replica config, the Kafka options, the codec's
config; b813e76 for the new architecture).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidesink.codecs.base import Producer
from tidesink.codecs.dispatch import PARTITION_RULES, Dispatcher, Router, TableFilter
from tidesink.config.changefeed.options import (
    Given,
    OptionValue,
    Refusal,
    Stage,
    place_of,
    read_given,
    read_options,
)
from tidesink.errors import ConfigError, nearest, shown
from tidesink.schema_registry.naming import TopicRule

_STAGES: Final[tuple[Stage, ...]] = (
    "replica-config",
    "topic",
    "kafka-options",
    "encoder-config",
    "event-router",
)
_NOT_IN_CLIENT_ID: Final = re.compile(r"[?:,\"]")
_REGISTRY_PROTOCOLS: Final = ("avro", "debezium-avro")
_RULE_MEMBERS: Final = (
    "matcher",
    "topic",
    "partition",
    "dispatcher",
    "index",
    "columns",
    "target-schema",
    "target-table",
)


@dataclass(frozen=True)
class Changefeed:
    """What a changefeed does. ``options`` has TiCDC's names; ``warnings`` is what it takes and ignores.

    ``given`` may hold secrets: it is no part of the repr, and ``options`` has none but the registry's URL.
    """

    options: Mapping[str, OptionValue]
    router: Router
    given: Given
    producer: Producer
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Changefeed(protocol={self.options['protocol']}, topic={self.options['topic']})"


class ChangefeedRefusedError(ConfigError):
    """A changefeed that TiCDC refuses; ``refusals`` has every reason, in the order of TiCDC's stages."""

    def __init__(self, message: str, **context: Any) -> None:
        super().__init__(message, **context)
        self.refusals: tuple[Refusal, ...] = ()


def read_changefeed(
    sink_uri: str,
    settings: Mapping[str, Any] | None = None,
    *,
    producer: Producer = "classic",
    changefeed_id: str = "",
) -> Changefeed:
    """A changefeed as TiCDC resolves it; ``settings`` is its parsed TOML.

    Raises:
        ConfigError: TiCDC refuses it (all reasons are listed), or the URI is none.
    """
    given = read_given(sink_uri, settings)
    read = read_options(given, producer)
    facts = _facts(given, read.values, producer)
    refusals = [*read.refusals, *refusals_of(facts)]
    warnings: list[str] = []
    router = _router(facts, refusals, warnings)
    if refusals:
        raise _refused(refusals)
    if not given.kafka:
        raise ConfigError(
            f"sink-uri: the changefeed writes to {given.scheme}, and tidesink reads Kafka: give kafka://…"
        )
    options = _resolved(facts, changefeed_id)
    return Changefeed(options, router, given, producer, (*warnings, *_without_effect(facts)))


def _refused(refusals: list[Refusal]) -> ChangefeedRefusedError:
    ordered = sorted(refusals, key=lambda one: _STAGES.index(one.stage))
    if len(ordered) == 1:
        found = ChangefeedRefusedError(f"TiCDC refuses this changefeed: {ordered[0]}")
    else:
        lines = [
            f"TiCDC refuses this changefeed for {len(ordered)} reasons",
            *(f"  {one}" for one in ordered),
        ]
        found = ChangefeedRefusedError("\n".join(lines))
    found.refusals = tuple(ordered)
    return found


def _section(given: Given, *place: str) -> Mapping[str, Any] | None:
    found = given.setting(*place)
    if found is not None and not isinstance(found, Mapping):
        raise ConfigError(f"changefeed: {'.'.join(place)} is a section, write it as [{'.'.join(place)}]")
    return found


def _facts(given: Given, options: Mapping[str, Any], producer: Producer) -> Facts:
    named = given.parameters.get("protocol") or given.setting("sink", "protocol") or ""
    # The new architecture reads these two from [sink]; classic TiCDC from the top.
    place = ("sink",) if producer == "new" else ()
    return Facts(
        given=given,
        producer=producer,
        options=options,
        protocol=protocol_of(str(named), producer),
        large=_section(given, "sink", "kafka-config", "large-message-handle") or {},
        glue=_section(given, "sink", "kafka-config", "glue-schema-registry-config"),
        integrity=_section(given, *place, "integrity") or {},
        force_replicate=given.setting(*place, "force-replicate") is True,
    )


def _router(facts: Facts, refusals: list[Refusal], warnings: list[str]) -> Router:
    found = []
    for index, rule in enumerate(facts.given.dispatchers):
        field = f"changefeed: sink.dispatchers[{index}]"
        try:
            found.append(_dispatcher(rule, facts, warnings, field))
        except ConfigError as error:
            refusals.append(Refusal("event-router", field, error.message, "correct this rule"))
    return Router(facts.given.topic, tuple(found), facts.producer)


def _dispatcher(rule: Mapping[str, Any], facts: Facts, warnings: list[str], field: str) -> Dispatcher:
    for name in rule:
        if name not in _RULE_MEMBERS:
            warnings.append(
                f"{field}.{name} is unknown{nearest(name, _RULE_MEMBERS)}: TiCDC would not read it"
            )
    named = str(rule.get("partition") or rule.get("dispatcher") or "default")
    partition = PARTITION_RULES.get(named.lower())
    if partition is None:
        hint = nearest(named, PARTITION_RULES)
        warnings.append(f"{field}.partition {shown(named)} is unknown{hint}: TiCDC takes 'table' instead")
    return Dispatcher(
        matcher=TableFilter.parse(
            _texts(rule, "matcher"), case_sensitive=facts.given.setting("case-sensitive") is True
        ),
        topic=_topic_rule(str(rule.get("topic") or ""), facts),
        partition=partition or "table",
        index=str(rule.get("index") or "") if partition == "index-value" else "",
        columns=_texts(rule, "columns") if partition == "columns" else (),
    )


def _texts(rule: Mapping[str, Any], name: str) -> tuple[str, ...]:
    found = rule.get(name) or ()
    if isinstance(found, str) or not all(isinstance(one, str) for one in found):
        raise ConfigError(f"{name} is a list of texts: {name} = ['…']")
    return tuple(found)


def _topic_rule(text: str, facts: Facts) -> TopicRule | None:
    if not text:
        return None
    rule = TopicRule.parse(text)
    needs_both = _REGISTRY_PROTOCOLS if facts.producer == "new" else _REGISTRY_PROTOCOLS[:1]
    if facts.protocol in needs_both and not (rule.is_fixed or rule.names_tables):
        raise ConfigError(
            f"topic {text!r} must contain {{schema}} and {{table}} with protocol {facts.protocol}, "
            "or several tables would share one subject"
        )
    return rule


def _resolved(facts: Facts, changefeed_id: str) -> dict[str, OptionValue]:
    options, protocol = facts.options, facts.protocol or ""
    canal, extension = protocol == "canal-json", bool(options["enable-tidb-extension"])
    compatible = bool(options["content-compatible"]) and canal
    watermark_protocols = _REGISTRY_PROTOCOLS if facts.producer == "new" else _REGISTRY_PROTOCOLS[:1]
    files = all(options[name] for name in ("ca", "cert", "key"))
    client = options["kafka-client-id"] or _client_id(changefeed_id)
    kept = {name: value for name, value in options.items() if name not in _UNRESOLVED}
    return kept | {
        "protocol": protocol,
        "topic": facts.given.topic,
        "brokers": facts.given.brokers,
        "kafka-client-id": client,
        "partition-num": options["partition-num"] or 0,
        "enable-tls": files if options["enable-tls"] is None else options["enable-tls"],
        "content-compatible": compatible,
        "only-output-updated-columns": compatible or bool(options["only-output-updated-columns"]),
        "avro-enable-watermark": bool(options["avro-enable-watermark"])
        and extension
        and protocol in watermark_protocols,
        "row-checksum": facts.checksum,
        "large-message-handle-option": facts.large_option,
        "large-message-handle-compression": facts.large.get("large-message-handle-compression") or "none",
        "claim-check-storage-uri": facts.large.get("claim-check-storage-uri") or "",
        "claim-check-raw-value": bool(facts.large.get("claim-check-raw-value", False)),
    }


# What tells how to reach Kafka is left with ``given``: it holds secrets.
_UNRESOLVED: Final = frozenset(
    (
        "sasl-user",
        "sasl-password",
        "sasl-mechanism",
        "sasl-gssapi-auth-type",
        "sasl-gssapi-password",
        "sasl-oauth-client-id",
        "sasl-oauth-client-secret",
        "sasl-oauth-token-url",
        "ca",
        "cert",
        "key",
        "insecure-skip-verify",
        "encoder-concurrency",
    )
)


def _client_id(changefeed_id: str) -> str:
    return _NOT_IN_CLIENT_ID.sub("_", f"TiCDC_producer__default_{changefeed_id}")


def _without_effect(facts: Facts) -> Iterator[str]:
    options, protocol = facts.options, facts.protocol
    if options["content-compatible"] and protocol != "canal-json":
        yield f"content-compatible has no effect with protocol {protocol}"
    if options["avro-enable-watermark"] and not (options["enable-tidb-extension"] and facts.uses_registry):
        yield "avro-enable-watermark has no effect without avro and enable-tidb-extension"
    if facts.checksum and protocol == "canal-json":
        yield "integrity-check-level has no effect with canal-json: its rows carry no checksum"
    if facts.large_option not in ("none", "claim-check", "handle-key-only"):
        yield f"large-message-handle-option {shown(facts.large_option)} is unknown: TiCDC takes it for none"


# TiCDC's names in any case, and the encoder each means.
PROTOCOLS: Final = {
    "default": "open-protocol",
    "open-protocol": "open-protocol",
    "canal": "canal",
    "canal-json": "canal-json",
    "avro": "avro",
    "flat-avro": "avro",
    "maxwell": "maxwell",
    "craft": "craft",
    "csv": "csv",
    "debezium": "debezium",
    "simple": "simple",
}
_NEW_PROTOCOLS: Final = {"debezium-avro": "debezium-avro"}
# The new architecture knows these names and has no encoder for them.
_NO_ENCODER: Final = ("canal", "maxwell", "craft")
_REGISTRY_PROTOCOLS_OF: Final = {"classic": ("avro",), "new": ("avro", "debezium-avro")}
_MECHANISMS: Final = ("plain", "scram-sha-256", "scram-sha-512", "gssapi", "oauthbearer")
_AUTH_TYPES: Final = ("user", "keytab")
_LARGE: Final = ("none", "claim-check", "handle-key-only")
_COMPRESSIONS: Final = ("none", "snappy", "lz4")
_CLIENT_ID: Final = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_INTEGRITY: Final = {
    "integrity-check-level": ("none", "correctness"),
    "corruption-handle-level": ("warn", "error"),
}


@dataclass(frozen=True)
class Facts:
    """All that the rules look at. ``options`` are put together from URI, file and defaults."""

    given: Given
    producer: Producer
    options: Mapping[str, Any]
    protocol: str | None
    large: Mapping[str, Any]
    glue: Mapping[str, Any] | None
    integrity: Mapping[str, Any]
    force_replicate: bool

    @property
    def section(self) -> str:
        """Where ``integrity`` and ``force-replicate`` stand in the TOML: of new TiCDC under ``sink``."""
        return "sink." if self.producer == "new" else ""

    @property
    def checksum(self) -> bool:
        """Whether rows carry checksums; TiCDC turns them off where the sink is not Kafka."""
        return self.given.kafka and self.integrity.get("integrity-check-level") == "correctness"

    @property
    def uses_registry(self) -> bool:
        """Whether the protocol registers Avro schemas."""
        return self.protocol in _REGISTRY_PROTOCOLS_OF[self.producer]

    @property
    def large_option(self) -> str:
        """What happens to messages that are too large; an empty text is none."""
        return self.large.get("large-message-handle-option") or "none"


Found = Iterator[tuple[str, str, str]]


def protocol_of(name: str, producer: Producer) -> str | None:
    """TiCDC's own name of a protocol, or None where it has no such protocol."""
    known = PROTOCOLS | (_NEW_PROTOCOLS if producer == "new" else {})
    return known.get(name.lower())


def _protocol(facts: Facts) -> Found:
    named = facts.given.parameters.get("protocol") or facts.given.setting("sink", "protocol")
    if facts.given.database:
        if named:
            yield "protocol", "a database sink has no protocol", "give a kafka:// sink-uri, or remove it"
        return
    if not named:
        yield "protocol", "is missing", "add it to the sink URI, such as protocol=canal-json"
    elif facts.protocol is None:
        known = PROTOCOLS | (_NEW_PROTOCOLS if facts.producer == "new" else {})
        yield "protocol", f"{shown(named)} is unknown{nearest(str(named), known)}", f"use {', '.join(known)}"
    elif facts.producer == "new" and facts.protocol in _NO_ENCODER:
        yield "protocol", f"the new TiCDC has no encoder for {facts.protocol}", "use canal-json or avro"


def _atomicity(facts: Facts) -> Found:
    level = facts.given.parameters.get("transaction-atomicity") or facts.given.setting(
        "sink", "transaction-atomicity"
    )
    if level not in (None, "", "none") and not (level == "table" and facts.given.database):
        reason = f"{shown(level)} is not for a {facts.given.scheme} sink"
        yield "transaction-atomicity", reason, "remove it, or use none"


def _large_message(facts: Facts) -> Found:
    where = "changefeed: sink.kafka-config.large-message-handle"
    compression = facts.large.get("large-message-handle-compression") or "none"
    if compression not in _COMPRESSIONS:
        field = f"{where}.large-message-handle-compression"
        yield field, f"{shown(compression)} is not supported", f"use {', '.join(_COMPRESSIONS)}"
    option = facts.large_option
    if option == "none":
        return
    field = f"{where}.large-message-handle-option"
    if facts.producer == "new" and option not in _LARGE:
        yield field, f"{shown(option)} is unknown", f"use {', '.join(_LARGE)}"
    if facts.protocol not in ("open-protocol", "canal-json", "simple"):
        yield field, f"protocol {facts.protocol} cannot do {shown(option)}", "remove it, or use canal-json"
    elif facts.protocol == "canal-json" and (
        facts.given.parameters.get("enable-tidb-extension") not in ("1", "t", "T", "true", "TRUE", "True")
    ):
        reason = f"{shown(option)} with canal-json needs the TiDB extension in the sink URI"
        yield field, reason, "add enable-tidb-extension=true to the sink URI (in the file it does not count)"
    if option == "claim-check" and not facts.large.get("claim-check-storage-uri"):
        yield f"{where}.claim-check-storage-uri", "claim-check needs it", "say where large messages go"
    if (
        option == "claim-check"
        and facts.protocol == "open-protocol"
        and facts.large.get("claim-check-raw-value")
    ):
        yield f"{where}.claim-check-raw-value", "open-protocol cannot do it", "set it to false"


def _registries(facts: Facts) -> Found:
    if facts.glue is None:
        return
    where = "changefeed: sink.kafka-config.glue-schema-registry-config"
    if facts.given.setting("sink", "schema-registry") is not None:
        yield where, "excludes [sink] schema-registry", "keep one of the two"
    for name in ("registry-name", "region"):
        if not facts.glue.get(name):
            yield f"{where}.{name}", "is missing", "add it"
    if facts.glue.get("access-key") and not facts.glue.get("secret-access-key"):
        yield f"{where}.secret-access-key", "access-key needs it", "give both, or neither"


def _dispatchers(facts: Facts) -> Found:
    for index, rule in enumerate(facts.given.dispatchers):
        if rule.get("dispatcher") and rule.get("partition"):
            field = f"changefeed: sink.dispatchers[{index}]"
            yield field, "dispatcher and partition mean the same", "remove dispatcher, the older name"


def _sink(facts: Facts) -> Found:
    if (facts.options["encoder-concurrency"] or 0) < 0:
        yield "changefeed: sink.encoder-concurrency", "is below 0", "give a number above 0, or remove it"
    if facts.options["delete-only-output-handle-key-columns"] and facts.protocol == "csv":
        field = "changefeed: sink.delete-only-output-handle-key-columns"
        yield field, "csv always writes all columns of a delete", "remove it"


def _integrity(facts: Facts) -> Found:
    for name, allowed in _INTEGRITY.items():
        value = facts.integrity.get(name, allowed[0])
        if value not in allowed and (facts.given.kafka or name != "integrity-check-level"):
            yield (
                f"changefeed: {facts.section}integrity.{name}",
                f"{shown(value)} is unknown",
                f"use {' or '.join(allowed)}",
            )
    if facts.checksum and facts.given.setting("sink", "column-selectors"):
        yield "changefeed: sink.column-selectors", "excludes integrity-check-level correctness", "keep one"


def _topic(facts: Facts) -> Found:
    if facts.given.kafka and not facts.given.topic:
        yield "sink-uri", "names no topic", "write one behind the brokers: kafka://host:port/topic?…"


def _kafka(facts: Facts) -> Found:
    options = facts.options
    if options["partition-num"] is not None and options["partition-num"] <= 0:
        yield "partition-num", f"{options['partition-num']} is not above 0", "give 1 or more, or remove it"
    if options["required-acks"] not in (-1, 0, 1):
        yield "required-acks", f"{options['required-acks']} is not allowed", "use -1 (all), 0 or 1"
    client = options["kafka-client-id"]
    if client and not _CLIENT_ID.fullmatch(client):
        yield "kafka-client-id", f"{shown(client)} has other characters", "use A-Z a-z 0-9 . _ - only"
    if facts.producer == "new":
        yield from _kafka_of_new(options)


def _kafka_of_new(options: Mapping[str, Any]) -> Found:
    if options["replication-factor"] <= 0:
        yield "replication-factor", f"{options['replication-factor']} is not above 0", "give 1 or more"
    for name in ("dial-timeout", "write-timeout", "read-timeout"):
        if options[name] is not None and options[name].startswith(("-", "0s")):
            yield name, f"{options[name]} is not above 0", "give a duration such as 10s"
    if options["max-message-bytes"] <= 0:
        yield "max-message-bytes", f"{options['max-message-bytes']} is not above 0", "give a number of bytes"


def _security(facts: Facts) -> Found:
    options = facts.options
    mechanism, auth_type = options["sasl-mechanism"], options["sasl-gssapi-auth-type"]
    if mechanism and mechanism.lower() not in _MECHANISMS:
        yield "sasl-mechanism", f"{shown(mechanism)} is unknown", f"use {', '.join(_MECHANISMS).upper()}"
    if auth_type and auth_type.lower() not in _AUTH_TYPES:
        yield "sasl-gssapi-auth-type", f"{shown(auth_type)} is unknown", "use USER or KEYTAB"
    files = [bool(options[name]) for name in ("ca", "cert", "key")]
    if any(files) and not all(files):
        yield "ca, cert, key", "only some of the three files are given", "give all three, or none"
    elif all(files) and options["enable-tls"] is False:
        yield "enable-tls", "is false, and ca, cert and key are given", "set it to true, or remove the files"


def _oauth(facts: Facts) -> Found:
    names = ("sasl-oauth-client-id", "sasl-oauth-client-secret", "sasl-oauth-token-url")
    given = {name: facts.options[name] for name in names if facts.options[name] is not None}
    if not given:
        return
    where = "changefeed: sink.kafka-config"
    for name in names:
        if not given.get(name):
            yield f"{where}.{name}", "is missing or empty, and OAuth needs it", "add it"
    secret = given.get("sasl-oauth-client-secret")
    if secret and not _is_base64(secret):
        yield f"{where}.sasl-oauth-client-secret", "is not base64", "give it in base64, as TiCDC takes it"
    if (facts.options["sasl-mechanism"] or "").lower() != "oauthbearer":
        yield "sasl-mechanism", "OAuth is for OAUTHBEARER alone", "set sasl-mechanism to OAUTHBEARER"


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        return False
    return True


def _force_replicate(facts: Facts) -> Found:
    if not facts.force_replicate:
        return
    field = f"changefeed: {facts.section}force-replicate"
    if facts.uses_registry:
        yield field, f"{facts.protocol} needs a key in every table", "set it to false, or use canal-json"
    if facts.producer == "classic" and facts.large_option != "none":
        yield field, "excludes large-message-handle-option", "set it to false, or the option to none"
    if facts.options["delete-only-output-handle-key-columns"]:
        yield (
            field,
            "excludes delete-only-output-handle-key-columns: no key, no column",
            "keep one of the two",
        )


def _avro(facts: Facts) -> Found:
    options = facts.options
    if facts.producer == "new" and facts.protocol == "debezium" and options["schema-registry"]:
        yield "schema-registry", "has no effect with protocol debezium", 'use protocol "debezium-avro"'
    if not facts.uses_registry:
        return
    if not options["schema-registry"] and facts.glue is None:
        yield "schema-registry", f"{facts.protocol} needs it", "add schema-registry=http://… to the sink URI"
    if options["schema-registry"] and facts.glue is not None:
        yield "schema-registry", "excludes the Glue schema registry of the file", "keep one of the two"
    modes = {"avro-decimal-handling-mode": "precise", "avro-bigint-unsigned-handling-mode": "long"}
    for name, default in modes.items():
        if options[name] not in (default, "string"):
            yield name, f"{shown(options[name])} is unknown", f"use {default} or string, in lower case"
    right = options["enable-tidb-extension"] and all(options[name] == "string" for name in modes)
    if facts.checksum and facts.protocol == "avro" and not right:
        yield (
            f"changefeed: {facts.section}integrity.integrity-check-level",
            "correctness needs three other options with avro",
            "set enable-tidb-extension=true, avro-decimal-handling-mode=string and "
            "avro-bigint-unsigned-handling-mode=string",
        )


def _codec(facts: Facts) -> Found:
    for name in ("max-message-bytes", "max-batch-size"):
        if facts.options[name] <= 0:
            yield name, f"{facts.options[name]} is not above 0", "give a number above 0, or remove it"
    if (
        facts.producer == "new"
        and facts.protocol != "debezium"
        and facts.options["debezium-include-start-ts"]
    ):
        yield "debezium-include-start-ts", "is for protocol debezium alone", "remove it"


Rule = Callable[[Facts], Found]
RULES: Final[tuple[tuple[Stage, Rule], ...]] = (
    ("replica-config", _protocol),
    ("replica-config", _atomicity),
    ("replica-config", _large_message),
    ("replica-config", _registries),
    ("replica-config", _dispatchers),
    ("replica-config", _sink),
    ("replica-config", _integrity),
    ("topic", _topic),
    ("kafka-options", _kafka),
    ("kafka-options", _security),
    ("kafka-options", _oauth),
    ("encoder-config", _force_replicate),
    ("encoder-config", _avro),
    ("encoder-config", _codec),
)


def refusals_of(facts: Facts) -> list[Refusal]:
    """Everything that TiCDC refuses, in the order of its stages."""
    return [
        Refusal(stage, place_of(field, facts.given), reason, remedy)
        for stage, rule in RULES
        for field, reason, remedy in rule(facts)
    ]
