"""Checks of the settings of tables: ``defaults``, the entries of ``tables``, and a table's merged settings.

The checks find invalid settings, modes and orders that the source or target does not support, and policies
for schema changes that have no effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, get_args

from tidesink.codecs.open import CODECS
from tidesink.config.fields import ChangeKind, Problem, SchemaChanges, TableMode
from tidesink.config.models import Config, TableConfig, TableDefaults, TableOverride
from tidesink.config.source import SourceSettings
from tidesink.ddl.catalog import TableDefinitions
from tidesink.ddl.row_changes import RowChangeKind
from tidesink.errors import ConfigError, SchemaRefusedError
from tidesink.events import NameFold, SequenceBy, TableId, fold_name
from tidesink.typemap.projection import ALWAYS, project, read_filter
from tidesink.typemap.target_schema import row_keyed, shape_of


class Section(NamedTuple):
    """``defaults`` or an entry of ``tables``, with its place in the config, its mode and ``sequence_by``."""

    config: Config
    place: str
    own: TableDefaults | TableOverride
    mode: TableMode
    sequence_by: SequenceBy

    def problem(self, setting: str, reason: str, remedy: str) -> Problem:
        """Return a problem of one of the section's settings."""
        return Problem(f"{self.place}.{setting}", reason, remedy)

    def fold(self, name: str) -> str:
        """Return a source column's name in the form in which names are compared.

        Usually this is the name in lower case. If a table may have names that only differ in case, it is the
        exact name; ``projection.project`` then compares the names with the table's columns.
        """
        return name if CODECS[self.config.source.protocol].connectors else fold_name(name)

    def gives(self, setting: str) -> bool:
        """Returns True if this section of the config file contains the setting."""
        return setting in self.own.model_fields_set


def sections_of(config: Config) -> Iterator[Section]:
    """Yield ``defaults``, then the entries of ``tables``, each with its ``mode`` and ``sequence_by``."""
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
    """Yield the problems in ``defaults`` and in each entry of ``tables``."""
    checks = (_order, _history, _mode, _snapshot, _columns, _metadata, _null_updates, _schema_changes)
    problems = [problem for section in sections_of(config) for check in checks for problem in check(section)]
    yield from problems
    if not problems:
        yield from _columns_defined(config)


_KAFKA: Final = (
    "use sequence_by: kafka, which is right if all changes of a key are in one partition (TiCDC's "
    "dispatchers table and index-value, and Debezium's default)"
)


def _order(section: Section) -> Iterator[Problem]:
    """Yield problems of ``sequence_by: source``, and of settings that only have an effect with it."""
    config, source = section.config, section.config.source
    if section.own.sequence_by == "source":
        if "source-order" not in config.target.features:
            reason = (
                f"a target of type {config.target.type} does not store the position of a row's last change"
            )
            yield section.problem("sequence_by", reason, _KAFKA)
        # TiCDC's messages have a commit_ts. For other messages, plan and the worker report the problem.
        if source.debezium.unwrapped:
            reason = "rows flattened by ExtractNewRecordState have no source position"
            yield section.problem("sequence_by", reason, _KAFKA)
        elif source.lacks_commit_ts:
            yield section.problem(
                "sequence_by",
                "events have a commit_ts only if the changefeed has enable-tidb-extension=true",
                f"set source.enable-tidb-extension: true if the changefeed has it, or {_KAFKA}",
            )
    tables = config.tables if section.own is config.defaults else ()
    orders = {section.sequence_by, *(entry.sequence_by for entry in tables)}
    if section.gives("tombstone_retention") and "source" not in orders:
        yield section.problem(
            "tombstone-retention",
            "has no effect with sequence_by: kafka, which removes deleted rows at once",
            "set sequence_by: source, or remove it",
        )


# Settings for the changes of one key, which have no effect in mode append: the field, its name in the file,
# and its default.
_OF_KEYS: Final = (
    ("sequence_by", "sequence_by", "kafka"),
    ("deletes", "deletes", "hard"),
    ("tombstone_retention", "tombstone-retention", None),
)


