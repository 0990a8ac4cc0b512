"""Which rows a target is given: as the tasks packed them, or a frame of them too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.memory_target import CAPABILITIES
from tests.unit.config.samples import CANAL_JSON, FLAT_AVRO, changed, right
from tidesink.config import TableConfig
from tidesink.errors import TransientTargetError
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.sinks.batch.reports import KafkaRead
from tidesink.sinks.batch.tasks import RangeTask
from tidesink.sinks.decode.schema_source import SourceColumns
from tidesink.sinks.jobs.base import BatchPlan, Hold, Packed, Reduction, Services, Settled, Staged
from tidesink.sinks.jobs.changes import Changes
from tidesink.sinks.jobs.reading import BatchSchema, Reading, Staging, Steps
from tidesink.sinks.jobs.run import BatchRun, run_batch
from tidesink.sinks.kafka.offsets import OffsetRange, TopicOffsets
from tidesink.sinks.laws.counts import BatchSummary, EventCounts
from tidesink.sinks.runtime.context import Failpoints, StopFlag
from tidesink.sinks.runtime.shared_reads import TableRecords
from tidesink.sinks.schema_changes.decisions import SchemaDecision, SettledNames
from tidesink.sinks.schema_changes.row_ddl import RowDecision
from tidesink.sinks.state.progress import Progress
from tidesink.sinks.targets.base import (
    Capabilities,
    ReducedBatch,
    RowFormat,
    SchemaGap,
    StagedPart,
    StagedRowsRefusedError,
)
from tidesink.typemap.target_schema import TargetSchema, shape_of

T = TableId("s", "t")
ID = Column("id", ColumnType("int"), nullable=False, handle=True)
OTHER = Column("other", ColumnType("int"))
SHAPE = shape_of(TableSchema(T, (ID,)))
PLAN = BatchPlan((OffsetRange("t", 0, 0, 9),), TopicOffsets("t", "", {}))
SETTLED = Settled(SettledNames(), RowDecision())


class _Unread:
    """A frame that nothing may be asked of."""

    def __getattr__(self, name: str) -> Any:
        pytest.fail(f"the frame is asked for {name}")


class _Decoding:
    """Knows the table's columns, from DDL too."""

    def __init__(self, *columns: Column) -> None:
        self.known = TableSchema(T, columns)

    def catch_up(self, _ranges: object, _found: object) -> None:
        """Nothing is to be learned."""

    def reported(self) -> SourceColumns:
        return SourceColumns(self.known)

    def read_as(self, _renamed: object, _held: object) -> None:
        """The columns have their own names."""

    def row_ddl(self) -> None:
        return None

    def columns(self) -> Any:
        return self

    @property
    def packed_shape(self) -> TargetSchema:
        return shape_of(self.known)

    def for_batch(self, _number: int, _rules: object, **_marks: bool) -> Any:
        decoder = SimpleNamespace(uses_timestamps=False, uses_headers=False)
        return SimpleNamespace(
            packed_shape=self.packed_shape, keeps_values=False, logs=False, decoder=decoder
        )


def _services(
    decoding: object = None,
    executor: object = None,
    *,
    settings: TableConfig | None = None,
    capabilities: Capabilities = CAPABILITIES,
) -> Services:
    context = SimpleNamespace(
        target=SimpleNamespace(capabilities=capabilities),
        failpoints=Failpoints(None),
        stop=StopFlag(),
        store=SimpleNamespace(record_progress=lambda _progress: None),
        choices=SimpleNamespace(keep=lambda *_chosen: None),
    )
    settings = settings or right(FLAT_AVRO).table_config(T)
    return Services(cast("Any", context), cast("Any", decoding), settings, cast("Any", executor))


def _hold(table: object = None) -> Hold:
    return Hold(cast("Any", table), 1, Progress(T, "p", 1, 0))


