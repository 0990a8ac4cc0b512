"""Where tables in the source's order are kept in the tests: a target's settings, and its living rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.contracts.sql_beds import mysql_server, postgres_database, reader
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


def postgres_place(request: pytest.FixtureRequest, _folder: Path) -> Place:
    """A database of the test's own."""
    endpoint = postgres_database(request)
    return _database(
        request, PostgresDialect(), endpoint, f"postgresql://{{0.host}}:{{0.port}}/{endpoint.database}"
    )


def mysql_place(request: pytest.FixtureRequest, _folder: Path) -> Place:
    """The tests' MariaDB."""
    return _database(request, MysqlDialect(), mysql_server(request), "mysql://{0.host}:{0.port}")


def _database(request: pytest.FixtureRequest, dialect: Dialect, endpoint: Endpoint, url: str) -> Place:
    settings: dict[str, Any] = {
        "type": dialect.database,
        "url": url.format(endpoint),
        "user": endpoint.user,
        **({"password": endpoint.password} if endpoint.password else {}),
    }
    target = SqlTarget(Connections(dialect, endpoint))
    request.addfinalizer(target.connections.close)
    read = reader(target)
    return Place(settings, lambda table: read(TableId("shop", table)))


PLACES = {"delta": delta_place, "postgres": postgres_place, "mysql": mysql_place}
