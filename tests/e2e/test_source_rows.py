"""Rows read from the database in ranges of a key have the values of their events, and none is missed."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Final
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa

from tests.e2e.live_source import dropped
from tests.mysql_values import COLUMNS, VIRTUAL, make_wide, own_database
from tests.spark.decoded import decode_here
from tests.tidb_front import clock_at, commit_ts, next_tso
from tidesink.config import Config
from tidesink.ddl.catalog import parse_create_table
from tidesink.errors import ConfigError, SourceUnavailableError
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.sinks.batch.source_rows import KeyRange, KeyShare, RowInput, SourceRows, key_ranges, source_plan
from tidesink.sinks.decode.canal_json import canal_json_plan
from tidesink.sinks.decode.plans import PlanSettings
from tidesink.sinks.decode.records import BAD
from tidesink.sinks.snapshots.parts import all_ranges
from tidesink.source_database.base import StoredTable
from tidesink.source_database.database import begin_session, stored_table
from tidesink.source_database.mysql import create_statement
from tidesink.typemap.table import spark_type
from tidesink.typemap.values import target_reader, text_reader

pytestmark = pytest.mark.servers
_ALL: Final = KeyRange()
_WHOLE: Final = RowInput("rows", 0, _ALL, 1)

ZONE: Final = "Europe/Berlin"


@pytest.fixture
def database(mariadb_url: str) -> Iterator[tuple[sa.Connection, str]]:
    """A database of the test's own."""
    with own_database(mariadb_url) as found:
        yield found


def _stored(connection: sa.Connection, table: TableId) -> StoredTable:
    found = stored_table(connection, table)
    assert found is not None
    return found


def _source(url: str, table: TableId, stored: StoredTable) -> SourceRows:
    columns = tuple(Column(name, kind, handle=name in stored.key) for name, kind in stored.types.items())
    return SourceRows(url, TableSchema(table, columns), stored.key, stored.types)


def _types(source: SourceRows) -> dict[str, ColumnType]:
    return {column.name: column.type for column in source.schema.columns}


def _decoded(source: SourceRows, keys: KeyRange = _ALL) -> list[dict[str, Any]]:
    """The rows of a range as the worker's task decodes them."""
    plan = canal_json_plan(source.schema, PlanSettings(keys=source.key, time_zone=ZONE))
    plan, _ = source_plan(plan, StoredTable(_types(source), source.key, 0, 0))
    rows = []
    for records in source(RowInput("rows", 0, keys, 1)):
        found = plan.decoder.decode_batch(records)
        assert found.faults == ()
        for table in found.tables:
            assert table.rows["op"].to_pylist() == ["upsert"] * len(table.rows)
            rows += table.rows["after"].to_pylist()
    return rows


def test_every_type_has_the_value_of_its_event(mariadb_url: str, database: tuple[sa.Connection, str]) -> None:
    connection, schema = database
    make_wide(connection, "wide", "id")
    table = TableId(schema, "wide")
    stored = _stored(connection, table)
    (row,) = _decoded(_source(mariadb_url, table, stored))
    expected = {}
    for name, (_, _, text) in COLUMNS.items():
        kind = stored.types[name]
        read = target_reader(kind, time_zone=ZoneInfo(ZONE), zero_date="null")
        expected[name] = None if text is None else read(text_reader(kind)(text))
    assert row == expected
    assert list(row) == list(COLUMNS)


_AWKWARD: Final = r"""CREATE TABLE `a``w%%d` (
  `i``d` bigint NOT NULL AUTO_INCREMENT COMMENT 'it''s, `x` int (\\ %%)',
  en enum('a\\b','it''s','x,y)') NOT NULL DEFAULT 'it''s',
  word varchar(7) CHARACTER SET latin1 DEFAULT 'a\\''b' COMMENT 'line\none',
  raw varchar(7) CHARACTER SET binary, js json,
  at timestamp(3) NOT NULL DEFAULT current_timestamp(3) ON UPDATE current_timestamp(3),
  up varchar(9) AS (concat(word, ')', ',')) VIRTUAL, st int AS (ascii(word)) STORED,
  num decimal(12,4) unsigned NOT NULL DEFAULT 1.5000 CHECK (num > 0),
  PRIMARY KEY (`i``d`, num), KEY w (word(3)), KEY k (en)
) COMMENT='t, (x)' PARTITION BY HASH(`i``d`) PARTITIONS 2"""


