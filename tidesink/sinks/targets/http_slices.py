"""One task's rows to an endpoint: slices of JSON, sent one after the other, each under a key of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import orjson
import pyarrow as pa

from tidesink.errors import EncodeError
from tidesink.events import ColumnType, Row, TableId
from tidesink.sinks.progress import Progress
from tidesink.sinks.shape import TableShape
from tidesink.sinks.targets.http_requests import Endpoint, Requests
from tidesink.sinks.targets.message_rows import MessageRow, MessageRows
from tidesink.sinks.targets.task_outcomes import Sent
from tidesink.typemap.wire_text import json_value

if TYPE_CHECKING:
    from tidesink.sinks.targets.store_ledger import LedgerEntry

IDEMPOTENCY_HEADER: Final = "Idempotency-Key"
EPOCH_HEADER: Final = "Tidesink-Epoch"
BATCH_HEADER: Final = "Tidesink-Batch"


@dataclass(frozen=True)
class Stamp:
    """What tells one batch from all others; the epoch is no part of a slice's key.

    A batch that is sent again after a restart is of another epoch, and its slices have the same keys. One
    that was ``cut`` (``LedgerEntry``) elsewhere has others, though a row may read as it did before the change
    that was sent between the two.
    """

    pipeline: str
    table: TableId
    epoch: int
    batch: int
    cut: str

    @classmethod
    def of(cls, entry: LedgerEntry, progress: Progress) -> Stamp:
        """The stamp of a batch that is sent on what the ledger's entry says."""
        return cls(entry.pipeline, progress.table, entry.told_epoch, progress.batch, entry.cut(progress))

    def headers(self, body: bytes) -> dict[str, str]:
        """The headers of a request with this body."""
        place = orjson.dumps([self.pipeline, *self.table, self.batch, self.cut])
        return {
            IDEMPOTENCY_HEADER: hashlib.sha256(place + b"\n" + body).hexdigest(),
            EPOCH_HEADER: str(self.epoch),
            BATCH_HEADER: str(self.batch),
        }


def body_of(rows: Sequence[Mapping[str, Any]], form: str) -> bytes:
    """The body of a request: one JSON object a line, or one array.

    Raises:
        EncodeError: a value that JSON has no form for.
    """
    try:
        if form == "array":
            return orjson.dumps(rows)
        return b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)
    except TypeError as error:
        raise EncodeError(f"a row cannot be written as JSON: {error}") from error


@dataclass(frozen=True)
class Slices:
    """What a task does; goes to the executors as it is."""

    endpoint: Endpoint
    shape: TableShape
    stamp: Stamp
    batch_rows: int

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Sent]:
        """Send the rows of a task, slice by slice; each is given when the endpoint took it.

        Raises:
            TargetError: a row has no key, or the endpoint refuses a slice for good.
            TransientTargetError: the endpoint did not take a slice now.
        """
        with Requests(self.endpoint) as sending:
            for rows in self._slices(batches):
                body = body_of([self._object(row) for row in rows], self.endpoint.format)
                sending.send(body, self.stamp.headers(body))
                deletes = sum(row.op == "delete" for row in rows)
                yield Sent(len(rows) - deletes, deletes)

    def truncate(self) -> None:
        """Send that the source emptied the table; raises as ``run``."""
        body = body_of([{**self._head("truncate"), "key": None, "after": None}], self.endpoint.format)
        with Requests(self.endpoint) as sending:
            sending.send(body, self.stamp.headers(body))

    def _slices(self, batches: Iterator[pa.RecordBatch]) -> Iterator[list[MessageRow]]:
        # Cut by their number alone, wherever Arrow's batches end: sent again, a slice is the same.
        reader = MessageRows(self.shape, self.shape.time_zone)
        waiting: list[MessageRow] = []
        for batch in batches:
            for row in reader.read(batch):
                waiting.append(row)
                if len(waiting) == self.batch_rows:
                    yield waiting
                    waiting = []
        if waiting:
            yield waiting

    def _head(self, op: str) -> dict[str, Any]:
        table = self.shape.table
        return {"table": {"schema": table.schema, "name": table.name}, "op": op}

    def _object(self, row: MessageRow) -> dict[str, Any]:
        empty = [name for name, value in row.key.items() if value is None]
        if empty or not row.key:
            raise EncodeError("a key column is NULL, so that nothing names the row", column=", ".join(empty))
        after = None if row.after is None else self._values(row.after)
        found = {**self._head(row.op), "key": self._values(row.key), "after": after}
        if row.commit_ts is not None:
            found["commit_ts"] = row.commit_ts
        return {**found, "kept": list(row.kept)} if row.kept else found

    def _values(self, row: Row) -> dict[str, Any]:
        return {name: json_value(value, self._types.get(name)) for name, value in row.items()}

    @cached_property
    def _types(self) -> Mapping[str, ColumnType]:
        return {column.name: column.type for column in self.shape.columns if column.type.name == "float"}
