"""``mode: history`` from Kafka: a captured changefeed ends as the versions that its events tell of.

What is expected is computed from the producer's bytes by the Python codec, one event at a time, and from
what TiDB answered for each table at the end.
"""

from __future__ import annotations

import base64
import json
import signal
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest
from confluent_kafka import Producer

from tests.contracts.sql_beds import postgres_database, reader
from tests.e2e.killing import failpoints_hit, finish, start_worker
from tests.e2e.replay import KEYS, Servers, captured, final_state, replay, replay_config, wrong_values
from tests.e2e.sql_beside import connected
from tests.e2e.test_sql_targets import config_for
from tests.full import FULL
from tidesink.codecs import open_codec
from tidesink.codecs.base import CodecOptions
from tidesink.config import load_config
from tidesink.events import ChangeEvent, Message, Op, Row, TableId
from tidesink.sinks.laws.modes import FROM_COLUMN, TO_COLUMN, HistoryNames
from tidesink.sinks.runtime.observers import RunReport
from tidesink.sinks.targets.sql.target import SqlTarget
from tidesink.sinks.worker.run import run
from tidesink.typemap.target_schema import MetadataKind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(3600)]
OWN = HistoryNames().own
METADATA = {kind: f"_{kind}" for kind in get_args(MetadataKind)}
Spans = set[tuple[Any, ...]]


def _reported(workload: Path, table: str) -> Spans:
    """Key, begin and end of each version and mark of a table."""
    moments: dict[tuple[Any, ...], dict[int, bool]] = {}
    for event in _changes(workload, table):
        _take(moments, event, KEYS[table])
    return {span for key, at in moments.items() for span in _spans(key, at)}


def _changes(workload: Path, table: str) -> Iterator[ChangeEvent]:
    """The changes of a table, at their records' offsets in a topic to which these were sent once."""
    codec = open_codec("canal-json", options=CodecOptions(enable_tidb_extension=True))
    offsets: defaultdict[int, Iterator[int]] = defaultdict(count)
    for record in captured(workload, "canal_ext"):
        if record["topic"] == f"bank_{table}":
            partition, value = record["partition"], base64.b64decode(record["value_b64"])
            message = Message(record["topic"], partition, next(offsets[partition]), None, value)
            yield from (event for event in codec.decode(message) if isinstance(event, ChangeEvent))


def _take(moments: dict[tuple[Any, ...], dict[int, bool]], event: ChangeEvent, keys: Iterable[str]) -> None:
    assert event.commit_ts is not None
    row = event.after if event.op is not Op.DELETE else event.before
    images = [(row, event.op is not Op.DELETE)]
    if event.op is not Op.DELETE and event.before is not None:
        old: Row = {**(event.after or {}), **event.before}
        if any(old[name] != (event.after or {})[name] for name in keys):
            images.append((old, False))
    for row, writes in images:
        key = tuple((row or {})[name] for name in keys)
        at = moments.setdefault(key, {})
        at[event.commit_ts] = at.get(event.commit_ts, False) or writes


def _spans(key: tuple[Any, ...], at: dict[int, bool]) -> Iterable[tuple[Any, ...]]:
    before = False
    for ts, end in zip(sorted(at), [*sorted(at)[1:], None], strict=True):
        if at[ts]:
            yield (*key, ts, end)
        elif not before:
            yield (*key, ts, ts)
        before = at[ts]


def _stored(spark: SparkSession, lake: Path, table: str) -> Spans:
    frame = spark.read.format("delta").load(str(lake / "bank" / table))
    rows = frame.select(*KEYS[table], FROM_COLUMN, TO_COLUMN).collect()
    assert len(set(rows)) == len(rows)
    return {tuple(row) for row in rows}


def _misplaced(
    rows: Iterable[Mapping[str, Any]], workload: Path, table: str, servers: Servers
) -> list[Mapping[str, Any]]:
    """The rows whose metadata is not of the change that began them, as it was sent first."""
    sent = {
        (event.commit_ts, event.position.partition, event.position.offset)
        for event in _changes(workload, table)
    }
    of_a_table = ("bank", table, f"{servers['prefix']}bank_{table}")
    return [
        row
        for row in rows
        if _told_of(row) != _begun(row, of_a_table)
        or (row["_commit_ts"], row["_partition"], row["_offset"]) not in {*sent, (None, None, None)}
    ]


def _told_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    started = row["_op"] in ("insert", "update")
    source = (row["_database"], row["_table"], row["_topic"])
    return row["_commit_ts"], row["_position"], started, row["_batch"] is not None, source


def _begun(row: Mapping[str, Any], source: tuple[str, str, str]) -> tuple[Any, ...]:
    start = row[FROM_COLUMN]
    if start == row[TO_COLUMN]:
        return None, None, False, False, (None, None, None)
    return start, str(start), True, True, source


