"""Stores the DDL events of a batch in the state store, for ``tidesink ddl`` and ``tidesink status``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.kafka.offsets import OffsetRange
from tidesink.sinks.laws.counts import DdlRecord
from tidesink.sinks.state.progress import MOST_EVENTS, Progress, StateStore, StoredDdl, store_ddl

# The maximum length of a DDL statement in ``tidesink status``.
_SHOWN: Final = 200


def keep_ddl(
    store: StateStore, source: KafkaSource, records: Iterable[DdlRecord], topic_id: str, progress: Progress
) -> dict[str, Any] | None:
    """Store the DDL events of a batch. Returns commit_ts, kind and query of the newest one, or None.

    Args:
        store: The state store.
        source: Reads records from Kafka.
        records: The DDL events that the batch's tasks decoded.
        topic_id: Kafka's id of their topic.
        progress: The table's progress after the batch.

    Raises:
        StateStoreError: The state store does not answer.
        SourceError: Kafka refuses the request, or does not answer.
    """
    ordered = sorted(records, key=lambda record: (record.place, record.offset))
    if not ordered:
        return None
    # The store keeps no more than these. Kafka is asked for the time of each event whose task read none.
    kept = [_stored(record, topic_id) for record in ordered[-MOST_EVENTS:]]
    store_ddl(store, progress, [with_time(event, source) for event in kept])
    last = max(ordered, key=lambda record: (record.statement.commit_ts or 0, record.offset)).statement
    return {"commit_ts": last.commit_ts, "kind": last.kind, "query": last.query[:_SHOWN]}


def with_time(event: StoredDdl, source: KafkaSource) -> StoredDdl:
    """Returns the event with Kafka's timestamp, which is read from Kafka if the event does not have it.

    Tasks read timestamps only if their decoder uses them.

    Raises:
        SourceError: Kafka refuses the request, or does not answer.
    """
    if event.time is not None:
        return event
    offset_range = OffsetRange(event.topic, event.partition, event.offset, event.offset + 1)
    times = [
        timestamp
        for batch in source.read_here([offset_range])
        for timestamp in batch.column("timestamp").to_pylist()
    ]
    return event._replace(time=times[0] if times else None)


def _stored(record: DdlRecord, topic_id: str) -> StoredDdl:
    topic, partition = record.place
    commit_ts, kind, query, time = record.statement
    return StoredDdl(topic, topic_id, partition, record.offset, commit_ts, kind, query, time)
