"""The worker: looks up the topics' end offsets, hands out turns to tasks, and ends cleanly.

One look-up of offsets serves all tables, and a table with nothing to read costs no Spark job. Up to
``batch.max-tables`` batches run in parallel, each in its table's own Spark session.
"""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Final, Literal
from uuid import uuid4

import structlog

from tidesink.config import Config
from tidesink.config.models import idle_patterns
from tidesink.errors import SourceError, SparkEndedError, TidesinkError
from tidesink.events import Event, Message, TableId
from tidesink.schema_registry import SchemaRegistry
from tidesink.sinks.batch.context import (
    Failpoints,
    RetryPolicy,
    StopFlag,
    StopRequestedError,
    WorkerContext,
    may_pass,
    signals_kept,
    stop_on_signals,
)
from tidesink.sinks.batch.observers import (
    Heartbeat,
    Listener,
    Listeners,
    RunReport,
    Turned,
    Waiting,
)
from tidesink.sinks.batch.shared_reads import Topics
from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.kafka.dead_letters import dead_letters_of
from tidesink.sinks.kafka.fetch import KafkaFetch
from tidesink.sinks.kafka.offsets import KafkaOffsets, Look, TopicOffsets
from tidesink.sinks.spark.session import cancel_jobs, check_jvm, session_of, start_thread, threads_tagged
from tidesink.sinks.state.failures import Failures
from tidesink.sinks.state.progress import UNKNOWN_SCHEMA
from tidesink.sinks.state.sql_store import SqlStateStore, open_state_store
from tidesink.sinks.targets import target_module
from tidesink.sinks.worker.bounds import open_bounds
from tidesink.sinks.worker.control import Requests, TableControl
from tidesink.sinks.worker.cuts import Cuts
from tidesink.sinks.worker.discovery import TableTasks
from tidesink.sinks.worker.look_ups import TopicLookUps
from tidesink.sinks.worker.table_task import TableTask
from tidesink.sinks.worker.watermarks import Standing, WatermarkFollower, codec_of, watermark_reader

if TYPE_CHECKING:
    pass


Until = Literal["drained"]

_log = structlog.get_logger("tidesink.worker")
# Seconds that a stop waits for running batches before it cancels their Spark jobs.
GRACE_SECONDS: Final = 20.0
_LOOK_SECONDS: Final = 0.2
# Maximum number of opening tables that a progress line names.
_NAMED: Final = 5
# The JVM's connections break a moment before its process ends.
_JVM_END_SECONDS: Final = 2.0
# A table whose watermarks have waited for this many intervals gets every second turn.
_MOST_INTERVALS: Final = 10
# A task's input when it was last asked: the look at its topic, the requests, its bound and its end offsets.
_Settled = tuple[TopicOffsets | None, TableControl, int | None, Mapping[int, int] | None]
# Modules that the tasks of a snapshot import, in addition to those of every batch.
_SNAPSHOT_MODULES: Final = (
    "tidesink.sinks.targets.lake.files",
    "tidesink.sinks.batch.source_rows",
    "sqlalchemy",
)
# Seconds between the two looks that must both miss a topic: one broker may answer with old metadata.
SECOND_LOOK_SECONDS: Final = 3.0


def run(
    config: Config,
    *,
    until: Until | None = None,
    batches: int | None = None,
    listeners: Sequence[Listener] = (),
    stop: StopFlag | None = None,
) -> RunReport:
    """Work until stopped, until all topics are drained, or for a number of batches per table.

    SIGINT and SIGTERM end the run cleanly if it is in the main thread; elsewhere use ``stop``.

    Raises:
        ConfigError: the config cannot be used.
        SourceUnavailableError: Kafka did not answer for ``retry.for`` seconds at the start.
        TidesinkError: Spark, the state store or the target could not be opened.
    """
    flag = stop if stop is not None else StopFlag()
    # Signals are handled here until Spark is stopped: a third Ctrl-C must not interrupt that.
    with signals_kept(), assembled(config, listeners, flag) as context:
        worker = Worker(context, until=until, batches=batches)
        stop_on_signals(flag)
        return worker.run()


