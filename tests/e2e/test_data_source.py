"""The Spark data source on a real broker and registry: batches and streams of typed change rows."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.replay import Servers
from tests.e2e.writing import TableWriter, schema_of
from tidesink.codecs.base import CodecOptions
from tidesink.events import Column, ColumnType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PLACE = Column("place", ColumnType("varchar", length=10, sql="varchar(10)"))
PRICE = Column("price", ColumnType("decimal", precision=10, scale=2, sql="decimal(10,2)"))
DEFINITION = "CREATE TABLE shop.{} (id BIGINT PRIMARY KEY, name VARCHAR(40))"


@pytest.fixture
def tidesink(spark: SparkSession) -> SparkSession:
    from tidesink.sinks.spark.data_source import TidesinkDataSource

    spark.dataSource.register(TidesinkDataSource)
    return spark


def _options(servers: Servers, topic: str, protocol: str = "flat-avro", **more: str) -> dict[str, str]:
    options = {"kafka.bootstrap.servers": servers["brokers"], "topic": topic, "protocol": protocol}
    if "avro" in protocol:
        options["schema-registry"] = servers["registry_url"]
    return {**options, **{name.replace("_", "-"): value for name, value in more.items()}}


def _read(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.read.format("tidesink").options(**options).load()


def _values(frame: DataFrame) -> list[tuple[Any, ...]]:
    rows = (
        frame.select("op", "partition", "offset", "key.id", "after").orderBy("partition", "offset").collect()
    )
    return [(*row[:4], row[4] and row[4].asDict()) for row in rows]


def test_a_batch_has_the_rows_of_every_writers_schema(tidesink: SparkSession, servers: Servers) -> None:
    from pyspark.sql import types as t

    old = TableWriter(servers, schema_of("orders"), partitions=2)
    old.upsert({"id": 1, "name": "first"})
    old.upsert({"id": 2, "name": "second"}, partition=1)
    new = TableWriter(servers, schema_of("orders", PRICE), topic=old.topic)
    new.upsert({"id": 3, "name": "third", "price": Decimal("12.50")}, commit_ts=7)
    new.delete({"id": 1, "name": "first", "price": None})
    frame = _read(tidesink, _options(servers, old.topic))
    types = {one.name: one.dataType for one in frame.schema.fields}
    assert types["after"] == t.StructType(
        [
            t.StructField("id", t.LongType()),
            t.StructField("name", t.StringType()),
            t.StructField("price", t.DecimalType(10, 2)),
        ]
    )
    assert types["key"] == t.StructType([t.StructField("id", t.LongType())])
    found = _values(frame)
    assert [row[:4] for row in found] == [
        ("upsert", 0, 0, 1),
        ("upsert", 0, 1, 3),
        ("delete", 0, 2, 1),
        ("upsert", 1, 0, 2),
    ]
    assert [row[4] and row[4]["name"] for row in found] == ["first", "third", None, "second"]
    assert [str(row[4]["price"]) if row[4] else None for row in found] == ["None", "12.50", None, "None"]
    offsets = json.dumps({old.topic: {"0": 1, "1": -1}})
    assert [
        row[1:3] for row in _values(_read(tidesink, _options(servers, old.topic, startingOffsets=offsets)))
    ] == [
        (0, 1),
        (0, 2),
    ]
    ends = json.dumps({old.topic: {"0": 1, "1": -2}})
    assert [
        row[1:3] for row in _values(_read(tidesink, _options(servers, old.topic, endingOffsets=ends)))
    ] == [(0, 0)]
    assert _read(tidesink, _options(servers, old.topic, startingOffsets="latest")).count() == 0


def test_a_column_that_the_schema_lacks_is_an_error_unless_ignored(
    tidesink: SparkSession, servers: Servers
) -> None:
    from pyspark.errors import PythonException

    wide = TableWriter(servers, schema_of("orders", PLACE))
    wide.upsert({"id": 1, "name": "n", "place": "here"})
    narrow = TableWriter(servers, schema_of("orders"), topic=wide.topic)
    narrow.upsert({"id": 2, "name": "m"})  # the registry's latest schema
    with pytest.raises(PythonException, match=r"columns that are missing in the schema: place"):
        _read(tidesink, _options(servers, wide.topic)).collect()
    found = _values(_read(tidesink, _options(servers, wide.topic, extra_columns="ignore")))
    assert [row[4] for row in found] == [{"id": 1, "name": "n"}, {"id": 2, "name": "m"}]


def test_debezium_avro_by_the_registrys_latest_schema(tidesink: SparkSession, servers: Servers) -> None:
    writer = TableWriter(servers, schema_of("orders"), protocol="debezium-avro")
    writer.upsert({"id": 1, "name": "n"}, commit_ts=5)
    (row,) = _read(tidesink, _options(servers, writer.topic, "debezium-avro")).collect()
    assert (row["op"], row["key"]["id"], row["after"].asDict()) == ("insert", 1, {"id": 1, "name": "n"})


def test_one_table_of_a_topic_with_several(tidesink: SparkSession, servers: Servers) -> None:
    from pyspark.errors import PythonException

    options = CodecOptions(enable_tidb_extension=True)
    orders = TableWriter(servers, schema_of("orders"), protocol="canal-json", options=options)
    others = TableWriter(
        servers, schema_of("others"), protocol="canal-json", options=options, topic=orders.topic
    )
    orders.upsert({"id": 1, "name": "order"}, commit_ts=3)
    others.upsert({"id": 1, "name": "other"}, commit_ts=4)
    given = _options(servers, orders.topic, "canal-json", enable_tidb_extension="true")
    found = _read(tidesink, {**given, "table": "shop.others", "definition": DEFINITION.format("others")})
    assert [(row["commit_ts"], row["after"].asDict()) for row in found.collect()] == [
        (4, {"id": 1, "name": "other"})
    ]
    # Without a definition the first records of the table say its columns.
    (row,) = _read(tidesink, {**given, "table": "shop.others"}).collect()
    assert row["after"].asDict() == {"id": 1, "name": "other"}
    with pytest.raises(PythonException, match=r"has tables shop.orders and shop.others"):
        _read(tidesink, given).collect()


def test_a_bad_record_is_an_error_that_names_its_place(tidesink: SparkSession, servers: Servers) -> None:
    from pyspark.errors import PythonException

    writer = TableWriter(servers, schema_of("orders"))
    writer.upsert({"id": 1, "name": "n"})
    writer.send(b"no key", b"no value")
    with pytest.raises(PythonException) as caught:
        _read(tidesink, _options(servers, writer.topic)).collect()
    assert f"{writer.topic}[0]@1: The key starts with" in str(caught.value)


def test_a_stream_reads_on_where_it_was(tidesink: SparkSession, servers: Servers, tmp_path: Path) -> None:
    writer = TableWriter(servers, schema_of("orders"), partitions=2)
    writer.upsert({"id": 1, "name": "one"})
    options = _options(servers, writer.topic, startingOffsets="earliest")
    seen: list[list[int]] = []

    def write(frame: DataFrame, _number: int) -> None:
        seen.append(sorted(row["key"]["id"] for row in frame.collect()))

    def run(*more: dict[str, Any]) -> None:
        frame = tidesink.readStream.format("tidesink").options(**options).load()
        query = frame.writeStream.option("checkpointLocation", str(tmp_path)).foreachBatch(write).start()
        try:
            query.processAllAvailable()
            for number, row in enumerate(more):
                writer.upsert(row, partition=number % 2)
            query.processAllAvailable()
        finally:
            query.stop()

    run({"id": 2, "name": "two"}, {"id": 3, "name": "three"})
    assert sorted(number for batch in seen for number in batch) == [1, 2, 3]
    seen.clear()
    writer.upsert({"id": 4, "name": "four"}, partition=1)
    run()
    assert [one for one in seen if one] == [[4]]


def test_wrong_options_are_refused_by_name(tidesink: SparkSession, servers: Servers) -> None:
    with pytest.raises(Exception, match="The data source has no option subscribe"):
        _read(tidesink, {**_options(servers, "any"), "subscribe": "any"}).count()
