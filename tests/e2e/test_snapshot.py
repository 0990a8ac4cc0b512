"""A table's rows come from the database, and its changes from the topic, at the same time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from examples.first_load.mariadb import running_mariadb
from tests.e2e.forked_worker import die_at, drain
from tests.e2e.killing import steps_of, steps_of_a_part
from tests.e2e.live_source import (
    COLUMNS,
    LiveTable,
    ask_snapshot,
    changing,
    in_order,
    live_config,
    live_table,
    shown_snapshot,
)
from tests.e2e.places import KINDS, place_of
from tests.e2e.replay import Servers
from tests.full import FULL, quick_on
from tidesink.config import Config, load_config
from tidesink.dev.lake_check import open_lake_table
from tidesink.events import Column, ColumnType, TableId
from tidesink.sinks.runtime.control import change_control
from tidesink.sinks.runtime.observers import RunReport
from tidesink.sinks.state.sql_store import open_state_store
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers]


def _check(report: RunReport) -> Mapping[str, int]:
    (found,) = report.tables
    assert report.exit_code == 0, found.error
    return found.counters


def test_rows_from_before_the_topic_and_changes_while_they_are_read(
    spark: SparkSession, tmp_path: Path, servers: Servers, mariadb_url: str
) -> None:
    with live_table(mariadb_url, servers) as table:
        table.load(3_000)
        for _ in range(50):
            table.change()
        config = load_config(live_config(tmp_path, servers, table, mariadb_url))
        with changing(table.change):
            _check(run(config, batches=5))
        assert shown_snapshot(config)["state"] == "running"
        # Of the five some were parts of about 500 rows, and some were changes. Rows come and go in a range
        # before it is read.
        assert 750 <= shown_snapshot(config)["rows"] <= 2250
        counters = _check(run(config, until="drained"))
        assert shown_snapshot(config)["state"] == "done"
        lake = tmp_path / "lake" / table.name.schema / table.name.name
        assert in_order(open_lake_table(lake).read().to_pylist()) == in_order(table.rows())
        assert counters["read"] >= 500
        _another(config, table, lake)


REMARK: Final = Column("remark", ColumnType("text", sql="text"))
SIZE: Final = Column("size", ColumnType("int", sql="int"), nullable=False, default="7")
WIDE_SIZE: Final = replace(SIZE, type=ColumnType("bigint", sql="bigint"))


def test_columns_change_at_the_source_before_the_topic_tells(
    spark: SparkSession, tmp_path: Path, servers: Servers, mariadb_url: str
) -> None:
    """A renamed column keeps the values of rows that are read before its DDL, which nothing sends again."""
    columns = tuple(REMARK if one.name == "note" else one for one in COLUMNS)
    with live_table(mariadb_url, servers) as table:
        table.load(2_000)
        table.change()
        defaults = {"snapshot": "initial", "schema-changes": {"rename": "apply"}}
        config = load_config(live_config(tmp_path, servers, table, mariadb_url, defaults=defaults))
        _check(run(config, batches=2))
        begun = shown_snapshot(config)["rows"]
        with table.held_back():
            table.alter("RENAME COLUMN note TO remark", columns, {"note": "remark"})
            table.change()
            _check(run(config, until="drained"))
            shown = shown_snapshot(config)
            assert (shown["state"], shown["rows"]) == ("waiting", begun)
            assert "note" in shown["reason"]
        # This one comes while the snapshot is under way, and its default is not what all rows have.
        added = (*columns, SIZE)
        table.alter("ADD COLUMN size int NOT NULL DEFAULT 7", added, {}, size=7)
        for _ in range(50):
            table.change()
        _check(run(config, until="drained"))
        assert shown_snapshot(config)["state"] == "done"
        lake = tmp_path / "lake" / table.name.schema / table.name.name
        names = ("region", "id", "price", "remark", "data", "size")
        assert in_order(open_lake_table(lake).read().to_pylist(), names) == in_order(table.rows(), names)
        _widened(config, table, added)
        assert in_order(open_lake_table(lake).read().to_pylist(), names) == in_order(table.rows(), names)


def _widened(config: Config, table: LiveTable, columns: tuple[Column, ...]) -> None:
    """Another snapshot meets values of a wider type than the changes have yet."""
    ask_snapshot(config, table, lambda asked: asked.start(time.time()))
    with table.held_back():
        wide = tuple(WIDE_SIZE if one is SIZE else one for one in columns)
        table.alter("MODIFY size bigint NOT NULL DEFAULT 7", wide, {})
        table.largest_size = 2**50
        for _ in range(50):
            table.change()
        (found,) = run(config, until="drained").tables
        assert found.state == "FAILING"
        assert "size" in str(found.error)
    _check(run(config, until="drained"))
    assert shown_snapshot(config)["state"] == "done"


def _another(config: Config, table: LiveTable, lake: Path) -> None:
    """A snapshot that a person asks for, rests, and goes on: it mends what the target lost."""
    DeltaTable(str(lake)).delete("id % 2 = 0")
    ask_snapshot(config, table, lambda asked: replace(asked.start(time.time()), rests=True))
    _check(run(config, until="drained"))
    assert len(open_lake_table(lake).read()) < len(table.rows())
    ask_snapshot(config, table, lambda asked: replace(asked, rests=False))
    _check(run(config, until="drained"))
    assert in_order(open_lake_table(lake).read().to_pylist()) == in_order(table.rows())


@FULL
@pytest.mark.parametrize("declared", [False, True])
def test_a_table_is_emptied_before_its_snapshot_where_the_rows_behind_that_have_expired(
    spark: SparkSession, tmp_path: Path, servers: Servers, mariadb_url: str, declared: bool
) -> None:
    """The database alone has rows of after the TRUNCATE, which is still in the topic.

    DDL of a table that the config declares is not read when the table is opened.
    """
    with live_table(mariadb_url, servers) as table:
        table.load(200)
        table.change()
        table.truncate()
        table.load(300)
        for _ in range(50):
            table.change()
        _expire(servers, table)
        more: dict[str, Any] = {"defaults": {"snapshot": "initial", "schema-changes": {"truncate": "apply"}}}
        if declared:
            more["tables"] = [{"name": str(table.name), "definition": table.create}]
        config = load_config(live_config(tmp_path, servers, table, mariadb_url, **more))
        _check(run(config, until="drained"))
        lake = tmp_path / "lake" / table.name.schema / table.name.name
        assert in_order(open_lake_table(lake).read().to_pylist()) == in_order(table.rows())


def _expire(servers: Servers, table: LiveTable) -> None:
    """All records that are not on the partition of DDL are gone."""
    admin = AdminClient({"bootstrap.servers": servers["brokers"]})
    gone = [TopicPartition(table.topic, number, -1) for number in (1, 2)]
    for found in admin.delete_records(gone).values():
        found.result(30)


@contextmanager
def _source(kind: str, url: str, folder: Path) -> Iterator[str]:
    """A MariaDB that is not the target: there the copy, which has the table's name, would be the table."""
    if kind == "mysql":
        with running_mariadb(folder / "source") as server:
            yield server.url
    else:
        yield url