def test_a_tables_definition_is_read_as_its_create_table_in_a_topic(
    mariadb_url: str, database: tuple[sa.Connection, str]
) -> None:
    connection, schema = database
    make_wide(connection, "wide", "id")
    connection.exec_driver_sql(_AWKWARD)
    connection.exec_driver_sql("CREATE VIEW seen AS SELECT id FROM wide")
    begin_session(connection)
    created = parse_create_table(_AWKWARD.replace("%%", "%"))
    assert _essence(_defined(connection, TableId(schema, "a`w%d"))) == _essence(created)
    wide = ", ".join(f"{name} {sql}" for name, (sql, _, _) in COLUMNS.items())
    created = parse_create_table(f"CREATE TABLE wide ({wide}, {VIRTUAL}, PRIMARY KEY (id)) CHARSET utf8mb4")
    assert _essence(_defined(connection, TableId(schema, "wide"))) == _essence(created)
    assert create_statement(connection, TableId(schema, "seen")) is None
    assert create_statement(connection, TableId(schema, "gone")) is None


def test_a_definition_holds_from_the_beginning_of_its_millisecond(tidb_url: str) -> None:
    """DDL behind the look may say no finer time than that, and must not count as older."""
    soon = commit_ts(datetime.now(timezone.utc) + timedelta(minutes=1))
    with own_database(tidb_url) as (connection, schema):
        connection.exec_driver_sql("CREATE TABLE t (id int PRIMARY KEY)")
        with clock_at(soon + 5):
            found = create_statement(connection, TableId(schema, "t"))
    assert found is not None
    assert found[1] == soon


def _defined(connection: sa.Connection, table: TableId) -> TableSchema:
    found = create_statement(connection, table)
    assert found is not None
    statement, since = found
    assert abs(since - commit_ts(datetime.now(timezone.utc))) < 60_000 << 18
    return parse_create_table(statement)


def _essence(schema: TableSchema) -> list[tuple[object, ...]]:
    """What a plan makes of columns; the server spells some types otherwise than they were given."""
    return [
        (one.name, spark_type(one.type), one.type.members, one.nullable, one.handle, one.virtual, one.default)
        for one in schema.columns
    ]


@pytest.mark.parametrize(
    "key",
    ["ti", "bu", "bi", "f1", "d4", "de", "dw", "ch", "vc", "la", "bn", "vb", "b9", "b64", "en", "se", "da",
     "dt", "ts", "tm", "ye", "id, vc, ts"],
)  # fmt: skip
def test_a_key_of_every_type_bounds_a_range(
    mariadb_url: str, database: tuple[sa.Connection, str], key: str
) -> None:
    connection, schema = database
    make_wide(connection, "keyed", key)
    table = TableId(schema, "keyed")
    stored = _stored(connection, table)
    begin_session(connection)
    assert key_ranges(connection, table, stored, after=None, rows=1, most=5) == (KeyRange(),)
    # The row once more: the first range ends at a key, and no row is above it.
    names = ", ".join(column for column, (_, value, _) in COLUMNS.items() if value)
    connection.exec_driver_sql("ALTER TABLE keyed DROP PRIMARY KEY")
    connection.exec_driver_sql(f"INSERT INTO keyed ({names}) SELECT {names} FROM keyed")  # noqa: S608
    found = key_ranges(connection, table, stored, after=None, rows=1, most=5)
    assert [part.up_to is None for part in found] == [False, True]
    source = _source(mariadb_url, table, stored)
    assert [len(_decoded(source, keys)) for keys in found] == [2, 0]


