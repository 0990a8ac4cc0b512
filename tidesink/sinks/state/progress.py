"""The worker's own memory beside the target: history, status, documents, DDL events.

It is never more right than the target. History (batch -> progress) is written before the target's
commit and serves when the target's own record of old commits was cleaned away. Losing the store
loses status and history, not data. Targets that keep no rows (Kafka, HTTP) have their progress here
too: with the store it is lost, and everything is sent again under a greater epoch.
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


# Stands for the schema of a table whose name nobody knows: its topic's name is all there is to show, and
# the state store keeps no status of it.
UNKNOWN_SCHEMA: Final = "?"
TableState = Literal["RUNNING", "IDLE", "PAUSED", "FAILING"]
Rank = tuple[int, int, int]


@dataclass(frozen=True)
class TableStatus:
    """What ``tidesink status`` shows of one table.

    ``counters``: row events by kind, summed over all batches. ``zero_dates``: per column, how many dates
    no calendar has were turned to NULL; ``ambiguous_times`` likewise, how many local times come twice, so
    that ``ambiguous-time`` chose. ``error``: class name and message of the last error.
    ``epoch``: of the hold on the table in which this was said; 0 before any, and in what earlier versions
    saved. ``life``: how often the table's epochs were seen to begin again, since it was made again or brought
    back from a backup. ``updated``: set by the store, UTC.
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
        """Which of two statuses is of the later hold on the table, and in it of the later batch."""
        return self.life, self.epoch, self.batch


class StateStore(Protocol):
    """Where a worker remembers; every method raises StateStoreError when the store does not answer."""

    def record_progress(self, progress: Progress) -> None:
        """Remember what a batch will have applied, before its commit."""

    def progress_of(self, pipeline: str, table: TableId, txn_version: int) -> Progress | None:
        """The progress of one batch by its transaction version; None where it is not known."""

    def progress_of_batch(self, pipeline: str, table: TableId, batch: int) -> Progress | None:
        """The progress of a batch that was applied, in whichever epoch; None where it is not known.

        A batch that is tried again in another epoch keeps its number: the last try is the one that was
        applied.
        """

    def save_status(self, status: TableStatus) -> bool:
        """Replace a table's status in one step unless it has a greater rank; whether it was replaced.

        A worker that lost the table to another never puts its word over the other's.
        """

    def statuses(self, pipeline: str) -> tuple[TableStatus, ...]:
        """The status of every table of a pipeline, by table name."""

    def status_of(self, pipeline: str, table: TableId) -> TableStatus | None:
        """The status of one table; None where none was saved."""

    def save_document(self, kind: str, name: str, document: Any) -> None:
        """Keep a JSON-able document, such as a stream's table definitions, under kind and name."""

    def load_document(self, kind: str, name: str) -> Any | None:
        """The document kept under kind and name; None where there is none."""

    def swap_document(self, kind: str, name: str, *, old: Any | None, new: Any) -> bool:
        """Replace a document in one step if it is still ``old`` (None: there is none); whether it was.

        ``old`` is as ``load_document`` gave it.
        """


_TRIES: Final = 20


def change_document(
    store: StateStore,
    kind: str,
    name: str,
    change: Callable[[Any | None], Any],
    refused: StateStoreError,
) -> Any:
    """Replace a document by what ``change`` makes of it (None: there is none), also beside others that do.

    The new document.

    Raises:
        StateStoreError: the store does not answer; or ``refused``: others kept changing it.
    """
    for _ in range(_TRIES):
        old = store.load_document(kind, name)
        new = change(old)
        if new == old or store.swap_document(kind, name, old=old, new=new):
            return new
    raise refused


# Of one table so many are stored; older ones are still in Kafka, if anywhere.
MOST_EVENTS: Final = 200
MOST_QUERY: Final = 65_536
_KIND: Final = "ddl_events"


class StoredDdl(NamedTuple):
    """A DDL event. ``time``: Kafka's, ms since 1970. ``commit_ts``: TiDB's TSO, where the event has it.

    ``kind`` is the codec's word: TiCDC's name of the change in canal-json, TiDB's number in flat-avro.
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
    """Store the events of one batch beside those of its table, each once, however often it is read.

    Raises:
        StateStoreError: the store does not answer.
    """
    change_document(
        store,
        _KIND,
        _name(progress.pipeline, progress.table),
        lambda old: _merged(old or [], events, progress.batch),
        StateStoreError("others write the DDL events of the table all the time", table=str(progress.table)),
    )


def load_ddl(store: StateStore, pipeline: str, tables: Iterable[TableId]) -> list[StoredDdl]:
    """The events of tables, by table, topic, partition and offset.

    Raises:
        StateStoreError: the store does not answer.
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
    # Those of a batch come in Kafka's order of each partition.
    return list(known.values())[-MOST_EVENTS:]


