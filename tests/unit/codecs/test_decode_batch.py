"""``decode_batch``: what goes in, what comes out, and how the two ways of decoding are put together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from tests.decoded_batches import as_records, by_record, faults_of
from tidesink.codecs.batch import (
    ChangeTable,
    ColumnarResult,
    Records,
    RowWarning,
    ValueOptions,
    decode_in_columns,
    rows_from_events,
)
from tidesink.codecs.canal_json.codec import CanalJsonCodec
from tidesink.errors import FramingError, SchemaMismatchError
from tidesink.events import (
    ChangeEvent,
    Column,
    ColumnType,
    Event,
    Message,
    Op,
    Position,
    Row,
    TableId,
    TableSchema,
    WatermarkEvent,
)

TABLE = TableId("shop", "orders")
SCHEMA = TableSchema(
    TABLE,
    (
        Column("id", ColumnType("bigint"), nullable=False, handle=True),
        Column("day", ColumnType("date")),
        Column("price", ColumnType("decimal", precision=10, scale=2)),
    ),
)
OPTIONS = ValueOptions()


def _decode(message: Message) -> tuple[Event, ...]:
    """Values are ``id`` or ``id|day``; ``w`` is a watermark, ``!`` no value at all."""
    position = Position(message.topic, message.partition, message.offset)
    text = (message.value or b"").decode()
    if text == "!":
        raise FramingError("no value")
    if text == "w":
        return (WatermarkEvent(7, position),)
    number, _, day = text.partition("|")
    row = {"id": int(number), "day": day or None, "price": None}
    return (ChangeEvent(Op.INSERT, TABLE, {"id": row["id"]}, None, row, 5, position, SCHEMA),)


def _records(*values: bytes) -> pa.RecordBatch:
    return as_records(Message("t", 0, at, None, value) for at, value in enumerate(values))


def test_rows_have_the_types_of_the_type_table() -> None:
    decoded = rows_from_events(_records(b"1|2024-02-29", b"2"), _decode, OPTIONS)
    (table,) = decoded.tables
    assert table.table == TABLE
    kinds = {member.name: member.type for member in table.rows.schema.field("after").type}
    assert kinds == {"id": pa.int64(), "day": pa.date32(), "price": pa.decimal128(10, 2)}
    assert table.rows["op"].to_pylist() == ["insert", "insert"]
    assert [str(row["day"]) for row in table.rows["after"].to_pylist()] == ["2024-02-29", "None"]
    assert decoded.row_by_row_records == decoded.records == 2


def test_a_date_no_calendar_has_is_null_and_named() -> None:
    (table,) = rows_from_events(_records(b"1|0000-00-00", b"2|2024-01-01"), _decode, OPTIONS).tables
    assert table.rows["zero_dates"].to_pylist() == [["day"], None]


def test_a_value_its_type_does_not_hold_is_a_fault_with_its_place() -> None:
    decoded = rows_from_events(_records(b"1", b"2|today", b"!"), _decode, OPTIONS)
    assert [(record, name) for record, name, _, _ in faults_of(decoded)] == [
        (1, "ValueOutOfRangeError"),
        (2, "FramingError"),
    ]
    assert faults_of(decoded)[0][3] == {
        "topic": "t",
        "partition": 0,
        "offset": 1,
        "table": "shop.orders",
        "column": "day",
    }
    assert [row[0] for row in by_record(decoded)] == [0]


def test_a_position_of_more_than_38_digits_is_a_fault() -> None:
    def decode(message: Message) -> tuple[Event, ...]:
        (event,) = _decode(message)
        assert isinstance(event, ChangeEvent)
        wide = event.position._replace(source=(1, 10**38))
        return (event._replace(position=wide) if message.offset else event,)

    decoded = rows_from_events(_records(b"1", b"2"), decode, OPTIONS)
    assert [(record, name) for record, name, _, _ in faults_of(decoded)] == [(1, "ValueOutOfRangeError")]
    assert [row[0] for row in by_record(decoded)] == [0]


def test_warnings_belong_to_row_changes_that_are_returned() -> None:
    def warn(event: ChangeEvent) -> str | None:
        number = (event.after or {})["id"]
        return None if number == 1 else f"row {number!r}"

    decoded = rows_from_events(_records(b"1", b"w", b"2|today", b"3"), _decode, OPTIONS, warn)
    assert [record for record, *_ in faults_of(decoded)] == [2]
    assert decoded.warnings == (RowWarning(3, 0, "row 3"),)


def test_control_events_stay_in_order_beside_rows() -> None:
    decoded = rows_from_events(_records(b"w", b"1", b"w"), _decode, OPTIONS)
    assert [event.position.offset for event in decoded.events] == [0, 2]


def test_a_table_of_several_batches_counts_its_records_on() -> None:
    whole = pa.Table.from_batches([_records(b"1", b"2"), _records(b"3")])
    decoded = rows_from_events(whole, _decode, OPTIONS)
    assert decoded.tables[0].rows["record"].to_pylist() == [0, 1, 2]


def test_what_the_columnar_step_leaves_takes_its_place_among_the_rest() -> None:
    """The step proves even records, and stops after each fourth."""

    def columnar(records: Records) -> ColumnarResult:
        consumed = min(4, len(records))
        proven, left = np.arange(0, consumed, 2), np.arange(1, consumed, 2)
        part = pa.record_batch([records.value.take(pa.array(proven))], names=["value"])
        tables = rows_from_events(part, _decode, OPTIONS).tables
        moved = [_moved(table, proven + records.start) for table in tables]
        return ColumnarResult(consumed, moved, left=left)

    records = _records(*(str(number).encode() for number in range(10)))
    decoded = decode_in_columns(records, columnar=columnar, decode=_decode, options=OPTIONS)
    assert len(decoded.tables) == 1
    assert [row["id"] for row in decoded.tables[0].rows["after"].to_pylist()] == list(range(10))
    assert decoded.row_by_row_records == 5


def _moved(table: ChangeTable, record: npt.NDArray[np.int64]) -> ChangeTable:
    return replace(table, rows=table.rows.set_column(0, "record", pa.array(record)))


def test_records_without_a_value_column_are_refused() -> None:
    with pytest.raises(SchemaMismatchError, match="no column 'value'"):
        CanalJsonCodec().decode_batch(pa.table({"key": pa.array([b"1"])}))
    with pytest.raises(SchemaMismatchError, match="'offset' of the records has the type string"):
        CanalJsonCodec().decode_batch(pa.table({"value": pa.array([b"1"]), "offset": pa.array(["x"])}))


def test_key_and_value_alone_are_enough() -> None:
    decoded = CanalJsonCodec().decode_batch(pa.table({"value": pa.array([b"{", b"1"])}))
    assert [context for _, _, _, context in faults_of(decoded)] == [
        {"topic": "", "partition": 0, "offset": 0},
        {"topic": "", "partition": 0, "offset": 1},
    ]


def test_the_flat_table_has_the_row_of_each_change() -> None:
    key_only = TableSchema(TABLE, SCHEMA.columns)

    def decode(message: Message) -> tuple[Event, ...]:
        position = Position(message.topic, message.partition, message.offset)
        row: Row = {"id": message.offset, "day": "2024-01-02", "price": None}
        if message.value == b"d":
            before = {"id": message.offset}
            return (ChangeEvent(Op.DELETE, TABLE, before, before, None, None, position, key_only),)
        return (ChangeEvent(Op.UPSERT, TABLE, {"id": row["id"]}, None, row, None, position, key_only),)

    (table,) = rows_from_events(_records(b"u", b"d"), decode, OPTIONS).tables
    flat = table.flat()
    assert flat.column_names == ["_op", "_commit_ts", "_topic", "_partition", "_offset", "id", "day", "price"]
    assert flat["id"].to_pylist() == [0, 1]
    assert [None if day is None else str(day) for day in flat["day"].to_pylist()] == ["2024-01-02", None]
