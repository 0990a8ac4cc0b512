"""Checks for settings that contradict each other or have no effect.

This module checks the source, the target, cuts and routes. ``table_checks`` checks the settings of tables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final

from tidesink.codecs.open import CODECS, without_effect
from tidesink.config.fields import Problem
from tidesink.config.models import (
    Config,
    CutSettings,
    Route,
    keeps_bad_records,
    references,
)
from tidesink.config.source import (
    KafkaProperties,
    SourceSettings,
    file_problems,
    kafka_problems,
    security_problems,
)
from tidesink.config.table_checks import merged_problems, section_problems, sections_of
from tidesink.config.targets import DeltaSettings, IcebergSettings, KafkaSettings, SqlSettings
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import ConfigError
from tidesink.events import fold_name


def large_message_problems(config: Config) -> Iterator[Problem]:
    """Yield problems of settings for messages that are too large for Kafka.

    TiCDC rejects most of these settings too (tiflow c7b2588).
    """
    source = config.source
    option = source.large_message_handle_option
    if option != "none" and not source.enable_tidb_extension and source.protocol == "canal-json":
        yield Problem(
            "source.large-message-handle-option",
            f"{option} needs the TiDB extension, as TiCDC itself requires",
            "set source.enable-tidb-extension: true, as in the changefeed",
        )
    if option == "handle-key-only" and source.binary_text == "utf-8":
        yield Problem(
            "source.binary-text",
            "utf-8 is not possible with large-message-handle-option: handle-key-only, because the bytes of "
            "rows that are read from the upstream database become text in ISO-8859-1",
            "set claim-check, or a protocol other than canal-json, in the changefeed",
        )
    if option == "claim-check" and source.claim_check_storage_uri is None:
        yield Problem(
            "source.claim-check-storage-uri",
            "required with large-message-handle-option claim-check",
            "set it to the changefeed's claim-check-storage-uri, or to a directory with the same files",
        )


def database_problems(config: Config) -> Iterator[Problem]:
    """Yield problems of ``source.database``: it is missing, or ``source.upstream-url`` is set too."""
    source, sections = config.source, [*sections_of(config)]
    snapshots = any(section.own.snapshot not in (None, "never") for section in sections)
    if source.database is not None and source.upstream_url is not None:
        yield Problem("source.upstream-url", "is not needed, because source.database is set", "remove it")
    if source.database is None and snapshots:
        yield Problem(
            "source.database",
            "required by snapshot: initial",
            "set it to the database's URL, such as mysql+pymysql://reader:${env:PASSWORD}@tidb:4000",
        )


def message_target_problems(config: Config) -> Iterator[Problem]:
    """Yield problems of settings that a target without stored rows (Kafka, HTTP) does not support."""
    for section in sections_of(config):
        if section.own.deletes == "soft" and "soft-deletes" not in config.target.features:
            reason = f"a {config.target.type} target forwards deletes and has no stored row to mark"
            yield section.problem("deletes", reason, "use deletes: hard")
    if isinstance(config.target, KafkaSettings):
        yield from _kafka_target(config, config.target)


def _kafka_target(config: Config, target: KafkaSettings) -> Iterator[Problem]:
    source = config.source
    if set(target.brokers) & set(source.brokers) and target.topic in source.topics:
        yield Problem(
            "target.topic",
            "is also a rule of source.topics on the same brokers, so the pipeline would read its messages",
            "add a prefix, such as copy_{schema}_{table}",
        )
    if source.lacks_commit_ts and CODECS[target.protocol].needs_commit_ts:
        yield Problem(
            "target.protocol",
            f"{target.protocol} writes the commit_ts of each row, but the source's records do not have one",
            "set enable-tidb-extension = true in the changefeed and under source, or set target.protocol to "
            "flat-avro or canal-json",
        )
    elif source.lacks_commit_ts and target.enable_tidb_extension:
        yield Problem(
            "target.enable-tidb-extension",
            "writes the commit_ts of each row, but the source's records do not have one",
            "set enable-tidb-extension = true in the changefeed and under source, or remove it under target",
        )


def commit_problems(config: Config) -> Iterator[Problem]:
    """Yield a problem if two workers could overwrite each other's commits in a lake on S3."""
    target = config.target
    if not isinstance(target, DeltaSettings | IcebergSettings):
        return
    safe = target.excludes_writers(config.spark.conf_values())
    if target.single_writer and safe:
        reason = "has no effect: the file system, the log store or the catalog excludes other writers"
        yield Problem("target.single-writer", reason, "remove it")
    elif not (target.single_writer or safe):
        yield _overwriting(target)


