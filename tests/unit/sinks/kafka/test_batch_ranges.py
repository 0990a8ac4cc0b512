"""Bounds of a batch, partitions that are added, and what must stop a table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidesink.errors import ConfigError, SourceError
from tidesink.events import TableId
from tidesink.sinks.kafka.offsets import (
    FIRST_RECORD_BYTES,
    AddedPartitions,
    OffsetRange,
    PartitionOffsets,
    RecordSize,
    TopicOffsets,
    budget_of,
    check_continuity,
    cut_before,
    growing_parts,
    plan_ranges,
    sample_size,
    topic_progress,
)
from tidesink.sinks.state.progress import PartitionProgress, Progress, TopicProgress


def _available(*records: int) -> list[OffsetRange]:
    return [OffsetRange("t", number, 100, 100 + count) for number, count in enumerate(records)]


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=8), st.integers(1, 2000))
def test_a_batch_holds_what_it_may_and_no_more(records: list[int], most: int) -> None:
    planned = plan_ranges(_available(*records), max_records=most)
    assert sum(part.records for part in planned) == min(most, sum(records))
    assert all(
        part.start == 100 and part.end <= 100 + there for part, there in zip(planned, records, strict=True)
    )


def test_every_partition_gets_its_share() -> None:
    planned = plan_ranges(_available(1000, 10, 1000), max_records=110)
    assert [part.records for part in planned] == [50, 10, 50]


def test_a_batch_of_one_record_moves_on() -> None:
    assert sum(part.records for part in plan_ranges(_available(5, 5), max_records=1)) == 1


def test_bytes_bound_a_batch_by_the_records_seen() -> None:
    size = RecordSize()
    assert budget_of(500_000, 256 * 2**20, size) == int(256 * 2**20 / FIRST_RECORD_BYTES)
    size.learn(10, 1000)
    assert budget_of(500_000, 10_000, size) == 100
    size.learn(1, 10_000_000)
    assert budget_of(500_000, 10_000, size) == 1


@pytest.mark.parametrize("heavy", ["beginning", "middle"])
def test_a_first_batch_is_as_large_as_the_heavier_sample_allows(heavy: str) -> None:
    size, asked = RecordSize(), []

    def weigh(part: OffsetRange) -> tuple[int, int]:
        asked.append(part)
        return part.records, part.records * (200 if (part.start == 100) is (heavy == "beginning") else 100)

    sample_size(size, _available(10, 1_000_000), weigh)
    assert [(part.partition, part.start, part.records) for part in asked] == [
        (1, 100, 500),
        (1, 500_100, 500),
    ]
    assert budget_of(10_000_000, 2**30, size) == 2**30 // 200


def test_samples_without_a_record_leave_the_guess() -> None:
    size = RecordSize()
    sample_size(size, _available(1_000), lambda _part: (0, 0))
    assert size.estimate == FIRST_RECORD_BYTES


def test_new_partitions_wait_for_the_old_ones() -> None:
    added = AddedPartitions()
    two = {0: PartitionOffsets(0, 50), 1: PartitionOffsets(0, 60)}
    assert added.readable({}, two) == (0, 1)
    assert added.readable({0: 10, 1: 60}, two) == (0, 1)
    three = {**two, 2: PartitionOffsets(0, 5)}
    assert added.readable({0: 10, 1: 60}, three) == (0, 1)
    grown = {**three, 0: PartitionOffsets(0, 500)}
    assert added.readable({0: 49, 1: 60}, grown) == (0, 1)
    # The end that counts is the one when the new partition was noticed: 50, not 500.
    assert added.readable({0: 50, 1: 60}, grown) == (0, 1, 2)


def _found(topic_id: str = "id", earliest: int = 0, latest: int = 100) -> TopicOffsets:
    return TopicOffsets("t", topic_id, {0: PartitionOffsets(earliest, latest)})


def _at(offset: int, partition: int = 0) -> TopicProgress:
    return TopicProgress("t", "id", {partition: PartitionProgress(offset, offset)})


def test_a_topic_that_goes_on_is_fine() -> None:
    check_continuity(_at(50), _found())
    check_continuity(_at(100), _found(earliest=100))


GROWN_LATE = TopicOffsets("t", "id", {0: PartitionOffsets(0, 100), 1: PartitionOffsets(7, 9)})


@pytest.mark.parametrize(
    ("progress", "found", "message"),
    [
        (_at(50), GROWN_LATE, "Offsets 0 to 6 expired before they were read"),
        (_at(50), None, "The topic was deleted"),
        (_at(50), _found(topic_id="other"), "deleted and recreated"),
        (_at(50), _found(earliest=60), "Offsets 50 to 59 expired before they were read"),
        (_at(500), _found(), "ends at offset 100, before the last applied offset"),
        (_at(50, partition=3), _found(), "Kafka no longer has this partition"),
    ],
)
def test_a_gap_stops_the_table(progress: TopicProgress, found: TopicOffsets | None, message: str) -> None:
    with pytest.raises(SourceError, match=message) as caught:
        check_continuity(progress, found)
    assert caught.value.remedy == "stop"
    assert "Nothing was read or skipped" in caught.value.message


def test_a_batch_ends_before_a_bad_record() -> None:
    cut = cut_before(_available(10, 10), {("t", 1): 104})
    assert [part.records for part in cut] == [10, 4]


def test_growing_parts_name_every_offset_once() -> None:
    available = [OffsetRange("t", 0, 5, 100), OffsetRange("t", 1, 0, 3), OffsetRange("t", 2, 7, 7)]
    parts = list(growing_parts(available, 8))
    assert [sum(one.records for one in part) for part in parts] == [8, 16, 32, 42]
    for number, (_, _, start, end) in enumerate(available):
        offsets = [at for part in parts for at in range(part[number].start, part[number].end)]
        assert offsets == list(range(start, end))


def test_a_table_stays_with_its_topic() -> None:
    fresh = Progress(TableId("shop", "orders"), "shop", 1, 0)
    assert topic_progress(fresh, "new") is None
    fed = Progress(TableId("shop", "orders"), "shop", 1, 7, {"old": _at(50)})
    assert topic_progress(fed, "old") == _at(50)
    with pytest.raises(ConfigError, match=r"shop\.orders has read topic old until now.* names new.*again"):
        topic_progress(fed, "new")
