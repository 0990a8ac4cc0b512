"""A changefeed's sink URI and settings as TiCDC resolves them, or every reason why it does not take them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidesink.codecs.base import Producer
from tidesink.codecs.dispatch import PARTITION_RULES, Dispatcher, Router, TableFilter
from tidesink.config.changefeed.given import Given, read_given
from tidesink.config.changefeed.options import OptionValue, Refusal, Stage, read_options
from tidesink.config.changefeed.rules import Facts, protocol_of, refusals_of
from tidesink.config.problems import nearest
from tidesink.errors import ConfigError, shown
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
    """What a changefeed does. ``options`` has TiCDC's names; ``warnings`` is what it takes and does not heed.

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
    return Changefeed(options, router, given, producer, (*warnings, *_unheeded(facts)))


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


def _unheeded(facts: Facts) -> Iterator[str]:
    options, protocol = facts.options, facts.protocol
    if options["content-compatible"] and protocol != "canal-json":
        yield f"content-compatible has no effect with protocol {protocol}"
    if options["avro-enable-watermark"] and not (options["enable-tidb-extension"] and facts.uses_registry):
        yield "avro-enable-watermark has no effect without avro and enable-tidb-extension"
    if facts.checksum and protocol == "canal-json":
        yield "integrity-check-level has no effect with canal-json: its rows carry no checksum"
    if facts.large_option not in ("none", "claim-check", "handle-key-only"):
        yield f"large-message-handle-option {shown(facts.large_option)} is unknown: TiCDC takes it for none"
