"""Which table a canal-json record names, by its first bytes or as a whole; and what is asked of a topic."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from tests.decoded_batches import as_records
from tidesink.codecs import open_codec
from tidesink.codecs.base import CodecOptions
from tidesink.codecs.canal_json.scan import (
    TableNames,
    census,
    marked_ddl,
    row_forms,
)
from tidesink.codecs.compression import Compression, compressed
from tidesink.events import Message, Position, TableId, WatermarkEvent

T, U, X = (TableId("s", name) for name in "tux")
RECORD = '{{"id":0,"database":"s","table":"{}","isDdl":false,"type":"INSERT","data":[{{"id":"1"}}]}}'
START = '{"id":0,"database":"s","table":'
VALUES = (
    None,
    b"",
    b"{",
    *(RECORD.format(name).encode() for name in ("t", "u", "x", "T", "")),
    RECORD.format("t").replace('"id":0,', "").encode(),
    RECORD.format("u").replace('"id":0,', '"id": 0, ').encode(),
    RECORD.format("x").replace('"id":0,', "").encode(),
    f'{START}"u","isDdl":true,"type":"QUERY","sql":"create table u (a int)"}}'.encode(),
    f'{START}"x","isDdl":true,"type":"QUERY","sql":"create table x (a int)"}}'.encode(),
    f'{START}"","isDdl":true,"type":"QUERY","sql":"drop database s"}}'.encode(),
    b'{"id":0,"database":"","table":"","isDdl":false,"type":"TIDB_WATERMARK","_tidb":{"watermarkTs":1}}',
    # Several objects in a value; names with escapes, and a long one.
    RECORD.format("u").encode() + b"\n" + RECORD.format("t").encode(),
    RECORD.format("x").encode()[:-1],
    RECORD.format("\\u0074").encode(),
    RECORD.format('a\\"b').encode(),
    RECORD.format("é" * 64).encode(),
)


# By value: the table that it names, None for none.
NAMED = (None, None, None, "t", "u", "x", "T", None, "t", "u", "x", "u", "x", None, None, "u", None, "t")
# Those whose row somebody has to take.
STRANGERS = (5, 6, 10, 18, 19)
DDL_EVENTS = (11, 12, 13)


def test_records_are_told_apart() -> None:
    records = as_records(Message("cdc", 0, at, None, value) for at, value in enumerate(VALUES))
    found = TableNames(frozenset({T, U})).of(records)
    named = [None if code < 0 else found.tables[code].name for code in found.codes.tolist()]
    assert [name and name.lower() for name in named[: len(NAMED)]] == [
        name and name.lower() for name in NAMED
    ]
    assert named[len(NAMED) :] == ['a"b', "é" * 64]
    assert tuple(at for at, one in enumerate(found.unlisted.tolist()) if one) == STRANGERS
    assert tuple(np.flatnonzero(found.ddl).tolist()) == DDL_EVENTS
    assert not found.watermarks.any()
    assert found.own(T).tolist() == [name in (None, "t") for name in named]


@pytest.mark.parametrize("name", ["t", "t" * 60], ids=["short", "longer than what is looked at"])
@pytest.mark.parametrize("keys", ['["isDdl"]', "null"])
def test_ddl_is_told_from_rows_of_the_same_table(name: str, keys: str) -> None:
    """With the text of one in it, with and without a key."""
    start = f'{{"id":0,"database":"s","table":"{name}","pkNames":'
    text = '\\"isDdl\\":true'
    row = f'{start}{keys},"isDdl":false,"type":"INSERT","es":1,"ts":1,"data":[{{"id":"{text}"}}]}}'
    ddl = f'{start}null,"isDdl":true,"type":"QUERY","es":1,"ts":1,"sql":"truncate {name}"}}'
    values = (row.encode(), None, ddl.encode(), row.encode())
    records = as_records(Message("cdc", 0, at, None, value) for at, value in enumerate(values))
    found = TableNames(frozenset({TableId("s", name)})).of(records)
    assert found.ddl.tolist() == [False, False, True, False]
    assert found.codes.tolist() == [0, -1, 0, 0]


def test_watermarks_are_known_by_the_form_that_ticdc_writes() -> None:
    """Any other is the codec's to judge: it may be a bad record."""
    codec = open_codec("canal-json", options=CodecOptions(enable_tidb_extension=True))
    written = codec.encode(WatermarkEvent(470609003012161536, Position("cdc", 0, 0)), topic="cdc")
    assert written is not None
    whole = written.value
    assert whole is not None
    others = (
        whole + b"\n" + whole,
        whole[:-1],
        whole.replace(b"470609003012161536", b"-1"),
        whole.replace(b"470609003012161536", b"9" * 19),
        whole.replace(b'"_tidb":{"watermarkTs":470609003012161536}', b'"_tidb":{}'),
    )
    values = (whole, compressed(whole, "lz4"), *others)
    records = as_records(Message("cdc", 0, at, None, value) for at, value in enumerate(values))
    found = TableNames(frozenset({T}), 1 << 20).of(records)
    assert found.codes.tolist() == [-1] * len(values)
    assert found.watermarks.tolist() == [True, True, *[False] * len(others)]


