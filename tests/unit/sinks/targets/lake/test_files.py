"""Rows as files of a lake, and the positions of keys: against loops over Python values, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from datetime import date, datetime, timezone
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.columns import ID
from tidesink.errors import AccountingError, TargetError
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.sinks.decode.target_rows import key_type, row_type
from tidesink.sinks.targets.iceberg.deletes import POSITIONS, PositionFiles, Vector, VectorFiles
from tidesink.sinks.targets.iceberg.partitions import PartitionField, SplitBySpec
from tidesink.sinks.targets.lake.batches import groups_of
from tidesink.sinks.targets.lake.files import (
    ATTEMPT,
    FILE_DDL,
    DataFile,
    FileRefusedError,
    LocateTask,
    NewFiles,
    RowsTask,
    SmallBatchTask,
    WrittenFile,
    found_keys,
    joined_keys,
    stream_of,
)
from tidesink.sinks.targets.lake.rows import (
    NEEDS_STORED,
    FileColumn,
    NotAsFilesError,
    Partition,
    RowRules,
    matched,
)
from tidesink.sinks.targets.lake.storage import is_local, local_path
from tidesink.typemap.target_schema import shape_of

NAME = Column("name", ColumnType("varchar", length=20))
SHAPE = shape_of(TableSchema(TableId("shop", "orders"), (ID, NAME)))
COLUMNS = (
    FileColumn("id", "id", pa.int64(), 1, True, True),
    FileColumn("name", "name", pa.string(), 2, False, False),
)
Row = tuple[str, int, str | None]


def payloads(*rows: Row) -> Iterator[pa.RecordBatch]:
    schema = pa.schema([("_op", pa.string()), ("key", key_type(SHAPE)), ("after", row_type(SHAPE))])
    values = [
        {"_op": op, "key": {"id": number}, "after": {"id": number, "name": name} if op == "upsert" else None}
        for op, number, name in rows
    ]
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, schema) as writer:
        writer.write_table(pa.Table.from_pylist(values, schema))
    columns = [pa.array([out.getvalue().to_pybytes(), None], pa.binary()), pa.nulls(2, pa.binary())]
    yield pa.RecordBatch.from_arrays(columns, names=["payload", "error"])


def new_files(folder: Path) -> NewFiles:
    return NewFiles(f"file:{folder}/data/batch-{ATTEMPT}.parquet", "zstd")


def lines_of(batches: Iterator[pa.RecordBatch]) -> list[WrittenFile]:
    return [WrittenFile(**line) for batch in batches for line in batch.to_pylist()]


def written(folder: Path, *rows: Row) -> DataFile:
    (line,) = lines_of(RowsTask(COLUMNS, new_files(folder), RowRules())(payloads(*rows)))
    assert line.path is not None
    return DataFile(line.path, line.rows)


def located(
    folder: Path, files: Sequence[DataFile], keys: Sequence[int], *, at_once: int = 1000
) -> tuple[list[Any], list[int]]:
    """The positions as (path, position), and the keys that were found."""
    table = pa.table({"id": pa.array(keys, pa.int64())})
    task = LocateTask((tuple(files),), stream_of(table), COLUMNS, PositionFiles(new_files(folder)), at_once)
    (line,) = lines_of(task(iter([pa.RecordBatch.from_pydict({"id": [0]})])))
    flags = np.unpackbits(np.frombuffer(line.found or b"", np.uint8), count=len(keys))
    found = [key for key, flag in zip(keys, flags, strict=True) if flag]
    if line.path is None:
        return [], found
    rows = pq.read_table(local_path(line.path))
    assert line.rows == rows.num_rows
    return [tuple(row.values()) for row in rows.to_pylist()], found


def test_rows_become_a_file_with_field_ids_and_deletes_become_keys(tmp_path: Path) -> None:
    task = RowsTask(COLUMNS, new_files(tmp_path), RowRules())
    (line,) = lines_of(task(payloads(("upsert", 1, "a"), ("delete", 2, None), ("upsert", 3, None))))
    assert line.path is not None
    assert (line.rows, local_path(line.path).stat().st_size) == (2, line.size)
    table = pq.read_table(local_path(line.path))
    assert table.to_pylist() == [{"id": 1, "name": "a"}, {"id": 3, "name": None}]
    assert [field.metadata[b"PARQUET:field_id"] for field in table.schema] == [b"1", b"2"]
    assert [field.nullable for field in table.schema] == [False, True]
    assert joined_keys([line])["id"].to_pylist() == [1, 3, 2]


def test_rows_of_partitions_are_files_of_their_own(tmp_path: Path) -> None:
    split = SplitBySpec((PartitionField(1000, "name", "name", "identity"),))
    task = RowsTask(COLUMNS, new_files(tmp_path), RowRules(), split)
    lines = lines_of(task(payloads(("upsert", 1, "a"), ("delete", 2, None), ("upsert", 3, "b"))))
    assert [line.partition for line in lines] == ['{"1000": "a"}', '{"1000": "b"}']
    for line, folder, number in zip(lines, ("name=a", "name=b"), (1, 3), strict=True):
        file = local_path(str(line.path))
        assert file.parent == tmp_path / "data" / folder
        assert pq.ParquetFile(file).read()["id"].to_pylist() == [number]
    assert joined_keys(lines)["id"].to_pylist() == [1, 3, 2]


def test_rows_of_very_many_partitions_are_left_to_spark(tmp_path: Path) -> None:
    split = SplitBySpec((PartitionField(1000, "id", "id", "identity"),))
    task = RowsTask(COLUMNS, new_files(tmp_path), RowRules(), split)
    with pytest.raises(NotAsFilesError, match="more than 1,000 partitions"):
        lines_of(task(payloads(*(("upsert", at, "a") for at in range(1_001)))))
    assert not [*tmp_path.iterdir()]


def test_positions_are_of_one_partition(tmp_path: Path) -> None:
    parts = [Partition("p=1", "one"), Partition("p=2", "two")]
    files = [written(tmp_path / str(n), ("upsert", n, "x")) for n in range(4)]
    files = [file._replace(partition=parts[at % 2]) for at, file in enumerate(files)]
    table = pa.table({"id": pa.array([0, 1, 2], pa.int64())})
    marks = PositionFiles(new_files(tmp_path / "new"))
    keys = WrittenFile(upserts=stream_of(table))
    lines = [*LocateTask((tuple(files),), b"", COLUMNS, marks).located(0, table)]
    assert [(line.partition, line.rows) for line in lines] == [("one", 2), ("two", 1)]
    assert found_keys([keys, *lines]).found.tolist() == [True] * 3
    assert [local_path(str(line.path)).parent.name for line in lines] == ["p=1", "p=2"]


@pytest.mark.parametrize("rules", [RowRules(), RowRules(soft=True)])
def test_what_is_no_row_is_passed_over(tmp_path: Path, rules: RowRules) -> None:
    """Bad records and DDL events are in the payloads as well, without a key."""
    schema = pa.schema([("_op", pa.string()), ("key", key_type(SHAPE)), ("after", row_type(SHAPE))])
    values = [{"_op": "bad"}, {"_op": "upsert", "key": {"id": 1}, "after": {"id": 1, "name": "a"}}]
    rows = pa.Table.from_pylist(values, schema).to_batches()
    (line,) = RowsTask(COLUMNS, new_files(tmp_path), rules, packed=False).written(rows)
    assert (line.rows, joined_keys([line])["id"].to_pylist()) == (1, [1])


def test_a_folder_may_be_named_as_the_mark_of_an_attempt(tmp_path: Path) -> None:
    place = f"{tmp_path}/LOGIN_{ATTEMPT}S"
    file = NewFiles(f"{place}/a-{ATTEMPT}.parquet", "zstd").write(pa.table({"a": [1]}), "rows-0", Partition())
    assert file.path == f"{place}/a-0-0-rows-0.parquet"


def test_a_value_that_may_be_the_partitions_is_not_taken_for_null(tmp_path: Path) -> None:
    """A file that another program took over need not have the column that its partition is by."""
    path = tmp_path / "theirs.parquet"
    pq.write_table(pa.table([pa.array([1], pa.int64())], schema=pa.schema([COLUMNS[0].field])), path)
    wanted = pa.table({"id": pa.array([1], pa.int64()), NEEDS_STORED: [True]})
    for spec in (1, 0):
        file = DataFile(str(path), 1, (), Partition("name=a", f'[{spec}, {{"1000": "a"}}]'))
        marks = PositionFiles(new_files(tmp_path), frozenset({(1, 2)}))
        task = LocateTask(((file,),), b"", COLUMNS, marks, stored=(COLUMNS[1],))
        if spec == 1:
            with pytest.raises(FileRefusedError, match="has no column name"):
                [*task.located(0, wanted)]
        else:  # the column came later
            assert [line.rows for line in task.located(0, wanted)] == [1]


def test_deletes_alone_write_no_file(tmp_path: Path) -> None:
    (line,) = lines_of(RowsTask(COLUMNS, new_files(tmp_path), RowRules())(payloads(("delete", 2, None))))
    assert (line.path, line.rows, joined_keys([line])["id"].to_pylist()) == (None, 0, [2])
    assert not [*tmp_path.iterdir()]


def test_a_row_without_a_key_is_refused(tmp_path: Path) -> None:
    named = replace_required(COLUMNS, "name")
    with pytest.raises(TargetError, match="no value in the column name"):
        lines_of(RowsTask(named, new_files(tmp_path), RowRules())(payloads(("upsert", 1, None))))


def replace_required(columns: Sequence[FileColumn], name: str) -> tuple[FileColumn, ...]:
    return tuple(one._replace(required=one.required or one.name == name) for one in columns)


def test_positions_are_in_the_order_that_iceberg_asks_for(tmp_path: Path) -> None:
    two = [written(tmp_path / str(n), *(("upsert", n * 10 + at, "x") for at in range(5))) for n in (2, 1)]
    rows, found = located(tmp_path, two, [13, 21, 99, 10, 24])
    assert rows == [(two[1].path, 0), (two[1].path, 3), (two[0].path, 1), (two[0].path, 4)]
    assert found == [13, 21, 10, 24]
    (file,) = [one for one in (tmp_path / "data").iterdir() if "positions" in one.name]
    assert pq.read_schema(file).equals(POSITIONS, check_metadata=True)


@pytest.mark.parametrize("at_once", [1, 7, 12])
def test_keys_are_found_whatever_a_task_reads_at_once(tmp_path: Path, at_once: int) -> None:
    files = [written(tmp_path / str(n), *(("upsert", n * 10 + at, "x") for at in range(5))) for n in range(5)]
    deletes = str(tmp_path / "deletes.parquet")
    gone = pa.table({"file_path": [files[3].path, files[1].path], "pos": pa.array([2, 1], pa.int64())})
    pq.write_table(gone, deletes)
    files = [file._replace(deletes=(deletes,)) for file in files]
    rows, found = located(tmp_path, files, [44, 11, 12, 32, 33, 5], at_once=at_once)
    assert rows == [(files[1].path, 2), (files[3].path, 3), (files[4].path, 4)]
    assert found == [44, 12, 33]


def test_a_file_has_one_row_group(tmp_path: Path) -> None:
    """Of several, one with a long text has no range, and Iceberg would take the others' for the file's."""
    rows = pa.table({"text": pa.array(["x" * 5000] + ["a"] * (1 << 20))})
    file = new_files(tmp_path).write(rows, "rows", Partition())
    assert pq.ParquetFile(local_path(str(file.path))).metadata.num_row_groups == 1


def test_rows_that_are_deleted_already_are_not_found(tmp_path: Path) -> None:
    file = written(tmp_path, *(("upsert", at, "x") for at in range(6)))
    other = tmp_path / "deletes.parquet"
    names = [file.path, "file:/another.parquet", file.path]
    pq.write_table(pa.table({"file_path": names, "pos": pa.array([1, 2, 4], pa.int64())}), other)
    rows, found = located(tmp_path, [file._replace(deletes=(str(other),))], [1, 2, 4, 5])
    assert (rows, found) == ([(file.path, 2), (file.path, 5)], [2, 5])
    assert located(tmp_path, [file._replace(deletes=(str(other),))], [1, 4]) == ([], [])


def test_positions_that_are_older_than_a_file_are_not_of_it(tmp_path: Path) -> None:
    """A file that was taken into the table again: its rows are there, whatever was deleted before."""
    two = [written(tmp_path / str(n), *(("upsert", n * 10 + at, "x") for at in range(3))) for n in (1, 2)]
    deletes = str(tmp_path / "deletes.parquet")
    pq.write_table(
        pa.table({"file_path": [file.path for file in two], "pos": pa.array([1, 1], pa.int64())}), deletes
    )
    assert located(tmp_path, [two[0]._replace(deletes=(deletes,)), two[1]], [11, 21])[1] == [21]


@pytest.mark.parametrize("at_once", [1, 1000])
def test_vectors_have_what_was_deleted_before(tmp_path: Path, at_once: int) -> None:
    """By vectors, and by files of positions that the table has from format 2."""
    files = [written(tmp_path / str(n), *(("upsert", 10 * n + at, "x") for at in range(4))) for n in range(3)]
    old = str(tmp_path / "old.parquet")
    names = [file.path for file in files[:2]]
    pq.write_table(pa.table({"file_path": names, "pos": pa.array([1, 2], pa.int64())}), old)
    files[:2] = [file._replace(deletes=(old,)) for file in files[:2]]
    hidden: list[list[int]] = [[1], [2], []]
    for number, keys in enumerate(([0, 1, 22], [0, 3, 12, 20])):
        marks = VectorFiles(new_files(tmp_path / f"new{number}"))
        table = stream_of(pa.table({"id": pa.array(keys, pa.int64())}))
        task = LocateTask((tuple(files),), table, COLUMNS, marks, at_once)
        (line,) = lines_of(task(iter([pa.RecordBatch.from_pydict({"id": [0]})])))
        new = [key for key in keys if key % 10 not in hidden[key // 10]]
        assert line.path is not None
        assert (line.rows, line.size) == (len(new), local_path(line.path).stat().st_size)
        for key in new:
            hidden[key // 10].append(key % 10)
        for vector in json.loads(str(line.details)):
            at = [file.path for file in files].index(vector["file"])
            assert vector["rows"] == len(hidden[at])
            place = Vector(line.path, vector["offset"], vector["length"], vector["rows"])
            files[at] = files[at]._replace(deletes=(json.dumps(place),))
        found = marks.deleted(files, np.arange(3) * 4)
        assert sorted(found) == sorted(4 * at + one for at, some in enumerate(hidden) for one in some)


def test_old_files_with_narrower_keys_are_read(tmp_path: Path) -> None:
    narrow = [COLUMNS[0]._replace(type=pa.int32(), name="was_id", source="id"), COLUMNS[1]]
    (line,) = lines_of(RowsTask(tuple(narrow), new_files(tmp_path), RowRules())(payloads(("upsert", 7, "a"))))
    assert located(tmp_path, [DataFile(str(line.path), 1)], [7, 8])[1] == [7]


def without_ids(file: DataFile) -> DataFile:
    table = pq.read_table(local_path(file.path))
    pq.write_table(table.cast(pa.schema([("id", pa.int64()), ("name", pa.string())])), local_path(file.path))
    return file


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda file: file._replace(rows=2), "has 1 rows"),
        (without_ids, "has no column id"),
    ],
)
def test_files_that_are_not_what_the_table_says_are_refused(tmp_path: Path, spoil: Any, says: str) -> None:
    file = spoil(written(tmp_path, ("upsert", 1, "a")))
    with pytest.raises(FileRefusedError, match=says):
        located(tmp_path, [file], [1])


def test_more_stored_values_than_a_task_may_return_are_refused(tmp_path: Path) -> None:
    file, marks = written(tmp_path, ("upsert", 1, "a long name")), PositionFiles(new_files(tmp_path / "new"))
    wanted = pa.table({"id": pa.array([1], pa.int64()), NEEDS_STORED: [True]})
    for most, is_refused in ((3, True), (1000, False)):
        task = LocateTask(((file,),), b"", COLUMNS, marks, stored=(COLUMNS[1],), most_stored=most)
        with pytest.raises(NotAsFilesError, match="stored values") if is_refused else nullcontext():
            assert [line.stored is not None for line in task.located(0, wanted)] == [True]


def test_one_task_for_a_small_batch_does_both(tmp_path: Path) -> None:
    file = written(tmp_path, ("upsert", 1, "a"), ("upsert", 2, "b"))
    new = new_files(tmp_path / "new")
    task = SmallBatchTask(
        RowsTask(COLUMNS, new, RowRules()), LocateTask(((file,),), b"", COLUMNS, PositionFiles(new))
    )
    lines = lines_of(task(payloads(("upsert", 2, "c"), ("delete", 1, None), ("delete", 5, None))))
    assert [line.found is None for line in lines] == [True, False]
    assert [flags.tolist() for flags in found_keys(lines)] == [[True, True, False], [False] * 3]
    assert lines[1].rows == 2


def test_several_rows_of_one_key_are_an_error(tmp_path: Path) -> None:
    files = [written(tmp_path / str(n), ("upsert", 1, "a")) for n in (1, 2)]
    task = SmallBatchTask(
        RowsTask(COLUMNS, new_files(tmp_path), RowRules()),
        LocateTask(((files[0],), (files[1],)), b"", COLUMNS, PositionFiles(new_files(tmp_path))),
    )
    lines = lines_of(task(payloads(("upsert", 1, "b"))))
    with pytest.raises(AccountingError, match="2 rows for 1 keys"):
        found_keys(lines)


KEYS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "number": (pa.int64(), st.integers(-3, 3)),
    "text": (pa.string(), st.text(alphabet="aé\U0001f600", max_size=2)),
    "data": (pa.binary(), st.binary(max_size=1)),
    "price": (pa.decimal128(10, 2), st.integers(-2, 2).map(lambda n: Decimal(n).scaleb(-2))),
    "day": (pa.date32(), st.sampled_from([date(1, 1, 1), date(2020, 2, 29)])),
    "at": (
        pa.timestamp("us", "UTC"),
        st.sampled_from(
            [
                datetime(1969, 1, 1, tzinfo=timezone.utc),
                datetime(2030, 1, 1, microsecond=1, tzinfo=timezone.utc),
            ]
        ),
    ),
    "flag": (pa.bool_(), st.booleans()),
}


@given(st.data())
def test_keys_match_as_a_dictionary_says(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from([*KEYS]), min_size=1, max_size=3, unique=True))
    one = st.tuples(*(KEYS[name][1] for name in names))
    keys = data.draw(st.lists(one, max_size=12, unique=True))
    nulls = st.tuples(*(st.one_of(st.none(), KEYS[name][1]) for name in names))
    rows = data.draw(st.lists(nulls, max_size=12))
    number = {key: at for at, key in enumerate(keys)}
    assert matched(table(names, rows), table(names, keys)).tolist() == [number.get(row, -1) for row in rows]


@given(
    st.sampled_from([pa.int8(), pa.int32(), pa.int64(), pa.timestamp("us"), pa.timestamp("us", "UTC")]),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=30),
    st.integers(1, 5),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_a_few_keys_among_many_rows(
    kind: pa.DataType, drawn: list[int], chunks: int, with_null: bool, seed: int
) -> None:
    random, width = np.random.default_rng(seed), kind.bit_width
    keys = list(dict.fromkeys(key % 2**width - 2 ** (width - 1) for key in drawn))
    near = [*keys, *(min(2 ** (width - 1) - 1, key + 1) for key in keys)]
    rows = [int(one) for one in random.choice(np.array(near), 64 * len(keys) + 100)]
    given_rows = [None, *rows] if with_null else rows
    cut = sorted(random.integers(0, len(given_rows), chunks - 1).tolist())
    parts = [given_rows[low:high] for low, high in pairwise([0, *cut, len(given_rows)])]
    values = pa.chunked_array([typed(part, kind) for part in parts])
    number = {key: at for at, key in enumerate(keys)}
    found = matched(pa.table({"id": values}), pa.table({"id": typed(keys, kind)}))
    assert found.tolist() == [number.get(row, -1) for row in given_rows]


def typed(numbers: Sequence[int | None], kind: pa.DataType) -> pa.Array:
    return pa.array(numbers, pa.int64()).cast(kind)


def table(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    columns = [pa.array([row[at] for row in rows], KEYS[name][0]) for at, name in enumerate(names)]
    return pa.table(columns, names=names)


def test_a_key_twice_in_a_batch_is_an_error() -> None:
    rows = pa.table({"a": [1, 2], "b": [1, 2]})
    for names in (["a"], ["a", "b"]):
        with pytest.raises(AccountingError, match="one key twice"):
            matched(rows.select(names), pa.table({"a": [3, 3], "b": [4, 4]}).select(names))


def test_groups_are_of_about_the_same_rows() -> None:
    files = [DataFile(str(rows), rows) for rows in (50, 40, 30, 20, 10)]
    groups = groups_of(files, most=2, rows=10)
    assert sorted(sum(file.rows for file in group) for group in groups) == [70, 80]
    assert len(groups_of(files, most=8, rows=100)) == 1
    assert groups_of([], most=2, rows=10) == ()


def test_places_of_a_disk() -> None:
    assert [is_local(one) for one in ("/a/b", "file:/a", "file:///a", "s3://a", "hdfs:/a")] == [1, 1, 1, 0, 0]
    assert {str(local_path(one)) for one in ("/a/b c%20", "file:/a/b c%20", "file:///a/b c%20")} == {
        "/a/b c%20"
    }


def test_the_columns_of_a_line_are_those_of_its_ddl() -> None:
    assert [part.split()[0] for part in FILE_DDL.split(", ")] == [*WrittenFile._fields]
