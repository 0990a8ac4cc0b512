"""``tidesink ddl``: the DDL events that workers read and keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import typer

from tidesink.cli import records
from tidesink.cli.failures import guarded
from tidesink.cli.known_tables import tables_worked_on
from tidesink.cli.options import ConfigOption, chosen_config
from tidesink.cli.output import Output, OutputFormat, show_table, write_json
from tidesink.cli.status import commit_time

if TYPE_CHECKING:
    from tidesink.sinks.rejects import RecordStore

app = typer.Typer(
    help="DDL events: what the topics told of changed tables.", no_args_is_help=True, rich_markup_mode=None
)

_EVENTS: Final[records.KeptRecords[RecordStore]] = records.KeptRecords(
    "DDL event", "ddl", lambda found: found.ddl_events
)
_COLUMNS: Final = ("table", "committed", "kind", "where", "statement")


def list_events(
    table: records.AnyTable = None,
    config: ConfigOption = None,
    most: records.Limit = 1000,
    output: Output = OutputFormat.TEXT,
) -> None:
    """List the DDL events, the oldest of each table first: when, what kind, and the statement."""
    from tidesink.sinks.rejects import Chosen

    settings = chosen_config(None, config)
    with _EVENTS.opened(settings) as events:
        found = events.rows(Chosen(settings.pipeline, table), limit=most)
        place = events.place
    if output is OutputFormat.JSON:
        known = tables_worked_on(settings)
        shown = [records.record_json(row, known) for row in found]
        write_json({"pipeline": settings.pipeline, "place": place, "ddl": shown})
    elif not found:
        typer.echo(f"no DDL events of {table or settings.pipeline} in {place}")
    else:
        show_table(None, _COLUMNS, map(_row, found), folded=("statement",))


def show(
    table: records.TableArgument,
    place: records.PlaceArgument,
    config: ConfigOption = None,
    topic_id: records.TopicId = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show one DDL event: its whole statement, and its bytes. Exit code 1 where there is none here."""
    settings = chosen_config(None, config)
    row = _EVENTS.one(settings, table, place, topic_id)
    if output is OutputFormat.JSON:
        write_json(records.record_json(row, tables_worked_on(settings)))
        return
    typer.echo(f"{row['table']}  {records.place_of(row)}  {row['kind']}  {commit_time(row['commit_ts'])}")
    typer.echo(row["query"])
    records.echo_bytes(row)


def _row(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["table"], commit_time(row["commit_ts"]), row["kind"], records.place_of(row), row["query"]


for _name, _command in (("list", list_events), ("show", show)):
    app.command(_name)(guarded(_command))
