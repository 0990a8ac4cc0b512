"""The worker's cuts: when one is published, what bound comes next, and who holds it back."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from tests.unit.config.samples import CANAL_JSON, changed, right
from tests.unit.sinks.worker.bed import worker_context
from tidesink.config.models import CutSettings
from tidesink.errors import (
    SourceUnavailableError,
    StaleProgressError,
    TargetError,
    TidesinkError,
    TransientTargetError,
)
from tidesink.events import TableId
from tidesink.sinks.cuts.bounds import Bounds, ConnectorBounds, WatermarkBounds
from tidesink.sinks.cuts.checkpoints import Checkpoint, ConnectorCheckpoints
from tidesink.sinks.cuts.publishing import Cuts, cut_status
from tidesink.sinks.kafka.offsets import NO_STARTS, Look, PartitionOffsets, TopicOffsets
from tidesink.sinks.laws.bound import least_bound
from tidesink.sinks.runtime.observers import Listeners, WorkerEvent
from tidesink.sinks.state.progress import PartitionProgress, Progress, TopicProgress
from tidesink.sinks.state.sql_store import SqlStateStore
from tidesink.sinks.targets.cuts import CutTable, TableVersion

SECOND: Final = 1000 << 18
CONFIG: Final = changed(
    CANAL_JSON, source__enable_tidb_extension=True, target={"path": "./lake"}, retry={"for": "0s"}
)


@dataclass
class _Log:
    """The table of cuts."""

    cuts: list[tuple[int, list[CutTable]]] = field(default_factory=list)
    times: list[datetime] = field(default_factory=list)
    without: list[set[str]] = field(default_factory=list)
    fails: TidesinkError | None = None
    slow: bool = False
    beats: threading.Event = field(default_factory=threading.Event)

    def hear(self, _event: WorkerEvent) -> None:
        """Take note of a sign of life, as the worker's heartbeat and its probes do."""
        self.beats.set()

    def last(self) -> int | None:
        return self.cuts[-1][0] if self.cuts else None

    def publish(
        self,
        commit_ts: int,
        tables: Iterable[CutTable],
        *,
        time: datetime,
        without: Collection[TableId],
        keep: float,
    ) -> None:
        assert keep > 0
        self.times.append(time)
        if self.fails is not None:
            raise self.fails
        if self.slow:
            assert self.beats.wait(60)
        self.cuts.append((commit_ts, list(tables)))
        self.without.append({one.name for one in without})


class _Table:
    """A table's task and its parts, as far as cuts ask them: one partition, read as the test says."""

    def __init__(self, name: str) -> None:
        self.table = TableId("shop", name)
        self.topic = name
        self.lag = self.applied = 0
        self.marks: dict[int, int] = {}
        self.ends: dict[int, int] | None = None
        self.start = SimpleNamespace(offsets=NO_STARTS)
        self.obstacle, self.stalled, self.lost, self.outside = "", False, False, False
        self.hold: Any = None
        self.failed: list[Exception] = []

    def read(self, bound: int, *, watermark: int | None, low: int = 9) -> None:
        """Have a batch applied under a bound."""
        part = PartitionProgress(9, low, watermark and watermark - 1, watermark)
        topics = {self.topic: TopicProgress(self.topic, "id", {0: part})}
        progress = Progress(self.table, "shop", 1, 7, topics, bound=bound)
        self.hold = SimpleNamespace(progress=progress, table=self)
        self.applied += 5

    def version_of(self, progress: Progress) -> TableVersion:
        if self.lost:
            raise StaleProgressError("another worker holds the table")
        return TableVersion(f"lake/{self.table}", progress.batch)

    @property
    def least_bound(self) -> int | None:
        return least_bound(self.progress, outside=self.outside) if self.progress else None

    @property
    def progress(self) -> Progress | None:
        return self.hold.progress if self.hold else None

    @property
    def topic_progress(self) -> TopicProgress | None:
        return self.progress.topics.get(self.topic) if self.progress else None

    @property
    def opened(self) -> _Table:
        return self

    @property
    def reading(self) -> _Table:
        return self

    @property
    def status(self) -> _Table:
        return self

    def unread(self, _found: TopicOffsets) -> int:
        return self.lag

    def fail(self, error: Exception) -> None:
        self.failed.append(error)
        self.obstacle = str(error)


