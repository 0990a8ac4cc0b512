"""``tidesink snapshot`` and ``resync``: request, pause, resume and cancel snapshots, and show their progress.

The commands write requests to the state store, and the worker handles them at its next turn.
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
    SnapshotRequest,
    Tables,
    deletes_text,
    is_begun,
    is_unbegun,
    known_table,
    last_number,
    last_progress,
    running_snapshot,
    snapshot_request,
    store_if_there,
    unbegun_snapshots,
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
    from tidesink.sinks.runtime.control import SnapshotControl, TableControl
    from tidesink.sinks.snapshots.asked_keys import AskedKeys
    from tidesink.sinks.state.progress import StateStore
    from tidesink.source_database.key_bounds import Bound

app = typer.Typer(no_args_is_help=True, help="Read tables from the source database while they change.")


# A function that changes the stored request for a table's snapshots. Arguments: the present request, and the
# number of the last snapshot in the table's status.
Change = Callable[["SnapshotControl", int], "SnapshotControl"]
Where = Annotated[
    str | None,
    typer.Option(
        help="Only rows in this range of the source table's key, such as 'id >= 100 and id < 200'; for key "
        "columns that are integers, decimals, dates or times."
    ),
]


def start(
    tables: Tables,
    config_option: ConfigOption = None,
    *,
    where: Where = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Read all rows of tables from source.database again.

    The rows are written to the target. The worker applies the tables' changes meanwhile. A snapshot that is
    already running begins again. Rows that the source no longer has stay in the target; `tidesink resync`
    deletes them.
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
            help="Repair only the row with this key at the source, such as 'id=17' or 'region=a,id=17'; "
            "repeatable.",
        ),
    ] = None,
    where: Where = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Repair tables at the target from source.database.

    The worker writes all rows of the source again, and deletes the rows that the source does not have. It
    applies the tables' changes meanwhile. A resync is a snapshot with a second phase for the deletes:
    `tidesink snapshot status` shows its progress, and `tidesink snapshot pause`, `resume` and `cancel` apply
    to it too.
    """
    settings, now = _startable(config_option), time.time()
    word = "resync requested"
    if sum(option is not None for option in (differing, key or None, where)) > 1:
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
    """Load the config, and check that it sets source.database, from which snapshots are read.

    Raises:
        ConfigError: the config is wrong, or does not set source.database.
    """
    settings = chosen_config(None, config_option)
    if settings.source.database is None:
        raise ConfigError(
            "A snapshot is read from source.database, which is not set. Set it in the config.",
            key="source.database",
        )
    return settings


class _Start(NamedTuple):
    """A snapshot or resync to request: of some ``keys``, of a key range (``where``), or of all rows."""

    now: float
    deletes: bool
    keys: str | None = None
    where: tuple[Bound, ...] = ()

    def of(self, asked: SnapshotControl, last: int) -> SnapshotControl:
        """Return a table's stored request, changed to ask for this snapshot.

        ``last``: number of the table's last snapshot.
        """
        return asked.start(self.now, last=last, deletes=self.deletes, keys=self.keys, where=self.where)

    def refuse(self, config: Config, store: StateStore, table: TableId) -> None:
        """Raise ConfigError if a snapshot or resync of some rows is not possible for a table.

        The rows need not be known yet.
        """
        (_refuse_resync if self.deletes else _refuse)(config, table)
        limited = self if self.keys is not None or self.where else self._replace(keys="")
        _check_contradiction(store, config, table, limited.of)


def _start_within(
    config: Config, names: list[str], where: str, start: _Start, output: OutputFormat, word: str
) -> None:
    """Request a snapshot or resync of a key range, after checking ``where`` against the source's key."""
    from tidesink.sinks.snapshots.parts import open_source_database
    from tidesink.source_database.key_bounds import checked_bounds, parse_bounds

    bounds = parse_bounds(where)
    with worked_with(config) as store:
        tables = _named(names, config, store, starts=True)
        for table in tables:
            start.refuse(config, store, table)
        with open_source_database(config) as database:
            ranges = {table: checked_bounds(bounds, database.table(table)) for table in tables}
        for table in tables:
            _change(store, config, table, start._replace(where=ranges[table]).of)
    _tell(config, tables, output, f"{word} where {' and '.join(map(str, bounds))}")


