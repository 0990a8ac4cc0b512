"""Columns of an open SQL table: what they lack, and adding, widening, renaming and dropping them.

Another worker of a shared table may change it between a look and an ALTER. So what is to be done is asked
again with the ledger's row locked; what is left of that moment is an error which the next try gets past.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from tidesink.errors import SchemaRefusedError
from tidesink.sinks.shape import TableShape
from tidesink.sinks.targets.base import EvolveResult, SchemaGap
from tidesink.sinks.targets.shards import Turns, others_columns
from tidesink.sinks.targets.sql_columns import SqlEvolution, default_literals, plan_columns
from tidesink.sinks.targets.sql_limits import check_sql_shape
from tidesink.sinks.targets.sql_place import Place
from tidesink.sinks.targets.sql_shards import SqlShard
from tidesink.sinks.targets.sql_view import SqlView
from tidesink.typemap.render_sql import spark_of

if TYPE_CHECKING:
    from tidesink.sinks.targets.sql_connections import Connections
    from tidesink.sinks.targets.sql_dialect import Dialect
    from tidesink.sinks.targets.sql_ledger import Entry


class ChangedColumns(ABC):
    """The part of a table that changes its columns."""

    place: Place
    _connections: Connections
    _dialect: Dialect
    _present: dict[str, str]
    _created: bool
    _changing: bool
    _shard: SqlShard | None
    _turns: Turns
    _view: SqlView | None

    @abstractmethod
    def _claimed_epoch(self) -> int:
        """Our epoch."""

    @abstractmethod
    def _held(self, cursor: Any, epoch: int, *, lock: bool = True) -> Entry:
        """The ledger's row, which must be of our epoch."""

    @abstractmethod
    def _transaction(self, *, writes: bool = True) -> AbstractContextManager[Any]:
        """A transaction of its own."""

    def evolve(self, shape: TableShape) -> EvolveResult:
        """Add columns with their defaults for rows already there; widen types."""
        check_sql_shape(shape, self._dialect.limits, self._dialect.quote)
        if self._changing:  # the last one was cut off: what it did is only in the table
            with self._altering() as (cursor, _):
                self._change(cursor, self._dialect.left_undone(cursor, self.place))
        needed = self._planned(shape).needed or bool(self._shard and self._shard.new(shape))
        created, self._created = self._created, False
        if needed:
            return self._grown(shape, created=created)
        with self._transaction(writes=False) as cursor:
            self._held(cursor, self._claimed_epoch(), lock=False)
        return EvolveResult(created)

    def _grown(self, shape: TableShape, *, created: bool) -> EvolveResult:
        """Bring the table to a shape, whatever others have done to it since it was planned."""
        with self._altering() as (cursor, entry):
            plan = self._plan(self._present, shape)
            new = self._shard.new(shape) if self._shard else plan.added
            defaults, warnings = default_literals(new, shape)
            # Of a shared table only our own rows get our defaults.
            statements = self._growing(plan, shape, {} if self._shard else defaults)
            self._alter(cursor, statements, widens=bool(plan.widened))
            if self._shard:
                self._shard.fill(cursor, entry, shape, defaults=defaults, present=self._present)
        names = tuple(column.name for column, _ in plan.added)
        return EvolveResult(created, names, tuple(plan.widened), tuple(defaults), warnings)

    def _growing(self, plan: SqlEvolution, shape: TableShape, defaults: Mapping[str, str]) -> list[str]:
        """The statements of a plan; ``defaults`` are literal texts."""
        added = {
            column.name: (found, self._literal(defaults.get(column.name), found))
            for column, found in plan.added
        }
        keys = frozenset(key.lower() for key in shape.keys)
        return self._dialect.alter(self.place.location, added, plan.widened, keys)

    def _planned(self, shape: TableShape) -> SqlEvolution:
        """What the columns lack; of a shared table they are looked up where they seem to lack something."""
        plan = self._plan(self._present, shape)
        if self._shard and plan.needed:
            with self._transaction(writes=False) as cursor:
                self._present = self._dialect.present(cursor, self.place)
            plan = self._plan(self._present, shape)
        return plan

    def _plan(self, present: Mapping[str, str], shape: TableShape) -> SqlEvolution:
        try:
            return plan_columns(present, shape, self._dialect.database)
        except SchemaRefusedError as exc:
            raise self._shard.refused(exc) if self._shard else exc from None

    def gap(self, shape: TableShape) -> SchemaGap:
        """What the columns lack, as they were when they were last looked at."""
        plan = self._planned(shape)
        widened = {name: (self._present[name], found) for name, found in plan.widened.items()}
        held = {name: spark_of(found, self._dialect.database) for name, found in self._present.items()}
        return SchemaGap(tuple(self._present), tuple(c.name for c, _ in plan.added), widened, held)

    def rename_column(self, old: str, new: str) -> None:
        """Rename a column."""
        quote, location = self._dialect.quote, self.place.location
        self._altered(
            lambda present: (
                [f"ALTER TABLE {location} RENAME COLUMN {quote(old)} TO {quote(new)}"]
                if old in present
                else []
            )
        )

    def drop_columns(self, names: Sequence[str]) -> None:
        """Drop columns; one that a view or an index of others needs is an error of the database."""
        quote, location = self._dialect.quote, self.place.location
        self._altered(
            lambda present: [
                f"ALTER TABLE {location} DROP COLUMN {quote(name)}" for name in names if name in present
            ]
        )

    def _altered(self, statements: Callable[[Mapping[str, str]], list[str]]) -> None:
        """Change the schema as it is now; the view of the table must not hold it up."""
        with self._transaction(writes=False) as cursor:
            self._held(cursor, self._claimed_epoch(), lock=False)
            self._present = self._dialect.present(cursor, self.place)
        if not statements(self._present):
            return
        if self.place.shard:
            raise others_columns(self.place.shown, self.place.shard, table=self.place.source)
        with self._altering() as (cursor, _):
            self._alter(cursor, statements(self._present), widens=True)

    @contextmanager
    def _altering(self) -> Iterator[tuple[Any, Entry]]:
        """A transaction with the ledger's row locked, where it is still ours, and the columns as they are."""
        with self._turns.mine(), self._transaction() as cursor:
            entry = self._held(cursor, self._claimed_epoch())
            self._changing = True
            self._present = self._dialect.present(cursor, self.place)
            yield cursor, entry
        self._changing = False

    def _alter(self, cursor: Any, statements: list[str], *, widens: bool) -> None:
        """Change the table's columns, and its view with them."""
        before, after = self._view.in_the_way(cursor) if self._view and widens else ([], [])
        self._change(cursor, [*before, *statements])
        self._present = self._dialect.present(cursor, self.place)
        shown = self._view.statements(cursor, self._present) if self._view else []
        rights = [again.statement for again in after if again.column in (None, *self._present)]
        self._change(cursor, [*shown, *rights])

    def _change(self, cursor: Any, statements: list[str]) -> None:
        """Change the schema, with the ledger's row locked; on another connection where DDL commits."""
        if not statements:
            return
        if not self._dialect.ddl_commits:
            for statement in statements:
                cursor.execute(statement)
            return
        with self._connections.kept_awake(cursor), self._transaction() as changing:
            for statement in statements:
                changing.execute(statement)

    def _literal(self, text: str | None, found: str) -> str | None:
        return None if text is None else self._dialect.literal(text, found)
