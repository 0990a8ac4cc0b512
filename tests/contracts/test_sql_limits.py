"""The limits that plans and refusals go by, held to real servers."""

# ruff: noqa: S608  names of the test's own
from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any, Final

import pytest

from tests.contracts.sql_beds import DATABASES
from tidesink.change import TableId
from tidesink.errors import TargetError
from tidesink.sinks.targets.mysql_dialect import MysqlDialect
from tidesink.sinks.targets.postgres_dialect import PostgresDialect
from tidesink.sinks.targets.sql_connections import Connections
from tidesink.sinks.targets.sql_dialect import Dialect
from tidesink.sinks.targets.sql_limits import STAGED_BESIDES
from tidesink.sinks.targets.sql_place import Place, place_in

pytestmark = pytest.mark.servers
DIALECTS: Final[dict[str, Callable[[], Dialect]]] = {"postgres": PostgresDialect, "mysql": MysqlDialect}


class Server:
    """A database of the test's own."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self.dialect = connections.dialect
        self.limits = self.dialect.limits

    def make(self, name: str, key: str, kinds: list[str]) -> Place:
        """A table as the target makes it: the key's type, and those of the other columns."""
        place = place_in("{schema}.{table}", TableId("limits", name), self.dialect.quote)
        columns = [("id", key, True, ""), *((f"c{at}", kind, False, "") for at, kind in enumerate(kinds))]
        with self._connections.transaction(name) as cursor:
            self.dialect.prepare_schema(cursor, place)
            self.dialect.create(cursor, place, columns)
        return place

    def insert(self, place: Place, *values: str) -> None:
        with self._connections.transaction(place.name) as cursor:
            words = ", ".join(f"'{value}'" for value in values)
            cursor.execute(f"INSERT INTO {place.location} VALUES ({words})")

    def close(self) -> None:
        self._connections.close()


@pytest.fixture(params=list(DIALECTS))
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    found = Server(Connections(DIALECTS[request.param](), DATABASES[request.param](request)))
    yield found
    found.close()


def noise(size: int) -> str:
    """A text that gets no shorter by being compressed."""
    return "".join(sha256(str(at).encode()).hexdigest() for at in range(size // 64 + 1))[:size]


def refused(said: str = "has a limit that this table passes") -> Any:
    return pytest.raises(TargetError, match=said)


def test_a_table_has_as_many_columns_as_is_said_and_no_more(server: Server) -> None:
    server.make("most", "bigint", ["int"] * (server.limits.columns - 1))
    with refused("error 1005|has a limit"):  # MariaDB's InnoDB does not say which limit
        server.make("more", "bigint", ["int"] * server.limits.columns)
    assert server.limits.room + STAGED_BESIDES == server.limits.columns


def test_a_row_has_room_for_about_as_many_long_values_as_is_said(server: Server) -> None:
    some = server.limits.long_values
    kind = {"postgres": "text", "mysql": "longtext"}[server.dialect.database]
    place = server.make("some", "bigint", [kind] * some)
    server.insert(place, "1", *[noise(3000)] * some)
    more = {"postgres": some + 10, "mysql": 390}[server.dialect.database]  # as many as MariaDB refuses
    with refused():
        place = server.make("more", "bigint", [kind] * more)
        server.insert(place, "1", *[noise(3000)] * more)


def test_a_key_has_about_as_many_bytes_as_is_said(server: Server) -> None:
    size = server.limits.key_bytes
    if server.dialect.database == "mysql":
        server.make("most", f"varchar({size // 4})", [])
        with refused():
            server.make("more", f"varchar({size // 4 + 1})", [])
        return
    place = server.make("keys", "text", [])
    server.insert(place, noise(size - 64))
    with refused():
        server.insert(place, noise(size + 64))
