"""``tidesink cut``: lists a pipeline's cuts, and shows whether the table versions of a cut can still be read.

A cut is the state of all tables as of one commit_ts: it records, for each table, the version that contains
exactly the changes up to this commit_ts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from tidesink.cli import terminal
from tidesink.cli.status import cut_lines, cuts_of, shown_instant, shown_moment
from tidesink.cli.terminal import (
    ConfigOption,
    Output,
    OutputFormat,
    chosen_config,
    note,
    show_table,
    write_json,
)
from tidesink.config import Config
from tidesink.cuts import chosen, cut_log, started_spark
from tidesink.errors import TargetError

if TYPE_CHECKING:
    from tidesink.sinks.targets.cuts import CutTable
    from tidesink.sinks.targets.lake.cuts import Cut

app = typer.Typer(no_args_is_help=True, help="Cuts: the versions of all tables as of one commit time.")


def list_cuts(
    config_option: ConfigOption = None,
    *,
    limit: Annotated[int, typer.Option(min=1, help="Show the newest N cuts.")] = 20,
    output: Output = OutputFormat.TEXT,
) -> None:
    """List the stored cuts, newest first.

    The command also shows what the next cut waits for.
    """
    settings = chosen_config(None, config_option)
    note(f"{settings.pipeline}: starting Spark")
    with started_spark(settings) as spark:
        cuts = cut_log(spark, settings).cuts()
    waits = cuts_of(settings)
    if output is OutputFormat.JSON:
        shown = [
            {"commit_ts": cut.commit_ts, "time": cut.time.isoformat(), "published": cut.published.isoformat()}
            | {"tables": len(cut.tables)}
            for cut in cuts[:limit]
        ]
        write_json({"pipeline": settings.pipeline, "cuts": shown, "next": msgspec.to_builtins(waits)})
        return
    rows = [
        (cut.commit_ts, shown_instant(cut.time), shown_moment(cut.published), len(cut.tables))
        for cut in cuts[:limit]
    ]
    show_table(None, ("commit_ts", "time", "published", "tables"), rows)
    if len(cuts) > limit:
        typer.echo(f"{len(cuts) - limit} older cuts are not listed. Show more with --limit")
    for line in cut_lines(waits):
        typer.echo(line)


def show(
    at: Annotated[
        str | None,
        typer.Argument(help="A commit_ts or time (UTC); shows the newest cut at or before it."),
    ] = None,
    config_option: ConfigOption = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show the version of each table in a cut.

    The command also shows whether each version can still be read. The default is the newest cut. The exit
    code is 3 if a table's version can no longer be read.
    """
    settings = chosen_config(None, config_option)
    note(f"{settings.pipeline}: starting Spark")
    with started_spark(settings) as spark:
        log = cut_log(spark, settings)
        cut = chosen(log.cuts(), at)
        unreadable: dict[CutTable, str] = {}
        tags: dict[CutTable, str] = {}
        from tidesink.sinks.targets.lake.cuts import frame_of

        for cut_table in cut.tables:
            try:
                frame_of(log, cut_table)
                tags[cut_table] = log.tag_of(cut_table) or ""
            except TargetError as exc:
                unreadable[cut_table] = exc.message
    if output is OutputFormat.JSON:
        write_json(_as_json(settings, cut, unreadable, tags))
    else:
        typer.echo(
            f"cut {cut.commit_ts}: {shown_instant(cut.time)} UTC, published {shown_moment(cut.published)}"
        )
        rows = [
            (
                str(cut_table.table),
                cut_table.place,
                cut_table.version,
                "" if cut_table.changes is None else cut_table.changes,
            )
            + ((tags.get(cut_table, ""),) if any(tags.values()) else ())
            for cut_table in cut.tables
        ]
        columns = ("table", "place", "version", "changes", "tag")
        show_table(None, columns if any(tags.values()) else columns[:-1], rows)
        for table, reason in unreadable.items():
            typer.echo(f"{table.table}: {reason}")
    if unreadable:
        raise typer.Exit(terminal.UNWELL)


def _as_json(
    config: Config, cut: Cut, unreadable: Mapping[CutTable, str], tags: Mapping[CutTable, str]
) -> dict[str, Any]:
    tables = [
        {
            "table": table.table._asdict(),
            "place": table.place,
            "version": table.version,
            "changes": table.changes,
        }
        | {"tag": tags.get(table) or None, "gone": unreadable.get(table)}
        for table in cut.tables
    ]
    moments = {"time": cut.time.isoformat(), "published": cut.published.isoformat()}
    return {"pipeline": config.pipeline, "commit_ts": cut.commit_ts, **moments, "tables": tables}


app.command("list")(terminal.guarded(list_cuts))
app.command("show")(terminal.guarded(show))
