"""Rows under a bound: which wait, what is counted, and where a range ends; and which bound comes next."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, Final

import pyarrow as pa
import pytest

from tests.decoded_batches import as_records
from tidesink import cuts
from tidesink.codecs.options import CanalJsonOptions
from tidesink.ddl.catalog import parse_create_table
from tidesink.ddl.row_changes import RowDdl
from tidesink.errors import ConfigError
from tidesink.events import Message, TableId
from tidesink.sinks.batch.tasks import RangeTask
from tidesink.sinks.decode.canal_json import canal_json_plan
from tidesink.sinks.decode.records import EventRules
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.laws.bound import (
    least_bound,
    next_bound,
    passed_partitions,
    stands_at,
    starts,
    topic_after,
)
from tidesink.sinks.laws.counts import BatchSummary, TopicPartition, account_of
from tidesink.sinks.schema_changes.row_ddl import up_to
from tidesink.sinks.state.progress import (
    LastRecord,
    PartitionProgress,
    Progress,
    TopicProgress,
    from_json,
    to_json,
)
from tidesink.sinks.targets.lake.cuts import Cut, likely_lost

SCHEMA: Final = parse_create_table("CREATE TABLE shop.t (id INT PRIMARY KEY)")
TABLE: Final = TableId("shop", "t")


def _row(commit_ts: int | None, key: int = 1) -> bytes:
    extension = {} if commit_ts is None else {"_tidb": {"commitTs": commit_ts}}
    row = {"id": 0, "database": "shop", "table": "t", "pkNames": ["id"], "isDdl": False, "type": "INSERT"}
    row |= {"es": 1, "ts": 1, "sql": "", "sqlType": {"id": 4}, "mysqlType": {"id": "int"}, "old": None}
    return json.dumps(row | {"data": [{"id": str(key)}]} | extension).encode()


def _mark(commit_ts: int) -> bytes:
    row: dict[str, Any] = {"id": 0, "database": "", "table": "", "pkNames": None, "isDdl": False, "es": 1}
    row |= {"type": "TIDB_WATERMARK", "ts": 1, "sql": "", "sqlType": None, "mysqlType": None}
    return json.dumps(row | {"data": None, "old": None, "_tidb": {"watermarkTs": commit_ts}}).encode()


def _ddl(commit_ts: int) -> bytes:
    row: dict[str, Any] = {"id": 0, "database": "shop", "table": "t", "pkNames": None, "isDdl": True, "es": 1}
    row |= {"type": "TRUNCATE", "ts": 1, "sql": "TRUNCATE TABLE t", "sqlType": None, "mysqlType": None}
    return json.dumps(row | {"data": None, "old": None, "_tidb": {"commitTs": commit_ts}}).encode()


def _summary(
    *values: bytes,
    bound: int | None,
    fetched: int = 100,
    sent: int | None = None,
    epochs: Sequence[int | None] = (),
) -> BatchSummary:
    """What a task counts of the records, of which it is given so many at once; ``sent``: in ms since 1970."""
    plan = canal_json_plan(SCHEMA, options=CanalJsonOptions(enable_tidb_extension=True))
    plan = plan.for_batch(1, EventRules(bound=bound), marks_deletes=False)
    messages = [Message("t", 0, at, None, value, sent) for at, value in enumerate(values)]
    records = as_records(messages)
    if epochs:
        records = records.append_column("leader_epoch", pa.array(epochs, pa.int32()))
    parts = [records.slice(at, fetched) for at in range(0, len(messages), fetched)]
    wanted = FetchRange("t", 0, 0, len(values))
    packed = list(RangeTask((wanted,), plan).packed(wanted, parts))
    errors = [row["error"] for one in packed for row in one.to_pylist() if row["error"]]
    assert not errors
    (head,) = (row for one in packed for row in one.to_pylist() if row["summary"])
    found: BatchSummary = pickle.loads(head["summary"])  # noqa: S301  (our own task's)
    assert head["records"] == found.counts.messages
    return found


@pytest.mark.parametrize("fetched", [1, 2, 100])
def test_rows_above_the_bound_wait_and_are_not_read(fetched: int) -> None:
    found = _summary(_row(5), _row(11, 2), _row(7), _row(12, 3), _mark(9), bound=10, fetched=fetched)
    place = found.places[TopicPartition("t", 0)]
    assert (place.waits, place.passed, place.max_commit_ts, place.watermark) == (1, None, 7, 9)
    counts = found.counts
    assert (counts.messages, counts.read, counts.filtered) == (5, 3, 1)
    assert (counts.upserts, counts.superseded) == (1, 1)
    account = account_of(counts, kafka_records=5, applied_rows=1, rejected=0)
    account.check(table="shop.t")
    assert account.read == 3


@pytest.mark.parametrize("fetched", [1, 3, 100])
def test_nothing_is_read_behind_the_first_watermark_that_passes_the_bound(fetched: int) -> None:
    found = _summary(
        _row(5), _mark(9), _row(11), _mark(10), _row(5), _mark(14), _row(9), bound=10, fetched=fetched
    )
    place = found.places[TopicPartition("t", 0)]
    assert (place.waits, place.passed, place.watermark) == (2, 3, 10)
    assert (found.counts.messages, found.counts.upserts) == (4, 1)


@pytest.mark.parametrize("fetched", [1, 3, 100])
@pytest.mark.parametrize(
    ("bound", "last"), [(10, LastRecord(3, 5)), (12, LastRecord(6, 7)), (None, LastRecord(6, 7))]
)
def test_the_last_record_that_was_read_is_told_with_its_leader_epoch(
    bound: int | None, last: LastRecord, fetched: int
) -> None:
    """Also of a record that is another table's, or none of a table."""
    values = [_row(5), _mark(9), _row(11), _mark(10), _row(5), _row(6), b'{"id":0}']
    found = _summary(*values, bound=bound, fetched=fetched, epochs=[4, 4, 4, 5, 5, 7, 7])
    assert found.places[TopicPartition("t", 0)].last == last
    assert _summary(*values, bound=bound, epochs=[None] * 7).places[TopicPartition("t", 0)].last is None
    assert _summary(*values, bound=bound).places[TopicPartition("t", 0)].last is None


