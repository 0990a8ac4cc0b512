"""``tidesink accept-restored``: a person's word that a table may go on from a backup."""

from __future__ import annotations

from typing import Annotated

import typer

from tidesink.change import TableId
from tidesink.cli.options import ConfigOption, chosen_config
from tidesink.cli.output import Output, OutputFormat, write_json
from tidesink.errors import ConfigError


def accept_restored(
    table: Annotated[str, typer.Argument(metavar="SCHEMA.TABLE", help="The table, by its source's name.")],
    config_option: ConfigOption = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Let a table whose target was brought back from a backup go on from there.

    The next worker reads what came since from Kafka anew. It holds for this one going back, not for a later
    one.
    """
    from tidesink.sinks.restored import accept_restored
    from tidesink.sinks.state_store import open_state_store

    settings = chosen_config(None, config_option)
    store = open_state_store(settings.state)
    try:
        batch = accept_restored(store, settings.pipeline, _table_id(table))
    finally:
        store.close()
    if output is OutputFormat.JSON:
        write_json({"pipeline": settings.pipeline, "table": table, "accepted_below_batch": batch})
    else:
        typer.echo(f"{table}: goes on from a backup older than batch {batch}; start the worker again")


def _table_id(text: str) -> TableId:
    schema, dot, name = text.partition(".")
    if not (schema and dot and name):
        raise ConfigError(f"{text!r} is no table: write schema.table")
    return TableId(schema, name)
