"""Whoever reads a database with cuts sees the bank as of one instant, at every moment, killed workers or not.

A reader beside the workers reads all tables in one snapshot, again and again: what it sees is the bank as of
the cut that stands beside them.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from tests.e2e.bank import SCHEMAS, key_of
from tests.e2e.bank_cuts import WORK, BankRun, Rows
from tests.e2e.forked_worker import ForkedWorker, RandomKills
from tests.e2e.replay import Servers
from tests.e2e.sql_beside import one_snapshot
from tests.full import FULL, TEST_ALL, quick_on
from tidesink.events import TableId
from tidesink.sinks.spark.engine import SparkEngine
from tidesink.sinks.targets import target_module
from tidesink.sinks.targets.sql.target import SqlTarget

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(1200)]
STEPS: Final = ("cutting", "cut", "committed", "staged")


class Run(BankRun):
    """Workers over a database, and a reader of it."""

    def __init__(
        self, spark: SparkSession, request: pytest.FixtureRequest, folder: Path, servers: Servers
    ) -> None:
        super().__init__(spark, request, folder, servers)
        opened: Any = target_module(self.config.target).open_target(
            self.config, SparkEngine.of(spark), cast("Any", None)
        )
        self.target: SqlTarget = opened
        self.seen = dict[int, int]()

    def look(self) -> None:
        """Read all tables in one snapshot, where the server gives it."""
        found = dict[str, Rows]()
        with one_snapshot(self.target.connections) as cursor:
            commit_ts = self._cut(cursor)
            excluded = self._excluded(cursor)
            found = {schema.table.name: self._rows(cursor, schema.table) for schema in SCHEMAS}
        if not found:
            return
        if commit_ts is None:
            assert not any(found.values()), "rows are seen before the first cut"
            return
        assert commit_ts >= max(self.seen, default=0), "the cuts went back"
        assert not excluded
        assert found == self.rows_at(commit_ts), f"cut {commit_ts}"
        assert sum(row["balance"] for row in found["account"].values()) == self.total
        assert sum(row["amount"] for row in found["entry"].values()) == self.total
        self.seen[commit_ts] = self.seen.get(commit_ts, 0) + 1

    def watch(self, worker: ForkedWorker) -> None:
        """Look while a worker lives."""
        while worker.running:
            self.look()
            time.sleep(0.02)
        self.look()

    def _cut(self, cursor: Any) -> int | None:
        place = self.target.cut_log("shop").place
        if not self.target.connections.dialect.tables.present(cursor, place):
            return None
        cursor.execute(f"SELECT commit_ts FROM {place.location}")  # noqa: S608
        row = cursor.fetchone()
        return None if row is None else int(row[0])

    def _excluded(self, cursor: Any) -> bool:
        """Whether some table is as of another moment."""
        place = self.target.cut_log("shop").place
        if not self.target.connections.dialect.tables.present(cursor, place):
            return False
        cursor.execute(f"SELECT COUNT(*) FROM {place.beside('_tidesink_excluded')}")  # noqa: S608
        return bool(cursor.fetchone()[0])

    def _rows(self, cursor: Any, table: TableId) -> Rows:
        dialect, place = self.target.connections.dialect, self.target.place_of(table)
        names = list(dialect.tables.present(cursor, place))
        if not names:
            return {}
        (schema,) = (one for one in SCHEMAS if one.table == table)
        cursor.execute(f"SELECT {', '.join(map(dialect.quote, names))} FROM {place.location}")  # noqa: S608
        rows = [dict(zip(names, values, strict=True)) for values in cursor.fetchall()]
        found = {key_of(schema, row): row for row in rows}
        assert len(found) == len(rows)
        return found


@pytest.fixture
def run(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path, servers: Servers
) -> Iterator[Run]:
    found = Run(spark, request, tmp_path, servers)
    yield found
    found.target.connections.close()


@pytest.mark.law("L9")
@quick_on("postgres")
@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_every_read_sees_the_bank_as_of_a_cut(run: Run, kind: str) -> None:
    for step in STEPS if TEST_ALL else STEPS[:1]:
        run.work(WORK)
        with run.worker(step) as worker:
            run.watch(worker)
        assert worker.code == -signal.SIGKILL, run.log.read_text(encoding="utf-8")
    run.finish()
    run.look()
    assert run.target.cut_log("shop").last() == max(run.seen)
    assert len(run.seen) >= (2 if TEST_ALL else 1)


@FULL
@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_nor_is_half_a_transfer_seen_where_workers_are_killed_at_random_moments(run: Run, kind: str) -> None:
    kills = RandomKills(run.rng)
    for _ in range(8):
        run.work(WORK)
        with run.worker() as worker:
            kills.end(worker, run.look)
        assert worker.code in (0, -signal.SIGKILL)
        run.look()
    run.finish()
    run.look()
    assert (len(run.seen) > 1, kills.kills > 1) == (True, True)
