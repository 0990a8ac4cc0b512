"""Forgetting the deletes a database's table in the source's order still has marked.

The horizon stands in the table's row of the ledger; it is raised in the transaction that removes the first
rows. Many rows go in pieces, a transaction each, so that none grows without bound.
"""

# ruff: noqa: S608  every name in a statement is quoted by identifier.py, every text is digits of ours
from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Final

from tidesink.sinks.targets.base import SEQUENCE_COLUMN, SOFT_DELETE_COLUMN, Collected
from tidesink.sinks.targets.sql_dialect import Dialect
from tidesink.sinks.targets.sql_ledger import Entry, SqlLedger
from tidesink.sinks.targets.sql_place import Place
from tidesink.sinks.targets.sql_sequence import SEQUENCE_TYPES, commit_ts_in, hex_above

# Rows that one transaction removes. Each reads the table once: it has no index on its marks.
PIECE: Final = 100_000


@dataclass(frozen=True)
class SqlTombstones:
    """The marked rows of one table. ``held`` gives the ledger's row, locked, where it is still ours."""

    dialect: Dialect
    place: Place
    ledger: SqlLedger
    transaction: Callable[[], AbstractContextManager[Any]]
    held: Callable[[Any], Entry]

    def collect(self, horizon: int, keys: Sequence[str], *, piece: int = PIECE) -> Collected:
        """Raise the horizon and remove the deletes up to it; ``keys`` are the table's names of its key."""
        removed = 0
        while True:
            with self.transaction() as cursor:
                entry = self.held(cursor)
                now = max(horizon, entry.horizon or 0)
                self.ledger.write(cursor, replace(entry, horizon=now))
                gone = self._removed(cursor, now, keys, most=piece)
            removed += gone
            if gone < piece:
                break
        with self.transaction() as cursor:
            kept, oldest = self._kept(cursor)
        return Collected(now, removed, kept, oldest)

    def _removed(self, cursor: Any, horizon: int, keys: Sequence[str], *, most: int) -> int:
        column = self.dialect.quote(SEQUENCE_COLUMN)
        bound = self.dialect.literal(hex_above(horizon), SEQUENCE_TYPES[self.dialect.database])
        where = f"{self._mark} AND {column} < {bound}"
        names = [self.dialect.quote(key) for key in keys]
        return self.dialect.delete_some(cursor, self.place.location, names, where, most=most)

    def _kept(self, cursor: Any) -> tuple[int, int | None]:
        least = f"min({self.dialect.hex_of(self.dialect.quote(SEQUENCE_COLUMN))})"
        cursor.execute(f"SELECT count(*), {least} FROM {self.place.location} WHERE {self._mark}")
        kept, digits = cursor.fetchone()
        return int(kept), None if digits is None else commit_ts_in(digits)

    @property
    def _mark(self) -> str:
        return self.dialect.quote(SOFT_DELETE_COLUMN)
