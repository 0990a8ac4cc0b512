"""Checks of one table's settings, once all of its sections are merged.

They find settings of columns and rows that contradict each other, have no effect, or cannot be read;
targets that cannot hold a table in its mode; histories (``mode: history``) and orders by the source's
position (``sequence_by: source``) that are not possible; and policies for changes of columns that a
pipeline cannot have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from tidesink.codecs.open import CODECS
from tidesink.config.fields import CHANGE_RULES, ChangeKind, Problem, SchemaChanges, TableMode
from tidesink.config.models import Config, HistorySettings, TableConfig, TableDefaults, TableOverride
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import ConfigError, SchemaRefusedError
from tidesink.events import SequenceBy
from tidesink.typemap.projection import ALWAYS, laid_out, read_filter
from tidesink.typemap.target_schema import row_keyed, shape_of

ENDS_A_VERSION: Final = (
    "has no effect in a history, where a delete ends a version and takes nothing away",
    "remove it",
)


class Clash(NamedTuple):
    """A setting that does not go with the others."""

    setting: str
    reason: str
    remedy: str


class Words(NamedTuple):
    """The settings that decide which others of a section, or of a table, have an effect."""

    mode: TableMode
    sequence_by: SequenceBy


Section = TableDefaults | TableOverride | TableConfig


def words_of(config: Config, section: TableDefaults | TableOverride) -> Words:
    """The mode and order of a section: of its named table, or as a pattern sets them for its tables."""
    if isinstance(section, TableOverride) and section.table is not None:
        settings = config.table_config(section.table)
        return Words(settings.mode, settings.sequence_by)
    return Words(section.mode or config.defaults.mode, section.sequence_by or config.defaults.sequence_by)


def _sections(config: Config) -> list[tuple[str, TableDefaults | TableOverride]]:
    """The sections that hold settings of tables, each with its place in the config."""
    tables = [(f"tables[{number}]", entry) for number, entry in enumerate(config.tables)]
    return [("defaults", config.defaults), *tables]


def merged_problems(config: Config) -> Iterator[Problem]:
    """The clashes of the tables that have a name in the config."""
    for number, entry in enumerate(config.tables):
        if entry.table is not None:
            settings = config.table_config(entry.table)
            for found in _table_clashes(settings):
                yield Problem(f"tables[{number}].{found.setting}", found.reason, found.remedy)


def check_merged(settings: TableConfig) -> None:
    """Check a table that only the run knows as ``tidesink validate`` checks a named one.

    Raises:
        ConfigError: its merged settings contradict each other.
    """
    for found in _table_clashes(settings):
        raise ConfigError(
            f"{found.setting} of {settings.table}: {found.reason}; {found.remedy}", table=str(settings.table)
        )


def _table_clashes(settings: TableConfig) -> Iterator[Clash]:
    words = Words(settings.mode, settings.sequence_by)
    yield from _filter_clashes(words, settings)
    yield from _null_clashes(words, settings)
    if words.mode == "append" and words.sequence_by == "source":
        yield Clash("sequence_by", *without_keys("sequence_by"))
    if words.mode == "append" and settings.deletes == "soft":
        yield Clash("deletes", *without_keys("deletes"))
    if words.mode == "history" and settings.deletes == "soft":
        yield Clash("deletes", *ENDS_A_VERSION)


def without_keys(name: str) -> tuple[str, str]:
    """Why a setting for rows of one key has no effect in a log, and what to do."""
    return (
        "has no effect in mode append, where every change is a row of its own",
        f"remove it, or use mode: upsert for the tables that need {name}",
    )


def _filter_clashes(words: Words, section: Section) -> Iterator[Clash]:
    condition = section.filter
    if words.mode == "append" and condition is not None and condition.strip().lower() != ALWAYS:
        yield Clash(
            "filter",
            "mode: append stores every change: a row that starts or stops to satisfy a filter would be "
            "another change than the source's",
            "remove it, or set filter: 'true' for this table where another section sets it, and make a view "
            "of the log that has the filter",
        )


def _null_clashes(words: Words, section: Section) -> Iterator[Clash]:
    if not section.ignore_null_updates:
        return
    if words.mode != "upsert":
        yield Clash("ignore_null_updates", f"mode: {words.mode} keeps each row as it was", "remove it")
    if words.sequence_by == "source":
        yield Clash(
            "ignore_null_updates",
            "under sequence_by: source a change may come late, and which value it left is unknown",
            "use sequence_by: kafka, or remove it",
        )


# What tidesink's own columns begin with; held to them by a test.
OWN_PREFIX: Final = "_tidesink_"


def layout_problems(config: Config) -> Iterator[Problem]:
    """What is wrong with the layouts of tables, as far as the config alone shows it."""
    found = []
    for place, section in _sections(config):
        found += [*_lists(place, section), *_renames(place, section), *_filter_problems(place, section)]
        found += [*_metadata(config, place, section), *_null_problems(config, place, section)]
        words = words_of(config, section)
        for clash in (*_filter_clashes(words, section), *_null_clashes(words, section)):
            found.append(Problem(f"{place}.{clash.setting}", clash.reason, clash.remedy))
    yield from found
    if not found:
        yield from _defined(config)


def _lists(place: str, section: TableDefaults | TableOverride) -> Iterator[Problem]:
    if section.columns is not None and section.except_column_list is not None:
        yield Problem(f"{place}.except_column_list", "excludes columns beside a list of columns", "keep one")
    for name, listed in (("columns", section.columns), ("except_column_list", section.except_column_list)):
        for twice in _twice(listed or ()):
            yield Problem(f"{place}.{name}", f"{twice} is listed twice", "remove one")


def _renames(place: str, section: TableDefaults | TableOverride) -> Iterator[Problem]:
    renames = section.rename or {}
    for twice in _twice(renames):
        yield Problem(f"{place}.rename", f"{twice} is renamed twice", "keep one: names match in any case")
    for twice in _twice(renames.values()):
        yield Problem(f"{place}.rename", f"two columns would be called {twice}", "give one another name")
    if any(not name.strip() for names in renames.items() for name in names):
        yield Problem(f"{place}.rename", "has an empty name", "give {source: target}")
    for new in sorted({new for new in renames.values() if new.lower().startswith(OWN_PREFIX)}):
        yield Problem(
            f"{place}.rename",
            f"{new} begins with {OWN_PREFIX}, the prefix of tidesink's own columns",
            "give it another name",
        )
    listed = section.columns
    omitted = {name.lower() for name in section.except_column_list or ()}
    chosen = None if listed is None else {name.lower() for name in listed}
    for name in renames:
        if name.lower() in omitted or (chosen is not None and name.lower() not in chosen):
            yield Problem(f"{place}.rename", f"has no effect on {name}, which is excluded", "remove it")


def _filter_problems(place: str, section: TableDefaults | TableOverride) -> Iterator[Problem]:
    if section.filter is None:
        return
    try:
        read_filter(section.filter)
    except ConfigError as error:
        yield Problem(
            f"{place}.filter", error.message, "give one condition in Spark's SQL on a row's columns"
        )


def _metadata(config: Config, place: str, section: TableDefaults | TableOverride) -> Iterator[Problem]:
    names = section.metadata or {}
    for twice in _twice(names.values()):
        yield Problem(f"{place}.metadata", f"two columns would be called {twice}", "give one another name")
    if any(not name.strip() for name in names.values()):
        yield Problem(f"{place}.metadata", "has an empty name", "give {kind: column}")
    source = config.source
    reported = source.protocol.startswith("debezium") or source.enable_tidb_extension
    for kind in sorted({"commit_ts", "position"} & names.keys()):
        if not reported:
            yield Problem(
                f"{place}.metadata",
                f"{kind} is known from events only where the changefeed has enable-tidb-extension=true",
                f"set source.enable-tidb-extension: true if it has, or remove {kind}",
            )


def _null_problems(config: Config, place: str, section: TableDefaults | TableOverride) -> Iterator[Problem]:
    if not section.ignore_null_updates:
        return
    field = f"{place}.ignore_null_updates"
    if "rows" not in config.target.features:
        yield Problem(field, f"a {config.target.type} target stores no values that could stay", "remove it")
    if config.source.protocol.startswith("debezium"):
        yield Problem(
            field,
            "Debezium's records can leave a value out, which is not the same as NULL, and the two are not "
            "identified in this version",
            "remove it",
        )


def _twice(names: Iterable[str]) -> list[str]:
    return [name for name, times in Counter(name.lower() for name in names).items() if times > 1]


def _defined(config: Config) -> Iterator[Problem]:
    """Columns that a table defined in the config does not have."""
    for number, entry in enumerate(config.tables):
        if entry.definition is None or entry.table is None:
            continue
        definitions, settings = TableDefinitions(), config.table_config(entry.table)
        try:
            entry.definition.declare_in(definitions, entry.table.schema)
            schema = definitions.get(entry.table)
            if schema is not None and not settings.layout.plain:
                shape = shape_of(schema, keys=settings.keys)
                by_row_key = not shape.keys and config.source.codec_options().sends_row_keys
                laid_out(settings.layout, row_keyed(shape) if by_row_key else shape, own=())
        except (ConfigError, SchemaRefusedError) as error:
            if not settings.layout.plain:
                yield Problem(f"tables[{number}]", error.message, "correct the name, or the definition")


_UPSERT: Final = "use mode: upsert, which needs no commit_ts"


def history_problems(config: Config) -> Iterator[Problem]:
    """What prevents tables from having a history, and settings without effect in one or without one."""
    sections = _sections(config)
    used = any(section.mode == "history" for _, section in sections)
    for place, section in sections:
        if section.mode == "history":
            for reason, remedy in _history_obstacles(config):
                yield Problem(f"{place}.mode", reason, remedy)
        yield from _unused_in_history(config, place, section)
        if section.history is not None and "history" in section.model_fields_set:
            yield from _history_columns(place, section.history, used=used)


def _history_obstacles(config: Config) -> Iterator[tuple[str, str]]:
    if config.source.protocol.startswith("debezium"):
        yield (
            "a history is ordered by commit_ts, and positions of Debezium's sources are not compared in this "
            "version",
            "use mode: upsert",
        )
    elif not config.source.enable_tidb_extension:
        yield (
            "a history needs a commit_ts in every event, which the changefeed writes only with "
            "enable-tidb-extension=true",
            f"set source.enable-tidb-extension: true if it does, or {_UPSERT}",
        )


def _unused_in_history(
    config: Config, place: str, section: TableDefaults | TableOverride
) -> Iterator[Problem]:
    given = section.model_fields_set & {"sequence_by", "deletes"}
    if not given or words_of(config, section).mode != "history":
        return
    if "sequence_by" in given and section.sequence_by == "kafka":
        yield Problem(
            f"{place}.sequence_by",
            "a history is ordered by commit_ts, whatever order its events come in",
            "remove it, or set sequence_by: source",
        )
    if "deletes" in given:
        yield Problem(f"{place}.deletes", *ENDS_A_VERSION)


def _history_columns(place: str, names: HistorySettings, *, used: bool) -> Iterator[Problem]:
    if not used:
        yield Problem(f"{place}.history", "no table has mode: history", "set it, or remove this section")
    if _twice((names.valid_from, names.valid_to, names.current)):
        yield Problem(f"{place}.history", "two columns have one name", "give each a name of its own")


# Settings that order the rows of one key, and have no effect where each change is a row of its own:
# the field, its name in the file, and its default.
_OF_KEYS: Final = (
    ("sequence_by", "sequence_by", "kafka"),
    ("deletes", "deletes", "hard"),
    ("tombstone_retention", "tombstone-retention", None),
)


def mode_problems(config: Config) -> Iterator[Problem]:
    """The tables whose mode the target does not have, and settings that contradict a mode."""
    yield from history_problems(config)
    for place, section in _sections(config):
        mode = section.mode
        if mode is not None and mode != "upsert" and mode not in config.target.features:
            yield Problem(
                f"{place}.mode",
                f"a target of type {config.target.type} holds no table in mode {mode}",
                "use mode: upsert, or another target",
            )
        if words_of(config, section).mode == "append":
            for field, name, default in _OF_KEYS:
                if field in section.model_fields_set and getattr(section, field) not in (default, None):
                    yield Problem(f"{place}.{name}", *without_keys(name))


_KAFKA: Final = (
    "use sequence_by: kafka, which is right where a key stays in one partition (TiCDC dispatchers table and "
    "index-value, and Debezium's default)"
)


def sequence_problems(config: Config) -> Iterator[Problem]:
    """What prevents the tables that set it from being ordered by the source."""
    yield from _unused_sequence(config)
    for place, section in _sections(config):
        if section.sequence_by == "source":
            for reason, remedy in _sequence_obstacles(config):
                yield Problem(f"{place}.sequence_by", reason, remedy)


def _unused_sequence(config: Config) -> Iterator[Problem]:
    sections = _sections(config)
    anywhere = any(section.sequence_by == "source" for _, section in sections)
    for place, section in sections:
        ordered = words_of(config, section).sequence_by == "source"
        used = anywhere if section is config.defaults else ordered
        if "tombstone_retention" in section.model_fields_set and not used:
            yield Problem(
                f"{place}.tombstone-retention",
                "has no effect under sequence_by: kafka, where deleted rows are removed at once",
                "set sequence_by: source, or remove it",
            )


def _sequence_obstacles(config: Config) -> Iterator[tuple[str, str]]:
    if "source-order" not in config.target.features:
        yield f"a target of type {config.target.type} does not store the positions of its rows", _KAFKA
    if config.source.protocol.startswith("debezium"):
        # TiCDC's messages have a commit_ts; plan and the worker report others, which have none.
        if config.source.debezium.unwrapped:
            yield "rows flattened by ExtractNewRecordState have no source position", _KAFKA
    elif not config.source.enable_tidb_extension:
        yield (
            "events have a position only where the changefeed has enable-tidb-extension=true",
            f"set source.enable-tidb-extension: true if it has, or {_KAFKA}",
        )


# Kinds that only DDL reports with certainty: a registry can hold an older schema as its newest.
REPORTED_KINDS: Final[tuple[ChangeKind, ...]] = ("drop", "rename", "narrow")
_IN_A_LOG: Final = (
    "has no effect in mode append: logged rows stay as they were, and a renamed column is a new one",
    "remove it",
)


def schema_change_problems(config: Config) -> Iterator[Problem]:
    """The policies that have no effect on a pipeline, or that its target cannot follow."""
    for place, section in _sections(config):
        changes = section.schema_changes
        if changes is None:
            continue
        for kind in (kind for kind in REPORTED_KINDS if kind in changes.model_fields_set):
            logs = _is_all_logs(config, section)
            for reason, remedy in [_IN_A_LOG] if logs else _policy_obstacles(config):
                yield Problem(f"{place}.schema-changes.{kind}", reason, remedy)


def _is_all_logs(config: Config, section: TableDefaults | TableOverride) -> bool:
    """Whether only logs can inherit a section's policy, and no table of another mode."""
    if words_of(config, section).mode != "append":
        return False
    named = isinstance(section, TableOverride) and section.name is not None
    return named or all(entry.mode in (None, "append") for entry in config.tables)


def _policy_obstacles(config: Config) -> Iterator[tuple[str, str]]:
    target, protocol = config.target.type, config.source.protocol
    if "rows" not in config.target.features:
        yield (
            f"has no effect: a target of type {target} forwards rows with the columns they have",
            "remove it",
        )
    elif not CODECS[protocol].tells_ddl:
        yield f"has no effect: {protocol} does not report such a change with certainty", "remove it"


def shown_policies(changes: SchemaChanges, config: Config, *, logs: bool = False) -> str:
    """The policies that have an effect on a pipeline, as one line; ``logs``: of a table in mode append."""
    passing = logs or "rows" not in config.target.features
    reported = CODECS[config.source.protocol].tells_ddl and not passing
    kinds = [kind for kind in CHANGE_RULES if reported or kind not in REPORTED_KINDS]
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
