"""``tidesink status``, ``pause``, ``resume`` and ``accept-restored``: table states and requests by people.

Status is read from the worker's state store, and requests are written to it. ``accept-restored`` confirms
that a table may continue from a backup.
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
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import typer

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
from tidesink.config import Config
from tidesink.errors import ConfigError, nearest
from tidesink.events import TableId, fold_name, physical_ms
from tidesink.sinks.batch.counts import Account, Filtered
from tidesink.sinks.batch.observers import EVERY_SECONDS, Mark, is_alive, read_mark
from tidesink.sinks.state.failures import Failure, failure_in

if TYPE_CHECKING:
    from tidesink.config.fields import ChangePolicy
    from tidesink.config.source import SourceSettings
    from tidesink.sinks.batch.observers import TableReport
    from tidesink.sinks.state.progress import StateStore, TableStatus
    from tidesink.sinks.worker.control import Controls, RewindControl, TableControl


T = TypeVar("T")
COUNTS = ("table", "read", "applied", "superseded", "without row", "dead letters")
UNWELL_STATES = frozenset({"PAUSED", "FAILING"})
# A worker that left no mark for this long is late: waiting for the brokers takes 30 s at most.
_LATE_SECONDS = 35.0


def status(
    config: ConfigArgument = None,
    config_option: ConfigOption = None,
    alive_within: Annotated[
        float | None,
        typer.Option(
            min=1, metavar="SECONDS", help="Only report whether the worker's loop ran within SECONDS."
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Refresh every 2 seconds, until Ctrl-C.")
    ] = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show the state of each table.

    The exit code is 3 if a table is paused or failing, or if a server does not answer. With --alive-within
    the exit code is 0 if the worker is alive and 1 if it is not, whatever the state of its tables. --watch
    refreshes in place on a terminal; otherwise it prints each status after the last, as JSON one line each.
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
    """Show the state of the tables. Returns True if one is paused or failing, or a server does not answer."""
    # Read before the statuses: if a worker meanwhile does what was requested, they show it.
    controls = _controls(settings)
    found, mark = read_statuses(settings), read_mark_of(settings)
    works = is_alive(mark.seconds)
    known = _asked(settings, lambda store: noted(store, settings.pipeline)) or {}
    letters = {entry.table: open_letters(entry, known) for entry in found}
    asked = _Requests.of(controls, found)
    if output is OutputFormat.JSON:
        tables = [{**status_json(entry), "open_dead_letters": letters[entry.table]} for entry in found]
        write_json({**_pipeline_json(settings, asked, mark), "tables": tables})
    else:
        show_statuses(found, settings.source, works=works)
        for line in letter_lines(found, letters):
            terminal.echo(line)
        for table in asked.rests:
            typer.echo(f"{table}: asked to pause; it pauses after its batch, or once a worker runs")
        for table, rewind in asked.rewinds.items():
            typer.echo(f"{table}: {_rewind_line(rewind)}")
        for line in cut_lines(cuts_of(settings) if settings.cuts is not None else None):
            typer.echo(line)
        if mark.failure is not None:
            for line in failure_lines(mark.failure, works=works):
                terminal.echo(f"all tables: {line}")
        if found and not works:
            terminal.echo("lag: as of each table's last update; `tidesink offsets show` asks Kafka")
        typer.echo(_worker_line(mark.seconds, found))
    return mark.failure is not None or any(is_unwell(entry) for entry in found)


def is_unwell(entry: TableStatus) -> bool:
    """Returns True if the table is paused or failing, or if its last step failed."""
    return entry.state in UNWELL_STATES or failure_in(entry.details) is not None


def _pipeline_json(config: Config, asked: _Requests, mark: Mark) -> dict[str, Any]:
    """The whole pipeline's part of the status: the worker's sign of life, and pending requests."""
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
                "partitions": [
                    {"partition": number, "offset": start} for number, start in sorted(rewind.offsets.items())
                ],
            }
            for table, rewind in asked.rewinds.items()
        ],
        **({} if config.cuts is None else {"cuts": cuts_of(config)}),
    }


def _show_life(config: Config, alive_within: float, output: OutputFormat) -> None:
    seconds = seconds_since_turn(config)
    alive = seconds is not None and seconds <= alive_within
    if output is OutputFormat.JSON:
        write_json({"pipeline": config.pipeline, "alive": alive, "seconds_since_turn": seconds})
    elif seconds is None:
        typer.echo("not alive: no worker has left a sign of life, or it has ended")
    else:
        typer.echo(f"{'alive' if alive else 'not alive'}: the last turn was {seconds:.0f} s ago")
    if not alive:
        raise typer.Exit(terminal.FAILED)


def seconds_since_turn(config: Config) -> float | None:
    """Seconds since the worker's loop last ran; None if no worker runs."""
    return read_mark_of(config).seconds


