"""What listeners are told of a batch that was applied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidesink.events import TableId
from tidesink.sinks.listener import BatchApplied

if TYPE_CHECKING:
    from tidesink.sinks.batch.run import BatchOutcome


def applied_event(table: TableId, outcome: BatchOutcome) -> BatchApplied:
    """A batch that was applied and accounted for."""
    assert outcome.account is not None and outcome.read is not None  # noqa: S101, PT018  (it was applied)
    return BatchApplied(
        table,
        outcome.progress.batch,
        outcome.account,
        outcome.version,
        outcome.progress.commit_ts,
        bytes_read=outcome.read.bytes,
        seconds=dict(outcome.seconds),
        doubted=outcome.doubted,
        doubts=outcome.doubts,
    )
