"""Reads a TiCDC changefeed (sink URI and TOML), and makes the config of a pipeline that reads its topics.

TiCDC itself checks all options when the changefeed is created. This module only reads the options that
determine how the topics must be read, and raises ConfigError if a pipeline could not read the topics. Source
of the facts: TiCDC (tiflow c7b2588; new architecture b813e76), pkg/config, pkg/sink/kafka and pkg/sink/codec.

A sink URI contains passwords. Errors never contain the URI or the value of a secret parameter. The config
contains references such as ``${env:NAME}`` in place of secrets.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from tidesink.codecs.dispatch import PARTITION_RULES, Dispatcher, Router, TableFilter
from tidesink.codecs.open import ALIASES, CODECS, without_effect
from tidesink.codecs.options import Producer
from tidesink.config.fields import read_text
from tidesink.config.source import SourceSettings
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import ConfigError, nearest, shown
from tidesink.events import TableId
from tidesink.schema_registry.naming import TopicRule

KAFKA_VARIABLE: Final = "KAFKA_PASSWORD"
REGISTRY_VARIABLE: Final = "SCHEMA_REGISTRY_PASSWORD"
CLAIM_CHECK_VARIABLE: Final = "CLAIM_CHECK_STORAGE_URI"
_SAFE_RULE: Final = "use partition = 'index-value' or 'table' in the changefeed's dispatcher"
_KAFKA: Final = ("sink", "kafka-config")
_LARGE: Final = (*_KAFKA, "large-message-handle")
# TiCDC's other names for protocols.
_OTHER_NAMES: Final = {"default": "open-protocol", "flat-avro": "avro"}
_TRUE: Final = ("1", "t", "T", "TRUE", "true", "True")
_FALSE: Final = ("", "0", "f", "F", "FALSE", "false", "False")
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


class _Option(NamedTuple):
    """A changefeed option that determines how the topics must be read, and its section in the TOML file."""

    name: str
    section: tuple[str, ...]
    default: bool | str = False
    in_uri: bool = True


_CODEC: Final = (*_KAFKA, "codec-config")
_OPTIONS: Final = (
    _Option("schema-registry", ("sink",), ""),
    _Option("enable-tidb-extension", _CODEC),
    _Option("avro-decimal-handling-mode", _CODEC, "precise"),
    _Option("avro-bigint-unsigned-handling-mode", _CODEC, "long"),
    _Option("avro-enable-watermark", _CODEC),
    _Option("avro-include-before-value", _CODEC),
    _Option("output-row-key", _CODEC),
    _Option("output-raw-change-event", _KAFKA, in_uri=False),
    _Option("content-compatible", ("sink",)),
    _Option("only-output-updated-columns", ("sink",)),
    _Option("delete-only-output-handle-key-columns", ("sink",), in_uri=False),
    _Option("large-message-handle-option", _LARGE, "none", in_uri=False),
    _Option("large-message-handle-compression", _LARGE, "none", in_uri=False),
    _Option("claim-check-storage-uri", _LARGE, "", in_uri=False),
    _Option("claim-check-raw-value", _LARGE, in_uri=False),
)
_OF_NEW_ALONE: Final = ("avro-include-before-value", "output-row-key")


@dataclass(frozen=True)
class Changefeed:
    """The settings of a changefeed.

    warnings: Texts about settings that TiCDC accepts and ignores.
    options: Options that determine how the topics must be read, under TiCDC's names.
    parameters: Parameters of the sink URI.
    settings: Settings of the TOML file.

    ``options``, ``parameters`` and ``settings`` may contain secrets and are not in the repr.
    """

    protocol: str
    brokers: str
    options: Mapping[str, Any] = field(repr=False)
    router: Router
    parameters: Mapping[str, str] = field(repr=False)
    settings: Mapping[str, Any] = field(repr=False)
    warnings: tuple[str, ...] = ()


def read_changefeed(
    sink_uri: str, settings: Mapping[str, Any] | None = None, *, producer: Producer = "classic"
) -> Changefeed:
    """Read a changefeed. Options that it does not set have TiCDC's defaults.

    ``settings``: the parsed TOML file, or None. ``producer``: TiCDC architecture that runs the changefeed.

    Raises:
        ConfigError: ``sink_uri`` is not the URI of a Kafka sink, or an option or a dispatcher cannot be read.
    """
    scheme, brokers, topic, parameters = _uri_parts(sink_uri)
    if scheme not in ("kafka", "kafka+ssl"):
        raise ConfigError(
            f"sink-uri: the changefeed writes to {scheme}, but tidesink reads Kafka. Give kafka://…"
        )
    given = settings or {}
    named = parameters.get("protocol") or _setting(given, "sink", "protocol")
    if not named:
        raise ConfigError(
            "The changefeed has no protocol. Add it to the sink URI, such as ?protocol=canal-json."
        )
    if not topic:
        raise ConfigError("sink-uri names no topic. Add it after the brokers: kafka://host:port/topic?…")
    protocol = _OTHER_NAMES.get(str(named).lower(), str(named).lower())
    warnings: list[str] = []
    rules = tuple(_dispatchers(given, protocol, producer, warnings))
    router = Router(topic, rules, producer)
    options = _options(parameters, given, protocol, producer)
    return Changefeed(protocol, brokers, options, router, parameters, given, tuple(warnings))


def _uri_parts(sink_uri: str) -> tuple[str, str, str, dict[str, str]]:
    """Return scheme, hosts, topic and parameters of a sink URI."""
    try:
        parts = urlsplit(sink_uri)
    except ValueError as error:
        raise ConfigError("sink-uri is not a URI. Give kafka://host:port/topic?protocol=…") from error
    if not parts.scheme or not sink_uri[len(parts.scheme) :].startswith("://"):
        raise ConfigError("sink-uri has no scheme. Give kafka://host:port/topic?protocol=…")
    # TiCDC uses the first of several parameters of the same name, and drops a parameter with a semicolon.
    pairs = (pair for pair in parse_qsl(parts.query, keep_blank_values=True) if ";" not in pair[0])
    parameters: dict[str, str] = {}
    for name, value in pairs:
        parameters.setdefault(name, value)
    hosts = parts.netloc.rpartition("@")[2]
    return parts.scheme.lower(), hosts, unquote(parts.path).strip("/"), parameters


def read_toml_file(file: Path) -> dict[str, Any]:
    """Read the settings in a changefeed's TOML file.

    Raises:
        ConfigError: the file cannot be read or is not TOML.
    """
    try:
        return read_toml(read_text(file))
    except ConfigError as error:
        raise error.with_context(file=str(file)) from error.__cause__


def read_toml(text: str) -> dict[str, Any]:
    """Parse a changefeed's TOML. Raises ConfigError for a text that is not TOML."""
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        settings: dict[str, Any] = toml.loads(text)
    except toml.TOMLDecodeError as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"The changefeed's settings are not TOML: {reason}.") from error
    return settings


