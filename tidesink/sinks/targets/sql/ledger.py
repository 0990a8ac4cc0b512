"""The ledger of a SQL database: a table that records the applied progress of each target table.

Each target table has one ledger row. Every transaction that writes to the target table locks this row first.
A batch and its progress are committed in one transaction, so neither exists without the other. A worker that
claims a table increases the epoch in the row. Workers with an older epoch can then no longer write.
"""

# ruff: noqa: S608  every name and text in a statement is quoted by targets/sharing.py

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from tidesink.errors import StaleProgressError
from tidesink.events import TableId, fold_name
from tidesink.sinks.state.progress import from_json, to_json
from tidesink.sinks.targets.base import SEQUENCE_COLUMN, SOFT_DELETE_COLUMN, ApplyResult, Collected
from tidesink.sinks.targets.ledger import Entry
from tidesink.sinks.targets.sharing import Owner, is_shared, not_shared
from tidesink.sinks.targets.sql.dialect import Dialect
from tidesink.sinks.targets.sql.location import SEQUENCE_TYPES, SHARDS, Place, commit_ts_in, hex_above

_COLUMNS: Final = (
    "pipeline",
    "epoch",
    "txn_version",
    "progress",
    "key_columns",
    "result",
    "commits",
    "horizon",
    "table_identity",
)


@dataclass(frozen=True)
class SqlEntry(Entry):
    """A target table's row in the ledger.

    ``commits``: number of committed batches.
    ``horizon``: commit_ts up to which tombstones may have been removed; None if none were.
    ``identity``: the server's ids of the ledger and the target table (``Tables.identity``).
    """

    commits: int = 0
    horizon: int | None = None
    identity: str | None = None


