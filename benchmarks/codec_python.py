"""Each codec in Python against its floor, decoding and encoding, key and value both.

The sides take turns over the same events, and medians of their CPU time count. The last line printed is
JSON: for each ``<codec> decode`` and ``<codec> encode`` the events a second of ``floor`` and ``ours`` and
their ``ratio``.
Deletes are left out: every reader has a key and a value to read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import fastavro
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from benchmarks.codec_floors import (
    DebeziumText,
    avro_reader,
    avro_writer,
    canal_row,
    canal_value,
    debezium_records,
    debezium_row,
    flat_records,
)
from benchmarks.events import OPTIONS, SCHEMA, events
from benchmarks.turns import Turn, rates, ratio, take_turns
from tidesink.codecs import open_codec
from tidesink.codecs.base import Codec, header, schema_id_of
from tidesink.ddl.catalog import TableDefinitions
from tidesink.events import ChangeEvent, Message
from tidesink.schema_registry.client import MemorySchemaRegistry

COUNT = 4_000
ROUNDS = 15
TOPIC = "bench"


@dataclass(frozen=True)
class Side:
    """The events of one codec and their messages."""

    protocol: str

    @cached_property
    def registry(self) -> MemorySchemaRegistry:
        """The registry of this side alone."""
        return MemorySchemaRegistry()

    @cached_property
    def codec(self) -> Codec:
        """The codec as a worker opens it: with the table's definition."""
        return open_codec(
            self.protocol,
            options=OPTIONS[self.protocol],
            registry=self.registry,
            definitions=TableDefinitions([SCHEMA]),
        )

    @cached_property
    def events(self) -> list[ChangeEvent]:
        """The rows to encode."""
        return [event for event in events(COUNT, seed=1) if event.after is not None]

    @cached_property
    def messages(self) -> list[Message]:
        """What our encoder makes of them."""
        return [self._message(event) for event in self.events]

    def _message(self, event: ChangeEvent) -> Message:
        record = self.codec.encode(event, topic=TOPIC)
        assert record is not None
        return Message(TOPIC, 0, 0, record.key, record.value)

    @cached_property
    def texts(self) -> list[str]:
        """The schemas as the registry has them, of the key and the value."""
        first = self.messages[0]
        parts = ((first.key, "key"), (first.value, "value"))
        return [self.registry.schema_by_id(schema_id_of(data or b"", part)) for data, part in parts]

    @cached_property
    def schemas(self) -> list[Any]:
        """The same for fastavro."""
        return [fastavro.parse_schema(json.loads(text)) for text in self.texts]

    def decode(self) -> None:
        """One turn of our decoder."""
        decode = self.codec.decode
        for message in self.messages:
            decode(message)

    def encode(self) -> None:
        """One turn of our encoder."""
        encode = self.codec.encode
        for event in self.events:
            encode(event, topic=TOPIC)


class Floors(NamedTuple):
    """How a codec's floors are made, and what else takes turns with its decoder."""

    decode: Callable[[Side], Turn]
    encode: Callable[[Side], Turn]
    others: Callable[[Side], dict[str, Turn]] = lambda _side: {}


def _each(work: Callable[..., object], arguments: Sequence[tuple[Any, ...]]) -> Turn:
    """A turn that does the work for each, and keeps nothing of what it gives."""

    def turn() -> None:
        for one in arguments:
            work(*one)

    return turn


def _canal_decode(side: Side) -> Turn:
    return _each(canal_row, [(message.value,) for message in side.messages])


def _canal_encode(side: Side) -> Turn:
    return _each(canal_value, [(event.after, event.commit_ts) for event in side.events])


def _debezium_decode(side: Side) -> Turn:
    return _each(debezium_row, [(message.key, message.value) for message in side.messages])


def _debezium_encode(side: Side) -> Turn:
    first = side.messages[0]
    text = DebeziumText(first.key or b"", first.value or b"")
    return _each(text.record, [(event.after, event.commit_ts) for event in side.events])


def _confluent(side: Side) -> dict[str, Turn]:
    """confluent-kafka's AvroDeserializer over a registry in the process, key and value."""
    client = SchemaRegistryClient.new_client({"url": "mock://bench"})
    heads = [
        header(client.register_schema(f"{TOPIC}-{part}", Schema(text, "AVRO")))
        for part, text in zip(("key", "value"), side.texts, strict=True)
    ]
    pairs = [(heads[0] + (m.key or b"")[5:], heads[1] + (m.value or b"")[5:]) for m in side.messages]
    deserialize = AvroDeserializer(client)
    in_key, in_value = (SerializationContext(TOPIC, one) for one in (MessageField.KEY, MessageField.VALUE))

    def read() -> None:
        for key, value in pairs:
            deserialize(key, in_key)
            deserialize(value, in_value)

    return {"confluent": read}


FLOORS = {
    "flat-avro": Floors(
        lambda side: avro_reader(side.schemas, side.messages),
        lambda side: avro_writer(side.schemas, flat_records(side.events)),
        _confluent,
    ),
    "canal-json": Floors(_canal_decode, _canal_encode),
    "debezium-json": Floors(_debezium_decode, _debezium_encode),
    "debezium-avro": Floors(
        lambda side: avro_reader(side.schemas, side.messages),
        lambda side: avro_writer(side.schemas, debezium_records(side.schemas, side.messages)),
    ),
}


def measure(protocol: str, *, rounds: int = ROUNDS) -> dict[str, dict[str, float]]:
    """The figures of one codec."""
    side, floors = Side(protocol), FLOORS[protocol]
    decoders = {"floor": floors.decode(side), "ours": side.decode, **floors.others(side)}
    encoders = {"floor": floors.encode(side), "ours": side.encode}
    return {
        f"{protocol} {direction}": _figures(turns, len(side.events), rounds)
        for direction, turns in (("decode", decoders), ("encode", encoders))
    }


def _figures(turns: dict[str, Turn], count: int, rounds: int) -> dict[str, float]:
    # One thread that waits for nothing: its own CPU time, of which what else runs here takes no part.
    seconds = take_turns(turns, rounds=rounds, clock=time.process_time)
    return {**rates(seconds, count), "ratio": ratio(seconds, "ours", "floor")}


def main() -> None:
    """Measure and print the figures."""
    figures: dict[str, dict[str, float]] = {}
    for protocol in FLOORS:
        figures |= measure(protocol)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