def read_mark_of(config: Config) -> Mark:
    """Return the last sign of life of the pipeline's worker."""
    return _asked(config, lambda store: read_mark(store, config.pipeline)) or Mark()


class _Requests(NamedTuple):
    """Requests of people that no worker has done yet."""

    rests: tuple[TableId, ...]
    rewinds: Mapping[TableId, RewindControl]

    @classmethod
    def of(cls, controls: Controls, found: Iterable[TableStatus]) -> _Requests:
        """Return the requests in ``controls`` that the tables' statuses do not show as done."""
        resting = {entry.table for entry in found if entry.details.get("rests")}
        return cls(
            tuple(table for table, control in controls.items() if control.rests and table not in resting),
            {table: control.rewind for table, control in controls.items() if control.rewind is not None},
        )


def _controls(config: Config) -> Controls:
    from tidesink.sinks.worker.control import read_controls

    return _asked(config, lambda store: read_controls(store, config.pipeline)) or {}


def _rewind_line(rewind: RewindControl) -> str:
    parts = ", ".join(f"partition {number} from {start}" for number, start in sorted(rewind.offsets.items()))
    return (
        f"asked to read {rewind.topic} again: {parts}. A worker does it at the table's next turn, or when it "
        "is resumed"
    )


def _worker_line(seconds: float | None, found: tuple[TableStatus, ...]) -> str:
    """State of the worker.

    ``seconds`` is None before the first worker started, and after the last one ended.
    """
    if is_alive(seconds) and seconds < _LATE_SECONDS:
        return f"worker: alive (seen {seconds:.0f} s ago)"
    if is_alive(seconds):
        return (
            f"worker: seen {seconds:.0f} s ago, although it reports every {EVERY_SECONDS:.0f} s. It was "
            "killed, cannot write to the state store, or waits for the brokers. Its log shows which"
        )
    if seconds is not None:
        seen = datetime.now(timezone.utc) - timedelta(seconds=seconds)
        return f"worker: no worker seen since {shown_moment(seen)} UTC, and it did not report that it ended"
    last = max((entry.updated for entry in found if entry.updated), default=None)
    return "worker: none runs" + (f"; no worker seen since {shown_moment(last)} UTC" if last else "")


def shown_moment(moment: datetime | None) -> str:
    """Format a moment for people, in UTC; empty for None."""
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S") if moment else ""


def cuts_of(config: Config) -> Mapping[str, Any] | None:
    """The last and the next cut, and what holds the next one back; None if there are no cuts."""
    from tidesink.sinks.worker.cuts import cut_status

    return _asked(config, lambda store: cut_status(store, config.pipeline))


def cut_lines(found: Mapping[str, Any] | None) -> Iterator[str]:
    """Lines about the last and the next cut, and about the tables that hold it back."""
    if found is None:
        return
    by_position = "waits" in found
    if found["last"] is not None:
        at = found["last_time"] if by_position else physical_ms(found["last"]) / 1000
        yield f"last cut: {_last_cut(found['last'], at, by_position=by_position)}"
    if found["next"] is not None and found["next"] != found["last"]:
        position = f"position {found['next']}"
        yield f"next cut: {position if by_position else commit_time(found['next']) + ' UTC'}"
    if by_position and found["waits"]:
        yield f"next cut waits for the connector: {found['waits']}"
    for table, reason in found["held_back"].items():
        yield f"next cut waits for {table}: {reason}"
    # Cuts by positions are for connectors, whose tables have no snapshot of ours.
    reason = "its topic is still empty" if by_position else "its snapshot runs, or is later than the cut"
    for table in found.get("excluded", ()):
        yield f"next cut leaves out {table}: {reason}"


