"""Inputs of commands: the codec with its options, registry and table definitions; and Kafka records.

Codec options have TiCDC's names. ``decode`` does not need them; it warns if the records were written with
other options than those given. A boolean option may be written as a flag (``--enable-tidb-extension``) or as
in a sink URI (``--enable-tidb-extension=true``).

Records come from Kafka or a capture file. Reading a topic joins no consumer group and commits no offsets.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import typer
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from typer.core import TyperCommand

from tidesink.cli.json_lines import read_capture, read_schemas
from tidesink.cli.terminal import warn
from tidesink.codecs import open_codec
from tidesink.codecs.base import Codec, CodecOptions, Options, TableOfTopic
from tidesink.codecs.open import ALIASES, CODECS, protocols_using
from tidesink.codecs.open import protocol_named as known_protocol
from tidesink.codecs.options import DebeziumModes, DebeziumOptions
from tidesink.config import Config, load_config
from tidesink.config.fields import Interpolated, read_text
from tidesink.config.load import load_registry_settings
from tidesink.config.models import stated_keys, topic_tables
from tidesink.config.source import known_time_zone
from tidesink.consumer import message_of
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import BrokerUnavailableError, ConfigError
from tidesink.events import Message, TableId
from tidesink.kafka_client import SILENT, OpenClient, no_answer, open_client
from tidesink.schema_registry import GlueSchemas, MemorySchemaRegistry, SchemaRegistry, open_registry
from tidesink.schema_registry.base import SchemaSource
from tidesink.sinks.kafka.consume import AssignedConsumer, OffsetBounds, RangeReader, ReadLimits

P = ParamSpec("P")
R = TypeVar("R")

Given = Mapping[str, Any]

# Options that no codec has, or has under another name, because records show their value.
_OTHERS: Final[Mapping[str, Any]] = {
    "force_replicate": bool,
    "integrity_check_level": Literal["none", "correctness"],
    "keyspace": str,
    "output_raw_change_event": bool,
    "terminator": str,
}
_MEANING: Final[Mapping[str, Callable[[Any], dict[str, Any]]]] = {
    "force_replicate": lambda _: {},
    "integrity_check_level": lambda level: {"row_checksum": level == "correctness"},
    "keyspace": lambda name: {"namespace": name},
    "terminator": lambda _: {},
}
# Names in the codecs' options, of options that have another name here.
_CODEC_NAMES: Final = {"integrity_check_level": "row_checksum", "keyspace": "namespace"}
_DEBEZIUM: Final = frozenset(one.name for one in fields(DebeziumModes))
_CODECS: Final = [codec.options for codec in CODECS.values()]
_TYPES: Final[Mapping[str, Any]] = {
    **{name: kind for codec in (DebeziumModes, *_CODECS) for name, kind in get_type_hints(codec).items()},
    **_OTHERS,
}
_HELP: Final[Mapping[str, str]] = {
    "enable_tidb_extension": "The topic carries TiDB's extension fields.",
    "output_raw_change_event": "The producer does not split updates of a key into delete and insert.",
    "time_zone": "The changefeed's time zone.",
    "producer": "TiCDC architecture that writes the topic, classic or new; for encoding.",
    "max_message_bytes": "The size limit of the producer's messages; for encoding.",
    "force_replicate": "Accepted as in the changefeed; has no effect here.",
    "terminator": "Accepted as in the changefeed; has no effect here.",
    "avro_enable_watermark": "The topic carries watermark events (flat-avro).",
    "avro_include_before_value": "Values carry the row before the change (flat-avro, new TiCDC).",
    "avro_decimal_handling_mode": "Form of decimals: precise or string (flat-avro).",
    "avro_bigint_unsigned_handling_mode": "Form of unsigned bigints: long or string (flat-avro).",
    "integrity_check_level": "Row checksums: none, or correctness if rows carry them (flat-avro).",
    "checksum": "off, warn or reject: what to do if a row's checksum does not match (flat-avro).",
    "namespace": "The changefeed's namespace; for encoding (flat-avro).",
    "keyspace": "The new TiCDC's name for --namespace.",
    "content_compatible": "Full column types in mysqlType (canal-json).",
    "only_output_updated_columns": "In updates, the member old only has the changed columns (canal-json).",
    "delete_only_output_handle_key_columns": "Deletes carry only the key (canal-json).",
    "output_row_key": "Rows carry TiDB's row key (canal-json, new TiCDC).",
    "large_message_handle_option": "Form of large rows: none, claim-check or handle-key-only; "
    "for encoding (canal-json).",
    "large_message_handle_compression": "Compression: none, snappy or lz4; for encoding "
    "(canal-json, debezium).",
    "claim_check_storage_uri": "Directory or URL of messages that are too large for Kafka (canal-json).",
    "claim_check_raw_value": "Claim-check files hold only the value; for encoding (canal-json).",
    "upstream_url": "SQLAlchemy URL of the upstream TiDB, to read rows sent only as keys (canal-json).",
    "binary_text": "Text encoding of binary columns: iso-8859-1 or utf-8; for decoding (canal-json).",
    "max_decompressed_bytes": "Size limit of one message after decompression (canal-json, debezium).",
    "cluster_id": "TiCDC's cluster id, in schema names and the source block (debezium); for encoding.",
    "debezium_disable_schema": "Messages carry no schema (debezium); for encoding.",
    "debezium_include_start_ts": "The source block of a message has start_ts (debezium); for encoding.",
    "debezium_output_old_value": "Updates carry the old row (debezium); for encoding.",
    "debezium_unwrapped": "The connector uses ExtractNewRecordState: a record with a null value is a delete.",
    "decimal_handling_mode": "Debezium's decimal.handling.mode: precise, string or double.",
    "bigint_unsigned_handling_mode": "Debezium's bigint.unsigned.handling.mode: long, precise or string.",
    "binary_handling_mode": "Debezium's binary.handling.mode: bytes, base64, base64-url-safe or hex.",
    "time_precision_mode": "Debezium's time.precision.mode; Postgres connectors default to adaptive.",
    "interval_handling_mode": "Debezium's interval.handling.mode: numeric or string.",
    "hstore_handling_mode": "Debezium's hstore.handling.mode: json or map.",
    "decimal_format": "decimal.format of Connect's JSON converter: base64 or numeric.",
    "unavailable_value_placeholder": "Debezium's unavailable.value.placeholder.",
}
# The values that Go's ParseBool accepts, which TiCDC uses.
_BOOLEANS: Final = dict.fromkeys(("1", "t", "true"), True) | dict.fromkeys(("0", "f", "false"), False)
# Options that may hold a secret: each is also read from the environment, or as ${env:NAME} or ${file:path}.
_SECRETS: Final = {
    "claim_check_storage_uri": "TIDESINK_CLAIM_CHECK_STORAGE_URI",
    "upstream_url": "TIDESINK_UPSTREAM_URL",
}


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _parameter(name: str, text: str) -> Any:
    """Return the typer annotation of a codec option, for the type of its field in the codec's options."""
    option, kind = _option(name), _TYPES[name]
    if kind is bool:
        flags = f"{option}/--no{option[1:]}"
        return Annotated[bool | None, typer.Option(flags, help=text, rich_help_panel=_heading(name))]
    if kind is int:
        return Annotated[int | None, typer.Option(option, min=1, help=text, rich_help_panel=_heading(name))]
    envvar = _SECRETS.get(name)
    return Annotated[
        str | None, typer.Option(option, help=text, rich_help_panel=_heading(name), envvar=envvar)
    ]


