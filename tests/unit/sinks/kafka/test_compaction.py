"""Compacted topics: no delete is missed in silence, whenever cleaner and worker run; what is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.config.samples import CANAL_JSON, changed, right
from tests.unit.sinks.worker.bed import worker_context
from tests.worker_contexts import no_fetch
from tidesink.cli.table_plans import TablePlan, of_topic
from tidesink.config import Config
from tidesink.errors import ConfigError, SourceError
from tidesink.events import TableId
from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.kafka.compaction import CaughtUp, Compaction
from tidesink.sinks.kafka.offsets import NO_ID, PartitionOffsets, TopicOffsets
from tidesink.sinks.runtime.context import WorkerContext
from tidesink.sinks.runtime.control import MISSED, PLACE, Pauses
from tidesink.sinks.runtime.shared_reads import Topics
from tidesink.sinks.state.progress import PartitionProgress, Progress, TableStatus, TopicProgress
from tidesink.sinks.state.sql_store import SqlStateStore
from tidesink.sinks.worker.continuity import Continuity
from tidesink.sinks.worker.counters import TableCounters
from tidesink.sinks.worker.open_table import OpenTable
from tidesink.sinks.worker.replay import ReplayTask

DAY: Final = 86_400.0
COMPACTED: Final = Compaction("compact", DAY)
ORDERS: Final = TableId("shop", "orders")


class _Record:
    """A change of a row; ``horizon``: when the cleaner may remove a delete that it has met."""

    def __init__(self, offset: int, time: float, key: int, value: int | None) -> None:
        self.offset, self.time, self.key, self.value = offset, time, key, value
        self.horizon: float | None = None


@dataclass
class _Partition:
    """A compacted partition, cleaned as Kafka's LogCleaner does, up to any offset."""

    records: list[_Record] = field(default_factory=list)
    end: int = 0

    def write(self, now: float, key: int, value: int | None) -> None:
        self.records.append(_Record(self.end, now, key, value))
        self.end += 1

    def clean(self, now: float, upto: int) -> None:
        last = {one.key: one.offset for one in self.records if one.offset < upto}
        kept = []
        for one in self.records:
            if one.offset < upto:
                if one.offset < last[one.key] or (one.horizon is not None and now >= one.horizon):
                    continue
                if one.value is None and one.horizon is None:
                    one.horizon = now + COMPACTED.delete_retention
            kept.append(one)
        self.records = kept

    def first_since(self, since: float) -> int | None:
        return next((one.offset for one in self.records if one.time >= since), None)


@dataclass
class _Worker:
    """Reads a partition into rows, and asks before each batch whether it may."""

    rows: dict[int, int] = field(default_factory=dict)
    next: int = 0
    batch: int = 0
    caught_up: CaughtUp = field(default_factory=CaughtUp)
    saved: dict[str, Any] = field(default_factory=dict)

    def look(self, partition: _Partition, now: float) -> None:
        self.caught_up.see({0: partition.end}, {0: self.next}, batch=self.batch, now=now)
        if self.caught_up.is_due(COMPACTED):
            self.saved = self.caught_up.as_detail()

    def start_again(self, *, store_lost: bool) -> None:
        self.caught_up = CaughtUp() if store_lost else CaughtUp.known(self.saved)

    def may_read(self, partition: _Partition, now: float) -> bool:
        if self.batch == 0:
            self.caught_up.begin(now, 0)
        elif self.next < partition.end and not self.caught_up.holds(COMPACTED, now):
            since = now - COMPACTED.safe_seconds
            first = partition.first_since(since)
            if first is None or self.next < first:
                return False
            self.caught_up.begin(since, self.batch)
        self.saved = self.caught_up.as_detail()
        return True

    def read(self, partition: _Partition, most: int) -> None:
        end = min(partition.end, self.next + most)
        for one in partition.records:
            if self.next <= one.offset < end:
                if one.value is None:
                    self.rows.pop(one.key, None)
                else:
                    self.rows[one.key] = one.value
        self.next, self.batch = end, self.batch + 1


Steps = Iterable[tuple[str, int, int, float]]
_STEPS: Final = st.lists(
    st.tuples(
        st.sampled_from(
            ["put", "delete", "clean", "clean", "look", "read", "rewind", "restart", "lose the store"]
        ),
        st.integers(0, 1),
        st.integers(1, 3),
        st.sampled_from([1.0, 20_000.0, 50_000.0]),
    ),
    min_size=4,
    max_size=25,
)


