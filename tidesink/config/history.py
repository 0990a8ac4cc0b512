"""Where a history (``mode: history``) can be kept, and which settings do not go with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tidesink.config.merged import ENDS_A_VERSION, words_of
from tidesink.config.models import Config, HistorySettings, TableDefaults, TableOverride
from tidesink.config.problems import Problem

_UPSERT: Final = "use mode: upsert, which needs no commit_ts"


def history_problems(config: Config) -> Iterator[Problem]:
    """What keeps tables from having a history, and settings that do nothing in one or without one."""
    sections: list[tuple[str, TableDefaults | TableOverride]] = [("defaults", config.defaults)]
    sections += [(f"tables[{number}]", entry) for number, entry in enumerate(config.tables)]
    kept = any(section.mode == "history" for _, section in sections)
    for place, section in sections:
        if section.mode == "history":
            for reason, remedy in _obstacles(config):
                yield Problem(f"{place}.mode", reason, remedy)
        yield from _without_effect(config, place, section)
        if section.history is not None and "history" in section.model_fields_set:
            yield from _names(place, section.history, used=kept)


def _obstacles(config: Config) -> Iterator[tuple[str, str]]:
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


def _without_effect(config: Config, place: str, section: TableDefaults | TableOverride) -> Iterator[Problem]:
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


def _names(place: str, names: HistorySettings, *, used: bool) -> Iterator[Problem]:
    if not used:
        yield Problem(f"{place}.history", "no table has mode: history", "set it, or remove this section")
    said = [names.valid_from.lower(), names.valid_to.lower(), names.current.lower()]
    if len(set(said)) < len(said):
        yield Problem(f"{place}.history", "two columns have one name", "give each a name of its own")
