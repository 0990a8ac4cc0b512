"""The progress in a Delta table's own commits: reading it back, and the claim that fences other workers.

Each of our commits has, in Delta's user metadata, its writer and the applied progress. Its transaction
version (epoch × 2^40 + batch) makes Delta refuse or skip a commit of an older epoch. The ledger is read from
the latest version down to our first commit.

Delta removes old commits (after 30 days by default), but keeps the transaction version. Then the progress for
that version is read from the history in the state store, which is written before each commit. If the history
does not have it either, the ledger raises an error instead of guessing.

A RESTORE brings old rows back, but not the old transaction version. It is accepted only if it leads back to
our newest commit.
"""

# ruff: noqa: S608  every name and text in a statement is quoted by targets/sharing.py

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from tidesink.errors import ProgressError, StaleProgressError, TransientTargetError
from tidesink.events import TableId
from tidesink.sinks.state.progress import Progress, as_document, from_document, split_txn_version, txn_version
from tidesink.sinks.targets.base import SEQUENCE_COLUMN, SOFT_DELETE_COLUMN, Collected
from tidesink.sinks.targets.delta.log import MARKER, Commit, DeltaLog
from tidesink.sinks.targets.delta.schema import BACKFILL_APPLICATION
from tidesink.sinks.targets.lake.tables import transaction
from tidesink.sinks.targets.sharing import Owner, is_shared, not_shared, quote_identifier, quote_path
from tidesink.typemap.target_schema import Shard

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


APPLICATION: Final = "tidesink.progress"
_FORMAT: Final = 1
_CLAIM_ATTEMPTS: Final = 5
# Operations that replace the rows of our commits.
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

# Delta's operations for a batch or a claim. An auto compaction (if the table's properties enable it) repeats
# the user metadata of the batch before it, but is not a batch. Markers were "Manual Update" until 2026-11-22.
_OURS: Final = frozenset({"MERGE", "WRITE", "DELETE", "UPDATE", MARKER, "Manual Update"})

EntryKind = Literal["claim", "batch"]


class ProgressHistory(Protocol):
    """The part of the state store that Delta needs."""

    def record_progress(self, progress: Progress) -> None:
        """Record the progress of a batch before its commit."""

    def progress_of(self, pipeline: str, table: TableId, txn_version: int) -> Progress | None:
        """Return the progress of a batch by its transaction version; None if unknown."""


@dataclass(frozen=True)
class Entry:
    """One of our commits: ``epoch`` and ``batch`` of the target, and the ``progress`` applied with it.

    ``keys``: columns that identified rows; None if the commit does not record them.
    ``counts``: in a history, the outcome of the batch's events.
    ``shard``, ``source``: in a shared table, the shard and its source table.
    ``known``: columns of the shard's rows.
    ``seen``: the table's version when the worker last looked for commits of others; None if not recorded.
    """

    kind: EntryKind
    pipeline: str
    epoch: int
    batch: int
    progress: Progress | None
    commit: Commit
    keys: tuple[str, ...] | None = None
    counts: Mapping[str, int] | None = None
    shard: str | None = None
    source: TableId | None = None
    known: tuple[str, ...] | None = None
    seen: int | None = None


