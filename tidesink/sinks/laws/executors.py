"""The rule by which a batch's tasks run in the worker's process or in a Spark job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from tidesink.config.models import BatchSettings

ExecutorName = Literal["local", "spark"]
HAS_FILTER: Final = "Spark evaluates the table's filter"


class Choice(NamedTuple):
    """An executor, and the reason why it was chosen, as a text for the log and for people."""

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


class LocalLimits(NamedTuple):
    """The largest batch that the worker's process reads. Spark reads larger ones.

    ``records``: its number of records. ``bytes``: its expected size in bytes.
    """

    records: int = 0
    bytes: int = 0

    @classmethod
    def of(cls, settings: BatchSettings) -> LocalLimits:
        """Returns the limits of a config."""
        if settings.executor == "spark":
            return cls()
        if settings.executor == "local":
            return cls(settings.max_records, settings.max_bytes)
        return cls(settings.local_records, settings.local_bytes)

    def hold(self, size: BatchSize) -> bool:
        """Returns True if a batch of this size is within the limits."""
        return size.records <= self.records and size.bytes <= self.bytes


def choose(settings: BatchSettings, size: BatchSize, *, needs_spark: str | None = None) -> Choice:
    """Returns the executor for a batch.

    A Spark job costs half a second whatever the batch contains. Within the limits, this process is faster.

    ``needs_spark``: why only Spark can run the batch's tasks, or None.
    """
    if needs_spark is not None:
        return Choice("spark", needs_spark)
    if settings.executor != "auto":
        return Choice(settings.executor, f"batch.executor is {settings.executor}")
    if LocalLimits.of(settings).hold(size):
        return Choice("local", "a small batch")
    return Choice("spark", "the batch is above batch.local-records or batch.local-bytes")


def shown_rule(settings: BatchSettings, *, has_filter: bool) -> str:
    """Returns the rule by which the executor of a table's batches is chosen, as a text for people.

    ``has_filter``: True if the table has a row filter.
    """
    if has_filter:
        return f"spark ({HAS_FILTER})"
    if settings.executor != "auto":
        return settings.executor
    records, size = settings.local_records, settings.local_bytes / 2**20
    return f"auto (local up to {records:,} records and {size:,.0f} MiB; otherwise spark)"
