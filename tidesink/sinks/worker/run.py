"""The worker's main loop: looks up the topics' end offsets, starts batches of tables, and ends cleanly.

Each pass of the loop looks up the end offsets of all topics with one request, and starts a batch for tables
that have records to read. A table without new records costs no Spark job. Up to ``batch.max-tables`` batches
run in parallel, each in its table's own Spark session.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Final, Literal
from uuid import uuid4

import structlog

from tidesink.config import Config
from tidesink.config.models import idle_patterns
from tidesink.errors import SourceError, SparkEndedError, StopRequestedError, TidesinkError
from tidesink.events import TableId
from tidesink.schema_registry import SchemaRegistry
from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.cuts.bounds import open_bounds
from tidesink.sinks.cuts.publishing import Cuts
from tidesink.sinks.kafka.fetch import KafkaFetch, close_idle_consumers
from tidesink.sinks.kafka.offsets import KafkaOffsets, Look, TopicOffsets
from tidesink.sinks.kafka.watermarks import Standing, WatermarkFollower, watermark_reader
from tidesink.sinks.letters.topic import dead_letters_of
from tidesink.sinks.runtime.context import (
    Failpoints,
    RetryPolicy,
    StopFlag,
    WorkerContext,
    signals_kept,
    stop_on_signals,
)
from tidesink.sinks.runtime.control import Requests, TableControl
from tidesink.sinks.runtime.observers import (
    Heartbeat,
    Listener,
    Listeners,
    RunReport,
    Turned,
    Waiting,
)
from tidesink.sinks.runtime.shared_reads import Topics
from tidesink.sinks.runtime.status_queue import PAUSE_SECONDS, StatusQueue
from tidesink.sinks.spark.engine import SparkEngine, threads_tagged
from tidesink.sinks.spark.session import check_spark_settings, session_of, tasks_of
from tidesink.sinks.state.failures import Failures
from tidesink.sinks.state.progress import UNKNOWN_SCHEMA
from tidesink.sinks.state.sql_store import SqlStateStore, open_state_store
from tidesink.sinks.targets import target_module
from tidesink.sinks.worker.discovery import TableTasks
from tidesink.sinks.worker.look_ups import TopicLookUps
from tidesink.sinks.worker.slots import Slots
from tidesink.sinks.worker.table_task import TableTask
from tidesink.sinks.worker.topic_ends import TopicEnds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Until = Literal["drained"]

_log = structlog.get_logger("tidesink.worker")
# Seconds that a worker waits for running batches after a stop, before it cancels their Spark jobs.
GRACE_SECONDS: Final = 20.0
_LOOK_SECONDS: Final = 0.2
# Maximum number of opening tables that a progress line names.
_NAMED: Final = 5
# Maximum number of seconds between two of these lines.
_MOST_PAUSE: Final = 30.0
# The JVM's connections break a moment before its process ends.
_JVM_END_SECONDS: Final = 2.0
# The input that decides if a task has work: topic offsets, users' requests, bound, and end offsets.
_Settled = tuple[TopicOffsets | None, TableControl, int | None, Mapping[int, int] | None]
# Modules that the tasks of a snapshot import, in addition to those of every batch.
_SNAPSHOT_MODULES: Final = (
    "tidesink.sinks.targets.lake.files",
    "tidesink.sinks.batch.source_rows",
    "sqlalchemy",
)


def run(
    config: Config,
    *,
    until: Until | None = None,
    batches: int | None = None,
    listeners: Sequence[Listener] = (),
    stop: StopFlag | None = None,
) -> RunReport:
    """Run a worker for a pipeline, and return a report on each table.

    Args:
        config: The pipeline's config.
        until: ``drained`` to end once all records that the topics hold now are applied; None to run until
            stopped.
        batches: Number of batches per table after which the run ends, or None.
        listeners: Receive the worker's events.
        stop: Ends the run when it is set. In the main thread, SIGINT and SIGTERM do the same.

    Raises:
        ConfigError: the config cannot be used.
        SourceUnavailableError: Kafka did not answer for ``retry.for`` seconds at the start.
        TidesinkError: Spark, the state store or the target could not be opened.
    """
    flag = stop if stop is not None else StopFlag()
    # Signals are handled until Spark is stopped: a third Ctrl-C must not interrupt the stop of Spark.
    with signals_kept(), assembled(config, listeners, flag) as context:
        worker = Worker(context, until=until, batches=batches)
        stop_on_signals(flag)
        return worker.run()


def opening_line(opening: Sequence[TableId], opened: int, tables: int) -> str:
    """Return a progress line like "opening 3 of 8 tables: shop.orders".

    ``opening``: the tables that are being opened now; the first ``_NAMED`` are named. ``opened``: number of
    tables that are open already. ``tables``: number of all tables.
    """
    names = ", ".join(map(str, opening[:_NAMED])) + (", …" if len(opening) > _NAMED else "")
    return f"opening {opened + len(opening)} of {tables} tables: {names}"


class Pace:
    """Decides when the next progress line is due: after some seconds, then after twice the time, and so on.

    ``clock``: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """Begin to wait for the first line now."""
        self._last, self._lines = self._clock(), 0

    def is_due(self, first: float) -> bool:
        """Return True if a line is due. ``first``: seconds before the first line."""
        return self._clock() - self._last >= min(first * (1 << self._lines), _MOST_PAUSE)

    def told(self) -> None:
        """Record that a line was written."""
        self._last = self._clock()
        # The limit is reached soon, and the power of two must not grow without end.
        self._lines = min(self._lines + 1, 10)