@pytest.mark.parametrize("kind", KINDS)
@quick_on("postgres")
def test_killed_at_each_step_of_a_part(
    spark: SparkSession,
    tmp_path: Path,
    servers: Servers,
    mariadb_url: str,
    kind: str,
    request: pytest.FixtureRequest,
) -> None:
    """The rows of a part are tried at each step; the changes between the kills are of rows of every range."""
    place, log = place_of(kind, request, tmp_path), tmp_path / "worker.log"
    with _source(kind, mariadb_url, tmp_path) as url, live_table(url, servers) as table:
        # One batch and a half for each step.
        table.load(750 * len(steps_of_a_part(kind)))
        config = live_config(tmp_path, servers, table, url, target=place.target)
        for step in steps_of_a_part(kind):
            for _ in range(20):
                table.change()
            # Dead letters are of records alone.
            die_at(step, spark, config, log)
        drain(spark, config, log)
        rows = place.rows(table.name)
        assert rows is not None
        assert in_order(rows) == in_order(table.rows())


@FULL
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_killed_where_the_rows_of_a_part_are_written_as_they_are_read(
    spark: SparkSession,
    tmp_path: Path,
    servers: Servers,
    mariadb_url: str,
    kind: str,
    request: pytest.FixtureRequest,
) -> None:
    """Ranges of so many rows that each is a file of its own; read twice, so that rows are there already."""
    place, log = place_of(kind, request, tmp_path), tmp_path / "worker.log"
    with live_table(mariadb_url, servers) as table:
        table.load(250_000)
        for _ in range(500):
            table.change()
        config = live_config(tmp_path, servers, table, mariadb_url, target=place.target, rows=60_000)
        for step in steps_of(kind):
            for _ in range(20):
                table.change()
            die_at(step, spark, config, log)
            if step == "committed":
                with closing(open_state_store(load_config(config).state)) as store:
                    again = lambda control: replace(control, snapshot=replace(control.snapshot, started=1))  # noqa: E731
                    change_control(store, "shop", table.name, again)
        drain(spark, config, log)
        rows = place.rows(table.name)
        assert rows is not None
        assert in_order(rows) == in_order(table.rows())


