"""The ledger of an Iceberg table, in a table property: its pipeline, applied progress and current claim."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final
from uuid import uuid4

from tidesink.errors import (
    StaleProgressError,
    TidesinkError,
    TransientTargetError,
)
from tidesink.events import TableId
from tidesink.sinks.spark.errors import SPARK_ERRORS
from tidesink.sinks.state.progress import Progress
from tidesink.sinks.targets.base import ApplyResult
from tidesink.sinks.targets.iceberg.jvm import MAIN, JvmTable, TableState, commit_error, is_conflict
from tidesink.sinks.targets.lake.ledger import LakeEntry, form_of, or_none
from tidesink.sinks.targets.ledger import required_claim
from tidesink.sinks.targets.sharing import Owner, is_shared, known_after, not_shared, tag
from tidesink.typemap.target_schema import Shard, TargetSchema

LEDGER: Final = "tidesink.ledger"
# Property of a shared table: the snapshot of the last commit of any shard.
SHARED_ROWS: Final = "tidesink.rows"
# Property that the user sets: the id of a snapshot whose rows are right although the table was rolled back.
ACCEPTED: Final = "tidesink.accepted"
BRANCH_PREFIX: Final = "tidesink_"
_FORM: Final = form_of(
    f"The table property {LEDGER}",
    "Restore its earlier value, or drop the table and let the worker load it again from the start of its "
    "topic.",
)


@dataclass(frozen=True)
class IcebergEntry(LakeEntry):
    """The ledger entry in a table property.

    ``snapshot``: id of the snapshot with the rows of the progress.
    ``claimed_by``: a new id for each claim. The epoch is not enough to identify a claim, because an epoch is
        used twice if the catalog is restored from a backup.
    """

    snapshot: int = 0
    claimed_by: str = ""

    @property
    def branch(self) -> str:
        """The branch on which the worker of this epoch stages rows before they are published."""
        return f"{branches_of(self.shard)}{self.epoch}"

    @property
    def text(self) -> str:
        """The entry as JSON text, which is the value of the table property."""
        result = None if self.result is None else _result_members(self.result)
        return self.to_json(snapshot=self.snapshot, claimed_by=self.claimed_by, result=result)


@dataclass(frozen=True)
class IcebergLedger:
    """Reads and checks the ledger of an Iceberg table.

    ``table``: the source table.
    ``location``: the Iceberg table's quoted name.
    ``keys``: the key columns.
    ``shard``: the source table's shard if several source tables share the Iceberg table; None otherwise.
    """

    table: TableId
    pipeline: str
    location: str
    keys: tuple[str, ...] = ()
    shard: Shard | None = None

    @property
    def name(self) -> str:
        """The name of the table property that contains the ledger entry of this table or shard."""
        return LEDGER if self.shard is None else f"{LEDGER}.{tag(self.shard)}"

    def properties(self, entry: IcebergEntry) -> dict[str, str]:
        """Return the table properties (name and value) that store a ledger entry."""
        shared = {} if self.shard is None else {SHARED_ROWS: str(entry.snapshot)}
        return {self.name: entry.text, **shared}

    def is_ours(self, branch: str) -> bool:
        """Return True if a branch is a staging branch of this table or shard, whatever its epoch."""
        first = branches_of(self.shard.value if self.shard else None)
        return branch.startswith(first) and branch.removeprefix(first).isdigit()

    def shards(self, state: TableState) -> tuple[str, ...]:
        """Return the names of the other shards that share the table."""
        texts = state.properties(f"{LEDGER}.").values()
        own = self.shard.value if self.shard else None
        return tuple(shard for shard in (_read(text).shard for text in texts) if shard and shard != own)

    def entry(self, state: TableState) -> IcebergEntry | None:
        """Return the entry in the table's ledger; None if the table or shard was never claimed.

        Raises:
            StaleProgressError: the table was rolled back or replaced after the ledger was written, or it
                belongs to another pipeline or another source table.
            ProgressError: the ledger is damaged, or has another format than this tidesink version reads.
        """
        text = state.property(self.name)
        self._check_sharing(state)
        if text is None:
            if (
                state.property(SHARED_ROWS) is not None
            ):  # before a first claim, too, the table must not have been rolled back
                self._check_rows(int(state.property(SHARED_ROWS) or 0), state)
            return None
        entry = _read(text)
        self._check_owner(entry)
        shared = state.property(SHARED_ROWS) if self.shard else None
        self._check_rows(entry.snapshot if shared is None else int(shared), state)
        return entry

    def _check_sharing(self, state: TableState) -> None:
        """Check that the target table is shared if and only if this source table's route names a shard.

        Raises:
            StaleProgressError: the table is shared but the route names no shard, or the reverse.
        """
        target = f"the Iceberg table {self.location}"
        if self.shard is not None and state.property(LEDGER) is not None:
            raise not_shared(target, self.shard, table=self.table)
        if self.shard is None and state.property(SHARED_ROWS) is not None:
            raise is_shared(target, self.shards(state), table=self.table)

    def claimed(self, held: IcebergEntry | None, *, snapshot: int) -> IcebergEntry:
        """Return the ledger entry to commit for a claim. It has the next epoch and the applied progress.

        ``held``: the ledger's current entry; None if the ledger is empty.
        ``snapshot``: id of the snapshot that readers see.
        """
        shard, source = (self.shard.value, self.table) if self.shard else (None, None)
        before = held or IcebergEntry(self.pipeline, self.keys, shard=shard, source=source)
        claim = before.claimed(self.keys)
        return replace(claim, kind="claim", snapshot=snapshot, claimed_by=uuid4().hex)

    def batch(
        self,
        held: IcebergEntry,
        progress: Progress,
        result: ApplyResult,
        *,
        snapshot: int,
        shape: TargetSchema,
    ) -> IcebergEntry:
        """Return the ledger entry to commit with a batch.

        ``held``: the entry of the worker's claim or of its previous batch.
        ``snapshot``: id of the snapshot with the batch's rows.
        ``shape``: the columns and key of the batch's rows.
        """
        columns = None if self.shard is None else known_after(held.known or (), shape)
        applied = replace(held, kind="batch", progress=progress, known=columns)
        return replace(applied, snapshot=snapshot, result=result)

    def lost_to(self, entry: IcebergEntry) -> StaleProgressError:
        """Return the error to raise because another worker has claimed the table.

        ``entry``: the other worker's ledger entry.
        """
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

    def check_keys(self, entry: IcebergEntry | None) -> None:
        """Check that the stored rows were written under the configured key.

        ``entry``: the ledger's entry; None if the ledger is empty.

        Raises:
            SchemaRefusedError: the rows were written under another key.
        """
        if entry is not None and entry.progress is not None:
            self._owner.check_keys(entry.keys)

    def _check_owner(self, entry: IcebergEntry) -> None:
        source = entry.progress.table if entry.progress else None
        self._owner.check_writer(entry.pipeline, entry.source if self.shard else source)

    def _check_rows(self, rows: int, state: TableState) -> None:
        """Check that the table was not rolled back or replaced after the ledger was written.

        The snapshot that readers see must descend from the ledger's snapshot, or from a snapshot that the
        user has accepted (table property ``tidesink.accepted``).

        ``rows``: id of the ledger's snapshot.

        Raises:
            StaleProgressError: the snapshot that readers see does not descend from either of these.
        """
        accepted = {str(rows), state.property(ACCEPTED)}
        last = None
        for snapshot, parent in _with_parents(state):
            if str(snapshot.snapshotId()) in accepted:
                return
            if parent is not None and _replaces_all(state, snapshot, parent):
                raise self._moved(rows, state, f"snapshot {snapshot.snapshotId()} replaced all rows")
            last = snapshot
        if last is not None and last.parentId() is not None:
            raise self._moved(
                rows,
                state,
                "later snapshots were expired, so it is unknown whether the table was rolled back",
            )
        raise self._moved(rows, state, "the table was rolled back or replaced")

    def _moved(self, rows: int, state: TableState, what: str) -> StaleProgressError:
        catalog, _, name = self.location.partition(".")
        ways = [
            "set the table to this snapshot again with CALL "
            f"{catalog}.system.set_current_snapshot('{name}', {rows})"
        ]
        if state.head is not None:
            ways.append(
                f"if you know that the rows are right, confirm this with ALTER TABLE {self.location} SET "
                f"TBLPROPERTIES ('{ACCEPTED}' = '{state.head}')"
            )
        ways.append("drop the table, and let the worker load it again from the start of its topic")
        return StaleProgressError(
            f"The ledger has the progress of snapshot {rows}, but {what}. If the worker continued, changes "
            "might be missing. Either " + "; or ".join(ways),
            table=str(self.table),
        )


def branches_of(shard: str | None) -> str:
    """Return the beginning of the names of a table's or shard's staging branches. The rest of a name is the
    epoch.
    """
    return BRANCH_PREFIX if shard is None else f"{BRANCH_PREFIX}{tag(Shard('', shard))}_"


def _with_parents(state: TableState) -> Iterator[tuple[Any, Any]]:
    """Yield the snapshot that readers see and its ancestors, newest first, each together with its parent.

    The parent of the last snapshot is None, because it does not exist or is expired.
    """
    snapshots = state.lineage()
    current = next(snapshots, None)
    while current is not None:
        parent = next(snapshots, None)
        yield current, parent
        current = parent


def _replaces_all(state: TableState, snapshot: Any, parent: Any) -> bool:
    """Return True if a snapshot is an INSERT OVERWRITE that removed all data files of its parent."""
    before = state.numbers(parent).get("total-data-files", 0)
    removed = state.numbers(snapshot).get("deleted-data-files", 0)
    return snapshot.operation() == "overwrite" and before > 0 and removed == before


def _read(text: str) -> IcebergEntry:
    stored = _FORM.read_text(text)
    result: Any = or_none(stored.result)
    return IcebergEntry(
        **stored.common,
        snapshot=or_none(stored.snapshot) or 0,
        claimed_by=or_none(stored.claimed_by) or "",
        result=None if result is None else ApplyResult(*result),
    )


def _result_members(result: ApplyResult) -> list[int | str]:
    values: list[int | str] = [result.inserted, result.updated, result.deleted, result.absent, result.version]
    return [*values, result.stale] if result.stale else values


# Number of attempts to commit if other writers commit in between.
ATTEMPTS: Final = 5


class Holder:
    """A worker's claim on one table. It makes the commits that change the ledger, which fail if the claim was
    lost.
    """

    def __init__(self, table: JvmTable, ledger: IcebergLedger, name: TableId) -> None:
        self._table, self._ledger, self._name = table, ledger, name
        self._held: IcebergEntry | None = None
        self._uuid = ""

    @property
    def held(self) -> IcebergEntry:
        """The ledger entry as this worker last wrote or read it.

        Raises:
            StaleProgressError: this worker has not claimed the table.
        """
        return required_claim(self._held, table=self._name)

    def claim(self) -> IcebergEntry:
        """Claim the table: commit the next epoch with the applied progress, and return the new ledger entry.

        The commit fences workers with an older epoch.

        Raises:
            StaleProgressError, ProgressError: for the same reasons as ``IcebergLedger.entry``.
            SchemaRefusedError: the table's rows were written under another key.
            TransientTargetError: other writers kept committing.
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
        """Read the table's current state, after checking that this worker still holds the table.

        Raises:
            StaleProgressError: another worker claimed the table, or it was rolled back, dropped or created
                again.
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
        """Make this worker's staging branch point to the snapshot that readers see, and return the table's
        state.

        Raises:
            StaleProgressError: another worker claimed the table, or it was rolled back, dropped or created
                again.
            TransientTargetError: other writers kept committing.
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
        entry: IcebergEntry,
        *,
        on: int | None,
        at: TableState | None = None,
        adding: Any = None,
        forgetting: Iterable[str] = (),
        saying: Mapping[str, str] = MappingProxyType({}),
    ) -> bool:
        """Make a ledger entry's snapshot visible to readers, and record the entry, in one commit.

        Returns False, without a commit, if readers no longer see the snapshot ``on``, or if ``adding`` can no
        longer be added to the table.

        ``on``: the snapshot that readers saw when the entry's snapshot was created.
        ``at``: the table's state at that time, if known. The commit is first tried on this state, and the
            table is only read again if it has changed.
        ``adding``: Java's object of the entry's snapshot, if the table does not have it on a branch.
        ``forgetting``: names of properties to remove in the commit.
        ``saying``: properties to set in the commit.

        Raises:
            StaleProgressError: another worker claimed the table, or it was rolled back, dropped or created
                again.
            TransientTargetError: other writers kept committing.
            CommitUnknownError: the commit may have happened.
        """
        before = self._held
        for _ in range(ATTEMPTS):
            state, at = at or self.current(), None
            # If Iceberg's client lost the answer to a commit, it sent the commit again and got a conflict
            # with itself.
            if self._held == entry != before:
                return True
            if state.head != on or not (adding is None or state.takes(adding)):
                return False
            if self._put(state, entry, adding=adding, forgetting=forgetting, saying=saying):
                self._held = entry
                return True
        raise self._crowded()

    def put_schema(self, state: TableState, schema: Any, properties: dict[str, str]) -> bool:
        """Commit a new table schema and table properties. Returns False if another writer committed in
        between.
        """
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
        entry: IcebergEntry,
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

    def _branch_at(self, state: TableState, entry: IcebergEntry) -> Any:
        """Return Java's branch reference that makes the staging branch point to the entry's snapshot.

        The reference always differs from the branch's current one, so that another worker's commit conflicts
        with it.
        """
        before = state.metadata.ref(entry.branch)
        keep = 2 if before is not None and before.minSnapshotsToKeep() == 1 else 1
        return self._table.branch_at(entry.snapshot, keep=keep)

    def _commit(self, state: TableState, change: Any, *, entry: IcebergEntry | None = None) -> bool:
        try:
            self._table.commit(state, change)
        except SPARK_ERRORS as exc:
            if is_conflict(exc):
                return False
            if entry is None or not self._landed(entry):
                raise self._uncertain(exc) from exc
        return True

    def _landed(self, entry: IcebergEntry) -> bool:
        """Return True if the ledger has the entry ``entry`` although its commit raised an error.

        Returns False if it does not, or if the ledger cannot be read.
        """
        try:
            return self._ledger.entry(self._table.state()) == entry
        except (*SPARK_ERRORS, TidesinkError):
            return False

    def _uncertain(self, exc: BaseException) -> TidesinkError:
        return commit_error(exc, table=str(self._name))

    def _gone(self, what: str) -> StaleProgressError:
        return StaleProgressError(
            f"The Iceberg table {self._table.location} {what} while this worker held it, so its progress is "
            "lost. Start the worker again. It then loads the table from the start of its topic.",
            table=str(self._name),
        )

    def _crowded(self) -> TransientTargetError:
        return TransientTargetError(
            "Other writers keep committing to the table, so the commit failed. It is tried again.",
            table=str(self._name),
        )
