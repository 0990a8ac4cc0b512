"""``tidesink init``: a commented config to start from, or the config that reads a changefeed.

The changefeed is given by its sink URI, its file, and which TiCDC runs it; it may not exist yet. The
template is beside this module.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from importlib.resources import files
from pathlib import Path
from textwrap import indent
from typing import Annotated, Any, Final

import typer
import yaml

from tidesink.cli.sources import definitions_of
from tidesink.cli.terminal import DEFAULT_CONFIG, Output, OutputFormat, note, write_json
from tidesink.config import parse_config
from tidesink.config.changefeed import (
    CLAIM_CHECK_VARIABLE,
    KAFKA_VARIABLE,
    REGISTRY_VARIABLE,
    Changefeed,
    pipeline_draft,
    read_changefeed,
    read_toml_file,
)
from tidesink.dev.stack import DIRECTORY, StackAddresses, running_stack
from tidesink.errors import ConfigError

# What stands in other places of the template, or is written by lines of its own.
_ELSEWHERE: Final = ("brokers", "protocol", "topics", "kafka")
_KAFKA_EXAMPLE: Final = """\
  # Kafka client properties:
  # kafka:
  #   security.protocol: SASL_SSL
  #   sasl.mechanism: SCRAM-SHA-512
  #   sasl.username: tidesink
  #   sasl.password: ${env:KAFKA_PASSWORD}
  #   ssl.ca.location: ca.pem
"""
_TABLES_EXAMPLE: Final = """\
# tables:
#   - name: shop.orders
#     keys: [id]         # where neither a key record nor pkNames says them
#     deletes: soft
#   - name: shop.customers
#     except_column_list: [card_number]        # or columns: [id, name, ...]
#     rename: {total: amount}                  # source: target
#     filter: "status <> 'draft'"              # rows for which it is true (docs/how-to-columns.md)
#   - match: "audit.*"
#     bad-record: dead-letter
"""


@dataclass(frozen=True)
class PipelineText:
    """The places of the template as YAML text; ``codec``, ``kafka`` and ``tables`` are whole lines."""

    brokers: str
    protocol: str
    topics: str
    codec: str
    kafka: str
    tables: str

    def filled(self, **more: str) -> str:
        """The template with every place filled."""
        text = (files("tidesink.cli") / "pipeline.yaml").read_text(encoding="utf-8")
        values = asdict(self) | more
        return re.sub(r"@(\w+)@", lambda place: values[place[1]], text)


def scalar(value: Any) -> str:
    """A value as YAML on one line; a reference such as ``${env:NAME}`` stays as it is."""
    return _yaml(value, flow=True).removesuffix("...\n").rstrip("\n")


def _yaml(value: Any, *, flow: bool = False) -> str:
    found: str = yaml.safe_dump(
        value, default_flow_style=flow, sort_keys=False, allow_unicode=True, width=math.inf
    )
    return found


def codec_lines(source: Mapping[str, Any]) -> str:
    """The registry and the codec options of ``source``."""
    options = {name: value for name, value in source.items() if name not in _ELSEWHERE}
    return indent("# As in the changefeed:\n" + (_yaml(options) if options else ""), "  ")


def kafka_lines(properties: Mapping[str, str] | None) -> str:
    """The Kafka client properties, or an example of them."""
    if not properties:
        return _KAFKA_EXAMPLE
    return indent("# Kafka client properties:\n" + _yaml({"kafka": properties}), "  ")


def tables_lines(tables: Sequence[Mapping[str, Any]]) -> str:
    """The tables that have settings of their own, or an example of them."""
    return _yaml({"tables": tables}) if tables else _TABLES_EXAMPLE


def checked(text: str) -> str:
    """The text itself, if it is a correct config.

    Files that it names and variables that it refers to need not exist yet.

    Raises:
        ConfigError: a pipeline cannot use something in the changefeed; the message lists all of it.
    """
    unset = dict.fromkeys((KAFKA_VARIABLE, REGISTRY_VARIABLE, CLAIM_CHECK_VARIABLE), "-")
    _, problems = parse_config(yaml.safe_load(text), base=Path(), environment=unset)
    left = [one for one in problems if not one.field.startswith("source.kafka.ssl.")]
    if left:
        lines = ["the config of this changefeed would be wrong:", *(f"  {one}" for one in left)]
        raise ConfigError("\n".join(lines))
    return text


class Producer(str, Enum):
    """Which TiCDC a changefeed runs on."""

    CLASSIC = "classic"
    NEW = "new"


SinkUri = Annotated[
    str | None,
    typer.Option(
        "--sink-uri",
        envvar="TIDESINK_SINK_URI",
        show_envvar=False,
        help="The changefeed's sink URI. TIDESINK_SINK_URI keeps its passwords out of the shell's history.",
    ),
]
ChangefeedFile = Annotated[Path | None, typer.Option("--changefeed", help="The changefeed's TOML file.")]
ProducerOption = Annotated[
    Producer, typer.Option("--producer", help="Which TiCDC runs it: classic, or the new architecture.")
]
Definitions = Annotated[
    Path | None, typer.Option("--table-definition", help="SQL DDL: gives the tables' keys and indexes.")
]


def changefeed_of(sink_uri: str | None, file: Path | None, producer: Producer) -> Changefeed:
    """The changefeed that a command line describes.

    Raises:
        ConfigError: there is no sink URI, the file cannot be read, or it cannot be read.
    """
    if sink_uri is None:
        raise ConfigError("a changefeed needs --sink-uri, which has its brokers, topic and protocol")
    settings = read_toml_file(file) if file is not None else None
    return read_changefeed(sink_uri, settings, producer=producer.value)


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
    options. Passwords become references. A changefeed that a pipeline cannot read, or whose
    order would be lost, is refused with the reason. TiCDC itself checks the other options.

    Without --sink-uri, --brokers and --schema-registry, the config names the servers that `tidesink dev up`
    started in this folder; if none run, 127.0.0.1:9092 and http://127.0.0.1:8081.
    """
    if file.exists() and not force:
        raise ConfigError(f"{file} is there already: give another name, or --force to replace it")
    common = {"pipeline": scalar(pipeline), "target": scalar(target)}
    if sink_uri is None and changefeed is None:
        text = _plain(protocol or Protocol.FLAT_AVRO, _addresses(brokers, schema_registry)).filled(**common)
        notes: list[str] = []
    else:
        if protocol is not None or schema_registry is not None:
            raise ConfigError("--protocol and --schema-registry are in the sink URI: remove them here")
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
    if output is OutputFormat.JSON:
        write_json({"file": str(file), "notes": notes})
        return
    for one in notes:
        note(f"note: {one}")
    typer.echo(f"wrote {file}; next: tidesink validate {file} --connect, then tidesink plan {file}")


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


def _addresses(brokers: str | None, registry: str | None) -> StackAddresses:
    """The addresses of the options, or else of the running local stack."""
    if brokers is None and registry is None:
        local = running_stack()
        if local is not None:
            note(
                f"{DIRECTORY} runs a local stack, the config names it: {local.brokers}, {local.registry_url}"
            )
            return local
    return StackAddresses(brokers or _DEFAULT.brokers, registry or _DEFAULT.registry_url)
