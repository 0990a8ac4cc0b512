"""What every lane of a worker shares: the config, Kafka, the target, the store, and who listens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import structlog

from tidesink.config import Config
from tidesink.errors import TidesinkError
from tidesink.events import TableId
from tidesink.sinks.failpoints import Failpoints
from tidesink.sinks.kafka.letter_store import DeadLetters
from tidesink.sinks.listener import Listeners, StepRetried
from tidesink.sinks.retry import RetryPolicy, may_pass
from tidesink.sinks.source import KafkaSource
from tidesink.sinks.state_store import StateStore
from tidesink.sinks.stopping import StopFlag, StopRequestedError
from tidesink.sinks.targets import target_module
from tidesink.sinks.targets.base import Target
from tidesink.sinks.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidesink.schema_registry import SchemaRegistry

T = TypeVar("T")
_log = structlog.get_logger("tidesink.worker")


@dataclass(frozen=True)
class Surroundings:
    """The parts of a running worker. All of them may be used from several threads.

    ``registry`` is None where the config names none, ``dead_letters`` gives those of the pipeline when
    the first is to be written.
    """

    config: Config
    spark: SparkSession
    source: KafkaSource
    target: Target
    store: StateStore
    dead_letters: Callable[[], DeadLetters]
    registry: SchemaRegistry | None
    topics: Topics
    failpoints: Failpoints
    listeners: Listeners
    stop: StopFlag

    def place_of(self, table: TableId) -> str:
        """Where the target keeps a table, for people to read."""
        return target_module(self.config.target).place_of(
            self.config.target, self.config.destination(table).table
        )

    def noted(self, table: TableId, step: Callable[[], T], *, unless: str) -> T | None:
        """What a step of the state store's gives, tried again; None where the store stays silent.

        That is said, in the words of ``unless``, and the lane goes on: what is applied is in the target.
        """
        try:
            return self.retry(table).call(step)
        except (TidesinkError, StopRequestedError) as exc:
            _log.warning(unless, table=str(table), error=str(exc))
            return None

    def retry(
        self,
        table: TableId | None = None,
        *,
        seconds: float | None = None,
        passes: Callable[[BaseException], bool] = may_pass,
    ) -> RetryPolicy:
        """A retry policy, the config's own if not told otherwise, which tells the listeners what it does."""

        def tell(error: TidesinkError, pause: float) -> None:
            self.listeners.hear(StepRetried(table, error, pause))

        time = self.config.retry.for_ if seconds is None else seconds
        return RetryPolicy(time, stop=self.stop, on_retry=tell, passes=passes)
