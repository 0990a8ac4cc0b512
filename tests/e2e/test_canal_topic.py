"""One canal-json topic with several tables, whose types come from its own DDL, or from nowhere."""

from __future__ import annotations

import threading
import time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.e2e.replay import Servers
from tests.e2e.writing import TableWriter, lake_rows, schema_of, shop_config
from tests.full import FULL
from tests.letters import written_letters
from tests.servers import create_topics
from tidesink.config import Config, load_config
from tidesink.events import Column, ColumnType, Value
from tidesink.sinks.kafka.offsets import KafkaOffsets, Look, PartitionOffsets, TopicOffsets
from tidesink.sinks.runtime.context import StopFlag
from tidesink.sinks.runtime.control import TableControl, change_control
from tidesink.sinks.runtime.observers import BatchStarted, RunReport, TableChanged, TableReport, WorkerEvent
from tidesink.sinks.worker.run import Worker, assembled, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PRICE = Column("price", ColumnType("decimal", precision=10, scale=2, sql="decimal(10,2)"))
LABEL = Column("label", ColumnType("varchar", length=10, sql="varchar(10)"), nullable=False, default="basic")


def _config(folder: Path, servers: Servers, topic: str, **defaults: Any) -> Config:
    source: dict[str, Any] = {"brokers": servers["brokers"], "protocol": "canal-json", "topics": [topic]}
    return load_config(shop_config(folder, servers, {"source": source, "defaults": defaults}))


def _named(report: RunReport) -> dict[str, TableReport]:
    assert report.exit_code == 0, [(table.table, table.error) for table in report.tables]
    return {table.table.name: table for table in report.tables}


def test_tables_of_one_topic(spark: SparkSession, tmp_path: Path, servers: Servers) -> None:
    topic = f"{servers['prefix']}cdc"
    create_topics(servers["brokers"], {topic: 2})
    writers = {
        name: TableWriter(servers, schema_of(name, PRICE), protocol="canal-json", topic=topic)
        for name in ("told", "untold", "later")
    }
    told, untold = writers["told"], writers["untold"]
    told.ddl("CREATE TABLE shop.told (id BIGINT PRIMARY KEY, name VARCHAR(40), price DECIMAL(10,2))")
    told.upsert({"id": 1, "name": "one", "price": Decimal("1.50")}, partition=1)
    told.upsert({"id": 2, "name": "two", "price": Decimal("2.50")}, partition=1)
    untold.upsert({"id": 1, "name": "eins", "price": Decimal("3.25")}, partition=1)
    tables = _named(run(_config(tmp_path, servers, topic), until="drained"))
    assert {name: table.counters["read"] for name, table in tables.items()} == {"told": 3, "untold": 1}
    assert lake_rows(tmp_path, "told")[1]["price"] == Decimal("1.50")
    # The topic does not say how many digits: kept exactly, and said.
    assert lake_rows(tmp_path, "untold")[1]["price"] == "3.25"
    assert any("price" in warning for warning in tables["untold"].warnings)
    assert tables["told"].warnings == ()
    _alter_and_go_on(tmp_path, servers, writers, topic)


def _alter_and_go_on(folder: Path, servers: Servers, writers: dict[str, TableWriter], topic: str) -> None:
    """A row of the new shape on partition 1 beside the ALTER on partition 0, and a table nobody knew."""
    grown = TableWriter(servers, schema_of("told", PRICE, LABEL), protocol="canal-json", topic=topic)
    row: dict[str, Value] = {"id": 3, "name": "three", "price": Decimal("9.99"), "label": "gold"}
    grown.upsert(row, partition=1)
    grown.ddl("ALTER TABLE shop.told ADD COLUMN label VARCHAR(10) NOT NULL DEFAULT 'basic'")
    writers["told"].upsert({"id": 4, "name": "four", "price": Decimal("4.00")}, partition=1)
    # A table that has no row yet is nothing to apply, and no reason to stop.
    empty = TableWriter(servers, schema_of("empty"), protocol="canal-json", topic=topic)
    empty.ddl("CREATE TABLE shop.empty (id BIGINT PRIMARY KEY, size ENUM('s','m'))")
    writers["later"].upsert({"id": 9, "name": "neun", "price": Decimal("1.00")}, partition=1)
    tables = _named(run(_config(folder, servers, topic), until="drained"))
    assert {name: table.counters["read"] for name, table in tables.items()} == {
        "told": 3,
        "untold": 0,
        "later": 1,
    }
    assert tables["told"].warnings == ()
    labels = {key: found["label"] for key, found in lake_rows(folder, "told").items()}
    assert labels == {1: "basic", 2: "basic", 3: "gold", 4: "basic"}
    assert set(lake_rows(folder, "later")) == {9}