def _mode(section: Section) -> Iterator[Problem]:
    """Yield problems of a mode that the target does not support, and of settings unused by mode append."""
    target = section.config.target
    if section.own.mode not in (None, "upsert") and section.own.mode not in target.features:
        yield section.problem(
            "mode",
            f"a target of type {target.type} does not support mode {section.own.mode}",
            "use mode: upsert, or another target",
        )
    for field, name, default in _OF_KEYS if section.mode == "append" else ():
        if section.gives(field) and getattr(section.own, field) not in (default, None):
            yield section.problem(name, *_without_keys(name))


def _snapshot(section: Section) -> Iterator[Problem]:
    """Yield problems of ``snapshot``: reasons why the tables cannot have a snapshot."""
    obstacle = snapshot_obstacle(section.config)
    if section.own.snapshot not in (None, "never") and obstacle is not None:
        yield section.problem(
            "snapshot", obstacle, "remove it, or set snapshot: never for the tables that cannot have one"
        )


def snapshot_obstacle(config: Config) -> str | None:
    """Return why the tables of a pipeline cannot have a snapshot, or None if they can."""
    if "rows" not in config.target.features:
        return (
            f"a target of type {config.target.type} only receives changes, and rows of a snapshot are not "
            "changes"
        )
    return None


def needs_positions(config: Config, settings: TableConfig) -> bool:
    """Return True if a table's snapshot needs the commit_ts of each row, which only TiDB provides."""
    return settings.mode == "history" or settings.sequence_by == "source" or config.cuts is not None


def may_load_quiet_tables(config: Config) -> bool:
    """Return True if the pipeline can load tables from the source database that have no records in Kafka."""
    return config.source.protocol == "canal-json" and config.source.database is not None


def topic_without_records(config: Config, table: TableId) -> str | None:
    """Return the topic that the topic rules name for a table without records in Kafka.

    Returns None if the rules name several topics, or if the pipeline cannot load tables without records.
    """
    if not may_load_quiet_tables(config):
        return None
    topics = {rule.topic_for(table) for rule in config.source.rules}
    return topics.pop() if len(topics) == 1 else None


def loads_quiet_tables(config: Config) -> bool:
    """Return True if the config lets workers load source tables without records in Kafka."""
    return may_load_quiet_tables(config) and bool(_loading(config))


def quiet_tables(config: Config, stored: Iterable[TableId]) -> Iterator[tuple[str, TableId]]:
    """Yield the source tables that are loaded even without records in Kafka, with their topics.

    These are only tables that an entry of ``tables`` names or matches, because the changefeed may not send
    all tables of the database. ``stored``: the tables in the source database.
    """
    entries = _loading(config)
    for table in stored:
        if not any(entry.covers(table) for entry in entries):
            continue
        topic = topic_without_records(config, table)
        if topic is not None and config.table_config(table).snapshot == "initial":
            yield topic, table


def _loading(config: Config) -> list[TableOverride]:
    default = config.defaults.snapshot
    return [entry for entry in config.tables if (entry.snapshot or default) == "initial"]


_ENDS_A_VERSION: Final = (
    "has no effect in mode history, where a delete ends a version and removes no row",
    "remove it",
)