@dataclass(frozen=True)
class SqlLedger:
    """Reads and writes the ledger row of one target table, or of one shard of a shared table."""

    dialect: Dialect
    place: Place
    pipeline: str
    keys: tuple[str, ...]

    @property
    def location(self) -> str:
        """The ledger's quoted name, with ``%`` doubled for statements that have parameters."""
        return self.place.own_ledger.replace("%", "%%")

    @property
    def _own(self) -> dict[str, str]:
        """The primary key values of this table's or shard's ledger row."""
        return {"table_name": self.place.name} | (
            {"shard": self.place.shard.value} if self.place.shard else {}
        )

    @property
    def _where(self) -> str:
        return " AND ".join(f"{name} = %s" for name in self._own)

    @property
    def _columns(self) -> tuple[str, ...]:
        return (*_COLUMNS, "known_columns") if self.place.shard else _COLUMNS

    def _values(self, entry: SqlEntry) -> tuple[Any, ...]:
        columns = None if entry.known is None else json.dumps(list(entry.known))
        return (*_values(entry), columns) if self.place.shard else _values(entry)

    def add_row(self, cursor: Any) -> None:
        """Insert a ledger row for the table or shard if it is missing."""
        values = (*self._own.values(), json.dumps(list(self.place.source)))
        values += self._values(SqlEntry(self.pipeline, self.keys))
        names = ", ".join((*self._own, "source_table", *self._columns))
        marks = ", ".join(["%s"] * len(values))
        insert = self.dialect.rows.insert_missing.format(f"{self.location} ({names}) VALUES ({marks})")
        cursor.execute(insert, values)

    def read(self, cursor: Any, *, lock: bool = False) -> SqlEntry | None:
        """Return the table's ledger row; None if the ledger has no such row.

        ``lock``: lock the row until the transaction ends.

        Raises:
            StaleProgressError: the row belongs to another pipeline or another source table.
        """
        names = ", ".join(("source_table", *self._columns))
        query = f"SELECT {names} FROM {self.location} WHERE {self._where}"
        cursor.execute(query + (" FOR UPDATE" if lock else ""), tuple(self._own.values()))
        row = cursor.fetchone()
        if row is None:
            return None
        source, *values = row
        columns = values.pop() if self.place.shard else None
        entry = replace(_entry(values), known=None if columns is None else tuple(json.loads(columns)))
        self._owner.check_writer(entry.pipeline, TableId(*json.loads(source)))
        return entry

    def write(self, cursor: Any, entry: SqlEntry) -> None:
        """Update the table's ledger row, which this transaction must have locked."""
        sets = ", ".join(f"{name} = %s" for name in self._columns)
        statement = f"UPDATE {self.location} SET {sets}, updated_at = CURRENT_TIMESTAMP WHERE {self._where}"
        cursor.execute(statement, (*self._values(entry), *self._own.values()))

    def others(self, cursor: Any) -> dict[str, bool]:
        """Return the names of the table's other shards, each with True if a batch of it was ever applied."""
        if not self.dialect.tables.present(cursor, replace(self.place, name=SHARDS)):
            return {}
        own = self.place.shard.value if self.place.shard else None
        cursor.execute(
            "SELECT shard, progress IS NOT NULL FROM "
            f"{self.place.shards.replace('%', '%%')} WHERE table_name = %s",
            (self.place.name,),
        )
        return {str(shard): bool(applied) for shard, applied in cursor.fetchall() if shard != own}

    def loaded(self, cursor: Any) -> bool:
        """Return True if a batch was ever applied to this table, or to any shard of it."""
        entry = self.read(cursor)
        if entry is not None and entry.progress is not None:
            return True
        return self.place.shard is not None and any(self.others(cursor).values())

    def check_sharing(self, cursor: Any) -> None:
        """Check that the target table is not already used in a way that conflicts with this source table's
        route.

        Raises:
            StaleProgressError: shards use the target table and this source table is not a shard, or the
                reverse. Also if another source table uses a target name that differs only in case.
        """
        shard, source = self.place.shard, self.place.source
        if shard is None:
            self._check_same(cursor)
            others = self.others(cursor)
            if others:
                raise is_shared(self.place.shown, others, table=source)
        elif replace(self, place=replace(self.place, shard=None)).is_there(cursor):
            raise not_shared(self.place.shown, shard, table=source)

    def _check_same(self, cursor: Any) -> None:
        if not self.dialect.tables.folds_names(cursor):
            return
        query = f"SELECT table_name, source_table FROM {self.location}"
        cursor.execute(query)
        for name, source in cursor.fetchall():
            # Like ``fold_name``, MySQL and MariaDB convert each character to lower case on its own.
            if name != self.place.name and fold_name(name) == fold_name(self.place.name):
                raise self._owner.another(TableId(*json.loads(source)))

    def is_there(self, cursor: Any) -> bool:
        """Return True if the ledger has a row for this table or shard, whichever pipeline wrote the row."""
        query = f"SELECT 1 FROM {self.location} WHERE {self._where}"
        cursor.execute(query, tuple(self._own.values()))
        return cursor.fetchone() is not None

    def claimed(self, entry: SqlEntry) -> SqlEntry:
        """Return the ledger row ``entry`` with the next epoch, for a worker that claims the table.

        Raises:
            SchemaRefusedError: the stored rows were written under another key.
        """
        if entry.progress:
            self._owner.check_keys(entry.keys)
        return entry.claimed(self.keys)

    def identified(self, cursor: Any, entry: SqlEntry) -> SqlEntry:
        """Return the ledger row ``entry`` with the server's current ids of the ledger and the target table.

        Raises:
            StaleProgressError: the table was dropped and created again, but the ledger was not. No error is
                raised if both were created again, because they then come from one backup.
        """
        now = self.dialect.tables.identity(cursor, self.place)
        if entry.progress and entry.identity and now and _made_again(entry.identity, now):
            raise self._made_again()
        return replace(entry, identity=now)

    def _made_again(self) -> StaleProgressError:
        way = f"UPDATE {self.place.own_ledger} SET table_identity = NULL "
        return StaleProgressError(
            f"{self.place.shown} was dropped and created again, but the ledger has the progress of the "
            "earlier table. If the new table is from a backup, it lacks later changes. Restore the earlier "
            "table. If you know that the new table lacks no changes, confirm it with "
            f"{way}WHERE table_name = {self.place.name!r}. Or drop the table, delete that row of the ledger, "
            "and let the worker load the table again from the start of its topic.",
            table=str(self.place.source),
        )

    @property
    def _owner(self) -> Owner:
        apart = (
            "set `target.table` or `routes` in the config so that this table gets its own name at the target "
            "(on a server with lower_case_table_names, names that differ only in case are the same)"
        )
        place = self.place
        return Owner(self.pipeline, place.source, self.keys, f"the table {place.shown}", apart, place.shard)


