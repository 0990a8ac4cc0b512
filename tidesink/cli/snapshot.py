"""``tidesink snapshot`` and ``resync``: request, pause, resume and cancel snapshots, and show their progress.

Requests are written to the state store. The worker reads them at its next turn, as with ``tidesink pause``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from tidesink.cli import terminal
from tidesink.cli.status import (
    Tables,
    deletes_text,
    known_table,
    read_statuses,
    snapshots_asked_for,
    worked_with,
    worker_is_alive,
)
from tidesink.cli.terminal import (
    ConfigArgument,
    ConfigOption,
    Output,
    OutputFormat,
    chosen_config,
    note,
    show_table,
    write_json,
)
from tidesink.config import Config
from tidesink.config.table_checks import may_load_quiet_tables, snapshot_obstacle, topic_without_records
from tidesink.errors import ConfigError
from tidesink.events import fold_name

if TYPE_CHECKING:
    from tidesink.events import TableId
    from tidesink.sinks.state.progress import StateStore, TableStatus
    from tidesink.sinks.worker.asked_keys import AskedKeys
    from tidesink.sinks.worker.control import SnapshotControl
    from tidesink.source_database.key_bounds import Bound

app = typer.Typer(no_args_is_help=True, help="Read tables from the source's database while they change.")


# A function that changes the request to a table's snapshots. Arguments: the request so far, and the number of
# the last snapshot in the table's status.
Change = Callable[["SnapshotControl", int], "SnapshotControl"]
Where = Annotated[
    str | None,
    typer.Option(
        help="Only a range of the source's key, such as 'id >= 100 and id < 200'; for integers, decimals, "
        "dates and times."
    ),
]


def start(
    tables: Tables,
    config_option: ConfigOption = None,
    *,
    where: Where = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Read all rows of tables from source.database.

    Their changes are applied meanwhile. A running snapshot begins again. Rows that the source no longer has
    stay at the target.
    """
    settings, now = _startable(config_option), time.time()
    word = "snapshot requested"
    if where is not None:
        _start_within(settings, tables, where, _Start(now, deletes=False), output, word)
        return
    _ask(settings, tables, lambda asked, last: asked.start(now, last=last), output, word, _refuse)


def resync(
    tables: Tables,
    config_option: ConfigOption = None,
    *,
    differing: Annotated[
        Path | None,
        typer.Option(help="Repair only the keys in this report of tidesink diff (diff --report)."),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key",
            help="Repair only this key, by its columns at the source, such as 'id=17' or 'region=a,id=17'; "
            "repeatable.",
        ),
    ] = None,
    where: Where = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Repair tables at the target from source.database.

    All rows of the source are written again, and rows that it does not have are deleted. The tables'
    changes are applied meanwhile. A resync is a snapshot with a second phase: `tidesink snapshot status`
    shows its progress, and `tidesink snapshot pause`, `resume` and `cancel` apply to it too.
    """
    settings, now = _startable(config_option), time.time()
    word = "resync requested"
    if sum(one is not None for one in (differing, key or None, where)) > 1:
        raise ConfigError("Give only one of --differing, --key and --where.", key="--where")
    if key:
        _resync_given(settings, tables, key, output, now)
    elif differing is not None:
        _resync_keys(settings, tables, differing, output, now)
    elif where is not None:
        _start_within(settings, tables, where, _Start(now, deletes=True), output, word)
    else:
        start = _Start(now, deletes=True)
        _ask(settings, tables, start.of, output, word, _refuse_resync)


def _startable(config_option: Path | None) -> Config:
    """Return the config, after checking that its tables can have snapshots."""
    settings = chosen_config(None, config_option)
    if settings.source.database is None:
        raise ConfigError("A snapshot is read from source.database, which is not set.", key="source.database")
    return settings


class _Start(NamedTuple):
    """A requested snapshot or resync: of some ``keys``, of a range (``where``), or of all rows."""

    now: float
    deletes: bool
    keys: str | None = None
    where: tuple[Bound, ...] = ()

    def of(self, asked: SnapshotControl, last: int) -> SnapshotControl:
        """Return the request with this snapshot in it."""
        return asked.start(self.now, last=last, deletes=self.deletes, keys=self.keys, where=self.where)

    def refuse(self, config: Config, store: StateStore, status: TableStatus | None, table: TableId) -> None:
        """Refuse a table for which it is not possible."""
        (_refuse_resync if self.deletes else _refuse)(config, table)
        if status is not None:
            _refuse_unfinished(status)
        _refuse_unbegun(config, store, status.batch if status is not None else 0, table)


def _start_within(
    config: Config, names: list[str], where: str, start: _Start, output: OutputFormat, word: str
) -> None:
    """Request a snapshot or resync within bounds, after asking the source's database about them."""
    from tidesink.sinks.worker.snapshot import open_source_database
    from tidesink.source_database.key_bounds import checked_bounds, parse_bounds

    bounds = parse_bounds(where)
    with worked_with(config) as store:
        statuses = {one.table: one for one in store.statuses(config.pipeline)}
        tables = _named(names, config, store, starts=True)
        for table in tables:
            start.refuse(config, store, statuses.get(table), table)
        with open_source_database(config) as database:
            found = {table: checked_bounds(bounds, database.table(table)) for table in tables}
        for table in tables:
            _change(store, config, table, start._replace(where=found[table]).of)
    _tell(config, tables, output, f"{word} where {' and '.join(map(str, bounds))}")


