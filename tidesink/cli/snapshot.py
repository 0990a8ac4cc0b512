"""``tidesink snapshot``: start, pause, resume and cancel the snapshots of tables, and see how far they are.

What is asked goes to the state store, and the worker heeds it at its next turn, as with ``tidesink pause``.
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


# Makes of what is asked of a table's snapshots, and the number of the last that its status shows, what is
# asked from now on.
Change = Callable[["SnapshotControl", int], "SnapshotControl"]
Where = Annotated[
    str | None,
    typer.Option(
        help="Only a range of the source's key, such as 'id >= 100 and id < 200': integers, decimals, dates "
        "and times."
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

    Their changes are applied meanwhile. A snapshot that is under way begins again. Rows that the source
    does not have any more stay at the target.
    """
    settings, now = _startable(config_option), time.time()
    word = "snapshot asked for"
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
        typer.Option(help="Repair only the keys that this report of tidesink diff names (diff --report)."),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key",
            help="Repair only this key, by its columns at the source, such as 'id=17' or 'region=a,id=17'. "
            "Several may be given.",
        ),
    ] = None,
    where: Where = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Repair tables at the target from source.database.

    All rows of the source are written again, and rows that it does not have are deleted. The tables'
    changes are applied meanwhile. It is a snapshot with a second phase, so that tidesink snapshot status
    shows how far it is, and tidesink snapshot pause, resume and cancel are for it too.
    """
    settings, now = _startable(config_option), time.time()
    word = "resync asked for"
    if sum(one is not None for one in (differing, key or None, where)) > 1:
        raise ConfigError("give one of --differing, --key and --where", key="--where")
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
    """The config, whose tables may have snapshots."""
    settings = chosen_config(None, config_option)
    if settings.source.database is None:
        raise ConfigError("a snapshot is read from source.database, which is not set", key="source.database")
    return settings


class _Start(NamedTuple):
    """A snapshot or resync to ask for: of some ``keys``, of a range (``where``), or of all rows."""

    now: float
    deletes: bool
    keys: str | None = None
    where: tuple[Bound, ...] = ()

    def of(self, asked: SnapshotControl, last: int) -> SnapshotControl:
        """What is asked once it is."""
        return asked.start(self.now, last=last, deletes=self.deletes, keys=self.keys, where=self.where)

    def refuse(self, config: Config, store: StateStore, status: TableStatus | None, table: TableId) -> None:
        """Refuse a table that cannot have it."""
        (_refuse_resync if self.deletes else _refuse)(config, table)
        if status is not None:
            _refuse_unfinished(status)
        _refuse_unbegun(config, store, status.batch if status is not None else 0, table)


def _start_within(
    config: Config, names: list[str], where: str, start: _Start, output: OutputFormat, word: str
) -> None:
    """Ask for a snapshot or resync within bounds, which the source's database is asked about."""
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
    """Ask for a resync of the keys that a report names; of a table that it does not name for none."""
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
            note(f"{table}: {report} names no key of it that could be repaired")
        elif nulls := reported[table].nulls:
            note(f"{table}: {nulls} keys with a NULL are left alone")
    _tell(config, asked, output, "resync of the report's keys asked for")


def _resync_given(
    config: Config, names: list[str], given: list[str], output: OutputFormat, now: float
) -> None:
    """Ask for a resync of keys that are given by hand, whose columns the source's database knows."""
    from tidesink.sinks.worker.asked_keys import given_keys
    from tidesink.sinks.worker.snapshot import open_source_database

    start = _Start(now, deletes=True)
    with worked_with(config) as store:
        statuses = {one.table: one for one in store.statuses(config.pipeline)}
        tables = _named(names, config, store, starts=False)
        if len(tables) > 1:
            raise ConfigError("a key is one of one table: name a single table with --key", key="--key")
        for table in tables:
            start.refuse(config, store, statuses.get(table), table)
            with open_source_database(config) as database:
                asked = given_keys(config, table, database.table(table), given)
            _ask_keys(store, config, start, table, asked)
    _tell(config, tables, output, f"resync of {len(asked.keys)} keys asked for")


def _ask_keys(store: StateStore, config: Config, start: _Start, table: TableId, asked: AskedKeys) -> None:
    """Ask for some keys of a table, in place of those that were asked for before."""
    from tidesink.sinks.worker.asked_keys import forget_keys, store_keys

    name = store_keys(store, config.pipeline, table, asked)
    before = _change(store, config, table, start._replace(keys=name).of)
    if before.keys not in (None, name) and not _is_begun(store, config, table, before):
        forget_keys(store, before.keys or "")


