"""A column that is left out is renamed at the source: its values never come to the target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from tests.e2e.replay import Servers
from tests.e2e.test_schema_changes import Shop
from tests.e2e.writing import TableWriter, lake_rows, schema_of, shop_config
from tests.full import FULL
from tidesink.config import load_config
from tidesink.events import Column, ColumnType
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers]

PHONE = Column("phone", ColumnType("varchar", length=9, sql="varchar(9)"))
MOBILE = replace(PHONE, name="mobile")
LISTED = {"name": "shop.told", "except_column_list": "phone"}
ROWS = {1: {"id": 1, "name": "one"}, 2: {"id": 2, "name": "two"}, 3: {"id": 3, "name": "three"}}


@FULL
def test_a_rename_by_ddl_waits_until_the_list_has_both_names(
    spark: SparkSession, tmp_path: Path, servers: Servers
) -> None:
    shop = Shop(tmp_path, servers)
    shop.configure({"tables": [LISTED]})
    shop.reported.ddl("ALTER TABLE shop.told ADD COLUMN phone VARCHAR(9)", commit_ts=2)
    before, after = shop.writer("told", PHONE), shop.writer("told", MOBILE)
    before.upsert({"id": 1, "name": "one", "phone": "secret"}, partition=1)
    assert shop.states() == {"told": "IDLE"}
    shop.reported.ddl("ALTER TABLE shop.told RENAME COLUMN phone TO mobile", commit_ts=3)
    after.upsert({"id": 2, "name": "two", "mobile": "secret"}, partition=1)
    before.upsert({"id": 3, "name": "three", "phone": "secret"}, partition=1)
    both = {**LISTED, "except_column_list": "phone, mobile"}
    for folder in (tmp_path, tmp_path / "again"):
        shop.configure({"tables": [LISTED]}, folder)
        report = shop.drain()["told"]
        assert report.state == "PAUSED"
        assert "column phone was renamed to mobile" in (report.error or "")
        shop.configure({"tables": [both]}, folder)
        report = shop.drain()["told"]
        assert report.state == "IDLE", report.error
        assert lake_rows(folder, "told") == ROWS


@FULL
def test_a_column_that_may_be_the_excluded_one_waits(
    spark: SparkSession, tmp_path: Path, servers: Servers
) -> None:
    """In flat-avro, where nothing tells of a rename; also where the table is made with both known."""
    writer = TableWriter(servers, schema_of("told", PHONE))
    writer.upsert({"id": 1, "name": "one", "phone": "secret"})
    late = tmp_path / "late"
    late.mkdir()
    tables = [LISTED, {"match": "nowhere.*", "deletes": "soft"}]
    early, again = (
        load_config(shop_config(folder, servers, {"tables": tables})) for folder in (tmp_path, late)
    )
    with capture_logs() as logs:
        assert run(early, until="drained").tables[0].state == "IDLE"
    (said,) = [line["warning"] for line in logs if line["event"] == "pattern fits no table"]
    assert said.startswith("tables[1].match: 'nowhere.*' matches none of the found tables (shop.told)")
    writer.schema = schema_of("told", MOBILE)
    writer.upsert({"id": 2, "name": "two", "mobile": "secret"})
    for config in (early, again):
        (table,) = run(config, until="drained").tables
        assert table.state == "PAUSED"
        assert "because phone disappeared at the same time" in (table.error or "")
    assert lake_rows(tmp_path, "told") == {1: ROWS[1]}
