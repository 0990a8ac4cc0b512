"""``tidesink topics``: where a changefeed sends each table, by its dispatchers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tidesink.cli import exits
from tidesink.cli.changefeed_options import (
    ChangefeedFile,
    Definitions,
    Producer,
    ProducerOption,
    SinkUri,
    changefeed_of,
)
from tidesink.cli.output import Output, OutputFormat, show_table, warn, write_json
from tidesink.cli.sources import definitions_of
from tidesink.codecs.dispatch import Dispatcher
from tidesink.config.changefeed import Changefeed
from tidesink.config.changefeed.pipeline import key_of, lost_order
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import ConfigError
from tidesink.events import TableId
from tidesink.schema_registry.naming import subject


def topics(
    *,
    sink_uri: SinkUri = None,
    changefeed: ChangefeedFile = None,
    table: Annotated[
        list[str] | None, typer.Option("--table", help="A table, schema.table; may be repeated.")
    ] = None,
    table_definition: Definitions = None,
    producer: ProducerOption = Producer.CLASSIC,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show the topic and the partition rule of each table of a changefeed, as TiCDC resolves them.

    Tables are those of --table and of the SQL file. Exit code 2 where TiCDC refuses the changefeed, or where
    one row's changes could be in several partitions, which loses their order.
    """
    feed = changefeed_of(sink_uri, changefeed, producer)
    definitions = definitions_of(table_definition, None)
    names = [*map(_table_id, table or ()), *definitions]
    if not names:
        raise ConfigError("which tables? Give --table schema.table, or --table-definition FILE")
    lines = [_line(feed, one, definitions) for one in dict.fromkeys(names)]
    for text in feed.warnings:
        warn(text)
    if output is OutputFormat.JSON:
        write_json({"protocol": feed.options["protocol"], "tables": lines, "warnings": list(feed.warnings)})
    else:
        _show(lines)
    if any(line["problem"] for line in lines):
        raise typer.Exit(exits.USAGE)


def _table_id(text: str) -> TableId:
    schema, dot, name = text.partition(".")
    if not (schema and dot and name):
        raise ConfigError(f"--table {text!r}: give schema.table")
    return TableId(schema, name)


def _line(feed: Changefeed, table: TableId, definitions: TableDefinitions) -> dict[str, Any]:
    dispatcher = feed.router.dispatcher_of(table)
    topic = feed.router.topic_of(table)
    registered = feed.options["protocol"] in ("avro", "debezium-avro")
    fits = any(one is dispatcher for one in feed.router.dispatchers)
    return {
        "table": table._asdict(),
        "topic": topic,
        "partition": dispatcher.partition,
        "columns": _columns(dispatcher, table, definitions),
        "index": dispatcher.index or None,
        "matcher": list(dispatcher.matcher.patterns) if fits else None,
        "subject": subject(topic, "value") if registered else None,
        "problem": _problem(dispatcher, table, definitions),
    }


def _columns(dispatcher: Dispatcher, table: TableId, definitions: TableDefinitions) -> list[str] | None:
    """The columns whose values choose the partition; None where the table's definition would tell them."""
    if dispatcher.partition == "columns":
        return list(dispatcher.columns)
    if dispatcher.partition != "index-value":
        return []
    schema = definitions.get(table)
    if schema is None:
        return None
    if dispatcher.index:
        return list(definitions.unique_index(table, dispatcher.index)) or None
    return [column.name for column in schema.handle_columns]


def _problem(dispatcher: Dispatcher, table: TableId, definitions: TableDefinitions) -> str | None:
    schema = definitions.get(table)
    if schema is not None and dispatcher.index and not definitions.unique_index(table, dispatcher.index):
        return f"{table} has no unique index {dispatcher.index}: TiCDC would stop; correct the dispatcher"
    return lost_order(dispatcher, key_of(definitions, table))


def _show(lines: list[dict[str, Any]]) -> None:
    rows = []
    for line in lines:
        columns = "the handle key" if line["columns"] is None else ", ".join(line["columns"])
        rule = line["partition"] + (f": {columns}" if columns else "")
        matcher = ", ".join(line["matcher"] or ["(none fits)"])
        rows.append((TableId(**line["table"]), line["topic"], rule, matcher))
    show_table(None, ("table", "topic", "partition by", "dispatcher"), rows)
    for line in lines:
        if line["problem"]:
            typer.echo(f"PROBLEM: {TableId(**line['table'])}: {line['problem']}")
