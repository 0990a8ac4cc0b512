"""The independent reader of Delta tables, on tables made by hand and on one that Spark made."""

from __future__ import annotations

import struct
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.hand_made_lake import HandMadeTable
from tidesink.dev.lake_check import deleted_rows, open_lake_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The example of Delta's own tests in the portable layout: rows 3, 4, 7, 11, 18 and 29.
INLINE = {
    "storageType": "i",
    "pathOrInlineDv": "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L",
    "sizeInBytes": 44,
    "cardinality": 6,
}


@pytest.fixture
def table(tmp_path: Path) -> HandMadeTable:
    return HandMadeTable(tmp_path / "t", {"id": "long"})


def _ids(table: HandMadeTable) -> list[Any]:
    return sorted(open_lake_table(table.path).read()["id"].to_pylist())


def test_reads_the_files_that_live(table: HandMadeTable) -> None:
    table.commit(table.schema(), table.add("a.parquet", id=pa.array([1, 2])))
    table.commit(table.add("b.parquet", id=pa.array([3])), table.remove("a.parquet"))
    table.commit(table.add("c%20d.parquet", id=pa.array([4])))
    (table.path / "c%20d.parquet").rename(table.path / "c d.parquet")  # the log escapes paths
    lake = open_lake_table(table.path)
    assert _ids(table) == [3, 4]
    assert (lake.version, lake.read().num_rows, lake.columns) == (2, 2, {"id": "long"})


def test_an_empty_table_has_its_columns(table: HandMadeTable) -> None:
    table.commit(table.schema(name="string"))
    lake = open_lake_table(table.path)
    assert lake.read().column_names == ["id", "name"]
    assert lake.read().num_rows == 0


def test_a_column_added_later_is_null_in_older_files(table: HandMadeTable) -> None:
    table.commit(table.schema(), table.add("a.parquet", id=pa.array([1])))
    table.commit(
        table.schema(note="string"), table.add("b.parquet", id=pa.array([2]), note=pa.array(["new"]))
    )
    rows = sorted(open_lake_table(table.path).read().to_pylist(), key=lambda row: row["id"])
    assert rows == [{"id": 1, "note": None}, {"id": 2, "note": "new"}]


def test_follows_column_mapping(table: HandMadeTable) -> None:
    table.commit(
        table.schema({"id": "col-1"}),
        table.add("a.parquet", **{"col-1": pa.array([5])}),
    )
    assert open_lake_table(table.path).read().to_pylist() == [{"id": 5}]


def test_decodes_an_inline_deletion_vector_that_delta_encoded() -> None:
    assert deleted_rows(Path(), INLINE) == {3, 4, 7, 11, 18, 29}
    assert deleted_rows(Path(), None) == set()


def test_leaves_out_deleted_rows(table: HandMadeTable) -> None:
    table.commit(table.schema(), table.add("a.parquet", id=pa.array(range(10))))
    table.commit(table.remove("a.parquet"), table.add("a.parquet", INLINE))
    assert _ids(table) == [0, 1, 2, 5, 6, 8, 9]


def test_a_rewritten_deletion_vector_replaces_the_one_before(table: HandMadeTable) -> None:
    table.commit(table.schema(), table.add("a.parquet", INLINE, id=pa.array(range(5))))
    table.commit(table.add("a.parquet"), table.remove("a.parquet", INLINE))
    assert _ids(table) == [0, 1, 2, 3, 4]


def _stored(path: Path, bitmaps: dict[int, bytes]) -> dict[str, Any]:
    """A deletion vector in a file of its own: version byte, then size, data and CRC."""
    data = struct.pack("<iq", 1_681_511_377, len(bitmaps))
    data += b"".join(struct.pack("<i", high) + bitmap for high, bitmap in bitmaps.items())
    path.write_bytes(b"\x01" + struct.pack(">i", len(data)) + data + b"\0\0\0\0")
    return {"storageType": "p", "pathOrInlineDv": str(path), "offset": 1, "sizeInBytes": len(data)}


def _bitmap(lows: set[int]) -> bytes:
    """One full-width bitmap container, which Roaring uses above 4,096 values."""
    words = [0] * 1024
    for low in lows:
        words[low // 64] |= 1 << low % 64
    header = struct.pack("<IIHHI", 12_346, 1, 0, len(lows) - 1, 16)
    return header + struct.pack("<1024Q", *words)


def test_reads_every_kind_of_bitmap_container(tmp_path: Path) -> None:
    many = {low for low in range(20_000) if low % 3}
    assert deleted_rows(tmp_path, _stored(tmp_path / "bits", {0: _bitmap(many)})) == many
    runs = struct.pack("<IBHHHHHHH", 12_347, 1, 0, 104, 2, 7, 3, 1_000, 100)
    spans = set(range(7, 11)) | set(range(1_000, 1_101))
    assert deleted_rows(tmp_path, _stored(tmp_path / "runs", {0: runs})) == spans
    high = {(1 << 32) + low for low in many}
    assert deleted_rows(tmp_path, _stored(tmp_path / "high", {1: _bitmap(many)})) == high


def test_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    vector = _stored(tmp_path / "dv", {0: b"\xff\xff\xff\xff" + b"\0" * 8})
    with pytest.raises(ValueError, match="unknown cookie"):
        deleted_rows(tmp_path, vector)
    (tmp_path / "dv").write_bytes(b"\x01" + struct.pack(">iiq", 12, 7, 0))
    with pytest.raises(ValueError, match="not a portable Roaring bitmap array"):
        deleted_rows(tmp_path, vector)


def test_no_table_is_no_empty_table(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_lake_table(tmp_path / "none")


_MAKE = (
    "CREATE TABLE {table} (id BIGINT, d DECIMAL(20,4), n TIMESTAMP_NTZ, b BINARY) USING delta "
    "TBLPROPERTIES ('delta.enableDeletionVectors'='true', 'delta.checkpointInterval'='3')",
    "INSERT INTO {table} SELECT /*+ COALESCE(2) */ id, cast(id as decimal(20,4)), "
    "timestamp_ntz'1000-01-01 00:00:00.000001', cast(cast(id as string) as binary) FROM range(5000)",
    "DELETE FROM {table} WHERE id % 7 = 3",
    "ALTER TABLE {table} ADD COLUMN extra STRING",
    "UPDATE {table} SET extra = 'x' WHERE id < 10",
    "MERGE INTO {table} t USING (SELECT id FROM range(4990, 5010)) s ON t.id = s.id "
    "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)",
)


def test_reads_what_spark_wrote(spark: SparkSession, tmp_path: Path) -> None:
    """Deletion vectors, added columns, a checkpoint and a merge, as Delta itself writes them."""
    path = tmp_path / "made by spark"
    for statement in _MAKE:
        spark.sql(statement.format(table=f"delta.`{path}`"))
    assert list((path / "_delta_log").glob("*.checkpoint*.parquet"))
    assert list(path.glob("deletion_vector_*.bin"))
    lake = open_lake_table(path)
    names = ["id", "d", "b", "extra"]
    frame = spark.read.format("delta").load(str(path)).select(*names)
    wanted = [(id_, d, None if b is None else bytes(b), extra) for id_, d, b, extra in frame.collect()]
    found = lake.read()
    assert {tuple(row.values()) for row in found.select(names).to_pylist()} == set(wanted)
    assert lake.read().num_rows == len(wanted)
    assert list(lake.columns.values()) == ["long", "decimal(20,4)", "timestamp_ntz", "binary", "string"]
    assert set(found["n"].to_pylist()) == {datetime(1000, 1, 1, microsecond=1), None}
