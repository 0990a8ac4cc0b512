"""A table whose rows are sent as messages (Kafka and HTTP targets): its ledger, batches and rows.

Each table's ledger is a JSON document in the state store. A topic or an HTTP endpoint cannot be part of a
transaction with the progress, so the ledger is written after all messages of a batch are acknowledged. If the
worker stops between the two, the batch is sent again. Every change of the ledger is a compare-and-set in the
store, so only one of two workers holds the table. A fenced worker notices this before and after it sends a
batch. Messages that it sends in between are still delivered.

The store may be lost or restored from a backup, and its epoch counter with it. So the epoch in messages is
taken from the clock: milliseconds since 1970, or one more than the last epoch in messages if that is greater.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timezone
from decimal import Decimal
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PythonException

from tidesink.errors import (
    EncodeError,
    ProgressError,
    SchemaRefusedError,
    TargetError,
    TidesinkError,
    TransientTargetError,
    ValueNotStoredError,
)
from tidesink.events import ColumnType, Row, TableId, Value
from tidesink.sinks.spark.errors import SPARK_ERRORS, raised_task_errors
from tidesink.sinks.spark.frames import SparkRows
from tidesink.sinks.spark.payloads import ROW_KINDS, unpack
from tidesink.sinks.state.documents import DocumentKind, Version, list_key
from tidesink.sinks.state.progress import (
    Hold,
    Progress,
    StateStore,
    as_document,
    check_held,
    from_document,
)
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
    TaskRows,
)
from tidesink.sinks.targets.column_changes import gap_of, plan_evolution
from tidesink.sinks.targets.ledger import Entry
from tidesink.sinks.targets.sharing import Owner
from tidesink.typemap.table import row_of
from tidesink.typemap.target_schema import TargetColumn, TargetSchema
from tidesink.typemap.values import FoldedTime

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_LONGEST_PLACE: Final = 200
_CUT_DIGITS: Final = 16
_APART: Final = "send this table to its own topic or URL (target.topic, target.url or routes in the config)"


class _StoredEntry(msgspec.Struct, frozen=True):
    """The document of a ledger entry. ``result``: upserted and deleted rows, and the version."""

    version: int
    pipeline: str
    keys: tuple[str, ...]
    epoch: int
    sent_epoch: int
    follows: int
    columns: tuple[tuple[str, str], ...] | None
    progress: dict[str, Any] | None
    result: tuple[int, int, str] | None


LEDGER: Final = DocumentKind("target-ledger", _StoredEntry, list_key, ProgressError, Version("version", 1))


@dataclass(frozen=True)
class MessageEntry(Entry):
    """The ledger entry of one table in the state store.

    ``sent_epoch``: the epoch in messages. It rises with each claim, even if the store was lost in between.
    ``follows``: the ``sent_epoch`` under which the previous batch was recorded, or that of the first claim if
        no batch was recorded. It is part of idempotency keys: it does not change when a batch is sent again,
        but it differs if the store was lost and a batch number is used a second time.
    ``columns``: all columns that were ever sent: Spark type by name. None before the first claim.
    """

    sent_epoch: int = 0
    follows: int = 0
    columns: Mapping[str, str] | None = None

    @property
    def hold(self) -> Hold:
        """The two epochs that identify the worker that holds the table.

        ``epoch`` alone is not enough, because a store that was lost or restored issues the same numbers
        again.
        """
        return self.epoch, self.sent_epoch

    @property
    def stored(self) -> _StoredEntry:
        """The ledger entry as it is stored."""
        result = self.result
        return _StoredEntry(
            version=1,
            pipeline=self.pipeline,
            keys=self.keys,
            epoch=self.epoch,
            sent_epoch=self.sent_epoch,
            follows=self.follows,
            columns=None if self.columns is None else tuple(self.columns.items()),
            progress=None if self.progress is None else as_document(self.progress),
            result=None if result is None else (result.upserted, result.deleted, result.version),
        )

    def claimed_at(self, now: int) -> MessageEntry:
        """Return the ledger entry after a claim, with the next epochs.

        ``now``: the current time in milliseconds since 1970.
        """
        sent_epoch = max(self.sent_epoch + 1, now)
        claim = self.claimed(self.keys)
        return replace(claim, sent_epoch=sent_epoch, follows=self.follows or sent_epoch)

    def cut(self, progress: Progress) -> str:
        """Return a hash of the offsets at which a batch ends, for idempotency keys.

        The hash is the same if the batch is sent again. It differs if a batch with the same number ends at
        other offsets, because the rows of such a batch may be newer than those that were sent first.
        """
        ends = [
            [
                name,
                topic.topic_id,
                sorted((number, partition.next_offset) for number, partition in topic.partitions.items()),
            ]
            for name, topic in sorted(progress.topics.items())
        ]
        return hashlib.sha256(json.dumps([self.follows, ends]).encode()).hexdigest()[:_CUT_DIGITS]


@dataclass(frozen=True)
class Stamp:
    """Identifies a batch in message headers and idempotency keys.

    ``epoch``: the epoch in messages. It is not part of idempotency keys, because a batch that is sent again
        after a restart has another epoch, but must have the same keys.
    ``batch``: the batch number.
    ``cut``: the hash that ``MessageEntry.cut`` returns. It gives a batch other keys if it ends at other
        offsets, or if its number is used a second time after the store was lost.
    """

    pipeline: str
    table: TableId
    epoch: int
    batch: int
    cut: str

    @classmethod
    def of(cls, entry: MessageEntry, progress: Progress) -> Stamp:
        """Return the stamp of the batch that ends at ``progress``. ``entry``: the table's ledger entry."""
        return cls(entry.pipeline, progress.table, entry.sent_epoch, progress.batch, entry.cut(progress))


