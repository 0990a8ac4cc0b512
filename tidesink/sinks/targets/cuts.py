"""The contract of a target with cuts: all tables of a pipeline as of one instant of the source (ADR 36).

A lake records which version of each table belongs to a cut. A database brings all tables to the cut at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final, NamedTuple, Protocol, runtime_checkable

from tidesink.errors import StaleProgressError
from tidesink.events import TableId
from tidesink.sinks.state.progress import Progress
from tidesink.sinks.targets.base import Target, TargetTable

# The table that records the cuts.
NAME: Final = "_tidesink_cuts"


def tag_prefix(pipeline: str) -> str:
    """Return the prefix of the tags that keep the versions of a pipeline's cuts. The commit_ts follows it.

    The pipeline is part of the prefix because a table may hold the rows of several pipelines, whose cuts can
    have the same commit_ts.
    """
    return f"tidesink_cut_{pipeline}_"


class CutTable(NamedTuple):
    """A table in a cut. ``changes``: row events applied since the previous cut; None if unknown."""

    table: TableId
    place: str
    version: int
    changes: int | None = None


class TableVersion(NamedTuple):
    """A table's location, as readers of its format name it, and its version.

    The version is a snapshot id in Iceberg, and the number of commits in a database.
    """

    place: str
    version: int


@runtime_checkable
class VersionedTable(TargetTable, Protocol):
    """A table that can be part of a cut."""

    def version_of(self, progress: Progress) -> TableVersion:
        """Return the version that readers see now. It must hold exactly the rows of ``progress``.

        Raises:
            StaleProgressError: the table holds other progress, so another worker has it.
            TargetError: the table cannot be read.
        """


@runtime_checkable
class KeptVersions(Protocol):
    """A table that keeps a version for a cut only on request."""

    def keep_version(self, version: int, commit_ts: int, *, keep: float) -> None:
        """Keep a version at least until the cuts that refer to it are older than ``keep`` seconds.

        Called before the cut at ``commit_ts`` is published.

        Raises:
            TargetError: it is not certain that the version is kept.
        """


class Held(Protocol):
    """A ledger entry with an epoch and a batch number."""

    @property
    def epoch(self) -> int:
        """The epoch of the worker that holds the table."""

    @property
    def batch(self) -> int:
        """The number of the last batch."""


class CutPublisher(Protocol):
    """Publishes a pipeline's cuts to readers."""

    def last(self) -> int | None:
        """Return the commit_ts of the newest cut; None if there is no cut.

        Raises:
            TargetError: the target cannot be read.
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
        """Publish a cut atomically. Cuts older than ``keep`` seconds may be removed.

        ``tables``: the cut's tables, open.
        ``time``: the source's time at ``commit_ts``. It cannot always be derived from the commit_ts.
        ``without``: tables that are not part of the cut.

        Raises:
            StaleProgressError: another worker holds one of the tables now.
            TargetError: the cut was not published, or the outcome is unknown.
        """


class CutTarget(Target, Protocol):
    """A target that supports cuts."""

    def cut_log(self, pipeline: str) -> CutPublisher:
        """Return the publisher of a pipeline's cuts."""


def check_named(held: Held | None, progress: Progress) -> None:
    """Refuse to name a version for another worker's progress.

    ``held``: the entry of the table's ledger.

    Raises:
        StaleProgressError: the ledger's epoch and batch differ from the progress.
    """
    at = (held.epoch, held.batch) if held is not None else None
    if at != (progress.epoch, progress.batch):
        raise StaleProgressError(
            f"The table's ledger has epoch and batch {at}, but this worker applied epoch {progress.epoch} "
            f"batch {progress.batch}: another worker holds the table. Run only one worker per table.",
            table=str(progress.table),
        )
