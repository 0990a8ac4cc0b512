"""``tidesink diff``: compares tables at the target with their source, and shows the rows that differ.

Spark's tasks read both sides, while a worker continues. Nothing is changed on either side.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console

from tidesink.cli import terminal
from tidesink.cli.diff_report import Side, difference_json, kept, named
from tidesink.cli.snapshot import Where
from tidesink.cli.status import known_table, worked_with
from tidesink.cli.terminal import (
    ConfigOption,
    Output,
    OutputFormat,
    chosen_config,
    note,
    show_table,
    write_json,
)
from tidesink.config import Config, load_config
from tidesink.errors import ConfigError
from tidesink.events import TableId

if TYPE_CHECKING:
    from tidesink.sinks.diff.comparison import ChooseCut, TableDiff

_COUNTS: Final = ("equal", "different", "only_at_source", "only_at_target", "unsettled", "unreadable")
_WORDS: Final = {
    "different": "differs",
    "only_at_source": "is only at the {side}",
    "only_at_target": "is only at the target",
}
ComparedTables = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TABLE]...", help="schema.table; the default is all that were worked on."),
]


def diff(
    tables: ComparedTables = None,
    config_option: ConfigOption = None,
    *,
    limit: Annotated[int, typer.Option(min=0, help="Show at most N differing keys of each table.")] = 20,
    values: Annotated[bool, typer.Option("--values", help="Also show the differing values.")] = False,
    report: Annotated[
        Path | None, typer.Option(help="Write every differing key to this file, as JSON Lines.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue an interrupted comparison from its --report."),
    ] = False,
    lag: Annotated[
        float, typer.Option(min=0, help="Seconds after which a change of the source is surely in its topic.")
    ] = 10.0,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the differing rows' changes are applied.")
    ] = True,
    where: Where = None,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="PIPELINE.yaml",
            help="Compare with this pipeline's target, a copy of the same source, instead of the source.",
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="CUT",
            help="Compare the newest cut up to this commit_ts or time (UTC) with TiDB as of the cut's time.",
        ),
    ] = None,
    sample: Annotated[
        int | None, typer.Option(min=1, help="Compare about N rows of each table, chosen by their keys.")
    ] = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Compare tables at the target with their source.

    Rows are compared one by one, while both sides change. The command reads all rows of source.database and
    of the target. With --against it reads another pipeline's target and this one's; with --at a lake's cut
    and TiDB as of its time. A row that differs is looked at again until its changes are applied. The exit
    code is 3 if a row differs or is not settled, and 2 if a comparable table could not be compared.
    """
    settings = chosen_config(None, config_option)
    other = load_config(against) if against is not None else None
    if other is None and settings.source.database is None:
        raise ConfigError(
            "Rows are compared with those of source.database, which is not set.", key="source.database"
        )
    if resume and report is None:
        raise ConfigError("A comparison continues from its report. Give --report FILE, too.", key="--resume")
    cut = None if at is None else _cut_at(settings, other, at)
    from tidesink.sinks.diff.comparison import DiffOptions, TableDiff
    from tidesink.sinks.diff.run import diff as compared
    from tidesink.source_database.key_bounds import parse_bounds

    side: Side = "source" if other is None else "other"
    chosen, refused = _chosen(settings, tables, other)
    bounds = parse_bounds(where) if where is not None else ()
    options = DiffOptions(limit, values, wait, lag, where=bounds, sample=sample, cut=cut)
    compared_with = {} if other is None else {"against": other.pipeline}
    of = {"pipeline": settings.pipeline, **compared_with, "where": where, "sample": sample, "at": at}
    with ExitStack() as closing:
        file = closing.enter_context(kept(report, side, of=of, resume=resume)) if report is not None else None
        tell = closing.enter_context(_telling())
        found = [one for one in file.found if one.table in chosen] if file is not None else list[TableDiff]()
        left = [one for one in chosen if one not in {earlier.table for earlier in found}]
        if left:
            tell(f"{settings.pipeline}: starting Spark")
            keep = None if file is None else file.keep
            for one in compared(
                settings, left, options, tell=tell, keep=keep, goes_on=not tables, against=other
            ):
                found.append(one)
                if file is not None:
                    file.done(one)
    failed = any(one.refused is not None for one in found)
    found += refused
    if output is OutputFormat.JSON:
        shown = [diff_json(one, side) for one in found]
        write_json({"pipeline": settings.pipeline, **compared_with, "tables": shown})
    else:
        show_diffs(found, side)
    if any(one.differs or one.unsettled for one in found):
        raise typer.Exit(terminal.UNWELL)
    if failed:
        raise typer.Exit(terminal.USAGE)


