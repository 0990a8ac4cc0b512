"""The limits that plans and refusals go by, held to real servers."""

# ruff: noqa: S608  names of the test's own
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final

import pytest

from tests.columns import ID
from tests.contracts.sql_beds import DATABASES
from tests.contracts.targets_bed import shape
from tidesink.errors import SchemaRefusedError, TargetError
from tidesink.events import Column, ColumnType, TableId
from tidesink.sinks.targets.base import ApplyOptions, ReducedBatch
from tidesink.sinks.targets.sql.dialect import Connections, Dialect
from tidesink.sinks.targets.sql.load import ATTEMPT, STAGED_BESIDES, staged_columns
from tidesink.sinks.targets.sql.location import Place, place_in
from tidesink.sinks.targets.sql.mysql import mysql_dialect
from tidesink.sinks.targets.sql.postgres import postgres_dialect
from tidesink.sinks.targets.sql.staging import make_staging
from tidesink.sinks.targets.sql.target import SqlTarget
from tidesink.typemap.target_schema import TargetSchema

pytestmark = pytest.mark.servers


def plain_mysql() -> Dialect:
    """The dialect of a server that stages in InnoDB, as MySQL does and MariaDB does not."""
    return mysql_dialect(engines={"INNODB": "InnoDB"})


DIALECTS: Final[dict[str, Callable[[], Dialect]]] = {"postgres": postgres_dialect, "mysql": plain_mysql}


class Server:
    """A database of the test's own."""

    def __init__(self, connections: Connections) -> None:
        self.target = SqlTarget(connections)
        self._connections = connections
        self.dialect = connections.dialect
        self.limits = self.dialect.limits

    def make(self, name: str, key: str, kinds: list[str]) -> Place:
        """A table as the target makes it: the key's type, and those of the other columns."""
        place = place_in("{schema}.{table}", TableId("limits", name), self.dialect.quote)
        columns = [("id", key, True, ""), *((f"c{at}", kind, False, "") for at, kind in enumerate(kinds))]
        with self._connections.transaction(name) as cursor:
            self.dialect.tables.prepare_schema(cursor, place)
            self.dialect.tables.create(cursor, place, columns)
        return place

    def stage(self, batch: ReducedBatch) -> set[str]:
        """Make the staging table of a batch; its columns."""
        place = place_in("{schema}.{table}", TableId("limits", "staged"), self.dialect.quote)
        with self._connections.transaction(place.name) as cursor:
            self.dialect.tables.prepare_schema(cursor, place)
        types = ["int"] * len(batch.shape.columns)
        make_staging(
            self._connections, place.location, staged_columns(batch.row_format), types, (), place.name
        )
        with self._connections.transaction(place.name, writes=False) as cursor:
            return set(self.dialect.tables.present(cursor, place))

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


def refused(said: str = "exceeds a limit of") -> Any:
    return pytest.raises(TargetError, match=said)


def test_a_table_has_as_many_columns_as_is_said_and_no_more(server: Server) -> None:
    server.make("most", "bigint", ["int"] * (server.limits.columns - 1))
    with refused(f"{server.limits.columns:,} columns"):  # of which MariaDB's InnoDB says nothing
        server.make("more", "bigint", ["int"] * server.limits.columns)


def of_columns(number: int) -> TargetSchema:
    return shape(ID, *(Column(f"c{at}", ColumnType("int")) for at in range(number - 1)))


def test_the_staging_table_of_any_batch_has_room_beside_as_many_columns_as_a_table_may_have(
    server: Server,
) -> None:
    """A batch of every kind at once, of which no batch has more."""
    room = server.limits.room
    history = ApplyOptions(mode="history")
    wide = ReducedBatch(of_columns(room), 1, 0, keeps=True, sequenced=True, how=history)
    besides = set(STAGED_BESIDES[server.dialect.database])
    assert server.stage(wide) == besides | {f"c{at}" for at in range(room)}
    assert server.limits.room + len(besides) == server.limits.columns
    plain = {ATTEMPT, "t_delete", "c0"} | ({"t_row"} & besides)
    assert server.stage(ReducedBatch(of_columns(1), 1, 0)) == plain
    with refused(f"{server.limits.columns:,} columns"):
        server.stage(replace(wide, shape=of_columns(room + 1)))


def test_a_table_that_is_there_opens_however_many_columns_the_source_has(server: Server) -> None:
    """Those that it lacks may be left out; it is refused what it is to hold, and what is to be made."""
    server.target.open_table(of_columns(2), pipeline="shop").close()
    table = server.target.open_table(of_columns(server.limits.room + 1), pipeline="shop")
    table.claim()
    assert not table.evolve(of_columns(2)).added
    with pytest.raises(SchemaRefusedError, match="but at most"):
        table.evolve(of_columns(server.limits.room + 1))
    new = replace(of_columns(server.limits.room + 1), table=TableId("shop", "new"))
    with pytest.raises(SchemaRefusedError, match="but at most"):
        server.target.open_table(new, pipeline="shop")


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
