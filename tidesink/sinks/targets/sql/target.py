"""The parts that all SQL targets share: opening the tables of a config, and the checks before a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

from tidesink.config.targets import SqlSettings
from tidesink.errors import ConfigError, SchemaRefusedError, TidesinkError
from tidesink.events import TableId
from tidesink.sinks.targets.base import Capabilities, DeleteMode, PreflightChecks, PreflightResult, Target
from tidesink.sinks.targets.sql.columns import check_sql_shape, room_limits, wanted_type
from tidesink.sinks.targets.sql.cuts import ExcludedTables, SqlCuts
from tidesink.sinks.targets.sql.dialect import Connections
from tidesink.sinks.targets.sql.load import close_kept
from tidesink.sinks.targets.sql.location import Endpoint, Place, endpoint_of, place_in
from tidesink.sinks.targets.sql.reader import SqlReader
from tidesink.sinks.targets.sql.table import SqlTable
from tidesink.typemap.render_sql import shown_type
from tidesink.typemap.target_schema import TargetColumn, TargetSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidesink.config import Config
    from tidesink.sinks.targets.sql.dialect import Dialect


DEFAULT_TEMPLATE: Final = "{schema}.{table}"
# Stands for the table of cuts in ``target.table``, which determines the schema in which it is created.
CUTS_TABLE: Final = TableId("tidesink", "cuts")


_NO_DROP: Final = (
    "A column that another view, an index or a constraint needs cannot be dropped. The statement fails, and "
    "the table stops until you remove that object."
)


_LENGTH_UNKNOWN: Final = (
    "The source does not report the length of this key column, so it gets the type {} in a new table "
    "(`target.key-length`). A longer value stops the table before it is written. No value is truncated."
)


def capabilities_of(dialect: Dialect) -> Capabilities:
    """Return the capabilities of a SQL target whose database has this dialect."""
    return Capabilities(
        name=dialect.database,
        exactly_once=True,
        features=SqlSettings.features,
        packed=True,
        nul_in_text=not dialect.values.nul_refused,
        caveats={"drop": _NO_DROP, **dialect.caveats},
    )


@dataclass(frozen=True)
class SqlTarget(Target):
    """A database in which tables are written.

    ``template``: template of the target tables' names, with ``{schema}`` and ``{table}`` of the source table.
    ``view``: template of the name of a view that shows each table's current rows; None for no view.
    ``cuts``: collect changes in side tables, and merge them into all tables together at each cut.
    """

    connections: Connections
    template: str = DEFAULT_TEMPLATE
    view: str | None = None
    cuts: bool = False

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of a target with this database."""
        return capabilities_of(self.connections.dialect)

    def place_of(self, table: TableId) -> Place:
        """Return the target table of a source table, by the template ``target.table``."""
        return place_in(self.template, table, self.connections.dialect.quote)

    def open_table(self, shape: TargetSchema, *, pipeline: str, delete_mode: DeleteMode = "hard") -> SqlTable:
        """Open the target table for rows with the columns and key of ``shape``, and create it if missing."""
        place = replace(self.place_of(shape.table), source=shape.source, shard=shape.shard)
        view = view_name(self.view, place)
        self.connections.add_place(place)
        return SqlTable(
            self.connections,
            place,
            shape,
            delete_mode=delete_mode,
            view=view,
            excluded=self._excluded(pipeline),
            gathers=self.cuts,
        )

    def cut_log(self, pipeline: str) -> SqlCuts:
        """Return the publisher of a pipeline's cuts.

        Cuts are recorded in the schema that the template gives for a source schema ``tidesink``.
        """
        return SqlCuts(self.connections, self._place_of_cuts, self._excluded(pipeline))

    def _excluded(self, pipeline: str) -> ExcludedTables:
        return ExcludedTables(self.connections.dialect, self._place_of_cuts, pipeline)

    def close(self) -> None:
        """Close the pool's idle connections, and those of the tasks that ran in this process. Never fails."""
        self.connections.close()
        close_kept()

    @property
    def _place_of_cuts(self) -> Place:
        return self.place_of(CUTS_TABLE)

    def reader(self, shape: TargetSchema, *, pipeline: str, session: SparkSession) -> SqlReader | None:
        """Return a reader of the target table whose columns and key ``shape`` describes; None if it does not
        exist.
        """
        place = replace(self.place_of(shape.table), source=shape.source, shard=shape.shard)
        table_reader = SqlReader(self.connections, place, shape, pipeline=pipeline, session=session)
        if table_reader.exists:
            return table_reader
        table_reader.close()
        return None


