"""``sequence_by: source`` from Kafka to each target: changes in no order, in any partition."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.asking import answered, asked, letters_of
from tests.e2e.places import KINDS, Place, place_of
from tests.e2e.replay import Servers
from tests.e2e.writing import TableWriter, lake_rows, schema_of, shop_config
from tests.full import FULL, each, quick_on
from tidesink.codecs.base import CodecOptions
from tidesink.config import load_config
from tidesink.events import Op, TableId
from tidesink.sinks.runtime.observers import RunReport
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers]

_SECOND = 1000 << 18
_SCATTERED, _AGED, _MOVED = (TableId("shop", name) for name in ("scattered", "aged", "moved"))
_COUNTED = ("read", "applied", "superseded")


@pytest.fixture(params=each(KINDS, full=["mysql"]))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Each target that keeps positions, in turn."""
    return place_of(request.param, request, tmp_path)


def _drained(config: Path) -> RunReport:
    return run(load_config(config), until="drained")


def _config(
    servers: Servers,
    folder: Path,
    *,
    protocol: str,
    topic: str,
    defaults: dict[str, Any] | None = None,
    target: dict[str, Any] | None = None,
) -> Path:
    source: dict[str, Any] = {
        "brokers": servers["brokers"],
        "protocol": protocol,
        "topics": [topic] if protocol == "canal-json" else f"{servers['prefix']}{{schema}}_{{table}}",
    }
    if not protocol.startswith("debezium"):
        source["enable-tidb-extension"] = True
    if protocol.endswith("avro"):
        source["schema-registry"] = servers["registry_url"]
    settings: dict[str, Any] = {"source": source, "defaults": {"sequence_by": "source", **(defaults or {})}}
    if target:
        settings["target"] = target
    return shop_config(folder, servers, settings)


def _sent(writer: TableWriter, op: Op, number: int, name: str, *, ts: int, partition: int) -> None:
    record = writer.encoded(op, {"id": number, "name": name}, commit_ts=ts)
    writer.send(record.key, record.value, partition=partition)


def _living(folder: Path, table: str) -> dict[int, str]:
    rows = lake_rows(folder, table)
    return {number: row["name"] for number, row in rows.items() if not row["_tidesink_deleted"]}


# On Delta: test_targets_sequence.py, by random streams; a worker on Delta in this order: below.
@quick_on("postgres")
def test_the_newest_change_stays_whenever_and_wherever_it_comes(
    servers: Servers, spark: SparkSession, tmp_path: Path, place: Place
) -> None:
    options = CodecOptions(enable_tidb_extension=True)
    writer = TableWriter(
        servers, schema_of("scattered"), protocol="canal-json", partitions=3, options=options
    )
    config = _config(servers, tmp_path, protocol="canal-json", topic=writer.topic, target=place.target)
    _sent(writer, Op.INSERT, 1, "newer", ts=20, partition=0)
    _sent(writer, Op.INSERT, 1, "older", ts=10, partition=1)
    _sent(writer, Op.DELETE, 2, "gone", ts=30, partition=2)
    _sent(writer, Op.INSERT, 3, "three", ts=5, partition=2)
    first = _drained(config)
    assert place.living(_SCATTERED) == {1: "newer", 3: "three"}
    _sent(writer, Op.INSERT, 2, "risen", ts=25, partition=0)
    _sent(writer, Op.INSERT, 1, "oldest", ts=5, partition=2)
    _sent(writer, Op.DELETE, 3, "three", ts=40, partition=0)
    second = _drained(config)
    assert place.living(_SCATTERED) == {1: "newer"}
    counted = [[report.tables[0].counters[name] for name in _COUNTED] for report in (first, second)]
    assert counted == [[4, 3, 1], [3, 1, 2]]
    _sent(writer, Op.INSERT, 2, "again", ts=50, partition=1)
    _drained(config)
    assert place.living(_SCATTERED) == {1: "newer", 2: "again"}


@FULL
@pytest.mark.parametrize("protocol", ["debezium-json", "debezium-avro"])
def test_ticdcs_debezium_messages_are_put_in_order_too(
    servers: Servers, spark: SparkSession, tmp_path: Path, protocol: str
) -> None:
    name = protocol.replace("-", "_")
    writer = TableWriter(servers, schema_of(name), protocol=protocol, partitions=2)
    config = _config(servers, tmp_path, protocol=protocol, topic=writer.topic)
    _sent(writer, Op.INSERT, 1, "newer", ts=20, partition=0)
    _sent(writer, Op.DELETE, 2, "gone", ts=30, partition=1)
    assert _drained(config).exit_code == 0
    _sent(writer, Op.INSERT, 1, "older", ts=10, partition=1)
    _sent(writer, Op.INSERT, 2, "risen", ts=25, partition=0)
    (table,) = _drained(config).tables
    assert [table.counters[word] for word in _COUNTED] == [2, 0, 2]
    assert _living(tmp_path, name) == {1: "newer"}


