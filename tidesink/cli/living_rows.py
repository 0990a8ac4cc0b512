"""How a table is to be read where deleted rows stay in it, marked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from tidesink.config import Config
from tidesink.events import TableId
from tidesink.sinks.targets import target_module
from tidesink.sinks.targets.base import SOFT_DELETE_COLUMN
from tidesink.sinks.targets.lake import table_names
from tidesink.sinks.targets.sharing import quote_identifier, quote_mysql, quote_path, quote_postgres
from tidesink.sinks.targets.sql.location import place_in
from tidesink.sinks.targets.sql.target import view_name
from tidesink.typemap.target_schema import TableShape

_Quote = Callable[[str], str]


def living_rows(config: Config, shape: TableShape) -> str:
    """The query of a table's living rows, without tidesink's own columns; empty where every row lives.

    In the SQL of the database, or in Spark's.
    """
    settings = config.table_config(shape.source)
    place = _PLACES.get(config.target.type)
    marks = settings.sequence_by == "source" or settings.deletes == "soft"
    if place is None or settings.mode != "upsert" or not marks:
        return ""
    quote, location, shown = place(config.target, shape.table)
    if shown:
        return f"SELECT * FROM {shown}"  # noqa: S608  quoted
    columns = ", ".join(quote(column.name) for column in shape.columns)
    return f"SELECT {columns} FROM {location} WHERE {quote(SOFT_DELETE_COLUMN)} IS NOT TRUE"  # noqa: S608


def _delta(settings: Any, table: TableId) -> tuple[_Quote, str, str]:
    if settings.catalog_table:
        return quote_identifier, quote_path(*table_names(settings.catalog_table, table)), ""
    path = target_module(settings).place_of(settings, table)
    return quote_identifier, f"delta.{quote_identifier(path)}", ""


def _iceberg(settings: Any, table: TableId) -> tuple[_Quote, str, str]:
    return quote_identifier, quote_path(settings.catalog, *table_names(settings.table, table)), ""


def _database(quote: _Quote) -> Callable[[Any, TableId], tuple[_Quote, str, str]]:
    def place_of(settings: Any, table: TableId) -> tuple[_Quote, str, str]:
        place = place_in(settings.table, table, quote)
        view = view_name(settings.view, place)
        return quote, place.location, place.beside(view) if view else ""

    return place_of


# Targets that keep rows: how a name is quoted there, where a table is, and its view where it has one.
_PLACES: Final[Mapping[str, Callable[[Any, TableId], tuple[_Quote, str, str]]]] = MappingProxyType(
    {
        "delta": _delta,
        "iceberg": _iceberg,
        "postgres": _database(quote_postgres),
        "mysql": _database(quote_mysql),
    }
)
