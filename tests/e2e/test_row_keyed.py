"""A table without a key from Kafka to Delta, its rows identified by TiDB's row keys."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.replay import Servers
from tests.e2e.writing import TableWriter, shop_config
from tests.full import FULL
from tests.multisets import CREATE, SCHEMA, TABLE, Copies, again, copies, history, messages
from tests.servers import create_topics
from tidesink.cli.table_plans import table_plans
from tidesink.codecs.canal_json.codec import keyed_by_row
from tidesink.config import Config, load_config
from tidesink.dev.lake_check import open_lake_table
from tidesink.events import ChangeEvent, Value
from tidesink.sinks.runtime.observers import TableReport
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class _Shop:
    """One canal-json topic of the table, a pipeline over it, and its lake."""

    def __init__(self, folder: Path, servers: Servers, **more: Any) -> None:
        self._lake = folder / "lake" / TABLE.schema / TABLE.name
        self.topic = f"{servers['prefix']}cdc"
        create_topics(servers["brokers"], {self.topic: 2})
        self.writer = TableWriter(servers, SCHEMA, protocol="canal-json", topic=self.topic)
        source = {
            "brokers": servers["brokers"],
            "protocol": "canal-json",
            "topics": [self.topic],
            "enable-tidb-extension": True,
            "output-row-key": True,
        }
        self.config: Config = load_config(shop_config(folder, servers, {"source": source, **more}))

    def send(self, events: Sequence[ChangeEvent], *, scattered: Random | None = None) -> None:
        for message in messages(events):
            partition = scattered.randrange(2) if scattered else 0
            self.writer.send(None, message.value, partition=partition)

    def run(self) -> TableReport:
        (table,) = run(self.config, until="drained").tables
        return table

    @property
    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = open_lake_table(self._lake).read().to_pylist()
        return rows

    @property
    def copies(self) -> Copies:
        return copies(self.rows)


def test_a_multiset_through_the_worker(spark: SparkSession, tmp_path: Path, servers: Servers) -> None:
    shop = _Shop(tmp_path, servers)
    events, expected = history(Random(3), 80)
    shop.writer.ddl(CREATE)
    shop.send(events[:50])
    (plan,) = table_plans(shop.config, sample=100)
    assert (plan.keys, plan.problem) == (("_tidb_rowid", "_tidb_table_id"), None)
    first = shop.run()
    assert (first.state, first.error, first.warnings) == ("IDLE", None, ())
    # TiCDC was started again, from before: identical rows come as they were, and go as they went.
    shop.send(again(events, 40)[30:])
    assert shop.run().error is None
    assert shop.copies == expected
    assert shop.run().counters["read"] == 0


@pytest.mark.law("L5")
@FULL
def test_a_row_without_a_row_key_pauses_its_table(
    spark: SparkSession, tmp_path: Path, servers: Servers
) -> None:
    shop = _Shop(tmp_path, servers)
    events, _ = history(Random(3), 3)
    shop.send(events[:2])
    (message,) = messages(events[2:])
    members = json.loads(message.value or b"")
    del members["_tidb"]["rowkey"]
    shop.writer.send(None, json.dumps(members, separators=(",", ":")).encode())
    paused = shop.run()
    assert paused.state == "PAUSED"
    assert "has no _tidb.rowkey" in str(paused.error)
    assert any("no DDL in the topic name a key" in warning for warning in paused.warnings)


@FULL
def test_marks_names_and_columns_of_choice_leave_the_row_key_alone(
    spark: SparkSession, tmp_path: Path, servers: Servers
) -> None:
    settings = {"deletes": "soft", "except_column_list": ["amount"], "rename": {"name": "who"}}
    shop = _Shop(tmp_path, servers, defaults={**settings, "metadata": ["op"]})
    events, _ = history(Random(9), 40)
    shop.writer.ddl(CREATE)
    shop.send(events)
    assert shop.run().error is None
    held: dict[tuple[Value, ...], Value] = {}
    for event in map(keyed_by_row, events):
        if event.after is None:
            held.pop(tuple((event.key or {}).values()), None)
        else:
            held[tuple((event.key or {}).values())] = event.after["name"]
    living = [row for row in shop.rows if not row["_tidesink_deleted"]]
    assert {(row["_tidb_rowid"], row["_tidb_table_id"]): row["who"] for row in living} == held
    assert set(shop.rows[0]) == {"_tidb_rowid", "_tidb_table_id", "who", "_tidesink_op", "_tidesink_deleted"}


@FULL
@pytest.mark.parametrize(
    ("defaults", "mark", "lives"),
    [({"sequence_by": "source"}, "_tidesink_deleted", False), ({"mode": "history"}, "current", True)],
    ids=["source", "history"],
)
def test_in_the_sources_order_changes_may_stand_anywhere(
    spark: SparkSession, tmp_path: Path, servers: Servers, defaults: dict[str, str], mark: str, lives: bool
) -> None:
    shop, random = _Shop(tmp_path, servers, defaults=defaults), Random(4)
    events, expected = history(random, 60)
    shop.writer.ddl(CREATE)
    shuffled = random.sample(events, len(events))
    for part in (shuffled[:30], shuffled[20:]):
        shop.send(part, scattered=random)
        assert shop.run().error is None
    assert copies(row for row in shop.rows if bool(row[mark]) is lives) == expected
