"""Dead letters and DDL events from Kafka to whoever asks for them on the command line."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from tests.e2e.asking import answered, asked, letters_of
from tests.e2e.forked_worker import die_at
from tests.e2e.killing import failpoints_hit
from tests.e2e.replay import Servers
from tests.e2e.writing import TableWriter, lake_rows, schema_of, shop_config
from tests.full import FULL
from tests.letters import distinct_letters, letter_settings, letter_topic, written_letters
from tidesink.cli.main import app
from tidesink.codecs.base import CodecOptions
from tidesink.codecs.compression import compressed
from tidesink.config import load_config
from tidesink.events import Column, ColumnType, Op
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers]

BAD = b'{"id":0,"database":"shop","table":"kept","isDdl":false'
KEPT = {"schema": "shop", "name": "kept"}
ALTER = "ALTER TABLE `kept` MODIFY COLUMN `name` varchar(50)"


def test_what_is_kept_is_listed_shown_and_dropped(
    servers: Servers, spark: SparkSession, tmp_path: Path
) -> None:
    options = CodecOptions(enable_tidb_extension=True)
    writer = TableWriter(servers, schema_of("kept"), protocol="canal-json", options=options)
    source = {"brokers": servers["brokers"], "protocol": "canal-json", "topics": [writer.topic]}
    more = {
        "source": {**source, "enable-tidb-extension": True},
        "defaults": {"bad-record": "dead-letter"},
    }
    config = shop_config(tmp_path, servers, more)
    writer.upsert({"id": 1, "name": "one"}, commit_ts=5 << 18)
    writer.ddl(ALTER, commit_ts=7 << 18)
    writer.send(b"a key", BAD)
    writer.upsert({"id": 1, "name": "uno"}, commit_ts=9 << 18)
    report = run(load_config(config), until="drained")
    assert report.exit_code == 0, [table.error for table in report.tables]
    assert lake_rows(tmp_path, "kept")[1]["name"] == "uno"
    _check_status(config)
    _check_ddl(config)
    _check_letters(config, writer.topic)


def _check_status(config: Path) -> None:
    (table,) = answered(config, "status")["tables"]
    assert table["details"]["without_row"] == {"ddl": 1, "watermarks": 0, "messages": 0}
    assert table["details"]["last_ddl"] == {"commit_ts": 7 << 18, "kind": "ALTER", "query": ALTER}
    assert f"last DDL at 1970-01-01 00:00:00.007 UTC: {ALTER} (kind ALTER)" in asked(config, "status")


def _check_ddl(config: Path) -> None:
    (event,) = answered(config, "ddl", "list")["ddl"]
    assert event["pipeline"] == "shop"
    assert (event["table"], event["offset"], event["commit_ts"]) == (KEPT, 1, 7 << 18)
    assert (event["kind"], event["query"]) == ("ALTER", ALTER)
    assert ALTER in asked(config, "ddl", "list", "shop.kept")


def _check_letters(config: Path, topic: str) -> None:
    (group,) = answered(config, "dlq", "list")["dead_letters"]
    assert (group["table"], group["count"], group["first_offset"]) == (KEPT, 1, 2)
    assert f"{topic}[0]@2" in asked(config, "dlq", "list", "shop.kept")
    letter = answered(config, "dlq", "show", "shop.kept", "0@2")
    assert (b64decode(letter["key_b64"]), b64decode(letter["value_b64"])) == (b"a key", BAD)
    assert letter["decoded"][0]["type"] == "error"
    shown = asked(config, "dlq", "show", "shop.kept", f"{topic}[0]@2")
    assert "a key" in shown
    assert "FramingError: The value is not JSON" in shown
    nothing = CliRunner().invoke(app, ["dlq", "show", "shop.kept", "0@3", "--config", str(config)])
    assert nothing.exit_code == 1
    assert "no dead letter of table shop.kept at partition 0, offset 3 of any topic" in nothing.output
    assert "This table stops" not in nothing.output
    asked(config, "dlq", "show", "shop.kept", "nowhere", code=2)
    for refused in (["shop.kept"], [], ["shop.kept", "--all"], ["shop.kept", "0@2", "--error", "x", "--yes"]):
        asked(config, "dlq", "drop", *refused, code=2)
    assert answered(config, "dlq", "drop", "shop.kept", "--below", "2", "--yes")["dropped"] == 0
    assert "1 dead letter dropped" in asked(config, "dlq", "drop", "shop.kept", "0@2", "--yes")
    assert answered(config, "dlq", "list")["dead_letters"] == []


def test_a_kill_between_letters_and_commit_loses_none_and_doubles_none(
    servers: Servers, spark: SparkSession, tmp_path: Path
) -> None:
    """Then read back, replayed and settled: all of a letter's way, its headers and compressed bytes too."""
    options = CodecOptions(enable_tidb_extension=True)
    schema = schema_of("kept", Column("day", ColumnType("date", sql="date")))
    writer = TableWriter(servers, schema, protocol="canal-json", options=options)
    source = {
        "brokers": servers["brokers"],
        "protocol": "canal-json",
        "topics": [writer.topic],
        "enable-tidb-extension": True,
        "large-message-handle-compression": "lz4",
    }
    defaults = {"bad-record": "dead-letter", "zero-date": "error"}
    config = shop_config(tmp_path, servers, {"source": source, "defaults": defaults})
    writer.upsert({"id": 1, "name": "one", "day": "2026-01-01"}, commit_ts=5 << 18)
    writer.send(b"a key", BAD)  # 1: bad for ever
    lost = writer.encoded(Op.INSERT, {"id": 2, "name": "lost", "day": "0000-00-00"}, commit_ts=9 << 18)
    packed = compressed(lost.value or b"", "lz4")
    writer.send(lost.key, packed, headers=[("trace", b"\xff")])  # 2: until it is NULL
    die_at("rejected", spark, config, tmp_path / "worker.log")
    left = [("FramingError", 1, 1), ("ValueOutOfRangeError", 1, 2)]
    assert (failpoints_hit(config), letters_of(config)) == (["rejected:1"], left)
    (table,) = run(load_config(config), until="drained").tables
    counters = ("read", "applied", "superseded", "without_row", "dead_lettered")
    assert [table.counters[name] for name in counters] == [3, 1, 0, 0, 2], table.error
    brokers, prefix = servers["brokers"], servers["prefix"]
    assert len(written_letters(brokers, prefix)) == 4
    assert [letter.value for letter in distinct_letters(brokers, prefix)] == [BAD, packed]
    assert letters_of(config) == left
    assert answered(config, "dlq", "show", "shop.kept", "0@2")["headers"] == [["trace", "\ufffd"]]
    shop_config(tmp_path, servers, {"source": source, "defaults": {**defaults, "zero-date": "null"}})
    assert "1" in asked(config, "dlq", "replay", "shop.kept", code=3)
    assert {key: row["name"] for key, row in lake_rows(tmp_path, "kept").items()} == {1: "one", 2: "lost"}
    assert letters_of(config) == left[:1]
    assert len(written_letters(brokers, prefix)) == 4


