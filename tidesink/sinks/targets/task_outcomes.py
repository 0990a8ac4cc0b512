"""What tasks that send rows tell the driver: how many were acknowledged, and the error that ended a task.

An error comes as data, so that it is the same class on the driver and nothing is read out of a text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from pyspark.errors import PythonException

from tidesink.errors import EncodeError, TargetError, TidesinkError, TransientTargetError, ValueNotStoredError
from tidesink.sinks.spark.task_errors import raised_task_errors
from tidesink.sinks.targets.spark_errors import SPARK_ERRORS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OUTCOME_DDL: Final = "upserts bigint, deletes bigint, error string"
_RAISED: Final = {one.__name__: one for one in (TargetError, TransientTargetError, ValueNotStoredError)}
Task = Callable[[Iterator[pa.RecordBatch]], Iterator["Sent"]]


class Sent(NamedTuple):
    """How many rows of each kind were acknowledged."""

    upserts: int
    deletes: int


def run_tasks(frame: DataFrame, task: Task, *, table: str) -> Sent:
    """Give every task's Arrow batches to ``task``; the rows that all of them sent.

    Raises:
        TidesinkError: reading the rows failed in a task.
        TargetError: the first error that a task told, of its own class.
        TransientTargetError: Spark could not run the tasks to their end.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield _told(task, iter(batches))

    try:
        with raised_task_errors(table=table):
            rows = frame.mapInArrow(run, OUTCOME_DDL).collect()
    except PythonException as exc:
        raise TargetError("a task that sends rows failed; report this with the log", table=table) from exc
    except SPARK_ERRORS as exc:
        raise TransientTargetError(
            f"the tasks that send rows were cut off ({type(exc).__name__}): some may have been sent",
            table=table,
        ) from exc
    for row in rows:
        if row["error"] is not None:
            raise _restored(row["error"]).with_context(table=table)
    return Sent(sum(row["upserts"] for row in rows), sum(row["deletes"] for row in rows))


def _told(task: Task, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
    upserts = deletes = 0
    error: str | None = None
    try:
        for sent in task(batches):
            upserts, deletes = upserts + sent.upserts, deletes + sent.deletes
    except TidesinkError as exc:
        error = _document(exc)
    columns: list[Any] = [[upserts], [deletes], [error]]
    types = (pa.int64(), pa.int64(), pa.string())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, ["upserts", "deletes", "error"])


def _document(error: TidesinkError) -> str:
    kind = type(error).__name__
    if isinstance(error, EncodeError) or kind not in _RAISED:
        kind = (TransientTargetError if error.remedy == "retry" else TargetError).__name__
    return json.dumps([kind, error.message, error.context])


def _restored(text: str) -> TidesinkError:
    kind, message, context = json.loads(text)
    return _RAISED[kind](message, **context)