class _Pause:
    """Hears when a batch is under way, and when its table waits."""

    def __init__(self) -> None:
        self.begun, self.waits = threading.Event(), threading.Event()

    def hear(self, event: WorkerEvent) -> None:
        """Called in the thread of the batch's table."""
        if isinstance(event, BatchStarted):
            self.begun.set()
        elif isinstance(event, TableChanged) and event.status.state == "PAUSED":
            self.waits.set()


class _LongLook(dict[str, TopicOffsets]):
    """Topics as they were found; to look through them takes until the batch under way has ended."""

    def __init__(self, found: dict[str, TopicOffsets], pause: _Pause) -> None:
        super().__init__(found)
        self._pause = pause

    def items(self) -> Any:
        """Each topic and its offsets, and then the wait."""
        yield from super().items()
        if self._pause.begun.is_set() and self._pause.waits.wait(120):
            time.sleep(1)  # what is left of the batch's thread


class _LongLooks(KafkaOffsets):
    """Each look is a long one."""

    def __init__(self, config: Config, pause: _Pause) -> None:
        super().__init__(config.source.confluent_properties())
        self._pause = pause

    def look(self, *asked: Any) -> Look:
        seen = super().look(*asked)
        return seen._replace(found=_LongLook(seen.found, self._pause))


def _two_tables(servers: Servers) -> tuple[str, TableWriter, TableWriter]:
    topic = f"{servers['prefix']}cdc"
    create_topics(servers["brokers"], {topic: 1})
    told, behind = (
        TableWriter(servers, schema_of(name), protocol="canal-json", topic=topic)
        for name in ("told", "behind")
    )
    return topic, told, behind


@FULL
def test_a_batch_that_ends_while_the_topics_are_looked_at_is_heard_before_the_end(
    spark: SparkSession, tmp_path: Path, servers: Servers
) -> None:
    """Once its only table waits, a topic is looked into for others: the next look says so, not this one."""
    topic, told, behind = _two_tables(servers)
    told.upsert({"id": 1, "name": "one"})
    told.send(None, b"{")
    behind.upsert({"id": 7, "name": "seven"})
    config, pause = _config(tmp_path, servers, topic), _Pause()
    with assembled(config, (pause,), StopFlag()) as around:
        # As if the topic had had no other table when it was first looked into.
        around.topics.tables(topic).add([told.schema.table])
        report = Worker(around, until="drained", offsets=_LongLooks(config, pause)).run()
    assert {table.table.name: table.state for table in report.tables} == {
        "told": "PAUSED",
        "behind": "PAUSED",
    }


@FULL
def test_a_table_behind_one_that_rests_is_met(spark: SparkSession, tmp_path: Path, servers: Servers) -> None:
    """Also by a run that would end at once, as each of cron's does: nobody reads on to it."""
    topic, told, behind = _two_tables(servers)
    told.upsert({"id": 1, "name": "one"})
    behind.upsert({"id": 7, "name": "seven"})
    config = _config(tmp_path, servers, topic)
    with assembled(config, (), StopFlag()) as around:
        # As an earlier run left it, before anything was written of the other.
        around.topics.tables(topic).add([told.schema.table])
        change_control(around.store, config.pipeline, told.schema.table, TableControl.pause)
        report = Worker(around, until="drained").run()
    assert {table.table.name: table.state for table in report.tables} == {"told": "PAUSED", "behind": "IDLE"}
    assert set(lake_rows(tmp_path, "behind")) == {7}