def _setting(settings: Mapping[str, Any], *path: str) -> Any:
    """Return a setting of the parsed TOML file, or None if it is not set.

    ``path``: the names of the setting's sections, followed by its own name.
    """
    value: Any = settings
    for depth, name in enumerate(path):
        if not isinstance(value, Mapping):
            raise ConfigError(
                f"changefeed: {'.'.join(path[:depth])} must be a section. Write it as [section]."
            )
        value = value.get(name)
        if value is None:
            return None
    return value


def _options(
    parameters: Mapping[str, str], settings: Mapping[str, Any], protocol: str, producer: Producer
) -> dict[str, Any]:
    """Return the value of every option: that of the URI, else that of the TOML file, else TiCDC's default.

    A value of false or an empty text in the URI does not override the TOML file, as in TiCDC.
    """
    options: dict[str, Any] = {}
    for option in _OPTIONS:
        if producer == "new" or option.name not in _OF_NEW_ALONE:
            text = parameters.get(option.name) if option.in_uri else None
            of_file = _setting(settings, *option.section, option.name)
            options[option.name] = _of_uri(option, text) or _of_file(option, of_file) or option.default
    compatible = options["content-compatible"] and protocol == "canal-json"
    options["content-compatible"] = compatible
    options["only-output-updated-columns"] |= compatible
    options["avro-enable-watermark"] &= options["enable-tidb-extension"] and protocol in _with_subjects(
        producer
    )
    # The new architecture reads the integrity section in [sink], the classic TiCDC at the top level.
    section = ("sink", "integrity") if producer == "new" else ("integrity",)
    options["row-checksum"] = _setting(settings, *section, "integrity-check-level") == "correctness"
    return options


