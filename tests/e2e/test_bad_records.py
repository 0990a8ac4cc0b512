"""Records that cannot be decoded: the table pauses before them, or they become dead letters."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.e2e.replay import Servers, by_name
from tests.e2e.writing import TableWriter, lake_rows, schema_of, shop_config
from tests.full import TEST_ALL
from tests.letters import written_letters
from tidesink.codecs.base import EncodedRecord
from tidesink.config import load_config
from tidesink.events import Op
from tidesink.sinks.runtime.observers import RunReport
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Spoil = Callable[[EncodedRecord], EncodedRecord]


def _value(record: EncodedRecord) -> bytes:
    assert record.value is not None
    return record.value


# Table -> what is done to a good record, the error's class, and a part of its reason.
BAD: dict[str, tuple[Spoil, str, str]] = {
    "truncated": (
        lambda record: record._replace(value=_value(record)[:-2]),
        "SchemaMismatchError",
        "is shorter than its schema requires. It is cut short",
    ),
    "too_long": (
        lambda record: record._replace(value=_value(record) + b"x"),
        "SchemaMismatchError",
        "The value has 1 more bytes after its record",
    ),
    "wrong_magic": (
        lambda record: record._replace(value=b"\x05" + _value(record)[1:]),
        "FramingError",
        "not with the magic byte 00 of a Confluent header",
    ),
    "unknown_id": (
        lambda record: record._replace(value=b"\x00" + struct.pack(">I", 999_999) + _value(record)[5:]),
        "SchemaNotFoundError",
        "The schema registry has no schema id 999999",
    ),
    "invalid_utf8": (
        lambda record: record._replace(value=_value(record).replace(b"spoilt", b"spo\xff\xfet")),
        "SchemaMismatchError",
        "The value contains text that is not UTF-8",
    ),
    "empty_key": (lambda record: record._replace(key=b""), "FramingError", "the key is empty"),
}


# What the codec makes of each is tested in process: tests/unit/codecs/flat_avro/test_bad_input.py.
CASES = BAD if TEST_ALL else {name: BAD[name] for name in ("truncated", "unknown_id")}


def _write(servers: Servers) -> dict[str, EncodedRecord]:
    """Each table: two good rows, a bad record, one more good row; and one table with 10 MB in a row."""
    bad: dict[str, EncodedRecord] = {}
    for name, (spoil, _, _) in CASES.items():
        writer = TableWriter(servers, schema_of(name))
        writer.upsert({"id": 1, "name": "one"})
        writer.upsert({"id": 2, "name": "two"})
        bad[name] = spoil(writer.encoded(Op.INSERT, {"id": 3, "name": "spoilt"}))
        writer.send(*bad[name])
        writer.upsert({"id": 1, "name": "uno"})
    large = TableWriter(servers, schema_of("large"))
    large.upsert({"id": 1, "name": "x" * 10_000_000})
    return bad


def test_bad_records_pause_a_table_or_become_dead_letters(
    spark: SparkSession, tmp_path: Path, servers: Servers
) -> None:
    bad = _write(servers)
    _check_paused(run(load_config(shop_config(tmp_path, servers)), until="drained"), tmp_path)
    config = load_config(shop_config(tmp_path, servers, {"defaults": {"bad-record": "dead-letter"}}))
    _check_dead_lettered(run(config, until="drained"), tmp_path, bad, servers)


def _check_paused(report: RunReport, folder: Path) -> None:
    assert report.exit_code == 3
    tables = by_name(report)
    for name, (_, error, reason) in CASES.items():
        table = tables[name]
        assert table.state == "PAUSED"
        assert table.error is not None
        assert table.error.startswith(f"{error}: {table.topic}[0]@2: "), table.error
        assert reason in table.error
        assert table.lag == 2
        assert {key: row["name"] for key, row in lake_rows(folder, name).items()} == {1: "one", 2: "two"}
    assert tables["large"].state == "IDLE"
    assert len(lake_rows(folder, "large")[1]["name"]) == 10_000_000


def _check_dead_lettered(
    report: RunReport, folder: Path, bad: dict[str, EncodedRecord], servers: Servers
) -> None:
    assert report.exit_code == 0, [(table.table, table.error) for table in report.tables]
    tables = by_name(report)
    written = written_letters(servers["brokers"], servers["prefix"])
    letters = {letter.ours("table"): letter for letter in written}
    assert len(written) == len(letters) == len(CASES)
    for name, (_, error, reason) in CASES.items():
        letter = letters[f"shop.{name}"]
        assert letter.place == (tables[name].topic, 0, 2)
        assert (letter.key, letter.value) == bad[name]
        assert letter.connect("exception.class.name") == f"tidesink.errors.{error}"
        assert reason in letter.connect("exception.message")
        assert letter.connect("connector.name") == "shop"
        assert letter.ours("timestamp").isdigit()
        assert tables[name].counters["dead_lettered"] == 1
        assert {key: row["name"] for key, row in lake_rows(folder, name).items()} == {1: "uno", 2: "two"}
