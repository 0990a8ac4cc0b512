"""Discovery of a pipeline's tables: creates one task for each table that the topics contain."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

from tidesink.errors import SourceError, TidesinkError
from tidesink.events import TableId
from tidesink.sinks.decode.topic_ddl import TOPIC_ABSENT
from tidesink.sinks.kafka.offsets import Look, TopicOffsets, furthest, topic_deleted
from tidesink.sinks.runtime.context import WorkerContext
from tidesink.sinks.state.progress import UNKNOWN_SCHEMA
from tidesink.sinks.worker.look_ups import QuietTables, TablesOfTopic, TopicLookUps
from tidesink.sinks.worker.preflight import Goals
from tidesink.sinks.worker.table_task import TableTask

_NO_TOPIC = "The broker has no such topic. Check the spelling of its name in source.topics."


class TableTasks:
    """All tasks of a pipeline, by topic and table. Used by the worker's main thread.

    ``tables_of``: returns the tables that a topic contains. ``asked``: returns the tables for which a user
    requested a snapshot. These tables get a task even if their topic has no record of them.
    """

    def __init__(
        self,
        context: WorkerContext,
        tables_of: TablesOfTopic,
        asked: Callable[[], Iterable[TableId]] = tuple,
    ) -> None:
        self._context = context
        self._tables_of = tables_of
        self._look_ups = tables_of if isinstance(tables_of, TopicLookUps) else None
        self._table_tasks: dict[str, dict[TableId, TableTask]] = defaultdict(dict)
        self._goals = Goals.of(context.config)
        self._quiet = QuietTables(context, asked)
        self._earlier: tuple[tuple[str, TableId], ...] | None = None
        # Topics whose tasks still read at the last ``follow``. The tasks find further tables themselves.
        self._read_on: set[str] = set()
        # The offsets of the topic when a table without records was found. These records are searched first.
        self._wanted: dict[TableId, TopicOffsets] = {}
        # Topics that do not exist yet, and topics that exist or existed, in this run or an earlier one.
        self._absent: dict[str, TopicOffsets] = {}
        self._there: set[str] = set()
        # The topics' offsets when their tables were last looked up.
        self._followed: dict[str, TopicOffsets] = {}

    def __iter__(self) -> Iterator[TableTask]:
        return iter([task for tables in self._table_tasks.values() for task in tables.values()])

    def __len__(self) -> int:
        return sum(map(len, self._table_tasks.values()))

    def missed(self, seen: Look) -> frozenset[str]:
        """Return the topics that would stop a table, because they are missing or too short.

        A topic is missing if a table or the config names it, and the brokers do not list it. It is too short
        if it ends below an offset that a table has read already.
        """
        topics = seen.found
        absent = {topic for topic in self._context.config.fixed_topics if not self._table_tasks.get(topic)}
        absent |= {topic for topic, _ in self._recalled()}
        absent |= {topic for topic, _ in self._quiet.tables() if self._may_come(topic)}
        short = set[str]()
        for topic, tables in self._table_tasks.items():
            offsets = topics.get(topic)
            if offsets is None and any(task.status.awaits_topic for task in tables.values()):
                absent.add(topic)
            elif offsets is not None and not self._is_followed(offsets):
                needing = [task for task in tables.values() if task.status.awaits_topic]
                short |= {topic for task in needing if task.reading.is_short(offsets)}
        return frozenset(absent - topics.keys() - seen.unanswered.keys()) | short

    def follow(self, seen: Look, failed: Mapping[str, SourceError]) -> None:
        """Create a task for each new table in the topics, and for each known table whose topic was deleted.

        ``seen``: the topics' current offsets. ``failed``: the error of each topic that has not answered for
        ``retry.for`` seconds, or whose request was refused.
        """
        topics, unanswered = seen
        left = []
        for topic, table in self._recalled():
            if topic in unanswered:
                left.append((topic, table))
            elif topic not in topics:
                self._add(topic, table)
                self._table_tasks[topic][table].fail(topic_deleted(topic))
        self._earlier = tuple(left)
        self._there |= topics.keys()
        self._read_on.clear()
        for topic, offsets in topics.items():
            if _has_records(offsets):
                self._follow_topic(topic, offsets)
        self._follow_quiet(seen)
        for topic, error in failed.items():
            if self._table_tasks[topic].keys() <= {_unknown(topic)}:
                self._refuse(topic, error)
        for topic in self._context.config.fixed_topics:
            if topic not in topics and topic not in unanswered and not self._table_tasks.get(topic):
                self._refuse(topic, SourceError(_NO_TOPIC, topic=topic))

    def _follow_quiet(self, seen: Look) -> None:
        """Create tasks for tables of the source database that have no record in the topics.

        A topic that the changefeed has not created yet is treated as one without partitions.
        """
        topics, quiet = seen.found, self._quiet.tables()
        for topic, _ in quiet:
            if topic not in self._absent and topic not in seen.unanswered and self._may_come(topic):
                self._absent[topic] = TopicOffsets(topic, "", {})
        for topic, absent in self._absent.items():
            if topic not in self._there and topic not in seen.unanswered:
                topics[topic] = absent
            self._context.topics.tables(topic).absent = topic not in self._there
        for topic, table in quiet:
            if topic not in topics or table in self._table_tasks[topic]:
                continue
            # Only records that existed when the table was found are searched: waiting for later records would
            # never end.
            wanted = self._wanted.get(table)
            if wanted is None or wanted.topic_id != topics[topic].topic_id:
                wanted = self._wanted[table] = topics[topic]
            tables, has_records = self._context.topics.tables(topic), _has_records(topics[topic])
            # If a look-up has just found records of the table, the next ``follow`` creates its task. A topic
            # that was replaced no longer has these records.
            if self._is_read(wanted) and not (has_records and table in tables.known()):
                tables.unmet.add(table)
                self._add(topic, table)

    def _may_come(self, topic: str) -> bool:
        """Return True if a topic may be missing, because the changefeed creates it with the first change.

        A topic that the config names must exist. With cuts, all topics must exist, because a cut waits for
        the watermarks of every topic.
        """
        config = self._context.config
        return config.cuts is None and topic not in self._there and topic not in config.fixed_topics

    def _is_followed(self, offsets: TopicOffsets) -> bool:
        """Return True if the topic got no records since its last ``follow``, and its tasks are idle."""
        tables = self._table_tasks[offsets.topic]
        followed = self._followed.get(offsets.topic) is offsets and bool(tables)
        return followed and all(task.state == "IDLE" for task in tables.values())

    def _is_read(self, offsets: TopicOffsets) -> bool:
        """Return True if tasks and look-ups together have read a topic to the end offsets in ``offsets``."""
        tasks, topics = self._table_tasks[offsets.topic].values(), self._context.topics
        looked = topics.tables(offsets.topic).looked_up_to(offsets)
        read = furthest((looked, *(task.reading.read_up_to(offsets) for task in tasks)))
        return all(
            partition.latest <= max(partition.earliest, read.get(n, 0))
            for n, partition in offsets.partitions.items()
        )

    def newly_stuck(self) -> bool:
        """Return True if all tasks of some topic have stopped (paused or failed) since the last ``follow``.

        Running tasks find further tables of their topic while they read it. Once all have stopped, another
        ``follow`` must search the rest of the topic for tables.
        """
        return any(self._stuck(topic) for topic in self._read_on)

    @property
    def look_ups(self) -> Future[Any] | None:
        """The future of a search for tables whose result was not collected yet, or None."""
        topics = None if self._look_ups is None else self._look_ups.under_way
        return topics if topics is not None else self._quiet.under_way

    def collect(self) -> None:
        """Take over the results of finished look-ups, so that the next ``follow`` uses them."""
        self._quiet.collect()
        if self._look_ups is not None:
            self._look_ups.collect()

    def end_look_ups(self) -> None:
        """Stop starting look-ups of tables, because the run is over."""
        if self._look_ups is not None:
            self._look_ups.end()

    def close(self) -> None:
        """Close every table at the target."""
        for table_task in self:
            table_task.close()

    def _recalled(self) -> tuple[tuple[str, TableId], ...]:
        """Return the topic and name of each table that earlier runs found, until ``follow`` handles it."""
        if self._earlier is None:
            config = self._context.config
            stored = [
                (str(status.details.get("topic", "")), status.table)
                for status in self._context.store.statuses(config.pipeline)
                if not status.details.get(TOPIC_ABSENT)
            ]
            self._earlier = tuple(
                (topic, table) for topic, table in stored if topic and config.reads_topic(topic)
            )
            self._there |= {topic for topic, _ in self._earlier}
        return self._earlier

    def _follow_topic(self, topic: str, offsets: TopicOffsets) -> None:
        tasks = self._table_tasks[topic]
        refused = tasks.get(_unknown(topic))
        if refused is not None and refused.status.cools_down:
            return
        if self._is_followed(offsets):
            self._read_on.add(topic)
            return
        stuck = self._stuck(topic)
        read = furthest(task.reading.read_up_to(offsets) for task in tasks.values()) if stuck else None
        try:
            tables = self._tables_of(offsets, read)
        except TidesinkError as exc:
            self._refuse(topic, exc)
            return
        if not stuck:
            self._read_on.add(topic)
        self._followed[topic] = offsets
        tasks.pop(_unknown(topic), None)
        for table in tables:
            if table not in tasks:
                self._add(topic, table)

    def _stuck(self, topic: str) -> bool:
        """Return True if a topic has tasks, and all of them continue only after a user's intervention."""
        tables = self._table_tasks[topic].values()
        return bool(tables) and all(task.status.is_stuck for task in tables)

    def _add(self, topic: str, table: TableId) -> None:
        table_task = self._table_tasks[topic][table] = TableTask(self._context, topic, table)
        refused = self._goals.refusal(table, topic)
        if refused is not None:
            table_task.refuse(refused)

    def _refuse(self, topic: str, error: TidesinkError) -> None:
        """Report that the tables of a topic cannot be looked up.

        As the tables are not known, the error is reported as the failure of a table with an unknown name. The
        look-up is retried later. Other topics are not affected.
        """
        tasks, name = self._table_tasks[topic], _unknown(topic)
        if name not in tasks or not tasks[name].status.cools_down:
            tasks[name] = TableTask(self._context, topic, name)
        tasks[name].fail(error)


def _unknown(topic: str) -> TableId:
    return TableId(UNKNOWN_SCHEMA, topic)


def _has_records(topic: TopicOffsets) -> bool:
    """Return True if a record was ever written to the topic, even if it has expired."""
    return any(partition.latest > 0 for partition in topic.partitions.values())
