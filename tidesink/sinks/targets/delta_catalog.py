"""Delta tables under a name in Spark's catalog as well as at their path.

The table at the path is the one that is written; the name is an external table over it. Delta reads columns
and properties from the table's own log, so that the catalog has nothing to be kept in step with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException

from tidesink.errors import ConfigError
from tidesink.events import TableId
from tidesink.sinks.targets.delta_errors import SPARK_ERRORS, reading_error
from tidesink.sinks.targets.identifier import quote_identifier, quote_path, quote_text
from tidesink.sinks.targets.lake_path import table_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_IS_VIEW: Final = "EXPECT_TABLE_NOT_VIEW"


def register(session: SparkSession, path: str, template: str, table: TableId) -> None:
    """Have the Delta table at ``path`` in the catalog, by ``template``; made there where the name is free.

    Raises:
        ConfigError: the name is another table's.
        TidesinkError: the catalog does not answer, or refuses the name.
    """
    levels = table_names(template, table)
    try:
        there = _registered(session, levels, path)
        ours = _location(session, f"delta.{quote_identifier(path)}")
    except SPARK_ERRORS as exc:
        raise reading_error(exc, table=str(table)) from exc
    if there != ours:
        raise ConfigError(
            f"{'.'.join(levels)} in the catalog is {_shown(there)}, and this one is at {ours}: set "
            "target.catalog-table to names that are free, or drop the one there",
            key="target.catalog-table",
        )


def _shown(location: str | None) -> str:
    return "a view or a table with no folder of its own" if location is None else f"the table at {location}"


def _registered(session: SparkSession, levels: tuple[str, ...], path: str) -> str | None:
    name = quote_path(*levels)
    if not session.catalog.tableExists(name):
        session.sql(f"CREATE SCHEMA IF NOT EXISTS {quote_path(*levels[:-1])}")
        session.sql(f"CREATE TABLE IF NOT EXISTS {name} USING delta LOCATION {quote_text(path)}")
    return _location(session, name)


def _location(session: SparkSession, name: str) -> str | None:
    """The table's folder; None for a view, and for a table that has none."""
    try:
        location: str | None = session.sql(f"DESCRIBE DETAIL {name}").select("location").collect()[0][0]
    except PySparkException as exc:
        if (exc.getCondition() or "").startswith(_IS_VIEW):
            return None
        raise
    return location
