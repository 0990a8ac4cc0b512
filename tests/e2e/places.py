"""Where tables are kept in the tests: a target's section of a config, and its rows as they are now."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.contracts.sql_beds import DATABASES, reader
from tests.e2e.iceberg_beside import newest_metadata
from tests.e2e.sql_beside import Server, connected, target_of
from tidesink.dev.lake_check import open_lake_table
from tidesink.events import TableId
from tidesink.sinks.targets.sql.target import SqlTarget

Rows = list[dict[str, Any]]
# Targets that hold rows and outlive their worker.
KINDS: Final = ("delta", "iceberg", *DATABASES)


class Place(NamedTuple):
    """A target: its section of the config, and a table's rows now, None where there is no table yet."""

    target: dict[str, Any]
    rows: Callable[[TableId], Rows | None]

    def living(self, table: TableId) -> dict[int, str]:
        """Of a table in the source's order the name of each row that a reader is meant to see, by its id."""
        rows = self.rows(table) or ()
        return {row["id"]: row["name"] for row in rows if not row["_tidesink_deleted"]}


def place_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> Place:
    """A target of this type, of the test's own."""
    return _database(kind, request) if kind in DATABASES else _lake(kind, request, folder)


def _database(kind: str, request: pytest.FixtureRequest) -> Place:
    server: Server = kind, DATABASES[kind](request)

    def rows(table: TableId) -> Rows | None:
        with connected(server) as connections:
            target = SqlTarget(connections)
            with connections.transaction("test", writes=False) as cursor:
                there = connections.dialect.present(cursor, target.place_of(table))
            return reader(target)(table) if there else None

    return Place(target_of(server), rows)


def _lake(kind: str, request: pytest.FixtureRequest, folder: Path) -> Place:
    lake, spark = folder / "lake", request.getfixturevalue("spark")

    def rows(table: TableId) -> Rows | None:
        place = lake / table.schema / table.name
        try:
            if kind == "delta":
                return open_lake_table(place).read().to_pylist()
            frame = spark.read.format("iceberg").load(newest_metadata(place))
        except (FileNotFoundError, KeyError):
            return None
        return [row.asDict() for row in frame.collect()]

    catalog = {"catalog": "lake", "catalog-properties": {"type": "hadoop", "warehouse": "./lake"}}
    return Place({"type": kind, **({"path": "./lake"} if kind == "delta" else catalog)}, rows)
