"""Payloads: the rows that a batch's tasks packed, as Arrow IPC streams in a column of a Spark frame.

``batch.tasks`` packs them and says their columns; targets unpack them in their own tasks.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from tidesink.sinks.spark.errors import reported

# What is to be done with a row to apply, in its column ``_op``.
UPSERT: Final = "upsert"
DELETE: Final = "delete"
ROW_KINDS: Final = (UPSERT, DELETE)


def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of payloads, from the columns ``payload`` and ``error``.

    Raises:
        TaskError: a payload that is an error, which ``task_errors`` finds again: a task that Spark ran
            again, for a payload that was lost, may fail where the first one did not.
    """
    for batch in batches:
        for payload, error in zip(batch.column(0), batch.column(1), strict=True):
            if error.is_valid:
                with reported():
                    raise pickle.loads(error.as_py())  # noqa: S301  (our own task wrote it)
            if payload.is_valid:
                with pa.ipc.open_stream(payload.as_buffer()) as stream:
                    yield from stream


def task_number() -> int:
    """The number of the task that this runs in, among those of its stage; 0 outside of Spark."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else int(context.partitionId())


def ipc_stream(rows: pa.Table | pa.RecordBatch) -> bytes:
    """Rows as an Arrow IPC stream."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema) as writer:
        writer.write(rows)
    whole: bytes = out.getvalue().to_pybytes()
    return whole
