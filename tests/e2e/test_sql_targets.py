"""A captured changefeed through the worker into Postgres and MariaDB: every column ends as TiDB held it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.contracts.sql_beds import DATABASES
from tests.e2e.replay import Servers, final_state, replay, replay_config
from tests.e2e.sql_beside import Server, connected, execute, target_of
from tests.e2e.sql_compare import wrong_in_database
from tests.e2e.writing import TableWriter, schema_of, shop_config
from tests.full import FULL, quick_on
from tests.postgres_database import admin_dsn
from tests.recorder import Recorder
from tidesink.config import load_config
from tidesink.errors import ConfigError
from tidesink.sinks.targets import target_module
from tidesink.sinks.targets.sql.target import SqlTarget
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(3600)]
# MySQL needs the length of a key's text, which flat-avro does not carry: such a table is made by hand.
PAIR = (
    "CREATE DATABASE bank DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin",
    "CREATE TABLE bank.pair (a VARCHAR(20) NOT NULL, b INT NOT NULL, PRIMARY KEY(a, b))",
)


@pytest.fixture(params=list(DATABASES))
def server(request: pytest.FixtureRequest) -> Server:
    """Each database in turn, with its type in the config."""
    return request.param, DATABASES[request.param](request)


def config_for(folder: Path, configuration: str, servers: Servers, server: Server, size: int | None) -> Path:
    """The replay's config with a database as its target."""
    path = replay_config(folder, configuration, servers=servers, max_records=size)
    settings = {**json.loads(path.read_text(encoding="utf-8")), "target": target_of(server)}
    path.write_text(json.dumps(settings, indent=1), encoding="utf-8")
    return path


def wrong(workload: Path, server: Server, tables: set[str]) -> list[str]:
    """Every difference between the database and what TiDB held."""
    expected = [found for found in final_state(workload) if found.table.name in tables]
    assert len(expected) == len(tables)
    with connected(server) as connections:
        return wrong_in_database(SqlTarget(connections), expected)


# A stream of each type into each database, wherever it is cut: test_targets_codecs.py; whole workloads into a
# lake: test_replay.py.
@FULL
@pytest.mark.parametrize(
    ("configuration", "size"),
    [
        pytest.param("avro_long", 900, id="avro"),
        pytest.param("canal_ext_partial", None, id="canal"),
    ],
)
def test_the_database_ends_as_tidb_held_it(
    spark: SparkSession,
    tmp_path: Path,
    workload: Path,
    configuration: str,
    size: int | None,
    servers: Servers,
    server: Server,
) -> None:
    replayed = replay(workload, configuration, servers=servers)
    if server[0] == "mysql" and configuration.startswith("avro"):
        execute(server, *PAIR)
    recorder = Recorder()
    config = load_config(config_for(tmp_path, configuration, servers, server, size))
    report = run(config, until="drained", listeners=[recorder])
    assert report.exit_code == 0, [(table.table, table.error) for table in report.tables]
    for table in report.tables:
        assert table.lag == 0
        assert table.counters["read"] == replayed.records[table.topic.removeprefix(servers["prefix"])]
    assert wrong(workload, server, {"account", "movement", "pair", "wide"}) == []


def test_a_worker_that_ends_leaves_no_connection(
    request: pytest.FixtureRequest, tmp_path: Path, servers: Servers
) -> None:
    """To the database: neither those of its tables, nor those of the tasks that it ran itself."""
    endpoint = DATABASES["postgres"](request)
    writer = TableWriter(servers, schema_of("left"))
    writer.upsert({"id": 1, "name": "one"})
    more = {"target": target_of(("postgres", endpoint)), "batch": {"executor": "local"}}
    report = run(load_config(shop_config(tmp_path, servers, more)), until="drained")
    assert report.exit_code == 0
    with psycopg.connect(admin_dsn(endpoint)) as connection:
        others = connection.execute(
            "SELECT query FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()",
            (endpoint.database,),
        ).fetchall()
    assert others == []


@quick_on("postgres")
def test_validate_says_what_became_of_the_database(tmp_path: Path, servers: Servers, server: Server) -> None:
    kind, endpoint = server
    config = config_for(tmp_path, "avro_long", servers, server, None)
    settings = load_config(config).target
    assert target_module(settings).try_target(settings).startswith(("Postgres 1", "10.", "11.", "8.", "9."))
    broken = json.loads(config.read_text(encoding="utf-8"))
    broken["target"] |= {"user": "nobody", "password": "opensesame"}
    if kind == "postgres":
        broken["target"]["url"] = f"postgresql://{endpoint.host}:{endpoint.port}/no_such_database"
    config.write_text(json.dumps(broken), encoding="utf-8")
    settings = load_config(config).target
    with pytest.raises(ConfigError) as refused:
        target_module(settings).try_target(settings)
    assert "opensesame" not in str(refused.value) + repr(settings) + repr(load_config(config))