def _resync_keys(config: Config, names: list[str], report: Path, output: OutputFormat, now: float) -> None:
    """Request a resync of the keys in a report. Tables without keys in it are skipped."""
    from tidesink.sinks.worker.asked_keys import read_report

    start = _Start(now, deletes=True)
    with worked_with(config) as store:
        statuses = {one.table: one for one in store.statuses(config.pipeline)}
        tables = _named(names, config, store, starts=False)
        for table in tables:
            start.refuse(config, store, statuses.get(table), table)
        reported = read_report(report, tables)
        asked = [table for table in tables if table in reported and reported[table].asked.keys]
        for table in asked:
            _ask_keys(store, config, start, table, reported[table].asked)
    for table in tables:
        if table not in asked:
            note(f"{table}: {report} has no key of it that could be repaired")
        elif nulls := reported[table].nulls:
            note(f"{table}: {nulls} keys with a NULL are left unchanged")
    _tell(config, asked, output, "resync of the report's keys requested")


def _resync_given(
    config: Config, names: list[str], given: list[str], output: OutputFormat, now: float
) -> None:
    """Request a resync of the keys on the command line.

    Their columns are looked up in the source's database.
    """
    from tidesink.sinks.worker.asked_keys import given_keys
    from tidesink.sinks.worker.snapshot import open_source_database

    start = _Start(now, deletes=True)
    with worked_with(config) as store:
        statuses = {one.table: one for one in store.statuses(config.pipeline)}
        tables = _named(names, config, store, starts=False)
        if len(tables) > 1:
            raise ConfigError("A key belongs to one table. Name a single table with --key.", key="--key")
        for table in tables:
            start.refuse(config, store, statuses.get(table), table)
            with open_source_database(config) as database:
                asked = given_keys(config, table, database.table(table), given)
            _ask_keys(store, config, start, table, asked)
    _tell(config, tables, output, f"resync of {len(asked.keys)} keys requested")


def _ask_keys(store: StateStore, config: Config, start: _Start, table: TableId, asked: AskedKeys) -> None:
    """Request some keys of a table, replacing the keys of the last request."""
    from tidesink.sinks.worker.asked_keys import forget_keys, store_keys

    name = store_keys(store, config.pipeline, table, asked)
    before = _change(store, config, table, start._replace(keys=name).of)
    if before.keys not in (None, name) and not _is_begun(store, config, table, before):
        forget_keys(store, before.keys or "")