def opening_line(opening: Sequence[TableId], opened: int, tables: int) -> str:
    """Return a progress line: which tables are opening, and how many of all."""
    names = ", ".join(map(str, opening[:_NAMED])) + (", …" if len(opening) > _NAMED else "")
    return f"opening {opened + len(opening)} of {tables} tables: {names}"


class Worker:
    """One run over all tasks. ``opening_seconds``: seconds between lines that name opening tables."""

    opening_seconds = 3.0

    def __init__(
        self,
        context: WorkerContext,
        *,
        until: Until | None = None,
        batches: int | None = None,
        offsets: KafkaOffsets | None = None,
    ) -> None:
        self._ends = until == "drained" or batches is not None
        self._context = context = replace(context, ends=self._ends)
        self._job_tag = f"tidesink-{uuid4()}"
        self._batches = batches
        self._turns = itertools.count(1)
        self._offsets = offsets or context.brokers
        self._heartbeat = context.heartbeat or Heartbeat(
            context.store, context.config.pipeline, failures=context.failures
        )
        self._requests = Requests(context.store, context.config.pipeline)
        self._table_tasks = TableTasks(context, TopicLookUps.of(context), self._requests.loaded)
        self._busy: dict[Future[None], TableTask] = {}
        self._missed: frozenset[str] = frozenset()
        # Topics without an answer, by the time of the first failure; and topics that failed for too long.
        self._silent: dict[str, float] = {}
        self._failed: dict[str, SourceError] = {}
        # Tasks that had nothing to do at the last look, with their input.
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
        self._gave_overdue = False
        self._abandoned = False
        self._told_opening = time.monotonic()

    def run(self) -> RunReport:
        """Work to the end, and return a report on each table."""
        started = self._told_opening = time.monotonic()
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

    def _tell_end(self) -> None:
        """Record in the state store that the worker has ended, and which failures are not retried."""
        self._context.failures.ended()
        for table_task in self._table_tasks:
            table_task.tell_failure()
        self._heartbeat.end()

    def _check_jvm(self, seconds: float = 0.0) -> None:
        """Raise SparkEndedError if Spark's JVM has ended, and stop all running batches."""
        try:
            check_jvm(self._context.spark, seconds)
        except SparkEndedError:
            self._context.stop.set()
            raise

    def cancel(self) -> None:
        """Cancel the Spark jobs of running batches and look-ups.

        A batch is abandoned before its commit or after it.
        """
        cancel_jobs(self._context.spark, self._job_tag)

    def _turn(self) -> bool:
        """Look once and hand out turns; return False when the run is over.

        The run ends only after a look that is still valid. Another look is needed if a batch ended during
        this one, or if all tables of a topic have stopped reading since.
        """
        self._check_jvm()
        self._context.listeners.hear(Turned())
        self._requests.look()
        self._table_tasks.collect()
        self._collect()
        seen = self._look()
        # Other tables may get their slots now; only the end of the run must wait for another look.
        ended = self._collect()
        idle = self._idle()
        self._go_on(idle, seen)
        self._tell_opening()
        moved = self._moves_bound(seen)
        if under_way := self._under_way():
            wait(under_way, timeout=self._context.config.batch.poll_interval, return_when=FIRST_COMPLETED)
            return True
        if moved:
            return True
        # If Kafka does not answer, every topic stops: another look would find nothing new.
        if not isinstance(seen, SourceError) and (ended or self._table_tasks.newly_stuck()):
            return True
        return self._rest(idle)

    def _tell_opening(self) -> None:
        """Report from time to time which tables are opening, while schemas and the target are looked up."""
        now = time.monotonic()
        if now - self._told_opening < self.opening_seconds:
            return
        tables = list(self._table_tasks)
        opening = [one.table for one in self._busy.values() if one.is_opening]
        if opening:
            what = opening_line(opening, sum(one.was_open for one in tables), len(tables))
        elif not tables and self._table_tasks.look_ups is not None:
            what = "looking up which tables the topics hold"
        else:
            return
        self._told_opening = now
        self._context.listeners.hear(Waiting(what))

    def _moves_bound(self, seen: Look | SourceError) -> bool:
        """Publish a cut if it is complete; return True if tables may read on under a new bound."""
        if self._cuts is None or isinstance(seen, SourceError):
            return False
        try:
            return self._cuts.turn(list(self._table_tasks), list(self._busy.values()), seen)
        except TidesinkError as exc:
            # Tables wait for their bound, and the next look tries again.
            _log.warning("cuts cannot be looked at", error=str(exc))
            return False

    def _go_on(self, idle: list[TableTask], seen: Look | SourceError) -> None:
        """Pass requests to idle tasks, and start tasks with work according to the last look."""
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
            if table_task.topic in self._failed:
                table_task.fail(self._failed[table_task.topic])
        self._give_turns([one for one in idle if one.topic not in seen.unanswered], seen, quiet)

    def _note_ends(self, idle: list[TableTask], seen: Look) -> None:
        """Tell every task its topic's end offsets, also running ones, or that they are unknown."""
        for table_task in self._table_tasks:
            table_task.seen = seen.found.get(table_task.topic, table_task.seen)
        for table_task in idle:
            error = seen.unanswered.get(table_task.topic)
            if error is not None and table_task.topic not in self._failed:
                table_task.await_topic(error, self._context.config.batch.poll_interval)

    def _quiet(self, idle: list[TableTask], seen: Look) -> set[TableTask]:
        """Return the tables for which only watermarks wait, or nothing."""
        followed = dict[TableTask, Standing]()
        for table_task in idle:
            found = seen.found.get(table_task.topic)
            starts = table_task.follows_from(found)
            if found is not None and starts:
                followed[table_task] = Standing(found, starts)
        topics = dict[str, Standing]()
        for standing in followed.values():
            topic = standing.found.topic
            topics[topic] = standing.joined(topics.get(topic, standing))
        alone = self._watermarks.look(topics)
        for table_task in followed:
            table_task.marks = self._watermarks.marks(table_task.topic)
        return {table_task for table_task in followed if table_task.topic in alone}

    def _is_settled(self, table_task: TableTask, seen: Look) -> bool:
        """Return True if the task had nothing to do when last asked, and nothing changed since."""
        known = self._settled.get(table_task)
        return (
            known is not None
            and table_task.state == "IDLE"
            and not table_task.is_failing
            and not (table_task.owes_commit or table_task.has_ddl or table_task.looks_again)
            and known[0] is seen.found.get(table_task.topic)
            and known[1] == self._requests.of(table_task.table)
            and known[2:] == (table_task.bound, table_task.ends)
        )

    def _rest(self, idle: list[TableTask]) -> bool:
        """Let tables rest after everything is read; return False at the end of the run, or on a stop."""
        for table_task in idle:
            table_task.rest()
        self._tell_idle_patterns()
        # A drained run ends when every topic has answered, or has failed to for long enough.
        ends = self._ends and self._silent.keys() == self._failed.keys()
        return not ends and not self._context.stop.wait(self._context.config.batch.poll_interval)

    def _tell_idle_patterns(self) -> None:
        """After everything is read, report once which patterns of the config match no table."""
        tables = [
            table_task.table for table_task in self._table_tasks if table_task.table.schema != UNKNOWN_SCHEMA
        ]
        if self._reported_patterns or not tables:
            return
        self._reported_patterns = True
        for warning in idle_patterns(self._context.config, tables):
            _log.warning("pattern fits no table", warning=warning)

    def _give_turns(self, idle: list[TableTask], seen: Look, quiet: set[TableTask]) -> None:
        found = seen.found
        ready, due = list[TableTask](), list[TableTask]()
        for table_task in idle:
            self._settled.pop(table_task, None)
            table_task.look(found.get(table_task.topic))
            if not self._may_work(table_task, seen):
                table_task.recover()
                asked = self._requests.of(table_task.table)
                limits = table_task.bound, table_task.ends
                self._settled[table_task] = found.get(table_task.topic), asked, *limits
            elif table_task not in quiet:
                ready.append(table_task)
            elif self._is_due(table_task) or table_task.owes_commit:
                due.append(table_task)
            else:
                table_task.rest()
        for table_task in self._fair(ready, due)[: self._context.config.batch.max_tables - len(self._busy)]:
            self._gave_overdue = table_task in due
            table_task.turn = next(self._turns)
            work = partial(table_task.work, found.get(table_task.topic), passes=not self._ends)
            self._busy[start_thread(self._context.spark, work, name=str(table_task.table))] = table_task

    def _is_due(self, table_task: TableTask, intervals: int = 1) -> bool:
        """Return True if watermarks must be read now; a drained run ignores new watermarks."""
        interval = self._context.config.batch.watermark_interval
        return not self._ends and table_task.rested >= intervals * interval

    def _idle(self) -> list[TableTask]:
        busy = {id(table_task) for table_task in self._busy.values()}
        return [table_task for table_task in self._table_tasks if id(table_task) not in busy]

    def _look(self) -> Look | SourceError:
        """Return the topics' end offsets, or the error if Kafka does not answer."""
        try:
            seen = self._context.retry().call(self._look_once)
        except SourceError as exc:
            if not len(self._table_tasks):
                raise
            return exc
        self._context.failures.passed(None)
        return seen

    def _look_once(self) -> Look:
        """Look up the end offsets, twice if topics are missing, and create tasks for new topics."""
        seen = self._ends_now()
        if self._table_tasks.missed(seen) - self._missed:
            if self._context.stop.wait(SECOND_LOOK_SECONDS):
                raise StopRequestedError
            again = self._ends_now(whole=True)
            seen = Look({**seen.found, **again.found}, again.unanswered)
        self._missed = self._table_tasks.missed(seen)
        self._note_silence(seen)
        self._table_tasks.follow(seen, self._failed)
        return seen

    def _note_silence(self, seen: Look) -> None:
        """Fail refused topics at once, and topics without an answer after ``retry.for`` seconds."""
        now, patience = time.monotonic(), self._context.config.retry.for_
        self._silent = {topic: self._silent.get(topic, now) for topic in seen.unanswered}
        self._failed = {
            topic: error
            for topic, error in seen.unanswered.items()
            if not may_pass(error) or now - self._silent[topic] >= patience
        }

    def _ends_now(self, *, whole: bool = False) -> Look:
        """Return the end offsets; a drained run asks for all of each topic, as there is no later look."""
        choose, ddl = self._context.config.topics_among, self._context.topics.schema_changes

        def chosen(available: Iterable[str]) -> tuple[str, ...]:
            found = tuple(available)
            return (*choose(found), *(name for name in found if ddl is not None and name == ddl.topic))

        unread = {table_task.topic for table_task in self._table_tasks if table_task.lag > 0}
        all_of_each = whole or self._ends
        seen = self._offsets.look(chosen) if all_of_each else self._offsets.look(chosen, unread.__contains__)
        return seen if ddl is None else ddl.take(seen, self._decode_ddl)

    @cached_property
    def _decode_ddl(self) -> Callable[[Message], tuple[Event, ...]]:
        """Decodes the records of a connector's DDL topic."""
        return codec_of(self._context.config.source, self._context.registry).decode

    def _may_work(self, table_task: TableTask, seen: Look) -> bool:
        found = seen.found.get(table_task.topic)
        if found is None and table_task.topic not in self._missed:
            return False
        if not self._ends:
            table_task.wake()
        if self._batches is not None and table_task.batches >= self._batches:
            table_task.leave()
            return False
        return table_task.has_work(found)

    def _fair(self, ready: list[TableTask], due: list[TableTask]) -> list[TableTask]:
        """Sort tasks by fairness: longest since the last turn first, new ones by lag, then watermarks.

        So a table waits for at most one turn of each other table, no matter how much the others have to read
        or how often they fail. Every second turn goes to a table whose watermarks are overdue, so that its
        position advances even if others are always busy.
        """
        ready = sorted(ready, key=lambda table_task: (table_task.turn, -table_task.lag))
        due = sorted(due, key=lambda table_task: -table_task.rested)
        if due and not self._gave_overdue and self._is_due(due[0], _MOST_INTERVALS):
            return [due[0], *ready, *due[1:]]
        return [*ready, *due]

    def _collect(self) -> bool:
        """Remove batches that have ended; return True if there were any."""
        ended = [future for future in self._busy if future.done()]
        for future in ended:
            del self._busy[future]
            # A task handles its own failures: an exception here is a fault of the worker.
            future.result()
        return bool(ended)

    def _under_way(self) -> set[Future[None]]:
        """Return the batches and table look-ups that are running."""
        look_ups = self._table_tasks.look_ups
        return {*self._busy} if look_ups is None else {*self._busy, look_ups}

    def _late(self) -> set[Future[None]]:
        """Wait for running futures, after a stop only for the time of grace; return the unfinished ones."""
        deadline = time.monotonic() + GRACE_SECONDS
        while True:
            _, late = wait(self._under_way(), timeout=_LOOK_SECONDS)
            stop = self._context.stop
            if not late or (stop and (stop.hurried or time.monotonic() > deadline)):
                return late

    def _finish(self) -> None:
        """Wait for running batches to end, and cancel them if they are too slow after a stop."""
        self._table_tasks.end_look_ups()
        late = self._late()
        # Look-ups that are cancelled lose no work: the next worker repeats them.
        if tables := [str(self._busy[one].table) for one in late if one in self._busy]:
            self._abandoned = True
            _log.warning("batches abandoned", tables=tables)
        while late:  # a batch between two jobs starts the next one after the cancellation
            self.cancel()
            _, late = wait(late, timeout=_LOOK_SECONDS)
        self._collect()