def _is_begun(store: StateStore, config: Config, table: TableId, asked: SnapshotControl) -> bool:
    """Whether a worker may have begun what was asked for: a replay of dead letters asks for its keys."""
    status = store.status_of(config.pipeline, table)
    batch = status.batch if status is not None else 0
    progress = store.progress_of_batch(config.pipeline, table, batch) if batch else None
    if progress is None:
        return batch > 0
    return progress.snapshot is not None and progress.snapshot.number >= asked.started


def _refuse_unfinished(status: TableStatus) -> None:
    """Refuse a table whose snapshot would not go on."""
    state = status.details.get("snapshot", {}).get("state", "done")
    if state not in ("done", "cancelled"):
        raise ConfigError(
            f"a snapshot or resync of {status.table} is not over ({state}): wait until it is, or cancel it "
            "(tidesink snapshot cancel)",
            table=str(status.table),
        )


def _refuse_unbegun(config: Config, store: StateStore, batch: int, table: TableId) -> None:
    """Refuse a table of which all rows are asked for, and no worker has begun: nothing else knows of that."""
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
        f"a snapshot or resync of all rows of {table} is asked for, and no worker has begun it: let one do "
        "it, or cancel it (tidesink snapshot cancel)",
        table=str(table),
    )


def pause(tables: Tables, config_option: ConfigOption = None, output: Output = OutputFormat.TEXT) -> None:
    """Pause snapshots after their current batch. Changes of the tables are still applied."""
    settings = chosen_config(None, config_option)
    _ask(settings, tables, lambda asked, _: replace(asked, rests=True), output, "snapshot rests")


def resume(tables: Tables, config_option: ConfigOption = None, output: Output = OutputFormat.TEXT) -> None:
    """Go on with snapshots that were paused.

    They go on behind the last row that was applied.
    """
    settings = chosen_config(None, config_option)
    _ask(settings, tables, lambda asked, _: replace(asked, rests=False), output, "snapshot goes on")


def cancel(tables: Tables, config_option: ConfigOption = None, output: Output = OutputFormat.TEXT) -> None:
    """End snapshots where they are. The rows that were applied stay."""
    settings = chosen_config(None, config_option)
    _ask(settings, tables, lambda asked, last: asked.cancel(last=last), output, "snapshot cancelled")


def status(
    config: ConfigArgument = None, config_option: ConfigOption = None, output: Output = OutputFormat.TEXT
) -> None:
    """Show how far the snapshots of tables are."""
    settings = chosen_config(config, config_option)
    statuses = read_statuses(settings)
    found = {one.table: one.details["snapshot"] for one in statuses if "snapshot" in one.details}
    for table in snapshots_asked_for(settings):
        if all(one.table != table for one in statuses):
            # No worker has met it: no record names it.
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
    """Ask something of each table's snapshot; of none where one of them cannot be asked."""
    with worked_with(config) as store:
        tables = _named(names, config, store, starts=refuse is not None)
        if refuse is not None:
            for table in tables:
                refuse(config, table)
        for table in tables:
            _change(store, config, table, change)
    _tell(config, tables, output, word)


def _named(names: Sequence[str], config: Config, store: StateStore, *, starts: bool) -> list[TableId]:
    """The tables of names; ``starts``: one that no record has named yet may be one of the database's.

    Raises:
        ConfigError: there is no such table.
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
    """A table of the database that a worker can load though no record names it; None: there is none."""
    from tidesink.sinks.worker.look_ups import tables_of_database

    if not may_load_quiet_tables(config):
        return None
    stored = {fold_name(str(table)): table for table in tables_of_database(config)}
    table = stored.get(fold_name(name))
    return table if table is not None and topic_without_records(config, table) is not None else None


def _change(store: StateStore, config: Config, table: TableId, change: Change) -> SnapshotControl:
    """Ask something else of a table's snapshots; what was asked before."""
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
    """Say what was asked of tables, and whether a worker heeds it."""
    alive = worker_is_alive(config)
    if output is OutputFormat.JSON:
        shown = [table._asdict() for table in tables]
        write_json({"pipeline": config.pipeline, "worker_alive": alive, "asked": word, "tables": shown})
        return
    for table in tables:
        typer.echo(f"{table}: {word}")
    if not tables:
        return
    typer.echo("a worker is alive and heeds it at its next turn" if alive else "the next worker heeds it")


def _refuse(config: Config, table: TableId) -> None:
    obstacle = snapshot_obstacle(config)
    if obstacle is not None:
        raise ConfigError(f"{table} cannot have a snapshot: {obstacle}", table=str(table))


_NO_RESYNC: Final[Mapping[str, str]] = {
    "append": "a log (mode: append) keeps the rows that the source has no more. tidesink snapshot start "
    "appends the rows that the source has",
    "history": "a history (mode: history) is made of changes, and a row that is read neither corrects nor "
    "ends a version. tidesink snapshot start brings the rows that no change tells of",
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
