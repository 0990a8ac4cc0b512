"""A table's topic is read again from earlier offsets: a rewind, done by the worker in a commit of its own.

A person asks for it through the state store (``control``). At the table's next turn its progress goes back,
in a batch without records, under the same epoch and ledger as any other. The offsets up to which it was
applied before stay in the progress until they are reached again: up to there the table is read alone and
nothing new is applied, so that rows are older than they were for as short a time as can be. The progress has
the rewind's number, too, so that a worker that is killed does it once.
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
_REFUSED: Final = "the table was not rewound as it was asked to: {}"


class Rewinds:
    """What is asked of one table's offsets, until it is done or refused. Used by one thread at a time."""

    def __init__(self, context: WorkerContext, settings: TableConfig) -> None:
        self._context = context
        self._settings = settings
        # The number of the last one that was refused.
        self._refused = 0
        self.asked: RewindControl | None = None

    def is_due(self, progress: Progress) -> bool:
        """Whether a rewind was asked for that was neither done nor refused."""
        return self.asked is not None and self.asked.number > max(progress.rewound, self._refused)

    def plan(self, progress: Progress, found: TopicOffsets, *, loads: bool = False) -> BatchPlan | None:
        """The offsets that the table goes back to, as ranges without records; None: none is due.

        ``loads``: the table's snapshot is under way.

        Raises:
            ConfigError: it may not be rewound; the request is over.
            SourceError: the brokers refuse us, or do not answer.
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
        """Nothing is asked any more: a table that is loaded again later is not rewound."""
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
    """What the table's status says of a rewind that was refused."""
    text = _REFUSED.format(error.message)
    _log.warning("table not rewound", error=str(error))
    return text


def again_only(available: Sequence[OffsetRange], progress: TopicProgress | None) -> list[OffsetRange] | None:
    """Of what can be read that which was applied before a rewind; None where none is under way."""
    again = progress.read_again if progress is not None else {}
    if not again:
        return None
    return [
        part._replace(end=min(part.end, again[part.partition].end if part.partition in again else part.start))
        for part in available
    ]


def rewind_details(progress: Progress | None, topic: str) -> dict[str, Any]:
    """What the status shows of a table that is being read again."""
    known = progress.topics.get(topic) if progress is not None else None
    again: Mapping[int, Any] = known.read_again if known is not None else {}
    return {"read_again": {str(n): list(at) for n, at in sorted(again.items())}} if again else {}


class RewindBatch(Batch):
    """Has the table's progress go back to the offsets of its plan. Runs once; a new object tries again."""

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
