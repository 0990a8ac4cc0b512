"""Tables that no record of their topic tells of: rows and types come from the database."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import sqlalchemy as sa
import yaml
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from tests.e2e.live_source import (
    COLUMNS,
    LiveTable,
    ask_snapshot,
    beside,
    changing,
    in_order,
    live_config,
    live_table,
)
from tests.e2e.places import KINDS, Place, place_of
from tests.e2e.replay import Servers
from tests.e2e.writing import shop_config
from tests.full import FULL, quick_on
from tests.servers import delete_topic
from tests.tidb_front import next_tso
from tidesink.cli.main import app
from tidesink.config import Config, load_config
from tidesink.events import Column, ColumnType, TableId
from tidesink.sinks.runtime.context import StopFlag
from tidesink.sinks.runtime.control import TableControl, change_control
from tidesink.sinks.state.progress import TableStatus
from tidesink.sinks.state.sql_store import open_state_store
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


def test_a_topic_of_watermarks_alone(
    spark: SparkSession, tmp_path: Path, servers: Servers, mariadb_url: str, request: pytest.FixtureRequest
) -> None:
    """TiCDC sends them to the topic of each table, whether it changes or not."""
    place = place_of("delta", request, tmp_path)
    with live_table(mariadb_url, servers, tells=False, clock=next_tso) as table:
        table.load(50)
        for _ in range(3):
            table.mark()
        more: dict[str, Any] = {"tables": [{"match": f"{table.name.schema}.*", "snapshot": "initial"}]}
        config = load_config(
            live_config(tmp_path, servers, table, mariadb_url, target=place.target, defaults={}, **more)
        )
        assert _drain(config) == {table.name: None}
        assert _is_copied(place, table)
        table.change()
        assert _drain(config) == {table.name: None}
        assert _is_copied(place, table)


def test_beside_a_table_that_rests(
    spark: SparkSession, tmp_path: Path, servers: Servers, mariadb_url: str, request: pytest.FixtureRequest
) -> None:
    """Nobody reads the topic's records, and the others in it begin all the same."""
    place = place_of("delta", request, tmp_path)
    engine = sa.create_engine(mariadb_url)
    with live_table(mariadb_url, servers, in_time=True) as table:
        visits = TableId(table.name.schema, "visits")
        with engine.begin() as connection:
            connection.exec_driver_sql(_VISITS.format(visits.schema))
            connection.exec_driver_sql(_FILL.format(visits.schema))
        table.load(3)
        more: dict[str, Any] = {"tables": [{"match": f"{visits.schema}.*", "snapshot": "initial"}]}
        config = load_config(
            live_config(tmp_path, servers, table, mariadb_url, target=place.target, defaults={}, **more)
        )
        with closing(open_state_store(config.state)) as store:
            change_control(store, config.pipeline, table.name, TableControl.pause)
        table.change()
        errors = _drain(config)
        assert errors[visits] is None
        assert "Paused by request" in (errors[table.name] or "")
        assert len(place.rows(visits) or []) == 2
        assert not place.rows(table.name)
    engine.dispose()


def _without_topic(
    folder: Path, servers: Servers, table: LiveTable, url: str, *, rows: int = 250, **more: Any
) -> Config:
    """The topics are those of a rule, so that one may be still to come."""
    found = yaml.safe_load(live_config(folder, servers, table, url, rows=rows, **more).read_text())
    found["source"]["topics"] = [f"{servers['prefix']}{{schema}}"]
    entry = {"match": f"{table.name.schema}.*", "snapshot": "initial"}
    path = shop_config(folder, servers, {**found, "defaults": {}, "tables": [entry]})
    return load_config(path)


def test_a_table_is_planned_and_its_snapshot_asked_for_before_a_record_names_it(
    spark: SparkSession, tmp_path: Path, servers: Servers, mariadb_url: str, request: pytest.FixtureRequest
) -> None:
    """``initial`` is planned; without it a person asks, and a worker heeds it also without a topic."""
    place = place_of("delta", request, tmp_path)
    with live_table(mariadb_url, servers, tells=False, made=False) as table:
        table.load(600)
        config = _without_topic(tmp_path, servers, table, mariadb_url, rows=100, target=place.target)
        path = str(tmp_path / "shop.yaml")
        planned = CliRunner().invoke(app, ["plan", path])
        assert planned.exit_code == 0, planned.output
        assert f"{table.name}  from topic {table.topic}" in planned.output
        assert re.search(r"snapshot: about [1-9]\d* rows .* in \d ranges of \(region, id\)", planned.output)
        assert "Its columns come from the source database" in planned.output
        assert f"Topic {table.topic} does not exist yet" in " ".join(planned.output.split())
        settings = yaml.safe_load((tmp_path / "shop.yaml").read_text())
        (tmp_path / "shop.yaml").write_text(yaml.safe_dump({**settings, "tables": []}))
        config = load_config(tmp_path / "shop.yaml")
        assert table.name.name not in CliRunner().invoke(app, ["plan", path]).output
        assert _drain(config) == {}
        asked = CliRunner().invoke(app, ["snapshot", "start", str(table.name).upper(), "-c", path])
        assert asked.exit_code == 0, asked.output
        assert "requested" in CliRunner().invoke(app, ["snapshot", "status", path]).output
        unknown = CliRunner().invoke(app, ["snapshot", "start", f"{table.name}x", "-c", path])
        assert unknown.exit_code != 0
        assert _drain(config) == {table.name: None}
        assert _is_copied(place, table)
        shown = CliRunner().invoke(app, ["snapshot", "status", path]).output
        assert re.search(r"done +600 ", shown), shown
        # Another worker knows it, too, and has nothing to do.
        assert _drain(config) == {table.name: None}


