"""A compressed canal-json topic whose large rows lie in claim-check storage, or in the upstream alone."""

from __future__ import annotations

import random
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import sqlalchemy as sa

from tests.e2e.replay import Servers
from tests.e2e.writing import TableWriter, lake_rows, schema_of, shop_config
from tests.full import FULL
from tests.servers import create_topics
from tests.tidb_front import commit_ts
from tidesink.codecs.options import CanalJsonOptions
from tidesink.config import Config, load_config
from tidesink.sinks.runtime.observers import RunReport
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

LONG: Final = random.Random(5).randbytes(1500).hex()
MOMENT: Final = datetime(2026, 1, 1, tzinfo=timezone.utc)
CREATE: Final = "CREATE TABLE shop.{} (id BIGINT PRIMARY KEY, name TEXT)"


def _run(folder: Path, servers: Servers, topic: str, retry: str = "120s", **source: Any) -> RunReport:
    given = {"brokers": servers["brokers"], "protocol": "canal-json", "topics": [topic], **source}
    config: Config = load_config(shop_config(folder, servers, {"source": given, "retry": {"for": retry}}))
    return run(config, until="drained")


def _states(report: RunReport) -> dict[str, str]:
    return {table.table.name: table.state for table in report.tables}


@FULL
@pytest.mark.parametrize("kind", ["lz4", "snappy"])
def test_a_compressed_topic_with_claim_check(
    spark: SparkSession, tmp_path: Path, servers: Servers, kind: Any
) -> None:
    topic = f"{servers['prefix']}cdc"
    create_topics(servers["brokers"], {topic: 2})
    options = CanalJsonOptions(
        enable_tidb_extension=True,
        large_message_handle_compression=kind,
        large_message_handle_option="claim-check",
        claim_check_storage_uri=str(tmp_path / "claims"),
        max_message_bytes=1200,
    )
    for name in ("one", "two"):
        writer = TableWriter(servers, schema_of(name), protocol="canal-json", topic=topic, options=options)
        writer.ddl(CREATE.format(name))
        writer.upsert({"id": 1, "name": "short"}, partition=1)
        writer.upsert({"id": 2, "name": LONG}, partition=1)
        writer.upsert({"id": 3, "name": LONG}, partition=1)
        writer.delete({"id": 3, "name": LONG}, partition=1)
    assert len(list((tmp_path / "claims").iterdir())) == 6
    (tmp_path / "untold").mkdir()
    untold = _run(tmp_path / "untold", servers, topic)
    assert [table.state for table in untold.tables] == ["FAILING"]
    assert f"Set source.large-message-handle-compression: {kind}" in str(untold.tables[0].error)
    source = {"large-message-handle-compression": kind, "claim-check-storage-uri": str(tmp_path / "claims")}
    report = _run(tmp_path, servers, topic, **source)
    assert _states(report) == {"one": "IDLE", "two": "IDLE"}, [table.error for table in report.tables]
    for name in ("one", "two"):
        assert {key: row["name"] for key, row in lake_rows(tmp_path, name).items()} == {1: "short", 2: LONG}


@pytest.fixture
def upstream(mariadb_url: str) -> Iterator[None]:
    """The table with its large row, from the moment of the change on."""
    engine = sa.create_engine(mariadb_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE DATABASE shop CHARACTER SET utf8mb4")
        connection.exec_driver_sql(CREATE.format("one") + " WITH SYSTEM VERSIONING")
        connection.exec_driver_sql(f"SET @@timestamp = {MOMENT.timestamp()}")
        connection.exec_driver_sql("INSERT INTO shop.one VALUES (2, %s)", (LONG,))
        connection.exec_driver_sql(f"SET @@timestamp = {MOMENT.timestamp() + 60}")
        connection.exec_driver_sql("UPDATE shop.one SET name = 'later'")
        yield
        connection.exec_driver_sql("DROP DATABASE shop")
    engine.dispose()


def test_rows_cut_down_wait_for_their_upstream(
    spark: SparkSession, tmp_path: Path, servers: Servers, upstream: None, tidb_url: str
) -> None:
    topic = f"{servers['prefix']}cdc"
    create_topics(servers["brokers"], {topic: 1})
    options = CanalJsonOptions(
        enable_tidb_extension=True, large_message_handle_option="handle-key-only", max_message_bytes=1200
    )
    writer = TableWriter(servers, schema_of("one"), protocol="canal-json", topic=topic, options=options)
    writer.ddl(CREATE.format("one"))
    writer.upsert({"id": 1, "name": "short"})
    writer.upsert({"id": 2, "name": LONG}, commit_ts=commit_ts(MOMENT))
    lacking = _run(tmp_path, servers, topic)
    assert _states(lacking) == {"one": "PAUSED"}
    assert "Set upstream-url" in str(lacking.tables[0].error)
    nowhere = "mysql+pymysql://u:SECRET@127.0.0.1:1/"
    silent = _run(tmp_path, servers, topic, retry="1s", **{"upstream-url": nowhere})
    assert _states(silent) == {"one": "FAILING"}
    assert "The upstream does not answer" in str(silent.tables[0].error)
    assert "SECRET" not in repr(silent)
    assert set(lake_rows(tmp_path, "one")) == {1}
    report = _run(tmp_path, servers, topic, **{"upstream-url": tidb_url})
    assert _states(report) == {"one": "IDLE"}, report.tables[0].error
    assert {key: row["name"] for key, row in lake_rows(tmp_path, "one").items()} == {1: "short", 2: LONG}
