"""The executor that runs the tasks of a small batch in this process, without a Spark job."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.sinks.batch.reports import KafkaRead, TaskReports
from tidesink.sinks.batch.source import LocalReader, frame_of_payloads
from tidesink.sinks.batch.tasks import RangeTooLargeError
from tidesink.sinks.batch.together import last_rows, mixed_keys
from tidesink.sinks.jobs.executor import SparkExecutor, TaskResults
from tidesink.sinks.laws.counts import BatchSummary
from tidesink.sinks.spark.attempts import local_attempt
from tidesink.sinks.spark.errors import raised_local_errors
from tidesink.sinks.spark.payloads import ipc_stream, unpack
from tidesink.sinks.targets.base import StagedPart

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.sinks.batch.source import RecordReader
    from tidesink.sinks.batch.tasks import RangeTask

_PAYLOADS = ("payload", "error")
# The maximum size of a batch that this process decodes, beside those of three other tables.
MOST_LOCAL_BYTES: Final = 128 << 20
# Maximum number of seconds that a batch waits for the turn of another one.
_LONGEST_TURN: Final = 0.5


@dataclass(frozen=True)
class LocalRows:
    """Rows in this process, as ``TaskRows``. A task runs in the calling thread."""

    batches: Sequence[pa.RecordBatch]

    def run(
        self,
        task: Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]],
        ddl: str,  # noqa: ARG002
        *,
        tasks: int | None = None,  # noqa: ARG002
    ) -> list[tuple[Any, ...]]:
        """Run one task on all rows, and return the rows that it yields.

        Raises:
            TidesinkError: The task failed.
        """
        with raised_local_errors(), local_attempt():
            results = [batch.to_pydict() for batch in task(iter(self.batches))]
        return [row for columns in results for row in zip(*columns.values(), strict=True)]

    def in_session(self, session: SparkSession) -> LocalRows:  # noqa: ARG002
        """Returns the same rows, which are not in Spark."""
        return self


@dataclass(frozen=True)
class LocalResults:
    """The results of tasks that ran in this process.

    Attributes:
        task: The task that ran on the ranges.
        packed: The tasks' result rows (``tasks.PACKED_DDL``). Empty after ``release``.
        reports: The reports of the tasks.
        summary: What the tasks report about the batch's records.
        session: Returns a Spark session, which may have to start first.
        staged: As in ``TaskResults``.
    """

    task: RangeTask
    packed: list[pa.RecordBatch]
    reports: TaskReports
    summary: BatchSummary
    session: Callable[[], SparkSession]
    staged: tuple[StagedPart, ...] | None = None

    @cached_property
    def frame(self) -> DataFrame:
        """The results of all tasks as a Spark frame, for what only Spark can do with them."""
        return frame_of_payloads(self.session(), pa.Table.from_batches(self.packed_rows), self.task)

    @property
    def payloads(self) -> LocalRows | None:
        """The packed rows of the tasks. None if the rows are staged."""
        return LocalRows(self.packed_rows) if self.staged is None else None

    def rows_of(self, kind: str, columns: Sequence[str]) -> LocalRows:
        """Returns columns of the rows of all tasks with this value of ``_op``."""
        rows = (batch.filter(pc.equal(batch.column("_op"), kind)) for batch in unpack(self.packed_rows))
        return LocalRows([batch.select(list(columns)) for batch in rows if batch.num_rows])

    @property
    def read(self) -> KafkaRead:
        """The amounts of data that were read from Kafka."""
        return self.reports.read

    @property
    def row_by_row_records(self) -> int:
        """The number of records that the slower row codec decoded."""
        return self.reports.row_by_row_records

    @property
    def hashes(self) -> npt.NDArray[np.uint64]:
        """The hashes (``reduce.key_hashes``) of the keys of all rows to apply."""
        return self.reports.hashes

    def release(self) -> None:
        """Release the result rows."""
        self.packed.clear()

    @property
    def packed_rows(self) -> list[pa.RecordBatch]:
        """The payloads of the tasks, in the columns ``payload`` and ``error``."""
        return [batch.select(list(_PAYLOADS)) for batch in self.packed]


@dataclass(frozen=True)
class LocalExecutor:
    """Runs the tasks of a batch in the calling thread, one input after the other.

    Spark runs a batch that needs it: one with a row filter, one whose reader needs Spark, and one that turns
    out to be too large for this process.

    ``spark``: returns the executor of the table's Spark session, which may have to start first.
    """

    spark: Callable[[], SparkExecutor]
    is_local: ClassVar[bool] = True

    def run(self, task: RangeTask, reader: RecordReader, *, checkpoint: bool) -> TaskResults:
        """Run a task on its ranges and return the results."""
        if task.plan.row_filter is None and isinstance(reader, LocalReader) and reader.can_read_here():
            with suppress(RangeTooLargeError), raised_local_errors(), local_attempt():
                return self._run(_as_in_a_new_process(task), reader)
        return self.spark().run(task, reader, checkpoint=checkpoint)

    def _run(self, task: RangeTask, reader: LocalReader) -> LocalResults:
        packed = _packed(task, reader)
        heads = (batch.drop_columns("payload") for batch in packed)
        reports = TaskReports([head for batch in heads for head in batch.to_pylist()])
        reports.raise_error()
        results = LocalResults(task, packed, reports, reports.summary, self._session)
        if task.sink is None:
            return _reduced_together(results) if reports.has_mixed_keys else results
        if reports.staged is None:
            return self._run(replace(task, sink=None), reader)
        return replace(results, staged=reports.staged)

    def _session(self) -> SparkSession:
        return self.spark().session()


def _as_in_a_new_process(task: RangeTask) -> RangeTask:
    """Returns the task with a decoder that has no caches, as Spark's tasks have, and with a smaller limit.

    The table's own decoder lives as long as its plan. Its caches would grow with each of hundreds of tables.
    """
    plan = replace(task.plan, decoder=copy(task.plan.decoder))
    return replace(task, plan=plan, most_bytes=min(task.most_bytes, MOST_LOCAL_BYTES))


def _packed(task: RangeTask, reader: LocalReader) -> list[pa.RecordBatch]:
    """Returns the result rows of a task. They end with the first input that has an error.

    Raises:
        RangeTooLargeError: The inputs together are larger than a task may be in this process.
    """
    packed, size = list[pa.RecordBatch](), 0
    with _ComputeTurn(shared=task.sink is not None) as turn:
        for part in task.ranges:
            for batch in task.packed(part, turn.left_for(reader.records_of(part))):
                packed.append(batch)
                size += batch.nbytes
                if size > task.most_bytes:
                    raise RangeTooLargeError.of(part, task.most_bytes)
                if batch.column("error").null_count < batch.num_rows:
                    # With a broker that does not answer, each further input would wait as long as this one.
                    return packed
    return packed


class _ComputeTurn:
    """Lets one thread at a time decode and reduce, while others wait for Kafka and for databases.

    Two threads that compute are no faster than one: they take the interpreter's lock from each other at every
    call of Arrow, which costs half of a small batch's CPU time (docs/adr/0038). A thread that waits for long
    computes anyway, because the other one may wait for a schema registry.

    ``shared``: True if the thread also writes to the target meanwhile, and so takes no turn.
    """

    _lock: ClassVar = threading.Lock()

    def __init__(self, *, shared: bool) -> None:
        self._shared = shared
        self._has_lock = False

    def __enter__(self) -> _ComputeTurn:
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def left_for(self, records: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields records. Another thread has the turn while they are read."""
        while True:
            self._end()
            try:
                batch = next(records, None)
            finally:
                self._begin()
            if batch is None:
                return
            yield batch

    def _begin(self) -> None:
        self._has_lock = not self._shared and self._lock.acquire(timeout=_LONGEST_TURN)

    def _end(self) -> None:
        if self._has_lock:
            self._has_lock = False
            self._lock.release()


def _reduced_together(results: LocalResults) -> LocalResults:
    """Reduces the rows of all ranges together, if a key is in several ranges (``batch.source``)."""
    task = results.task
    rows = pa.Table.from_batches(unpack(results.packed_rows), task.schema)
    if not (task.plan.rules.versions or task.plan.rules.sequenced):
        return replace(results, summary=replace(results.summary, mixed_keys=mixed_keys(rows)))
    rows, summary = last_rows(rows, task, results.summary)
    payload = pa.array([ipc_stream(rows.combine_chunks())], pa.binary())
    packed = pa.record_batch({"payload": payload, "error": pa.nulls(1, pa.binary())})
    return replace(results, packed=[packed], summary=summary)
