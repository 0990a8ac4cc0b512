"""A task over a canal-json topic with several tables: its own records, and those that nobody takes."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pyarrow as pa
import pytest

from tests.decoded_batches import as_records
from tests.unit.codecs.canal_json.messages import row_bytes
from tidesink.codecs.canal_json.scan import TableNames
from tidesink.codecs.compression import compressed
from tidesink.ddl.catalog import parse_create_table
from tidesink.events import Message, TableId
from tidesink.sinks.batch.tasks import RangeTask
from tidesink.sinks.decode.canal_json import CanalJsonDecoder, canal_json_plan
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.spark.payloads import unpack

SCHEMA = parse_create_table("CREATE TABLE s.t (id INT PRIMARY KEY, v VARCHAR(9))")
WANTED = FetchRange("cdc", 0, 0, 100)
WATERMARK = (
    b'{"id":0,"database":"","table":"","pkNames":null,"isDdl":false,"type":"TIDB_WATERMARK","es":1,"ts":1,'
    b'"sql":"","sqlType":null,"mysqlType":null,"data":null,"old":null,"_tidb":{"watermarkTs":7}}'
)


def _ddl(table: str) -> bytes:
    return (
        f'{{"id":0,"database":"s","table":"{table}","pkNames":null,"isDdl":true,"type":"ALTER","es":1,"ts":1,'
        f'"sql":"ALTER TABLE {table} ADD w INT","sqlType":null,"mysqlType":null,"data":null,"old":null}}'
    ).encode()


def _packed(*values: bytes, opens_up_to: int | None = None) -> pa.Table:
    plan = canal_json_plan(SCHEMA)
    assert isinstance(plan.decoder, CanalJsonDecoder)
    topic = TableNames(frozenset({TableId("s", "t"), TableId("s", "u")}), opens_up_to)
    plan = replace(plan, decoder=replace(plan.decoder, topic=topic))
    # As it travels to the tasks.
    task: RangeTask = pickle.loads(pickle.dumps(RangeTask((WANTED,), plan)))  # noqa: S301
    records = as_records(Message("cdc", 0, at, None, value) for at, value in enumerate(values))
    return pa.Table.from_batches(task.packed(WANTED, [records.slice(0, 3), records.slice(3)]))


def test_only_what_is_its_own_is_counted_and_strangers_are_told() -> None:
    packed = _packed(
        row_bytes({"id": "1", "v": "a"}),
        row_bytes({"id": "1", "v": "b"}, table="u"),
        _ddl("u"),
        row_bytes({"id": "1", "v": "c"}, table="x"),
        _ddl("x"),
        WATERMARK,
        _ddl("t"),
        row_bytes({"id": "1", "v": "d"}),
        b"no JSON",
    )
    totals = {name: sum(packed[name].to_pylist()) for name in ("records", "unlisted", "ddl")}
    assert totals == {"records": 5, "unlisted": 1, "ddl": 3}
    rows = pa.Table.from_batches(unpack(packed.select(["payload", "error"]).to_batches())).to_pylist()
    assert [(row["_op"], row["after"]) for row in rows[:1]] == [("upsert", {"id": 1, "v": "d"})]
    assert [row["_op"] for row in rows[1:]] == ["bad"]
    (summary,) = (pickle.loads(one) for one in packed["summary"].to_pylist() if one)  # noqa: S301
    counted = summary.counts
    assert [ddl.offset for ddl in summary.ddl] == [6]
    counts = (counted.messages, counted.superseded, counted.bad, counted.ddl, counted.watermarks)
    assert counts == (5, 1, 1, 1, 1)


@pytest.mark.parametrize(("opens_up_to", "rows"), [(1 << 20, 1), (None, 2)])
def test_compressed_records_are_looked_into_where_there_may_be_some(
    opens_up_to: int | None, rows: int
) -> None:
    values = (compressed(row_bytes({"id": "1", "v": "a"}, table=name), "lz4") for name in ("t", "u"))
    packed = _packed(*values, opens_up_to=opens_up_to)
    # Otherwise nothing tells whose they are: they are bad records that say what to set.
    assert sum(packed["records"].to_pylist()) == rows
