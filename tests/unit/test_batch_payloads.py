"""Which rows a target is given: as the tasks packed them, or a frame of them too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.memory_target import CAPABILITIES
from tests.unit.config_samples import FLAT_AVRO, changed, right
from tidesink.errors import TransientTargetError
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.sinks.batch.context import Failpoints
from tidesink.sinks.batch.counts import BatchSummary
from tidesink.sinks.batch.run import Batch, BatchOutcome, BatchPlan, Hold, Reduction
from tidesink.sinks.batch.schema_changes import SchemaDecision
from tidesink.sinks.batch.shared_reads import TableRecords
from tidesink.sinks.kafka.offsets import OffsetRange, TopicOffsets
from tidesink.sinks.state.progress import Progress
from tidesink.sinks.targets.base import RowFormat, SchemaGap, StagedPart, StagedRowsRefusedError
from tidesink.typemap.target_schema import TargetSchema, shape_of

T = TableId("s", "t")
ID = Column("id", ColumnType("int"), nullable=False, handle=True)


class _Unread:
    """A frame that nothing may be asked of."""

    def __getattr__(self, name: str) -> Any:
        pytest.fail(f"the frame is asked for {name}")


@pytest.mark.parametrize("omitted", [(), ("other",)])
def test_a_target_of_packed_rows_is_given_no_frame_of_a_table_with_metadata(omitted: tuple[str, ...]) -> None:
    settings = right(changed(FLAT_AVRO, defaults={"metadata": {"op": "_op"}, "deletes": "soft"}))
    plan, payloads = BatchPlan((), TopicOffsets("t", "id", {})), object()
    target = SimpleNamespace(capabilities=replace(CAPABILITIES, packed=True))
    batch = Batch(
        cast("Any", SimpleNamespace(target=target, failpoints=Failpoints(None))),
        Hold(cast("Any", None), 1, Progress(T, "p", 1, 0)),
        cast("Any", None),
        settings=settings.table_config(T),
        session=cast("Any", None),
        plan=plan,
        reader=cast("Any", None),
    )
    found = SimpleNamespace(frame=_Unread(), payloads=payloads, staged=None, summary=BatchSummary(upserts=1))
    decided = SchemaDecision(shape_of(TableSchema(T, (ID, Column("_op", ColumnType("varchar"))))), omitted)
    reduced = batch._reduced_batch(Reduction(plan, cast("Any", found)), decided)
    assert (reduced.frame, reduced.payloads, reduced.how.on_delete) == (None, payloads, ("_op",))


class _StagingTable:
    """A table that is asked for a sink."""

    asked: list[RowFormat]

    def row_sink(self, rows: RowFormat) -> None:
        self.asked.append(rows)

    def gap(self, _shape: TargetSchema) -> SchemaGap:
        return SchemaGap(("id",), (), {}, {"id": "int"})

    def __getattr__(self, name: str) -> Any:
        return lambda *_args, **_named: pytest.fail(f"the table is asked for {name}")


@pytest.mark.parametrize("shared", [False, True])
def test_a_target_hears_how_long_the_ranges_are_that_the_table_reads_alone(shared: bool) -> None:
    """Of a range that tables read together nobody knows how many rows are of this one."""
    shape, ranges = shape_of(TableSchema(T, (ID,))), [(0, 90), (5, 5), (7, 70)]
    table = _StagingTable()
    table.asked = []
    plan = BatchPlan(
        tuple(OffsetRange("t", number, *part) for number, part in enumerate(ranges)),
        TopicOffsets("t", "", {}),
    )
    reader: Any = TableRecords(cast("Any", None), cast("Any", None), T, commits=False) if shared else None
    batch = Batch(
        cast("Any", SimpleNamespace(target=SimpleNamespace(capabilities=CAPABILITIES))),
        Hold(cast("Any", table), 1, Progress(T, "p", 1, 0)),
        cast("Any", SimpleNamespace(reported=lambda: None)),
        settings=right(FLAT_AVRO).table_config(T),
        session=cast("Any", None),
        plan=plan,
        reader=reader,
    )
    decode_plan = SimpleNamespace(packed_shape=shape, keeps_values=False, logs=False)
    assert batch._row_sink(plan, cast("Any", decode_plan)) is None
    assert [one.fewest for one in table.asked] == ([0] if shared else [63])


def test_a_batch_whose_staged_rows_are_refused_is_read_again_without_a_sink() -> None:
    tried = []

    class Refused(Batch):
        def _outcome(self) -> BatchOutcome:
            tried.append(self._stages)
            if self._stages:
                raise StagedRowsRefusedError("other columns", table="s.t")
            return BatchOutcome(self._hold.progress)

    batch = Refused(
        cast("Any", SimpleNamespace(target=SimpleNamespace(capabilities=CAPABILITIES))),
        Hold(cast("Any", None), 1, Progress(T, "p", 1, 0)),
        cast("Any", None),
        settings=right(FLAT_AVRO).table_config(T),
        session=cast("Any", None),
        plan=BatchPlan((), TopicOffsets("t", "", {})),
        reader=cast("Any", None),
    )
    batch.run()
    assert tried == [True, False]


def test_rows_staged_before_the_columns_changed_are_not_applied() -> None:
    """Another table's task read DDL of this one after the batch's last look at its columns."""
    shape = shape_of(TableSchema(T, (ID, Column("other", ColumnType("int")))))
    plan = BatchPlan((), TopicOffsets("t", "id", {}))

    class Changed(Batch):
        def _schema_decision(self, shape: TargetSchema) -> SchemaDecision:
            return SchemaDecision(replace(shape, columns=shape.columns[:1]), ("other",))

    batch = Changed(
        cast("Any", SimpleNamespace(target=SimpleNamespace(capabilities=CAPABILITIES))),
        Hold(cast("Any", None), 1, Progress(T, "p", 1, 0)),
        cast("Any", SimpleNamespace(columns=lambda: SimpleNamespace(packed_shape=shape))),
        settings=right(FLAT_AVRO).table_config(T),
        session=cast("Any", None),
        plan=plan,
        reader=cast("Any", None),
    )
    batch._staged_shape = shape
    found = SimpleNamespace(staged=(StagedPart(1, 1),), summary=BatchSummary(upserts=1))
    with pytest.raises(TransientTargetError, match="columns changed"):
        batch._applied(Reduction(plan, cast("Any", found)))


class _ForgettingTable(_StagingTable):
    """A table that keeps what it is told to forget."""

    def __init__(self) -> None:
        self.asked, self.forgotten = [], list[StagedPart]()

    def forget_staged(self, parts: Sequence[StagedPart] = ()) -> None:
        self.forgotten += parts


class _FailingBatch(Batch):
    """A batch whose rows are staged, and which fails before or in its commit."""

    commits = False

    def _outcome(self) -> BatchOutcome:
        self._staged = (StagedPart(attempt=1, rows=1),)
        if self.commits:
            self._commit_begins()
        raise TransientTargetError("cut off")


@pytest.mark.parametrize("commits", [False, True])
def test_staged_rows_of_a_batch_that_fails_are_removed_unless_its_commit_was_begun(commits: bool) -> None:
    table = _ForgettingTable()
    batch = _FailingBatch(
        cast(
            "Any",
            SimpleNamespace(target=SimpleNamespace(capabilities=CAPABILITIES), failpoints=Failpoints(None)),
        ),
        Hold(cast("Any", table), 1, Progress(T, "p", 1, 0)),
        cast("Any", None),
        settings=right(FLAT_AVRO).table_config(T),
        session=cast("Any", None),
        plan=BatchPlan((), TopicOffsets("t", "id", {})),
        reader=cast("Any", None),
    )
    batch.commits = commits
    with pytest.raises(TransientTargetError, match="cut off"):
        batch.run()
    assert table.forgotten == ([] if commits else [StagedPart(attempt=1, rows=1)])
