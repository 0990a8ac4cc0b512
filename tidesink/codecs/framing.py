"""Recognises formats that a codec cannot read, by the bytes of a key or value and by record headers.

The error text for each format names the converter's setting that changes the format. Sources:

- Confluent: byte 00, then the schema's id as int32 (the wire format's documentation). With
  ``HeaderSchemaIdSerializer`` the headers ``__key_schema_id`` and ``__value_schema_id`` have byte 01 and a
  GUID, and the payload has no header bytes (kafka-avro-serializer 8.0,
  ``io.confluent.kafka.serializers.schema.id``).
- Apicurio: byte 00, then the id as int64 (``DefaultIdHandler`` of 2.x, ``OptimisticFallbackIdHandler`` and
  ``Default8ByteIdHandler`` in later versions), or as int32 (``Legacy4ByteIdHandler``, the default of 3.x).
  With ``apicurio.registry.headers.enabled``, the default of 2.x, ids are in headers (``SerdeHeaders``) and
  the payload has no header bytes.
- AWS Glue: byte 03, a compression byte (00 none, 05 zlib), then the UUID of the schema's version.
- Avro: a single object begins with C3 01, a container file with ``Obj`` and byte 01 (specification 1.12).
- Smile begins with 3A 29 0A, self-described CBOR with D9 D9 F7 (RFC 8949, 3.4.6), gzip with 1F 8B, a zstd
  frame with 28 B5 2F FD, an lz4 frame with 04 22 4D 18.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

Headers = Iterable[tuple[str, bytes | None]]

MAGIC: Final = 0
HEADER_SIZE: Final = 5
GLUE_SIZE: Final = 18
_GLUE_COMPRESSION: Final = (0, 5)
_SHOWN_BYTES: Final = 8
_LONG_ID: Final = struct.Struct(">BQ")
_JSON_STARTS: Final = (b"{", b"[", b'"')
_IN_HEADERS: Final = {
    "__{part}_schema_id": (
        "Confluent's HeaderSchemaIdSerializer",
        "Set {part}.converter.{part}.schema.id.serializer to "
        "io.confluent.kafka.serializers.schema.id.PrefixSchemaIdSerializer",
    ),
    **dict.fromkeys(
        (
            "apicurio.{part}.globalId",
            "apicurio.{part}.contentId",
            "apicurio.{part}.contentHash",
            "apicurio.{part}.artifactId",
        ),
        (
            "Apicurio's converter",
            "Set {part}.converter.apicurio.registry.headers.enabled to false, "
            "{part}.converter.apicurio.registry.as-confluent to true and "
            "{part}.converter.apicurio.registry.use-id to contentId",
        ),
    ),
}
_AFTER_RESTART: Final = (
    "at the connector. Then have the connector write the table again, or have tidesink read the topic from "
    "the first record that the connector writes after that."
)
_EIGHT_BYTES: Final = (
    "has a schema id of eight bytes ({}), which Apicurio's converter writes by default before version 3. "
    "Confluent's format has four bytes. Set key.converter.apicurio.registry.as-confluent and "
    "value.converter.apicurio.registry.as-confluent to true {} Instead of as-confluent, id-handler can be "
    "set to io.apicurio.registry.serde.Legacy4ByteIdHandler."
)
# First bytes of other formats, and the names of these formats for users.
_STARTS: Final = (
    (b"Obj\x01", "an Avro container file, which no converter writes into a Kafka record"),
    (b"\xc3\x01", "Avro's single-object encoding, which has no registry id"),
    (b":)\n", "Smile (binary JSON)"),
    (b"\xd9\xd9\xf7", "CBOR"),
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "a zstd frame"),
    (b"\x04\x22\x4d\x18", "an lz4 frame"),
    (b"<", "XML"),
)


def is_glue(data: bytes) -> bool:
    """Returns True if the bytes start with the header of AWS Glue Schema Registry."""
    return len(data) >= GLUE_SIZE and data[0] == 3 and data[1] in _GLUE_COMPRESSION


def in_headers(headers: Headers, part: str) -> str | None:
    """Returns an error text if the schema id of a key or value is in a record header; otherwise None.

    ``part``: ``key`` or ``value``.
    """
    names = {name for name, value in headers if value is not None}
    for pattern, (writer, remedy) in _IN_HEADERS.items():
        name = pattern.format(part=part)
        if name in names:
            return (
                f"The {part} has its schema id in the record header {name}, as {writer} writes it, but it "
                f"must be in the bytes before the Avro payload. {remedy.format(part=part)} {_AFTER_RESTART}"
            )
    return None


def ids_in_headers(headers: Headers) -> str | None:
    """Returns an error text if a record header has the schema id of the value or the key; otherwise None."""
    pairs = [*headers]
    return in_headers(pairs, "value") or in_headers(pairs, "key")


def eight_byte_id(data: bytes) -> int | None:
    """Returns the schema id if the bytes start with byte 00 and an id of eight bytes; otherwise None.

    Apicurio's converter writes such ids. They are recognised by four zero bytes after the first byte, because
    Confluent's ids have four bytes and are never zero.
    """
    if len(data) < _LONG_ID.size or data[0] != MAGIC or any(data[1:HEADER_SIZE]):
        return None
    schema_id: int = _LONG_ID.unpack_from(data)[1]
    return schema_id


def not_confluent(data: bytes) -> str:
    """Returns an error text for bytes without a Confluent header.

    It begins with a verb, to follow the words "The key" or "The value".
    """
    if not data:
        return "is empty, but a Confluent header of 5 bytes was expected."
    if is_glue(data):
        return (
            "has an AWS Glue schema registry header, but only Confluent's header is supported here. Set "
            "schema-registry at the changefeed to a Confluent registry, or decode the topic with tidesink "
            "decode --schemas FILE, where FILE has the Glue schemas."
        )
    long_id = eight_byte_id(data)
    if long_id is not None:
        return _EIGHT_BYTES.format(long_id, _AFTER_RESTART)
    if data[0] == MAGIC:
        return f"has {len(data)} bytes, but a Confluent header needs 5 bytes and a schema id of at least 1."
    shown = data[:_SHOWN_BYTES].hex(" ")
    if data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in _JSON_STARTS:
        hint = (
            "It looks like JSON: is the protocol canal-json or debezium-json? For Avro, set the "
            "connector's converter to an AvroConverter."
        )
    else:
        what = _start(data)
        hint = (
            f"It looks like {what}."
            if what
            else "It may be Avro without a header. Have the producer write Confluent headers."
        )
    return f"starts with {shown}, not with the magic byte 00 of a Confluent header. {hint}"


def not_json(data: bytes) -> str | None:
    """Returns a sentence for users that names the format of bytes that are not JSON, or None if unknown."""
    if is_glue(data):
        return "It has an AWS Glue schema registry header. Set the connector's converter to JsonConverter."
    if data[:1] == bytes([MAGIC]):
        if data[HEADER_SIZE : HEADER_SIZE + 1] in _JSON_STARTS:
            return (
                "It has a Confluent header before JSON, as JsonSchemaConverter writes it. Set the "
                "connector's converter to org.apache.kafka.connect.json.JsonConverter."
            )
        return (
            "It begins like a Confluent header. If the topic is Avro, set protocol to flat-avro or "
            "debezium-avro."
        )
    what = _start(data)
    return f"It looks like {what}." if what else None


def _start(data: bytes) -> str | None:
    return next((what for start, what in _STARTS if data.startswith(start)), None)
