"""The ledger of a Delta table: its pipeline and applied progress, in the user metadata of tidesink's commits.

Each commit of tidesink also has a transaction version (epoch × 2^40 + batch number), by which Delta refuses
or skips a later commit of an older epoch. To read the ledger, commits are read from the latest version
backwards, up to the first one by tidesink.

Delta removes old commits (after 30 days by default), but keeps the last transaction version. If tidesink's
last commit was removed, the progress for that transaction version is read from the state store, which records
it before each commit. If the state store does not have it either, the ledger raises an error instead of
guessing.

A RESTORE brings old rows back, but does not change the transaction version. It is only accepted if it
restores the rows of tidesink's newest commit.
"""

# ruff: noqa: S608  every name and text in a statement is quoted by targets/sharing.py

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from tidesink.errors import ProgressError, StaleProgressError, TransientTargetError
from tidesink.events import TableId
from tidesink.sinks.state.progress import Progress, split_txn_version, txn_version
from tidesink.sinks.targets.base import SEQUENCE_COLUMN, SOFT_DELETE_COLUMN, Collected
from tidesink.sinks.targets.delta.log import MARKER, Commit, DeltaLog
from tidesink.sinks.targets.delta.schema import BACKFILL_APPLICATION
from tidesink.sinks.targets.lake.ledger import EntryKind, LakeEntry, form_of, or_none
from tidesink.sinks.targets.lake.tables import transaction
from tidesink.sinks.targets.sharing import Owner, is_shared, not_shared, quote_identifier, quote_path
from tidesink.typemap.target_schema import Shard

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


APPLICATION: Final = "tidesink.progress"
# Stands for a commit that Delta has removed from the log.
_CLEANED_AWAY: Final = Commit(-1, "cleaned away")
_CLAIM_ATTEMPTS: Final = 5
# Operations that replace the rows that tidesink's commits wrote.
_REPLACING: Final = frozenset(
    {
        "RESTORE",
        "CLONE",
        "REPLACE TABLE",
        "CREATE OR REPLACE TABLE",
        "REPLACE TABLE AS SELECT",
        "CREATE OR REPLACE TABLE AS SELECT",
    }
)

# Operations of tidesink's commits. An auto compaction (if the table's properties enable it) repeats the user
# metadata of the previous batch, but its operation differs.
_OURS: Final = frozenset({"MERGE", "WRITE", "DELETE", "UPDATE", MARKER})


class ProgressHistory(Protocol):
    """The state store's record of the progress after each batch, for commits that Delta has removed from the
    log.
    """

    def record_progress(self, progress: Progress) -> None:
        """Record a table's progress. Called before it is committed: by the worker before a batch, and by the
        ledger before a claim.
        """

    def progress_of(self, pipeline: str, table: TableId, txn_version: int) -> Progress | None:
        """Return the recorded progress after the batch with this transaction version; None if unknown."""


@dataclass(frozen=True)
class DeltaEntry(LakeEntry):
    """The ledger entry in one of tidesink's commits.

    ``commit``: the commit that contains the entry.
    ``counts``: for a history table, the batch's row counts (``lake.versions.Counts``).
    ``seen``: the table version up to which the worker had checked other writers' commits; None if not
        recorded.
    """

    commit: Commit = _CLEANED_AWAY
    counts: Mapping[str, int] | None = None
    seen: int | None = None


