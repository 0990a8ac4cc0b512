"""Reading a batch: tasks fetch, decode and reduce the records (the steps 2 to 4 of ``jobs.run``)."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import structlog

from tidesink.errors import SchemaMismatchError, SchemaRefusedError
from tidesink.sinks.batch.tasks import RangeTooLargeError
from tidesink.sinks.decode.records import EventRules
from tidesink.sinks.jobs.base import (
    Again,
    Attempt,
    BatchPlan,
    Cut,
    EmptyFirst,
    Go,
    Hold,
    Inputs,
    Packed,
    ReadingJob,
    Reduction,
    Services,
    Settled,
    Staged,
    TaskRun,
    Verdict,
    Waits,
)
from tidesink.sinks.jobs.executor import released_on_error
from tidesink.sinks.kafka.offsets import halved
from tidesink.sinks.laws.modes import kept_shape
from tidesink.sinks.schema_changes.decisions import (
    SchemaDecision,
    SettledNames,
    decide_changes,
    settle_names,
    source_columns_of,
)
from tidesink.sinks.schema_changes.row_ddl import RowDecision, decide_rows, up_to
from tidesink.sinks.targets.base import LoadingTable, RowFormat, RowSink, StagingTable

if TYPE_CHECKING:
    from tidesink.sinks.decode.plans import DecodePlan
    from tidesink.sinks.decode.schema_source import SourceColumns
    from tidesink.sinks.laws.counts import BadRecord
    from tidesink.sinks.runtime.context import Failpoints
    from tidesink.typemap.target_schema import TargetSchema

# Each new plan has more schemas than the previous one. A batch that still needs more after this number of
# plans is a bug.
MOST_PLANS: Final = 8

_log = structlog.get_logger("tidesink.worker")


class Steps:
    """Measures the steps of one batch, and reaches their failpoints.

    ``names``: the steps that have a failpoint. ``seconds``: the duration of each step so far.
    """

    def __init__(self, failpoints: Failpoints, names: Collection[str]) -> None:
        self._failpoints = failpoints
        self._names = names
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure the block as a step, and reach its failpoint at the end."""
        started = time.monotonic()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started
        self.reach(name)

    def reach(self, name: str) -> None:
        """Reach the failpoint of a step that is done."""
        if name in self._names:
            self._failpoints.reach(name)


class BatchSchema:
    """The decision on schema changes of one batch.

    It is made once, and again only if the source's columns change while the batch is read: the batch then
    meets a new schema, or another table's task reads DDL that changes this table.
    """

    def __init__(self, hold: Hold, services: Services) -> None:
        self._hold = hold
        self._services = services
        self._policies = services.policies(hold.accepted)
        self._made: tuple[TargetSchema, SourceColumns | None, SchemaDecision] | None = None

    def decision(self, shape: TargetSchema) -> SchemaDecision:
        """Returns the decision on the differences between the target's columns and those of the batch's rows.

        ``shape``: the columns of the rows.

        Raises:
            SchemaRefusedError: The target cannot store the rows.
        """
        reported = source_columns_of(self._services.decoding, self._policies)
        if self._made is None or self._made[:2] != (shape, reported):
            self._made = shape, reported, self._decided(shape, reported)
        return self._made[2]

    def _decided(self, shape: TargetSchema, reported: SourceColumns | None) -> SchemaDecision:
        gap = self._hold.table.gap(kept_shape(shape, self._services.settings))
        decision, known_columns = decide_changes(gap, shape, self._policies, reported), self._hold.known
        if known_columns is None:
            return decision
        fold = self._services.decoding.columns().rows.shape.fold
        return known_columns.schema_decision(decision, gap.added, fold)

    def settled(self, plan: BatchPlan) -> Settled:
        """Decides on DDL that renames columns, and on DDL that changes existing rows.

        The latter is decided only if no rename waits for a person. A protocol without DDL needs no decision.
        """
        hold, decoding = self._hold, self._services.decoding
        undecided = RowDecision(decided=hold.progress.decided)
        statements = decoding.row_ddl()
        if statements is None:
            return Settled(SettledNames(), undecided)
        # Renames come first, because a table that is emptied gets the columns of the rows after the DDL.
        names = settle_names(hold.table, decoding, self._policies)
        if names.pending:
            return Settled(names, undecided)
        if names.renamed:
            self._services.context.choices.keep(names.chosen, hold.progress)
        rows = decide_rows(up_to(statements, hold.bound), self._policies, hold.progress, plan.found.topic)
        return Settled(names, rows, statements)