def _wait(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 240
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def _status(config: Config, table: TableId) -> TableStatus:
    with closing(open_state_store(config.state)) as store:
        found = store.status_of(config.pipeline, table)
    assert found is not None
    return found


@pytest.mark.parametrize("kind", [one for one in KINDS if one != "mysql"])
@quick_on("postgres")
def test_a_topic_that_is_not_there_yet(
    spark: SparkSession,
    tmp_path: Path,
    servers: Servers,
    mariadb_url: str,
    kind: str,
    request: pytest.FixtureRequest,
) -> None:
    """The table is loaded; its topic is read from the beginning when it comes, and then is the one it was."""
    place = place_of(kind, request, tmp_path)
    with live_table(mariadb_url, servers, tells=False, in_time=True, made=False) as table:
        table.load(600)
        config = _without_topic(tmp_path, servers, table, mariadb_url, rows=100, target=place.target)
        run(config, batches=1)
        assert 0 < len(place.rows(table.name) or []) < 600
        assert _drain(config) == {table.name: None}
        assert _is_copied(place, table)
        (warning,) = _status(config, table.name).warnings
        assert f"Topic {table.topic} does not exist yet" in warning
        # A worker that begins again knows it, and has nothing to do.
        assert _drain(config) == {table.name: None}
        table.make_topic()
        table.say()
        table.alter("ADD COLUMN size int NOT NULL DEFAULT 7", (*COLUMNS, SIZE), {}, size=7)
        for _ in range(20):
            table.change()
        assert _drain(config) == {table.name: None}
        assert _is_copied(place, table, "size")
        assert not _status(config, table.name).warnings
        delete_topic(servers["brokers"], table.topic)
        (error,) = _drain(config).values()
        assert error is not None
        assert "The topic was deleted" in error
        table.make_topic()
        (error,) = _drain(config).values()
        assert error is not None
        assert "The topic was deleted and recreated" in error


# test_a_topic_that_is_not_there_yet reads a topic that comes behind a snapshot, test_worker_stops.py one that
# comes while a worker runs.
@FULL
def test_a_topic_that_comes_between_two_parts(
    spark: SparkSession, tmp_path: Path, servers: Servers, mariadb_url: str, request: pytest.FixtureRequest
) -> None:
    """While a worker runs: what was read before the topic came, and what is read behind, is one table."""
    place = place_of("delta", request, tmp_path)
    with live_table(mariadb_url, servers, tells=False, in_time=True, made=False) as table:
        table.load(900)
        more = {"batch": {"max-records": 200, "poll-interval": "200ms"}}
        config = _without_topic(tmp_path, servers, table, mariadb_url, rows=100, target=place.target, **more)
        stop = StopFlag()
        with beside(lambda _: run(config, stop=stop)):
            try:
                _wait(lambda: place.rows(table.name))
                table.make_topic()
                for _ in range(30):
                    table.change()
                _wait(lambda: _is_copied(place, table))
            finally:
                stop.set()
        assert _drain(config) == {table.name: None}
        assert _is_copied(place, table)


def test_a_topic_that_lost_its_beginning_before_it_was_seen(
    spark: SparkSession, tmp_path: Path, servers: Servers, mariadb_url: str, request: pytest.FixtureRequest
) -> None:
    """The table stops, also for the next worker, until it is resynced."""
    place = place_of("delta", request, tmp_path)
    with live_table(mariadb_url, servers, tells=False, in_time=True, made=False, partitions=1) as table:
        table.load(50)
        config = _without_topic(tmp_path, servers, table, mariadb_url, target=place.target)
        assert _drain(config) == {table.name: None}
        table.make_topic()
        for _ in range(10):
            table.change()
        admin = AdminClient({"bootstrap.servers": servers["brokers"]})
        (gone,) = admin.delete_records([TopicPartition(table.topic, 0, 5)]).values()
        gone.result(30)
        for _ in range(2):
            (error,) = _drain(config).values()
            assert error is not None
            assert "partition 0 at 5" in error
            name = shlex.quote(str(table.name))
            assert f"`tidesink resync {name}`, then `tidesink resume {name}`" in error
        assert not _is_copied(place, table)
        ask_snapshot(config, table, lambda asked: asked.start(time.time(), deletes=True))
        assert _drain(config) == {table.name: None}
        assert _is_copied(place, table)
        table.change()
        assert _drain(config) == {table.name: None}
        assert _is_copied(place, table)


def test_a_topic_that_is_named_must_be_there(
    spark: SparkSession, tmp_path: Path, servers: Servers, mariadb_url: str
) -> None:
    with live_table(mariadb_url, servers, tells=False, made=False) as table:
        table.load(3)
        more: dict[str, Any] = {"tables": [{"match": f"{table.name.schema}.*", "snapshot": "initial"}]}
        config = load_config(live_config(tmp_path, servers, table, mariadb_url, defaults={}, **more))
        (error,) = _drain(config).values()
        assert error is not None
        assert "The broker has no such topic" in error


def test_without_an_entry_that_names_it_no_table_is_loaded(
    spark: SparkSession, tmp_path: Path, servers: Servers, mariadb_url: str
) -> None:
    with live_table(mariadb_url, servers, tells=False) as table:
        table.load(3)
        config = load_config(live_config(tmp_path, servers, table, mariadb_url))
        assert _drain(config) == {}
