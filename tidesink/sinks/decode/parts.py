"""The parts that a schema source uses to find a table's columns, in a worker or in a command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from tidesink.config import Config
from tidesink.events import TableId
from tidesink.sinks.decode.filtering import FilterCheck
from tidesink.sinks.decode.topic_ddl import TopicDdl, TopicTables
from tidesink.sinks.kafka.offsets import TopicOffsets
from tidesink.sinks.kafka.topic_reader import TopicReader
from tidesink.sinks.state.progress import StatusStore

if TYPE_CHECKING:
    from tidesink.schema_registry import SchemaRegistry


T = TypeVar("T")


class TopicState(Protocol):
    """Interface: state that the tables of a topic share."""

    def ddl(self, topic: str) -> TopicDdl:
        """Returns the topic's table definitions, which come from its DDL events."""

    def tables(self, topic: str) -> TopicTables:
        """Returns the object that records which tables have records in a topic."""

    def ends_now(self, topic_offsets: TopicOffsets) -> TopicOffsets:
        """Looks up a topic's offsets again and returns them."""


class Retry(Protocol):
    """Interface: tries a failed step again."""

    def call(self, step: Callable[[], T]) -> T:
        """Calls ``step``, again after each failure that may pass, and returns its result.

        Raises:
            StopRequestedError: A stop was requested during a pause.
            TidesinkError: The error of the last try, if the time is over or this error will not pass.
        """


class Retries(Protocol):
    """Interface: returns the policy by which a failed step of a table is tried again."""

    def __call__(self, table: TableId, *, seconds: float, passes: Callable[[BaseException], bool]) -> Retry:
        """Returns a policy for errors for which ``passes`` is True, and for ``seconds`` after the first."""


class Noting(Protocol):
    """Interface: runs an optional step of a table that uses the state store."""

    def __call__(self, table: TableId, step: Callable[[], T], /, *, unless: str) -> T | None:
        """Returns the step's result. If the store does not answer, logs ``unless`` and returns None."""


@dataclass(frozen=True)
class DecodingParts:
    """The parts that a schema source uses to find a table's columns.

    Attributes:
        config: The pipeline's config.
        store: The state store.
        registry: The schema registry, or None if the config names none.
        topics: State that the tables of a topic share, for example the topic's DDL.
        reader: Reads records of topics.
        check_filter: Checks a table's filter.
        retries: Returns the policy by which a failed step is tried again.
        noting: Runs an optional step of a table that uses the state store.
        check_stop: Raises StopRequestedError if a stop was requested.
    """

    config: Config
    store: StatusStore
    registry: SchemaRegistry | None
    topics: TopicState
    reader: TopicReader
    check_filter: FilterCheck
    retries: Retries
    noting: Noting
    check_stop: Callable[[], None]
