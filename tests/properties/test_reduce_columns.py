"""Reduction on Arrow tables is reduction event by event."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.decoded_batches import as_records
from tests.history_law import versions_of
from tests.reduction_law import Reduced, reduce
from tidesink.codecs.batch import ChangeTable, ValueOptions, rows_from_events
from tidesink.errors import SchemaMismatchError
from tidesink.events import (
    UNAVAILABLE,
    ChangeEvent,
    Column,
    ColumnType,
    Event,
    Message,
    Op,
    Position,
    Row,
    SequenceBy,
    TableId,
    TableSchema,
    Value,
)
from tidesink.sinks.decode.target_rows import TargetRows
from tidesink.sinks.laws.reduce import (
    Reduction,
    changes_of_keys,
    key_hashes,
    reduce_tables,
    rows_of_keys,
)
from tidesink.sinks.targets.lake.rows import matched
from tidesink.typemap.target_schema import shape_of

TABLE = TableId("shop", "t")
OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0]


def _schema(key: str, *names: str) -> TableSchema:
    keys = (Column("id", ColumnType(key), handle=True), Column("shard", ColumnType("varchar"), handle=True))
    return TableSchema(TABLE, (*keys, *(Column(name, ColumnType("bigint")) for name in names)))


# Writers' schemas of one table: with a narrower key, with one column more, with another order.
SCHEMAS = (_schema("int", "a", "b"), _schema("bigint", "a", "b"), _schema("bigint", "b", "c", "a"))


@st.composite
def streams(draw: st.DrawFn, *, partitions: int = 1) -> list[ChangeEvent]:
    """Events of one table: writes, deletes, key changes, truncated images and values left out."""
    events = []
    for at in range(draw(st.integers(0, 30))):
        schema = draw(st.sampled_from(SCHEMAS))
        op = draw(st.sampled_from([Op.INSERT, Op.UPDATE, Op.UPDATE, Op.DELETE, Op.UPSERT]))
        key = draw(_keys)
        names = [column.name for column in schema.columns[2:]]
        row: Row = {**key, **{name: draw(st.none() | st.integers(0, 99)) for name in names}}
        before = draw(st.none() | _keys | st.just({})) if op is Op.UPDATE else None
        lacking = (
            draw(st.lists(st.sampled_from(names), unique=True, max_size=2)) if op is not Op.DELETE else []
        )
        row = {name: value for name, value in row.items() if name not in lacking}
        ts = draw(st.integers(1, 12))
        position = Position("t", draw(st.integers(0, partitions - 1)), at, 0, (ts, draw(st.integers(0, 1))))
        extension = {UNAVAILABLE: tuple(lacking)} if lacking else None
        if op is Op.DELETE:
            images: list[Row | None] = [None, key, row]
            old = draw(st.sampled_from(images))
            events.append(ChangeEvent(op, TABLE, key, old, None, ts, position, schema))
        else:
            events.append(ChangeEvent(op, TABLE, key, before, row, ts, position, schema, extension=extension))
    return events


_keys: st.SearchStrategy[dict[str, Value]] = st.fixed_dictionaries(
    {"id": st.integers(0, 3), "shard": st.sampled_from(["x", "y"])}
)


def tables_of(events: Sequence[ChangeEvent]) -> tuple[ChangeTable, ...]:
    """Events as the Arrow tables that a decoder gives."""

    def decode(message: Message) -> tuple[Event, ...]:
        return (events[int(message.value or b"0")],)

    records = as_records(Message("t", 0, at, None, str(at).encode()) for at in range(len(events)))
    return rows_from_events(records, decode, ValueOptions()).tables


class _PlainRow(NamedTuple):
    """A reduced row: its position, its values or None if it is deleted, and what else is known of it."""

    position: tuple[int, int]
    values: dict[str, Any] | None
    half: bool
    left: frozenset[str]
    after_delete: bool


def _plain(reduction: Reduction) -> dict[tuple[object, ...], _PlainRow]:
    found: dict[tuple[object, ...], _PlainRow] = {}
    for table in reduction.tables:
        for row in table.rows.to_pylist():
            place = (row["partition"], row["offset"])
            left = frozenset(row["unavailable"] or ())
            values = None
            if row["row"] is not None:
                values = {name: value for name, value in row["row"].items() if name not in left}
            assert row["deleted"] is (values is None)
            found[row["key"]["id"], row["key"]["shard"]] = _PlainRow(
                place,
                values,
                row["half"],
                left,
                row["after_delete"],
            )
    return found


def _expected(reduced: Reduced) -> dict[tuple[object, ...], _PlainRow]:
    return {
        key: _PlainRow(
            (kept.position.partition, kept.position.offset),
            None if kept.row is None else dict(kept.row),
            kept.half,
            frozenset(kept.kept),
            kept.after_delete,
        )
        for key, kept in reduced.rows.items()
    }


def _same(events: list[ChangeEvent], sequence_by: SequenceBy) -> None:
    ours = reduce_tables(tables_of(events), ("id", "shard"), order=sequence_by)
    law = reduce(events, ("id", "shard"), sequence_by)
    assert _plain(ours) == _expected(law)
    assert ours.events == len(events)
    assert ours.superseded == law.superseded
    assert (ours.upserts, ours.deletes, ours.halves) == (
        len(law.upserts),
        len(law.deletes),
        law.split_halves,
    )


@given(streams())
def test_in_kafkas_order(events: list[ChangeEvent]) -> None:
    _same(events, "kafka")


@given(streams(), st.sets(st.integers(0, 3)))
def test_the_rows_of_some_keys_are_those_that_all_changes_make(
    events: list[ChangeEvent], ids: set[int]
) -> None:
    """Changes of a key into or out of these make other rows too, of which not all changes are kept."""
    tables, keys = tables_of(events), ("id", "shard")
    whole = reduce_tables(tables, keys)
    mine = [
        replace(
            one, rows=one.rows.filter(pa.array([row["id"] in ids for row in one.rows["key"].to_pylist()]))
        )
        for one in whole.tables
    ]
    hashes = key_hashes(mine)
    kept = [
        replace(one, rows=one.rows.filter(pa.array(mask)))
        for one in tables
        if (mask := changes_of_keys(one, hashes, keys, convert=lambda _, values: values)).any()
    ]
    found = rows_of_keys(reduce_tables(kept, keys), hashes)
    assert _plain(found) == {key: row for key, row in _plain(whole).items() if key[0] in ids}
    halves = sum(row.half for row in _plain(found).values())
    assert (found.upserts + found.deletes, found.halves) == (len(_plain(found)), halves)


@given(streams(partitions=3))
def test_in_the_sources_order(events: list[ChangeEvent]) -> None:
    # Values that are left out have no place in the source's order: a worker refuses them there.
    whole = [one._replace(extension=None, after=one.after and _whole(one)) for one in events]
    _same(whole, "source")


def _whole(event: ChangeEvent) -> Row:
    assert event.schema is not None
    return {column.name: (event.after or {}).get(column.name) for column in event.schema.columns}


@given(streams(partitions=2))
def test_a_history_keeps_a_row_for_each_moment(events: list[ChangeEvent]) -> None:
    whole = [one._replace(extension=None, after=one.after and _whole(one)) for one in events]
    ours = reduce_tables(tables_of(whole), ("id", "shard"), versions=True)
    law = versions_of(whole, ("id", "shard"))
    found: dict[tuple[object, ...], dict[int, object]] = {}
    for table in ours.tables:
        for row in table.rows.to_pylist():
            found.setdefault((row["key"]["id"], row["key"]["shard"]), {})[row["commit_ts"]] = row["row"]
    assert found == {
        key: {at: row and dict(row) for at, row in rows.items()} for key, rows in law.rows.items()
    }
    assert (ours.superseded, ours.halves) == (law.superseded, law.halves)


@given(streams())
def test_a_key_has_one_hash_whoever_wrote_it(events: list[ChangeEvent]) -> None:
    narrow = [one._replace(schema=SCHEMAS[0]) for one in events if one.schema is not SCHEMAS[2]]
    wide = [one._replace(schema=SCHEMAS[1]) for one in narrow]
    hashes = [key_hashes(reduce_tables(tables_of(one), ("id", "shard")).tables) for one in (narrow, wide)]
    assert sorted(hashes[0].tolist()) == sorted(hashes[1].tolist())
    assert len(set(hashes[0].tolist())) == len(hashes[0])


def _written(offset: int, schema: TableSchema, row: Row, **more: Any) -> ChangeEvent:
    position = Position("t", 0, offset, 0, (1,))
    return ChangeEvent(Op.UPSERT, TABLE, None, None, row, 1, position, schema)._replace(**more)


def test_an_event_that_lacks_a_key_value_names_its_record() -> None:
    events = [
        _written(0, SCHEMAS[0], {"id": 1, "shard": "x", "a": 1}),
        _written(1, SCHEMAS[0], {"id": None, "shard": "x", "a": 1}),
    ]
    reduction = reduce_tables(tables_of(events), ("id", "shard"))
    assert (reduction.unnamed, reduction.events) == ((1,), 1)


def test_what_empties_the_table_is_no_row_event() -> None:
    truncate = _written(3, SCHEMAS[0], {}, op=Op.TRUNCATE, after=None)
    reduction = reduce_tables(tables_of([truncate]), ("id", "shard"))
    assert (reduction.truncates, reduction.events, reduction.tables) == ((3,), 0, ())


def test_keys_that_do_not_compare_are_refused() -> None:
    text = replace(
        SCHEMAS[0], columns=(Column("id", ColumnType("varchar"), handle=True), *SCHEMAS[0].columns[1:])
    )
    events = [
        _written(0, SCHEMAS[0], {"id": 1, "shard": "x", "a": 1}),
        _written(1, text, {"id": "1", "shard": "x", "a": 1}),
    ]
    with pytest.raises(SchemaMismatchError, match=r"Key column id has types .* int32, string"):
        reduce_tables(tables_of(events), ("id", "shard"))


def test_an_event_without_a_position_of_its_source_is_refused() -> None:
    event = _written(0, SCHEMAS[0], {"id": 1, "shard": "x"}, position=Position("t", 0, 0))
    with pytest.raises(ValueError, match="no source position"):
        reduce_tables(tables_of([event]), ("id", "shard"), order="source")


def test_nothing_reduces_to_nothing() -> None:
    assert reduce_tables((), ("id",)) == Reduction((), 0, 0, 0, 0)


@pytest.mark.parametrize(("one", "other"), [(0.0, -0.0), (math.nan, -math.nan), (math.nan, OTHER_NAN)])
@pytest.mark.parametrize("kind", ["float", "double"])
def test_equal_floats_are_one_key_in_reduce_replay_and_target(kind: str, one: float, other: float) -> None:
    """Postgres and MySQL take them for one key: what Kafka has last of it counts."""
    schema = TableSchema(
        TABLE, (Column("id", ColumnType(kind), handle=True), Column("a", ColumnType("bigint")))
    )
    rows = TargetRows(shape_of(schema))

    def change(op: Op, key: float, offset: int, before: Row | None = None) -> ChangeEvent:
        row = None if op is Op.DELETE else {"id": key, "a": offset}
        return ChangeEvent(op, TABLE, {"id": key}, before, row, 1, Position("t", 0, offset), schema)

    first, second = change(Op.INSERT, one, 0), change(Op.DELETE, other, 1)
    for events in ([first, second], [change(Op.INSERT, other, 0), change(Op.DELETE, one, 1)]):
        for convert in (None, rows.key_values):
            found = reduce_tables(tables_of(events), ("id",), convert=convert)
            assert (found.upserts, found.deletes) == (0, 1)
    # An update that says another sign is none of the key.
    moved = reduce_tables(tables_of([change(Op.UPDATE, other, 2, {"id": one, "a": 0})]), ("id",))
    assert (moved.upserts, moved.deletes, moved.halves) == (1, 0, 0)
    hashes = [key_hashes(reduce_tables(tables_of([event]), ("id",)).tables) for event in (first, second)]
    assert hashes[0].tolist() == hashes[1].tolist()
    (changes,) = tables_of([second])
    assert changes_of_keys(changes, hashes[0], ("id",), convert=rows.key_values).tolist() == [True]
    # A file of a lake has what another program wrote.
    stored, keys = (pa.table({"id": pa.array([value, 7.0])}) for value in (other, one))
    assert matched(stored, keys).tolist() == [0, 1]
    (changes,) = tables_of([change(Op.INSERT, other, 0)])
    after = changes.rows["after"].combine_chunks()
    written, key = (
        rows.row(changes, after).field("id"),
        rows.key(changes.rows["key"].combine_chunks()).field("id"),
    )
    assert written.cast(pa.float64()).to_numpy().tobytes() == key.cast(pa.float64()).to_numpy().tobytes()
    assert math.copysign(1, written[0].as_py()) == 1