_KEYS: Final = (
    "name varchar(10) collate utf8mb4_general_ci, id bigint unsigned",
    "b varbinary(4), d decimal(12,3), t timestamp(6)",
    "e enum('z','a','m'), s varchar(10) character set latin1, y year",
)


def _key_row(rng: random.Random) -> dict[str, object]:
    return {
        "name": rng.choice(("", "a", "B", "c ", "Ä", "é%_'\\", "ß")),
        "id": rng.choice((0, 1, 2**63, 2**64 - 1, rng.randrange(2**64))),
        "b": rng.randbytes(rng.randrange(4)),
        "d": Decimal(rng.randrange(-(10**9), 10**9)) / 1000,
        "t": f"2024-10-27 00:{rng.randrange(60):02}:{rng.randrange(60):02}.{rng.randrange(10**6):06}",
        "e": rng.choice("zam"),
        "s": rng.choice(("", "é", "ü", "x", "Y")),
        "y": rng.randrange(1970, 2100),
    }


@pytest.mark.parametrize("columns", _KEYS)
def test_ranges_hold_every_row_once(
    mariadb_url: str, database: tuple[sa.Connection, str], columns: str
) -> None:
    connection, schema = database
    names = [part.split()[0] for part in columns.split(", ")]
    connection.exec_driver_sql(f"CREATE TABLE k ({columns}, PRIMARY KEY ({', '.join(names)}))")
    rng, written = random.Random(3), 0
    insert = sa.text(f"INSERT IGNORE INTO k VALUES ({', '.join(f':{name}' for name in names)})")  # noqa: S608
    for _ in range(400):
        written += connection.execute(insert, _key_row(rng)).rowcount
    table = TableId(schema, "k")
    stored = _stored(connection, table)
    assert stored.key == tuple(names)
    begin_session(connection)
    found: list[KeyRange] = []
    while not found or found[-1].up_to is not None:
        after = found[-1].up_to if found else None
        found += key_ranges(connection, table, stored, after=after, rows=7, most=3)
    source = _source(mariadb_url, table, stored)
    rows = [_decoded(source, keys) for keys in found]
    assert [len(part) for part in rows[:-1]] == [7] * (len(found) - 1)
    every = [tuple(row.values()) for part in rows for row in part]
    assert len(every) == len(set(every)) == written > 100


def test_a_row_of_more_bytes_than_a_packet_holds(
    mariadb_url: str, database: tuple[sa.Connection, str]
) -> None:
    connection, schema = database
    connection.exec_driver_sql("CREATE TABLE large (id int primary key, t longtext, b longblob)")
    connection.exec_driver_sql(
        "INSERT INTO large VALUES (1, 'a', NULL), (2, repeat('ä€', 2000000), repeat(x'00FF', 3000000)), "
        "(3, NULL, '')"
    )
    table = TableId(schema, "large")
    rows = _decoded(_source(mariadb_url, table, _stored(connection, table)))
    assert [tuple(row.values()) for row in rows] == [
        (1, "a", None),
        (2, "ä€" * 2_000_000, b"\x00\xff" * 3_000_000),
        (3, None, b""),
    ]


def test_a_connection_that_is_killed_in_the_midst_of_rows_is_told(
    mariadb_url: str, database: tuple[sa.Connection, str]
) -> None:
    connection, schema = database
    connection.exec_driver_sql("CREATE TABLE cut_off (id int primary key, t text)")
    # More than what waits on its way.
    connection.exec_driver_sql("INSERT INTO cut_off SELECT seq, repeat('x', 10000) FROM seq_1_to_5000")
    table = TableId(schema, "cut_off")
    rows = _source(mariadb_url, table, _stored(connection, table))(_WHOLE)
    assert next(rows).num_rows > 1
    reading = (
        "SELECT id FROM information_schema.processlist WHERE info LIKE '%%cut\\_off%%' "
        "AND id <> connection_id()"
    )
    connection.exec_driver_sql(f"KILL {connection.exec_driver_sql(reading).scalar_one()}")
    with pytest.raises(SourceUnavailableError, match="does not answer"):
        list(rows)


