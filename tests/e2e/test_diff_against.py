"""``tidesink diff --against``: two copies of one source, in two kinds of targets, are compared."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from tests.e2e.diffing import diff_config, differing_from, drain, table_of_diff
from tests.e2e.live_source import LiveTable, changing, live_table
from tests.e2e.places import KINDS, place_of
from tests.e2e.replay import Servers
from tests.e2e.wide_rows import OTHERS, wide_table
from tests.full import FULL
from tests.mysql_values import own_database
from tidesink.config import load_config
from tidesink.sinks.runtime.context import StopFlag
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers]


def _pair(
    folder: Path, servers: Servers, topic: str, url: str, target: dict[str, Any], **other: Any
) -> tuple[Path, Path]:
    """A lake, and a pipeline of the same topic with another target."""
    folders = [folder / name for name in ("here", "there")]
    for one in folders:
        one.mkdir()
    here = diff_config(folders[0], servers, topic, url, pipeline="here")
    return here, diff_config(folders[1], servers, topic, url, pipeline="there", target=target, **other)


def _without_database(config: Path) -> Path:
    """The same config without the source's database, which a comparison of copies does not ask."""
    settings = json.loads(config.read_text())
    del settings["source"]["database"]
    settings["defaults"]["snapshot"] = "never"
    path = config.with_name("plain.yaml")
    path.write_text(json.dumps(settings))
    return path


@FULL
@pytest.mark.parametrize("kind", KINDS)
def test_a_value_of_every_type_is_equal_in_both_or_found(
    spark: SparkSession,
    tmp_path: Path,
    servers: Servers,
    mariadb_url: str,
    kind: str,
    request: pytest.FixtureRequest,
) -> None:
    """The copies were read before and after a change of one column of each row, which no event tells of."""
    place = place_of(kind, request, tmp_path / "there")
    with own_database(mariadb_url) as (connection, schema):
        topic, names = wide_table(connection, schema, servers)
        # MariaDB is the source, too: the copy needs a name of its own.
        apart = {"table": "copy_{schema}.{table}"} if kind == "mysql" else {}
        here, there = _pair(tmp_path, servers, topic, mariadb_url, {**place.target, **apart})
        drain(here)
        for number, name in enumerate(names):
            change = f"UPDATE wide SET {name} = {OTHERS[name]} WHERE id = {number}"  # noqa: S608
            connection.exec_driver_sql(change.replace("%", "%%"))
        connection.exec_driver_sql(f"DELETE FROM wide WHERE id = {len(names)}")  # noqa: S608
        connection.exec_driver_sql("INSERT INTO wide (id) VALUES (-1)")
        drain(there)
    report = tmp_path / "differing.jsonl"
    against = ("--against", str(_without_database(there)))
    code, found = table_of_diff(_without_database(here), *against, "--report", str(report))
    assert found["not_compared"] == []
    assert code == 3
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    by_key = {int(one["key"]["id"]): one.get("columns", one["kind"]) for one in lines}
    expected: dict[int, Any] = {number: [name] for number, name in enumerate(names)}
    assert by_key == {**expected, len(names): "only_at_target", -1: "only_at_other"}
    assert (found["equal"], differing_from(found, "other")) == (1, (len(names), 1, 1))
    _, found = table_of_diff(_without_database(here), *against, "--where", "id < 3")
    assert (found["at_other"], differing_from(found, "other")) == (4, (3, 1, 0))


@contextmanager
def _working(configs: Sequence[Path], table: LiveTable) -> Iterator[None]:
    """A worker of each pipeline runs, and the table changes all the time."""
    flag, failures = StopFlag(), list[BaseException]()

    def work(config: Path) -> None:
        try:
            run(load_config(config), stop=flag)
        except BaseException as exc:  # noqa: BLE001  (it is raised below)
            failures.append(exc)

    workers = [threading.Thread(target=work, args=(config,)) for config in configs]
    with changing(table.change):
        for worker in workers:
            worker.start()
        try:
            yield
        finally:
            flag.set()
            for worker in workers:
                worker.join()
    assert failures == []


@FULL
def test_no_false_alarm_while_both_copies_follow(
    spark: SparkSession, tmp_path: Path, servers: Servers, mariadb_url: str, request: pytest.FixtureRequest
) -> None:
    """The copies have other names, marks of deleted rows and columns, and are shards of wider tables."""
    place = place_of("postgres", request, tmp_path / "there")
    with live_table(mariadb_url, servers) as table:
        table.load(2_000)
        table.change()
        settings = {"name": str(table.name), "rename": {"note": "remark"}, "deletes": "soft"}
        left_out = {"name": str(table.name), "except_column_list": ["data"]}
        routes = [{"match": ".*", "to": "all.orders", "shard-column": "origin"}]
        here, there = _pair(
            tmp_path, servers, table.topic, mariadb_url, place.target, tables=[left_out], routes=routes
        )
        shop = json.loads(here.read_text())
        here.write_text(json.dumps({**shop, "tables": [settings]}))
        drain(here)
        with table.unsent():
            engine = sa.create_engine(mariadb_url)
            with engine.begin() as connection:
                orders = f"`{table.name.schema}`.orders"
                connection.exec_driver_sql(f"INSERT INTO {orders} (region, id) VALUES ('q', 7)")  # noqa: S608
            engine.dispose()
        drain(there)
        for one, other in ((here, there), (there, here)):
            with _working((here, there), table):
                _, found = table_of_diff(one, "--against", str(other), "--lag", "1")
                lost = (0, 1, 0) if one is here else (0, 0, 1)
                assert differing_from(found, "other") == lost
                assert found["not_compared"] == ["data"]
                assert found["equal"] > 1_500
        (only,) = found["differences"]
        # The key is the target's own, by which a resync of it finds the row.
        assert only["key"] == {"region": "q", "id": "7", "origin": str(table.name)}


def test_a_copy_that_is_behind_is_waited_for(
    spark: SparkSession, tmp_path: Path, servers: Servers, mariadb_url: str
) -> None:
    with live_table(mariadb_url, servers) as table:
        table.load(50)
        target = {"type": "delta", "path": "./lake"}
        here, there = _pair(tmp_path, servers, table.topic, mariadb_url, target)
        table.change()
        drain(here)
        drain(there)
        assert table_of_diff(here, "--against", str(there))[0] == 0
        for _ in range(10):
            table.change()
        drain(here)
        code, found = table_of_diff(here, "--against", str(there), "--no-wait")
        assert (code, differing_from(found, "other")) == (3, (0, 0, 0))
        assert found["unsettled"] > 0
        code, found = table_of_diff(there, "--against", str(there), "--no-wait")
        assert (code, found["equal"]) == (0, found["at_target"])
        drain(there)
        assert table_of_diff(here, "--against", str(there), "--sample", "10")[0] == 0