@dataclass(frozen=True)
class Ledger:
    """Reads and writes the ledger of one table, or of one shard of a table that several source tables share.

    Each shard has its own transaction version in Delta, so that commits of different shards do not conflict.

    ``table``: the source table.
    ``path``: the Delta table's path.
    ``history``: the store with the progress after each batch; None if there is no such store.
    ``keys``: the key columns.
    """

    log: DeltaLog
    table: TableId
    pipeline: str
    path: str
    history: ProgressHistory | None = None
    keys: tuple[str, ...] = ()
    shard: Shard | None = None

    @property
    def application(self) -> str:
        """The application name under which Delta stores the transaction version of this table or shard."""
        return application_of(APPLICATION, self.shard)

    def newest(self, at: int | None = None) -> DeltaEntry | None:
        """Return the ledger entry in this table's or shard's newest commit; None if the table or shard was
        never claimed.

        ``at``: the version from which commits are read backwards; None for the latest.

        Raises:
            StaleProgressError, ProgressError: for the same reasons as ``committed``.
        """
        if self.shard is not None and self.log.transaction_version(self.application) is None:
            self._check_shared(self.shard)
            return None
        passed: list[Commit] = []
        for commit in self.log.newest_first(at=at):
            if commit is None:
                return self._from_history(passed)
            entry = self._own(read_entry(commit))
            if entry is not None:
                self._check_owner(entry)
                self._check_rows(entry, passed)
                return entry
            passed.append(commit)
        return None

    def _check_shared(self, shard: Shard) -> None:
        """Check that a shared table was not loaded from a source table without a shard.

        Raises:
            StaleProgressError: the table has commits of a source table without a shard.
        """
        if self.log.transaction_version(APPLICATION) is not None:
            raise not_shared(f"the Delta table at {self.path}", shard, table=self.table)

    def _own(self, entry: DeltaEntry | None) -> DeltaEntry | None:
        """Return ``entry`` if this table or shard wrote it; None if another shard wrote it, or if ``entry``
        is None.

        Raises:
            StaleProgressError: the table is shared, but this source table has no shard.
        """
        if entry is None or entry.shard == (self.shard.value if self.shard else None):
            return entry
        if self.shard is None:
            raise is_shared(f"the Delta table at {self.path}", self.shards(), table=self.table)
        return None

    def shards(self) -> tuple[str, ...]:
        """Return the names of the other shards that ever claimed the table."""
        first = f"{APPLICATION}/"
        return tuple(
            name.removeprefix(first)
            for name in self.log.applications()
            if name.startswith(first) and name != self.application
        )

    def committed(self) -> Progress | None:
        """Return the applied progress; None if no batch was ever applied.

        Raises:
            StaleProgressError: the table was restored or replaced, or belongs to another pipeline or another
                source table.
            ProgressError: batches were applied, but their progress can no longer be read.
        """
        entry = self.newest()
        return entry.progress if entry else None

    def claim(self) -> DeltaEntry:
        """Claim the table: commit the next epoch with the applied progress, and return the new ledger entry.

        The commit fences workers with an older epoch. Raises Delta's conflict exception if another tidesink
        worker commits to the table at the same time.

        Raises:
            StaleProgressError, ProgressError: for the same reasons as ``committed``, also if the table was
                restored or replaced between reading the ledger and this commit.
            SchemaRefusedError: the table's rows were written under another key.
            TransientTargetError: other writers kept committing.
        """
        for _ in range(_CLAIM_ATTEMPTS):
            version = self.log.latest()
            held = self.newest(version)
            if held is not None and held.progress is not None:
                self._owner.check_keys(held.keys)
            entry = self._claim_at(version, held)
            if entry is not None:
                self._check_rows(entry, [])
                return entry
        raise TransientTargetError(
            "Other writers kept committing, so the claim of the table failed. It is tried again.",
            table=str(self.table),
        )

    def _claim_at(self, read_version: int, held: DeltaEntry | None) -> DeltaEntry | None:
        claim = self.claimed(held)
        if claim.progress and self.history:
            self.history.record_progress(claim.progress)
        version = self.log.commit_marker(
            self.application,
            txn_version(claim.epoch, claim.batch),
            claim.to_json(),
            read_at=read_version,
            fences=self._fences(claim.epoch),
        )
        commit = self.log.commit(version) if version is not None else None
        return read_entry(commit) if commit else None

    def claimed(self, held: DeltaEntry | None) -> DeltaEntry:
        """Return the ledger entry to commit for a claim. It has the next epoch and the applied progress.

        ``held``: the ledger's current entry; None if the ledger is empty.
        """
        before = held if held is not None else self._entry("claim", 0, None)
        return replace(before.claimed(self.keys), kind="claim")

    def _fences(self, epoch: int) -> dict[str, int]:
        """Return, by application name, the transaction versions that keep older workers from commits other
        than batches.

        Such commits write defaults or remove tombstones (rows that record deletes). They have application
        names of their own.
        """
        names = (BACKFILL_APPLICATION, TOMBSTONES_APPLICATION)
        return {application_of(name, self.shard): txn_version(epoch, 0) for name in names}

    def batch_text(
        self,
        progress: Progress,
        *,
        counts: Mapping[str, int] | None = None,
        known: tuple[str, ...] | None = None,
        seen: int | None = None,
    ) -> str:
        """Return the text of a batch's ledger entry, which becomes the user metadata of its commit.

        The arguments are the fields of ``DeltaEntry``.
        """
        entry = replace(self._entry("batch", progress.epoch, progress), known=known)
        more = {"counts": counts, "seen": seen}
        return entry.to_json(**{name: member for name, member in more.items() if member is not None})

    def _entry(self, kind: EntryKind, epoch: int, progress: Progress | None) -> DeltaEntry:
        shard, source = (self.shard.value, self.table) if self.shard else (None, None)
        return DeltaEntry(self.pipeline, self.keys, epoch, progress, kind=kind, shard=shard, source=source)

    def since(self, version: int) -> tuple[int, list[DeltaEntry]]:
        """Return the table's latest version, and the ledger entries of later commits than ``version``, newest
        first.

        Raises:
            StaleProgressError: the table was restored or replaced after ``version``, or its log ends before
                ``version``.
        """
        latest = self.log.latest()
        if latest < version:
            raise shortened(latest, version, path=self.path, table=str(self.table))
        commits = [commit for commit in self.log.newest_first(at=latest, above=version) if commit]
        move = _newest_move(commits)
        if move is not None:
            raise moved(move, version, path=self.path, table=str(self.table))
        entries = [entry for entry in map(self._own, map(read_entry, commits)) if entry]
        return latest, entries

    def lost_to(self, entry: DeltaEntry) -> StaleProgressError:
        """Return the error to raise because another worker has claimed the table.

        ``entry``: the other worker's ledger entry.
        """
        return StaleProgressError(
            f"Another worker holds this table (version {entry.commit.version}, epoch {entry.epoch}, "
            f"pipeline {entry.pipeline!r}). Run only one worker per table. This worker wrote nothing and "
            "must stop.",
            table=str(self.table),
        )

    @property
    def _owner(self) -> Owner:
        apart = "set `target.table` in the config so that the two have different paths"
        return Owner(
            self.pipeline, self.table, self.keys, f"the Delta table at {self.path}", apart, self.shard
        )

    def _check_owner(self, entry: DeltaEntry) -> None:
        source = entry.progress.table if entry.progress else None
        self._owner.check_writer(entry.pipeline, entry.source if self.shard else source)

    def _check_rows(self, entry: DeltaEntry, passed: list[Commit]) -> None:
        """Check that no other commit replaced the rows of tidesink's newest commit.

        ``entry``: the ledger entry in tidesink's newest commit.
        ``passed``: the commits after tidesink's newest commit.

        Raises:
            StaleProgressError: another writer's commit replaced the rows after tidesink's newest commit, or
                while that commit was being written.
        """
        version, context = entry.commit.version, {"path": self.path, "table": str(self.table)}
        looked = entry.commit.read_version if entry.seen is None else entry.seen
        between = range(version - 1, version - 1 if looked is None else looked, -1)
        within = _newest_move(map(self.log.commit, between))
        if within is not None:
            raise moved_within(within, version, **context)
        newest_move = _newest_move(passed)
        if newest_move is not None and not self._leads_back(newest_move, entry):
            raise moved(newest_move, version, **context)

    def _leads_back(self, move: Commit, entry: DeltaEntry) -> bool:
        """Return True if the commit ``move`` is a RESTORE to a version that has the rows of ``entry``'s
        commit.
        """
        version = move.restored_version
        while move.operation == "RESTORE" and version is not None and version >= entry.commit.version:
            commit = self.log.commit(version)
            if commit is None:
                return False
            if version == entry.commit.version:
                return True
            if _replaces(commit):
                move, version = commit, commit.restored_version
            else:
                version -= 1
        return False

    def _from_history(self, passed: list[Commit]) -> DeltaEntry | None:
        version = self.log.transaction_version(self.application)
        if version is None:
            return None
        move = _newest_move(passed)
        if move is not None:
            raise moved_unseen(move, path=self.path, table=str(self.table))
        epoch, batch = split_txn_version(version)
        if batch == 0:
            return self._entry("batch", epoch, None)
        progress = self.history.progress_of(self.pipeline, self.table, version) if self.history else None
        if progress is None:
            raise ProgressError(
                f"Epoch {epoch} batch {batch} is applied, but Delta has removed its commit from the log, "
                "and the "
                f"state store of pipeline {self.pipeline!r} does not have its progress. Restore the state "
                "store "
                f"from a backup, or remove the folder {self.path} and let the worker load the table again "
                "from "
                "the start of its topic.",
                table=str(self.table),
            )
        return self._entry("batch", epoch, progress)