def _resync_keys(config: Config, names: list[str], report: Path, output: OutputFormat, now: float) -> None:
    """Request a resync of the keys in a report of ``tidesink diff``. Skips tables that have no key in it."""
    from tidesink.sinks.snapshots.asked_keys import read_report

    start = _Start(now, deletes=True)
    with worked_with(config) as store:
        tables = _named(names, config, store, starts=False)
        for table in tables:
            start.refuse(config, store, table)
        reported = read_report(report, tables)
        asked = [table for table in tables if table in reported and reported[table].asked.keys]
        for table in asked:
            _ask_keys(store, config, start, table, reported[table].asked)
    for table in tables:
        if table not in asked:
            note(f"{table}: {report} has no key of this table that could be repaired")
        elif nulls := reported[table].nulls:
            contain = "1 key contains" if nulls == 1 else f"{nulls} keys contain"
            note(f"{table}: {contain} NULL. Rows with NULL in the key are left unchanged")
    _tell(config, asked, output, "resync of the report's keys requested")


def _resync_given(
    config: Config, names: list[str], given: list[str], output: OutputFormat, now: float
) -> None:
    """Request a resync of the keys on the command line, whose columns are checked in the source database."""
    from tidesink.sinks.snapshots.asked_keys import given_keys
    from tidesink.sinks.snapshots.parts import open_source_database

    start = _Start(now, deletes=True)
    with worked_with(config) as store:
        tables = _named(names, config, store, starts=False)
        if len(tables) > 1:
            raise ConfigError("A key belongs to one table. Name a single table with --key.", key="--key")
        for table in tables:
            start.refuse(config, store, table)
            with open_source_database(config) as database:
                asked = given_keys(config, table, database.table(table), given)
            _ask_keys(store, config, start, table, asked)
    count = "1 key" if len(asked.keys) == 1 else f"{len(asked.keys)} keys"
    _tell(config, tables, output, f"resync of {count} requested")


def _ask_keys(store: StateStore, config: Config, start: _Start, table: TableId, asked: AskedKeys) -> None:
    """Request a resync of some keys of a table. Replaces the keys of the table's last request."""
    from tidesink.sinks.snapshots.asked_keys import forget_keys, store_keys

    name = store_keys(store, config.pipeline, table, asked)
    before = _change(store, config, table, start._replace(keys=name).of)
    status = store.status_of(config.pipeline, table)
    # The keys of a request that a worker may have begun are kept, because replays of dead letters check them.
    begun = is_begun(status, last_progress(store, config.pipeline, status), before)
    if before.keys not in (None, name) and not begun:
        forget_keys(store, before.keys or "")


def _check_contradiction(store: StateStore, config: Config, table: TableId, change: Change) -> None:
    """Check that a new request for a snapshot contradicts no other request to the table.

    ``change``: changes the stored request to the new one.

    Raises:
        ConfigError: a rewind is requested, or the new request would replace a resync that deletes rows.
    """
    from tidesink.sinks.runtime.control import NOTHING_ASKED, read_controls

    control = read_controls(store, config.pipeline).get(table, NOTHING_ASKED)
    _refuse_contradiction(store, config, table, control, change(control.snapshot, 0))


def _refuse_contradiction(
    store: StateStore, config: Config, table: TableId, control: TableControl, new: SnapshotControl
) -> None:
    """Raise ConfigError if the request ``new`` contradicts another request to the table, ``control``.

    A worker would refuse a rewind beside a requested snapshot. A request for some rows would end one for all
    rows. A snapshot that replaces a resync deletes nothing.
    """
    asked, status = control.snapshot, store.status_of(config.pipeline, table)
    progress = last_progress(store, config.pipeline, status)
    rewind = control.rewind
    if rewind is not None and rewind.number > (progress.rewound if progress is not None else 0):
        raise ConfigError(_REWINDS.format(table, rewind.topic), table=str(table))
    running = running_snapshot(status, progress, asked)
    waits = is_unbegun(status, progress, asked)
    if new.limited and running is not None:
        raise ConfigError(_UNFINISHED.format(table, running.state), table=str(table))
    if not new.deletes and running is not None and running.deletes:
        raise ConfigError(_RESYNCS.format(table, f"has not finished ({running.state})"), table=str(table))
    if not new.deletes and waits and asked.deletes:
        raise ConfigError(
            _RESYNCS.format(table, "is requested, and no worker has begun it"), table=str(table)
        )
    if new.limited and waits and not asked.limited:
        raise ConfigError(_ALL_ROWS.format(table), table=str(table))


