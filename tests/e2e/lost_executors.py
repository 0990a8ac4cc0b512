"""Run as a program: a worker's task on a cluster that loses executors, while they read and before they write.

``python -m tests.e2e.lost_executors delta FOLDER`` applies two batches on a cluster of two executors. Each
batch loses the executor that fetches, and all of them with every payload before the commit. ``postgres FOLDER
'{"host": …}'``: it also loses the executor that has just brought its rows. Prints of each batch what was
counted, and how the table stands.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.contracts.coded_changes import CREATE, TABLE, Changefeed, placed
from tests.contracts.coded_table import HeldTopic, config_of, open_table
from tests.contracts.delta_beds import delta_bed_in
from tests.contracts.iceberg_beds import hadoop_catalog, iceberg_bed_in
from tests.contracts.sql_beds import noting, sql_bed_in
from tests.contracts.targets_bed import Bed
from tests.e2e.retried_tasks import Observed
from tests.sessions import SMALL_SPARK
from tidesink.events import Message, TableSchema
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.runtime.context import Failpoints
from tidesink.sinks.spark.session import build_session
from tidesink.sinks.targets.sql.load import Load
from tidesink.sinks.targets.sql.location import Endpoint
from tidesink.sinks.targets.sql.postgres import PostgresDriver, postgres_dialect
from tidesink.typemap.target_schema import shape_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from tidesink.sinks.batch.tasks import Fetch

ROWS: Final = 200
# An executor gets its second task when it has done its first.
_TASKS: Final = 4
_EXECUTOR: Final = b"CoarseGrainedExecutorBackend"


def parent_of(pid: int) -> int:
    """The process that started another."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_executor(pid: int) -> bool:
    """Whether a process is the JVM of an executor, and lives."""
    return _EXECUTOR in Path(f"/proc/{pid}/cmdline").read_bytes()


def kill_own_executor(mark: Path) -> None:
    """Kill the executor that this task runs in, unless one was killed for this mark before.

    The worker itself reads, too: it searches the topic for DDL.
    """
    if mark.exists():
        return
    pid = os.getppid()
    while pid > 1 and not is_executor(pid):
        pid = parent_of(pid)
    if pid <= 1:
        return
    mark.touch()
    os.kill(pid, signal.SIGKILL)
    time.sleep(30)  # its end is ours


@dataclass(frozen=True)
class LosingFetch:
    """A fetch whose executor is killed by the first task of each batch."""

    fetch: Fetch
    folder: Path

    def __call__(self, wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        """The records of a range."""
        kill_own_executor(self.folder / f"lost_at_{wanted.start}")
        yield from self.fetch(wanted)


class FetchedTopic(HeldTopic):
    """A topic whose records tasks fetch, and whose fetching executor is killed, once a batch."""

    def __init__(self, folder: Path, messages: Sequence[Message]) -> None:
        super().__init__(messages)
        self.fetch = LosingFetch(self.fetch, folder)


def load_and_lose(
    load: Load, mark: Path, endpoint: Endpoint, statement: str, chunks: Iterator[memoryview]
) -> int:
    """Bring all rows; the executor that does so first for a mark is then killed."""
    rows = load(endpoint, statement, chunks)
    kill_own_executor(mark)
    return rows


class LosingDriver(PostgresDriver):
    """The driver of Postgres, where the executor is killed that is the first to bring the rows of a batch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.batch = 0

    @property
    def load(self) -> Load:  # type: ignore[override]  # an attribute of the driver, but of each batch here
        """The load, with what happens after it."""
        return partial(load_and_lose, super().load, self.folder / f"lost_staging_{self.batch}")


class LosesBeforeTheCommit(Failpoints):
    """Kills all executors when a batch is about to be committed for the first time."""

    def __init__(self) -> None:
        super().__init__(None)
        self.lost = 0
        self._again = False

    def reach(self, name: str) -> None:
        """Say that a step is done."""
        if name == "accounted":
            self._again = False
        if name != "committing" or self._again:
            return
        self._again = True
        for pid in list(_executors()):
            os.kill(pid, signal.SIGKILL)
        self.lost += 1


def _executors() -> Iterator[int]:
    """The executors that live among what this process has started."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                pid = int(entry.name)
                if is_executor(pid) and _descends(pid):
                    yield pid


def _descends(pid: int) -> bool:
    while pid > 1:
        pid = parent_of(pid)
        if pid == os.getpid():
            return True
    return False


BEDS: Final[dict[str, Callable[[SparkSession, Path], Bed]]] = {
    "delta": delta_bed_in,
    "iceberg": lambda spark, folder: iceberg_bed_in(spark, hadoop_catalog(folder)),
}


def changes() -> Changefeed:
    """As many inserts as fill a batch, and then as many updates and deletes."""
    feed = Changefeed("canal-json", TableSchema(TABLE, ()))
    feed.define(CREATE)
    for number in range(ROWS):
        feed.put(number, 0, "first", number, None)
    for number in range(ROWS):
        feed.delete(number, 0) if number % 10 == 0 else feed.put(number, 0, "second", number, "größe")
    return feed


def main(kind: str, folder: Path, endpoint: Endpoint | None) -> None:
    """Apply two batches."""
    paths = {f"spark.executorEnv.{name}": os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    conf = {**SMALL_SPARK, **paths, "spark.default.parallelism": str(_TASKS)}
    spark = build_session(master="local-cluster[2,1,1024]", conf=conf, targets=[kind])
    feed, lost = changes(), LosesBeforeTheCommit()
    losing = LosingDriver(folder)
    database = (
        None if endpoint is None else Observed(replace(postgres_dialect(), driver=losing), endpoint, TABLE)
    )
    if database is None:
        bed, brought = BEDS[kind](spark, folder / "lake"), list[int | None]()
    else:
        bed, brought = noting(sql_bed_in(spark, database))
    table = open_table(
        bed,
        spark,
        folder,
        feed=feed,
        messages=placed(feed.records),
        config=config_of(feed, retry_for="120s", executor="spark"),
        held=partial(FetchedTopic, folder),
    )
    table = replace(table, around=replace(table.around, failpoints=lost))
    with table.table_task() as table_task:
        for upto in (ROWS + 1, len(feed.records)):
            if database is not None:
                losing.batch, database.staged = upto, 0
            table.take(table_task, upto)
            reported: dict[str, int | None] = {**table_task.report().counters, "lost": lost.lost}
            if database is not None:
                reported |= {"brought": brought[-1], "staged": database.staged}
            sys.stdout.write(json.dumps(reported) + "\n")
    right = table.rows(shape_of(feed.schema)) == [row for _, row in sorted(feed.rows.items())]
    sys.stdout.write(json.dumps({"right": right, "rows": len(feed.rows)}) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Endpoint(**json.loads(sys.argv[3])) if sys.argv[3:] else None)