@pytest.mark.parametrize("omitted", [(), ("other",)])
def test_a_target_of_packed_rows_is_given_no_frame_of_a_table_with_metadata(omitted: tuple[str, ...]) -> None:
    config = right(changed(FLAT_AVRO, defaults={"metadata": {"op": "_op"}, "deletes": "soft"}))
    services = _services(settings=config.table_config(T), capabilities=replace(CAPABILITIES, packed=True))
    payloads = object()
    summary = BatchSummary(EventCounts(upserts=1))
    found = SimpleNamespace(frame=_Unread(), payloads=payloads, staged=None, summary=summary)
    decided = SchemaDecision(shape_of(TableSchema(T, (ID, Column("_op", ColumnType("varchar"))))), omitted)
    run = BatchRun(Changes(PLAN, cast("Any", None)), _hold(), services)
    reduced = run.reduced_batch(Reduction(PLAN, SETTLED, cast("Any", found)), decided)
    assert (reduced.frame, reduced.payloads, reduced.how.on_delete) == (None, payloads, ("_op",))


class _StagingTable:
    """A table that is asked for a sink, and to forget what was staged."""

    def __init__(self, columns: Sequence[str] = ("id",)) -> None:
        self.asked, self.forgotten = list[RowFormat](), list[StagedPart]()
        self.gaps = 0
        self._columns = tuple(columns)

    def row_sink(self, rows: RowFormat) -> object:
        self.asked.append(rows)
        return "sink"

    def gap(self, _shape: TargetSchema) -> SchemaGap:
        self.gaps += 1
        return SchemaGap(self._columns, (), {}, dict.fromkeys(self._columns, "int"))

    def forget_staged(self, parts: Iterable[StagedPart] = ()) -> None:
        self.forgotten += parts

    def __getattr__(self, name: str) -> Any:
        return lambda *_args, **_named: pytest.fail(f"the table is asked for {name}")


PART = StagedPart(attempt=1, rows=1)


class _Staged:
    """Runs tasks that stage a row in the target, if they have a sink. Meanwhile ``meanwhile`` is called."""

    is_local = False

    def __init__(self, meanwhile: Any = lambda: None) -> None:
        self.sinks = list[object]()
        self._meanwhile = meanwhile

    def run(self, task: RangeTask, _reader: object, *, checkpoint: bool) -> Any:
        self.sinks.append(task.sink)
        self._meanwhile()
        staged = None if task.sink is None or checkpoint else (PART,)
        summary = BatchSummary(EventCounts(messages=9, upserts=1))
        return SimpleNamespace(
            staged=staged, summary=summary, read=KafkaRead(9, 0), release=lambda: None, payloads=None
        )


def _reading(job: Changes, hold: Hold, services: Services) -> Reading:
    steps, schema = Steps(services.context.failpoints, job.failpoints), BatchSchema(hold, services)
    return Reading(job, hold, services, steps, schema, Staging(hold), SETTLED)


@pytest.mark.parametrize("shared", [False, True])
def test_a_target_hears_how_long_the_ranges_are_that_the_table_reads_alone(shared: bool) -> None:
    """Of a range that tables read together nobody knows how many rows are of this one."""
    table, ranges = _StagingTable(), [(0, 90), (5, 5), (7, 70)]
    plan = BatchPlan(
        tuple(OffsetRange("t", number, *part) for number, part in enumerate(ranges)),
        TopicOffsets("t", "", {}),
    )
    reader: Any = (
        TableRecords(cast("Any", None), cast("Any", None), T, cast("Any", None), commits=False)
        if shared
        else None
    )
    services, hold = _services(_Decoding(ID), _Staged()), _hold(table)
    reduction = _reading(Changes(plan, reader), hold, services).reduced(plan, ExitStack())
    assert isinstance(reduction, Reduction)
    assert isinstance(reduction.rows, Staged)
    assert [one.fewest for one in table.asked] == ([0] if shared else [63])