def _entry(stored: _StoredEntry) -> MessageEntry:
    return MessageEntry(
        pipeline=stored.pipeline,
        keys=stored.keys,
        epoch=stored.epoch,
        sent_epoch=stored.sent_epoch,
        follows=stored.follows,
        columns=None if stored.columns is None else dict(stored.columns),
        progress=None if stored.progress is None else from_document(stored.progress),
        result=None if stored.result is None else sent_result(*stored.result),
    )


def sent_result(upserts: int, deletes: int, version: str) -> ApplyResult:
    """Return the result of a sent batch. All upserts count as inserted, because stored rows are unknown."""
    return ApplyResult(upserts, 0, deletes, 0, version)


def ledger_names(place: tuple[str, ...], table: TableId) -> tuple[str, ...]:
    """Return the names that identify a table's ledger document, from the destination and the table.

    ``place``: the type of target and the destination. A long destination is replaced by its hash.
    """
    shown = (
        part if len(part) <= _LONGEST_PLACE else hashlib.sha256(part.encode()).hexdigest() for part in place
    )
    return (*shown, *table)


def now_ms() -> int:
    """Return the current time of the clock in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class StoreLedger:
    """Reads and writes the ledger of one table in the state store. It is used by one thread at a time.

    ``place``: the type of target and the destination, such as topic name and topic id.
    ``table``: the table's name at the target.
    ``source``: the source table, if its name differs.
    ``clock``: returns the time in milliseconds since 1970.
    """

    def __init__(
        self,
        store: StateStore,
        place: tuple[str, ...],
        table: TableId,
        *,
        pipeline: str,
        keys: tuple[str, ...],
        source: TableId | None = None,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._document = LEDGER.of(store, *ledger_names(place, table))
        self._owner = Owner(pipeline, source or table, keys, f"the table at {':'.join(place)}", _APART)
        self._clock = clock
        self._claimed: Hold | None = None

    def claim(self) -> Claim:
        """Record the next epoch, and return it with the applied progress.

        Workers with an older epoch can then no longer record progress.

        Raises:
            StaleProgressError: the table belongs to another pipeline, or another source table was sent there.
            SchemaRefusedError: the rows were sent under another key.
            TransientTargetError: other workers kept changing the ledger.
        """
        entry = self._changed(lambda entry: entry.claimed_at(self._clock()))
        self._claimed = entry.hold
        return Claim(entry.epoch, entry.progress)

    def committed(self) -> Progress | None:
        """Return the recorded progress; None if no batch was ever sent."""
        return self.entry().progress

    def entry(self) -> MessageEntry:
        """Return the table's ledger entry in the store, or a new entry if there is no entry in the store.

        Raises:
            StaleProgressError: the table belongs to another pipeline, or another source table was sent there.
            SchemaRefusedError: the rows were sent under another key.
        """
        return self._checked(self._document.load())

    def held(self, epoch: int | None = None) -> MessageEntry:
        """Return the table's ledger entry, after checking that this worker still holds the table.

        ``epoch``: the epoch of the batch to send, which must be the claimed one; None to skip this check.

        Raises:
            StaleProgressError: another worker holds the table, or ``epoch`` is not the claimed one.
        """
        return self._mine(self.entry(), epoch)

    def write(self, progress: Progress, result: ApplyResult) -> None:
        """Record a batch's progress and result, once all its messages are acknowledged.

        Raises:
            StaleProgressError: another worker claimed the table after this worker did.
        """

        def written(entry: MessageEntry) -> MessageEntry:
            return replace(self._mine(entry), progress=progress, result=result, follows=entry.sent_epoch)

        self._changed(written)

    def write_columns(self, columns: Mapping[str, str]) -> None:
        """Record the columns of the rows that are sent: Spark type by name.

        Raises:
            StaleProgressError: another worker claimed the table after this worker did.
        """
        self._changed(lambda entry: replace(self._mine(entry), columns=dict(columns)))

    def _mine(self, entry: MessageEntry, batch: int | None = None) -> MessageEntry:
        check_held(entry.hold, self._claimed, table=self._owner.table, batch=batch)
        return entry

    def _changed(self, change: Callable[[MessageEntry], MessageEntry]) -> MessageEntry:
        busy = TransientTargetError(
            "Other workers kept changing the table's ledger in the state store. The worker tries again. Run "
            "only one worker per table.",
            table=str(self._owner.table),
        )
        return _entry(self._document.change(lambda stored: change(self._checked(stored)).stored, busy))

    def _checked(self, stored: _StoredEntry | None) -> MessageEntry:
        entry = MessageEntry(self._owner.pipeline, self._owner.keys) if stored is None else _entry(stored)
        self._owner.check_writer(entry.pipeline, entry.progress.table if entry.progress else None)
        self._owner.check_keys(entry.keys)
        return entry


class MessageTable(TargetTable, ABC):
    """A table whose rows are sent as messages. It is used by one worker thread."""

    def __init__(self, shape: TargetSchema, *, ledger: StoreLedger) -> None:
        self._shape = shape
        self._ledger = ledger
        self._created = False

    def claim(self) -> Claim:
        """Record the table's next epoch in the ledger, and return it with the applied progress."""
        self._created = self._ledger.entry().columns is None
        claim = self._ledger.claim()
        if self._created:
            self._ledger.write_columns({column.name: column.spark for column in self._shape.columns})
        return claim

    def committed(self) -> Progress | None:
        """Return the progress that the ledger records; None if no batch was ever sent."""
        return self._ledger.committed()

    def gap(self, shape: TargetSchema) -> SchemaGap:
        """Compare the columns that were sent until now with those of ``shape``, and return the difference."""
        present = dict(self._ledger.entry().columns or {})
        return gap_of(present, plan_evolution(present, shape))

    def evolve(self, shape: TargetSchema) -> EvolveResult:
        """Register the message schemas of ``shape``, and record its columns. Sent messages do not change."""
        present = dict(self._ledger.held().columns or {})
        plan = plan_evolution(present, shape)
        self._prepare(shape)
        if plan.needed:
            added = {column.name: column.spark for column in plan.added}
            self._ledger.write_columns({**present, **plan.widened, **added})
        created, self._created = self._created, False
        return EvolveResult(created, tuple(column.name for column in plan.added), tuple(plan.widened))

    def apply(self, batch: ReducedBatch, progress: Progress) -> ApplyResult:
        """Send a batch, wait until all messages are acknowledged, and record its progress. Returns the row
        counts.
        """
        entry = self._ledger.held(progress.epoch)
        done = entry.done(progress)
        if done is not None:
            return done
        sent = Sent(0, 0) if batch.empty else self._send(batch, Stamp.of(entry, progress))
        result = sent_result(*sent, f"{entry.sent_epoch}/{progress.batch}")
        batch.hooks.on_staged()
        self._ledger.write(progress, result)
        return result

    def _prepare(self, shape: TargetSchema) -> None:
        """Prepare to send rows with the columns of ``shape``, for example register their message schemas."""

    @abstractmethod
    def _send(self, batch: ReducedBatch, stamp: Stamp) -> Sent:
        """Send a batch that has rows or is a TRUNCATE. Returns the numbers of acknowledged rows."""