def _run(steps: Steps, *, checked: bool = True) -> tuple[dict[int, int], dict[int, int]] | None:
    """The rows at the source and at the target once all is read; None where the worker stopped."""
    partition, worker, source, now = _Partition(), _Worker(), dict[int, int](), 1e9
    for step, key, number, pause in [*steps, ("read", 0, 10**6, 0.0)]:
        now += pause
        if step == "put":
            source[key] = number
            partition.write(now, key, number)
        elif step == "delete":
            source.pop(key, None)
            partition.write(now, key, None)
        elif step == "clean":
            partition.clean(now, partition.end - number // 3)
        elif step == "look":
            worker.look(partition, now)
        elif step == "rewind":
            worker.next = max(0, worker.next - number)
        elif step in ("restart", "lose the store"):
            worker.start_again(store_lost=step != "restart")
        else:
            worker.look(partition, now)
            if not worker.may_read(partition, now) and checked:
                return None
            worker.read(partition, number)
    return source, worker.rows


@given(_STEPS)
def test_a_table_that_goes_on_lacks_no_delete(steps: Steps) -> None:
    ended = _run(steps)
    assert ended is None or ended[0] == ended[1]


MISSES: Final = [
    ("put", 0, 1, 1.0),
    ("read", 0, 8, 1.0),
    ("delete", 0, 1, 1.0),
    ("clean", 0, 1, 1.0),
    ("clean", 0, 1, DAY),
]


def test_a_delete_that_was_removed_unread_stops_the_table() -> None:
    assert _run(MISSES, checked=False) == ({}, {0: 1})
    assert _run(MISSES) is None
    # Read before it was removed, in a table that was idle for long, or whose worker saved it.
    assert _run([*MISSES[:4], ("read", 0, 8, 3_600.0)]) == ({}, {})
    idle = [*MISSES[:2], ("look", 0, 1, 2 * DAY), ("restart", 0, 1, 1.0), *MISSES[2:4]]
    assert _run(idle) == ({}, {})
    # Without the store, by the records that are left.
    assert _run([*MISSES[:2], ("lose the store", 0, 1, 2 * DAY), *MISSES[2:3]]) == ({}, {})


def test_a_first_load_is_safe_as_long_as_it_does_not_take_too_long() -> None:
    old = [("put", 0, 1, 1.0), ("put", 1, 1, 1.0), ("delete", 0, 1, 1.0)]
    assert _run([*old, ("clean", 0, 1, 5 * DAY), ("clean", 0, 1, 5 * DAY)]) == ({1: 1}, {1: 1})
    slow = [*old, ("read", 0, 1, DAY), ("clean", 0, 1, 1.0), ("clean", 0, 1, DAY)]
    assert _run(slow, checked=False) == ({1: 1}, {0: 1, 1: 1})
    assert _run(slow) is None


def test_what_a_backup_took_away_was_not_read() -> None:
    """Nor what another place of the table had."""
    progress = Progress(ORDERS, "shop", 1, 7)
    details = {PLACE: "lake/a", "caught-up": {"time": 5.0, "batch": 7}}
    status = TableStatus("shop", ORDERS, "IDLE", batch=7, details=details)
    for place, batch, time in (("lake/a", 7, 5.0), ("lake/a", 6, None), ("lake/b", 7, None)):
        counters = TableCounters()
        counters._adopt(status)
        counters.stands(replace(progress, batch=batch), place)
        assert counters.caught_up.time == time


def _avro(**defaults: Any) -> dict[str, Any]:
    source = {"brokers": "127.0.0.1:1", "protocol": "flat-avro", "topics": "{schema}_{table}"}
    return changed(CANAL_JSON, source={**source, "schema-registry": "http://127.0.0.1:1"}, defaults=defaults)


def _debezium(protocol: str, **more: Any) -> dict[str, Any]:
    source = {"brokers": "127.0.0.1:1", "protocol": protocol, "topics": "app.{schema}.{table}"}
    return changed(CANAL_JSON, source={**source, **more})


def _found(**more: Any) -> TopicOffsets:
    return TopicOffsets("t", "id", {0: PartitionOffsets(0, 9)}, COMPACTED)._replace(**more)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStateStore]:
    opened = SqlStateStore(str(tmp_path / "state.db"))
    yield opened
    opened.close()


