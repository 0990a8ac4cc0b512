"""The worker's memory in addition to the target: history, status, documents, DDL events.

It is never more right than the target. History (batch -> progress) is written before the target's
commit. It is used when the target's own record of old commits was cleaned up. Losing the store
loses status and history, but no data. Targets that keep no rows (Kafka, HTTP) have their progress here
too: it is lost with the store, and then everything is sent again with a greater epoch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeVar

from tidesink.errors import ProgressError, StaleProgressError, StateStoreError
from tidesink.events import TableId
from tidesink.sinks.state.source_reads import SourceRead, as_documents, earlier_reads, from_documents

if TYPE_CHECKING:
    from tidesink.events import SequenceBy


# The schema of a table whose name is not known. Only its topic's name can be shown, and the state store keeps
# no status of it.
UNKNOWN_SCHEMA: Final = "?"
TableState = Literal["RUNNING", "IDLE", "PAUSED", "FAILING"]
Rank = tuple[int, int, int]


@dataclass(frozen=True)
class TableStatus:
    """The status of one table in ``tidesink status``.

    Attributes:
        error: Class name and message of the last error.
        counters: Row events by kind, summed over all batches.
        zero_dates: Per column, the number of impossible dates that were converted to NULL.
        ambiguous_times: Per column, the number of local times that occur twice, which ``ambiguous-time``
            decided.
        updated: Set by the store, UTC.
        life: How often the table's epochs were found to begin again, after it was recreated or restored from
            a backup.
        epoch: The epoch of the hold on the table that saved the status; 0 before any hold, and in statuses of
            earlier versions.
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
        """Orders statuses by the hold on the table, and within a hold by batch."""
        return self.life, self.epoch, self.batch


class StateStore(Protocol):
    """The store of a worker. Every method raises StateStoreError if the store does not answer."""

    def record_progress(self, progress: Progress) -> None:
        """Store the progress that a batch will have, before its commit."""

    def progress_of(self, pipeline: str, table: TableId, txn_version: int) -> Progress | None:
        """Returns the progress of one batch by its transaction version; None if it is not known."""

    def progress_of_batch(self, pipeline: str, table: TableId, batch: int) -> Progress | None:
        """Returns the progress of an applied batch in any epoch; None if it is not known.

        A batch that is tried again in another epoch keeps its number. The last try is the applied one.
        """

    def save_status(self, status: TableStatus) -> bool:
        """Replace a table's status atomically unless it has a greater rank. Returns True if it was replaced.

        So a worker that lost the table to another one never overwrites the other's status.
        """

    def statuses(self, pipeline: str) -> tuple[TableStatus, ...]:
        """Returns the status of every table of a pipeline, by table name."""

    def status_of(self, pipeline: str, table: TableId) -> TableStatus | None:
        """Returns the status of one table; None if none was saved."""

    def save_document(self, kind: str, name: str, document: Any) -> None:
        """Store a JSON-able document, such as a stream's table definitions, by kind and name."""

    def load_document(self, kind: str, name: str) -> Any | None:
        """Returns the document with this kind and name, or None."""

    def swap_document(self, kind: str, name: str, *, old: Any | None, new: Any) -> bool:
        """Replace a document atomically if it is still ``old`` (None: no document). Returns True if replaced.

        ``old`` is the result of ``load_document``.
        """


_TRIES: Final = 20


def change_document(
    store: StateStore,
    kind: str,
    name: str,
    change: Callable[[Any | None], Any],
    refused: StateStoreError,
) -> Any:
    """Replace a document by the result of ``change`` (None: no document), even if others change it too.

    Returns the new document.

    Raises:
        StateStoreError: The store does not answer; or ``refused``, because others kept changing it.
    """
    for _ in range(_TRIES):
        old = store.load_document(kind, name)
        new = change(old)
        if new == old or store.swap_document(kind, name, old=old, new=new):
            return new
    raise refused


# So many events per table are stored. Older ones may still be in Kafka.
MOST_EVENTS: Final = 200
MOST_QUERY: Final = 65_536
_KIND: Final = "ddl_events"


