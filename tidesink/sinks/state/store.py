"""The worker's own memory beside the target: history, status, documents, DDL events.

It is never more right than the target. History (batch -> progress) is written before the target's
commit and serves when the target's own record of old commits was cleaned away. Losing the store
loses status and history, not data. Targets that keep no rows (Kafka, HTTP) have their progress here
too: with the store it is lost, and everything is sent again under a greater epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, Protocol

from tidesink.errors import StateStoreError
from tidesink.events import TableId
from tidesink.sinks.state.progress import Progress

# Stands for the schema of a table whose name nobody knows: its topic's name is all there is to show, and
# the state store keeps no status of it.
UNKNOWN_SCHEMA: Final = "?"
TableState = Literal["RUNNING", "IDLE", "PAUSED", "FAILING"]
Rank = tuple[int, int, int]


@dataclass(frozen=True)
class TableStatus:
    """What ``tidesink status`` shows of one table.

    ``counters``: row events by kind, summed over all batches. ``zero_dates``: per column, how many dates
    no calendar has were turned to NULL. ``error``: class name and message of the last error.
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


# Of one table so many are stored; older ones are still in Kafka, if anywhere.
MOST_EVENTS: Final = 200
MOST_QUERY: Final = 65_536
_KIND: Final = "ddl_events"
_TRIES: Final = 20


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
    name = _name(progress.pipeline, progress.table)
    for _ in range(_TRIES):
        old = store.load_document(_KIND, name)
        new = _merged(old or [], events, progress.batch)
        if new == old or store.swap_document(_KIND, name, old=old, new=new):
            return
    raise StateStoreError("others write the DDL events of the table all the time", table=str(progress.table))


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
