"""What cuts are to a target: all tables of a pipeline as of one instant of their source (ADR 36).

A lake names the versions that its tables have at a cut. A database brings its tables to it, all at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final, NamedTuple, Protocol, runtime_checkable

from tidesink.errors import StaleProgressError
from tidesink.events import TableId
from tidesink.sinks.state.progress import Progress
from tidesink.sinks.targets.base import Target, TargetTable

# The table that has the cuts.
NAME: Final = "_tidesink_cuts"


def tag_prefix(pipeline: str) -> str:
    """What the names of tags begin with that keep what a pipeline's cuts name; the commit_ts follows.

    A table may hold the rows of several pipelines, whose cuts have the same instants.
    """
    return f"tidesink_cut_{pipeline}_"


class CutTable(NamedTuple):
    """A table in a cut. ``changes``: row events applied since the cut before; None where nobody knows."""

    table: TableId
    place: str
    version: int
    changes: int | None = None


class TableVersion(NamedTuple):
    """Where a table is, as its format's readers name it, and its version.

    That is Iceberg's snapshot id, and in a database how many commits were made.
    """

    place: str
    version: int


@runtime_checkable
class VersionedTable(TargetTable, Protocol):
    """A table that can be in a cut."""

    def version_of(self, progress: Progress) -> TableVersion:
        """The version that readers see now, whose rows are those of the progress.

        Raises:
            StaleProgressError: the table holds other progress: another worker has it.
            TargetError: the table cannot be read.
        """


@runtime_checkable
class KeptVersions(Protocol):
    """A table where something has to be done so that a version stays that a cut names."""

    def keep_version(self, version: int, commit_ts: int, *, keep: float) -> None:
        """Have a version stay until cuts that name it are older than ``keep`` seconds, or longer.

        It is asked before the cut at ``commit_ts`` is published.

        Raises:
            TargetError: nobody knows that it stays.
        """


class Held(Protocol):
    """An entry of a ledger."""

    @property
    def epoch(self) -> int:
        """The holder's epoch."""

    @property
    def batch(self) -> int:
        """The last batch."""


class CutPublisher(Protocol):
    """Who makes the cuts of a pipeline seen."""

    def last(self) -> int | None:
        """The commit_ts of the newest cut; None where there is none.

        Raises:
            TargetError: the target does not say.
        """

    def publish(
        self,
        commit_ts: int,
        tables: Mapping[CutTable, TargetTable],
        *,
        time: datetime,
        without: Collection[TableId],
        keep: float,
    ) -> None:
        """Publish a cut, at once; older ones may go after ``keep`` seconds. ``tables`` are open.

        ``time``: the source's at ``commit_ts``, which need not tell it. ``without``: the tables that it
        leaves out.

        Raises:
            StaleProgressError: a table is another worker's by now.
            TargetError: it was not published, or nobody knows.
        """


class CutTarget(Target, Protocol):
    """A target that has cuts."""

    def cut_log(self, pipeline: str) -> CutPublisher:
        """The cuts of a pipeline."""


def check_named(held: Held | None, progress: Progress) -> None:
    """Refuse to name a version for another worker's progress; ``held``: the entry of the ledger.

    Raises:
        StaleProgressError: the ledger has others than the progress.
    """
    at = (held.epoch, held.batch) if held is not None else None
    if at != (progress.epoch, progress.batch):
        raise StaleProgressError(
            f"the table's ledger has epoch and batch {at}, and this worker applied epoch {progress.epoch} "
            f"batch {progress.batch}: another worker holds the table. Run one worker a table",
            table=str(progress.table),
        )
