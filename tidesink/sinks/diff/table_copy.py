"""Access to a table in the target for ``tidesink diff``: waits until changes are applied, and reads the rows.

A worker may keep applying changes to the table while it is compared.
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
from tidesink.sinks.batch.source import checkpointed
from tidesink.sinks.decode.open import open_decoding
from tidesink.sinks.decode.topic_ddl import TOPIC_ABSENT
from tidesink.sinks.kafka.offsets import NO_STARTS, OffsetRange, TopicOffsets
from tidesink.sinks.runtime.context import WorkerContext
from tidesink.sinks.runtime.observers import ALIVE_SECONDS, is_alive, seconds_since_beat
from tidesink.sinks.snapshots.source_keys import open_target_reader
from tidesink.sinks.state.progress import Progress, TableStatus
from tidesink.sinks.targets.base import TableReader
from tidesink.sinks.worker.open_table import decoding_parts
from tidesink.sinks.worker.starts import known_start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidesink.sinks.decode.plans import DecodePlan

_POLL_SECONDS: Final = 0.5
REFUSED: Final = "The table cannot be compared. "

Tell = Callable[[str], None]


def topic_of(status: TableStatus | None) -> str | None:
    """Return the topic from which a table's changes were read, or None if its status names no topic."""
    topic = (status.details if status else {}).get("topic")
    return None if topic is None else str(topic)


def obstacle(config: Config, table: TableId, topic: str | None) -> str | None:
    """Return the reason why a table cannot be compared with this config, or None if it can.

    ``topic``: the topic from which the table's changes were read, or None if unknown.
    """
    settings = config.table_config(table)
    if "rows" not in config.target.features:
        return f"A target of type {config.target.type} forwards changes and stores no rows."
    if settings.mode != "upsert":
        return (
            f"mode: {settings.mode} keeps rows that the source has deleted, so the two sides cannot be "
            "compared."
        )
    if settings.ignore_null_updates:
        return (
            "With ignore_null_updates, the target keeps old values of columns that are NULL at the source, "
            "so the two sides cannot be compared."
        )
    if topic is not None and not config.reads_topic(topic):
        return (
            f"Its changes came from the topic {topic}, which is no longer part of source.topics. Add the "
            "topic to source.topics again."
        )
    return None


def refusal(table: TableId, reason: str) -> ConfigError:
    """Return the error for a table that cannot be compared, with the text ``reason``."""
    return ConfigError(REFUSED + reason, table=str(table))


