"""At every cut the money of a bank is all there, while workers are killed and their producer sends again.

Transfers go over tables in topics of their own, of several partitions. A reader opens each new cut while the
workers go on: every table of it is as the bank was at that instant, and so stays.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote, urlsplit

import pytest
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from typer.testing import CliRunner

from tests.e2e.bank import SCHEMAS, key_of
from tests.e2e.bank_cuts import WORK, BankRun
from tests.e2e.forked_worker import RandomKills
from tests.e2e.replay import Servers
from tests.full import FULL, TEST_ALL, quick_on
from tidesink import cuts
from tidesink.cli import terminal
from tidesink.cli.main import app
from tidesink.errors import TargetError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(1200)]
STEPS = ("cut", "committed", "cutting", "kept:2", "staged", "committing", "reported")


class Run(BankRun):
    """Workers over a lake, whose cuts are read."""

    def __init__(
        self, spark: SparkSession, request: pytest.FixtureRequest, folder: Path, servers: Servers
    ) -> None:
        super().__init__(spark, request, folder, servers)
        self.seen = dict[int, dict[str, int]]()

    def look(self) -> None:
        """Read each cut that is new, whole."""
        for cut in reversed(cuts.cut_log(self.spark, self.config).cuts()):
            versions = {str(one.table): one.version for one in cut.tables}
            if cut.commit_ts in self.seen:
                assert self.seen[cut.commit_ts] == versions, "a cut names other versions than before"
                continue
            self._check(cut.commit_ts)
            self.seen[cut.commit_ts] = versions
        if self.config.target.type == "iceberg":
            self._expire()

    def _expire(self) -> None:
        """Another program lets every snapshot go that it may."""
        log = cuts.cut_log(self.spark, self.config)
        for schema in SCHEMAS:
            if not log.session.catalog.tableExists(f"{log.location.split('.')[0]}.{schema.table}"):
                continue  # the worker was killed before it had made the table
            at_once = "older_than => TIMESTAMP '2999-01-01 00:00:00', retain_last => 1"
            name = f"table => '{schema.table}'"
            log.session.sql(f"CALL {log.location.split('.')[0]}.system.expire_snapshots({name}, {at_once})")

    def look_again(self) -> None:
        """Read every cut once more: what a cut names stays."""
        for commit_ts in self.seen:
            self._check(commit_ts)

    def finish(self) -> None:
        """Nobody is killed any more."""
        super().finish()
        self.look()

    @property
    def cuts(self) -> int:
        """Cuts that were read."""
        return len(self.seen)

    def _check(self, commit_ts: int) -> None:
        frames = cuts.open(self.spark, self.config, at=commit_ts)
        found = {
            schema.table.name: {
                key_of(schema, row): row for row in map(_values, frames[str(schema.table)].collect())
            }
            for schema in SCHEMAS
            if str(schema.table) in frames
        }
        assert found == self.rows_at(commit_ts), f"cut {commit_ts}"
        assert sum(row["balance"] for row in found["account"].values()) == self.total
        assert sum(row["amount"] for row in found["entry"].values()) == self.total


def _values(row: Any) -> dict[str, Any]:
    return {name: value for name, value in row.asDict().items() if not name.startswith("_tidesink")}


@pytest.fixture
def run(spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> Run:
    return Run(spark, request, tmp_path, servers)


@pytest.mark.law("L9")
@quick_on("delta")
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_the_money_is_all_there_at_every_cut(run: Run, kind: str) -> None:
    for step in STEPS if TEST_ALL else STEPS[:1]:
        run.work(WORK)
        assert run.worker(step).wait() == -9
        run.look()
    run.finish()
    # The worker that was killed behind its cut, and the last.
    assert run.cuts >= 2
    run.look_again()
    _check_commands(run)
    _check_that_loss_is_said(run)


@FULL
@pytest.mark.parametrize(("kind", "protocol"), [("delta", "flat-avro")])
def test_the_watermarks_of_flat_avro_make_cuts_too(run: Run, kind: str, protocol: str) -> None:
    for step in STEPS[:2]:
        run.work(WORK)
        assert run.worker(step).wait() == -9
        run.look()
    run.finish()
    run.look_again()
    assert run.cuts >= 2


@FULL
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_nor_do_kills_at_random_moments_tear_a_cut(run: Run, kind: str) -> None:
    kills = RandomKills(run.rng)
    for _ in range(8):
        run.work(WORK)
        worker = run.worker()
        kills.end(worker, run.look)
        assert worker.code in (0, -signal.SIGKILL)
        run.look()
    run.finish()
    run.look_again()
    assert (run.cuts > 1, kills.kills > 1) == (True, True)


def _check_commands(run: Run) -> None:
    """The commands show the cuts, and that their versions are there."""
    runner, last = CliRunner(), max(run.seen)
    found = runner.invoke(app, ["cut", "list", "--config", str(run.path), "--output", "json"])
    assert found.exit_code == 0, found.output
    listed = json.loads(found.stdout)
    assert [one["commit_ts"] for one in listed["cuts"]] == sorted(run.seen, reverse=True)
    assert (listed["next"]["last"], listed["next"]["next"] > last) == (last, True)
    shown = runner.invoke(app, ["cut", "show", str(last), "--config", str(run.path)])
    assert shown.exit_code == 0, shown.output
    assert all(str(schema.table) in shown.stdout for schema in SCHEMAS)
    tagged = run.config.target.type == "iceberg"
    assert shown.stdout.count(f"tidesink_cut_{run.config.pipeline}_") == (len(SCHEMAS) if tagged else 0)


def _check_that_loss_is_said(run: Run) -> None:
    """Another program removes a file of an old version."""
    first = min(run.seen)
    frame = cuts.open(run.spark, run.config, at=first)["bank.account"]
    (file,) = cast("Any", frame.select(F.input_file_name()).first())
    Path(unquote(urlsplit(file).path)).unlink()
    with pytest.raises(TargetError, match=r"can no longer be read .* files do not exist"):
        cuts.open(run.spark, run.config, at=first)
    shown = CliRunner().invoke(app, ["cut", "show", str(first), "--config", str(run.path)])
    assert (shown.exit_code, "can no longer be read" in shown.stdout) == (terminal.UNWELL, True)
