"""TiCDC's own ``debezium`` and ``debezium-avro`` (new architecture), decoded and encoded again.

What comes out is what went in, byte for byte but for ``ts_ms``, the producer's clock, which is given to the
encoder; Avro schemas are equal as JSON. What the records leave out is in ``exclusions.ROUND_TRIP``, and none
of it may come out equal: an exclusion lives no longer than its reason.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from typing import Final

import pytest

from tests.golden.exclusions import ROUND_TRIP
from tests.golden.large_messages import plain
from tests.golden.vectors import Record, VectorFolder, schema_of
from tidesink.codecs.compression import compression_of
from tidesink.codecs.debezium.codec import DebeziumAvroCodec, DebeziumJsonCodec
from tidesink.codecs.debezium.formats import AvroParser
from tidesink.codecs.options import DebeziumOptions
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import DecodeError, EncodeError
from tidesink.events import ChangeEvent, ColumnType, Event, Message
from tidesink.schema_registry import MemorySchemaRegistry

_CLOCK: Final = re.compile(rb'("cluster_id":"[^"]*"\},"ts_ms":)(\d+)')


def _definitions(record: Record) -> TableDefinitions:
    """The table as a person declares it: a DECIMAL of the JSON form as DOUBLE, for it is no more."""
    if record.event is None:
        return TableDefinitions()
    schema = schema_of(record.event)
    if record.raw["codec"] == "debezium":
        double = ColumnType("double")
        columns = (replace(c, type=double) if c.type.name == "decimal" else c for c in schema.columns)
        schema = replace(schema, columns=tuple(columns))
    return TableDefinitions([schema])


@cache
def _registry(folder: VectorFolder) -> MemorySchemaRegistry:
    return MemorySchemaRegistry(folder.schemas)


def _by_definition(event: Event, record: Record) -> Event:
    """The event with the columns TiDB had, which no record lists whole."""
    if isinstance(event, ChangeEvent) and record.event is not None:
        return event._replace(schema=schema_of(record.event))
    return event


def _is_same_json(record: Record) -> bool:
    found = _CLOCK.search(plain(record.message.value or b""))
    codec = DebeziumJsonCodec(
        options=record.options_of(DebeziumOptions),
        definitions=_definitions(record),
        clock=lambda: int(found[2]) if found else 0,
    )
    (event,) = codec.decode(record.message)
    encoded = codec.encode(_by_definition(event, record), topic=record.message.topic)
    # What is compressed is so again, if not by the same choices.
    halves = zip(encoded or (), (record.message.key, record.message.value), strict=True)
    return all(
        mine is not None
        and theirs is not None
        and compression_of(mine) == compression_of(theirs)
        and plain(mine) == plain(theirs)
        for mine, theirs in halves
    )


def _ts_ms(message: Message, folder: VectorFolder) -> int:
    """The producer's clock, which stands inside the bytes; a watermark's event does not have it."""
    value = AvroParser(_registry(folder)).read(message, "value")
    assert value is not None
    assert isinstance(value.payload, dict)
    found = value.payload["ts_ms"]
    assert isinstance(found, int)
    return found


def _is_same_avro(record: Record, folder: VectorFolder) -> bool:
    options = record.options_of(DebeziumOptions)
    reader = DebeziumAvroCodec(registry=_registry(folder), options=options, definitions=_definitions(record))
    (event,) = reader.decode(record.message)
    clock = _ts_ms(record.message, folder)
    registry = MemorySchemaRegistry()
    writer = DebeziumAvroCodec(registry=registry, options=options, clock=lambda: clock)
    encoded = writer.encode(_by_definition(event, record), topic=record.message.topic)
    assert encoded is not None
    for part, mine, theirs in zip(
        ("key", "value"), encoded, (record.message.key, record.message.value), strict=True
    ):
        assert mine is not None
        assert theirs is not None
        written = registry.schema_by_id(int.from_bytes(mine[1:5], "big"))
        if json.loads(written) != json.loads(folder.schemas[record.raw[f"{part}_schema_id"]]):
            return False
        if mine[5:] != theirs[5:]:
            return False
    return True


def _is_same(record: Record, folder: VectorFolder) -> bool:
    if record.raw["codec"] == "debezium":
        return _is_same_json(record)
    return _is_same_avro(record, folder)


def _check(record: Record, folder: VectorFolder) -> None:
    if record.message.value is None:
        assert record.raw.get("error") or record.raw["note"]
        return
    exclusion = next((one for one in ROUND_TRIP if one.matches(record.name)), None)
    if exclusion is None:
        assert _is_same(record, folder)
        return
    try:
        same = _is_same(record, folder)
    except (DecodeError, EncodeError):
        same = False
    assert not same, "the exclusion has no reason any more"
    pytest.skip(f"excluded: {exclusion.reason}")


@pytest.mark.golden("debezium", "rows")
def test_json_rows(record: Record, folder: VectorFolder) -> None:
    _check(record, folder)


@pytest.mark.golden("debezium-avro", "rows")
def test_avro_rows(record: Record, folder: VectorFolder) -> None:
    _check(record, folder)


@pytest.mark.golden("debezium", "control")
def test_json_control(record: Record, folder: VectorFolder) -> None:
    _check(record, folder)


@pytest.mark.golden("debezium-avro", "control")
def test_avro_control(record: Record, folder: VectorFolder) -> None:
    _check(record, folder)


def test_every_exclusion_names_a_record(golden_names: list[str]) -> None:
    unused = [one.pattern for one in ROUND_TRIP if not any(one.matches(name) for name in golden_names)]
    assert not unused
