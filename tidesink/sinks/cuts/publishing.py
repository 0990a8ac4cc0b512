"""Cuts: publishes consistent versions of all tables of a pipeline (ADR 36).

A cut shows all tables as of one point in the source's history, its bound (``cuts.bounds``). All tables
apply the changes up to the bound and no later changes. Once every table has reached the bound, the cut is
published: a list of the tables' versions at the target. Then the next bound is chosen.

One ``Cuts`` object chooses the bound for all tables, in the worker's main thread. After a worker was killed,
the next one reads the last cut's bound and the bound in each table's progress. Its first bound is not below
any of these, so that no table has applied changes above it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import msgspec
import structlog
from msgspec import UNSET, UnsetType

from tidesink.errors import StaleProgressError, TidesinkError
from tidesink.sinks.cuts.bounds import Bounds, is_empty
from tidesink.sinks.cuts.tables import BoundedTable
from tidesink.sinks.kafka.offsets import Look, TopicOffsets, started_at
from tidesink.sinks.laws.bound import marks_at, stands_at
from tidesink.sinks.runtime.context import WorkerContext, may_pass
from tidesink.sinks.runtime.observers import StillAtWork
from tidesink.sinks.state.documents import DocumentKind
from tidesink.sinks.state.progress import StateStore
from tidesink.sinks.targets.base import TargetTable
from tidesink.sinks.targets.cuts import (
    CutPublisher,
    CutTable,
    CutTarget,
    KeptVersions,
    TableVersion,
    VersionedTable,
)

if TYPE_CHECKING:
    from tidesink.config.models import CutSettings
    from tidesink.events import TableId


_log = structlog.get_logger("tidesink.worker")
_BEAT_SECONDS: Final = 1.0


class CutStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a pipeline's cuts, for ``tidesink status``. Times are in seconds since 1970.

    Attributes:
        last: Bound of the last published cut (TiDB TSO, or a connector's position), or None.
        published: When the last cut was published, or None.
        next: Bound of the next cut, or None until it is chosen.
        last_time: The source's time at the last cut. Only if bounds are positions of a connector.
        waits: Why there is no next bound yet, or empty. Only if bounds are positions of a connector.
        held_back: By table, the reason why it has not reached the next bound.
        excluded: The tables that the next cut leaves out, sorted.
    """

    last: int | None
    published: float | None
    next: int | None
    last_time: float | UnsetType | None = UNSET
    waits: str | UnsetType = UNSET
    held_back: Mapping[str, str]
    excluded: tuple[str, ...]


_CUTS: Final = DocumentKind("cuts", CutStatus)


