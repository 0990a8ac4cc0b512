"""``decode_batch`` against the reader that somebody would write by hand, over the benchmark's table.

Both sides read the same messages in one process and take turns; the medians of their CPU time count. A
row of figures has the events a second of both and their ratio.
"""

from __future__ import annotations

import json
import time
from io import BytesIO
from typing import TypedDict

import fastavro
import orjson
import pyarrow as pa

from benchmarks.events import OPTIONS, SCHEMA, events
from benchmarks.turns import Turn, rates, ratio, take_turns
from tidesink.codecs import open_codec
from tidesink.codecs.base import Codec, EncodedRecord, schema_id_of
from tidesink.codecs.canal_json.codec import CanalJsonCodec
from tidesink.codecs.framing import HEADER_SIZE
from tidesink.ddl.catalog import TableDefinitions
from tidesink.schema_registry.client import MemorySchemaRegistry

COUNT = 200_000
# Each has 3.8 kB, and its objects several times as much.
DEBEZIUM_JSON_COUNT = 20_000
ROUNDS = 5


class Figures(TypedDict):
    """One row of the benchmarks' JSON."""

    name: str
    value: float
    unit: str
    baseline: float
    ratio: float


def flat_avro(count: int = COUNT) -> Figures:
    """``decode_batch`` of keys and values against ``fastavro.schemaless_reader`` of the values alone."""
    registry = MemorySchemaRegistry()
    codec = open_codec("flat-avro", options=OPTIONS["flat-avro"], registry=registry)
    records = encoded(codec, count)
    values = [record.value or b"" for record in records]
    schema = registry.schema_by_id(schema_id_of(values[0], "value"))
    return compared("flat-avro", batch_turn(codec, records), fastavro_turn(schema, values), len(records))


def canal_json(count: int = COUNT) -> Figures:
    """``decode_batch`` against a list of ``orjson.loads`` of the values, which have texts and no types."""
    codec = CanalJsonCodec(options=OPTIONS["canal-json"], definitions=TableDefinitions([SCHEMA]))
    records = encoded(codec, count)
    values = [record.value or b"" for record in records]
    return compared("canal-json", batch_turn(codec, records), orjson_turn(values), len(records))


def debezium_json(count: int = DEBEZIUM_JSON_COUNT) -> Figures:
    """``decode_batch`` of records with schemas against a list of ``orjson.loads`` of the values."""
    codec = open_codec(
        "debezium-json", options=OPTIONS["debezium-json"], definitions=TableDefinitions([SCHEMA])
    )
    records = encoded(codec, count)
    values = [record.value or b"" for record in records]
    return compared("debezium-json", batch_turn(codec, records), orjson_turn(values), len(records))


def debezium_avro(count: int = COUNT) -> Figures:
    """``decode_batch`` of keys and values against ``fastavro.schemaless_reader`` of the values alone."""
    registry = MemorySchemaRegistry()
    definitions = TableDefinitions([SCHEMA])
    options = OPTIONS["debezium-avro"]
    codec = open_codec("debezium-avro", options=options, registry=registry, definitions=definitions)
    records = encoded(codec, count)
    values = [record.value or b"" for record in records]
    schema = registry.schema_by_id(schema_id_of(values[0], "value"))
    return compared("debezium-avro", batch_turn(codec, records), fastavro_turn(schema, values), len(records))


def encoded(codec: Codec, count: int) -> list[EncodedRecord]:
    """The benchmark's upserts as Kafka records; deletes have no value to compare."""
    made = [codec.encode(event, topic="bench") for event in events(count, seed=1) if event.after is not None]
    return [record for record in made if record is not None]


def batch_turn(codec: Codec, records: list[EncodedRecord]) -> Turn:
    """All records as one batch."""
    batch = pa.record_batch(
        {
            "topic": pa.array(["bench"] * len(records)).dictionary_encode(),
            "partition": pa.array([0] * len(records), pa.int32()),
            "offset": pa.array(range(len(records)), pa.int64()),
            "key": pa.array([record.key for record in records], pa.binary()),
            "value": pa.array([record.value for record in records], pa.binary()),
        }
    )

    def turn() -> None:
        decoded = codec.decode_batch(batch)
        assert decoded.row_by_row_records == 0
        assert sum(len(table.rows) for table in decoded.tables) == len(records)

    return turn


def fastavro_turn(schema: str, values: list[bytes]) -> Turn:
    """Each value by fastavro, with the schema as the registry has it."""
    parsed = fastavro.parse_schema(json.loads(schema))
    payloads = [value[HEADER_SIZE:] for value in values]

    def turn() -> None:
        for payload in payloads:
            fastavro.schemaless_reader(BytesIO(payload), parsed, None)

    return turn


def orjson_turn(values: list[bytes]) -> Turn:
    """All values by orjson, held together as a reader of batches holds them."""

    def turn() -> None:
        assert len([orjson.loads(value) for value in values]) == len(values)

    return turn


def compared(protocol: str, ours: Turn, floor: Turn, count: int) -> Figures:
    """The row of ``decode.<protocol>.batch``."""
    seconds = take_turns({"ours": ours, "floor": floor}, rounds=ROUNDS, clock=time.process_time)
    found = rates(seconds, count)
    return Figures(
        name=f"decode.{protocol}.batch",
        value=found["ours"],
        unit="events/s",
        baseline=found["floor"],
        ratio=ratio(seconds, "ours", "floor"),
    )


# Protocol -> what measures it.
MEASURES = {
    "flat-avro": flat_avro,
    "canal-json": canal_json,
    "debezium-json": debezium_json,
    "debezium-avro": debezium_avro,
}


def main() -> None:
    """Measure every protocol and print the rows as JSON."""
    print(json.dumps({protocol: measure() for protocol, measure in MEASURES.items()}))


if __name__ == "__main__":
    main()