def _heading(name: str) -> str:
    """Return the heading in --help under which a codec option is listed.

    This is the option's protocol, or the changefeed if several protocols have the option.
    """
    if name in _DEBEZIUM - {"time_zone"} or name.startswith("debezium_"):
        return "Options of debezium"
    setting = {"integrity_check_level": "checksum", "keyspace": "namespace"}.get(name, name)
    takers = [p for p, codec in CODECS.items() if setting in codec.reads] or [
        p for p, codec in CODECS.items() if setting in (codec.writes or ())
    ]
    families = {"debezium" if p.startswith("debezium") else p for p in takers}
    return f"Options of {families.pop()}" if len(families) == 1 else "Options of the changefeed"


def with_options(
    name: str, parameters: Mapping[str, Any], made: Callable[[dict[str, Any]], Any]
) -> Callable[[Callable[P, R]], Callable[..., R]]:
    """Return a decorator that adds a group of options to a command, before ``--output``.

    ``parameters``: annotations of the options, by name. ``made``: converts the options' values (None for an
    option that was not given) to the object that the command receives as its argument ``name``.
    """

    def decorated(command: Callable[P, R]) -> Callable[..., R]:
        own = inspect.signature(command, eval_str=True)

        @functools.wraps(command)
        def run(**values: Any) -> R:
            given = {option: values.pop(option, None) for option in parameters}
            return command(**{name: made(given)}, **values)  # type: ignore[call-arg]

        remaining = [
            parameter.replace(kind=_KEYWORD) for option, parameter in own.parameters.items() if option != name
        ]
        added = [
            inspect.Parameter(option, _KEYWORD, default=None, annotation=annotation)
            for option, annotation in parameters.items()
        ]
        last = [parameter for parameter in remaining if parameter.name == "output"]
        listed = [*(parameter for parameter in remaining if parameter.name != "output"), *added, *last]
        del run.__wrapped__  # otherwise typer would read the signature of the command itself
        run.__signature__ = own.replace(parameters=listed)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in listed}
        return run

    return decorated