@pytest.mark.parametrize("kind", KINDS)
@quick_on("postgres")
def test_a_log_begins_with_the_rows_of_a_snapshot(
    spark: SparkSession,
    tmp_path: Path,
    servers: Servers,
    mariadb_url: str,
    kind: str,
    request: pytest.FixtureRequest,
) -> None:
    """Each row of a part once, however often it was tried, and before all changes: the last is the state."""
    place, log = place_of(kind, request, tmp_path), tmp_path / "worker.log"
    with live_table(mariadb_url, servers) as table:
        table.load(1_500)
        # Under another name: the source's server may be the target's, too.
        copy = TableId(f"log_of_{table.name.schema}", table.name.name)
        more: dict[str, Any] = {
            "target": place.target,
            "defaults": {"snapshot": "initial", "mode": "append"},
            "routes": [{"match": r"(\w+)\.(\w+)", "to": "log_of_$1.$2"}],
        }
        config = live_config(tmp_path, servers, table, mariadb_url, **more)
        for step in ("reduced", "committing", "committed", "reported"):
            for _ in range(20):
                table.change()
            die_at(step, spark, config, log)
        drain(spark, config, log)
        found = place.rows(copy)
        assert found is not None
        read = [row for row in found if row["_tidesink_offset"] < 0]
        assert {row["_tidesink_op"] for row in read} == {"upsert"}
        assert len({(row["region"], row["id"]) for row in read}) == len(read)
        assert len({_place(row) for row in found}) == len(found)
        last: dict[tuple[Any, Any], dict[str, Any]] = {}
        for row in sorted(found, key=lambda row: (row["_tidesink_offset"], row["_tidesink_index"])):
            last[row["region"], row["id"]] = row
        state = [row for row in last.values() if row["_tidesink_op"] not in ("delete", "update_preimage")]
        assert in_order(state) == in_order(table.rows())


@FULL
def test_a_log_keeps_the_values_of_a_column_that_is_renamed_ahead_of_the_topic(
    spark: SparkSession, tmp_path: Path, servers: Servers, mariadb_url: str
) -> None:
    """The new column stands beside the old one: rows have the one that their part was read with."""
    columns = tuple(REMARK if one.name == "note" else one for one in COLUMNS)
    with live_table(mariadb_url, servers) as table:
        table.load(2_000)
        table.change()
        defaults = {"snapshot": "initial", "mode": "append"}
        config = load_config(live_config(tmp_path, servers, table, mariadb_url, defaults=defaults))
        _check(run(config, batches=2))
        begun = shown_snapshot(config)["rows"]
        with table.held_back():
            table.alter("RENAME COLUMN note TO remark", columns, {"note": "remark"})
            _check(run(config, until="drained"))
            assert (shown_snapshot(config)["state"], shown_snapshot(config)["rows"]) == ("waiting", begun)
        _check(run(config, until="drained"))
        lake = tmp_path / "lake" / table.name.schema / table.name.name
        read = [row for row in open_lake_table(lake).read().to_pylist() if row["_tidesink_offset"] < 0]
        renamed = [row for row in read if row["remark"] is not None]
        assert {row["note"] for row in renamed} == {None}
        assert len(renamed) > 0
        found = [{**row, "note": row["remark"] if row["note"] is None else row["note"]} for row in read]
        expected = [{**row, "note": row["remark"]} for row in table.rows()]
        assert in_order(found) == in_order(expected)


def _place(row: dict[str, Any]) -> tuple[int, ...]:
    return tuple(row[f"_tidesink_{name}"] for name in ("partition", "offset", "index"))
