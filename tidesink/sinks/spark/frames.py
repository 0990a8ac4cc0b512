"""Rows in a Spark frame, on which Spark's tasks run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidesink.sinks.spark.errors import Reporting
from tidesink.sinks.spark.session import in_session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class SparkRows:
    """The rows of a frame, as ``TaskRows``. Tasks are pickled and run in Spark's Python workers."""

    frame: DataFrame

    def run(
        self,
        task: Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]],
        ddl: str,
        *,
        tasks: int | None = None,
    ) -> list[tuple[Any, ...]]:
        """Run a task on each partition of the frame, and return the rows that it yields.

        Use ``spark.errors.task_error`` to get a task's ``TidesinkError`` back from Spark's exception.
        """
        frame = self.frame if tasks is None else self.frame.coalesce(tasks)
        return [tuple(row) for row in frame.mapInArrow(Reporting(task), ddl).collect()]

    def in_session(self, session: SparkSession) -> SparkRows:
        """Returns the same rows, for tasks that run with the settings of another session."""
        return SparkRows(in_session(self.frame, session))