REFUSED: Final = [
    (CANAL_JSON, "Records of canal-json have no key"),
    (_avro(mode="append"), "mode: append keeps every change"),
    (
        changed(_avro(mode="history"), source__enable_tidb_extension=True),
        "mode: history keeps every change",
    ),
    (_avro(ignore_null_updates=True), "builds a row from all its changes"),
    (
        _debezium("debezium-json"),
        "a tombstone does not count as a delete. Remedy: set source.debezium.unwrapped: true",
    ),
    (
        _debezium("debezium-avro", **{"schema-registry": "http://127.0.0.1:1"}),
        "a tombstone does not count as a delete. Remedy: set cleanup.policy=delete",
    ),
]


@pytest.mark.parametrize(("data", "reason"), REFUSED)
def test_tables_that_compaction_would_damage_are_refused(
    data: dict[str, Any], reason: str, store: SqlStateStore
) -> None:
    config = right(data)
    checks = Continuity(worker_context(config, store=store), "t", config.table_config(ORDERS))
    checks.refuse_mode(_found(compaction=None))
    with pytest.raises(ConfigError, match=reason):
        checks.refuse_mode(_found())
    planned = of_topic(config, TablePlan(ORDERS, "t"), _found())
    assert reason in str(planned.problem)


@pytest.mark.parametrize("data", [_avro(), _debezium("debezium-json", debezium={"unwrapped": True})])
def test_a_plan_says_how_long_a_table_may_stand_still(data: dict[str, Any]) -> None:
    config, plan = right(data), TablePlan(ORDERS, "t", warnings=("before",))
    planned = of_topic(config, plan, _found())
    assert planned.problem is None
    assert "removes deletes after 24 h (delete.retention.ms)" in planned.warnings[1]
    assert of_topic(config, plan, _found(compaction=None)) == plan
    (_, unnamed) = of_topic(config, plan, _found(compaction=None, topic_id=NO_ID)).warnings
    assert "assigns no ids to topics" in unnamed


class _Brokers:
    """Hold one compacted topic, and say that the first record since any time has this offset."""

    def __init__(self) -> None:
        self.first: dict[int, int] = {}

    def lookup(self, topics: Iterable[str]) -> dict[str, TopicOffsets]:
        return {topic: _found() for topic in topics}

    def first_since(self, _topic: str, _partitions: Any, _seconds: float) -> dict[int, int]:
        return self.first


def _config() -> Config:
    return right(_avro())


def _beside(brokers: _Brokers, store: SqlStateStore) -> WorkerContext:
    topics = Topics("shop", KafkaSource(no_fetch), store, ask=lambda: cast("Any", brokers))
    return replace(worker_context(_config(), store=store), topics=topics)


def test_a_person_may_accept_that_deletes_are_missing(store: SqlStateStore) -> None:
    config, pauses, brokers = _config(), Pauses(ORDERS), _Brokers()
    checks = Continuity(_beside(brokers, store), "t", config.table_config(ORDERS))
    progress = TopicProgress("t", "id", {0: PartitionProgress(5, 5)})

    def check(progress: TopicProgress | None, caught_up: CaughtUp) -> CaughtUp:
        checks.check(progress, _found(), batch=3, caught_up=caught_up, pauses=pauses)
        return caught_up

    with pytest.raises(SourceError, match=r"Deletes may be missing.*tidesink resume shop\.orders --accept"):
        check(progress, CaughtUp())
    shown = pauses.details()[MISSED]
    assert shown["text"].startswith("Deletes may be missing")
    pauses.accepted = {shown["digest"]: "apply"}
    accepted = check(progress, CaughtUp())
    assert accepted.holds(COMPACTED, accepted.time or 0.0)
    assert pauses.details() == {}
    # It was of this gap: the next one is another.
    later = TopicProgress("t", "id", {0: PartitionProgress(6, 6)})
    with pytest.raises(SourceError, match="Deletes may be missing"):
        check(later, CaughtUp())
    brokers.first = {0: 6}
    assert check(later, CaughtUp()).time is not None
    # Nothing is in the table yet, so nothing can be missing from it.
    brokers.first = {}
    assert check(None, CaughtUp()).time is not None
    assert check(replace(later, partitions={0: PartitionProgress(9, 9)}), CaughtUp()).time is not None


def test_letters_are_not_replayed_from_a_compacted_topic(store: SqlStateStore) -> None:
    nothing: Any = None
    context = _beside(_Brokers(), store)
    opened = OpenTable(context, "t", ORDERS, TableCounters(), Pauses(ORDERS))
    with pytest.raises(
        ConfigError, match=r"cleanup\.policy=compact\. Compaction may have removed newer changes"
    ):
        ReplayTask(context, opened).replay(nothing, nothing)