class Staging:
    """The rows that one batch stages in the target ahead of its commit.

    They are removed if the batch does not commit them.
    """

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        self._rows: Staged | Packed = Packed()
        # True once a commit may have been sent, so that the rows may be part of the table.
        self._committing = False
        self.allowed = True

    def holds(self, rows: Staged | Packed) -> None:
        """Record that the tasks staged these rows."""
        self._rows = rows

    def refused(self) -> None:
        """Stop staging rows of this batch, because the target refused the staged rows."""
        self.allowed, self._rows = False, Packed()

    def commit_begins(self) -> None:
        """Record that a commit may be sent from now on."""
        self._committing = True

    def forget(self) -> None:
        """Remove the rows, and what the target prepared for them."""
        table, rows, self._rows = self._hold.table, self._rows, Packed()
        if isinstance(table, StagingTable):
            table.forget_staged(rows.parts if isinstance(rows, Staged) else ())

    def forget_rows(self) -> None:
        """Remove the rows, if there are any."""
        if isinstance(self._rows, Staged) and self._rows.parts:
            self.forget()

    def abandon(self) -> None:
        """Remove the rows of a failed batch, unless its commit has begun and may contain them."""
        if self._committing:
            return
        try:
            self.forget_rows()
        except Exception as exc:  # noqa: BLE001  (the batch's own error is the one to report)
            table = str(self._hold.progress.table)
            _log.warning("staged rows not removed", table=table, error=type(exc).__name__)


