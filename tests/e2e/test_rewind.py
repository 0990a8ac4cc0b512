"""A table reads its topic again from an earlier place: what the target had lost comes back, once."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from tests.contracts.sql_beds import DATABASES
from tests.e2e.asking import answered, asked, letters_of
from tests.e2e.forked_worker import die_at, drain
from tests.e2e.places import KINDS, Place, place_of
from tests.e2e.replay import Servers
from tests.e2e.sql_beside import execute
from tests.e2e.writing import TableWriter, lake_rows, schema_of, shop_config
from tests.full import FULL, TEST_ALL, quick_on
from tests.servers import create_topics
from tidesink.cli.main import app
from tidesink.codecs.base import CodecOptions
from tidesink.config import load_config
from tidesink.events import Op, TableId
from tidesink.sinks.runtime.observers import TableReport
from tidesink.sinks.targets.iceberg.schema import open_session
from tidesink.sinks.targets.sql.location import Endpoint
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers]
NAME: Final = "again"
TABLE: Final = TableId("shop", NAME)
# A rewind has neither records nor rows.
ALL_STEPS: Final = ("planned", "recorded", "evolved", "committing", "committed", "accounted", "reported")
# The steps of any batch are killed at in test_kill.py: here those around what a rewind writes.
STEPS: Final = ALL_STEPS if TEST_ALL else ("recorded", "committing", "committed")
LOADED: Final = dict.fromkeys(range(10), "second")
DAMAGE: Final = (
    "DELETE FROM {} WHERE id < 6",
    "UPDATE {} SET name = 'wrong' WHERE id BETWEEN 6 AND 9",
)


def _drained(config: Path, **more: Any) -> TableReport:
    (table,) = run(load_config(config), **(more or {"until": "drained"})).tables
    assert table.state in ("IDLE", "RUNNING"), table.error
    return table


def _damage(kind: str, place: Place, spark: SparkSession, folder: Path, *statements: str) -> None:
    """Rows are lost and changed at the target, by somebody who is not its worker."""
    target = place.target
    if kind in DATABASES:
        parts = urlsplit(target["url"])
        name, user, password = parts.path.strip("/"), target["user"], target.get("password", "")
        server = kind, Endpoint(parts.hostname or "", parts.port or 0, name, user, password)
        execute(server, *(one.format(f"shop.{NAME}") for one in statements))
        return
    lake = folder / "lake"
    there = f"delta.`{lake / 'shop' / NAME}`" if kind == "delta" else f"lake.shop.{NAME}"
    session = spark.newSession()
    if kind == "iceberg":
        session = open_session(spark, "lake", {"type": "hadoop", "warehouse": str(lake)})
    for statement in statements:
        session.sql(statement.format(there)).collect()


def _rows(place: Place) -> dict[int, str]:
    found = place.rows(TABLE) or []
    rows = {row["id"]: row["name"] for row in found}
    assert len(rows) == len(found)
    return rows


def _again(config: Path) -> dict[int, tuple[int, int]]:
    """Which offsets are read again, as ``offsets show`` and ``status`` say."""
    (table,) = answered(config, "offsets", "show")["tables"]
    (status,) = answered(config, "status")["tables"]
    found = {at["partition"]: (at["applied"], at["again_to"]) for at in table["partitions"] if at["again_to"]}
    said = status["details"].get("read_again", {})
    assert said == {str(number): list(at) for number, at in found.items()}
    assert ("rewound, and reading again" in asked(config, "status")) == bool(found)
    return found


def _rewind(config: Path, *words: str) -> None:
    asked(config, "offsets", "rewind", f"shop.{NAME}", *words)


def _loaded(folder: Path, servers: Servers, place: Place) -> tuple[Path, TableWriter]:
    """A table of two partitions with 25 records each, all applied, and what makes more of them.

    Each partition has ten keys. All are written twice, and half of them are deleted.
    """
    writer = TableWriter(servers, schema_of(NAME), partitions=2)
    config = shop_config(folder, servers, {"target": place.target, "batch": {"max-records": 14}})
    for name in ("first", "second"):
        for number in range(20):
            writer.upsert({"id": number, "name": name}, partition=number % 2)
    for number in range(10, 20):
        writer.delete({"id": number, "name": "second"}, partition=number % 2)
    _drained(config)
    assert _rows(place) == LOADED
    return config, writer


# In Postgres rows that were lost come back in the test of kills below.
@pytest.mark.parametrize("kind", KINDS)
@quick_on("delta")
def test_what_the_target_lost_comes_back(
    servers: Servers, spark: SparkSession, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    place = place_of(kind, request, tmp_path)
    config, writer = _loaded(tmp_path, servers, place)
    _damage(kind, place, spark, tmp_path, *DAMAGE)
    assert _rows(place) == dict.fromkeys(range(6, 10), "wrong")
    assert "is after the applied offset" in _forward(config)

    _rewind(config, "--to-offset", "0=10")
    writer.upsert({"id": 0, "name": "third"}, partition=0)
    _drained(config, batches=2)  # the first is the rewind itself
    assert _again(config) == {0: (24, 25)}
    # Another one, while the first is under way: all of it, of both partitions.
    _rewind(config, "--to-beginning")
    _drained(config, batches=3)
    assert _again(config) == {0: (14, 25), 1: (14, 25)}
    # Rows are what they were there, those of deleted ones too, and nothing new is among them.
    stepped = {**dict.fromkeys(range(20), "first"), **dict.fromkeys(range(8), "second")}
    assert _rows(place) == stepped
    _drained(config)
    assert (_again(config), _rows(place)) == ({}, {**LOADED, 0: "third"})


@pytest.mark.parametrize("kind", KINDS)
@quick_on("postgres")
def test_killed_at_each_step_of_a_rewind(
    servers: Servers, spark: SparkSession, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    """Each goes further back than the one before, whatever became of that one."""
    place, log = place_of(kind, request, tmp_path), tmp_path / "worker.log"
    config, _ = _loaded(tmp_path, servers, place)
    _damage(kind, place, spark, tmp_path, *DAMAGE)
    for offset, step in zip(reversed(range(len(STEPS))), STEPS, strict=True):
        _rewind(config, "--to-offset", f"0={offset}", "--to-offset", f"1={offset}")
        die_at(step, spark, config, log)
        if step != "planned":
            assert _recorded(config) == [offset, offset]
    drain(spark, config, log)
    assert (_again(config), _rows(place)) == ({}, LOADED)
    assert _recorded(config) == [25, 25]


def _forward(config: Path) -> str:
    done = CliRunner().invoke(
        app, ["offsets", "rewind", f"shop.{NAME}", "--to-offset", "0=26", "-c", str(config)]
    )
    assert done.exit_code == 2
    return done.output


def _recorded(config: Path) -> list[int]:
    """The next offsets that the newest batch has, whether its status was saved or not."""
    with closing(sqlite3.connect(config.with_name("state.db"))) as store:
        text = store.execute("SELECT progress FROM progress_history ORDER BY txn_version DESC").fetchone()[0]
    (topic,) = json.loads(text)["topics"].values()
    return [at[0] for at in topic["partitions"].values()]


def test_what_expired_before_the_worker_came_is_refused_and_the_table_goes_on(
    servers: Servers, spark: SparkSession, tmp_path: Path
) -> None:
    writer = TableWriter(servers, schema_of(NAME))
    config = shop_config(tmp_path, servers)
    for number in range(6):
        writer.upsert({"id": number, "name": "first"})
    _drained(config)
    _rewind(config, "--to-offset", "0=2")
    admin = AdminClient({"bootstrap.servers": servers["brokers"]})
    for done in admin.delete_records([TopicPartition(writer.topic, 0, 4)]).values():
        done.result(60)
    writer.upsert({"id": 0, "name": "second"})
    table = _drained(config)
    assert any(
        "rewind was refused" in one and "no longer has offset 2 of partition 0" in one
        for one in table.warnings
    )
    assert lake_rows(tmp_path, NAME)[0]["name"] == "second"
    # It was refused once and for all.
    assert _drained(config).warnings == ()


@FULL
def test_letters_are_not_replayed_into_rows_that_stepped_back(
    servers: Servers, spark: SparkSession, tmp_path: Path
) -> None:
    writer = TableWriter(servers, schema_of(NAME))
    config = shop_config(tmp_path, servers, {"defaults": {"bad-record": "dead-letter"}})
    writer.upsert({"id": 1, "name": "first"})
    writer.send(b"no key", b"no row")
    _drained(config)
    _rewind(config, "--to-beginning")
    _drained(config, batches=1)
    assert _again(config) == {0: (0, 2)}
    refused = CliRunner().invoke(app, ["dlq", "replay", f"shop.{NAME}", "-c", str(config)])
    assert refused.exit_code == 2
    assert "The table was rewound and is still below the offsets" in refused.output
    _drained(config)
    assert letters_of(config) == [("FramingError", 1, 1)]
    assert "1" in asked(config, "dlq", "replay", f"shop.{NAME}", code=3)


_SECOND: Final = 1000 << 18


def test_a_delete_that_is_forgotten_stays_in_the_sources_order(
    servers: Servers, spark: SparkSession, tmp_path: Path
) -> None:
    """What is read again from before the horizon brings no row back, and is no bad record."""
    options = CodecOptions(enable_tidb_extension=True)
    writer = TableWriter(servers, schema_of(NAME), protocol="canal-json", options=options)
    source = {
        "brokers": servers["brokers"],
        "protocol": "canal-json",
        "topics": [writer.topic],
        "enable-tidb-extension": True,
    }
    defaults = {"sequence_by": "source", "tombstone-retention": "10s"}
    config = shop_config(tmp_path, servers, {"source": source, "defaults": defaults})
    for op, number, second in (
        (Op.INSERT, 1, 90),
        (Op.DELETE, 1, 100),
        (Op.INSERT, 2, 200),
        (Op.INSERT, 3, 201),
    ):
        record = writer.encoded(op, {"id": number, "name": "it"}, commit_ts=second * _SECOND)
        writer.send(record.key, record.value)
    _drained(config)
    place = Place({}, lambda _table: list(lake_rows(tmp_path, NAME).values()))
    assert place.living(TABLE) == {2: "it", 3: "it"}
    _damage("delta", place, spark, tmp_path, "DELETE FROM {} WHERE id = 3")
    said = asked(config, "offsets", "rewind", f"shop.{NAME}", "--to-beginning")
    assert "missing rows are written again" in said
    table = _drained(config)
    assert place.living(TABLE) == {2: "it", 3: "it"}
    counted = [table.counters[word] for word in ("read", "applied", "superseded", "dead_lettered")]
    assert counted == [4, 1, 3, 0]


_FIELDS: Final = [
    {"type": "int32", "optional": False, "field": "id"},
    {"type": "string", "optional": True, "field": "name"},
]
_SOURCE: Final = {"connector": "postgresql", "db": "app", "schema": "shop", "table": NAME}


def _connect(kind: str, fields: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "struct", "optional": False, "name": f"app.shop.{NAME}.{kind}", "fields": fields}


def test_a_value_that_was_left_out_is_missed_by_no_row_that_was_deleted_since(
    servers: Servers, spark: SparkSession, tmp_path: Path
) -> None:
    """Read again from an update on, its row is not there: a later delete took it."""
    topic = f"{servers['prefix']}app.shop.{NAME}"
    create_topics(servers["brokers"], {topic: 1})
    producer = Producer({"bootstrap.servers": servers["brokers"]})
    images = [
        {"type": "struct", "optional": True, "field": f, "fields": _FIELDS} for f in ("before", "after")
    ]
    names = [{"type": "string", "optional": True, "field": name} for name in _SOURCE]
    envelope = _connect(
        "Envelope",
        [
            *images,
            {"type": "struct", "optional": False, "field": "source", "fields": names},
            {"type": "string", "optional": False, "field": "op"},
        ],
    )

    def send(op: str, number: int, name: str) -> None:
        row = {"id": number, "name": name}
        payload = {"before": row if op == "d" else None, "after": None if op == "d" else row}
        value = {"schema": envelope, "payload": {**payload, "source": _SOURCE, "op": op}}
        key = {"schema": _connect("Key", _FIELDS[:1]), "payload": {"id": number}}
        producer.produce(topic, json.dumps(value).encode(), json.dumps(key).encode(), partition=0)
        assert producer.flush(60) == 0

    left_out = "__debezium_unavailable_value"
    for op, number, name in (
        ("c", 1, "large"),
        ("c", 2, "large"),
        ("u", 1, left_out),
        ("u", 2, left_out),
        ("d", 1, "large"),
    ):
        send(op, number, name)
    source = {
        "brokers": servers["brokers"],
        "protocol": "debezium-json",
        "topics": f"{servers['prefix']}app.{{schema}}.{{table}}",
    }
    config = shop_config(tmp_path, servers, {"source": source, "batch": {"max-records": 1}})
    _drained(config)
    _rewind(config, "--to-offset", "0=2")
    _drained(config)
    assert lake_rows(tmp_path, NAME) == {2: {"id": 2, "name": "large"}}
    # Of a row that is new a value is needed, as ever.
    send("u", 3, left_out)
    (table,) = run(load_config(config), until="drained").tables
    assert "ValueNotStoredError" in str(table.error)