_UNFINISHED: Final = (
    "A snapshot or resync of {} has not finished ({}). Wait until it has, or cancel it (`tidesink snapshot "
    "cancel TABLE`)."
)
_ALL_ROWS: Final = (
    "A snapshot or resync of all rows of {} is requested, and no worker has begun it. Run a worker until it "
    "is done, or cancel it (`tidesink snapshot cancel TABLE`)."
)
_REWINDS: Final = (
    "A rewind of {0} is requested, and no worker has done it. A worker would refuse it beside a snapshot or "
    "resync. Let a worker do the rewind of topic {1} first (`tidesink resume TABLE` if the table is paused): "
    "`tidesink status` no longer shows the request then. Then run the command again."
)
_RESYNCS: Final = (
    "A resync of {} {}. A snapshot would replace it, and rows that the source no longer has would stay at "
    "the target. Run a worker until the resync is done, or cancel it (`tidesink snapshot cancel TABLE`)."
)


def pause(tables: Tables, config_option: ConfigOption = None, output: Output = OutputFormat.TEXT) -> None:
    """Pause snapshots after their current batch. Changes of the tables are still applied."""
    settings = chosen_config(None, config_option)
    _ask(settings, tables, lambda asked, _: replace(asked, rests=True), output, "snapshot will be paused")


def resume(tables: Tables, config_option: ConfigOption = None, output: Output = OutputFormat.TEXT) -> None:
    """Resume paused snapshots. They continue after the last applied row."""
    settings = chosen_config(None, config_option)
    _ask(settings, tables, lambda asked, _: replace(asked, rests=False), output, "snapshot continues")


def cancel(tables: Tables, config_option: ConfigOption = None, output: Output = OutputFormat.TEXT) -> None:
    """Cancel snapshots. Rows that were already written stay in the target."""
    settings = chosen_config(None, config_option)
    _ask(settings, tables, lambda asked, last: asked.cancel(last=last), output, "snapshot cancelled")


def status(
    config: ConfigArgument = None, config_option: ConfigOption = None, output: Output = OutputFormat.TEXT
) -> None:
    """Show the progress of snapshots, and open requests."""
    settings = chosen_config(config, config_option)
    snapshots, requests = _shown_snapshots(settings)
    if output is OutputFormat.JSON:
        tables = [{"table": table._asdict(), **shown} for table, shown in snapshots.items()]
        write_json({"pipeline": settings.pipeline, "tables": tables})
    elif not snapshots:
        terminal.echo(
            "no table has a snapshot. Run `tidesink snapshot start TABLE`, or set snapshot: initial in the "
            "config"
        )
    else:
        columns = ("table", "snapshot", "range", "rows", "of about", "deletes")
        show_table(None, columns, [_row(*item) for item in snapshots.items()])
        for table, request in requests.items():
            terminal.echo(f"{table}: {request.line(table)}")


def _shown_snapshots(
    config: Config,
) -> tuple[Mapping[TableId, Mapping[str, Any]], Mapping[TableId, SnapshotRequest]]:
    """Return the snapshots of all tables as their statuses show them, and the requests that are not begun.

    Such a request is shown in place of the table's earlier snapshot, with the state ``requested``.
    """
    from tidesink.sinks.runtime.control import read_controls

    with store_if_there(config) as store:
        if store is None:
            return {}, {}
        # Requests are read first, so that one which a worker begins in between is not shown as waiting.
        controls = read_controls(store, config.pipeline)
        statuses = store.statuses(config.pipeline)
        requests = unbegun_snapshots(store, config.pipeline, controls, statuses)
    shown = {entry.table: entry.details["snapshot"] for entry in statuses if "snapshot" in entry.details}
    for table, request in requests.items():
        if "reason" not in shown.get(table, {}):
            shown[table] = {"state": "requested", "rows": 0, "estimate": request.keys}
        shown[table] = {**shown[table], "request": request.as_json()}
    return shown, requests


