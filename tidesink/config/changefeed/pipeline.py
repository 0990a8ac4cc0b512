"""From a changefeed to the config that reads what it writes. Secrets become references, never values."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from tidesink.codecs.dispatch import Dispatcher, TableFilter
from tidesink.codecs.open import ALIASES
from tidesink.config.changefeed.options import Given
from tidesink.config.changefeed.resolve import Changefeed
from tidesink.config.source import SourceSettings
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import ConfigError
from tidesink.events import TableId

KAFKA_VARIABLE: Final = "KAFKA_PASSWORD"
REGISTRY_VARIABLE: Final = "SCHEMA_REGISTRY_PASSWORD"
CLAIM_CHECK_VARIABLE: Final = "CLAIM_CHECK_STORAGE_URI"
_SAFE_RULE: Final = "use partition = 'index-value' or 'table' in the changefeed's dispatcher"
# Always written, since a reader of the config wants to see them; the others where they are not the default.
_ALWAYS: Final = {
    "flat-avro": (
        "enable-tidb-extension",
        "avro-decimal-handling-mode",
        "avro-bigint-unsigned-handling-mode",
    ),
    "canal-json": ("enable-tidb-extension", "content-compatible"),
    "debezium-avro": (),
    "debezium-json": (),
}
_WHERE_SET: Final = {
    "flat-avro": ("avro-enable-watermark", "avro-include-before-value", "output-raw-change-event"),
    "canal-json": (
        "only-output-updated-columns",
        "delete-only-output-handle-key-columns",
        "output-row-key",
        "output-raw-change-event",
    ),
    "debezium-avro": (),
    "debezium-json": (),
}
# Their schemas are in a registry, under the topic's subjects.
_REGISTERED: Final = frozenset({"flat-avro", "debezium-avro"})
# A topic of theirs has one table.
_ALONE: Final = frozenset({*_REGISTERED, "debezium-json"})


@dataclass
class PipelineDraft:
    """Parts of a config: ``source`` and ``tables`` under the config's names, and what is left to a person."""

    source: dict[str, Any] = field(default_factory=dict)
    tables: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def pipeline_draft(feed: Changefeed, definitions: TableDefinitions | None = None) -> PipelineDraft:
    """The config of a pipeline that reads a changefeed; ``definitions`` have the keys of its tables.

    Raises:
        ConfigError: tidesink cannot read what this changefeed writes, or its order would be lost.
    """
    protocol = _protocol(feed)
    _refuse_lost_order(feed, definitions)
    draft = PipelineDraft(notes=list(feed.warnings))
    topics, draft.tables = _topics(feed, protocol)
    draft.source = {
        "brokers": ",".join(feed.given.brokers),
        "protocol": protocol,
        "topics": topics[0] if len(topics) == 1 else topics,
        **_registry(feed, protocol, draft.notes),
        **_codec(feed, protocol),
        **dict(_large_messages(feed, protocol, draft.notes)),
    }
    kafka = dict(_kafka(feed.given, bool(feed.options["enable-tls"]), draft.notes))
    if kafka:
        draft.source["kafka"] = kafka
    return draft


def _protocol(feed: Changefeed) -> str:
    given = str(feed.options["protocol"])
    found = ALIASES.get(given, given)
    if found not in _ALWAYS:
        raise ConfigError(
            f"the changefeed's protocol is {feed.options['protocol']}, and a pipeline reads "
            f"{' or '.join(_ALWAYS)}: create a changefeed with one of these",
            key="protocol",
        )
    return found


def lost_order(dispatcher: Dispatcher, key: Collection[str] | None = None) -> str | None:
    """Why a dispatcher may put one row's changes into several partitions, and what to do; None where not.

    flat-avro deletes carry no position of the source's, and ``sequence_by: kafka`` is the order within a
    partition. ``key``: the table's handle columns, where they are known.
    """
    reason = dispatcher.scatters(key)
    if reason is None:
        return None
    known = dispatcher.partition != "columns" or key is not None
    hint = "" if known else ", or give --table-definition if these are key columns"
    return f"dispatcher of {dispatcher.matcher}: {reason}, and their order is lost; {_SAFE_RULE}{hint}"


def _refuse_lost_order(feed: Changefeed, definitions: TableDefinitions | None) -> None:
    for index, dispatcher in enumerate(feed.router.dispatchers):
        covered = [table for table in definitions or () if feed.router.dispatcher_of(table) is dispatcher]
        for key in [key_of(definitions, table) for table in covered] or [None]:
            problem = lost_order(dispatcher, key)
            if problem is not None:
                raise ConfigError(problem, key=f"changefeed: sink.dispatchers[{index}]")


def key_of(definitions: TableDefinitions | None, table: TableId) -> Collection[str] | None:
    """The handle columns of a table, or None if it has no definition."""
    schema = definitions.get(table) if definitions is not None else None
    return {column.name for column in schema.handle_columns} if schema is not None else None


def _topics(feed: Changefeed, protocol: str) -> tuple[list[str], list[dict[str, Any]]]:
    """The topics that rows can be in, and the tables of topics that serve one."""
    topics: list[str] = []
    tables: list[dict[str, Any]] = []
    alone, passed = protocol in _ALONE, _filter(feed)
    for index, dispatcher in enumerate(feed.router.dispatchers):
        rule = dispatcher.topic
        text = feed.router.default_topic if rule is None else rule.text
        owners = _owners(feed, index, passed) if alone and (rule is None or rule.is_fixed) else None
        if owners is None or owners:
            topics.append(text)
        tables += [{"name": str(table), "topic": text} for table in owners or ()]
        if dispatcher.matcher.everything:
            break
    else:
        rest = _rest(feed, passed) if alone else None
        if rest is None or rest:
            topics.append(feed.router.default_topic)
        tables += [{"name": str(table), "topic": feed.router.default_topic} for table in rest or ()]
    if not topics:
        raise ConfigError("the filter lets no table through: correct its rules", key=_FILTER_PLACE)
    return list(dict.fromkeys(topics)), tables


