"""Codecs decode and encode the Kafka records of the supported protocols. They need no Spark and no Java."""

from tidesink.codecs.base import CodecOptions, CodecParts
from tidesink.codecs.open import CODECS, open_codec, protocol_named
from tidesink.codecs.options import CanalJsonOptions, DebeziumModes, DebeziumOptions, FlatAvroOptions

__all__ = [
    "CODECS",
    "CanalJsonOptions",
    "CodecOptions",
    "CodecParts",
    "DebeziumModes",
    "DebeziumOptions",
    "FlatAvroOptions",
    "open_codec",
    "protocol_named",
]
