"""``tidesink diff`` says equal of what is equal, also while it changes, and finds each fault."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql
from typer.testing import CliRunner

from tests.e2e.diffing import diff_config, differing, drain, table_of_diff
from tests.e2e.live_source import LiveTable, changing, live_table
from tests.e2e.places import KINDS, place_of
from tests.e2e.replay import Servers
from tests.e2e.wide_rows import OTHERS, wide_table
from tests.full import FULL, quick_on
from tests.mysql_values import own_database
from tidesink.cli.main import app
from tidesink.config import load_config
from tidesink.errors import ConfigError
from tidesink.sinks.diff.comparison import DiffOptions
from tidesink.sinks.diff.run import diff
from tidesink.sinks.runtime.context import StopFlag
from tidesink.sinks.runtime.observers import Heartbeat
from tidesink.sinks.state.sql_store import open_state_store
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers]


@pytest.mark.parametrize("kind", KINDS)
@quick_on("postgres")
def test_a_value_of_every_type_that_differs_is_found(
    spark: SparkSession,
    tmp_path: Path,
    servers: Servers,
    mariadb_url: str,
    kind: str,
    request: pytest.FixtureRequest,
) -> None:
    """A row for each column: what is changed at the source without an event differs at the target."""
    place = place_of(kind, request, tmp_path)
    with own_database(mariadb_url) as (connection, schema):
        topic, names = wide_table(connection, schema, servers)
        # MariaDB is the source, too: the copy needs a name of its own.
        apart = {"table": "copy_{schema}.{table}"} if kind == "mysql" else {}
        config = diff_config(tmp_path, servers, topic, mariadb_url, target={**place.target, **apart})
        last = len(names) + 1
        _run(connection, f"UPDATE wide SET da = NULL WHERE id = {last}")  # noqa: S608
        drain(config)
        code, found = table_of_diff(config)
        assert (code, found["equal"], found["differences"]) == (0, len(names) + 2, [])
        assert found["not_compared"] == []
        for number, name in enumerate(names):
            _run(connection, f"UPDATE wide SET {name} = {OTHERS[name]} WHERE id = {number}")  # noqa: S608
        _run(connection, f"DELETE FROM wide WHERE id = {len(names)}")  # noqa: S608
        _run(connection, "INSERT INTO wide (id) VALUES (-1)")
        # A date that Spark has not, where the source has NULL.
        odd = kind == "postgres"
        if odd:
            _make_odd(place.target, schema, last)
        report = tmp_path / "differing.jsonl"
        code, found = table_of_diff(config, "--report", str(report))
    assert code == 3
    counts = [found[name] for name in ("equal", "different", "only_at_source", "only_at_target", "unsettled")]
    assert counts == [not odd, len(names) + odd, 1, 1, 0]
    assert len(found["differences"]) == 20
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    by_key = {int(one["key"]["id"]): one.get("columns", one["kind"]) for one in lines}
    expected: dict[int, Any] = {number: [name] for number, name in enumerate(names)}
    if odd:
        expected[last] = ["da"]
    assert by_key == {**expected, len(names): "only_at_target", -1: "only_at_source"}


def _make_odd(target: Mapping[str, Any], schema: str, number: int) -> None:
    """Give a row of the copy in Postgres a date that Spark has not."""
    # Without parameters a % in the name is no placeholder.
    statement = sql.SQL("UPDATE {} SET da = 'infinity' WHERE id = {}")
    changed = statement.format(sql.Identifier(schema, "wide"), sql.Literal(number))
    user, password = target["user"], target.get("password")
    with psycopg.connect(target["url"], user=user, password=password) as connection:
        assert connection.execute(changed).rowcount == 1


def _run(connection: sa.Connection, statement: str) -> None:
    connection.exec_driver_sql(statement.replace("%", "%%"))


@contextmanager
def _working(config: Path, table: LiveTable) -> Iterator[None]:
    """A worker runs, and the table changes all the time."""
    flag, failures = StopFlag(), list[BaseException]()

    def work() -> None:
        try:
            run(load_config(config), stop=flag)
        except BaseException as exc:  # noqa: BLE001  (it is raised below)
            failures.append(exc)

    worker = threading.Thread(target=work)
    with changing(table.change):
        worker.start()
        try:
            yield
        finally:
            flag.set()
            worker.join()
    assert failures == []


@FULL
def test_no_false_alarm_while_a_table_changes(
    spark: SparkSession, tmp_path: Path, servers: Servers, mariadb_url: str
) -> None:
    with live_table(mariadb_url, servers) as table:
        table.load(3_000)
        table.change()
        config = diff_config(tmp_path, servers, table.topic, mariadb_url)
        drain(config)
        with _working(config, table):
            for _ in range(3):
                _, found = table_of_diff(config, "--lag", "1")
                assert differing(found) == (0, 0, 0)
                assert found["equal"] > 2_000
            _tamper(mariadb_url, table)
            _, found = table_of_diff(config, "--lag", "1")
        assert differing(found) == (0, 1, 0)
        assert found["differences"] == [{"kind": "only_at_source", "key": {"region": "q", "id": "7"}}]
        assert found["unsettled"] < 20


def _tamper(url: str, table: LiveTable) -> None:
    """A row whose event is lost, and which nobody changes."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        orders = f"`{table.name.schema}`.orders"
        connection.exec_driver_sql(f"INSERT INTO {orders} (region, id) VALUES ('q', 7)")  # noqa: S608
    engine.dispose()


