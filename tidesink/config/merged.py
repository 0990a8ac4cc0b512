"""Settings of one table that contradict each other, or do nothing, once all of its sections are merged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from tidesink.config.mode_words import TableMode
from tidesink.config.models import Config, SequenceBy, TableConfig, TableDefaults, TableOverride
from tidesink.config.problems import Problem
from tidesink.errors import ConfigError
from tidesink.typemap.row_filter import ALWAYS

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
    """What decides over the other settings of a section, or of a table."""

    mode: TableMode
    sequence_by: SequenceBy


Section = TableDefaults | TableOverride | TableConfig


def words_of(config: Config, section: TableDefaults | TableOverride) -> Words:
    """The words for what a section is of: a named table's own, or what a pattern's tables are told."""
    if isinstance(section, TableOverride) and section.table is not None:
        settings = config.table_config(section.table)
        return Words(settings.mode, settings.sequence_by)
    return Words(section.mode or config.defaults.mode, section.sequence_by or config.defaults.sequence_by)


def section_problems(config: Config, place: str, section: TableDefaults | TableOverride) -> Iterator[Problem]:
    """What a section says that does not go with the words of its tables."""
    if section.filter is not None or section.ignore_null_updates:
        for found in _clashes(words_of(config, section), section):
            yield Problem(f"{place}.{found.setting}", found.reason, found.remedy)


def _clashes(words: Words, section: Section) -> Iterator[Clash]:
    for check in _CHECKS:
        yield from check(words, section)


def merged_problems(config: Config) -> Iterator[Problem]:
    """The clashes of the tables that have a name in the config."""
    for number, entry in enumerate(config.tables):
        if entry.table is not None:
            settings = config.table_config(entry.table)
            for found in _table_clashes(settings):
                yield Problem(f"tables[{number}].{found.setting}", found.reason, found.remedy)


def check_merged(settings: TableConfig) -> None:
    """Hold a table that only the run knows to what a named one is held to by ``tidesink validate``.

    Raises:
        ConfigError: its merged settings contradict each other.
    """
    for found in _table_clashes(settings):
        raise ConfigError(
            f"{found.setting} of {settings.table}: {found.reason}; {found.remedy}", table=str(settings.table)
        )


def _table_clashes(settings: TableConfig) -> Iterator[Clash]:
    words = Words(settings.mode, settings.sequence_by)
    yield from _clashes(words, settings)
    if words.mode == "append" and words.sequence_by == "source":
        yield Clash("sequence_by", *without_keys("sequence_by"))
    if words.mode == "append" and settings.deletes == "soft":
        yield Clash("deletes", *without_keys("deletes"))
    if words.mode == "history" and settings.deletes == "soft":
        yield Clash("deletes", *ENDS_A_VERSION)


def without_keys(name: str) -> tuple[str, str]:
    """Why a setting of rows of one key does nothing in a log, and what to do."""
    return (
        "has no effect in mode append, where every change is a row of its own",
        f"remove it, or use mode: upsert for the tables that need {name}",
    )


def _filter(words: Words, section: Section) -> Iterator[Clash]:
    said = section.filter
    if words.mode == "append" and said is not None and said.strip().lower() != ALWAYS:
        yield Clash(
            "filter",
            "mode: append keeps every change, whatever its row is: rows that come to fit a filter, or fit it "
            "no more, would be other changes than those of the source",
            "remove it, or set filter: 'true' for this table where it is said elsewhere, and make a view of "
            "the log that has the filter",
        )


def _nulls(words: Words, section: Section) -> Iterator[Clash]:
    if not section.ignore_null_updates:
        return
    if words.mode != "upsert":
        yield Clash("ignore_null_updates", f"mode: {words.mode} keeps each row as it was", "remove it")
    if words.sequence_by == "source":
        yield Clash(
            "ignore_null_updates",
            "under sequence_by: source a change may come late, and nothing tells which value it left",
            "use sequence_by: kafka, or remove it",
        )


_CHECKS: Final[tuple[Callable[[Words, Section], Iterator[Clash]], ...]] = (_filter, _nulls)
