"""``tidesink accept-restored``: a person's word that a table may go on from a backup."""

from __future__ import annotations

from typing import Annotated

import typer

from tidesink.cli.known_tables import known_table, worked_with
from tidesink.cli.options import ConfigOption, chosen_config
from tidesink.cli.output import Output, OutputFormat, write_json


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

    settings = chosen_config(None, config_option)
    with worked_with(settings) as store:
        found = [status.table for status in store.statuses(settings.pipeline)]
        known = known_table(table, settings, found)
        batch = accept_restored(store, settings.pipeline, known)
    if output is OutputFormat.JSON:
        write_json({"pipeline": settings.pipeline, "table": known._asdict(), "accepted_below_batch": batch})
    else:
        typer.echo(f"{table}: goes on from a backup older than batch {batch}; start the worker again")
