"""Where the bank's tables are kept, and how they are read beside the worker that keeps them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.contracts.sql_beds import DATABASES, reader
from tests.e2e.bank import ACCOUNT, LASTING, SCHEMAS, Bank, Key, key_of
from tests.e2e.iceberg_beside import newest_metadata
from tests.e2e.replay import Servers
from tests.e2e.sql_beside import Server, connected, target_of
from tests.e2e.writing import shop_config
from tidesink.change import TableId, TableSchema
from tidesink.dev.lake_reader import open_lake_table
from tidesink.sinks.targets.sql_target import SqlTarget

# The codec that each target is fed by here: both of TiCDC's own, each into a lake and into a database.
PROTOCOLS: Final = {
    "delta": "flat-avro",
    "iceberg": "canal-json",
    "postgres": "canal-json",
    "mysql": "flat-avro",
}
Rows = list[dict[str, Any]]


class Place(NamedTuple):
    """A target: its section of the config, and a table's rows now, None where there is no table yet."""

    target: dict[str, Any]
    rows: Callable[[TableId], Rows | None]


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


def bank_config(folder: Path, servers: Servers, place: Place, protocol: str, *, batch: int) -> Path:
    """Every table of the bank, all tables at once, in batches of so many records."""
    path = shop_config(folder, servers, {"target": place.target, "batch": {"max-records": batch}})
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["source"]["protocol"] = protocol
    if protocol != "flat-avro":
        del settings["source"]["schema-registry"]
    path.write_text(json.dumps(settings), encoding="utf-8")
    return path


class Watch:
    """Looks at a target while workers come and go: no account twice, none missing, none going back."""

    def __init__(self, place: Place) -> None:
        self.looks = 0
        self._place = place
        self._versions: dict[int, int] = {}

    def look(self) -> None:
        """One look at the accounts, and at the keys of every table."""
        for schema in SCHEMAS:
            rows = self._place.rows(schema.table)
            if rows is not None:
                self._check(schema, rows)

    def _check(self, schema: TableSchema, rows: Rows) -> None:
        found = by_key(schema, rows)
        if schema is not ACCOUNT:
            return
        self.looks += 1
        versions = {number: found[(number,)]["version"] for number in LASTING if (number,) in found}
        assert self._versions.keys() <= versions.keys(), "an account is missing"
        for number, version in versions.items():
            assert version >= self._versions.get(number, 0), f"account {number} went back"
        self._versions = versions


def by_key(schema: TableSchema, rows: Rows) -> dict[Key, dict[str, Any]]:
    """Rows by key, each once."""
    found = {key_of(schema, row): row for row in rows}
    assert len(found) == len(rows), f"{schema.table}: a row is there twice"
    return found


def check_end(place: Place, bank: Bank) -> None:
    """The target holds what the bank does: every row, every total."""
    found = {s.table.name: by_key(s, place.rows(s.table) or []) for s in SCHEMAS}
    assert found == bank.rows
    assert sum(row["balance"] for row in found["account"].values()) == bank.total
    assert sum(row["amount"] for row in found["entry"].values()) == bank.total
