"""Random histories of a table without a key, as TiDB keeps it: each copy of a row has a number of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random
from typing import Final

from tidesink.codecs.canal_json.codec import CanalJsonCodec
from tidesink.codecs.options import CanalJsonOptions
from tidesink.ddl.catalog import TableDefinitions
from tidesink.events import ChangeEvent, Column, ColumnType, Message, Op, Position, Row, TableId, TableSchema
from tidesink.typemap.target_schema import RowKey, render_row_key

TABLE: Final = TableId("shop", "visits")
SCHEMA: Final = TableSchema(
    TABLE,
    (
        Column("name", ColumnType("varchar", length=20, sql="varchar(20)")),
        Column("amount", ColumnType("int", sql="int")),
    ),
)
CREATE: Final = "CREATE TABLE shop.visits (name VARCHAR(20), amount INT)"
OPTIONS: Final = CanalJsonOptions(enable_tidb_extension=True, output_row_key=True)
# Two partitions of one table: TiDB numbers the rows of each from again where they were exchanged.
TABLE_IDS: Final = (104, -1)
_VALUES: Final[Sequence[Row]] = [{"name": n, "amount": a} for n in ("a", "b") for a in (None, 1)]

Copies = Counter[tuple[object, ...]]


def history(random: Random, count: int) -> tuple[list[ChangeEvent], Copies]:
    """Events of identical inserts, updates and deletes of one copy each, and the copies there are at the end.

    The events carry their row keys as canal-json does; their offsets count from 0.
    """
    held: dict[RowKey, Row] = {}
    found: list[ChangeEvent] = []
    for at in range(count):
        # Few numbers, so that deleted ones come again, and the same in both partitions.
        key = RowKey(random.choice((-5, 0, 1, 2, 3, 1 << 62)), random.choice(TABLE_IDS))
        before = held.pop(key, None)
        after = None if before is not None and random.random() < 0.4 else random.choice(_VALUES)
        if after is not None:
            held[key] = after
        found.append(change(key, before, after, at=at))
    return found, copies(held.values())


def change(key: RowKey, before: Row | None, after: Row | None, *, at: int) -> ChangeEvent:
    """One row change of the table at an offset; its commit_ts grows with it."""
    op = Op.DELETE if after is None else Op.INSERT if before is None else Op.UPDATE
    extension = {"_tidb": {"rowkey": render_row_key(key)}}
    position = Position("t", 0, at, 0, (1000 + at,))
    return ChangeEvent(op, TABLE, None, before, after, 1000 + at, position, SCHEMA, None, extension)


def copies(rows: Iterable[Row]) -> Copies:
    """How often each row is there, whatever else it has."""
    return Counter((row["name"], row["amount"]) for row in rows)


def messages(events: Iterable[ChangeEvent]) -> list[Message]:
    """The events as new TiCDC writes them."""
    codec = CanalJsonCodec(options=OPTIONS, definitions=TableDefinitions([SCHEMA]))
    found = []
    for event in events:
        record = codec.encode(event, topic="t")
        assert record is not None
        found.append(Message("t", event.position.partition, event.position.offset, None, record.value))
    return found


def again(events: Sequence[ChangeEvent], *starts: int) -> list[ChangeEvent]:
    """A stream that goes back to each start, one after the other, and sends all from there once more."""
    sent = [*events, *(event for start in starts for event in events[start:])]
    return [event._replace(position=event.position._replace(offset=at)) for at, event in enumerate(sent)]
