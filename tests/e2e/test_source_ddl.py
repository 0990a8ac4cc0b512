"""DDL of a Debezium connector's own topic: recorded records, workers, and a source that has fewer rows."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import sqlalchemy as sa
from confluent_kafka import Producer
from typer.testing import CliRunner

from tests.e2e.forked_worker import die_at, drain
from tests.e2e.places import KINDS, Place, place_of
from tests.e2e.replay import Servers
from tests.e2e.writing import shop_config
from tests.full import quick_on
from tests.servers import create_topics
from tidesink.cli.main import app
from tidesink.config import load_config
from tidesink.events import TableId
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(1800)]
RECORDED: Final = Path(__file__).parents[1] / "golden" / "data" / "debezium-ddl"
TABLE: Final = TableId("live", "a")
# Of before the rename of a column and of after it: rows without schemas say no types.
BOTH: Final = "CREATE TABLE live.a (id int PRIMARY KEY, v int, w int)"
STEPS: Final = ("planned", "recorded", "committing", "committed", "accounted")


class Source:
    """The connector's topics, and what its database has."""

    def __init__(self, servers: Servers, engine: sa.Engine) -> None:
        self.ddl, self.rows = f"{servers['prefix']}shop", f"{servers['prefix']}shop.live.a"
        create_topics(servers["brokers"], {self.ddl: 1, self.rows: 1})
        self._producer = Producer({"bootstrap.servers": servers["brokers"]})
        self._engine = engine
        text = (RECORDED / "mariadb.jsonl").read_text(encoding="utf-8")
        self._recorded = [json.loads(line) for line in text.splitlines()]
        self._row = json.loads((RECORDED / "row.json").read_text(encoding="utf-8"))

    def execute(self, *statements: str) -> None:
        """At the database alone."""
        with self._engine.begin() as connection:
            for one in statements:
                connection.exec_driver_sql(one)

    def insert(self, *ids: int, more: str = "") -> None:
        """Rows that the connector sends; whether the database has them is another matter.

        ``more``: another column, whose values are ten times the keys.
        """
        for number in ids:
            row = f'"id":{number}'
            key, value = (self._row[n].replace('"id":1', row) for n in ("key", "value"))
            value = value.replace(row, f'{row},"{more}":{number * 10}') if more else value
            self._producer.produce(self.rows, value=value, key=key)
        self._producer.flush(10)

    def send(self, words: str) -> None:
        """The recorded DDL with these words, as sent a while ago."""
        found = [one for one in self._recorded if words in json.loads(one["value"])["ddl"]]
        assert found
        for one in found:
            earlier = int((time.time() - 60) * 1000)
            self._producer.produce(self.ddl, value=one["value"], key=one["key"], timestamp=earlier)
        self._producer.flush(10)


@pytest.fixture
def source(servers: Servers, mariadb_url: str) -> Iterator[Source]:
    """With the table of the recorded records."""
    engine = sa.create_engine(mariadb_url)
    found = Source(servers, engine)
    found.execute("DROP DATABASE IF EXISTS live", "CREATE DATABASE live")
    found.execute("CREATE TABLE live.a (id int PRIMARY KEY)")
    yield found
    found.execute("DROP DATABASE live")
    engine.dispose()


def _config(
    folder: Path,
    servers: Servers,
    source: Source,
    place: Place,
    url: str,
    *,
    definition: str = "CREATE TABLE live.a (id int PRIMARY KEY)",
    **changes: str,
) -> Path:
    settings = {
        "brokers": servers["brokers"],
        "protocol": "debezium-json",
        "topics": [f"{servers['prefix']}shop.{{schema}}.{{table}}"],
        "debezium": {"schema-change-topic": source.ddl},
        "database": url,
    }
    table = {
        "name": str(TABLE),
        "definition": definition,
        "schema-changes": changes,
    }
    target = place.target
    if target["type"] == "mysql":
        target = {**target, "table": "copy_{schema}.{table}"}
    more = {"source": settings, "target": target, "tables": [table], "batch": {"max-records": 2}}
    return shop_config(folder, servers, more)


def _rows(place: Place) -> list[dict[str, Any]]:
    name = TableId("copy_live", "a") if place.target["type"] == "mysql" else TABLE
    return sorted(place.rows(name) or (), key=lambda row: row["id"])


def _ids(place: Place) -> list[int]:
    return [row["id"] for row in _rows(place)]


def _states(path: Path) -> tuple[Sequence[Any], ...]:
    report = run(load_config(path), until="drained")
    return tuple((one.table, one.state, one.error or "") for one in report.tables)