_KEYWORD: Final = inspect.Parameter.KEYWORD_ONLY


def _given(values: dict[str, Any]) -> dict[str, Any]:
    """Return the options that the user gave, by their names in the codecs' options.

    Leaves out empty values.
    """
    options: dict[str, Any] = {}
    for name, value in values.items():
        if value is None or value == "":
            continue
        allowed = get_args(_TYPES[name]) if get_origin(_TYPES[name]) is Literal else ()
        if allowed and value not in allowed:
            raise ConfigError(f"{_option(name)} {value!r}: use {' or '.join(allowed)}")
        if name == "time_zone":
            try:
                known_time_zone(value)
            except ValueError as error:
                raise ConfigError(f"--time-zone {value!r}: {error}") from error
        if name in _SECRETS:
            value = _resolved(name, value)  # noqa: PLW2901
        options |= _MEANING[name](value) if name in _MEANING else {name: value}
    return options


_CODEC_OPTIONS: Final = {name: _parameter(name, text) for name, text in _HELP.items()}
with_codec_options = with_options("given", _CODEC_OPTIONS, _given)
"""Decorator that adds every codec option to a command, which receives those given as argument ``given``."""


def _resolved(name: str, value: str) -> str:
    """Return an option's value with ``${env:NAME}`` and ``${file:path}`` replaced by their secrets."""
    interpolated = Interpolated(value, base=Path.cwd())
    for problem in interpolated.problems:
        raise ConfigError(f"{_option(name)}: {problem.reason}; {problem.remedy}")
    return interpolated.data if isinstance(interpolated.data, str) else ""


def codec_options(codec: type[Options], given: Given, config: Config | None = None) -> Options:
    """Return the options of a codec: those of the config, overridden by those of the command line.

    ``codec``: class of the options. Options that only other codecs have are ignored.
    """
    options = config.source.options_of(codec) if config else codec()
    options = options.updated(given)
    if not isinstance(options, DebeziumOptions):
        return options
    modes = {name: value for name, value in given.items() if name in _DEBEZIUM}
    return options.updated({"debezium": replace(options.debezium, **modes)})


def protocol_named(name: str | None) -> str:
    """Return the protocol that a user named in upper or lower case.

    Raises:
        ConfigError: ``name`` is None, or no protocol has this name.
    """
    if name is None:
        *first, last = CODECS
        raise ConfigError(
            f"Give --protocol {', '.join(first)} or {last} (or --config). "
            "The protocol cannot be recognised from the records with certainty."
        )
    try:
        return known_protocol(name)
    except ConfigError as error:
        raise ConfigError(f"--protocol: {error.message}") from error


