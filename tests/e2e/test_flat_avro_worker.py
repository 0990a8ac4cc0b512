"""A worker on what flat-avro has besides rows: delete markers, tables without a key, wrong checksums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.e2e.replay import Servers, by_name
from tests.e2e.writing import ID, NAME, TableWriter, lake_rows, schema_of, shop_config
from tidesink.codecs.options import FlatAvroOptions
from tidesink.codecs.row_checksum import RowSums
from tidesink.config import load_config
from tidesink.events import Op, Row, TableId, TableSchema
from tidesink.sinks.runtime.observers import RunReport
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MARKING = FlatAvroOptions(producer="new", enable_tidb_extension=True, avro_enable_watermark=True)
SUMMING = FlatAvroOptions(enable_tidb_extension=True, row_checksum=True)
WRONG: Row = {"id": 2, "name": "two"}


def _write(servers: Servers) -> None:
    marked = TableWriter(servers, schema_of("marked"), options=MARKING)
    for key in (1, 2, 3):
        marked.upsert({"id": key, "name": "x"})
    record = marked.encoded(Op.DELETE, {"id": 2, "name": "x"}, commit_ts=77)
    assert record.value == b"\x03" + (77).to_bytes(8, "big")
    marked.send(*record)
    marked.delete({"id": 3, "name": "x"})
    marked.upsert({"id": 3, "name": "again"})
    _write_forced(servers)
    _write_summed(servers)


def _write_forced(servers: Servers) -> None:
    """A table replicated by force: it has no key, and the last record deletes nobody knows what."""
    bare = replace(ID, handle=False, primary_key=False)
    forced = TableWriter(servers, TableSchema(TableId("shop", "forced"), (bare, NAME)))
    for key, name in ((1, "one"), (2, "two"), (1, "uno")):
        assert forced.upsert({"id": key, "name": name}).key is None
    forced.send(None, None)


def _write_summed(servers: Servers) -> None:
    """Three rows; on its way the second one's checksum was changed."""
    schema = schema_of("summed")
    summed = TableWriter(servers, schema, options=SUMMING)
    summed.upsert({"id": 1, "name": "one"})
    record = summed.encoded(Op.INSERT, WRONG)
    said = str(RowSums(schema.columns, "UTC").sum(WRONG)).encode()
    assert record.value is not None
    assert said in record.value
    summed.send(record.key, record.value.replace(said, said[::-1]))
    summed.upsert({"id": 3, "name": "three"})


def _run(folder: Path, servers: Servers, checksum: str, defaults: Mapping[str, Any]) -> RunReport:
    plain = shop_config(folder, servers)
    source = load_config(plain).source
    more = {
        "source": {
            "brokers": servers["brokers"],
            "protocol": source.protocol,
            "topics": list(source.topics),
            "schema-registry": servers["registry_url"],
            "enable-tidb-extension": True,
            "checksum": checksum,
        },
        "defaults": defaults,
        "tables": [{"name": "shop.forced", "keys": ["id"]}],
    }
    return run(load_config(shop_config(folder, servers, more)), until="drained")


def test_markers_delete_and_wrong_checksums_stop_or_are_told(
    spark: SparkSession, tmp_path: Path, servers: Servers
) -> None:
    _write(servers)
    tables = by_name(_run(tmp_path, servers, "reject", {}))
    assert {key: row["name"] for key, row in lake_rows(tmp_path, "marked").items()} == {1: "x", 3: "again"}
    assert tables["summed"].state == "PAUSED"
    assert str(tables["summed"].error).startswith(f"ChecksumError: {tables['summed'].topic}[0]@1: ")
    assert lake_rows(tmp_path, "summed").keys() == {1}
    assert str(tables["forced"].error).startswith(f"UnnamedRowError: {tables['forced'].topic}[0]@3: ")
    assert {k: row["name"] for k, row in lake_rows(tmp_path, "forced").items()} == {1: "uno", 2: "two"}
    assert any("no row is checked" in text for text in tables["marked"].warnings)
    after = by_name(_run(tmp_path, servers, "warn", {"bad-record": "dead-letter"}))
    assert {k: row["name"] for k, row in lake_rows(tmp_path, "summed").items()} == {
        1: "one",
        2: "two",
        3: "three",
    }
    assert any("checksums do not match" in text for text in after["summed"].warnings)
    assert after["forced"].counters["dead_lettered"] == 1
