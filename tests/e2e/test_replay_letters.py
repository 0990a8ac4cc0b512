"""``tidesink dlq replay``: what can be decoded now is applied, unless a newer change of its row was."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from tests.e2e.killing import failpoints_hit
from tests.e2e.replay import Servers
from tests.e2e.writing import TableWriter, lake_rows, schema_of, shop_config
from tests.full import FULL
from tests.servers import create_topics, delete_topic
from tidesink.cli.main import app
from tidesink.codecs.base import CodecOptions
from tidesink.config import load_config
from tidesink.events import Column, ColumnType, Op
from tidesink.sinks.letters.topic import Chosen, dead_letters_of
from tidesink.sinks.runtime.observers import Heartbeat, RunReport
from tidesink.sinks.state.sql_store import SqlStateStore
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers]

DAY = Column("day", ColumnType("date", sql="date"))
# No calendar has it: a bad record under one policy, NULL under another.
NEVER = "0000-00-00"


class Shop:
    """A table whose dead letters can be decoded once the config says what to do with 0000-00-00."""

    def __init__(self, servers: Servers, folder: Path, name: str, **more: Any) -> None:
        self.folder, self.name = folder, name
        self._servers, self._more = servers, more
        source = {**more.get("source", {})}
        options = CodecOptions(enable_tidb_extension=bool(source))
        self.writer = TableWriter(
            servers, schema_of(name, DAY), protocol=source.get("protocol", "flat-avro"), options=options
        )
        if source:
            more["source"] = {"brokers": servers["brokers"], "topics": [self.writer.topic], **source}
        self.config = self.with_zero_date("error")

    def with_zero_date(self, policy: str) -> Path:
        defaults = {"bad-record": "dead-letter", "zero-date": policy, **self._more.get("defaults", {})}
        return shop_config(self.folder, self._servers, {**self._more, "defaults": defaults})

    def put(self, number: int, name: str, day: str = "2026-01-01", *, ts: int = 1) -> None:
        self.writer.upsert({"id": number, "name": name, "day": day}, commit_ts=ts)

    def make_topic_again(self) -> None:
        delete_topic(self._servers["brokers"], self.writer.topic)
        create_topics(self._servers["brokers"], {self.writer.topic: 1})

    def drain(self) -> RunReport:
        report = run(load_config(self.config), until="drained")
        assert report.exit_code == 0, [table.error for table in report.tables]
        return report

    def replay(self, *words: str, code: int = 0) -> Mapping[str, Any]:
        command = ["dlq", "replay", f"shop.{self.name}", *words, "--config", str(self.config), "-o", "json"]
        interrupts = signal.getsignal(signal.SIGINT)
        done = CliRunner().invoke(app, command)
        assert done.exit_code == code, (done.output, done.exception)
        assert signal.getsignal(signal.SIGINT) is interrupts
        return json.loads(done.stdout) if done.stdout else {}

    def names(self) -> dict[int, str]:
        return {number: row["name"] for number, row in lake_rows(self.folder, self.name).items()}

    def letters(self) -> list[int]:
        config = load_config(self.config)
        found = dead_letters_of(config).letters(Chosen(config.pipeline))
        return sorted(letter.offset for letter in found)


def counted(report: Mapping[str, Any]) -> tuple[int, ...]:
    names = ("read", "applied", "superseded", "without_row", "still_bad", "waiting", "expired")
    return tuple(report[name] for name in names)


def test_a_newer_change_wins_over_a_replayed_one(
    servers: Servers, spark: SparkSession, tmp_path: Path
) -> None:
    shop = Shop(servers, tmp_path, "replayed")
    shop.put(1, "one")
    shop.put(2, "two")
    shop.put(1, "too late", NEVER)  # 2
    shop.put(3, "lost", NEVER)  # 3: nothing of its row comes later
    shop.put(1, "uno")
    cut = shop.writer.encoded(Op.INSERT, {"id": 2, "name": "cut short", "day": "2026-01-01"})
    assert cut.value is not None
    shop.writer.send(cut.key, cut.value[:-1])  # 5: bad for ever
    shop.put(5, "gone", NEVER)  # 6
    shop.writer.delete({"id": 5, "name": "gone", "day": "2026-01-01"})
    shop.drain()
    before = {1: "uno", 2: "two"}
    assert (shop.names(), shop.letters()) == (before, [2, 3, 5, 6])
    assert counted(shop.replay(code=3)) == (4, 0, 0, 0, 4, 0, 0)
    assert (shop.names(), shop.letters()) == (before, [2, 3, 5, 6])
    shop.with_zero_date("null")
    assert counted(shop.replay("0@2")) == (1, 0, 1, 0, 0, 0, 0)
    assert (shop.names(), shop.letters()) == (before, [3, 5, 6])
    assert counted(shop.replay(code=3)) == (3, 1, 1, 0, 1, 0, 0)
    assert (shop.names(), shop.letters()) == ({**before, 3: "lost"}, [5])
    assert lake_rows(tmp_path, "replayed")[3]["day"] is None
    # The worker goes on where it stood.
    shop.put(3, "found")
    (table,) = shop.drain().tables
    assert (table.counters["read"], shop.names()[3]) == (1, "found")
    assert counted(shop.replay(code=3)) == (1, 0, 0, 0, 1, 0, 0)


def test_a_replay_applies_nothing_that_is_later_than_the_next_cut(
    servers: Servers, spark: SparkSession, tmp_path: Path
) -> None:
    shop = Shop(
        servers,
        tmp_path,
        "cut",
        source={"protocol": "canal-json", "enable-tidb-extension": True},
        cuts={"every": "1m", "keep": "1d"},
        tables=[
            {
                "name": "shop.cut",
                "definition": "CREATE TABLE cut (id bigint primary key, name varchar(40), day date)",
            }
        ],
    )

    def moment(seconds: int) -> int:
        return (1_767_225_600 + seconds) * 1000 << 18

    shop.put(2, "two", ts=moment(-9))
    shop.put(1, "letter", NEVER, ts=moment(-8))  # 1
    shop.put(3, "later letter", NEVER, ts=moment(62))  # 2
    shop.put(1, "later", ts=moment(63))  # 3: waits for the cut after the next
    shop.put(4, "read again", NEVER, ts=moment(-7))  # 4
    shop.writer.watermark(moment(5))
    shop.drain()
    assert (shop.names(), shop.letters()) == ({2: "two"}, [1, 2, 4])
    shop.with_zero_date("null")
    report = shop.replay(code=3)
    assert (*counted(report), report["later"]) == (1, 1, 0, 0, 0, 1, 0, 1)
    assert (shop.names(), shop.letters()) == ({1: "letter", 2: "two"}, [2, 4])
    shop.writer.watermark(moment(65))
    shop.drain()
    assert shop.names() == {1: "later", 2: "two", 4: "read again"}
    assert shop.replay()["applied"] == 2
    assert (shop.names(), shop.letters()) == (
        {1: "later", 2: "two", 3: "later letter", 4: "read again"},
        [],
    )


@FULL
def test_letters_of_a_topic_that_was_made_again_stay(
    servers: Servers, spark: SparkSession, tmp_path: Path
) -> None:
    shop = Shop(servers, tmp_path, "made_again")
    shop.put(1, "of the former topic", NEVER)
    shop.put(2, "two")
    shop.drain()
    shop.make_topic_again()
    shutil.rmtree(tmp_path / "lake" / "shop" / "made_again")
    # The same places: a bad record of another row, and newer rows.
    shop.put(2, "new two", NEVER)
    shop.put(1, "new one")
    shop.drain()
    assert (shop.names(), shop.letters()) == ({1: "new one"}, [0, 0])
    shop.with_zero_date("null")
    report = shop.replay(code=3)
    assert (*counted(report), report["former"]) == (1, 1, 0, 0, 0, 0, 0, 1)
    assert (shop.names(), shop.letters()) == ({1: "new one", 2: "new two"}, [0])


@FULL
def test_letters_that_kafka_no_longer_backs_stay(
    servers: Servers, spark: SparkSession, tmp_path: Path
) -> None:
    shop = Shop(servers, tmp_path, "expired")
    for number, name in enumerate(("old", "older", "new")):
        shop.put(number, name, NEVER)
        shop.put(9, name)
    shop.drain()
    shop.with_zero_date("null")
    admin = AdminClient({"bootstrap.servers": servers["brokers"]})
    (done,) = admin.delete_records([TopicPartition(shop.writer.topic, 0, 3)]).values()
    done.result(120)
    # Of the letter at 2 Kafka has lost the record, and all behind it is there.
    assert counted(shop.replay(code=3)) == (2, 2, 0, 0, 0, 0, 1)
    assert (shop.names(), shop.letters()) == ({1: "older", 2: "new", 9: "new"}, [0])


@FULL
def test_a_replay_killed_before_it_settled_is_done_again(
    servers: Servers, spark: SparkSession, tmp_path: Path
) -> None:
    shop = Shop(servers, tmp_path, "killed")
    shop.put(1, "lost", NEVER)
    shop.put(2, "two")
    shop.drain()
    shop.with_zero_date("null")
    log = {"TIDESINK_FAILPOINT": "replayed", "TIDESINK_FAILPOINT_LOG": str(tmp_path / "failpoints")}
    command = [
        str(Path(sys.executable).with_name("tidesink")),
        "dlq",
        "replay",
        "shop.killed",
        "-c",
        str(shop.config),
    ]
    killed = subprocess.run(
        command, env={**os.environ, **log}, start_new_session=True, timeout=300, check=False
    )
    assert (killed.returncode, failpoints_hit(shop.config)) == (-9, ["replayed:1"])
    assert (shop.names(), shop.letters()) == ({1: "lost", 2: "two"}, [0])
    # It looks like a worker at work until its last sign of life is old, which it may be on a busy machine.
    heartbeat = Heartbeat(SqlStateStore(str(tmp_path / "state.db")), "shop")
    heartbeat.beat()
    assert shop.replay(code=1) == {}
    heartbeat.end()
    assert counted(shop.replay()) == (1, 1, 0, 0, 0, 0, 0)
    assert (shop.names(), shop.letters()) == ({1: "lost", 2: "two"}, [])
    assert counted(shop.replay()) == (0,) * 7


@FULL
def test_order_by_the_source_needs_nothing_of_kafka(
    servers: Servers, spark: SparkSession, tmp_path: Path
) -> None:
    shop = Shop(
        servers,
        tmp_path,
        "placed",
        source={"protocol": "canal-json", "enable-tidb-extension": True},
        defaults={"sequence_by": "source"},
        tables=[
            {
                "name": "shop.placed",
                "definition": "CREATE TABLE placed (id bigint primary key, name varchar(40), day date)",
            }
        ],
    )
    shop.put(1, "late", NEVER, ts=5 << 18)
    shop.put(1, "newest", ts=9 << 18)
    shop.put(2, "lost", NEVER, ts=7 << 18)
    shop.put(3, "three", ts=8 << 18)
    shop.drain()
    assert (shop.names(), shop.letters()) == ({1: "newest", 3: "three"}, [0, 2])
    shop.with_zero_date("null")
    admin = AdminClient({"bootstrap.servers": servers["brokers"]})
    (done,) = admin.delete_records([TopicPartition(shop.writer.topic, 0, 4)]).values()
    done.result(120)
    assert counted(shop.replay()) == (2, 1, 1, 0, 0, 0, 0)
    assert (shop.names(), shop.letters()) == ({1: "newest", 2: "lost", 3: "three"}, [])