def _of_uri(option: _Option, text: str | None) -> bool | str | None:
    if text is None or not isinstance(option.default, bool):
        return text
    if text not in (*_TRUE, *_FALSE):
        raise ConfigError(f"sink-uri: {option.name}: {shown(text)} cannot be read. Use true or false.")
    return text in _TRUE


def _of_file(option: _Option, value: Any) -> Any:
    if value is None or type(value) is type(option.default):
        return value
    expected = "true or false without quotes" if isinstance(option.default, bool) else "a text"
    raise ConfigError(f"changefeed: {'.'.join(option.section)}.{option.name}: give {expected}.")


def _with_subjects(producer: Producer) -> tuple[str, ...]:
    return ("avro", "debezium-avro") if producer == "new" else ("avro",)


def _dispatchers(
    settings: Mapping[str, Any], protocol: str, producer: Producer, warnings: list[str]
) -> Iterator[Dispatcher]:
    rules = _setting(settings, "sink", "dispatchers") or []
    if not isinstance(rules, list) or not all(isinstance(rule, Mapping) for rule in rules):
        raise ConfigError("changefeed: sink.dispatchers must be a list: [{matcher = ['shop.*'], …}].")
    case_sensitive = _setting(settings, "case-sensitive") is True
    for index, rule in enumerate(rules):
        setting = f"changefeed: sink.dispatchers[{index}]"
        try:
            topic = _topic_rule(str(rule.get("topic") or ""), protocol, producer)
            matcher = TableFilter.parse(_texts(rule, "matcher"), case_sensitive=case_sensitive)
            partition = _partition(rule, setting, warnings)
            columns = _texts(rule, "columns") if partition == "columns" else ()
        except ConfigError as error:
            raise ConfigError(f"{setting}: {error.message}. Correct this rule.") from error
        by_index = str(rule.get("index") or "") if partition == "index-value" else ""
        yield Dispatcher(matcher, topic, partition, by_index, columns)


def _partition(rule: Mapping[str, Any], setting: str, warnings: list[str]) -> Any:
    for name in rule:
        if name not in _RULE_MEMBERS:
            hint = nearest(name, _RULE_MEMBERS)
            warnings.append(f"{setting}.{name} is unknown{hint}: TiCDC ignores it")
    named = str(rule.get("partition") or rule.get("dispatcher") or "default")
    if named.lower() not in PARTITION_RULES:
        hint = nearest(named, PARTITION_RULES)
        warnings.append(f"{setting}.partition {shown(named)} is unknown{hint}: TiCDC uses 'table' instead")
    return PARTITION_RULES.get(named.lower(), "table")


def _texts(rule: Mapping[str, Any], name: str) -> tuple[str, ...]:
    texts = rule.get(name) or ()
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"{name} must be a list of texts: {name} = ['…']")
    return tuple(texts)


def _topic_rule(text: str, protocol: str, producer: Producer) -> TopicRule | None:
    if not text:
        return None
    rule = TopicRule.parse(text)
    if protocol in _with_subjects(producer) and not (rule.is_fixed or rule.names_tables):
        raise ConfigError(
            f"topic {text!r} must contain {{schema}} and {{table}} with protocol {protocol}. Otherwise "
            "several tables would share one subject of the registry"
        )
    return rule


