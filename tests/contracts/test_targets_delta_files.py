"""Batches that Delta takes as files: the same as by MERGE, and MERGE where it must be."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JNetworkError

from tests.columns import ID
from tests.contracts.interrupted import HeldMerge
from tests.contracts.targets_bed import (
    AMOUNT,
    NAME,
    TABLE,
    Bed,
    applied_alike,
    merged,
    progress,
    row,
    shape,
    sql,
)
from tests.contracts.test_targets_delta import SHAPE, loaded, opened
from tests.contracts.test_targets_types import cases
from tests.full import FULL
from tidesink.dev.lake_check import open_lake_table
from tidesink.errors import AccountingError, CommitUnknownError
from tidesink.events import Column, ColumnType, TableId
from tidesink.sinks.targets.base import ReducedBatch
from tidesink.sinks.targets.delta.files import FilePlan, FileWriter, Staged
from tidesink.sinks.targets.delta.log import DeltaLog
from tidesink.sinks.targets.delta.table import DeltaTable, DeltaTarget
from tidesink.sinks.targets.lake.storage import local_path

# ruff: noqa: S608
pytestmark = pytest.mark.spark

OTHER: Final = TableId("shop", "merged")
PLACE: Final = Column("place", ColumnType("varchar", length=20), handle=True)


def reason(table: DeltaTable, batch: ReducedBatch) -> str | None:
    """Why the table merges a batch; None where it takes it as files."""
    plan = table.format.files.plan(batch, progress(1, 99))
    return None if isinstance(plan, FilePlan) else plan


def actions(table: DeltaTable, kind: str) -> list[dict[str, Any]]:
    """The actions of a kind in the table's newest commit."""
    newest = max(Path(table.path, "_delta_log").glob("*.json"))
    found = [json.loads(line, parse_float=_number) for line in newest.read_text("utf-8").splitlines()]
    return [one[kind] for one in found if kind in one]


def _number(text: str) -> Decimal | float:
    """The least floats are spelt with other digits by Java: 1.4E-45 is 1e-45."""
    if 0 < abs(float(text)) < 1e-37:
        return float(np.float32(text))
    return Decimal(text)


def test_any_stream_leaves_what_merge_leaves(delta: Bed) -> None:
    """A key of two columns, upserts, deletes, of keys that are there or not, in batches of any size.

    One table takes files and merges in turn: vectors of either are known to the other.
    """
    shapes = [shape(ID, PLACE, NAME, AMOUNT, table=name) for name in (TABLE, OTHER)]
    tables = [delta.target.open_table(one, pipeline="shop") for one in shapes]
    epochs = [table.claim().epoch for table in tables]
    dice, stored = random.Random(7), dict[tuple[int, str], dict[str, Any]]()
    for number in range(1, 6):
        keys = dice.sample([(at, place) for at in range(6) for place in ("", "größe")], dice.randint(3, 9))
        gone = {key for key in keys if dice.random() < 0.4}
        rows: list[dict[str, Any]] = [
            {"id": at, "place": place, "name": dice.choice([None, "x", "y"]), "amount": number}
            for at, place in keys
            if (at, place) not in gone
        ]
        deletes = [{"id": at, "place": place} for at, place in gone]
        batches = [delta.batch(one, rows, deletes) for one in shapes]
        files = batches[0] if number != 3 else merged(batches[0])
        result = applied_alike(tables, (files, merged(batches[1])), number, epochs=epochs)
        stored = {key: value for key, value in stored.items() if key not in gone}
        stored |= {(one["id"], one["place"]): one for one in rows}
        wanted = [stored[key] for key in sorted(stored)]
        assert isinstance(tables[0], DeltaTable)
        check = open_lake_table(Path(tables[0].path)).read().to_pylist()
        for found in (delta.read(TABLE), delta.read(OTHER), check):
            assert sorted(found, key=lambda r: (r["id"], r["place"])) == wanted
    assert tables[0].apply(files, progress(epochs[0], 5)) == result


def test_a_zero_below_zero_is_found_as_zero(delta: Bed) -> None:
    """Spark's readers look into dictionaries and ranges, which tell 0.0 from -0.0."""
    kinds = ("float", "double")
    wide = shape(ID, *(Column(kind, ColumnType(kind)) for kind in kinds))
    table = delta.target.open_table(wide, pipeline="shop")
    assert isinstance(table, DeltaTable)
    table.claim()
    for number, value in enumerate((1.0, -0.0, 0.0), 1):
        table.apply(delta.batch(wide, [{"id": number, **dict.fromkeys(kinds, value)}]), progress(1, number))
    for kind in kinds:
        for condition in (f"{kind} = 0", f"{kind} >= 0 AND {kind} < 1", f"{kind} = -0.0d"):
            found = delta.session.sql(f"SELECT id FROM delta.`{table.path}` WHERE {condition} ORDER BY id")
            assert [one["id"] for one in found.collect()] == [2, 3], condition


