"""``tidesink diff``: compares the tables of the target with their source, and shows the rows that differ.

Spark tasks read both sides; a worker may run meanwhile. The command changes no row on either side.
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
    typer.Argument(
        metavar="[TABLE]...", help="Tables (schema.table); the default is all that a worker read."
    ),
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
        float, typer.Option(min=0, help="Seconds in which a change in the source reaches its topic.")
    ] = 10.0,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until changes of differing rows are applied.")
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
    """Compare tables of the target with their source.

    The command compares row by row. It reads all rows of source.database and of the target, which both may
    change meanwhile. With --against it compares the target with another pipeline's target. With --at it
    compares a cut (all tables of a lake as of one commit time) with TiDB as of that time. A row that differs
    is read again until its pending changes are applied. The exit code is 3 if a row differs or could not be
    compared for certain, and 2 if a comparable table could not be compared.
    """
    settings = chosen_config(None, config_option)
    other = load_config(against) if against is not None else None
    if other is None and settings.source.database is None:
        raise ConfigError(
            "The command compares the target with source.database, which is not set. Set it in the config.",
            key="source.database",
        )
    if resume and report is None:
        raise ConfigError(
            "The command needs the report of the interrupted comparison. Give --report FILE.", key="--resume"
        )
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
        results = (
            [result for result in file.found if result.table in chosen]
            if file is not None
            else list[TableDiff]()
        )
        left = [table for table in chosen if table not in {earlier.table for earlier in results}]
        if left:
            tell(f"{settings.pipeline}: starting Spark")
            keep = None if file is None else file.keep
            for result in compared(
                settings, left, options, tell=tell, keep=keep, goes_on=not tables, against=other
            ):
                results.append(result)
                if file is not None:
                    file.done(result)
    failed = any(result.refused is not None for result in results)
    results += refused
    if output is OutputFormat.JSON:
        shown = [diff_json(result, side) for result in results]
        write_json({"pipeline": settings.pipeline, **compared_with, "tables": shown})
    else:
        show_diffs(results, side)
    if any(result.differs or result.unsettled for result in results):
        raise typer.Exit(terminal.UNWELL)
    if failed:
        raise typer.Exit(terminal.USAGE)


def _cut_at(config: Config, against: Config | None, at: str) -> ChooseCut:
    """Return a function that chooses the newest cut at or before ``at``, a commit_ts or time.

    Raises:
        ConfigError: the target is not a lake, ``at`` is neither a commit_ts nor a time, or ``against`` is
            given too.
    """
    from tidesink.cuts import check_lake, chosen, commit_ts_of

    if against is not None:
        raise ConfigError(
            "A cut (--at) is compared with the source as of the cut's time, not with another pipeline "
            "(--against). Give either --at or --against.",
            key="--at",
        )
    check_lake(config)
    commit_ts_of(at)
    return partial(chosen, at=at)


def _chosen(
    config: Config, names: Sequence[str] | None, against: Config | None
) -> tuple[list[TableId], list[TableDiff]]:
    """Return the tables to compare and the tables that cannot be compared, with the reasons.

    ``names``: the tables that the user named, or None for all tables. ``against``: the other pipeline, whose
    target is compared with this target; None to compare with the source database.

    Raises:
        ConfigError: a table in ``names`` is unknown or cannot be compared.
    """
    from tidesink.sinks.diff.comparison import TableDiff
    from tidesink.sinks.diff.table_copy import obstacle, refusal

    topics = _topics(config)
    tables = [known_table(name, config, topics) for name in dict.fromkeys(names)] if names else [*topics]
    refused = {table: reason for table in tables if (reason := obstacle(config, table, topics.get(table)))}
    if against is not None:
        others = _topics(against)
        if not names and not {*tables} & {*others}:
            raise ConfigError(
                f"No worker of {against.pipeline} has read a table of {config.pipeline}. Start its worker "
                "(tidesink run), or name tables that both pipelines have read.",
                key="--against",
            )
        for table in tables:
            reason = (
                obstacle(against, table, others.get(table))
                if table in others
                else "that pipeline has no such table"
            )
            if reason is not None:
                refused.setdefault(table, f"{against.pipeline}: {reason}")
    if names and refused:
        table, reason = next(iter(refused.items()))
        raise refusal(table, reason)
    chosen = [table for table in tables if table not in refused]
    return chosen, [TableDiff(table, refused=reason) for table, reason in refused.items()]


def _topics(config: Config) -> dict[TableId, str | None]:
    """Return the tables that a worker of the pipeline has read, each with its topic, or None if unknown."""
    from tidesink.sinks.diff.table_copy import topic_of

    with worked_with(config) as store:
        return {status.table: topic_of(status) for status in store.statuses(config.pipeline)}


@contextmanager
def _telling() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a line of progress on stderr. On a terminal, it replaces the last line."""
    screen = Console(stderr=True)
    if not sys.stderr.isatty() or screen.is_dumb_terminal:
        yield note
        return
    with screen.status("") as status:
        yield lambda line: status.update(line.replace("[", "\\["))