def test_a_table_without_a_usable_key_has_none(database: tuple[sa.Connection, str]) -> None:
    connection, schema = database
    connection.exec_driver_sql("CREATE TABLE bare (a int, unique key (a))")
    connection.exec_driver_sql("CREATE TABLE begun (a varchar(50) not null, unique key (a(3)))")
    connection.exec_driver_sql("CREATE TABLE named (a int not null, b int, unique key u (a), key (b))")
    assert _stored(connection, TableId(schema, "bare")).key == ()
    assert _stored(connection, TableId(schema, "begun")).key == ()
    assert _stored(connection, TableId(schema, "named")).key == ("a",)
    assert stored_table(connection, TableId(schema, "absent")) is None


def test_a_database_that_refuses_or_is_silent_is_told_without_secrets(mariadb_url: str) -> None:
    url = sa.engine.make_url(mariadb_url)
    table, stored = TableId("mysql", "user"), StoredTable({}, (), 0, 0)
    refused = url.set(username="nobody", password="SECRET").render_as_string(hide_password=False)
    silent = url.set(port=1, password="SECRET").render_as_string(hide_password=False)
    for place, error in ((refused, ConfigError), (silent, SourceUnavailableError)):
        source = _source(place, table, stored)
        assert "SECRET" not in repr(source)
        with pytest.raises(error) as caught:
            list(source(_WHOLE))
        assert "SECRET" not in str(caught.value)
        assert "source.database" in str(caught.value)


def test_a_column_that_went_since_is_told(mariadb_url: str, database: tuple[sa.Connection, str]) -> None:
    connection, schema = database
    connection.exec_driver_sql("CREATE TABLE went (id int primary key, gone int)")
    table = TableId(schema, "went")
    source = _source(mariadb_url, table, _stored(connection, table))
    connection.exec_driver_sql("ALTER TABLE went DROP COLUMN gone")
    with pytest.raises(SourceUnavailableError, match="a column was dropped in the source database while"):
        list(source(_WHOLE))


def test_a_value_that_its_type_cannot_hold_is_a_fault(
    mariadb_url: str, database: tuple[sa.Connection, str]
) -> None:
    connection, schema = database
    connection.exec_driver_sql("CREATE TABLE dates (d date primary key, n int)")
    connection.exec_driver_sql("INSERT INTO dates VALUES ('0000-00-00', 1), ('2024-01-01', 2)")
    table = TableId(schema, "dates")
    stored = _stored(connection, table)
    source = _source(mariadb_url, table, stored)
    plan = canal_json_plan(source.schema, PlanSettings(keys=source.key))
    (records,) = source(_WHOLE)
    plan, _ = source_plan(plan, stored)
    found = plan.decoder.decode_batch(records)
    (fault,) = found.faults
    assert fault.record == 0
    assert "0000-00-00" in str(fault.error)
    assert fault.error.context["column"] == "d"
    assert [len(one.rows) for one in found.tables] == [1]
    (bad,) = (one for one in decode_here(plan, records) if one.kind == BAD)
    assert "column 'd'" in str(bad.reason)