_NO_WORD: Final = (
    "The source did not send the value of {columns}, because it did not change, and {protocol} cannot "
    "express that. Set REPLICA IDENTITY FULL on the table, or set target.protocol to debezium-json or "
    "debezium-avro, which can express it."
)
_AGAIN: Final = (
    "The source did not send the value of {columns}, and the row was deleted earlier in the same batch, "
    "so the value is lost. Set REPLICA IDENTITY FULL on the table, and take a snapshot of the row."
)


def check_shape(shape: TargetSchema, delete_mode: DeleteMode) -> None:
    """Check that a table's rows can be sent as messages.

    Raises:
        SchemaRefusedError: the table has no key, or is configured with soft deletes.
    """
    if not shape.keys:
        raise SchemaRefusedError(
            "The table has no key to identify its rows. Set `keys` in the config to columns that identify a "
            "row.",
            table=str(shape.table),
        )
    if delete_mode == "soft":
        raise SchemaRefusedError(
            "This target sends deletes as messages and stores no rows that it could mark. Set `deletes: "
            "hard`.",
            table=str(shape.table),
        )


def batch_frame(batch: ReducedBatch) -> DataFrame:
    """Return a batch's frame, reduced to the columns that the sending tasks read.

    Raises:
        TargetError: the batch has rows instead of a frame.
    """
    if batch.frame is None:
        raise TargetError(
            "This target needs a batch with a Spark frame, but this batch has Python rows. Report this with "
            "the log.",
            table=str(batch.shape.table),
        )
    return batch.frame.select(*message_columns(batch.frame.columns, keeps=batch.keeps))


