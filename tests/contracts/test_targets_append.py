"""What every target promises of a table in mode ``append``: each image of each event once, in its place."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.columns import ID
from tests.contracts.targets_bed import AMOUNT, NAME, TABLE, Bed, progress, shape
from tests.full import FULL, needs, quick_on
from tidesink.errors import SchemaRefusedError, StaleProgressError
from tidesink.events import Column, ColumnType
from tidesink.sinks.laws.modes import (
    COMMIT_TS,
    INDEX,
    OFFSET,
    OP,
    PARTITION,
    POSTIMAGE,
    PREIMAGE,
    UNAVAILABLE,
    log_shape,
)
from tidesink.sinks.targets.base import ApplyOptions, ApplyResult, ReducedBatch, TargetTable
from tidesink.typemap.target_schema import TargetSchema

pytestmark = [quick_on("memory", "mysql"), needs("append")]

SHAPE = log_shape(shape())
Row = dict[str, Any]


def image(offset: int, op: str = "insert", index: int = 0, **values: Any) -> Row:
    """A row of the log."""
    own = {PARTITION: 0, OFFSET: offset, INDEX: index, OP: op, COMMIT_TS: 400 + offset, UNAVAILABLE: None}
    return {**own, "id": 1, "name": "a", "amount": 1, **values}


def log_of(bed: Bed, rows: Sequence[Row], columns: TargetSchema = SHAPE) -> ReducedBatch:
    return replace(bed.batch(columns, rows), how=ApplyOptions(mode="append"))


def held(bed: Bed) -> list[Row]:
    return sorted(bed.read(TABLE), key=lambda row: (row[PARTITION], row[OFFSET], row[INDEX]))


def opened(bed: Bed, columns: TargetSchema = SHAPE) -> tuple[TargetTable, int]:
    table = bed.target.open_table(columns, pipeline="shop")
    return table, table.claim().epoch


def test_images_of_one_key_stand_side_by_side(bed: Bed) -> None:
    table, epoch = opened(bed)
    first = [image(0), image(1, PREIMAGE), image(1, POSTIMAGE, 1, name="b")]
    assert counts(table.apply(log_of(bed, first), progress(epoch, 1))) == (3, 0, 0, 0)
    gone = [image(2, "delete", name=None, amount=None) | {UNAVAILABLE: '["name","amount"]'}]
    assert counts(table.apply(log_of(bed, gone), progress(epoch, 2))) == (1, 0, 0, 0)
    assert held(bed) == [*first, *gone]
    assert table.committed() == progress(epoch, 2)


def counts(result: ApplyResult) -> tuple[int, int, int, int]:
    return result.inserted, result.updated, result.deleted, result.absent


def test_a_batch_delivered_again_adds_nothing(bed: Bed) -> None:
    table, epoch = opened(bed)
    batch = log_of(bed, [image(0), image(1)])
    first = table.apply(batch, progress(epoch, 1))
    assert table.apply(batch, progress(epoch, 1)) == first
    assert len(held(bed)) == 2


def test_a_worker_that_starts_again_finds_what_was_committed(bed: Bed) -> None:
    table, epoch = opened(bed)
    table.apply(log_of(bed, [image(0)]), progress(epoch, 1))
    table.close()
    again = bed.reopen().open_table(SHAPE, pipeline="shop")
    claim = again.claim()
    assert claim.progress == progress(claim.epoch, 1)
    with pytest.raises(StaleProgressError):
        again.apply(log_of(bed, [image(0)]), progress(claim.epoch, 1))
    again.apply(log_of(bed, [image(1)]), progress(claim.epoch, 2))
    assert [row[OFFSET] for row in held(bed)] == [0, 1]


def test_a_worker_that_lost_the_table_adds_nothing(bed: Bed) -> None:
    zombie, old = opened(bed)
    zombie.apply(log_of(bed, [image(0)]), progress(old, 1))
    table = bed.reopen().open_table(SHAPE, pipeline="shop")
    new = table.claim().epoch
    with pytest.raises(StaleProgressError, match=r"[Aa]nother worker holds this table"):
        zombie.apply(log_of(bed, [image(1, name="zombie")]), progress(old, 2))
    table.apply(log_of(bed, [image(1)]), progress(new, 2))
    assert [row["name"] for row in held(bed)] == ["a", "a"]


def test_an_empty_batch_moves_progress_on(bed: Bed) -> None:
    table, epoch = opened(bed)
    table.apply(log_of(bed, [image(0)]), progress(epoch, 1))
    assert table.apply(log_of(bed, []), progress(epoch, 2)).applied == 0
    assert table.committed() == progress(epoch, 2)
    assert held(bed) == [image(0)]


def test_the_log_gets_columns_and_wider_numbers(bed: Bed) -> None:
    table, epoch = opened(bed)
    table.apply(log_of(bed, [image(0)]), progress(epoch, 1))
    wide = log_shape(
        shape(
            ID, NAME, Column("amount", ColumnType("bigint")), Column("late", ColumnType("int"), default="3")
        )
    )
    evolved = table.evolve(wide)
    assert (evolved.added, dict.fromkeys(evolved.widened)) == (("late",), {"amount": None})
    new = image(1, amount=2**40, late=None)
    table.apply(log_of(bed, [new], wide), progress(epoch, 2))
    assert held(bed) == [{**image(0), "late": 3}, new]


def test_a_table_without_a_key_has_a_log(bed: Bed) -> None:
    keyless = log_shape(shape(NAME, AMOUNT))
    table, epoch = opened(bed, keyless)
    rows = [{name: value for name, value in image(n).items() if name != "id"} for n in range(3)]
    assert table.apply(log_of(bed, rows, keyless), progress(epoch, 1)).inserted == 3
    assert held(bed) == rows


def test_rows_of_another_mode_are_not_mixed_in(bed: Bed) -> None:
    table = bed.target.open_table(shape(), pipeline="shop")
    row = {"id": 1, "name": "a", "amount": 1}
    table.apply(bed.batch(shape(), [row]), progress(table.claim().epoch, 1))
    with pytest.raises(SchemaRefusedError):
        taken_for_a_log(bed)
    assert bed.rows() == [row]


def taken_for_a_log(bed: Bed) -> None:
    log = bed.reopen().open_table(SHAPE, pipeline="shop")
    log.claim()
    log.evolve(SHAPE)


@quick_on("memory", "delta", "iceberg", "postgres", "mysql")
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=FULL)])
def test_folded_the_log_is_the_table_however_it_was_cut(bed: Bed, seed: int) -> None:
    chosen = random.Random(seed)
    rows, state = changes(chosen, 30)
    cuts = sorted(chosen.sample(range(1, len(rows)), 3))
    table, epoch = opened(bed)
    for number, (start, end) in enumerate(zip([0, *cuts], [*cuts, len(rows)], strict=True), 1):
        table.apply(log_of(bed, rows[start:end]), progress(epoch, number))
    assert held(bed) == rows
    assert folded(held(bed)) == state


def changes(chosen: random.Random, events: int) -> tuple[list[Row], dict[int, tuple[Any, Any]]]:
    """Random changes as rows of a log, and what they leave."""
    rows: list[Row] = []
    state: dict[int, tuple[Any, Any]] = {}
    for at in range(events):
        key, value = chosen.randrange(5), (chosen.choice([None, f"n{at}"]), at)
        there = state.get(key)
        if there is None:
            rows.append(image(at, id=key, name=value[0], amount=value[1]))
        else:
            old = {"id": key, "name": there[0], "amount": there[1]}
            if chosen.random() < 0.3:
                rows.append(image(at, "delete", **old))
                del state[key]
                continue
            moved = chosen.choice([key, 5 + at])
            new = {"id": moved, "name": value[0], "amount": value[1]}
            rows += [image(at, PREIMAGE, **old), image(at, POSTIMAGE, 1, **new)]
            del state[key]
            key = moved
        state[key] = value
    return rows, state


def folded(rows: Sequence[Row]) -> dict[int, tuple[Any, Any]]:
    """What a reader makes of a log, in its order."""
    state: dict[int, tuple[Any, Any]] = {}
    for row in rows:
        if row[OP] in ("delete", PREIMAGE):
            state.pop(row["id"], None)
        else:
            state[row["id"]] = row["name"], row["amount"]
    return state
