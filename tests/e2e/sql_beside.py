"""A database as a worker's target, and what a person does beside the worker."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from tidesink.errors import TidesinkError
from tidesink.sinks.targets.sql.dialect import Connections
from tidesink.sinks.targets.sql.location import LEDGER, Endpoint
from tidesink.sinks.targets.sql.mysql import mysql_dialect
from tidesink.sinks.targets.sql.postgres import postgres_dialect

# Its type in the config, and where it is.
Server = tuple[str, Endpoint]
DIALECTS: Final = {"postgres": postgres_dialect, "mysql": mysql_dialect}
URLS: Final = {
    "postgres": "postgresql://{0.host}:{0.port}/{0.database}",
    "mysql": "mysql://{0.host}:{0.port}",
}


def target_of(server: Server) -> dict[str, Any]:
    """The target section of a config."""
    kind, endpoint = server
    target = {"type": kind, "url": URLS[kind].format(endpoint), "user": endpoint.user}
    return {**target, "password": endpoint.password} if endpoint.password else target


_SNAPSHOT: Final = {
    "postgres": ("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",),
    "mysql": (
        "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        "START TRANSACTION WITH CONSISTENT SNAPSHOT",
    ),
}
# MySQL and MariaDB read no table that was made since the snapshot was, or is made now.
_BEING_MADE: Final = re.compile(r"error (1412|1684)")


@contextmanager
def one_snapshot(connections: Connections) -> Iterator[Any]:
    """A cursor whose reads have one snapshot; what is cut off since a table was just made is no error."""
    try:
        with connections.transaction("test", writes=False) as cursor:
            for statement in _SNAPSHOT[connections.dialect.database]:
                cursor.execute(statement)
            yield cursor
    except TidesinkError as exc:
        if _BEING_MADE.search(exc.message) is None:
            raise


@contextmanager
def connected(server: Server) -> Iterator[Connections]:
    """Connections of the test's own."""
    connections = Connections(DIALECTS[server[0]](), server[1])
    try:
        yield connections
    finally:
        connections.close()


def execute(server: Server, *statements: str) -> None:
    """Statements as a person would send them."""
    with connected(server) as connections, connections.transaction("test") as cursor:
        for statement in statements:
            cursor.execute(statement)


def backup_of(server: Server, schema: str, *tables: str) -> Callable[[], None]:
    """Copy tables and the ledger's rows; what is given brings them back as a dump does: made again."""
    names = (*tables, LEDGER)
    for one in names:
        execute(server, f"CREATE TABLE {schema}.kept_{one} AS SELECT * FROM {schema}.{one}")  # noqa: S608

    def bring_back() -> None:
        for one in names:
            old, new = f"{schema}.{one}", f"{schema}.again_{one}"
            like = f"(LIKE {old} INCLUDING ALL)" if server[0] == "postgres" else f"LIKE {old}"
            execute(
                server,
                f"CREATE TABLE {new} {like}",
                f"INSERT INTO {new} SELECT * FROM {schema}.kept_{one}",  # noqa: S608
                f"DROP TABLE {old}",
                f"ALTER TABLE {new} RENAME TO {one if server[0] == 'postgres' else old}",
            )

    return bring_back