def _overwriting(target: DeltaSettings | IcebergSettings) -> Problem:
    alone = "set target.single-writer: true if only one worker, and no other program, ever writes there"
    if isinstance(target, DeltaSettings):
        return Problem(
            "target.path",
            "is on S3, where Delta's log store lets two workers overwrite each other's commits",
            f"set spark.delta.logStore.{target.scheme}.impl: io.delta.storage.S3DynamoDBLogStore under "
            f"spark.conf (docs/targets-delta.md), or {alone}",
        )
    return Problem(
        "target.catalog-properties",
        "belong to a catalog of type hadoop on S3, where two workers overwrite each other's commits",
        "use another type of catalog, which detects concurrent commits (rest, glue, jdbc, hive), set "
        f"lock-impl among the catalog's properties, or {alone}",
    )


_WATERMARKED: Final = (
    "use canal-json with enable-tidb-extension: true, or flat-avro with enable-tidb-extension and "
    "avro-enable-watermark: true, in the changefeed and under source; for a Debezium connector, set "
    "offsets-topic and connector-name under source.debezium"
)


def cut_problems(config: Config) -> Iterator[Problem]:
    """Yield problems of ``cuts``: settings under which no cut can be published."""
    cuts, source = config.cuts, config.source
    if cuts is None:
        return
    if isinstance(config.target, SqlSettings):
        yield from _database_cut_problems(config, cuts)
    elif not isinstance(config.target, DeltaSettings | IcebergSettings):
        reason = f"need tables, and a target of type {config.target.type} stores none"
        yield Problem("cuts", reason, "use a lake or a database as the target, or remove cuts")
    marked = source.protocol == "flat-avro" and source.avro_enable_watermark
    marked |= source.protocol == "canal-json" and source.enable_tidb_extension
    if source.has_commit_positions:
        yield from _connector_cut_problems(config)
    elif not marked:
        yield Problem(
            "cuts", "need watermarks in the topics, which these settings do not provide", _WATERMARKED
        )
    if cuts.every < 1:
        yield Problem("cuts.every", "is less than a second, the interval of TiCDC's watermarks", "raise it")
    if cuts.keep < cuts.every:
        yield Problem("cuts.keep", "is shorter than cuts.every, so no cut would be kept", "raise it")
    for section in sections_of(config):
        if section.own.mode == "append":
            reason = "cuts do not support mode append, because records near a cut are read twice"
            yield section.problem("mode", reason, "use mode: upsert or history, or remove cuts")


# Settings that cuts of a Debezium connector's topics do not support: setting, value, reason.
_NOT_BY_POSITION: Final[tuple[tuple[str, object, str], ...]] = (
    ("mode", "history", "mode history needs the commit_ts of each change, which connectors do not send"),
    ("sequence_by", "source", "this order needs the commit_ts of each change, which connectors do not send"),
)


