"""The view of a target table's current rows."""

# ruff: noqa: S608  every name and text in a statement is quoted by targets/sharing.py

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Final

from tidesink.errors import SchemaRefusedError
from tidesink.sinks.laws.modes import FROM_COLUMN, OP, READ_COLUMN, TO_COLUMN
from tidesink.sinks.targets.base import SEQUENCE_COLUMN, SOFT_DELETE_COLUMN
from tidesink.sinks.targets.sql.dialect import Dialect, ForView
from tidesink.sinks.targets.sql.location import Place

_OWN: Final = frozenset({SEQUENCE_COLUMN, SOFT_DELETE_COLUMN, FROM_COLUMN, TO_COLUMN, READ_COLUMN})
# Conditions of a current row, by column. In a history, an ended version and a delete marker have an end.
_LIVING: Final = MappingProxyType({SOFT_DELETE_COLUMN: "IS NOT TRUE", TO_COLUMN: "IS NULL"})
_MARK: Final = "_tidesink_view_"


@dataclass(frozen=True)
class SqlView:
    """A view of a target table's current rows, in the same schema."""

    dialect: Dialect
    place: Place
    name: str

    def statements(self, cursor: Any, present: Mapping[str, str]) -> list[str]:
        """Return the statements that create the view, or adapt it to the table's columns if they changed.

        ``present``: the table's columns: type by name.

        A change log (``mode: append``) has no view, because its rows are neither current nor deleted.

        Raises:
            SchemaRefusedError: the view's name belongs to a table, or to a view that tidesink did not create.
        """
        if OP in present:
            return []
        text = self.dialect.views.text(cursor, self.place, self.name)
        if text is not None and _MARK not in text:
            raise SchemaRefusedError(
                f"{self.place.schema}.{self.name} is a table, or a view that tidesink did not create (or "
                "whose definition this user may not see). `target.view` uses that name for the view of "
                f"{self.place.shown}. Set `target.view` to another name, or drop the existing object.",
                table=str(self.place.source),
            )
        alias = _MARK + sha256(living_query(self.place, present).encode()).hexdigest()[:16]
        if text is not None and alias in text:
            return []
        query = living_query(self.place, present, alias)
        return self.dialect.views.statements(self.place.beside(self.name), query)

    def in_the_way(self, cursor: Any) -> tuple[list[str], list[ForView]]:
        """Return the statements to run before and after a change of column types, so that the view does not
        prevent it.
        """
        text = self.dialect.views.text(cursor, self.place, self.name)
        if text is None or _MARK not in text:
            return [], []
        return self.dialect.views.in_the_way(cursor, self.place.beside(self.name))


def living_query(place: Place, columns: Mapping[str, str], alias: str = "") -> str:
    """Return the SQL query of a table's current rows, without tombstones and soft-deleted rows.

    In a history, these are the current versions.

    ``alias``: the table's alias in the query; empty for none.
    """
    named = ", ".join(place.quote(name) for name in columns if name not in _OWN)
    living = [f"{place.quote(name)} {condition}" for name, condition in _LIVING.items() if name in columns]
    where = f" WHERE {' AND '.join(living)}" if living else ""
    return f"SELECT {named} FROM {place.location}{alias and f' AS {place.quote(alias)}'}{where}"
