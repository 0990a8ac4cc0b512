"""``tidesink snapshot``: start, pause, resume and cancel the snapshots of tables, and see how far they are.

What is asked goes to the state store, and the worker heeds it at its next turn, as with ``tidesink pause``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tidesink.cli import terminal
from tidesink.cli.status import (
    Tables,
    deletes_text,
    known_table,
    read_statuses,
    worked_with,
    worker_is_alive,
)
from tidesink.cli.terminal import (
    ConfigArgument,
    ConfigOption,
    Output,
    OutputFormat,
    chosen_config,
    show_table,
    write_json,
)
from tidesink.config import Config
from tidesink.config.table_checks import snapshot_obstacle
from tidesink.errors import ConfigError

if TYPE_CHECKING:
    from tidesink.events import TableId
    from tidesink.sinks.worker.control import SnapshotControl

app = typer.Typer(no_args_is_help=True, help="Read tables from the source's database while they change.")


def start(tables: Tables, config_option: ConfigOption = None, output: Output = OutputFormat.TEXT) -> None:
    """Read all rows of tables from source.database, beside their changes.

    A snapshot that is under way begins again. Rows that the source does not have any more stay at the target.
    """
    _start(tables, config_option, output, "snapshot asked for", deletes=False)


def resync(tables: Tables, config_option: ConfigOption = None, output: Output = OutputFormat.TEXT) -> None:
    """Repair tables at the target: write all rows of source.database again, and delete what it has not.

    The tables' changes are applied meanwhile. It is a snapshot with a second phase, so that tidesink snapshot
    status shows how far it is, and tidesink snapshot pause, resume and cancel are for it too.
    """
    _start(tables, config_option, output, "resync asked for", deletes=True)


def _start(
    tables: list[str], config_option: Path | None, output: OutputFormat, word: str, *, deletes: bool
) -> None:
    now = time.time()
    settings = chosen_config(None, config_option)
    if settings.source.database is None:
        raise ConfigError("a snapshot is read from source.database, which is not set", key="source.database")
    if settings.cuts is not None:
        raise ConfigError(
            "a snapshot reads rows as of now, which are later than the cuts: remove cuts, and add them again "
            "when it is done",
            key="cuts",
        )
    refuse = _refuse_resync if deletes else _refuse
    _ask(settings, tables, lambda asked: asked.start(now, deletes=deletes), output, word, refuse)


def pause(tables: Tables, config_option: ConfigOption = None, output: Output = OutputFormat.TEXT) -> None:
    """Pause snapshots after their current batch. Changes of the tables are still applied."""
    settings = chosen_config(None, config_option)
    _ask(settings, tables, lambda asked: replace(asked, rests=True), output, "snapshot rests")


def resume(tables: Tables, config_option: ConfigOption = None, output: Output = OutputFormat.TEXT) -> None:
    """Go on with snapshots that were paused, behind the last row that was applied."""
    settings = chosen_config(None, config_option)
    _ask(settings, tables, lambda asked: replace(asked, rests=False), output, "snapshot goes on")


def cancel(tables: Tables, config_option: ConfigOption = None, output: Output = OutputFormat.TEXT) -> None:
    """End snapshots where they are. The rows that were applied stay."""
    settings = chosen_config(None, config_option)
    _ask(settings, tables, lambda asked: asked.cancel(), output, "snapshot cancelled")


def status(
    config: ConfigArgument = None, config_option: ConfigOption = None, output: Output = OutputFormat.TEXT
) -> None:
    """Show how far the snapshots of tables are."""
    settings = chosen_config(config, config_option)
    found = {
        one.table: one.details["snapshot"] for one in read_statuses(settings) if "snapshot" in one.details
    }
    if output is OutputFormat.JSON:
        tables = [{"table": table._asdict(), **shown} for table, shown in found.items()]
        write_json({"pipeline": settings.pipeline, "tables": tables})
    elif not found:
        typer.echo("no table has a snapshot: tidesink snapshot start, or snapshot: initial in the config")
    else:
        columns = ("table", "snapshot", "rows", "of about", "deletes")
        show_table(None, columns, [_row(*one) for one in found.items()])


def _row(table: TableId, shown: Mapping[str, Any]) -> tuple[Any, ...]:
    estimate = shown["estimate"]
    return (
        str(table),
        shown["state"],
        shown["rows"],
        "" if estimate is None else estimate,
        deletes_text(shown),
    )


def _ask(
    config: Config,
    names: list[str],
    change: Callable[[SnapshotControl], SnapshotControl],
    output: OutputFormat,
    word: str,
    refuse: Callable[[Config, TableId], None] | None = None,
) -> None:
    """Ask something of each table's snapshot; of none where one of them cannot be asked."""
    from tidesink.sinks.worker.control import change_control

    with worked_with(config) as store:
        found = [one.table for one in store.statuses(config.pipeline)]
        tables = [known_table(name, config, found) for name in dict.fromkeys(names)]
        if refuse is not None:
            for table in tables:
                refuse(config, table)
        for table in tables:
            change_control(
                store, config.pipeline, table, lambda asked: replace(asked, snapshot=change(asked.snapshot))
            )
    alive = worker_is_alive(config)
    if output is OutputFormat.JSON:
        shown = [table._asdict() for table in tables]
        write_json({"pipeline": config.pipeline, "worker_alive": alive, "asked": word, "tables": shown})
        return
    for table in tables:
        typer.echo(f"{table}: {word}")
    typer.echo("a worker is alive and heeds it at its next turn" if alive else "the next worker heeds it")


def _refuse(config: Config, table: TableId) -> None:
    settings = config.table_config(table)
    obstacle = snapshot_obstacle(config, settings.mode, settings.sequence_by)
    if obstacle is not None:
        raise ConfigError(f"{table} cannot have a snapshot: {obstacle}", table=str(table))


def _refuse_resync(config: Config, table: TableId) -> None:
    _refuse(config, table)
    if config.table_config(table).mode == "append":
        raise ConfigError(
            f"{table} cannot have a resync: a log (mode: append) keeps the rows that the source has no more. "
            "tidesink snapshot start appends the rows that the source has",
            table=str(table),
        )


for _name, _command in (
    ("start", start),
    ("status", status),
    ("pause", pause),
    ("resume", resume),
    ("cancel", cancel),
):
    app.command(_name)(terminal.guarded(_command))
