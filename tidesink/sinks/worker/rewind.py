"""Rewinds: the worker sets a table's offsets back, so that records are read again.

The command ``tidesink offsets rewind`` stores the request in the state store (``control``). The worker then
commits a batch without records, which moves the offsets in the table's progress back. The progress also
records two things:

- The offsets that were applied before the rewind, until the table reaches them again. While the table reads
  these records again, its rows may be older than before. So these records are read first: meanwhile, the
  table reads no newer records, and shares no reads with other tables of the topic.
- The number of the rewind, so that it is not repeated if the worker is killed after the commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from tidesink.config import TableConfig
from tidesink.errors import ConfigError
from tidesink.sinks.decode.topic_ddl import DDL_PARTITION
from tidesink.sinks.jobs.base import BatchPlan, Hold, Job, Settled, next_progress
from tidesink.sinks.kafka.offsets import OffsetRange, TopicOffsets, topic_progress
from tidesink.sinks.kafka.rewind import refuse_meanwhile, rewound_offsets
from tidesink.sinks.runtime.context import WorkerContext
from tidesink.sinks.runtime.control import RewindControl, change_control
from tidesink.sinks.state.progress import Progress, TopicProgress
from tidesink.sinks.state.source_reads import rewound

_log = structlog.get_logger("tidesink.worker")
_REFUSED: Final = "The requested rewind was refused. {}"


class Rewinds:
    """Handles a user's request to rewind one table. Used by one thread at a time.

    ``asked``: the request, or None.
    """

    def __init__(self, context: WorkerContext, settings: TableConfig) -> None:
        self._context = context
        self._settings = settings
        # The number of the last rewind that was refused.
        self._refused = 0
        self.asked: RewindControl | None = None

    def is_due(self, progress: Progress) -> bool:
        """Return True if a rewind is requested that was neither done nor refused yet."""
        return self.asked is not None and self.asked.number > max(progress.rewound, self._refused)

    def plan(
        self, progress: Progress, topic_offsets: TopicOffsets, *, loads: bool = False
    ) -> BatchPlan | None:
        """Return the offset ranges of the batch that sets the offsets back, or None if no rewind is due.

        The ranges have no records: each begins and ends at the requested offset of its partition.
        ``progress``: the table's progress. ``topic_offsets``: the topic's current offsets. ``loads``: True
        while the table's snapshot is not finished.

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
                topic_progress(progress, topic_offsets.topic),
                topic_offsets,
                dict(asked.offsets),
                self._settings,
                topic_id=asked.topic_id,
                grown=self._context.topics.grown(topic_offsets),
            )
        except ConfigError as exc:
            self._refused = asked.number
            self.settle()
            raise exc.with_context(table=str(self._settings.table)) from None
        ranges = (
            OffsetRange(topic_offsets.topic, n, offset, offset) for n, offset in sorted(offsets.items())
        )
        return BatchPlan(tuple(ranges), topic_offsets)

    def rewind_ddl(self, plan: BatchPlan) -> None:
        """Also set back the reader of the topic's DDL, if the partition that contains the DDL is rewound.

        This is done before the rewind is committed, because reading DDL twice does no harm. ``plan``: the
        plan of the rewind.

        Raises:
            StateStoreError: the store does not answer.
        """
        ddl = self._context.topics.ddl(plan.found.topic)
        for part in plan.ranges:
            if part.partition == DDL_PARTITION:
                ddl.rewind(plan.found, part.start)

    def settle(self) -> None:
        """Remove the request from the state store, because the rewind is done or refused.

        If it stayed, a table that is removed and loaded again later would be rewound.
        """
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
    """Log why a rewind was refused, and return the warning for the table's status."""
    text = _REFUSED.format(error.message)
    _log.warning("table not rewound", error=str(error))
    return text


def again_only(available: Sequence[OffsetRange], progress: TopicProgress | None) -> list[OffsetRange] | None:
    """Limit the readable ranges ``available`` to records that must be read again because of a rewind.

    Returns None if the table reads no records again.
    """
    again = progress.read_again if progress is not None else {}
    if not again:
        return None
    return [
        part._replace(end=min(part.end, again[part.partition].end if part.partition in again else part.start))
        for part in available
    ]


def rewind_details(progress: Progress | None, topic: str) -> dict[str, Any]:
    """Return the offsets that a table still reads again after a rewind, as a detail of its status.

    Empty if the table reads no records again.
    """
    current = progress.topics.get(topic) if progress is not None else None
    again: Mapping[int, Any] = current.read_again if current is not None else {}
    return {"read_again": {str(n): list(offsets) for n, offsets in sorted(again.items())}} if again else {}


@dataclass(frozen=True)
class Rewind(Job):
    """Moves the table's stored offsets back to the requested ones.

    ``plan``: the requested offsets, as empty ranges. ``number``: number of the rewind request.
    """

    plan: BatchPlan
    number: int

    def progress(self, hold: Hold, settled: Settled) -> Progress:  # noqa: ARG002
        """Return the table's progress at the requested offsets."""
        after = next_progress(hold, self.plan)
        offsets = {part.partition: part.start for part in self.plan.ranges}
        reads = rewound(after.source_reads, self.plan.found.topic, offsets)
        return replace(after, rewound=self.number, source_reads=reads)