def _history(section: Section) -> Iterator[Problem]:
    """Yield problems of ``mode: history``, of settings without effect in it, and of its column names."""
    config, source = section.config, section.config.source
    if section.own.mode == "history" and source.protocol.startswith("debezium"):
        yield section.problem(
            "mode",
            "mode history orders changes by commit_ts, which this version does not support for Debezium's "
            "protocols",
            "use mode: upsert",
        )
    elif section.own.mode == "history" and source.lacks_commit_ts:
        yield section.problem(
            "mode",
            "mode history needs a commit_ts in every event, which the changefeed only writes with "
            "enable-tidb-extension=true",
            "set source.enable-tidb-extension: true if the changefeed has it, or use mode: upsert, which "
            "needs no commit_ts",
        )
    if section.mode == "history" and section.gives("sequence_by") and section.own.sequence_by == "kafka":
        yield section.problem(
            "sequence_by",
            "mode history always orders changes by commit_ts",
            "remove it, or set sequence_by: source",
        )
    if section.mode == "history" and section.gives("deletes"):
        yield section.problem("deletes", *_ENDS_A_VERSION)
    names = section.own.history
    if names is None or not section.gives("history"):
        return
    if "history" not in {config.defaults.mode, *(entry.mode for entry in config.tables)}:
        yield section.problem(
            "history", "no table has mode: history", "set mode: history, or remove this section"
        )
    if _twice((names.valid_from, names.valid_to, names.current)):
        yield section.problem("history", "two columns have the same name", "give each column its own name")


# All of tidesink's own columns begin with this prefix; a test checks this.
OWN_PREFIX: Final = "_tidesink_"


def _columns(section: Section) -> Iterator[Problem]:
    """Yield problems of column lists, new names and the filter that do not depend on the table's columns."""
    own, renames = section.own, section.own.rename or {}
    if own.columns is not None and own.except_column_list is not None:
        yield section.problem(
            "except_column_list", "cannot be used together with columns", "remove one of the two"
        )
    for name, listed in (("columns", own.columns), ("except_column_list", own.except_column_list)):
        for twice in _twice(listed or (), section.fold):
            yield section.problem(name, f"{twice} is listed twice", "remove one")
    for twice in _twice(renames, section.fold):
        yield section.problem("rename", f"{twice} is renamed twice (case is ignored)", "remove one of them")
    yield from _new_names(section, "rename", renames.values(), "{source: target}", also=renames)
    for new in sorted({new for new in renames.values() if fold_name(new).startswith(OWN_PREFIX)}):
        reason = f"{new} begins with {OWN_PREFIX}, the prefix of tidesink's own columns"
        yield section.problem("rename", reason, "give it another name")
    omitted = {section.fold(name) for name in own.except_column_list or ()}
    chosen = {fold_name(name) for name in own.columns or renames}
    for name in renames:
        if section.fold(name) in omitted or fold_name(name) not in chosen:
            yield section.problem("rename", f"has no effect on {name}, which is excluded", "remove it")
    try:
        read_filter(own.filter or ALWAYS)
    except ConfigError as error:
        remedy = "write a condition in Spark SQL on the columns of a row"
        yield section.problem("filter", error.message, remedy)
    yield from _clashes(section.place, section.mode, section.sequence_by, own)


def _new_names(
    section: Section, setting: str, names: Iterable[str], form: str, *, also: Iterable[str] = ()
) -> Iterator[Problem]:
    """Yield problems of new column names that are repeated or empty.

    ``form``: form of the setting, for the remedy. ``also``: other names that must not be empty.
    """
    names = list(names)
    for twice in _twice(names):
        yield section.problem(setting, f"two columns would be called {twice}", "rename one of them")
    if not all(name.strip() for name in (*names, *also)):
        yield section.problem(setting, "has an empty name", f"give {form}")


def _metadata(section: Section) -> Iterator[Problem]:
    names, source = section.own.metadata or {}, section.config.source
    yield from _new_names(section, "metadata", names.values(), "{kind: column}")
    for kind in sorted({"commit_ts", "position"} & names.keys()) if source.lacks_commit_ts else ():
        yield section.problem(
            "metadata",
            f"events contain {kind} only if the changefeed has enable-tidb-extension=true",
            f"set source.enable-tidb-extension: true if the changefeed has it, or remove {kind}",
        )


def _null_updates(section: Section) -> Iterator[Problem]:
    if section.own.ignore_null_updates and "rows" not in section.config.target.features:
        reason = f"has no effect, because a {section.config.target.type} target does not store rows"
        yield section.problem("ignore_null_updates", reason, "remove it")
    if section.own.ignore_null_updates and CODECS[section.config.source.protocol].leaves_out:
        yield section.problem(
            "ignore_null_updates",
            f"records of {section.config.source.protocol} can leave out an unchanged value, and this version "
            "cannot distinguish a missing value from NULL",
            "remove it",
        )