class Cuts:
    """Publishes the cuts of a worker's tables, and chooses their bounds.

    ``bound``: the bound of the next cut, or None until it is chosen.
    """

    def __init__(
        self,
        context: WorkerContext,
        settings: CutSettings,
        bounds: Bounds,
    ) -> None:
        self.bound: int | None = None
        self._bounds = bounds
        # The last bound that is done: its cut was published, or could not be written.
        self._done: int | None = None
        self._context = context
        self._settings = settings
        self._log: CutPublisher | None = None
        self._last: int | None = None
        self._published_at: float | None = None
        self._last_time: float | None = None
        # Number of row events that each table had applied at this worker's last cut.
        self._applied: dict[TableId, int] = {}
        self._status = _CUTS.of(context.store, context.config.pipeline)
        self._shown: CutStatus | None = None

    def turn(self, tasks: Sequence[BoundedTable], busy: Collection[BoundedTable], seen: Look) -> bool:
        """Publish the cut and choose the next bound, if all tables of the cut have reached its bound.

        Returns True if the bound changed, so that tables may read further. ``busy``: the tables that are
        running a batch. ``seen``: the current offsets of the topics.

        Raises:
            TidesinkError: the list of published cuts cannot be read from the target.
        """
        if not tasks:
            return False
        before = self.bound
        if self._log is None:
            self._log = cast("CutTarget", self._context.target).cut_log(self._context.config.pipeline)
            self._last = self._context.retry().call(self._log.last)
        self._bounds.look(tasks, seen)
        self._raise(tasks)
        self._ask_ends(tasks, seen)
        outside = {task for task in tasks if task.reading.outside or self._is_empty(task, seen)}
        blocked = self._blocked(tasks, seen)
        if self.bound is not None and outside.issuperset(busy):
            named = [task for task in tasks if task not in outside]
            if named and not any(blocked[task] for task in named):
                if self.bound != self._done:
                    self._publish(named, self.bound, without={task.table for task in outside})
                    self._done = self.bound
                self._move_on()
            elif _only_stuck(blocked, outside, seen):
                # The other tables continue without a cut: one table never stops another (L7).
                self._move_on()
        self._show({task: reason for task, reason in blocked.items() if task not in outside}, outside)
        if self.bound != before:
            self._ask_ends(tasks, seen)
        return self.bound != before

    def lead(self, task: BoundedTable) -> None:
        """Pass the bound of the next cut to a table's task. The task must not be running a batch."""
        reading, progress = task.reading, task.opened.progress
        reading.bound, reading.ends = self.bound, self._bounds.ends(task.topic)
        if reading.ends is not None and progress is not None:
            reading.marks = marks_at(progress, task.topic, self.bound, reading.ends)

    def close(self) -> None:
        """Close the clients of Kafka and the source database with which bounds are read."""
        self._bounds.close()

    def _ask_ends(self, tasks: Iterable[BoundedTable], seen: Look) -> None:
        if self.bound is not None:
            topics = {task.topic for task in tasks} & seen.found.keys()
            self._bounds.ask_ends({topic: [*seen.found[topic].partitions] for topic in topics})

    def _is_empty(self, task: BoundedTable, seen: Look) -> bool:
        """Return True if nothing was applied to a table, and its topic has no records up to the bound.

        Then the cut leaves out the table, because it has no version at the target.
        """
        offsets, ends = seen.found.get(task.topic), self._bounds.ends(task.topic)
        if ends is None or offsets is None:
            return False
        begun = started_at(offsets, task.opened.start.offsets)
        starts = {n: partition.earliest for n, partition in begun.partitions.items()}
        return is_empty(task.opened.progress, starts, ends)

    def _raise(self, tasks: Iterable[BoundedTable]) -> None:
        """Choose the first bound of a cut, or a higher one if a table has applied changes above the bound."""
        bounds = [bound for task in tasks if (bound := task.reading.least_bound) is not None]
        least = max(bounds, default=None)
        if self.bound is None or (least is not None and least > self.bound):
            self.bound = self._bounds.next(above=self._last, least=least)

    def _move_on(self) -> None:
        before = self.bound
        assert before is not None  # noqa: S101  (it is done with)
        self.bound = self._bounds.after(before)
        if self.bound == before != self._last and self._bounds.tries_again():
            # As long as nothing changes in the source, no later bound exists. So this cut is tried again.
            self._done = None

    def _blocked(self, tasks: Iterable[BoundedTable], seen: Look) -> dict[BoundedTable, str]:
        """Return the reason why each table has not reached the cut's bound; an empty text if it has."""
        return {task: _obstacle(task, seen.found.get(task.topic), self.bound) for task in tasks}

    def _publish(self, tasks: Sequence[BoundedTable], bound: int, *, without: Collection[TableId]) -> None:
        """Publish the cut at ``bound`` with the tables of ``tasks``.

        If it cannot be written, a warning is logged and the cut is skipped. ``without``: the tables that the
        cut leaves out.
        """
        assert self._log is not None  # noqa: S101  (opened before)
        try:
            with self._alive():
                tables = self._named(tasks, bound)
                if tables is None:
                    return
                self._context.failpoints.reach("cutting")
                time_of = self._bounds.time_of(bound)
                self._log.publish(bound, tables, time=time_of, without=without, keep=self._settings.keep)
        except TidesinkError as exc:
            _log.warning("cut not published", commit_ts=bound, error=str(exc))
            refused = [task for task in tasks if exc.context.get("table") == str(task.table)]
            for task in refused if not may_pass(exc) else ():
                # The next cut would be refused for the same reason, so the table stops.
                task.fail(exc)
            return
        self._context.failpoints.reach("cut")
        self._last, self._published_at, self._last_time = bound, time.time(), time_of.timestamp()
        self._applied = {task.table: task.applied for task in tasks}
        _log.info("cut", commit_ts=bound, tables=len(tables))

    def _named(self, tasks: Iterable[BoundedTable], bound: int) -> dict[CutTable, TargetTable] | None:
        """Look up the tables' versions for the cut, and protect each version from removal at the target.

        Returns None if that fails for a table. Then the cut is not published.
        """
        tables = dict[CutTable, TargetTable]()
        for task in tasks:
            try:
                version = self._context.retry(task.table).call(
                    partial(_version, task, bound, keep=self._settings.keep)
                )
            except StaleProgressError as exc:
                task.fail(exc)
                return None
            except TidesinkError as exc:
                _log.warning("cut not published", commit_ts=bound, table=str(task.table), error=str(exc))
                return None
            self._context.failpoints.reach("kept")
            previous = self._applied.get(task.table)
            changes = None if previous is None else task.applied - previous
            assert task.opened.hold is not None  # noqa: S101  (the table stands at a cut)
            tables[CutTable(task.table, version.place, version.version, changes)] = task.opened.hold.table
        return tables

    @contextmanager
    def _alive(self) -> Iterator[None]:
        """Send events to the listeners every second while the context is open.

        A database may need minutes to write a cut, and a worker without events counts as dead.
        """
        done = threading.Event()

        def beat() -> None:
            while not done.wait(_BEAT_SECONDS):
                self._context.listeners.hear(StillAtWork())

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _show(self, blocked: Mapping[BoundedTable, str], outside: Iterable[BoundedTable]) -> None:
        """Save the state of the cuts in the state store if it changed. ``tidesink status`` shows it.

        ``blocked``: the reason why each table has not reached the bound. ``outside``: tables that the cut
        leaves out.
        """
        waits = self._bounds.waits
        shown = CutStatus(
            last=self._last,
            published=self._published_at,
            next=self.bound,
            last_time=UNSET if waits is None else self._last_time,
            waits=UNSET if waits is None else waits,
            held_back={str(task.table): reason for task, reason in blocked.items() if reason},
            excluded=tuple(sorted(str(task.table) for task in outside)),
        )
        if shown == self._shown:
            return
        self._shown = shown
        try:
            self._status.save(shown)
        except TidesinkError as exc:
            _log.debug("cuts not saved", error=str(exc))


