"""Topics without an id: that one was made again shows by its ends, and by the records that it begins with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tidesink.errors import SourceError
from tidesink.events import TableId
from tidesink.sinks.kafka.offsets import (
    NO_ID,
    FirstRecord,
    PartitionOffsets,
    TopicGrowth,
    TopicOffsets,
    check_continuity,
)
from tidesink.sinks.state.progress import PartitionProgress, TopicProgress
from tidesink.sinks.state.sql_store import SqlStateStore
from tidesink.sinks.worker.continuity import FirstRecords


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStateStore]:
    opened = SqlStateStore(str(tmp_path / "state.db"))
    yield opened
    opened.close()


class _Brokers:
    """Holds the first record of each partition; counts how often it is asked."""

    def __init__(self, **first: tuple[int, int]) -> None:
        self.first = {int(name[1:]): FirstRecord(*one) for name, one in first.items()}
        self.asked = 0

    def first_records(self, _topic: str, _partitions: list[int]) -> dict[int, FirstRecord]:
        self.asked += 1
        return self.first


def _found(topic_id: str = NO_ID, *, latest: int = 9) -> TopicOffsets:
    return TopicOffsets("t", topic_id, {0: PartitionOffsets(0, latest), 1: PartitionOffsets(0, 0)})


def _read(topic_id: str = NO_ID, offset: int = 5) -> TopicProgress:
    return TopicProgress("t", topic_id, {0: PartitionProgress(offset, offset), 1: PartitionProgress(0, 0)})


def _check(
    store: SqlStateStore,
    brokers: _Brokers,
    progress: TopicProgress | None = None,
    found: TopicOffsets | None = None,
) -> FirstRecords:
    """A worker that was just started checks the topic."""
    first = FirstRecords(TableId("shop", "orders"), "t", pipeline="shop", store=store)
    first.check(progress, found or _found(), lambda: cast("Any", brokers))
    return first


@pytest.mark.parametrize("now", [(0, 1001), (3, 1000)])
def test_another_first_record_is_another_topic(store: SqlStateStore, now: tuple[int, int]) -> None:
    _check(store, _Brokers(p0=(4, 1000)))
    _check(store, _Brokers(p0=(4, 1000)), _read())
    # The oldest records expired; and the partition is empty for a while.
    _check(store, _Brokers(p0=(7, 1005)), _read())
    _check(store, _Brokers(), _read())
    with pytest.raises(SourceError, match=r"recreated \(partition 0 begins with offset \d of time \d+, and"):
        _check(store, _Brokers(p0=now), _read())
    # The table is loaded again from the new topic.
    _check(store, _Brokers(p0=now))
    _check(store, _Brokers(p0=now), _read())


def test_the_same_offset_has_the_same_time(store: SqlStateStore) -> None:
    _check(store, _Brokers(p0=(0, 1000)))
    with pytest.raises(
        SourceError, match="begins with offset 0 of time 2000, and began with offset 0 of time"
    ):
        _check(store, _Brokers(p0=(0, 2000)), _read())


def test_what_is_known_is_not_asked_again(store: SqlStateStore) -> None:
    brokers = _Brokers(p0=(0, 1000))
    first = _check(store, brokers, _read())
    for _ in range(3):
        first.check(_read(), _found(), lambda: cast("Any", brokers))
    assert brokers.asked == 1
    # A partition that has got its first record since.
    filled = _found()._replace(partitions={0: PartitionOffsets(0, 9), 1: PartitionOffsets(0, 1)})
    first.check(_read(), filled, lambda: cast("Any", brokers))
    assert brokers.asked == 2


def test_ids_are_believed_where_there_are_any(store: SqlStateStore) -> None:
    brokers = _Brokers(p0=(0, 1000))
    _check(store, brokers, None, _found("id"))
    _check(store, brokers, _read("id"), _found("id"))
    assert brokers.asked == 0
    check_continuity(_read("id"), _found("id"))
    with pytest.raises(SourceError, match="its topic id is other, the progress has id"):
        check_continuity(_read("id"), _found("other"))


def test_a_broker_that_learns_to_give_ids_makes_no_topic_again(store: SqlStateStore) -> None:
    growth = TopicGrowth("t", pipeline="shop", store=store)
    one = _found()._replace(partitions={0: PartitionOffsets(0, 9)})
    assert growth.see(one) == ()
    assert growth.see(_found()) == ({0: 9},)
    assert growth.see(_found("id")) == ({0: 9},)
    assert growth.see(_found("other")) == ()
    check_continuity(_read(), _found("id"))
    _check(store, _Brokers(p0=(0, 1000)), _read())
    _check(store, _Brokers(p0=(0, 1000)), _read(), _found("id"))
    with pytest.raises(SourceError, match="recreated"):
        _check(store, _Brokers(p0=(0, 2000)), _read(), _found("id"))


def test_an_end_below_what_was_read_is_another_topic_too() -> None:
    with pytest.raises(
        SourceError, match=r"recreated \(partition 0 ends at 9, but was read to 12; it has no"
    ):
        check_continuity(_read(offset=12), _found())
    check_continuity(_read(offset=9), _found())
