"""Which tables a canal-json topic carries: what its messages say, since there a table is what they say.

A topic is looked into when it is first seen; a lane that meets another table's messages tells of them
here, and that table gets a lane of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from tidesink.errors import ConfigError
from tidesink.events import TableId
from tidesink.sinks.offsets import TopicOffsets
from tidesink.sinks.ranges import OffsetRange, growing_parts
from tidesink.sinks.records_spark import compression_in, named_tables
from tidesink.sinks.source import KafkaSource, translated_read_errors
from tidesink.sinks.state_store import StateStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KIND: Final = "topic-tables"
# So many records of a new topic are looked into at first; tables that come later are met by the lanes.
_FIRST_RECORDS: Final = 20_000


class TopicTables:
    """The tables of one topic that are known. Shared by the lanes of its tables."""

    def __init__(self, topic: str, *, pipeline: str, source: KafkaSource, store: StateStore) -> None:
        self._topic = topic
        self._name = f"{pipeline}/{topic}"
        self._source = source
        self._store = store
        self._lock = threading.Lock()
        self._tables: dict[TableId, None] = {}
        self._loaded = False
        self._looked_at: str | None = None
        self._looked: dict[int, int] = {}

    def known(self) -> tuple[TableId, ...]:
        """The tables met so far, in this run or an earlier one.

        Raises:
            StateStoreError: the store does not answer.
        """
        with self._lock:
            if not self._loaded:
                kept = self._store.load_document(_KIND, self._name) or []
                self._tables.update((TableId(*table), None) for table in kept)
                self._loaded = True
            return tuple(self._tables)

    def add(self, tables: Iterable[TableId]) -> None:
        """Take note of tables.

        Raises:
            StateStoreError: the store does not answer.
        """
        new = [table for table in tables if table not in self.known()]
        if new:
            with self._lock:
                # Kept before it is known here: nobody would tell of a table again that is known already.
                tables = self._tables | dict.fromkeys(new)
                self._store.save_document(_KIND, self._name, [list(table) for table in tables])
                self._tables = tables

    def look(self, session: SparkSession, found: TopicOffsets, *, stuck: bool = False) -> tuple[TableId, ...]:
        """The tables of a topic; where none is known, it is looked into until a row names one.

        Lanes meet the other tables as they read. ``stuck``: none of them reads on, so that the topic is
        looked into to its end. What was looked into once, watermarks say, is not looked into again.

        Raises:
            SourceError: Kafka refuses, or does not answer.
            StateStoreError: the store does not answer.
            ConfigError: nothing names a table, since the records are compressed and nobody said so.
        """
        if self._looked_at != found.topic_id:
            self._looked_at, self._looked = found.topic_id, {}
        left = [
            OffsetRange(self._topic, n, max(at.earliest, self._looked.get(n, 0)), at.latest)
            for n, at in found.partitions.items()
        ]
        for part in growing_parts(left, _FIRST_RECORDS):
            if self.known() and not stuck:
                break
            self.census(session, part)
            self._looked.update((one.partition, one.end) for one in part)
        return self.known()

    def census(self, session: SparkSession, ranges: Sequence[OffsetRange]) -> None:
        """Take note of every table with a row in the ranges.

        Raises: as ``look``.
        """
        if not any(part.records for part in ranges):
            return
        raw = self._source.frame(session, ranges)
        with translated_read_errors(self._topic):
            tables = named_tables(raw)
            kind = "none" if tables or self.known() else compression_in(raw)
        if kind != "none":
            raise ConfigError(
                f"no record names a table, and the records are compressed ({kind}): set "
                f"source.large-message-handle-compression: {kind}, as the changefeed has it",
                topic=self._topic,
            )
        self.add(tables)