def _connector_cut_problems(config: Config) -> Iterator[Problem]:
    """Yield problems of settings that cuts of a Debezium connector's topics do not support."""
    if config.source.debezium.schema_change_topic is not None:
        reason = "is not possible with cuts, because the topic's DDL has no order relative to the rows"
        yield Problem("source.debezium.schema-change-topic", reason, "remove it, or remove cuts")
    for section in sections_of(config):
        for name, value, reason in _NOT_BY_POSITION:
            if getattr(section.own, name) == value:
                yield section.problem(name, reason, "remove it, or remove cuts")
        if section.own.snapshot not in (None, "never"):
            reason = (
                "a snapshot reads the present rows, but the database does not show the position of the read"
            )
            yield section.problem(
                "snapshot",
                f"{reason}: not possible with cuts",
                "use the connector's snapshot.mode, or remove cuts",
            )


def _offsets_topic(config: Config) -> Iterator[Problem]:
    """Yield problems of ``offsets-topic`` and ``connector-name``: only one is set, or there are no cuts."""
    debezium = config.source.debezium
    if (debezium.offsets_topic is None) != (debezium.connector_name is None):
        lacking = "offsets-topic" if debezium.offsets_topic is None else "connector-name"
        yield Problem(
            f"source.debezium.{lacking}", "offsets-topic and connector-name must both be set", "add it"
        )
    elif debezium.offsets_topic is not None and config.cuts is None:
        yield Problem("source.debezium.offsets-topic", "has no effect without cuts", "set cuts, or remove it")


# Settings that cuts of a database do not support: setting, value, reason. Until the next cut, a worker only
# gathers the last change of each key.
_NOT_GATHERED: Final[tuple[tuple[str, object, str], ...]] = (
    ("mode", "history", "mode history stores every version of a row, but a cut only writes the last version"),
    ("deletes", "soft", "soft deletes keep the values of deleted rows, but a cut does not write them"),
    (
        "sequence_by",
        "source",
        "with this order, deletes are forgotten by the table's time, which only changes at a cut",
    ),
    ("ignore_null_updates", True, "needs the stored values of a row, which are only written at the next cut"),
)


def _database_cut_problems(config: Config, cuts: CutSettings) -> Iterator[Problem]:
    """Yield problems of settings that cuts of a target database do not support."""
    if "keep" in cuts.model_fields_set:
        reason = "has no effect, because a database only has the last cut"
        yield Problem("cuts.keep", reason, "remove it")
    for section in sections_of(config):
        for name, value, reason in _NOT_GATHERED:
            if getattr(section.own, name) == value:
                yield section.problem(name, f"{reason}: not possible with cuts", "remove it, or remove cuts")
    for number, route in enumerate(config.routes):
        if route.shard_column is not None:
            reason = (
                "is not possible with cuts, because changes are gathered for each source table separately "
                "until the next cut"
            )
            yield Problem(f"routes[{number}].shard-column", reason, "remove the route, or remove cuts")


def route_problems(config: Config) -> Iterator[Problem]:
    """Yield problems of the config's routes."""
    earlier: dict[str, Route] = {}
    patterns: set[str] = set()
    obstacles = list(_shard_obstacles(config))
    for number, route in enumerate(config.routes):
        problems = list(_route(route, earlier.get(route.to)))
        if route.match in patterns:
            problems.append(
                ("match", "repeats an earlier route, so this route is never used", "merge the two routes")
            )
        if route.shard_column is not None:
            problems += [("shard-column", *obstacle) for obstacle in obstacles]
        yield from (Problem(f"routes[{number}].{setting}", *rest) for setting, *rest in problems)
        patterns.add(route.match)
        earlier.setdefault(route.to, route)