def _last_cut(commit_ts: int, at: float | None, *, by_position: bool) -> str:
    """The last cut as text. ``at`` may be None for a position that another worker reached."""
    position = f"position {commit_ts}" if by_position else ""
    if at is None:
        return position
    behind = max(0.0, time.time() - at)
    moment = shown_instant(datetime.fromtimestamp(at, timezone.utc))
    return f"{moment} UTC, {behind:.0f} s ago" + (f" ({position})" if position else "")


def read_statuses(config: Config) -> tuple[TableStatus, ...]:
    """Return the status of each table of a pipeline; empty before its first run."""
    return _asked(config, lambda store: store.statuses(config.pipeline)) or ()


def snapshots_asked_for(config: Config) -> tuple[TableId, ...]:
    """Tables for which a snapshot was requested and not cancelled."""
    return tuple(table for table, asked in _controls(config).items() if asked.snapshot.is_asked)


def _asked(config: Config, question: Callable[[StateStore], T]) -> T | None:
    """Return the store's answer, or None if there is no store yet: a question must not create one."""
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
    # Converts the counters' names of earlier versions.
    shown["counters"] = Account.from_counters(entry.counters).as_counters() if entry.counters else {}
    if "filtered" in entry.details:
        shown["details"] |= Filtered.from_details(entry.details).as_details()
        del shown["details"]["filtered"]
    shown["error"] = entry.error or (failure.error if failure is not None else None)
    shown["failure"] = _failure_json(failure)
    shown["lag"] = lag_of(entry)._asdict()
    return shown


def _failure_json(failure: Failure | None) -> dict[str, Any] | None:
    """A failure as JSON. ``next_try`` is None if the worker does not try again by itself."""
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
    """Records of its topic that a table has not applied, as of the worker's last report.

    records: Number of records, or None if unknown.
    seconds: Age of the lag now, or None if unknown.
    of: Start of ``seconds``: ``kafka`` is Kafka's timestamp of the oldest record that is not applied,
        ``source`` is the source's commit time of the newest applied change.
    """

    records: int | None
    seconds: float | None = None
    of: str | None = None


def lag_of(entry: TableStatus, now: float | None = None) -> Lag:
    """Return a table's lag. ``now`` is in seconds since 1970."""
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
    "kafka": "since Kafka's time of the oldest one",
    "source": "since the source time of the last applied change",
}


def lag_line(lag: Lag) -> str:
    """A table's lag as text; empty if nothing waits."""
    if not lag.records:
        return ""
    waits = f"lag: {lag.records} records are not applied"
    return waits if lag.of is None else f"{waits}, {lag.seconds:.0f} s {_LAG_OF[lag.of]}"


def failure_lines(
    failure: Failure, table: TableId | None = None, *, works: bool, error: bool = True
) -> Iterator[str]:
    """Lines about an error that persists: since when, and what happens next.

    ``table`` is None if the error concerns all tables. ``works``: True if a worker is alive. ``error``: False
    if the error's text was shown already.
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
    """The next step if the worker does not try again by itself. ``works``: True if a worker is alive."""
    if not works:
        return f"next: no worker runs. Remove the cause, then run `tidesink run`. {_KEPT}"
    way = f"`tidesink resume {shlex.quote(str(table))}`" if table is not None else "`tidesink run`"
    return f"next: the worker does not try this again by itself. Remove the cause, then run {way}. {_KEPT}"


_KEPT = "Nothing is lost: Kafka keeps the records that are not applied, up to the topic's retention"


def show_statuses(found: tuple[TableStatus, ...], source: SourceSettings, *, works: bool) -> None:
    """Print the tables' states as text."""
    if not found:
        terminal.echo("no table has been worked on yet. `tidesink run` starts the worker")
        return
    show_table(None, ("table", "state", "batch", "lag", "source time", "updated"), map(_row, found))
    typer.echo("")
    show_table(None, COUNTS, [counts_row(entry.table, entry.counters) for entry in found])
    for entry in found:
        for line in _remarks(entry, source, works=works):
            terminal.echo(f"{entry.table}: {line}")


def letter_lines(found: Iterable[TableStatus], letters: Mapping[TableId, int]) -> Iterator[str]:
    """Lines about open dead letters, one per table that ever wrote a dead letter."""
    for entry in found:
        if written := Account.from_counters(entry.counters).dead_lettered:
            count = letters[entry.table]
            way = f": `tidesink dlq show {shlex.quote(str(entry.table))}`" if count else ""
            yield f"{entry.table}: dead letters: {count} open of {written} in the table's life{way}"