class _Kept(_Table):
    """A table whose versions go unless they are kept, as Iceberg's do."""

    def __init__(self, name: str, log: _Log) -> None:
        super().__init__(name)
        self._log = log
        self.kept: list[tuple[int, int, int]] = []
        self.refuses: TidesinkError | None = None

    def keep_version(self, version: int, commit_ts: int, *, keep: float) -> None:
        assert keep == 604_800
        if self.refuses is not None:
            raise self.refuses
        self.kept.append((version, commit_ts // SECOND, len(self._log.cuts)))


class _Run:
    """Two tables, their cuts, and the turns of a worker."""

    def __init__(self, store: SqlStateStore) -> None:
        self.log, self.store = _Log(), store
        self.partitions = 1
        self.first: _Table = _Table("first")
        self.second: _Table = _Table("second")
        self.start()

    def start(self, bounds: Bounds | None = None) -> None:
        """A worker that knows nothing yet."""
        target: Any = SimpleNamespace(cut_log=lambda _pipeline: self.log)
        context = replace(worker_context(right(CONFIG), store=self.store), target=target)
        context = replace(context, listeners=Listeners((self.log,)))
        settings = CutSettings.model_validate({"every": "2s"})
        bounds = bounds or WatermarkBounds(context.source, settings.every, lambda _message: None)
        self.cuts = Cuts(context, settings, bounds)

    def turn(self, *busy: _Table, silent: Sequence[str] = ()) -> bool:
        tables = [self.first, self.second]
        ends = dict.fromkeys(range(self.partitions), PartitionOffsets(0, 0))
        found = {one.topic: TopicOffsets(one.topic, "id", ends) for one in tables}
        unanswered = {topic: SourceUnavailableError("no answer") for topic in silent}
        answered = {topic: one for topic, one in found.items() if topic not in unanswered}
        return self.cuts.turn(cast("Any", tables), cast("Any", busy), Look(answered, dict(unanswered)))

    @property
    def published(self) -> list[int]:
        return [commit_ts // SECOND for commit_ts, _ in self.log.cuts]

    @property
    def held_back(self) -> dict[str, str]:
        found = cut_status(self.store, "shop")
        assert found is not None
        return dict(found.held_back)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[_Run]:
    store = SqlStateStore(str(tmp_path / "state.db"))
    yield _Run(store)
    store.close()


def _stand(run: _Run, bound: int, *tables: _Table) -> None:
    for one in tables or (run.first, run.second):
        one.read(bound, watermark=bound + SECOND)


def test_a_cut_is_published_when_every_table_stands_at_it(run: _Run) -> None:
    run.first.read(10 * SECOND, watermark=10 * SECOND)
    run.second.read(10 * SECOND, watermark=None)
    run.second.lag = 3
    assert run.turn()
    assert (run.cuts.bound, run.published) == (10 * SECOND, [])
    assert run.held_back == {"shop.second": "3 records to read"}
    _stand(run, 10 * SECOND, run.second)
    # While a batch is under way nobody knows what its table holds.
    assert not run.turn(run.second)
    assert run.turn()
    assert (run.published, run.cuts.bound) == ([10], 12 * SECOND)
    assert [one.version for _, tables in run.log.cuts for one in tables] == [7, 7]
    assert run.held_back == {}


def test_a_version_is_kept_before_a_cut_names_it(run: _Run) -> None:
    """What nobody keeps is named by no cut."""
    run.second = second = _Kept("second", run.log)
    second.refuses = TransientTargetError("Others keep committing to the table.")
    _stand(run, 10 * SECOND)
    run.turn()
    run.turn()
    assert (run.published, run.cuts.bound, second.failed) == ([], 12 * SECOND, [])
    second.refuses = None
    _stand(run, 12 * SECOND)
    run.turn()
    assert (run.published, second.kept) == ([12], [(7, 12, 0)])


def test_changes_are_counted_from_cut_to_cut(run: _Run) -> None:
    _stand(run, 10 * SECOND)
    run.turn()
    run.turn()
    run.first.read(12 * SECOND, watermark=12 * SECOND)
    run.second.marks = {0: 12 * SECOND}
    run.turn()
    run.turn()
    assert run.published == [10, 12]
    assert [[one.changes for one in tables] for _, tables in run.log.cuts] == [[None, None], [5, 0]]


def test_a_worker_that_is_started_again_goes_on_above_what_is_applied_and_published(run: _Run) -> None:
    _stand(run, 10 * SECOND)
    run.turn()
    run.turn()
    run.start()
    # Both stand at the last cut still, which is not published again.
    assert run.turn()
    assert run.cuts.bound == 12 * SECOND
    run.start()
    run.first.read(16 * SECOND, watermark=None)
    run.turn()
    assert (run.cuts.bound, run.published) == (16 * SECOND, [10])


def test_a_table_that_is_opened_late_raises_the_bound(run: _Run) -> None:
    run.first.read(10 * SECOND, watermark=10 * SECOND)
    run.turn()
    assert run.cuts.bound == 10 * SECOND
    run.second.read(14 * SECOND, watermark=14 * SECOND)
    assert run.turn()
    assert (run.cuts.bound, run.published) == (14 * SECOND, [])


def test_a_table_that_waits_for_a_person_holds_back_the_cut_and_no_other_table(run: _Run) -> None:
    _stand(run, 10 * SECOND)
    run.second.obstacle = "PAUSED: a column was dropped"
    run.turn()
    assert (run.cuts.bound, run.published) == (12 * SECOND, [])
    assert run.held_back == {"shop.second": "PAUSED: a column was dropped"}
    _stand(run, 12 * SECOND, run.first)
    run.turn()
    run.second.obstacle = ""
    _stand(run, 14 * SECOND)
    run.turn()
    assert (run.cuts.bound, run.published) == (16 * SECOND, [14])


def test_a_table_that_is_loaded_is_left_out_and_holds_back_nothing(run: _Run) -> None:
    _stand(run, 10 * SECOND)
    run.second.outside = True
    # Parts of its snapshot are batches, nearly all the time.
    run.turn(run.second)
    run.turn(run.second)
    assert [(at // SECOND, [one.table.name for one in tables]) for at, tables in run.log.cuts] == [
        (10, ["first"])
    ]
    assert run.log.without == [{"second"}]
    found = cut_status(run.store, "shop")
    assert found is not None
    assert found.held_back == {"shop.first": "waiting for watermarks"}
    assert found.excluded == ("shop.second",)


def test_where_all_tables_are_loaded_the_bound_follows_what_they_have_passed(run: _Run) -> None:
    run.first.outside = run.second.outside = True
    run.first.read(10 * SECOND, watermark=10 * SECOND)
    run.second.read(10 * SECOND, watermark=None)
    run.turn(run.second)
    run.turn(run.second)
    assert (run.cuts.bound, run.published) == (12 * SECOND, [])
    # Nobody knows that the source has passed it.
    assert not run.turn()


def test_a_topic_without_an_answer_does_not_either(run: _Run) -> None:
    _stand(run, 10 * SECOND)
    run.turn(silent=["second"])
    assert (run.cuts.bound, run.published) == (12 * SECOND, [])
    assert run.held_back == {"shop.second": "no broker answers for its topic"}


def test_partitions_that_wait_for_later_rows_of_others_move_the_bound(run: _Run) -> None:
    _stand(run, 10 * SECOND)
    run.second.read(10 * SECOND, watermark=None)
    run.second.stalled = True
    run.turn()
    assert (run.cuts.bound, run.published) == (12 * SECOND, [])


class _Checkpoints:
    """A connector's checkpoint, and where partitions end."""

    def __init__(self) -> None:
        self.newest, self.reason = Checkpoint(10, 7.0), ""

    def look(self) -> None:
        """It is there."""

    def ends(self, partitions: Mapping[str, Iterable[int]]) -> dict[str, dict[int, int]]:
        return {topic: dict.fromkeys(numbers, 0) for topic, numbers in partitions.items()}


def test_a_partition_that_was_added_and_has_nothing_up_to_a_checkpoint_holds_back_no_table(
    run: _Run,
) -> None:
    """Nothing of it is read up to the bound, so that no batch brings it into the table's progress."""
    checkpoints = _Checkpoints()
    connector = ConnectorBounds(cast("ConnectorCheckpoints", checkpoints), 0.0)
    run.start(connector)
    for one in (run.first, run.second):
        one.read(10, watermark=None)
        one.marks, one.ends = {0: 10}, {0: 0}
    run.turn()
    run.turn()
    assert [at for at, _ in run.log.cuts] == [10]
    checkpoints.newest = Checkpoint(20, 8.0)
    run.turn()
    for one in (run.first, run.second):
        one.read(20, watermark=None)
        one.marks, one.ends = {0: 20}, {0: 0, 1: 4}
    run.partitions = 2
    run.turn()
    assert run.held_back.keys() == {"shop.first", "shop.second"}
    for one in (run.first, run.second):
        one.ends = {0: 0, 1: 0}
    run.turn()
    assert [at for at, _ in run.log.cuts] == [10, 20]
    assert run.held_back == {}


def test_a_cut_that_was_passed_over_is_tried_again_where_no_other_checkpoint_comes(run: _Run) -> None:
    """Nothing happens at the source: in a database the tables would stay as of the cut before."""
    now = 100.0
    run.start(ConnectorBounds(cast("ConnectorCheckpoints", _Checkpoints()), 60.0, clock=lambda: now))
    for one in (run.first, run.second):
        one.read(10, watermark=None)
        one.marks, one.ends = {0: 10}, {0: 9}
    run.log.fails = TargetError("no space")
    run.turn()
    run.turn()
    run.log.fails = None
    run.turn()
    assert (run.cuts.bound, len(run.log.times), run.log.cuts) == (10, 1, [])
    now += 60
    for _ in range(3):
        run.turn()
    assert [at for at, _ in run.log.cuts] == [10]


def test_no_version_is_named_of_a_table_that_another_worker_holds(run: _Run) -> None:
    _stand(run, 10 * SECOND)
    run.second.lost = True
    run.turn()
    run.turn()
    assert run.published == []
    assert [type(one) for one in run.second.failed] == [StaleProgressError]


def test_a_cut_that_cannot_be_written_is_passed_over(run: _Run) -> None:
    _stand(run, 10 * SECOND)
    run.log.fails = TargetError("no space")
    run.turn()
    assert (run.cuts.bound, run.published) == (12 * SECOND, [])
    run.log.fails = None
    _stand(run, 12 * SECOND)
    run.turn()
    assert run.published == [12]


def test_a_worker_gives_signs_of_life_while_a_cut_takes_its_time(run: _Run) -> None:
    run.log.slow = True
    _stand(run, 10 * SECOND)
    run.turn()
    assert run.published == [10]


def test_a_table_whose_rows_are_refused_by_a_cut_waits_for_a_person(run: _Run) -> None:
    _stand(run, 10 * SECOND)
    run.log.fails = refused = TargetError("a CHECK", table="shop.second")
    run.turn()
    assert (run.first.failed, run.second.failed) == ([], [refused])
    assert (run.cuts.bound, run.published) == (12 * SECOND, [])
