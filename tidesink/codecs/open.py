"""Opening a codec by its protocol's name: each is loaded when it is first opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from tidesink.codecs.base import Codec, CodecOptions, TableOfTopic
from tidesink.errors import ConfigError
from tidesink.events import TableId

if TYPE_CHECKING:
    from tidesink.codecs.canal_json.schema import Keys
    from tidesink.codecs.columns_base import DecodeColumns
    from tidesink.ddl.catalog import TableDefinitions
    from tidesink.schema_registry.base import SchemaReader, SchemaRegistry
    from tidesink.schema_registry.glue import SchemaSource
    from tidesink.typemap.render import ZeroDate


@dataclass(frozen=True)
class CodecParts:
    """What codecs are made of; each takes what it needs."""

    options: CodecOptions
    registry: SchemaRegistry | None = None
    table_of_topic: TableOfTopic | None = None
    definitions: TableDefinitions | None = None
    keys: Keys | None = None
    glue: SchemaSource | None = None


def _flat_avro(parts: CodecParts) -> Codec:
    from tidesink.codecs.flat_avro.codec import FlatAvroCodec

    if parts.registry is None:
        raise ConfigError("flat-avro needs a schema registry: set schema-registry", key="schema-registry")
    return FlatAvroCodec(
        registry=parts.registry,
        options=parts.options,
        table_of_topic=parts.table_of_topic,
        glue=parts.glue,
    )


def _canal_json(parts: CodecParts) -> Codec:
    from tidesink.codecs.canal_json.codec import CanalJsonCodec

    return CanalJsonCodec(options=parts.options, definitions=parts.definitions, keys=parts.keys)


def _debezium_json(parts: CodecParts) -> Codec:
    from tidesink.codecs.debezium.codec import DebeziumJsonCodec

    return DebeziumJsonCodec(options=parts.options, definitions=parts.definitions)


def _debezium_avro(parts: CodecParts) -> Codec:
    from tidesink.codecs.debezium.codec import DebeziumAvroCodec

    if parts.registry is None:
        raise ConfigError("debezium-avro needs a schema registry: set schema-registry", key="schema-registry")
    return DebeziumAvroCodec(registry=parts.registry, options=parts.options, definitions=parts.definitions)


# TiCDC calls flat-avro "avro" too (tiflow c7b2588), and its Debezium JSON "debezium" (b813e76).
CODECS: Final[Mapping[str, Callable[[CodecParts], Codec]]] = {
    "flat-avro": _flat_avro,
    "avro": _flat_avro,
    "canal-json": _canal_json,
    "debezium-json": _debezium_json,
    "debezium": _debezium_json,
    "debezium-avro": _debezium_avro,
}
# Debezium's protocols under every name they have.
DEBEZIUM_ALIASES: Final[Mapping[str, str]] = {
    "debezium": "debezium-json",
    "debezium-json": "debezium-json",
    "debezium-avro": "debezium-avro",
}

# Names that a user may have read of, and what to use instead.
RESERVED: Final[Mapping[str, str]] = {
    "rich-avro": "is reserved in TiCDC's design, and no release of TiCDC writes it: use flat-avro (TiCDC's "
    "avro; avro-include-before-value gives old rows with new TiCDC), or canal-json",
}


def protocol_named(protocol: str) -> str:
    """The protocol's name as in ``CODECS``; case does not matter, as at TiCDC.

    Raises:
        ConfigError: no such protocol; suggests the nearest.
    """
    name = protocol.strip().lower()
    if name in CODECS:
        return name
    if name in RESERVED:
        raise ConfigError(f"protocol {protocol!r} {RESERVED[name]}", key="protocol")
    near = get_close_matches(name, CODECS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(CODECS)}"
    raise ConfigError(f"unknown protocol {protocol!r}: {hint}", key="protocol")


def open_codec(
    protocol: str,
    *,
    options: CodecOptions | None = None,
    registry: SchemaRegistry | None = None,
    table_of_topic: TableOfTopic | None = None,
    definitions: TableDefinitions | None = None,
    keys: Keys | None = None,
    glue: SchemaSource | None = None,
) -> Codec:
    """The codec of a protocol: ``flat-avro`` (or ``avro``) or ``canal-json``.

    flat-avro takes ``registry`` and ``table_of_topic``, canal-json ``definitions`` and ``keys``. ``glue``
    gives the schemas of flat-avro messages that AWS Glue frames.

    Raises:
        ConfigError: an unknown protocol, or an Avro one without a registry.
    """
    parts = CodecParts(options or CodecOptions(), registry, table_of_topic, definitions, keys, glue)
    return CODECS[protocol_named(protocol)](parts)


def columns(  # noqa: PLR0913  (what a plan is made of, each by its name)
    protocol: str,
    *,
    table: TableId | str,
    topic: str | None = None,
    registry: SchemaReader | None = None,
    definition: str | None = None,
    keys: Sequence[str] | None = None,
    zero_date: ZeroDate = "null",
    time_zone: str = "UTC",
    options: CodecOptions | None = None,
) -> DecodeColumns:
    """A plan that decodes a Spark frame of Kafka records: ``columns(...).decode(frame)``.

            ``table`` is ``schema.name``. flat-avro and debezium-avro take ``registry`` and ``topic``, whose subjects
        hold the schemas as they are now; debezium-json takes ``definition``, the ``CREATE TABLE``. The
        frame is what ``spark.read.format("kafka")`` gives; ``tidesink.codecs.columns_base`` says what comes out:
        one row an event, with ``_kind`` (upsert, delete, ddl, watermark, bad, unplanned), ``key`` and ``after``.
    
        Raises:
            ConfigError: an unknown protocol, or something it needs is missing.
            RegistryError: the registry refuses, or does not answer.
            SchemaRefusedError: two of the schemas have types for a column that cannot be one.
    """
    from tidesink.codecs.columns_opening import COLUMNS, ColumnsParts

    name = protocol_named(protocol)
    if name not in COLUMNS:
        raise ConfigError(
            f"{name} has no column expressions for Spark: {', '.join(COLUMNS)} have. Read such a topic with "
            "tidesink's data source, spark.read.format('tidesink')"
        )
    named = TableId(*table.split(".", 1)) if isinstance(table, str) and "." in table else table
    if not isinstance(named, TableId):
        raise ConfigError(f"table must be schema.name, not {table!r}", key="table")
    chosen = tuple(keys) if keys is not None else None
    parts = ColumnsParts(named, topic, registry, definition, chosen, zero_date, time_zone, options)
    return COLUMNS[name](parts)