def counts_row(table: TableId, counters: Mapping[str, int]) -> tuple[Any, ...]:
    """A table's row under ``COUNTS``: the number of row events per outcome."""
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
    if failure is not None and entry.state != "PAUSED":
        remarks += failure_lines(failure, entry.table, works=works, error=entry.error is None)
    elif entry.state == "FAILING":
        # Saved by an earlier version.
        remarks += [next_line(entry.table, works=works)]
    remarks += [line] if (line := lag_line(lag_of(entry))) else []
    remarks += _routed_to(entry)
    remarks += _snapshot(entry)
    remarks += [again_line(entry.details["read_again"])] if "read_again" in entry.details else []
    left = left_to_spark(entry)
    remarks += [f"batches are {left}"] if left else []
    remarks += [f"warning: {warning}" for warning in entry.warnings]
    return [*remarks, *count_remarks(entry, source), *without_row_lines(entry)]


def count_remarks(entry: TableStatus | TableReport, source: SourceSettings) -> Iterator[str]:
    """Lines about a table's other counters, one for each that is not zero."""
    counts = Account.from_counters(entry.counters)
    if counts.filtered_out:
        changes = f"{counts.filtered_out} changes whose row does not satisfy the table's filter"
        yield f"filtered out: {changes}, among applied and superseded"
    if counts.row_by_row:
        number = f"{counts.row_by_row} of {counts.read} records were decoded one by one, which is slower"
        yield f"row by row: {number}: {row_by_row_reason(source)}"
    for column, count in entry.zero_dates.items():
        if count:
            yield f"{count} invalid dates of column {column} became NULL (zero-date: null)"
    for column, count in entry.ambiguous_times.items():
        if count:
            yield (
                f"{count} times of column {column} occur twice when clocks go back, so the other one may be "
                "meant (ambiguous-time)"
            )


def row_by_row_reason(source: SourceSettings) -> str:
    """The records of a protocol that are not decoded in columns."""
    if source.checksum != "off":
        return f"source.checksum: {source.checksum} requires the checksum of each row"
    return _ROW_BY_ROW[source.protocol]


_ROW_BY_ROW = {
    "flat-avro": "records whose Avro schema or header differs from TiCDC's",
    "canal-json": "records whose JSON differs from TiCDC's, and records that cannot be decoded",
    "debezium-json": (
        "tombstones, records without a schema next to the payload (value.converter.schemas.enable: false), "
        "TRUNCATE events, and records whose JSON differs from Kafka Connect's"
    ),
    "debezium-avro": "records with arrays, TRUNCATE events, and records with an unusual schema or header",
}


def without_row_lines(entry: TableStatus) -> list[str]:
    """Lines about records without rows: the count per kind, the watermark, and the last DDL event."""
    found = Filtered.from_details(entry.details)
    counts = (found.ddl, "DDL events"), (found.watermarks, "watermarks"), (found.messages, _MESSAGES)
    kinds = [f"{count} {word}" for count, word in counts if count]
    lines, last = [f"without row: {', '.join(kinds)}"] if kinds else [], found.last_ddl
    watermark = entry.details.get("watermark")
    if watermark is not None:
        behind = max(0.0, time.time() - physical_ms(watermark) / 1000)
        lines.append(
            f"watermark: {commit_time(watermark)} UTC, {behind:.0f} s ago: all changes up to it are applied"
        )
    if last:
        at = f" at {moment} UTC" if (moment := commit_time(last["commit_ts"])) else ""
        lines.append(f"last DDL{at}: {last['query']} (kind {last['kind']})")
    return lines


_MESSAGES = "messages that change no row (tombstones, heartbeats, ends of transactions)"


def _routed_to(entry: TableStatus) -> list[str]:
    """The target table of a routed table."""
    table, shard = entry.details.get("target_table"), entry.details.get("shard")
    if table is None:
        return []
    return [f"goes to {table}" + (f", as shard {shard}" if shard is not None else "")]


def left_to_spark(entry: TableStatus) -> str:
    """The way in which Spark wrote a lake table's last batch, with the reason; empty for files."""
    from tidesink.sinks.worker.tally import LEFT

    return str(entry.details.get(LEFT, ""))


