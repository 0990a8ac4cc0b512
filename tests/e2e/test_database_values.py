"""A row that is read by SQL has the values that its change event has: each row of the vectors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any, Final

import pymysql
import pytest
import sqlalchemy as sa
from pymysql.constants import CLIENT

from tests.e2e.capture_rows import as_declared, different, json_plan, messages_of, table_differences
from tests.e2e.vector_rows import DatabaseRows, VectorTable, run, vector_tables
from tests.golden.debezium_captures import Capture
from tests.golden.each_capture import each_capture
from tests.golden.exclusions import UNREADABLE
from tests.golden.vectors import Record, find_folders, schema_of
from tests.mysql_values import own_database
from tests.spark.decoded import Decoded, decode_here
from tests.vectors import vectors_dir
from tidesink.codecs.options import DebeziumOptions
from tidesink.events import TableId
from tidesink.schema_registry.naming import sanitize_name
from tidesink.sinks.decode.canal_json import canal_json_plan
from tidesink.sinks.decode.debezium_avro import debezium_avro_plan
from tidesink.sinks.decode.flat_avro import flat_avro_plan
from tidesink.sinks.decode.plans import DecodePlan, PlanSettings, SubjectSchemas
from tidesink.sinks.spark.payloads import UPSERT

pytestmark = pytest.mark.servers

CODECS: Final = ("avro", "canal-json", "debezium", "debezium-avro")
# A fault of TiCDC's: NULL in a column with a default is written as the default. A row read by SQL has NULL.
NULL_AS_DEFAULT: Final = ("debezium", "debezium-avro")


def _plan(table: VectorTable, records: list[Record], schemas: Mapping[int, str]) -> DecodePlan:
    """The plan of some records of one changefeed."""
    codec, zone, named = records[0].raw["codec"], records[0].time_zone, table.schema.table
    if codec == "canal-json":
        return canal_json_plan(table.schema, PlanSettings(time_zone=zone, logs=True))
    if codec == "debezium":
        messages = [record.message for record in records]
        without = bool(records[0].config["debezium-disable-schema"])
        definition = as_declared(table.schema) if without else None
        return json_plan(named, messages, DebeziumOptions(time_zone=zone), definition, zone)
    keys, values = (
        {number: schemas[number] for record in records if (number := record.raw.get(f"{part}_schema_id"))}
        for part in ("key", "value")
    )
    make = flat_avro_plan if codec == "avro" else debezium_avro_plan
    return make(named, SubjectSchemas(keys, values), PlanSettings(time_zone=zone, logs=True))


def test_rows_of_the_vectors(pytestconfig: pytest.Config, mariadb_url: str) -> None:
    compared, differing = 0, list[str]()
    with own_database(mariadb_url) as (connection, schema):
        run(connection, "SET sql_mode = 'ALLOW_INVALID_DATES'")
        for folder in find_folders(vectors_dir(pytestconfig)):
            for number, table in enumerate(vector_tables(folder, CODECS)):
                name = f"{folder.name}{number}"
                table.create(connection, name)
                rows = DatabaseRows.of(connection, mariadb_url, TableId(schema, name))
                for records in _changefeeds(table.records):
                    count, found = _compared(table, records, rows, folder.schemas)
                    compared += count
                    differing += found
    assert differing == []
    assert compared > 300


def _changefeeds(records: list[Record]) -> Iterable[list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        if not any(one.matches(record.name) for one in UNREADABLE):
            found.setdefault(f"{record.raw['codec']} {record.config}", []).append(record)
    return found.values()


def _compared(
    table: VectorTable, records: list[Record], rows: DatabaseRows, schemas: Mapping[int, str]
) -> tuple[int, list[str]]:
    """How many rows were compared, and in what they differ."""
    plan = _plan(table, records, schemas)
    lacking = {column.name for column in table.schema.columns} - {column.name for column in table.stored}
    assert rows.lost(plan) <= {*lacking, *map(sanitize_name, lacking)}
    stored = {one.offset: (one, values) for one, values in rows.decoded(plan)}
    numbers = {event["event"]: number for number, event in enumerate(table.events)}
    found = {one.offset: one for one in decode_here(plan, [record.message for record in records])}
    compared, differing = 0, list[str]()
    for record in records:
        event = found[record.line]
        if event.kind != UPSERT or record.event is None:
            continue
        one, values = stored[numbers[record.event["event"]]]
        compared += 1
        differing += _differences(record, event, one, values, plan)
    return compared, differing


def _differences(
    record: Record, event: Decoded, one: Decoded, values: Mapping[str, Any], plan: DecodePlan
) -> Iterator[str]:
    if one.kind != UPSERT:
        yield f"{record.name}: {one.error} {one.reason}"
        return
    as_default = {
        column.name
        for column in schema_of(record.event or {}).columns
        if column.default is not None and record.raw["codec"] in NULL_AS_DEFAULT
    }
    for name, value in values.items():
        if value is not None or name not in as_default:
            yield from different(record.name, name, value, (event.after or {})[name], plan)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    each_capture(metafunc, kind=lambda one: not one.is_postgres)


# Without a key, or renamed while the topic has its old name.
_LEFT_OUT: Final = ("t_nopk", "late_t", "late_t2", "dbz_signal")
_OTHERWISE: Final = {
    ("orders", "updated_at"): "its default is the moment of the insert, which is another one here",
    ("t_str", "uu"): "a fault of the connector: it shifts MariaDB's UUID of the binary log by two bytes",
}


def test_rows_of_a_capture(capture: Capture, mariadb_url: str) -> None:
    """A connector's events and the database that it read, as its statements leave it."""
    with own_database(mariadb_url) as (connection, schema):
        _replay(connection, schema, capture)
        tables = [name for name in messages_of(capture, "labdb") if name not in _LEFT_OUT]
        assert len(tables) >= 3
        differing = list[str]()
        for name in tables:
            rows = DatabaseRows.of(connection, mariadb_url, TableId(schema, name))
            differing += table_differences(capture, TableId("labdb", name), rows, _OTHERWISE)
    assert differing == []


def _replay(connection: sa.Connection, schema: str, capture: Capture) -> None:
    """All statements of the capture's source. t_gen, which they drop, has virtual columns: it stays."""
    url = connection.engine.url.set(database=None)
    quoted = "`" + schema.replace("`", "``") + "`"
    with closing(
        pymysql.connect(
            host=url.host,
            port=url.port or 3306,
            user=url.username,
            password=url.password or "",
            charset="utf8mb4",
            client_flag=CLIENT.MULTI_STATEMENTS,
        )
    ) as session:
        for script in sorted(capture.path.parent.glob("mariadb_*.sql")):
            text = script.read_text(encoding="utf-8").replace("labdb.", f"{quoted}.")
            text = re.sub(r"\blabdb\b(?!\.)", quoted.replace("\\", ""), text)
            text = text.replace("DO SLEEP(4);", "").replace("DROP TABLE t_gen;", "")
            with session.cursor() as cursor:
                cursor.execute(text)
                while cursor.nextset():
                    pass
            session.commit()
