"""A whole changefeed of the real producer, through a real broker and registry, into Delta.

Every column of every table ends as TiDB held it, in each codec configuration and in batches of several
sizes; the config names no type that the topics do not carry.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.replay import CONFIGURATIONS, Servers, final_state, replay, replay_config, wrong_values
from tests.full import FULL
from tests.recorder import Recorder
from tidesink.config import load_config
from tidesink.dev.lake_check import open_lake_table
from tidesink.sinks.runtime.observers import BatchStarted, RunReport
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL_BATCH = 600
ALL_CASES = [(name, size) for name in CONFIGURATIONS for size in (57, 210, 1000, None)]


def _run(
    folder: Path,
    workload: Path,
    configuration: str,
    size: int | None,
    servers: Servers,
) -> None:
    replayed = replay(workload, configuration, servers=servers)
    recorder = Recorder()
    config = load_config(replay_config(folder, configuration, servers=servers, max_records=size))
    report = run(config, until="drained", listeners=[recorder])
    assert report.exit_code == 0, [(table.table, table.error) for table in report.tables]
    _check_accounts(
        report, recorder, {f"{servers['prefix']}{topic}": n for topic, n in replayed.records.items()}, size
    )
    assert wrong_values(folder / "lake", final_state(workload)) == []
    balances = open_lake_table(folder / "lake" / "bank" / "account").read().column("balance").to_pylist()
    assert sum(Decimal(balance) for balance in balances) == 60_000


def _check_accounts(
    report: RunReport, recorder: Recorder, produced: dict[str, int], size: int | None
) -> None:
    assert len(report.tables) == 4
    for table in report.tables:
        batches = [batch for batch in recorder.batches if batch.table == table.table]
        assert table.lag == 0
        assert table.counters["read"] == produced[table.topic] == sum(b.account.read for b in batches)
        assert len(batches) == (1 if size is None else -(-produced[table.topic] // size))
        done = 0
        for begun in (one for one in recorder.events if isinstance(one, BatchStarted)):
            if begun.table == table.table:
                done += begun.records
                assert done + begun.left == produced[table.topic]


def test_the_lake_ends_as_tidb_held_it(
    spark: SparkSession, tmp_path: Path, workload: Path, servers: Servers
) -> None:
    # It has more in it than canal-json's other forms; flat-avro's go to other targets, here in make test-all.
    _run(tmp_path, workload, "canal_ext_partial", SMALL_BATCH, servers)


@FULL
@pytest.mark.parametrize(("configuration", "size"), ALL_CASES)
def test_every_configuration_in_batches_of_every_size(
    spark: SparkSession,
    tmp_path: Path,
    workload: Path,
    configuration: str,
    size: int | None,
    servers: Servers,
) -> None:
    _run(tmp_path, workload, configuration, size, servers)