def _row(table: TableId, shown: Mapping[str, Any]) -> tuple[Any, ...]:
    estimate, request = shown["estimate"], shown.get("request")
    where = shown.get("where", "") if request is None else request["where"] or ""
    return (
        str(table),
        shown["state"],
        where,
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
    """Change each table's stored request for snapshots. If one table does not allow it, none is changed."""
    with worked_with(config) as store:
        tables = _named(names, config, store, starts=refuse is not None)
        if refuse is not None:
            for table in tables:
                refuse(config, table)
                _check_contradiction(store, config, table, change)
        for table in tables:
            _change(store, config, table, change)
    _tell(config, tables, output, word)


def _named(names: Sequence[str], config: Config, store: StateStore, *, starts: bool) -> list[TableId]:
    """Return the tables with these names. ``starts``: also look for the names in the source database.

    Raises:
        ConfigError: a table does not exist.
    """
    from tidesink.sinks.runtime.control import read_controls

    pipeline = config.pipeline
    recorded = [*(status.table for status in store.statuses(pipeline)), *read_controls(store, pipeline)]
    tables = []
    for name in dict.fromkeys(names):
        try:
            tables.append(known_table(name, config, recorded))
        except ConfigError:
            table = _quiet_table(name, config) if starts else None
            if table is None:
                raise
            tables.append(table)
    return tables


def _quiet_table(name: str, config: Config) -> TableId | None:
    """Return the source table of a name, for a table of which no worker has read a record yet.

    Returns None if the source database has no such table, or if a worker cannot load it without records.
    """
    from tidesink.sinks.worker.look_ups import tables_of_database

    if not may_load_quiet_tables(config):
        return None
    stored = {fold_name(str(table)): table for table in tables_of_database(config)}
    table = stored.get(fold_name(name))
    return table if table is not None and topic_without_records(config, table) is not None else None


def _change(store: StateStore, config: Config, table: TableId, change: Change) -> SnapshotControl:
    """Store a changed request for a table's snapshots. Returns the request before the change.

    If a new request replaces one that no worker has begun, the user is told.

    Raises:
        ConfigError: a new request contradicts another request to the table.
    """
    from tidesink.sinks.runtime.control import SnapshotControl, change_control

    before = after = SnapshotControl()
    status = store.status_of(config.pipeline, table)
    progress = last_progress(store, config.pipeline, status)
    last = last_number(status, progress)

    def changed(asked: TableControl) -> TableControl:
        nonlocal before, after
        before, after = asked.snapshot, change(asked.snapshot, last)
        if after.started > before.started:
            _refuse_contradiction(store, config, table, asked, after)
        return replace(asked, snapshot=after)

    change_control(store, config.pipeline, table, changed)
    if after.started > before.started and is_unbegun(status, progress, before):
        replaced = snapshot_request(store, before).what
        note(f"{table}: this replaces the {replaced}, which no worker has begun")
    return before


def _tell(config: Config, tables: Sequence[TableId], output: OutputFormat, word: str) -> None:
    """Print what was requested for tables, and whether a worker runs."""
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
        else "no worker runs. The next worker handles the request"
    )


def _refuse(config: Config, table: TableId) -> None:
    obstacle = snapshot_obstacle(config)
    if obstacle is not None:
        raise ConfigError(f"{table} cannot have a snapshot: {obstacle}", table=str(table))


_NO_RESYNC: Final[Mapping[str, str]] = {
    "append": "a table with mode: append also stores rows that the source no longer has. To append the "
    "source's rows, run `tidesink snapshot start TABLE`.",
    "history": "a table with mode: history stores versions of rows, which rows of the source cannot correct. "
    "To add rows that no change has written, run `tidesink snapshot start TABLE`.",
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
