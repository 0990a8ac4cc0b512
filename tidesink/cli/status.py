"""``tidesink status``, ``pause``, ``resume`` and ``accept-restored``: show and control the tables.

The commands read the tables' states from the state store, and write requests for the worker to it.
``accept-restored`` confirms that a table may continue after its target was restored from a backup.
"""

from __future__ import annotations

import dataclasses
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import msgspec
import typer
from msgspec import UNSET

from tidesink.cli import terminal
from tidesink.cli.open_letters import noted, open_letters
from tidesink.cli.terminal import (
    ConfigArgument,
    ConfigOption,
    Output,
    OutputFormat,
    chosen_config,
    show_again,
    show_table,
    write_json,
)
from tidesink.codecs.open import CODECS
from tidesink.config import Config
from tidesink.errors import ConfigError, nearest
from tidesink.events import TableId, fold_name, physical_ms
from tidesink.sinks.laws.counts import Account, Filtered
from tidesink.sinks.runtime.observers import EVERY_SECONDS, Mark, is_alive, read_mark
from tidesink.sinks.state.failures import Failure, failure_in

if TYPE_CHECKING:
    from tidesink.config.fields import ChangePolicy
    from tidesink.config.source import SourceSettings
    from tidesink.sinks.cuts.publishing import CutStatus
    from tidesink.sinks.runtime.control import Controls, RewindControl, SnapshotControl, TableControl
    from tidesink.sinks.runtime.observers import TableReport
    from tidesink.sinks.state.progress import Progress, StateStore, TableStatus


T = TypeVar("T")
COUNTS = ("table", "read", "applied", "superseded", "without row", "dead letters")
UNWELL_STATES = frozenset({"PAUSED", "FAILING"})
# A worker is late if its mark (sign of life) is older than this. It waits at most 30 s for the
# brokers.
_LATE_SECONDS = 35.0


