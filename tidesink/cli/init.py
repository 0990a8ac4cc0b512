"""``tidesink init``: a commented config to start from, for a changefeed that runs or is yet to be made."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from tidesink.cli.changefeed_options import (
    ChangefeedFile,
    Definitions,
    Producer,
    ProducerOption,
    SinkUri,
    changefeed_of,
)
from tidesink.cli.local_stack import running_stack
from tidesink.cli.options import DEFAULT_CONFIG
from tidesink.cli.output import Output, OutputFormat, note, write_json
from tidesink.cli.pipeline_text import PipelineText, checked, codec_lines, kafka_lines, scalar, tables_lines
from tidesink.cli.sources import definitions_of
from tidesink.config.changefeed.pipeline import pipeline_draft
from tidesink.dev.stack import DIRECTORY, StackAddresses
from tidesink.errors import ConfigError

_DEFAULT = StackAddresses("127.0.0.1:9092", "http://127.0.0.1:8081")
_RULE = "{schema}_{table}"
_DEBEZIUM_RULE = "server1.{schema}.{table}"

_CODEC = {
    "flat-avro": """\
  # The schema registry that the changefeed writes to.
  schema-registry: @registry@
  # As in the changefeed:
  enable-tidb-extension: false
  avro-decimal-handling-mode: precise         # precise | string
  avro-bigint-unsigned-handling-mode: long    # long | string
""",
    "canal-json": """\
  # As in the changefeed:
  enable-tidb-extension: false
  content-compatible: false
""",
    "debezium-avro": """\
  # The connector's topics are <topic.prefix>.<schema>.<table>: put its prefix into the rule above.
  # The schema registry that its converter writes to.
  schema-registry: @registry@
""",
    "debezium-json": """\
  # The connector's topics are <topic.prefix>.<schema>.<table>: put its prefix into the rule above.
  # Where its converter leaves schemas out (schemas.enable: false), give a definition of each table under
  # tables, and the connector's handling modes:
  # debezium:
  #   decimal-handling-mode: precise
  #   time-precision-mode: adaptive_time_microseconds    # PostgreSQL: adaptive
""",
}


class Protocol(str, Enum):
    """The protocols a config can be written for."""

    FLAT_AVRO = "flat-avro"
    CANAL_JSON = "canal-json"
    DEBEZIUM_AVRO = "debezium-avro"
    DEBEZIUM_JSON = "debezium-json"


def init(
    *,
    file: Annotated[Path, typer.Argument(help="Where to write it.")] = DEFAULT_CONFIG,
    protocol: Annotated[
        Protocol | None, typer.Option(help="The changefeed's protocol; flat-avro if not given.")
    ] = None,
    sink_uri: SinkUri = None,
    changefeed: ChangefeedFile = None,
    table_definition: Definitions = None,
    producer: ProducerOption = Producer.CLASSIC,
    pipeline: Annotated[str, typer.Option(help="A name for this pipeline.")] = "shop",
    brokers: Annotated[str | None, typer.Option(help="Kafka bootstrap servers.")] = None,
    schema_registry: Annotated[str | None, typer.Option(help="The registry's URL.")] = None,
    target: Annotated[str, typer.Option(help="The lake's root.")] = "./lake",
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Write a commented config to start from, or the config that reads a changefeed.

    With --sink-uri (and --changefeed, its TOML) the config names the changefeed's brokers, topics and
    options; a changefeed that TiCDC refuses, or whose order would be lost, is refused with every reason.
    Passwords become references. Without, where neither --brokers nor --schema-registry is given, it names
    those that `tidesink dev up` started in this folder; where none run, 127.0.0.1:9092 and
    http://127.0.0.1:8081.
    """
    if file.exists() and not force:
        raise ConfigError(f"{file} is there already: give another name, or --force to replace it")
    common = {"pipeline": scalar(pipeline), "target": scalar(target)}
    if sink_uri is None and changefeed is None:
        text = _plain(protocol or Protocol.FLAT_AVRO, _addresses(brokers, schema_registry)).filled(**common)
        notes: list[str] = []
    else:
        if protocol is not None or schema_registry is not None:
            raise ConfigError("--protocol and --schema-registry stand in the sink URI: remove them here")
        feed = changefeed_of(sink_uri, changefeed, producer)
        draft = pipeline_draft(feed, definitions_of(table_definition, None))
        draft.source["brokers"] = brokers or draft.source["brokers"]
        text = PipelineText(
            brokers=scalar(draft.source["brokers"]),
            protocol=draft.source["protocol"],
            topics=scalar(draft.source["topics"]),
            codec=codec_lines(draft.source),
            kafka=kafka_lines(draft.source.get("kafka")),
            tables=tables_lines(draft.tables),
        ).filled(**common)
        notes = draft.notes
    _write(file, checked(text))
    _tell(file, notes, output)


def _plain(protocol: Protocol, addresses: StackAddresses) -> PipelineText:
    return PipelineText(
        brokers=scalar(addresses.brokers),
        protocol=protocol.value,
        topics=scalar(_DEBEZIUM_RULE if protocol.value.startswith("debezium") else _RULE),
        codec=_CODEC[protocol.value].replace("@registry@", scalar(addresses.registry_url)),
        kafka=kafka_lines(None),
        tables=tables_lines([]),
    )


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from error


def _tell(file: Path, notes: list[str], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        write_json({"file": str(file), "notes": notes})
        return
    for text in notes:
        note(f"note: {text}")
    typer.echo(f"wrote {file}; next: tidesink validate {file} --connect, then tidesink plan {file}")


def _addresses(brokers: str | None, registry: str | None) -> StackAddresses:
    """What the options say; the running local stack's where they say nothing."""
    if brokers is None and registry is None:
        local = running_stack()
        if local is not None:
            note(
                f"{DIRECTORY} runs a local stack, the config names it: {local.brokers}, {local.registry_url}"
            )
            return local
    return StackAddresses(brokers or _DEFAULT.brokers, registry or _DEFAULT.registry_url)
