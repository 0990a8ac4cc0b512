"""Settings of a table's columns and rows that contradict each other, have no effect, or cannot be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from tidesink.config.models import Config, TableDefaults, TableOverride
from tidesink.config.problems import Problem
from tidesink.errors import ConfigError, SchemaRefusedError
from tidesink.typemap.ddl import TableDefinitions
from tidesink.typemap.layout import laid_out
from tidesink.typemap.row_filter import read_filter
from tidesink.typemap.shape import shape_of


def layout_problems(config: Config) -> Iterator[Problem]:
    """What is wrong with the layouts of tables, as far as the config alone tells."""
    sections: list[tuple[str, TableDefaults | TableOverride]] = [("defaults", config.defaults)]
    sections += [(f"tables[{number}]", entry) for number, entry in enumerate(config.tables)]
    found = []
    for place, section in sections:
        found += [*_lists(place, section), *_names(place, section), *_filter(place, section)]
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
                laid_out(settings.layout, shape_of(schema, keys=settings.keys), own=())
        except (ConfigError, SchemaRefusedError) as error:
            if not settings.layout.plain:
                yield Problem(f"tables[{number}]", error.message, "correct the name, or the definition")