def _current(spark: SparkSession, lake: Path, into: Path, tables: Iterable[str]) -> Path:
    """A lake of the current versions alone, without the columns of a history."""
    for table in tables:
        frame = spark.read.format("delta").load(str(lake / "bank" / table)).where("current")
        frame = frame.drop(*OWN, *METADATA.values())
        frame.write.format("delta").mode("overwrite").save(str(into / "bank" / table))
    return into


def _config(folder: Path, servers: Servers, size: int | None = None) -> Path:
    return _with_history(replay_config(folder, "canal_ext", servers=servers, max_records=size))


def _with_history(path: Path) -> Path:
    defaults = {"stored_as_scd_type": 2, "metadata": METADATA}
    settings = {**json.loads(path.read_text(encoding="utf-8")), "defaults": defaults}
    path.write_text(json.dumps(settings, indent=1), encoding="utf-8")
    return path


def _drained(config: Path) -> RunReport:
    report = run(load_config(config), until="drained")
    assert report.exit_code == 0, [(table.table, table.error) for table in report.tables]
    return report


def _sent_again(workload: Path, servers: Servers, topic: str) -> int:
    """Every record of a topic once more, as its producer may do."""
    producer = Producer({"bootstrap.servers": servers["brokers"], "enable.idempotence": True})
    records = [record for record in captured(workload, "canal_ext") if record["topic"] == topic]
    for record in records:
        value = base64.b64decode(record["value_b64"])
        producer.produce(f"{servers['prefix']}{topic}", value=value, partition=record["partition"])
        producer.poll(0)
    assert producer.flush(60) == 0
    return len(records)


@FULL
def test_every_version_is_there_and_the_current_ones_are_the_rows_of_tidb(
    spark: SparkSession, tmp_path: Path, workload: Path, servers: Servers
) -> None:
    replay(workload, "canal_ext", servers=servers)
    config = _config(tmp_path, servers, 1500)
    report = _drained(config)
    lake = tmp_path / "lake"
    for table in KEYS:
        assert _stored(spark, lake, table) == _reported(workload, table)
    current = _current(spark, lake, tmp_path / "current", KEYS)
    assert wrong_values(current, final_state(workload)) == []
    (before,) = [one.counters for one in report.tables if one.table.name == "account"]
    again = _sent_again(workload, servers, "bank_account")
    (after,) = [one.counters for one in _drained(config).tables if one.table.name == "account"]
    assert _stored(spark, lake, "account") == _reported(workload, "account")
    assert (after["read"], after["applied"]) == (again, 0)
    rows = spark.read.format("delta").load(str(lake / "bank" / "account")).collect()
    assert {row["_op"] for row in rows} >= {"insert", "update"}
    assert _misplaced([row.asDict() for row in rows], workload, "account", servers) == []
    assert after["superseded"] == before["applied"] + before["superseded"]


@FULL
def test_a_worker_killed_after_its_commit_leaves_one_history(
    spark: SparkSession, tmp_path: Path, workload: Path, servers: Servers
) -> None:
    replay(workload, "canal_ext", servers=servers, only={"bank_account"})
    config = _config(tmp_path, servers, 600)
    log = tmp_path / "worker.log"
    for step in ("committed", "evolved"):
        ending = finish(start_worker(config, log, step), log)
        assert ending.code == -signal.SIGKILL, ending.output
    assert failpoints_hit(config) == ["committed:1", "evolved:1"]
    assert finish(start_worker(config, log), log).code == 0
    assert _stored(spark, tmp_path / "lake", "account") == _reported(workload, "account")


@FULL
def test_a_database_has_the_same_versions(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, workload: Path, servers: Servers
) -> None:
    replay(workload, "canal_ext", servers=servers, only={"bank_account", "bank_pair"})
    server = ("postgres", postgres_database(request))
    _drained(_with_history(config_for(tmp_path, "canal_ext", servers, server, 1500)))
    expected = {found.table.name: found for found in final_state(workload)}
    with connected(server) as connections:
        for table in ("account", "pair"):
            rows = reader(SqlTarget(connections))(TableId("bank", table))
            spans = [(*(row[key] for key in KEYS[table]), row[FROM_COLUMN], row[TO_COLUMN]) for row in rows]
            assert len(spans) == len(set(spans))
            assert set(spans) == _reported(workload, table)
            assert _misplaced(rows, workload, table, servers) == []
            current = {tuple(str(row[key]) for key in KEYS[table]) for row in rows if row["current"]}
            columns = list(expected[table].columns)
            at = [columns.index(key) for key in KEYS[table]]
            assert current == {tuple(str(row[n]) for n in at) for row in expected[table].rows}
