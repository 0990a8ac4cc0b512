"""The accounting law holds, and it can fail."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidesink.errors import AccountingError
from tidesink.sinks.laws.counts import Account, EventCounts, account_of


def _counts() -> EventCounts:
    # Ten events in ten records: two keys written, one of them by a key change, the rest as named.
    return EventCounts(
        messages=10, read=10, upserts=3, deletes=2, split_halves=1, superseded=4, filtered=1, bad=1
    )


def test_a_batch_that_adds_up() -> None:
    account = account_of(_counts(), kafka_records=10, applied_rows=5, rejected=1)
    assert account == Account(read=10, applied=4, superseded=4, without_row=1, dead_lettered=1)
    account.check(table="t")


@pytest.mark.parametrize(
    ("kafka", "rows", "rejected", "message"),
    [
        (11, 5, 1, "1 events are missing"),
        (10, 4, 1, "1 events are missing"),
        (10, 5, 0, "1 events are missing"),
        (9, 5, 1, "1 events are too many"),
    ],
)
def test_each_count_can_break_the_law(kafka: int, rows: int, rejected: int, message: str) -> None:
    account = account_of(_counts(), kafka_records=kafka, applied_rows=rows, rejected=rejected)
    with pytest.raises(AccountingError, match=message) as caught:
        account.check(table="shop.orders")
    assert caught.value.context == {"table": "shop.orders"}


def test_a_record_of_several_events_counts_as_several() -> None:
    counts = EventCounts(messages=2, read=5, upserts=5)
    account_of(counts, kafka_records=2, applied_rows=5, rejected=0).check(table="t")
    with pytest.raises(AccountingError):
        account_of(counts, kafka_records=3, applied_rows=5, rejected=0).check(table="t")


def test_counters_survive_the_state_store() -> None:
    account = Account(7, 3, 2, 1, 1, 4)
    assert Account.from_counters(account.as_counters()) == account
    assert Account.from_counters({"read": 1, "of an older version": 2}) == Account(read=1)
    assert account + account == Account(14, 6, 4, 2, 2, 8)


@pytest.mark.parametrize(("unmatched", "holds"), [(0, True), (8, True), (9, False), (-1, False)])
def test_what_a_filter_took_out_is_among_what_was_applied_or_superseded(unmatched: int, holds: bool) -> None:
    counts = replace(_counts(), unmatched=unmatched)
    account = account_of(counts, kafka_records=10, applied_rows=5, rejected=1)
    assert account.as_counters()["filtered_out"] == unmatched
    if holds:
        account.check(table="t")
        return
    with pytest.raises(AccountingError, match="rows that the filter removed does not match"):
        account.check(table="t")


@pytest.mark.law("L4")
@pytest.mark.parametrize(
    ("applied", "stale", "counted"),
    [(0, 2, (0, 1)), (1, 1, (0, 1)), (2, 0, (1, 0))],
    ids=["both", "half", "none"],
)
def test_a_key_change_that_is_older_than_what_is_stored_is_one_event(
    applied: int, stale: int, counted: tuple[int, int]
) -> None:
    counts = EventCounts(messages=1, read=1, upserts=1, deletes=1, split_halves=1)
    account = account_of(counts, kafka_records=1, applied_rows=applied, rejected=0, stale_rows=stale)
    account.check(table="shop.t")
    assert (account.applied, account.superseded) == counted