@pytest.mark.parametrize("mapping", ["none", "name"])
def test_files_and_statistics_are_as_spark_writes_them(delta: Bed, mapping: str) -> None:
    """But for timestamps, which Spark writes as INT96 unless it is set otherwise."""
    # Names that files cannot have need the mapping.
    given = [case for case in cases() if mapping == "name" or " " not in case[0].name]
    columns = [ID, *(column for column, _ in given)]
    rows = [{"id": at + 1, **{column.name: values[at] for column, values in given}} for at in (0, 1)] + [
        {"id": 3, **{column.name: None for column, _ in given}}
    ]
    assert isinstance(delta.target, DeltaTarget)
    target = replace(delta.target, properties={"delta.columnMapping.mode": mapping})
    found = []
    for name in (TABLE, OTHER):
        wide = shape(*columns, table=name)
        table = target.open_table(wide, pipeline="shop")
        assert isinstance(table, DeltaTable)
        table.claim()
        batch = delta.batch(wide, rows)
        assert reason(table, batch) is None
        frame = batch.frame
        assert frame is not None
        whole = merged(replace(batch, make_frame=partial(frame.coalesce, 1)))
        table.apply(batch if name == TABLE else whole, progress(1, 1, table=name))
        names = {
            field["metadata"].get("delta.columnMapping.physicalName", field["name"]): field["name"]
            for field in json.loads(table.format.columns.log.schema())["fields"]
        }
        (added,) = actions(table, "add")
        statistics = json.loads(added["stats"], parse_float=_number)
        for kind in ("minValues", "maxValues", "nullCount"):
            statistics[kind] = {names[physical]: value for physical, value in statistics[kind].items()}
        schema = pq.ParquetFile(Path(table.path, added["path"])).schema
        types = [
            (one.physical_type, str(one.logical_type), one.length)
            for one in (schema.column(at) for at in range(len(columns)))
        ]
        found.append(
            (statistics, [one for one in types if one[0] != "INT96" and "isAdjustedToUTC=true" not in one[1]])
        )
    assert found[0] == found[1]
    assert delta.rows() == delta.rows(OTHER)


def test_vectors_of_others_and_packed_files_are_known(delta: Bed) -> None:
    table = loaded(delta)
    sql(delta, f"OPTIMIZE {table.location}")
    sql(delta, f"DELETE FROM {table.location} WHERE id = 3")
    batch = delta.batch(SHAPE, [row(2, "c")], [{"id": 3}])
    assert reason(table, batch) is None
    result = table.apply(batch, progress(1, 3))
    assert (result.updated, result.absent) == (1, 1)
    assert delta.rows() == [row(1), row(2, "c")]
    # The one row that is left of the packed file goes, and the file with it.
    assert table.apply(delta.batch(SHAPE, [], [{"id": 1}]), progress(1, 4)).deleted == 1
    assert (len(actions(table, "remove")), actions(table, "add")) == (1, [])
    sql(
        delta,
        f"MERGE INTO {table.location} t USING (SELECT 2L AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE",
    )
    assert delta.rows() == []
    assert sql(delta, f"SELECT count(*) FROM {table.location} VERSION AS OF 3")[0][0] == 3


@pytest.mark.parametrize("upkeep", ["OPTIMIZE {}", pytest.param("DELETE FROM {} WHERE id = 2", marks=FULL)])
def test_a_batch_is_located_again_where_others_changed_rows(delta: Bed, tmp_path: Path, upkeep: str) -> None:
    table = loaded(delta)
    batch = delta.batch(SHAPE, [row(1, "new")], [{"id": 2}])
    with HeldMerge(table, batch, progress(1, 3), gate=tmp_path) as held:
        sql(delta, upkeep.format(table.location))
    assert held.raised == []
    assert table.committed() == progress(1, 3)
    assert delta.rows() == [row(1, "new"), row(3)]
    # Files of the attempt that was refused are gone.
    here = {one.name for one in Path(table.path).glob("part-1-3-*")}
    assert here == {one["path"] for one in actions(table, "add") if one["path"].startswith("part-1-3-")}


def test_several_rows_of_one_key_stop_the_table(delta: Bed) -> None:
    table = loaded(delta)
    sql(delta, f"INSERT INTO {table.location} VALUES (1, 'theirs', 9)")
    with pytest.raises(AccountingError, match="another program wrote rows"):
        table.apply(delta.batch(SHAPE, [row(1, "c")]), progress(1, 3))
    assert len(delta.rows()) == 4
    assert table.committed() == progress(1, 2)


def test_counts_that_do_not_fit_make_nothing_visible(delta: Bed) -> None:
    table = loaded(delta)
    before = delta.rows()
    batch = delta.batch(SHAPE, [row(1, "c"), row(5)], [{"id": 2}])
    for wrong in (replace(batch, upserts=3), replace(batch, deletes=0)):
        with pytest.raises(AccountingError):
            table.apply(wrong, progress(1, 3))
    assert delta.rows() == before
    assert table.apply(batch, progress(1, 3)).applied == 3


