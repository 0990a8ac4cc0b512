"""Which table a Debezium topic holds: the config says, else the source block of its first row.

A topic's name does not tell: it is the connector's prefix and a name in which characters were replaced.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tidesink.codecs import open_codec
from tidesink.errors import DecodeError, SchemaNotFoundError
from tidesink.events import ChangeEvent, Message, TableId
from tidesink.sinks.offsets import TopicOffsets
from tidesink.sinks.ranges import OffsetRange, growing_parts
from tidesink.sinks.records_spark import with_values
from tidesink.sinks.source import translated_read_errors
from tidesink.sinks.surroundings import Surroundings

if TYPE_CHECKING:
    from tidesink.codecs.base import Codec

# So many records of a topic are looked at first. Each comes to the driver: the first row says it.
_FIRST_RECORDS: Final = 100


class DebeziumTables:
    """The table of each topic, once it is known. May be used from several threads."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._lock = threading.Lock()
        self._tables: dict[str, TableId] = {}
        self._looked: dict[str, tuple[str, dict[int, int]]] = {}

    def of(self, found: TopicOffsets) -> TableId | None:
        """The table of a topic; None where no record of it is of a row.

        Raises:
            SourceError: Kafka refuses, or does not answer.
            RegistryError: the registry refuses, or does not answer.
        """
        named = self._around.config.named_table_of_topic(found.topic)
        if named is not None:
            return named
        with self._lock:
            if found.topic not in self._tables:
                self._look(found)
            return self._tables.get(found.topic)

    def _look(self, found: TopicOffsets) -> None:
        """Look into what was not looked into yet, in ever larger parts."""
        topic_id, looked = self._looked.get(found.topic, ("", {}))
        looked = dict(looked) if topic_id == found.topic_id else {}
        left = [
            OffsetRange(found.topic, n, max(at.earliest, looked.get(n, 0)), at.latest)
            for n, at in found.partitions.items()
        ]
        codec = self._codec()
        for part in growing_parts(left, _FIRST_RECORDS):
            table = self._first_table(part, codec)
            if table is not None:
                self._tables[found.topic] = table
                return
            looked.update((one.partition, one.end) for one in part)
            self._looked[found.topic] = found.topic_id, looked

    def _first_table(self, ranges: tuple[OffsetRange, ...], codec: Codec) -> TableId | None:
        frame = self._around.source.frame(self._around.spark, ranges)
        with translated_read_errors(ranges[0].topic):
            found = (_table_of(codec, message) for message in with_values(frame))
            return next((table for table in found if table is not None), None)

    def _codec(self) -> Codec:
        source = self._around.config.source
        return open_codec(source.protocol, options=source.codec_options(), registry=self._around.registry)


def _table_of(codec: Codec, message: Message) -> TableId | None:
    try:
        events = codec.decode(message)
    except (DecodeError, SchemaNotFoundError):
        return None  # a bad record is shown by its table's lane, once there is one
    return next((event.table for event in events if isinstance(event, ChangeEvent)), None)


def debezium_tables(around: Surroundings) -> Callable[[TopicOffsets, bool], tuple[TableId, ...]]:
    """The one table of a Debezium topic."""
    known = DebeziumTables(around)

    def tables(found: TopicOffsets, _stuck: bool) -> tuple[TableId, ...]:
        table = known.of(found)
        return () if table is None else (table,)

    return tables
