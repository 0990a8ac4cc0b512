"""Progress and status of tables, and the state store in which a worker stores them.

If the target and the state store disagree about progress, the target is right. A table's history (the
progress of each batch) is written to the store before the target's commit. It is used if the target's own
record of old commits was cleaned up. Losing the store loses status and history, but no data. Targets that
store no rows (Kafka, HTTP) have their progress only in the state store. If it is lost, everything is sent
again with a greater epoch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from tidesink.errors import ProgressError, StaleProgressError, StateStoreError
from tidesink.events import SequenceBy, TableId
from tidesink.sinks.state.documents import DocumentKind, DocumentStore, StoredForm, Version
from tidesink.sinks.state.source_reads import SourceRead, StoredRead

# The schema of a table whose name is not known. Only the name of its topic can be shown, and no status is
# stored for it.
UNKNOWN_SCHEMA: Final = "?"
TableState = Literal["RUNNING", "IDLE", "PAUSED", "FAILING"]
Rank = tuple[int, int, int]


@dataclass(frozen=True)
class TableStatus:
    """The status of one table in ``tidesink status``.

    Attributes:
        error: Class name and message of the last error.
        counters: Number of row events by kind, summed over all batches.
        zero_dates: Per column, the number of impossible dates that were converted to NULL.
        ambiguous_times: Per column, the number of local times that occur twice because of daylight saving,
            which the setting ``ambiguous-time`` decided.
        updated: Time in UTC, set by the state store.
        life: Number of times that the table's epochs restarted, because the table was recreated or restored
            from a backup.
        epoch: The epoch of the worker that saved the status. 0: no worker had claimed the table.
    """

    pipeline: str
    table: TableId
    state: TableState
    error: str | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    zero_dates: Mapping[str, int] = field(default_factory=dict)
    ambiguous_times: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    batch: int = 0
    commit_ts: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    updated: datetime | None = None
    life: int = 0
    epoch: int = 0

    @property
    def rank(self) -> Rank:
        """Orders a table's statuses: by the worker's claim of the table, then by batch."""
        return self.life, self.epoch, self.batch


class StatusStore(DocumentStore, Protocol):
    """Stores documents, and has the statuses of tables.

    Every method raises StateStoreError if the store does not answer.
    """

    def status_of(self, pipeline: str, table: TableId) -> TableStatus | None:
        """Returns the status of one table, or None if no status was saved."""


class StateStore(StatusStore, Protocol):
    """Stores progress, statuses and documents of a worker.

    Every method raises StateStoreError if the store does not answer.
    """

    def record_progress(self, progress: Progress) -> None:
        """Store the progress that a table will have after a batch, before the batch is committed."""

    def progress_of(self, pipeline: str, table: TableId, txn_version: int) -> Progress | None:
        """Returns a table's progress after the batch with this transaction version; None if it is
        not known.
        """

    def progress_of_batch(self, pipeline: str, table: TableId, batch: int) -> Progress | None:
        """Returns a table's progress after an applied batch; None if it is not known.

        A batch that is retried in another epoch keeps its number. The newest attempt is the applied one.
        """

    def save_status(self, status: TableStatus) -> bool:
        """Replace a table's status atomically, unless the stored status has a greater rank. Returns True if
        replaced.

        So a worker that lost the table to another worker never overwrites the other worker's status.
        """

    def save_statuses(self, statuses: Sequence[TableStatus]) -> tuple[TableStatus, ...]:
        """Replace the statuses of tables of one pipeline, in one transaction, as ``save_status`` does for
        one.

        ``statuses``: at most one per table. Returns those that were not saved, because the stored status has
        a greater rank.
        """

    def statuses(self, pipeline: str) -> tuple[TableStatus, ...]:
        """Returns the status of every table of a pipeline, sorted by table name."""


# Number of stored events per table. Older events may still be in Kafka.
MOST_EVENTS: Final = 200
MOST_QUERY: Final = 65_536


class StoredDdl(NamedTuple):
    """A stored DDL event.

    Attributes:
        commit_ts: TiDB's TSO, or None.
        kind: TiCDC's name of the change in canal-json, or TiDB's number of it in flat-avro.
        time: Kafka's timestamp, in ms since 1970.
    """

    topic: str
    topic_id: str
    partition: int
    offset: int
    commit_ts: int | None
    kind: str
    query: str
    time: int | None
    batch: int = 0
    table: str = ""


_DDL_EVENTS: Final = DocumentKind("ddl_events", tuple[StoredDdl, ...])


def store_ddl(store: StateStore, progress: Progress, events: Iterable[StoredDdl]) -> None:
    """Add a batch's DDL events to the stored events of its table. An event that is already stored is not
    added again.

    Raises:
        StateStoreError: The store does not answer.
    """
    _DDL_EVENTS.of(store, progress.pipeline, *progress.table).change(
        lambda old: _merged(old or (), events, progress.batch),
        StateStoreError(
            "Other processes keep changing the table's stored DDL events.", table=str(progress.table)
        ),
    )


def load_ddl(store: StateStore, pipeline: str, tables: Iterable[TableId]) -> list[StoredDdl]:
    """Returns the stored DDL events of tables, sorted by table, topic, partition and offset.

    Raises:
        StateStoreError: The store does not answer.
    """
    events = [
        event._replace(table=str(table))
        for table in tables
        for event in _DDL_EVENTS.of(store, pipeline, *table).load() or ()
    ]
    return sorted(events, key=lambda event: (event.table, event.topic, event.partition, event.offset))


def _merged(stored: Iterable[StoredDdl], events: Iterable[StoredDdl], batch: int) -> tuple[StoredDdl, ...]:
    merged = {event[:4]: event for event in stored}
    for event in events:
        shown = event._replace(batch=batch, query=event.query[:MOST_QUERY], table="")
        merged.setdefault(event[:4], shown)
    # A batch's events are in Kafka's order per partition.
    return tuple(merged.values())[-MOST_EVENTS:]


BATCHES_PER_EPOCH: Final = 2**40


def txn_version(epoch: int, batch: int) -> int:
    """Returns a batch's transaction version: epoch × 2^40 + batch. It grows with every batch and every epoch.

    Raises:
        ValueError: The batch or the epoch is too large for a signed 64-bit number, or negative.
    """
    if not 0 <= batch < BATCHES_PER_EPOCH or not 0 <= epoch < 2**23:
        raise ValueError(
            f"Epoch {epoch} and batch {batch} have no transaction version, because a number is "
            f"too large or negative."
        )
    return epoch * BATCHES_PER_EPOCH + batch


def split_txn_version(version: int) -> tuple[int, int]:
    """Returns the epoch and the batch number of a transaction version."""
    return divmod(version, BATCHES_PER_EPOCH)


class LastRecord(NamedTuple):
    """The offset of a record that was read from a partition, and the epoch of the leader that wrote the
    record.
    """

    offset: int
    epoch: int


class PartitionProgress(NamedTuple):
    """A table's progress in one topic-partition.

    Attributes:
        next_offset: The first offset that was not read yet.
        low_water_offset: The offset of the first record that was read but waits, because its row was
            committed after ``Progress.bound``. Equals ``next_offset`` if no row waits.
        applied_commit_ts: The greatest applied commit_ts (TiDB TSO), or None.
        watermark: The greatest resolved ts that was read (TiDB TSO), or None.
        again_to: During a rewind, the offset up to which the partition was applied before the rewind.
            Otherwise None.
        last: The last record before ``next_offset``. It shows whether the partition's log was cut later
            (``kafka.leader_epochs``). None if records have no leader epoch.
    """

    next_offset: int
    low_water_offset: int
    applied_commit_ts: int | None = None
    watermark: int | None = None
    again_to: int | None = None
    last: LastRecord | None = None

    @property
    def applied_to(self) -> int:
        """The greatest offset up to which the partition was ever applied, also before a rewind."""
        return max(self.next_offset, self.again_to or 0)


@dataclass(frozen=True)
class TopicProgress:
    """A table's progress in one topic, with Kafka's id of the topic, so that a recreated topic is noticed.

    If ``topic_id`` and ``partitions`` are empty, the topic did not exist yet. It will be read from the
    beginning of all partitions.
    """

    topic: str
    topic_id: str
    partitions: Mapping[int, PartitionProgress]

    @property
    def read_again(self) -> dict[int, OffsetsAgain]:
        """The offsets that must still be read again after a rewind, by partition.

        Until they are read, rows may be older than they were before the rewind.
        """
        return {
            number: OffsetsAgain(partition.next_offset, partition.again_to)
            for number, partition in self.partitions.items()
            if partition.again_to is not None
        }

    @property
    def last_records(self) -> dict[int, LastRecord]:
        """The last applied record of each partition whose leader epoch is known."""
        # If a lower bound of cuts moved `next_offset` back, `last` may be after it, and is ignored.
        return {
            number: partition.last
            for number, partition in self.partitions.items()
            if partition.last is not None and partition.last.offset < partition.next_offset
        }


class OffsetsAgain(NamedTuple):
    """Offsets ``[start, end)`` of one partition that a rewound table reads again."""

    start: int
    end: int


@dataclass(frozen=True)
class Sweep:
    """Progress of a resync's second phase, which deletes the target's rows that the source database no longer
    has.

    The keys of the target's rows are looked up in the source database.

    Attributes:
        parts: Number of parts into which the keys are divided, by their hashes. 0: the first phase still
            reads rows.
        done: Number of parts whose deletes are applied.
        deletes: Number of deleted rows.
    """

    parts: int = 0
    done: int = 0
    deletes: int = 0

    @property
    def begun(self) -> bool:
        """True if the first phase has read all rows, so that keys are looked up now."""
        return self.parts > 0


# Bounds of a key (``source_database.key_bounds``), all of which apply. Empty: no bounds.
Where = tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class SnapshotProgress:
    """A table's progress in reading rows from the source database by a snapshot or resync.

    Attributes:
        key: The key columns, in whose order the rows are read.
        after: The last key that was read, as canal-json texts. None before the first row.
        rows: Number of applied rows.
        done: True if all rows are applied.
        number: Counts the table's requested snapshots. 0 for a snapshot that started without a request.
        sweep: Progress of deleting the rows that exist only in the target, after all rows are read. None:
            such rows stay.
        keys: Name of the document with the keys to read. ``after`` is then one of these keys. None: all keys.
        where: Bounds of the key: only rows within them are read.
        seen: In a pipeline with cuts, a commit_ts that the source had after the last rows were read, so no
            applied row is newer. Otherwise None.
        order: Digest of the key's sort order (``StoredTable``). None before the first row.
    """

    key: tuple[str, ...]
    after: tuple[str, ...] | None = None
    rows: int = 0
    done: bool = False
    number: int = 0
    sweep: Sweep | None = None
    keys: str | None = None
    where: Where = ()
    seen: int | None = None
    order: str | None = None

    @property
    def limited(self) -> bool:
        """True if only some rows are read. Then the table counts as complete while the snapshot runs."""
        return self.keys is not None or bool(self.where)


@dataclass(frozen=True)
class DdlProgress:
    """A table's progress in a Debezium connector's topic of DDL statements (ADR 34).

    Attributes:
        topic_id: Kafka's id of the topic.
        decided: All DDL before this offset was either followed or skipped.
        followed: For all DDL before this offset, the table was compared with the source database.
    """

    topic_id: str
    decided: int
    followed: int = 0


@dataclass(frozen=True)
class Progress:
    """All progress of one table after applying batch ``batch`` in epoch ``epoch``.

    Attributes:
        epoch: Number of the worker's claim of the table.
        batch: Number of the table's last batch. Batches are counted across epochs and restarts.
        topics: Progress in each topic.
        commit_ts: The greatest applied commit_ts (TiDB TSO), or None if the topic has none.
        snapshot: Progress of the last snapshot, or None if no snapshot was started.
        emptied: TSO of the last DDL that emptied the table. Rows that were committed up to it are ignored,
            whenever they are read.
        decided: TSO of the last DDL that changes the table's rows and was followed or skipped. 0: no such
            DDL. None: no DDL is read.
        rewound: Number of the last requested rewind, or 0.
        bound: In a pipeline with cuts, rows that were committed after this TSO wait. None: no rows wait.
        ddl: Progress in a Debezium connector's DDL. None if no DDL was followed or skipped.
        source_reads: The snapshots and resyncs whose rows must not be replaced by older changes from dead
            letters. Only with ``sequence_by: kafka``.
    """

    table: TableId
    pipeline: str
    epoch: int
    batch: int
    topics: Mapping[str, TopicProgress] = field(default_factory=dict)
    commit_ts: int | None = None
    sequence_by: SequenceBy = "kafka"
    snapshot: SnapshotProgress | None = None
    emptied: int | None = None
    decided: int | None = None
    rewound: int = 0
    bound: int | None = None
    ddl: DdlProgress | None = None
    source_reads: tuple[SourceRead, ...] = ()

    @property
    def txn_version(self) -> int:
        """The transaction version of the batch, by which targets order commits."""
        return txn_version(self.epoch, self.batch)

    def next_offset(self, topic: str, partition: int) -> int | None:
        """Returns the first offset of a partition that is not applied yet; None if the partition was never
        read.
        """
        topic_progress = self.topics.get(topic)
        partition_progress = topic_progress.partitions.get(partition) if topic_progress else None
        return partition_progress.low_water_offset if partition_progress else None


def check_follows(progress: Progress, applied: Progress | None) -> None:
    """Check that a batch directly follows the last batch that the target has. Every target makes this check.

    ``progress``: the progress after the batch to apply. ``applied``: the target's current progress, which is
    not of the same batch; None for an empty target.

    Raises:
        StaleProgressError: The target already has a later batch. Or it lost batches while its worker ran, for
            example because a standby database took over without the last commits.
    """
    if applied is not None and applied.txn_version >= progress.txn_version:
        raise StaleProgressError(
            f"A later batch is already applied (epoch {applied.epoch} batch {applied.batch}). Start the "
            "worker again, and run only one worker per table.",
            table=str(progress.table),
        )
    before = applied.batch if applied else 0
    if progress.batch != before + 1:
        raise StaleProgressError(
            f"The last batch in the target is {before}, but the next batch to apply is {progress.batch}. "
            "The batches between were committed, but the target no longer has them. Its backup may have "
            "been restored, or a standby without them took over. Nothing was written. Start the worker "
            "again to see how to continue.",
            table=str(progress.table),
        )


Result = TypeVar("Result")
# A worker's claim of a table: its epoch, and further values that tell claims with the same epoch apart.
Hold = tuple[int, ...]


def done_before(progress: Progress, applied: Progress | None, result: Result | None) -> Result | None:
    """Returns the stored result of a batch that is already applied. Returns None if the batch must be applied
    now.

    ``applied`` and ``result``: progress and result of the newest batch in the target's ledger. A new claim of
    the table removes the stored result.

    Raises:
        StaleProgressError: The target already has a later batch, or lost earlier batches.
    """
    if applied == progress and result is not None:
        return result
    check_follows(progress, applied)
    return None


def check_held(ledger: Hold, claimed: Hold | None, *, table: TableId, batch: int | None = None) -> None:
    """Check that this worker was the last to claim a table. Every ledger makes this check before a write.

    ``ledger``: the claim in the target's ledger. ``claimed``: this worker's claim, or None. ``batch``: the
    epoch of the batch to apply.

    Raises:
        StaleProgressError: The table is not claimed, another worker claimed it later, or the batch belongs to
            another epoch.
    """
    if claimed is None:
        raise StaleProgressError(
            "The table must be claimed before progress is stored for it. Call `claim` first.",
            table=str(table),
        )
    if ledger != claimed:
        raise StaleProgressError(
            f"Another worker holds this table: the target's ledger is at epoch {_words(ledger)}, but this "
            f"worker holds epoch {_words(claimed)}. Run only one worker per table.",
            table=str(table),
        )
    if batch is not None and batch != claimed[0]:
        raise StaleProgressError(
            f"This worker holds epoch {claimed[0]}, but the batch belongs to epoch {batch}. Start the "
            f"worker again.",
            table=str(table),
        )


def _words(hold: Hold) -> str:
    epoch, *more = map(str, hold)
    return f"{epoch} ({', '.join(more)})" if more else epoch


class _StoredTopic(msgspec.Struct):
    """A topic's progress as it is stored.

    ``partitions``: by number, the members of ``PartitionProgress``. The last two are left out if they are
    None.
    """

    topic_id: str
    partitions: Mapping[int, PartitionProgress]


class _StoredSnapshot(msgspec.Struct, omit_defaults=True):
    """A ``SnapshotProgress`` as it is stored."""

    number: int
    key: tuple[str, ...]
    after: tuple[str, ...] | None
    rows: int
    done: bool
    sweep: Sweep | None = None
    keys: str | None = None
    where: Where = ()
    seen: int | None = None
    order: str | None = None


class _StoredProgress(msgspec.Struct, omit_defaults=True):
    """A ``Progress`` as it is stored: in the state store, and in the ledger of a target.

    ``source_reads`` is left out if it is empty and there is no snapshot.
    """

    version: int
    pipeline: str
    table: TableId
    epoch: int
    batch: int
    commit_ts: int | None
    sequence_by: SequenceBy
    topics: Mapping[str, _StoredTopic]
    snapshot: _StoredSnapshot | None = None
    emptied: int | None = None
    decided: int | None = None
    rewound: int = 0
    bound: int | None = None
    ddl: DdlProgress | None = None
    source_reads: tuple[StoredRead, ...] | UnsetType = UNSET


_FORM: Final = StoredForm(
    _StoredProgress,
    "The stored progress",
    "Restore the target from a backup, or load the table again.",
    ProgressError,
    Version("version", 1),
)


def to_json(progress: Progress) -> str:
    """Returns progress as compact JSON text with its keys in a fixed order."""
    return json.dumps(as_document(progress), separators=(",", ":"), ensure_ascii=True)


def from_json(text: str) -> Progress:
    """Parse progress from JSON text.

    Raises:
        ProgressError: The text is not progress, or its format version is not supported.
    """
    return _progress(_FORM.read_text(text))


def as_document(progress: Progress) -> dict[str, Any]:
    """Returns progress as a mapping that can be written as JSON."""
    reads = tuple(map(StoredRead.of, progress.source_reads))
    stored = _StoredProgress(
        version=1,
        pipeline=progress.pipeline,
        table=progress.table,
        epoch=progress.epoch,
        batch=progress.batch,
        commit_ts=progress.commit_ts,
        sequence_by=progress.sequence_by,
        topics={
            name: _StoredTopic(topic.topic_id, dict(sorted(topic.partitions.items())))
            for name, topic in sorted(progress.topics.items())
        },
        snapshot=msgspec.convert(progress.snapshot, _StoredSnapshot | None, from_attributes=True),
        emptied=progress.emptied,
        decided=progress.decided,
        rewound=progress.rewound,
        bound=progress.bound,
        ddl=progress.ddl,
        source_reads=reads if reads or progress.snapshot is not None else UNSET,
    )
    document: dict[str, Any] = _FORM.write(stored)
    for topic in document["topics"].values():
        topic["partitions"] = {n: _trimmed(members) for n, members in topic["partitions"].items()}
    return document


def _trimmed(members: tuple[Any, ...]) -> tuple[Any, ...]:
    *_, again_to, last = members
    if last is not None:
        return members
    return members[:-1] if again_to is not None else members[:-2]


def from_document(document: object) -> Progress:
    """Restore progress from the mapping that ``as_document`` returned.

    Raises:
        ProgressError: The mapping is not progress, or its format version is not supported.
    """
    return _progress(_FORM.read(document))


def _progress(stored: _StoredProgress) -> Progress:
    reads = () if stored.source_reads is UNSET else stored.source_reads
    return Progress(
        table=stored.table,
        pipeline=stored.pipeline,
        epoch=stored.epoch,
        batch=stored.batch,
        topics={
            name: TopicProgress(name, topic.topic_id, topic.partitions)
            for name, topic in stored.topics.items()
        },
        commit_ts=stored.commit_ts,
        sequence_by=stored.sequence_by,
        snapshot=msgspec.convert(stored.snapshot, SnapshotProgress | None, from_attributes=True),
        emptied=stored.emptied,
        decided=stored.decided,
        rewound=stored.rewound,
        bound=stored.bound,
        ddl=stored.ddl,
        source_reads=tuple(read.source_read for read in reads),
    )