def diff_json(diff: TableDiff, side: Side = "source") -> dict[str, Any]:
    """Return the result of comparing one table as JSON."""
    table = diff.table._asdict()
    if diff.refused is not None:
        return {"table": table, "refused": diff.refused}
    counts = {named(name, side): getattr(diff, name) for name in ("at_source", "at_target", *_COUNTS)}
    shown = [difference_json(difference, side) for difference in diff.shown]
    as_of = {} if diff.as_of is None else {"commit_ts": diff.as_of}
    return {"table": table, **as_of, **counts, "not_compared": list(diff.not_compared), "differences": shown}


def show_diffs(tables: Sequence[TableDiff], side: Side = "source") -> None:
    """Print the counts of each compared table, and then the keys that differ."""
    compared = [diff for diff in tables if diff.refused is None]
    if compared:
        counts = (named(name, side).replace("_", "\n") for name in _COUNTS)
        columns = ("table", f"at {side}", "at target", *counts)
        rows = (
            (str(diff.table), diff.at_source, diff.at_target, *(getattr(diff, name) for name in _COUNTS))
            for diff in compared
        )
        show_table(None, columns, rows)
    for diff in tables:
        for line in _lines(diff, side):
            terminal.echo(f"{diff.table}: {line}", diff.table)
    if not tables:
        terminal.echo("no worker has read a table yet. `tidesink run` starts a worker")


def _lines(diff: TableDiff, side: Side) -> Iterator[str]:
    """Yield text lines with a table's differing keys, and its columns and rows that were not compared."""
    if diff.refused is not None:
        yield f"not compared: {diff.refused}"
    if diff.not_compared:
        yield f"columns that are not compared: {', '.join(diff.not_compared)}"
    if diff.unreadable:
        yield (
            f"{diff.unreadable} rows of the source cannot be compared: a value does not fit the target's "
            "column. To see which column, run a snapshot of the table (`tidesink snapshot start TABLE`)"
        )
    for difference in diff.shown:
        key = ", ".join(f"{name}={value}" for name, value in difference.key.items())
        columns = f" in {', '.join(difference.columns)}" if difference.columns else ""
        yield f"({key}) {_WORDS[difference.kind].format(side=side)}{columns}"
        for name, (here, there) in (difference.values or {}).items():
            yield f"  {name}: {_shown(here)} at the {side}, {_shown(there)} at the target"
    left = diff.different + diff.only_at_source + diff.only_at_target - len(diff.shown)
    if left:
        yield f"{left} more keys differ. Show more with --limit, or write all to a file with --report"
    if diff.unsettled:
        yield (
            f"{diff.unsettled} keys could not be compared for certain: they kept changing, or their changes "
            "are not applied yet. Run the comparison again later"
        )


def _shown(text: str | None) -> str:
    return "NULL" if text is None else repr(text)
