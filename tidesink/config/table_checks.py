"""Checks of the settings of tables, in each section of the config and merged for one table.

What cannot be read, modes and orders that are not possible, and policies for changes of columns that a
pipeline cannot have.
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
from tidesink.typemap.projection import ALWAYS, laid_out, read_filter
from tidesink.typemap.target_schema import row_keyed, shape_of


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

    def fold(self, name: str) -> str:
        """The name of a source's column for a comparison: exact if tables may have names that differ in case.

        What such names mean in a table is checked with its columns (``projection.laid_out``).
        """
        return name if CODECS[self.config.source.protocol].connectors else fold_name(name)

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
    checks = (_order, _history, _mode, _snapshot, _columns, _metadata, _null_updates, _schema_changes)
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


def _snapshot(at: Section) -> Iterator[Problem]:
    """What a snapshot cannot be of in this version."""
    obstacle = snapshot_obstacle(at.config)
    if at.own.snapshot not in (None, "never") and obstacle is not None:
        yield at.problem(
            "snapshot", obstacle, "remove it, or set snapshot: never for the tables it cannot be of"
        )


def snapshot_obstacle(config: Config) -> str | None:
    """Why a table cannot have a snapshot; None where it can."""
    if "rows" not in config.target.features:
        return f"a target of type {config.target.type} forwards changes, and rows of a snapshot are none"
    return None


def needs_positions(config: Config, settings: TableConfig) -> bool:
    """Whether a snapshot of a table needs the database's positions (a commit_ts), which TiDB alone has."""
    return settings.mode == "history" or settings.sequence_by == "source" or config.cuts is not None


def may_load_quiet_tables(config: Config) -> bool:
    """Whether a table that no record names can be loaded, by its definition in the database."""
    return config.source.protocol == "canal-json" and config.source.database is not None


def topic_without_records(config: Config, table: TableId) -> str | None:
    """The topic of a table that no record may name: the only one that it can have, by the topic rules.

    None where nothing but records says which it is, or such a table is not loaded.
    """
    if not may_load_quiet_tables(config):
        return None
    topics = {rule.topic_for(table) for rule in config.source.rules}
    return topics.pop() if len(topics) == 1 else None


def loads_quiet_tables(config: Config) -> bool:
    """Whether tables are loaded that no record may name, so that the database is asked for its tables."""
    return may_load_quiet_tables(config) and bool(_loading(config))


def quiet_tables(config: Config, stored: Iterable[TableId]) -> Iterator[tuple[str, TableId]]:
    """Of the source's tables those that are loaded, whether a record names them or not, with their topics.

    ``defaults`` alone are no list of tables: a changefeed need not send all that the database has.
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
        for twice in _twice(listed or (), at.fold):
            yield at.problem(name, f"{twice} is listed twice", "remove one")
    for twice in _twice(renames, at.fold):
        yield at.problem("rename", f"{twice} is renamed twice", "keep one: names match in any case")
    yield from _new_names(at, "rename", renames.values(), "{source: target}", also=renames)
    for new in sorted({new for new in renames.values() if fold_name(new).startswith(OWN_PREFIX)}):
        reason = f"{new} begins with {OWN_PREFIX}, the prefix of tidesink's own columns"
        yield at.problem("rename", reason, "give it another name")
    omitted = {at.fold(name) for name in own.except_column_list or ()}
    chosen = {fold_name(name) for name in own.columns or renames}
    for name in renames:
        if at.fold(name) in omitted or fold_name(name) not in chosen:
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


def _twice(names: Iterable[str], fold: NameFold = fold_name) -> list[str]:
    return [name for name, times in Counter(fold(name) for name in names).items() if times > 1]


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
# Of these no topic of a Debezium connector tells.
_UNTOLD: Final[tuple[ChangeKind, ...]] = ("drop", "narrow")
REPORTED_KINDS: Final[tuple[ChangeKind, ...]] = ("drop", "rename", "narrow", *get_args(RowChangeKind))


def unreported_kinds(source: SourceSettings) -> tuple[ChangeKind, ...]:
    """The kinds of changes of which no topic of the pipeline tells with certainty."""
    if CODECS[source.protocol].tells_ddl:
        return ()
    return REPORTED_KINDS if source.debezium.schema_change_topic is None else _UNTOLD


def _schema_changes(at: Section) -> Iterator[Problem]:
    """The policies that have no effect on a pipeline, or that its target cannot follow."""
    source, target, kinds = at.config.source, at.config.target, REPORTED_KINDS
    if _is_all_logs(at):
        reason = (
            "has no effect in mode append: logged rows stay as they were, and a renamed column is a new one"
        )
    elif "rows" not in target.features:
        reason = f"has no effect: a target of type {target.type} forwards rows with the columns they have"
    else:
        kinds = unreported_kinds(source)
        reason = f"has no effect: {source.protocol} does not report such a change with certainty"
    said = at.own.schema_changes
    given = () if said is None else said.model_fields_set
    for kind in (kind for kind in REPORTED_KINDS if kind.replace("-", "_") in given):
        if kind in kinds:
            remedy = "remove it"
            if kind not in _UNTOLD and source.protocol.startswith("debezium"):
                remedy = _BY_TOPIC
            yield at.problem(f"schema-changes.{kind}", reason, remedy)
        elif said is not None and said.policy(kind) == "apply" and (obstacle := ddl_obstacle(at.config)):
            yield at.problem(f"schema-changes.{kind}", *obstacle)


_BY_TOPIC: Final = (
    "remove it, or set source.debezium.schema-change-topic where a connector for MySQL or MariaDB writes one"
)


def ddl_obstacle(config: Config) -> tuple[str, str] | None:
    """Why DDL of a connector's own topic cannot be followed, and what to do; None where it can."""
    if config.source.debezium.schema_change_topic is None:
        return None
    if config.source.database is None:
        return (
            "a connector's DDL has no order with its rows, so that a resync follows it, which reads "
            "source.database",
            "set source.database, or use pause or ignore",
        )
    if config.cuts is not None:
        return (
            "a resync follows the DDL of a connector, which reads rows as of now: later than the cuts",
            "remove cuts, or use pause or ignore",
        )
    return None


def _is_all_logs(at: Section) -> bool:
    """Whether only logs can inherit a section's policy, and no table of another mode."""
    named = isinstance(at.own, TableOverride) and at.own.name is not None
    others = () if named else at.config.tables
    return at.mode == "append" and all(entry.mode in (None, "append") for entry in others)


def shown_policies(changes: SchemaChanges, config: Config, *, logs: bool = False) -> str:
    """The policies that have an effect on a pipeline, as one line; ``logs``: of a table in mode append."""
    passing = logs or "rows" not in config.target.features
    unknown = REPORTED_KINDS if passing else unreported_kinds(config.source)
    kinds = [kind for kind in get_args(ChangeKind) if kind not in unknown]
    return ", ".join(f"{kind} {changes.policy(kind)}" for kind in kinds)


def unreported_changes(config: Config) -> Iterator[str]:
    """The changes of tables that the source does not report, or the target cannot do."""
    if "rows" not in config.target.features:
        yield (
            f"a target of type {config.target.type} forwards rows with the columns they have: columns "
            "that are dropped or renamed at the source are so in its messages, and no message says that a "
            "table was emptied"
        )
    elif unknown := unreported_kinds(config.source):
        what = "dropped, renamed or narrowed, or a table dropped or renamed"
        yield (
            f"{config.source.protocol} does not report with certainty that a column was "
            f"{what if 'rename' in unknown else 'dropped or narrowed'}: what was there stays at the target"
        )
