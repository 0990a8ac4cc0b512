"""Batches whose rows depend on what a lake's table has: files leave what MERGE leaves, or what a law says."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pytest

from tests.columns import ID
from tests.contracts.lake_writers import watched, with_writers
from tests.contracts.targets_bed import (
    AMOUNT,
    NAME,
    TABLE,
    Bed,
    applied_alike,
    frame_of,
    key_range,
    lenient,
    merged,
    payloads_of,
    progress,
    row,
    shape,
)
from tests.contracts.test_targets_delta_partitions import made as delta_made
from tests.contracts.test_targets_iceberg_partitions import made as iceberg_made
from tests.contracts.test_targets_shards import A, B, key, opened, rows
from tests.contracts.test_targets_shards import row as shard_row
from tests.full import FULL
from tests.memory_target import MemoryTarget
from tidesink.errors import AccountingError
from tidesink.events import Column, ColumnType, TableId
from tidesink.sinks.laws.modes import FROM_COLUMN, HistoryNames, history_shape
from tidesink.sinks.targets.base import (
    SOFT_DELETE_COLUMN,
    ApplyHooks,
    ApplyOptions,
    ReducedBatch,
    ReducedRow,
)
from tidesink.sinks.targets.delta.table import DeltaTarget
from tidesink.sinks.targets.lake.batches import FileLimits
from tidesink.typemap.target_schema import TargetSchema

pytestmark = pytest.mark.spark

OTHER: Final = TableId("shop", "merged")
PLACE: Final = Column("place", ColumnType("varchar", length=20), handle=True)


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest) -> Bed:
    """Both lakes in turn."""
    found: Bed = request.getfixturevalue(request.param)
    return found


def small(number: int) -> FileLimits:
    """Batches of one task and of several in turn."""
    return FileLimits(small_batch=-1 if number % 2 else 10_000)


def case(lake: str, name: str, *, quick: bool = False, **mode: Any) -> Any:
    return pytest.param(lake, mode, id=f"{lake}, {name}", marks=() if quick else FULL)


MODES: Final = [
    case("delta", "source", sequenced=True),
    case("iceberg", "source", quick=True, sequenced=True),
    case("iceberg", "source, reduced again", sequenced=True, packed=False),
    case("delta", "source, reduced again", sequenced=True, packed=False),
    case("delta", "left out", kept=("name",)),
    case("iceberg", "left out", kept=("name",)),
    case("delta", "soft", delete_mode="soft", on_delete={"amount": 77}),
    case("iceberg", "soft", delete_mode="soft"),
    case("delta", "soft, left out", delete_mode="soft", kept=("name", "amount")),
    case("iceberg", "soft, left out", quick=True, delete_mode="soft", kept=("name", "amount")),
    case("delta", "source, soft", sequenced=True, delete_mode="soft"),
    case("iceberg", "source, soft", sequenced=True, delete_mode="soft", on_delete={"amount": 77}),
]


@pytest.mark.parametrize(("lake", "mode"), MODES, indirect=["lake"])
def test_any_stream_leaves_what_merge_leaves(lake: Bed, mode: dict[str, Any]) -> None:
    """Of keys of two columns, in batches of one task and of several; one table merges now and then."""
    lake, writers = watched(lake)
    shapes = [shape(ID, PLACE, NAME, AMOUNT, table=name) for name in (TABLE, OTHER)]
    soft = {"delete_mode": mode["delete_mode"]} if "delete_mode" in mode else {}
    tables = [lake.target.open_table(one, pipeline="shop", **soft) for one in shapes]
    writers[OTHER].merging = True
    epochs = [table.claim().epoch for table in tables]
    dice = random.Random(3)
    for number in range(1, 6):
        keys = dice.sample([(at, place) for at in range(6) for place in ("", "größe")], dice.randint(4, 9))
        gone = [key for key in keys if dice.random() < 0.4]
        rows = [
            {"id": at, "place": place, "name": dice.choice([None, "x", "y"]), "amount": number}
            for at, place in keys
            if (at, place) not in gone
        ]
        deletes = [{"id": at, "place": place} for at, place in gone]
        given = {name: value for name, value in mode.items() if name not in ("sequenced", "kept", "packed")}
        if "sequenced" in mode:
            given["at"] = [dice.randint(1, 9) for _ in keys]
        if "kept" in mode and number % 2:
            given |= {"kept": mode["kept"], "after_delete": number == 5}
        writers[TABLE].merging = number == 3
        for writer in writers.values():
            writer.limit(small(number))
        batches = [lake.batch(one, rows, deletes, **given) for one in shapes]
        if "kept" in given:
            batches = [lenient(batch) for batch in batches]
        if not mode.get("packed", True):
            batches = [merged(one) for one in batches]
        applied_alike(tables, batches, number, epochs=epochs)
        found = [
            sorted(lake.read(name), key=lambda one: (one["id"], one["place"])) for name in (TABLE, OTHER)
        ]
        assert found[0] == found[1], number


@pytest.mark.parametrize(
    ("lake", "seed", "by"),
    [
        ("iceberg", 1, ""),
        ("delta", 2, ""),
        *(pytest.param(one, 3, "", marks=FULL) for one in ("iceberg", "delta")),
        pytest.param("iceberg", 4, "now, bucket(2, id), days(until)", marks=FULL),
    ],
    indirect=["lake"],
)
def test_any_history_is_what_the_law_says(lake: Bed, seed: int, by: str) -> None:
    """Events that come late, again, and several of a key at once.

    ``by``: what the table is partitioned by; a version that ends goes into another partition.
    """
    names, given = HistoryNames("since", "until", "now"), shape(ID, PLACE, NAME, AMOUNT)
    if by:
        make = delta_made if isinstance(lake.target, DeltaTarget) else iceberg_made
        make(lake, history_shape(given, names), by)
    lake, writers = watched(lake)
    memory = MemoryTarget()
    targets = (lake.target, memory)
    tables = [target.open_table(history_shape(given, names), pipeline="shop") for target in targets]
    epochs = [table.claim().epoch for table in tables]
    dice, sent = random.Random(seed), dict[tuple[Any, ...], ReducedRow]()
    for number in range(1, 8):
        moments = {
            (dice.randrange(4), dice.choice(["", "größe"]), dice.randint(1, 20) + 3 * number)
            for _ in range(dice.randint(4, 16))
        }
        moments |= {*dice.sample(sorted(sent), min(len(sent), 3))}
        rows = [
            history_row(*one, None if dice.random() < 0.4 else dice.choice(["x", "y"]))
            if one not in sent or dice.random() < 0.3
            else sent[one]
            for one in sorted(moments)
        ]
        sent |= zip(sorted(moments), rows, strict=True)
        writers[TABLE].limit(small(number))
        batch = history_batch(lake, given, rows, names)
        if number % 3 == 0:
            batch = merged(batch)
        batches = [batch, replace(batch, make_frame=None, payloads=None, rows=rows)]
        result = applied_alike(tables, batches, number, epochs=epochs)
        found = [
            sorted(read(TABLE), key=lambda one: (one["id"], one["place"], one[FROM_COLUMN]))
            for read in (lake.read, memory.rows)
        ]
        assert found[0] == found[1], number
    again = tables[0].apply(batches[0], progress(epochs[0], 7))
    assert again == result


def history_row(number: int, place: str, at: int, name: str | None) -> ReducedRow:
    key = {"id": number, "place": place}
    row = None if name is None else {**key, "name": name, "amount": at}
    return ReducedRow("delete" if row is None else "upsert", key, row, commit_ts=at << 18)


def history_batch(
    lake: Bed, given: TargetSchema, rows: Sequence[ReducedRow], names: HistoryNames
) -> ReducedBatch:
    assert lake.spark is not None
    upserts = sum(row.op == "upsert" for row in rows)
    return ReducedBatch(
        given,
        upserts,
        len(rows) - upserts,
        make_frame=partial(frame_of, lake.spark, given, rows),
        payloads=payloads_of(lake.spark, given, rows),
        key_range=key_range(given, rows),
        since=min(row.commit_ts or 0 for row in rows),
        how=ApplyOptions(mode="history", history=names),
    )


def test_an_older_row_beside_a_second_one_of_its_key_stops_the_table(lake: Bed) -> None:
    lake, _ = watched(lake)
    table = lake.target.open_table(shape(), pipeline="shop")
    epoch = table.claim().epoch
    table.apply(lake.batch(shape(), [row(1)], at=[10]), progress(epoch, 1))
    assert lake.spark is not None
    location = table.location  # type: ignore[attr-defined]  # a lake's table has one
    lake.spark.sql(f"INSERT INTO {location} VALUES (1, 'theirs', 9, NULL, NULL)")  # noqa: S608
    with pytest.raises(AccountingError, match="another program wrote rows"):
        table.apply(lake.batch(shape(), [row(1, "c")], at=[20]), progress(epoch, 2))
    assert table.committed() == progress(epoch, 1)


def test_more_stored_values_than_pass_the_driver_are_merged(lake: Bed) -> None:
    limits = FileLimits(small_batch=-1, most_stored=3)
    lake = with_writers(lake, lambda writer: replace(writer, limits=limits))
    table = lake.target.open_table(shape(), pipeline="shop")
    epoch = table.claim().epoch
    table.apply(lake.batch(shape(), [row(1, "long"), row(2)]), progress(epoch, 1))
    batch = lake.batch(shape(), [row(1, None, 5)], [{"id": 2}], kept=("name",))
    left = list[str]()
    result = table.apply(replace(batch, hooks=ApplyHooks(on_left=left.append)), progress(epoch, 2))
    assert (result.updated, result.deleted) == (1, 1)
    assert left == ["merged by MERGE: the batch needs more than 0 MiB of stored values"]
    assert lake.rows() == [row(1, "long", 5)]


def test_what_stays_of_partitions_is_known(lake: Bed) -> None:
    """Delta's files leave out the columns of partitions: the log has their values."""
    given = shape(ID, PLACE, NAME, AMOUNT)
    make = delta_made if isinstance(lake.target, DeltaTarget) else iceberg_made
    make(lake, given, "name, place")
    lake, _ = watched(lake)
    table = lake.target.open_table(given, pipeline="shop", delete_mode="soft")
    epoch = table.claim().epoch
    rows = [
        {"id": at, "place": place, "name": name, "amount": at}
        for at, place, name in ((1, "a b", "x/y"), (2, "größe", None), (3, "a b", "z"), (4, "c", "x/y"))
    ]
    table.apply(lake.batch(given, rows, delete_mode="soft"), progress(epoch, 1))
    keys = [{"id": one["id"], "place": one["place"]} for one in rows]
    left_out = lake.batch(
        given,
        [{**rows[0], "name": None, "amount": 10}, {**rows[1], "name": None, "amount": 20}],
        [keys[2]],
        delete_mode="soft",
        kept=("name",),
    )
    table.apply(left_out, progress(epoch, 2))
    found = [{**rows[0], "amount": 10}, {**rows[1], "amount": 20}, rows[2], rows[3]]
    assert lake.rows() == [one | {SOFT_DELETE_COLUMN: at == 2} for at, one in enumerate(found)]
    later = lake.batch(given, [{**rows[0], "name": "new"}], [keys[3]], delete_mode="soft", at=[9, 9])
    assert table.apply(later, progress(epoch, 3)).updated == 2
    older = lake.batch(given, [{**rows[0], "name": "old"}], [], delete_mode="soft", at=[8])
    assert table.apply(older, progress(epoch, 4)).stale == 1
    found[0] = {**rows[0], "name": "new"}
    names = [*found[0], SOFT_DELETE_COLUMN]
    assert [{name: one[name] for name in names} for one in lake.rows()] == [
        one | {SOFT_DELETE_COLUMN: at >= 2} for at, one in enumerate(found)
    ]


