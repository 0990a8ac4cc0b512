"""What the SQL targets share: tables under a template, and what is asked of them before a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tidesink.errors import ConfigError, TidesinkError
from tidesink.events import TableId
from tidesink.sinks.shape import TableShape
from tidesink.sinks.targets.base import Capabilities, DeleteMode
from tidesink.sinks.targets.sql_connections import Connections
from tidesink.sinks.targets.sql_endpoint import Endpoint, endpoint_of
from tidesink.sinks.targets.sql_place import Place, place_in
from tidesink.sinks.targets.sql_table import SqlTable

if TYPE_CHECKING:
    from tidesink.config.targets import SqlSettings
    from tidesink.sinks.targets.sql_dialect import Dialect

DEFAULT_TEMPLATE: Final = "{schema}.{table}"


_NO_DROP: Final = (
    "a column that a view, an index or a constraint of yours needs is not dropped: the statement fails, and "
    "the table with it, until that is gone"
)


def capabilities_of(dialect: Dialect) -> Capabilities:
    """What a database of this dialect can do."""
    return Capabilities(
        name=dialect.database,
        exactly_once=True,
        evolves=True,
        widens=True,
        soft_deletes=True,
        durable=True,
        shares=True,
        sequences=True,
        nul_in_text=not dialect.nul_refused,
        modes=frozenset({"upsert", "append", "history"}),
        drops=True,
        renames=True,
        caveats={"drop": _NO_DROP, **dialect.caveats},
    )


@dataclass(frozen=True)
class SqlTarget:
    """Tables in a database, each under ``template`` with ``{schema}`` and ``{table}`` filled in.

    ``view`` is the template of the name of a view of the living rows, beside each table; None: none is made.
    """

    connections: Connections
    template: str = DEFAULT_TEMPLATE
    view: str | None = None

    @property
    def capabilities(self) -> Capabilities:
        """What the database can do."""
        return capabilities_of(self.connections.dialect)

    def place_of(self, table: TableId) -> Place:
        """Where a table stands."""
        return place_in(self.template, table, self.connections.dialect.quote)

    def open_table(self, shape: TableShape, *, pipeline: str, delete_mode: DeleteMode = "hard") -> SqlTable:
        """The table of ``shape``, created when missing."""
        place = replace(self.place_of(shape.table), source=shape.source, shard=shape.shard)
        view = view_name(self.view, place)
        return SqlTable(self.connections, place, shape, pipeline=pipeline, delete_mode=delete_mode, view=view)


def view_name(template: str | None, place: Place) -> str | None:
    """The name of a table's view, by the table's own name at the target; None where none is asked for."""
    return None if template is None else template.replace("{table}", place.name)


def open_sql(dialect: Dialect, settings: SqlSettings) -> SqlTarget:
    """The tables of a config."""
    return SqlTarget(Connections(dialect, endpoint_of(settings)), settings.table, settings.view)


def shown_place(dialect: Dialect, settings: SqlSettings, table: TableId) -> str:
    """A table's server and name, for people to read."""
    return f"{endpoint_of(settings).shown} {place_in(settings.table, table, dialect.quote).shown}"


def try_connection(dialect: Dialect, endpoint: Endpoint, query: str) -> str:
    """What became of logging in and asking a question; leaves nothing behind.

    Raises:
        ConfigError: the database cannot be used, with the reason.
    """
    connections = Connections(dialect, endpoint)
    try:
        with connections.transaction("target", writes=False) as cursor:
            cursor.execute(query)
            (answer,) = cursor.fetchone()
    except TidesinkError as error:
        raise ConfigError(
            f"target.url {endpoint.shown} cannot be used as user {endpoint.user!r}: {error.message}"
        ) from error
    finally:
        connections.close()
    return str(answer)
