"""Opening a codec by its protocol's name: each is loaded when it is first opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from tidesink.codecs.base import Codec, CodecOptions, TableOfTopic
from tidesink.errors import ConfigError

if TYPE_CHECKING:
    from tidesink.codecs.canal_json.schema import Keys
    from tidesink.ddl.catalog import TableDefinitions
    from tidesink.schema_registry.base import SchemaRegistry
    from tidesink.schema_registry.glue import SchemaSource


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
