"""``unavailable.value.placeholder``: what stands for a value the connector could not have.

PostgreSQL sends a value kept out of line (TOAST) only where it changed, Oracle a LOB only where a
statement set it. Debezium then writes the placeholder in the column's own type: text as it is, bytes its
UTF-8, an array of text with it alone, an hstore map from it to itself, an array of numbers its bytes as
numbers, an array of UUIDs the UUID of its bytes (Debezium 3.5, ``UnchangedToastedPlaceholder``). With
binary.handling.mode base64 it writes null, which nothing tells from a real null.
"""

from __future__ import annotations

import base64
import hashlib
import uuid

from tidesink.codecs.connect_schema import ConnectSchema
from tidesink.codecs.debezium_values_modes import DebeziumModes


def placeholders(schema: ConnectSchema, modes: DebeziumModes) -> tuple[object, ...]:
    """The values of a schema that stand for an unavailable one."""
    text = modes.unavailable_value_placeholder
    if schema.type == "string":
        return (text, *_encoded(text, modes))
    if schema.type == "bytes":
        return text.encode(), base64.b64encode(text.encode()).decode("ascii")
    if schema.type == "array":
        return [text], list(text.encode()), [str(_uuid(text))]
    if schema.type == "map":
        return {text: text}, [[text, text]], [{"key": text, "value": text}]
    return ()


def _encoded(text: str, modes: DebeziumModes) -> tuple[str, ...]:
    data = text.encode()
    if modes.binary_handling_mode == "hex":
        return (data.hex(),)
    if modes.binary_handling_mode in ("base64", "base64-url-safe"):
        return base64.b64encode(data).decode("ascii"), base64.urlsafe_b64encode(data).decode("ascii")
    return ()


def _uuid(text: str) -> uuid.UUID:
    """Java's ``UUID.nameUUIDFromBytes``: version 3 of the bytes alone."""
    return uuid.UUID(bytes=hashlib.md5(text.encode(), usedforsecurity=False).digest(), version=3)