@dataclass(frozen=True)
class Ledger:
    """The ledger of one table or ``shard``, whose rows are identified by the columns ``keys``.

    Delta keeps a transaction version for each shard, so that shards do not block each other's commits.
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
        """The application under which Delta compares our transaction versions."""
        return application_of(APPLICATION, self.shard)

    def newest(self, at: int | None = None) -> Entry | None:
        """Return our newest commit at a version (default: the latest); None if there is no such commit.

        Raises:
            StaleProgressError, ProgressError: see ``committed``.
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
        """Refuse a new shard in a table that has no shards."""
        if self.log.transaction_version(APPLICATION) is not None:
            raise not_shared(f"the Delta table at {self.path}", shard, table=self.table)

    def _own(self, entry: Entry | None) -> Entry | None:
        """Return an entry if it belongs to our shard. Other shards' commits are ignored."""
        if entry is None or entry.shard == (self.shard.value if self.shard else None):
            return entry
        if self.shard is None:
            raise is_shared(f"the Delta table at {self.path}", self.shards(), table=self.table)
        return None

    def shards(self) -> tuple[str, ...]:
        """Return the other shards that ever claimed the table."""
        first = f"{APPLICATION}/"
        return tuple(
            name.removeprefix(first)
            for name in self.log.applications()
            if name.startswith(first) and name != self.application
        )

    def committed(self) -> Progress | None:
        """Return the applied progress.

        Raises:
            StaleProgressError: the rows were moved back, or the table belongs to another pipeline or another
                source table.
            ProgressError: progress exists but can no longer be read.
        """
        entry = self.newest()
        return entry.progress if entry else None

    def claim(self) -> Entry:
        """Take the next epoch with one commit that keeps the applied progress.

        Delta's own exceptions pass through if another of our commits came in between.

        Raises:
            StaleProgressError, ProgressError: see ``committed``; also for changes made between reading and
                commit.
            SchemaRefusedError: the rows were written under another key.
            TransientTargetError: others kept committing.
        """
        for _ in range(_CLAIM_ATTEMPTS):
            at = self.log.latest()
            held = self.newest(at)
            if held is not None and held.progress is not None and held.keys is not None:
                self._owner.check_keys(held.keys)
            entry = self._claim_at(at, held)
            if entry is not None:
                self._check_rows(entry, [])
                return entry
        raise TransientTargetError(
            "Others kept committing while the table was claimed.", table=str(self.table)
        )

    def _claim_at(self, at: int, held: Entry | None) -> Entry | None:
        epoch, batch = (held.epoch + 1, held.batch) if held else (1, 0)
        progress = replace(held.progress, epoch=epoch) if held and held.progress else None
        if progress and self.history:
            self.history.record_progress(progress)
        known = held.known if held else None
        text = self.entry_text("claim", epoch, batch, progress=progress, known=known)
        version = self.log.commit_marker(
            self.application, txn_version(epoch, batch), text, read_at=at, fences=self._fences(epoch)
        )
        commit = self.log.commit(version) if version is not None else None
        return read_entry(commit) if commit else None

    def _fences(self, epoch: int) -> dict[str, int]:
        """Return transaction versions that keep an older worker from any commit besides its batches."""
        names = (BACKFILL_APPLICATION, TOMBSTONES_APPLICATION)
        return {application_of(name, self.shard): txn_version(epoch, 0) for name in names}

    def entry_text(
        self,
        kind: EntryKind,
        epoch: int,
        batch: int,
        *,
        progress: Progress | None,
        counts: Mapping[str, int] | None = None,
        known: tuple[str, ...] | None = None,
        seen: int | None = None,
    ) -> str:
        """Return the user metadata of one of our commits."""
        document: dict[str, Any] = {
            "tidesink": _FORMAT,
            "kind": kind,
            "pipeline": self.pipeline,
            "epoch": epoch,
            "batch": batch,
            "keys": self.keys,
            "progress": as_document(progress) if progress else None,
            **({"counts": counts} if counts is not None else {}),
            **({"seen": seen} if seen is not None else {}),
            **self._of_shard(known),
        }
        return json.dumps(document, separators=(",", ":"))

    def _of_shard(self, known: tuple[str, ...] | None) -> dict[str, Any]:
        if self.shard is None:
            return {}
        return {"shard": self.shard.value, "source": self.table, "columns": known}

    def since(self, version: int) -> tuple[int, list[Entry]]:
        """Return the latest version, and the ledger's entries above ``version``, newest first.

        Raises:
            StaleProgressError: the table was restored or replaced since, or its log ends before ``version``.
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

    def lost_to(self, entry: Entry) -> StaleProgressError:
        """Return the error of a worker that lost the table to ``entry``."""
        return StaleProgressError(
            f"Another worker holds this table since version {entry.commit.version} (epoch {entry.epoch}, "
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

    def _check_owner(self, entry: Entry) -> None:
        source = entry.progress.table if entry.progress else None
        self._owner.check_writer(entry.pipeline, entry.source if self.shard else source)

    def _check_rows(self, entry: Entry, passed: list[Commit]) -> None:
        """Check that nothing replaced rows after our newest commit, or between its last check and itself."""
        version, place = entry.commit.version, {"path": self.path, "table": str(self.table)}
        looked = entry.commit.read_version if entry.seen is None else entry.seen
        between = range(version - 1, version - 1 if looked is None else looked, -1)
        within = _newest_move(map(self.log.commit, between))
        if within is not None:
            raise moved_within(within, version, **place)
        newest_move = _newest_move(passed)
        if newest_move is not None and not self._leads_back(newest_move, entry):
            raise moved(newest_move, version, **place)

    def _leads_back(self, move: Commit, entry: Entry) -> bool:
        """Return True for a RESTORE to a version whose rows are those of our newest commit."""
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

    def _from_history(self, passed: list[Commit]) -> Entry | None:
        found = self.log.transaction_version(self.application)
        if found is None:
            return None
        move = _newest_move(passed)
        if move is not None:
            raise moved_unseen(move, path=self.path, table=str(self.table))
        epoch, batch = split_txn_version(found)
        if batch == 0:
            return self._remembered(epoch, 0, None)
        progress = self.history.progress_of(self.pipeline, self.table, found) if self.history else None
        if progress is None:
            raise ProgressError(
                f"Epoch {epoch} batch {batch} is applied, but Delta has removed that commit from its log, "
                f"and the state store of pipeline {self.pipeline!r} does not have it. Restore the state "
                f"store, or remove the folder {self.path} and let the worker load the table again from its "
                "topic.",
                table=str(self.table),
            )
        return self._remembered(epoch, batch, progress)

    def _remembered(self, epoch: int, batch: int, progress: Progress | None) -> Entry:
        shard, source = (self.shard.value, self.table) if self.shard else (None, None)
        commit = Commit(-1, "cleaned away")
        return Entry("batch", self.pipeline, epoch, batch, progress, commit, shard=shard, source=source)


def read_entry(commit: Commit) -> Entry | None:
    """Return the ledger entry in a commit; None for commits of others.

    Raises:
        ProgressError: the entry was written by a tidesink with another format.
    """
    document = _document(commit.metadata)
    if document is None or commit.operation not in _OURS:
        return None
    if document["tidesink"] != _FORMAT:
        raise ProgressError(
            f"Version {commit.version} was written by a tidesink with ledger format {document['tidesink']}, "
            f"but this tidesink reads format {_FORMAT}."
        )
    progress, keys, source = document["progress"], document.get("keys"), document.get("source")
    known = document.get("columns")
    return Entry(
        kind=document["kind"],
        pipeline=document["pipeline"],
        epoch=int(document["epoch"]),
        batch=int(document["batch"]),
        progress=from_document(progress) if progress else None,
        commit=commit,
        keys=None if keys is None else tuple(keys),
        counts=document.get("counts"),
        shard=document.get("shard"),
        source=None if source is None else TableId(*source),
        known=None if known is None else tuple(known),
        seen=document.get("seen"),
    )


def application_of(application: str, shard: Shard | None) -> str:
    """Return the application name of a shard's transactions."""
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
    """Return the error for rows replaced after our commit ``version``. They can be brought forward again."""
    return StaleProgressError(
        f"{move.operation} at version {move.version} changed rows after version {version}, which has the "
        "committed progress. Continuing would leave a gap. Either move the rows forward again with RESTORE "
        f"TABLE delta.`{path}` TO VERSION AS OF {version}, or remove the table's folder and let the worker "
        "load it again from the start of its topic.",
        table=table,
    )