def test_a_damaged_record_that_names_a_known_table_is_its_alone() -> None:
    records = as_records([Message("cdc", 0, 0, None, RECORD.format("u").encode()[:-1])])
    known = frozenset({T, TableId("s", "u")})
    assert [TableNames(known).of(records).own(one).tolist() for one in sorted(known)] == [
        [False],
        [True],
    ]


def test_every_table_with_a_row_is_counted_once_however_it_is_named() -> None:
    records = [as_records([Message("cdc", 0, at, None, value)]) for at, value in enumerate(VALUES)]
    found = census(iter(records))
    assert {table.name for table in found.tables} == {"t", "u", "x", "T", 'a"b', "é" * 64}
    assert found.compression == "none"


@pytest.mark.parametrize("kind", ["lz4", "snappy"])
def test_compressed_values_are_seen(kind: Compression) -> None:
    value = compressed(RECORD.format("t").replace('"1"', f'"{"x" * 300}"').encode(), kind)
    found = census(iter([as_records([Message("cdc", 0, 0, None, value)])]))
    assert (found.tables, found.compression) == (frozenset(), kind)


def _in_threes() -> Iterator[pa.RecordBatch]:
    times = {12: 5}
    records = as_records(
        Message("cdc", 0, 50 + at, None, value, times.get(at)) for at, value in enumerate(VALUES)
    )
    return (records.slice(at, 3) for at in range(0, len(records), 3))


def test_values_that_may_be_ddl_come_in_their_order() -> None:
    assert marked_ddl(1 << 20, _in_threes()) == (list(VALUES[11:14]), [61, 62, 63], [None, 5, None], None)


def test_of_values_that_may_be_ddl_no_more_come_than_are_asked_for() -> None:
    """The rest begins with the batch after the one that has the first too many."""
    one = len(VALUES[11] or b"")
    assert marked_ddl(one, _in_threes()) == (list(VALUES[11:12]), [61], [None], 62)
    assert marked_ddl(one + 1, _in_threes()) == (list(VALUES[11:14]), [61, 62, 63], [None, 5, None], 65)


def _row(table: str, *names: str, types: str = "int") -> bytes:
    data = ",".join(f'"{name}":"1"' for name in names)
    words = ",".join(f'"{name}":"{types}"' for name in names)
    return (
        f'{{"id":0,"database":"s","table":"{table}","pkNames":["{names[0]}"],"isDdl":false,"type":"INSERT",'
        f'"mysqlType":{{{words}}},"data":[{{{data}}}]}}'
    ).encode()


def test_the_newest_row_of_each_form_says_its_words() -> None:
    values = (
        _row("t", "a", "b"),
        _row("u", "c"),
        _row("t", "a", "b", types="text"),
        _row("t", "b", "a"),
        b'{"id":0,"database":"s","table":"t","isDdl":true,"sql":"x","data":null}',
        None,
        b"no JSON",
    )
    records = as_records(Message("cdc", 0, at, None, value) for at, value in enumerate(values))
    found = row_forms(T, iter([records.slice(0, 2), records.slice(2)]))
    assert [(one.names, one.types, one.keys, one.offset) for one in found] == [
        (("a", "b"), {"a": "text", "b": "text"}, ["a"], 2),
        (("b", "a"), {"b": "int", "a": "int"}, ["b"], 3),
    ]