# By protocol: options that are written to the config even if they have their default, for information.
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


@dataclass
class PipelineDraft:
    """The sections ``source`` and ``tables`` of a new config, and notes for the user."""

    source: dict[str, Any] = field(default_factory=dict)
    tables: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def pipeline_draft(feed: Changefeed, definitions: TableDefinitions | None = None) -> PipelineDraft:
    """Return the config of a pipeline that reads a changefeed's topics.

    ``definitions``: definitions of the tables, which show the tables' keys, or None.

    Raises:
        ConfigError: tidesink cannot read this changefeed's topics, or the changefeed does not keep the order
            of one row's changes.
    """
    protocol = _protocol(feed)
    _refuse_lost_order(feed, definitions)
    draft = PipelineDraft(notes=[*feed.warnings, *_left_out(feed, definitions)])
    registry = _registry(feed, protocol, draft.notes)
    topics, draft.tables = _topics(feed, protocol)
    draft.source = {
        "brokers": feed.brokers,
        "protocol": protocol,
        "topics": topics[0] if len(topics) == 1 else topics,
        **registry,
        **dict(_codec(feed, protocol, draft.notes)),
    }
    kafka = dict(_kafka(feed, draft.notes))
    if kafka:
        draft.source["kafka"] = kafka
    return draft


def _protocol(feed: Changefeed) -> str:
    protocol = ALIASES.get(feed.protocol, feed.protocol)
    if protocol not in _ALWAYS:
        raise ConfigError(
            f"The changefeed's protocol is {feed.protocol}{nearest(feed.protocol, _ALWAYS)}, but a "
            f"pipeline reads {' or '.join(_ALWAYS)}. Create a changefeed with one of these protocols.",
            key="protocol",
        )
    return protocol


def lost_order(dispatcher: Dispatcher, key: Collection[str] | None = None) -> str | None:
    """Return why a dispatcher may send one row's changes to several partitions, with the remedy.

    Returns None if it sends all changes of a row to one partition. A pipeline needs this, because
    ``sequence_by: kafka`` only orders changes within a partition, and flat-avro deletes have no commit_ts to
    order them by. ``key``: the table's handle columns, or None if unknown.
    """
    reason = dispatcher.scatters(key)
    if reason is None:
        return None
    certain = dispatcher.partition != "columns" or key is not None
    hint = "" if certain else ", or give --table-definition if these columns are the table's key"
    return f"dispatcher of {dispatcher.matcher}: {reason}, so their order is lost; {_SAFE_RULE}{hint}"


def _refuse_lost_order(feed: Changefeed, definitions: TableDefinitions | None) -> None:
    for index, dispatcher in enumerate(feed.router.dispatchers):
        covered = [table for table in definitions or () if feed.router.dispatcher_of(table) is dispatcher]
        for key in [key_of(definitions, table) for table in covered] or [None]:
            problem = lost_order(dispatcher, key)
            if problem is not None:
                raise ConfigError(problem, key=f"changefeed: sink.dispatchers[{index}]")


def key_of(definitions: TableDefinitions | None, table: TableId) -> Collection[str] | None:
    """Return the handle columns (row identity in TiDB) of a table; None if the table has no definition."""
    schema = definitions.get(table) if definitions is not None else None
    return {column.name for column in schema.handle_columns} if schema is not None else None


