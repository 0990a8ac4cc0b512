"""The decoders: a record's key and value in, events or a refusal out.

A target's codecs live as long as the fuzzer, as a worker's do, so that what they keep is bounded too.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Final

from tests.fuzz import seeds
from tests.fuzz.inputs import Halves, packed, unpacked
from tests.fuzz.rules import decoded, written
from tidesink.codecs import open_codec
from tidesink.codecs.base import Codec, CodecOptions
from tidesink.codecs.options import DebeziumModes, DebeziumOptions, FlatAvroOptions
from tidesink.ddl.catalog import TableDefinitions
from tidesink.events import Message, TableId
from tidesink.schema_registry import MemorySchemaRegistry

_DDL: Final = (
    "CREATE TABLE a.b (id INT PRIMARY KEY, d DECIMAL(20,6), e ENUM('x','y'), s SET('p','q'), b BIT(10), "
    "u BIGINT UNSIGNED, j JSON, t TIMESTAMP(3) NULL, dt DATETIME(6), ti TIME(2), y YEAR, v VARBINARY(9), "
    "f FLOAT, vec VECTOR(3), da DATE)"
)


def message(halves: Halves, topic: str = "a.b.c") -> Message:
    """A record of two halves."""
    return Message(topic, 3, 17, halves.key, halves.value)


def _of(codec: str, variants: int = 1) -> Iterator[bytes]:
    for at, folder in enumerate(seeds.folders(codec)):
        for one in islice(seeds.messages(folder, codec), seeds.MOST_OF_ONE):
            for variant in range(variants):
                yield packed(one.key, one.value, choice=at + variant)


@cache
def _flat_avro() -> tuple[Codec, ...]:
    options = FlatAvroOptions(checksum="reject", time_zone="America/New_York")
    return tuple(
        open_codec("flat-avro", registry=MemorySchemaRegistry(folder.schemas), options=options)
        for folder in seeds.folders("avro")
    )


def flat_avro_seeds() -> Iterator[bytes]:
    """TiCDC's records under both producers' schemas."""
    return _of("avro")


def flat_avro(data: bytes) -> None:
    """flat-avro with checksums asked for."""
    halves = unpacked(data)
    codecs = _flat_avro()
    decoded(codecs[halves.choice % len(codecs)], message(halves))


@cache
def _canal_json() -> tuple[Codec, ...]:
    defined = TableDefinitions()
    defined.declare(_DDL)
    return (
        open_codec("canal-json"),
        open_codec("canal-json", definitions=defined, keys={TableId("a", "b"): ("id",)}),
        open_codec("canal-json", options=CodecOptions(time_zone="Asia/Shanghai")),
    )


def canal_json_seeds() -> Iterator[bytes]:
    """TiCDC's records."""
    return _of("canal-json", 2)


def canal_json(data: bytes) -> None:
    """canal-json, plain, with definitions, and in another time zone; what is read is written again."""
    halves = unpacked(data)
    codecs = _canal_json()
    codec = codecs[halves.choice % len(codecs)]
    written(codec, decoded(codec, message(halves)))


_MODES: Final = (
    DebeziumModes(),
    DebeziumModes(decimal_handling_mode="string", binary_handling_mode="hex", time_precision_mode="connect"),
    DebeziumModes(decimal_handling_mode="double", bigint_unsigned_handling_mode="precise"),
    DebeziumModes(binary_handling_mode="base64-url-safe", time_precision_mode="microseconds"),
)


@cache
def _debezium_json() -> tuple[Codec, ...]:
    defined = TableDefinitions()
    defined.declare(_DDL)
    plain = [open_codec("debezium-json", options=DebeziumOptions(debezium=modes)) for modes in _MODES]
    unwrapped = DebeziumOptions(debezium_unwrapped=True)
    return (
        *plain,
        open_codec("debezium-json", definitions=defined),
        open_codec("debezium-json", options=unwrapped),
    )


def debezium_json_seeds() -> Iterator[bytes]:
    """TiCDC's records and the connectors'."""
    yield from _of("debezium")
    for at, one in enumerate(seeds.captured(avro=False)):
        yield packed(one.key, one.value, choice=at % len(_debezium_json()))


def debezium_json(data: bytes) -> None:
    """debezium-json in several handling modes, with definitions, and flattened."""
    halves = unpacked(data)
    codecs = _debezium_json()
    codec = codecs[halves.choice % len(codecs)]
    written(codec, decoded(codec, message(halves)))


@cache
def _debezium_avro() -> tuple[Codec, ...]:
    ticdc = [folder.schemas for folder in seeds.folders("debezium-avro")]
    found = (*ticdc, seeds.captured_schemas())
    return tuple(open_codec("debezium-avro", registry=MemorySchemaRegistry(texts)) for texts in found)


def debezium_avro_seeds() -> Iterator[bytes]:
    """TiCDC's records and the connectors', each under its own schemas."""
    yield from _of("debezium-avro")
    for one in seeds.captured(avro=True):
        yield packed(one.key, one.value, choice=len(_debezium_avro()) - 1)


def debezium_avro(data: bytes) -> None:
    """debezium-avro."""
    halves = unpacked(data)
    codecs = _debezium_avro()
    decoded(codecs[halves.choice % len(codecs)], message(halves))
