"""What ``decode`` and ``encode`` work with: a codec with its registry and definitions, and records.

Commands that get no address use the stack that ``tidesink dev up`` started here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from tidesink.cli.capture import SchemaFile, read_capture, read_schemas
from tidesink.cli.codec_options import Given, codec_options, protocol_named
from tidesink.codecs import open_codec
from tidesink.codecs.base import Codec, CodecOptions, TableOfTopic
from tidesink.config import Config, load_config
from tidesink.config.load import load_registry_settings
from tidesink.config.models import stated_keys, topic_tables
from tidesink.ddl.catalog import TableDefinitions
from tidesink.dev.processes import find_running
from tidesink.dev.stack import DIRECTORY, Broker, Registry, StackAddresses
from tidesink.errors import ConfigError
from tidesink.events import Message, TableId, TableSchema
from tidesink.schema_registry import MemorySchemaRegistry, SchemaRegistry, open_registry
from tidesink.schema_registry.glue import AwsGlueSchemas, GlueSchemas, SchemaSource

Input = Annotated[
    str | None, typer.Option("--input", "-i", help="A file of JSON Lines, gzipped or not; - is stdin.")
]
ProtocolName = Annotated[
    str | None,
    typer.Option(
        "--protocol", help="avro (or flat-avro), canal-json, debezium-json (or debezium), debezium-avro."
    ),
]
Schemas = Annotated[Path | None, typer.Option(help="Schemas by id, JSON Lines; in place of a registry.")]
RegistryUrl = Annotated[
    str | None, typer.Option("--schema-registry", help="The registry's URL, several separated by commas.")
]
RegistryFile = Annotated[
    Path | None,
    typer.Option("--registry-file", help="A YAML file of the registry's settings: urls, auth, tls, timeout."),
]
GlueRegion = Annotated[
    str | None,
    typer.Option(
        "--glue-region", help="Ask AWS Glue of this region for the schemas it frames (tidesink[glue])."
    ),
]
Definitions = Annotated[
    Path | None, typer.Option("--table-definition", help="SQL DDL: gives types a codec does not carry.")
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", help="Take brokers, registry and options from a config.")
]


@dataclass(frozen=True)
class Setting:
    """All that says how bytes are read: what was given on the command line, over what a config says.

    ``declared`` are the producer options that were stated, and so can be compared with the bytes.
    """

    protocol: str
    options: CodecOptions
    declared: Given
    registry: SchemaRegistry | None
    definitions: TableDefinitions
    table_of_topic: TableOfTopic | None
    config: Config | None
    keys: Mapping[TableId, tuple[str, ...]] | None = None
    glue: SchemaSource | None = None

    def open_codec(self) -> Codec:
        """The codec, with all it can be given here.

        Raises:
            ConfigError: an Avro codec without a registry.
        """
        return open_codec(
            self.protocol,
            options=self.options,
            registry=self.registry,
            table_of_topic=self.table_of_topic,
            definitions=self.definitions,
            keys=self.keys,
            glue=self.glue,
        )


class FileDefinitions(TableDefinitions):
    """Definitions from a file: a table without a schema's name stands for that table in any schema."""

    def get(self, table: TableId) -> TableSchema | None:
        """The table's columns and keys, or None."""
        found = super().get(table)
        if found is None and table.schema:
            bare = super().get(TableId("", table.name))
            return None if bare is None else replace(bare, table=table)
        return found


def setting(
    *,
    protocol: str | None,
    given: Given,
    schemas: Path | None,
    schema_registry: str | None,
    definitions: Path | None,
    config: Path | None,
    glue_region: str | None = None,
    registry_file: Path | None = None,
) -> Setting:
    """The setting that a command line describes.

    Raises:
        ConfigError: something is missing, unknown, or cannot be read.
    """
    loaded = load_config(config) if config else None
    name = protocol_named(protocol or (loaded.source.protocol if loaded else None))
    base = loaded.source.codec_options() if loaded else None
    listed = read_schemas(str(schemas)) if schemas else None
    glue = _glue(listed, glue_region)
    several = [one for one in (schemas, schema_registry, registry_file) if one is not None]
    if len(several) > 1:
        raise ConfigError("--schemas, --schema-registry and --registry-file exclude each other: keep one")
    if registry_file is not None:
        registry: SchemaRegistry | None = load_registry_settings(registry_file).open()
    else:
        registry = _registry(listed, schema_registry, loaded, needed=name if glue is None else None)
    if registry is None and glue is not None:
        registry = MemorySchemaRegistry(url="AWS Glue")
    return Setting(
        protocol=name,
        options=codec_options(given, base),
        declared={**_declared(loaded), **given},
        registry=registry,
        definitions=definitions_of(definitions, loaded),
        table_of_topic=topic_tables(loaded, registry) if loaded and registry else None,
        config=loaded,
        keys=stated_keys(loaded) if loaded else {},
        glue=glue,
    )