class StoredDdl(NamedTuple):
    """A DDL event. ``time``: Kafka's timestamp, ms since 1970. ``commit_ts``: TiDB's TSO, or None.

    ``kind`` is the codec's value: TiCDC's name of the change in canal-json, TiDB's number in flat-avro.
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


def store_ddl(store: StateStore, progress: Progress, events: Iterable[StoredDdl]) -> None:
    """Add the events of one batch to those of its table, each once, even if it is read several times.

    Raises:
        StateStoreError: The store does not answer.
    """
    change_document(
        store,
        _KIND,
        _name(progress.pipeline, progress.table),
        lambda old: _merged(old or [], events, progress.batch),
        StateStoreError("Other processes keep changing the table's DDL events.", table=str(progress.table)),
    )


def load_ddl(store: StateStore, pipeline: str, tables: Iterable[TableId]) -> list[StoredDdl]:
    """Returns the events of tables, by table, topic, partition and offset.

    Raises:
        StateStoreError: The store does not answer.
    """
    found = [
        StoredDdl(*event)._replace(table=str(table))
        for table in tables
        for event in store.load_document(_KIND, _name(pipeline, table)) or ()
    ]
    return sorted(found, key=lambda event: (event.table, event.topic, event.partition, event.offset))


def _merged(stored: Sequence[Any], events: Iterable[StoredDdl], batch: int) -> list[list[Any]]:
    known = {_identity(event): list(event) for event in stored}
    for event in events:
        shown = event._replace(batch=batch, query=event.query[:MOST_QUERY], table="")
        known.setdefault(_identity(event), list(shown))
    # A batch's events are in Kafka's order per partition.
    return list(known.values())[-MOST_EVENTS:]


def _identity(event: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(event[:4])


def _name(pipeline: str, table: TableId) -> str:
    return f"{pipeline}/{table.schema}/{table.name}"


FORMAT_VERSION: Final = 1
BATCHES_PER_EPOCH: Final = 2**40


def txn_version(epoch: int, batch: int) -> int:
    """Returns a number that grows with every batch and jumps with every epoch (epoch × 2^40 + batch).

    Raises:
        ValueError: The batch or the epoch does not fit a signed 64-bit number.
    """
    if not 0 <= batch < BATCHES_PER_EPOCH or not 0 <= epoch < 2**23:
        raise ValueError(f"epoch {epoch} batch {batch} is not a transaction version")
    return epoch * BATCHES_PER_EPOCH + batch


def split_txn_version(version: int) -> tuple[int, int]:
    """Returns the epoch and the batch of a transaction version."""
    return divmod(version, BATCHES_PER_EPOCH)


class LastRecord(NamedTuple):
    """A record that was read in a partition's log, and the epoch of the leader that wrote it."""

    offset: int
    epoch: int


@dataclass(frozen=True)
class PartitionProgress:
    """The progress in one topic-partition.

    Attributes:
        next_offset: The first offset that was not read yet.
        low_water_offset: The first offset with a waiting row above the progress's bound; ``next_offset``
            without such a row.
        applied_commit_ts: The greatest applied commit_ts (TiDB TSO), or None.
        watermark: The greatest resolved ts that was read (TiDB TSO), or None.
        again_to: After a rewind, the offset up to which the partition was applied before, until it is applied
            up to there again; else None.
        last: The last record before ``next_offset``, which shows whether the log was cut since
            (``kafka.leader_epochs``). None if records have no leader epoch, and in progress of earlier
            versions.
    """

    next_offset: int
    low_water_offset: int
    applied_commit_ts: int | None = None
    watermark: int | None = None
    again_to: int | None = None
    last: LastRecord | None = None

    @property
    def applied_to(self) -> int:
        """The greatest offset up to which the partition was ever applied."""
        return max(self.next_offset, self.again_to or 0)


@dataclass(frozen=True)
class TopicProgress:
    """The progress in one topic, with Kafka's topic id, so that a recreated topic is noticed.

    Without an id and partitions, the topic did not exist yet, and is read from the beginning of all
    partitions.
    """

    topic: str
    topic_id: str
    partitions: Mapping[int, PartitionProgress]

    @property
    def read_again(self) -> dict[int, OffsetsAgain]:
        """The offsets that must still be read again after a rewind, by partition.

        Until then, rows may be older than they were before the rewind.
        """
        return {
            number: OffsetsAgain(at.next_offset, at.again_to)
            for number, at in self.partitions.items()
            if at.again_to is not None
        }

    @property
    def last_records(self) -> dict[int, LastRecord]:
        """The last applied record of each partition, if its leader epoch is known."""
        # Earlier versions could keep a record after the applied ones, which is not needed.
        return {
            number: at.last
            for number, at in self.partitions.items()
            if at.last is not None and at.last.offset < at.next_offset
        }


