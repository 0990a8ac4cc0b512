"""A canal-json topic without DDL: the source's database gives the digits of its columns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from examples.first_load.mariadb import running_mariadb
from tests.e2e.live_source import (
    COLUMNS,
    LiveTable,
    ask_snapshot,
    in_order,
    live_config,
    live_table,
    shown_snapshot,
)
from tests.e2e.places import KINDS, place_of
from tests.e2e.replay import Servers
from tests.full import quick_on
from tidesink.config import Config, load_config
from tidesink.dev.lake_check import open_lake_table
from tidesink.events import ColumnType
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers]

_WIDER: Final = "decimal(15,2)"


@contextmanager
def _source(kind: str, request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    """A MariaDB that is not the target."""
    if kind == "mysql":
        with running_mariadb(folder / "source") as server:
            yield server.url
    else:
        yield request.getfixturevalue("mariadb_url")


def _widen(table: LiveTable) -> None:
    """Prices get a digit more at the source."""
    wide = ColumnType("decimal", precision=15, scale=2, sql=_WIDER)
    columns = tuple(replace(one, type=wide) if one.name == "price" else one for one in COLUMNS)
    table.alter(f"MODIFY price {_WIDER}", columns, {})
    table.largest_price = 10**15


def _drain(config: Config) -> None:
    (found,) = run(config, until="drained").tables
    assert found.state == "IDLE", found.error


@pytest.mark.parametrize("kind", KINDS)
@quick_on("postgres")
def test_rows_and_changes_have_the_types_of_the_database(
    spark: SparkSession, tmp_path: Path, servers: Servers, kind: str, request: pytest.FixtureRequest
) -> None:
    place = place_of(kind, request, tmp_path)
    with _source(kind, request, tmp_path) as url, live_table(url, servers, tells=False) as table:
        config = load_config(live_config(tmp_path, servers, table, url, target=place.target))

        def is_copied(price: str) -> bool:
            rows = place.rows(table.name)
            assert rows is not None
            assert in_order(rows) == in_order(table.rows())
            # A text is not equal to a number.
            return kind != "delta" or _price(tmp_path / "lake", table) == price

        table.load(300)
        for _ in range(50):
            table.change()
        _drain(config)
        assert is_copied("12,2")
        # A worker that has lost the state store goes by the target, which is no narrower than the database.
        (tmp_path / "state.db").unlink()
        for _ in range(20):
            table.change()
        _drain(config)
        assert is_copied("12,2")
        # Rows that are read meet larger values than any record, and records larger ones than any before.
        with table.unsent():
            _widen(table)
            for _ in range(20):
                table.change()
        ask_snapshot(config, table, lambda asked: asked.start(1, deletes=True))
        _drain(config)
        assert shown_snapshot(config)["state"] == "done"
        for _ in range(20):
            table.change()
        _drain(config)
        assert is_copied("15,2")


def _price(lake: Path, table: LiveTable) -> str:
    """The digits of the prices' type in a lake."""
    found = open_lake_table(lake / table.name.schema / table.name.name).read()
    return str(found.schema.field("price").type).partition("(")[2].removesuffix(")").replace(" ", "")
