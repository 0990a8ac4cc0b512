"""Where tables in the source's order are kept in the tests: a target's settings, and its living rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.contracts.sql_beds import mysql_server, postgres_database, reader
from tests.e2e.iceberg_beside import newest_metadata
from tests.e2e.sql_beside import target_of
from tests.e2e.writing import lake_rows
from tidesink.change import TableId
from tidesink.sinks.targets.mysql_dialect import MysqlDialect
from tidesink.sinks.targets.postgres_dialect import PostgresDialect
from tidesink.sinks.targets.sql_connections import Connections
from tidesink.sinks.targets.sql_dialect import Dialect
from tidesink.sinks.targets.sql_endpoint import Endpoint
from tidesink.sinks.targets.sql_target import SqlTarget


class Place(NamedTuple):
    """``rows`` reads a table of the shop."""

    settings: dict[str, Any]
    rows: Callable[[str], list[dict[str, Any]]]

    def living(self, table: str) -> dict[int, str]:
        """The name of each row that a reader is meant to see, by its id."""
        return {row["id"]: row["name"] for row in self.rows(table) if not row["_tidesink_deleted"]}


def delta_place(_request: pytest.FixtureRequest, folder: Path) -> Place:
    """Delta in a folder."""
    return Place({"type": "delta", "path": "./lake"}, lambda table: list(lake_rows(folder, table).values()))


def iceberg_place(request: pytest.FixtureRequest, folder: Path) -> Place:
    """Iceberg in a catalog that is a folder."""
    spark = request.getfixturevalue("spark")
    warehouse = {"type": "hadoop", "warehouse": "./warehouse"}

    def rows(table: str) -> list[dict[str, Any]]:
        metadata = newest_metadata(folder / "warehouse" / "shop" / table)
        return [row.asDict() for row in spark.read.format("iceberg").load(metadata).collect()]

    return Place({"type": "iceberg", "catalog": "lake", "catalog-properties": warehouse}, rows)


def postgres_place(request: pytest.FixtureRequest, _folder: Path) -> Place:
    """A database of the test's own."""
    return _database(request, PostgresDialect(), postgres_database(request))


def mysql_place(request: pytest.FixtureRequest, _folder: Path) -> Place:
    """The tests' MariaDB."""
    return _database(request, MysqlDialect(), mysql_server(request))


def _database(request: pytest.FixtureRequest, dialect: Dialect, endpoint: Endpoint) -> Place:
    target = SqlTarget(Connections(dialect, endpoint))
    request.addfinalizer(target.connections.close)
    read = reader(target)
    return Place(target_of((dialect.database, endpoint)), lambda table: read(TableId("shop", table)))


PLACES = {"delta": delta_place, "iceberg": iceberg_place, "postgres": postgres_place, "mysql": mysql_place}
