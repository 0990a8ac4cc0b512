"""The Python flat-avro codec against bare fastavro and confluent's deserialiser, key and value both.

Three readers take turns over the same messages; each one's best round counts. The last line printed is
JSON: events a second for ``fastavro``, ``tidesink`` and ``confluent``, the same with the TiDB extension
(``…_extension``), and for encoding (``encode_fastavro``, ``encode_tidesink``).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from io import BytesIO
from typing import Any

import fastavro
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from benchmarks.events import events
from tidesink.change import ChangeEvent, Message
from tidesink.codecs.base import CodecOptions
from tidesink.codecs.flat_avro import FlatAvroCodec
from tidesink.codecs.wire import HEADER_SIZE, header, schema_id_of
from tidesink.schema_registry.memory import MemorySchemaRegistry

COUNT = 4_000
ROUNDS = 25
TOPIC = "bench"
Reader = Callable[[], None]


def main() -> None:
    """Measure and print the figures."""
    figures: dict[str, float] = {}
    for extension in (False, True):
        side = _Side(extension)
        suffix = "_extension" if extension else ""
        readers = {
            "fastavro": side.bare_reader(),
            "tidesink": side.our_reader(),
            "confluent": side.confluent_reader(),
        }
        figures |= {name + suffix: rate for name, rate in _rates(readers, len(side.messages)).items()}
        if not extension:
            writers = {"encode_fastavro": side.bare_writer(), "encode_tidesink": side.our_writer()}
            figures |= _rates(writers, len(side.messages))
    print(json.dumps({name: round(rate) for name, rate in figures.items()}))


def _rates(readers: dict[str, Reader], count: int) -> dict[str, float]:
    """Events a second of each, best of the rounds, taking turns so that noise hits all alike."""
    best = dict.fromkeys(readers, float("inf"))
    for _ in range(ROUNDS):
        for name, read in readers.items():
            began = time.perf_counter()
            read()
            best[name] = min(best[name], time.perf_counter() - began)
    return {name: count / seconds for name, seconds in best.items()}


class _Side:
    """The messages of one configuration, deletes left out: every reader has a key and a value to read."""

    def __init__(self, extension: bool) -> None:
        self.registry = MemorySchemaRegistry()
        self.codec = FlatAvroCodec(
            registry=self.registry, options=CodecOptions(enable_tidb_extension=extension)
        )
        self.events = [event for event in events(COUNT, seed=1) if event.after is not None]
        self.messages = [self._message(event) for event in self.events]
        self.ids = [schema_id_of(self._part(part), part) for part in ("key", "value")]
        self.texts = [self.registry.schema_by_id(schema_id) for schema_id in self.ids]
        self.schemas: list[Any] = [fastavro.parse_schema(json.loads(text)) for text in self.texts]

    def _part(self, part: str) -> bytes:
        found: bytes = getattr(self.messages[0], part)
        return found

    def _message(self, event: ChangeEvent) -> Message:
        encoded = self.codec.encode(event, topic=TOPIC)
        assert encoded is not None
        return Message(TOPIC, 0, 0, encoded.key, encoded.value)

    def _pairs(self) -> list[tuple[bytes, bytes]]:
        return [(message.key or b"", message.value or b"") for message in self.messages]

    def bare_reader(self) -> Reader:
        """What fastavro takes for the payloads, with the schemas as the registry has them."""
        (key_schema, value_schema), pairs = self.schemas, self._pairs()

        def read() -> None:
            for key, value in pairs:
                fastavro.schemaless_reader(BytesIO(key[HEADER_SIZE:]), key_schema, None)
                fastavro.schemaless_reader(BytesIO(value[HEADER_SIZE:]), value_schema, None)

        return read

    def our_reader(self) -> Reader:
        """The codec: typed change events."""
        decode, messages = FlatAvroCodec(registry=self.registry).decode, self.messages

        def read() -> None:
            for message in messages:
                decode(message)

        return read

    def confluent_reader(self) -> Reader:
        """confluent-kafka's AvroDeserializer over a registry in the process, key and value."""
        client = SchemaRegistryClient.new_client({"url": "mock://bench"})
        heads = [
            header(client.register_schema(f"{TOPIC}-{part}", Schema(text, "AVRO")))
            for part, text in zip(("key", "value"), self.texts, strict=True)
        ]
        pairs = [(heads[0] + key[5:], heads[1] + value[5:]) for key, value in self._pairs()]
        deserialize = AvroDeserializer(client)
        in_key, in_value = (
            SerializationContext(TOPIC, one) for one in (MessageField.KEY, MessageField.VALUE)
        )

        def read() -> None:
            for key, value in pairs:
                deserialize(key, in_key)
                deserialize(value, in_value)

        return read

    def bare_writer(self) -> Reader:
        """What fastavro takes to write the rows, with the header in front."""
        (key_schema, value_schema), rows = self.schemas, [dict(event.after or {}) for event in self.events]

        def write() -> None:
            for row in rows:
                for schema in (key_schema, value_schema):
                    stream = BytesIO()
                    stream.write(b"\0\0\0\0\1")
                    fastavro.schemaless_writer(stream, schema, row)
                    stream.getvalue()

        return write

    def our_writer(self) -> Reader:
        """The codec, from change events."""
        encode, changes = self.codec.encode, self.events

        def write() -> None:
            for change in changes:
                encode(change, topic=TOPIC)

        return write


if __name__ == "__main__":
    main()