def _twice(names: Iterable[str], fold: NameFold = fold_name) -> list[str]:
    return [name for name, times in Counter(fold(name) for name in names).items() if times > 1]


def _columns_defined(config: Config) -> Iterator[Problem]:
    """Yield problems of settings that name columns which the config's definition of the table lacks."""
    for number, entry in enumerate(config.tables):
        if entry.definition is None or entry.table is None:
            continue
        definitions, settings = TableDefinitions(), config.table_config(entry.table)
        if settings.projection.plain:
            continue
        try:
            entry.definition.declare_in(definitions, entry.table.schema)
            schema = definitions.get(entry.table)
            if schema is not None:
                shape = shape_of(schema, keys=settings.keys)
                by_row_key = not shape.keys and config.source.sends_row_keys
                project(settings.projection, row_keyed(shape) if by_row_key else shape, own=())
        except (ConfigError, SchemaRefusedError) as error:
            yield Problem(f"tables[{number}]", error.message, "correct the name or the definition")


def merged_problems(config: Config) -> Iterator[Problem]:
    """Yield contradictions in the merged settings of the tables that the config names."""
    for number, entry in enumerate(config.tables):
        if entry.table is not None:
            yield from _merged(config.table_config(entry.table), f"tables[{number}]")


def check_merged(settings: TableConfig) -> None:
    """Check the merged settings of a table that the config does not name.

    Raises:
        ConfigError: the merged settings contradict each other.
    """
    for problem in _merged(settings, ""):
        setting = problem.field.lstrip(".")
        raise ConfigError(
            f"{setting} of {settings.table}: {problem.reason}; {problem.remedy}", table=str(settings.table)
        )


def _merged(settings: TableConfig, prefix: str) -> Iterator[Problem]:
    yield from _clashes(prefix, settings.mode, settings.sequence_by, settings)
    if settings.mode == "append" and settings.sequence_by == "source":
        yield Problem(f"{prefix}.sequence_by", *_without_keys("sequence_by"))
    if settings.mode == "append" and settings.deletes == "soft":
        yield Problem(f"{prefix}.deletes", *_without_keys("deletes"))
    if settings.mode == "history" and settings.deletes == "soft":
        yield Problem(f"{prefix}.deletes", *_ENDS_A_VERSION)


def _clashes(
    prefix: str, mode: TableMode, order: SequenceBy, own: TableDefaults | TableOverride | TableConfig
) -> Iterator[Problem]:
    """Yield problems of ``filter`` and ``ignore_null_updates`` if they contradict a table's mode or order."""
    if mode == "append" and own.filter is not None and own.filter.strip().lower() != ALWAYS:
        yield Problem(
            f"{prefix}.filter",
            "mode append stores changes as they are, but a filter would turn an update into an insert or a "
            "delete when a row begins or ceases to satisfy it",
            "remove it, and create a view of the table with the filter; if another section sets the filter, "
            "set filter: 'true' for this table",
        )
    if own.ignore_null_updates and mode != "upsert":
        yield Problem(f"{prefix}.ignore_null_updates", f"mode {mode} stores each row unchanged", "remove it")
    if own.ignore_null_updates and order == "source":
        yield Problem(
            f"{prefix}.ignore_null_updates",
            "with sequence_by: source a change may arrive late, and then it is unknown which value to keep",
            "use sequence_by: kafka, or remove it",
        )


def _without_keys(name: str) -> tuple[str, str]:
    """Return why a setting that compares changes of one key has no effect in mode append, and the remedy."""
    return (
        "has no effect in mode append, where every change becomes a row",
        f"remove it, or use mode: upsert for the tables that need {name}",
    )


# Kinds of schema changes that only DDL shows with certainty, since the newest schema in a registry may be an
# older one. No topic of a Debezium connector shows these kinds.
_UNREPORTED: Final[tuple[ChangeKind, ...]] = ("drop", "narrow")
REPORTED_KINDS: Final[tuple[ChangeKind, ...]] = ("drop", "rename", "narrow", *get_args(RowChangeKind))


