"""The ledger of an Iceberg table, and the worker's hold on the table."""

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
# In a shared table: the snapshot of the last commit of any of its source tables.
SHARED_ROWS: Final = "tidesink.rows"
# Set by the user: the rows of this snapshot are right, whatever happened before.
ACCEPTED: Final = "tidesink.accepted"
BRANCH_PREFIX: Final = "tidesink_"
_FORMAT: Final = 1

EntryKind = Literal["claim", "batch"]


@dataclass(frozen=True)
class Entry:
    """An entry of the ledger: ``progress`` is applied, and ``snapshot`` has its rows.

    ``claimed_by``: a new id for each claim, because an epoch is used twice if a catalog is restored from a
        backup.
    ``result``: the batch's result, returned if the batch is delivered again.
    ``shard``, ``source``: in a shared table, the shard and its source table.
    ``known``: columns of the shard's rows; None before it has rows.
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
        """The branch on which the holder of this epoch stages its rows."""
        return f"{branches_of(self.shard)}{self.epoch}"

    def to_json(self) -> str:
        """Return the entry as the value of a table property."""
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
    """The ledger of the table ``location``, whose rows are identified by the columns ``keys``."""

    table: TableId
    pipeline: str
    location: str
    keys: tuple[str, ...] = ()
    shard: Shard | None = None

    @property
    def name(self) -> str:
        """The table property that has our entry."""
        return LEDGER if self.shard is None else f"{LEDGER}.{tag(self.shard)}"

    def properties(self, entry: Entry) -> dict[str, str]:
        """Return an entry as table properties."""
        shared = {} if self.shard is None else {SHARED_ROWS: str(entry.snapshot)}
        return {self.name: entry.to_json(), **shared}

    def is_ours(self, branch: str) -> bool:
        """Return True if a branch belongs to us, in any epoch."""
        first = branches_of(self.shard.value if self.shard else None)
        return branch.startswith(first) and branch.removeprefix(first).isdigit()

    def shards(self, state: TableState) -> tuple[str, ...]:
        """Return the other shards of the table."""
        texts = state.properties(f"{LEDGER}.").values()
        own = self.shard.value if self.shard else None
        return tuple(shard for shard in (_read(text).shard for text in texts) if shard and shard != own)

    def entry(self, state: TableState) -> Entry | None:
        """Return the entry in the table's ledger; None if the table was never claimed.

        Raises:
            StaleProgressError: the rows are not those of the ledger, or the table belongs to another pipeline
                or another source table.
            ProgressError: the ledger was written by a tidesink with another format.
        """
        text = state.property(self.name)
        self._check_sharing(state)
        if text is None:
            if state.property(SHARED_ROWS) is not None:  # a claim must not hide that rows moved back
                self._check_rows(int(state.property(SHARED_ROWS) or 0), state)
            return None
        entry = _read(text)
        self._check_owner(entry)
        shared = state.property(SHARED_ROWS) if self.shard else None
        self._check_rows(entry.snapshot if shared is None else int(shared), state)
        return entry

    def _check_sharing(self, state: TableState) -> None:
        """Refuse a table that is used in another way: unshared, or as shards."""
        place = f"the Iceberg table {self.location}"
        if self.shard is not None and state.property(LEDGER) is not None:
            raise not_shared(place, self.shard, table=self.table)
        if self.shard is None and state.property(SHARED_ROWS) is not None:
            raise is_shared(place, self.shards(state), table=self.table)

    def claimed(self, held: Entry | None, *, snapshot: int) -> Entry:
        """Return the entry of the next epoch, with the applied progress."""
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
        """Return the entry of a batch of a shape that the holder of ``held`` applies."""
        known = None if self.shard is None else known_after(held.known or (), shape)
        applied = replace(held, kind="batch", batch=progress.batch, progress=progress, known=known)
        return replace(applied, snapshot=snapshot, result=result)

    def lost_to(self, entry: Entry) -> StaleProgressError:
        """Return the error of a worker that lost the table to ``entry``."""
        return StaleProgressError(
            f"Another worker holds this table (epoch {entry.epoch}, pipeline {entry.pipeline!r}). Run only "
            "one worker per table. This worker wrote nothing and must stop.",
            table=str(self.table),
        )

    @property
    def _owner(self) -> Owner:
        apart = "set `target.table` in the config so that the two have different names"
        return Owner(
            self.pipeline, self.table, self.keys, f"the Iceberg table {self.location}", apart, self.shard
        )

    def check_keys(self, entry: Entry | None) -> None:
        """Refuse a key that differs from the stored rows' key.

        Raises:
            SchemaRefusedError: the rows were written under another key.
        """
        if entry is not None and entry.progress is not None:
            self._owner.check_keys(entry.keys)

    def _check_owner(self, entry: Entry) -> None:
        source = entry.progress.table if entry.progress else None
        self._owner.check_writer(entry.pipeline, entry.source if self.shard else source)

    def _check_rows(self, rows: int, state: TableState) -> None:
        """Check that the current snapshot descends from the ledger's, or from one the user accepted."""
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
                rows, state, "later snapshots were expired, so that it is unknown whether rows moved back"
            )
        raise self._moved(rows, state, "the table was rolled back or replaced")

    def _moved(self, rows: int, state: TableState, what: str) -> StaleProgressError:
        catalog, _, name = self.location.partition(".")
        ways = [
            f"move the rows forward again with CALL {catalog}.system.set_current_snapshot('{name}', {rows})"
        ]
        if state.head is not None:
            ways.append(
                f"if you know that the rows are right, confirm it with ALTER TABLE {self.location} SET "
                f"TBLPROPERTIES ('{ACCEPTED}' = '{state.head}')"
            )
        ways.append("drop the table, and let the worker load it again from the start of its topic")
        return StaleProgressError(
            f"The ledger has the progress of snapshot {rows}, but {what}. Continuing might leave a gap. "
            "Either " + "; or ".join(ways),
            table=str(self.table),
        )


