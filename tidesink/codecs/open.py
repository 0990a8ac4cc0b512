"""The protocols: ``CODECS`` holds the facts about each, and a codec is loaded when it is first opened.

The config, the command line and the workers look up protocols here. CONTRIBUTING.md lists the further steps
for a new protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, Literal

from tidesink.codecs.base import Codec, CodecOptions, TableOfTopic
from tidesink.errors import ConfigError

if TYPE_CHECKING:
    from tidesink.codecs.canal_json.schema import Keys
    from tidesink.ddl.catalog import TableDefinitions
    from tidesink.schema_registry.base import SchemaRegistry, SchemaSource


@dataclass(frozen=True)
class CodecParts:
    """The parts that codecs are built from; each codec uses those that it needs."""

    options: CodecOptions
    registry: SchemaRegistry | None = None
    table_of_topic: TableOfTopic | None = None
    definitions: TableDefinitions | None = None
    keys: Keys | None = None
    glue: SchemaSource | None = None


def _flat_avro(parts: CodecParts) -> Codec:
    from tidesink.codecs.flat_avro.codec import FlatAvroCodec

    return FlatAvroCodec(
        registry=_registry(parts, "flat-avro"),
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

    registry = _registry(parts, "debezium-avro")
    return DebeziumAvroCodec(registry=registry, options=parts.options, definitions=parts.definitions)


def _registry(parts: CodecParts, protocol: str) -> SchemaRegistry:
    if parts.registry is None:
        raise ConfigError(f"{protocol} needs a schema registry. Set schema-registry.", key="schema-registry")
    return parts.registry


@dataclass(frozen=True)
class Protocol:
    """How to open a protocol's codec, and facts about its topics.

    ``aliases``: its other names.
    ``registry``: its schemas are in a schema registry.
    ``tells_ddl``: its topics report DDL to the worker.
    ``shares_topics``: a topic may contain several tables, which its messages name; otherwise it contains one.
    ``leaves_out``: a row may omit values that did not change; text and binary columns then contain
    ``PLACEHOLDER``.
    ``connectors``: its tables may come from other databases than MySQL and TiDB, with columns whose names
    differ only in case.
    ``reads``: the settings of ``source`` that it uses and some other protocol ignores (TiCDC tiflow c7b2588
    and ticdc b813e76).
    ``writes``: the same for a target of type ``kafka``; None: it cannot be written there.
    """

    open: Callable[[CodecParts], Codec]
    aliases: tuple[str, ...] = ()
    registry: bool = False
    tells_ddl: bool = False
    shares_topics: bool = False
    leaves_out: bool = False
    connectors: bool = False
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] | None = None


_TICDC: Final = ("enable_tidb_extension", "output_raw_change_event")
_COMPRESSION: Final = ("large_message_handle_compression", "max_decompressed_bytes")
_AVRO: Final = ("schema_registry", "avro_decimal_handling_mode", "avro_bigint_unsigned_handling_mode")

# TiCDC calls flat-avro "avro" too (tiflow c7b2588), and its Debezium JSON "debezium" (b813e76).
CODECS: Final[Mapping[str, Protocol]] = {
    "flat-avro": Protocol(
        _flat_avro,
        aliases=("avro",),
        registry=True,
        reads=frozenset({*_TICDC, *_AVRO, "avro_enable_watermark", "avro_include_before_value", "checksum"}),
        writes=frozenset({*_AVRO, "namespace"}),
    ),
    "canal-json": Protocol(
        _canal_json,
        tells_ddl=True,
        shares_topics=True,
        reads=frozenset(
            {
                *_TICDC,
                *_COMPRESSION,
                "content_compatible",
                "only_output_updated_columns",
                "delete_only_output_handle_key_columns",
                "output_row_key",
                "large_message_handle_option",
                "claim_check_storage_uri",
                "claim_check_raw_value",
                "upstream_url",
                "binary_text",
            }
        ),
        writes=frozenset({"content_compatible", "large_message_handle_compression"}),
    ),
    "debezium-json": Protocol(
        _debezium_json,
        aliases=("debezium",),
        leaves_out=True,
        connectors=True,
        reads=frozenset({"debezium", *_COMPRESSION}),
        writes=frozenset({"cluster_id", "debezium_disable_schema", "large_message_handle_compression"}),
    ),
    "debezium-avro": Protocol(
        _debezium_avro,
        registry=True,
        leaves_out=True,
        connectors=True,
        reads=frozenset({"debezium", "schema_registry"}),
        writes=frozenset({*_AVRO, "cluster_id"}),
    ),
}
# The key of ``CODECS`` for every name of a protocol.
ALIASES: Final[Mapping[str, str]] = {
    name: protocol for protocol, known in CODECS.items() for name in (protocol, *known.aliases)
}


def without_effect(protocol: str, use: Literal["reads", "writes"]) -> frozenset[str]:
    """The settings that this protocol ignores and some other protocol uses."""
    taken = {name: getattr(known, use) or frozenset() for name, known in CODECS.items()}
    return frozenset[str]().union(*taken.values()) - taken[protocol]


# Names from TiCDC's documents that no release supports, and the protocols to use instead.
RESERVED: Final[Mapping[str, str]] = {
    "rich-avro": "is reserved in TiCDC's design, but no release of TiCDC writes it. Use flat-avro (TiCDC's "
    "avro; avro-include-before-value adds old rows with new TiCDC), or canal-json.",
}


def protocol_named(protocol: str) -> str:
    """The protocol's name in ``CODECS``, from any of its names; case does not matter, as in TiCDC.

    Raises:
        ConfigError: no such protocol; the message suggests the nearest name.
    """
    name = protocol.strip().lower()
    if name in ALIASES:
        return ALIASES[name]
    if name in RESERVED:
        raise ConfigError(f"Protocol {name} {RESERVED[name]}", key="protocol")
    near = get_close_matches(name, ALIASES, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Supported are {', '.join(map(repr, ALIASES))}."
    raise ConfigError(f"Unknown protocol {protocol!r}. {hint}", key="protocol")


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
    """The codec of a protocol, by any name in ``ALIASES``.

    flat-avro uses ``registry``, ``table_of_topic``, and ``glue`` for the schemas of messages with an AWS Glue
    header; canal-json ``definitions`` and ``keys``; debezium-avro ``registry`` and ``definitions``;
    debezium-json ``definitions``.

    Raises:
        ConfigError: an unknown protocol, or an Avro protocol without a registry.
    """
    parts = CodecParts(options or CodecOptions(), registry, table_of_topic, definitions, keys, glue)
    return CODECS[protocol_named(protocol)].open(parts)
