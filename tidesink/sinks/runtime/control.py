"""Requests that users send to a running worker: pause, resume, snapshot, rewind, accept a restored table.

A command such as ``tidesink pause`` writes the request to one document per pipeline in the state store. The
worker reads this document every few seconds, and applies each table's requests between two batches.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple

import structlog

from tidesink.config.fields import DDL_COMMANDS, ChangePolicy
from tidesink.errors import AccountingError, ConfigError, StaleProgressError, StateStoreError
from tidesink.events import TableId
from tidesink.sinks.schema_changes.decisions import Accepted, Pending
from tidesink.sinks.state.documents import Document, DocumentKind, list_key
from tidesink.sinks.state.progress import (
    Progress,
    Rank,
    SnapshotProgress,
    StateStore,
    TableState,
    TableStatus,
    Where,
)

_log = structlog.get_logger("tidesink.worker")


@dataclass(frozen=True)
class SnapshotControl:
    """A user's requests about one table's snapshots.

    Each requested snapshot has a number above the previous one's. A snapshot that the setting
    ``snapshot: initial`` began has the number 0.

    Attributes:
        started: Number of the last requested snapshot, or 0.
        cancelled: All snapshots up to this number are cancelled.
        rests: True while the table's snapshots are paused.
        deletes: True if the requested snapshot is a resync, which also deletes rows that exist only in the
            target.
        keys: Name of the document with the requested keys in the state store (``snapshots.asked_keys``), or
            None if the snapshot is not limited to keys.
        where: Bounds of the primary key that limit the snapshot's rows (``source_database.key_bounds``).
    """

    started: int = 0
    cancelled: int = -1
    rests: bool = False
    deletes: bool = False
    keys: str | None = None
    where: Where = ()

    @property
    def limited(self) -> bool:
        """Return True if the requested snapshot covers only some rows."""
        return self.keys is not None or bool(self.where)

    @property
    def is_asked(self) -> bool:
        """Return True if a snapshot is requested and not cancelled."""
        return self.started > max(0, self.cancelled)

    def is_begun(self, progress: Progress | None, batch: int) -> bool:
        """Return True if a worker may have begun the requested snapshot.

        ``progress``: the table's progress after its last batch, or None if the state store does not have it.
        ``batch``: number of the table's last batch, or 0. If batches were applied and their progress is not
        known, any of them may have begun the snapshot.
        """
        if progress is None:
            return batch > 0
        return progress.snapshot is not None and progress.snapshot.number >= self.started

    def lets_run(self, snapshot: SnapshotProgress) -> bool:
        """Return True if a snapshot that a worker has begun still has rows to read, or keys to look up.

        False if it is done or cancelled, or if the state store has lost its keys. ``snapshot``: the table's
        last snapshot.
        """
        is_lost = bool(snapshot.keys) and snapshot.number >= self.started and snapshot.keys != self.keys
        return not snapshot.done and snapshot.number > self.cancelled and not is_lost

    def start(
        self, now: float, *, last: int = 0, deletes: bool = False, keys: str | None = None, where: Where = ()
    ) -> SnapshotControl:
        """Return the requests with a request for a new snapshot, which replaces the last one.

        The new snapshot's number is the time ``now`` (seconds since 1970), so that it is higher than earlier
        numbers even if the state store was lost. If the clock is slow, it is one above the highest known
        number. ``last``: number of the snapshot in the table's status.
        """
        number = max(self.started + 1, self.cancelled + 1, last + 1, int(now))
        return SnapshotControl(number, self.cancelled, deletes=deletes, keys=keys, where=where)

    def cancel(self, *, last: int = 0) -> SnapshotControl:
        """Return these requests, with all snapshots cancelled that were requested or begun so far.

        ``last``: number of the snapshot in the table's status.
        """
        return SnapshotControl(self.started, max(self.started, self.cancelled, last))

    def outrun(self, started: int, number: int) -> SnapshotControl:
        """Return these requests without the request for snapshot ``started``, which can never begin.

        The number ``started`` is too low, because later snapshots have begun already. ``number``: number of
        the last snapshot in the target's progress. It becomes the number of the last request, so that the
        next request gets a higher number.
        """
        return SnapshotControl(number, self.cancelled, self.rests) if self.started == started else self

    def refused(self, started: int, before: int, *, begun: bool) -> SnapshotControl:
        """Return these requests without the request for snapshot ``started``, which the table cannot have.

        ``before``: number of the earlier snapshot that continues instead, or 0. ``begun``: True if the
        refused snapshot has applied rows already. Then it counts as cancelled.
        """
        if self.started != started:
            return self
        return SnapshotControl(before, max(self.cancelled, started) if begun else self.cancelled, self.rests)


@dataclass(frozen=True)
class RewindControl:
    """A request to read a topic again from earlier offsets.

    ``number``: number of the request, above the numbers of the table's earlier rewinds. ``offsets``: pairs of
    a partition and the offset to continue from, sorted by partition.
    """

    number: int
    topic: str
    topic_id: str
    offsets: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class TableControl:
    """All requests that users have sent to one table.

    Attributes:
        rests: True while the table is paused by request.
        resumed: Number of resume requests so far.
        accepted: The users' decisions, by the digest of the schema change or fault that they are about.
        snapshot: Requests about the table's snapshots.
        rewind: The requested rewind that is neither done nor refused yet, or None.
    """

    rests: bool = False
    resumed: int = 0
    accepted: Accepted = field(default_factory=dict)
    snapshot: SnapshotControl = SnapshotControl()
    rewind: RewindControl | None = None

    def pause(self) -> TableControl:
        """Return these requests, with a request to pause the table added."""
        return replace(self, rests=True)

    def resume(self, accepted: Accepted) -> TableControl:
        """Return these requests, with a request to resume the table and the decisions ``accepted`` added."""
        accepted = {**self.accepted, **accepted}
        return replace(self, rests=False, resumed=self.resumed + 1, accepted=accepted)

    def decide(self, accepted: Accepted) -> TableControl:
        """Return these requests with the decisions ``accepted`` added, so that a table that waits for them
        continues.

        A table that a user paused stays paused.
        """
        return replace(self.resume(accepted), rests=self.rests)

    def rewound(self, asked: RewindControl) -> TableControl:
        """Return the requests with the rewind ``asked``, which replaces an unfinished rewind."""
        number = max(asked.number, self.rewind.number + 1 if self.rewind is not None else 0)
        return replace(self, rewind=replace(asked, number=number))

    def answered(self, rewind: int) -> TableControl:
        """Return the requests without the rewind of this number, which is done or refused."""
        is_requested = self.rewind is not None and self.rewind.number == rewind
        return replace(self, rewind=None) if is_requested else self


Controls = Mapping[TableId, TableControl]
NOTHING_ASKED: Final = TableControl()


@dataclass(frozen=True)
class _StoredControls:
    """The requests to all tables of a pipeline. ``tables``: by the table's name as a JSON list."""

    tables: Mapping[str, TableControl]


