"""Two writers of one table: who claims it in the middle of a batch wins, and at once they never both do."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest

from tests.contracts.conftest import MARKS
from tests.contracts.targets_bed import Bed, progress, row, shape
from tests.full import FULL
from tidesink.errors import StaleProgressError, TransientTargetError
from tidesink.sinks.targets.base import ApplyHooks, Claim, TargetTable

SHAPE = shape()
TURNS = 3


def opened(bed: Bed) -> TargetTable:
    """The table as another worker opens it."""
    return bed.reopen().open_table(SHAPE, pipeline="shop")


def beds(*full: str) -> pytest.MarkDecorator:
    """Every target but memory, which goes with its one worker; some in ``make test-all`` alone."""
    marked = {name: [*marks, *((FULL,) if name in full else ())] for name, marks in MARKS.items()}
    return pytest.mark.parametrize(
        "bed", [pytest.param(name, marks=marks) for name, marks in marked.items()], indirect=True
    )


def _claim(table: TargetTable, claims: list[Claim]) -> None:
    claims.append(table.claim())


@pytest.mark.law("L10")
@beds("http", "iceberg_jdbc")
def test_a_claim_between_what_is_staged_and_the_commit_wins(bed: Bed) -> None:
    holder = bed.target.open_table(SHAPE, pipeline="shop")
    epoch = holder.claim().epoch
    holder.apply(bed.batch(SHAPE, [row(1)]), progress(epoch, 1))
    changes = bed.batch(SHAPE, [row(1, "b"), row(2)], [{"id": 3}])
    # One without rows commits its progress in a way of its own.
    for number, batch in enumerate((bed.batch(SHAPE), changes), 2):
        other, claims, before = opened(bed), list[Claim](), bed.rows()
        claim = ApplyHooks(on_staged=partial(_claim, other, claims))
        with pytest.raises(StaleProgressError):
            holder.apply(replace(batch, hooks=claim), progress(epoch, number))
        epoch += 1
        assert claims == [Claim(epoch, progress(epoch, number - 1))]
        assert other.committed() == progress(epoch, number - 1)
        assert bed.rows() == before or not bed.keeps_rows
        other.apply(batch, progress(epoch, number))
        holder = other
    assert bed.rows() == [row(1, "b"), row(2)]


@pytest.mark.law("L10")
@beds("kafka", "http", "iceberg", "iceberg_jdbc", "mysql")
def test_two_workers_never_both_win(bed: Bed) -> None:
    """Both claim and write as fast as they can; what the table holds is what the winners were told."""
    opened(bed).close()
    start = threading.Barrier(2)
    epochs: list[int] = []
    won: list[tuple[int, int]] = []

    def work(number: int) -> None:
        table = opened(bed)
        start.wait(240)
        for key in range(number * 100, number * 100 + TURNS):
            try:
                claim = table.claim()
                epochs.append(claim.epoch)
                batch = (claim.progress.batch if claim.progress else 0) + 1
                table.apply(bed.batch(SHAPE, [row(key)]), progress(claim.epoch, batch))
                won.append((batch, key))
            except (StaleProgressError, TransientTargetError):
                continue

    with ThreadPoolExecutor(2) as both:
        list(both.map(work, (1, 2)))
    assert len(set(epochs)) == len(epochs)
    assert sorted(batch for batch, _ in won) == list(range(1, len(won) + 1))
    kept, reported = {r["id"] for r in bed.rows()}, {key for _, key in won}
    # What a loser had sent before it lost is sent: a reader tells it by its epoch.
    assert reported == kept if bed.keeps_rows else reported <= kept
    assert won
