"""Whole captures of real Debezium connectors, through a real broker and registry, into Delta.

Every table ends as its database held it, but for what Debezium's wire does not tell (the golden tests'
exclusions, each with its reason).
"""

from __future__ import annotations

import json
import re
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from confluent_kafka import Producer

from tests.e2e.replay import Servers
from tests.executors import executor_of_test
from tests.full import FULL
from tests.golden.debezium_captures import Capture
from tests.golden.debezium_compare import row_of, same_cell
from tests.golden.debezium_exclusions import excluded_cell
from tests.golden.debezium_tables import postgres_sql
from tests.golden.each_capture import each_capture
from tests.servers import create_topics
from tests.sessions import SMALL_SPARK
from tidesink.cli.table_plans import table_plans
from tidesink.config import load_config
from tidesink.dev.lake_check import open_lake_table
from tidesink.events import ChangeEvent, DdlEvent, Message
from tidesink.schema_registry import open_registry
from tidesink.sinks.runtime.observers import RunReport
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KEYS: Final = {"t_compk": 2, "t_nopk": 2, "p_nopk": 2}
_NAMED_KEYS: Final = {"t_nopk": "labdb.t_nopk", "p_nopk": "lab.p_nopk"}
# Renamed to a table that has a topic of its own: its rows are moved by that DDL, which is on none of them.
_MOVED: Final = frozenset({"late_t", "late_t2"})
# One of Avro; the other forms and modes are for make test-all.
_EACH_FORM: Final = frozenset({"pg_avro"})
# Their messages do not tell all types: the worker is given definitions.
_DEFINED: Final = frozenset({"mdb_unwrap", "mdb_precise", "mdb_plain", "mdb_double"})
_DEFINED_IN_POSTGRES: Final = frozenset({"pg_plain", "pg_numeric", "pg_precise"})
_DECIMAL: Final = re.compile(r"decimal\(\d+,\d+\)( unsigned)?")
SMALL_BATCH: Final = 7
# A row of p_toast changes its key, and its delete and its insert share no batch of one record: the insert
# leaves out values that no other message holds. The table stops there, and no value is made up.
_KEY_CHANGE_CUT: Final = {("pg_avro", 1), ("pg_plain", 1), ("pg_schema", 1)}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    each_capture(metafunc, always=_EACH_FORM)


def _row_topics(capture: Capture) -> frozenset[str]:
    return frozenset(event.position.topic for event in capture.events() if isinstance(event, ChangeEvent))


def _replay(capture: Capture, servers: Servers) -> None:
    """Produce the topics that hold rows, with their schemas registered again."""
    topics = _row_topics(capture)
    create_topics(servers["brokers"], {f"{servers['prefix']}{topic}": 1 for topic in topics})
    ids = _register(capture, topics, servers) if capture.is_avro else {}
    producer = Producer({"bootstrap.servers": servers["brokers"], "linger.ms": 20})
    for message in capture.messages:
        if message.topic in topics:
            producer.produce(
                f"{servers['prefix']}{message.topic}",
                key=_with_own_id(message.key, ids),
                value=_with_own_id(message.value, ids),
                partition=0,
                headers=list(message.headers),
                timestamp=message.timestamp or 0,
            )
    assert producer.flush(60) == 0


def _register(capture: Capture, topics: frozenset[str], servers: Servers) -> dict[int, int]:
    """The registry's own ids by the captured ones."""
    answers = json.loads((capture.path.parent / "avro_schemas.json").read_text(encoding="utf-8"))
    registry = open_registry(servers["registry_url"])
    ids: dict[int, int] = {}
    for message in capture.messages:
        for part in ("key", "value"):
            data = getattr(message, part)
            if message.topic in topics and data is not None and (found := _id(data)) not in ids:
                subject = f"{servers['prefix']}{message.topic}-{part}"
                ids[found] = registry.register(subject, answers[str(found)]["schema"])
    registry.close()
    return ids


def _id(data: bytes) -> int:
    found: int = struct.unpack(">I", data[1:5])[0]
    return found


def _with_own_id(data: bytes | None, ids: dict[int, int]) -> bytes | None:
    return data if data is None or not ids else data[:1] + struct.pack(">I", ids[_id(data)]) + data[5:]


def _config(folder: Path, capture: Capture, servers: Servers, size: int | None) -> Path:
    settings: dict[str, Any] = {
        "pipeline": "debezium",
        "source": _source(capture, servers),
        # Dates that no calendar has: infinity and years before 1 are kept as text.
        "defaults": {
            "zero-date": "text" if capture.is_postgres else "null",
            "metadata": ["position", "topic", "offset"],
        },
        "tables": list(_tables(capture)),
        "target": {"type": "delta", "path": "./lake"},
        "state": "./state.db",
        "retry": {"for": "120s"},
        "batch": {"executor": executor_of_test()},
        "spark": {"master": "local[2]", "conf": {**SMALL_SPARK, "spark.driver.memory": "1g"}},
    }
    if size is not None:
        settings["batch"]["max-records"] = size
    path = folder / "tidesink.yaml"
    path.write_text(json.dumps(settings), encoding="utf-8")
    return path


