"""Stores the DDL events of a batch in the state store, for ``tidesink ddl`` and ``tidesink status``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.codecs import open_codec
from tidesink.codecs.base import Codec
from tidesink.errors import DecodeError, SchemaNotFoundError
from tidesink.events import DdlEvent, Message
from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.decode.records import DDL
from tidesink.sinks.kafka.offsets import OffsetRange
from tidesink.sinks.runtime.context import WorkerContext
from tidesink.sinks.state.progress import Progress, StoredDdl, store_ddl

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


_PLACE: Final = ("topic", "partition", "offset")
# The maximum length of a DDL statement in ``tidesink status``.
_SHOWN: Final = 200
# DDL events are collected in this process, one page at a time. An event needs memory for its bytes and for
# this overhead.
_PAGE_BYTES: Final = 64 << 20
_EVENT_BYTES: Final = 1 << 10


def keep_ddl(
    context: WorkerContext,
    reduced: DataFrame,
    topic_id: str,
    progress: Progress,
    *,
    page_bytes: int = _PAGE_BYTES,
) -> dict[str, Any] | None:
    """Store the DDL events of a batch. Returns commit_ts, kind and query of the newest one, or None.

    The rows of ``reduced``, the result of the batch's tasks, contain the bytes of DDL events. This process
    decodes them, one page at a time. ``page_bytes``: maximum size of a page. A larger event is a page of its
    own.

    Raises:
        StateStoreError: The state store does not answer.
        SourceError: Kafka refuses the request, or does not answer.
    """
    source = context.config.source
    codec = open_codec(source.protocol, options=source.codec_options(), registry=context.registry)
    last: StoredDdl | None = None
    for page in _pages(reduced.where(F.col("_op") == DDL), page_bytes):
        columns = (f"_{name}" for name in _PLACE)
        events = page.select(*columns, "_detail.key", "_detail.value", "_detail.time")
        # If a record has several events, each of them carries the record's bytes.
        messages = {row[:3]: _message(row) for row in events.collect()}
        timed = [with_time(message, context.source) for message in messages.values()]
        rows = [_stored(message, topic_id, _event(codec, message)) for message in timed]
        store_ddl(context.store, progress, sorted(rows, key=lambda row: (row.partition, row.offset)))
        last = max(filter(None, [last, *rows]), key=lambda row: (row.commit_ts or 0, row.offset))
    if last is None:
        return None
    return {"commit_ts": last.commit_ts, "kind": last.kind, "query": last.query[:_SHOWN]}


def _pages(ddl: DataFrame, page_bytes: int) -> Iterator[DataFrame]:
    """Yields DDL events in Kafka's order, in pages of at most ``page_bytes``.

    A larger event is a page of its own.
    """
    position = F.struct("_partition", "_offset")
    sizes = (F.coalesce(F.octet_length(f"_detail.{name}"), F.lit(0)) for name in ("key", "value"))
    weighed = ddl.select(position.alias("place"), (F.lit(_EVENT_BYTES) + sum(sizes)).alias("weight"))
    weight_up_to = F.sum("weight").over(Window.orderBy("place"))
    page = F.floor(weight_up_to / page_bytes).alias("page")
    bounds = F.min("place").alias("first"), F.max("place").alias("last")
    for page_bounds in sorted(weighed.select("place", page).groupBy("page").agg(*bounds).collect()):
        yield ddl.where(position.between(_place(*page_bounds["first"]), _place(*page_bounds["last"])))


def _place(partition: int, offset: int) -> Column:
    return F.struct(
        F.lit(partition).cast("int").alias("_partition"), F.lit(offset).cast("bigint").alias("_offset")
    )


def _message(row: Any) -> Message:
    key, value = (None if row[name] is None else bytes(row[name]) for name in ("key", "value"))
    return Message(row["_topic"], row["_partition"], row["_offset"], key, value, row["time"])


def with_time(message: Message, source: KafkaSource) -> Message:
    """Returns the message with Kafka's timestamp, which is read from Kafka if the message does not have it.

    Tasks read timestamps only if their decoder uses them.

    Raises:
        SourceError: Kafka refuses the request, or does not answer.
    """
    if message.timestamp is not None:
        return message
    offset_range = OffsetRange(message.topic, message.partition, message.offset, message.offset + 1)
    times = [
        timestamp
        for batch in source.read_here([offset_range])
        for timestamp in batch.column("timestamp").to_pylist()
    ]
    return replace(message, timestamp=times[0] if times else None)


def _event(codec: Codec, message: Message) -> DdlEvent | None:
    """Returns the DDL event of a record, or None if the row codec cannot decode it."""
    try:
        events = (event for event in codec.decode(message) if isinstance(event, DdlEvent))
        return next(events, None)
    except (DecodeError, SchemaNotFoundError):
        return None


def _stored(message: Message, topic_id: str, event: DdlEvent | None) -> StoredDdl:
    statement = (event.commit_ts, event.kind, event.query) if event else (None, "", "")
    return StoredDdl(
        message.topic, topic_id, message.partition, message.offset, *statement, message.timestamp
    )