@dataclass
class Reading:
    """Reads and reduces the records of one batch, again if it must.

    Attributes:
        job: The job.
        hold: The open table.
        services: The parts of the worker.
        steps: Measures the steps.
        schema: Decides on schema changes.
        staging: The rows that are staged in the target.
        settled: The last decisions on DDL.
        truncates: False if truncates count as bad records.
    """

    job: ReadingJob
    hold: Hold
    services: Services
    steps: Steps
    schema: BatchSchema
    staging: Staging
    settled: Settled
    truncates: bool = True

    def reduced(
        self, plan: BatchPlan, opened: ExitStack, bad: BadRecord | None = None
    ) -> Reduction | Waits | EmptyFirst:
        """Returns the rows of the batch, or what must happen before it can be applied.

        The caller must release the results of a reduction.

        ``opened``: as in ``Attempt``. ``bad``: the bad record before which the batch ends, or None.
        """
        for reads in range(1, MOST_PLANS + 1):
            self.services.context.stop.check()
            self.settled = self.schema.settled(plan)
            if self.settled.obstacle is not None:
                return self.settled.obstacle
            try:
                reduction = replace(self._read(plan, opened), bad=bad, reads=reads)
            except RangeTooLargeError:
                if all(part.records <= 1 for part in plan.ranges):
                    raise
                # The number of records was chosen by the size of earlier records. These ones are larger.
                return self.reduced(replace(plan, ranges=halved(plan.ranges)), opened, bad)
            with released_on_error(reduction.results.release):
                verdict = self._verdict(reduction)
            if isinstance(verdict, Go):
                return reduction
            if isinstance(verdict, Cut) and not verdict.plan.records:
                return replace(reduction, plan=verdict.plan, bad=verdict.bad)
            reduction.results.release()
            if isinstance(verdict, Waits):
                return verdict
            if isinstance(verdict, Cut):
                return self.reduced(verdict.plan, opened, verdict.bad)
            self.truncates &= verdict.truncates
        raise SchemaMismatchError(
            f"Records of the batch have unknown schemas or columns, although tidesink looked them up "
            f"{MOST_PLANS} times. Report this with the log.",
            table=str(self.services.settings.table),
        )

    def _read(self, plan: BatchPlan, opened: ExitStack) -> Reduction:
        self.staging.forget_rows()  # rows that were staged with the previous plan
        inputs = self.job.inputs(Attempt(plan, self._decode_plan(), self.hold, self.services, opened))
        sink, decision = self._sink(inputs)
        checkpoint = self.services.context.target.capabilities.rereads or inputs.volatile
        run = TaskRun(
            self.services.executor, replace(inputs.task, sink=sink), inputs.reader, checkpoint=checkpoint
        )
        with self.steps.step("read"):
            results = self.job.read(run, self.hold, self.services)
        for done in ("decoded", "reduced"):  # the same tasks have done these steps
            self.steps.reach(done)
        rows: Staged | Packed = Packed()
        if results.staged is not None and decision is not None:
            rows = Staged(results.staged, decision)
            self.staging.holds(rows)
        return Reduction(plan, self.settled, results, rows, checkpointed=checkpoint)

    def _decode_plan(self) -> DecodePlan:
        """Returns the table's decode plan for this batch."""
        number, marks = self.hold.progress.batch + 1, self.services.settings.deletes == "soft"
        rules = self.job.rules(self._rules())
        return self.services.decoding.columns().for_batch(number, rules, marks_deletes=marks)

    def _rules(self) -> EventRules:
        horizon, void = self.hold.horizon, self.hold.progress.emptied
        if reads_again(self.hold, self.job.plan) and horizon is not None:
            # The target has already applied these changes. Or it has applied a later delete of the row, whose
            # tombstone is removed.
            void, horizon = max(horizon, void or 0), None
        return EventRules(
            sequenced=self.services.sequenced,
            versions=self.services.history is not None,
            horizon=horizon,
            truncates=self.truncates,
            emptied=void,
            bound=self.hold.bound,
        )

    def _sink(self, inputs: Inputs) -> tuple[RowSink | None, SchemaDecision | None]:
        """Returns the sink with which tasks stage rows: they write the rows to the target, ahead of the
        commit. Also returns the decision on the columns of these rows. The sink is None if the rows cannot be
        staged.

        Rows are staged if the target can stage them, and its columns need no change.
        """
        table, settings, wish = self.hold.table, self.services.settings, inputs.wish
        sequenced, plan = self.services.sequenced, inputs.task.plan
        if wish is None or not (self.staging.allowed and isinstance(table, StagingTable)):
            return None, None
        if self.services.executor.is_local and isinstance(table, LoadingTable) and table.loads_here():
            return None, None
        if wish.several and (sequenced or self.services.history is not None):
            return None, None
        try:
            decision = self.schema.decision(plan.packed_shape)
            gap = table.gap(kept_shape(decision.given, settings))
        except SchemaRefusedError:  # raised again after the batch is read, unless the read changes the plan
            return None, None
        if decision.pending or decision.drops or gap.added or gap.widened:
            return None, None
        keeps = plan.keeps_values and not plan.logs
        rows = RowFormat(decision.given, settings.mode, sequenced, keeps, wish.fewest)
        return table.row_sink(rows), decision

    def _verdict(self, reduction: Reduction) -> Verdict:
        verdict = self.job.accept(reduction, self.hold, self.services)
        if isinstance(verdict, Go) and self._is_staged_otherwise(reduction.rows):
            self.staging.allowed = False
            return Again()
        return verdict

    def _is_staged_otherwise(self, rows: Staged | Packed) -> bool:
        """Returns True if the rows were staged with other columns than the target will have."""
        if isinstance(rows, Packed):
            return False
        decision = self.schema.decision(self.services.decoding.columns().packed_shape)
        return not decision.pending and not rows.has_columns_of(decision)


def reads_again(hold: Hold, plan: BatchPlan) -> bool:
    """Returns True if a batch contains only changes that the table had applied before it was rewound.

    The batch may contain a change of a row that a later change deleted. Values that such a change omits are
    NULL until the delete is applied again.
    """
    topic = hold.progress.topics.get(plan.found.topic)
    again = topic.read_again if topic is not None else {}
    parts = [part for part in plan.ranges if part.records]
    return bool(parts) and all(n.partition in again and n.end <= again[n.partition].end for n in parts)