class OffsetsAgain(NamedTuple):
    """Offsets ``[start, end)`` of one partition that were applied before."""

    start: int
    end: int


@dataclass(frozen=True)
class Sweep:
    """Progress of a snapshot's deletes: looking up the target's keys in the source.

    Attributes:
        parts: The keys are looked up in so many parts, by their hashes. 0: rows are still being read.
        done: Number of parts whose deletes are applied.
        deletes: Number of applied deletes.
    """

    parts: int = 0
    done: int = 0
    deletes: int = 0

    @property
    def begun(self) -> bool:
        """True if all rows were read, so that the keys are next."""
        return self.parts > 0


# Bounds of a key (``source_database.key_bounds``), all of which must hold; empty without bounds.
Where = tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class SnapshotProgress:
    """The progress of a snapshot of a source table.

    Attributes:
        key: The columns by which the table is read in order.
        after: Texts, as in canal-json, of the last key that was read; None before the first.
        rows: Number of applied rows.
        done: True if all rows are applied.
        number: Rising number of the table's snapshots; 0 for a snapshot that nobody requested.
        sweep: Progress of deleting rows that exist only in the target, after all rows; None: they stay.
        keys: Name of the document with the keys that the snapshot is limited to; None for all keys. ``after``
            is one of these keys.
        where: Bounds that the snapshot is limited to.
        seen: Under cuts, a commit_ts of the source that is at or after all applied rows.
        order: Digest of the key's order (``StoredTable``); None in progress of an earlier version.
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
        """True if the snapshot is limited to some rows. Then the table counts as complete meanwhile."""
        return self.keys is not None or bool(self.where)


@dataclass(frozen=True)
class DdlProgress:
    """A table's progress in the topic to which a connector writes its source's DDL (ADR 34).

    ``decided``: the DDL before this offset was followed or skipped. ``followed``: for the DDL before this
    offset the table was compared with its source.
    """

    topic_id: str
    decided: int
    followed: int = 0


@dataclass(frozen=True)
class Progress:
    """All applied progress of one table after batch ``batch`` of epoch ``epoch``.

    Attributes:
        epoch: Number of a worker's hold on the table.
        batch: Counts batches across epochs and restarts.
        commit_ts: The greatest commit_ts in the table (TiDB TSO), or None if the topic has none.
        snapshot: None if no snapshot was started.
        emptied: The TSO of the DDL that emptied the table last. Rows that were committed up to it are void,
            whenever they are read.
        decided: The TSO of the newest DDL that changes rows of the table and was followed or skipped. 0
            without such DDL, None if no DDL is read.
        rewound: The number of the last requested rewind; 0 without rewinds.
        bound: Rows that were committed after it wait (``batch.cuts``); None: no rows wait.
        ddl: None if no DDL of a connector was decided.
        source_reads: The snapshots and resyncs that dead letters must not undo. Only in Kafka's order.
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
        """The number by which targets order commits."""
        return txn_version(self.epoch, self.batch)

    def next_offset(self, topic: str, partition: int) -> int | None:
        """Returns the first offset of a partition that is not applied yet; None if it was never read."""
        known = self.topics.get(topic)
        at = known.partitions.get(partition) if known else None
        return at.low_water_offset if at else None


def check_follows(progress: Progress, applied: Progress | None) -> None:
    """The law of every target: a batch is applied only to the result of the batch before it.

    ``applied`` is the target's current progress, which is not this batch's; None for an empty target.

    Raises:
        StaleProgressError: A later batch is applied. Or the target went back while its worker held it, like a
            database whose standby takes over without the last commits.
    """
    if applied is not None and applied.txn_version >= progress.txn_version:
        raise StaleProgressError(
            f"A later batch is already applied (epoch {applied.epoch} batch {applied.batch}). Start from the "
            "committed progress, and run only one worker per table.",
            table=str(progress.table),
        )
    before = applied.batch if applied else 0
    if progress.batch != before + 1:
        raise StaleProgressError(
            f"The target is at batch {before}, but the next one is {progress.batch}. The batches between "
            "were committed, and the target no longer has them, as after a restored backup or a standby that "
            "took over. Nothing was written. Start the worker again: it shows how to continue.",
            table=str(progress.table),
        )


