"""A row of the source is found by its key as the target has it, whatever the key's type is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

from tests.full import FULL
from tests.mysql_values import COLUMNS, make_wide, own_database
from tests.postgres_database import own_postgres, plain_session, source_connection
from tests.spark.decoded import decode_here
from tidesink.codecs.options import DebeziumModes, DebeziumOptions
from tidesink.ddl.catalog import read_postgres_tables
from tidesink.events import Column, TableId, TableSchema
from tidesink.sinks.batch.source_rows import (
    KeyRange,
    KeyShare,
    RowInput,
    SourceDecoder,
    SourceRows,
    source_plan,
)
from tidesink.sinks.decode.canal_json import canal_json_plan
from tidesink.sinks.decode.debezium_json import Writers, debezium_json_plan
from tidesink.sinks.decode.plans import DecodePlan, PlanSettings
from tidesink.sinks.snapshots.source_keys import KeyColumn, KeyedTask, key_columns
from tidesink.sinks.spark.digests import ComparedColumn, digests
from tidesink.sinks.targets.sql.location import Endpoint
from tidesink.source_database import database
from tidesink.source_database.base import StoredTable
from tidesink.source_database.mysql import stored_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers, FULL]

# Of these there is no text of a value that a key could have: a key is never null.
_NO_KEYS: Final = ("nu", "d0", "dn", "t0")
_ONE: Final = RowInput("rows", 0, KeyRange(), 1)
ZONE: Final = "Europe/Berlin"


def _plan(table: TableId, stored: StoredTable, keys: tuple[str, ...]) -> DecodePlan:
    columns = tuple(Column(name, kind) for name, kind in stored.types.items())
    plan, _ = source_plan(
        canal_json_plan(TableSchema(table, columns), PlanSettings(keys=keys, time_zone=ZONE)), stored
    )
    return plan


def _asked(plan: DecodePlan, key: tuple[str, ...]) -> tuple[KeyColumn, ...] | None:
    return key_columns(plan, key, {one.name: one.spark for one in plan.shape.columns})


def _texts(spark: SparkSession, plan: DecodePlan, *rows: Mapping[str, Any]) -> list[dict[str, str]]:
    """The values as a comparison has those of keys."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    shape = plan.shape
    values = [(at, *(row[one.name] for one in shape.columns)) for at, row in enumerate(rows)]
    frame = session.createDataFrame(values, f"number int, {shape.ddl}")
    columns = [ComparedColumn(one.name, one.spark, True) for one in shape.columns]
    found = digests(frame, [ComparedColumn("number", "int", True), *columns]).select("key").collect()
    texts = sorted((row["key"] for row in found), key=lambda key: int(key[0]))
    return [dict(zip((one.name for one in shape.columns), key[1:], strict=True)) for key in texts]


def test_a_row_is_found_by_a_key_of_each_type(spark: SparkSession, mariadb_url: str) -> None:
    with own_database(mariadb_url) as (connection, schema):
        make_wide(connection, "wide", "id")
        table = TableId(schema, "wide")
        stored = stored_table(connection, table)
        assert stored is not None
        plan = _plan(table, stored, ("id",))
        assert isinstance(plan.decoder, SourceDecoder)
        rows = SourceRows(mariadb_url, plan.decoder.stored, ("id",), stored.types)
        (records,) = rows(_ONE)
        (whole,) = decode_here(plan, records)
        assert whole.after is not None
        (texts,) = _texts(spark, plan, whole.after)
        missed = []
        for key in (*((name,) for name in COLUMNS if name not in _NO_KEYS), ("id", "vc", "ts")):
            asked = _asked(_plan(table, stored, key), key)
            assert asked is not None, key
            # As the shape has the key's columns, whatever order they were given in.
            named = [one.name for one in sorted(asked, key=lambda one: one.at)]
            task = KeyedTask(rows, asked, 0, KeyShare("rows"), lambda _wanted, found: iter([*found]))
            wanted = pa.record_batch({"key": pa.array([[texts[name] for name in named]])})
            found = [one for batch in task([wanted]) for one in decode_here(plan, batch)]
            if [one.after for one in found] != [whole.after]:
                missed.append((key, named, [texts[name] for name in named]))
        assert missed == []


def test_what_is_not_exact_or_has_no_index_is_not_asked_for(mariadb_url: str) -> None:
    with own_database(mariadb_url) as (connection, schema):
        make_wide(connection, "wide", "id")
        table = TableId(schema, "wide")
        stored = stored_table(connection, table)
        assert stored is not None
        assert _asked(_plan(table, stored, ("vc",)), ("id",)) is None
        assert _asked(_plan(table, stored, ("id", "vc")), ("id",)) is not None