def _route(route: Route, earlier: Route | None) -> Iterator[tuple[str, str, str]]:
    """Yield the problems of a route, as setting, reason and remedy.

    ``earlier``: an earlier route to the same target table, or None.
    """
    for name, text in (("to", route.to), ("shard", route.shard or "")):
        for group in sorted(references(text)):
            if group > route.groups:
                reason = f"names group ${group}, but {route.match!r} has {route.groups} groups"
                yield name, reason, "in match, put the part of the expression that you mean into ( )"
    if route.shard_column is None and route.shard is not None:
        yield "shard", "has no effect without shard-column", "set shard-column, or remove it"
    if route.shard_column is None and route.merges:
        yield (
            "shard-column",
            f"several source tables may be written to {route.to}, and rows with equal keys would overwrite "
            "each other",
            "set shard-column, to store the name of the source table in each row, or put every variable part "
            "of `match` into a group, and use all groups in `to`",
        )
    if route.shard_column and route.shard is not None and route.merges and not references(route.shard):
        reason = "is the same text for all source tables, so their rows could not be distinguished"
        yield "shard", reason, "use a group of match in shard, as in $1, or remove shard"
    if earlier and (route.shard_column is None or earlier.shard_column != route.shard_column):
        columns = f"{earlier.shard_column or '(none)'} and {route.shard_column or '(none)'}"
        reason = f"two routes to {route.to} have different shard columns: {columns}"
        yield "shard-column", reason, "set the same shard-column in both routes"


def _shard_obstacles(config: Config) -> Iterator[tuple[str, str]]:
    """Yield reasons why source tables cannot share a target table (``shard-column``), with remedies."""
    if "shards" not in config.target.features:
        yield (
            f"several source tables cannot share a table in a target of type {config.target.type}",
            "route each source table to its own table, or use another target",
        )
    if "source" in (config.defaults.sequence_by, *(entry.sequence_by for entry in config.tables)):
        yield (
            "tables with sequence_by: source cannot share a table in this version",
            "use sequence_by: kafka, or route each source table to its own table",
        )
    modes = {config.defaults.mode, *(entry.mode for entry in config.tables)} - {None, "upsert"}
    for mode in sorted(map(str, modes)):
        yield (
            f"tables in mode {mode} cannot share a table in this version",
            "use mode: upsert, or route each source table to its own table",
        )


FLAT_AVRO_RULE = "a flat-avro topic rule must contain {schema} and {table}"


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
                    "has no effect, because TiCDC ignores it without the TiDB extension",
                    "set source.enable-tidb-extension: true if the changefeed has it, or remove this setting",
                )


def _registry(config: Config) -> Iterator[Problem]:
    source = config.source
    if CODECS[source.protocol].registry and source.schema_registry is None:
        yield Problem(
            "source.schema-registry",
            f"{source.protocol} needs the schema registry that its producer writes to",
            "add it, such as schema-registry: http://127.0.0.1:8081",
        )


def _schema_change_topic(config: Config) -> Iterator[Problem]:
    topic = config.source.debezium.schema_change_topic
    if topic is not None and topic in config.fixed_topics:
        yield Problem(
            "source.debezium.schema-change-topic",
            f"topic {topic} is also in source.topics, but a connector writes DDL to a separate topic, whose "
            "name is the connector's topic.prefix",
            "set it to the connector's topic.prefix, or remove the topic from source.topics",
        )


def _raw_change_event(config: Config) -> Iterator[Problem]:
    source = config.source
    if not source.output_raw_change_event:
        return
    if source.protocol == "flat-avro" and not source.avro_include_before_value:
        yield Problem(
            "source.output-raw-change-event",
            "with it, flat-avro contains an update of a key without the old key, so the old row would never "
            "be removed",
            "set output-raw-change-event = false in the changefeed; or, with the new TiCDC, set "
            "avro-include-before-value: true in the changefeed and under source",
        )
    elif any((section.mode, section.sequence_by) == ("upsert", "kafka") for section in sections_of(config)):
        yield Problem(
            "source.output-raw-change-event",
            "with it, a row may get a key that another row had (UPDATE t SET id = id + 1), and the order in "
            "Kafka does not show which of the two changes was the last, so rows would be lost",
            "set output-raw-change-event = false in the changefeed, or sequence_by: source for all tables",
        )


