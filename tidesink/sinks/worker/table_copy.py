"""A table's copy at the target: the reader of its rows, and the wait until its changes are applied.

``tidesink diff`` compares it while a worker continues.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tidesink.config import Config
from tidesink.errors import ConfigError
from tidesink.events import TableId
from tidesink.sinks.batch.context import WorkerContext
from tidesink.sinks.batch.observers import ALIVE_SECONDS, is_alive, seconds_since_beat
from tidesink.sinks.batch.source import checkpointed
from tidesink.sinks.batch.topic_ddl import TOPIC_ABSENT
from tidesink.sinks.kafka.offsets import NO_STARTS, OffsetRange, TopicOffsets
from tidesink.sinks.schema_sources.open import open_decoding
from tidesink.sinks.state.progress import Progress, TableStatus
from tidesink.sinks.targets.base import TableReader
from tidesink.sinks.worker.source_keys import open_target_reader
from tidesink.sinks.worker.starts import known_start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidesink.sinks.batch.decoders import DecodePlan

_POLL_SECONDS: Final = 0.5
REFUSED: Final = "The table cannot be compared. "

Tell = Callable[[str], None]


def topic_of(status: TableStatus | None) -> str | None:
    """Return the topic that a table's changes were read from, or None if none was read."""
    topic = (status.details if status else {}).get("topic")
    return None if topic is None else str(topic)


def obstacle(config: Config, table: TableId, topic: str | None) -> str | None:
    """Return the reason why a table cannot be compared with this config, or None if it can."""
    settings = config.table_config(table)
    if "rows" not in config.target.features:
        return f"A target of type {config.target.type} forwards changes and keeps no rows."
    if settings.mode != "upsert":
        return (
            f"mode: {settings.mode} keeps rows that the source has deleted, so the two sides cannot be "
            "compared."
        )
    if settings.ignore_null_updates:
        return "ignore_null_updates keeps values that are NULL at the source."
    if topic is not None and not config.reads_topic(topic):
        return f"Its changes came from the topic {topic}, which is no longer part of source.topics."
    return None


def refusal(table: TableId, reason: str) -> ConfigError:
    """Return the error for a table that cannot be compared."""
    return ConfigError(REFUSED + reason, table=str(table))