Result = TypeVar("Result")
# An epoch, and further values that distinguish claims.
Hold = tuple[int, ...]


def done_before(progress: Progress, applied: Progress | None, result: Result | None) -> Result | None:
    """Returns the result of this batch if it is already applied; None if it is the next one to apply.

    ``applied`` and ``result`` are the newest batch's in the ledger. A claim removes the result.

    Raises:
        StaleProgressError: For the same reasons as ``check_follows``.
    """
    if applied == progress and result is not None:
        return result
    check_follows(progress, applied)
    return None


def check_held(ledger: Hold, claimed: Hold | None, *, table: TableId, batch: int | None = None) -> None:
    """The law of every ledger: only the worker that claimed a table last writes to it.

    ``ledger``: the hold in the ledger. ``claimed``: the hold that this worker was given, or None. ``batch``:
    the epoch of the batch to apply.

    Raises:
        StaleProgressError: The table is not claimed, another worker claimed it since, or the batch belongs to
            another epoch.
    """
    if claimed is None:
        raise StaleProgressError("The table must be claimed before it is written.", table=str(table))
    if ledger != claimed:
        raise StaleProgressError(
            f"Another worker holds this table: its ledger is at epoch {_words(ledger)}, but this worker "
            f"holds epoch {_words(claimed)}. Run only one worker per table.",
            table=str(table),
        )
    if batch is not None and batch != claimed[0]:
        raise StaleProgressError(
            f"This worker holds epoch {claimed[0]}, but the batch belongs to epoch {batch}.", table=str(table)
        )


def _words(hold: Hold) -> str:
    epoch, *more = map(str, hold)
    return f"{epoch} ({', '.join(more)})" if more else epoch


def to_json(progress: Progress) -> str:
    """Returns progress as compact JSON text with keys in a fixed order."""
    return json.dumps(as_document(progress), separators=(",", ":"), ensure_ascii=True)


def from_json(text: str) -> Progress:
    """Parse progress from a JSON text.

    Raises:
        ProgressError: The text is not progress of a version that this tidesink reads.
    """
    try:
        return from_document(json.loads(text))
    except ValueError as exc:
        raise ProgressError("The stored progress is not JSON. Check if another program wrote it.") from exc


def as_document(progress: Progress) -> dict[str, Any]:
    """Returns progress as a JSON-able mapping."""
    return {
        "version": FORMAT_VERSION,
        "pipeline": progress.pipeline,
        "table": list(progress.table),
        "epoch": progress.epoch,
        "batch": progress.batch,
        "commit_ts": progress.commit_ts,
        "sequence_by": progress.sequence_by,
        "topics": {name: _topic_document(topic) for name, topic in sorted(progress.topics.items())},
        **({} if progress.snapshot is None else {"snapshot": _snapshot_document(progress.snapshot)}),
        **({} if progress.emptied is None else {"emptied": progress.emptied}),
        **({} if progress.decided is None else {"decided": progress.decided}),
        **({"rewound": progress.rewound} if progress.rewound else {}),
        **({} if progress.bound is None else {"bound": progress.bound}),
        **({} if progress.ddl is None else {"ddl": asdict(progress.ddl)}),
        # With a snapshot it is written even if empty: a snapshot without it is from an earlier version.
        **(
            {"source_reads": as_documents(progress.source_reads)}
            if progress.source_reads or progress.snapshot is not None
            else {}
        ),
    }


def from_document(document: object) -> Progress:
    """Restore progress from a mapping of ``as_document``.

    Raises:
        ProgressError: The mapping is not progress of a version that this tidesink reads.
    """
    if not isinstance(document, dict) or document.get("version") != FORMAT_VERSION:
        found = document.get("version") if isinstance(document, dict) else None
        raise ProgressError(
            f"The stored progress has format {found!r}, but this tidesink reads {FORMAT_VERSION}. "
            "Run the tidesink version that wrote it, or a newer one."
        )
    try:
        return _read(document)
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise ProgressError(f"The stored progress is damaged ({type(exc).__name__}: {exc}).") from exc


