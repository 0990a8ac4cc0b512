"""The ledger of an Iceberg table, and who holds the table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, Literal
from uuid import uuid4

from tidesink.errors import (
    ProgressError,
    StaleProgressError,
    TidesinkError,
    TransientTargetError,
)
from tidesink.events import TableId
from tidesink.sinks.spark.errors import SPARK_ERRORS
from tidesink.sinks.state.progress import Progress, as_document, from_document
from tidesink.sinks.targets.base import ApplyResult
from tidesink.sinks.targets.iceberg.jvm import MAIN, JvmTable, TableState, commit_error, is_conflict
from tidesink.sinks.targets.sharing import Owner, is_shared, known_after, not_shared, tag
from tidesink.typemap.target_schema import Shard, TableShape

LEDGER: Final = "tidesink.ledger"
# Of a table that several source tables share: the snapshot that the last commit of any of them left.
SHARED_ROWS: Final = "tidesink.rows"
# A person's word: the rows of this snapshot are right, whatever led to it.
ACCEPTED: Final = "tidesink.accepted"
BRANCH_PREFIX: Final = "tidesink_"
_FORMAT: Final = 1

EntryKind = Literal["claim", "batch"]


@dataclass(frozen=True)
class Entry:
    """What the ledger says: ``progress`` is applied, and ``snapshot`` has its rows.

    Of a table that several source tables share, ``shard`` is the one, ``source`` its table, ``known`` the
    columns of its rows; None before it has rows. ``claimed_by`` is made again by each claim: an epoch alone
    would come twice where a catalog is brought back from a backup. ``result`` is what the batch did, to
    answer with when it is delivered again.
    """

    kind: EntryKind
    pipeline: str
    epoch: int
    batch: int
    progress: Progress | None
    snapshot: int
    keys: tuple[str, ...]
    claimed_by: str = ""
    result: ApplyResult | None = None
    shard: str | None = None
    source: TableId | None = None
    known: tuple[str, ...] | None = None

    @property
    def branch(self) -> str:
        """Where the holder of this epoch stages its rows."""
        return f"{branches_of(self.shard)}{self.epoch}"

    def to_json(self) -> str:
        """The entry as a table property."""
        result = self.result
        document: dict[str, Any] = {
            "tidesink": _FORMAT,
            "kind": self.kind,
            "pipeline": self.pipeline,
            "epoch": self.epoch,
            "batch": self.batch,
            "snapshot": self.snapshot,
            "keys": self.keys,
            "claimed_by": self.claimed_by,
            "result": None if result is None else _result_document(result),
            "progress": as_document(self.progress) if self.progress else None,
        }
        if self.shard is not None:
            document |= {"shard": self.shard, "source": self.source, "columns": self.known}
        return json.dumps(document, separators=(",", ":"))


@dataclass(frozen=True)
class IcebergLedger:
    """The ledger of one table, named ``location``, whose rows are identified by the columns ``keys``."""

    table: TableId
    pipeline: str
    location: str
    keys: tuple[str, ...] = ()
    shard: Shard | None = None

    @property
    def name(self) -> str:
        """The table property that holds our entry."""
        return LEDGER if self.shard is None else f"{LEDGER}.{tag(self.shard)}"

    def properties(self, entry: Entry) -> dict[str, str]:
        """An entry as table properties."""
        shared = {} if self.shard is None else {SHARED_ROWS: str(entry.snapshot)}
        return {self.name: entry.to_json(), **shared}

    def is_ours(self, branch: str) -> bool:
        """Whether a branch is one of ours, of whatever epoch."""
        first = branches_of(self.shard.value if self.shard else None)
        return branch.startswith(first) and branch.removeprefix(first).isdigit()

    def shards(self, state: TableState) -> tuple[str, ...]:
        """The other shards of the table."""
        texts = state.properties(f"{LEDGER}.").values()
        own = self.shard.value if self.shard else None
        return tuple(shard for shard in (_read(text).shard for text in texts) if shard and shard != own)

    def entry(self, state: TableState) -> Entry | None:
        """What the table's ledger says; None where nobody ever claimed it.

        Raises:
            StaleProgressError: the rows are not those the ledger speaks of, or the table is another
                pipeline's or another source table's.
            ProgressError: the ledger was written by a tidesink of another format.
        """
        text = state.property(self.name)
        self._check_sharing(state)
        if text is None:
            if state.property(SHARED_ROWS) is not None:  # a claim must not hide that rows moved
                self._check_rows(int(state.property(SHARED_ROWS) or 0), state)
            return None
        entry = _read(text)
        self._check_owner(entry)
        shared = state.property(SHARED_ROWS) if self.shard else None
        self._check_rows(entry.snapshot if shared is None else int(shared), state)
        return entry

    def _check_sharing(self, state: TableState) -> None:
        """Refuse a table that others have in another way: alone, or as shards."""
        place = f"the Iceberg table {self.location}"
        if self.shard is not None and state.property(LEDGER) is not None:
            raise not_shared(place, self.shard, table=self.table)
        if self.shard is None and state.property(SHARED_ROWS) is not None:
            raise is_shared(place, self.shards(state), table=self.table)

    def claimed(self, held: Entry | None, *, snapshot: int) -> Entry:
        """The entry of the next epoch, which carries on what is applied."""
        epoch, batch = (held.epoch + 1, held.batch) if held else (1, 0)
        progress = replace(held.progress, epoch=epoch) if held and held.progress else None
        claim = Entry("claim", self.pipeline, epoch, batch, progress, snapshot, self.keys, uuid4().hex)
        if self.shard is None:
            return claim
        known = held.known if held else None
        return replace(claim, shard=self.shard.value, source=self.table, known=known)

    def batch(
        self, held: Entry, progress: Progress, result: ApplyResult, *, snapshot: int, shape: TableShape
    ) -> Entry:
        """The entry of a batch of a shape that the holder of ``held`` applies."""
        known = None if self.shard is None else known_after(held.known or (), shape)
        applied = replace(held, kind="batch", batch=progress.batch, progress=progress, known=known)
        return replace(applied, snapshot=snapshot, result=result)

    def lost_to(self, entry: Entry) -> StaleProgressError:
        """The error of a worker whose table ``entry`` took away."""
        return StaleProgressError(
            f"another worker holds this table (epoch {entry.epoch}, pipeline {entry.pipeline!r}). Run one "
            "worker a table; this one wrote nothing and must stop",
            table=str(self.table),
        )

    @property
    def _owner(self) -> Owner:
        apart = "set target.table in the config so that the two have different names"
        return Owner(
            self.pipeline, self.table, self.keys, f"the Iceberg table {self.location}", apart, self.shard
        )

    def check_keys(self, entry: Entry | None) -> None:
        """Refuse another key than the rows that are there have; as ``Owner.check_keys``."""
        if entry is not None and entry.progress is not None:
            self._owner.check_keys(entry.keys)

    def _check_owner(self, entry: Entry) -> None:
        source = entry.progress.table if entry.progress else None
        self._owner.check_writer(entry.pipeline, entry.source if self.shard else source)

    def _check_rows(self, rows: int, state: TableState) -> None:
        """What readers see must come from the snapshot of the ledger, or from one that a person accepts."""
        known = {str(rows), state.property(ACCEPTED)}
        last = None
        for snapshot, parent in _with_parents(state):
            if str(snapshot.snapshotId()) in known:
                return
            if parent is not None and _replaces_all(state, snapshot, parent):
                raise self._moved(rows, state, f"snapshot {snapshot.snapshotId()} replaced all rows")
            last = snapshot
        if last is not None and last.parentId() is not None:
            raise self._moved(
                rows, state, "snapshots since were expired, so that nothing says whether rows moved back"
            )
        raise self._moved(rows, state, "the table was rolled back or replaced")

    def _moved(self, rows: int, state: TableState, what: str) -> StaleProgressError:
        catalog, _, name = self.location.partition(".")
        ways = [
            f"bring the rows forward again with CALL {catalog}.system.set_current_snapshot('{name}', {rows})"
        ]
        if state.head is not None:
            ways.append(
                f"where you know that the rows are right, say so with ALTER TABLE {self.location} SET "
                f"TBLPROPERTIES ('{ACCEPTED}' = '{state.head}')"
            )
        ways.append("drop the table, and let the worker load it again from the start of its topic")
        return StaleProgressError(
            f"{what} behind the progress of snapshot {rows}: going on might leave a gap. Either "
            + "; or ".join(ways),
            table=str(self.table),
        )


def branches_of(shard: str | None) -> str:
    """What the names of a table's, or a shard's, branches begin with; the epoch follows."""
    return BRANCH_PREFIX if shard is None else f"{BRANCH_PREFIX}{tag(Shard('', shard))}_"


def _with_parents(state: TableState) -> Iterator[tuple[Any, Any]]:
    """Snapshots with the one each came from, None where it is expired or never was."""
    snapshots = state.lineage()
    current = next(snapshots, None)
    while current is not None:
        parent = next(snapshots, None)
        yield current, parent
        current = parent


def _replaces_all(state: TableState, snapshot: Any, parent: Any) -> bool:
    """Whether an INSERT OVERWRITE threw all files away; a compaction ('replace') keeps the rows."""
    before = state.numbers(parent).get("total-data-files", 0)
    gone = state.numbers(snapshot).get("deleted-data-files", 0)
    return snapshot.operation() == "overwrite" and before > 0 and gone == before


def _read(text: str) -> Entry:
    document = _document(text)
    if document.get("tidesink") != _FORMAT:
        raise ProgressError(
            f"the table's {LEDGER} was written by a tidesink with ledger format {document.get('tidesink')}; "
            f"this one reads {_FORMAT}"
        )
    progress, result = document["progress"], document["result"]
    return Entry(
        kind=document["kind"],
        pipeline=document["pipeline"],
        epoch=int(document["epoch"]),
        batch=int(document["batch"]),
        progress=from_document(progress) if progress else None,
        snapshot=int(document["snapshot"]),
        keys=tuple(document["keys"]),
        shard=document.get("shard"),
        source=TableId(*document["source"]) if document.get("source") else None,
        known=None if document.get("columns") is None else tuple(document["columns"]),
        claimed_by=document["claimed_by"],
        result=None if result is None else ApplyResult(*result),
    )


def _document(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError as exc:
        raise ProgressError(f"the table's {LEDGER} is not JSON; was it written by another program?") from exc
    if not isinstance(document, dict):
        raise ProgressError(f"the table's {LEDGER} is no ledger; was it written by another program?")
    return document


def _result_document(result: ApplyResult) -> list[int | str]:
    said: list[int | str] = [result.inserted, result.updated, result.deleted, result.absent, result.version]
    return [*said, result.stale] if result.stale else said


# How often what others' commits undo is done again.
ATTEMPTS: Final = 5


class Holder:
    """The hold on one table: nothing is held before ``claim``."""

    def __init__(self, table: JvmTable, ledger: IcebergLedger, name: TableId) -> None:
        self._table, self._ledger, self._name = table, ledger, name
        self._held: Entry | None = None
        self._uuid = ""

    @property
    def held(self) -> Entry:
        """The newest entry of the ledger, which is ours.

        Raises:
            StaleProgressError: the table was not claimed.
        """
        if self._held is None:
            raise StaleProgressError("claim the table before writing to it", table=str(self._name))
        return self._held

    def claim(self) -> Entry:
        """Take the next epoch by one commit, which carries on what is applied.

        Raises:
            StaleProgressError, ProgressError: as the ledger says.
            SchemaRefusedError: the rows were written under another key.
            TransientTargetError: others kept committing.
        """
        for _ in range(ATTEMPTS):
            state = self._table.state()
            before = self._ledger.entry(state)
            self._ledger.check_keys(before)
            if state.head is None:
                state.table.newFastAppend().commit()  # a branch needs a snapshot to stand on
                continue
            entry = self._ledger.claimed(before, snapshot=state.head)
            if self._put(state, entry):
                self._held, self._uuid = entry, state.uuid
                return entry
        raise self._crowded()

    def current(self) -> TableState:
        """The table now, still ours and with the rows that our ledger speaks of.

        Raises:
            StaleProgressError: another worker claimed it, its rows were moved, or it is another table.
        """
        held = self.held
        try:
            state = self._table.state()
        except SPARK_ERRORS as exc:
            if not self._table.exists:
                raise self._gone("is gone") from exc
            raise
        if state.uuid != self._uuid:
            raise self._gone("was dropped and made again")
        entry = self._ledger.entry(state)
        if entry is None:
            raise self._gone(f"lost its property {self._ledger.name}")
        if (entry.epoch, entry.claimed_by) != (held.epoch, held.claimed_by):
            raise self._ledger.lost_to(entry)
        self._held = entry
        return state

    def staging(self) -> TableState:
        """The table now, with our branch at what readers see.

        Raises: as ``current``; TransientTargetError where others kept committing.
        """
        for _ in range(ATTEMPTS):
            state = self.current()
            head = state.head
            if head is None or state.branch_head(self.held.branch) == head:
                return state
            self._put(state, replace(self.held, snapshot=head))
        raise self._crowded()

    def publish(
        self,
        entry: Entry,
        *,
        on: int | None,
        at: TableState | None = None,
        adding: Any = None,
        forgetting: Iterable[str] = (),
        saying: Mapping[str, str] = MappingProxyType({}),
    ) -> bool:
        """Make an entry's snapshot and words visible; False, and nothing done, where others changed the rows.

        ``on`` is the snapshot that readers saw before; ``at`` is what ``current`` gave then: the commit is
        tried on it, and the table looked at again only where it is another now. ``adding`` is the entry's
        snapshot, where the table does not have it on a branch; ``forgetting`` are properties that go with it,
        and ``saying`` properties that come with it.

        Raises: as ``current``; CommitUnknownError where the commit may have happened.
        """
        before = self._held
        for _ in range(ATTEMPTS):
            state, at = at or self.current(), None
            # A client that lost the answer sends the commit again, and hears of a conflict with itself.
            if self._held == entry != before:
                return True
            if state.head != on or not (adding is None or state.takes(adding)):
                return False
            if self._put(state, entry, adding=adding, forgetting=forgetting, saying=saying):
                self._held = entry
                return True
        raise self._crowded()

    def put_schema(self, state: TableState, schema: Any, properties: dict[str, str]) -> bool:
        """Commit a new schema with properties; False where another commit came first."""
        last = max(int(state.metadata.lastColumnId()), int(schema.highestFieldId()))

        def change(builder: Any) -> None:
            builder.setCurrentSchema(schema, last)
            builder.setRef(self.held.branch, self._branch_at(state, self.held))
            if properties:
                builder.setProperties(properties)

        return self._commit(state, change)

    def _put(
        self,
        state: TableState,
        entry: Entry,
        *,
        adding: Any = None,
        forgetting: Iterable[str] = (),
        saying: Mapping[str, str] = MappingProxyType({}),
    ) -> bool:
        ours = [name for name in state.branches() if self._ledger.is_ours(name)]

        def change(builder: Any) -> None:
            if adding is not None:
                builder.addSnapshot(adding)
            if entry.snapshot != state.head:
                builder.setBranchSnapshot(entry.snapshot, MAIN)
            builder.setRef(entry.branch, self._branch_at(state, entry))
            for name in ours:
                if name != entry.branch:
                    builder.removeRef(name)
            builder.removeProperties({ACCEPTED, *forgetting})
            builder.setProperties({**self._ledger.properties(entry), **saying})

        return self._commit(state, change, entry=entry)

    def _branch_at(self, state: TableState, entry: Entry) -> Any:
        """Our branch's reference, in any case another than it was."""
        before = state.metadata.ref(entry.branch)
        keep = 2 if before is not None and before.minSnapshotsToKeep() == 1 else 1
        return self._table.branch_at(entry.snapshot, keep=keep)

    def _commit(self, state: TableState, change: Any, *, entry: Entry | None = None) -> bool:
        try:
            self._table.commit(state, change)
        except SPARK_ERRORS as exc:
            if is_conflict(exc):
                return False
            if entry is None or not self._landed(entry):
                raise self._uncertain(exc) from exc
        return True

    def _landed(self, entry: Entry) -> bool:
        """Whether a commit is there although Java raised; False also where that cannot be seen now."""
        try:
            return self._ledger.entry(self._table.state()) == entry
        except (*SPARK_ERRORS, TidesinkError):
            return False

    def _uncertain(self, exc: BaseException) -> TidesinkError:
        return commit_error(exc, table=str(self._name))

    def _gone(self, what: str) -> StaleProgressError:
        return StaleProgressError(
            f"the Iceberg table {self._table.location} {what} while this worker held it, and its progress "
            "with it: start the worker again, and it loads the table from the start of its topic",
            table=str(self._name),
        )

    def _crowded(self) -> TransientTargetError:
        return TransientTargetError("others keep committing to the table", table=str(self._name))
