"""Where tables are kept in the tests: a target's section of a config, its rows now, what packs its files."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from tests.contracts.sql_beds import DATABASES, reader
from tests.e2e.iceberg_beside import newest_metadata
from tests.e2e.sql_beside import Server, connected, target_of
from tidesink.dev.lake_check import open_lake_table
from tidesink.errors import TidesinkError, TransientTargetError
from tidesink.events import TableId
from tidesink.sinks.spark.errors import SPARK_ERRORS
from tidesink.sinks.targets.delta.log import translated
from tidesink.sinks.targets.iceberg.jvm import staging_error
from tidesink.sinks.targets.iceberg.schema import open_session
from tidesink.sinks.targets.sharing import quote_text
from tidesink.sinks.targets.sql.target import SqlTarget

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = list[dict[str, Any]]
# Targets that hold rows and outlive their worker.
KINDS: Final = ("delta", "iceberg", *DATABASES)
# How often a table is tried to be packed while its worker commits.
_ATTEMPTS: Final = 3


class Place(NamedTuple):
    """A target: its section of the config, and a table's rows now, None where there is no table yet.

    ``pack``: another program packs a lake's table, so that its rows stand at other positions; False where
    there was nothing to pack, or the worker's commits came first. None where there are no files to pack.
    """

    target: dict[str, Any]
    rows: Callable[[TableId], Rows | None]
    pack: Callable[[TableId], bool] | None = None

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
                there = connections.dialect.tables.present(cursor, target.place_of(table))
            return reader(target)(table) if there else None

    return Place(target_of(server), rows)


def _lake(kind: str, request: pytest.FixtureRequest, folder: Path) -> Place:
    lake, spark = folder / "lake", request.getfixturevalue("spark")

    def rows(table: TableId) -> Rows | None:
        place = lake / table.schema / table.name
        try:
            if kind == "delta":
                found: Rows = open_lake_table(place).read().to_pylist()
                return found
            frame = spark.read.format("iceberg").load(newest_metadata(place))
        except (FileNotFoundError, KeyError):
            return None
        return [row.asDict() for row in frame.collect()]

    pack = partial(_pack_delta if kind == "delta" else _pack_iceberg, spark, lake)
    catalog = {"catalog": "lake", "catalog-properties": {"type": "hadoop", "warehouse": "./lake"}}
    return Place({"type": kind, **({"path": "./lake"} if kind == "delta" else catalog)}, rows, pack)


def _pack_delta(spark: SparkSession, lake: Path, table: TableId) -> bool:
    place = lake / table.schema / table.name
    if not (place / "_delta_log").exists():
        return False
    session = spark.newSession()

    def pack() -> bool:
        ((_, metrics),) = session.sql(f"OPTIMIZE delta.`{place}`").collect()
        return bool(metrics["numFilesAdded"])

    return _packed(pack, translated)


def _pack_iceberg(spark: SparkSession, lake: Path, table: TableId) -> bool:
    if not (lake / table.schema / table.name).exists():
        return False
    session = open_session(spark, "lake", {"type": "hadoop", "warehouse": str(lake)})
    named = f"table => {quote_text(f'{table.schema}.{table.name}')}"
    options = "options => map('rewrite-all', 'true')"

    def pack() -> bool:
        (done,) = session.sql(f"CALL lake.system.rewrite_data_files({named}, {options})").collect()
        return bool(done["added_data_files_count"])

    return _packed(pack, staging_error)


def _packed(pack: Callable[[], bool], translate: Callable[..., TidesinkError]) -> bool:
    """Whether files were packed; a worker's commit in between refuses it, and it is tried again."""
    for _ in range(_ATTEMPTS):
        try:
            return pack()
        except SPARK_ERRORS as exc:
            if not isinstance(translate(exc, table=None), TransientTargetError):
                raise
    return False
