"""How a canal-json table's records are told from others': asked at each batch, made when tables are met."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.unit.told_bed import ToldDdl
from tidesink.codecs.base import CodecOptions
from tidesink.events import TableId
from tidesink.sinks.decoding_canal_json import CanalJsonDecoding

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