def _rules(config: Config) -> Iterator[Problem]:
    for index, rule in enumerate(config.source.rules):
        field = "source.topics" if len(config.source.topics) == 1 else f"source.topics[{index}]"
        if config.source.protocol == "flat-avro" and not (rule.is_fixed or rule.names_tables):
            yield Problem(field, FLAT_AVRO_RULE, f"use {{schema}}_{{table}} in place of {rule.text}")


def _fixed_topics(config: Config) -> Iterator[Problem]:
    """Yield problems of flat-avro topics that are given by name, without placeholders.

    Each of them needs exactly one entry under ``tables``.
    """
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
                f"topic {topic} is the topic of {' and '.join(names)}, but a flat-avro topic that is given "
                "by name has exactly one table, because the registry has one subject per topic",
                "give each table its own topic, or use a rule with {schema} and {table}",
            )
    for text in (rule.text for rule in config.source.rules if rule.is_fixed):
        if text not in owners:
            yield Problem(
                "source.topics",
                f"{FLAT_AVRO_RULE}; {text} contains neither, and no entry of tables has this topic",
                f"use such a rule, or add the topic's table: tables: [{{name: schema.table, topic: {text}}}]",
            )


def _tables(config: Config) -> Iterator[Problem]:
    seen: set[str] = set()
    for index, entry in enumerate(config.tables):
        field = f"tables[{index}]"
        if (entry.name is None) == (entry.match is None):
            yield Problem(field, "needs either name or match", "give name: schema.table or match: schema.*")
        if entry.topic and entry.name is None:
            yield Problem(f"{field}.topic", "a topic belongs to one table", "use name instead of match")
        if isinstance(entry.start, dict) and entry.name is None:
            reason = "offsets belong to the topic of one table, but this entry may match several"
            yield Problem(f"{field}.start", reason, "use name instead of match, or give a time as the start")
        if entry.definition and entry.name is None:
            yield Problem(
                f"{field}.definition", "a definition belongs to one table", "use name instead of match"
            )
        if entry.topic and CODECS[config.source.protocol].shares_topics:
            yield Problem(
                f"{field}.topic",
                f"has no effect with {config.source.protocol}, where each message names its table",
                "remove it, and list the topic under source.topics",
            )
        if entry.name and fold_name(entry.name) in seen:
            yield Problem(f"{field}.name", f"{entry.name} is listed twice", "merge the two entries")
        seen.add(fold_name(entry.name or ""))


def _definitions(config: Config) -> Iterator[Problem]:
    for index, entry in enumerate(config.tables):
        if entry.definition is None or entry.table is None:
            continue
        field, definitions = f"tables[{index}].definition", TableDefinitions()
        try:
            entry.definition.declare_in(definitions, entry.table.schema)
        except ConfigError as error:
            printed = "SHOW CREATE TABLE" if entry.definition.dialect == "mysql" else "pg_dump --schema-only"
            yield Problem(field, error.message, f"use the output of {printed}")
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
            "has no effect, because no table has bad-record: dead-letter",
            "set bad-record: dead-letter under defaults or tables, or remove this setting",
        )
    if config.topics_among([topic]):
        yield Problem(setting, f"{topic} matches source.topics", "name another topic")


def _kafka_clients(config: Config) -> Iterator[Problem]:
    for setting, properties in _clients(config):
        yield from kafka_problems(properties, setting)
        yield from security_problems(properties, setting)
        yield from file_problems(properties, setting)


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
    database_problems,
    _schema_change_topic,
    _offsets_topic,
    _raw_change_event,
    _tables,
    _definitions,
    section_problems,
    route_problems,
    _kafka_clients,
    _dead_letters,
    message_target_problems,
    commit_problems,
    cut_problems,
)


def cross_problems(config: Config) -> list[Problem]:
    """Return all problems of settings that contradict each other, in a config whose fields are valid."""
    problems = [problem for check in _CHECKS for problem in check(config)]
    # Merged settings are only checked if each section is right; otherwise problems would be repeated.
    return problems or list(merged_problems(config))
