"""Decisions about DDL that changes rows, such as DROP PARTITION, from a connector's DDL topic (ADR 34).

A Debezium connector writes DDL to a topic of its own. So it is not known between which rows of the table a
statement took effect. If the table's policy is to apply the statement, the worker first applies all rows that
were sent before it. Then it runs a resync, which compares every row with the source database and so does not
depend on the order of rows and statement (ADR 37). If the table no longer exists in the source, all its rows
are deleted instead.

A batch without records commits the decision in the table's progress, together with the start of the resync.
If the worker is killed before this commit, the next worker decides again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tidesink.config import TableConfig
from tidesink.config.table_checks import ddl_obstacle, snapshot_obstacle
from tidesink.ddl.row_changes import RowDdl
from tidesink.sinks.jobs.base import BatchPlan, Hold, Job, Settled, next_progress
from tidesink.sinks.kafka.offsets import TopicOffsets
from tidesink.sinks.runtime.context import WorkerContext
from tidesink.sinks.runtime.control import SnapshotControl, change_control
from tidesink.sinks.schema_changes.connector_topic import SourceStatement
from tidesink.sinks.schema_changes.decisions import (
    Accepted,
    Chosen,
    DecidedChange,
    Pending,
    Policies,
    SchemaDecision,
    chosen_of,
)
from tidesink.sinks.schema_changes.row_ddl import change_of, decided_statements, not_applied, shown_together
from tidesink.sinks.snapshots.parts import open_source_database
from tidesink.sinks.state.progress import DdlProgress, Progress, SnapshotProgress, Sweep
from tidesink.source_database.database import OPTION, stored_table, translated

# The connector sends to several partitions at once, so a statement may reach Kafka before earlier rows do. A
# statement is applied no earlier than this many seconds after the Kafka timestamp of its record.
SETTLED_SECONDS: Final = 30.0
# Kinds of statements that remove or rename a table.
_GONE: Final = ("drop-table", "rename-table")
_NO_TABLE: Final = (
    "{} has no table {}, although the statement does not remove it. Grant SELECT on the table to the user of "
    "the source database, or change the rows at the target by hand and reject the statement."
)
_KEYLESS: Final = (
    "The statement cannot be applied by a resync, because the source's table has no key. Change the rows at "
    "the target by hand while the table waits, and reject the statement."
)


@dataclass(frozen=True)
class DdlDecision:
    """A decision about all undecided DDL statements on a table.

    Attributes:
        ddl: The table's progress in the DDL topic after the decision.
        pending: The statements that wait for a user's decision. If there are any, nothing is committed.
        resyncs: True if the statements are applied by a resync of the table.
        empties: True if the statements are applied by the deletion of all rows of the table.
        chosen: The decisions that policies in the config made. They are stored with the progress.
    """

    ddl: DdlProgress
    pending: tuple[Pending, ...] = ()
    resyncs: bool = False
    empties: bool = False
    chosen: Chosen = field(default_factory=dict)


class SourceDdl:
    """Decides about the DDL statements on one table in the connector's DDL topic.

    Used by one thread at a time.
    """

    def __init__(self, context: WorkerContext, settings: TableConfig) -> None:
        self._context = context
        self._settings = settings
        self._topic = context.topics.schema_changes
        # The undecided statements, and the time from which they may be applied (seconds since 1970).
        self._waits: tuple[Sequence[SourceStatement], float] = ((), 0.0)
        # The offset after the last undecided statement, and end offsets of the table's topic that were looked
        # up after this statement was read.
        self._catch_up_to: tuple[int, Mapping[int, int]] = (-1, {})

    @property
    def _policies(self) -> Policies:
        return Policies.of(self._settings, {}, self._context.target.capabilities)

    def is_due(self, progress: Progress) -> bool:
        """Return True if the DDL topic has a statement on the table that must be decided about now."""
        undecided = self._undecided(progress)
        return bool(undecided) and (self._waits[0] != undecided or time.time() >= self._waits[1])

    def _undecided(self, progress: Progress) -> Sequence[SourceStatement]:
        if self._topic is None or not self._policies.follows:
            return ()
        decided = self._progress(progress).decided
        return tuple(
            statement for statement in self._topic.of(self._settings.table) if statement.ddl.offset >= decided
        )

    def _progress(self, progress: Progress) -> DdlProgress:
        """Return the table's progress in the DDL topic. It begins at offset 0 if the topic was replaced."""
        topic_id = self._topic.topic_id if self._topic is not None else ""
        stored = progress.ddl
        return stored if stored is not None and stored.topic_id == topic_id else DdlProgress(topic_id, 0)

    def warnings(self, hold: Hold | None) -> tuple[str, ...]:
        """Return warnings about statements that were not applied, and about a DDL topic that cannot be read.

        ``hold``: the open table with its progress, or None.
        """
        if self._topic is None:
            return ()
        texts = [self._topic.problem] if self._topic.problem else []
        if hold is not None:
            progress, follows = self._progress(hold.progress), self._policies.follows
            for ddl, _ in self._topic.of(self._settings.table):
                if not follows or progress.followed <= ddl.offset < progress.decided:
                    texts.append(not_applied(ddl))
        return tuple(texts)

    def decide(
        self, hold: Hold, accepted: Accepted, offsets: TopicOffsets, applied: Mapping[int, int]
    ) -> DdlDecision | None:
        """Decide about all undecided statements on the table.

        Args:
            hold: The open table with its progress.
            accepted: The users' decisions about schema changes.
            offsets: The current offsets of the table's topic.
            applied: The applied offset per partition of the table's topic.

        Returns:
            The decision. None if there is no undecided statement, or if rows that were sent before the
            statements must be applied first.

        Raises:
            SourceUnavailableError: Kafka or the source database does not answer.
            ConfigError: the database refuses the user.
        """
        undecided = self._undecided(hold.progress)
        if not undecided:
            return None
        policies = replace(self._policies, accepted=accepted)
        progress, end = self._progress(hold.progress), undecided[-1].ddl.offset + 1
        decided = DdlDecision(replace(progress, decided=end))
        decisions = decided_statements((statement.ddl for statement in undecided), policies)
        pending = shown_together(waiting(decisions, self._obstacle()))
        chosen = chosen_of(decision for _, decision in decisions)
        policies_of = (decision.policy for _, decision in decisions)
        followed = [one for one, policy in zip(undecided, policies_of, strict=True) if policy == "apply"]
        if pending or not followed:
            return replace(decided, pending=pending, chosen=chosen)
        settled = max(statement.sent for statement in followed) / 1000 + SETTLED_SECONDS
        if time.time() < settled:
            self._waits = undecided, settled
            return None
        if self._catch_up_to[0] != end:
            now = self._context.topics.ends_now(offsets)
            self._catch_up_to = end, {n: partition.latest for n, partition in now.partitions.items()}
        if any(applied.get(n, 0) < end for n, end in self._catch_up_to[1].items()):
            return None
        found_of_it = self._followed(
            replace(decided.ddl, followed=end), [statement.ddl for statement in followed]
        )
        return replace(found_of_it, chosen=chosen)

    def _followed(self, ddl: DdlProgress, followed: Sequence[RowDdl]) -> DdlDecision:
        """Decide how the rows are changed for statements that must be applied.

        A resync of the table follows if the source still has the table. All rows are deleted if a statement
        removed the table from the source. Otherwise the statements wait for a user's decision.
        """
        table = self._settings.table
        with open_source_database(self._context.config) as database, translated(OPTION):
            stored = stored_table(database.connection, table)
        if stored is not None and stored.key:
            return DdlDecision(ddl, resyncs=True)
        if stored is None and any(statement.kind in _GONE for statement in followed):
            return DdlDecision(ddl, empties=True)
        reason = _NO_TABLE.format(OPTION, table) if stored is None else _KEYLESS
        waits = (Pending(change_of(statement), ("ignore",), reason) for statement in followed)
        return DdlDecision(ddl, pending=tuple(waits))

    def _obstacle(self) -> str:
        """Return the reason why DDL cannot be applied with this config, or an empty text if it can."""
        config = self._context.config
        obstacle = ddl_obstacle(config)
        if obstacle is not None:
            return ": ".join(obstacle)
        return snapshot_obstacle(config) or ""

    def snapshot_after(self, decision: DdlDecision, progress: Progress) -> SnapshotProgress | None:
        """Return the progress of the table's snapshot after a decision.

        If the decision is a resync, it is a new resync, whose request is also stored. If all rows are
        deleted, it is the present snapshot, marked as finished, because there is nothing more to read.
        Otherwise it is the present snapshot.

        Raises:
            StateStoreError: the store does not answer.
        """
        snapshot = progress.snapshot
        if decision.empties and snapshot is not None:
            return replace(snapshot, done=True)
        if not decision.resyncs:
            return snapshot
        number, now = (snapshot.number if snapshot is not None else 0) + 1, time.time()

        def start(asked: SnapshotControl) -> SnapshotControl:
            started = asked.start(now, deletes=True)
            return replace(started, started=max(started.started, number))

        context, table = self._context, self._settings.table
        # The resync is stored among the users' requests, so that users see it and can cancel it.
        asked = change_control(
            context.store,
            context.config.pipeline,
            table,
            lambda control: replace(control, snapshot=start(control.snapshot)),
        )
        return SnapshotProgress((), number=asked.snapshot.started, sweep=Sweep())