def test_ddl_above_the_bound_is_met_again_under_the_next() -> None:
    """Or a table that was emptied, and has no row since, would stand at the next cut with its rows."""
    found = _summary(_row(5), _ddl(15), _mark(10), bound=10)
    place = found.places[TopicPartition("t", 0)]
    assert (place.waits, place.passed, found.counts.ddl) == (1, 2, 1)
    assert _summary(_row(5), _ddl(10), _mark(10), bound=10).places[TopicPartition("t", 0)].waits is None


@pytest.mark.parametrize(("days", "waits"), [(0, 1), (2, None)])
def test_ddl_that_is_later_than_its_record_waits_for_no_bound(days: int, waits: int | None) -> None:
    """Or the partition would be read again from there under every bound."""
    sent = 1_790_000_000_000
    ddl = sent + days * 86_400_000 << 18
    found = _summary(_row(5), _ddl(ddl), _mark(10), bound=10, sent=sent)
    assert (found.places[TopicPartition("t", 0)].waits, found.counts.ddl) == (waits, 1)


def test_without_a_bound_nothing_waits() -> None:
    found = _summary(_row(5), _mark(9), _row(11), _mark(10), _row(12), bound=None)
    place = found.places[TopicPartition("t", 0)]
    assert (found.counts.messages, found.counts.read, place.passed) == (5, 5, None)


def test_a_row_without_a_commit_ts_is_bad_under_a_bound() -> None:
    found = _summary(_row(None), bound=10)
    assert found.counts.bad == 1
    assert "whether the event belongs to a cut" in found.bad_records[0].reason
    assert _summary(_row(None), bound=None).counts.bad == 0


def _progress(bound: int | None, *parts: PartitionProgress) -> Progress:
    topics = {"t": TopicProgress("t", "id", dict(enumerate(parts)))}
    return Progress(TABLE, "p", 1, 1, topics, commit_ts=8, bound=bound)


