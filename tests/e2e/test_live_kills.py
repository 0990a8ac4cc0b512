"""First load, stream and comparison of live databases, while the worker and all around it are killed.

A writer never stops, and Debezium's connector sends what it does. Seeds are printed: TIDESINK_SEED runs one
again. What the target holds at the end is read by another program than tidesink.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pymysql
import pytest

from examples.first_load.mariadb import missing_programs, running_mariadb
from tests.absent import without_server
from tests.connect_server import Connect, connect_server
from tests.duckdb_readers import by_duckdb
from tests.e2e.debezium_mariadb import BINARY_LOG, mariadb_connector
from tests.e2e.debezium_postgres import connector, wait_until_sent
from tests.e2e.diffing import tables_of_diff
from tests.e2e.iceberg_beside import newest_metadata
from tests.e2e.killing import finish, start_worker
from tests.e2e.live_kills import Kills, LiveWorker, is_loading, kill_broker, seed_of_run, snapshots
from tests.e2e.live_shop import (
    LAST,
    LAST_ROWS,
    READER,
    SENDER,
    TABLES,
    LiveServer,
    LiveShop,
    MariaDbServer,
    PostgresServer,
    in_texts,
    new_name,
)
from tests.e2e.places import place_of
from tests.e2e.replay import Servers
from tests.e2e.writing import shop_config
from tests.full import FULL
from tests.postgres_database import own_postgres
from tests.servers import create_topics, local_stack
from tests.sessions import SMALL_SPARK
from tidesink.dev.stack import DevStack
from tidesink.sinks.targets.sql.location import Endpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [FULL, pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(3600)]

KILLS: Final = int(os.environ.get("TIDESINK_LIVE_KILLS", "14"))
ORDERS: Final = 3_000
PARTITIONS: Final = 3
# Of the connector, at most, on a machine that many share.
LAG_SECONDS: Final = 15


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevStack]:
    """A broker that may be killed."""
    with local_stack(tmp_path_factory.mktemp("killed stack")) as found:
        yield found


@contextmanager
def _server(kind: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[LiveServer]:
    """The source's database, with its tables."""
    with ExitStack() as until_the_end:
        found: LiveServer
        if kind == "mariadb":
            if missing_programs():
                without_server("no mariadbd here: apt-get install mariadb-server-core")
            found = MariaDbServer(until_the_end.enter_context(running_mariadb(folder, *BINARY_LOG)))
        else:
            endpoint: Endpoint = request.getfixturevalue("postgres")
            url = until_the_end.enter_context(own_postgres(endpoint, "live{}"))
            found = PostgresServer(endpoint, url.rpartition("/")[2])
        found.create()
        if isinstance(found, PostgresServer):
            until_the_end.callback(found.drop_reader)
        yield found


@contextmanager
def _sending(connect: Connect, server: LiveServer, brokers: str, name: str) -> Iterator[None]:
    """The connector of the source's database."""
    if isinstance(server, MariaDbServer):
        with mariadb_connector(connect, server.server, brokers, name, SENDER):
            yield
    else:
        with connector(connect, server.admin_url, name):
            yield


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        *(("mariadb", kind) for kind in ("delta", "iceberg", "postgres")),
        *(("postgres", kind) for kind in ("delta", "iceberg", "mysql")),
    ],
)
def test_a_live_database_is_copied_under_kills(
    spark: SparkSession,
    stack: DevStack,
    tmp_path: Path,
    source: str,
    kind: str,
    request: pytest.FixtureRequest,
) -> None:
    """A writer never stops; all around the worker dies while the rows of before are loaded, and it itself."""
    seed, name, place = seed_of_run(), new_name(), place_of(kind, request, tmp_path)
    rng, brokers = random.Random(seed), stack.addresses.brokers
    topics = {table: f"{name}.live.{table}" for table in TABLES}
    create_topics(brokers, {**dict.fromkeys(topics.values(), PARTITIONS), f"{name}.history": 1})
    with (
        _server(source, tmp_path, request) as server,
        connect_server(brokers, tmp_path, name, source) as connect,
    ):
        shop = LiveShop(server, seed)
        shop.load(ORDERS)
        with _sending(connect, server, brokers, name):
            worker: LiveWorker
            configured = partial(
                _config, tmp_path, stack, server, name, place.target, executors=kind == "delta"
            )
            # Ranges so small that the load goes on for longer than the kills.
            config = configured(rows=150)
            others = {
                "task": lambda: worker.kill_a_task(rng),
                "broker": lambda: kill_broker(stack, rng),
                "connection to the source": lambda: server.cut(READER) > 0,
                "connection of the connector": lambda: server.cut(SENDER) > 0,
                "Kafka Connect": connect.kill,
            }
            worker = LiveWorker(config)
            try:
                kills = Kills(worker, others, rng)
                with shop.changing():
                    worker.wait_for_a_batch()
                    kills.make(KILLS, halfway=shop.add_a_column)
                    worker.wait_until(lambda: not is_loading(config))
                    code, found = tables_of_diff(configured(rows=5_000), "--lag", str(LAG_SECONDS))
                    assert code == 0, found
                worker.kill()
            finally:
                worker.end()
            shop.finish()
            for topic in topics.values():
                mend = partial(connect.restart_failed, name)
                wait_until_sent(brokers, topic, PARTITIONS, LAST, count=LAST_ROWS, meanwhile=mend)
            ending = finish(start_worker(config, tmp_path / "last.log"), tmp_path / "last.log")
            assert ending.code == 0, ending.output
            assert snapshots(config) == ["done", "done"]
            code, found = tables_of_diff(configured(rows=5_000))
            assert (code, [one["not_compared"] for one in found]) == (0, [[], []]), found
            read = _reader(kind, tmp_path, place.target)
            for table in TABLES:
                names, expected = shop.rows(table)
                assert read(table, names) == expected
                sys.stderr.write(f"{source} to {kind}: {table} has {len(expected)} rows\n")
            sys.stderr.write(
                f"{source} to {kind}: {shop.transactions} transactions, {shop.changes} changes, {kills}\n"
            )