def _made_again(before: str, now: str) -> bool:
    (old_ledger, _, old), (new_ledger, _, new) = before.partition(":"), now.partition(":")
    return old_ledger == new_ledger and old != new


def _values(entry: SqlEntry) -> tuple[Any, ...]:
    return (
        entry.pipeline,
        entry.epoch,
        entry.progress.txn_version if entry.progress else 0,
        to_json(entry.progress) if entry.progress else None,
        json.dumps(list(entry.keys)),
        json.dumps(asdict(entry.result)) if entry.result else None,
        entry.commits,
        entry.horizon,
        entry.identity,
    )


def _entry(values: list[Any]) -> SqlEntry:
    pipeline, epoch, _, progress, keys, result, commits, horizon, identity = values
    return SqlEntry(
        pipeline,
        tuple(json.loads(keys)),
        int(epoch),
        from_json(progress) if progress else None,
        ApplyResult(**json.loads(result)) if result else None,
        commits=int(commits),
        horizon=None if horizon is None else int(horizon),
        identity=identity,
    )


# Most tombstones that one transaction removes. Each transaction scans the whole table, because the column
# that marks tombstones has no index.
PIECE: Final = 100_000


@dataclass(frozen=True)
class SqlTombstones:
    """The tombstones of one table: rows that stay after a delete, so that older changes are not applied.

    ``held``: locks and returns the ledger row. It raises StaleProgressError if another worker holds the
        table.
    """

    dialect: Dialect
    place: Place
    ledger: SqlLedger
    transaction: Callable[[], AbstractContextManager[Any]]
    held: Callable[[Any], SqlEntry]

    def collect(self, horizon: int, keys: Sequence[str], *, piece: int = PIECE) -> Collected:
        """Remove the tombstones of deletes up to the commit_ts ``horizon``.

        Each transaction first records ``horizon`` in the ledger.

        ``keys``: names of the key columns, as the table spells them.
        ``piece``: maximum number of rows that one transaction removes.
        """
        removed = 0
        while True:
            with self.transaction() as cursor:
                entry = self.held(cursor)
                now = max(horizon, entry.horizon or 0)
                self.ledger.write(cursor, replace(entry, horizon=now))
                count = self._removed(cursor, now, keys, most=piece)
            removed += count
            if count < piece:
                break
        with self.transaction() as cursor:
            remaining, oldest = self._kept(cursor)
        return Collected(now, removed, remaining, oldest)

    def _removed(self, cursor: Any, horizon: int, keys: Sequence[str], *, most: int) -> int:
        column = self.dialect.quote(SEQUENCE_COLUMN)
        bound = self.dialect.values.literal(hex_above(horizon), SEQUENCE_TYPES[self.dialect.database])
        where = f"{self._mark} AND {column} < {bound}"
        names = [self.dialect.quote(key) for key in keys]
        return self.dialect.rows.delete_some(cursor, self.place.location, names, where, most=most)

    def _kept(self, cursor: Any) -> tuple[int, int | None]:
        least = f"min({self.dialect.values.hex_of(self.dialect.quote(SEQUENCE_COLUMN))})"
        cursor.execute(f"SELECT count(*), {least} FROM {self.place.location} WHERE {self._mark}")
        count, digits = cursor.fetchone()
        return int(count), None if digits is None else commit_ts_in(digits)

    @property
    def _mark(self) -> str:
        return self.dialect.quote(SOFT_DELETE_COLUMN)