_CONTROLS: Final = DocumentKind("table-control", _StoredControls)


def read_controls(store: StateStore, pipeline: str) -> Controls:
    """Return the users' requests to a pipeline's tables; tables without requests are left out.

    Raises:
        StateStoreError: the store does not answer.
    """
    return _read(_CONTROLS.of(store, pipeline).load())


class Requests:
    """A worker's copy of the users' requests to its tables. Used by the worker's main thread.

    If the state store does not answer, the worker continues with the copy that it read last.
    """

    def __init__(self, store: StateStore, pipeline: str) -> None:
        self._store = store
        self._pipeline = pipeline
        self._controls: Controls = {}

    def look(self) -> None:
        """Read all requests from the state store with one query; keep the last copy if the store fails."""
        try:
            self._controls = read_controls(self._store, self._pipeline)
        except StateStoreError as exc:
            _log.warning("what is asked of the tables not read", error=str(exc))

    def loaded(self) -> tuple[TableId, ...]:
        """Return the tables for which a user requested a snapshot and did not cancel it."""
        return tuple(table for table, asked in self._controls.items() if asked.snapshot.is_asked)

    def of(self, table: TableId) -> TableControl:
        """Return the users' requests to one table, from the copy that was read last."""
        return self._controls.get(table, NOTHING_ASKED)