def check_sendable(batch: ReducedBatch, protocol: str, *, tells: bool) -> None:
    """Check, before anything is sent, that messages can express a batch: the order of its rows, and the
    values that rows omit.

    ``tells``: True if the protocol can express an omitted value. Then only rows that were deleted earlier in
        the batch must have all values, because readers no longer have them.

    Raises:
        TargetError: the batch's table has ``sequence_by: source``.
        ValueNotStoredError: a row omits a value that cannot be expressed. The error names the columns, and
            topic, partition and offset of the row.
    """
    table = str(batch.shape.table)
    if batch.sequenced:
        raise TargetError(
            "This target stores no rows, so it cannot compare positions with `sequence_by: source`. Set "
            "`sequence_by: kafka`.",
            table=table,
        )
    if not batch.keeps:
        return
    names = tuple(column.name for column in batch.shape.columns)
    task = OmittedValues(names, packed=batch.payloads is not None, after_deletes=tells)
    with raised_task_errors(table=table):
        found = _rows_of(batch).run(task, OmittedValues.ddl)
    for (document,) in found:
        columns, place = json.loads(document)
        text = (_AGAIN if tells else _NO_WORD).format(columns=", ".join(columns), protocol=protocol)
        raise ValueNotStoredError(text, **place, table=table)


def _rows_of(batch: ReducedBatch) -> TaskRows:
    """Return the batch's payloads, or the rows of its frame if it has no payloads."""
    return SparkRows(batch_frame(batch)) if batch.payloads is None else batch.payloads