def _is_begun(store: StateStore, config: Config, table: TableId, asked: SnapshotControl) -> bool:
    """Returns True if a worker may have begun the request: replays of dead letters check its keys."""
    status = store.status_of(config.pipeline, table)
    batch = status.batch if status is not None else 0
    progress = store.progress_of_batch(config.pipeline, table, batch) if batch else None
    if progress is None:
        return batch > 0
    return progress.snapshot is not None and progress.snapshot.number >= asked.started


def _refuse_unfinished(status: TableStatus) -> None:
    """Refuse a table whose unfinished snapshot would be lost."""
    state = status.details.get("snapshot", {}).get("state", "done")
    if state not in ("done", "cancelled"):
        raise ConfigError(
            f"A snapshot or resync of {status.table} has not finished ({state}). Wait until it has, or "
            "cancel it (tidesink snapshot cancel).",
            table=str(status.table),
        )


def _refuse_unbegun(config: Config, store: StateStore, batch: int, table: TableId) -> None:
    """Refuse a table with a request for all rows that no worker has begun: no status shows it yet."""
    from tidesink.sinks.worker.control import NOTHING_ASKED, read_controls

    asked = read_controls(store, config.pipeline).get(table, NOTHING_ASKED).snapshot
    if asked.limited or not asked.is_asked:
        return
    progress = store.progress_of_batch(config.pipeline, table, batch) if batch else None
    found = progress.snapshot if progress is not None else None
    forgotten = batch > 0 and progress is None
    if forgotten or (found is not None and found.number >= asked.started):
        return
    raise ConfigError(
        f"A snapshot or resync of all rows of {table} is requested, and no worker has begun it. Let a worker "
        "do it, or cancel it (tidesink snapshot cancel).",
        table=str(table),
    )


def pause(tables: Tables, config_option: ConfigOption = None, output: Output = OutputFormat.TEXT) -> None:
    """Pause snapshots after their current batch. Changes of the tables are still applied."""
    settings = chosen_config(None, config_option)
    _ask(settings, tables, lambda asked, _: replace(asked, rests=True), output, "snapshot will be paused")


def resume(tables: Tables, config_option: ConfigOption = None, output: Output = OutputFormat.TEXT) -> None:
    """Resume paused snapshots.

    They continue after the last applied row.
    """
    settings = chosen_config(None, config_option)
    _ask(settings, tables, lambda asked, _: replace(asked, rests=False), output, "snapshot continues")


def cancel(tables: Tables, config_option: ConfigOption = None, output: Output = OutputFormat.TEXT) -> None:
    """Cancel snapshots. The rows that were applied stay."""
    settings = chosen_config(None, config_option)
    _ask(settings, tables, lambda asked, last: asked.cancel(last=last), output, "snapshot cancelled")


def status(
    config: ConfigArgument = None, config_option: ConfigOption = None, output: Output = OutputFormat.TEXT
) -> None:
    """Show the progress of the tables' snapshots."""
    settings = chosen_config(config, config_option)
    statuses = read_statuses(settings)
    found = {one.table: one.details["snapshot"] for one in statuses if "snapshot" in one.details}
    for table in snapshots_asked_for(settings):
        if all(one.table != table for one in statuses):
            # No worker has seen the table yet: no record names it.
            found[table] = {"state": "asked for", "rows": 0, "estimate": None}
    if output is OutputFormat.JSON:
        tables = [{"table": table._asdict(), **shown} for table, shown in found.items()]
        write_json({"pipeline": settings.pipeline, "tables": tables})
    elif not found:
        terminal.echo("no table has a snapshot: tidesink snapshot start, or snapshot: initial in the config")
    else:
        columns = ("table", "snapshot", "range", "rows", "of about", "deletes")
        show_table(None, columns, [_row(*one) for one in found.items()])


def _row(table: TableId, shown: Mapping[str, Any]) -> tuple[Any, ...]:
    estimate = shown["estimate"]
    return (
        str(table),
        shown["state"],
        shown.get("where", ""),
        shown["rows"],
        "" if estimate is None else estimate,
        deletes_text(shown),
    )


