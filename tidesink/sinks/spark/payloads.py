"""Payloads: the rows that a batch's tasks packed, as Arrow IPC streams in a column of a Spark frame.

``batch.tasks`` packs them and defines their columns; targets unpack them in their own tasks.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from tidesink.sinks.spark.errors import reported

# The action for a row, in its column ``_op``.
UPSERT: Final = "upsert"
DELETE: Final = "delete"
ROW_KINDS: Final = (UPSERT, DELETE)


def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the rows of payloads, from the columns ``payload`` and ``error``.

    Raises:
        TaskError: A payload is an error, which ``task_error`` finds again. A task that Spark repeats, because
            a payload was lost, may fail although the first run did not.
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
    """Returns the number of the current task among those of its stage; 0 outside of Spark."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else int(context.partitionId())


def ipc_stream(rows: pa.Table | pa.RecordBatch) -> bytes:
    """Returns rows as an Arrow IPC stream."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema) as writer:
        writer.write(rows)
    whole: bytes = out.getvalue().to_pybytes()
    return whole
