"""``tidesink ddl``: the DDL events that workers read, from the state store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import typer

from tidesink.cli import records
from tidesink.cli.failures import guarded
from tidesink.cli.known_tables import tables_worked_on, worked_with
from tidesink.cli.options import ConfigOption, chosen_config
from tidesink.cli.output import Output, OutputFormat, show_table, write_json
from tidesink.cli.status import commit_time
from tidesink.config.fields import without_secrets

if TYPE_CHECKING:
    from tidesink.config import Config
    from tidesink.sinks.kafka.letter_store import Chosen

app = typer.Typer(
    help="DDL events: what the topics told of changed tables.", no_args_is_help=True, rich_markup_mode=None
)

_COLUMNS: Final = ("table", "committed", "kind", "where", "statement")


def list_events(
    table: records.AnyTable = None,
    config: ConfigOption = None,
    most: records.Limit = 1000,
    output: Output = OutputFormat.TEXT,
) -> None:
    """List the DDL events, the oldest of each table first: when, what kind, and the statement."""
    from tidesink.sinks.kafka.letter_store import Chosen

    settings = chosen_config(None, config)
    found, place = _events(settings, Chosen(settings.pipeline, table))[:most], _place(settings)
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
    """Show one DDL event: its whole statement. Exit code 1 where there is none here."""
    settings = chosen_config(None, config)
    chosen = records.chosen_record(settings.pipeline, table, place, topic_id)
    found = _events(settings, chosen)
    records.check_one_topic(((row["topic"], row["topic_id"]) for row in found), place)
    if not found:
        raise records.not_kept("DDL event", chosen, command="tidesink ddl list", store=_place(settings))
    row = found[0]
    if output is OutputFormat.JSON:
        write_json(records.record_json(row, tables_worked_on(settings)))
        return
    typer.echo(f"{row['table']}  {records.place_of(row)}  {row['kind']}  {commit_time(row['commit_ts'])}")
    typer.echo(row["query"])


def _events(config: Config, chosen: Chosen) -> list[dict[str, Any]]:
    from tidesink.sinks.ddl_events import load_ddl
    from tidesink.sinks.kafka.letter_store import moment

    tables = tables_worked_on(config)
    if not tables:
        return []
    with worked_with(config) as store:
        found = load_ddl(store, config.pipeline, tables)
    return [
        {**event._asdict(), "pipeline": config.pipeline, "time": moment(event.time)}
        for event in found
        if chosen.fits(event, kind=event.kind)
    ]


def _place(config: Config) -> str:
    return without_secrets(config.state)


def _row(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["table"], commit_time(row["commit_ts"]), row["kind"], records.place_of(row), row["query"]


for _name, _command in (("list", list_events), ("show", show)):
    app.command(_name)(guarded(_command))
