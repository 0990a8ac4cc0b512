"""The slots of a worker: which tables run a batch now, and in which order the others wait."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import Final

from tidesink.sinks.kafka.offsets import TopicOffsets
from tidesink.sinks.runtime.context import WorkerContext
from tidesink.sinks.worker.table_task import TableTask

# Maximum number of tables that are processed at once, unless ``batch.max-tables`` is set. More threads would
# compete for the interpreter's lock (docs/adr/0038).
_AT_ONCE: Final = 4
# How many of them may have large batches. More would not be faster: one keeps all cores busy.
_LARGE_AT_ONCE: Final = 2
# A table whose watermarks were not read for this many intervals is preferred for every second batch.
_MOST_INTERVALS: Final = 10


class Slots:
    """Runs the batches of tables in threads, a few at once. Used by the worker's main thread.

    Attributes:
        busy: The running batches, with their tables.
        waiting: Tables with something to do that have no slot yet, in their order.
        gave_overdue: True if the last batch went to a table with only watermarks to commit.
    """

    def __init__(self, context: WorkerContext) -> None:
        """Create free slots."""
        self.busy: dict[Future[None], TableTask] = {}
        self.waiting: list[TableTask] = []
        self.gave_overdue = False
        self._context = context
        self._due: frozenset[TableTask] = frozenset()
        self._turns = itertools.count(1)

    @property
    def has_room(self) -> bool:
        """True if fewer tables are at work than may be."""
        return len(self.busy) < (self._context.config.batch.max_tables or _AT_ONCE)

    def is_due(self, table_task: TableTask, intervals: int = 1) -> bool:
        """Return True if a table must read and commit watermarks again.

        This is the case if its last batch ended ``intervals`` times ``batch.watermark-interval`` ago. A run
        that ends by itself, such as until ``drained``, does not wait for new watermarks.
        """
        interval = self._context.config.batch.watermark_interval
        return not self._context.ends and table_task.rested >= intervals * interval

    def wait_for(self, ready: list[TableTask], due: list[TableTask]) -> None:
        """Let these tables wait for a slot (``in_order``), and no others."""
        self._due = frozenset(due)
        self.waiting = self.in_order(ready, due)

    def in_order(self, ready: list[TableTask], due: list[TableTask]) -> list[TableTask]:
        """Return the tasks in the order in which they get a batch.

        ``ready``: tasks with records to read. The task whose last batch was started longest ago comes first;
        tasks without a batch so far come before all others, by lag. So a table waits for at most one batch of
        each other table, no matter how much the others have to read or how often they fail.

        ``due``: tasks that have only watermarks to commit. They come last. But those that are long overdue
        get every second turn, so that their offsets advance even if others always have records.
        """
        ready = sorted(ready, key=lambda table_task: (table_task.turn, -table_task.reading.lag))
        due = sorted(due, key=lambda table_task: -table_task.rested)
        overdue = [table_task for table_task in due if self.is_due(table_task, _MOST_INTERVALS)]
        first, second = (ready, overdue) if self.gave_overdue else (overdue, ready)
        pairs = itertools.zip_longest(first, second)
        in_turn = [table_task for pair in pairs for table_task in pair if table_task is not None]
        return [*in_turn, *due[len(overdue) :]]

    def start(self, topics: Mapping[str, TopicOffsets]) -> None:
        """Start a batch for each waiting table that gets a slot, in their order."""
        waiting = list[TableTask]()
        for table_task in self.waiting:
            if not self._may_start(table_task):
                waiting.append(table_task)
                continue
            self.gave_overdue = table_task in self._due
            table_task.turn = next(self._turns)
            work = partial(table_task.work, topics.get(table_task.topic), passes=not self._context.ends)
            self.busy[self._context.spark.thread(work, name=str(table_task.table))] = table_task
        self.waiting = waiting

    def collect(self) -> bool:
        """Remove ended batches from the running ones. Return True if a batch has ended."""
        ended = [future for future in self.busy if future.done()]
        for future in ended:
            del self.busy[future]
            # A task handles the failures of its table. An exception here is a bug of the worker.
            future.result()
        return bool(ended)

    def _may_start(self, table_task: TableTask) -> bool:
        """Return True if a table's batch may start now, beside the running ones.

        Large batches do not take all slots, so that small ones need not wait for them.
        """
        if not self.has_room:
            return False
        if self._context.config.batch.max_tables is not None or not table_task.is_large:
            return True
        return sum(task.is_large for task in self.busy.values()) < _LARGE_AT_ONCE
