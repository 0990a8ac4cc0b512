"""A table at a pipeline's target: the reader of its rows, and the wait until changes are applied.

It is what ``tidesink diff`` compares, while a worker goes on.
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
REFUSED: Final = "the table cannot be compared: "

Tell = Callable[[str], None]


def topic_of(status: TableStatus | None) -> str | None:
    """The topic that a table's changes were read from; None where none was."""
    topic = (status.details if status else {}).get("topic")
    return None if topic is None else str(topic)


def obstacle(config: Config, table: TableId, topic: str | None) -> str | None:
    """Why the config does not let a table be compared; None where it does."""
    settings = config.table_config(table)
    if "rows" not in config.target.features:
        return f"a target of type {config.target.type} forwards changes, and keeps no rows"
    if settings.mode != "upsert":
        return f"mode: {settings.mode} keeps what the source has no more, so that its rows are others"
    if settings.ignore_null_updates:
        return "ignore_null_updates keeps values that are NULL at the source"
    if topic is not None and not config.reads_topic(topic):
        return f"its changes came by the topic {topic}, which source.topics does not name any more"
    return None


def refusal(table: TableId, reason: str) -> ConfigError:
    """What to say of a table that cannot be compared."""
    return ConfigError(REFUSED + reason, table=str(table))


@dataclass
class TableCopy:
    """A table at the target of ``context``'s pipeline; ``kept`` lets go of what Spark keeps for it.

    ``waits``: for changes that are not applied yet. ``patience``: seconds for which a worker may leave alone
    a table that it is not at; None: longer than a table rests by the config. ``called``: before its name.
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
        """The plan of its records, once the target is where the topic is.

        Raises:
            ConfigError: the table cannot be compared.
        """
        status = self.context.store.status_of(self.context.config.pipeline, self.table)
        topic = topic_of(status)
        if topic is None:
            raise self.refused("no worker has applied anything of it yet: let tidesink run begin")
        self.topic, self.may_come = topic, bool(status and status.details.get(TOPIC_ABSENT))
        found = self.ends()
        decoding = open_decoding(
            self.context, self.topic, self.table, session=self.context.spark.newSession()
        )
        start = known_start(self.context.store, self.context.config.pipeline, self.table, self.topic)
        decoding.prepare(found, start.offsets if start is not None else NO_STARTS)
        self.reader = self._reader(decoding.columns())
        self.check_begun()
        # Columns change with what waits.
        self.await_applied(found)
        # Rows of the source are behind all that was sent.
        decoding.catch_up(None, found)
        return decoding.columns()

    def _reader(self, plan: DecodePlan) -> TableReader:
        missing = self.refused("the target has no such table: let tidesink run make it")
        return self.kept.enter_context(open_target_reader(self.context, plan.shape, missing=missing))

    def check_begun(self) -> None:
        """See that the target has all rows of the source's.

        Raises:
            ConfigError: it has not.
        """
        progress = self.reader.committed()
        if progress is None:
            raise self.refused("nothing of it is applied yet: let tidesink run begin")
        if progress.snapshot is not None and not (progress.snapshot.done or progress.snapshot.limited):
            raise self.refused(
                "its snapshot is not over, so that rows are missing: tidesink snapshot status shows how far "
                "it is"
            )

    def refused(self, reason: str) -> ConfigError:
        return refusal(self.table, self.called + reason)

    # Where the topic ends, and the target is

    def ends(self) -> TopicOffsets:
        """Where the topic ends now; one that a worker said is not there yet may still be to come."""
        return self.context.offsets_of(self.topic, self.table, may_come=self.may_come)

    def _ranges_of(self, found: TopicOffsets) -> list[OffsetRange]:
        """What of the topic is not applied."""
        progress = self.context.retry(self.table).call(self.reader.committed)
        return [
            OffsetRange(self.topic, number, max(at.earliest, _next(progress, self.topic, number)), at.latest)
            for number, at in found.partitions.items()
        ]

    def await_applied(self, ends: TopicOffsets) -> bool:
        """Wait until the target has applied all up to the ends; False where that is not waited for.

        Raises:
            ConfigError: nobody applies it.
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
        """Longer than a table rests: with little in its topic, until the next cut, or as Kafka is silent."""
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
                f"{waiting:,} records of {self.topic} are not applied, and no worker runs: start tidesink "
                "run beside this, or give --no-wait to compare all the same"
            )
        status = store.status_of(pipeline, self.table)
        if status is not None and status.state in ("PAUSED", "FAILING"):
            raise self.refused(
                f"{waiting:,} records of {self.topic} are not applied, and the table is {status.state} "
                f"({status.error}): mend that first, or give --no-wait to compare all the same"
            )
        state = status.state if status is not None else "unknown"
        if still.lasts(waiting, at_work=state == "RUNNING"):
            raise self.refused(
                f"{waiting:,} records of {self.topic} are not applied, and the worker that runs does not "
                f"come to the table, whose state is {state}: see whether its config leaves the table out, or "
                "give --no-wait to compare all the same"
            )

    def stored(self, frame: Callable[[], DataFrame]) -> DataFrame:
        """A frame's rows as they are read now, which Spark never reads again; tried again where it fails."""

        def store() -> DataFrame:
            return checkpointed(frame(), self.kept, table=str(self.table))

        return self.context.retry(self.table).call(store)


@dataclass
class Standstill:
    """Whether nothing was applied for so many seconds of what is waited for."""

    seconds: float
    clock: Callable[[], float] = time.monotonic
    _waiting: int | None = field(default=None, init=False)
    _since: float = field(default=0.0, init=False)

    def lasts(self, waiting: int, *, at_work: bool) -> bool:
        """As it is now; ``at_work``: a batch of the table is under way, which may take its time."""
        now = self.clock()
        if at_work or waiting != self._waiting:
            self._waiting, self._since = waiting, now
            return False
        return now - self._since >= self.seconds


def _next(progress: Progress | None, topic: str, partition: int) -> int:
    return (progress.next_offset(topic, partition) if progress else None) or 0
