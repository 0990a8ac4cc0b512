"""``tidesink status``: how each table stands, from the worker's state store."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tidesink.change import physical_ms
from tidesink.cli import exits
from tidesink.cli.options import ConfigArgument, ConfigOption, chosen_config
from tidesink.cli.output import Output, OutputFormat, console, table, write_json
from tidesink.config import Config

if TYPE_CHECKING:
    from tidesink.sinks.state_store import TableStatus

UNWELL_STATES = frozenset({"PAUSED", "FAILING"})


def status(
    config: ConfigArgument = None, config_option: ConfigOption = None, output: Output = OutputFormat.TEXT
) -> None:
    """How each table stands. Exit code 3 where some table is paused or failing."""
    settings = chosen_config(config, config_option)
    found = read_statuses(settings)
    if output is OutputFormat.JSON:
        write_json({"pipeline": settings.pipeline, "tables": [status_json(entry) for entry in found]})
    else:
        show_statuses(found)
    if any(entry.state in UNWELL_STATES for entry in found):
        raise typer.Exit(exits.UNWELL)


def read_statuses(config: Config) -> tuple[TableStatus, ...]:
    """The status rows of a pipeline; empty before its first run."""
    from tidesink.sinks.state_store import open_state_store

    if "://" not in config.state and not Path(config.state).exists():
        return ()
    store = open_state_store(config.state)
    try:
        return store.statuses(config.pipeline)
    finally:
        store.close()


def status_json(entry: TableStatus) -> dict[str, Any]:
    """A status row as JSON."""
    shown = dataclasses.asdict(entry)
    shown["table"] = {"schema": entry.table.schema, "name": entry.table.name}
    shown["updated"] = entry.updated.isoformat() if entry.updated else None
    return shown


def show_statuses(found: tuple[TableStatus, ...]) -> None:
    """Status rows for people."""
    if not found:
        typer.echo("no table has been worked on yet: tidesink run starts the worker")
        return
    columns = ("table", "state", "batch", "last commit", "read", "applied", "dead letters", "updated")
    console().print(table(None, columns, [_row(entry) for entry in found]))
    for entry in found:
        for line in _remarks(entry):
            typer.echo(f"{entry.table}: {line}")


def _row(entry: TableStatus) -> tuple[Any, ...]:
    counters = entry.counters
    return (
        str(entry.table),
        entry.state,
        entry.batch,
        commit_time(entry.commit_ts),
        counters.get("read", 0),
        counters.get("applied", 0),
        counters.get("dead_lettered", 0),
        entry.updated.strftime("%Y-%m-%d %H:%M:%S") if entry.updated else "",
    )


def _remarks(entry: TableStatus) -> list[str]:
    remarks = [f"error: {entry.error}"] if entry.error else []
    remarks += [f"warning: {warning}" for warning in entry.warnings]
    remarks += [
        f"{count} dates of column {column} that no calendar has became NULL (zero-date: null)"
        for column, count in entry.zero_dates.items()
        if count
    ]
    return remarks


def commit_time(commit_ts: int | None) -> str:
    """The wall clock of a TiDB TSO in UTC, or an empty text."""
    if commit_ts is None:
        return ""
    moment = datetime.fromtimestamp(physical_ms(commit_ts) / 1000, timezone.utc)
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{physical_ms(commit_ts) % 1000:03d}"
