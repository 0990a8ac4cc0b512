"""Run as a program: tasks that fail after their rows were copied, and tasks that Spark runs twice at once.

``python -m tests.e2e.retried_tasks postgres '{"host": …}' FOLDER`` runs on a cluster of two executors (Spark
neither tries a task again nor speculates in ``local[n]``). It applies two batches whose rows come from a
frame, and two whose rows the tasks bring that reduce them, and prints what became of each.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.contracts.coded_changes import TOPIC, Changefeed
from tests.contracts.coded_table import config_of, open_table
from tests.contracts.sql_beds import noting, sql_bed_in
from tests.contracts.targets_bed import TABLE, progress, shape
from tests.sessions import SMALL_SPARK
from tidesink.codecs.base import EncodedRecord
from tidesink.events import Message, TableId, TableSchema
from tidesink.sinks.spark.session import build_session
from tidesink.sinks.targets.base import ReducedBatch
from tidesink.sinks.targets.sql.dialect import Connections, Dialect
from tidesink.sinks.targets.sql.load import SMALL_BATCH, Load
from tidesink.sinks.targets.sql.location import Endpoint
from tidesink.sinks.targets.sql.mysql import MysqlDriver, mysql_dialect
from tidesink.sinks.targets.sql.postgres import PostgresDriver, postgres_dialect
from tidesink.sinks.targets.sql.target import SqlTarget
from tidesink.typemap.target_schema import shape_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# So many that they are not brought by one task.
ROWS: Final = 2 * SMALL_BATCH
# Of the table whose rows are brought by the tasks that read them.
READ_TABLE: Final = TableId("shop", "copied")
READ_ROWS: Final = 12_000
_PARTITIONS: Final = 4
_SPECULATION: Final = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.task.maxFailures": "3",
}
# Less than the ids of a batch alone take: rows that came to the driver would end it.
_NO_ROWS_TO_THE_DRIVER: Final = {"spark.driver.maxResultSize": "200k"}
# Longer than Spark waits before it runs a copy of the task; the copy ends the first one.
_SLOW_SECONDS: Final = 30


def load_and_stumble(
    load: Load, slow: bool, endpoint: Endpoint, statement: str, chunks: Iterator[memoryview]
) -> int:
    """Bring all rows; then the first attempt of some tasks fails, or does not come back."""
    from pyspark import TaskContext

    rows = load(endpoint, statement, chunks)
    context = TaskContext.get()
    if context is not None and context.attemptNumber() == 0 and context.partitionId() % 2 == 0:
        if slow:
            time.sleep(_SLOW_SECONDS)
        raise RuntimeError("this attempt fails after its rows were copied")
    return rows


class StumblingPostgres(PostgresDriver):
    """The driver of Postgres, whose loads stumble."""

    slow = False

    @property
    def load(self) -> Load:  # type: ignore[override]  # an attribute of the driver, but slow or not here
        """The load with what happens after it."""
        return partial(load_and_stumble, super().load, self.slow)


class StumblingMysql(MysqlDriver):
    """The driver of MariaDB, whose loads stumble."""

    slow = False

    @property
    def load(self) -> Load:  # type: ignore[override]  # an attribute of the driver, but slow or not here
        """The load with what happens after it."""
        return partial(load_and_stumble, super().load, self.slow)


DRIVERS: Final[dict[str, type[StumblingPostgres | StumblingMysql]]] = {
    "postgres": StumblingPostgres,
    "mysql": StumblingMysql,
}
DIALECTS: Final = {"postgres": postgres_dialect, "mysql": mysql_dialect}


class Observed(Connections):
    """Remembers the most rows that a table's staging table had at once, from when ``staged`` is a number."""

    def __init__(self, dialect: Dialect, endpoint: Endpoint, table: TableId) -> None:
        super().__init__(dialect, endpoint)
        self.table = table
        self.staged: int | None = None

    @contextmanager
    def transaction(self, table: str, *, writes: bool = True) -> Iterator[Any]:
        with super().transaction(table, writes=writes) as cursor:
            place = SqlTarget(self).place_of(self.table)
            for name in () if self.staged is None else self.dialect.staging.tables(cursor, place):
                cursor.execute(f"SELECT COUNT(*) FROM {place.beside(name)}")  # noqa: S608
                self.staged = max(self.staged or 0, int(cursor.fetchone()[0]))
            yield cursor


def main(kind: str, endpoint: Endpoint, folder: Path) -> None:
    """On each path apply a batch whose tasks fail once, then one whose tasks are slow once."""
    paths = {f"spark.executorEnv.{name}": os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    conf = {**SMALL_SPARK, **_SPECULATION, **_NO_ROWS_TO_THE_DRIVER, **paths}
    spark = build_session(master="local-cluster[2,1,1024]", conf=conf)
    driver = DRIVERS[kind]()
    connections = Observed(replace(DIALECTS[kind](), driver=driver), endpoint, TABLE)
    table = SqlTarget(connections).open_table(shape(), pipeline="shop")
    epoch = table.claim().epoch
    for number, slow in enumerate((False, True), 1):
        driver.slow, connections.staged = slow, 0
        done = table.apply(_batch(spark), progress(epoch, number))
        reported: dict[str, int | None] = {
            "inserted": done.inserted,
            "updated": done.updated,
            "staged": connections.staged,
        }
        sys.stdout.write(json.dumps(reported) + "\n")
    connections.staged, connections.table = None, READ_TABLE
    feed = changes()
    messages = spread(feed.records)
    bed, brought = noting(sql_bed_in(spark, connections))
    config = config_of(feed, retry_for="0s", executor="spark")
    read = open_table(bed, spark, folder, feed=feed, messages=messages, config=config)
    with read.table_task() as table_task:
        for slow, sent in ((False, READ_ROWS + 1), (True, len(messages))):
            driver.slow, connections.staged = slow, 0
            read.take(table_task, sent)
            reported = {"brought": brought[-1], "staged": connections.staged}
            sys.stdout.write(json.dumps(reported) + "\n")
    right = read.rows(shape_of(feed.schema)) == [row for _, row in sorted(feed.rows.items())]
    sys.stdout.write(json.dumps({"right": right, "rows": len(feed.rows)}) + "\n")
    connections.close()
    spark.stop()


def _batch(spark: SparkSession) -> ReducedBatch:
    after = "struct(id, concat('row ', id) AS name, CAST(id AS int) AS amount) AS after"
    frame = spark.range(ROWS).selectExpr("'upsert' AS _op", "struct(id) AS key", after)
    return ReducedBatch(shape(), ROWS, 0, make_frame=lambda: frame.repartition(4))


def changes() -> Changefeed:
    """As many inserts as fill a batch of several tasks, and then as many updates."""
    feed = Changefeed("canal-json", TableSchema(READ_TABLE, ()))
    feed.define("CREATE TABLE shop.copied (id BIGINT PRIMARY KEY, name VARCHAR(9))")
    for name in ("first", "second"):
        for number in range(READ_ROWS):
            feed.put(number, name)
    return feed


def spread(records: Sequence[EncodedRecord]) -> list[Message]:
    """Records in several partitions, a key always in the same one."""
    return [
        Message(TOPIC, at % _PARTITIONS, at // _PARTITIONS, record.key, record.value)
        for at, record in enumerate(records)
    ]


if __name__ == "__main__":
    main(sys.argv[1], Endpoint(**json.loads(sys.argv[2])), Path(sys.argv[3]))