def branches_of(shard: str | None) -> str:
    """Return the prefix of a table's or shard's branches. The epoch follows it."""
    return BRANCH_PREFIX if shard is None else f"{BRANCH_PREFIX}{tag(Shard('', shard))}_"


def _with_parents(state: TableState) -> Iterator[tuple[Any, Any]]:
    """Yield snapshots with their parent; None if it is expired or never existed."""
    snapshots = state.lineage()
    current = next(snapshots, None)
    while current is not None:
        parent = next(snapshots, None)
        yield current, parent
        current = parent


def _replaces_all(state: TableState, snapshot: Any, parent: Any) -> bool:
    """Return True if an INSERT OVERWRITE removed all files. A compaction ('replace') keeps the rows."""
    before = state.numbers(parent).get("total-data-files", 0)
    gone = state.numbers(snapshot).get("deleted-data-files", 0)
    return snapshot.operation() == "overwrite" and before > 0 and gone == before


def _read(text: str) -> Entry:
    document = _document(text)
    if document.get("tidesink") != _FORMAT:
        raise ProgressError(
            f"The table's {LEDGER} was written by a tidesink with ledger format {document.get('tidesink')}, "
            f"but this tidesink reads format {_FORMAT}."
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
        raise ProgressError(f"The table's {LEDGER} is not JSON. Was it written by another program?") from exc
    if not isinstance(document, dict):
        raise ProgressError(f"The table's {LEDGER} is not a ledger. Was it written by another program?")
    return document


def _result_document(result: ApplyResult) -> list[int | str]:
    said: list[int | str] = [result.inserted, result.updated, result.deleted, result.absent, result.version]
    return [*said, result.stale] if result.stale else said


# Number of attempts if commits of others interfere.
ATTEMPTS: Final = 5


class Holder:
    """A worker's hold on one table. Nothing is held before ``claim``."""

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
            raise StaleProgressError("The table must be claimed before it is written.", table=str(self._name))
        return self._held

    def claim(self) -> Entry:
        """Take the next epoch with one commit that keeps the applied progress.

        Raises:
            StaleProgressError, ProgressError: see ``IcebergLedger.entry``.
            SchemaRefusedError: the rows were written under another key.
            TransientTargetError: others kept committing.
        """
        for _ in range(ATTEMPTS):
            state = self._table.state()
            before = self._ledger.entry(state)
            self._ledger.check_keys(before)
            if state.head is None:
                state.table.newFastAppend().commit()  # a branch needs a snapshot to refer to
                continue
            entry = self._ledger.claimed(before, snapshot=state.head)
            if self._put(state, entry):
                self._held, self._uuid = entry, state.uuid
                return entry
        raise self._crowded()

    def current(self) -> TableState:
        """Return the current table. It must be ours, with the rows of our ledger.

        Raises:
            StaleProgressError: another worker claimed it, its rows were moved, or it was created again.
        """
        held = self.held
        try:
            state = self._table.state()
        except SPARK_ERRORS as exc:
            if not self._table.exists:
                raise self._gone("was dropped") from exc
            raise
        if state.uuid != self._uuid:
            raise self._gone("was dropped and created again")
        entry = self._ledger.entry(state)
        if entry is None:
            raise self._gone(f"lost its property {self._ledger.name}")
        if (entry.epoch, entry.claimed_by) != (held.epoch, held.claimed_by):
            raise self._ledger.lost_to(entry)
        self._held = entry
        return state

    def staging(self) -> TableState:
        """Return the current table, with our branch at the snapshot that readers see.

        Raises:
            StaleProgressError: another worker claimed it, its rows were moved, or it was created again.
            TransientTargetError: others kept committing.
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
        """Publish an entry's snapshot and properties. Returns False, doing nothing, if others changed rows.

        ``on``: the snapshot that readers saw before.
        ``at``: the result of ``current`` at that time. The commit is tried on it first; the table is read
            again only if it has changed.
        ``adding``: the entry's snapshot, if the table does not have it on a branch.
        ``forgetting``: properties to remove in the commit.
        ``saying``: properties to set in the commit.

        Raises:
            StaleProgressError: another worker claimed the table, its rows were moved, or it was created
                again.
            CommitUnknownError: the commit may have happened.
        """
        before = self._held
        for _ in range(ATTEMPTS):
            state, at = at or self.current(), None
            # A client that lost the answer sends the commit again, and gets a conflict with itself.
            if self._held == entry != before:
                return True
            if state.head != on or not (adding is None or state.takes(adding)):
                return False
            if self._put(state, entry, adding=adding, forgetting=forgetting, saying=saying):
                self._held = entry
                return True
        raise self._crowded()

    def put_schema(self, state: TableState, schema: Any, properties: dict[str, str]) -> bool:
        """Commit a new schema with properties. Returns False if another commit came first."""
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
        """Return our branch's reference, which always differs from the previous one."""
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
        """Return True if a commit happened although Java raised. False if that cannot be determined now."""
        try:
            return self._ledger.entry(self._table.state()) == entry
        except (*SPARK_ERRORS, TidesinkError):
            return False

    def _uncertain(self, exc: BaseException) -> TidesinkError:
        return commit_error(exc, table=str(self._name))

    def _gone(self, what: str) -> StaleProgressError:
        return StaleProgressError(
            f"The Iceberg table {self._table.location} {what} while this worker held it, and its progress "
            "was lost with it. Start the worker again. It then loads the table from the start of its topic.",
            table=str(self._name),
        )

    def _crowded(self) -> TransientTargetError:
        return TransientTargetError("Others keep committing to the table.", table=str(self._name))
