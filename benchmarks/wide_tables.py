"""``decode_batch`` of a table of 1,000 columns beside one of 10 columns: as many values each, per value."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Final

from benchmarks.decode_batches import Figures, batch_turn
from benchmarks.turns import rates, ratio, take_turns
from tidesink.codecs import open_codec
from tidesink.codecs.base import Codec, EncodedRecord
from tidesink.ddl.catalog import parse_create_table
from tidesink.events import ChangeEvent, Op, Position, TableId, Value
from tidesink.schema_registry.client import MemorySchemaRegistry

EVENTS: Final = 1_000
WIDE: Final = 1_000
NARROW: Final = 10
_ROUNDS: Final = 5
_TYPES: Final = ("BIGINT", "VARCHAR(40)", "DOUBLE", "INT", "DATETIME(3)")


def wide_row(events: int = EVENTS) -> Figures:
    """The row of ``wide.1000-columns``: values a second of flat-avro."""
    turns = {
        "wide": batch_turn(*_encoded(WIDE, events)),
        "narrow": batch_turn(*_encoded(NARROW, events * WIDE // NARROW)),
    }
    seconds = take_turns(turns, rounds=_ROUNDS, clock=time.process_time)
    found = rates(seconds, events * WIDE)
    return Figures(
        name="wide.1000-columns",
        value=found["wide"],
        unit="values/s",
        baseline=found["narrow"],
        ratio=ratio(seconds, "wide", "narrow"),
    )


def _encoded(columns: int, count: int) -> tuple[Codec, list[EncodedRecord]]:
    codec = open_codec("flat-avro", registry=MemorySchemaRegistry())
    made = [codec.encode(event, topic="bench") for event in _events(columns, count)]
    return codec, [record for record in made if record is not None]


def _events(columns: int, count: int) -> Iterator[ChangeEvent]:
    types = [_TYPES[at % len(_TYPES)] for at in range(1, columns)]
    listed = ", ".join(f"`c{at}` {name}" for at, name in enumerate(types, start=1))
    schema = parse_create_table(f"CREATE TABLE `bench`.`wide` (`id` BIGINT PRIMARY KEY, {listed})")
    table = TableId("bench", "wide")
    for number in range(count):
        row: dict[str, Value] = {"id": number}
        row |= {f"c{at}": _value(name, number + at) for at, name in enumerate(types, start=1)}
        yield ChangeEvent(Op.INSERT, table, {"id": number}, None, row, 1, Position("", 0, 0), schema)


def _value(name: str, number: int) -> Value:
    if name.startswith("VARCHAR"):
        return f"text {number}"
    if name.startswith("DATETIME"):
        return f"2026-01-01 00:00:{number % 60:02d}.{number % 1000:03d}"
    return number / 7 if name == "DOUBLE" else number


if __name__ == "__main__":
    print(json.dumps({"wide": wide_row()}))
