"""Looks up the topics' offsets in each pass of a worker, and records topics that are missing or silent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Final

from tidesink.errors import SourceError, StopRequestedError
from tidesink.events import Event, Message
from tidesink.sinks.kafka.offsets import KafkaOffsets, Look
from tidesink.sinks.kafka.watermarks import codec_of
from tidesink.sinks.runtime.context import WorkerContext, may_pass
from tidesink.sinks.worker.discovery import TableTasks

# While tables wait for a free slot, the look-ups take at most one of so many seconds.
_LOOK_SHARE: Final = 10
# A topic counts as missing if two look-ups this many seconds apart miss it: a broker may have old metadata.
SECOND_LOOK_SECONDS: Final = 3.0


class TopicEnds:
    """The current offsets of a pipeline's topics, and of the connector's DDL topic."""

    def __init__(self, context: WorkerContext, offsets: KafkaOffsets, table_tasks: TableTasks) -> None:
        self._context = context
        self._offsets = offsets
        self._table_tasks = table_tasks
        self._missed: frozenset[str] = frozenset()
        # Topics without an answer, with the time of the first failed look-up.
        self._silent: dict[str, float] = {}
        self._failed: dict[str, SourceError] = {}
        # The last answer, and the time until which it is recent.
        self._seen: Look | None = None
        self._recent_until = 0.0

    @property
    def missed(self) -> frozenset[str]:
        """The topics of tables that the last look-up did not find."""
        return self._missed

    @property
    def failed(self) -> Mapping[str, SourceError]:
        """Errors of topics that were refused, or that did not answer for ``retry.for`` seconds."""
        return self._failed

    @property
    def all_answered(self) -> bool:
        """True if each topic has answered in the last look-up, or has failed."""
        return self._silent.keys() == self._failed.keys()

    def look(self, *, recent: bool = False) -> Look | SourceError:
        """Return the topics' current offsets, or the error if Kafka does not answer. Creates tasks for new
        tables.

        ``recent``: True if the last answer may be returned again while it is recent. How long that is depends
        on the duration of its look-up, and is at most ``batch.poll-interval``.

        Raises:
            SourceError: Kafka does not answer, and no table is known whose status could show the error.
        """
        began = time.monotonic()
        if recent and self._seen is not None and began < self._recent_until:
            return self._seen
        self._seen = None
        try:
            self._seen = seen = self._context.retry().call(self._look_once)
        except SourceError as exc:
            if not len(self._table_tasks):
                raise
            return exc
        now, interval = time.monotonic(), self._context.config.batch.poll_interval
        self._recent_until = now + min(_LOOK_SHARE * (now - began), interval)
        self._context.failures.passed(None)
        return seen

    def _look_once(self) -> Look:
        """Look up the topics' offsets, and create tasks for new tables.

        If topics are newly missing, looks up a second time, because a broker may have outdated metadata.
        """
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
        """Record the topics whose offsets Kafka refused or did not return for ``retry.for`` seconds."""
        now, patience = time.monotonic(), self._context.config.retry.for_
        self._silent = {topic: self._silent.get(topic, now) for topic in seen.unanswered}
        self._failed = {
            topic: error
            for topic, error in seen.unanswered.items()
            if not may_pass(error) or now - self._silent[topic] >= patience
        }

    def _ends_now(self, *, whole: bool = False) -> Look:
        """Look up the current offsets of the pipeline's topics and of the connector's DDL topic.

        To save requests, the id and the first offsets of a topic are only looked up if its end has changed, a
        table has unread records in it, or the last look-up is long ago. ``whole``: True to look them up for
        every topic. In a run until ``drained``, they are always looked up, because no later look-up would
        correct outdated ones.
        """
        choose, ddl = self._context.config.topics_among, self._context.topics.schema_changes

        def chosen(available: Iterable[str]) -> tuple[str, ...]:
            topics = tuple(available)
            return (*choose(topics), *(name for name in topics if ddl is not None and name == ddl.topic))

        unread = {table_task.topic for table_task in self._table_tasks if table_task.reading.lag > 0}
        all_of_each = whole or self._context.ends
        seen = self._offsets.look(chosen) if all_of_each else self._offsets.look(chosen, unread.__contains__)
        return seen if ddl is None else ddl.take(seen, self._decode_ddl)

    @cached_property
    def _decode_ddl(self) -> Callable[[Message], tuple[Event, ...]]:
        """The function that decodes a record of the connector's DDL topic into events."""
        return codec_of(self._context.config.source, self._context.registry).decode