def moved_within(move: Commit, version: int, *, path: str, table: str) -> StaleProgressError:
    """Return the error for rows replaced while our commit ``version`` was written, which then lacks rows."""
    return StaleProgressError(
        f"{move.operation} at version {move.version} changed rows while a worker wrote version {version}, "
        "so that version and all later ones have a gap. Remove the folder "
        f"{path} and let the worker load the table again from the start of its topic.",
        table=table,
    )


def moved_unseen(move: Commit, *, path: str, table: str) -> StaleProgressError:
    """Return the error for rows replaced after a commit that Delta has removed from its log."""
    return StaleProgressError(
        f"{move.operation} at version {move.version} changed rows after the committed progress, and Delta "
        "has removed the commits that show what is still applied. Continuing might leave a gap. Remove the "
        f"folder {path} and let the worker load the table again from the start of its topic.",
        table=table,
    )


def shortened(latest: int, version: int, *, path: str, table: str) -> StaleProgressError:
    """Return the error for a log that ended at ``version`` before, and ends at ``latest`` now."""
    return StaleProgressError(
        f"The log of the Delta table at {path} ended at version {version} before, and ends at version "
        f"{latest} now: the table was replaced by an older copy. Nothing was written. Start the worker "
        "again; it reports how to continue.",
        table=table,
    )


TOMBSTONES_APPLICATION: Final = "tidesink.tombstones"
PROPERTY: Final = "tidesink.horizon"
_MARKED: Final = quote_identifier(SOFT_DELETE_COLUMN)
_COMMIT_TS: Final = f"{quote_path(SEQUENCE_COLUMN, 'source')}[0]"


def horizon_of(log: DeltaLog) -> int | None:
    """Return the commit_ts up to which the table's deletes may be forgotten."""
    text = log.property(PROPERTY)
    return int(text) if text else None


def collect(session: SparkSession, log: DeltaLog, location: str, *, horizon: int, epoch: int) -> Collected:
    """Raise the horizon and remove the deletes up to it.

    Both commits have a transaction version of the epoch, like a claim. So a worker that lost the table can
    neither remove marks without the new holder's knowledge, nor move the horizon back.

    Raises:
        StaleProgressError: another worker has claimed the table since.
    """
    now = max(horizon, horizon_of(log) or 0)
    words = f"deletes up to commit_ts {now} are forgotten from here on"
    if not log.put_property(TOMBSTONES_APPLICATION, log.next_version(epoch), PROPERTY, str(now), words=words):
        raise _lost(log)
    with transaction(session, TOMBSTONES_APPLICATION, log.next_version(epoch)):
        removed = session.sql(f"DELETE FROM {location} WHERE {_MARKED} AND {_COMMIT_TS} <= {now}").collect()
    if not removed:  # Delta returns no counts at all, not even 0 rows, for a skipped statement
        raise _lost(log)
    left = f"SELECT count(*) AS kept, min({_COMMIT_TS}) AS oldest FROM {location} WHERE {_MARKED}"
    kept: Any = session.sql(left).first()
    return Collected(now, int(removed[0][0]), kept["kept"], kept["oldest"])


def _lost(log: DeltaLog) -> StaleProgressError:
    return StaleProgressError(
        f"Another worker claimed the Delta table at {log.path} while this worker collected its deletes. "
        "Nothing was removed, and this worker must stop."
    )