@FULL
def test_a_delete_without_a_position_pauses_its_table(
    servers: Servers, spark: SparkSession, tmp_path: Path
) -> None:
    writer = TableWriter(servers, schema_of("placed"), options=CodecOptions(enable_tidb_extension=True))
    config = _config(servers, tmp_path, protocol="flat-avro", topic=writer.topic)
    _sent(writer, Op.INSERT, 1, "one", ts=10, partition=0)
    _sent(writer, Op.DELETE, 1, "one", ts=20, partition=0)
    report = _drained(config)
    (table,) = [one for one in report.tables if one.table.name == "placed"]
    assert table.state == "PAUSED"
    assert "no commit_ts" in (table.error or "")
    assert _living(tmp_path, "placed") == {1: "one"}


@pytest.mark.law("L3")
@FULL
def test_a_change_older_than_the_deletes_remembered_is_not_applied_in_silence(
    servers: Servers, spark: SparkSession, tmp_path: Path
) -> None:
    options = CodecOptions(enable_tidb_extension=True)
    writer = TableWriter(servers, schema_of("aged"), protocol="canal-json", options=options)
    config = _config(
        servers,
        tmp_path,
        protocol="canal-json",
        topic=writer.topic,
        defaults={"tombstone-retention": "10s"},
    )
    _sent(writer, Op.DELETE, 1, "gone", ts=100 * _SECOND, partition=0)
    _sent(writer, Op.INSERT, 2, "two", ts=200 * _SECOND, partition=0)
    first = _drained(config)
    assert first.exit_code == 0
    assert lake_rows(tmp_path, "aged").keys() == {2}
    _sent(writer, Op.INSERT, 1, "risen", ts=90 * _SECOND, partition=0)
    (table,) = _drained(config).tables
    assert table.state == "PAUSED"
    assert "HorizonError" in (table.error or "")
    assert "older than the horizon" in (table.error or "")
    # Deletes that are kept from now on do not tell of those forgotten before.
    text = config.read_text().replace('"tombstone-retention": "10s"', '"deletes": "soft"')
    config.write_text(text)
    (table,) = _drained(config).tables
    assert "older than the horizon" in (table.error or "")
    assert lake_rows(tmp_path, "aged").keys() == {2}


@quick_on("delta")
@pytest.mark.parametrize(
    "kind", ["delta", "postgres", *(pytest.param(kind, marks=FULL) for kind in ("iceberg", "mysql"))]
)
def test_a_change_older_than_the_deletes_remembered_is_a_dead_letter_and_stays_one(
    servers: Servers, spark: SparkSession, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    place = place_of(kind, request, tmp_path)
    options = CodecOptions(enable_tidb_extension=True)
    writer = TableWriter(servers, schema_of("aged"), protocol="canal-json", options=options)
    defaults = {"tombstone-retention": "10s", "bad-record": "dead-letter"}
    config = _config(
        servers,
        tmp_path,
        protocol="canal-json",
        topic=writer.topic,
        defaults=defaults,
        target=place.target,
    )
    _sent(writer, Op.DELETE, 1, "gone", ts=100 * _SECOND, partition=0)
    _sent(writer, Op.INSERT, 2, "two", ts=200 * _SECOND, partition=0)
    _drained(config)
    forgotten = {"horizon": 190 * _SECOND, "removed": 1, "kept": 0, "oldest": None}
    assert _remembered(config) == forgotten
    _sent(writer, Op.INSERT, 1, "risen", ts=90 * _SECOND, partition=0)  # 2
    _sent(writer, Op.INSERT, 2, "zwei", ts=201 * _SECOND, partition=0)
    (table,) = _drained(config).tables
    assert [table.counters[word] for word in (*_COUNTED, "dead_lettered")] == [2, 1, 0, 1]
    assert place.living(_AGED) == {2: "zwei"}
    # What is remembered is known to a worker that had nothing to forget, too.
    assert (_remembered(config), letters_of(config)) == (forgotten, [("HorizonError", 1, 2)])
    assert "older than the horizon" in answered(config, "dlq", "show", "shop.aged", "0@2")["reason"]
    # A replay does not know more than the worker did.
    assert "1" in asked(config, "dlq", "replay", "shop.aged", code=3)
    assert (place.living(_AGED), letters_of(config)) == (
        {2: "zwei"},
        [("HorizonError", 1, 2)],
    )


def _remembered(config: Path) -> dict[str, Any]:
    """What the status tells of deletes."""
    (table,) = answered(config, "status")["tables"]
    found: dict[str, Any] = table["details"]["tombstones"]
    return found


@FULL
def test_a_table_goes_over_to_the_sources_order_with_the_rows_it_has(
    servers: Servers, spark: SparkSession, tmp_path: Path, place: Place
) -> None:
    options = CodecOptions(enable_tidb_extension=True)
    writer = TableWriter(servers, schema_of("moved"), protocol="canal-json", options=options)
    config = _config(servers, tmp_path, protocol="canal-json", topic=writer.topic, target=place.target)
    config.write_text(config.read_text().replace('"sequence_by": "source"', '"sequence_by": "kafka"'))
    for number in (1, 2, 3):
        _sent(writer, Op.INSERT, number, "before", ts=10, partition=0)
    _drained(config)
    config.write_text(config.read_text().replace('"sequence_by": "kafka"', '"sequence_by": "source"'))
    _sent(writer, Op.INSERT, 2, "after", ts=20, partition=0)
    _sent(writer, Op.DELETE, 3, "before", ts=20, partition=0)
    assert _drained(config).exit_code == 0
    assert place.living(_MOVED) == {1: "before", 2: "after"}
