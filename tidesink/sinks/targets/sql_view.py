"""A view that shows a table's living rows without tidesink's own columns, kept in step with the table.

In it the table has a name that only tidesink gives, with a digest of the query. Every database keeps that
name in the view's definition and loses it where somebody puts another view in the place of ours: so it says
whose the view is, and whether it is still the one that the table's columns ask for.
"""

# ruff: noqa: S608  every name in a statement is quoted by identifier.py
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from tidesink.errors import SchemaRefusedError
from tidesink.sinks.change_log import OP
from tidesink.sinks.history import FROM_COLUMN, TO_COLUMN
from tidesink.sinks.targets.base import SEQUENCE_COLUMN, SOFT_DELETE_COLUMN
from tidesink.sinks.targets.sql_place import Place

if TYPE_CHECKING:
    from tidesink.sinks.targets.sql_dialect import Dialect, ForView

_OWN: Final = frozenset({SEQUENCE_COLUMN, SOFT_DELETE_COLUMN, FROM_COLUMN, TO_COLUMN})
# What is said of our columns by a row that lives. A version that ended has an end, a delete's mark too.
_LIVING: Final = MappingProxyType({SOFT_DELETE_COLUMN: "IS NOT TRUE", TO_COLUMN: "IS NULL"})
_MARK: Final = "_tidesink_view_"


@dataclass(frozen=True)
class SqlView:
    """The view ``name`` of one table, beside it."""

    dialect: Dialect
    place: Place
    name: str

    def statements(self, cursor: Any, present: Mapping[str, str]) -> list[str]:
        """What makes the view fit the table's columns; empty where it does, so that readers are not held up.

        A log of changes (``mode: append``) has no view: its rows are neither living nor deleted.

        Raises:
            SchemaRefusedError: a table has the view's name, or a view that is not ours.
        """
        if OP in present:
            return []
        text = self.dialect.view_text(cursor, self.place, self.name)
        if text is not None and _MARK not in text:
            raise SchemaRefusedError(
                f"{self.place.schema}.{self.name} is a table, or a view that tidesink did not make (or whose "
                f"definition this user may not see), and target.view gives its name to the view of "
                f"{self.place.shown}: set target.view to another name, or drop what stands there",
                table=str(self.place.source),
            )
        alias = _MARK + sha256(living_query(self.place, present).encode()).hexdigest()[:16]
        if text is not None and alias in text:
            return []
        query = living_query(self.place, present, alias)
        return self.dialect.view_statements(self.place.beside(self.name), query)

    def in_the_way(self, cursor: Any) -> tuple[list[str], list[ForView]]:
        """What is to be done before and after a change of types, where our view holds it up."""
        text = self.dialect.view_text(cursor, self.place, self.name)
        if text is None or _MARK not in text:
            return [], []
        return self.dialect.view_in_the_way(cursor, self.place.beside(self.name))


def living_query(place: Place, columns: Mapping[str, str], alias: str = "") -> str:
    """The living rows of a table with these columns, in a database's SQL; ``alias`` is the table's in it.

    Of a table that keeps every version of a row these are the current versions.
    """
    named = ", ".join(place.quote(name) for name in columns if name not in _OWN)
    living = [f"{place.quote(name)} {said}" for name, said in _LIVING.items() if name in columns]
    where = f" WHERE {' AND '.join(living)}" if living else ""
    return f"SELECT {named} FROM {place.location}{alias and f' AS {place.quote(alias)}'}{where}"