def change_control(
    store: StateStore, pipeline: str, table: TableId, change: Callable[[TableControl], TableControl]
) -> TableControl:
    """Change the stored requests to a table with the function ``change``, and return the new requests.

    Raises:
        StateStoreError: the store does not answer, or other commands kept changing the requests meanwhile.
    """

    name = list_key(*table)

    def asked(old: _StoredControls | None) -> _StoredControls:
        tables = old.tables if old is not None else {}
        return _StoredControls({**tables, name: change(tables.get(name, NOTHING_ASKED))})

    busy = StateStoreError(
        "The request was not stored, because other commands kept changing the requests of the same pipeline. "
        "Run the command again.",
        table=str(table),
    )
    return _CONTROLS.of(store, pipeline).change(asked, busy).tables[name]


def _read(stored: _StoredControls | None) -> Controls:
    tables = stored.tables if stored is not None else {}
    return {TableId(*json.loads(name)): control for name, control in tables.items()}


# Maximum number of stored decisions. The oldest are removed: their tables have continued long ago.
MOST_DECISIONS: Final = 500


class Decision(NamedTuple):
    """A user's decision about a schema change that a table waited for.

    ``policy``: the decision. ``at``: its time in seconds since 1970. ``change``: the schema change, as the
    table's status showed it.
    """

    table: TableId
    policy: ChangePolicy
    at: float
    change: Mapping[str, Any]


_DECISIONS: Final = DocumentKind("decided-changes", tuple[Decision, ...])


def store_decisions(store: StateStore, pipeline: str, decided: Sequence[Decision]) -> None:
    """Store users' decisions together with the schema changes that they are about, to list them later.

    Raises:
        StateStoreError: the store does not answer, or other commands kept storing decisions meanwhile.
    """
    busy = StateStoreError(
        "The decision was not stored, because other commands kept storing decisions of the same pipeline. "
        "Run the command again.",
        pipeline=pipeline,
    )
    _DECISIONS.of(store, pipeline).change(lambda old: (*(old or ()), *decided)[-MOST_DECISIONS:], busy)


def read_decisions(store: StateStore, pipeline: str) -> tuple[Decision, ...]:
    """Return the users' stored decisions about schema changes, oldest first.

    If several decisions are about the same schema change of a table, only the last one is returned. A
    decision that was stored but never sent to the table is not returned.

    Raises:
        StateStoreError: the store does not answer.
    """
    controls = read_controls(store, pipeline)
    last: dict[tuple[TableId, str], Decision] = {}
    for decision in _DECISIONS.of(store, pipeline).load() or ():
        name = decision.table, decision.change["digest"]
        last.pop(name, None)
        # A command that was killed may have stored the decision and not yet sent it to the table.
        if controls.get(decision.table, NOTHING_ASKED).accepted.get(name[1]) == decision.policy:
            last[name] = decision
    return tuple(last.values())


# Key in a status's details: the table's location at the target. Another location means another table.
PLACE: Final = "place"
# The batch number in a table's status when a user accepted its restore.
_ACCEPTED: Final = DocumentKind("accepted-restore", int, list_key)
# The batch number of a table that a worker refused as restored. Without it, there is nothing to accept.
_REFUSED: Final = DocumentKind("refused-restore", int, list_key)