def waiting(decisions: Iterable[tuple[RowDdl, DecidedChange]], refusal: str) -> Iterator[Pending]:
    """Yield the statements that wait for a user, in order.

    ``refusal``: the reason why no statement can be applied with this config, or empty.
    """
    for ddl, decision in decisions:
        if decision.policy == "pause" or (decision.policy == "apply" and refusal):
            reason = refusal or f"If you ignore it, {ddl.effect}. If you approve it, a resync follows."
            yield Pending(decision.change, ("ignore",) if refusal else ("apply", "ignore"), reason)


@dataclass(frozen=True)
class DdlJob(Job):
    """Commits a decision about DDL in the table's progress.

    ``plan``: the offsets at which the table continues, as empty ranges. ``decision``: the decision.
    ``snapshot``: the progress of the table's snapshot after the decision, or None if it does not change.
    """

    plan: BatchPlan
    decision: DdlDecision
    snapshot: SnapshotProgress | None

    @property
    def empties(self) -> bool:
        """True if the statements are applied by the deletion of all rows of the table."""
        return self.decision.empties

    def decided(self, decision: SchemaDecision) -> SchemaDecision:
        """Return the decision on schema changes, to which the decisions of policies on the DDL are added."""
        return replace(decision, chosen={**decision.chosen, **self.decision.chosen})

    def progress(self, hold: Hold, settled: Settled) -> Progress:  # noqa: ARG002
        """Return the table's progress, in which the statements are decided."""
        after = next_progress(hold, self.plan)
        return replace(after, ddl=self.decision.ddl, snapshot=self.snapshot or after.snapshot)
