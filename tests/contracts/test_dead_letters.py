"""Dead letters in Delta: kept whole, kept once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.targets_bed import TABLE, Bed, progress
from tidesink.change import TableId
from tidesink.sinks.progress import Progress
from tidesink.sinks.targets.delta_dead_letters import DeltaDeadLetters

# ruff: noqa: S608
pytestmark = pytest.mark.spark


def dead_letters(bed: Bed, offsets: list[int]) -> Any:
    assert bed.spark is not None
    return bed.spark.createDataFrame(
        [("t", 0, o, b"k", b"\xff", 7, "FramingError", "no magic byte", None) for o in offsets],
        "topic string, partition int, offset bigint, key binary, value binary, schema_id int, error string, "
        "reason string, time timestamp",
    )


def test_dead_letters_are_kept_once(delta: Bed, tmp_path: Path) -> None:
    assert delta.spark is not None
    letters = DeltaDeadLetters(delta.spark, str(tmp_path / "lake"))
    assert letters.count(TABLE) == 0
    assert letters.append(dead_letters(delta, [1, 2]), progress(1, 1)) == 2
    # The same records again: by the same worker, then by the next one, with one more.
    assert letters.append(dead_letters(delta, [1, 2]), progress(1, 1)) == 0
    later = DeltaDeadLetters(delta.spark, str(tmp_path / "lake"))
    assert later.append(dead_letters(delta, [1, 2, 3]), progress(2, 1)) == 1
    other = TableId("shop", "it's")
    mine: Progress = progress(1, 1, table=other)
    assert later.append(dead_letters(delta, [1]), mine) == 1
    assert (later.count(TABLE), later.count(other)) == (3, 1)
    kept = delta.spark.sql(f"SELECT * FROM {letters.location} WHERE offset = 3").collect()[0]
    assert kept["value"] == b"\xff"
    assert (kept["table"], kept["pipeline"], kept["batch"], kept["schema_id"]) == (
        "shop.orders",
        "shop",
        1,
        7,
    )


def test_tables_that_keep_theirs_at_once_keep_each_its_own(delta: Bed, tmp_path: Path) -> None:
    """A thread has an object of its own; where two share one they do not mix either, and no view stays."""
    assert delta.spark is not None
    DeltaDeadLetters(delta.spark, str(tmp_path / "lake")).append(dead_letters(delta, [0]), progress(1, 1))
    shared = DeltaDeadLetters(delta.spark, str(tmp_path / "lake"))
    tables = [TableId("shop", f"t{number}") for number in range(3)]

    def keep(number: int) -> int:
        records = dead_letters(delta, list(range(100 * number, 100 * number + number + 1)))
        return shared.append(records, progress(1, 1, table=tables[number]))

    with ThreadPoolExecutor(len(tables)) as threads:
        assert list(threads.map(keep, range(len(tables)))) == [1, 2, 3]
    kept = delta.spark.sql(f"SELECT `table`, offset FROM {shared.location}").collect()
    assert sorted((row["table"], row["offset"]) for row in kept) == [
        ("shop.orders", 0), ("shop.t0", 0), ("shop.t1", 100), ("shop.t1", 101),
        ("shop.t2", 200), ("shop.t2", 201), ("shop.t2", 202),
    ]  # fmt: skip
    assert shared._session.catalog.listTables() == []
