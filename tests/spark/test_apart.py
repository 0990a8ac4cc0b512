"""How a canal-json table's records are told from others': asked at each batch, made when tables are met."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.decoded_batches import as_records
from tests.unit.told_bed import ToldDdl
from tidesink.codecs.base import CodecOptions
from tidesink.codecs.canal_json.topic import SharedTopic
from tidesink.events import Message, TableId
from tidesink.sinks.schema_sources.canal_json import CanalJsonDecoding

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
T = TableId("s", "t")
RECORD = '{{"id":0,"database":"s","table":"{}","isDdl":false,"type":"INSERT","data":[{{"id":"1"}}]}}'


def _decoding(known: list[TableId]) -> CanalJsonDecoding:
    settings = SimpleNamespace(definition=None)
    tables = SimpleNamespace(known=lambda: tuple(known))
    around = SimpleNamespace(
        config=SimpleNamespace(
            table_config=lambda _table: settings, source=SimpleNamespace(codec_options=CodecOptions)
        ),
        topics=SimpleNamespace(ddl=lambda _topic: ToldDdl(), tables=lambda _topic: tables),
    )
    return CanalJsonDecoding(cast("Any", around), "cdc", T, session=cast("Any", None))


def test_it_is_made_anew_when_another_table_is_met(spark: SparkSession) -> None:
    known = [T]
    decoding = _decoding(known)
    values = [(RECORD.format(name).encode(),) for name in ("t", "u", "v")]
    frame = spark.createDataFrame(values, "value binary")

    def strangers() -> list[bool]:
        return [bool(row[0]) for row in frame.select(decoding.apart().stranger).collect()]

    assert strangers() == [False, True, True]
    assert decoding.apart() is decoding.apart()
    known.append(TableId("s", "u"))
    assert strangers() == [False, False, True]
    known.remove(T)
    known.append(TableId("s", "v"))
    assert strangers() == [False, False, False]


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


def test_tasks_tell_them_apart_as_spark_does(spark: SparkSession) -> None:
    known = [T, TableId("s", "u")]
    apart = _decoding(known).apart()
    frame = spark.createDataFrame(list(enumerate(VALUES)), "n int, value binary")
    rows = frame.select("n", apart.foreign, apart.stranger).collect()
    foreign, stranger = ([bool(row[at]) for row in sorted(rows)] for at in (1, 2))
    records = as_records(Message("cdc", 0, at, None, value) for at, value in enumerate(VALUES))
    found = SharedTopic(T, frozenset(known)).shared(records)
    assert [not own for own in found.own.tolist()] == foreign
    assert found.strangers == sum(stranger) == 5


def test_a_damaged_record_that_names_a_known_table_is_its_alone() -> None:
    records = as_records([Message("cdc", 0, 0, None, RECORD.format("u").encode()[:-1])])
    known = frozenset({T, TableId("s", "u")})
    assert [SharedTopic(one, known).shared(records).own.tolist() for one in sorted(known)] == [
        [False],
        [True],
    ]
