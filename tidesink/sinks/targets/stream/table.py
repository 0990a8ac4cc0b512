"""A table that is sent on as messages: its batches, its rows, and what sending tasks report."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PythonException

from tidesink.errors import (
    EncodeError,
    SchemaRefusedError,
    TargetError,
    TidesinkError,
    TransientTargetError,
    ValueNotStoredError,
)
from tidesink.events import ColumnType, Row, Value
from tidesink.sinks.spark.errors import SPARK_ERRORS, raised_task_errors
from tidesink.sinks.spark.payloads import ROW_KINDS, unpack
from tidesink.sinks.state.progress import Progress
from tidesink.sinks.targets.base import (
    PLACE_COLUMNS,
    ApplyResult,
    Claim,
    DeleteMode,
    EvolveResult,
    ReducedBatch,
    ReducedOp,
    SchemaGap,
    TargetTable,
)
from tidesink.sinks.targets.column_changes import gap_of, plan_evolution
from tidesink.sinks.targets.stream.ledger import LedgerEntry, StoreLedger, sent_result
from tidesink.typemap.table import row_of
from tidesink.typemap.target_schema import ShapeColumn, TableShape

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class MessageTable(TargetTable, ABC):
    """One table, open for one worker thread; its progress is in the ledger."""

    def __init__(self, shape: TableShape, *, ledger: StoreLedger) -> None:
        self._shape = shape
        self._ledger = ledger
        self._created = False

    def claim(self) -> Claim:
        """Take the table's next epoch in the ledger, then say what is applied."""
        self._created = self._ledger.entry().columns is None
        claim = self._ledger.claim()
        if self._created:
            self._ledger.write_columns({column.name: column.spark for column in self._shape.columns})
        return claim

    def committed(self) -> Progress | None:
        """The progress that the ledger holds."""
        return self._ledger.committed()

    def gap(self, shape: TableShape) -> SchemaGap:
        """What the columns that were sent until now lack."""
        present = dict(self._ledger.entry().columns or {})
        return gap_of(present, plan_evolution(present, shape))

    def evolve(self, shape: TableShape) -> EvolveResult:
        """Make ready for rows of ``shape``; what was sent stays as it is."""
        result, columns = evolved(self._ledger.held(), shape, created=self._created)
        self._prepare(shape)
        if result.added or result.widened:
            self._ledger.write_columns(columns)
        self._created = False
        return result

    def apply(self, batch: ReducedBatch, progress: Progress) -> ApplyResult:
        """Send a batch, wait until all of it is acknowledged, and write its progress down."""
        entry = self._ledger.held(progress.epoch)
        done = entry.done(progress)
        if done is not None:
            return done
        sent = Sent(0, 0) if batch.empty else self._send(batch, progress, entry)
        result = sent_result(*sent, f"{entry.sent_epoch}/{progress.batch}")
        batch.on_staged()
        self._ledger.write(progress, result)
        return result

    def _prepare(self, shape: TableShape) -> None:
        """What must be there before rows of a shape are sent."""

    @abstractmethod
    def _send(self, batch: ReducedBatch, progress: Progress, entry: LedgerEntry) -> Sent:
        """Send a batch that is not empty, on what the ledger's entry says; what was acknowledged."""


_NO_WORD: Final = (
    "the source did not send the value of {columns}, since it did not change, and {protocol} has no word for "
    "that. Set REPLICA IDENTITY FULL on the table, or write debezium-json or debezium-avro, which have one"
)
_AGAIN: Final = (
    "the source did not send the value of {columns}, and the row was deleted before it in the same batch: "
    "nobody has the value. Set REPLICA IDENTITY FULL on the table, and take a snapshot of the row"
)


def check_shape(shape: TableShape, delete_mode: DeleteMode) -> None:
    """Refuse a table that cannot be sent as messages.

    Raises:
        SchemaRefusedError: it has no key, or is to be soft-deleted from.
    """
    if not shape.keys:
        raise SchemaRefusedError(
            "the table has no key that tells its rows apart: set keys in the config to columns that do",
            table=str(shape.table),
        )
    if delete_mode == "soft":
        raise SchemaRefusedError(
            "this target sends deletes as messages and keeps no row to mark: set deletes: hard",
            table=str(shape.table),
        )


