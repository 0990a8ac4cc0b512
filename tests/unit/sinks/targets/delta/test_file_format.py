"""Delta's statistics and deletion vectors, against the lake check's own reader."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hand_made_lake import z85_of
from tidesink.dev.lake_check import deleted_rows
from tidesink.sinks.targets.delta.file_format import (
    Statistics,
    Vectors,
    vector_path,
    vector_positions,
)
from tidesink.sinks.targets.lake.files import DataFile, FileRefusedError, MarkedRows
from tidesink.sinks.targets.lake.vectors import roaring_array

DENSE = [*range(70_000), 200_000, 1 << 33, (1 << 33) + 5]


def descriptor(folder: Path, uuid: str, vector: Mapping[str, object]) -> dict[str, object]:
    return {
        "storageType": "u",
        "pathOrInlineDv": z85_of(UUID(uuid).bytes),
        "offset": vector["offset"],
        "sizeInBytes": vector["size"],
        "cardinality": vector["rows"],
    }


def test_an_absolute_path_is_a_uri() -> None:
    """A shallow clone names its source's vectors so."""
    named = {"storageType": "p", "pathOrInlineDv": "file:/lake/x%20y.bin"}
    assert vector_path("/clone", named) == "file:/lake/x y.bin"


@pytest.mark.parametrize("positions", [[0], [65_535, 65_536], DENSE])
def test_a_vector_is_read_back(tmp_path: Path, positions: list[int]) -> None:
    """Lists and bitmaps, below and above 2^32."""
    file = DataFile("/lake/a.parquet", 10)
    marked = MarkedRows([file], np.array([0, 1 << 34]), np.array(positions))
    (line,) = Vectors(str(tmp_path)).write([marked], "0")
    details = json.loads(str(line.details))
    (vector,) = details["vectors"]
    assert (line.rows, vector["rows"], vector["file"]) == (len(positions), len(positions), file.path)
    said = descriptor(tmp_path, details["uuid"], vector)
    assert [*vector_positions(str(tmp_path), said, of="")] == positions
    assert deleted_rows(tmp_path, said) == set(positions)
    Path(str(line.path)).write_bytes(Path(str(line.path)).read_bytes()[:-1] + b"x")
    with pytest.raises(FileRefusedError, match="does not match the table's metadata"):
        vector_positions(str(tmp_path), said, of="")


@given(st.lists(st.integers(0, 300_000), unique=True, max_size=60), st.sets(st.integers(0, 300_000)))
def test_a_vector_in_the_log_is_read_back(some: list[int], others: set[int]) -> None:
    positions = np.array(sorted({*some, *others}), np.int64)
    data = roaring_array(positions)
    said = {
        "storageType": "i",
        "pathOrInlineDv": z85_of(data),
        "sizeInBytes": len(data),
        "cardinality": len(positions),
    }
    assert [*vector_positions("", said, of="")] == [*positions]


def test_runs_are_read() -> None:
    """As Delta's own vectors have them: rows 5 to 8 and 100 of the first container, 0 to 9 of the second."""
    head = struct.pack("<I", 12_347 | 1 << 16) + b"\x03" + struct.pack("<HHHH", 0, 4, 1, 9)
    runs = struct.pack("<HHHHH", 2, 5, 3, 100, 0) + struct.pack("<HHH", 1, 0, 9)
    data = struct.pack("<iqi", 1_681_511_377, 1, 0) + head + runs
    said = {
        "storageType": "i",
        "pathOrInlineDv": z85_of(data),
        "sizeInBytes": len(data),
        "cardinality": 15,
    }
    found = [*vector_positions("", said, of="")]
    assert found == [5, 6, 7, 8, 100, *range(65_536, 65_546)]


def test_what_is_hidden_stays_hidden(tmp_path: Path) -> None:
    data = roaring_array(np.array([1, 3]))
    path = tmp_path / "deletion_vector_00000000-0000-0000-0000-000000000007.bin"
    path.write_bytes(b"\x01" + struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data)))
    vector = {"offset": 1, "size": len(data), "rows": 2}
    old = descriptor(tmp_path, str(UUID(int=7)), vector)
    files = [DataFile("/a", 5), DataFile("/b", 5, (json.dumps(old),))]
    marks, starts = Vectors(str(tmp_path)), np.array([0, 5, 10])
    assert [*marks.deleted(files, starts)] == [6, 8]
    (line,) = marks.write([MarkedRows(files, starts, np.array([4, 5, 9]))], "0")
    found = {one["file"]: one["rows"] for one in json.loads(str(line.details))["vectors"]}
    assert (line.rows, found) == (3, {"/a": 1, "/b": 4})


def test_bounds_of_texts_and_numbers() -> None:
    columns = {
        "text": pa.array(["", "é" * 40, None]),
        "float": pa.array([float("nan"), float("-inf"), -0.0]),
        "bytes": pa.array([b"\xff", b"", None]),
        "none": pa.nulls(3, pa.string()),
        "left": pa.array([1, 2, 3]),
    }
    found = json.loads(Statistics(frozenset(columns) - {"left"})(pa.table(columns)))
    assert found == {
        "numRecords": 3,
        "minValues": {"text": "", "float": "-Infinity"},
        "maxValues": {"text": "é" * 32 + "\U0010ffff", "float": "NaN"},
        "nullCount": {"text": 1, "float": 0, "bytes": 1, "none": 3},
        "tightBounds": True,
    }


@given(st.text(max_size=80))
def test_a_bound_of_a_text_is_a_bound(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    found = json.loads(Statistics(frozenset({"c"}))(pa.table({"c": [text]})))
    low, high = found["minValues"]["c"], found["maxValues"].get("c")
    assert low.encode() <= text.encode()
    assert high is None or text.encode() <= high.encode()


def test_the_range_of_a_zero_has_both_zeros() -> None:
    for zeros in ([0.0], [-0.0], [0.0, -0.0]):
        said = json.loads(Statistics(frozenset({"f"}))(pa.table({"f": zeros})))
        bounds = [said[side]["f"] for side in ("minValues", "maxValues")]
        assert [str(one) for one in bounds] == ["-0.0", "0.0"]


def test_a_date_that_python_does_not_have_has_no_bound() -> None:
    days = pa.array([0, 3_000_000], pa.int32()).cast(pa.date32())
    moments = pa.array([-(10**17), 0], pa.int64()).cast(pa.timestamp("us"))
    said = json.loads(Statistics(frozenset({"day", "at"}))(pa.table({"day": days, "at": moments})))
    assert said["minValues"] == {"day": "1970-01-01"}
    assert said["maxValues"] == {"at": "1970-01-01T00:00:00.000"}