def _config(
    folder: Path,
    stack: DevStack,
    server: LiveServer,
    name: str,
    target: dict[str, Any],
    *,
    executors: bool,
    rows: int,
) -> Path:
    """A pipeline of both tables; its tasks run in ``executors``, or in processes of the worker's own."""
    servers = Servers(brokers=stack.addresses.brokers, registry_url=stack.addresses.registry_url, prefix="")
    conf = {**SMALL_SPARK, "spark.driver.memory": "1g"}
    master = "local[2]"
    if executors:
        master = "local-cluster[2,1,1024]"
        conf["spark.executor.memory"] = "700m"
        conf |= {f"spark.executorEnv.{one}": os.environ[one] for one in ("PYTHONPATH",) if one in os.environ}
    source = {
        "brokers": servers["brokers"],
        "protocol": "debezium-json",
        "topics": [f"{name}.live.{table}" for table in TABLES],
        "database": {"url": server.url, "chunk-rows": rows, "connections": 2},
    }
    more = {
        "source": source,
        "target": target,
        "defaults": {"snapshot": "initial"},
        "batch": {"max-records": 2 * rows},
        "spark": {"master": master, "conf": conf},
    }
    return shop_config(folder, servers, more)


def _reader(kind: str, folder: Path, target: dict[str, Any]) -> Callable[[str, list[str]], list[Any]]:
    """Reads a table's columns at a target as texts, by what is not tidesink's."""

    def by_lake(table: str, names: list[str]) -> list[Any]:
        place = folder / "lake" / "live" / table
        found = by_duckdb(kind, str(place) if kind == "delta" else newest_metadata(place))
        assert all({name for name in row if not name.startswith("_tidesink")} == {*names} for row in found)
        return in_texts([[row[name] for name in names] for row in found])

    def by_postgres(table: str, names: list[str]) -> list[Any]:
        with psycopg.connect(target["url"], user=target["user"], password=target.get("password")) as session:
            session.execute("SET TimeZone = 'UTC'")
            columns = ", ".join(names)
            return in_texts(session.execute(f"SELECT {columns} FROM live.{table}").fetchall())  # noqa: S608

    def by_mysql(table: str, names: list[str]) -> list[Any]:
        port = int(target["url"].rpartition(":")[2])
        host = target["url"].partition("://")[2].rpartition(":")[0]
        session = pymysql.connect(
            host=host, port=port, user=target["user"], password=target.get("password", ""), charset="utf8mb4",
            init_command="SET time_zone = '+00:00'",
        )  # fmt: skip
        with session, session.cursor() as cursor:
            cursor.execute(f"SELECT {', '.join(names)} FROM live.`{table}`")  # noqa: S608
            return in_texts(cursor.fetchall())

    return {"postgres": by_postgres, "mysql": by_mysql}.get(kind, by_lake)
