"""Twelve scripted runs leave the same trace as ever: failpoints, state store, and target.

A change that is meant to keep the behaviour keeps the traces. Each script is short, and its topics are
written before a worker reads them, so that nothing depends on the time. CONTRIBUTING.md explains when a trace
may be written anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest
import sqlalchemy as sa

from tests.contracts.sql_beds import postgres_database
from tests.e2e.live_source import dropped
from tests.e2e.replay import Servers
from tests.e2e.sql_beside import target_of
from tests.e2e.traces import Pipeline, database, lake
from tests.e2e.writing import ID, NAME, TableWriter, schema_of
from tests.postgres_database import admin_dsn
from tidesink.codecs.base import CodecOptions
from tidesink.events import Column, ColumnType, Op, Row, TableId, TableSchema
from tidesink.sinks.targets.sql.location import Endpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(600)]

PRICE: Final = Column("price", ColumnType("decimal", precision=12, scale=2, sql="decimal(12,2)"))
DAY: Final = Column("day", ColumnType("date", sql="date"))
SEEN: Final = Column("seen", ColumnType("datetime", fsp=6, sql="datetime(6)"))
DATA: Final = Column("data", ColumnType("blob", sql="blob"))
SIZE: Final = Column("size", ColumnType("int", sql="int"))
WIDE_SIZE: Final = replace(SIZE, type=ColumnType("bigint", sql="bigint"))
LABEL: Final = Column("label", ColumnType("varchar", length=10, sql="varchar(10)"), default="basic")
# No calendar has it.
NEVER: Final = "0000-00-00"
EXTENDED: Final = CodecOptions(enable_tidb_extension=True)
CANAL: Final[dict[str, Any]] = {"protocol": "canal-json", "enable-tidb-extension": True}
# The database of the source, on the tests' MariaDB.
SOURCE: Final = "traced"


def at(second: int) -> int:
    """The commit_ts of a second of 2024-01-01."""
    return (1_704_067_200 + second) * 1000 << 18


@pytest.fixture
def on_delta(spark: SparkSession, tmp_path: Path, servers: Servers) -> Pipeline:
    """A pipeline into Delta tables in a folder."""
    target = {"type": "delta", "path": "./lake"}
    return Pipeline(tmp_path, servers, target, partial(lake, tmp_path / "lake"), {})


@pytest.fixture
def endpoint(request: pytest.FixtureRequest) -> Endpoint:
    """A Postgres database of the test's own."""
    return postgres_database(request)


@pytest.fixture
def on_postgres(spark: SparkSession, tmp_path: Path, servers: Servers, endpoint: Endpoint) -> Pipeline:
    """A pipeline into a Postgres database."""
    names = {f"{endpoint.host}:{endpoint.port}": "<postgres>", endpoint.database: "<database>"}
    target = target_of(("postgres", endpoint))
    return Pipeline(tmp_path, servers, target, partial(database, endpoint), names)


def canal_writer(pipeline: Pipeline, name: str, *more: Column, partitions: int = 1) -> TableWriter:
    """Writes a table of the shop as canal-json with commit_ts."""
    schema = schema_of(name, *more)
    return TableWriter(
        pipeline.servers, schema, protocol="canal-json", options=EXTENDED, partitions=partitions
    )


def change(writer: TableWriter, op: Op, row: Row, second: int, *, before: Row | None = None) -> None:
    """Send a change that was committed at a second."""
    record = writer.encoded(op, row, before=before, commit_ts=at(second))
    writer.send(record.key, record.value)


def test_upsert(on_delta: Pipeline) -> None:
    """Several batches of two partitions, values of many types, and a second worker."""
    writer = TableWriter(on_delta.servers, schema_of("upsert", PRICE, DAY, SEEN, DATA), partitions=2)
    on_delta.configure(
        {"protocol": "flat-avro", "schema-registry": on_delta.servers["registry_url"]},
        batch={"max-records": 6},
    )

    def put(number: int, name: str | None) -> None:
        row: Row = {
            "id": number,
            "name": name,
            "price": Decimal(f"{number}.50"),
            "day": f"2024-01-{number:02}",
            "seen": f"2024-01-01 00:00:{number:02}.123456",
            "data": name.encode() if name is not None else None,
        }
        writer.upsert(row, partition=number % 2, commit_ts=at(number))

    for number in range(1, 7):
        put(number, "first")
    put(2, "second")
    put(3, None)
    writer.delete({"id": 4, "name": "", "price": None, "day": None, "seen": None, "data": None})
    on_delta.drain()
    put(2, "third")
    put(7, "näher 😀")
    on_delta.drain()
    on_delta.check("upsert")


