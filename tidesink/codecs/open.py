"""Lists the supported protocols in ``CODECS``, and opens the codec of a protocol.

A codec's module is named by text, and is imported when the codec is first opened: the codecs import the
shared modules beside this one, so this module imports no codec. The config, the command line and the workers
look up protocols here. CONTRIBUTING.md lists the further steps for a new protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Final, Literal

from tidesink.codecs.base import Codec, CodecOptions, CodecParts, Keys, TableOfTopic
from tidesink.codecs.options import CanalJsonOptions, DebeziumModes, DebeziumOptions, FlatAvroOptions
from tidesink.errors import ConfigError

if TYPE_CHECKING:
    from tidesink.ddl.catalog import TableDefinitions
    from tidesink.schema_registry.base import SchemaRegistry, SchemaSource


@dataclass(frozen=True)
class Protocol:
    """A supported protocol: its codec, and properties of its topics.

    ``opens``: module and name of the function that creates the protocol's codec from ``CodecParts``.
    ``options``: class of the codec's options.
    ``aliases``: other names of the protocol.
    ``registry``: True if its schemas are in a schema registry.
    ``tells_ddl``: True if its topics contain DDL events.
    ``shares_topics``: True if a topic may contain several tables. Otherwise a topic has one table.
    ``leaves_out``: True if a row may omit unchanged values. Text and binary columns then contain
    ``PLACEHOLDER``.
    ``connectors``: True if its tables may come from other databases than MySQL and TiDB, in which the names
    of two columns may differ only in case.
    ``reads``: settings under ``source`` that this protocol uses and some other protocol ignores (TiCDC tiflow
    c7b2588 and ticdc b813e76).
    ``writes``: settings of a target of type ``kafka`` that this protocol uses and some other protocol
    ignores; None if such a target cannot write the protocol.
    ``needs_commit_ts``: True if such a target can write only rows that have a commit_ts.
    ``utc``: True if such a target writes local times in UTC, whatever its time zone is.
    ``row_by_row``: the records that the codec's columnar step leaves to the row path, as text for users.
    """

    opens: str
    options: type[CodecOptions]
    aliases: tuple[str, ...] = ()
    registry: bool = False
    tells_ddl: bool = False
    shares_topics: bool = False
    leaves_out: bool = False
    connectors: bool = False
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] | None = None
    needs_commit_ts: bool = False
    utc: bool = False
    row_by_row: str = "all records, because this protocol is decoded record by record"


_TICDC: Final = ("enable_tidb_extension", "output_raw_change_event")
_COMPRESSION: Final = ("large_message_handle_compression", "max_decompressed_bytes")
_AVRO: Final = ("schema_registry", "avro_decimal_handling_mode", "avro_bigint_unsigned_handling_mode")

# TiCDC calls flat-avro "avro" too (tiflow c7b2588), and its Debezium JSON "debezium" (b813e76).
CODECS: Final[Mapping[str, Protocol]] = {
    "flat-avro": Protocol(
        "tidesink.codecs.flat_avro.codec:open_flat_avro",
        FlatAvroOptions,
        aliases=("avro",),
        registry=True,
        reads=frozenset({*_TICDC, *_AVRO, "avro_enable_watermark", "avro_include_before_value", "checksum"}),
        writes=frozenset({*_AVRO, "namespace"}),
        row_by_row="records whose Avro schema or header differs from TiCDC's",
    ),
    "canal-json": Protocol(
        "tidesink.codecs.canal_json.codec:open_canal_json",
        CanalJsonOptions,
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
        row_by_row="records whose JSON does not have TiCDC's form, and records that cannot be decoded",
    ),
    "debezium-json": Protocol(
        "tidesink.codecs.debezium.codec:open_debezium_json",
        DebeziumOptions,
        aliases=("debezium",),
        leaves_out=True,
        connectors=True,
        reads=frozenset({"debezium", *_COMPRESSION}),
        writes=frozenset({"cluster_id", "debezium_disable_schema", "large_message_handle_compression"}),
        needs_commit_ts=True,
        utc=True,
        row_by_row="tombstones, records without a schema next to the payload "
        "(value.converter.schemas.enable: false), TRUNCATE events, and records whose JSON does not have "
        "Kafka Connect's form",
    ),
    "debezium-avro": Protocol(
        "tidesink.codecs.debezium.codec:open_debezium_avro",
        DebeziumOptions,
        registry=True,
        leaves_out=True,
        connectors=True,
        reads=frozenset({"debezium", "schema_registry"}),
        writes=frozenset({*_AVRO, "cluster_id"}),
        needs_commit_ts=True,
        utc=True,
        row_by_row="records with arrays, TRUNCATE events, and records with an unusual schema or header",
    ),
}
# The protocol's name in ``CODECS`` by each of its names.
ALIASES: Final[Mapping[str, str]] = {
    name: protocol for protocol, known in CODECS.items() for name in (protocol, *known.aliases)
}


def without_effect(protocol: str, use: Literal["reads", "writes"]) -> frozenset[str]:
    """Returns the settings that have no effect with a protocol, although another protocol uses them.

    ``use``: ``reads`` for the settings under ``source``, ``writes`` for those of a target of type ``kafka``.
    """
    taken = {name: getattr(codec, use) or frozenset() for name, codec in CODECS.items()}
    return frozenset[str]().union(*taken.values()) - taken[protocol]


def protocols_using(option: str) -> tuple[str, ...]:
    """Returns the protocols that use an option, by its name in the codecs' options.

    A protocol uses the settings in ``Protocol.reads`` and ``Protocol.writes``, and the options of its codec.
    debezium-json and debezium-avro share their options, as a changefeed may set all of them for either.
    """

    def used(known: Protocol) -> frozenset[str]:
        names = {one.name for one in fields(known.options)}
        modes = {one.name for one in fields(DebeziumModes)} if "debezium" in names else set()
        return known.reads | (known.writes or frozenset()) | names | modes

    return tuple(protocol for protocol, known in CODECS.items() if option in used(known))


# Protocol names in TiCDC's documents that no release supports, and the protocols to use instead.
RESERVED: Final[Mapping[str, str]] = {
    "rich-avro": "is reserved in TiCDC's design, but no release of TiCDC writes it. Use flat-avro (TiCDC's "
    "avro; avro-include-before-value adds old rows with new TiCDC), or canal-json.",
}


def protocol_named(protocol: str) -> str:
    """Returns the protocol's name in ``CODECS``, given any of its names. Case is ignored, as in TiCDC.

    Raises:
        ConfigError: There is no such protocol. The error text suggests the most similar name.
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
    """Returns a new codec of a protocol.

    ``protocol``: any name in ``ALIASES``. ``options``: options of the codec's class (``FlatAvroOptions``,
    ``CanalJsonOptions``, ``DebeziumOptions``), or only the shared ones. ``registry``: schema registry, for
    flat-avro and debezium-avro. ``table_of_topic``: returns the table of a topic, for flat-avro.
    ``definitions``: table definitions, for canal-json, debezium-json and debezium-avro. ``keys``: key columns
    by table, for canal-json. ``glue``: source of the schemas of messages with an AWS Glue header, for
    flat-avro.

    Raises:
        ConfigError: The protocol is unknown, the options are those of another codec, or the protocol needs a
            schema registry and ``registry`` is None.
    """
    parts = CodecParts(options, registry, table_of_topic, definitions, keys, glue)
    module, _, function = CODECS[protocol_named(protocol)].opens.partition(":")
    codec: Codec = getattr(import_module(module), function)(parts)
    return codec