def _ask(
    config: Config,
    names: list[str],
    change: Change,
    output: OutputFormat,
    word: str,
    refuse: Callable[[Config, TableId], None] | None = None,
) -> None:
    """Change the request to each table's snapshots. If one of the tables refuses it, nothing is changed."""
    with worked_with(config) as store:
        tables = _named(names, config, store, starts=refuse is not None)
        if refuse is not None:
            for table in tables:
                refuse(config, table)
        for table in tables:
            _change(store, config, table, change)
    _tell(config, tables, output, word)


def _named(names: Sequence[str], config: Config, store: StateStore, *, starts: bool) -> list[TableId]:
    """Return the tables with these names. ``starts``: also look in the database for tables without records.

    Raises:
        ConfigError: a table does not exist.
    """
    from tidesink.sinks.worker.control import read_controls

    pipeline = config.pipeline
    known = [*(one.table for one in store.statuses(pipeline)), *read_controls(store, pipeline)]
    found = []
    for name in dict.fromkeys(names):
        try:
            found.append(known_table(name, config, known))
        except ConfigError:
            table = _quiet_table(name, config) if starts else None
            if table is None:
                raise
            found.append(table)
    return found


def _quiet_table(name: str, config: Config) -> TableId | None:
    """Return a table of the database that a worker can load without a record, or None."""
    from tidesink.sinks.worker.look_ups import tables_of_database

    if not may_load_quiet_tables(config):
        return None
    stored = {fold_name(str(table)): table for table in tables_of_database(config)}
    table = stored.get(fold_name(name))
    return table if table is not None and topic_without_records(config, table) is not None else None


def _change(store: StateStore, config: Config, table: TableId, change: Change) -> SnapshotControl:
    """Change the request to a table's snapshots. Returns the former request."""
    from tidesink.sinks.worker.control import SnapshotControl, TableControl, change_control

    before = SnapshotControl()
    status = store.status_of(config.pipeline, table)
    last = status.details.get("snapshot", {}).get("number", 0) if status is not None else 0

    def changed(asked: TableControl) -> TableControl:
        nonlocal before
        before = asked.snapshot
        return replace(asked, snapshot=change(before, last))

    change_control(store, config.pipeline, table, changed)
    return before


def _tell(config: Config, tables: Sequence[TableId], output: OutputFormat, word: str) -> None:
    """Show what was requested for tables, and whether a worker runs."""
    alive = worker_is_alive(config)
    if output is OutputFormat.JSON:
        shown = [table._asdict() for table in tables]
        write_json({"pipeline": config.pipeline, "worker_alive": alive, "asked": word, "tables": shown})
        return
    for table in tables:
        typer.echo(f"{table}: {word}")
    if not tables:
        return
    typer.echo(
        "a worker is alive and handles the request at its next turn"
        if alive
        else "no worker runs. The next one handles the request"
    )


def _refuse(config: Config, table: TableId) -> None:
    obstacle = snapshot_obstacle(config)
    if obstacle is not None:
        raise ConfigError(f"{table} cannot have a snapshot: {obstacle}", table=str(table))


_NO_RESYNC: Final[Mapping[str, str]] = {
    "append": "a log (mode: append) stores rows that the source no longer has. `tidesink snapshot start` "
    "appends the rows that the source has.",
    "history": "a history (mode: history) consists of changes, and a row that is read neither corrects nor "
    "ends a version. `tidesink snapshot start` adds the rows that no change has.",
}


def _refuse_resync(config: Config, table: TableId) -> None:
    _refuse(config, table)
    reason = _NO_RESYNC.get(config.table_config(table).mode)
    if reason is not None:
        raise ConfigError(f"{table} cannot have a resync: {reason}", table=str(table))


for _name, _command in (
    ("start", start),
    ("status", status),
    ("pause", pause),
    ("resume", resume),
    ("cancel", cancel),
):
    app.command(_name)(terminal.guarded(_command))