@dataclass
class TableCopy:
    """A table in the target of a pipeline, whose rows can be read.

    Attributes:
        context: The parts of the pipeline: config, Spark, target, state store.
        table: The table.
        kept: Has the resources of the comparison, such as frames that Spark stores. The caller closes it.
        tell: Receives progress messages for the user.
        waits: True to wait until the changes that are in Kafka are applied.
        patience: If no record is applied for this many seconds, a running worker counts as not reading the
            table. None to choose a time that is longer than any pause that the config allows.
        called: Prefix of the table's name in messages, such as the pipeline's name.
        topic: The topic from which the table's changes are read. Set by ``open``.
        may_come: True if the topic does not exist yet, and the changefeed may create it. Set by ``open``.
        reader: The reader of the table's rows in the target. Set by ``open``.
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
        """Open the table, wait until the topic's current records are applied, and return its decode plan.

        Does not wait if ``waits`` is False.

        Raises:
            ConfigError: the table cannot be compared, or no worker applies its records.
        """
        status = self.context.store.status_of(self.context.config.pipeline, self.table)
        topic = topic_of(status)
        if topic is None:
            raise self.refused("No worker has applied records of the table yet. Run `tidesink run` first.")
        self.topic, self.may_come = topic, bool(status and status.details.get(TOPIC_ABSENT))
        offsets = self.ends()
        parts = decoding_parts(self.context)
        decoding = open_decoding(parts, self.topic, self.table)
        start = known_start(self.context.store, self.context.config.pipeline, self.table, self.topic)
        decoding.prepare(offsets, start.offsets if start is not None else NO_STARTS)
        self.reader = self._reader(decoding.columns())
        self.check_begun()
        # Records that are not applied yet may change the columns, so the plan is made after them.
        self.await_applied(offsets)
        # The source's rows are newer than all DDL in the topic, so the plan must include it.
        decoding.catch_up(None, offsets)
        return decoding.columns()

    def _reader(self, plan: DecodePlan) -> TableReader:
        missing = self.refused("The target has no such table yet. Run `tidesink run` first to create it.")
        return self.kept.enter_context(open_target_reader(self.context, plan.shape, missing=missing))

    def check_begun(self) -> None:
        """Check that the table was loaded: a batch was applied, and no snapshot of all rows is unfinished.

        Raises:
            ConfigError: no batch was applied yet, or a snapshot of the whole table is unfinished.
        """
        progress = self.reader.committed()
        if progress is None:
            raise self.refused("No worker has applied records of the table yet. Run `tidesink run` first.")
        if progress.snapshot is not None and not (progress.snapshot.done or progress.snapshot.limited):
            raise self.refused(
                "Its snapshot has not finished, so rows are missing. Wait until it finishes (`tidesink "
                "snapshot status` shows its progress)."
            )

    def refused(self, reason: str) -> ConfigError:
        return refusal(self.table, self.called + reason)

    # End offsets of the topic, and progress of the target

    def ends(self) -> TopicOffsets:
        """Return the current first and end offsets of the table's topic.

        They are empty if the changefeed has not created the topic yet (``may_come``).
        """
        return self.context.offsets_of(self.topic, self.table, may_come=self.may_come)

    def _ranges_of(self, offsets: TopicOffsets) -> list[OffsetRange]:
        """Return the range of records per partition that are in ``offsets`` and not applied yet."""
        progress = self.context.retry(self.table).call(self.reader.committed)
        return [
            OffsetRange(
                self.topic,
                number,
                max(partition.earliest, _next(progress, self.topic, number)),
                partition.latest,
            )
            for number, partition in offsets.partitions.items()
        ]

    def await_applied(self, ends: TopicOffsets) -> bool:
        """Wait until all records before the end offsets in ``ends`` are applied. Return True then.

        If ``self.waits`` is False, return at once: False if some of these records are not applied.

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
        """Return the seconds without an applied record after which a worker seems to skip the table."""
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
                "run` in parallel. To compare anyway, pass --no-wait."
            )
        status = store.status_of(pipeline, self.table)
        if status is not None and status.state in ("PAUSED", "FAILING"):
            raise self.refused(
                f"{waiting:,} records of {self.topic} are not applied, and the table is {status.state} "
                f"({status.error}). Fix the cause and let the table continue first. To compare anyway, pass "
                "--no-wait."
            )
        state = status.state if status is not None else "unknown"
        if still.lasts(waiting, at_work=state == "RUNNING"):
            raise self.refused(
                f"{waiting:,} records of {self.topic} are not applied, and the running worker does not read "
                f"the table, whose state is {state}. Check if the worker's config leaves the table out. To "
                "compare anyway, pass --no-wait."
            )

    def stored(self, frame: Callable[[], DataFrame]) -> DataFrame:
        """Store in Spark the rows of the frame that ``frame`` returns, and return the stored frame.

        So all later steps see the same rows, although the table changes. Retries on failure.
        """

        def store() -> DataFrame:
            return checkpointed(frame(), self.kept, table=str(self.table))

        return self.context.retry(self.table).call(store)


@dataclass
class Standstill:
    """Detects that no record of a table was applied for ``seconds``, although records are pending."""

    seconds: float
    clock: Callable[[], float] = time.monotonic
    _waiting: int | None = field(default=None, init=False)
    _since: float = field(default=0.0, init=False)

    def lasts(self, waiting: int, *, at_work: bool) -> bool:
        """Return True if the number of pending records has not changed for ``seconds``.

        ``waiting``: number of pending records now. ``at_work``: True while the table's batch runs, which may
        be slow.
        """
        now = self.clock()
        if at_work or waiting != self._waiting:
            self._waiting, self._since = waiting, now
            return False
        return now - self._since >= self.seconds


def _next(progress: Progress | None, topic: str, partition: int) -> int:
    return (progress.next_offset(topic, partition) if progress else None) or 0
