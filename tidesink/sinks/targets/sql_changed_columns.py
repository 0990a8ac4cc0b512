"""Columns of an open SQL table: what they lack, and renaming and dropping them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidesink.sinks.shape import TableShape
from tidesink.sinks.targets.base import SchemaGap
from tidesink.sinks.targets.sql_columns import SqlEvolution
from tidesink.sinks.targets.sql_place import Place
from tidesink.typemap.render_sql import spark_of

if TYPE_CHECKING:
    from tidesink.sinks.targets.sql_dialect import Dialect
    from tidesink.sinks.targets.sql_ledger import Entry


class ChangedColumns(ABC):
    """The part of a table that changes columns which are there."""

    place: Place
    _dialect: Dialect
    _present: dict[str, str]

    @abstractmethod
    def _planned(self, shape: TableShape) -> SqlEvolution:
        """What the columns lack for a shape."""

    @abstractmethod
    def _looked_up(self) -> Mapping[str, str]:
        """The columns as they are now, of a table that is still ours."""

    @abstractmethod
    def _altered(
        self, statements: list[str], *, widens: bool, then: Callable[[Any, Entry], None] | None = None
    ) -> None:
        """Change the table's columns, and its view with them, where it is still ours."""

    def gap(self, shape: TableShape) -> SchemaGap:
        """What the columns lack, as they were when they were last looked at."""
        plan = self._planned(shape)
        widened = {name: (self._present[name], found) for name, found in plan.widened.items()}
        held = {name: spark_of(found, self._dialect.database) for name, found in self._present.items()}
        return SchemaGap(tuple(self._present), tuple(c.name for c, _ in plan.added), widened, held)

    def rename_column(self, old: str, new: str) -> None:
        """Rename a column."""
        quote, location = self._dialect.quote, self.place.location
        self._alter(
            lambda present: (
                [f"ALTER TABLE {location} RENAME COLUMN {quote(old)} TO {quote(new)}"]
                if old in present
                else []
            )
        )

    def drop_columns(self, names: Sequence[str]) -> None:
        """Drop columns; one that a view or an index of others needs is an error of the database."""
        quote, location = self._dialect.quote, self.place.location
        self._alter(
            lambda present: [
                f"ALTER TABLE {location} DROP COLUMN {quote(name)}" for name in names if name in present
            ]
        )

    def _alter(self, statements: Callable[[Mapping[str, str]], list[str]]) -> None:
        """Change the schema as it is now; the view of the table must not hold it up."""
        needed = statements(self._looked_up())
        if needed:
            self._altered(needed, widens=True)
