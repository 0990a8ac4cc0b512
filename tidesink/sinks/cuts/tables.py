"""What cuts ask a pipeline's table. The worker's tables have these members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tidesink.errors import TidesinkError
from tidesink.events import TableId
from tidesink.sinks.jobs.base import Hold
from tidesink.sinks.kafka.offsets import Starts, TopicOffsets
from tidesink.sinks.laws.bound import Marks
from tidesink.sinks.state.progress import Progress, TopicProgress


class BoundedReading(Protocol):
    """How far a table has read its topic. Cuts set the bound up to which it reads on.

    Attributes:
        bound: The bound up to which changes are applied; None until it is chosen.
        marks: Newest known watermark per partition after the table's offsets, if only watermarks lie between.
        ends: With cuts of a Debezium connector, an offset per partition: all rows up to the bound have lower
            offsets.
    """

    bound: int | None
    marks: Marks
    ends: Mapping[int, int] | None

    @property
    def lag(self) -> int:
        """Number of records in the topic that were not applied when the worker last looked up offsets."""

    @property
    def stalled(self) -> bool:
        """True if added partitions must wait for records above the bound in the old partitions."""

    @property
    def outside(self) -> bool:
        """True if cuts leave the table out: its snapshot is unfinished, or newer than their bound."""

    @property
    def least_bound(self) -> int | None:
        """The lowest bound up to which the table can be read; None for any bound."""

    def unread(self, offsets: TopicOffsets) -> int:
        """Return the number of unread records up to the bound."""


class TableStart(Protocol):
    """The start of a table in its topic."""

    @property
    def offsets(self) -> Starts:
        """The first offset per partition that the table reads."""


class BoundedProgress(Protocol):
    """What is committed for a table at the target."""

    @property
    def hold(self) -> Hold | None:
        """The table at the target with its progress. None while it is closed."""

    @property
    def progress(self) -> Progress | None:
        """The table's progress, or None if the table is not open."""

    @property
    def topic_progress(self) -> TopicProgress | None:
        """The table's progress in its topic. None if the table is not open, or nothing was applied."""

    @property
    def start(self) -> TableStart:
        """The table's start in its topic (the setting ``start``)."""


class BoundedState(Protocol):
    """The state of a table, as users see it."""

    @property
    def obstacle(self) -> str:
        """The state and the error of a paused or failing table; empty for other tables."""


class BoundedTable(Protocol):
    """A table of the pipeline that is read up to the bound of a cut."""

    @property
    def table(self) -> TableId:
        """The table."""

    @property
    def topic(self) -> str:
        """The topic of the table's changes."""

    @property
    def opened(self) -> BoundedProgress:
        """What is committed for the table at the target."""

    @property
    def reading(self) -> BoundedReading:
        """How far the table has read its topic."""

    @property
    def status(self) -> BoundedState:
        """The state of the table, as users see it."""

    @property
    def applied(self) -> int:
        """Number of row events that all runs together have applied to the table."""

    def fail(self, error: TidesinkError) -> None:
        """Set the table's state to FAILING for an error outside its task, unless it is already stopped."""