def _topic_document(topic: TopicProgress) -> dict[str, Any]:
    return {
        "topic_id": topic.topic_id,
        "partitions": {
            str(number): _partition_document(at) for number, at in sorted(topic.partitions.items())
        },
    }


def _partition_document(at: PartitionProgress) -> list[Any]:
    more = [at.again_to, *([] if at.last is None else [[*at.last]])]
    again = more if any(one is not None for one in more) else []
    return [at.next_offset, at.low_water_offset, at.applied_commit_ts, at.watermark, *again]


def _read(document: dict[str, Any]) -> Progress:
    schema, name = document["table"]
    progress = Progress(
        table=TableId(schema, name),
        pipeline=document["pipeline"],
        epoch=int(document["epoch"]),
        batch=int(document["batch"]),
        topics={name: _read_topic(name, topic) for name, topic in document["topics"].items()},
        commit_ts=document["commit_ts"],
        sequence_by=_read_sequence(document["sequence_by"]),
        snapshot=_read_snapshot(document.get("snapshot")),
        emptied=_read_moment(document.get("emptied")),
        decided=_read_moment(document.get("decided")),
        rewound=int(document.get("rewound", 0)),
        bound=_read_moment(document.get("bound")),
        ddl=_read_ddl(document.get("ddl")),
        source_reads=from_documents(document.get("source_reads", ())),
    )
    if "source_reads" in document or not _may_have_read(progress):
        return progress
    offsets = {
        name: {n: max(at.low_water_offset, at.again_to or 0) for n, at in topic.partitions.items()}
        for name, topic in progress.topics.items()
    }
    return replace(progress, source_reads=earlier_reads(offsets))


def _may_have_read(progress: Progress) -> bool:
    """Returns True if the table may have rows of a snapshot that dead letters must not undo."""
    found = progress.snapshot
    if progress.sequence_by != "kafka" or found is None:
        return False
    # A first load without applied rows has no key. Other snapshots have a key, or follow earlier ones.
    return bool(found.key or found.done or found.number)


def _read_ddl(document: dict[str, Any] | None) -> DdlProgress | None:
    if document is None:
        return None
    return DdlProgress(document["topic_id"], int(document["decided"]), int(document["followed"]))


def _snapshot_document(snapshot: SnapshotProgress) -> dict[str, Any]:
    after = None if snapshot.after is None else list(snapshot.after)
    return {
        "number": snapshot.number,
        "key": list(snapshot.key),
        "after": after,
        "rows": snapshot.rows,
        "done": snapshot.done,
        **({} if snapshot.sweep is None else {"sweep": asdict(snapshot.sweep)}),
        **({} if snapshot.keys is None else {"keys": snapshot.keys}),
        **({"where": [[*bound] for bound in snapshot.where]} if snapshot.where else {}),
        **({} if snapshot.seen is None else {"seen": snapshot.seen}),
        **({} if snapshot.order is None else {"order": snapshot.order}),
    }


def _read_snapshot(document: dict[str, Any] | None) -> SnapshotProgress | None:
    if document is None:
        return None
    after, sweep = document["after"], document.get("sweep")
    return SnapshotProgress(
        tuple(document["key"]),
        None if after is None else tuple(after),
        int(document["rows"]),
        bool(document["done"]),
        int(document["number"]),
        None if sweep is None else Sweep(**{name: int(number) for name, number in sweep.items()}),
        document.get("keys"),
        tuple((column, kind, text) for column, kind, text in document.get("where", ())),
        _read_moment(document.get("seen")),
        document.get("order"),
    )


def _read_moment(found: Any) -> int | None:
    return None if found is None else int(found)


def _read_topic(name: str, document: dict[str, Any]) -> TopicProgress:
    partitions = {int(number): _read_partition(*at) for number, at in document["partitions"].items()}
    return TopicProgress(name, document["topic_id"], partitions)


def _read_partition(*stored: Any) -> PartitionProgress:
    at = PartitionProgress(*stored)
    return at if at.last is None else replace(at, last=LastRecord(*map(int, at.last)))


def _read_sequence(word: object) -> SequenceBy:
    if word == "kafka":
        return "kafka"
    if word == "source":
        return "source"
    raise ValueError(f"sequence_by {word!r}")