def unreported_kinds(source: SourceSettings) -> tuple[ChangeKind, ...]:
    """Return the kinds of schema changes that no topic of the pipeline shows with certainty."""
    if CODECS[source.protocol].tells_ddl:
        return ()
    return REPORTED_KINDS if source.debezium.schema_change_topic is None else _UNREPORTED


def _schema_changes(section: Section) -> Iterator[Problem]:
    """Yield problems of schema change policies that have no effect or that the target does not support."""
    source, target, kinds = section.config.source, section.config.target, REPORTED_KINDS
    if _is_all_logs(section):
        reason = (
            "has no effect in mode append: stored rows never change, and a renamed column is a new column"
        )
    elif "rows" not in target.features:
        reason = f"has no effect: a {target.type} target sends each row with the columns that the row has"
    else:
        kinds = unreported_kinds(source)
        reason = f"has no effect: {source.protocol} does not report such a change with certainty"
    policies = section.own.schema_changes
    given = () if policies is None else policies.model_fields_set
    for kind in (kind for kind in REPORTED_KINDS if kind.replace("-", "_") in given):
        if kind in kinds:
            remedy = "remove it"
            if kind not in _UNREPORTED and source.protocol.startswith("debezium"):
                remedy = _BY_TOPIC
            yield section.problem(f"schema-changes.{kind}", reason, remedy)
        elif (
            policies is not None
            and policies.policy(kind) == "apply"
            and (obstacle := ddl_obstacle(section.config))
        ):
            yield section.problem(f"schema-changes.{kind}", *obstacle)


_BY_TOPIC: Final = (
    "remove it, or set source.debezium.schema-change-topic if a connector for MySQL or MariaDB writes one"
)


def ddl_obstacle(config: Config) -> tuple[str, str] | None:
    """Return why DDL of a connector's schema-change topic cannot be applied, with the remedy, or None."""
    if config.source.debezium.schema_change_topic is None:
        return None
    if config.source.database is None:
        return (
            "a connector's DDL has no order relative to its rows, so applying it needs a resync, which reads "
            "from source.database",
            "set source.database, or use the policy pause or ignore",
        )
    if config.cuts is not None:
        return (
            "applying a connector's DDL needs a resync, which reads rows that are newer than the cuts",
            "remove cuts, or use the policy pause or ignore",
        )
    return None


def _is_all_logs(section: Section) -> bool:
    """Return True if all tables that use the policies of a section have ``mode: append``."""
    named = isinstance(section.own, TableOverride) and section.own.name is not None
    others = () if named else section.config.tables
    return section.mode == "append" and all(entry.mode in (None, "append") for entry in others)


def shown_policies(changes: SchemaChanges, config: Config, *, logs: bool = False) -> str:
    """Return a line with the schema change policies that have an effect. ``logs``: True for mode append."""
    passing = logs or "rows" not in config.target.features
    unknown = REPORTED_KINDS if passing else unreported_kinds(config.source)
    kinds = [kind for kind in get_args(ChangeKind) if kind not in unknown]
    return ", ".join(f"{kind} {changes.policy(kind)}" for kind in kinds)


def unreported_changes(config: Config) -> Iterator[str]:
    """Yield warnings about schema changes that the source does not report or the target does not support."""
    if "rows" not in config.target.features:
        yield (
            f"a target of type {config.target.type} sends each row with the columns that the row has. "
            "Columns that are dropped or renamed at the source are dropped or renamed in the messages, and "
            "no message can express that a table was emptied"
        )
    elif unknown := unreported_kinds(config.source):
        what = "dropped, renamed or narrowed, or a table dropped or renamed"
        yield (
            f"{config.source.protocol} does not report with certainty that a column was "
            f"{what if 'rename' in unknown else 'dropped or narrowed'}, so the target then stays unchanged"
        )
