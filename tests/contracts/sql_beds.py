"""Beds for the SQL targets: a database of the test's own on a real server."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import replace
from datetime import timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from tests.contracts.targets_bed import TABLE, Bed
from tidesink.events import TableId
from tidesink.sinks.state.progress import Progress
from tidesink.sinks.targets.base import (
    ApplyResult,
    ReducedBatch,
    RowFormat,
    RowSink,
    StagingTable,
    Target,
    TargetTable,
)
from tidesink.sinks.targets.sharing import quote_mysql
from tidesink.sinks.targets.sql.dialect import Connections
from tidesink.sinks.targets.sql.location import Endpoint
from tidesink.sinks.targets.sql.mysql import mysql_dialect
from tidesink.sinks.targets.sql.postgres import postgres_dialect
from tidesink.sinks.targets.sql.target import SqlTarget

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def postgres_database(request: pytest.FixtureRequest) -> Endpoint:
    """A new database on the tests' Postgres, dropped after the test."""
    import psycopg

    server: Endpoint = request.getfixturevalue("postgres")
    name = f"tidesink_{uuid4().hex[:12]}"
    admin = psycopg.connect(
        host=server.host,
        port=server.port,
        dbname=server.database,
        user=server.user,
        password=server.password,
        autocommit=True,
    )
    admin.execute(f"CREATE DATABASE {name}")

    def drop() -> None:
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
        admin.close()

    request.addfinalizer(drop)
    return Endpoint(server.host, server.port, name, server.user, server.password)


def postgres_bed(request: pytest.FixtureRequest, _folder: Path) -> Bed:
    """Tables in a Postgres database."""
    return sql_bed(request, Connections(postgres_dialect(), postgres_database(request)))


def mysql_server(request: pytest.FixtureRequest) -> Endpoint:
    """The tests' MariaDB, whose databases made by the test are dropped after it."""
    import pymysql

    parts = urlsplit(request.getfixturevalue("mariadb_url"))
    endpoint = Endpoint(
        parts.hostname or "", parts.port or 3306, "", parts.username or "", parts.password or ""
    )
    admin = pymysql.connect(
        host=endpoint.host, port=endpoint.port, user=endpoint.user, password=endpoint.password
    )
    before = _databases(admin)

    def drop() -> None:
        with admin.cursor() as cursor:
            for name in _databases(admin) - before:
                cursor.execute(f"DROP DATABASE {quote_mysql(name)}")
        admin.close()

    request.addfinalizer(drop)
    return endpoint


def _databases(connection: Any) -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute("SHOW DATABASES")
        return {name for (name,) in cursor.fetchall()}


# How a test gets a database of its own, by the target's type.
DATABASES: Final = {"postgres": postgres_database, "mysql": mysql_server}


def mysql_bed(request: pytest.FixtureRequest, _folder: Path) -> Bed:
    """Tables in a MariaDB."""
    return sql_bed(request, Connections(mysql_dialect(), mysql_server(request)))


def sql_bed(request: pytest.FixtureRequest, connections: Connections) -> Bed:
    """A bed over connections; ``reopen`` is another worker's target."""
    targets = [SqlTarget(connections)]

    def reopen() -> SqlTarget:
        targets.append(SqlTarget(Connections(connections.dialect, connections.endpoint)))
        return targets[-1]

    def close() -> None:
        for target in targets:
            target.close()

    request.addfinalizer(close)
    read = reader(targets[0])
    return Bed(connections.dialect.database, targets[0], read, reopen, request.getfixturevalue("spark"))


def sql_bed_in(spark: SparkSession, connections: Connections) -> Bed:
    """The same by a session at hand, with these connections alone, which nobody closes."""
    target = SqlTarget(connections)
    return Bed(connections.dialect.database, target, reader(target), lambda: target, spark)


# Changes what takes the rows in tasks.
ChangedSink = Callable[[RowSink], RowSink]


def noting(bed: Bed, *, sink: ChangedSink | None = None) -> tuple[Bed, list[int | None]]:
    """The bed, whose workers' targets note how each batch that is applied has its rows.

    That is the number which its own tasks brought; None: others had to.
    """
    brought: list[int | None] = []
    return replace(bed, reopen=lambda: cast("Target", _NotedTarget(bed.reopen(), brought, sink))), brought


class _NotedTarget:
    def __init__(self, target: Target, brought: list[int | None], sink: ChangedSink | None) -> None:
        self._target, self._brought, self._sink = target, brought, sink

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def open_table(self, *arguments: Any, **options: Any) -> _NotedTable:
        return _NotedTable(self._target.open_table(*arguments, **options), self._brought, self._sink)


class _NotedTable:
    def __init__(self, table: TargetTable, brought: list[int | None], sink: ChangedSink | None) -> None:
        self._table, self._brought, self._sink = table, brought, sink

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def row_sink(self, rows: RowFormat) -> RowSink | None:
        assert isinstance(self._table, StagingTable)
        found = self._table.row_sink(rows)
        return self._sink(found) if found and self._sink else found

    def apply(self, batch: ReducedBatch, progress: Progress) -> ApplyResult:
        self._brought.append(None if batch.staged is None else sum(part.rows for part in batch.staged))
        return self._table.apply(batch, progress)


_MARK: Final = re.compile(r"{}|\[(?:shards)?]")


def target_of(bed: Bed) -> SqlTarget:
    """The bed's target, which is one of a SQL database."""
    assert isinstance(bed.target, SqlTarget)
    return bed.target


def execute(bed: Bed, *statements: str) -> None:
    """Statements as another program would send them.

    ``{}`` is the table, ``[]`` its ledger, ``[shards]`` the ledger of those who share it.
    """
    place = target_of(bed).place_of(TABLE)
    names = {"{}": place.location, "[]": place.ledger, "[shards]": place.shards}
    with target_of(bed).connections.transaction("test") as cursor:
        for statement in statements:
            cursor.execute(_MARK.sub(lambda found: names[found[0]], statement))


def reader(target: SqlTarget) -> Callable[[TableId], list[dict[str, Any]]]:
    """Reads a table of a target as Spark would give its values."""
    dialect = target.connections.dialect

    def read(table: TableId) -> list[dict[str, Any]]:
        place = target.place_of(table)
        with target.connections.transaction("test") as cursor:
            columns = dialect.tables.present(cursor, place)
            asked = [_asked(dialect.quote(name), found) for name, found in columns.items()]
            cursor.execute(f"SELECT {', '.join(asked)} FROM {place.location}")  # noqa: S608
            rows = cursor.fetchall()
        return [
            {name: _plain(value, found) for (name, found), value in zip(columns.items(), row, strict=True)}
            for row in rows
        ]

    return read


def _asked(name: str, found: str) -> str:
    """How a column is read so that nothing of its value is lost on the way."""
    if found == "json":
        return f"CAST({name} AS text)"
    if found == "time(6)":
        return f"CAST({name} AS char)"
    return f"CAST({name} AS double)" if found == "float" else name


def _plain(value: Any, found: str) -> Any:
    if value is None:
        return None
    if found == "tinyint(1)":
        return bool(value)
    if found in ("real", "float"):
        return struct.unpack("f", struct.pack("f", value))[0]
    if found == "timestamp with time zone":
        return value.astimezone(timezone.utc).replace(tzinfo=None)
    if found == "bigint unsigned":
        return Decimal(value)
    digits = found.partition("(")[2].partition(",")[0]
    if isinstance(value, Decimal) and (not digits or int(digits) > 38):
        return format(value, "f")
    return value