def _glue(listed: SchemaFile | None, region: str | None) -> SchemaSource | None:
    """Where the schemas of AWS Glue come from, if they do."""
    if region is not None:
        if listed is not None and listed.by_uuid:
            raise ConfigError("--schemas with Glue's UUIDs and --glue-region exclude each other: keep one")
        return AwsGlueSchemas(region=region)
    return GlueSchemas(listed.by_uuid, name=listed.name) if listed and listed.by_uuid else None


def _declared(config: Config | None) -> dict[str, Any]:
    if config is None:
        return {}
    known = CodecOptions.__dataclass_fields__
    return {name: getattr(config.source, name) for name in config.source.model_fields_set if name in known}


def _registry(
    listed: SchemaFile | None, url: str | None, config: Config | None, *, needed: str | None
) -> SchemaRegistry | None:
    if listed is not None:
        return MemorySchemaRegistry(listed.by_id, url=listed.name)
    if url is not None:
        return open_registry(url)
    if config is not None and config.source.schema_registry is not None:
        return config.source.open_registry()
    if needed in ("flat-avro", "debezium-avro"):
        raise ConfigError(
            f"{needed} needs its schemas: give --schemas FILE, --schema-registry URL or --config"
        )
    return None


def definitions_of(file: Path | None, config: Config | None) -> TableDefinitions:
    """The tables that a config defines and those of a file of SQL DDL; ConfigError for a wrong file."""
    definitions = FileDefinitions()
    if config is not None:
        for entry in config.tables:
            if entry.definition and entry.table:
                entry.definition.declare_in(definitions, entry.table.schema)
    if file is None:
        return definitions
    try:
        sql = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"--table-definition {file} cannot be read: {reason}") from error
    if not definitions.declare(sql):
        raise ConfigError(f"--table-definition {file} holds no CREATE TABLE")
    return definitions


def records(
    *,
    file: str | None,
    topic: str | None,
    start: str | None,
    limit: int | None,
    brokers: str | None,
    found: Setting,
) -> Iterator[Message]:
    """The records to read: of a file, of stdin, or of a topic.

    Raises:
        ConfigError: neither or both are given, a file with what only a topic has, or a capture line is none.
        SourceUnavailableError: the broker does not answer.
    """
    if (file is None) == (topic is None):
        raise ConfigError("give either --input FILE (- is stdin) or --topic NAME")
    if limit is not None and limit < 1:
        raise ConfigError(f"--max {limit}: give a number of records, 1 or more")
    if file is not None:
        for name, value in (("--from", start), ("--brokers", brokers)):
            if value is not None:
                raise ConfigError(f"{name} has no effect with --input: remove it, or read a --topic")
        return _first(read_capture(file), limit)
    return _from_topic(str(topic), start or "earliest", limit, brokers, found)


def _first(messages: Iterator[Message], limit: int | None) -> Iterator[Message]:
    for count, message in enumerate(messages, start=1):
        yield message
        if count == limit:
            return


def _from_topic(
    topic: str, start: str, limit: int | None, brokers: str | None, found: Setting
) -> Iterator[Message]:
    from tidesink.cli.kafka import parse_start, read_topic

    properties = found.config.source.confluent_properties() if found.config else {}
    if brokers is not None:
        properties["bootstrap.servers"] = brokers
    if not properties:
        raise ConfigError("--topic needs a broker: give --brokers host:port or --config FILE")
    return read_topic(properties, topic, start=parse_start(start), limit=limit)


def running_stack(directory: Path = DIRECTORY) -> StackAddresses | None:
    """Where the broker and the registry of this directory run; None unless both do."""
    # The pid files know the ports, whatever options the stack was started with.
    broker = find_running(Broker(directory, 0, 0).files)
    registry = find_running(Registry(directory, 0).files)
    if broker is None or registry is None:
        return None
    return StackAddresses(
        Broker(directory, broker.port, 0).address, Registry(directory, registry.port).address
    )
