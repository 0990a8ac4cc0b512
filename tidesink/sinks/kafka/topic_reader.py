"""The interface of what reads records of topics to learn about them, in a worker or in a command."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from tidesink.events import Message
from tidesink.sinks.kafka.offsets import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa

R = TypeVar("R")
Records = Iterator["pa.RecordBatch"]


class TopicReader(Protocol):
    """Interface: reads records of topics, from which the columns and types of tables are learned."""

    @property
    def tasks(self) -> int:
        """The number of tasks that answer a question at the same time."""

    def ask(self, ranges: Sequence[OffsetRange], question: Callable[[Records], R]) -> list[R]:
        """Returns the answers to ``question`` on the records of the ranges, in the order of the ranges.

        A large range may be split. Then each part has its own answer.

        Raises:
            SourceError: Kafka refuses the request, or does not answer.
        """

    def read_here(self, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        """Yields the records of the ranges, which this process reads, one batch at a time.

        Raises:
            SourceError: Kafka refuses the request, or does not answer.
        """

    def messages_here(self, ranges: Sequence[OffsetRange]) -> Iterator[Message]:
        """Yields the records of the ranges as messages, without Kafka tombstones. This process reads them."""
