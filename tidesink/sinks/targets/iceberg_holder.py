"""One worker's hold on an Iceberg table: the claim, the branch it stages on, and the commit that counts.

Every commit here is made on metadata which were looked at first, and is refused where they are no longer
the table's: another epoch in between is noticed, and so are rows that were moved. A catalog that compares
only what a commit touches (REST) refuses as well, since each commit of a holder rewrites its own branch's
reference, which the claim of another takes away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from tidesink.errors import StaleProgressError, TidesinkError, TransientTargetError
from tidesink.events import TableId
from tidesink.sinks.targets.iceberg_errors import commit_error, is_conflict
from tidesink.sinks.targets.iceberg_ledger import ACCEPTED, Entry, IcebergLedger
from tidesink.sinks.targets.iceberg_table import MAIN, JvmTable, TableState
from tidesink.sinks.targets.spark_errors import SPARK_ERRORS

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
        forgetting: Iterable[str] = (),
        saying: Mapping[str, str] = MappingProxyType({}),
    ) -> bool:
        """Make an entry's snapshot and words visible; False, and nothing done, where others changed the rows.

        ``on`` is the snapshot that readers saw before; ``forgetting`` are properties that go with it, and
        ``saying`` properties that come with it.

        Raises: as ``current``; CommitUnknownError where the commit may have happened.
        """
        for _ in range(ATTEMPTS):
            state = self.current()
            if state.head != on:
                return False
            if self._put(state, entry, forgetting=forgetting, saying=saying):
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
        forgetting: Iterable[str] = (),
        saying: Mapping[str, str] = MappingProxyType({}),
    ) -> bool:
        ours = [name for name in state.branches() if self._ledger.is_ours(name)]

        def change(builder: Any) -> None:
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
