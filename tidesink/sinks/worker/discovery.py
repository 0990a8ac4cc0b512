"""Which tables the topics of a pipeline hold: one task for each, made when its topic is first seen."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, NamedTuple

from tidesink.codecs import CODECS, open_codec
from tidesink.config.models import topic_tables
from tidesink.errors import ConfigError, DecodeError, SchemaNotFoundError, SourceError, TidesinkError
from tidesink.events import ChangeEvent, Message, TableId
from tidesink.sinks.batch.context import WorkerContext
from tidesink.sinks.kafka.offsets import Look, OffsetRange, TopicOffsets, furthest, growing_parts, topic_gone
from tidesink.sinks.spark.session import start_thread
from tidesink.sinks.state.progress import UNKNOWN_SCHEMA, txn_version
from tidesink.sinks.worker.preflight import Goals
from tidesink.sinks.worker.table_task import TableTask

if TYPE_CHECKING:
    from tidesink.codecs.base import Codec


# A topic is looked into so long at a time, and then those that wait for it; once it was read, after a pause.
_LOOK_UP_SECONDS: Final = 10.0
_AGAIN_SECONDS: Final = 5.0
# So many records of a topic are looked at first. Each comes to the driver: the first row says it.
_FIRST_RECORDS: Final = 100


class FirstRowTables:
    """The table of each topic, once it is known. May be used from several threads."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._tables: dict[str, TableId] = {}
        self._looked: dict[str, tuple[str, dict[int, int]]] = {}

    def of(self, found: TopicOffsets) -> TableId | None:
        """The table of a topic; None where no record of it is of a row.

        Raises:
            SourceError: Kafka refuses, or does not answer.
            RegistryError: the registry refuses, or does not answer.
        """
        named = self._context.config.named_table_of_topic(found.topic)
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
        found = (_table_of(codec, message) for message in self._context.source.messages_here(ranges))
        return next((table for table in found if table is not None), None)

    def _codec(self) -> Codec:
        source = self._context.config.source
        return open_codec(source.protocol, options=source.codec_options(), registry=self._context.registry)


def _table_of(codec: Codec, message: Message) -> TableId | None:
    try:
        events = codec.decode(message)
    except (DecodeError, SchemaNotFoundError):
        return None  # a bad record is shown by its table's task, once there is one
    return next((event.table for event in events if isinstance(event, ChangeEvent)), None)


def first_row_tables(context: WorkerContext) -> TablesOfTopic:
    """The one table of a topic, which its first row names."""
    known = FirstRowTables(context)

    def tables(found: TopicOffsets, _read: Mapping[int, int] | None) -> tuple[TableId, ...]:
        table = known.of(found)
        return () if table is None else (table,)

    return tables


# The tables of a topic; where none of its tasks reads on, the offsets up to which they have read it.
TablesOfTopic = Callable[[TopicOffsets, Mapping[int, int] | None], tuple[TableId, ...]]

_NO_TOPIC = "the broker has no such topic: is it spelt as in the changefeed?"


