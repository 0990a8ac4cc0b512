"""What is no row is counted by kind, and the watermark is the least of all partitions."""

from __future__ import annotations

import json

from tidesink.cli.status import without_row_lines
from tidesink.events import TableId
from tidesink.sinks.laws.counts import EventCounts, Filtered, filtered_of, least_watermark
from tidesink.sinks.state.progress import PartitionProgress, Progress, TableStatus, TopicProgress

ORDERS = TableId("shop", "orders")
ALTER = {"commit_ts": 5 << 18, "kind": "ALTER", "query": "ALTER TABLE t ADD c int"}


def passed(*watermarks: int | None) -> Progress:
    parts = {n: PartitionProgress(1, 1, None, mark) for n, mark in enumerate(watermarks)}
    return Progress(ORDERS, "shop", 1, 1, {"t": TopicProgress("t", "id", parts)})


def test_kinds_add_up_to_what_was_filtered() -> None:
    counts = EventCounts(filtered=9, ddl=2, watermarks=4)
    found = filtered_of(counts, ALTER)
    assert (found.ddl, found.watermarks, found.messages) == (2, 4, 3)
    both = found + filtered_of(EventCounts(filtered=1, watermarks=1))
    assert both == Filtered(2, 5, 3, ALTER)  # a batch without DDL leaves the last one known
    assert (both + Filtered(last_ddl={"commit_ts": 7})).last_ddl == {"commit_ts": 7}


def test_they_survive_the_state_store() -> None:
    found = Filtered(2, 5, 3, ALTER)
    assert Filtered.from_details(json.loads(json.dumps(found.as_details()))) == found
    assert Filtered.from_details({"topic": "t"}) == Filtered()


def test_the_watermark_is_what_every_partition_has_passed() -> None:
    assert least_watermark(passed(7, 3, 9), "t") == 3
    assert least_watermark(passed(7, None), "t") is None
    assert least_watermark(passed(), "t") is None
    assert least_watermark(passed(7), "other") is None


def test_status_says_them() -> None:
    details = {"watermark": 4 << 18, **Filtered(1, 2, 0, ALTER).as_details()}
    lines = without_row_lines(TableStatus("shop", ORDERS, "IDLE", details=details))
    assert lines[0] == "without row: 1 DDL events, 2 watermarks"
    assert lines[1].startswith("watermark: 1970-01-01 00:00:00.004 UTC, ")
    assert lines[2] == "last DDL at 1970-01-01 00:00:00.005 UTC: ALTER TABLE t ADD c int (kind ALTER)"
    assert without_row_lines(TableStatus("shop", ORDERS, "IDLE")) == []