def read_entry(commit: Commit) -> DeltaEntry | None:
    """Return the ledger entry in a commit; None if tidesink did not make the commit.

    Raises:
        ProgressError: the entry is damaged, or has another format than this tidesink version reads.
    """
    document = _document(commit.metadata)
    if document is None or commit.operation not in _OURS:
        return None
    form = form_of(
        f"The ledger entry in version {commit.version} of the Delta table",
        "Restore an earlier version, or remove the table's folder and let the worker load the table again "
        "from the start of its topic.",
    )
    stored = form.read(document)
    return DeltaEntry(
        **stored.common, commit=commit, counts=or_none(stored.counts), seen=or_none(stored.seen)
    )


def application_of(application: str, shard: Shard | None) -> str:
    """Return the application name for a shard's transaction version; ``application`` itself if ``shard`` is
    None.
    """
    return application if shard is None else f"{application}/{shard.value}"


def _document(text: str | None) -> dict[str, Any] | None:
    try:
        document = json.loads(text) if text else None
    except ValueError:
        return None
    return document if isinstance(document, dict) and "tidesink" in document else None


def _newest_move(newest_first: Iterable[Commit | None]) -> Commit | None:
    return next((commit for commit in newest_first if commit is not None and _replaces(commit)), None)


def _replaces(commit: Commit) -> bool:
    return commit.operation in _REPLACING or commit.overwrites