class Worker:
    """One run of a worker over all tables of a pipeline.

    ``opening_seconds``: seconds before the first progress line while tables are opened (``opening_line``).
    """

    opening_seconds = 3.0

    def __init__(
        self,
        context: WorkerContext,
        *,
        until: Until | None = None,
        batches: int | None = None,
        offsets: KafkaOffsets | None = None,
    ) -> None:
        """Create a worker that has opened no table yet.

        ``batches``: number of batches after which each table stops; None for no limit. ``offsets``: the
        client that looks up topics' offsets; None for the one in ``context``.
        """
        self._ends = until == "drained" or batches is not None
        self._statuses = StatusQueue(context.store)
        self._context = context = replace(context, ends=self._ends, statuses=self._statuses)
        self._job_tag = f"tidesink-{uuid4()}"
        self._batches = batches
        self._heartbeat = context.heartbeat or Heartbeat(
            context.store, context.config.pipeline, failures=context.failures
        )
        self._requests = Requests(context.store, context.config.pipeline)
        self._table_tasks = TableTasks(context, TopicLookUps.of(context), self._requests.loaded)
        self._slots = Slots(context)
        self._topic_ends = TopicEnds(context, offsets or context.brokers, self._table_tasks)
        # Tasks that had no work when they were last asked, with the input of that answer.
        self._settled: dict[TableTask, _Settled] = {}
        self._reported_patterns = False
        self._watermarks = WatermarkFollower(
            context.config.source.confluent_properties,
            watermark_of := watermark_reader(context.config.source, context.registry),
            ends=self._ends,
        )
        cuts = context.config.cuts
        self._cuts = None
        if cuts is not None:
            bounds = open_bounds(context, cuts, watermark_of)
            self._cuts = Cuts(context, cuts, bounds)
        # True if tables had records to read in the last pass, and no slot was free.
        self._is_behind = False
        self._abandoned = False
        self._pace = Pace()

    def run(self) -> RunReport:
        """Run the main loop until the run ends, and return a report on each table."""
        started = time.monotonic()
        self._pace.begin()
        self._context.listeners.hear(Waiting("asking Kafka for the topics' end offsets"))
        try:
            with threads_tagged(self._job_tag):
                self._work()
            for table_task in self._table_tasks:
                table_task.rest()
        finally:
            self._tell_end()
        reports = tuple(table_task.report() for table_task in self._table_tasks)
        self._table_tasks.close()
        seconds = time.monotonic() - started
        stop = self._context.stop
        return RunReport(
            self._context.config.pipeline,
            reports,
            interrupted=bool(stop),
            terminated=stop.signal == signal.SIGTERM,
            abandoned=self._abandoned,
            seconds=seconds,
        )

    def _work(self) -> None:
        try:
            while not self._context.stop and self._turn():
                pass
        except StopRequestedError:
            _log.debug("stopped while waiting")
        except Exception:
            # If the JVM has ended, report that instead of its consequences.
            self._check_jvm(_JVM_END_SECONDS)
            raise
        finally:
            self._finish()
            self._watermarks.close()
            if self._cuts is not None:
                self._cuts.close()
            self._context.topics.release()

    def _save_statuses(self, *, all_now: bool = False) -> None:
        """Save the statuses that wait (``StatusQueue.save``). A table of another worker becomes FAILING."""
        try:
            refused = self._statuses.save(all_now=all_now)
        except TidesinkError as exc:
            _log.warning("statuses not saved", error=str(exc))
            return
        tables = {status.table: status for status in refused}
        for table_task in [task for task in self._table_tasks if task.table in tables]:
            must_stop = table_task.status.takeover.note(tables[table_task.table])
            if must_stop and table_task not in self._slots.busy.values():
                table_task.fail(table_task.status.takeover.error())

    def _tell_end(self) -> None:
        """Record in the state store that the worker has ended, so that no status announces a retry."""
        try:
            self._context.retry().call(lambda: self._statuses.save(all_now=True))
        except (TidesinkError, StopRequestedError) as exc:
            _log.warning("statuses not saved", error=str(exc))
        self._context.failures.ended()
        for table_task in self._table_tasks:
            table_task.status.save_failure()
        self._heartbeat.end()

    def _check_jvm(self, seconds: float = 0.0) -> None:
        """Check that Spark's JVM is running. If it has ended, stop all batches.

        ``seconds``: how long to wait for the end of the JVM. Its connections break a moment before it ends.

        Raises:
            SparkEndedError: the JVM has ended.
        """
        try:
            self._context.spark.check(seconds)
        except SparkEndedError:
            self._context.stop.set()
            raise

    def cancel(self) -> None:
        """Cancel the Spark jobs of running batches and look-ups.

        A cancelled batch has either committed already, or commits nothing and is repeated by the next worker.
        """
        self._context.spark.cancel(self._job_tag)

    def _turn(self) -> bool:
        """Run one pass of the loop: look up offsets and start batches. Return False when the run is over.

        Another pass is needed before the run may end if a batch ended after the offsets were looked up. It is
        also needed if all tables of a topic have stopped, because then only the next pass searches the topic
        for further tables.
        """
        self._check_jvm()
        self._context.listeners.hear(Turned())
        self._requests.look()
        self._table_tasks.collect()
        self._slots.collect()
        was_behind = self._is_behind
        seen = self._topic_ends.look(recent=was_behind)
        # Other tables may use the free slots at once. Only the end of the run must wait for another pass.
        ended = self._slots.collect()
        idle = self._idle()
        self._go_on(idle, seen)
        self._tell_opening()
        ended = self._give_waiting_turns(seen) or ended
        self._save_statuses()
        moved = self._moves_bound(seen)
        if under_way := self._under_way():
            pause = self._context.config.batch.poll_interval
            if self._statuses.has_waiting:
                pause = min(pause, PAUSE_SECONDS)
            wait(under_way, timeout=pause, return_when=FIRST_COMPLETED)
            return True
        if moved:
            return True
        # If Kafka does not answer, the tables of every topic stop: another pass would find nothing new.
        is_outdated = ended or was_behind
        if not isinstance(seen, SourceError) and (is_outdated or self._table_tasks.newly_stuck()):
            return True
        return self._rest(idle)

    def _tell_opening(self) -> None:
        """Send a progress line now and then while tables are opened or topics are searched."""
        if not self._pace.is_due(self.opening_seconds):
            return
        tables = list(self._table_tasks)
        opening = [table_task.table for table_task in self._slots.busy.values() if table_task.is_opening]
        if opening:
            done = sum(table_task.opened.was_opened for table_task in tables)
            what = opening_line(opening, done, len(tables))
        elif not tables and self._table_tasks.look_ups is not None:
            what = "looking up which tables the topics hold"
        else:
            return
        self._pace.told()
        self._context.listeners.hear(Waiting(what))

    def _moves_bound(self, seen: Look | SourceError) -> bool:
        """Publish a cut if all tables have reached its bound. Return True if the next bound was chosen.

        With a new bound, tables that waited at the old one have records to read.
        """
        if self._cuts is None or isinstance(seen, SourceError):
            return False
        try:
            return self._cuts.turn(list(self._table_tasks), list(self._slots.busy.values()), seen)
        except TidesinkError as exc:
            # The tables wait at their bound, and the next pass tries again.
            _log.warning("cuts cannot be looked at", error=str(exc))
            return False

    def _go_on(self, idle: list[TableTask], seen: Look | SourceError) -> None:
        """Pass users' requests to idle tasks, and start a batch for each task that has records to read.

        ``idle``: tasks without a running batch. ``seen``: the current offsets, or the error of their look-up.
        """
        if isinstance(seen, SourceError):
            for table_task in idle:
                table_task.apply_control(self._requests.of(table_task.table))
                # A running task notices by itself that Kafka does not answer.
                table_task.fail(seen)
            return
        if self._cuts is not None:
            for table_task in idle:
                self._cuts.lead(table_task)
        self._note_ends(idle, seen)
        quiet = self._quiet(idle, seen)
        idle = [table_task for table_task in idle if not self._is_settled(table_task, seen)]
        for table_task in idle:
            table_task.apply_control(self._requests.of(table_task.table))
            error = self._topic_ends.failed.get(table_task.topic)
            if error is not None:
                table_task.fail(error)
        self._give_turns([task for task in idle if task.topic not in seen.unanswered], seen, quiet)

    def _note_ends(self, idle: list[TableTask], seen: Look) -> None:
        """Pass the current offsets of its topic to each task. If their look-up failed, pass the error.

        A task with a running batch gets the offsets too, for the lag in its status, but not the error.
        """
        for table_task in self._table_tasks:
            table_task.reading.seen = seen.found.get(table_task.topic, table_task.reading.seen)
        for table_task in idle:
            error = seen.unanswered.get(table_task.topic)
            if error is not None and table_task.topic not in self._topic_ends.failed:
                table_task.status.await_topic(error, self._context.config.batch.poll_interval)

    def _quiet(self, idle: list[TableTask], seen: Look) -> set[TableTask]:
        """Return the tasks that need no batch: their topics have no new records, or only watermarks."""
        followed = dict[TableTask, Standing]()
        for table_task in idle:
            offsets = seen.found.get(table_task.topic)
            starts = table_task.follows_from(offsets)
            if offsets is not None and starts:
                followed[table_task] = Standing(offsets, starts)
        topics = dict[str, Standing]()
        for standing in followed.values():
            topic = standing.found.topic
            topics[topic] = standing.joined(topics.get(topic, standing))
        alone = self._watermarks.look(topics)
        for table_task in followed:
            table_task.reading.marks = self._watermarks.marks(table_task.topic)
        return {table_task for table_task in followed if table_task.topic in alone}

    def _is_settled(self, table_task: TableTask, seen: Look) -> bool:
        """Return True if the task had no work when it was last checked, and nothing changed since then."""
        settled = self._settled.get(table_task)
        return (
            settled is not None
            and table_task.state == "IDLE"
            and not table_task.status.is_failing
            and not (table_task.reading.owes_commit or table_task.has_ddl or table_task.looks_again)
            and settled[0] is seen.found.get(table_task.topic)
            and settled[1] == self._requests.of(table_task.table)
            and settled[2:] == (table_task.reading.bound, table_task.reading.ends)
        )

    def _rest(self, idle: list[TableTask]) -> bool:
        """Set all tables to IDLE, because no batch is running or due, and wait for the poll interval.

        Returns False if the run is over, or was stopped while waiting.
        """
        for table_task in idle:
            table_task.rest()
        self._save_statuses(all_now=True)
        self._tell_idle_patterns()
        # A run until ``drained`` ends when each topic has answered, or has failed for ``retry.for`` seconds.
        ends = self._ends and self._topic_ends.all_answered
        return not ends and not self._context.stop.wait(self._context.config.batch.poll_interval)

    def _tell_idle_patterns(self) -> None:
        """Log the table patterns of the config that match no table, once when no records are left to read."""
        tables = [
            table_task.table for table_task in self._table_tasks if table_task.table.schema != UNKNOWN_SCHEMA
        ]
        if self._reported_patterns or not tables:
            return
        self._reported_patterns = True
        for warning in idle_patterns(self._context.config, tables):
            _log.warning("pattern fits no table", warning=warning)

    def _give_turns(self, idle: list[TableTask], seen: Look, quiet: set[TableTask]) -> None:
        topics = seen.found
        ready, due = list[TableTask](), list[TableTask]()
        for table_task in idle:
            self._settled.pop(table_task, None)
            table_task.look(topics.get(table_task.topic))
            if not self._may_work(table_task, seen):
                table_task.status.recover()
                asked = self._requests.of(table_task.table)
                limits = table_task.reading.bound, table_task.reading.ends
                self._settled[table_task] = topics.get(table_task.topic), asked, *limits
            elif table_task not in quiet:
                ready.append(table_task)
            elif self._slots.is_due(table_task) or table_task.reading.owes_commit:
                due.append(table_task)
            else:
                table_task.rest()
        self._slots.wait_for(ready, due)
        self._slots.start(topics)

    def _give_waiting_turns(self, seen: Look | SourceError) -> bool:
        """Give turns to the tables that wait for a slot, as batches end. Return True if a batch has ended.

        A pass looks at every table, so it costs more than a small batch if there are many. Tables therefore
        take their turns by the order of one pass, until that pass is ``batch.poll_interval`` old. Then the
        next pass passes on requests and new offsets.
        """
        until, ended = time.monotonic() + self._context.config.batch.poll_interval, False
        # A cut compares the tables' progress with offsets that are looked up after it.
        while self._slots.waiting and self._cuts is None and not isinstance(seen, SourceError):
            left = until - time.monotonic()
            # If only large batches wait while a slot is free, small ones must not wait for them.
            if left <= 0 or self._slots.has_room:
                break
            wait(self._slots.busy, timeout=min(left, _LOOK_SECONDS), return_when=FIRST_COMPLETED)
            if self._context.stop:
                break
            ended = self._slots.collect() or ended
            self._slots.start(seen.found)
            self._save_statuses()
        self._is_behind = bool(self._slots.waiting) and self._cuts is None
        self._slots.waiting.clear()
        return ended

    def _idle(self) -> list[TableTask]:
        busy = {id(table_task) for table_task in self._slots.busy.values()}
        return [table_task for table_task in self._table_tasks if id(table_task) not in busy]

    def _may_work(self, table_task: TableTask, seen: Look) -> bool:
        offsets = seen.found.get(table_task.topic)
        if offsets is None and table_task.topic not in self._topic_ends.missed:
            return False
        if not self._ends:
            table_task.wake()
        if self._batches is not None and table_task.batches >= self._batches:
            table_task.leave()
            return False
        return table_task.has_work(offsets)

    def _under_way(self) -> set[Future[None]]:
        """Return the futures of running batches and look-ups."""
        look_ups = self._table_tasks.look_ups
        return {*self._slots.busy} if look_ups is None else {*self._slots.busy, look_ups}

    def _late(self) -> set[Future[None]]:
        """Wait for running batches and look-ups, and return the futures that have not finished.

        Unless a stop was requested, waits until all have finished. After a stop request, waits at most
        ``GRACE_SECONDS``, and not at all after a second stop signal.
        """
        deadline = time.monotonic() + GRACE_SECONDS
        while True:
            _, late = wait(self._under_way(), timeout=_LOOK_SECONDS)
            stop = self._context.stop
            if not late or (stop and (stop.hurried or time.monotonic() > deadline)):
                return late

    def _finish(self) -> None:
        """Wait for running batches to end. After a stop request, cancel batches that are too slow."""
        self._table_tasks.end_look_ups()
        late = self._late()
        # Cancelled look-ups are not reported: the next worker repeats them.
        if tables := [str(self._slots.busy[future].table) for future in late if future in self._slots.busy]:
            self._abandoned = True
            _log.warning("batches abandoned", tables=tables)
        while late:  # repeated, because a batch may start its next Spark job after a cancellation
            self.cancel()
            _, late = wait(late, timeout=_LOOK_SECONDS)
        self._slots.collect()


