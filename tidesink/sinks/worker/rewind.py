"""Rewinds: a table's topic is read again from earlier offsets, set back by the worker in a commit of its own.

A user requests a rewind through the state store (``control``). The table's next turn sets its progress back,
in a batch without records, with the same epoch and ledger as any other batch. The progress keeps the
offsets up to which records were applied before, until they are reached again. Up to there the table is read
on its own and nothing new is applied, so that rows are outdated for the shortest time. The progress also has
the rewind's number, so that a killed worker does not repeat it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import structlog

from tidesink.config import TableConfig
from tidesink.errors import ConfigError
from tidesink.sinks.batch.context import WorkerContext
from tidesink.sinks.batch.counts import BatchSummary
from tidesink.sinks.batch.run import Batch, BatchOutcome, BatchPlan
from tidesink.sinks.kafka.offsets import OffsetRange, TopicOffsets, topic_progress
from tidesink.sinks.kafka.rewind import refuse_meanwhile, rewound_offsets
from tidesink.sinks.state.progress import Progress, TopicProgress
from tidesink.sinks.state.source_reads import rewound
from tidesink.sinks.worker.control import RewindControl, change_control

_log = structlog.get_logger("tidesink.worker")
_REFUSED: Final = "The requested rewind was refused. {}"


class Rewinds:
    """The request to rewind one table, until it is done or refused. Used by one thread at a time."""

    def __init__(self, context: WorkerContext, settings: TableConfig) -> None:
        self._context = context
        self._settings = settings
        # The number of the last rewind that was refused.
        self._refused = 0
        self.asked: RewindControl | None = None

    def is_due(self, progress: Progress) -> bool:
        """Return True if a requested rewind is neither done nor refused."""
        return self.asked is not None and self.asked.number > max(progress.rewound, self._refused)

    def plan(self, progress: Progress, found: TopicOffsets, *, loads: bool = False) -> BatchPlan | None:
        """Return the offsets to go back to, as ranges without records, or None if no rewind is due.

        ``loads``: True while the table's snapshot runs.

        Raises:
            ConfigError: the table may not be rewound; the request is removed.
            SourceError: the brokers refuse the request, or do not answer.
            StateStoreError: the store does not answer.
        """
        asked = self.asked
        if asked is None or not self.is_due(progress):
            return None
        try:
            refuse_meanwhile(self._context.config, self._settings.table, loads=loads)
            offsets = rewound_offsets(
                topic_progress(progress, found.topic),
                found,
                asked.offsets,
                self._settings,
                topic_id=asked.topic_id,
                grown=self._context.topics.grown(found),
            )
        except ConfigError as exc:
            self._refused = asked.number
            self.settle()
            raise exc.with_context(table=str(self._settings.table)) from None
        ranges = (OffsetRange(found.topic, n, offset, offset) for n, offset in sorted(offsets.items()))
        return BatchPlan(tuple(ranges), found)

    def settle(self) -> None:
        """Remove the request: a table that is loaded again later must not be rewound."""
        asked, config = self.asked, self._context.config
        if asked is None:
            return
        self._context.noted(
            self._settings.table,
            lambda: change_control(
                self._context.store,
                config.pipeline,
                self._settings.table,
                lambda control: control.answered(asked.number),
            ),
            unless="that the rewind is over not noted",
        )
        self.asked = None


def refused(error: ConfigError) -> str:
    """Log a refused rewind, and return the text for the table's status."""
    text = _REFUSED.format(error.message)
    _log.warning("table not rewound", error=str(error))
    return text


def again_only(available: Sequence[OffsetRange], progress: TopicProgress | None) -> list[OffsetRange] | None:
    """Return the available records that were applied before a rewind, or None if no rewind is under way."""
    again = progress.read_again if progress is not None else {}
    if not again:
        return None
    return [
        part._replace(end=min(part.end, again[part.partition].end if part.partition in again else part.start))
        for part in available
    ]


def rewind_details(progress: Progress | None, topic: str) -> dict[str, Any]:
    """Return what the status shows of a rewind that is under way."""
    known = progress.topics.get(topic) if progress is not None else None
    again: Mapping[int, Any] = known.read_again if known is not None else {}
    return {"read_again": {str(n): list(at) for n, at in sorted(again.items())}} if again else {}


class RewindBatch(Batch):
    """Sets the table's progress back to the offsets of its plan. Runs once; a retry needs a new object."""

    def __init__(self, *parts: Any, number: int, **named: Any) -> None:
        super().__init__(*parts, **named)
        self._number = number

    def _outcome(self) -> BatchOutcome:
        self._context.failpoints.reach("planned")
        decision = self._schema_decision(self._shape())
        if decision.pending:
            return BatchOutcome(self._hold.progress, pending=decision.pending)
        progress = self._following_progress(self._plan, BatchSummary())
        offsets = {part.partition: part.start for part in self._plan.ranges}
        reads = rewound(progress.source_reads, self._plan.found.topic, offsets)
        progress = replace(progress, rewound=self._number, source_reads=reads)
        return self._without_records(progress, decision, truncates=False)