_COPY_DIFFERS: Final = "the target will differ from the source"
# Events that each setting of an event filter drops (TiCDC's documentation, "Event filter rules").
_FILTERED: Final[Mapping[str, str]] = {
    "ignore-event": "events of the kinds {}",
    "ignore-sql": "DDL that matches {}",
    "ignore-insert-value-expr": "inserted rows with {}",
    "ignore-update-new-value-expr": "updates to rows with {}",
    "ignore-update-old-value-expr": "updates of rows that had {}",
    "ignore-delete-value-expr": "deletes of rows with {}",
    "ignore-update-only-columns": "updates that change only {}",
}
# Event filter expressions that an update of a row's key may satisfy.
_MAY_MATCH_A_KEY_CHANGE: Final = frozenset(
    {"ignore-delete-value-expr", "ignore-update-new-value-expr", "ignore-update-old-value-expr"}
)
_DELETES: Final = frozenset({"delete", "all dml", "all"})


def _left_out(feed: Changefeed, definitions: TableDefinitions | None) -> Iterator[str]:
    """Yield warnings about rows and changes that the changefeed does not send and the target will lack."""
    yield from _filtered_events(feed)
    yield from _selected_columns(feed, definitions)
    starts = _setting(feed.settings, "filter", "ignore-txn-start-ts")
    if starts:
        yield (
            f"filter.ignore-txn-start-ts leaves out {len(_listed(starts))} whole transactions: "
            f"{_COPY_DIFFERS} in the rows that these transactions changed. Remove the setting to send them"
        )
    if _setting(feed.settings, "bdr-mode") is True:
        yield (
            "bdr-mode leaves out the changes that another changefeed wrote into this cluster: "
            f"{_COPY_DIFFERS} in the rows of these changes"
        )


def _filtered_events(feed: Changefeed) -> Iterator[str]:
    rules = _setting(feed.settings, "filter", "event-filters") or []
    for index, rule in enumerate(_rules(rules, "filter.event-filters")):
        tables = ", ".join(_texts(rule, "matcher")) or "all tables"
        setting = f"filter.event-filters[{index}]"
        for name, words in _FILTERED.items():
            values = _listed(rule.get(name))
            if not values:
                continue
            yield f"{tables}: {setting} leaves out {words.format(', '.join(values))}: {_COPY_DIFFERS}"
            surely = name == "ignore-event" and not _DELETES.isdisjoint(event.lower() for event in values)
            if surely or name in _MAY_MATCH_A_KEY_CHANGE:
                cause = f"{setting} leaves" if surely else f"{setting}.{name} may leave"
                yield (
                    f"{tables}: TiCDC sends an update of a key as a delete and an insert, and {cause} the "
                    "delete out, so the target keeps the old row in addition to the new one. Remove the "
                    "rule from the changefeed, or use mode: append, which stores every change that is sent"
                )
        for name in rule:
            if name != "matcher" and name not in _FILTERED:
                yield (
                    f"{tables}: tidesink does not know {setting}.{name}{nearest(name, [*_FILTERED])}. "
                    "Check in TiCDC's documentation whether the setting drops events"
                )


def _selected_columns(feed: Changefeed, definitions: TableDefinitions | None) -> Iterator[str]:
    rules = _setting(feed.settings, "sink", "column-selectors") or []
    case_sensitive = _setting(feed.settings, "case-sensitive") is True
    for index, rule in enumerate(_rules(rules, "sink.column-selectors")):
        matcher, columns = _texts(rule, "matcher"), _texts(rule, "columns")
        setting = f"sink.column-selectors[{index}]"
        tables = ", ".join(matcher) or "all tables"
        chosen = ", ".join(columns)
        yield (
            f"{tables}: {setting} sends only the columns {chosen}: {_COPY_DIFFERS} in the other columns, "
            "which `tidesink diff` and a resync read from the database. List the sent columns under tables, "
            "as columns: [...]"
        )
        selected = _column_filter(columns)
        covered = TableFilter.parse(matcher, case_sensitive=case_sensitive)
        matched = [table for table in definitions or () if covered.matches(table)]
        example = _example(columns)
        for table in matched:
            key = key_of(definitions, table) or ()
            unsent = ", ".join(name for name in key if not selected.matches(TableId("", name)))
            if unsent:
                yield _UNSENT_KEY.format(table=table, place=setting, names=unsent, example=example)
        if not matched:
            yield _MAYBE_UNSENT_KEY.format(table=tables, place=setting, example=example)


