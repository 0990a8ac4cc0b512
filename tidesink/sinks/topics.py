"""What canal-json topics tell of themselves, one memory a topic, shared by the lanes of its tables."""

from __future__ import annotations

import threading

from tidesink.sinks.source import KafkaSource
from tidesink.sinks.state_store import StateStore
from tidesink.sinks.topic_ddl import TopicDdl
from tidesink.sinks.topic_tables import TopicTables


class Topics:
    """The memories of a pipeline's topics, made when asked for."""

    def __init__(self, pipeline: str, source: KafkaSource, store: StateStore) -> None:
        self._pipeline, self._source, self._store = pipeline, source, store
        self._lock = threading.Lock()
        self._ddl: dict[str, TopicDdl] = {}
        self._tables: dict[str, TopicTables] = {}

    def ddl(self, topic: str) -> TopicDdl:
        """The definitions a topic's DDL makes."""
        with self._lock:
            if topic not in self._ddl:
                self._ddl[topic] = TopicDdl(
                    topic, pipeline=self._pipeline, source=self._source, store=self._store
                )
            return self._ddl[topic]

    def tables(self, topic: str) -> TopicTables:
        """The tables a topic carries."""
        with self._lock:
            if topic not in self._tables:
                self._tables[topic] = TopicTables(
                    topic, pipeline=self._pipeline, source=self._source, store=self._store
                )
            return self._tables[topic]