def test_history(on_delta: Pipeline) -> None:
    writer = canal_writer(on_delta, "history", PRICE)
    on_delta.configure(CANAL, defaults={"mode": "history"}, batch={"max-records": 4})

    def row(number: int, name: str) -> Row:
        return {"id": number, "name": name, "price": Decimal("1.50")}

    change(writer, Op.INSERT, row(1, "one"), 1)
    change(writer, Op.INSERT, row(2, "two"), 2)
    change(writer, Op.UPDATE, row(1, "uno"), 3, before=row(1, "one"))
    change(writer, Op.UPDATE, row(1, "un"), 3, before=row(1, "uno"))
    change(writer, Op.DELETE, row(2, "two"), 4)
    change(writer, Op.INSERT, row(2, "zwei"), 5)
    change(writer, Op.UPDATE, row(3, "moved"), 6, before=row(1, "un"))
    on_delta.drain()
    on_delta.check("history")


def test_append(on_postgres: Pipeline) -> None:
    """Debezium's events, with an image of the row before an update."""
    writer = TableWriter(on_postgres.servers, schema_of("append", PRICE), protocol="debezium-json")
    on_postgres.configure(
        {"protocol": "debezium-json", "topics": [writer.topic]},
        defaults={"mode": "append", "metadata": {"op": "kind", "topic": "of_topic", "batch": "of_batch"}},
        batch={"max-records": 3},
    )

    def row(number: int, name: str) -> Row:
        return {"id": number, "name": name, "price": Decimal("1.50")}

    change(writer, Op.INSERT, row(1, "one"), 1)
    change(writer, Op.UPDATE, row(1, "uno"), 2, before=row(1, "one"))
    change(writer, Op.INSERT, row(2, "two"), 3)
    change(writer, Op.DELETE, row(1, "uno"), 4)
    on_postgres.drain()
    on_postgres.check("append")


@pytest.mark.law("L4")
def test_key_change(on_postgres: Pipeline) -> None:
    """Updates of the key in the source's order, some of them late."""
    writer = canal_writer(on_postgres, "moved", partitions=2)
    on_postgres.configure(CANAL, defaults={"sequence_by": "source"}, batch={"max-records": 4})

    def move(old: int, new: int, second: int, *, partition: int = 0) -> None:
        before: Row = {"id": old, "name": "it"}
        row: Row = {"id": new, "name": "it"}
        record = writer.encoded(Op.UPDATE, row, before=before, commit_ts=at(second))
        writer.send(record.key, record.value, partition=partition)

    change(writer, Op.INSERT, {"id": 1, "name": "it"}, 1)
    change(writer, Op.INSERT, {"id": 2, "name": "other"}, 2)
    move(1, 5, 3)
    move(5, 6, 4, partition=1)
    on_postgres.drain()
    move(6, 1, 6)
    change(writer, Op.UPDATE, {"id": 6, "name": "late"}, 5, before={"id": 6, "name": "it"})
    on_postgres.drain()
    on_postgres.check("key_change")


def test_truncate(on_delta: Pipeline) -> None:
    writer = canal_writer(on_delta, "emptied", partitions=2)
    on_delta.configure(CANAL, defaults={"schema-changes": {"truncate": "apply"}})
    writer.ddl("CREATE TABLE shop.emptied (id BIGINT PRIMARY KEY, name VARCHAR(40))", commit_ts=at(1))
    for number in range(1, 4):
        writer.upsert({"id": number, "name": "before"}, partition=number % 2, commit_ts=at(1 + number))
    on_delta.drain()
    writer.upsert({"id": 9, "name": "void"}, partition=1, commit_ts=at(5))
    writer.ddl("TRUNCATE TABLE shop.emptied", commit_ts=at(6))
    writer.upsert({"id": 2, "name": "after"}, commit_ts=at(7))
    on_delta.drain()
    on_delta.check("truncate")