@pytest.mark.parametrize("kind", KINDS)
@quick_on("postgres")
def test_a_statement_waits_and_is_followed_by_a_resync(
    spark: SparkSession,
    tmp_path: Path,
    servers: Servers,
    mariadb_url: str,
    source: Source,
    kind: str,
    request: pytest.FixtureRequest,
) -> None:
    place = place_of(kind, request, tmp_path)
    path = _config(tmp_path, servers, source, place, mariadb_url, **{"drop-table": "apply"})
    source.send("DROP TABLE IF EXISTS")  # of the snapshot: nothing was dropped
    source.insert(1, 2, 3)
    source.execute("INSERT INTO live.a VALUES (3)")
    assert [state for _, state, _ in _states(path)] == ["IDLE"]
    assert _ids(place) == [1, 2, 3]

    source.send("RENAME TABLE live.b TO live.a")
    ((_, state, error),) = _states(path)
    assert (state, _ids(place)) == ("PAUSED", [1, 2, 3])
    assert "rename-table" in error
    shown = CliRunner().invoke(app, ["ddl", "list", "-c", str(path)])
    assert "RENAME TABLE" in shown.output, shown.output
    approved = CliRunner().invoke(app, ["ddl", "approve", str(TABLE), "-c", str(path)])
    assert approved.exit_code == 0, approved.output
    # Changes of after the statement, and behind them a row of before it: more than a batch has.
    source.insert(4, 4, 1)
    source.execute("INSERT INTO live.a VALUES (4)")
    assert [state for _, state, _ in _states(path)] == ["IDLE"]
    assert _ids(place) == [3, 4]

    # Dropped, by policy; the state store is lost, and what was decided is known all the same.
    path.with_name("state.db").unlink()
    assert [state for _, state, _ in _states(path)] == ["IDLE"]
    source.execute("DROP TABLE live.a")
    source.send("DROP TABLE `live`.`a`")
    assert [state for _, state, _ in _states(path)] == ["IDLE"]
    assert _ids(place) == []
    shown = CliRunner().invoke(app, ["ddl", "list", "-c", str(path)])
    assert "applied by policy  drop-table" in shown.output, shown.output


@pytest.mark.parametrize("kind", KINDS)
@quick_on("postgres")
def test_values_of_a_renamed_column_come_by_a_resync(
    spark: SparkSession,
    tmp_path: Path,
    servers: Servers,
    mariadb_url: str,
    source: Source,
    kind: str,
    request: pytest.FixtureRequest,
) -> None:
    """No row says that its new column is the old one: those that do not change would have NULL there."""
    before = [{"id": 1, "v": 10, "w": None}, {"id": 2, "v": 20, "w": None}]
    place = place_of(kind, request, tmp_path)
    path = _config(tmp_path, servers, source, place, mariadb_url, definition=BOTH)
    source.execute("ALTER TABLE live.a ADD COLUMN v int", "INSERT INTO live.a VALUES (1, 10), (2, 20)")
    source.insert(1, 2, more="v")
    assert [state for _, state, _ in _states(path)] == ["IDLE"]
    assert _rows(place) == before

    source.execute("ALTER TABLE live.a RENAME COLUMN v TO w", "INSERT INTO live.a VALUES (3, 30)")
    source.send("ALTER TABLE live.a RENAME COLUMN v TO w")
    source.insert(3, more="w")
    ((_, state, error),) = _states(path)
    assert (state, "RENAME COLUMN v TO w" in error) == ("PAUSED", True)
    assert _rows(place) == before
    approved = CliRunner().invoke(app, ["ddl", "approve", str(TABLE), "-c", str(path)])
    assert approved.exit_code == 0, approved.output
    for _ in range(2):
        assert [(state, error) for _, state, error in _states(path)] == [("IDLE", "")]
    assert {row["id"]: row["w"] for row in _rows(place)} == {1: 10, 2: 20, 3: 30}


@pytest.mark.parametrize("kind", KINDS)
@quick_on()
def test_a_kill_at_each_step_of_a_decision(
    spark: SparkSession,
    tmp_path: Path,
    servers: Servers,
    mariadb_url: str,
    source: Source,
    kind: str,
    request: pytest.FixtureRequest,
) -> None:
    place, log = place_of(kind, request, tmp_path), tmp_path / "worker.log"
    path = _config(tmp_path, servers, source, place, mariadb_url, **{"drop-table": "apply"})
    source.insert(1, 2, 3)
    source.execute("INSERT INTO live.a VALUES (3)")
    drain(spark, path, log)
    for step in STEPS:
        # Dropped and made again, with one row.
        source.send("DROP TABLE `live`.`a`")
        die_at(step, spark, path, log)
        drain(spark, path, log)
        assert _ids(place) == [3]
        source.insert(1, 2)
        drain(spark, path, log)
        assert _ids(place) == [1, 2, 3]