def test_a_batch_whose_letters_kafka_refuses_is_not_applied(
    servers: Servers, spark: SparkSession, tmp_path: Path
) -> None:
    writer = TableWriter(servers, schema_of("kept"))
    replicas = {"errors.deadletterqueue.topic.replication.factor": 3}
    letters = letter_settings(servers["prefix"])
    more = {"defaults": {"bad-record": "dead-letter"}, "dead-letters": {**letters, **replicas}}
    config = shop_config(tmp_path, servers, more)
    writer.upsert({"id": 1, "name": "one"})
    writer.send(b"a key", b"no avro")
    (connection,) = [one for one in _validated(config)["connections"] if one["part"] == "dead letters"]
    assert "errors.deadletterqueue.topic.replication.factor" in connection["detail"]
    planned = CliRunner().invoke(app, ["plan", "--config", str(config)])
    assert (planned.exit_code, "dead letters: PROBLEM" in planned.output) == (2, True), planned.output
    (table,) = run(load_config(config), until="drained").tables
    assert table.state == "FAILING"
    assert "errors.deadletterqueue.topic.replication.factor" in str(table.error)
    assert table.counters.get("applied", 0) == 0
    shop_config(tmp_path, servers, {**more, "dead-letters": letters})
    assert f"topic {letter_topic(servers['prefix'])} of" in asked(config, "plan")
    (table,) = run(load_config(config), until="drained").tables
    assert (table.state, table.counters["applied"], table.counters["dead_lettered"]) == ("IDLE", 1, 1)


def _validated(config: Path) -> Any:
    done = CliRunner().invoke(app, ["validate", str(config), "--connect", "-o", "json"])
    assert done.exit_code == 1, done.output
    return json.loads(done.stdout)


@FULL
def test_ddl_and_watermarks_of_flat_avro(servers: Servers, spark: SparkSession, tmp_path: Path) -> None:
    options = CodecOptions(enable_tidb_extension=True)
    writer = TableWriter(servers, schema_of("marked"), partitions=2, options=options)
    source = {
        "brokers": servers["brokers"],
        "protocol": "flat-avro",
        "topics": f"{servers['prefix']}{{schema}}_{{table}}",
        "schema-registry": servers["registry_url"],
        "enable-tidb-extension": True,
        "avro-enable-watermark": True,
    }
    config = shop_config(tmp_path, servers, {"source": source})
    ddl = {"query": ALTER, "type": 12, "schema": "shop", "table": "marked", "commitTs": 6 << 18}
    writer.upsert({"id": 1, "name": "one"}, commit_ts=5 << 18)
    for partition in (0, 1):
        writer.send(None, b"\x01" + json.dumps(ddl).encode(), partition=partition)
        for mark in (7, 8 + partition):
            writer.send(None, b"\x02" + (mark << 18).to_bytes(8, "big"), partition=partition)
    report = run(load_config(config), until="drained")
    assert report.exit_code == 0, [table.error for table in report.tables]
    (table,) = answered(config, "status")["tables"]
    assert table["details"]["without_row"] == {"ddl": 2, "watermarks": 4, "messages": 0}
    assert table["details"]["watermark"] == 8 << 18  # partition 1 is further
    events = answered(config, "ddl", "list", "shop.marked")["ddl"]
    reported = [(one["partition"], one["kind"], one["commit_ts"], one["query"]) for one in events]
    assert reported == [(0, "12", 6 << 18, ALTER), (1, "12", 6 << 18, ALTER)]
    # Read again, they are not kept again.
    assert run(load_config(config), until="drained").exit_code == 0
    assert len(answered(config, "ddl", "list")["ddl"]) == 2
