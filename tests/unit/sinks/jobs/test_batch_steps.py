"""The steps of a batch, and their order, for each kind of job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.memory_target import CAPABILITIES
from tests.unit.config.samples import CANAL_JSON, changed, right
from tidesink.ddl.row_changes import RowChange, RowDdl
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.sinks.batch.reports import KafkaRead
from tidesink.sinks.batch.tasks import RangeTask
from tidesink.sinks.decode.schema_source import SourceColumns
from tidesink.sinks.jobs.base import BatchOutcome, BatchPlan, Hold, Job, ReadingJob, Services, Verdict, Waits
from tidesink.sinks.jobs.changes import Changes
from tidesink.sinks.jobs.run import run_batch
from tidesink.sinks.kafka.offsets import OffsetRange, TopicOffsets
from tidesink.sinks.laws.counts import BatchSummary, EventCounts, PartitionSummary, TopicPartition
from tidesink.sinks.runtime.context import StopFlag
from tidesink.sinks.state.progress import DdlProgress, PartitionProgress, Progress, TopicProgress
from tidesink.sinks.targets.base import ApplyResult, EvolveResult, ReducedBatch, SchemaGap
from tidesink.sinks.worker.replay import LettersJob, replay_letters
from tidesink.sinks.worker.rewind import Rewind
from tidesink.sinks.worker.source_ddl import DdlDecision, DdlJob
from tidesink.typemap.target_schema import TargetSchema, shape_of

TABLE = TableId("shop", "orders")
COLUMNS = TableSchema(TABLE, (Column("id", ColumnType("int"), nullable=False, handle=True),))
PLAN = BatchPlan((OffsetRange("app", 0, 4, 9),), TopicOffsets("app", "id", {}), follows=lambda *_: True)
REWOUND = BatchPlan((OffsetRange("app", 0, 2, 2),), PLAN.found)
BEFORE = Progress(TABLE, "shop", 1, 7, {"app": TopicProgress("app", "id", {0: PartitionProgress(4, 4)})})
SUMMARY = BatchSummary(
    EventCounts(messages=5, read=5, upserts=5),
    places={TopicPartition("app", 0): PartitionSummary(4, 8)},
    max_commit_ts=50,
)
TRUNCATED = RowDdl.of(RowChange(TABLE, "truncate", ""), "TRUNCATE t", moment=40, offset=5)
NOT_KNOWN = RowDdl.of(RowChange(TABLE, "unknown", "rows may differ"), "REORDER t", moment=45, offset=6)


class _Bed:
    """A target, a state store, a decoding and an executor, all of which write down what they are asked."""

    def __init__(self, *statements: RowDdl, sequence_by: str = "kafka") -> None:
        self.said = list[str]()
        self.applied: list[tuple[ReducedBatch, Progress]] = []
        self.catch_up, self.row_ddl = self._saying("catch up"), lambda: statements
        self.hold = Hold(cast("Any", self), 2, BEFORE)
        context = SimpleNamespace(
            failpoints=SimpleNamespace(reach=self.said.append, if_armed=lambda _name: None),
            stop=StopFlag(),
            store=SimpleNamespace(record_progress=self._saying("store")),
            choices=SimpleNamespace(keep=self._saying("keep choices")),
            target=SimpleNamespace(capabilities=replace(CAPABILITIES, packed=True)),
        )
        settings = right(changed(CANAL_JSON, defaults__schema_changes={"truncate": "apply"})).table_config(
            TABLE
        )
        settings = settings.model_copy(update={"sequence_by": sequence_by})
        self.services = Services(cast("Any", context), cast("Any", self), settings, cast("Any", self))

    def _saying(self, what: str) -> Callable[..., None]:
        return lambda *_: self.said.append(what)

    # The decoding

    def reported(self) -> SourceColumns:
        return SourceColumns(COLUMNS)

    def read_as(self, _renamed: Mapping[str, str], _held: Mapping[str, str]) -> None:
        """The columns have their own names."""

    def columns(self) -> Any:
        decoder = SimpleNamespace(uses_timestamps=False, uses_headers=False)
        shape = shape_of(COLUMNS)
        plan = SimpleNamespace(shape=shape, packed_shape=shape, decoder=decoder)
        plan.for_batch = lambda *_rules, **_marks: plan
        return plan

    # The executor

    def run(self, task: RangeTask, reader: object, *, checkpoint: bool) -> Any:  # noqa: ARG002
        self.said.append("run tasks")
        return SimpleNamespace(
            summary=SUMMARY,
            read=KafkaRead(5, 100),
            staged=None,
            payloads=object(),
            frame=None,
            hashes=(),
            row_by_row_records=0,
            release=self._saying("release"),
        )

    # The table at the target

    def gap(self, _shape: TargetSchema) -> SchemaGap:
        return SchemaGap(("id",), (), {}, {"id": "int"})

    def evolve(self, _shape: TargetSchema) -> EvolveResult:
        self.said.append("evolve")
        return EvolveResult()

    def apply(self, batch: ReducedBatch, progress: Progress) -> ApplyResult:
        batch.hooks.on_staged()
        self.said.append("commit")
        self.applied.append((batch, progress))
        return ApplyResult(batch.upserts, 0, 0, 0, "v8")

    def run_batch(self, job: Job | ReadingJob) -> BatchOutcome:
        return run_batch(job, self.hold, self.services)


def test_changes_are_read_and_applied() -> None:
    bed = _Bed()
    outcome = bed.run_batch(Changes(PLAN, cast("Any", None)))
    assert bed.said == [
        "planned",
        "catch up",
        "run tasks",
        *("read", "decoded", "reduced"),
        *("store", "keep choices", "recorded"),
        *("evolve", "evolved"),
        "rejected",
        "committing",
        *("staged", "commit", "committed"),
        "accounted",
        "release",
    ]
    (partition,) = outcome.progress.topics["app"].partitions.values()
    assert (outcome.progress.batch, outcome.progress.epoch, partition.next_offset) == (8, 2, 9)
    assert (outcome.version, outcome.account and outcome.account.applied) == ("v8", 5)


_WITHOUT_RECORDS = [
    *("store", "keep choices", "recorded"),
    *("evolve", "evolved"),
    "committing",
    *("staged", "commit", "committed"),
    "accounted",
]


def test_ddl_that_empties_the_table_is_applied_before_the_records() -> None:
    bed = _Bed(TRUNCATED)
    outcome = bed.run_batch(Changes(PLAN, cast("Any", None)))
    assert bed.said == ["planned", "catch up", *_WITHOUT_RECORDS]
    ((batch, progress),) = bed.applied
    assert (batch.truncates, batch.empty, progress.emptied, progress.decided) == (True, False, 40, 40)
    assert progress.topics["app"].partitions[0].next_offset == 4
    assert outcome.read == KafkaRead(0, 0)


def test_a_batch_is_not_read_while_ddl_waits_for_a_person() -> None:
    """A table that waits is not emptied either, although that is decided."""
    bed = _Bed(TRUNCATED, NOT_KNOWN)
    outcome = bed.run_batch(Changes(PLAN, cast("Any", None)))
    assert bed.said == ["planned", "catch up"]
    assert [pending.change.kind for pending in outcome.pending] == ["unknown"]
    assert outcome.progress is BEFORE


class _Refusing(Changes):
    """Finds in the records that a change must be decided first."""

    def accept(self, *_: object) -> Verdict:
        return Waits()


def test_a_batch_is_not_applied_if_its_records_show_that_changes_wait() -> None:
    bed = _Bed()
    outcome = bed.run_batch(_Refusing(PLAN, cast("Any", None)))
    assert bed.said == ["planned", "catch up", "run tasks", "read", "decoded", "reduced", "release"]
    assert (outcome.progress, outcome.account) == (BEFORE, None)


@pytest.mark.parametrize("empties", [False, True])
def test_a_decision_on_ddl_reads_nothing(empties: bool) -> None:
    bed, decision = _Bed(), DdlDecision(DdlProgress("ddl", 3), empties=empties)
    bed.run_batch(DdlJob(REWOUND, decision, None))
    assert bed.said == ["planned", *_WITHOUT_RECORDS]
    ((batch, progress),) = bed.applied
    assert (batch.truncates, progress.ddl) == (empties, decision.ddl)


def test_a_rewind_reads_nothing() -> None:
    bed = _Bed()
    bed.run_batch(Rewind(REWOUND, 5))
    assert bed.said == ["planned", *_WITHOUT_RECORDS]
    ((batch, progress),) = bed.applied
    assert (batch.empty, progress.rewound, progress.topics["app"].partitions[0].next_offset) == (True, 5, 2)


def test_letters_are_read_and_applied_without_a_step_of_offsets() -> None:
    """The failpoint ``replayed`` follows when the letters are marked as done."""
    bed = _Bed(sequence_by="source")
    letters = tuple(SimpleNamespace(partition=0, offset=offset) for offset in range(4, 9))
    reader = SimpleNamespace(chosen=letters, letters=None, following=())
    done = replay_letters(LettersJob(PLAN, cast("Any", reader), cast("Any", None)), bed.hold, bed.services)
    assert bed.said == [
        "catch up",
        "run tasks",
        *("read", "decoded", "reduced"),
        *("store", "keep choices"),
        "evolve",
        *("staged", "commit"),
        "release",
    ]
    ((_, progress),) = bed.applied
    assert (progress.batch, progress.topics, progress.commit_ts) == (8, BEFORE.topics, 50)
    assert (done.version, done.account.applied, len(done.outcomes)) == ("v8", 5, 5)