def view_name(template: str | None, place: Place) -> str | None:
    """Return the name of the view of a target table, by a template; None if no view is configured.

    The ``{table}`` of the template is the table's name at the target, not at the source.
    """
    return None if template is None else template.replace("{table}", place.name)


def open_sql(dialect: Dialect, config: Config) -> SqlTarget:
    """Create the SQL target that a config describes. Does not connect to the database yet."""
    settings = cast("SqlSettings", config.target)
    connections = Connections(dialect, endpoint_of(settings))
    return SqlTarget(connections, settings.table, settings.view, cuts=config.cuts is not None)


def shown_place(dialect: Dialect, settings: SqlSettings, table: TableId) -> str:
    """Return the server and the target table's name for a source table, for display."""
    return f"{endpoint_of(settings).shown} {place_in(settings.table, table, dialect.quote).shown}"


def try_connection(dialect: Dialect, endpoint: Endpoint, query: str) -> str:
    """Connect to the database, run a query, and return its single value as text. Changes nothing there.

    Raises:
        ConfigError: the connection or the query failed. The message names the reason.
    """
    with _asking(Connections(dialect, endpoint)) as cursor:
        cursor.execute(query)
        (answer,) = cursor.fetchone()
    return str(answer)


@contextmanager
def _asking(connections: Connections) -> Iterator[Any]:
    """Yield a cursor for queries before a run. Errors in the block are raised as ``ConfigError``."""
    try:
        with connections.transaction("target", writes=False) as cursor:
            yield cursor
    except TidesinkError as error:
        raise ConfigError(error.message) from error
    finally:
        connections.close()


class SqlPreflight(PreflightChecks):
    """Checks of a SQL target's tables before the first run."""

    def __init__(self, dialect_of: Callable[[Any], Dialect]) -> None:
        """Create the checks. ``dialect_of``: returns the ``Dialect`` for a target's settings."""
        self._dialect_of = dialect_of

    def column_type(self, settings: SqlSettings, column: TargetColumn) -> str:
        """Return the type that a column has in CREATE TABLE."""
        dialect = self._dialect_of(settings)
        return shown_type(column, dialect.database, dialect.key_length)

    def foresee(self, config: Config, shape: TargetSchema) -> PreflightResult:
        """Check a table's names, columns and key against the limits of the database, and return limits and
        warnings.
        """
        settings = cast("SqlSettings", config.target)
        dialect = self._dialect_of(settings)
        place = place_in(settings.table, shape.table, dialect.quote)
        view = view_name(settings.view, place)
        if view is not None and config.table_config(shape.source).mode != "append":  # a log has no view
            place.beside(view)
        check_sql_shape(shape, dialect.limits, dialect.quote)
        limits = tuple(room_limits(shape, dialect.limits, dialect.database, dialect.key_length))
        return PreflightResult(limits, tuple(_keys_without_length(shape, dialect)))

    def missing_grants(self, config: Config, tables: Iterable[TableId]) -> tuple[str, ...]:
        """Return the GRANT statements that the user lacks for the target tables, the ledgers and the table of
        cuts.
        """
        settings = cast("SqlSettings", config.target)
        dialect = self._dialect_of(settings)
        wanted: dict[Place, bool] = {}
        for table in tables:
            place = place_in(settings.table, config.destination(table).table, dialect.quote)
            wanted[place] = _is_changed(config, table)
        if config.cuts is not None and wanted:
            wanted[place_in(settings.table, CUTS_TABLE, dialect.quote)] = False
        with _asking(Connections(dialect, endpoint_of(settings))) as cursor:
            grants = [
                grant
                for place, changes in wanted.items()
                for grant in dialect.driver.missing_grants(cursor, place, changes=changes)
            ]
        return tuple(dict.fromkeys(grants))


def _is_changed(config: Config, table: TableId) -> bool:
    """Return True if the config allows that schema changes at the source alter the target table's columns."""
    policies = config.table_config(table).schema_changes
    return "apply" in (policies.add, policies.widen, policies.drop, policies.rename)


def _keys_without_length(shape: TargetSchema, dialect: Dialect) -> Iterator[str]:
    """Yield a warning for each key column whose length the source does not report.

    Only a new table is affected: in an existing table, the column has a length.
    """
    for column in shape.key_columns:
        try:
            made = wanted_type(column, shape, dialect.database, key_length=dialect.key_length)
        except SchemaRefusedError as refused:
            yield f"Column {column.name}: {refused.message}"
            continue
        if made != shown_type(column, dialect.database):
            yield f"Column {column.name}: {_LENGTH_UNKNOWN.format(made)}"
