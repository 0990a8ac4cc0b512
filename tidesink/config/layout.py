"""Settings of a table's columns and rows that contradict each other, have no effect, or cannot be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from tidesink.config.merged import section_problems
from tidesink.config.models import Config, TableDefaults, TableOverride
from tidesink.config.problems import Problem
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import ConfigError, SchemaRefusedError
from tidesink.typemap.projection import laid_out
from tidesink.typemap.row_filter import read_filter
from tidesink.typemap.target_schema import row_keyed, shape_of

# What tidesink's own columns begin with; held to them by a test.
OWN_PREFIX: Final = "_tidesink_"
# Targets with rows whose values can stay; held to their capabilities by a test.
KEEPING_TARGETS: Final = frozenset({"delta", "iceberg", "postgres", "mysql", "memory"})


def layout_problems(config: Config) -> Iterator[Problem]:
    """What is wrong with the layouts of tables, as far as the config alone tells."""
    sections: list[tuple[str, TableDefaults | TableOverride]] = [("defaults", config.defaults)]
    sections += [(f"tables[{number}]", entry) for number, entry in enumerate(config.tables)]
    found = []
    for place, section in sections:
        found += [*_lists(place, section), *_names(place, section), *_filter(place, section)]
        found += [*_metadata(config, place, section), *_nulls(config, place, section)]
        found += section_problems(config, place, section)
    yield from found
    if not found:
        yield from _defined(config)


def _lists(place: str, section: TableDefaults | TableOverride) -> Iterator[Problem]:
    if section.columns is not None and section.except_column_list is not None:
        yield Problem(f"{place}.except_column_list", "excludes columns beside a list of columns", "keep one")
    for name, listed in (("columns", section.columns), ("except_column_list", section.except_column_list)):
        for twice in _twice(listed or ()):
            yield Problem(f"{place}.{name}", f"{twice} is listed twice", "remove one")


def _names(place: str, section: TableDefaults | TableOverride) -> Iterator[Problem]:
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
            f"{new} would be called as tidesink's own columns are, which all begin with {OWN_PREFIX}",
            "give it another name",
        )
    listed = section.columns
    left_out = {name.lower() for name in section.except_column_list or ()}
    chosen = None if listed is None else {name.lower() for name in listed}
    for name in renames:
        if name.lower() in left_out or (chosen is not None and name.lower() not in chosen):
            yield Problem(f"{place}.rename", f"has no effect on {name}, which is left out", "remove it")


def _filter(place: str, section: TableDefaults | TableOverride) -> Iterator[Problem]:
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
    told = source.protocol.startswith("debezium") or source.enable_tidb_extension
    for kind in sorted({"commit_ts", "position"} & names.keys()):
        if not told:
            yield Problem(
                f"{place}.metadata",
                f"{kind} is told by events only where the changefeed has enable-tidb-extension=true",
                f"set source.enable-tidb-extension: true if it has, or remove {kind}",
            )


def _nulls(config: Config, place: str, section: TableDefaults | TableOverride) -> Iterator[Problem]:
    if not section.ignore_null_updates:
        return
    field = f"{place}.ignore_null_updates"
    if config.target.type not in KEEPING_TARGETS:
        yield Problem(field, f"a {config.target.type} target keeps no values that could stay", "remove it")
    if config.source.protocol.startswith("debezium"):
        yield Problem(
            field,
            "Debezium's records can leave a value out, which is not the same as NULL, and the two are not "
            "told apart in this version",
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