Change = Callable[[Bed, str], object]


def altered(text: str) -> Change:
    return lambda bed, location: sql(bed, f"ALTER TABLE {location} {text}")


def property_of(name: str, value: str) -> Change:
    return altered(f"SET TBLPROPERTIES ('{name}' = '{value}')")


UNFIT: Final[dict[str, tuple[Change, str]]] = {
    "another column": (altered("ADD COLUMNS (note string)"), "other columns than the batch: note"),
    "vectors": (property_of("delta.enableDeletionVectors", "false"), "enableDeletionVectors is false"),
    "change data": (property_of("delta.enableChangeDataFeed", "true"), "enableChangeDataFeed is true"),
    "row tracking": (property_of("delta.enableRowTracking", "true"), "the feature"),
    "check": (altered("ADD CONSTRAINT positive CHECK (amount > 0)"), "a CHECK constraint"),
}


@pytest.mark.parametrize("what", [pytest.param(one, marks=() if one == "check" else FULL) for one in UNFIT])
def test_a_table_that_is_not_written_as_files_is_merged_into(delta: Bed, what: str) -> None:
    table = loaded(delta)
    batch = delta.batch(SHAPE, [row(2, "c"), row(12)], [{"id": 1}])
    assert reason(table, batch) is None
    change, says = UNFIT[what]
    change(delta, table.location)
    assert says in str(reason(table, batch))
    result = table.apply(batch, progress(1, 3))
    assert (result.inserted, result.updated, result.deleted) == (1, 1, 1)
    assert [(one["id"], one["name"]) for one in delta.rows()] == [(2, "c"), (3, "a"), (12, "a")]


def test_a_worker_that_was_overtaken_commits_nothing(delta: Bed) -> None:
    """Its transaction is from before the other's claim."""
    table = loaded(delta)
    batch = delta.batch(SHAPE, [row(9)])
    plan = table.format.files.plan(batch, progress(1, 3))
    assert isinstance(plan, FilePlan)
    staged = table.format.files.stage(batch, plan)
    other = opened(delta)
    other.claim()
    with pytest.raises(Exception, match="Concurrent"):
        table.format.files.commit(
            plan, staged, application="tidesink.progress", version=progress(1, 3).txn_version, words="{}"
        )
    assert [one["id"] for one in delta.rows()] == [1, 2, 3]
    assert other.committed() == progress(2, 2)


@dataclass(frozen=True)
class LostAnswer(FileWriter):
    """Commits, and loses the connection."""

    def commit(self, plan: FilePlan, staged: Staged, *, application: str, version: int, words: str) -> None:
        super().commit(plan, staged, application=application, version=version, words=words)
        raise Py4JNetworkError("cut off")


@dataclass(frozen=True)
class SentTwice(FileWriter):
    """Commits twice, as a client does that lost the answer, and hears of a conflict with itself.

    The commit's file in the log cannot be read then.
    """

    def commit(self, plan: FilePlan, staged: Staged, *, application: str, version: int, words: str) -> None:
        again = plan._replace(transaction=self.log.java().startTransaction())
        super().commit(again, staged, application=application, version=version, words=words)
        try:
            super().commit(plan, staged, application=application, version=version, words=words)
        finally:
            file = newest(self.log)
            file.rename(file.with_suffix(".aside"))
            file.write_bytes(b"{")


def writing(bed: Bed, writer: type[FileWriter]) -> DeltaTable:
    """The table, claimed by another worker with this writer of files."""
    assert isinstance(bed.target, DeltaTarget)
    table = replace(bed.target, file_writer=writer).open_table(SHAPE, pipeline="shop")
    assert table.claim().epoch == 2
    return table


def newest(log: DeltaLog) -> Path:
    """The file of the log's newest version."""
    return max(Path(local_path(str(log.java().dataPath())), "_delta_log").glob("*.json"))


def test_no_file_of_a_commit_is_removed_that_may_be_there(delta: Bed) -> None:
    loaded(delta)
    batch = delta.batch(SHAPE, [row(1, "c"), row(9)])
    table = writing(delta, SentTwice)
    with pytest.raises(CommitUnknownError, match="cannot be read now"):
        table.apply(batch, progress(2, 3))
    file = newest(table.format.columns.log)
    file.with_suffix(".aside").rename(file)
    again = opened(delta)
    assert again.committed() == progress(2, 3)
    assert delta.rows() == [row(1, "c"), row(2, "b"), row(3), row(9)]


def test_a_commit_whose_answer_was_lost_is_found(delta: Bed) -> None:
    loaded(delta)
    table = writing(delta, LostAnswer)
    result = table.apply(delta.batch(SHAPE, [row(1, "c")], [{"id": 2}]), progress(2, 3))
    assert (result.updated, result.deleted, table.committed()) == (1, 1, progress(2, 3))
    assert delta.rows() == [row(1, "c"), row(3)]