class CodecCommand(TyperCommand):
    """A command whose boolean options also accept a value, as in ``--content-compatible=true``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Rewrite boolean options with a value to flags, then parse the command line."""
        return super().parse_args(ctx, list(_as_flags(args)))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Print the options of --help grouped by heading, which typer's plain help does not do."""
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            named = "Arguments" if parameter.param_type_name == "argument" else "Options"
            if record is not None:
                groups.setdefault(getattr(parameter, "rich_help_panel", None) or named, []).append(record)
        for heading, records in groups.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def _as_flags(args: Sequence[str]) -> Iterator[str]:
    names = {_option(name) for name in _HELP if _TYPES[name] is bool}
    skip = False
    for index, arg in enumerate(args):
        if skip:
            skip = False
            continue
        name, equals, value = arg.partition("=")
        if name not in names:
            yield arg
            continue
        if not equals and index + 1 < len(args) and args[index + 1].lower() in _BOOLEANS:
            value, skip = args[index + 1], True
        if (equals or skip) and value.lower() not in _BOOLEANS:
            raise typer.BadParameter(f"{value!r} is neither true nor false", param_hint=name)
        yield name if _BOOLEANS.get(value.lower(), True) else f"--no{name[1:]}"


Input = Annotated[
    str | None, typer.Option("--input", "-i", help="A file of JSON Lines, gzipped or not; - is stdin.")
]
ProtocolName = Annotated[
    str | None,
    typer.Option("--protocol", help=f"{', '.join(ALIASES)}."),
]
Schemas = Annotated[Path | None, typer.Option(help="File of schemas (JSON Lines), instead of a registry.")]
RegistryUrl = Annotated[
    str | None, typer.Option("--schema-registry", help="The registry's URL, several separated by commas.")
]
RegistryFile = Annotated[
    Path | None,
    typer.Option("--registry-file", help="A YAML file of the registry's settings: urls, auth, tls, timeout."),
]
Definitions = Annotated[
    Path | None, typer.Option("--table-definition", help="SQL DDL, for types that the records do not have.")
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", help="Use the brokers, registry and options of a config.")
]


@dataclass(frozen=True)
class Setting:
    """Settings for decoding and encoding records: those of the command line override those of a config.

    declared: Producer options that the user gave. ``decode`` warns if the records show other options.
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
        """Open the codec with all of these settings.

        Raises:
            ConfigError: the codec needs a schema registry, and none is set.
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


_SETTING: Final[Mapping[str, Any]] = {
    "protocol": ProtocolName,
    "schemas": Schemas,
    "schema_registry": RegistryUrl,
    "registry_file": RegistryFile,
    "table_definition": Definitions,
    "config": ConfigFile,
}


def setting(values: Mapping[str, Any]) -> Setting:
    """Return the settings for a codec from the values of a command line's options.

    Raises:
        ConfigError: the value of an option is missing or unknown, or a file cannot be read.
    """
    protocol, schemas, schema_registry, registry_file, definitions, config = map(values.get, _SETTING)
    given = _given({name: value for name, value in values.items() if name not in _SETTING})
    loaded = load_config(config) if config else None
    name = protocol_named(protocol or (loaded.source.protocol if loaded else None))
    _check_used(values, name)
    _exclusive({"--schema-registry": schema_registry, "--registry-file": registry_file, "--schemas": schemas})
    listed = read_schemas(str(schemas)) if schemas else None
    if listed is not None:
        registry: SchemaRegistry | None = MemorySchemaRegistry(listed.by_id, url=listed.name)
    else:
        registry = registry_of(schema_registry, registry_file, loaded)
    if registry is None and CODECS[name].registry:
        raise ConfigError(
            f"{name} needs its schemas. Give --schemas FILE, --schema-registry URL or --config."
        )
    return Setting(
        protocol=name,
        options=codec_options(CODECS[name].options, given, loaded),
        declared={**_declared(loaded), **given},
        registry=registry,
        definitions=definitions_of(definitions, loaded),
        table_of_topic=topic_tables(loaded, registry) if loaded and registry else None,
        config=loaded,
        keys=stated_keys(loaded) if loaded else {},
        glue=GlueSchemas(listed.by_uuid, name=listed.name) if listed and listed.by_uuid else None,
    )


