"""Payloads: rows that a batch's tasks packed as Arrow IPC streams in a binary column of a Spark frame.

``batch.tasks`` packs the rows and defines the columns. Targets unpack them in their own tasks.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from tidesink.sinks.spark.errors import reported

# The values of the column ``_op``: what the target does with a row.
UPSERT: Final = "upsert"
DELETE: Final = "delete"
ROW_KINDS: Final = (UPSERT, DELETE)


def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the rows of payloads.

    ``batches`` have the columns ``payload`` (rows as an Arrow IPC stream) and ``error`` (a pickled error),
    one of them null.

    Raises:
        TaskError: A payload is an error. This may happen if Spark repeats a task because its payload was
            lost, even though the first run succeeded.
    """
    for batch in batches:
        for payload, error in zip(batch.column(0), batch.column(1), strict=True):
            if error.is_valid:
                with reported():
                    raise pickle.loads(error.as_py())  # noqa: S301  (our own task wrote it)
            if payload.is_valid:
                with pa.ipc.open_stream(payload.as_buffer()) as stream:
                    yield from stream


def ipc_stream(rows: pa.Table | pa.RecordBatch) -> bytes:
    """Returns rows as an Arrow IPC stream."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema) as writer:
        writer.write(rows)
    whole: bytes = out.getvalue().to_pybytes()
    return whole
