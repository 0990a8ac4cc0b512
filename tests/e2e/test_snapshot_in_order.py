"""Rows of the database under ``sequence_by: source``: changes come in any order, in any partition."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.live_source import (
    ask_snapshot,
    changing,
    in_order,
    live_config,
    live_table,
    shown_snapshot,
)
from tests.e2e.places import KINDS, Place, place_of
from tests.e2e.replay import Servers
from tests.full import FULL, quick_on
from tests.tidb_front import next_tso
from tidesink.config import Config, load_config
from tidesink.events import TableId
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers]

_IN_ORDER = {"snapshot": "initial", "sequence_by": "source"}


def _run(config: Config, **how: Any) -> None:
    report = run(config, **how)
    assert report.exit_code == 0, [one.error for one in report.tables]


def _living(place: Place, table: TableId) -> list[tuple[Any, ...]]:
    return in_order([row for row in place.rows(table) or [] if not row["_tidesink_deleted"]])


@pytest.mark.parametrize("kind", KINDS)
@quick_on("postgres")
def test_rows_and_changes_in_any_order_become_the_source(
    spark: SparkSession,
    tmp_path: Path,
    servers: Servers,
    tidb_url: str,
    kind: str,
    request: pytest.FixtureRequest,
) -> None:
    """Changes are late, so that parts show what comes behind them; then the copy is spoilt and repaired."""
    place = place_of(kind, request, tmp_path)
    with live_table(tidb_url, servers, clock=next_tso) as table:
        # Under another name: the source's server may be the target's, too.
        copy = TableId(f"copy_of_{table.name.schema}", table.name.name)
        routes = [{"match": r"(\w+)\.(\w+)", "to": "copy_of_$1.$2"}]
        table.load(600)
        table.change()
        more: dict[str, Any] = {"target": place.target, "defaults": _IN_ORDER, "routes": routes}
        config = load_config(live_config(tmp_path, servers, table, tidb_url, **more))
        with table.held_back(), changing(table.change):
            _run(config, batches=2)
        _run(config, until="drained")
        assert shown_snapshot(config)["state"] == "done"
        assert _living(place, copy) == in_order(table.rows())
        with table.unsent():
            for _ in range(100):
                table.change()
        assert _living(place, copy) != in_order(table.rows())
        ask_snapshot(config, table, lambda asked: asked.start(time.time(), deletes=True))
        with table.held_back(), changing(table.change):
            _run(config, batches=4)
        _run(config, until="drained")
        shown = shown_snapshot(config)
        assert shown["state"] == "done"
        assert shown["deletes"]["deletes"] > 0
        assert _living(place, copy) == in_order(table.rows())


@FULL
def test_a_database_without_positions_is_refused(
    spark: SparkSession, tmp_path: Path, servers: Servers, mariadb_url: str
) -> None:
    with live_table(mariadb_url, servers, clock=next_tso) as table:
        table.load(10)
        table.change()
        config = load_config(live_config(tmp_path, servers, table, mariadb_url, defaults=_IN_ORDER))
        (found,) = run(config, until="drained").tables
        assert found.state == "FAILING"
        assert "no timestamps that can be compared with a commit_ts" in str(found.error)
