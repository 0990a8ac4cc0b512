"""Codecs by protocol name. Each is loaded when it is first opened; none needs Spark or Java."""

from tidesink.codecs.open import CODECS, CodecParts, open_codec, protocol_named

__all__ = ["CODECS", "CodecParts", "open_codec", "protocol_named"]