_KEYS_OF_THE_SELECTED: Final = (
    "under tables, set another unique key, whose columns are sent and never NULL, such as keys: [{example}]"
)
_UNSENT_KEY: Final = "{table}: {place} leaves out {names} of the table's key: " + _KEYS_OF_THE_SELECTED
_MAYBE_UNSENT_KEY: Final = (
    "{table}: if {place} leaves out a column of the primary key: " + _KEYS_OF_THE_SELECTED
)


def _column_filter(columns: Collection[str]) -> TableFilter:
    """Return a filter for column names. TiCDC's column patterns have the same form as its table patterns."""
    return TableFilter.parse(
        [f"!*.{column[1:]}" if column.startswith("!") else f"*.{column}" for column in columns]
    )


def _example(columns: Collection[str]) -> str:
    return next((column for column in columns if column.replace("_", "").isalnum()), "uk")


def _rules(rules: Any, setting: str) -> list[Mapping[str, Any]]:
    if not isinstance(rules, list) or not all(isinstance(rule, Mapping) for rule in rules):
        raise ConfigError(f"changefeed: {setting} must be a list: [{{matcher = ['shop.*'], …}}].")
    return rules


def _listed(value: Any) -> list[str]:
    """Return the texts of a setting as a list; the setting may be a single text or a list of texts."""
    if value in (None, "", []):
        return []
    return [str(text) for text in value] if isinstance(value, list) else [str(value)]


def _topics(feed: Changefeed, protocol: str) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the topic rules for ``source.topics``, and the entries of ``tables`` for fixed topics.

    A fixed topic has a name without placeholders, so its entry has to name the topic's table.
    """
    topics: list[str] = []
    tables: list[dict[str, Any]] = []
    alone, passed = not CODECS[protocol].shares_topics, _filter(feed)
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
        raise ConfigError("The filter matches no table. Correct the filter's rules.", key=_FILTER_PLACE)
    return list(dict.fromkeys(topics)), tables


_FILTER_PLACE: Final = "changefeed: filter.rules"


def _filter(feed: Changefeed) -> TableFilter:
    """Return the filter of the tables that the changefeed replicates. TiCDC's default is all tables."""
    rules = _setting(feed.settings, "filter", "rules")
    case_sensitive = _setting(feed.settings, "case-sensitive") is True
    return TableFilter.parse(
        rules if rules and isinstance(rules, list) else ["*.*"], case_sensitive=case_sensitive
    )


def _owners(feed: Changefeed, index: int, passed: TableFilter) -> tuple[TableId, ...]:
    """Return the one table whose changes a dispatcher sends to a fixed topic, as a tuple.

    Empty if the changefeed's filter excludes all tables of the dispatcher.

    Raises:
        ConfigError: the topic may have several tables.
    """
    dispatcher = feed.router.dispatchers[index]
    if dispatcher.matcher.only_table is not None:
        return (dispatcher.matcher.only_table,)
    listed = passed.rest(())
    owners = [table for table in listed or () if feed.router.dispatcher_of(table) is dispatcher]
    if listed is None or len(owners) > 1:
        topic = feed.router.default_topic if dispatcher.topic is None else dispatcher.topic.text
        setting = f"changefeed: sink.dispatchers[{index}]"
        raise ConfigError(_shared(f"the tables of {dispatcher.matcher}", topic), key=setting)
    return tuple(owners)


def _rest(feed: Changefeed, passed: TableFilter) -> tuple[TableId, ...]:
    """Return the one table that no dispatcher matches, so that its changes go to the sink URI's topic.

    Empty if there is no such table.

    Raises:
        ConfigError: the topic may have several tables.
    """
    rest = passed.rest([dispatcher.matcher for dispatcher in feed.router.dispatchers])
    if rest is None or len(rest) > 1:
        setting = "changefeed: sink.dispatchers" if feed.router.dispatchers else _FILTER_PLACE
        raise ConfigError(
            _shared("tables that no dispatcher matches", feed.router.default_topic), key=setting
        )
    return rest


