"""A topic whose records have no schemas: its table waits, or has the types of the source's database."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import sqlalchemy as sa
from confluent_kafka import Producer

from tests.cli.samples import run as run_cli
from tests.e2e.live_source import dropped
from tests.e2e.replay import Servers
from tests.e2e.writing import shop_config
from tests.servers import create_topics
from tidesink.config import load_config
from tidesink.dev.lake_check import open_lake_table
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers]
CREATE: Final = "CREATE TABLE untyped.orders (id bigint PRIMARY KEY, total decimal(10,2), at datetime(6))"


def test_a_topic_without_schemas_waits_or_is_typed_by_the_database(
    spark: SparkSession, tmp_path: Path, servers: Servers, mariadb_url: str
) -> None:
    """Each command gives the same reason, and the database's answer stays after an ALTER."""
    topic = f"{servers['prefix']}untyped"
    create_topics(servers["brokers"], {topic: 1})
    producer = Producer({"bootstrap.servers": servers["brokers"]})

    def send(number: int, cents: int, **more: str) -> None:
        """A row as JsonConverter writes it with schemas.enable=false."""
        total = base64.b64encode(cents.to_bytes(3, "big")).decode()
        row = {"id": number, "total": total, "at": 1764000001123456, **more}
        source = {"connector": "mariadb", "db": "untyped", "table": "orders"}
        value = {"before": None, "after": row, "source": source, "op": "c"}
        producer.produce(topic, json.dumps(value).encode(), json.dumps({"id": number}).encode())
        assert producer.flush(60) == 0

    def config(**more: str) -> Path:
        source = {"brokers": servers["brokers"], "protocol": "debezium-json", "topics": [topic], **more}
        return shop_config(tmp_path, servers, {"source": source})

    send(1, 1350)
    path = config()
    (table,) = run(load_config(path), until="drained").tables
    assert table.state == "FAILING"
    assert table.error is not None
    reason = table.error[table.error.index("The records of topic") :]
    assert f"topic {topic} have no schemas" in reason
    assert "columns 'id', 'total' and 1 more" in reason
    assert _told("status", path, code=None)["tables"][0]["error"] == table.error
    assert _told("plan", path, code=2)["tables"][0]["problem"] == reason
    answers = {one["part"]: one for one in _told("validate", path, "--connect", code=1)["connections"]}
    assert not answers["types"]["ok"]
    assert reason in answers["types"]["detail"]

    engine = sa.create_engine(mariadb_url, isolation_level="AUTOCOMMIT")
    with dropped(engine, "untyped"), engine.connect() as connection:
        for statement in ("DROP DATABASE IF EXISTS untyped", "CREATE DATABASE untyped", CREATE):
            connection.exec_driver_sql(statement)
        path = config(database=mariadb_url)
        (planned,) = _told("plan", path)["tables"]
        assert planned["types_from"] == "database"
        assert {one["name"]: one["target_type"] for one in planned["columns"]}["total"] == "decimal(10,2)"
        _told("validate", path, "--connect")
        assert [table.state for table in run(load_config(path), until="drained").tables] == ["IDLE"]
        # What the database said stays, and what it said nothing of is asked for.
        connection.exec_driver_sql(
            "ALTER TABLE untyped.orders MODIFY total decimal(20,2), ADD COLUMN note varchar(9)"
        )
        send(2, 99, note="n")
        (table,) = run(load_config(path), until="drained").tables
        assert (table.state, [text for text in table.warnings if "kept as text" in text]) == ("IDLE", [])
        found = open_lake_table(tmp_path / "lake" / "untyped" / "orders").read()
    assert str(found.schema.field("total").type) == "decimal128(10, 2)"
    names = ("id", "total", "at", "note")
    rows = sorted(tuple(str(row[name]) for name in names) for row in found.to_pylist())
    assert rows == [
        ("1", "13.50", "2025-11-24 16:00:01.123456", "None"),
        ("2", "0.99", "2025-11-24 16:00:01.123456", "n"),
    ]


def _told(command: str, path: Path, *options: str, code: int | None = 0) -> dict[str, Any]:
    """What a command prints for programs."""
    result = run_cli(command, str(path), *options, "-o", "json")
    assert code in (None, result.exit_code), result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found
