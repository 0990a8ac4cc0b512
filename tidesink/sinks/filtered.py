"""What of a table's events were no rows: DDL, watermarks and other messages, counted apart for ``status``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidesink.sinks.progress import Progress
from tidesink.sinks.summary import BatchSummary


@dataclass(frozen=True)
class Filtered:
    """The events that the law calls filtered, by kind, of one batch or of many added up.

    ``last_ddl``: ``commit_ts``, ``kind`` and ``query`` of the newest DDL event that is kept, None where none
    is.
    """

    ddl: int = 0
    watermarks: int = 0
    messages: int = 0
    last_ddl: Mapping[str, Any] | None = None

    def __add__(self, other: Filtered) -> Filtered:
        ddl, watermarks, messages = (a + b for a, b in zip(self._counts(), other._counts(), strict=True))
        return Filtered(ddl, watermarks, messages, other.last_ddl or self.last_ddl)

    def _counts(self) -> tuple[int, int, int]:
        return self.ddl, self.watermarks, self.messages

    def as_details(self) -> dict[str, Any]:
        """As the state store keeps it."""
        counts = dict(zip(("ddl", "watermarks", "messages"), self._counts(), strict=True))
        return {"filtered": counts, "last_ddl": None if self.last_ddl is None else dict(self.last_ddl)}

    @classmethod
    def from_details(cls, details: Mapping[str, Any]) -> Filtered:
        """What ``as_details`` made; nothing where there is nothing."""
        return cls(**details.get("filtered", {}), last_ddl=details.get("last_ddl"))


def filtered_of(summary: BatchSummary, last_ddl: Mapping[str, Any] | None = None) -> Filtered:
    """What one batch filtered."""
    others = summary.filtered - summary.ddl - summary.watermarks
    return Filtered(summary.ddl, summary.watermarks, others, last_ddl)


def passed(progress: Progress | None, topic: str, filtered: Filtered) -> dict[str, Any]:
    """What was read and is no row, and the watermark that every partition has passed, for ``status``."""
    watermark = least_watermark(progress, topic) if progress else None
    return {"watermark": watermark, **filtered.as_details()}


def least_watermark(progress: Progress, topic: str) -> int | None:
    """The commit_ts (TiDB TSO) that every partition of a topic has passed: all changes up to it were read.

    None where some partition brought no watermark yet. A DDL event committed at or before it stands behind
    no change that is still to come: that is when it may be applied, and where a cut may be made.
    """
    at = progress.topics.get(topic)
    marks = [part.watermark for part in at.partitions.values()] if at else []
    known = [mark for mark in marks if mark is not None]
    return min(known) if known and len(known) == len(marks) else None