def _snapshot(entry: TableStatus) -> list[str]:
    """The progress of the table's snapshot; empty if it is done."""
    shown = entry.details.get("snapshot")
    if shown is None or shown["state"] == "done":
        return []
    estimate, reason = shown["estimate"], shown.get("reason")
    rows = f"{shown['rows']} rows" + (f" of about {estimate}" if estimate else "")
    within = f"where {shown['where']}" if "where" in shown else ""
    said = [f"snapshot {shown['state']}: {rows}", within, deletes_text(shown), reason]
    return ["; ".join(one for one in said if one)]


def deletes_text(shown: Mapping[str, Any]) -> str:
    """The progress of a resync's deletes; empty for a snapshot, which deletes nothing."""
    deletes = shown.get("deletes")
    if deletes is None:
        return ""
    if not deletes["parts"]:
        return "deletes follow after the rows"
    return f"{deletes['deletes']} deletes, part {deletes['done']} of {deletes['parts']}"


def again_line(again: Mapping[str, Sequence[int]]) -> str:
    """The line about a rewound table.

    ``again``: per partition the offsets that are still to be read again.
    """
    parts = ", ".join(f"partition {number} from {start} to {end}" for number, (start, end) in again.items())
    return f"rewound, and reads again: {parts}. Until then rows may have earlier values"


def source_time(commit_ts: int | None) -> str:
    """``commit_time`` for a table's cell: ``-`` for protocols without commit_ts."""
    return commit_time(commit_ts) or "-"


def commit_time(commit_ts: int | None) -> str:
    """Format a TiDB TSO's wall clock in UTC; empty for None."""
    if commit_ts is None:
        return ""
    return shown_instant(datetime.fromtimestamp(physical_ms(commit_ts) / 1000, timezone.utc))


def shown_instant(moment: datetime) -> str:
    """Format a moment of the source for people, in UTC with milliseconds."""
    return (
        moment.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}"
    )


Tables = Annotated[list[str], typer.Argument(metavar="TABLE...", help="Tables, as schema.table.")]
Asked = tuple[TableId, "TableStatus | None", "TableControl"]
WHERE_IT_ENDS = {
    True: "a worker is alive and handles the request at its next turn",
    False: "no worker runs. The next one handles the request",
}


def pause(tables: Tables, config_option: ConfigOption = None, output: Output = OutputFormat.TEXT) -> None:
    """Pause tables after their current batch.

    They stay paused until `tidesink resume`, even if the worker restarts.
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
            "--accept", help="Accept counts that did not add up, or deletes that may be missing, as shown."
        ),
    ] = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Resume tables that are paused.

    A table is paused by a person, by a change of columns or rows, or by a failure. The worker checks a
    pending change again, and the table continues only if the change no longer exists: `tidesink ddl approve`
    and `tidesink ddl reject` decide it. If counts did not add up, or deletes may be missing, the table
    continues only with --accept.
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
            f"{table} has no count that did not add up, and no deletes that may be missing. "
            + (
                "Decide its changes with `tidesink ddl approve` or `tidesink ddl reject`."
                if changes
                else "Use `tidesink resume` without --accept."
            ),
            table=str(table),
        )
    return {found["digest"]: "apply" for found in broken}


def pending_changes(status: TableStatus | None) -> Sequence[dict[str, Any]]:
    """Changes that wait for a decision, from the table's status."""
    return status.details.get("pending", []) if status is not None else []


def _broken(status: TableStatus | None) -> list[dict[str, Any]]:
    """The count that did not add up, and the deletes that may be missing, from the table's status."""
    from tidesink.sinks.worker.control import BROKEN, MISSED

    details = status.details if status is not None else {}
    return [details[kind] for kind in (BROKEN, MISSED) if kind in details]


def ask_tables(
    config: Config,
    names: Iterable[str],
    change: Callable[[TableId, TableStatus | None], Callable[[TableControl], TableControl]],
) -> list[Asked]:
    """Store a request for each table. If one of the tables refuses it, none is stored."""
    from tidesink.sinks.worker.control import change_control

    with worked_with(config) as store:
        found = {status.table: status for status in store.statuses(config.pipeline)}
        tables = [known_table(name, config, found) for name in dict.fromkeys(names)]
        changes = [(table, change(table, found.get(table))) for table in tables]
        return [
            (table, found.get(table), change_control(store, config.pipeline, table, asked))
            for table, asked in changes
        ]