def moved(move: Commit, version: int, *, path: str, table: str) -> StaleProgressError:
    """Return the error to raise because the commit ``move`` replaced the rows of tidesink's commit
    ``version``.
    """
    return StaleProgressError(
        f"{move.operation} at version {move.version} changed rows after version {version}, which has the "
        "committed progress. If the worker continued, changes would be missing. Either bring the rows of "
        f"that version back with RESTORE TABLE delta.`{path}` TO VERSION AS OF {version}, or remove the "
        "table's folder and let the worker load the table again from the start of its topic.",
        table=table,
    )


def moved_within(move: Commit, version: int, *, path: str, table: str) -> StaleProgressError:
    """Return the error to raise because the commit ``move`` replaced rows while tidesink wrote the commit
    ``version``.
    """
    return StaleProgressError(
        f"{move.operation} at version {move.version} changed rows while a worker wrote version {version}, "
        "so changes are missing from that version and all later ones. Remove the folder "
        f"{path} and let the worker load the table again from the start of its topic.",
        table=table,
    )


def moved_unseen(move: Commit, *, path: str, table: str) -> StaleProgressError:
    """Return the error to raise because the commit ``move`` replaced rows, and Delta has already removed
    tidesink's newest commit from the log.
    """
    return StaleProgressError(
        f"{move.operation} at version {move.version} changed rows after tidesink's last commit, and Delta "
        "has removed that commit from its log. So it is unknown which changes the table still has. Remove "
        f"the folder {path} and let the worker load the table again from the start of its topic.",
        table=table,
    )


def shortened(latest: int, version: int, *, path: str, table: str) -> StaleProgressError:
    """Return the error to raise because Delta's log ends at ``latest``, although this worker has read it up
    to ``version``.
    """
    return StaleProgressError(
        f"The log of the Delta table at {path} ends at version {latest}, but it ended at version {version} "
        "when this worker last read it: the table was replaced by an older copy. Nothing was written. Start "
        "the worker again. It then reports how to continue.",
        table=table,
    )


TOMBSTONES_APPLICATION: Final = "tidesink.tombstones"
PROPERTY: Final = "tidesink.horizon"
_MARKED: Final = quote_identifier(SOFT_DELETE_COLUMN)
_COMMIT_TS: Final = f"{quote_path(SEQUENCE_COLUMN, 'source')}[0]"


def horizon_of(log: DeltaLog) -> int | None:
    """Return the horizon: the commit_ts up to which tombstones (rows that record deletes) may have been
    removed; None if none were removed.
    """
    text = log.property(PROPERTY)
    return int(text) if text else None


def collect(session: SparkSession, log: DeltaLog, location: str, *, horizon: int, epoch: int) -> Collected:
    """Record a new horizon, then remove the tombstones (rows that record deletes) up to this commit_ts.

    Both commits have a transaction version of ``epoch``. So a worker that was fenced by another worker can
    neither remove tombstones nor move the horizon back.

    ``horizon``: the new horizon. The recorded horizon is used instead if it is greater.

    Raises:
        StaleProgressError: another worker claimed the table in the meantime.
    """
    now = max(horizon, horizon_of(log) or 0)
    words = f"tombstones of deletes up to commit_ts {now} are removed after this commit"
    if not log.put_property(TOMBSTONES_APPLICATION, log.next_version(epoch), PROPERTY, str(now), words=words):
        raise _lost(log)
    with transaction(session, TOMBSTONES_APPLICATION, log.next_version(epoch)):
        removed = session.sql(f"DELETE FROM {location} WHERE {_MARKED} AND {_COMMIT_TS} <= {now}").collect()
    if not removed:  # for a skipped statement, Delta returns no row with counts at all
        raise _lost(log)
    left = f"SELECT count(*) AS kept, min({_COMMIT_TS}) AS oldest FROM {location} WHERE {_MARKED}"
    remaining: Any = session.sql(left).first()
    return Collected(now, int(removed[0][0]), remaining["kept"], remaining["oldest"])


def _lost(log: DeltaLog) -> StaleProgressError:
    return StaleProgressError(
        f"Another worker claimed the Delta table at {log.path} while this worker removed tombstones (rows "
        "that record deletes) from it. Run only one worker per table. Nothing was removed, and this worker "
        "must stop."
    )