def test_bad_record(on_postgres: Pipeline) -> None:
    """The table pauses before the record. Then the record becomes a dead letter."""
    writer = TableWriter(on_postgres.servers, schema_of("spoilt"))
    source = {"protocol": "flat-avro", "schema-registry": on_postgres.servers["registry_url"]}
    on_postgres.configure(source)
    writer.upsert({"id": 1, "name": "one"}, commit_ts=at(1))
    bad = writer.encoded(Op.INSERT, {"id": 2, "name": "two"}, commit_ts=at(2))
    assert bad.value is not None
    writer.send(bad.key, bad.value[:-2])
    writer.upsert({"id": 3, "name": "three"}, commit_ts=at(3))
    on_postgres.drain(code=3)
    on_postgres.configure(source, defaults={"bad-record": "dead-letter"})
    on_postgres.drain()
    on_postgres.tidesink("dlq", "list")
    on_postgres.check("bad_record")


class SourceTable:
    """A table of the source database, which the topic ``writer`` has only a part of."""

    def __init__(self, pipeline: Pipeline, engine: sa.Engine) -> None:
        self._engine = engine
        schema = TableSchema(TableId(SOURCE, "orders"), (ID, NAME))
        self.writer = TableWriter(pipeline.servers, schema, protocol="canal-json", options=EXTENDED)
        create = f"CREATE TABLE {SOURCE}.orders (id BIGINT PRIMARY KEY, name VARCHAR(40))"
        self.execute(f"CREATE DATABASE {SOURCE}", f"{create} STATS_AUTO_RECALC=0")
        self.writer.ddl(create, commit_ts=at(0))

    def execute(self, *statements: str) -> None:
        """Change the table. No event of it is sent."""
        with self._engine.begin() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    def load(self, *numbers: int, name: str) -> None:
        """Write rows, and have the database count them: the number is an estimate otherwise."""
        self.execute(
            *(f"REPLACE INTO {SOURCE}.orders VALUES ({number}, '{name}')" for number in numbers),  # noqa: S608
            f"ANALYZE TABLE {SOURCE}.orders",
        )


@contextmanager
def source_table(pipeline: Pipeline, url: str) -> Iterator[SourceTable]:
    """A table of the source database, dropped at the end; the pipeline reads it in ranges of four rows."""
    engine = sa.create_engine(f"{url}?charset=utf8mb4")
    pipeline.source["database"] = {"url": url, "chunk-rows": 4, "connections": 1}
    pipeline.hide({f"{engine.url.host}:{engine.url.port}": "<mariadb>"})
    with dropped(engine, SOURCE):
        yield SourceTable(pipeline, engine)


def test_snapshot(on_delta: Pipeline, mariadb_url: str) -> None:
    """Three parts from the database, and changes of the topic between them."""
    with source_table(on_delta, mariadb_url) as table:
        table.load(*range(1, 10), name="stored")
        on_delta.configure(CANAL, defaults={"snapshot": "initial"}, batch={"max-records": 4})
        for number in (2, 5, 8, 11, 12):
            change(table.writer, Op.INSERT, {"id": number, "name": "sent"}, number)
        change(table.writer, Op.DELETE, {"id": 12, "name": "sent"}, 13)
        on_delta.drain()
        on_delta.tidesink("snapshot", "status")
        on_delta.check("snapshot")


def test_resync(on_postgres: Pipeline, mariadb_url: str) -> None:
    """A row is missing, one has another value, and one exists only in the target."""
    with source_table(on_postgres, mariadb_url) as table:
        table.load(*range(1, 7), name="stored")
        on_postgres.configure(CANAL, batch={"max-records": 4})
        for number in (*range(1, 6), 7):
            name = "other" if number == 3 else "stored"
            change(table.writer, Op.INSERT, {"id": number, "name": name}, number)
        on_postgres.drain()
        on_postgres.tidesink("resync", f"{SOURCE}.orders")
        on_postgres.drain()
        on_postgres.check("resync")