def _only_stuck(blocked: Mapping[BoundedTable, str], outside: Collection[BoundedTable], seen: Look) -> bool:
    """Return True if tables wait for the cut, and no table that the cut waits for can reach the bound now.

    A table cannot reach the bound if it is paused or failing, if no broker answers for its topic, or if it
    must first read records above the bound in old partitions of its topic.

    Args:
        blocked: The reason why each table has not reached the bound; an empty text if it has reached it.
        outside: Tables that the cut leaves out. It does not wait for them.
        seen: The current offsets of the topics.
    """
    stuck = {task for task in blocked if task.status.obstacle or task.topic in seen.unanswered}
    stuck |= {task for task in blocked if task.reading.stalled}
    stuck |= {*outside}
    others = any(not reason or task.reading.stalled for task, reason in blocked.items())
    return others and all(task in stuck for task, reason in blocked.items() if reason)


def _obstacle(task: BoundedTable, offsets: TopicOffsets | None, bound: int | None) -> str:
    """Return the reason why a table has not reached the cut's bound, or an empty text if it has."""
    if task.status.obstacle:
        return task.status.obstacle
    if offsets is None:
        return "no broker answers for its topic"
    progress, reading = task.opened.progress, task.reading
    if progress is None:
        return "not opened yet"
    asked_for = _asked_for(task, offsets)
    if bound is not None and stands_at(progress, task.topic, asked_for, bound, reading.marks):
        return ""
    if reading.stalled:
        return "partitions were added to the topic, and the old partitions are read first"
    unread = reading.unread(offsets)
    if unread:
        return f"{unread} records to read"
    return (
        "waiting for watermarks" if reading.ends is None else "waiting for an open Kafka transaction to end"
    )


def _asked_for(task: BoundedTable, offsets: TopicOffsets) -> Collection[int]:
    """Return the numbers of the partitions that may have records up to the bound.

    If the topic has no watermarks, partitions without records are left out, because no batch reads them and
    so they are not in the table's progress.
    """
    ends = task.reading.ends
    if ends is None:
        return offsets.partitions.keys()
    return {n for n, partition in offsets.partitions.items() if n not in ends or ends[n] > partition.earliest}


def _version(task: BoundedTable, commit_ts: int, *, keep: float) -> TableVersion:
    """Return the current version of a table, and protect it from removal at the target for ``keep`` seconds.

    The version is protected before the cut is published. If the worker is killed in between, a version stays
    protected that belongs to no cut, which does no harm. In the other order, a cut could contain a version
    that was removed.

    Raises:
        StaleProgressError: another worker holds the table.
        TidesinkError: the target does not answer, or cannot protect the version.
    """
    assert task.opened.hold is not None  # noqa: S101  (the table stands at a cut)
    table = task.opened.hold.table
    table_version = cast("VersionedTable", table).version_of(task.opened.hold.progress)
    if isinstance(table, KeptVersions):
        table.keep_version(table_version.version, commit_ts, keep=keep)
    return table_version


def cut_status(store: StateStore, pipeline: str) -> CutStatus | None:
    """Return the stored state of a pipeline's cuts, or None if the pipeline has no cuts.

    Raises:
        StateStoreError: the store does not answer.
    """
    return _CUTS.of(store, pipeline).load()