@contextmanager
def assembled(config: Config, listeners: Sequence[Listener], stop: StopFlag) -> Iterator[WorkerContext]:
    """Open the parts of a worker, and close them at the end of the context.

    An existing Spark session is used and not stopped; a session that is started here is stopped.

    Raises:
        ConfigError: a part cannot be opened as configured.
        StateStoreError: the state store did not answer for ``retry.for`` seconds.
        DevStackError: Java or Spark's connectors are not available.
    """
    failpoints = Failpoints.from_environment()
    with ExitStack() as closing:
        registry = _registry(config, closing, stop)
        retried = partial(Listeners(listeners).retried, None)
        retry = RetryPolicy(config.retry.for_, stop=stop, on_retry=retried)
        store = retry.call(lambda: _store(config, closing))
        spark = closing.enter_context(
            session_of(
                config,
                modules=_SNAPSHOT_MODULES if config.source.database is not None else (),
                progress=lambda what: Listeners(listeners).hear(Waiting(what)),
            )
        )
        failures = Failures()
        heartbeat = Heartbeat(store, config.pipeline, failures=failures)
        fetch = KafkaFetch(config.source.confluent_properties())
        source = KafkaSource(fetch, opens_up_to=config.source.opens_up_to)
        yield WorkerContext(
            config=config,
            spark=spark,
            source=source,
            topics=Topics.of(config, source, store, is_stopped=lambda: bool(stop)),
            target=target_module(config.target).open_target(config, spark, store),
            store=store,
            dead_letters=cache(partial(dead_letters_of, config)),
            registry=registry,
            failpoints=failpoints,
            listeners=Listeners((*listeners, heartbeat)),
            stop=stop,
            failures=failures,
            heartbeat=heartbeat,
        )


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
