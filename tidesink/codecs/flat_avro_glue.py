"""Flat-avro messages under an AWS Glue header, in place of Confluent's.

Byte 03, a compression byte (00 none, 05 zlib), the 16 bytes of the schema version's UUID, then the Avro
payload, compressed or not (AWS Glue Schema Registry serializers; TiCDC tiflow c7b2588 writes it
uncompressed).
"""

from __future__ import annotations

import threading
import zlib
from dataclasses import replace
from typing import Final
from uuid import UUID

from tidesink.codecs.flat_avro_record import WriterRecord, parse_record
from tidesink.codecs.wire import GLUE_SIZE, header, is_glue, what_else
from tidesink.errors import DecodeError, FramingError, SchemaMismatchError
from tidesink.events import Message
from tidesink.schema_registry.glue import SchemaSource

# What a compressed payload may come to: far above Kafka's own limits, far below a worker's memory.
MOST_BYTES: Final = 64 * 2**20
_ZLIB: Final = 5
# Confluent's ids are positive int32: from here on, no registry has one.
_FIRST_ID: Final = 1 << 31


def is_glue_framed(message: Message) -> bool:
    """Whether key or value has a Glue header."""
    return is_glue(message.key or b"") or is_glue(message.value or b"")


class GlueFrames:
    """Turns Glue-framed messages into Confluent-framed ones, under ids that no registry gives.

    ``records`` gets the schema behind each such id. Threads may share one.
    """

    def __init__(self, source: SchemaSource | None, records: dict[int, WriterRecord]) -> None:
        self._source = source
        self._records = records
        self._ids: dict[UUID, int] = {}
        self._lock = threading.Lock()

    def translated(self, message: Message) -> Message:
        """The same message under Confluent headers, payloads inflated.

        Raises:
            FramingError: no source is given, or only one part of the message is framed by Glue.
            SchemaMismatchError: a payload that does not inflate, or a schema that TiCDC does not write.
            RegistryError: the schema cannot be had.
        """
        return replace(message, key=self._part(message.key, "key"), value=self._part(message.value, "value"))

    def _part(self, data: bytes | None, part: str) -> bytes | None:
        if data is None:
            return None
        if not is_glue(data):
            raise FramingError(f"one part has an AWS Glue header, and the {part} {what_else(data)}")
        payload = data[GLUE_SIZE:]
        plain = _inflated(payload, part) if data[1] == _ZLIB else payload
        return header(self._id(UUID(bytes=data[2:GLUE_SIZE]))) + plain

    def _id(self, uuid: UUID) -> int:
        known = self._ids.get(uuid)
        if known is not None:
            return known
        if self._source is None:
            raise FramingError(_refusal(uuid))
        try:
            record = parse_record(self._source.schema_by_uuid(uuid))
        except DecodeError as error:
            raise error.with_context(schema_id=str(uuid)) from error
        with self._lock:
            schema_id = self._ids.get(uuid, _FIRST_ID + len(self._ids))
            self._records[schema_id] = record
            return self._ids.setdefault(uuid, schema_id)


def _refusal(uuid: UUID) -> str:
    return (
        f"the message has an AWS Glue schema registry header (schema version {uuid}) and no source of Glue "
        'schemas is given: give --schemas FILE with lines {"id": "<uuid>", "schema": …}, or install '
        "tidesink[glue] and give --glue-region"
    )


def _inflated(payload: bytes, part: str) -> bytes:
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(payload, MOST_BYTES)
    except zlib.error as error:
        raise SchemaMismatchError(f"the {part}'s payload is no zlib stream: {error}") from error
    if stream.unconsumed_tail:
        raise SchemaMismatchError(f"the {part}'s payload inflates to more than {MOST_BYTES} bytes")
    if not stream.eof or stream.unused_data:
        raise SchemaMismatchError(f"the {part}'s payload is no whole zlib stream: it is cut, or more follows")
    return plain
