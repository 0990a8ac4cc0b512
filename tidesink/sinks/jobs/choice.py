"""Chooses the executor of a batch's tasks: a Spark job, or this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from tidesink.config.models import BatchSettings

ExecutorName = Literal["local", "spark"]


class Choice(NamedTuple):
    """An executor, and the reason why it was chosen as a text for ``tidesink status``."""

    executor: ExecutorName
    reason: str


class BatchSize(NamedTuple):
    """The size of a batch before it is read.

    ``records``: the number of offsets in its ranges. ``record_bytes``: the expected size of a decoded record
    in bytes.
    """

    records: int
    record_bytes: float

    @property
    def bytes(self) -> float:
        """The expected size of the decoded records in bytes."""
        return self.records * self.record_bytes


def choose(settings: BatchSettings, size: BatchSize, *, needs_spark: str | None = None) -> Choice:
    """Returns the executor for a batch.

    A Spark job costs half a second whatever the batch contains. Within the limits, this process is faster.

    ``needs_spark``: why only Spark can run the batch's tasks, or None.
    """
    if needs_spark is not None:
        return Choice("spark", needs_spark)
    if settings.executor != "auto":
        return Choice(settings.executor, f"batch.executor is {settings.executor}")
    if size.records > settings.local_records:
        return Choice("spark", f"more than {settings.local_records:,} records (batch.local-records)")
    if size.bytes > settings.local_bytes:
        return Choice("spark", "more bytes than batch.local-bytes")
    return Choice("local", "a small batch")
