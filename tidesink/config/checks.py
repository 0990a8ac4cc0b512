"""Checks across settings: those that contradict each other or have no effect.

Among them: settings of large messages, routes, patterns that fit no table, and what a target that passes
rows on cannot do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from tidesink.codecs.open import CODECS, without_effect
from tidesink.config.fields import Problem
from tidesink.config.models import Config, Route, references
from tidesink.config.source import (
    KafkaProperties,
    SourceSettings,
    file_problems,
    kafka_problems,
    security_problems,
)
from tidesink.config.table_checks import merged_problems, section_problems, sections_of
from tidesink.config.targets import HttpSettings, KafkaSettings
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import ConfigError
from tidesink.events import TableId


def large_message_problems(config: Config) -> Iterator[Problem]:
    """What TiCDC would refuse too (tiflow c7b2588), and an upstream without an installed driver."""
    source = config.source
    option = source.large_message_handle_option
    if option != "none" and not source.enable_tidb_extension and source.protocol == "canal-json":
        yield Problem(
            "source.large-message-handle-option",
            f"{option} needs the TiDB extension: TiCDC refuses it otherwise",
            "set enable-tidb-extension: true as the changefeed has it",
        )
    if option == "claim-check" and source.claim_check_storage_uri is None:
        yield Problem(
            "source.claim-check-storage-uri",
            "required with large-message-handle-option claim-check",
            "give the changefeed's claim-check-storage-uri, or a directory that holds the same files",
        )


def message_target_problems(config: Config) -> Iterator[Problem]:
    """Settings that contradict a target which keeps no rows."""
    if not isinstance(config.target, KafkaSettings | HttpSettings):
        return
    deletes = [("defaults", config.defaults.deletes)]
    deletes += [(f"tables[{number}]", entry.deletes or "hard") for number, entry in enumerate(config.tables)]
    for place, mode in deletes:
        if mode == "soft":
            yield Problem(
                f"{place}.deletes",
                f"a {config.target.type} target forwards deletes and stores no row to mark",
                "use deletes: hard",
            )
    if isinstance(config.target, KafkaSettings):
        yield from _kafka_target(config, config.target)


def _kafka_target(config: Config, target: KafkaSettings) -> Iterator[Problem]:
    source = config.source
    if set(target.brokers) & set(source.brokers) and target.topic in source.topics:
        yield Problem(
            "target.topic",
            "is a topic rule that the pipeline reads from the same brokers",
            "give it a prefix, such as copy_{schema}_{table}",
        )
    no_commit_ts = source.protocol in ("flat-avro", "canal-json") and not source.enable_tidb_extension
    if no_commit_ts and target.protocol.startswith("debezium"):
        yield Problem(
            "target.protocol",
            f"{target.protocol} writes the commit_ts of each row, and the source has none",
            "set enable-tidb-extension = true at the changefeed and under source, or write flat-avro or "
            "canal-json",
        )
    elif no_commit_ts and target.enable_tidb_extension:
        yield Problem(
            "target.enable-tidb-extension",
            "writes the commit_ts of each row, and the source has none",
            "set enable-tidb-extension = true at the changefeed and under source, or remove it here",
        )


def route_problems(config: Config) -> Iterator[Problem]:
    """What is wrong with the routes of a config."""
    shared: dict[str, Route] = {}
    patterns: set[str] = set()
    for number, route in enumerate(config.routes):
        place = f"routes[{number}]"
        if route.match in patterns:
            yield Problem(
                f"{place}.match", "is an earlier route's: this one is never used", "join the two routes"
            )
        patterns.add(route.match)
        yield from _groups(place, route)
        yield from _shard(place, route)
        yield from _together(place, route, shared)
        if route.shard_column is not None:
            yield from _obstacles(place, config)
        shared.setdefault(route.to, route)


def _groups(place: str, route: Route) -> Iterator[Problem]:
    texts: Mapping[str, str] = {"to": route.to, "shard": route.shard or ""}
    for name, text in texts.items():
        for group in sorted(references(text)):
            if group > route.groups:
                yield Problem(
                    f"{place}.{name}",
                    f"names group ${group}, and {route.match!r} has {route.groups}",
                    "put the part of the name into ( )",
                )


def _shard(place: str, route: Route) -> Iterator[Problem]:
    if route.shard_column is None:
        if route.shard is not None:
            yield Problem(f"{place}.shard", "has no effect without shard-column", "give one, or remove it")
        if route.merges:
            yield Problem(
                f"{place}.shard-column",
                f"several source tables may go to {route.to}, and rows of one key would overwrite each other",
                "name a column for the source table of each row, or put everything that differs between the "
                "names into groups that to names",
            )
    elif route.shard is not None and route.merges and not references(route.shard):
        yield Problem(
            f"{place}.shard",
            "is the same for all source tables, so nothing distinguishes their rows",
            "name a group, as in $1, or remove it",
        )


def _together(place: str, route: Route, shared: Mapping[str, Route]) -> Iterator[Problem]:
    """Routes to one table must agree on the column that distinguishes its rows."""
    other = shared.get(route.to)
    if other is None:
        return
    if route.shard_column is None or other.shard_column != route.shard_column:
        yield Problem(
            f"{place}.shard-column",
            f"two routes go to {route.to}, with the shard columns {other.shard_column or '(none)'} and "
            f"{route.shard_column or '(none)'}",
            "give both the same shard-column",
        )


def _obstacles(place: str, config: Config) -> Iterator[Problem]:
    if "shards" not in config.target.features:
        yield Problem(
            f"{place}.shard-column",
            f"several source tables cannot share a table of a target of type {config.target.type}",
            "send each to a table of its own, or use another target",
        )
    orders = [config.defaults.sequence_by, *(entry.sequence_by for entry in config.tables)]
    if "source" in orders:
        yield Problem(
            f"{place}.shard-column",
            "tables ordered by the source cannot share a table in this version",
            "use sequence_by: kafka, or send each to a table of its own",
        )
    modes = {config.defaults.mode, *(entry.mode for entry in config.tables)} - {None, "upsert"}
    for mode in sorted(map(str, modes)):
        yield Problem(
            f"{place}.shard-column",
            f"tables in mode {mode} cannot share a table in this version",
            "use mode: upsert, or send each to a table of its own",
        )


FLAT_AVRO_RULE = "a flat-avro topic rule must contain {schema} and {table}"


def cross_problems(config: Config) -> list[Problem]:
    """Every contradiction in a config whose fields are right one by one."""
    found = [problem for check in _CHECKS for problem in check(config)]
    # Where a section is wrong alone, the check of all sections together would only repeat it.
    return found or list(merged_problems(config))


def _without_effect(config: Config) -> Iterator[Problem]:
    source = config.source
    foreign = without_effect(source.protocol, "reads")
    for name in SourceSettings.model_fields:
        if name in foreign and name in source.model_fields_set:
            yield Problem(
                f"source.{name.replace('_', '-')}",
                f"has no effect with protocol {source.protocol}",
                "remove it",
            )
    if not source.enable_tidb_extension:
        for name in ("avro_enable_watermark", "output_row_key", "checksum"):
            if name not in foreign and getattr(source, name) not in (False, "off"):
                yield Problem(
                    f"source.{name.replace('_', '-')}",
                    "has no effect without the TiDB extension: TiCDC ignores it",
                    "set enable-tidb-extension: true as the changefeed has it, or remove it",
                )


def _registry(config: Config) -> Iterator[Problem]:
    source = config.source
    if CODECS[source.protocol].registry and source.schema_registry is None:
        yield Problem(
            "source.schema-registry",
            f"{source.protocol} needs the schema registry that its producer writes to",
            "add it, such as schema-registry: http://127.0.0.1:8081",
        )


def _raw_change_event(config: Config) -> Iterator[Problem]:
    source = config.source
    if not source.output_raw_change_event:
        return
    if source.protocol == "flat-avro" and not source.avro_include_before_value:
        yield Problem(
            "source.output-raw-change-event",
            "flat-avro then writes a changed key without the old key, so the old row would stay for ever",
            "set output-raw-change-event = false in the changefeed, or with new TiCDC "
            "avro-include-before-value: true in both",
        )
    elif any((at.mode, at.sequence_by) == ("upsert", "kafka") for at in sections_of(config)):
        yield Problem(
            "source.output-raw-change-event",
            "where one row takes the key that another row leaves (UPDATE t SET id = id + 1), the order of "
            "records in Kafka does not show whether the write or the delete came last, so rows would be lost",
            "set output-raw-change-event = false in the changefeed, or sequence_by: source for all tables",
        )


def _rules(config: Config) -> Iterator[Problem]:
    for index, rule in enumerate(config.source.rules):
        field = "source.topics" if len(config.source.topics) == 1 else f"source.topics[{index}]"
        if config.source.protocol == "flat-avro" and not (rule.is_fixed or rule.names_tables):
            yield Problem(field, FLAT_AVRO_RULE, f"use {{schema}}_{{table}} in place of {rule.text}")


def _fixed_topics(config: Config) -> Iterator[Problem]:
    """flat-avro: one fixed topic serves exactly one table, and a table must own it."""
    if config.source.protocol != "flat-avro":
        return
    owners: dict[str, list[str]] = defaultdict(list)
    for entry in config.tables:
        if entry.topic and entry.name:
            owners[entry.topic].append(entry.name)
    for topic, names in owners.items():
        if len(names) > 1:
            yield Problem(
                "tables",
                f"topic {topic} is given to {' and '.join(names)}, but a fixed topic serves "
                "exactly one table: its subject would carry two records",
                "give each table its own topic, or use a rule with {schema} and {table}",
            )
    for text in (rule.text for rule in config.source.rules if rule.is_fixed):
        if text not in owners:
            yield Problem(
                "source.topics",
                f"{FLAT_AVRO_RULE}; {text} is a fixed topic, and no table owns it",
                f"use such a rule, or name its one table under tables: {{name: schema.table, topic: {text}}}",
            )


def _tables(config: Config) -> Iterator[Problem]:
    seen: set[str] = set()
    for index, entry in enumerate(config.tables):
        field = f"tables[{index}]"
        if (entry.name is None) == (entry.match is None):
            yield Problem(field, "needs either name or match", "give name: schema.table or match: schema.*")
        if entry.topic and entry.name is None:
            yield Problem(f"{field}.topic", "a topic belongs to one table", "give name in place of match")
        if entry.definition and entry.name is None:
            yield Problem(
                f"{field}.definition", "a definition belongs to one table", "give name in place of match"
            )
        if entry.topic and CODECS[config.source.protocol].shares_topics:
            yield Problem(
                f"{field}.topic",
                f"has no effect with {config.source.protocol}: there a table is what the message says",
                "remove it, and list the topic under source.topics",
            )
        if entry.name and entry.name.lower() in seen:
            yield Problem(f"{field}.name", f"{entry.name} is named twice", "join the two entries")
        seen.add((entry.name or "").lower())


def _definitions(config: Config) -> Iterator[Problem]:
    for index, entry in enumerate(config.tables):
        if entry.definition is None or entry.table is None:
            continue
        field, definitions = f"tables[{index}].definition", TableDefinitions()
        try:
            entry.definition.declare_in(definitions, entry.table.schema)
        except ConfigError as error:
            printed = "SHOW CREATE TABLE" if entry.definition.dialect == "mysql" else "pg_dump --schema-only"
            yield Problem(field, error.message, f"give it as {printed} prints it")
            continue
        if entry.table not in definitions:
            yield Problem(field, f"does not create {entry.table}", f"give the CREATE TABLE of {entry.table}")


def _dead_letters(config: Config) -> Iterator[Problem]:
    topic, setting = config.dead_letters.topic, "dead-letters.errors.deadletterqueue.topic.name"
    if topic is None:
        if keeps_bad_records(config):
            yield Problem(
                setting,
                "required by bad-record: dead-letter",
                f"name a topic, such as {config.pipeline}-dead-letters; it is created if it does not exist",
            )
        return
    if not keeps_bad_records(config):
        yield Problem(
            setting,
            "has no effect: no table has bad-record: dead-letter",
            "set bad-record: dead-letter, or remove it",
        )
    if config.topics_among([topic]):
        yield Problem(setting, f"{topic} is a source topic by source.topics", "name another topic")


def keeps_bad_records(config: Config) -> bool:
    """Whether some table has ``bad-record: dead-letter``."""
    return "dead-letter" in (config.defaults.bad_record, *(entry.bad_record for entry in config.tables))


def carries_ddl(source: SourceSettings) -> bool:
    """Whether the topics may hold DDL events, which are stored."""
    return source.protocol != "flat-avro" or source.avro_enable_watermark


def _kafka_clients(config: Config) -> Iterator[Problem]:
    for place, properties in _clients(config):
        yield from kafka_problems(properties, place)
        yield from security_problems(properties, place)
        yield from file_problems(properties, place)


def _clients(config: Config) -> Iterator[tuple[str, KafkaProperties]]:
    yield "source.kafka", config.source.kafka
    if isinstance(config.target, KafkaSettings):
        yield "target.kafka", config.target.kafka


_CHECKS: tuple[Callable[[Config], Iterator[Problem]], ...] = (
    _rules,
    _fixed_topics,
    _registry,
    _without_effect,
    large_message_problems,
    _raw_change_event,
    _tables,
    _definitions,
    section_problems,
    route_problems,
    _kafka_clients,
    _dead_letters,
    message_target_problems,
)


_IDLE: Final = (
    "{place}: {pattern!r} fits none of the tables that were found ({names}), so nothing under it has an "
    "effect: check the names in the changefeed"
)
_SHOWN: Final = 5


def idle_patterns(config: Config, tables: Iterable[TableId]) -> Iterator[str]:
    """A warning for each ``match`` of ``tables`` and ``routes`` that fits none of some tables."""
    known = sorted(set(tables))
    if not known:
        return
    names = ", ".join(map(str, known[:_SHOWN])) + (", …" if known[_SHOWN:] else "")
    for number, entry in enumerate(config.tables):
        if entry.match is not None and not any(entry.covers(table) for table in known):
            yield _IDLE.format(place=f"tables[{number}].match", pattern=entry.match, names=names)
    for number, route in enumerate(config.routes):
        if not any(route.fits(table) for table in known):
            yield _IDLE.format(place=f"routes[{number}].match", pattern=route.match, names=names)
