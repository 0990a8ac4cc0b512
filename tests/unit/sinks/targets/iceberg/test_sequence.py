"""What a snapshot's summary says of a batch in the source's order, held to the count of what is not newer."""

from __future__ import annotations

import pytest

from tests.contracts.targets_bed import shape
from tidesink.errors import AccountingError
from tidesink.sinks.targets.base import ApplyResult, ReducedBatch
from tidesink.sinks.targets.iceberg.merge import sequenced_result

BATCH = ReducedBatch(shape(), upserts=3, deletes=2, sequenced=True)


def never() -> int:
    raise AssertionError("nothing was left alone, so that nothing is to be counted")


def test_a_batch_whose_rows_are_all_written_is_not_counted_again() -> None:
    summary = {"added-records": 5, "added-position-deletes": 2}
    assert sequenced_result(summary, BATCH, stale=never, version="7") == ApplyResult(3, 2, 0, 0, "7")


def test_what_is_left_alone_is_what_is_not_newer() -> None:
    summary = {"added-records": 3, "added-position-deletes": 2}
    assert sequenced_result(summary, BATCH, stale=lambda: 2, version="7") == ApplyResult(1, 2, 0, 0, "7", 2)
    assert sequenced_result({}, BATCH, stale=lambda: 5, version="7") == ApplyResult(0, 0, 0, 0, "7", 5)


def test_files_written_anew_tell_of_what_was_inserted_alone() -> None:
    summary = {"added-records": 12, "deleted-records": 10}
    assert sequenced_result(summary, BATCH, stale=lambda: 1, version="7") == ApplyResult(2, 2, 0, 0, "7", 1)


@pytest.mark.parametrize(
    ("summary", "stale"),
    [
        ({"added-records": 3, "added-position-deletes": 2}, 1),
        ({"added-records": 3, "added-position-deletes": 2}, 3),
        ({"added-records": 6, "added-position-deletes": 0}, 0),
        ({"added-records": 12, "deleted-records": 10}, 4),
    ],
)
def test_other_numbers_stop_the_table(summary: dict[str, int], stale: int) -> None:
    with pytest.raises(AccountingError, match="not newer"):
        sequenced_result(summary, BATCH, stale=lambda: stale, version="7")