class _LateDdl(KafkaOffsets):
    """Partition 0 was asked before the last DDL came, and partition 1 after the row that followed it."""

    def look(self, *asked: Any) -> Look:
        seen = super().look(*asked)
        late = {
            name: one._replace(partitions={**one.partitions, 0: PartitionOffsets(0, 1)})
            for name, one in seen.found.items()
        }
        return seen._replace(found=late)


@FULL
def test_ddl_that_comes_while_the_ends_are_asked(
    spark: SparkSession, tmp_path: Path, servers: Servers
) -> None:
    topic = f"{servers['prefix']}cdc"
    create_topics(servers["brokers"], {topic: 2})
    # What is ignored is said; rows of before the TRUNCATE show that defaults are read ahead, too.
    config = _config(tmp_path, servers, topic, **{"schema-changes": {"truncate": "ignore"}})
    told = TableWriter(servers, schema_of("told"), protocol="canal-json", topic=topic)
    told.ddl("CREATE TABLE shop.told (id BIGINT PRIMARY KEY, name VARCHAR(40))")
    told.upsert({"id": 1, "name": "one"}, partition=1)
    _named(run(config, until="drained"))
    told.ddl("ALTER TABLE shop.told ADD COLUMN label VARCHAR(10) NOT NULL DEFAULT 'basic'")
    told.ddl("ALTER TABLE shop.told ALTER label SET DEFAULT 'later'")
    told.ddl("TRUNCATE TABLE shop.told")
    grown = TableWriter(servers, schema_of("told", LABEL), protocol="canal-json", topic=topic)
    grown.upsert({"id": 2, "name": "two", "label": "gold"}, partition=1)
    with assembled(config, (), StopFlag()) as around:
        late = _LateDdl(config.source.confluent_properties())
        tables = _named(Worker(around, until="drained", offsets=late).run())
    assert tables["told"].counters["read"] == 1
    assert {key: row["label"] for key, row in lake_rows(tmp_path, "told").items()} == {1: "basic", 2: "gold"}
    # What DDL did and the target does not follow is said, also by a run that has no DDL to read.
    for _ in range(2):
        (said,) = _named(run(config, until="drained"))["told"].warnings
        assert "rows that TRUNCATE removed" in said


BAD_MESSAGES = {
    b"{": "not JSON",
    b"[1, 2]": "object",
    b'{"id":0,"database":"shop","table":"told","pkNames":["id"],"isDdl":false,"type":"INSERT","data":7}': "",
    b'{"id":0,"database":"shop","table":"told","pkNames":["id"],"isDdl":false,"type":"WHAT","data":[{}]}': "",
    b"\xff\xfe": "",
}


def test_messages_of_the_wrong_shape(spark: SparkSession, tmp_path: Path, servers: Servers) -> None:
    topic = f"{servers['prefix']}cdc"
    create_topics(servers["brokers"], {topic: 1})
    writer = TableWriter(servers, schema_of("told"), protocol="canal-json", topic=topic)
    writer.upsert({"id": 1, "name": "one"})
    for message in BAD_MESSAGES:
        writer.send(None, message)
    writer.upsert({"id": 2, "name": "two"})
    # The first table waits before a bad record: the one behind it is shown all the same, and waits too.
    behind = TableWriter(servers, schema_of("behind"), protocol="canal-json", topic=topic)
    behind.upsert({"id": 7, "name": "seven"})
    report = run(_config(tmp_path, servers, topic), until="drained")
    assert {table.table.name: table.state for table in report.tables} == {
        "told": "PAUSED",
        "behind": "PAUSED",
    }
    assert all(f"{topic}[0]@1" in str(table.error) for table in report.tables)
    tables = _named(run(_config(tmp_path, servers, topic, **{"bad-record": "dead-letter"}), until="drained"))
    assert tables["told"].counters["dead_lettered"] == len(BAD_MESSAGES)
    assert set(lake_rows(tmp_path, "told")) == {1, 2}
    letters = written_letters(servers["brokers"], servers["prefix"])
    kept = {letter.value: letter.connect("exception.message") for letter in letters}
    assert kept.keys() == BAD_MESSAGES.keys()
    assert all(kept.values())