def _cut_at(config: Config, against: Config | None, at: str) -> ChooseCut:
    """Return the function that chooses the cut, after checking that a cut can be compared at its time.

    Raises:
        ConfigError: it cannot.
    """
    from tidesink.cuts import check_lake, chosen, commit_ts_of

    if against is not None:
        raise ConfigError(
            "A cut is compared with the source as of its time, not with another pipeline. Give either "
            "--at or --against.",
            key="--at",
        )
    check_lake(config)
    commit_ts_of(at)
    return partial(chosen, at=at)


def _chosen(
    config: Config, names: Sequence[str] | None, against: Config | None
) -> tuple[list[TableId], list[TableDiff]]:
    """Return the tables to compare and, without names, the tables that cannot be compared, with reasons.

    ``against``: the pipeline whose copies they are compared with.

    Raises:
        ConfigError: a named table is unknown, or cannot be compared.
    """
    from tidesink.sinks.diff.comparison import TableDiff
    from tidesink.sinks.worker.table_copy import obstacle, refusal

    known = _topics(config)
    tables = [known_table(name, config, known) for name in dict.fromkeys(names)] if names else [*known]
    refused = {table: reason for table in tables if (reason := obstacle(config, table, known.get(table)))}
    if against is not None:
        others = _topics(against)
        if not names and not {*tables} & {*others}:
            raise ConfigError(
                f"{against.pipeline} has worked on none of the tables of {config.pipeline}. Start tidesink "
                "run there, or name tables that it has.",
                key="--against",
            )
        for table in tables:
            reason = (
                obstacle(against, table, others.get(table)) if table in others else "it has no such table"
            )
            if reason is not None:
                refused.setdefault(table, f"{against.pipeline}: {reason}")
    if names and refused:
        table, reason = next(iter(refused.items()))
        raise refusal(table, reason)
    chosen = [table for table in tables if table not in refused]
    return chosen, [TableDiff(table, refused=reason) for table, reason in refused.items()]


def _topics(config: Config) -> dict[TableId, str | None]:
    """Return the tables that a pipeline has worked on, with their topics."""
    from tidesink.sinks.worker.table_copy import topic_of

    with worked_with(config) as store:
        return {one.table: topic_of(one) for one in store.statuses(config.pipeline)}


@contextmanager
def _telling() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows progress on stderr: one changing line on a terminal, otherwise lines."""
    screen = Console(stderr=True)
    if not sys.stderr.isatty() or screen.is_dumb_terminal:
        yield note
        return
    with screen.status("") as status:
        yield lambda line: status.update(line.replace("[", "\\["))


def diff_json(found: TableDiff, side: Side = "source") -> dict[str, Any]:
    """Return one table's result as JSON."""
    table = found.table._asdict()
    if found.refused is not None:
        return {"table": table, "refused": found.refused}
    counts = {named(name, side): getattr(found, name) for name in ("at_source", "at_target", *_COUNTS)}
    shown = [difference_json(one, side) for one in found.shown]
    as_of = {} if found.as_of is None else {"commit_ts": found.as_of}
    return {"table": table, **as_of, **counts, "not_compared": list(found.not_compared), "differences": shown}


def show_diffs(tables: Sequence[TableDiff], side: Side = "source") -> None:
    """Print a table of counts, and the keys that differ."""
    compared = [one for one in tables if one.refused is None]
    if compared:
        counts = (named(name, side).replace("_", "\n") for name in _COUNTS)
        columns = ("table", f"at {side}", "at target", *counts)
        rows = (
            (str(one.table), one.at_source, one.at_target, *(getattr(one, name) for name in _COUNTS))
            for one in compared
        )
        show_table(None, columns, rows)
    for one in tables:
        for line in _lines(one, side):
            typer.echo(f"{one.table}: {line}")
    if not tables:
        typer.echo("no table was worked on yet")


def _lines(found: TableDiff, side: Side) -> Iterator[str]:
    """Yield lines about a table other than its counts."""
    if found.refused is not None:
        yield f"not compared: {found.refused}"
    if found.not_compared:
        yield f"columns that are not compared: {', '.join(found.not_compared)}"
    if found.unreadable:
        yield (
            f"{found.unreadable} rows of the source cannot be compared: a value does not fit the target's "
            "column. A worker's snapshot names the column"
        )
    for one in found.shown:
        key = ", ".join(f"{name}={value}" for name, value in one.key.items())
        columns = f" in {', '.join(one.columns)}" if one.columns else ""
        yield f"({key}) {_WORDS[one.kind].format(side=side)}{columns}"
        for name, (here, there) in (one.values or {}).items():
            yield f"  {name}: {_shown(here)} at the {side}, {_shown(there)} at the target"
    left = found.different + found.only_at_source + found.only_at_target - len(found.shown)
    if left:
        yield f"{left} more keys differ. --limit shows more, --report writes all"
    if found.unsettled:
        yield (
            f"{found.unsettled} keys are not settled: they kept changing, or their changes are not applied. "
            "Compare again"
        )


def _shown(text: str | None) -> str:
    return "NULL" if text is None else repr(text)