def batch_frame(batch: ReducedBatch) -> DataFrame:
    """The rows of a batch with the columns that tasks look at.

    Raises:
        TargetError: the batch has rows, which are another kind of target's.
    """
    if batch.frame is None:
        raise TargetError("this target takes a frame, and the batch has rows", table=str(batch.shape.table))
    if batch.sequenced:
        raise TargetError(
            "this target keeps no row whose position could be compared: set sequence_by: kafka",
            table=str(batch.shape.table),
        )
    return batch.frame.select(*message_columns(batch, batch.frame.columns))


def check_kept(frame: DataFrame, batch: ReducedBatch, protocol: str, *, tells: bool = False) -> None:
    """Refuse values that the source left out where no message can say so; nothing was sent.

    ``tells``: the protocol has a word for them, unless the row is not the one that was stored.

    Raises:
        ValueNotStoredError: names the columns and where the row came from.
    """
    if not batch.keeps or batch.frame is None:
        return
    tells = tells or protocol.startswith("debezium")
    omitted = batch.frame.where(f"size(_kept) > 0{' AND _after_delete' if tells else ''}")
    places = [name for name in PLACE_COLUMNS if name in frame.columns]
    row = omitted.select("_kept", *places).first()
    if row is None:
        return
    text = (_AGAIN if tells else _NO_WORD).format(columns=", ".join(row["_kept"]), protocol=protocol)
    place = {name.removeprefix("_"): row[name] for name in places}
    raise ValueNotStoredError(text, **place, table=str(batch.shape.table))


def evolved(entry: LedgerEntry, shape: TableShape, *, created: bool) -> tuple[EvolveResult, dict[str, str]]:
    """What ``shape`` changes in the columns that were sent until now, and the columns with it.

    Raises:
        SchemaRefusedError: a column's new type cannot hold what was sent before.
    """
    present = dict(entry.columns or {})
    plan = plan_evolution(present, shape)
    columns = {**present, **plan.widened, **{column.name: column.spark for column in plan.added}}
    added = tuple(column.name for column in plan.added)
    return EvolveResult(created, added, tuple(plan.widened)), columns


COMMIT_TS = "_commit_ts"
_NUMBER = re.compile(r"[0-9]{1,20}", re.ASCII)
ToSource = Callable[[Any], Value]


class MessageRow(NamedTuple):
    """One row to send. ``after`` is None for a delete, and has no ``kept`` columns.

    ``place`` is the topic, partition and offset of the event it came from, where the frame says them.
    """

    op: ReducedOp
    key: Row
    after: Row | None
    commit_ts: int | None
    kept: tuple[str, ...]
    place: tuple[str, int, int] | None


def message_columns(batch: ReducedBatch, present: Sequence[str]) -> list[str]:
    """What of a frame's columns is sent to the tasks."""
    more = ["_kept"] if batch.keeps else []
    return ["_op", "key", "after", *more, *(name for name in (COMMIT_TS, *PLACE_COLUMNS) if name in present)]