@contextmanager
def assembled(config: Config, listeners: Sequence[Listener], stop: StopFlag) -> Iterator[WorkerContext]:
    """Open schema registry, state store, Spark and target, yield them as a ``WorkerContext``, and close them.

    An existing Spark session is used, and not stopped at the end. A session that is started here is stopped.

    Raises:
        ConfigError: one of them cannot be opened as configured.
        StateStoreError: the state store did not answer for ``retry.for`` seconds.
        DevStackError: Java or Spark's connectors are not available.
    """
    failpoints = Failpoints.from_environment()
    with ExitStack() as closing:
        registry = _registry(config, closing, stop)
        retried = partial(Listeners(listeners).retried, None)
        retry = RetryPolicy(config.retry.for_, stop=stop, on_retry=retried)
        store = retry.call(lambda: _store(config, closing))
        spark = SparkEngine(
            partial(_spark, config, Listeners(listeners)), tasks=tasks_of(config.spark.master)
        )
        closing.callback(spark.close)
        check_spark_settings(config)
        closing.callback(close_idle_consumers)
        failures = Failures()
        heartbeat = Heartbeat(store, config.pipeline, failures=failures)
        fetch = KafkaFetch(config.source.confluent_properties(), is_stopped=lambda: bool(stop))
        source = KafkaSource(fetch, opens_up_to=config.source.opens_up_to)
        target = target_module(config.target).open_target(config, spark, store)
        closing.callback(target.close)
        yield WorkerContext(
            config=config,
            spark=spark,
            source=source,
            topics=Topics.of(config, source, store, is_stopped=lambda: bool(stop)),
            target=target,
            store=store,
            dead_letters=cache(partial(dead_letters_of, config)),
            registry=registry,
            failpoints=failpoints,
            listeners=Listeners((*listeners, heartbeat)),
            stop=stop,
            failures=failures,
            heartbeat=heartbeat,
        )


@contextmanager
def _spark(config: Config, listeners: Listeners) -> Iterator[SparkSession]:
    """Start Spark, and stop it at the end. PySpark's own handlers of signals are not kept."""
    opening = session_of(
        config,
        modules=_SNAPSHOT_MODULES if config.source.database is not None else (),
        progress=lambda what: listeners.hear(Waiting(what)),
    )
    with ExitStack() as closing:
        with signals_kept():
            session = closing.enter_context(opening)
        yield session


def _registry(config: Config, closing: ExitStack, stop: StopFlag) -> SchemaRegistry | None:
    if config.source.schema_registry is None:
        return None
    registry = config.source.open_registry(stop)
    closing.callback(registry.close)
    return registry


def _store(config: Config, closing: ExitStack) -> SqlStateStore:
    store = open_state_store(config.state)
    closing.callback(store.close)
    store.try_write()
    return store
