"""Checks across settings: those that contradict each other or have no effect.

First those of the source, the target and the routes; then those of the settings of tables, in each section
of the config and merged for one table: what cannot be read, modes and orders that are not possible, and
policies for changes of columns that a pipeline cannot have.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, get_args

from tidesink.codecs.open import CODECS, without_effect
from tidesink.config.fields import ChangeKind, Problem, SchemaChanges, TableMode
from tidesink.config.models import (
    Config,
    Route,
    TableConfig,
    TableDefaults,
    TableOverride,
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
from tidesink.config.targets import DeltaSettings, KafkaSettings
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import ConfigError, SchemaRefusedError
from tidesink.events import SequenceBy
from tidesink.typemap.projection import ALWAYS, laid_out, read_filter
from tidesink.typemap.target_schema import row_keyed, shape_of


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
    for at in sections_of(config):
        if at.own.deletes == "soft" and "soft-deletes" not in config.target.features:
            reason = f"a {config.target.type} target forwards deletes and stores no row to mark"
            yield at.problem("deletes", reason, "use deletes: hard")
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
    if source.lacks_commit_ts and target.protocol.startswith("debezium"):
        yield Problem(
            "target.protocol",
            f"{target.protocol} writes the commit_ts of each row, and the source has none",
            "set enable-tidb-extension = true at the changefeed and under source, or write flat-avro or "
            "canal-json",
        )
    elif source.lacks_commit_ts and target.enable_tidb_extension:
        yield Problem(
            "target.enable-tidb-extension",
            "writes the commit_ts of each row, and the source has none",
            "set enable-tidb-extension = true at the changefeed and under source, or remove it here",
        )


def log_store_problems(config: Config) -> Iterator[Problem]:
    """A Delta lake on S3 whose workers would overwrite each other's commits."""
    target = config.target
    if not isinstance(target, DeltaSettings):
        return
    safe = target.excludes_writers(config.spark.conf_values())
    if target.single_writer and safe:
        reason = "has no effect: the file system or the log store excludes other writers"
        yield Problem("target.single-writer", reason, "remove it")
    elif not (target.single_writer or safe):
        yield Problem(
            "target.path",
            "is on S3, where the log store that Delta uses lets two workers overwrite each other's commits",
            f"set spark.delta.logStore.{target.scheme}.impl: io.delta.storage.S3DynamoDBLogStore under "
            "spark.conf (docs/targets-delta.md), or target.single-writer: true if only one worker, and no "
            "other program, ever writes there",
        )


def route_problems(config: Config) -> Iterator[Problem]:
    """What is wrong with the routes of a config."""
    earlier: dict[str, Route] = {}
    patterns: set[str] = set()
    obstacles = list(_shard_obstacles(config))
    for number, route in enumerate(config.routes):
        found = list(_route(route, earlier.get(route.to)))
        if route.match in patterns:
            found.append(("match", "is an earlier route's: this one is never used", "join the two routes"))
        if route.shard_column is not None:
            found += [("shard-column", *obstacle) for obstacle in obstacles]
        yield from (Problem(f"routes[{number}].{setting}", *rest) for setting, *rest in found)
        patterns.add(route.match)
        earlier.setdefault(route.to, route)


def _route(route: Route, earlier: Route | None) -> Iterator[tuple[str, str, str]]:
    """Setting, reason and remedy; ``earlier``: another route to the same table."""
    for name, text in (("to", route.to), ("shard", route.shard or "")):
        for group in sorted(references(text)):
            if group > route.groups:
                reason = f"names group ${group}, and {route.match!r} has {route.groups}"
                yield name, reason, "put the part of the name into ( )"
    if route.shard_column is None and route.shard is not None:
        yield "shard", "has no effect without shard-column", "give one, or remove it"
    if route.shard_column is None and route.merges:
        yield (
            "shard-column",
            f"several source tables may go to {route.to}, and rows of one key would overwrite each other",
            "name a column for the source table of each row, or put everything that differs between the "
            "names into groups that to names",
        )
    if route.shard_column and route.shard is not None and route.merges and not references(route.shard):
        reason = "is the same for all source tables, so nothing distinguishes their rows"
        yield "shard", reason, "name a group, as in $1, or remove it"
    if earlier and (route.shard_column is None or earlier.shard_column != route.shard_column):
        columns = f"{earlier.shard_column or '(none)'} and {route.shard_column or '(none)'}"
        reason = f"two routes go to {route.to}, with the shard columns {columns}"
        yield "shard-column", reason, "give both the same shard-column"