def test_what_waits_is_read_again_under_another_bound() -> None:
    waits = _progress(10, PartitionProgress(50, 40, 8, 12))
    assert starts(waits, "t", 10) == {0: 50}
    assert starts(waits, "t", 20) == {0: 40}
    assert from_json(to_json(waits)) == waits
    assert stands_at(waits, "t", [0], 10)
    # The watermark is behind the rows that wait.
    assert not stands_at(waits, "t", [0], 11)
    after = topic_after(waits, "t", "id", {0: (45, None)}, 11).partitions[0]
    assert after == PartitionProgress(45, 45, 8, 10)


def test_a_partition_stands_by_watermarks_behind_it_too() -> None:
    idle = _progress(10, PartitionProgress(50, 50, 8, 12), PartitionProgress(50, 50, 8, 12))
    assert stands_at(idle, "t", [0, 1], 12)
    assert not stands_at(idle, "t", [0, 1], 13)
    assert stands_at(idle, "t", [0, 1], 13, {0: 14, 1: 13})
    assert passed_partitions(idle, "t", 13, {0: 14}) == {0}
    # A partition that was added, and one of which nothing is known.
    assert not stands_at(idle, "t", [0, 1, 2], 12)
    assert not stands_at(_progress(None, PartitionProgress(50, 50, 8, 12)), "t", [0], 12)


def test_the_next_bound_is_an_instant_that_the_source_has_passed() -> None:
    second = 1000 << 18
    assert next_bound(7 * second + 5, every=2, above=2 * second, least=None) == 6 * second
    assert next_bound(7 * second + 5, every=2, above=6 * second, least=None) == 8 * second
    assert next_bound(3 * second, every=2, above=None, least=6 * second) == 6 * second
    assert next_bound(3 * second, every=2, above=None, least=6 * second + 1) == 8 * second
    assert least_bound(_progress(5)) == 8
    assert least_bound(_progress(9)) == 9


def test_ddl_above_the_bound_waits() -> None:
    early, late, untimed = (
        RowDdl(TABLE, "truncate", "is emptied", "TRUNCATE t", str(at), at, 0) for at in (5, 15, None)
    )
    assert up_to([early, late, untimed], 10) == (early, untimed)
    assert up_to([early, late], None) == [early, late]


def test_of_a_version_with_many_files_those_are_looked_for_that_the_table_has_no_more() -> None:
    files = [f"{number}" for number in range(1000)]
    assert likely_lost(files[:50], files) == files[:50]
    assert likely_lost(files, files[5:]) == [*files[:5], *files[5:100]]
    some = likely_lost(files, [])
    assert (len(some), some[0], int(some[-1]) >= 900) == (100, "0", True)
    assert len(likely_lost(files[:101], [])) <= 100
    assert likely_lost([], files) == []


def _cut(second: int) -> Cut:
    time = datetime.fromtimestamp(second, timezone.utc)
    return Cut(second * 1000 << 18, time, datetime.now(timezone.utc), ())


def test_the_newest_cut_that_is_not_later_is_opened() -> None:
    kept = [_cut(30), _cut(20), _cut(10)]
    assert cuts.chosen(kept, None) is kept[0]
    assert cuts.chosen(kept, "1970-01-01T00:00:20Z") is kept[1]
    assert cuts.chosen(kept, "1970-01-01 00:00:29.999") is kept[1]
    assert cuts.chosen(kept, datetime.fromtimestamp(19, timezone.utc)) is kept[2]
    assert cuts.chosen(kept, kept[1].commit_ts) is kept[1]
    with pytest.raises(ConfigError, match=r"All stored cuts are later than .* The oldest cut is of"):
        cuts.chosen(kept, kept[2].commit_ts - 1)
    with pytest.raises(ConfigError, match="published no cut yet"):
        cuts.chosen([], None)
    with pytest.raises(ConfigError, match="is not a time"):
        cuts.chosen(kept, "yesterday")
