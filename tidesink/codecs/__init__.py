"""Codecs by protocol name. A codec is loaded when it is first opened, and none needs Spark or Java."""

from tidesink.codecs.open import CODECS, CodecParts, open_codec, protocol_named

__all__ = ["CODECS", "CodecParts", "open_codec", "protocol_named"]