@dataclass(frozen=True)
class OmittedValues:
    """Finds a row that omits values. It yields the columns and the row's position in Kafka as JSON.

    ``columns``: the columns that are sent. Others are ignored.
    ``packed``: True if the input is payloads (Arrow IPC streams), False if it is rows.
    ``after_deletes``: True to look only at rows that were deleted earlier in the batch.
    """

    ddl: ClassVar[str] = "omitted string"
    columns: tuple[str, ...]
    packed: bool
    after_deletes: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the first row that omits values, if there is one."""
        rows = chain.from_iterable(map(self._omitting, unpack(batches) if self.packed else batches))
        for row in islice(rows, 1):
            place = {name.removeprefix("_"): row[name] for name in PLACE_COLUMNS if name in row}
            yield pa.record_batch({"omitted": [json.dumps([row["_kept"], place])]})
        for _ in rows:  # Spark waits until its batches are read
            pass

    def _omitting(self, rows: pa.RecordBatch) -> Iterator[dict[str, Any]]:
        omits = pc.fill_null(pc.greater(pc.list_value_length(rows.column("_kept")), 0), False)
        if self.after_deletes:
            omits = pc.and_(omits, pc.fill_null(rows.column("_after_delete"), False))
        names = ("_kept", *(name for name in PLACE_COLUMNS if name in rows.schema.names))
        for row in rows.select(names).filter(omits).to_pylist():
            kept = [name for name in row["_kept"] if name in self.columns]
            if kept:
                yield {**row, "_kept": kept}


COMMIT_TS = "_commit_ts"
_NUMBER = re.compile(r"[0-9]{1,20}", re.ASCII)
ToSource = Callable[[Any], Value]


class MessageRow(NamedTuple):
    """One row to send.

    ``after``: the row's column values without the ``kept`` columns; None for a delete.
    ``kept``: columns whose values the source omitted.
    ``place``: topic, partition and offset of the row's event; None if the frame does not have them.
    """

    op: ReducedOp
    key: Row
    after: Row | None
    commit_ts: int | None
    kept: tuple[str, ...]
    place: tuple[str, int, int] | None

    def check_key(self) -> None:
        """Check that all key columns of the row have values.

        Raises:
            EncodeError: a key column is NULL, or the row has no key.
        """
        empty = [name for name, value in self.key.items() if value is None]
        if empty or not self.key:
            raise EncodeError(
                "A key column is NULL, so the message would not identify a row. Set `keys` in the config to "
                "columns that are never NULL.",
                column=", ".join(empty),
            )


def message_columns(present: Sequence[str], *, keeps: bool) -> list[str]:
    """Return the columns of a batch's rows that the sending tasks read.

    ``present``: the columns of the rows. ``keeps``: True if some rows omit values.
    """
    more = ["_kept", "_after_delete"] if keeps else []
    return ["_op", "key", "after", *more, *(name for name in (COMMIT_TS, *PLACE_COLUMNS) if name in present)]


class MessageRows:
    """Converts Arrow batches to rows with the source's values.

    ``time_zone``: zone of the local times to which TIMESTAMP values are converted.
    """

    def __init__(self, shape: TargetSchema, time_zone: str) -> None:
        zone = ZoneInfo(time_zone)
        self._readers = {column.name: _to_source(column, zone) for column in shape.columns}

    def read(self, batch: pa.RecordBatch) -> Iterator[MessageRow]:
        """Yield the rows of an Arrow batch with the columns that ``message_columns`` returns."""
        names = batch.schema.names
        count = batch.num_rows
        omissions = _listed(batch, "_kept", names) or [None] * count
        commit_ts = _listed(batch, COMMIT_TS, names) or [None] * count
        places = zip(*(_listed(batch, name, names) or () for name in PLACE_COLUMNS), strict=False)
        row_places: list[Any] = list(places) or [None] * count
        keys, afters = self._rows(batch.column("key")), self._rows(batch.column("after"))
        for index, op in enumerate(batch.column("_op").to_pylist()):
            after, omitted = (
                afters[index],
                tuple(name for name in omissions[index] or () if name in self._readers),
            )
            if after is not None and omitted:
                after = {name: value for name, value in after.items() if name not in omitted}
            key = keys[index] or {}
            yield MessageRow(
                op, key, None if op == "delete" else after, commit_ts[index], omitted, row_places[index]
            )

    def _rows(self, structs: pa.StructArray) -> list[dict[str, Value] | None]:
        # Payloads may have columns that are not in the shape. They are not sent.
        names = [member.name for member in structs.type if member.name in self._readers]
        columns = [self._values(structs.field(name), name) for name in names]
        there = structs.is_valid().to_pylist()
        rows = zip(*columns, strict=True)
        return [
            dict(zip(names, row, strict=True)) if ok else None for row, ok in zip(rows, there, strict=True)
        ]

    def _values(self, values: pa.Array, name: str) -> list[Value]:
        if pa.types.is_timestamp(values.type):
            values = values.cast(pa.timestamp("us"))  # for an instant: the time in UTC
        items: list[Value] = values.to_pylist()
        read = self._readers[name]
        return items if read is None else [None if value is None else read(value) for value in items]


def _listed(batch: pa.RecordBatch, name: str, names: Sequence[str]) -> list[Any] | None:
    return batch.column(name).to_pylist() if name in names else None


def _to_source(column: TargetColumn, zone: ZoneInfo) -> ToSource | None:
    """Return a function that converts a column's Spark values to the source's; None if they are the same."""
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
        if reader == "instant":
            return lambda value: _clock(_in_zone(value, ZoneInfo("UTC")), column.type) + "+00:00"
        return lambda value: _folded(_in_zone(value, zone), column.type)
    return None


def _number_or_label(text: str) -> Value:
    """Convert the text of a value of an ENUM or SET column whose members are unknown.

    A text of digits becomes a number, because canal-json sends members as numbers.
    """
    return int(text) if _NUMBER.fullmatch(text) else text


def _in_zone(value: datetime, zone: ZoneInfo) -> datetime:
    return value.replace(tzinfo=timezone.utc).astimezone(zone).replace(tzinfo=None)


def _folded(local: datetime, column_type: ColumnType) -> str:
    """Return a local time of a TIMESTAMP as text.

    A local time occurs twice when clocks are set back. The second time is returned as a ``FoldedTime``, which
    row checksums need.
    """
    text = _clock(local, column_type)
    return FoldedTime(text, 1) if local.fold else text


def _clock(value: datetime, column_type: ColumnType) -> str:
    """Return a time as text with the number of fraction digits that its type has.

    The text has six fraction digits if the value does not fit into that number. If the number is unknown, the
    text has six fraction digits, or none if they are all zero.
    """
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
    """The numbers of upserts and deletes that the target acknowledged."""

    upserts: int
    deletes: int


def run_tasks(rows: TaskRows, task: Task, *, table: str) -> Sent:
    """Run ``task`` on the Arrow batches of all rows.

    Returns the numbers of rows that all tasks sent.

    Raises:
        TidesinkError: a task could not read the rows.
        TargetError: ``task`` raised an error. The first such error is raised again with its own class.
        TransientTargetError: Spark could not finish the tasks.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield _reported(task, iter(batches))

    try:
        with raised_task_errors(table=table):
            outcomes = rows.run(run, OUTCOME_DDL)
    except PythonException as exc:
        raise TargetError("A task that sends rows failed. Report this with the log.", table=table) from exc
    except SPARK_ERRORS as exc:
        raise TransientTargetError(
            f"The tasks that send rows failed ({type(exc).__name__}). Some rows may have been sent. The "
            "batch is sent again.",
            table=table,
        ) from exc
    for _, _, error in outcomes:
        if error is not None:
            raise _restored(error).with_context(table=table)
    return Sent(sum(upserts for upserts, _, _ in outcomes), sum(deletes for _, deletes, _ in outcomes))


def send_rows(batch: ReducedBatch, task: Task) -> Sent:
    """Run ``task`` on a batch's rows, from its payloads (Arrow IPC streams) if it has any, else from its
    frame.

    Returns the numbers of rows that all tasks sent.

    Raises:
        TidesinkError: a task could not read the batch's rows.
        TargetError: the batch has no frame, or ``task`` raised an error.
        TransientTargetError: Spark could not finish the tasks.
    """
    table = str(batch.shape.table)
    if batch.payloads is None:
        return run_tasks(SparkRows(batch_frame(batch)), task, table=table)
    return run_tasks(batch.payloads, PayloadTask(task, batch.keeps), table=table)


@dataclass(frozen=True)
class PayloadTask:
    """Unpacks payloads (Arrow IPC streams of rows), and runs ``task`` on their upserts and deletes.

    ``keeps``: True if some rows omit values.
    """

    task: Task
    keeps: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Sent]:
        """Run ``task`` on the rows in the payloads, and return its results."""
        return self.task(self._rows(batches))

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in unpack(batches):
            applied = rows.filter(pc.is_in(rows.column("_op"), pa.array(ROW_KINDS)))
            yield applied.select(message_columns(rows.schema.names, keeps=self.keeps))


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