def _shard_obstacles(config: Config) -> Iterator[tuple[str, str]]:
    """Why tables cannot share a table at the target, and what to do."""
    if "shards" not in config.target.features:
        yield (
            f"several source tables cannot share a table of a target of type {config.target.type}",
            "send each to a table of its own, or use another target",
        )
    if "source" in (config.defaults.sequence_by, *(entry.sequence_by for entry in config.tables)):
        yield (
            "tables ordered by the source cannot share a table in this version",
            "use sequence_by: kafka, or send each to a table of its own",
        )
    modes = {config.defaults.mode, *(entry.mode for entry in config.tables)} - {None, "upsert"}
    for mode in sorted(map(str, modes)):
        yield (
            f"tables in mode {mode} cannot share a table in this version",
            "use mode: upsert, or send each to a table of its own",
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


def _kafka_clients(config: Config) -> Iterator[Problem]:
    for place, properties in _clients(config):
        yield from kafka_problems(properties, place)
        yield from security_problems(properties, place)
        yield from file_problems(properties, place)


def _clients(config: Config) -> Iterator[tuple[str, KafkaProperties]]:
    yield "source.kafka", config.source.kafka
    if isinstance(config.target, KafkaSettings):
        yield "target.kafka", config.target.kafka


class Section(NamedTuple):
    """A section with settings of tables, its place in the config, and the mode and order that hold there."""

    config: Config
    place: str
    own: TableDefaults | TableOverride
    mode: TableMode
    sequence_by: SequenceBy

    def problem(self, setting: str, reason: str, remedy: str) -> Problem:
        """What is wrong with one of its settings."""
        return Problem(f"{self.place}.{setting}", reason, remedy)

    def gives(self, setting: str) -> bool:
        """Whether the file has this setting here."""
        return setting in self.own.model_fields_set


def sections_of(config: Config) -> Iterator[Section]:
    """The defaults, then the sections of ``tables``; a pattern has the mode that it sets for its tables."""
    defaults = config.defaults
    yield Section(config, "defaults", defaults, defaults.mode, defaults.sequence_by)
    for number, entry in enumerate(config.tables):
        if entry.table is not None:
            merged = config.table_config(entry.table)
            mode, order = merged.mode, merged.sequence_by
        else:
            mode, order = entry.mode or defaults.mode, entry.sequence_by or defaults.sequence_by
        yield Section(config, f"tables[{number}]", entry, mode, order)


def section_problems(config: Config) -> Iterator[Problem]:
    """What is wrong in each section of settings of tables."""
    checks = (_order, _history, _mode, _columns, _metadata, _null_updates, _schema_changes)
    found = [problem for at in sections_of(config) for check in checks for problem in check(at)]
    yield from found
    if not found:
        yield from _columns_defined(config)


_KAFKA: Final = (
    "use sequence_by: kafka, which is right where a key stays in one partition (TiCDC dispatchers table and "
    "index-value, and Debezium's default)"
)


def _order(at: Section) -> Iterator[Problem]:
    """Why a section cannot be ordered by the source, and what that order alone needs."""
    config, source = at.config, at.config.source
    if at.own.sequence_by == "source":
        if "source-order" not in config.target.features:
            reason = f"a target of type {config.target.type} does not store the positions of its rows"
            yield at.problem("sequence_by", reason, _KAFKA)
        # TiCDC's messages have a commit_ts; plan and the worker report others, which have none.
        if source.debezium.unwrapped:
            reason = "rows flattened by ExtractNewRecordState have no source position"
            yield at.problem("sequence_by", reason, _KAFKA)
        elif source.lacks_commit_ts:
            yield at.problem(
                "sequence_by",
                "events have a position only where the changefeed has enable-tidb-extension=true",
                f"set source.enable-tidb-extension: true if it has, or {_KAFKA}",
            )
    tables = config.tables if at.own is config.defaults else ()
    orders = {at.sequence_by, *(entry.sequence_by for entry in tables)}
    if at.gives("tombstone_retention") and "source" not in orders:
        yield at.problem(
            "tombstone-retention",
            "has no effect under sequence_by: kafka, where deleted rows are removed at once",
            "set sequence_by: source, or remove it",
        )


# Settings that order the rows of one key, and have no effect where each change is a row of its own:
# the field, its name in the file, and its default.
_OF_KEYS: Final = (
    ("sequence_by", "sequence_by", "kafka"),
    ("deletes", "deletes", "hard"),
    ("tombstone_retention", "tombstone-retention", None),
)


def _mode(at: Section) -> Iterator[Problem]:
    """A mode that the target does not have, and settings without effect in mode append."""
    target = at.config.target
    if at.own.mode not in (None, "upsert") and at.own.mode not in target.features:
        yield at.problem(
            "mode",
            f"a target of type {target.type} holds no table in mode {at.own.mode}",
            "use mode: upsert, or another target",
        )
    for field, name, default in _OF_KEYS if at.mode == "append" else ():
        if at.gives(field) and getattr(at.own, field) not in (default, None):
            yield at.problem(name, *_without_keys(name))


_ENDS_A_VERSION: Final = (
    "has no effect in a history, where a delete ends a version and takes nothing away",
    "remove it",
)


def _history(at: Section) -> Iterator[Problem]:
    """What prevents a history, and settings without effect in one or without one."""
    config, source = at.config, at.config.source
    if at.own.mode == "history" and source.protocol.startswith("debezium"):
        yield at.problem(
            "mode",
            "a history is ordered by commit_ts, and positions of Debezium's sources are not compared in this "
            "version",
            "use mode: upsert",
        )
    elif at.own.mode == "history" and source.lacks_commit_ts:
        yield at.problem(
            "mode",
            "a history needs a commit_ts in every event, which the changefeed writes only with "
            "enable-tidb-extension=true",
            "set source.enable-tidb-extension: true if it does, or use mode: upsert, which needs no "
            "commit_ts",
        )
    if at.mode == "history" and at.gives("sequence_by") and at.own.sequence_by == "kafka":
        yield at.problem(
            "sequence_by",
            "a history is ordered by commit_ts, whatever order its events come in",
            "remove it, or set sequence_by: source",
        )
    if at.mode == "history" and at.gives("deletes"):
        yield at.problem("deletes", *_ENDS_A_VERSION)
    names = at.own.history
    if names is None or not at.gives("history"):
        return
    if "history" not in {config.defaults.mode, *(entry.mode for entry in config.tables)}:
        yield at.problem("history", "no table has mode: history", "set it, or remove this section")
    if _twice((names.valid_from, names.valid_to, names.current)):
        yield at.problem("history", "two columns have one name", "give each a name of its own")


# What tidesink's own columns begin with; held to them by a test.
OWN_PREFIX: Final = "_tidesink_"


def _columns(at: Section) -> Iterator[Problem]:
    """Lists, names and the filter, as far as the config alone shows what is wrong with them."""
    own, renames = at.own, at.own.rename or {}
    if own.columns is not None and own.except_column_list is not None:
        yield at.problem("except_column_list", "excludes columns beside a list of columns", "keep one")
    for name, listed in (("columns", own.columns), ("except_column_list", own.except_column_list)):
        for twice in _twice(listed or ()):
            yield at.problem(name, f"{twice} is listed twice", "remove one")
    for twice in _twice(renames):
        yield at.problem("rename", f"{twice} is renamed twice", "keep one: names match in any case")
    yield from _new_names(at, "rename", renames.values(), "{source: target}", also=renames)
    for new in sorted({new for new in renames.values() if new.lower().startswith(OWN_PREFIX)}):
        reason = f"{new} begins with {OWN_PREFIX}, the prefix of tidesink's own columns"
        yield at.problem("rename", reason, "give it another name")
    omitted = {name.lower() for name in own.except_column_list or ()}
    chosen = {name.lower() for name in own.columns or renames}
    for name in renames:
        if name.lower() in omitted or name.lower() not in chosen:
            yield at.problem("rename", f"has no effect on {name}, which is excluded", "remove it")
    try:
        read_filter(own.filter or ALWAYS)
    except ConfigError as error:
        remedy = "give one condition in Spark's SQL on a row's columns"
        yield at.problem("filter", error.message, remedy)
    yield from _clashes(at.place, at.mode, at.sequence_by, own)


def _new_names(
    at: Section, setting: str, names: Iterable[str], form: str, *, also: Iterable[str] = ()
) -> Iterator[Problem]:
    """Names of new columns that are not distinct, or empty; ``also``: other names that are not empty."""
    names = list(names)
    for twice in _twice(names):
        yield at.problem(setting, f"two columns would be called {twice}", "give one another name")
    if not all(name.strip() for name in (*names, *also)):
        yield at.problem(setting, "has an empty name", f"give {form}")


def _metadata(at: Section) -> Iterator[Problem]:
    names, source = at.own.metadata or {}, at.config.source
    yield from _new_names(at, "metadata", names.values(), "{kind: column}")
    for kind in sorted({"commit_ts", "position"} & names.keys()) if source.lacks_commit_ts else ():
        yield at.problem(
            "metadata",
            f"{kind} is known from events only where the changefeed has enable-tidb-extension=true",
            f"set source.enable-tidb-extension: true if it has, or remove {kind}",
        )


def _null_updates(at: Section) -> Iterator[Problem]:
    if at.own.ignore_null_updates and "rows" not in at.config.target.features:
        reason = f"a {at.config.target.type} target stores no values that could stay"
        yield at.problem("ignore_null_updates", reason, "remove it")
    if at.own.ignore_null_updates and CODECS[at.config.source.protocol].leaves_out:
        yield at.problem(
            "ignore_null_updates",
            f"{at.config.source.protocol} can leave a value out, which is not the same as NULL, and the two "
            "are not identified in this version",
            "remove it",
        )


def _twice(names: Iterable[str]) -> list[str]:
    return [name for name, times in Counter(name.lower() for name in names).items() if times > 1]


def _columns_defined(config: Config) -> Iterator[Problem]:
    """Columns that a table defined in the config does not have."""
    for number, entry in enumerate(config.tables):
        if entry.definition is None or entry.table is None:
            continue
        definitions, settings = TableDefinitions(), config.table_config(entry.table)
        if settings.layout.plain:
            continue
        try:
            entry.definition.declare_in(definitions, entry.table.schema)
            schema = definitions.get(entry.table)
            if schema is not None:
                shape = shape_of(schema, keys=settings.keys)
                by_row_key = not shape.keys and config.source.codec_options().sends_row_keys
                laid_out(settings.layout, row_keyed(shape) if by_row_key else shape, own=())
        except (ConfigError, SchemaRefusedError) as error:
            yield Problem(f"tables[{number}]", error.message, "correct the name, or the definition")


def merged_problems(config: Config) -> Iterator[Problem]:
    """What contradicts each other in the merged settings of the tables that have a name in the config."""
    for number, entry in enumerate(config.tables):
        if entry.table is not None:
            yield from _merged(config.table_config(entry.table), f"tables[{number}]")


def check_merged(settings: TableConfig) -> None:
    """Check a table that only the run knows as ``tidesink validate`` checks a named one.

    Raises:
        ConfigError: its merged settings contradict each other.
    """
    for found in _merged(settings, ""):
        setting = found.field.lstrip(".")
        raise ConfigError(
            f"{setting} of {settings.table}: {found.reason}; {found.remedy}", table=str(settings.table)
        )


def _merged(settings: TableConfig, place: str) -> Iterator[Problem]:
    yield from _clashes(place, settings.mode, settings.sequence_by, settings)
    if settings.mode == "append" and settings.sequence_by == "source":
        yield Problem(f"{place}.sequence_by", *_without_keys("sequence_by"))
    if settings.mode == "append" and settings.deletes == "soft":
        yield Problem(f"{place}.deletes", *_without_keys("deletes"))
    if settings.mode == "history" and settings.deletes == "soft":
        yield Problem(f"{place}.deletes", *_ENDS_A_VERSION)


def _clashes(
    place: str, mode: TableMode, order: SequenceBy, own: TableDefaults | TableOverride | TableConfig
) -> Iterator[Problem]:
    """Settings of columns that the mode or the order forbids."""
    if mode == "append" and own.filter is not None and own.filter.strip().lower() != ALWAYS:
        yield Problem(
            f"{place}.filter",
            "mode: append stores every change: a row that starts or stops to satisfy a filter would be "
            "another change than the source's",
            "remove it, or set filter: 'true' for this table where another section sets it, and make a view "
            "of the log that has the filter",
        )
    if own.ignore_null_updates and mode != "upsert":
        yield Problem(f"{place}.ignore_null_updates", f"mode: {mode} keeps each row as it was", "remove it")
    if own.ignore_null_updates and order == "source":
        yield Problem(
            f"{place}.ignore_null_updates",
            "under sequence_by: source a change may come late, and which value it left is unknown",
            "use sequence_by: kafka, or remove it",
        )


def _without_keys(name: str) -> tuple[str, str]:
    """Why a setting for rows of one key has no effect in a log, and what to do."""
    return (
        "has no effect in mode append, where every change is a row of its own",
        f"remove it, or use mode: upsert for the tables that need {name}",
    )


# Kinds that only DDL reports with certainty: a registry can hold an older schema as its newest.
REPORTED_KINDS: Final[tuple[ChangeKind, ...]] = ("drop", "rename", "narrow")


def _schema_changes(at: Section) -> Iterator[Problem]:
    """The policies that have no effect on a pipeline, or that its target cannot follow."""
    protocol, target = at.config.source.protocol, at.config.target
    if _is_all_logs(at):
        reason = (
            "has no effect in mode append: logged rows stay as they were, and a renamed column is a new one"
        )
    elif "rows" not in target.features:
        reason = f"has no effect: a target of type {target.type} forwards rows with the columns they have"
    elif not CODECS[protocol].tells_ddl:
        reason = f"has no effect: {protocol} does not report such a change with certainty"
    else:
        return
    given = at.own.schema_changes.model_fields_set if at.own.schema_changes else ()
    for kind in (kind for kind in REPORTED_KINDS if kind in given):
        yield at.problem(f"schema-changes.{kind}", reason, "remove it")


def _is_all_logs(at: Section) -> bool:
    """Whether only logs can inherit a section's policy, and no table of another mode."""
    named = isinstance(at.own, TableOverride) and at.own.name is not None
    others = () if named else at.config.tables
    return at.mode == "append" and all(entry.mode in (None, "append") for entry in others)


def shown_policies(changes: SchemaChanges, config: Config, *, logs: bool = False) -> str:
    """The policies that have an effect on a pipeline, as one line; ``logs``: of a table in mode append."""
    passing = logs or "rows" not in config.target.features
    reported = CODECS[config.source.protocol].tells_ddl and not passing
    kinds = [kind for kind in get_args(ChangeKind) if reported or kind not in REPORTED_KINDS]
    return ", ".join(f"{kind} {changes.policy(kind)}" for kind in kinds)


def unreported_changes(config: Config) -> Iterator[str]:
    """The changes of tables that the source does not report, or the target cannot do."""
    if "rows" not in config.target.features:
        yield (
            f"a target of type {config.target.type} forwards rows with the columns they have: columns "
            "that are dropped or renamed at the source are so in its messages"
        )
    elif not CODECS[config.source.protocol].tells_ddl:
        yield (
            f"{config.source.protocol} does not report with certainty that a column was dropped, renamed or "
            "narrowed: the old one stays at the target"
        )


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
    log_store_problems,
)


def cross_problems(config: Config) -> list[Problem]:
    """Every contradiction in a config whose fields are right one by one."""
    found = [problem for check in _CHECKS for problem in check(config)]
    # Where a section is wrong alone, the check of all sections together would only repeat it.
    return found or list(merged_problems(config))