def test_rows_stand_at_a_position_that_was_taken_before_them(
    tidb_url: str, mariadb_url: str, database: tuple[sa.Connection, str]
) -> None:
    connection, schema = database
    made = sa.Table("p", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), schema=schema)
    made.create(connection)
    connection.execute(made.insert(), [{"id": 1}, {"id": 2}])
    table = TableId(schema, "p")
    rows = _source(tidb_url, table, _stored(connection, table))
    (records,) = rows(_WHOLE)
    assert records.column("commit_ts").to_pylist() == [None, None]
    before = next_tso()
    (records,) = replace(rows, since=before)(_WHOLE)
    first, second = records.column("commit_ts").to_pylist()
    assert before < first == second < next_tso()
    plan = canal_json_plan(rows.schema, PlanSettings(keys=rows.key, time_zone=ZONE))
    plan, _ = source_plan(plan, StoredTable(_types(rows), rows.key, 0, 0))
    (changes,) = plan.decoder.decode_batch(records).tables
    assert changes.rows["commit_ts"].to_pylist() == [first, first]
    with pytest.raises(SourceUnavailableError, match="reads as of commit_ts"):
        next(iter(replace(rows, since=before << 1)(_WHOLE)))
    with pytest.raises(ConfigError, match="no timestamps that can be compared with a commit_ts"):
        next(iter(replace(rows, url=mariadb_url, since=0)(_WHOLE)))


def test_a_table_that_was_truncated_since_its_ranges_were_cut_is_read_under_its_new_id(tidb_url: str) -> None:
    """Another try of the same part reads, or the table's changes would wait until tries are over."""
    engine = sa.create_engine(tidb_url, isolation_level="AUTOCOMMIT")
    table = TableId(f"t{uuid.uuid4().hex[:8]}", "v")
    with dropped(engine, table.schema), engine.connect() as connection:

        def run(*statements: str) -> None:
            for statement in statements:
                connection.exec_driver_sql(statement.replace("$v", f"{table.schema}.v"))

        number = "_tidb_rowid BIGINT NOT NULL AUTO_INCREMENT INVISIBLE, KEY (_tidb_rowid)"
        fill = "INSERT INTO $v (n) VALUES (1), (2), (3)"
        run(f"CREATE DATABASE {table.schema}", f"CREATE TABLE $v (n INT, {number})", fill)
        before = _stored(connection, table)
        columns = tuple(Column(name, kind) for name, kind in {**before.row_key, **before.types}.items())
        rows = SourceRows(
            tidb_url,
            TableSchema(table, columns),
            before.key,
            before.key_types,
            constants=before.constants,
        )
        going = rows(_WHOLE)
        assert next(going).num_rows == 3
        run("TRUNCATE TABLE $v", fill)
        with pytest.raises(SourceUnavailableError, match="was truncated"):
            next(going)
        (table_id,) = _stored(connection, table).constants.values()
        assert before.constants != {"_tidb_table_id": table_id}
        (records,) = rows(_WHOLE)
        assert records.column("row").field("_tidb_table_id").to_pylist() == [table_id] * 3
        (records,) = rows.of_keys(KeyShare("rows"), [*before.row_key], [("2", table_id), ("3", "1")])
        assert records.column("row").field("n").to_pylist() == ["2"]


def test_rows_come_no_faster_than_the_config_allows(
    mariadb_url: str, database: tuple[sa.Connection, str]
) -> None:
    """A range has as many rows as may be read in five seconds, and is read for as long as they take."""
    connection, schema = database
    table = TableId(schema, "paced")
    connection.exec_driver_sql("CREATE TABLE paced (id int PRIMARY KEY)")
    rows = ", ".join(f"({number})" for number in range(1, 501))
    connection.exec_driver_sql(f"INSERT INTO paced VALUES {rows}")  # noqa: S608
    config = Config.model_validate(
        {
            "pipeline": "shop",
            "source": {
                "brokers": "a:1",
                "protocol": "canal-json",
                "topics": ["shop"],
                "database": {"url": mariadb_url, "rows-per-second": 160, "connections": 2},
            },
            "target": {"path": "./lake"},
        }
    )
    stored = _stored(connection, table)
    ranges = all_ranges(config, table, stored)
    assert [one.up_to for one in ranges] == [("400",), None]
    began = time.monotonic()
    source = replace(_source(mariadb_url, table, stored), rows_per_second=80.0)
    assert len(_decoded(source, ranges[1])) == 100
    assert time.monotonic() - began >= 100 / 80