class TableTasks:
    """Every task of a pipeline, by topic and table."""

    def __init__(self, context: WorkerContext, tables_of: TablesOfTopic) -> None:
        self._context = context
        self._tables_of = tables_of
        self._table_tasks: dict[str, dict[TableId, TableTask]] = defaultdict(dict)
        self._owners: dict[TableId, str] = {}
        self._goals = Goals(context.config.destination)
        self._earlier: tuple[tuple[str, TableId], ...] | None = None
        # Topics that were left to their tasks when they were last followed.
        self._read_on: set[str] = set()
        # What topics were when they were last followed.
        self._followed: dict[str, TopicOffsets] = {}

    def __iter__(self) -> Iterator[TableTask]:
        return iter([one for tables in self._table_tasks.values() for one in tables.values()])

    def __len__(self) -> int:
        return sum(map(len, self._table_tasks.values()))

    def missed(self, seen: Look) -> frozenset[str]:
        """The topics whose absence, or that of what was read of them, stops a table now."""
        found = seen.found
        absent = {topic for topic in self._context.config.fixed_topics if not self._table_tasks.get(topic)}
        absent |= {topic for topic, _ in self._recalled()}
        short = set[str]()
        for topic, tables in self._table_tasks.items():
            offsets = found.get(topic)
            if offsets is None and any(one.awaits_topic for one in tables.values()):
                absent.add(topic)
            elif offsets is not None and not self._is_followed(offsets):
                short |= {topic for one in tables.values() if one.is_short(offsets)}
        return frozenset(absent - found.keys() - seen.unanswered.keys()) | short

    def follow(self, seen: Look, failed: Mapping[str, SourceError]) -> None:
        """Make tasks for topics, and tables in them, that are new, and for tables whose topic is gone.

        ``failed``: the topics without an answer that are waited for no longer.
        """
        found, unanswered = seen
        left = []
        for topic, table in self._recalled():
            if topic in unanswered:
                left.append((topic, table))
            elif topic not in found:
                self._add(topic, table)
                self._table_tasks[topic][table].fail(topic_gone(topic))
        self._earlier = tuple(left)
        self._read_on.clear()
        for topic, offsets in found.items():
            if any(at.latest > 0 for at in offsets.partitions.values()):
                self._follow_topic(topic, offsets)
        for topic, error in failed.items():
            if self._table_tasks[topic].keys() <= {_unknown(topic)}:
                self._refuse(topic, error)
        for topic in self._context.config.fixed_topics:
            if topic not in found and topic not in unanswered and not self._table_tasks.get(topic):
                self._refuse(topic, SourceError(_NO_TOPIC, topic=topic))

    def _is_followed(self, offsets: TopicOffsets) -> bool:
        """Whether nothing came to a topic since it was followed, and its tasks found nothing to do in it."""
        tables = self._table_tasks[offsets.topic]
        followed = self._followed.get(offsets.topic) is offsets and bool(tables)
        return followed and all(one.state == "IDLE" for one in tables.values())

    def newly_stuck(self) -> bool:
        """Whether a topic that was left to its tasks when it was last followed has none that reads on by now.

        Nobody would meet its other tables: it is to be followed once more, which looks into it to its end.
        """
        return any(self._stuck(topic) for topic in self._read_on)

    @property
    def look_ups(self) -> Future[None] | None:
        """Look-ups of topics that were not collected yet: tables may come of them."""
        return self._tables_of.under_way if isinstance(self._tables_of, CanalTables) else None

    def collect(self) -> None:
        """Know that look-ups ended: the next ``follow`` takes what they found."""
        if isinstance(self._tables_of, CanalTables):
            self._tables_of.collect()

    def end_look_ups(self) -> None:
        """Begin no other look-up: the run is over."""
        if isinstance(self._tables_of, CanalTables):
            self._tables_of.end()

    def close(self) -> None:
        """Let go of every table."""
        for table_task in self:
            table_task.close()

    def _recalled(self) -> tuple[tuple[str, TableId], ...]:
        """Tables of earlier runs and their topics, until they were followed once."""
        if self._earlier is None:
            config = self._context.config
            known = [
                (str(status.details.get("topic", "")), status.table)
                for status in self._context.store.statuses(config.pipeline)
            ]
            self._earlier = tuple(
                (topic, table) for topic, table in known if topic and config.reads_topic(topic)
            )
        return self._earlier

    def _follow_topic(self, topic: str, offsets: TopicOffsets) -> None:
        known = self._table_tasks[topic]
        refused = known.get(_unknown(topic))
        if refused is not None and refused.cools_down:
            return
        if self._is_followed(offsets):
            self._read_on.add(topic)
            return
        stuck = self._stuck(topic)
        read = furthest(one.read_up_to(offsets) for one in known.values()) if stuck else None
        try:
            tables = self._tables_of(offsets, read)
        except TidesinkError as exc:
            self._refuse(topic, exc)
            return
        if not stuck:
            self._read_on.add(topic)
        self._followed[topic] = offsets
        known.pop(_unknown(topic), None)
        for table in tables:
            if table not in known:
                self._add(topic, table)

    def _stuck(self, topic: str) -> bool:
        """Whether a topic has tasks, and each waits before a record or for somebody: no failure passes."""
        tables = self._table_tasks[topic].values()
        return bool(tables) and all(one.is_stuck for one in tables)

    def _add(self, topic: str, table: TableId) -> None:
        table_task = self._table_tasks[topic][table] = TableTask(self._context, topic, table)
        owner = self._owners.setdefault(table, topic)
        if owner != topic:
            table_task.refuse(
                ConfigError(
                    f"{table} comes in two topics, {owner} and {topic}, whose order nobody knows: narrow "
                    "source.topics to one of them",
                    table=str(table),
                )
            )
        refused = self._goals.refusal(table)
        if refused is not None:
            table_task.refuse(refused)

    def _refuse(self, topic: str, error: TidesinkError) -> None:
        """Show a topic whose tables cannot be known; it is looked at again, and stops no other."""
        known, name = self._table_tasks[topic], _unknown(topic)
        if name not in known or not known[name].cools_down:
            known[name] = TableTask(self._context, topic, name)
        known[name].fail(error)


def _unknown(topic: str) -> TableId:
    return TableId(UNKNOWN_SCHEMA, topic)


