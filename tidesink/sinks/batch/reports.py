"""The reports of a batch's tasks: their result rows (``tasks.PACKED_DDL``) without payloads.

Both executors read them: the rows are Spark's, or mappings if the tasks ran in this process.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tidesink.sinks.batch.summaries import joined_summaries
from tidesink.sinks.batch.tasks import mixed_hashes
from tidesink.sinks.laws.counts import BatchSummary
from tidesink.sinks.targets.base import StagedPart


class KafkaRead(NamedTuple):
    """How much a batch has read from Kafka.

    Attributes:
        records: The number of records.
        bytes: The size of their keys and values in bytes.
        unlisted: The number of rows of tables that the pipeline does not know.
        decoded: The size of the decoded records in the tasks' memory, in bytes.
        ddl: The number of DDL events of any table.
    """

    records: int
    bytes: int
    unlisted: int = 0
    decoded: int = 0
    ddl: int = 0


@dataclass(frozen=True)
class TaskReports:
    """The reports of all tasks of a batch. ``heads``: the result rows, each without its payload."""

    heads: Sequence[Any]

    @property
    def read(self) -> KafkaRead:
        """The amounts of data that were read from Kafka."""
        return KafkaRead(*(self._sum(name) for name in KafkaRead._fields))

    @property
    def row_by_row_records(self) -> int:
        """The number of records that the slower row codec decoded."""
        return self._sum("row_by_row_records")

    @property
    def summary(self) -> BatchSummary:
        """What the tasks report about the batch's records."""
        return joined_summaries([pickle.loads(head["summary"]) for head in self.heads if head["summary"]])  # noqa: S301

    @property
    def staged(self) -> tuple[StagedPart, ...] | None:
        """What the tasks report about the rows that they staged in the target. None if some rows could not be
        staged, or if a key is in two ranges.
        """
        parts = tuple(pickle.loads(head["staged"]) for head in self.heads if head["staged"])  # noqa: S301
        failed = any(part.failure is not None for part in parts)
        return None if failed or self.has_mixed_keys else parts

    @property
    def hashes(self) -> npt.NDArray[np.uint64]:
        """The hashes (``reduce.key_hashes``) of the keys of all rows to apply."""
        return np.frombuffer(b"".join(data for _, data in self._key_places), np.uint64)

    @property
    def has_mixed_keys(self) -> bool:
        """True if a hash of a key is in several topic-partitions. Different keys may have the same hash."""
        return len(mixed_hashes(self._key_places)) > 0

    def raise_error(self) -> None:
        """Raise the first error that a task returned, if any."""
        raise_first(self.heads)

    def _sum(self, name: str) -> int:
        return sum(head[name] or 0 for head in self.heads)

    @property
    def _key_places(self) -> list[tuple[tuple[str, int], bytes]]:
        """For each payload, its topic and partition and the hashes of its keys."""
        return [
            ((head["topic"], head["partition"]), bytes(head["hashes"]))
            for head in self.heads
            if head["hashes"]
        ]


def raise_first(heads: Sequence[Any]) -> None:
    """Raise the first error that a task returned in one of the result rows, if any."""
    for head in heads:
        if head["error"] is not None:
            raise pickle.loads(head["error"])  # noqa: S301  (our own task wrote it)
