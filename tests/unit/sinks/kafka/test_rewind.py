"""Where a table's topic may be read again from, and what its progress says until it has been."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from tests.unit.config.samples import CANAL_JSON, FLAT_AVRO, changed, right
from tests.unit.sinks.worker.bed import worker_context
from tidesink.config import TableConfig
from tidesink.errors import ConfigError
from tidesink.events import TableId
from tidesink.sinks.kafka.compaction import Compaction
from tidesink.sinks.kafka.offsets import KafkaOffsets, OffsetRange, PartitionOffsets, TopicOffsets
from tidesink.sinks.kafka.rewind import (
    beginning,
    offsets_at,
    refuse_meanwhile,
    rewound_offsets,
    steps_back,
    time_of_commit,
)
from tidesink.sinks.laws.bound import topic_after
from tidesink.sinks.runtime.control import (
    RewindControl,
    TableControl,
    change_control,
    read_controls,
)
from tidesink.sinks.state.progress import PartitionProgress, Progress, TopicProgress
from tidesink.sinks.state.sql_store import SqlStateStore
from tidesink.sinks.worker.rewind import Rewinds, again_only, rewind_details

ORDERS: Final = TableId("shop", "orders")
APPLIED: Final = TopicProgress("t", "id", {0: PartitionProgress(90, 90), 1: PartitionProgress(40, 40)})
FOUND: Final = TopicOffsets(
    "t", "id", {0: PartitionOffsets(10, 100), 1: PartitionOffsets(0, 40), 2: PartitionOffsets(0, 5)}
)
# Partition 1 was added when partition 0 ended at 50, and 2 when they ended at 80 and 30.
GROWN: Final = ({0: 50}, {0: 80, 1: 30})


def _settings(**defaults: Any) -> TableConfig:
    data = changed(FLAT_AVRO, source__enable_tidb_extension=True)
    return right(changed(data, defaults=defaults)).table_config(ORDERS)


def _refused(wanted: dict[int, int], settings: TableConfig | None = None, **more: Any) -> str:
    given: dict[str, Any] = {"progress": APPLIED, "found": FOUND, **more}
    with pytest.raises(ConfigError) as refused:
        rewound_offsets(given.pop("progress"), given.pop("found"), wanted, settings or _settings(), **given)
    assert refused.value.context["table"] == "shop.orders"
    return refused.value.message


def test_what_goes_back_and_what_stands_already() -> None:
    assert rewound_offsets(APPLIED, FOUND, {0: 10, 1: 40}, _settings()) == {0: 10}
    assert rewound_offsets(APPLIED, FOUND, {0: 89, 1: 0}, _settings()) == {0: 89, 1: 0}
    # A broker without topic ids tells nothing of them.
    unnamed = FOUND._replace(topic_id="AAAAAAAAAAAAAAAAAAAAAA")
    assert rewound_offsets(APPLIED, unnamed, {0: 20}, _settings()) == {0: 20}
    # A tombstone that was removed took the records before it along: what is left ends in the same rows.
    compacted = FOUND._replace(compaction=Compaction("compact", 1.0))
    assert rewound_offsets(APPLIED, compacted, {0: 20}, _settings()) == {0: 20}


@pytest.mark.parametrize(
    ("wanted", "more", "reason"),
    [
        ({0: 91}, {}, "Offset 91 of partition 0 is after the applied offset 90"),
        ({0: 20, 1: 41}, {}, "after the applied offset 40"),
        ({0: 9}, {}, "Kafka no longer has offset 9 of partition 0, whose first offset is 10"),
        ({2: 0}, {}, "Choose one of the partitions that it has read: 0, 1"),
        ({7: 0}, {}, "The table has not read partition 7"),
        ({0: 90}, {}, "already continues from the requested offset"),
        ({}, {}, "already continues from the requested offset"),
        ({0: 20}, {"progress": None}, "No record of the table is applied yet"),
        ({0: 20}, {"found": FOUND._replace(topic_id="new")}, "The topic was recreated"),
        ({0: 20}, {"topic_id": "old"}, "The topic was recreated"),
        ({0: 79}, {"grown": GROWN}, "when partition 0 ended at offset 80"),
        ({0: 85, 1: 29}, {"grown": GROWN}, "when partition 1 ended at offset 30"),
    ],
)
def test_what_would_lose_rows_or_keep_older_ones_is_refused(
    wanted: dict[int, int], more: dict[str, Any], reason: str
) -> None:
    assert reason in _refused(wanted, **more)


def test_what_expired_while_it_was_read_again_is_passed_over() -> None:
    """It was applied before the first rewind, and the table would stand still in front of it."""
    back = TopicProgress("t", "id", {0: PartitionProgress(2, 2, again_to=90), 1: PartitionProgress(40, 40)})
    assert rewound_offsets(back, FOUND, {0: 10}, _settings()) == {0: 10}
    assert _next(back, {0: (10, 10)}).read_again == {0: (10, 90)}
    assert beginning(back, FOUND)[0] == 10
    # What Kafka still holds is read again: rows from before it stepped back.
    assert "after the applied offset" in _refused({0: 11}, progress=back)
    gone = FOUND._replace(partitions={0: PartitionOffsets(95, 100)})
    assert "no longer has" in _refused({0: 90}, progress=back, found=gone)
    assert "after the applied offset" in _refused({0: 95}, progress=back, found=gone)
    assert "already continues from the requested offset" in _refused(
        {0: 2}, progress=back, found=FOUND._replace(partitions={0: PartitionOffsets(0, 95)})
    )


def test_a_pipeline_with_cuts_is_not_rewound_nor_a_table_that_is_loaded() -> None:
    own = {"source__enable_tidb_extension": True, "target": {"path": "./lake"}}
    refuse_meanwhile(right(changed(CANAL_JSON, **own)), ORDERS, loads=False)
    with pytest.raises(ConfigError, match="Remove cuts from the config"):
        refuse_meanwhile(right(changed(CANAL_JSON, **own, cuts={"every": "1m"})), ORDERS, loads=False)
    with pytest.raises(ConfigError, match="A snapshot of the table is running"):
        refuse_meanwhile(right(changed(CANAL_JSON, **own)), ORDERS, loads=True)


def test_modes_and_orders() -> None:
    assert "would be doubled" in _refused({0: 20}, _settings(mode="append"))
    for sound in (
        _settings(mode="history"),
        _settings(sequence_by="source"),
        _settings(ignore_null_updates=True),
        _settings(deletes="soft"),
    ):
        assert rewound_offsets(APPLIED, FOUND, {0: 20}, sound) == {0: 20}
    # Where positions are compared no key gets an older row, whatever partition it was in.
    for compared in (_settings(mode="history"), _settings(sequence_by="source")):
        assert rewound_offsets(APPLIED, FOUND, {0: 20}, compared, grown=GROWN) == {0: 20}
        assert not steps_back(compared)
    assert rewound_offsets(APPLIED, FOUND, {0: 80, 1: 30}, _settings(), grown=GROWN) == {0: 80, 1: 30}
    # What stands already is not asked where it could not go back to.
    assert rewound_offsets(APPLIED, FOUND, {0: 85, 1: 40}, _settings(), grown=({1: 45},)) == {0: 85}
    assert steps_back(_settings())


class _Brokers(KafkaOffsets):
    """Hold a record each second of 1970 from each partition's beginning on, numbered by that second."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    def _records_from(self, _topic: str, partitions: Any, time_ms: int) -> Any:
        from tidesink.sinks.kafka.offsets import FirstRecord

        found = {n: (max(FOUND.partitions[n].earliest, time_ms // 1000), n) for n in partitions}
        return {
            n: FirstRecord(at, at * 1000) for n, (at, _) in found.items() if at < FOUND.partitions[n].latest
        }


def test_a_time_is_an_offset_of_each_partition() -> None:
    brokers = _Brokers()
    assert offsets_at(APPLIED, FOUND, brokers, 30) == {0: 30, 1: 30}
    # What is not applied yet is read anyway, and of one partition nothing is that young.
    assert offsets_at(APPLIED, FOUND, brokers, 60) == {0: 60}
    assert offsets_at(APPLIED, FOUND, brokers, 95) == {}
    assert offsets_at(None, FOUND, brokers, 30) == {}
    # Partition 1 has its first record still, and partition 0 has not.
    with pytest.raises(ConfigError, match="partition 0 begins with offset 10, which was written later"):
        offsets_at(APPLIED, FOUND, brokers, 10)
    assert beginning(APPLIED, FOUND) == {0: 10, 1: 0}


TSO: Final = 1_795_230_876_969 << 18


def test_a_commit_is_sent_after_it_by_other_clocks() -> None:
    assert time_of_commit(TSO, TSO + 5) == 1_795_230_876.969 - 600
    for commit_ts, applied, reason in (
        (TSO, TSO - 1, f"newest applied change has commit_ts {TSO - 1}"),
        (TSO, None, "changes have no commit_ts. Specify a time"),
        (1_795_230_876_969, TSO, "is not a commit_ts"),
    ):
        with pytest.raises(ConfigError, match=reason):
            time_of_commit(commit_ts, applied)


def _next(progress: TopicProgress, ends: dict[int, tuple[int, int]]) -> TopicProgress:
    """The progress after a batch of ranges, by partition."""
    before = Progress(ORDERS, "shop", 1, 1, {"t": progress})
    read = {number: (end, None) for number, (_, end) in ends.items()}
    return topic_after(before, "t", FOUND.topic_id, read, None)


def test_progress_remembers_how_far_it_was() -> None:
    back = _next(APPLIED, {0: (20, 20)})
    assert back.read_again == {0: (20, 90)}
    assert back.partitions[1] == APPLIED.partitions[1]
    # A second one goes back further, and what was applied stays what it was.
    again = _next(_next(back, {0: (20, 50), 1: (40, 40)}), {0: (15, 15), 1: (5, 5)})
    assert again.read_again == {0: (15, 90), 1: (5, 40)}
    whole = [OffsetRange("t", 0, 15, 100), OffsetRange("t", 1, 5, 40), OffsetRange("t", 2, 0, 5)]
    only = again_only(whole, again)
    assert only == [OffsetRange("t", 0, 15, 90), OffsetRange("t", 1, 5, 40), OffsetRange("t", 2, 0, 0)]
    details = rewind_details(Progress(ORDERS, "shop", 1, 1, {"t": again}), "t")
    assert details == {"read_again": {"0": [15, 90], "1": [5, 40]}}
    done = _next(again, {0: (15, 90), 1: (5, 40), 2: (0, 0)})
    assert done.partitions[0] == APPLIED.partitions[0]
    assert done.read_again == {}
    assert again_only(whole, done) is None
    assert rewind_details(Progress(ORDERS, "shop", 1, 1, {"t": done}), "t") == {}
    assert again_only(whole, None) is None


def test_a_rewind_is_done_once_and_a_refused_one_is_over(tmp_path: Path) -> None:
    store = SqlStateStore(str(tmp_path / "state.db"))
    config = right(FLAT_AVRO)
    rewinds = Rewinds(worker_context(config, store=store), config.table_config(ORDERS))

    def ask(number: int, offsets: dict[int, int]) -> RewindControl:
        asked = RewindControl(number, "t", "id", tuple(sorted(offsets.items())))
        control = change_control(store, "shop", ORDERS, lambda known: known.rewound(asked))
        assert read_controls(store, "shop")[ORDERS] == control
        rewinds.asked = control.rewind
        assert control.rewind is not None
        return control.rewind

    progress = Progress(ORDERS, "shop", 1, 1, {"t": APPLIED})
    assert not rewinds.is_due(progress)
    change_control(store, "shop", ORDERS, TableControl.pause)
    first = ask(7, {0: 20})
    plan = rewinds.plan(progress, FOUND)
    assert plan is not None
    assert plan.ranges == (OffsetRange("t", 0, 20, 20),)
    # The worker was killed behind the commit: the target knows its number.
    done = Progress(ORDERS, "shop", 1, 2, {"t": APPLIED}, rewound=first.number)
    assert not rewinds.is_due(done)
    assert rewinds.plan(done, FOUND) is None
    # One that is asked meanwhile is another one, and stays when the first is over.
    second = ask(7, {0: 30})
    assert second.number == 8
    rewinds.asked = first
    rewinds.settle()
    assert read_controls(store, "shop")[ORDERS].rewind == second
    rewinds.asked = second
    assert rewinds.is_due(done)
    with pytest.raises(ConfigError, match="no longer has offset 30"):
        rewinds.plan(done, FOUND._replace(partitions={**FOUND.partitions, 0: PartitionOffsets(31, 100)}))
    assert read_controls(store, "shop")[ORDERS] == TableControl(rests=True)
    # What the worker read before the store took it is over, too.
    rewinds.asked = second
    assert not rewinds.is_due(done)