@dataclass
class TableCopy:
    """A table at the target of ``context``'s pipeline.

    ``kept``: releases what Spark stores for the table. ``waits``: True to wait for changes that are not
    applied yet. ``patience``: seconds after which a running worker that has not reached the table counts as
    stuck; None: longer than any pause in the config. ``called``: prefix of the table's name in messages.
    """

    context: WorkerContext
    table: TableId
    kept: ExitStack
    tell: Tell
    waits: bool = True
    patience: float | None = None
    called: str = ""
    topic: str = field(init=False)
    may_come: bool = field(default=False, init=False)
    reader: TableReader = field(init=False)

    def open(self) -> DecodePlan:
        """Open the table, wait until the target has applied its topic, and return its decode plan.

        Raises:
            ConfigError: the table cannot be compared.
        """
        status = self.context.store.status_of(self.context.config.pipeline, self.table)
        topic = topic_of(status)
        if topic is None:
            raise self.refused("No worker has applied any of its records yet. Run `tidesink run` first.")
        self.topic, self.may_come = topic, bool(status and status.details.get(TOPIC_ABSENT))
        found = self.ends()
        decoding = open_decoding(
            self.context, self.topic, self.table, session=self.context.spark.newSession()
        )
        start = known_start(self.context.store, self.context.config.pipeline, self.table, self.topic)
        decoding.prepare(found, start.offsets if start is not None else NO_STARTS)
        self.reader = self._reader(decoding.columns())
        self.check_begun()
        # Records that wait may change the columns.
        self.await_applied(found)
        # Rows of the source are newer than everything sent so far.
        decoding.catch_up(None, found)
        return decoding.columns()

    def _reader(self, plan: DecodePlan) -> TableReader:
        missing = self.refused("The target has no such table yet. Run `tidesink run` first to create it.")
        return self.kept.enter_context(open_target_reader(self.context, plan.shape, missing=missing))

    def check_begun(self) -> None:
        """Check that the target has all rows of the source.

        Raises:
            ConfigError: no batch was applied yet, or a snapshot is unfinished.
        """
        progress = self.reader.committed()
        if progress is None:
            raise self.refused("No worker has applied any of its records yet. Run `tidesink run` first.")
        if progress.snapshot is not None and not (progress.snapshot.done or progress.snapshot.limited):
            raise self.refused(
                "Its snapshot has not finished, so rows are missing. See `tidesink snapshot status` for its "
                "progress."
            )

    def refused(self, reason: str) -> ConfigError:
        return refusal(self.table, self.called + reason)

    # End offsets of the topic, and progress of the target

    def ends(self) -> TopicOffsets:
        """Return the topic's current end offsets; the topic may be absent if a worker expects it to come."""
        return self.context.offsets_of(self.topic, self.table, may_come=self.may_come)

    def _ranges_of(self, found: TopicOffsets) -> list[OffsetRange]:
        """Return the offset ranges that are not applied yet."""
        progress = self.context.retry(self.table).call(self.reader.committed)
        return [
            OffsetRange(self.topic, number, max(at.earliest, _next(progress, self.topic, number)), at.latest)
            for number, at in found.partitions.items()
        ]

    def await_applied(self, ends: TopicOffsets) -> bool:
        """Wait until the target has applied everything up to ``ends``; return False without waiting.

        Raises:
            ConfigError: no worker applies the records.
        """
        still = Standstill(self._patience())
        announced = False
        while waiting := sum(max(0, part.records) for part in self._ranges_of(ends)):
            if not self.waits:
                return False
            self._check_worker(waiting, still)
            if not announced:
                self.tell(f"{self.called}{self.table}: waiting until {waiting:,} records are applied")
                announced = True
            time.sleep(_POLL_SECONDS)
        return True

    def _patience(self) -> float:
        """Return the maximum number of seconds in which a healthy worker reaches the table."""
        if self.patience is not None:
            return self.patience
        config = self.context.config
        longest = max(config.batch.watermark_interval, config.cuts.every if config.cuts is not None else 0)
        return ALIVE_SECONDS + config.retry.for_ + 2 * longest

    def _check_worker(self, waiting: int, still: Standstill) -> None:
        store, pipeline = self.context.store, self.context.config.pipeline
        seconds = seconds_since_beat(store, pipeline)
        if not is_alive(seconds):
            raise self.refused(
                f"{waiting:,} records of {self.topic} are not applied, and no worker runs. Start `tidesink "
                "run` in parallel, or pass --no-wait to compare anyway."
            )
        status = store.status_of(pipeline, self.table)
        if status is not None and status.state in ("PAUSED", "FAILING"):
            raise self.refused(
                f"{waiting:,} records of {self.topic} are not applied, and the table is {status.state} "
                f"({status.error}). Fix that first, or pass --no-wait to compare anyway."
            )
        state = status.state if status is not None else "unknown"
        if still.lasts(waiting, at_work=state == "RUNNING"):
            raise self.refused(
                f"{waiting:,} records of {self.topic} are not applied, and the running worker does not read "
                f"the table, whose state is {state}. Check if the worker's config leaves the table out, or "
                "pass --no-wait to compare anyway."
            )

    def stored(self, frame: Callable[[], DataFrame]) -> DataFrame:
        """Store a frame's current rows, so that Spark never reads them again; retry on failure."""

        def store() -> DataFrame:
            return checkpointed(frame(), self.kept, table=str(self.table))

        return self.context.retry(self.table).call(store)


@dataclass
class Standstill:
    """Detects that no record was applied for ``seconds`` while records wait."""

    seconds: float
    clock: Callable[[], float] = time.monotonic
    _waiting: int | None = field(default=None, init=False)
    _since: float = field(default=0.0, init=False)

    def lasts(self, waiting: int, *, at_work: bool) -> bool:
        """Return True if nothing changed for ``seconds``; ``at_work``: a batch runs, and may be slow."""
        now = self.clock()
        if at_work or waiting != self._waiting:
            self._waiting, self._since = waiting, now
            return False
        return now - self._since >= self.seconds


def _next(progress: Progress | None, topic: str, partition: int) -> int:
    return (progress.next_offset(topic, partition) if progress else None) or 0
