"""A view that shows a table's living rows without tidesink's own columns, kept in step with the table."""

# ruff: noqa: S608  every name in a statement is quoted by identifier.py
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidesink.errors import SchemaRefusedError
from tidesink.sinks.targets.base import SEQUENCE_COLUMN, SOFT_DELETE_COLUMN
from tidesink.sinks.targets.sql_place import Place

if TYPE_CHECKING:
    from tidesink.sinks.targets.sql_dialect import Dialect

_OWN: Final = frozenset({SEQUENCE_COLUMN, SOFT_DELETE_COLUMN})


@dataclass(frozen=True)
class SqlView:
    """The view ``name`` of one table, beside it."""

    dialect: Dialect
    place: Place
    name: str

    def statements(self, cursor: Any, present: Mapping[str, str]) -> list[str]:
        """What makes the view fit the table's columns; empty where it does, so that readers are not held up.

        Raises:
            SchemaRefusedError: a table has the view's name.
        """
        uses = self.dialect.view_uses(cursor, self.place, self.name)
        if uses is None:
            raise SchemaRefusedError(
                f"{self.place.schema}.{self.name} is a table, and target.view gives its name to the view of "
                f"{self.place.shown}: set target.view to another name",
                table=str(self.place.source),
            )
        if uses == present.keys() - {SEQUENCE_COLUMN}:
            return []
        query = living_query(self.place, present)
        return self.dialect.view_statements(self.place.beside(self.name), query)

    def in_the_way(self, cursor: Any) -> tuple[list[str], list[str]]:
        """What is to be done before and after a change of types, where a view holds it up."""
        return self.dialect.view_in_the_way(cursor, self.place.beside(self.name))


def living_query(place: Place, columns: Mapping[str, str]) -> str:
    """The living rows of a table with these columns, in a database's SQL."""
    named = ", ".join(place.quote(name) for name in columns if name not in _OWN)
    marked = f" WHERE {place.quote(SOFT_DELETE_COLUMN)} IS NOT TRUE" if SOFT_DELETE_COLUMN in columns else ""
    return f"SELECT {named} FROM {place.location}{marked}"