def test_rewind(on_postgres: Pipeline, endpoint: Endpoint) -> None:
    """Rows that the target lost come back."""
    writer = TableWriter(on_postgres.servers, schema_of("again"))
    source = {"protocol": "flat-avro", "schema-registry": on_postgres.servers["registry_url"]}
    on_postgres.configure(source, batch={"max-records": 4})
    for number in range(1, 6):
        writer.upsert({"id": number, "name": "first"}, commit_ts=at(number))
    writer.upsert({"id": 4, "name": "second"}, commit_ts=at(6))
    on_postgres.drain()
    with psycopg.connect(admin_dsn(endpoint)) as connection:
        connection.execute("DELETE FROM shop.again WHERE id >= 4")
    on_postgres.tidesink("offsets", "rewind", "shop.again", "--to-offset", "0=3")
    on_postgres.drain()
    on_postgres.check("rewind")


def test_cut(on_delta: Pipeline) -> None:
    """Two cuts of two tables; rows after a cut wait."""
    writers = [canal_writer(on_delta, name) for name in ("debit", "credit")]
    tables = [
        {
            "name": f"shop.{name}",
            "definition": f"CREATE TABLE {name} (id BIGINT PRIMARY KEY, name VARCHAR(40))",
        }
        for name in ("debit", "credit")
    ]
    on_delta.configure(CANAL, cuts={"every": "1m"}, tables=tables, batch={"max-tables": 1})

    def commit(number: int, second: int) -> None:
        for writer in writers:
            change(writer, Op.INSERT, {"id": number, "name": f"at {second}"}, second)

    # The table with more records comes first.
    change(writers[0], Op.INSERT, {"id": 9, "name": "at 5"}, 5)
    commit(1, 10)
    commit(2, 20)
    commit(1, 70)
    for writer in writers:
        writer.watermark(at(75))
    on_delta.drain()
    change(writers[0], Op.DELETE, {"id": 9, "name": "at 5"}, 125)
    commit(3, 130)
    for writer in writers:
        writer.watermark(at(135))
    on_delta.drain()
    on_delta.tidesink("cut", "list")
    on_delta.check("cut")


def test_replay(on_delta: Pipeline) -> None:
    """Of two dead letters one is applied: the other's row has a newer change."""
    writer = canal_writer(on_delta, "replayed", DAY)

    def put(number: int, name: str, day: str, second: int) -> None:
        change(writer, Op.INSERT, {"id": number, "name": name, "day": day}, second)

    on_delta.configure(CANAL, defaults={"bad-record": "dead-letter", "zero-date": "error"})
    put(1, "too late", NEVER, 1)
    put(2, "lost", NEVER, 2)
    put(1, "one", "2024-01-01", 3)
    on_delta.drain()
    on_delta.configure(CANAL, defaults={"bad-record": "dead-letter", "zero-date": "null"})
    on_delta.tidesink("dlq", "replay", "shop.replayed")
    on_delta.tidesink("dlq", "list")
    on_delta.check("replay")


def test_widened(on_postgres: Pipeline) -> None:
    """A column gets a wider type, and another is added, by DDL in the topic."""
    writer = canal_writer(on_postgres, "widened", SIZE)
    on_postgres.configure(CANAL)
    writer.ddl(
        "CREATE TABLE shop.widened (id BIGINT PRIMARY KEY, name VARCHAR(40), size INT)", commit_ts=at(1)
    )
    change(writer, Op.INSERT, {"id": 1, "name": "small", "size": 1}, 2)
    on_postgres.drain()
    writer.ddl(
        "ALTER TABLE shop.widened MODIFY size BIGINT, ADD COLUMN label VARCHAR(10) DEFAULT 'basic'",
        commit_ts=at(3),
    )
    writer.schema = schema_of("widened", WIDE_SIZE, LABEL)
    change(writer, Op.INSERT, {"id": 2, "name": "large", "size": 2**40, "label": "gold"}, 4)
    on_postgres.drain()
    on_postgres.check("widened")
