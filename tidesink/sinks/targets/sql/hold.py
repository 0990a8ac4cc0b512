"""A worker's hold of a SQL target table: its claim in the ledger, and the transactions made under it.

Every transaction that writes first locks the table's ledger row and checks its epoch. So a worker whose epoch
is outdated writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tidesink.errors import StaleProgressError
from tidesink.sinks.state.progress import check_held
from tidesink.sinks.targets.ledger import required_claim
from tidesink.sinks.targets.sharing import Turns
from tidesink.sinks.targets.sql.dialect import Connections
from tidesink.sinks.targets.sql.ledger import SqlEntry, SqlLedger
from tidesink.sinks.targets.sql.location import Place


class SqlHold:
    """One worker's hold of a target table.

    ``ledger``: the ledger with the table's row.
    ``table``: the source table, for errors.
    """

    def __init__(self, connections: Connections, place: Place, ledger: SqlLedger) -> None:
        """Create the hold of a table that is not claimed yet."""
        self.connections = connections
        self.dialect = connections.dialect
        self.place = place
        self.ledger = ledger
        self.table = str(place.source)
        self._turns = Turns(f"{connections.endpoint.shown} {place.location}", place.shard)
        self._epoch: int | None = None

    @property
    def epoch(self) -> int:
        """The claimed epoch.

        Raises:
            StaleProgressError: the table is not claimed.
        """
        return required_claim(self._epoch, table=self.table)

    @property
    def is_claimed(self) -> bool:
        """True if this worker claimed the table before, even if another worker has claimed it since."""
        return self._epoch is not None

    @property
    def stage(self) -> str:
        """The quoted name of the staging table of the claimed epoch."""
        return self.place.staging(self.epoch)

    @contextmanager
    def transaction(self, *, writes: bool = True) -> Iterator[Any]:
        """Open a transaction and yield its cursor. If ``writes`` is False, it is rolled back at the end."""
        with self.connections.transaction(self.table, writes=writes) as cursor:
            yield cursor

    @contextmanager
    def turn(self) -> Iterator[tuple[Any, SqlEntry]]:
        """Open a transaction that holds the lock on the ledger row, and yield its cursor and the row.

        Within this process, the shards of a shared table do this one after the other.

        Raises:
            StaleProgressError: another worker claimed the table.
        """
        with self._turns.mine(), self.transaction() as cursor:
            yield cursor, self.held(cursor)

    def claimed(self, cursor: Any) -> SqlEntry:
        """Lock the ledger row, which is added if missing, and return it with the next epoch.

        Raises:
            StaleProgressError: the table is shared in another way than this source table's route says.
            SchemaRefusedError: the stored rows were written under another key.
        """
        self.ledger.check_sharing(cursor)
        self.ledger.add_row(cursor)
        return self.ledger.claimed(self._row(cursor, lock=True))

    def take(self, epoch: int) -> None:
        """Hold the table with an epoch that is committed to its ledger row."""
        self._epoch = epoch

    def held(self, cursor: Any, *, lock: bool = True, batch: int | None = None) -> SqlEntry:
        """Return the ledger row, after checking that it has this worker's epoch.

        ``lock``: lock the row until the transaction ends.
        ``batch``: the epoch of the batch to apply.

        Raises:
            StaleProgressError: the table is not claimed, another worker claimed it, or the batch is from
                another epoch.
        """
        epoch = self.epoch
        entry = self._row(cursor, lock=lock)
        check_held(entry.hold, (epoch,), table=self.place.source, batch=batch)
        return entry

    def entry(self) -> SqlEntry | None:
        """Return the ledger row, whichever worker holds the table; None if the ledger has no row."""
        with self.transaction(writes=False) as cursor:
            return self.ledger.read(cursor)

    def change(self, cursor: Any, statements: Sequence[str]) -> None:
        """Run DDL statements. The lock of ``cursor`` on the ledger row keeps other workers out meanwhile."""
        if not statements:
            return
        with self.changer(cursor) as changing:
            for statement in statements:
                changing.execute(statement)

    @contextmanager
    def changer(self, cursor: Any) -> Iterator[Any]:
        """Yield a cursor for DDL while ``cursor`` holds the lock on the ledger row.

        In MySQL, DDL would commit that transaction and release the lock, so a second connection is used.
        """
        if not self.dialect.tables.ddl_commits:
            yield cursor
            return
        with self.connections.kept_awake(cursor), self.transaction() as changing:
            yield changing

    def _row(self, cursor: Any, *, lock: bool) -> SqlEntry:
        entry = self.ledger.read(cursor, lock=lock)
        if entry is None:
            raise StaleProgressError(
                f"The row of {self.place.shown} was deleted from {self.place.own_ledger}. Start the worker "
                "again.",
                table=self.table,
            )
        return entry
