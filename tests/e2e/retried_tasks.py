"""Run as a program: tasks that fail after their rows were copied, and tasks that Spark runs twice at once.

``python -m tests.e2e.retried_tasks postgres '{"host": …}'`` applies two batches on a cluster of two executors
(Spark neither tries a task again nor speculates in ``local[n]``) and prints what is then in the table.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tests.contracts.targets_bed import TABLE, progress, shape
from tests.sessions import SMALL_SPARK
from tidesink.sinks.spark.session import build_session
from tidesink.sinks.targets.base import ReducedBatch
from tidesink.sinks.targets.sql.dialect import Connections
from tidesink.sinks.targets.sql.load import SMALL_BATCH, Load
from tidesink.sinks.targets.sql.location import Endpoint
from tidesink.sinks.targets.sql.mysql import MysqlDialect
from tidesink.sinks.targets.sql.postgres import PostgresDialect
from tidesink.sinks.targets.sql.target import SqlTarget

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# So many that they are not brought by one task.
ROWS: Final = 2 * SMALL_BATCH
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


class StumblingPostgres(PostgresDialect):
    """Postgres, whose loads stumble."""

    slow = False

    @property
    def load(self) -> Load:
        """The load with what happens after it."""
        return partial(load_and_stumble, super().load, self.slow)


class StumblingMysql(MysqlDialect):
    """MariaDB, whose loads stumble."""

    slow = False

    @property
    def load(self) -> Load:
        """The load with what happens after it."""
        return partial(load_and_stumble, super().load, self.slow)


DIALECTS: Final = {"postgres": StumblingPostgres, "mysql": StumblingMysql}


class Observed(Connections):
    """Remembers the most rows that were in a staging table at once, from when ``staged`` is a number."""

    staged: int | None = None

    @contextmanager
    def transaction(self, table: str, *, writes: bool = True) -> Iterator[Any]:
        with super().transaction(table, writes=writes) as cursor:
            place = SqlTarget(self).place_of(TABLE)
            for name in () if self.staged is None else self.dialect.staging_tables(cursor, place):
                cursor.execute(f"SELECT COUNT(*) FROM {place.beside(name)}")  # noqa: S608
                self.staged = max(self.staged or 0, int(cursor.fetchone()[0]))
            yield cursor


def main(kind: str, endpoint: Endpoint) -> None:
    """Apply a batch whose tasks fail once, then one whose tasks are slow once."""
    paths = {f"spark.executorEnv.{name}": os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    conf = {**SMALL_SPARK, **_SPECULATION, **_NO_ROWS_TO_THE_DRIVER, **paths}
    spark = build_session(master="local-cluster[2,1,1024]", conf=conf)
    dialect = DIALECTS[kind]()
    connections = Observed(dialect, endpoint)
    table = SqlTarget(connections).open_table(shape(), pipeline="shop")
    epoch = table.claim().epoch
    for number, slow in enumerate((False, True), 1):
        dialect.slow, connections.staged = slow, 0
        done = table.apply(_batch(spark), progress(epoch, number))
        reported = {"inserted": done.inserted, "updated": done.updated, "staged": connections.staged}
        sys.stdout.write(json.dumps(reported) + "\n")
    connections.close()
    spark.stop()


def _batch(spark: SparkSession) -> ReducedBatch:
    after = "struct(id, concat('row ', id) AS name, CAST(id AS int) AS amount) AS after"
    frame = spark.range(ROWS).selectExpr("'upsert' AS _op", "struct(id) AS key", after)
    return ReducedBatch(shape(), ROWS, 0, frame=frame.repartition(4))


if __name__ == "__main__":
    main(sys.argv[1], Endpoint(**json.loads(sys.argv[2])))
