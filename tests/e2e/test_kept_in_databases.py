"""Dead letters and DDL events of a target that is a database stand in it, across a kill, and are replayed."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.contracts.sql_beds import mysql_server, postgres_database, reader
from tests.e2e.forked_worker import die_at
from tests.e2e.killing import failpoints_hit
from tests.e2e.replay import Servers
from tests.e2e.sql_beside import Server, connected, target_of
from tests.e2e.test_kept_records import ALTER, BAD, answered, asked
from tests.e2e.writing import TableWriter, schema_of, shop_config
from tests.full import FULL, each
from tidesink.change import Column, ColumnType, TableId
from tidesink.codecs.base import CodecOptions
from tidesink.config import load_config
from tidesink.sinks.targets.sql_target import SqlTarget
from tidesink.sinks.worker import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers]

TABLE = TableId("shop", "kept")
DAY = Column("day", ColumnType("date", sql="date"))
SERVERS = {"postgres": postgres_database, "mysql": mysql_server}


@pytest.fixture(params=each(SERVERS, full=["mysql"]))
def server(request: pytest.FixtureRequest) -> Server:
    """Each database in turn, with its type in the config."""
    return request.param, SERVERS[request.param](request)


def names_of(server: Server) -> dict[int, str]:
    """The rows, read by the test."""
    with connected(server) as connections:
        return {row["id"]: row["name"] for row in reader(SqlTarget(connections))(TABLE)}


def letters_of(config: Path) -> list[tuple[str, int, int]]:
    """Error, count and first offset of the letters, as ``dlq list`` has them."""
    groups = answered(config, "dlq", "list")["dead_letters"]
    return [(group["error"], group["count"], group["first_offset"]) for group in groups]


@FULL
def test_what_is_kept_stands_beside_the_rows(
    servers: Servers, spark: SparkSession, tmp_path: Path, server: Server
) -> None:
    """Killed between the letters and the commit; then drained, looked at, replayed and dropped."""
    options = CodecOptions(enable_tidb_extension=True)
    writer = TableWriter(servers, schema_of("kept", DAY), protocol="canal-json", options=options)
    source = {"brokers": servers["brokers"], "protocol": "canal-json", "topics": [writer.topic]}
    more: dict[str, Any] = {
        "source": {**source, "enable-tidb-extension": True},
        "target": target_of(server),
        "defaults": {"bad-record": "dead-letter", "zero-date": "error"},
    }
    config = shop_config(tmp_path, servers, more)
    writer.upsert({"id": 1, "name": "one", "day": "2026-01-01"}, commit_ts=5 << 18)
    planned = _planned(config, server)
    writer.ddl(ALTER, commit_ts=7 << 18)
    writer.send(b"a key", BAD)  # 2: bad for ever
    writer.upsert({"id": 2, "name": "lost", "day": "0000-00-00"}, commit_ts=9 << 18)  # 3: until it is NULL
    log = tmp_path / "worker.log"
    die_at("rejected", spark, config, log)
    kept = [("FramingError", 1, 2), ("ValueOutOfRangeError", 1, 3)]
    assert (failpoints_hit(config), letters_of(config), names_of(server)) == (["rejected:1"], kept, {})
    # Kept before the kill, and once.
    report = run(load_config(config), until="drained")
    (table,) = report.tables
    assert report.exit_code == 0, table.error
    assert dict(table.counters) == {
        "read": 4,
        "applied": 1,
        "superseded": 0,
        "filtered": 1,
        "dead_lettered": 2,
        "unmatched": 0,
    }
    assert (letters_of(config), names_of(server)) == (kept, {1: "one"})
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
    _check_shown(config, planned)
    shop_config(tmp_path, servers, {**more, "defaults": {**more["defaults"], "zero-date": "null"}})
    assert "1" in asked(config, "dlq", "replay", "shop.kept", code=3)
    assert (letters_of(config), names_of(server)) == (kept[:1], {1: "one", 2: "lost"})
    assert "1 dead letters dropped" in asked(config, "dlq", "drop", "shop.kept", "0@2", "--yes")
    assert letters_of(config) == []


def _planned(config: Path, server: Server) -> dict[str, str]:
    """The places that ``plan`` gives."""
    found: dict[str, str] = answered(config, "plan")["kept"]
    assert found["dead_letters"].startswith(f"{server[1].host}:{server[1].port}")
    assert f"dead letters: kept in {found['dead_letters']}" in asked(config, "plan")
    return found


def _check_shown(config: Path, planned: dict[str, str]) -> None:
    assert planned["dead_letters"] == answered(config, "dlq", "list")["place"]
    assert planned["ddl_events"] == answered(config, "ddl", "list")["place"]
    letter = answered(config, "dlq", "show", "shop.kept", "0@2")
    assert (b64decode(letter["key_b64"]), b64decode(letter["value_b64"])) == (b"a key", BAD)
    (event,) = answered(config, "ddl", "list")["ddl"]
    assert (event["offset"], event["query"], event["commit_ts"]) == (1, ALTER, 7 << 18)
    assert ALTER in asked(config, "ddl", "show", "shop.kept", "0@1")