def check_not_restored(store: StateStore, progress: Progress | None, location: str, *, life: int = 0) -> None:
    """Check that the table at the target was not restored from a backup, unless a user accepted that.

    A table was restored if its batch number in the target is lower than the one in its status in the state
    store. A table without progress passes the check: it is loaded from the start of its topic, like a table
    that was removed on purpose.

    Args:
        store: The state store with the table's status.
        progress: The progress in the target, or None if the target has no progress.
        location: The table's location at the target.
        life: Number of times that the table's epochs started again (``TableStatus.life``). It is stored in
            the status together with the epoch of ``progress``, because otherwise the state store would not
            accept a status with a lower batch number.

    Raises:
        StaleProgressError: the table was restored from a backup, or another worker took it over.
    """
    if progress is None:
        return
    status = store.status_of(progress.pipeline, progress.table)
    names = progress.pipeline, *progress.table
    accepted, refused = _ACCEPTED.of(store, *names), _REFUSED.of(store, *names)
    accepted_batch = accepted.load()
    if status is None or status.details.get(PLACE) != location or status.batch <= progress.batch:
        _forget(accepted, refused)  # of a restore that was undone
        return
    if accepted_batch != status.batch:
        refused.save(progress.batch)
        raise _refusal(status.batch, progress, location)
    # The acceptance is used up: the status gets the target's batch number, so the next restore is refused.
    now = replace(status, life=life, epoch=progress.epoch, batch=progress.batch)
    if not store.save_status(now):
        raise StaleProgressError("Another worker holds the table now.", table=str(progress.table))
    _forget(accepted, refused)


def accept_restored(store: StateStore, pipeline: str, table: TableId) -> int:
    """Accept that a table was restored from a backup, so that the next worker continues from that backup.

    Returns the number of the last batch that was committed before the restore.

    Raises:
        ConfigError: no worker of this pipeline has worked on the table, or no worker found it restored.
    """
    status = store.status_of(pipeline, table)
    if status is None:
        raise ConfigError(
            f"No worker of pipeline {pipeline!r} has worked on {table}. `tidesink status` lists the tables."
        )
    if _REFUSED.of(store, pipeline, *table).load() is None:
        raise ConfigError(
            f"No worker found {table} restored from a backup, so there is nothing to accept. If the table "
            "was restored, run a worker first. It stops with an error that names the restored batch.",
            table=str(table),
        )
    _ACCEPTED.of(store, pipeline, *table).save(status.batch)
    return status.batch


def _forget(*documents: Document[int]) -> None:
    for document in documents:
        if document.load() is not None:
            document.remove()


def _refusal(batch: int, progress: Progress, location: str) -> StaleProgressError:
    table = progress.table
    return StaleProgressError(
        f"{location} is at batch {progress.batch}, but batch {batch} was committed to it, so it was restored "
        "from a backup. You have three options. 1. Restore a backup that has all batches. 2. If the rows are "
        f"exactly those of batch {progress.batch}, accept it with `tidesink accept-restored "
        f"{shlex.quote(str(table))}` and start the worker again. It then reads the later changes again. "
        "3. Remove the table and its progress from the target. The worker then loads it from the start of "
        "its topic.",
        table=str(table),
    )


# Key in a status's details: the error that event counts did not add up, until a user accepts it.
BROKEN: Final = "broken-law"
# Key in a status's details: the error that deletes may be missing, until a user accepts it.
MISSED: Final = "missed-deletes"


class Unaccepted(NamedTuple):
    """A fault that stops a table until a user accepts it with ``tidesink resume --accept``.

    ``text``: the error message. ``digest``: identifies the fault in the user's acceptance.
    """

    text: str
    digest: str


Turn = Literal["rest", "go on"]