class MessageRows:
    """Reads the rows of Arrow batches. ``time_zone``: in which TIMESTAMP texts are written."""

    def __init__(self, shape: TableShape, time_zone: str) -> None:
        zone = ZoneInfo(time_zone)
        self._readers = {column.name: _to_source(column, zone) for column in shape.columns}

    def read(self, batch: pa.RecordBatch) -> Iterator[MessageRow]:
        """The rows of one batch of a frame of ``message_columns``."""
        names = batch.schema.names
        count = batch.num_rows
        kept = _listed(batch, "_kept", names) or [None] * count
        commit_ts = _listed(batch, COMMIT_TS, names) or [None] * count
        places = zip(*(_listed(batch, name, names) or () for name in PLACE_COLUMNS), strict=False)
        known: list[Any] = list(places) or [None] * count
        keys, afters = self._rows(batch.column("key")), self._rows(batch.column("after"))
        for at, op in enumerate(batch.column("_op").to_pylist()):
            after, omitted = afters[at], tuple(name for name in kept[at] or () if name in self._readers)
            if after is not None and omitted:
                after = {name: value for name, value in after.items() if name not in omitted}
            key = keys[at] or {}
            yield MessageRow(op, key, None if op == "delete" else after, commit_ts[at], omitted, known[at])

    def _rows(self, structs: pa.StructArray) -> list[dict[str, Value] | None]:
        # Payloads may have columns that the target is not given.
        names = [member.name for member in structs.type if member.name in self._readers]
        columns = [self._values(structs.field(name), name) for name in names]
        there = structs.is_valid().to_pylist()
        rows = zip(*columns, strict=True)
        return [
            dict(zip(names, row, strict=True)) if ok else None for row, ok in zip(rows, there, strict=True)
        ]

    def _values(self, values: pa.Array, name: str) -> list[Value]:
        if pa.types.is_timestamp(values.type):
            values = values.cast(pa.timestamp("us"))  # of an instant: its UTC clock
        found: list[Value] = values.to_pylist()
        read = self._readers[name]
        return found if read is None else [None if value is None else read(value) for value in found]


def _listed(batch: pa.RecordBatch, name: str, names: Sequence[str]) -> list[Any] | None:
    return batch.column(name).to_pylist() if name in names else None


def _to_source(column: ShapeColumn, zone: ZoneInfo) -> ToSource | None:
    """What turns a target's value back into the source's; None where it is that already."""
    reader = row_of(column.type).reader
    if reader in ("integer", "unsigned64", "bit") and column.spark.startswith("decimal"):
        return int
    if reader == "decimal":
        return Decimal if column.spark == "string" else None
    if reader in ("enum", "set") and column.type.members is None:
        return _number_or_label
    if column.spark == "date":
        return date.isoformat
    if column.spark == "timestamp_ntz":
        return lambda value: _clock(value, column.type)
    if column.spark == "timestamp":
        offset = "+00:00" if reader == "instant" else ""
        own = ZoneInfo("UTC") if offset else zone
        return lambda value: _clock(_in_zone(value, own), column.type) + offset
    return None


def _number_or_label(text: str) -> Value:
    """Of an ENUM or SET whose members nothing tells, canal-json has the numbers."""
    return int(text) if _NUMBER.fullmatch(text) else text


def _in_zone(value: datetime, zone: ZoneInfo) -> datetime:
    return value.replace(tzinfo=timezone.utc).astimezone(zone).replace(tzinfo=None)


def _clock(value: datetime, column_type: ColumnType) -> str:
    """A moment's text: as many digits of a second as the type has, or as few as tell it."""
    text = value.isoformat(sep=" ", timespec="microseconds")
    whole, _, fraction = text.partition(".")
    if column_type.fsp is not None:
        fraction = fraction.ljust(6, "0")[: column_type.fsp] if _fits(fraction, column_type.fsp) else fraction
        return f"{whole}.{fraction}" if fraction else whole
    return f"{whole}.{fraction}" if fraction.strip("0") else whole


def _fits(fraction: str, fsp: int) -> bool:
    return not fraction[fsp:].strip("0")


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
        TargetError: the first error that a task gave, of its own class.
        TransientTargetError: Spark could not run the tasks to their end.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield _reported(task, iter(batches))

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


def send_rows(batch: ReducedBatch, task: Task) -> Sent:
    """Give a batch's rows to ``task``: as its tasks packed them where they are there so, else its frame.

    Raises: as ``batch_frame`` and ``run_tasks``.
    """
    frame, table = batch_frame(batch), str(batch.shape.table)
    if batch.payloads is None:
        return run_tasks(frame, task, table=table)
    return run_tasks(batch.payloads, PayloadTask(task, tuple(frame.columns)), table=table)


@dataclass(frozen=True)
class PayloadTask:
    """A task on packed payloads: their rows to apply, with the columns that it looks at."""

    task: Task
    columns: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Sent]:
        """As the task."""
        return self.task(self._rows(batches))

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in unpack(batches):
            applied = rows.filter(pc.is_in(rows.column("_op"), pa.array(ROW_KINDS)))
            yield applied.select(list(self.columns))


def _reported(task: Task, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
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
