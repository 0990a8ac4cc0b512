"""What can be said of a table in a database before anything runs, without asking the database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from tidesink.errors import SchemaRefusedError
from tidesink.sinks.shape import ShapeColumn, TableShape
from tidesink.sinks.targets.foreseen import Foreseen, Foresight
from tidesink.sinks.targets.sql_columns import wanted_type
from tidesink.sinks.targets.sql_limits import check_sql_shape, room_limits
from tidesink.sinks.targets.sql_place import place_in
from tidesink.sinks.targets.sql_target import view_name
from tidesink.typemap.render_sql import shown_type

if TYPE_CHECKING:
    from tidesink.config import Config
    from tidesink.config.targets import SqlSettings
    from tidesink.sinks.targets.sql_dialect import Dialect


class SqlForesight(Foresight):
    """Of the tables of a database."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def column_type(self, settings: SqlSettings, column: ShapeColumn) -> str:  # noqa: ARG002
        """As a CREATE TABLE has it."""
        return shown_type(column, self._dialect.database)

    def foresee(self, config: Config, shape: TableShape) -> Foreseen:
        """Names, columns and keys by the database's limits; raises as ``Foresight`` says."""
        dialect, settings = self._dialect, cast("SqlSettings", config.target)
        place = place_in(settings.table, shape.table, dialect.quote)
        view = view_name(settings.view, place)
        if view is not None and config.table_config(shape.source).mode != "append":  # a log has no view
            place.beside(view)
        check_sql_shape(shape, dialect.limits, dialect.quote)
        limits = tuple(room_limits(shape, dialect.limits, dialect.database))
        return Foreseen(limits, tuple(self._keys_without_length(shape)))

    def _keys_without_length(self, shape: TableShape) -> Iterator[str]:
        """Why a table cannot be made; it can be there already, made by somebody."""
        for column in shape.key_columns:
            try:
                wanted_type(column, shape, self._dialect.database)
            except SchemaRefusedError as refused:
                yield f"column {column.name}: {refused.message}"
