"""Tables that no record of their topic tells of: rows and types come from the database."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import sqlalchemy as sa

from tests.e2e.live_source import COLUMNS, LiveTable, changing, in_order, live_config, live_table
from tests.e2e.places import KINDS, Place, place_of
from tests.e2e.replay import Servers
from tests.full import quick_on
from tidesink.config import Config, load_config
from tidesink.events import Column, ColumnType, TableId
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers]

SIZE: Final = Column("size", ColumnType("int", sql="int"), nullable=False, default="7")
# Of each sort that canal-json's words say nothing of.
_VISITS: Final = (
    "CREATE TABLE `{}`.visits (id int PRIMARY KEY, kind enum('a','b'), price decimal(9,3) unsigned, "
    "flags bit(5))"
)
_FILL: Final = "INSERT INTO `{}`.visits VALUES (1, 'b', 1.5, 3), (2, NULL, NULL, NULL)"


def _drain(config: Config) -> dict[TableId, str | None]:
    return {one.table: one.error for one in run(config, until="drained").tables}


def _is_copied(place: Place, table: LiveTable, *more: str) -> bool:
    names = (*(one.name for one in COLUMNS), *more)
    return in_order(place.rows(table.name) or [], names) == in_order(table.rows(), names)


@pytest.mark.parametrize("kind", [one for one in KINDS if one != "mysql"])
@quick_on("postgres")
def test_an_empty_topic_and_a_table_that_a_topic_of_others_does_not_name(
    spark: SparkSession,
    tmp_path: Path,
    servers: Servers,
    mariadb_url: str,
    kind: str,
    request: pytest.FixtureRequest,
) -> None:
    """Both are loaded; then changes come, and DDL, behind a restart, too."""
    place = place_of(kind, request, tmp_path)
    engine = sa.create_engine(mariadb_url)
    with live_table(mariadb_url, servers, tells=False, in_time=True) as table:
        visits = TableId(table.name.schema, "visits")
        with engine.begin() as connection:
            connection.exec_driver_sql(_VISITS.format(visits.schema))
            connection.exec_driver_sql(_FILL.format(visits.schema))
        table.load(300)
        more: dict[str, Any] = {"tables": [{"match": f"{visits.schema}.*", "snapshot": "initial"}]}
        config = load_config(
            live_config(tmp_path, servers, table, mariadb_url, target=place.target, defaults={}, **more)
        )
        assert _drain(config) == {table.name: None, visits: None}
        assert _is_copied(place, table)
        rows = sorted(place.rows(visits) or [], key=lambda row: row["id"])
        assert [(row["id"], row["kind"], str(row["price"])) for row in rows] == [
            (1, "b", "1.500"),
            (2, None, "None"),
        ]
        with changing(table.change):
            run(config, batches=2)
        assert set(_drain(config).values()) == {None}
        assert _is_copied(place, table)
        table.say()
        table.alter("ADD COLUMN size int NOT NULL DEFAULT 7", (*COLUMNS, SIZE), {}, size=7)
        table.change()
        assert set(_drain(config).values()) == {None}
        assert _is_copied(place, table, "size")
    engine.dispose()


def test_without_an_entry_that_names_it_no_table_is_loaded(
    spark: SparkSession, tmp_path: Path, servers: Servers, mariadb_url: str
) -> None:
    with live_table(mariadb_url, servers, tells=False) as table:
        table.load(3)
        config = load_config(live_config(tmp_path, servers, table, mariadb_url))
        assert _drain(config) == {}
