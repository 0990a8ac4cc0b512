"""The DDL events that topics carried: the newest of each table, for people to read, in the state store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from tidesink.errors import StateStoreError
from tidesink.events import TableId
from tidesink.sinks.state.progress import Progress
from tidesink.sinks.state.store import StateStore

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
