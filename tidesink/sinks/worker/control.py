"""What a person asks of a running table through the state store: to rest, snapshots, rewinds, restores."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple

import structlog

from tidesink.config.fields import DDL_COMMANDS, ChangePolicy
from tidesink.errors import AccountingError, ConfigError, StaleProgressError, StateStoreError
from tidesink.events import TableId
from tidesink.sinks.batch.schema_changes import Accepted, Pending
from tidesink.sinks.state.progress import (
    Progress,
    Rank,
    StateStore,
    TableState,
    TableStatus,
    Where,
    change_document,
)

_log = structlog.get_logger("tidesink.worker")
_KIND: Final = "table-control"


@dataclass(frozen=True)
class SnapshotControl:
    """What is asked of a table's snapshots, which have rising numbers; one that nobody asked for has 0.

    ``started``: the last that was asked for. ``cancelled``: none up to this one goes on. ``rests``: none does
    until it is asked to. ``deletes``: the one that was asked for deletes rows that the target alone has.
    ``keys``: under which name the store has the keys that it is of (``worker.asked_keys``); None: of all.
    ``where``: within which bounds of the key (``source_database.key_bounds``).
    """

    started: int = 0
    cancelled: int = -1
    rests: bool = False
    deletes: bool = False
    keys: str | None = None
    where: Where = ()

    @property
    def limited(self) -> bool:
        """Whether the one that was asked for is of some rows alone."""
        return self.keys is not None or bool(self.where)

    @property
    def is_asked(self) -> bool:
        """Whether one was asked for, and not cancelled."""
        return self.started > max(0, self.cancelled)

    def start(
        self, now: float, *, last: int = 0, deletes: bool = False, keys: str | None = None, where: Where = ()
    ) -> SnapshotControl:
        """Asked for another one; ``now``, seconds since 1970, is a number that no lost store had.

        ``last``: the number of the one that the table's status shows, in case a clock is behind.
        """
        number = max(self.started + 1, self.cancelled + 1, last + 1, int(now))
        return SnapshotControl(number, self.cancelled, deletes=deletes, keys=keys, where=where)

    def cancel(self, *, last: int = 0) -> SnapshotControl:
        """Asked to go on with none of those so far; ``last`` as for ``start``."""
        return SnapshotControl(self.started, max(self.started, self.cancelled, last))

    def outrun(self, started: int, number: int) -> SnapshotControl:
        """Asked for nothing more than that of ``number``, which the target has, in place of ``started``."""
        return SnapshotControl(number, self.cancelled, self.rests) if self.started == started else self

    def refused(self, started: int, before: int, *, begun: bool) -> SnapshotControl:
        """Asked for the one before again, where that of the number ``started`` cannot be, or go on."""
        if self.started != started:
            return self
        return SnapshotControl(before, max(self.cancelled, started) if begun else self.cancelled, self.rests)


@dataclass(frozen=True)
class RewindControl:
    """That a topic is to be read again from ``offsets``, by partition; rewinds have rising numbers."""

    number: int
    topic: str
    topic_id: str
    offsets: Mapping[int, int]


@dataclass(frozen=True)
class TableControl:
    """What is asked of one table.

    ``rests``: it is to rest until it is asked to go on. ``resumed`` counts how often it was asked to.
    ``accepted``: by a change's digest, what a person wants made of it. ``snapshot``: of its snapshots.
    ``rewind``: a rewind that was neither done nor refused yet.
    """

    rests: bool = False
    resumed: int = 0
    accepted: Accepted = field(default_factory=dict)
    snapshot: SnapshotControl = SnapshotControl()
    rewind: RewindControl | None = None

    def pause(self) -> TableControl:
        """Asked to rest."""
        return replace(self, rests=True)

    def resume(self, accepted: Accepted) -> TableControl:
        """Asked to go on, with changes that are accepted from now on."""
        accepted = {**self.accepted, **accepted}
        return replace(self, rests=False, resumed=self.resumed + 1, accepted=accepted)

    def decide(self, accepted: Accepted) -> TableControl:
        """Asked to go on by what is decided of changes; a table that is to rest does so all the same."""
        return replace(self.resume(accepted), rests=self.rests)

    def rewound(self, asked: RewindControl) -> TableControl:
        """Asked to read again from some offsets, instead of what was asked and not done yet."""
        number = max(asked.number, self.rewind.number + 1 if self.rewind is not None else 0)
        return replace(self, rewind=replace(asked, number=number))

    def answered(self, rewind: int) -> TableControl:
        """What is asked once the rewind of this number is done, or refused."""
        known = self.rewind is not None and self.rewind.number == rewind
        return replace(self, rewind=None) if known else self


Controls = Mapping[TableId, TableControl]
NOTHING_ASKED: Final = TableControl()


def read_controls(store: StateStore, pipeline: str) -> Controls:
    """What is asked of the tables of a pipeline; of tables that are not in it, nothing.

    Raises:
        StateStoreError: the store does not answer.
    """
    return _read(store.load_document(_KIND, pipeline))


class Requests:
    """What a worker knows of what is asked. A store that does not answer leaves the last word standing."""

    def __init__(self, store: StateStore, pipeline: str) -> None:
        self._store = store
        self._pipeline = pipeline
        self._controls: Controls = {}

    def look(self) -> None:
        """Ask the store; one short query."""
        try:
            self._controls = read_controls(self._store, self._pipeline)
        except StateStoreError as exc:
            _log.warning("what is asked of the tables not read", error=str(exc))

    def loaded(self) -> tuple[TableId, ...]:
        """The tables of which a snapshot was asked for, and not cancelled."""
        return tuple(table for table, asked in self._controls.items() if asked.snapshot.is_asked)

    def of(self, table: TableId) -> TableControl:
        """What is asked of one table."""
        return self._controls.get(table, NOTHING_ASKED)


def change_control(
    store: StateStore, pipeline: str, table: TableId, change: Callable[[TableControl], TableControl]
) -> TableControl:
    """Ask something else of a table; what is asked of it now.

    Raises:
        StateStoreError: the store does not answer, or others kept changing the document.
    """

    def asked(old: Any | None) -> dict[str, Any]:
        controls = _read(old)
        return _written({**controls, table: change(controls.get(table, NOTHING_ASKED))})

    busy = StateStoreError("others kept asking for something; try again", table=str(table))
    return _read(change_document(store, _KIND, pipeline, asked, busy))[table]


def _read(document: Any | None) -> Controls:
    found = document["tables"] if document is not None else {}
    return {
        TableId(*json.loads(name)): TableControl(
            asked["rests"],
            asked["resumed"],
            asked["accepted"],
            _read_snapshot(asked.get("snapshot", {})),
            _read_rewind(asked.get("rewind")),
        )
        for name, asked in found.items()
    }


def _read_snapshot(asked: dict[str, Any]) -> SnapshotControl:
    return SnapshotControl(**{**asked, "where": tuple(map(tuple, asked.get("where", ())))})


def _read_rewind(asked: dict[str, Any] | None) -> RewindControl | None:
    return None if asked is None else RewindControl(**{**asked, "offsets": dict(asked["offsets"])})


def _written_rewind(asked: RewindControl | None) -> dict[str, Any] | None:
    # JSON has no numbers as names.
    return None if asked is None else {**asdict(asked), "offsets": sorted(asked.offsets.items())}


def _written(controls: Controls) -> dict[str, Any]:
    tables = {
        json.dumps(list(table), ensure_ascii=False): {
            "rests": asked.rests,
            "resumed": asked.resumed,
            "accepted": dict(asked.accepted),
            "snapshot": asdict(asked.snapshot),
            "rewind": _written_rewind(asked.rewind),
        }
        for table, asked in controls.items()
    }
    return {"tables": tables}


_DECISIONS: Final = "decided-changes"
# The newest: what is older was decided of tables that have long gone on.
MOST_DECISIONS: Final = 500


class Decision(NamedTuple):
    """What a person made of a change, as the status showed it then; ``at`` is in seconds since 1970."""

    table: TableId
    policy: ChangePolicy
    at: float
    change: Mapping[str, Any]


def store_decisions(store: StateStore, pipeline: str, decided: Sequence[Decision]) -> None:
    """Store beside the decisions what they are about, of which a table's control has digests alone.

    Raises:
        StateStoreError: the store does not answer, or others kept changing the document.
    """

    def more(old: Any | None) -> list[Any]:
        return [*(old or ()), *([list(one.table), *one[1:]] for one in decided)][-MOST_DECISIONS:]

    busy = StateStoreError("others kept deciding changes; try again", pipeline=pipeline)
    change_document(store, _DECISIONS, pipeline, more, busy)


def read_decisions(store: StateStore, pipeline: str) -> tuple[Decision, ...]:
    """The newest decisions, the oldest first; of each table and change the last that was made.

    Raises:
        StateStoreError: the store does not answer.
    """
    controls = read_controls(store, pipeline)
    last: dict[tuple[TableId, str], Decision] = {}
    for table, *rest in store.load_document(_DECISIONS, pipeline) or ():
        decision = Decision(TableId(*table), *rest)
        name = decision.table, decision.change["digest"]
        last.pop(name, None)
        # One that was stored and then not asked for, by a command that was killed between, is none.
        if controls.get(decision.table, NOTHING_ASKED).accepted.get(name[1]) == decision.policy:
            last[name] = decision
    return tuple(last.values())


# In a status's details: where its table is kept. A table given another place is another one.
PLACE: Final = "place"
_ACCEPTED_KIND: Final = "accepted-restore"
# The batch that a target which was refused stands at: without it there is nothing to accept.
_REFUSED: Final = "refused-restore"


def check_not_restored(store: StateStore, progress: Progress | None, place: str, *, life: int = 0) -> None:
    """Refuse a table that holds less than was committed to it, unless a person said that it may go on.

    A target without progress is loaded from the start of the topic, as one that was emptied on purpose is.
    ``life`` and the progress's epoch: of the hold that was just taken, by which an earlier batch is the later
    word.

    Raises:
        StaleProgressError: it was brought back from a backup, or another worker took it meanwhile.
    """
    if progress is None:
        return
    status = store.status_of(progress.pipeline, progress.table)
    name = _name(progress.pipeline, progress.table)
    accepted = store.load_document(_ACCEPTED_KIND, name)
    if status is None or status.details.get(PLACE) != place or status.batch <= progress.batch:
        _forget(store, name)  # it was of one going back, which somebody undid
        return
    if accepted != status.batch:
        store.save_document(_REFUSED, name, progress.batch)
        raise _refusal(status.batch, progress, place)
    # The word is used up: what was seen from now on is where the target stands, and the next time is another.
    now = replace(status, life=life, epoch=progress.epoch, batch=progress.batch)
    if not store.save_status(now):
        raise StaleProgressError("another worker holds the table now", table=str(progress.table))
    _forget(store, name)


def accept_restored(store: StateStore, pipeline: str, table: TableId) -> int:
    """Let a table go on from where its target stands now; the batch it was seen to have.

    Raises:
        ConfigError: no worker of this pipeline knows the table, or none found it brought back.
    """
    status = store.status_of(pipeline, table)
    if status is None:
        raise ConfigError(
            f"no worker of pipeline {pipeline!r} has worked on {table}: tidesink status shows the tables"
        )
    name = _name(pipeline, table)
    if store.load_document(_REFUSED, name) is None:
        raise ConfigError(
            f"no worker found {table} brought back from a backup, so there is nothing to accept: run one "
            "first, which says so where it is",
            table=str(table),
        )
    store.save_document(_ACCEPTED_KIND, name, status.batch)
    return status.batch


def _forget(store: StateStore, name: str) -> None:
    for kind in (_ACCEPTED_KIND, _REFUSED):
        if store.load_document(kind, name) is not None:
            store.save_document(kind, name, None)


def _name(pipeline: str, table: TableId) -> str:
    return json.dumps([pipeline, *table], ensure_ascii=False)


def _refusal(known: int, progress: Progress, place: str) -> StaleProgressError:
    table = progress.table
    return StaleProgressError(
        f"{place} stands at batch {progress.batch}, and batch {known} was committed to it: it was brought "
        "back from a backup. Either bring the newer one back; or, where the rows are those of that moment, "
        f"go on from it with `tidesink accept-restored {table}` and start the worker again, which reads what "
        "came since from Kafka again; or remove the table and its progress, and let the worker load it again "
        "from the start of its topic",
        table=str(table),
    )


# In a status's details: the count that did not add up, until a person accepts it.
BROKEN: Final = "broken-law"
# In a status's details: that deletes may be missing, until a person accepts it.
MISSED: Final = "missed-deletes"


class Unaccepted(NamedTuple):
    """What stops a table until a person accepts it; ``digest`` is of this one time, by which that is done."""

    text: str
    digest: str


Turn = Literal["rest", "go on"]


class Pauses:
    """What one task was asked, and what it waits for. Used by one thread at a time."""

    def __init__(self, table: TableId) -> None:
        self._table = table
        self._asked = False
        self._resumed: int | None = None
        self._pending: tuple[Pending, ...] = ()
        self._broken: Unaccepted | None = None
        # That deletes may be missing.
        self.missed: Unaccepted | None = None
        self.accepted: Accepted = {}

    def apply_control(self, asked: TableControl, *, waits: bool) -> Turn | None:
        """What to do now; ``waits``: the table is paused or failing. The first look finds no news."""
        before, self._resumed = self._resumed, asked.resumed
        self.accepted = asked.accepted
        if asked.rests:
            news, self._asked = not self._asked, True
            return "rest" if news else None
        rested, self._asked = self._asked, False
        reported = before is not None and asked.resumed > before
        return "go on" if rested or (reported and waits) else None

    def wait_for(self, pending: tuple[Pending, ...]) -> None:
        """Changes that wait for a person."""
        self._pending = pending

    def break_law(self, error: AccountingError, at: Rank) -> str:
        """A count did not add up: the table waits for a person, after a restart too; the way on."""
        if self._broken is None or self._broken.text != error.message:
            digest = sha256(f"{at} {error.message}".encode()).hexdigest()[:16]
            self._broken = Unaccepted(error.message, digest)
        return (
            "nothing more is applied, by another worker neither, until somebody has compared the table with "
            f"its source: `tidesink resume {self._table} --accept` goes on"
        )

    def check_law(self, before: TableStatus | None, place: str) -> None:
        """Refuse a table whose count did not add up, by the status ``before``, until a person accepts that.

        Raises:
            AccountingError: as it was then.
        """
        known = before.details.get(BROKEN) if before and before.details.get(PLACE) == place else None
        # What this worker found holds too where the store did not take it.
        broken = Unaccepted(**known) if known else self._broken
        self._broken = None if broken and broken.digest in self.accepted else broken
        if self._broken is not None:
            raise AccountingError(self._broken.text, table=str(self._table))

    @property
    def is_law_broken(self) -> bool:
        """Whether a count did not add up, and nobody accepted that."""
        return self._broken is not None

    def state_is(self, state: TableState) -> None:
        """What was waited for is over in any state but PAUSED."""
        if state != "PAUSED":
            self._pending = ()

    @property
    def reason(self) -> str:
        """Why the table rests, and the way on."""
        if self._asked:
            return f"rests as it was asked to: tidesink resume {self._table} goes on"
        one = len(self._pending) == 1
        return "; ".join(
            _reason(pending, str(self._table) if one else pending.change.short_digest)
            for pending in self._pending
        )

    def details(self) -> dict[str, Any]:
        """What the status shows."""
        shown: dict[str, Any] = {"rests": True} if self._asked else {}
        if self._pending:
            shown["pending"] = [pending.as_json() for pending in self._pending]
        if self._broken:
            shown[BROKEN] = self._broken._asdict()
        if self.missed:
            shown[MISSED] = self.missed._asdict()
        return shown


def _reason(pending: Pending, named: str) -> str:
    """Why a table waits, and the way on; ``named``: by what its commands name the change."""
    change = pending.change
    if not pending.accepts:
        return f"a change of the schema waits, {change}: {pending.reason}"
    commands = " or ".join(f"tidesink ddl {DDL_COMMANDS[policy]} {named}" for policy in pending.accepts)
    why = f"{pending.reason}; " if pending.reason else ""
    return f"a change of the schema waits, {change}: {why}{commands}"