_FILTER_PLACE: Final = "changefeed: filter.rules"


def _filter(feed: Changefeed) -> TableFilter:
    """The tables that the changefeed replicates: TiCDC's default is all."""
    rules = feed.given.setting("filter", "rules")
    case_sensitive = feed.given.setting("case-sensitive") is True
    return TableFilter.parse(
        rules if rules and isinstance(rules, list) else ["*.*"], case_sensitive=case_sensitive
    )


def _owners(feed: Changefeed, index: int, passed: TableFilter) -> tuple[TableId, ...]:
    """Who has the one topic of a dispatcher's tables: one table, or none that the filter lets through."""
    dispatcher = feed.router.dispatchers[index]
    if dispatcher.matcher.only_table is not None:
        return (dispatcher.matcher.only_table,)
    listed = passed.rest(())
    owners = [table for table in listed or () if feed.router.dispatcher_of(table) is dispatcher]
    if listed is None or len(owners) > 1:
        topic = feed.router.default_topic if dispatcher.topic is None else dispatcher.topic.text
        place = f"changefeed: sink.dispatchers[{index}]"
        raise ConfigError(_shared(f"the tables of {dispatcher.matcher}", topic), key=place)
    return tuple(owners)


def _rest(feed: Changefeed, passed: TableFilter) -> tuple[TableId, ...]:
    """Who has the sink URI's topic: one table that the filter lets through, no dispatcher's, or none."""
    rest = passed.rest([dispatcher.matcher for dispatcher in feed.router.dispatchers])
    if rest is None or len(rest) > 1:
        place = "changefeed: sink.dispatchers" if feed.router.dispatchers else _FILTER_PLACE
        raise ConfigError(_shared("tables that no dispatcher fits", feed.router.default_topic), key=place)
    return rest


def _shared(who: str, topic: str) -> str:
    return (
        f"{who} share the topic {topic}, which can have one table: give them a topic each with a last "
        "dispatcher {matcher = ['*.*'], topic = '{schema}_{table}'} in the changefeed"
    )


def _registry(feed: Changefeed, protocol: str, notes: list[str]) -> dict[str, Any]:
    url = str(feed.options["schema-registry"])
    if protocol not in _REGISTERED:
        return {}
    if not url:
        raise ConfigError(
            "the changefeed registers its schemas at AWS Glue, and a pipeline reads a Confluent-compatible "
            "registry: set schema-registry in the changefeed",
            key="schema-registry",
        )
    parts = urlsplit(url)
    if not parts.username:
        return {"schema-registry": url}
    notes.append(f"set {REGISTRY_VARIABLE} to the registry's password")
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    auth = {"username": parts.username, "password": f"${{env:{REGISTRY_VARIABLE}}}"}
    return {"schema-registry": {"url": bare, "auth": auth}}


def _codec(feed: Changefeed, protocol: str) -> dict[str, Any]:
    options, known = feed.options, SourceSettings.model_fields
    found: dict[str, Any] = {name: options[name] for name in _ALWAYS[protocol]}
    if protocol == "flat-avro" and options["row-checksum"]:
        found["checksum"] = "warn"
    for name in _WHERE_SET[protocol]:
        if options.get(name) and name.replace("-", "_") in known:
            found[name] = options[name]
    return found


def _kafka(given: Given, tls: bool, notes: list[str]) -> Iterator[tuple[str, str]]:
    def setting(name: str) -> str:
        return given.parameters.get(name) or str(given.setting("sink", "kafka-config", name) or "")

    mechanism = setting("sasl-mechanism").upper()
    if mechanism or tls:
        yield "security.protocol", ("SASL_" if mechanism else "") + ("SSL" if tls else "PLAINTEXT")
    if mechanism:
        notes.append(f"set {KAFKA_VARIABLE} to the password of Kafka's user")
        yield "sasl.mechanism", mechanism
        yield "sasl.username", setting("sasl-user")
        yield "sasl.password", f"${{env:{KAFKA_VARIABLE}}}"
    places = {"ca": "ssl.ca.location", "cert": "ssl.certificate.location", "key": "ssl.key.location"}
    for name, place in places.items():
        if path := setting(name):
            notes.append(f"{place}: {path} is a path on TiCDC's machine: put the file there, or correct it")
            yield place, path


def _large_messages(feed: Changefeed, protocol: str, notes: list[str]) -> Iterator[tuple[str, Any]]:
    """Where the reader finds what a canal-json message leaves out; other protocols have no such messages."""
    option, compression = (feed.options[f"large-message-handle-{part}"] for part in ("option", "compression"))
    if protocol != "canal-json":
        return
    if option in ("claim-check", "handle-key-only"):
        yield "large-message-handle-option", option
    if compression != "none":
        yield "large-message-handle-compression", compression
    if option == "claim-check":
        uri = str(feed.options["claim-check-storage-uri"])
        if "?" in uri or "@" in uri:  # an access key may stand in it
            notes.append(f"set {CLAIM_CHECK_VARIABLE} to the changefeed's claim-check-storage-uri")
            uri = f"${{env:{CLAIM_CHECK_VARIABLE}}}"
        yield "claim-check-storage-uri", uri
        if feed.options["claim-check-raw-value"]:
            yield "claim-check-raw-value", True
    if option == "handle-key-only":
        notes.append("large rows carry only their key: set upstream-url to TiDB's, which completes them")
