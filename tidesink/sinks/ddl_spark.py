"""Stores a batch's DDL events for people to read (``ddl_events``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from pyspark.sql import functions as F  # noqa: N812  (PySpark's own name for it)

from tidesink.codecs import open_codec
from tidesink.codecs.base import Codec
from tidesink.errors import DecodeError, SchemaNotFoundError
from tidesink.events import DdlEvent, Message
from tidesink.sinks.batch.records import DDL
from tidesink.sinks.ddl_events import StoredDdl, store_ddl
from tidesink.sinks.offsets import TopicOffsets
from tidesink.sinks.progress import Progress
from tidesink.sinks.ranges import OffsetRange
from tidesink.sinks.source import RecordReader
from tidesink.sinks.surroundings import Surroundings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A statement as status shows it.
_SHOWN: Final = 200

Read = Callable[[Sequence[OffsetRange]], "DataFrame"]


class ReducedRanges(Protocol):
    """A reduced batch, as far as its DDL events are concerned."""

    @property
    def frame(self) -> DataFrame:
        """The reduced frame."""

    @property
    def plan(self) -> PlannedRanges:
        """What was read."""


class PlannedRanges(Protocol):
    """The offsets of a batch."""

    @property
    def ranges(self) -> Sequence[OffsetRange]:
        """One a partition."""

    @property
    def found(self) -> TopicOffsets:
        """The topic that was read."""


def keep_ddl(
    around: Surroundings, reduction: ReducedRanges, reader: RecordReader, progress: Progress
) -> dict[str, Any] | None:
    """Store the DDL events of a reduced batch; the newest one's commit_ts, kind and query.

    They are few, each by itself in the frame, and are decoded here. Their bytes and Kafka's time come from
    Kafka, read once more.

    Raises:
        StateStoreError: the state store does not answer.
    """
    codec = _codec(around)
    session = reduction.frame.sparkSession
    found = _messages(reduction, partial(reader.frame, session))
    topic_id = reduction.plan.found.topic_id
    rows = [_row(message, topic_id, _event(codec, message)) for message in found]
    store_ddl(around.store, progress, sorted(rows, key=lambda row: (row.partition, row.offset)))
    last = max(rows, key=lambda row: (row.commit_ts or 0, row.offset), default=None)
    if last is None:
        return None
    return {"commit_ts": last.commit_ts, "kind": last.kind, "query": last.query[:_SHOWN]}


def _codec(around: Surroundings) -> Codec:
    source = around.config.source
    # Values are opened where they are read.
    options = replace(source.codec_options(), large_message_handle_compression="none")
    return open_codec(source.protocol, options=options, registry=around.registry)


def _messages(reduction: ReducedRanges, read: Read) -> list[Message]:
    found = reduction.frame.where(F.col("_op") == DDL).select("_partition", "_offset").collect()
    places = {(int(row["_partition"]), int(row["_offset"])) for row in found}
    narrowed = list(_narrowed(reduction.plan.ranges, places))
    here = F.concat_ws("@", "partition", "offset").isin(*(f"{n}@{offset}" for n, offset in places))
    raw = read(narrowed).where(here).withColumn("ms", F.unix_millis("timestamp"))
    names = ("topic", "partition", "offset", "key", "value", "ms")
    return [_message(row) for row in raw.select(*names).collect()]


def _narrowed(ranges: Sequence[OffsetRange], places: Iterable[tuple[int, int]]) -> Iterable[OffsetRange]:
    for part in ranges:
        offsets = [offset for partition, offset in places if partition == part.partition]
        if offsets:
            yield part._replace(start=min(offsets), end=max(offsets) + 1)


def _message(row: Any) -> Message:
    key, value = (None if row[name] is None else bytes(row[name]) for name in ("key", "value"))
    return Message(row["topic"], row["partition"], row["offset"], key, value, row["ms"])


def _event(codec: Codec, message: Message) -> DdlEvent | None:
    """The event of a record; None where the Python codec reads none: its bytes are kept all the same."""
    try:
        found = (event for event in codec.decode(message) if isinstance(event, DdlEvent))
        return next(found, None)
    except (DecodeError, SchemaNotFoundError):
        return None


def _row(message: Message, topic_id: str, event: DdlEvent | None) -> StoredDdl:
    said = (event.commit_ts, event.kind, event.query) if event else (None, "", "")
    return StoredDdl(message.topic, topic_id, message.partition, message.offset, *said, message.timestamp)
