"""``tidesink pause`` and ``tidesink resume``: what people ask of tables, by way of the state store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidesink.cli.known_tables import known_table, worked_with
from tidesink.cli.options import ConfigOption, chosen_config
from tidesink.cli.output import Output, OutputFormat, write_json
from tidesink.config import Config
from tidesink.errors import ConfigError
from tidesink.events import TableId

if TYPE_CHECKING:
    from tidesink.config.table_options import ChangePolicy
    from tidesink.sinks.state_store import TableStatus
    from tidesink.sinks.table_control import TableControl

Tables = Annotated[list[str], typer.Argument(metavar="TABLE...", help="Tables, as schema.table.")]
Asked = tuple[TableId, "TableStatus | None", "TableControl"]
_WHERE_IT_ENDS = {
    True: "a worker is alive and heeds it at its next turn",
    False: "no worker runs: the next one heeds it",
}


def pause(tables: Tables, config_option: ConfigOption = None, output: Output = OutputFormat.TEXT) -> None:
    """Let tables rest after the batch that is under way, until tidesink resume; also across restarts."""
    settings = chosen_config(None, config_option)
    asked = _ask(settings, tables, lambda _table, _status: lambda control: control.pause())
    _show(settings, asked, output, word="rests")


def resume(
    tables: Tables,
    config_option: ConfigOption = None,
    *,
    accept: Annotated[
        bool, typer.Option("--accept", help="Accept the change of the columns that the status shows.")
    ] = False,
    ignore: Annotated[
        bool, typer.Option("--ignore", help="With --accept: go on without the change, not with it.")
    ] = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Let tables go on that rest, are paused or failing: each looks again at what it waited for.

    Without --accept a change of the columns is looked at again, and the table goes on only if it is gone.
    """
    if ignore and not accept:
        raise ConfigError("--ignore says how a change is accepted: give --accept too")
    settings = chosen_config(None, config_option)
    how: ChangePolicy = "ignore" if ignore else "apply"

    def told(table: TableId, status: TableStatus | None) -> Callable[[TableControl], TableControl]:
        accepted = _accepted(table, status, how) if accept else {}
        return lambda control: control.resume(accepted)

    _show(settings, _ask(settings, tables, told), output, word="goes on")


def _accepted(table: TableId, status: TableStatus | None, how: ChangePolicy) -> dict[str, ChangePolicy]:
    pending = _pending(status)
    if not pending:
        raise ConfigError(
            f"no change of {table}'s columns waits: tidesink resume without --accept lets it go on",
            table=str(table),
        )
    for change in pending:
        if how not in change["accepts"]:
            ways = " or ".join(change["accepts"])
            reason = change["reason"] or f"only {ways} is possible here"
            raise ConfigError(
                f"{change['kind']} of column {change['column']}: cannot be accepted as {how}: {reason}",
                table=str(table),
            )
    return {change["digest"]: how for change in pending}


def _pending(status: TableStatus | None) -> Sequence[dict[str, Any]]:
    return status.details.get("pending", []) if status is not None else []


def _ask(
    config: Config,
    names: Iterable[str],
    change: Callable[[TableId, TableStatus | None], Callable[[TableControl], TableControl]],
) -> list[Asked]:
    """Ask something of each table; of none where one of them cannot be asked."""
    from tidesink.sinks.table_control import change_control

    with worked_with(config) as store:
        found = {status.table: status for status in store.statuses(config.pipeline)}
        tables = [known_table(name, config, found) for name in dict.fromkeys(names)]
        changes = [(table, change(table, found.get(table))) for table in tables]
        return [
            (table, found.get(table), change_control(store, config.pipeline, table, asked))
            for table, asked in changes
        ]


def _show(config: Config, asked: Sequence[Asked], output: OutputFormat, *, word: str) -> None:
    alive = _is_alive(config)
    if output is OutputFormat.JSON:
        tables = [_as_json(*one) for one in asked]
        write_json({"pipeline": config.pipeline, "worker_alive": alive, "tables": tables})
        return
    for table, status, control in asked:
        typer.echo(f"{table}: {word}")
        for change in [] if control.rests else _pending(status):
            typer.echo(f"  {_change_line(change, control)}")
    typer.echo(_WHERE_IT_ENDS[alive])


def _change_line(change: dict[str, Any], control: TableControl) -> str:
    said = f"{change['kind']} of column {change['column']}" if change["column"] else change["kind"]
    how = control.accepted.get(change["digest"])
    if how is not None:
        return f"{said}: accepted ({how})"
    return f"{said}: not accepted, so the table goes on only if the change is gone"


def _as_json(table: TableId, status: TableStatus | None, control: TableControl) -> dict[str, Any]:
    return {
        "table": table._asdict(),
        "rests": control.rests,
        "state": status.state if status is not None else None,
        "pending": list(_pending(status)),
        "accepted": dict(control.accepted),
    }


def _is_alive(config: Config) -> bool:
    from tidesink.cli.status import ALIVE_SECONDS, seconds_since_turn

    seconds = seconds_since_turn(config)
    return seconds is not None and seconds <= ALIVE_SECONDS