def _check_used(values: Mapping[str, Any], protocol: str) -> None:
    """Check that the protocol uses each codec option of the command line.

    Raises:
        ConfigError: only other protocols use an option. The message names them.
    """
    for name in _HELP:
        value, variable = values.get(name), _SECRETS.get(name)
        # A variable of the environment may be set for commands with another protocol.
        if value in (None, "") or (variable is not None and value == os.environ.get(variable)):
            continue
        users = protocols_using(_CODEC_NAMES.get(name, name))
        if users and protocol not in users:
            raise ConfigError(
                f"{_option(name)} has no effect with protocol {protocol}. Only {' and '.join(users)} "
                f"{'uses' if len(users) == 1 else 'use'} it. Remove {_option(name)}."
            )


with_setting = with_options("found", {**_SETTING, **_CODEC_OPTIONS}, setting)
"""Decorator that adds all options of a codec and its inputs to a command, as its argument ``found``."""


def _declared(config: Config | None) -> dict[str, Any]:
    if config is None:
        return {}
    return {name: getattr(config.source, name) for name in config.source.model_fields_set if name in _TYPES}


def registry_of(url: str | None, file: Path | None, config: Config | None) -> SchemaRegistry | None:
    """Open the registry of ``url`` or ``file``, or else of the config. Returns None if none is set.

    Raises:
        ConfigError: both ``url`` and ``file`` are given, or the registry's settings are wrong.
    """
    _exclusive({"--schema-registry": url, "--registry-file": file})
    if url is not None:
        return open_registry(url)
    if file is not None:
        return load_registry_settings(file).open()
    if config is not None and config.source.schema_registry is not None:
        return config.source.open_registry()
    return None


def _exclusive(options: Mapping[str, Any]) -> None:
    """Raise ConfigError if several of the options are given."""
    several = [name for name, value in options.items() if value is not None]
    if len(several) > 1:
        raise ConfigError(f"{' and '.join(several)} exclude each other. Keep one of them.")


def definitions_of(file: Path | None, config: Config | None) -> TableDefinitions:
    """Return the tables that a config and a file of SQL DDL define.

    Raises:
        ConfigError: the file cannot be read, its SQL is wrong, or it creates no table.
    """
    definitions = config.definitions() if config is not None else TableDefinitions()
    if file is None:
        return definitions
    if not definitions.declare(read_text(file, f"--table-definition {file}")):
        raise ConfigError(f"--table-definition {file} holds no CREATE TABLE.")
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
    """Yield the records of a file, of stdin, or of a topic.

    Raises:
        ConfigError: neither a file nor a topic is given, or both are; an option that only applies to topics
            is given with a file; or a line of the file is not a Kafka record.
        SourceUnavailableError: the broker does not answer.
    """
    if (file is None) == (topic is None):
        raise ConfigError("Give either --input FILE (- is stdin) or --topic NAME.")
    if limit is not None and limit < 1:
        raise ConfigError(f"--max {limit}: give a number of records, 1 or more.")
    if file is not None:
        for name, value in (("--from", start), ("--brokers", brokers)):
            if value is not None:
                raise ConfigError(f"{name} has no effect with --input. Remove it, or read a --topic.")
        return islice(read_capture(file), limit)
    return _from_topic(str(topic), start or "earliest", limit, brokers, found)


def _from_topic(
    topic: str, start: str, limit: int | None, brokers: str | None, setting: Setting
) -> Iterator[Message]:
    properties = setting.config.source.confluent_properties() if setting.config else {}
    if brokers is not None:
        properties["bootstrap.servers"] = brokers
    if not properties:
        raise ConfigError("--topic needs a broker. Give --brokers host:port or --config FILE.")
    return read_topic(properties, topic, start=parse_start(start), limit=limit)