# Of types of Postgres values that a key may have; of the last ones there is no exact way back.
_POSTGRES: Final[Mapping[str, tuple[str, ...]]] = {
    "si": ("smallint", "-32768", "0", "32767"),
    "bi": ("bigint", "-9223372036854775808", "0", "9223372036854775807"),
    "oi": ("oid", "4294967295", "0", "1"),
    "n2": ("numeric(10,2)", "1.1", "-99999999.99", "0"),
    "n0": ("numeric(20,0)", "18446744073709551615", "-1", "0"),
    "na": ("numeric", "1.10", "1e30", "-123456789012345678901234567890.1234567890"),
    "mo": ("money", "1234.5", "-0.01", "92233720368547758.07"),
    "re": ("real", "0.1", "-Infinity", "3.4e38"),
    "dp": ("double precision", "0.1", "Infinity", "-2.5e-300"),
    "bo": ("boolean", "true", "false", "false"),
    "ch": ("char(5)", "ab", "", "é😀"),
    "vc": ("varchar(20)", "vär 😀", "a  ", "quote ' \\ %s:x \""),
    "te": ("text", "", "\n\t", "a"),
    "ci": ("citext", "CiText", "a", "ß"),
    "jb": ("jsonb", '{"b": [1.10, null], "a": "é"}', "null", "1"),
    "uu": ("uuid", "550E8400-e29b-41d4-a716-446655440000", "0" * 32, "f" * 32),
    "ip": ("inet", "192.168.0.1/24", "2001:db8::1", "10.0.0.1"),
    "b1": ("bit(1)", "1", "0", "0"),
    "b8": ("bit(8)", "10000001", "00000000", "11111111"),
    "by": ("bytea", "\\x00ff80", "\\x", "\\x27"),
    "da": ("date", "2024-02-29", "0001-01-01", "9999-12-31"),
    "ts": ("timestamp", "2024-02-29 12:34:56.123456", "1969-12-31 23:59:59.999999", "0001-01-01 00:00:00"),
    "tz": ("timestamptz", "2024-02-29 12:34:56.123456+02", "1969-12-31 23:59:59.9+00",
           "9999-12-31 23:59:59.999999+00"),
    "en": ("\"mo%od\"", "ok", "ha,ppy", "sad"),
    "rn": ("numrange", "(1.5,]", "empty", "[0,1]"),
}  # fmt: skip
_NO_WAY_BACK: Final[Mapping[str, tuple[str, ...]]] = {
    "bl": ("bit(70)", "1" + "0" * 69, "0" * 69 + "1", "0" * 70),
    "bv": ("bit varying(10)", "101", "", "0101"),
    "bw": ("bit varying(100)", "1" * 90, "0", ""),
    "ti": ("time", "12:34:56.789123", "00:00:00", "24:00:00"),
    "tt": ("timetz", "12:34:56.5+05:30", "00:30:00+01", "23:00:00.123456-02"),
    "iv": ("interval", "1 year 2 mons 3 days 04:05:06.789", "-1 mons", "30 days"),
    "hs": ("hstore", "k=>v, n=>NULL", "", "a=>b"),
    "ai": ("int[]", "{1,NULL,3}", "{}", "[0:1]={5,6}"),
    "at": ("text[]", '{a,"b,c",NULL}', "{}", "{NULL}"),
}
_MODES: Final = {
    "default": (DebeziumModes(), set()),
    "texts": (
        DebeziumModes(
            decimal_handling_mode="string", time_precision_mode="connect", binary_handling_mode="hex"
        ),
        {"ts"},  # which is cut
    ),
}


@pytest.mark.parametrize("mode", _MODES)
def test_a_row_of_postgres_is_found_by_a_key_of_each_type(
    spark: SparkSession, postgres: Endpoint, mode: str
) -> None:
    """Each value of each type by itself; the types without an exact way back are those that are named."""
    columns, (modes, not_in_mode) = {**_POSTGRES, **_NO_WAY_BACK}, _MODES[mode]
    words = ", ".join(f"{name} {kind}" for name, (kind, *_) in columns.items())
    create = f"CREATE TABLE public.wide (id int PRIMARY KEY, {words})"
    with own_postgres(postgres) as url:
        with plain_session(url) as session:
            session.execute("CREATE EXTENSION citext; CREATE EXTENSION hstore")
            session.execute("CREATE TYPE \"mo%od\" AS ENUM ('sad', 'ok', 'ha,ppy')")
            session.execute(create.encode())
            for number in range(3):
                row = (number, *(words[number + 1] for words in columns.values()))
                marks = ", ".join(["%s"] * len(row))
                session.execute(f"INSERT INTO wide VALUES ({marks})".encode(), row)  # noqa: S608
        with source_connection(url) as connection:
            stored = database.stored_table(connection, TableId("public", "wide"))
        assert stored is not None
        for base in ("bit(70)", "bit varying(100)"):
            create = create.replace(base, "bytea")
        (definition,) = read_postgres_tables(create.replace('"mo%od"', "text"), "public")

        def plan_of(key: str) -> DecodePlan:
            options = DebeziumOptions(debezium=modes)
            plan = debezium_json_plan(
                definition.table, Writers(), PlanSettings(keys=(key,)), definition=definition, options=options
            )
            return source_plan(plan, stored)[0]

        plan = plan_of("id")
        assert isinstance(plan.decoder, SourceDecoder)
        rows = SourceRows(url, plan.decoder.stored, ("id",), stored.types)
        (records,) = rows(_ONE)
        every = [one.after for one in decode_here(plan, records) if one.after is not None]
        assert len(every) == 3
        texts = _texts(spark, plan, *every)
        missed, none = [], set()
        for name in columns:
            asked = _asked(plan_of(name), (name,))
            if asked is None:
                none.add(name)
                continue
            for image, key in zip(every, texts, strict=True):
                task = KeyedTask(rows, asked, 0, KeyShare("rows"), lambda _wanted, found: iter([*found]))
                found = [
                    one.after
                    for batch in task([pa.record_batch({"key": pa.array([[key[name]]])})])
                    for one in decode_here(plan, batch)
                ]
                if image not in found or len(found) > 2:
                    missed.append((name, key[name], found))
        assert missed == []
        assert none == {*_NO_WAY_BACK} | not_in_mode