def _identity(event: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(event[:4])


def _name(pipeline: str, table: TableId) -> str:
    return f"{pipeline}/{table.schema}/{table.name}"


FORMAT_VERSION: Final = 1
BATCHES_PER_EPOCH: Final = 2**40


def txn_version(epoch: int, batch: int) -> int:
    """One number that grows with every batch and jumps with every epoch (epoch × 2^40 + batch).

    Raises ValueError for a batch or an epoch that does not fit a signed 64-bit number.
    """
    if not 0 <= batch < BATCHES_PER_EPOCH or not 0 <= epoch < 2**23:
        raise ValueError(f"epoch {epoch} batch {batch} is no transaction version")
    return epoch * BATCHES_PER_EPOCH + batch


def split_txn_version(version: int) -> tuple[int, int]:
    """The epoch and the batch of a transaction version."""
    return divmod(version, BATCHES_PER_EPOCH)


class LastRecord(NamedTuple):
    """A record that was seen in a partition's log, and the epoch of the leader that wrote it."""

    offset: int
    epoch: int


@dataclass(frozen=True)
class PartitionProgress:
    """One topic-partition.

    ``next_offset`` is the first offset not yet read. ``low_water_offset`` is the first that has a row above
    the bound of the progress, which waits (equal to ``next_offset`` where none does).
    ``applied_commit_ts`` is the greatest commit_ts applied, ``watermark`` the greatest resolved ts read
    (both TiDB TSO; None where the topic carries none).
    ``again_to``: the offset up to which the partition was applied before it was rewound, until it is applied
    up to there again; None else.
    ``last``: the last record before ``next_offset``, which shows whether the log was cut since
    (``kafka.leader_epochs``); None where records have no leader epoch, and in what earlier versions stored.
    """

    next_offset: int
    low_water_offset: int
    applied_commit_ts: int | None = None
    watermark: int | None = None
    again_to: int | None = None
    last: LastRecord | None = None

    @property
    def applied_to(self) -> int:
        """The offset up to which the partition was ever applied."""
        return max(self.next_offset, self.again_to or 0)


@dataclass(frozen=True)
class TopicProgress:
    """One topic, by Kafka's own topic id, so that a topic deleted and made again is noticed.

    Without an id and partitions: the topic was not there yet, and is read from the beginning of each of its
    partitions.
    """

    topic: str
    topic_id: str
    partitions: Mapping[int, PartitionProgress]

    @property
    def read_again(self) -> dict[int, OffsetsAgain]:
        """The offsets that are still to be read again after a rewind, by partition.

        While there are some, rows may be older than they were before it.
        """
        return {
            number: OffsetsAgain(at.next_offset, at.again_to)
            for number, at in self.partitions.items()
            if at.again_to is not None
        }

    @property
    def last_records(self) -> dict[int, LastRecord]:
        """The last applied record of each partition, if its leader epoch is known."""
        # Earlier versions could keep a record behind what is applied, of which nothing is lost.
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
    """How far the target's keys are looked up at the source, where a snapshot deletes what that has not.

    The keys are looked up in ``parts`` parts, by their hashes; 0: rows are still read. ``done``: of so many
    parts the deletes are applied, ``deletes`` of them.
    """

    parts: int = 0
    done: int = 0
    deletes: int = 0

    @property
    def begun(self) -> bool:
        """Whether all rows were read, so that keys come next."""
        return self.parts > 0


# Bounds of a key (``source_database.key_bounds``), all of which hold; none: no bounds.
Where = tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class SnapshotProgress:
    """How far a snapshot of the source's table is applied.

    ``key``: the columns by whose order the table is read. ``after``: the texts, as canal-json has them, of
    the last key that was read; None: none was. ``rows``: how many rows were applied. ``done``: all were.
    ``number``: tells it from others of the table, which rise; 0 for one that nobody asked for. ``sweep``: how
    far rows that the target alone has are deleted, behind all rows; None: they stay. ``keys``: under which
    name the state store has the keys that it is of; None: of all. Then ``after`` is one of those. ``where``:
    within which bounds its rows are. ``seen``: under cuts, a commit_ts of the source that no row which was
    applied is later than. ``order``: digest of the key's order, as of ``StoredTable``; None in a progress of
    an earlier version.
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
        """Whether it is of some rows alone, so that the table is whole however far it is."""
        return self.keys is not None or bool(self.where)


@dataclass(frozen=True)
class DdlProgress:
    """How far a table has come in the topic to which a connector writes its source's DDL (ADR 34).

    ``decided``: what stands before this offset was followed or passed over, and what stands before
    ``followed`` had the table compared with its source.
    """

    topic_id: str
    decided: int
    followed: int = 0


@dataclass(frozen=True)
class Progress:
    """All that is applied of one table after batch ``batch`` of epoch ``epoch``.

    ``batch`` counts on over epochs and restarts; an epoch is one worker's hold on the table.
    ``commit_ts`` is the greatest commit_ts in the table (TiDB TSO), None where the topic carries none.
    ``snapshot`` is None where none was begun. ``emptied``: the TSO of the DDL that emptied the table last;
    rows that were committed up to it are void, whenever they are read. ``decided``: the TSO of the newest DDL
    that changes rows of the table and was followed, or passed over; 0 for none, None where none is read.
    ``rewound``: the number of the last rewind, of those that people asked for; 0 for none.
    ``bound``: rows that were committed after it wait (``batch.cuts``); None: none do. ``ddl``: None where
    nothing of a connector's DDL was decided. ``source_reads``: the snapshots and resyncs that dead letters
    must not undo; in Kafka's order alone.
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
        """The number targets order commits by."""
        return txn_version(self.epoch, self.batch)

    def next_offset(self, topic: str, partition: int) -> int | None:
        """The first offset of a partition not yet applied; None where it was never read."""
        known = self.topics.get(topic)
        at = known.partitions.get(partition) if known else None
        return at.low_water_offset if at else None


def check_follows(progress: Progress, applied: Progress | None) -> None:
    """The law of every target: a batch is applied on what the batch before it left, and on nothing else.

    ``applied`` is what the target holds now, which is not this batch; None for nothing.

    Raises:
        StaleProgressError: a later batch is applied; or the target went back while its worker held it, as a
            database does whose standby takes over without the last commits.
    """
    if applied is not None and applied.txn_version >= progress.txn_version:
        raise StaleProgressError(
            f"a later batch is applied already (epoch {applied.epoch} batch {applied.batch}): start from the "
            "committed progress, and run one worker a table",
            table=str(progress.table),
        )
    before = applied.batch if applied else 0
    if progress.batch != before + 1:
        raise StaleProgressError(
            f"the target stands at batch {before}, and the next one is {progress.batch}: the batches between "
            "were committed and are gone from it, as after a restored backup or a standby that took over. "
            "Nothing was written. Start the worker again: it says how to go on",
            table=str(progress.table),
        )


Result = TypeVar("Result")
# An epoch, and what else tells one claim from another.
Hold = tuple[int, ...]


def done_before(progress: Progress, applied: Progress | None, result: Result | None) -> Result | None:
    """What this very batch did where it is applied already; None where it is the next one to apply.

    ``applied`` and ``result`` are the newest batch's in the ledger; a claim forgets the result.

    Raises:
        StaleProgressError: as ``check_follows`` says.
    """
    if applied == progress and result is not None:
        return result
    check_follows(progress, applied)
    return None


def check_held(ledger: Hold, claimed: Hold | None, *, table: TableId, batch: int | None = None) -> None:
    """The law of every ledger: who claimed a table last, and nobody else, writes to it.

    ``ledger`` is the hold that the ledger has, ``claimed`` the one that this worker was given (None: none),
    ``batch`` the epoch of the batch to be applied.

    Raises:
        StaleProgressError: the table is not claimed, another worker claimed it since, or the batch is of
            another epoch.
    """
    if claimed is None:
        raise StaleProgressError("claim the table before writing to it", table=str(table))
    if ledger != claimed:
        raise StaleProgressError(
            f"another worker holds this table: its ledger is at epoch {_words(ledger)}, and this worker "
            f"holds epoch {_words(claimed)}. Run one worker a table",
            table=str(table),
        )
    if batch is not None and batch != claimed[0]:
        raise StaleProgressError(
            f"this worker holds epoch {claimed[0]}, and the batch is of epoch {batch}", table=str(table)
        )


def _words(hold: Hold) -> str:
    epoch, *more = map(str, hold)
    return f"{epoch} ({', '.join(more)})" if more else epoch


def to_json(progress: Progress) -> str:
    """Progress as compact JSON text, keys in a fixed order."""
    return json.dumps(as_document(progress), separators=(",", ":"), ensure_ascii=True)


def from_json(text: str) -> Progress:
    """The progress in a JSON text.

    Raises:
        ProgressError: the text is no progress of a version this tidesink reads.
    """
    try:
        return from_document(json.loads(text))
    except ValueError as exc:
        raise ProgressError("the stored progress is not JSON; was it written by another program?") from exc


def as_document(progress: Progress) -> dict[str, Any]:
    """Progress as a JSON-able mapping."""
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
        # With a snapshot also if there are none: what has a snapshot alone is of an earlier version.
        **(
            {"source_reads": as_documents(progress.source_reads)}
            if progress.source_reads or progress.snapshot is not None
            else {}
        ),
    }


def from_document(document: object) -> Progress:
    """The progress in a mapping that ``as_document`` made.

    Raises:
        ProgressError: the mapping is no progress of a version this tidesink reads.
    """
    if not isinstance(document, dict) or document.get("version") != FORMAT_VERSION:
        found = document.get("version") if isinstance(document, dict) else None
        raise ProgressError(
            f"the stored progress has format {found!r}, this tidesink reads {FORMAT_VERSION}; "
            "run the tidesink version that wrote it, or a newer one"
        )
    try:
        return _read(document)
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise ProgressError(f"the stored progress is damaged ({type(exc).__name__}: {exc})") from exc


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
    """Whether rows of a snapshot may be in the table that dead letters in Kafka's order must not undo."""
    found = progress.snapshot
    if progress.sequence_by != "kafka" or found is None:
        return False
    # A first load of which nothing is applied yet has no key. Others have one, or follow earlier ones.
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
