"""Which tables a canal-json topic carries: what its messages say, since there a table is what they say.

A topic is looked into when it is first seen; a lane that meets another table's messages tells of them
here, and that table gets a lane of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from tidesink.change import TableId
from tidesink.sinks.offsets import TopicOffsets
from tidesink.sinks.ranges import OffsetRange, plan_ranges
from tidesink.sinks.records_spark import named_tables
from tidesink.sinks.source import KafkaSource, translated_read_errors
from tidesink.sinks.state_store import StateStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KIND: Final = "topic-tables"
# So many records of a new topic are looked into; tables that come later are met by the lanes.
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
                self._tables.update(dict.fromkeys(new))
                self._store.save_document(_KIND, self._name, [list(table) for table in self._tables])

    def look(self, session: SparkSession, found: TopicOffsets) -> tuple[TableId, ...]:
        """The tables of a topic; where none is known, its first records are looked into.

        Raises:
            SourceError: Kafka refuses, or does not answer.
            StateStoreError: the store does not answer.
        """
        if not self.known():
            everything = [OffsetRange(self._topic, n, *at) for n, at in found.partitions.items()]
            self.census(session, plan_ranges(everything, max_records=_FIRST_RECORDS))
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
        self.add(tables)