def _show(config: Config, asked: Sequence[Asked], output: OutputFormat, *, word: str) -> None:
    alive = worker_is_alive(config)
    if output is OutputFormat.JSON:
        tables = [_as_json(*one) for one in asked]
        write_json({"pipeline": config.pipeline, "worker_alive": alive, "tables": tables})
        return
    for table, status, control in asked:
        typer.echo(f"{table}: {word}")
        for change in [] if control.rests else pending_changes(status):
            typer.echo(f"  {change_words(change)}: {_prospect(change, control)}")
        for broken in [] if control.rests else _broken(status):
            accepted = "" if broken["digest"] in control.accepted else "not accepted, so the table stays: "
            typer.echo(f"  {accepted or 'accepted: '}{broken['text']}")
    typer.echo(WHERE_IT_ENDS[alive])


def change_words(change: Mapping[str, Any]) -> str:
    """A change from the status as text. DDL that changes rows is shown with its statement."""
    if change["column"]:
        return f"{change['kind']} of column {change['column']}"
    return f"{change['kind']} ({change['statement']})" if "statement" in change else str(change["kind"])


def _prospect(change: dict[str, Any], control: TableControl) -> str:
    if change["digest"] in control.accepted:
        return f"decided ({control.accepted[change['digest']]})"
    return "not decided, so the table continues only if the change no longer exists"


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
    """Returns True if a worker of the pipeline left a recent sign of life."""
    return is_alive(seconds_since_turn(config))


def accept_restored(
    table: Annotated[str, typer.Argument(metavar="SCHEMA.TABLE", help="The table, by its source's name.")],
    config_option: ConfigOption = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Let a table continue after its target was restored from a backup.

    The next worker reads the records after the backup from Kafka again. This accepts one restore, not a later
    one.
    """
    from tidesink.sinks.worker.control import accept_restored

    settings = chosen_config(None, config_option)
    with worked_with(settings) as store:
        found = [status.table for status in store.statuses(settings.pipeline)]
        known = known_table(table, settings, found)
        batch = accept_restored(store, settings.pipeline, known)
    if output is OutputFormat.JSON:
        write_json({"pipeline": settings.pipeline, "table": known._asdict(), "accepted_below_batch": batch})
    else:
        typer.echo(f"{table}: continues from a backup older than batch {batch}. Start the worker again")


@contextmanager
def worked_with(config: Config) -> Iterator[StateStore]:
    """Open the state store of a pipeline.

    Raises:
        ConfigError: no worker has created it yet.
        StateStoreError: it does not answer.
    """
    from tidesink.sinks.state.sql_store import open_state_store

    if not _has_store(config):
        raise ConfigError(
            "no worker has run yet, so there is no state store. `tidesink run` creates it.",
            state=config.state,
        )
    with closing(open_state_store(config.state)) as store:
        yield store


@contextmanager
def store_if_there(config: Config) -> Iterator[StateStore | None]:
    """Open the state store of a pipeline, or return None if there is none yet: a look must not create one.

    Raises:
        StateStoreError: it does not answer.
    """
    if not _has_store(config):
        yield None
        return
    with worked_with(config) as store:
        yield store


def tables_worked_on(config: Config) -> list[TableId]:
    """Tables in a pipeline's state store; none before its first run."""
    return [entry.table for entry in read_statuses(config)]


def named_table(name: str, known: Iterable[TableId]) -> TableId:
    """The table with this name, ``schema.table`` as in records. Either part may contain a dot."""
    found = {str(table): table for table in known}
    schema, dot, rest = name.partition(".")
    return found.get(name) or (TableId(schema, rest) if dot else TableId("", name))


def known_table(name: str, config: Config, found: Iterable[TableId]) -> TableId:
    """The table with this name, spelt as the worker or the config spells it. Either part may contain a dot.

    Upper and lower case are ignored, unless a table with exactly this name has been worked on.

    Raises:
        ConfigError: neither the worker nor the config has the table.
    """
    found = tuple(found)
    spelt = {str(table): table for table in found}
    if name in spelt:
        return spelt[name]
    named = [entry.table for entry in config.tables if entry.table is not None]
    known = {fold_name(str(table)): table for table in (*named, *found)}
    if fold_name(name) not in known:
        raise ConfigError(
            f"no table {name} is known to pipeline {config.pipeline}{nearest(name, known)}. `tidesink "
            "status` lists the tables that were worked on."
        )
    return known[fold_name(name)]