class Pauses:
    """The reasons why one table is paused: a request, schema changes that wait, or a fault that must be
    accepted.

    Used by one thread at a time.
    """

    def __init__(self, table: TableId) -> None:
        self._table = table
        self._asked = False
        self._resumed: int | None = None
        self._pending: tuple[Pending, ...] = ()
        self._broken: Unaccepted | None = None
        # Set while deletes may be missing.
        self.missed: Unaccepted | None = None
        self.accepted: Accepted = {}

    def apply_control(self, asked: TableControl, *, waits: bool) -> Turn | None:
        """Return ``rest`` if the table must pause now, ``go on`` if it must continue now, or else None.

        Compares the users' requests ``asked`` with those of the previous call. The first call never returns
        ``go on``. ``waits``: True if the table is paused or failing.
        """
        before, self._resumed = self._resumed, asked.resumed
        self.accepted = asked.accepted
        if asked.rests:
            news, self._asked = not self._asked, True
            return "rest" if news else None
        rested, self._asked = self._asked, False
        reported = before is not None and asked.resumed > before
        return "go on" if rested or (reported and waits) else None

    def wait_for(self, pending: tuple[Pending, ...]) -> None:
        """Record the schema changes that the table waits for until a user decides about them."""
        self._pending = pending

    def break_law(self, error: AccountingError, rank: Rank) -> str:
        """Record that a batch's event counts did not add up, so that the table stays stopped even after a
        restart.

        Returns the advice to the user that follows the error's message. ``rank``: life, epoch and number of
        the table's last batch.
        """
        if self._broken is None or self._broken.text != error.message:
            digest = sha256(f"{rank} {error.message}".encode()).hexdigest()[:16]
            self._broken = Unaccepted(error.message, digest)
        return (
            "No worker applies further changes to this table. Compare it with its source, then run "
            f"`tidesink resume {shlex.quote(str(self._table))} --accept` to continue."
        )

    def check_law(self, before: TableStatus | None, location: str) -> None:
        """Check that the event counts of all earlier batches added up, or that a user accepted the fault.

        ``before``: the table's status before this worker claimed the table; a fault is recorded there.
        ``location``: the table's location at the target. A fault of a table at another location does not
        count.

        Raises:
            AccountingError: event counts did not add up, and no user accepted that.
        """
        fault = before.details.get(BROKEN) if before and before.details.get(PLACE) == location else None
        # A fault that this worker found counts too, because the state store may not have recorded it.
        broken = Unaccepted(**fault) if fault else self._broken
        self._broken = None if broken and broken.digest in self.accepted else broken
        if self._broken is not None:
            raise AccountingError(self._broken.text, table=str(self._table))

    @property
    def is_law_broken(self) -> bool:
        """Return True if a batch's event counts did not add up, and no user has accepted that fault."""
        return self._broken is not None

    def state_is(self, state: TableState) -> None:
        """Record the table's new state. Unless it is PAUSED, the table no longer waits for schema changes."""
        if state != "PAUSED":
            self._pending = ()

    @property
    def reason(self) -> str:
        """Explain why the table is paused, and how to resume it."""
        if self._asked:
            return f"Paused by request. Run `tidesink resume {shlex.quote(str(self._table))}` to continue."
        is_single = len(self._pending) == 1
        return " ".join(
            _reason(pending, str(self._table) if is_single else pending.change.short_digest)
            for pending in self._pending
        )

    def details(self) -> dict[str, Any]:
        """Return the table's pauses and faults as JSON, for the details of its status."""
        shown: dict[str, Any] = {"rests": True} if self._asked else {}
        if self._pending:
            shown["pending"] = [pending.as_json() for pending in self._pending]
        if self._broken:
            shown[BROKEN] = self._broken._asdict()
        if self.missed:
            shown[MISSED] = self.missed._asdict()
        return shown


def _reason(pending: Pending, named: str) -> str:
    """Explain which schema change a table waits for, and which commands decide about it.

    ``named``: the argument that names the change in these commands: the table, or the change's short digest.
    """
    change = pending.change
    if not pending.accepts:
        return f"A schema change waits: {change}. {pending.reason}"
    commands = " or ".join(
        f"`tidesink ddl {DDL_COMMANDS[policy]} {shlex.quote(named)}`" for policy in pending.accepts
    )
    why = f" {pending.reason}" if pending.reason else ""
    return f"A schema change waits: {change}. Run {commands}.{why}"