def _shared(who: str, topic: str) -> str:
    return (
        f"{who} share the topic {topic}, but with this protocol a topic can only have one table. To give "
        "each table its own topic, add {matcher = ['*.*'], topic = '{schema}_{table}'} as the last "
        "dispatcher of the changefeed."
    )


def _registry(feed: Changefeed, protocol: str, notes: list[str]) -> dict[str, Any]:
    url = feed.options["schema-registry"]
    if not CODECS[protocol].registry:
        return {}
    if not url:
        raise ConfigError(
            f"To read {feed.protocol}, a pipeline needs a Confluent-compatible registry (not AWS Glue). Add "
            "schema-registry=http://… to the sink URI.",
            key="schema-registry",
        )
    parts = urlsplit(url)
    if not parts.username:
        return {"schema-registry": url}
    notes.append(f"set {REGISTRY_VARIABLE} to the registry's password")
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    auth = {"username": parts.username, "password": f"${{env:{REGISTRY_VARIABLE}}}"}
    return {"schema-registry": {"url": bare, "auth": auth}}


def _codec(feed: Changefeed, protocol: str, notes: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield the options of the protocol that differ from TiCDC's defaults, under the names of the config."""
    large = feed.options["large-message-handle-option"]
    taken = SourceSettings.model_fields.keys() - without_effect(protocol, "reads")
    for name, value in feed.options.items():
        is_setting = name.replace("-", "_") in taken
        wanted = name in _ALWAYS[protocol] or value not in (False, "", "none")
        if name.startswith("claim-check") and large != "claim-check":
            continue
        # TiCDC treats an unknown value as none.
        if name == "large-message-handle-option" and large not in ("claim-check", "handle-key-only"):
            continue
        if is_setting and wanted and name != "schema-registry":
            yield name, _storage(value, notes) if name == "claim-check-storage-uri" else value
    if protocol == "flat-avro" and feed.options["row-checksum"]:
        yield "checksum", "warn"
    if protocol == "canal-json" and large == "handle-key-only":
        notes.append(
            "TiCDC sends only the key of large rows. Set source.upstream-url to TiDB's URL, to read the rows"
        )


def _storage(uri: str, notes: list[str]) -> str:
    if "?" not in uri and "@" not in uri:
        return uri
    notes.append(f"set {CLAIM_CHECK_VARIABLE} to the changefeed's claim-check-storage-uri")
    return f"${{env:{CLAIM_CHECK_VARIABLE}}}"  # the URI may contain an access key


def _kafka(feed: Changefeed, notes: list[str]) -> Iterator[tuple[str, str]]:
    def setting(name: str) -> str:
        value = feed.parameters.get(name) or _setting(feed.settings, *_KAFKA, name)
        return "" if value is None else str(value)

    mechanism = setting("sasl-mechanism").upper()
    files = all(setting(name) for name in ("ca", "cert", "key"))
    if (tls := setting("enable-tls") in _TRUE or (files and not setting("enable-tls"))) or mechanism:
        yield "security.protocol", ("SASL_" if mechanism else "") + ("SSL" if tls else "PLAINTEXT")
    if mechanism:
        notes.append(f"set {KAFKA_VARIABLE} to the password of Kafka's user")
        yield "sasl.mechanism", mechanism
        yield "sasl.username", setting("sasl-user")
        yield "sasl.password", f"${{env:{KAFKA_VARIABLE}}}"
    places = {"ca": "ssl.ca.location", "cert": "ssl.certificate.location", "key": "ssl.key.location"}
    for name, location in places.items():
        if path := setting(name):
            notes.append(
                f"{location}: {path} is a path on TiCDC's host. Copy the file to this host, and set its path"
            )
            yield location, path