def test_a_batch_whose_staged_rows_are_refused_is_read_again_without_a_sink() -> None:
    """Of the second try the test needs only its tasks: they come to an end there."""
    table = _StagingTable()

    class Refusing(_Staged):
        def run(self, task: RangeTask, reader: object, *, checkpoint: bool) -> Any:
            super().run(task, reader, checkpoint=checkpoint)
            if task.sink is None:
                raise TransientTargetError("seen enough")
            raise StagedRowsRefusedError("other columns", table="s.t")

    executor = Refusing()
    with pytest.raises(TransientTargetError, match="seen enough"):
        run_batch(Changes(PLAN, cast("Any", None)), _hold(table), _services(_Decoding(ID), executor))
    assert executor.sinks == ["sink", None]


def test_rows_staged_before_the_columns_changed_are_not_applied() -> None:
    """Another table's task reads DDL of this one while the batch is read: the rows are read again."""
    table, decoding = _StagingTable(("id", "other")), _Decoding(ID, OTHER)

    def drop() -> None:
        decoding.known = TableSchema(T, (ID,))

    executor = _Staged(drop)
    job, hold, services = Changes(PLAN, cast("Any", None)), _hold(table), _services(decoding, executor)
    reduction = _reading(job, hold, services).reduced(PLAN, ExitStack())
    assert isinstance(reduction, Reduction)
    assert (executor.sinks, reduction.rows, table.forgotten) == (["sink", None], Packed(), [PART])


class _Dropping(_Decoding):
    """Knows from DDL of another table's task that a column is dropped. The rows were decoded with it."""

    def __init__(self) -> None:
        super().__init__(ID, OTHER)
        self.dropped: tuple[Column, ...] = ()

    def reported(self) -> SourceColumns:
        return SourceColumns(TableSchema(T, (ID,)), dropped_columns=self.dropped)


def test_rows_staged_before_a_column_was_dropped_are_not_applied() -> None:
    """The DDL is read after the batch was accepted, while the log is asked whether it has earlier records.

    The target matches staged columns by position. With one column less, values would be in other columns.
    """
    table, decoding = _StagingTable(("id", "other")), _Dropping()

    def dropped(*_last: object) -> bool:
        decoding.dropped = (OTHER,)
        return True

    settings = right(changed(CANAL_JSON, defaults__schema_changes={"drop": "apply"})).table_config(T)
    services, plan = _services(decoding, _Staged(), settings=settings), replace(PLAN, follows=dropped)
    with pytest.raises(TransientTargetError, match="columns changed while the batch was read"):
        run_batch(Changes(plan, cast("Any", None)), _hold(table), services)
    assert table.forgotten == [PART]


def test_the_decision_on_the_columns_is_made_once() -> None:
    """It is asked for before the read, after it, and for the commit."""
    table, decoding = _StagingTable(), _Decoding(ID)
    schema = BatchSchema(_hold(table), _services(decoding))
    assert schema.decision(SHAPE) is schema.decision(decoding.packed_shape)
    decoding.known = TableSchema(T, (ID, OTHER))
    assert schema.decision(decoding.packed_shape).given == decoding.packed_shape
    assert table.gaps == 2


class _FailingTable(_StagingTable):
    """A table whose commit fails, before or after it was begun."""

    def __init__(self, *, commits: bool) -> None:
        super().__init__()
        self._commits = commits

    def evolve(self, _shape: TargetSchema) -> Any:
        return SimpleNamespace(warnings=())

    def apply(self, batch: ReducedBatch, _progress: Progress) -> Any:
        if self._commits:
            batch.hooks.on_staged()
        raise TransientTargetError("cut off")


@pytest.mark.parametrize("commits", [False, True])
def test_staged_rows_of_a_batch_that_fails_are_removed_unless_its_commit_was_begun(commits: bool) -> None:
    table, services = _FailingTable(commits=commits), _services(_Decoding(ID), _Staged())
    with pytest.raises(TransientTargetError, match="cut off"):
        run_batch(Changes(replace(PLAN, follows=lambda *_: True), cast("Any", None)), _hold(table), services)
    assert table.forgotten == ([] if commits else [PART])
