"""The interfaces of a target with cuts. A cut shows all tables of a pipeline at one commit_ts (ADR 36).

A lake records which version of each table belongs to a cut. A database merges the changes up to a cut into
all tables in one transaction.
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
    """Return the prefix of the tags (in Iceberg) that protect the table versions of a pipeline's cuts.

    The commit_ts of the cut follows the prefix. The prefix contains the pipeline's name because a table can
    be shared by several pipelines, whose cuts can have the same commit_ts.
    """
    return f"tidesink_cut_{pipeline}_"


class CutTable(NamedTuple):
    """A target table's entry in a cut.

    ``place``: the table's location, as readers of its format name it.
    ``version``: the version of the table that belongs to the cut.
    ``changes``: number of row events applied between the previous cut and this one; None if unknown.
    """

    table: TableId
    place: str
    version: int
    changes: int | None = None


class TableVersion(NamedTuple):
    """A target table's location and version.

    ``place``: the location as readers of the table's format name it.
    ``version``: the snapshot id in Iceberg, the table version in Delta, the number of commits in a database.
    """

    place: str
    version: int


@runtime_checkable
class VersionedTable(TargetTable, Protocol):
    """A table that can be part of a cut, because it can name the version that readers see."""

    def version_of(self, progress: Progress) -> TableVersion:
        """Return the table's current version, after checking that exactly ``progress`` is applied in it.

        Raises:
            StaleProgressError: the table has other progress, so another worker writes to it.
            TargetError: the table cannot be read.
        """


@runtime_checkable
class KeptVersions(Protocol):
    """A table whose old versions expire. ``keep_version`` protects the versions that cuts need."""

    def keep_version(self, version: int, commit_ts: int, *, keep: float) -> None:
        """Protect a version from expiry until all cuts that refer to it are older than ``keep`` seconds.

        Called before the cut at ``commit_ts`` is published.

        Raises:
            TargetError: the version could not be protected, or the outcome is unknown.
        """


class Held(Protocol):
    """An entry of the target's ledger: the epoch of a table's worker, and its last batch number."""

    @property
    def epoch(self) -> int:
        """The epoch of the worker that holds the table."""

    @property
    def batch(self) -> int:
        """The number of the last batch that was applied to the table."""


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

        ``tables``: the open table of each of the cut's entries.
        ``time``: the source's time at ``commit_ts``. It cannot always be derived from the commit_ts.
        ``without``: source tables of the pipeline that are not part of the cut.

        Raises:
            StaleProgressError: another worker holds one of the tables now.
            TargetError: the cut was not published, or the outcome is unknown.
        """


class CutTarget(Target, Protocol):
    """A target that can publish cuts."""

    def cut_log(self, pipeline: str) -> CutPublisher:
        """Return the publisher of a pipeline's cuts."""


def check_named(held: Held | None, progress: Progress) -> None:
    """Check that the ledger still has this worker's progress, before a version of the table is reported.

    ``held``: the table's entry in the ledger; None if the ledger has no entry.

    Raises:
        StaleProgressError: the ledger's epoch and batch number differ from those of ``progress``.
    """
    numbers = (held.epoch, held.batch) if held is not None else None
    if numbers != (progress.epoch, progress.batch):
        raise StaleProgressError(
            f"The table's ledger has epoch and batch number {numbers}, but this worker applied epoch "
            f"{progress.epoch} batch {progress.batch}: another worker holds the table. Run only one worker "
            "per "
            "table.",
            table=str(progress.table),
        )