def avro_tables(context: WorkerContext) -> TablesOfTopic:
    """The one table of a flat-avro topic, by config or topic rule."""
    assert context.registry is not None  # noqa: S101  (flat-avro without a registry is refused before)
    table_of = topic_tables(context.config, context.registry)

    def tables(found: TopicOffsets, _read: Mapping[int, int] | None) -> tuple[TableId, ...]:
        table = table_of(found.topic)
        return () if table is None else (table,)

    return tables


class _LookUp(NamedTuple):
    """A topic to be looked into; ``read`` as in ``TablesOfTopic``."""

    found: TopicOffsets
    read: Mapping[int, int] | None


class CanalTables:
    """The tables that a canal-json topic's messages name; called by one thread.

    A topic of which no table is known, or none reads on, is looked into in a thread beside the turns, one
    topic after the other and each for a while. What was found shows when the topic is asked for again.
    """

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._wanted: dict[str, _LookUp] = {}
        self._at_work: Future[None] | None = None
        self._running = False
        self._looking: str | None = None
        self._ended = False
        # When a topic is looked into again, and what failed in one.
        self._again: dict[str, float] = {}
        self._failed: dict[str, TidesinkError] = {}

    def __call__(self, found: TopicOffsets, read: Mapping[int, int] | None) -> tuple[TableId, ...]:
        """The tables known by now; as ``TopicTables.look`` raises, after a look-up that failed."""
        topic = found.topic
        known = self._context.topics.tables(topic).known()
        with self._lock:
            if topic == self._looking or (known and read is None):
                return known
            if time.monotonic() >= self._again.get(topic, 0.0):
                self._wanted[topic] = _LookUp(found, read)
                self._failed.pop(topic, None)
                self._begin()
            elif topic in self._failed:
                raise self._failed[topic]
        return known

    @property
    def under_way(self) -> Future[None] | None:
        """Look-ups that were not collected yet: tables may come of them."""
        return self._at_work

    def collect(self) -> None:
        """Know that look-ups ended; what they found is given from now on.

        Raises: what no topic can cause.
        """
        if self._at_work is not None and self._at_work.done():
            self._at_work.result()
            self._at_work = None

    def end(self) -> None:
        """Begin no other look-up; the one under way ends when its time is over."""
        self._ended = True

    def _begin(self) -> None:
        if not self._running:
            self._running = True
            self._at_work = start_thread(self._context.spark, self._work, name="tables of topics")

    def _work(self) -> None:
        while (wanted := self._next()) is not None:
            topic = wanted.found.topic
            try:
                done, error = self._look(wanted), None
            except TidesinkError as exc:
                done, error = True, exc
            except Exception:
                if not self._context.stop:  # which cancels Spark jobs
                    raise
                continue
            with self._lock:
                if not done:
                    self._wanted[topic] = wanted
                elif error is not None:
                    self._failed[topic] = error
                    self._again[topic] = time.monotonic() + self._context.config.retry.for_
                elif wanted.read is not None or not self._context.topics.tables(topic).known():
                    self._again[topic] = time.monotonic() + _AGAIN_SECONDS

    def _next(self) -> _LookUp | None:
        with self._lock:
            if not self._wanted or self._ended or self._context.stop:
                self._running, self._looking = False, None
                return None
            self._looking = next(iter(self._wanted))
            return self._wanted.pop(self._looking)

    def _look(self, wanted: _LookUp) -> bool:
        context, ends = self._context, time.monotonic() + _LOOK_UP_SECONDS
        found, read = wanted
        return context.topics.tables(found.topic).look(
            context.spark,
            found,
            goes_on=lambda: not context.stop and time.monotonic() < ends,
            read=read if read is None else furthest((read, *self._recorded(found))),
        )

    def _recorded(self, found: TopicOffsets) -> Iterator[Mapping[int, int]]:
        """How far earlier runs read the topic: they took note of every table that they met."""
        store, pipeline = self._context.store, self._context.config.pipeline
        for table in self._context.topics.tables(found.topic).known():
            status = store.status_of(pipeline, table)
            if status is None:
                continue
            progress = store.progress_of(pipeline, table, txn_version(status.epoch, status.batch))
            at = progress.topics.get(found.topic) if progress is not None else None
            if at is not None and at.topic_id == found.topic_id:
                yield {number: one.next_offset for number, one in at.partitions.items()}


def tables_of(context: WorkerContext) -> TablesOfTopic:
    """How a pipeline's protocol tells the tables of a topic."""
    protocol = context.config.source.protocol
    if CODECS[protocol].shares_topics:
        return CanalTables(context)
    return avro_tables(context) if protocol == "flat-avro" else first_row_tables(context)