def test_a_table_of_keys_alone_has_soft_deletes(lake: Bed) -> None:
    lake, _ = watched(lake)
    given = shape(ID, PLACE)
    table = lake.target.open_table(given, pipeline="shop", delete_mode="soft")
    epoch = table.claim().epoch
    rows = [{"id": at, "place": "a"} for at in (1, 2)]
    table.apply(lake.batch(given, rows, delete_mode="soft"), progress(epoch, 1))
    result = table.apply(lake.batch(given, [], rows[:1], delete_mode="soft"), progress(epoch, 2))
    assert (result.deleted, result.absent) == (1, 0)
    assert lake.rows() == [one | {SOFT_DELETE_COLUMN: one["id"] == 1} for one in rows]


def test_shards_of_a_table_are_written_as_files(lake: Bed) -> None:
    lake, _ = watched(lake)
    tables = [opened(lake, source) for source in (A, B)]
    for (table, given), source in zip(tables, (A, B), strict=True):
        table.claim()
        table.apply(
            lake.batch(given, [shard_row(source, 1), shard_row(source, 2)]), progress(1, 1, table=source)
        )
    (table, given), _ = tables
    batch = lake.batch(given, [shard_row(A, 1, "b")], [key(A, 2), key(A, 3)])
    result = table.apply(batch, progress(1, 2, table=A))
    assert (result.updated, result.deleted, result.absent) == (1, 1, 1)
    assert rows(lake) == [shard_row(A, 1, "b"), shard_row(B, 1), shard_row(B, 2)]
