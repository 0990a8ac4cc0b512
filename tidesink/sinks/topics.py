"""What the lanes of one topic share: what its messages tell of tables, and the reads of several of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from tidesink.sinks.kept_read_spark import KeptRead
from tidesink.sinks.offsets import KafkaOffsets, TopicOffsets
from tidesink.sinks.ranges import OffsetRange, RecordSize
from tidesink.sinks.source import KafkaSource
from tidesink.sinks.state_store import StateStore
from tidesink.sinks.topic_ddl import TopicDdl
from tidesink.sinks.topic_growth import Ends, TopicGrowth
from tidesink.sinks.topic_reads import TopicReads
from tidesink.sinks.topic_tables import TopicTables


class Topics:
    """The memories of a pipeline's topics, made when asked for.

    ``ask`` makes what asks the brokers, of confluent-kafka's properties.
    """

    def __init__(
        self,
        pipeline: str,
        source: KafkaSource,
        store: StateStore,
        *,
        ask: Callable[[Mapping[str, str]], KafkaOffsets] = KafkaOffsets,
    ) -> None:
        self._pipeline, self._source, self._store = pipeline, source, store
        self._ask = ask
        self._offsets: KafkaOffsets | None = None
        self._lock = threading.Lock()
        self._ddl: dict[str, TopicDdl] = {}
        self._growth: dict[str, TopicGrowth] = {}
        self._tables: dict[str, TopicTables] = {}
        self._reads: dict[str, TopicReads[KeptRead]] = {}

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

    def grown(self, found: TopicOffsets) -> tuple[Ends, ...]:
        """Each time that partitions were added to a topic, as far as the pipeline saw it.

        Raises:
            StateStoreError: the store does not answer.
        """
        topic = found.topic
        with self._lock:
            if topic not in self._growth:
                self._growth[topic] = TopicGrowth(topic, pipeline=self._pipeline, store=self._store)
            growth = self._growth[topic]
        return growth.see(found)

    def reads(self, topic: str) -> TopicReads[KeptRead]:
        """What the tables of a topic read together."""
        tables = self.tables(topic)

        def keep(ranges: tuple[OffsetRange, ...], size: RecordSize) -> KeptRead:
            return KeptRead(self._source, tables, ranges, size)

        with self._lock:
            return self._reads.setdefault(topic, TopicReads(keep))

    def ends_now(self, found: TopicOffsets, properties: Callable[[], Mapping[str, str]]) -> TopicOffsets:
        """Where a topic ends by now; as it was found where it is gone, or was made again.

        One client asks for all tables, however often: each has threads and connections of its own.

        Raises:
            SourceUnavailableError: no broker answers.
            SourceError: the brokers refuse us.
        """
        with self._lock:
            if self._offsets is None:
                self._offsets = self._ask(properties())
            offsets = self._offsets
        # librdkafka's clients may be used from several threads: no table waits for another's answer.
        now = offsets.lookup([found.topic]).get(found.topic, found)
        return now if now.topic_id == found.topic_id else found

    def release(self) -> None:
        """Let go of every record kept for several tables."""
        with self._lock:
            reads = list(self._reads.values())
        for one in reads:
            one.release()
