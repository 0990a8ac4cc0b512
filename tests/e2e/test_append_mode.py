"""``mode: append`` from Kafka to a table: folded, the log of a captured changefeed is what TiDB held.

The first worker is killed at a step of its second batch; the log has no change twice and lacks none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.contracts.sql_beds import postgres_database, reader
from tests.e2e.forked_worker import die_at
from tests.e2e.killing import failpoints_hit
from tests.e2e.replay import Servers, final_state, replay, replay_config, wrong_values
from tests.e2e.sql_beside import connected, execute
from tests.e2e.test_sql_targets import config_for, wrong
from tests.full import FULL
from tidesink.config import load_config
from tidesink.events import TableId
from tidesink.sinks.laws.modes import COMMIT_TS, INDEX, OFFSET, OP, PARTITION, PREIMAGE, UNAVAILABLE
from tidesink.sinks.targets.sql.target import SqlTarget
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(3600)]
SIZE: Final = 900
GONE: Final = ("delete", PREIMAGE)


# By the name asked for, the log's own column beside which it stands.
BESIDE: Final = {"m_op": OP, "m_commit_ts": COMMIT_TS, "m_partition": PARTITION, "m_offset": OFFSET}
METADATA: Final = {name.removeprefix("m_"): name for name in (*BESIDE, "m_position", "m_topic", "m_batch")}


def _logging(path: Path) -> Path:
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["defaults"] = {"mode": "append", "metadata": METADATA}
    path.write_text(json.dumps(settings, indent=1), encoding="utf-8")
    return path


def _says_as_the_log(row: Mapping[str, Any]) -> bool:
    """Whether the metadata columns of a row are what its own say."""
    same = all(row[name] == row[own] for name, own in BESIDE.items())
    position = None if row[COMMIT_TS] is None else str(row[COMMIT_TS])
    reported = row["m_position"] == position and row["m_batch"] > 0 and "bank_" in row["m_topic"]
    return same and reported and not {*METADATA.values()} & {*json.loads(row[UNAVAILABLE] or "[]")}


def _killed_and_drained(spark: SparkSession, config: Path, step: str) -> dict[str, dict[str, int]]:
    """The counters of each table, after a worker that was killed and one that went on."""
    log = config.with_name("worker.log")
    die_at(f"{step}:2", spark, config, log)
    assert failpoints_hit(config) == [f"{step}:2"]
    report = run(load_config(config), until="drained")
    assert report.exit_code == 0, [(table.table, table.error) for table in report.tables]
    return {table.table.name: dict(table.counters) for table in report.tables}


def _folded(log: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    latest = Window.partitionBy(*keys).orderBy(F.desc(OFFSET), F.desc(INDEX))
    last = log.withColumn("n", F.row_number().over(latest)).where("n = 1").drop("n")
    added = [n for n in log.columns if n.startswith("_tidesink_") or n in METADATA.values()]
    return last.where(~F.col(OP).isin(*GONE)).drop(*added)


@FULL
@pytest.mark.parametrize("step", ["committing", "committed"])
def test_the_folded_lake_is_what_tidb_held(
    spark: SparkSession, tmp_path: Path, workload: Path, servers: Servers, step: str
) -> None:
    configuration = "canal_ext_partial"
    replay(workload, configuration, servers=servers)
    config = _logging(replay_config(tmp_path, configuration, servers=servers, max_records=SIZE))
    _killed_and_drained(spark, config, step)
    expected = final_state(workload)
    for table in expected:
        log = spark.read.format("delta").load(str(tmp_path / "lake" / "bank" / table.table.name))
        places = log.select(PARTITION, OFFSET, INDEX)
        assert places.distinct().count() == places.count() > 0
        reported = log.select(*BESIDE, *BESIDE.values(), "m_position", "m_topic", "m_batch", UNAVAILABLE)
        assert all(_says_as_the_log(row.asDict()) for row in reported.collect())
        folded = str(tmp_path / "folded" / "bank" / table.table.name)
        _folded(log, table.key).write.format("delta").option("delta.columnMapping.mode", "name").save(folded)
    assert wrong_values(tmp_path / "folded", expected) == []


def _folding(name: str, keys: str) -> str:
    last = (
        f"SELECT DISTINCT ON ({keys}) * FROM bank.{name}_log "  # noqa: S608
        f"ORDER BY {keys}, {OFFSET} DESC, {INDEX} DESC"
    )
    gone = ", ".join(f"'{word}'" for word in GONE)
    return f"CREATE TABLE bank.{name} AS SELECT * FROM ({last}) AS last WHERE {OP} NOT IN ({gone})"  # noqa: S608


@FULL
def test_the_folded_database_is_what_tidb_held(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, workload: Path, servers: Servers
) -> None:
    server = ("postgres", postgres_database(request))
    replay(workload, "avro_ext_string", servers=servers, only={"bank_account", "bank_pair"})
    config = _logging(config_for(tmp_path, "avro_ext_string", servers, server, SIZE))
    _killed_and_drained(spark, config, "committed")
    for name, keys in (("account", "id"), ("pair", "a, b")):
        execute(server, f"ALTER TABLE bank.{name} RENAME TO {name}_log", _folding(name, keys))
    assert wrong(workload, server, {"account", "pair"}) == []
    with connected(server) as connections:
        rows = reader(SqlTarget(connections))(TableId("bank", "account_log"))
    assert rows
    assert all(map(_says_as_the_log, rows))