def _source(capture: Capture, servers: Servers) -> dict[str, Any]:
    found: dict[str, Any] = {
        "brokers": servers["brokers"],
        "protocol": "debezium-avro" if capture.is_avro else "debezium-json",
        "topics": f"{servers['prefix']}{capture.name}.{{schema}}.{{table}}",
    }
    if capture.is_avro:
        return {**found, "schema-registry": servers["registry_url"]}
    return {**found, "debezium": capture.settings} if capture.settings else found


def _tables(capture: Capture) -> Iterator[dict[str, Any]]:
    defined = dict(_definitions(capture))
    for name in defined | dict.fromkeys(_NAMED_KEYS.values()):
        keys = {"keys": ["a", "b"]} if name in _NAMED_KEYS.values() else {}
        yield {"name": name, **keys, **({"definition": defined[name]} if name in defined else {})}


def _definitions(capture: Capture) -> Iterator[tuple[str, Any]]:
    listed = capture.final_state()
    if capture.name in _DEFINED_IN_POSTGRES:
        for table in listed:
            yield f"lab.{table}", {"sql": postgres_sql(table), "dialect": "postgres"}
    reported: dict[str, list[str]] = {}
    for event in capture.events() if capture.name in _DEFINED else ():
        if not isinstance(event, DdlEvent) or event.table.name not in listed:
            continue
        if event.kind == "CREATE" or (event.kind == "ALTER" and event.table.name in reported):
            reported.setdefault(event.table.name, []).append(event.query)
    for table, queries in reported.items():
        text = ";\n".join(queries)
        # A double names no DECIMAL of so many digits; the error says to define such columns as they come.
        as_sent = capture.name == "mdb_double" and table == "t_num"
        yield f"labdb.{table}", _DECIMAL.sub("double", text) if as_sent else text


def _wrong_cells(capture: Capture, lake: Path) -> Iterator[str]:
    schema = "lab" if capture.is_postgres else "labdb"
    for table, expected in capture.final_state().items():
        if table in _MOVED:
            continue
        folder = lake / schema / table
        stored = open_lake_table(folder).read().to_pylist() if folder.exists() else []
        rows = [{capture.column_name(name): value for name, value in row.items()} for row in stored]
        missing = 0
        for row in expected:
            found = row_of(table, row, rows, keys=_KEYS.get(table, 1))
            if found is None:
                missing += 1
                yield _cell(capture, table, row, "-")
                continue
            for name, text in row.items():
                if not same_cell(table, name, text, found):
                    yield _cell(capture, table, row, name)
        if len(rows) != len(expected) - missing:
            yield f"{capture.name}/{table}: {len(rows)} rows, {len(expected)} expected"


def _wrong_positions(capture: Capture, servers: Servers, lake: Path) -> Iterator[str]:
    """Rows whose position is not that of the change at their offset."""
    codec, messages = capture.codec(), defaultdict[str, list[Message]](list)
    for message in capture.messages:
        messages[f"{servers['prefix']}{message.topic}"].append(message)
    for table in capture.final_state():
        folder = lake / ("lab" if capture.is_postgres else "labdb") / table
        for row in open_lake_table(folder).read().to_pylist() if folder.exists() else ():
            (event,) = codec.decode(messages[row["_tidesink_topic"]][row["_tidesink_offset"]])
            assert isinstance(event, ChangeEvent)
            if row["_tidesink_position"] != event.position.source_text:
                yield f"{table}: {row['_tidesink_position']}, expected {event.position.source_text}"


def _cell(capture: Capture, table: str, row: dict[str, str | None], column: str) -> str:
    keys = [value or "" for value in list(row.values())[: 2 if table == "t_compk" else 1]]
    return f"{capture.name}/{table}/{'+'.join(keys)}/{column}"


def _ends_as_the_database(capture: Capture, size: int | None, servers: Servers, folder: Path) -> RunReport:
    _replay(capture, servers)
    report = run(load_config(_config(folder, capture, servers, size)), until="drained")
    stopped = {table.table.name: table.error.partition(":")[0] for table in report.tables if table.error}
    cut = (capture.name, size) in _KEY_CHANGE_CUT
    assert stopped == ({"p_toast": "ValueNotStoredError"} if cut else {}), report
    assert report.exit_code == (3 if cut else 0)
    wrong = [cell for cell in _wrong_cells(capture, folder / "lake") if excluded_cell(cell) is None]
    assert [cell for cell in wrong if cell.split("/")[1] not in stopped] == []
    assert list(_wrong_positions(capture, servers, folder / "lake")) == []
    return report


@FULL
def test_the_lake_ends_as_the_database_held_it(
    spark: SparkSession, tmp_path: Path, capture: Capture, servers: Servers
) -> None:
    report = _ends_as_the_database(capture, None, servers, tmp_path)
    plans = list(table_plans(load_config(tmp_path / "tidesink.yaml"), sample=1000))
    assert {(plan.topic, plan.table) for plan in plans} == {(one.topic, one.table) for one in report.tables}
    assert [plan.problem for plan in plans if plan.problem] == []
    assert {table.lag for table in report.tables} == {0}
    assert len(report.tables) == len(_row_topics(capture))


@FULL
@pytest.mark.parametrize("size", [1, SMALL_BATCH])
def test_the_lake_ends_so_in_small_batches(
    spark: SparkSession, tmp_path: Path, capture: Capture, servers: Servers, size: int
) -> None:
    _ends_as_the_database(capture, size, servers, tmp_path)