def test_columns_names_filters_shards_and_marks_of_deleted_rows(
    spark: SparkSession, tmp_path: Path, servers: Servers, mariadb_url: str
) -> None:
    """What the config leaves out is not missed, and a row that is marked as deleted is not there."""
    with live_table(mariadb_url, servers) as table:
        table.load(300)
        settings = {
            "name": str(table.name),
            "except_column_list": ["data"],
            "rename": {"note": "remark"},
            "filter": "price IS NULL OR price > 0",
            "metadata": {"batch": "of_batch"},
            "deletes": "soft",
        }
        routes = [{"match": ".*", "to": "all.orders", "shard-column": "origin"}]
        more = {"tables": [settings], "routes": routes}
        config = diff_config(tmp_path, servers, table.topic, mariadb_url, **more)
        for _ in range(60):
            table.change()
        drain(config)
        kept = sum(row["price"] is None or row["price"] > 0 for row in table.rows())
        code, found = table_of_diff(config)
        assert (code, found["at_source"], found["at_target"], found["equal"]) == (0, kept, kept, kept)
        _tamper(mariadb_url, table)
        row = next(row for row in table.rows() if row["price"] is not None and row["price"] > 1)
        engine = sa.create_engine(f"{mariadb_url}?charset=utf8mb4")
        with closing(engine.connect()) as connection, connection.begin():
            place = sa.text(
                f"UPDATE `{table.name.schema}`.orders SET note = 'SECRET', price = price + 1 "  # noqa: S608
                "WHERE region = :region AND id = :id"
            )
            connection.execute(place, {"region": row["region"], "id": row["id"]})
        engine.dispose()
        _, found = table_of_diff(config)
        assert differing(found) == (1, 1, 0)
        assert "SECRET" not in json.dumps(found)
        _, found = table_of_diff(config, "--values")
        (one,) = (one for one in found["differences"] if one["kind"] == "different")
        assert one["columns"] == ["price", "remark"]
        assert one["values"]["remark"]["source"] == "SECRET"
        assert one["values"]["price"]["target"] == str(row["price"])


def test_what_waits_needs_a_worker(
    spark: SparkSession, tmp_path: Path, servers: Servers, mariadb_url: str
) -> None:
    with live_table(mariadb_url, servers) as table:
        table.load(50)
        table.change()
        config = diff_config(tmp_path, servers, table.topic, mariadb_url)
        drain(config)
        for _ in range(10):
            table.change()
        found = CliRunner().invoke(app, ["diff", "-c", str(config)])
        assert found.exit_code == 2
        assert "no worker runs" in found.output
        code, shown = table_of_diff(config, "--no-wait")
        assert (code, differing(shown)) == (3, (0, 0, 0))
        assert shown["unsettled"] > 0
        text = CliRunner().invoke(app, ["diff", "-c", str(config), "--no-wait", str(table.name)])
        assert text.exit_code == 3
        assert "keys could not be compared for certain" in text.output
        settings = load_config(config)
        with closing(open_state_store(settings.state)) as store:
            Heartbeat(store, "shop").beat()
            # A worker that is alive, and whose config leaves the table out.
            with pytest.raises(ConfigError, match="does not read the table, whose state is IDLE"):
                [*diff(settings, [table.name], DiffOptions(lag=0, patience=0), tell=lambda _said: None)]
            Heartbeat(store, "shop").end()
        drain(config)
        assert table_of_diff(config)[0] == 0


@FULL
def test_a_snapshot_that_is_not_over_is_told(
    spark: SparkSession, tmp_path: Path, servers: Servers, mariadb_url: str
) -> None:
    with live_table(mariadb_url, servers) as table:
        table.load(2_000)
        table.change()
        config = diff_config(tmp_path, servers, table.topic, mariadb_url)
        run(load_config(config), batches=1)
        with closing(open_state_store(load_config(config).state)) as store:
            (status,) = store.statuses("shop")
        assert status.details["snapshot"]["state"] == "running"
        found = CliRunner().invoke(app, ["diff", "-c", str(config)])
        assert found.exit_code == 2
        assert "snapshot has not finished" in found.output
