"""A shop table whose topic holds bad records all over and gets two columns in the middle.

It knows what must come of it: the rows at the end, and each bad record by its place in Kafka.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, NamedTuple

from tests.e2e.replay import Servers
from tests.e2e.writing import TableWriter, schema_of
from tests.letters import distinct_letters
from tidesink.codecs.base import EncodedRecord
from tidesink.events import Column, ColumnType, Op, Row, TableId

PARTITIONS: Final = 2
# One of so many records in a row of a partition is bad, the same one each time.
BAD_EVERY: Final = 5
NAME: Final = "changing"
TABLE: Final = TableId("shop", NAME)
_ADDED: Final = (
    Column("grade", ColumnType("int", sql="int"), nullable=False, default="7"),
    Column("note", ColumnType("varchar", length=10, sql="varchar(10)"), default="none"),
)
DEFAULTS: Final[Row] = {"grade": 7, "note": "none"}
_KEYS: Final = 24
_SPOILS: Final[tuple[Callable[[bytes], bytes], ...]] = (
    lambda value: value[:-1],
    lambda value: value + b"x",
    lambda value: b"\x05" + value[1:],
)


class Place(NamedTuple):
    """Where a record is in Kafka."""

    topic: str
    partition: int
    offset: int


class ChangingTable:
    """Writes the topic; ``rows`` and ``bad`` are what the target and its dead letters must hold."""

    def __init__(self, servers: Servers) -> None:
        self.rows: dict[int, Row] = {}
        self.bad: dict[Place, EncodedRecord] = {}
        self._writer = TableWriter(servers, schema_of(NAME), partitions=PARTITIONS)
        self._sent = [0] * PARTITIONS
        self._rng = random.Random(20261121)

    def add_columns(self) -> None:
        """Go on with the wider schema: rows that are there have the defaults."""
        self._writer.schema = schema_of(NAME, *_ADDED)
        self.rows = {key: {**row, **DEFAULTS} for key, row in self.rows.items()}

    def write(self, records: int) -> None:
        """Send so many records to each partition."""
        for _ in range(records):
            for partition in range(PARTITIONS):
                # A key stays in its partition.
                key = PARTITIONS * self._rng.randrange(_KEYS // PARTITIONS) + partition
                self._change(key, Place(self._writer.topic, partition, self._sent[partition]))
                self._sent[partition] += 1

    def _change(self, key: int, place: Place) -> None:
        if place.offset % BAD_EVERY == BAD_EVERY - 2:
            record = self._spoilt(key, len(self.bad))
            self.bad[place] = record
        elif key in self.rows and self._rng.random() < 0.3:
            record = self._writer.encoded(Op.DELETE, self.rows.pop(key))
        else:
            self.rows[key] = self._row(key)
            record = self._writer.encoded(Op.INSERT, self.rows[key])
        self._writer.send(record.key, record.value, partition=place.partition)

    def _spoilt(self, key: int, number: int) -> EncodedRecord:
        """A change of a row that must not arrive."""
        record = self._writer.encoded(Op.INSERT, {**self._row(key), "name": "spoilt"})
        assert record.value is not None
        return record._replace(value=_SPOILS[number % len(_SPOILS)](record.value))

    def _row(self, key: int) -> Row:
        wide = set(_ADDED) <= set(self._writer.schema.columns)
        row: Row = {"id": key, "name": f"row {self._rng.random()}"}
        # NULL is a value of its own: a default must not take its place.
        added: Row = {"grade": self._rng.randrange(100), "note": self._rng.choice((None, "kept"))}
        return {**row, **added} if wide else row


Letter = tuple[Place, EncodedRecord]


def dead_letters(servers: Servers) -> list[Letter]:
    """The dead letters of a test, each once; a batch that was tried again wrote its own again."""
    found = distinct_letters(servers["brokers"], servers["prefix"])
    return [(Place(*letter.place), EncodedRecord(letter.key, letter.value)) for letter in found]
