"""Codecs decode and encode the Kafka records of the supported protocols. They need no Spark and no Java."""

from tidesink.codecs.base import CodecParts
from tidesink.codecs.open import CODECS, open_codec, protocol_named

__all__ = ["CODECS", "CodecParts", "open_codec", "protocol_named"]
