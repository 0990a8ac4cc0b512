"""Tables of one topic that stand at the same offsets read it once; one that lags reads for itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.fetched import drained_counting
from tests.e2e.forked_worker import die_at, drain
from tests.e2e.killing import failpoints_hit
from tests.e2e.replay import Servers, by_name
from tests.e2e.writing import TableWriter, lake_rows, schema_of, shop_config
from tests.full import FULL
from tests.letters import written_letters
from tests.servers import create_topics
from tidesink.config import load_config
from tidesink.events import Row, Value
from tidesink.sinks.runtime.observers import RunReport
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES: Final = ("first", "second", "third")
ROWS: Final = 40
# Partition 0 has the DDL, and is read for it; the rows are in the other one.
PARTITION: Final = 1
NAMELESS: Final = b'{"id":0}'


class Topic:
    """A canal-json topic of three tables, what they must hold, and the pipeline that reads it."""

    def __init__(self, folder: Path, servers: Servers, **batch: Any) -> None:
        self.name = f"{servers['prefix']}cdc"
        create_topics(servers["brokers"], {self.name: 2})
        self._writers = {
            name: TableWriter(servers, schema_of(name), protocol="canal-json", topic=self.name)
            for name in TABLES
        }
        for name, writer in self._writers.items():
            writer.ddl(f"CREATE TABLE shop.{name} (id BIGINT PRIMARY KEY, name VARCHAR(40))")
        self.rows: dict[str, dict[int, Row]] = {name: {} for name in TABLES}
        self._folder = folder
        self._servers = servers
        self._batch = batch

    def write(self, rows: int = ROWS, *, tables: tuple[str, ...] = TABLES) -> None:
        """So many new rows of each table, one table after the other."""
        start = max(len(found) for found in self.rows.values())
        for number in range(start, start + rows):
            for name in tables:
                row: dict[str, Value] = {"id": number, "name": f"{name} {number}"}
                self._writers[name].upsert(row, partition=PARTITION)
                self.rows[name][number] = row

    def send(self, value: bytes) -> None:
        """Bytes among the rows."""
        self._writers["first"].send(None, value, partition=PARTITION)

    def spoil(self, table: str) -> None:
        """A record that names a table and is no row of it."""
        wrong = {"id": 0, "database": "shop", "table": table, "pkNames": ["id"], "isDdl": False}
        self.send(json.dumps({**wrong, "type": "INSERT", "data": 7}).encode())

    def config(self, **defaults: str) -> Path:
        """The pipeline."""
        source = {"brokers": self._servers["brokers"], "protocol": "canal-json", "topics": [self.name]}
        more = {"source": source, "batch": self._batch, "defaults": defaults}
        return shop_config(self._folder, self._servers, more)

    def drain(self, **defaults: str) -> RunReport:
        """Run until nothing is left to read."""
        return run(load_config(self.config(**defaults)), until="drained")

    def drain_counting(self, **defaults: str) -> tuple[RunReport, int]:
        """The same, with how many records were fetched."""
        return drained_counting(load_config(self.config(**defaults)), self._folder)

    def check(self, *tables: str) -> None:
        """The tables hold what was written."""
        for name in tables or TABLES:
            assert lake_rows(self._folder, name) == self.rows[name], name


def _read(report: RunReport) -> dict[str, int]:
    return {name: table.counters["read"] for name, table in by_name(report).items()}


def _keeps_nothing(spark: SparkSession) -> bool:
    session: Any = spark._jsparkSession
    return bool(session.sharedState().cacheManager().isEmpty())


def test_a_topic_is_read_once_for_all_its_tables(
    spark: SparkSession, tmp_path: Path, servers: Servers
) -> None:
    spark.catalog.clearCache()  # other tests share the session, and leave frames of theirs
    topic = Topic(tmp_path, servers)
    topic.write(1)
    assert topic.drain().exit_code == 0
    topic.write()
    report, fetched = topic.drain_counting()
    assert report.exit_code == 0, report.tables
    assert _read(report) == dict.fromkeys(TABLES, ROWS)
    assert {table.batches for table in report.tables} == {1}
    assert fetched == len(TABLES) * ROWS
    topic.check()
    assert _keeps_nothing(spark)


@FULL
def test_batches_of_a_topic_are_bounded_for_all_its_tables(
    spark: SparkSession, tmp_path: Path, servers: Servers
) -> None:
    topic = Topic(tmp_path, servers, **{"max-records": 50})
    topic.write()
    report = topic.drain()
    assert _read(report) == dict.fromkeys(TABLES, ROWS + 1)
    # 120 rows and the DDL of three tables, never more than 50 records of all of them at once.
    assert {table.batches for table in report.tables} == {3}
    topic.check()


@FULL
def test_a_table_that_lags_reads_for_itself_and_joins_again(
    spark: SparkSession, tmp_path: Path, servers: Servers
) -> None:
    topic = Topic(tmp_path, servers)
    topic.write(5)
    topic.spoil("second")
    topic.write(5)
    report = topic.drain()
    states = {name: table.state for name, table in by_name(report).items()}
    assert states == {"first": "IDLE", "second": "PAUSED", "third": "IDLE"}
    topic.check("first", "third")
    assert set(lake_rows(tmp_path, "second")) == set(range(5))
    topic.write(5)
    # The others have 15 records to read, and it has those, 15 of before, and the bad one.
    report, fetched = topic.drain_counting(**{"bad-record": "dead-letter"})
    assert report.exit_code == 0, report.tables
    assert _read(report) == {"first": 5, "second": 11, "third": 5}
    assert by_name(report)["second"].counters["dead_lettered"] == 1
    topic.check()
    topic.write(5)
    report, again = topic.drain_counting()
    assert _read(report) == dict.fromkeys(TABLES, 5)
    assert again == 15
    topic.check()
    assert fetched >= 31


@FULL
def test_a_record_that_names_no_table_is_in_the_way_of_all(
    spark: SparkSession, tmp_path: Path, servers: Servers
) -> None:
    topic = Topic(tmp_path, servers)
    topic.write(5)
    topic.send(NAMELESS)
    topic.write(5)
    tables = by_name(topic.drain())
    assert {table.state for table in tables.values()} == {"PAUSED"}
    assert all(f"{topic.name}[{PARTITION}]@15" in str(table.error) for table in tables.values())
    assert {len(lake_rows(tmp_path, name)) for name in TABLES} == {5}
    report = topic.drain(**{"bad-record": "dead-letter"})
    assert report.exit_code == 0, report.tables
    # Counted for each of them, as each of them keeps it among its own.
    assert _read(report) == dict.fromkeys(TABLES, 6)
    assert {table.counters["dead_lettered"] for table in report.tables} == {1}
    letters = written_letters(servers["brokers"], servers["prefix"])
    assert [letter.value for letter in letters] == [NAMELESS] * len(TABLES)
    assert len({letter.ours("table") for letter in letters}) == len(TABLES)
    topic.check()


@FULL
def test_a_kill_between_the_tables_of_one_read(spark: SparkSession, tmp_path: Path, servers: Servers) -> None:
    topic = Topic(tmp_path, servers)
    log = tmp_path / "worker.log"
    # The second table dies: with its rows reduced, just before its commit, and just after it.
    steps = ("reduced:2", "committing:2", "committed:2")
    for step in steps:
        topic.write(5)
        die_at(step, spark, topic.config(), log)
    assert failpoints_hit(topic.config()) == list(steps)
    drain(spark, topic.config(), log)
    topic.check()