def status(
    config: ConfigArgument = None,
    config_option: ConfigOption = None,
    alive_within: Annotated[
        float | None,
        typer.Option(
            min=1, metavar="SECONDS", help="Only report whether the worker was alive in the last SECONDS."
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Refresh every 2 seconds, until Ctrl-C.")
    ] = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show the state of each table.

    The exit code is 3 if a table is paused or failing, or if a server does not answer. With --alive-within
    the exit code only depends on the worker: 0 if it is alive, 1 if not. With --watch the status is refreshed
    in place on a terminal; otherwise each status is printed below the last one, with -o json as one line.
    """
    settings = chosen_config(config, config_option)
    if watch and alive_within is not None:
        raise ConfigError("--watch and --alive-within exclude each other. Remove one of them.")
    if alive_within is not None:
        _show_life(settings, alive_within, output)
        return
    if watch:
        in_place = output is OutputFormat.TEXT and sys.stdout.isatty()
        show_again(lambda: _show_status(settings, output), in_place=in_place)
    if _show_status(settings, output):
        raise typer.Exit(terminal.UNWELL)


def _show_status(settings: Config, output: OutputFormat) -> bool:
    """Print the tables' states. Returns True if a table is paused or failing, or a server does not answer."""
    stored = _Stored.read(settings)
    statuses, mark = stored.statuses, stored.mark
    works = is_alive(mark.seconds)
    letters = {entry.table: open_letters(entry, stored.letters) for entry in statuses}
    if output is OutputFormat.JSON:
        tables = [{**status_json(entry), "open_dead_letters": letters[entry.table]} for entry in statuses]
        write_json({**_pipeline_json(settings, stored), "tables": tables})
    else:
        shown = [_without_earlier_snapshot(entry, stored.asked.snapshots) for entry in statuses]
        show_statuses(tuple(shown), settings.source, works=works)
        for line in letter_lines(statuses, letters):
            terminal.echo(line)
        for line in _request_lines(stored.asked):
            terminal.echo(line)
        for line in cut_lines(stored.cuts):
            typer.echo(line)
        if mark.failure is not None:
            for line in failure_lines(mark.failure, works=works):
                terminal.echo(f"all tables: {line}")
        if statuses and works and mark.failure is not None:
            terminal.echo(
                "lag: Kafka does not answer, so these numbers are from its last answer"
                if mark.failure.is_of_kafka
                else "lag: all tables wait for the step that failed, so these numbers are older"
            )
        if statuses and not works:
            terminal.echo(
                "lag: these numbers are from each table's last update. `tidesink offsets show` shows the "
                "present lag"
            )
        typer.echo(_worker_line(mark.seconds, statuses))
    return mark.failure is not None or any(is_unwell(entry) for entry in statuses)


def _without_earlier_snapshot(entry: TableStatus, requests: Mapping[TableId, SnapshotRequest]) -> TableStatus:
    """Return a table's status without its snapshot if another one is requested, which has a line of its own.

    The status then has the rows of the earlier snapshot. If the worker reports what the requested one waits
    for, this stays.
    """
    shown = entry.details.get("snapshot")
    if entry.table not in requests or shown is None or "reason" in shown:
        return entry
    details = {name: value for name, value in entry.details.items() if name != "snapshot"}
    return dataclasses.replace(entry, details=details)


def _request_lines(asked: _Requests) -> Iterator[str]:
    """Yield a line for each request that no worker has handled yet."""
    for table in asked.rests:
        yield f"{table}: pause requested. The table pauses after its current batch, or once a worker runs"
    for table, rewind in asked.rewinds.items():
        yield f"{table}: {_rewind_line(rewind)}"
    for table, snapshot in asked.snapshots.items():
        yield f"{table}: {snapshot.line(table)}"


def is_unwell(entry: TableStatus) -> bool:
    """Returns True if the table is paused or failing, or if its last step failed."""
    return entry.state in UNWELL_STATES or failure_in(entry.details) is not None


def _pipeline_json(config: Config, stored: _Stored) -> dict[str, Any]:
    """Return the status of the pipeline as JSON: whether its worker is alive, and pending requests."""
    asked, mark = stored.asked, stored.mark
    return {
        "pipeline": config.pipeline,
        "worker": {
            "alive": is_alive(mark.seconds),
            "seconds_since_turn": mark.seconds,
            "failure": _failure_json(mark.failure),
        },
        "asked_to_rest": [table._asdict() for table in asked.rests],
        "asked_to_rewind": [
            {
                "table": table._asdict(),
                "topic": rewind.topic,
                "partitions": [{"partition": number, "offset": start} for number, start in rewind.offsets],
            }
            for table, rewind in asked.rewinds.items()
        ],
        "asked_to_snapshot": [
            {"table": table._asdict(), **request.as_json()} for table, request in asked.snapshots.items()
        ],
        **({} if config.cuts is None else {"cuts": msgspec.to_builtins(stored.cuts)}),
    }


def _show_life(config: Config, alive_within: float, output: OutputFormat) -> None:
    seconds = seconds_since_turn(config)
    alive = seconds is not None and seconds <= alive_within
    if output is OutputFormat.JSON:
        write_json({"pipeline": config.pipeline, "alive": alive, "seconds_since_turn": seconds})
    elif seconds is None:
        typer.echo("not alive: no worker of this pipeline has run, or the last one has ended")
    else:
        typer.echo(f"{'alive' if alive else 'not alive'}: the worker was last active {seconds:.0f} s ago")
    if not alive:
        raise typer.Exit(terminal.FAILED)


def seconds_since_turn(config: Config) -> float | None:
    """Return the seconds since the pipeline's worker was last active; None if no worker runs."""
    return read_mark_of(config).seconds


def read_mark_of(config: Config) -> Mark:
    """Return the mark (sign of life) that the pipeline's worker stored last; an empty mark without one."""
    return _asked(config, lambda store: read_mark(store, config.pipeline)) or Mark()


class SnapshotRequest(NamedTuple):
    """A requested snapshot or resync that no worker has begun.

    asked: The stored request. keys: Number of keys to which it is limited. None if it has no such limit, or
        if the state store has lost the keys.
    """

    asked: SnapshotControl
    keys: int | None = None

    @property
    def kind(self) -> str:
        """``resync``, or ``snapshot`` if no rows are deleted."""
        return "resync" if self.asked.deletes else "snapshot"

    @property
    def where(self) -> str:
        """The range of the key to which it is limited, as text; empty if it has no such limit."""
        from tidesink.source_database.key_bounds import Bound

        return " and ".join(str(Bound._make(bound)) for bound in self.asked.where)

    @property
    def scope(self) -> str:
        """The rows that it covers, as text."""
        if self.keys is not None:
            return "1 key" if self.keys == 1 else f"{self.keys} keys"
        if self.asked.keys is not None:
            return "some keys"
        return f"the rows where {self.where}" if self.where else "all rows"

    @property
    def since(self) -> datetime | None:
        """Time of the request. None if it is unknown, because the number is not a time that has passed."""
        return _instant(self.asked.started) if self.asked.started <= time.time() else None

    @property
    def what(self) -> str:
        """The request as text, such as ``resync of all rows requested at 2026-11-28 12:00:00 UTC``."""
        at = f" at {shown_moment(self.since)} UTC" if self.since is not None else ""
        return f"{self.kind} of {self.scope} requested{at}"

    def line(self, table: TableId) -> str:
        """Return a line about the request: what was requested, and when a worker begins it."""
        if self.asked.rests:
            way = f"`tidesink snapshot resume {shlex.quote(str(table))}`"
            return f"{self.what}, and paused. {way} lets a worker begin it"
        return f"{self.what}. A worker begins it at the table's next turn, or when the table is resumed"

    def as_json(self) -> dict[str, Any]:
        """Return the request as JSON."""
        return {
            "deletes": self.asked.deletes,
            "limited": self.asked.limited,
            "keys": self.keys,
            "where": self.where or None,
            "since": self.since.isoformat() if self.since is not None else None,
            "rests": self.asked.rests,
        }


def last_progress(store: StateStore, pipeline: str, status: TableStatus | None) -> Progress | None:
    """Return a table's progress after its last batch.

    Returns None if no batch was applied, or if the state store no longer has the progress.
    """
    if status is None or not status.batch:
        return None
    return store.progress_of_batch(pipeline, status.table, status.batch)


def is_begun(status: TableStatus | None, progress: Progress | None, asked: SnapshotControl) -> bool:
    """Return True if a worker may have begun the table's stored request for a snapshot or resync, ``asked``.

    ``progress``: from ``last_progress``.
    """
    return asked.is_begun(progress, status.batch if status is not None else 0)


def is_unbegun(status: TableStatus | None, progress: Progress | None, asked: SnapshotControl) -> bool:
    """Return True if a snapshot or resync is requested, and certainly no worker has begun it.

    The arguments are those of ``is_begun``.
    """
    return asked.is_asked and not is_begun(status, progress, asked)


class RunningSnapshot(NamedTuple):
    """A snapshot or resync of a table that a worker has begun, and that is neither done nor cancelled.

    state: Its state, or the table's, as text for a message. deletes: True for a resync.
    """

    state: str
    deletes: bool


def running_snapshot(
    status: TableStatus | None, progress: Progress | None, asked: SnapshotControl
) -> RunningSnapshot | None:
    """Return the table's unfinished snapshot or resync, also if it is paused; None without one.

    The status of a table that is paused or not open yet does not show its snapshot. And a status
    shows the last cancel request only once a worker has saved it. So the table's progress decides, and the
    status only if the state store does not have the progress. ``progress``: from ``last_progress``.
    ``asked``: the table's stored request.
    """
    if status is None:
        return None
    shown = status.details.get("snapshot", {})
    state = shown.get("state", "done")
    is_shown = state not in ("done", "cancelled")
    if progress is None:
        runs = is_shown and shown.get("number", asked.started) > asked.cancelled
        return RunningSnapshot(state, "deletes" in shown) if runs else None
    snapshot = progress.snapshot
    if snapshot is None or not asked.lets_run(snapshot):
        return None
    if not is_shown:
        state = f"the table is {status.state}"
    return RunningSnapshot(state, snapshot.sweep is not None)


def last_number(status: TableStatus | None, progress: Progress | None) -> int:
    """Return the number of the last snapshot that a worker has begun for a table, or 0.

    ``progress``: from ``last_progress``.
    """
    if status is None:
        return 0
    shown = int(status.details.get("snapshot", {}).get("number", 0))
    snapshot = progress.snapshot if progress is not None else None
    return max(shown, snapshot.number if snapshot is not None else 0)


def unbegun_snapshots(
    store: StateStore, pipeline: str, controls: Controls, statuses: Iterable[TableStatus]
) -> dict[TableId, SnapshotRequest]:
    """Return the requested snapshots and resyncs that no worker has begun and nobody has cancelled, by table.

    ``controls``: the stored requests, which were read before the tables' ``statuses``.
    """
    by_table = {entry.table: entry for entry in statuses}
    found = {}
    for table, control in controls.items():
        asked, status = control.snapshot, by_table.get(table)
        if asked.is_asked and not is_begun(status, last_progress(store, pipeline, status), asked):
            found[table] = snapshot_request(store, asked)
    return found


def snapshot_request(store: StateStore, asked: SnapshotControl) -> SnapshotRequest:
    """Return a stored request for a snapshot or resync with its number of keys."""
    from tidesink.sinks.snapshots.asked_keys import load_keys

    keys = load_keys(store, asked.keys) if asked.keys is not None else None
    return SnapshotRequest(asked, len(keys.keys) if keys is not None else None)


class _Requests(NamedTuple):
    """Requests of users that no worker has handled yet."""

    rests: tuple[TableId, ...] = ()
    rewinds: Mapping[TableId, RewindControl] = MappingProxyType({})
    snapshots: Mapping[TableId, SnapshotRequest] = MappingProxyType({})

    @classmethod
    def of(
        cls, store: StateStore, pipeline: str, controls: Controls, statuses: Iterable[TableStatus]
    ) -> _Requests:
        """Return the stored requests (``controls``) that the tables' statuses do not show as done."""
        statuses = tuple(statuses)
        resting = {entry.table for entry in statuses if entry.details.get("rests")}
        return cls(
            tuple(table for table, control in controls.items() if control.rests and table not in resting),
            {table: control.rewind for table, control in controls.items() if control.rewind is not None},
            unbegun_snapshots(store, pipeline, controls, statuses),
        )


class _Stored(NamedTuple):
    """The content of the state store that ``tidesink status`` shows; all empty without a store.

    letters: Saved counts of open dead letters. cuts: State of the cuts, None without cuts.
    """

    asked: _Requests = _Requests()
    statuses: tuple[TableStatus, ...] = ()
    mark: Mark = Mark()
    letters: Mapping[str, tuple[int, int]] = MappingProxyType({})
    cuts: CutStatus | None = None

    @classmethod
    def read(cls, config: Config) -> _Stored:
        """Read all of it with the state store opened once."""
        return _asked(config, lambda store: cls._read(config, store)) or cls()

    @classmethod
    def _read(cls, config: Config, store: StateStore) -> _Stored:
        from tidesink.sinks.runtime.control import read_controls

        pipeline = config.pipeline
        # Requests are read before the statuses, so that a request which the worker handles in between is not
        # shown as open.
        controls = read_controls(store, pipeline)
        statuses = store.statuses(pipeline)
        return cls(
            _Requests.of(store, pipeline, controls, statuses),
            statuses,
            read_mark(store, pipeline),
            noted(store, pipeline),
            _cuts_in(store, pipeline) if config.cuts is not None else None,
        )


def _rewind_line(rewind: RewindControl) -> str:
    parts = ", ".join(f"partition {number} from {start}" for number, start in rewind.offsets)
    return (
        f"rewind of {rewind.topic} requested: {parts}. A worker handles it at the table's next turn, or when "
        "the table is resumed"
    )


def _worker_line(seconds: float | None, statuses: tuple[TableStatus, ...]) -> str:
    """Return a line about the state of the pipeline's worker.

    ``seconds``: time since the worker was last active; None before the first worker started and after the
    last one ended.
    """
    if is_alive(seconds) and seconds < _LATE_SECONDS:
        return f"worker: alive (seen {seconds:.0f} s ago)"
    if is_alive(seconds):
        return (
            f"worker: seen {seconds:.0f} s ago, although it reports every {EVERY_SECONDS:.0f} s. It was "
            "killed, cannot write to the state store, or waits for the brokers. Look at the worker's log"
        )
    if seconds is not None:
        seen = datetime.now(timezone.utc) - timedelta(seconds=seconds)
        return f"worker: not seen since {shown_moment(seen)} UTC, and it did not report that it ended"
    last = max((entry.updated for entry in statuses if entry.updated), default=None)
    return "worker: no worker runs" + (f"; last seen {shown_moment(last)} UTC" if last else "")


def shown_moment(moment: datetime | None) -> str:
    """Format a time in UTC, to the second, as text for people; empty for None."""
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S") if moment else ""


def cuts_of(config: Config) -> CutStatus | None:
    """Return the last and the next cut (all tables as of one commit time), and what holds back the next cut.

    Returns None if the pipeline has no cuts.
    """
    return _asked(config, lambda store: _cuts_in(store, config.pipeline))


def _cuts_in(store: StateStore, pipeline: str) -> CutStatus | None:
    from tidesink.sinks.cuts.publishing import cut_status

    return cut_status(store, pipeline)


def cut_lines(cuts: CutStatus | None) -> Iterator[str]:
    """Yield lines about the last and the next cut, and about the tables that hold back the next cut."""
    if cuts is None:
        return
    by_position = cuts.waits is not UNSET
    if cuts.last is not None:
        reached = physical_ms(cuts.last) / 1000 if cuts.last_time is UNSET else cuts.last_time
        yield f"last cut: {_last_cut(cuts.last, reached, by_position=by_position)}"
    if cuts.next is not None and cuts.next != cuts.last:
        position = f"position {cuts.next}"
        yield f"next cut: {position if by_position else commit_time(cuts.next) + ' UTC'}"
    if by_position and cuts.waits:
        yield f"the next cut waits for the connector: {cuts.waits}"
    for table, reason in cuts.held_back.items():
        yield f"the next cut waits for {table}: {reason}"
    # Cuts by position are cuts of a connector's topics, whose tables are not loaded by our snapshots.
    reason = (
        "its topic is still empty" if by_position else "its snapshot is unfinished, or newer than the cut"
    )
    for table in cuts.excluded:
        yield f"the next cut leaves out {table}: {reason}"


def _last_cut(commit_ts: int, at: float | None, *, by_position: bool) -> str:
    """Return the time of the last cut as text.

    ``at``: time at which the worker reached the cut's position, in seconds since 1970. None if unknown,
    because another worker reached the position.
    """
    position = f"position {commit_ts}" if by_position else ""
    if at is None:
        return position
    behind = max(0.0, time.time() - at)
    moment = shown_instant(datetime.fromtimestamp(at, timezone.utc))
    return f"{moment} UTC, {behind:.0f} s ago" + (f" ({position})" if position else "")


def read_statuses(config: Config) -> tuple[TableStatus, ...]:
    """Return the stored status of each table of a pipeline; empty before the first run of a worker."""
    return _asked(config, lambda store: store.statuses(config.pipeline)) or ()


def _asked(config: Config, question: Callable[[StateStore], T]) -> T | None:
    """Call ``question`` with the state store and return its result, or None if there is no store yet.

    Reading a status must not create the store.
    """
    if not _has_store(config):
        return None
    with worked_with(config) as store:
        return question(store)


def _has_store(config: Config) -> bool:
    return "://" in config.state or Path(config.state).exists()


def status_json(entry: TableStatus) -> dict[str, Any]:
    """Return a table's status as JSON."""
    shown = dataclasses.asdict(entry)
    shown["table"] = {"schema": entry.table.schema, "name": entry.table.name}
    shown["updated"] = entry.updated.isoformat() if entry.updated else None
    failure = failure_in(entry.details)
    shown["error"] = entry.error or (failure.error if failure is not None else None)
    shown["failure"] = _failure_json(failure)
    shown["lag"] = lag_of(entry)._asdict()
    return shown


def _failure_json(failure: Failure | None) -> dict[str, Any] | None:
    """Return the failure of a step as JSON. ``next_try`` is None if the worker does not retry by itself."""
    if failure is None:
        return None
    return {
        "error": failure.error,
        "since": _instant(failure.since).isoformat(),
        "next_try": _instant(failure.next_try).isoformat() if failure.next_try is not None else None,
    }


def _instant(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)


class Lag(NamedTuple):
    """A table's lag: the records of its topic that are not applied, as of the worker's last report.

    records: Number of these records, or None if unknown.
    seconds: Present lag in seconds, or None if unknown.
    of: Time from which ``seconds`` counts. ``kafka``: Kafka's timestamp of the oldest record that is not
        applied. ``source``: commit time of the newest applied change.
    """

    records: int | None
    seconds: float | None = None
    of: str | None = None


def lag_of(entry: TableStatus, now: float | None = None) -> Lag:
    """Return a table's lag: the number of records that are not applied, and the lag in seconds.

    ``now``: the present time in seconds since 1970; by default that of the clock.
    """
    records = entry.details.get("lag")
    if not records:
        return Lag(records, None if records is None else 0.0)
    now = time.time() if now is None else now
    oldest, applied = entry.details.get("oldest_unapplied"), entry.commit_ts
    if oldest is not None:
        return Lag(records, max(0.0, round(now - oldest / 1000, 1)), "kafka")
    if applied is not None:
        passed = max(applied, entry.details.get("watermark") or 0)
        return Lag(records, max(0.0, round(now - physical_ms(passed) / 1000, 1)), "source")
    return Lag(records)


_LAG_OF = {
    "kafka": "since the Kafka timestamp of the oldest of them",
    "source": "since the commit time of the last applied change",
}


def lag_line(lag: Lag) -> str:
    """Return a table's lag as text; empty if all records are applied."""
    if not lag.records:
        return ""
    waits = f"lag: {lag.records} records are not applied"
    return waits if lag.of is None else f"{waits}, {lag.seconds:.0f} s {_LAG_OF[lag.of]}"


def failure_lines(
    failure: Failure, table: TableId | None = None, *, works: bool, error: bool = True
) -> Iterator[str]:
    """Yield lines about an error that persists: its text, its first time, and what happens next.

    ``table``: the table, or None if the error concerns all tables. ``works``: True if a worker is alive.
    ``error``: False if the error's text was printed already.
    """
    now = time.time()
    if error:
        yield f"error: {failure.error}"
    yield f"since: {shown_moment(_instant(failure.since))} UTC ({max(0.0, now - failure.since):.0f} s)"
    if not works or failure.next_try is None:
        yield next_line(table, works=works)
        return
    left = failure.next_try - now
    when = f"at {shown_moment(_instant(failure.next_try))} UTC, in {left:.0f} s" if left > 0 else "now"
    yield f"next: the worker tries again by itself, {when}. {_KEPT}"


def next_line(table: TableId | None, *, works: bool) -> str:
    """Return the line with the next step after an error that no worker retries by itself.

    ``table``: the table, or None if the error concerns all tables. ``works``: True if a worker is alive.
    """
    if not works:
        return f"next: no worker runs. Fix the cause, then run `tidesink run`. {_KEPT}"
    if table is None:
        way = "run `tidesink run`"
    else:
        way = f"run `tidesink resume {shlex.quote(str(table))}`, or restart the worker if {_CONFIG}"
    return f"next: the worker does not try this again by itself. Fix the cause, then {way}. {_KEPT}"


def paused_line(entry: TableStatus, *, works: bool) -> str:
    """Return the line with the command that continues a paused table, also after a change of the config.

    A worker that starts tries each table again, except the tables that a user has paused. ``works``: True if
    a worker is alive.
    """
    resume = f"`tidesink resume {shlex.quote(str(entry.table))}`"
    if entry.details.get("rests"):
        also = (
            f"If {_CONFIG}, restart the worker first" if works else "No worker runs: also run `tidesink run`"
        )
        return f"next: {resume} continues the table. A restart of the worker does not. {also}"
    if not works:
        return f"next: no worker runs. Decide or fix the cause, then run `tidesink run`. {_KEPT}"
    return (
        f"next: decide or fix the cause, then run {resume}. If {_CONFIG}, restart the worker instead: it "
        f"then tries the table again. {_KEPT}"
    )


_CONFIG = "you changed the config, which a worker reads only when it starts"
_KEPT = "Nothing is lost: Kafka keeps the records that are not applied, until the topic's retention ends"


def show_statuses(statuses: tuple[TableStatus, ...], source: SourceSettings, *, works: bool) -> None:
    """Print a row per table with its state, followed by lines about errors and counters."""
    if not statuses:
        terminal.echo("no worker has read a table yet. `tidesink run` starts a worker")
        return
    show_table(None, ("table", "state", "batch", "lag", "source time", "updated"), map(_row, statuses))
    typer.echo("")
    show_table(None, COUNTS, [counts_row(entry.table, entry.counters) for entry in statuses])
    for entry in statuses:
        for line in _remarks(entry, source, works=works):
            terminal.echo(f"{entry.table}: {line}", entry.table)


def letter_lines(statuses: Iterable[TableStatus], letters: Mapping[TableId, int]) -> Iterator[str]:
    """Yield a line about open dead letters for each table that ever wrote a dead letter."""
    for entry in statuses:
        if written := Account.from_counters(entry.counters).dead_lettered:
            count = letters[entry.table]
            way = f": `tidesink dlq show {shlex.quote(str(entry.table))}`" if count else ""
            yield f"{entry.table}: dead letters: {count} open of {written} written so far{way}"


def counts_row(table: TableId, counters: Mapping[str, int]) -> tuple[Any, ...]:
    """Return a table's cells for the columns ``COUNTS``: its numbers of row events by outcome."""
    return str(table), *Account.from_counters(counters).values()


def _row(entry: TableStatus) -> tuple[Any, ...]:
    return (
        str(entry.table),
        entry.state,
        entry.batch,
        entry.details.get("lag", "-"),
        source_time(entry.commit_ts),
        shown_moment(entry.updated),
    )


def _remarks(entry: TableStatus, source: SourceSettings, *, works: bool) -> list[str]:
    remarks = [f"error: {entry.error}"] if entry.error else []
    failure = failure_in(entry.details)
    if entry.state == "PAUSED":
        remarks += [paused_line(entry, works=works)]
    elif failure is not None:
        remarks += failure_lines(failure, entry.table, works=works, error=entry.error is None)
    remarks += [line] if (line := lag_line(lag_of(entry))) else []
    remarks += _routed_to(entry)
    remarks += _snapshot(entry)
    remarks += [again_line(entry.details["read_again"])] if "read_again" in entry.details else []
    left = left_to_spark(entry)
    remarks += [f"batches are {left}"] if left else []
    remarks += _ran_on_spark(entry)
    remarks += [f"warning: {warning}" for warning in entry.warnings]
    return [*remarks, *count_remarks(entry, source), *without_row_lines(entry)]


def count_remarks(entry: TableStatus | TableReport, source: SourceSettings) -> Iterator[str]:
    """Yield a line for each nonzero counter of a table that the columns ``COUNTS`` do not show."""
    counts = Account.from_counters(entry.counters)
    if counts.filtered_out:
        changes = f"{counts.filtered_out} changes of rows that do not satisfy the table's filter"
        yield f"filtered out: {changes}, counted as applied or superseded"
    if counts.row_by_row:
        number = f"{counts.row_by_row} of {counts.read} records were decoded one by one, which is slower"
        yield f"row by row: {number}: {row_by_row_reason(source)}"
    for column, count in entry.zero_dates.items():
        if count:
            yield f"{count} invalid dates of column {column} became NULL (zero-date: null)"
    for column, count in entry.ambiguous_times.items():
        if count:
            yield (
                f"{count} times of column {column} occur twice when clocks go back, so the other occurrence "
                "may be meant (ambiguous-time)"
            )


def row_by_row_reason(source: SourceSettings) -> str:
    """Return which records of the source's protocol are decoded one by one, or why all of them are."""
    if source.checksum != "off":
        return f"source.checksum: {source.checksum} requires the checksum of each row"
    return CODECS[source.protocol].row_by_row


def without_row_lines(entry: TableStatus) -> list[str]:
    """Return lines about records that change no row: counts by kind, the watermark, and the last DDL."""
    filtered = Filtered.from_details(entry.details)
    counts = (filtered.ddl, "DDL events"), (filtered.watermarks, "watermarks"), (filtered.messages, _MESSAGES)
    kinds = [f"{count} {word}" for count, word in counts if count]
    lines, last = [f"without row: {', '.join(kinds)}"] if kinds else [], filtered.last_ddl
    watermark = entry.details.get("watermark")
    if watermark is not None:
        behind = max(0.0, time.time() - physical_ms(watermark) / 1000)
        lines.append(
            f"watermark: {commit_time(watermark)} UTC, {behind:.0f} s ago: all changes up to then are applied"
        )
    if last:
        when = f" at {moment} UTC" if (moment := commit_time(last["commit_ts"])) else ""
        lines.append(f"last DDL{when}: {last['query']} (kind {last['kind']})")
    return lines


_MESSAGES = "messages that change no row (tombstones, heartbeats, ends of transactions)"


def _routed_to(entry: TableStatus) -> list[str]:
    """Return a line with the target table of a routed table; empty if the table has no route."""
    table, shard = entry.details.get("target_table"), entry.details.get("shard")
    if table is None:
        return []
    return [f"written to table {table}" + (f", as shard {shard}" if shard is not None else "")]


def left_to_spark(entry: TableStatus) -> str:
    """Return how Spark wrote a lake table's last batch, and why; empty if no Spark job wrote it."""
    from tidesink.sinks.worker.counters import LEFT

    return str(entry.details.get(LEFT, ""))


def _ran_on_spark(entry: TableStatus) -> list[str]:
    """Return a line if Spark ran the table's last batch, because such a batch takes half a second or more."""
    from tidesink.sinks.worker.counters import EXECUTOR

    ran = entry.details.get(EXECUTOR)
    return [f"the last batch ran on Spark: {ran['reason']}"] if ran and ran["name"] == "spark" else []


def _snapshot(entry: TableStatus) -> list[str]:
    """Return lines with the progress of the table's snapshot; empty if it is done."""
    shown = entry.details.get("snapshot")
    if shown is None or shown["state"] == "done":
        return []
    estimate, reason = shown["estimate"], shown.get("reason")
    rows = f"{shown['rows']} rows" + (f" of about {estimate}" if estimate else "")
    within = f"where {shown['where']}" if "where" in shown else ""
    parts = [f"snapshot {shown['state']}: {rows}", within, deletes_text(shown), reason]
    return ["; ".join(part for part in parts if part)]


def deletes_text(shown: Mapping[str, Any]) -> str:
    """Return the progress of a resync's deletes as text; empty for a snapshot, which deletes no rows."""
    deletes = shown.get("deletes")
    if deletes is None:
        return ""
    if not deletes["parts"]:
        return "deletes begin after the last row"
    return f"{deletes['deletes']} deletes, part {deletes['done']} of {deletes['parts']}"


def again_line(again: Mapping[str, Sequence[int]]) -> str:
    """Return a line about a rewound table.

    ``again``: for each partition, the first offset that is still to be read again, and the end offset.
    """
    parts = ", ".join(f"partition {number} from {start} to {end}" for number, (start, end) in again.items())
    return f"rewound, and reading again: {parts}. Until this is done, rows may have earlier values"


def source_time(commit_ts: int | None) -> str:
    """Format a commit time for a cell of the status table; ``-`` if the protocol has no commit_ts."""
    return commit_time(commit_ts) or "-"


def commit_time(commit_ts: int | None) -> str:
    """Format the wall clock time of a TiDB TSO in UTC; empty for None."""
    if commit_ts is None:
        return ""
    return shown_instant(datetime.fromtimestamp(physical_ms(commit_ts) / 1000, timezone.utc))


def shown_instant(moment: datetime) -> str:
    """Format a commit time in UTC, with milliseconds, as text for people."""
    return (
        moment.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}"
    )


Tables = Annotated[list[str], typer.Argument(metavar="TABLE...", help="Tables, as schema.table.")]
Asked = tuple[TableId, "TableStatus | None", "TableControl"]
WHERE_IT_ENDS = {
    True: "a worker is alive and handles the request at its next turn",
    False: "no worker runs. The next worker handles the request",
}


def pause(tables: Tables, config_option: ConfigOption = None, output: Output = OutputFormat.TEXT) -> None:
    """Pause tables after their current batch.

    The tables stay paused until `tidesink resume`, even if the worker restarts.
    """
    settings = chosen_config(None, config_option)
    asked = ask_tables(settings, tables, lambda _table, _status: lambda control: control.pause())
    _show(settings, asked, output, word="will be paused")


def resume(
    tables: Tables,
    config_option: ConfigOption = None,
    *,
    accept: Annotated[
        bool,
        typer.Option(
            "--accept", help="Accept the wrong counts or missing deletes that `tidesink status` shows."
        ),
    ] = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Resume tables that are paused.

    A table is paused by `tidesink pause`, by a schema change, or by an error. If a schema change still waits
    for a decision, the table stays paused until `tidesink ddl approve` or `tidesink ddl reject`. If the
    counts of a batch did not add up, or deletes may be missing, give --accept.
    """
    settings = chosen_config(None, config_option)

    def reported(table: TableId, status: TableStatus | None) -> Callable[[TableControl], TableControl]:
        accepted = _accepted(table, status) if accept else {}
        return lambda control: control.resume(accepted)

    _show(settings, ask_tables(settings, tables, reported), output, word="continues")


def _accepted(table: TableId, status: TableStatus | None) -> dict[str, ChangePolicy]:
    broken = _broken(status)
    if not broken:
        changes = pending_changes(status)
        raise ConfigError(
            f"{table} has nothing to accept: its counts add up, and no deletes are missing. "
            + (
                "Decide its changes with `tidesink ddl approve TABLE` or `tidesink ddl reject TABLE`."
                if changes
                else "Use `tidesink resume TABLE` without --accept."
            ),
            table=str(table),
        )
    return {finding["digest"]: "apply" for finding in broken}


def pending_changes(status: TableStatus | None) -> Sequence[dict[str, Any]]:
    """Return the schema changes that wait for a decision, from the table's status."""
    return status.details.get("pending", []) if status is not None else []


def _broken(status: TableStatus | None) -> list[dict[str, Any]]:
    """Return the wrong counts and the possibly missing deletes that stop a table, from its status."""
    from tidesink.sinks.runtime.control import BROKEN, MISSED

    details = status.details if status is not None else {}
    return [details[kind] for kind in (BROKEN, MISSED) if kind in details]


def ask_tables(
    config: Config,
    names: Iterable[str],
    change: Callable[[TableId, TableStatus | None], Callable[[TableControl], TableControl]],
) -> list[Asked]:
    """Store a request for each table. If a table's request is not possible, no request is stored."""
    from tidesink.sinks.runtime.control import change_control

    with worked_with(config) as store:
        statuses = {status.table: status for status in store.statuses(config.pipeline)}
        tables = [known_table(name, config, statuses) for name in dict.fromkeys(names)]
        changes = [(table, change(table, statuses.get(table))) for table in tables]
        return [
            (table, statuses.get(table), change_control(store, config.pipeline, table, asked))
            for table, asked in changes
        ]


def _show(config: Config, asked: Sequence[Asked], output: OutputFormat, *, word: str) -> None:
    alive = worker_is_alive(config)
    if output is OutputFormat.JSON:
        tables = [_as_json(*request) for request in asked]
        write_json({"pipeline": config.pipeline, "worker_alive": alive, "tables": tables})
        return
    for table, status, control in asked:
        typer.echo(f"{table}: {word}")
        for change in [] if control.rests else pending_changes(status):
            typer.echo(f"  {change_words(change)}: {_prospect(change, control)}")
        for broken in [] if control.rests else _broken(status):
            accepted = "" if broken["digest"] in control.accepted else "not accepted, so it stays paused: "
            typer.echo(f"  {accepted or 'accepted: '}{broken['text']}")
    typer.echo(WHERE_IT_ENDS[alive])


def change_words(change: Mapping[str, Any]) -> str:
    """Return a schema change of a table's status as text: its kind, and its column or DDL statement."""
    if change["column"]:
        return f"{change['kind']} of column {change['column']}"
    return f"{change['kind']} ({change['statement']})" if "statement" in change else str(change["kind"])


def _prospect(change: dict[str, Any], control: TableControl) -> str:
    if change["digest"] in control.accepted:
        return f"decided ({control.accepted[change['digest']]})"
    return "not decided. The table continues only if the change was undone. Otherwise use tidesink ddl"


def _as_json(table: TableId, status: TableStatus | None, control: TableControl) -> dict[str, Any]:
    return {
        "table": table._asdict(),
        "rests": control.rests,
        "state": status.state if status is not None else None,
        "pending": list(pending_changes(status)),
        "broken_law": next((broken["text"] for broken in _broken(status)), None),
        "accepted": dict(control.accepted),
    }


def worker_is_alive(config: Config) -> bool:
    """Returns True if a worker of the pipeline was active recently."""
    return is_alive(seconds_since_turn(config))


def accept_restored(
    table: Annotated[str, typer.Argument(metavar="SCHEMA.TABLE", help="The table's name at the source.")],
    config_option: ConfigOption = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Let a table continue after its target was restored.

    Use this command after you restored the target from a backup. The next worker reads the records since the
    backup again from Kafka. After another restore, run the command again.
    """
    from tidesink.sinks.runtime.control import accept_restored

    settings = chosen_config(None, config_option)
    with worked_with(settings) as store:
        tables = [status.table for status in store.statuses(settings.pipeline)]
        table_id = known_table(table, settings, tables)
        batch = accept_restored(store, settings.pipeline, table_id)
    if output is OutputFormat.JSON:
        write_json(
            {"pipeline": settings.pipeline, "table": table_id._asdict(), "accepted_below_batch": batch}
        )
    else:
        typer.echo(f"{table}: will continue from a backup older than batch {batch}. Start the worker again")


@contextmanager
def worked_with(config: Config) -> Iterator[StateStore]:
    """Open the state store of a pipeline.

    Raises:
        ConfigError: no worker has created the store yet.
        StateStoreError: the store does not answer.
    """
    from tidesink.sinks.state.sql_store import open_state_store

    if not _has_store(config):
        raise ConfigError(
            "No worker has run yet, so there is no state store. `tidesink run` creates it.",
            state=config.state,
        )
    with closing(open_state_store(config.state)) as store:
        yield store


@contextmanager
def store_if_there(config: Config) -> Iterator[StateStore | None]:
    """Open the state store of a pipeline. Yields None if no worker has created the store yet.

    Raises:
        StateStoreError: the store does not answer.
    """
    if not _has_store(config):
        yield None
        return
    with worked_with(config) as store:
        yield store


def tables_worked_on(config: Config) -> list[TableId]:
    """Return the tables in a pipeline's state store; empty before the first run of a worker."""
    return [entry.table for entry in read_statuses(config)]


def named_table(name: str, tables: Iterable[TableId]) -> TableId:
    """Return the table with this name (``schema.table``, as in records). Either part may contain a dot."""
    by_name = {str(table): table for table in tables}
    schema, dot, rest = name.partition(".")
    return by_name.get(name) or (TableId(schema, rest) if dot else TableId("", name))


def known_table(name: str, config: Config, found: Iterable[TableId]) -> TableId:
    """Return the table with this name, in the spelling of the state store or the config.

    Upper and lower case are ignored, unless ``found`` has a table with exactly this name. Schema and table
    may contain dots. ``found``: tables in the state store.

    Raises:
        ConfigError: neither the state store nor the config has the table.
    """
    found = tuple(found)
    spelt = {str(table): table for table in found}
    if name in spelt:
        return spelt[name]
    named = [entry.table for entry in config.tables if entry.table is not None]
    by_name = {fold_name(str(table)): table for table in (*named, *found)}
    if fold_name(name) not in by_name:
        raise ConfigError(
            f"Pipeline {config.pipeline} has no table {name}{nearest(name, by_name)}. `tidesink "
            "status` lists its tables."
        )
    return by_name[fold_name(name)]
