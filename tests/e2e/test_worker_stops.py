"""When Kafka no longer holds what comes next, a table stops and says so; others go on."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.e2e.replay import Servers, by_name
from tests.e2e.writing import TableWriter, lake_rows, schema_of, shop_config
from tests.servers import add_partitions, delete_topic
from tidesink.config import load_config
from tidesink.dev.stack import free_ports
from tidesink.errors import SourceUnavailableError
from tidesink.sinks.runtime.context import StopFlag
from tidesink.sinks.runtime.observers import RunReport, TableReport
from tidesink.sinks.spark.engine import SparkEngine
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = ("deleted", "remade", "expired", "grown", "calm")


def _drain(folder: Path, servers: Servers) -> RunReport:
    return run(load_config(shop_config(folder, servers)), until="drained")


def _admin(servers: Servers) -> AdminClient:
    return AdminClient({"bootstrap.servers": servers["brokers"]})


def _expire(servers: Servers, topic: str, before: int) -> None:
    admin = _admin(servers)
    for future in admin.delete_records([TopicPartition(topic, 0, before)]).values():
        future.result(240)


def _wait(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.law("L7")
def test_gaps_stop_their_table_and_no_other(spark: SparkSession, tmp_path: Path, servers: Servers) -> None:
    writers = {name: TableWriter(servers, schema_of(name)) for name in TABLES}
    for writer in writers.values():
        writer.upsert({"id": 1, "name": "one"})
    assert _drain(tmp_path, servers).exit_code == 0
    _spoil(servers, writers)
    tables = by_name(_drain(tmp_path, servers))
    assert {name: table.state for name, table in tables.items()} == {
        "deleted": "FAILING",
        "remade": "FAILING",
        "expired": "FAILING",
        "grown": "IDLE",
        "calm": "IDLE",
    }
    _check_messages(tables)
    assert set(lake_rows(tmp_path, "calm")) == {1, 2}
    assert {key: row["name"] for key, row in lake_rows(tmp_path, "grown").items()} == {1: "moved", 2: "two"}
    for name in ("deleted", "remade", "expired"):
        assert set(lake_rows(tmp_path, name)) == {1}


def _spoil(servers: Servers, writers: dict[str, TableWriter]) -> None:
    delete_topic(servers["brokers"], writers["deleted"].topic)
    delete_topic(servers["brokers"], writers["remade"].topic)
    writers["remade"] = TableWriter(servers, schema_of("remade"))
    for name in ("remade", "expired", "grown", "calm"):
        writers[name].upsert({"id": 2, "name": "two"})
    writers["expired"].upsert({"id": 3, "name": "three"})
    _expire(servers, writers["expired"].topic, 2)
    add_partitions(servers["brokers"], writers["grown"].topic, 2)
    # The same key in the new partition: its old change is in the old one, below the end seen first.
    # A producer made before does not know the partition yet.
    grown = TableWriter(servers, schema_of("grown"), topic=writers["grown"].topic)
    grown.upsert({"id": 1, "name": "moved"}, partition=1)


def _check_messages(tables: dict[str, TableReport]) -> None:
    expected = {
        "deleted": "The topic was deleted",
        "remade": "deleted and recreated",
        "expired": "Offsets 1 to 1 expired before they were read",
    }
    for name, text in expected.items():
        error = tables[name].error
        assert error is not None
        assert error.startswith("SourceError: ")
        assert text in error
        assert "Nothing was read or skipped" in error


def test_a_table_that_is_given_another_topic_stops(
    spark: SparkSession, tmp_path: Path, servers: Servers
) -> None:
    old, other = (TableWriter(servers, schema_of(name)) for name in ("moved", "elsewhere"))
    old.upsert({"id": 1, "name": "one"})
    new = TableWriter(servers, schema_of("moved"), topic=other.topic)
    new.upsert({"id": 2, "name": "two"})
    reports = [_fed_from(topic, tmp_path, servers) for topic in (old.topic, new.topic, old.topic)]
    assert [table.state for table in reports] == ["IDLE", "FAILING", "IDLE"]
    error = str(reports[1].error)
    assert error.startswith("ConfigError: ")
    assert f"has read topic {old.topic} until now, but the config now names {new.topic}" in error
    assert set(lake_rows(tmp_path, "moved")) == {1}


def _fed_from(topic: str, folder: Path, servers: Servers) -> TableReport:
    path = shop_config(folder, servers, {"tables": [{"name": "shop.moved", "topic": topic}]})
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["source"]["topics"] = topic
    path.write_text(json.dumps(settings), encoding="utf-8")
    (table,) = run(load_config(path), until="drained").tables
    return table


def test_a_new_topic_is_picked_up_and_a_stop_ends_cleanly(
    spark: SparkSession, tmp_path: Path, servers: Servers
) -> None:
    first = TableWriter(servers, schema_of("first"))
    first.upsert({"id": 1, "name": "one"})
    stop, reports = StopFlag(), list[RunReport]()
    config = load_config(shop_config(tmp_path, servers))
    worker = threading.Thread(target=lambda: reports.append(run(config, stop=stop)))
    worker.start()
    try:
        _wait((tmp_path / "lake" / "shop" / "first" / "_delta_log").exists)
        TableWriter(servers, schema_of("second")).upsert({"id": 7, "name": "new"})
        first.upsert({"id": 2, "name": "two"})
        _wait(lambda: _has(tmp_path, "second", {7}) and _has(tmp_path, "first", {1, 2}))
    finally:
        stop.set()
        worker.join(240)
    assert [report.exit_code for report in reports] == [130]
    assert {name: table.state for name, table in by_name(reports[0]).items()} == {
        "first": "IDLE",
        "second": "IDLE",
    }


def test_a_stop_cancels_the_batch_under_way_and_no_job_of_others(
    spark: SparkSession, tmp_path: Path, servers: Servers
) -> None:
    TableWriter(servers, schema_of("slow")).upsert({"id": 1, "name": "one"})
    goes_on = str(tmp_path / "goes-on")

    def rest(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        while not Path(goes_on).exists():
            time.sleep(0.02)
        yield from batches

    frame = spark.range(3, numPartitions=1)
    theirs = SparkEngine.of(spark).thread(frame.mapInArrow(rest, "id long").count, name="others")
    stop, reports = StopFlag(), list[RunReport]()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(240)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        target = {"type": "http", "url": url, "timeout": "600s"}
        config = load_config(shop_config(tmp_path, servers, {"target": target}))
        worker = threading.Thread(target=lambda: reports.append(run(config, stop=stop)))
        worker.start()
        connection, _ = silent.accept()
        with connection:
            stop.set()
            stop.hurry()
            worker.join(240)
            assert [report.exit_code for report in reports] == [130]
    assert not theirs.done()
    Path(goes_on).touch()
    assert theirs.result(240) == 3


def _has(folder: Path, name: str, ids: set[int]) -> bool:
    try:
        return set(lake_rows(folder, name)) == ids
    except (FileNotFoundError, KeyError):
        return False


def test_no_broker_is_said_after_the_time_to_retry(
    spark: SparkSession, tmp_path: Path, servers: Servers
) -> None:
    (port,) = free_ports(1)
    nowhere = Servers(brokers=f"127.0.0.1:{port}", registry_url=servers["registry_url"], prefix="x-")
    config = load_config(shop_config(tmp_path, nowhere, {"retry": {"for": "1s"}}))
    with pytest.raises(SourceUnavailableError, match="Kafka does not answer"):
        run(config, until="drained")


def test_a_registry_that_is_down_fails_its_tables(
    spark: SparkSession, tmp_path: Path, servers: Servers
) -> None:
    TableWriter(servers, schema_of("waiting")).upsert({"id": 1, "name": "one"})
    (port,) = free_ports(1)
    silent = Servers(
        brokers=servers["brokers"], registry_url=f"http://127.0.0.1:{port}", prefix=servers["prefix"]
    )
    report = run(load_config(shop_config(tmp_path, silent, {"retry": {"for": "1s"}})), until="drained")
    assert report.exit_code == 3
    (table,) = report.tables
    assert table.state == "FAILING"
    assert str(table.error).startswith("RegistryUnavailableError: ")
    assert str(port) in str(table.error)
    # Once it answers the same worker's next run goes on as if nothing had been.
    assert _drain(tmp_path, servers).exit_code == 0
    assert set(lake_rows(tmp_path, "waiting")) == {1}
