"""At every cut the money of a bank is all there, while workers are killed and their producer sends again.

Transfers go over tables in topics of their own, of several partitions. A reader opens each new cut while the
workers go on: every table of it is as the bank was at that instant, and so stays.
"""

from __future__ import annotations

import json
import random
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote, urlsplit

import pytest
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from typer.testing import CliRunner

from tests.e2e.bank import SCHEMAS, Bank, Change, Feed, key_of
from tests.e2e.bank_places import Way, bank_config
from tests.e2e.forked_worker import ForkedWorker, RandomKills
from tests.e2e.places import place_of
from tests.e2e.replay import Servers
from tests.full import FULL, TEST_ALL, quick_on
from tidesink import cuts
from tidesink.cli import terminal
from tidesink.cli.main import app
from tidesink.codecs.base import CodecOptions
from tidesink.config import Config, load_config
from tidesink.errors import TargetError
from tidesink.events import Op

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(1200)]
# The new architecture's flat-avro: deletes say there when they were committed.
OPTIONS = {
    "canal-json": CodecOptions(enable_tidb_extension=True),
    "flat-avro": CodecOptions(enable_tidb_extension=True, avro_enable_watermark=True, producer="new"),
}
# Transactions are so many ms apart, and cuts a second: some transactions a cut.
STEP_MS = 150
STEPS = ("cut", "committed", "cutting", "staged", "committing", "reported")
WORK = 12
Rows = dict[tuple[int, ...], dict[str, Any]]


class Run:
    """A bank, its changefeed with watermarks, and workers over a lake that publish cuts."""

    def __init__(
        self, spark: SparkSession, request: pytest.FixtureRequest, folder: Path, servers: Servers
    ) -> None:
        asked = request.node.callspec.params
        kind, protocol = asked["kind"], asked.get("protocol", "canal-json")
        self.seed = random.SystemRandom().randrange(1, 2**31)
        sys.stderr.write(f"seed={self.seed}\n")
        self.rng = random.Random(self.seed)
        place = place_of(kind, request, folder)
        path = bank_config(folder, servers, place, Way(protocol), batch=60)
        settings = json.loads(path.read_text(encoding="utf-8"))
        settings["source"]["enable-tidb-extension"] = True
        # In flat-avro topics tidesink follows no DDL.
        self._truncates = protocol == "canal-json"
        if self._truncates:
            settings["defaults"]["schema-changes"] = {"truncate": "apply"}
        else:
            settings["source"]["avro-enable-watermark"] = True
        settings["cuts"] = {"every": "1s"}
        path.write_text(json.dumps(settings), encoding="utf-8")
        self.path = path
        self.config: Config = load_config(path)
        self.spark, self._log = spark, folder / "worker.log"
        self._bank, self._feed = Bank(self.seed, step_ms=STEP_MS), Feed(servers, protocol, OPTIONS[protocol])
        self._history: list[Change] = []
        self.seen = dict[int, dict[str, int]]()
        self.total = self._bank.total

    def work(self, transactions: int) -> None:
        """Transactions, sent; the watermark comes behind rows that are later, and some are sent again."""
        self._bank.work(transactions)
        if self._truncates:
            self._bank.forget_transfers()
        self._bank.work(3)
        changes = [*self._bank.changes]
        self._bank.changes.clear()
        self._history += changes
        self._feed.send(changes)
        late = {change.commit_ts for change in changes[-6:]}
        self._feed.mark(min(late) - 1)
        if self.rng.random() < 0.5:
            # A new session of the producer, behind a checkpoint before that watermark.
            again = [change for change in self._history if change.commit_ts >= min(late) - (2000 << 18)]
            self._feed.send(again[: len(again) // 2])
            self._feed.send(again)
            self._feed.mark(min(late) - 1)

    def worker(self, failpoint: str | None = None) -> ForkedWorker:
        """A worker that reads all there is, if it lives."""
        return ForkedWorker(self.spark, self.path, self._log, failpoint)

    def look(self) -> None:
        """Read each cut that is new, whole."""
        for cut in reversed(cuts.cut_log(self.spark, self.config).cuts()):
            versions = {str(one.table): one.version for one in cut.tables}
            if cut.commit_ts in self.seen:
                assert self.seen[cut.commit_ts] == versions, "a cut names other versions than before"
                continue
            self._check(cut.commit_ts)
            self.seen[cut.commit_ts] = versions

    def look_again(self) -> None:
        """Read every cut once more: what a cut names stays."""
        for commit_ts in self.seen:
            self._check(commit_ts)

    def finish(self) -> None:
        """Nobody is killed any more."""
        self.work(WORK)
        assert self.worker().wait() == 0, self._log.read_text(encoding="utf-8")
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
        assert found == self._bank_at(commit_ts), f"cut {commit_ts}"
        assert sum(row["balance"] for row in found["account"].values()) == self.total
        assert sum(row["amount"] for row in found["entry"].values()) == self.total

    def _bank_at(self, commit_ts: int) -> dict[str, Rows]:
        rows: dict[str, Rows] = {schema.table.name: {} for schema in SCHEMAS}
        for change in self._history:
            if change.commit_ts > commit_ts:
                break
            table = rows[change.schema.table.name]
            key = key_of(change.schema, change.row) if change.row else ()
            if change.op is Op.TRUNCATE:
                table.clear()
            elif change.op is Op.DELETE:
                table.pop(key, None)
            else:
                table[key] = dict(change.row)
        return rows


def _values(row: Any) -> dict[str, Any]:
    return {name: value for name, value in row.asDict().items() if not name.startswith("_tidesink")}


@pytest.fixture
def run(spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> Run:
    return Run(spark, request, tmp_path, servers)


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


def _check_that_loss_is_said(run: Run) -> None:
    """Another program removes a file of an old version."""
    first = min(run.seen)
    frame = cuts.open(run.spark, run.config, at=first)["bank.account"]
    (file,) = cast("Any", frame.select(F.input_file_name()).first())
    Path(unquote(urlsplit(file).path)).unlink()
    with pytest.raises(TargetError, match=r"cannot be read any more .* files are not there"):
        cuts.open(run.spark, run.config, at=first)
    shown = CliRunner().invoke(app, ["cut", "show", str(first), "--config", str(run.path)])
    assert (shown.exit_code, "cannot be read any more" in shown.stdout) == (terminal.UNWELL, True)
