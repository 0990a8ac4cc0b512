"""Executors: they run the tasks that read, decode and reduce a batch's records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from tidesink.errors import AccountingError
from tidesink.events import TableId
from tidesink.sinks.batch.source import fit_shuffle, reduced_ranges

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.sinks.batch.reports import KafkaRead
    from tidesink.sinks.batch.source import RecordReader
    from tidesink.sinks.batch.tasks import RangeTask
    from tidesink.sinks.laws.counts import BatchSummary
    from tidesink.sinks.targets.base import StagedPart, TaskRows


class TaskResults(Protocol):
    """The results of a batch's tasks (``batch.source.RangeFrame``)."""

    @property
    def summary(self) -> BatchSummary:
        """The counts of the batch."""

    @property
    def read(self) -> KafkaRead:
        """The amounts of data that were read from Kafka."""

    @property
    def staged(self) -> tuple[StagedPart, ...] | None:
        """The tasks' reports about rows that they staged in the target. None if ``frame`` has the rows."""

    @property
    def frame(self) -> DataFrame:
        """The reduced rows in the columns of ``batch.tasks.reduced_schema``."""

    @property
    def payloads(self) -> TaskRows | None:
        """The packed rows of the tasks. None if they are staged, or if ranges were reduced together."""

    def rows_of(self, kind: str, columns: Sequence[str]) -> TaskRows:
        """Returns columns of the rows of ``frame`` with this value of ``_op``, such as bad records."""

    @property
    def hashes(self) -> npt.NDArray[np.uint64]:
        """The hashes of the keys of all rows to apply."""

    @property
    def row_by_row_records(self) -> int:
        """The number of records that the slower row codec decoded."""

    def release(self) -> None:
        """Release the stored rows."""


class Executor(Protocol):
    """Runs the tasks of a batch. It is used by one thread at a time.

    ``is_local``: True if the tasks run in this process.
    """

    @property
    def is_local(self) -> bool:
        """True if the tasks run in this process, so that their rows are here."""

    def run(self, task: RangeTask, reader: RecordReader, *, checkpoint: bool) -> TaskResults:
        """Run a task on its ranges and return the results.

        If the task's sink could not stage the rows of some range, the ranges are read again without the sink.

        ``checkpoint``: True if each read of the results must return the same rows.

        Raises:
            RangeTooLargeError: A range is larger than a task may hold in memory.
            TidesinkError: A task failed with this error.
        """


@dataclass(frozen=True)
class SparkExecutor:
    """Runs the tasks of a batch as a Spark job. ``session``: returns the table's Spark session."""

    session: Callable[[], SparkSession]
    is_local: ClassVar[bool] = False

    def run(self, task: RangeTask, reader: RecordReader, *, checkpoint: bool) -> TaskResults:
        """Run a task on its ranges in a Spark job and return the results."""
        session = self.session()
        fit_shuffle(session, sum(part.records for part in task.ranges))
        return reduced_ranges(session, task, reader, checkpoint=checkpoint)


def check_counted(results: TaskResults, table: TableId) -> None:
    """Check that the tasks counted each record that was read.

    Raises:
        AccountingError: The numbers differ.
    """
    counted = results.summary.counts.messages
    if counted != results.read.records:
        raise AccountingError(
            f"{results.read.records} records were read, but the tasks counted {counted}. "
            "Nothing was written. Report this with the log.",
            table=str(table),
        )


@contextmanager
def released_on_error(release: Callable[[], object]) -> Iterator[None]:
    """Call ``release`` if the block raises an exception."""
    try:
        yield
    except BaseException:
        release()
        raise
