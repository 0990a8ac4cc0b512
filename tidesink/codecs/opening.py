"""Opening a codec by its protocol's name: each is loaded when it is first opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from tidesink.codecs.base import Codec, CodecOptions, TableOfTopic
from tidesink.errors import ConfigError

if TYPE_CHECKING:
    from tidesink.codecs.canal_json_shape import Keys
    from tidesink.schema_registry.base import SchemaRegistry
    from tidesink.typemap.definitions import TableDefinitions


@dataclass(frozen=True)
class CodecParts:
    """What codecs are made of; each takes what it needs."""

    options: CodecOptions
    registry: SchemaRegistry | None = None
    table_of_topic: TableOfTopic | None = None
    definitions: TableDefinitions | None = None
    keys: Keys | None = None


def _flat_avro(parts: CodecParts) -> Codec:
    from tidesink.codecs.flat_avro import FlatAvroCodec

    if parts.registry is None:
        raise ConfigError("flat-avro needs a schema registry: set schema-registry", key="schema-registry")
    return FlatAvroCodec(registry=parts.registry, options=parts.options, table_of_topic=parts.table_of_topic)


def _canal_json(parts: CodecParts) -> Codec:
    from tidesink.codecs.canal_json import CanalJsonCodec

    return CanalJsonCodec(options=parts.options, definitions=parts.definitions, keys=parts.keys)


# TiCDC calls flat-avro "avro" too (tiflow c7b2588).
CODECS: Final[Mapping[str, Callable[[CodecParts], Codec]]] = {
    "flat-avro": _flat_avro,
    "avro": _flat_avro,
    "canal-json": _canal_json,
}


def protocol_named(protocol: str) -> str:
    """The protocol's name as in ``CODECS``; case does not matter, as at TiCDC.

    Raises:
        ConfigError: no such protocol; suggests the nearest.
    """
    name = protocol.strip().lower()
    if name in CODECS:
        return name
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
) -> Codec:
    """The codec of a protocol: ``flat-avro`` (or ``avro``) or ``canal-json``.

    flat-avro takes ``registry`` and ``table_of_topic``, canal-json ``definitions`` and ``keys``.

    Raises:
        ConfigError: an unknown protocol, or flat-avro without a registry.
    """
    parts = CodecParts(options or CodecOptions(), registry, table_of_topic, definitions, keys)
    return CODECS[protocol_named(protocol)](parts)