_SECONDS = 6.0
_POLL_SECONDS = 0.5
_AT_ONCE = 500
_HELD = 20_000  # records of one partition in memory before the consumer pauses the partition
_LIMITS: Final = ReadLimits()


class Start(NamedTuple):
    """Where to start reading a topic: ``earliest``, ``latest``, an offset, or a time in ms since 1970."""

    kind: str
    value: int = 0


def parse_start(text: str) -> Start:
    """Parse ``earliest``, ``latest``, ``OFFSET``, or ``@MILLISECONDS`` since 1970.

    Raises:
        ConfigError: the text is none of these.
    """
    if text in ("earliest", "latest"):
        return Start(text)
    kind, digits = ("time", text[1:]) if text.startswith("@") else ("offset", text)
    if not digits.isascii() or not digits.isdigit():
        raise ConfigError(f"--from {text!r}: give earliest, latest, an offset, or @ms since 1970.")
    return Start(kind, int(digits))


def topic_names(properties: Mapping[str, str]) -> dict[str, int]:
    """Return the number of partitions of every topic of a broker.

    Raises:
        SourceUnavailableError: the broker does not answer.
    """
    admin = open_client(AdminClient, properties, logger=SILENT)
    try:
        topics = admin.list_topics(timeout=_SECONDS).topics
    except KafkaException as error:
        raise no_answer(properties["bootstrap.servers"], error) from error
    return {name: len(topic.partitions) for name, topic in topics.items()}


def read_topic(
    properties: Mapping[str, str],
    topic: str,
    *,
    start: Start,
    limit: int | None = None,
    limits: ReadLimits = _LIMITS,
    open_client: OpenClient = open_client,
) -> Iterator[Message]:
    """Yield the records of a topic from ``start`` to its present end, at most ``limit`` of them.

    The records of all partitions are merged by timestamp, so that a DDL event (which TiCDC writes to
    partition 0) comes before the rows that need it. From ``latest``, records are returned as they
    arrive, until ``limit`` is reached; without ``limit``, reading never ends. ``limits``: how long a
    partition may be silent. ``open_client`` opens the Kafka consumer.

    Raises:
        ConfigError: the topic does not exist.
        SourceError: the broker refuses the request, or lost records.
        SourceUnavailableError: the broker does not answer.
    """
    with _reading(properties, open_client) as opened:
        reader = RangeReader(opened, topic, _ranges(opened.consumer, topic, start), limits)
        messages = _following(reader) if start.kind == "latest" else _Merge(reader).records()
        yield from islice(messages, limit)


@contextmanager
def _reading(
    properties: Mapping[str, str], open_client: OpenClient = open_client
) -> Iterator[AssignedConsumer]:
    """Open a consumer that commits no offsets. Kafka's errors become SourceUnavailableError."""
    brokers = properties["bootstrap.servers"]
    own = {"group.id": "tidesink-cli", "auto.offset.reset": "earliest"}
    opened = AssignedConsumer(properties, own, open_client=open_client)
    with closing(opened):
        try:
            yield opened
        except KafkaException as error:
            raise no_answer(brokers, error) from error
        except BrokerUnavailableError as error:
            raise error.with_context(brokers=brokers) from None


def peek(properties: Mapping[str, str], topic: str, *, most: int, ends: bool = False) -> Iterator[Message]:
    """Yield the first ``most`` records of each partition, or the last ones if ``ends`` is True.

    Raises:
        ConfigError: the topic does not exist.
        SourceUnavailableError: the broker does not answer.
    """
    with _reading(properties) as opened:
        ranges: dict[int, OffsetBounds] = {}
        for number in _partitions(opened.consumer, topic):
            partition = TopicPartition(topic, number)
            low, high = opened.consumer.get_watermark_offsets(partition, timeout=_SECONDS)
            ranges[number] = (
                OffsetBounds(max(low, high - most), high)
                if ends
                else OffsetBounds(low, min(high, low + most))
            )
        yield from _Merge(RangeReader(opened, topic, ranges)).records()


