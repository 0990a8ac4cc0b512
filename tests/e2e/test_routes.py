"""Shards through the worker into one table: killed on the way, it ends as all source tables together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.contracts.sql_beds import postgres_database, reader
from tests.e2e.forked_worker import die_at, drain
from tests.e2e.killing import failpoints_hit
from tests.e2e.replay import Servers
from tests.e2e.writing import TableWriter, schema_of, shop_config
from tests.full import FULL
from tidesink.dev.lake_check import open_lake_table
from tidesink.events import Column, ColumnType, TableId
from tidesink.sinks.targets.sql.dialect import Connections
from tidesink.sinks.targets.sql.postgres import postgres_dialect
from tidesink.sinks.targets.sql.target import SqlTarget

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(1800)]
NOTE = Column("note", ColumnType("varchar", length=40, sql="varchar(40)"))
# Each with the columns that it has beside its key and a name.
SHARDS: dict[str, tuple[Column, ...]] = {"orders1": (), "orders2": (NOTE,), "orders3": ()}
ROUTE = {"match": r"shop\.orders(\d)", "to": "sales.orders", "shard-column": "shard", "shard": "s$1"}
ROWS = 30

Rows = dict[tuple[str, int], dict[str, Any]]


def write(servers: Servers) -> Rows:
    """The same keys in every table: written, some changed, some deleted; what is there at the end."""
    expected: Rows = {}
    for name, more in SHARDS.items():
        writer = TableWriter(servers, schema_of(name, *more))
        shard = f"s{name[-1]}"
        for number in range(2 * ROWS):
            row: dict[str, Any] = {"id": number % ROWS, "name": f"{name} {number}"}
            row |= {column.name: f"of {number}" for column in more}
            writer.upsert(row)
            names = {"_tidesink_database": "shop", "_tidesink_table": name}  # the source's
            expected[shard, number % ROWS] = {"note": None, **row, **names, "shard": shard}
        for number in range(int(name[-1]), ROWS, 4):
            writer.delete(expected[shard, number])
            del expected[shard, number]
    return expected


def read_lake(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = open_lake_table(folder / "lake" / "sales" / "orders").read().to_pylist()
    return rows


Read = Callable[[], list[dict[str, Any]]]


@pytest.fixture(params=["delta", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[dict[str, Any], Read]]:
    """The target's section of the config, and who reads its table."""
    if request.param == "delta":
        yield {"type": "delta", "path": "./lake"}, lambda: read_lake(tmp_path)
        return
    endpoint = postgres_database(request)
    connections = Connections(postgres_dialect(), endpoint)
    url = f"postgresql://{endpoint.host}:{endpoint.port}/{endpoint.database}"
    target: dict[str, Any] = {"type": "postgres", "url": url, "user": endpoint.user}
    if endpoint.password:
        target["password"] = endpoint.password
    yield target, lambda: reader(SqlTarget(connections))(TableId("sales", "orders"))
    connections.close()


@FULL
def test_shards_end_as_one_table(
    spark: SparkSession, tmp_path: Path, servers: Servers, place: tuple[dict[str, Any], Read]
) -> None:
    target, read = place
    expected = write(servers)
    more = {
        "routes": [ROUTE],
        "defaults": {"metadata": ["database", "table"]},
        "batch": {"max-records": 40, "max-tables": 3},
        "target": target,
    }
    config, log = shop_config(tmp_path, servers, more), tmp_path / "worker.log"
    for step in ("committing", "committed"):
        die_at(step, spark, config, log)
    assert failpoints_hit(config) == ["committing:1", "committed:1"]
    drain(spark, config, log)
    found = read()
    assert {(row["shard"], row["id"]): row for row in found} == expected
    assert len(found) == len(expected)