def _partitions(consumer: Consumer, topic: str) -> list[int]:
    metadata = consumer.list_topics(topic, timeout=_SECONDS).topics[topic]
    if metadata.error is not None:
        raise ConfigError(f"The broker has no topic {topic!r}: {metadata.error.str()}.", topic=topic)
    return sorted(metadata.partitions)


def _ranges(consumer: Consumer, topic: str, start: Start) -> dict[int, OffsetBounds]:
    """Returns the range from ``start`` to the end of each partition. From ``latest``, a range has no end.

    Warns about records that Kafka no longer has, and about a topic without records after ``start``.
    """
    ranges: dict[int, OffsetBounds] = {}
    earliest: dict[int, int] = {}
    lasts: dict[int, int] = {}
    for number in _partitions(consumer, topic):
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=_SECONDS)
        lasts[number] = high
        if start.kind == "offset" and start.value < low:
            earliest[number] = low
        begin = _begin(consumer, TopicPartition(topic, number), start, (low, high))
        if start.kind == "latest" or begin < high:
            ranges[number] = OffsetBounds(begin, None if start.kind == "latest" else high)
    if earliest:
        warn(gone_before(start, earliest))
    if not ranges:
        warn(nothing_from(start, lasts))
    return ranges


def gone_before(start: Start, firsts: Mapping[int, int]) -> str:
    """Return the warning that the broker has removed records that the user asked for.

    ``firsts``: first offset of each partition that begins later than ``start``.
    """
    held = ", ".join(f"partition {number} from {first}" for number, first in sorted(firsts.items()))
    return f"--from {start.value}: the broker no longer holds all records from there on. It holds {held}"


def nothing_from(start: Start, ends: Mapping[int, int]) -> str:
    """Return the warning that a topic has no records after ``start``. ``ends``: partitions' end offsets."""
    text = ", ".join(f"partition {number} at {end}" for number, end in sorted(ends.items()))
    if start.kind == "earliest":
        return f"the topic holds no record ({text})"
    shown = f"@{start.value}" if start.kind == "time" else start.value
    return f"--from {shown}: the topic holds no record from there on ({text}). Begin earlier, or omit --from"


def _begin(consumer: Consumer, part: TopicPartition, start: Start, held: tuple[int, int]) -> int:
    low, high = held
    if start.kind == "latest":
        return high
    if start.kind == "time":
        part.offset = start.value
        (answer,) = consumer.offsets_for_times([part], timeout=_SECONDS)
        return high if answer.offset < 0 else int(answer.offset)
    return max(low, start.value)


def _following(reader: RangeReader) -> Iterator[Message]:
    while True:
        yield from map(message_of, reader.consume(_AT_ONCE, _POLL_SECONDS))


class _Merge:
    """Merges the records of several partitions by timestamp. Each partition's records keep their order."""

    def __init__(self, reader: RangeReader) -> None:
        self._reader = reader
        self._waiting: dict[int, deque[Message]] = {number: deque() for number in reader.open_partitions}

    def records(self) -> Iterator[Message]:
        """Yield all records up to each partition's end offset."""
        expected = self._reader.open_partitions
        while self._waiting:
            while any(not queue and number in expected for number, queue in self._waiting.items()):
                self._fetch()
            self._waiting = {number: queue for number, queue in self._waiting.items() if queue}
            if self._waiting:
                number = min(self._waiting, key=lambda n: (self._waiting[n][0].timestamp or 0, n))
                yield self._waiting[number].popleft()
                if not self._waiting[number]:
                    self._reader.resume(number)

    def _fetch(self) -> None:
        for message in map(message_of, self._reader.consume(_AT_ONCE, _POLL_SECONDS)):
            self._waiting[message.partition].append(message)
        for number, queue in self._waiting.items():
            if len(queue) >= _HELD:
                # A partition that is far ahead of the others must not fill the memory.
                self._reader.pause(number)
