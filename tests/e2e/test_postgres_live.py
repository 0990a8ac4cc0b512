"""Postgres with a live connector of Debezium's: rows read by SQL beside the changes that it sends."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.connect_server import Connect, connect_server
from tests.e2e.capture_rows import table_differences
from tests.e2e.debezium_postgres import (
    LiveCapture,
    connector,
    save_capture,
    wait_until_sent,
)
from tests.e2e.forked_worker import die_at, drain
from tests.e2e.killing import steps_of
from tests.e2e.live_source import changing
from tests.e2e.places import place_of
from tests.e2e.replay import Servers
from tests.e2e.vector_rows import DatabaseRows
from tests.e2e.writing import shop_config
from tests.full import FULL
from tests.postgres_database import own_postgres, plain_session, source_connection
from tests.servers import create_topics
from tidesink.config.source import DatabaseSettings
from tidesink.ddl.catalog import read_postgres_tables
from tidesink.events import TableId
from tidesink.sinks.decode.database_types import look_up_in
from tidesink.sinks.targets.sql.location import Endpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [FULL, pytest.mark.servers]


@pytest.fixture(scope="module")
def connect(brokers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connect]:
    """Kafka Connect with the connector."""
    name = f"connect{uuid.uuid4().hex[:8]}"
    with connect_server(brokers, tmp_path_factory.mktemp("connect"), name, "postgres") as found:
        yield found


_SETUP: Final = """
CREATE EXTENSION citext; CREATE EXTENSION hstore; CREATE EXTENSION ltree;
CREATE SCHEMA live; SET search_path = live, public;
CREATE TYPE mood AS ENUM ('sad', 'ok', 'ha,ppy'); CREATE DOMAIN posint AS int CHECK (VALUE > 0);
CREATE TYPE addr AS (street text, zip int);
"""
# By column its type and some values, of which a row each is made.
_COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "si": ("smallint", "-32768", "32767"),
    "bi": ("bigint", "-9223372036854775808", "9223372036854775807"),
    "oi": ("oid", "4294967295"),
    "po": ("posint", "7"),
    "n2": ("numeric(10,2)", "1.1", "-99999999.99", "0"),
    "na": ("numeric", "1.10", "1e30", "0.000", "-123456789012345678901234567890.1234567890", "100"),
    "nw": ("numeric(50,20)", "1.5", "-123456789012345678901234567890.12345678901234567890"),
    "mo": ("money", "1234.5", "-0.01", "92233720368547758.07"),
    "re": ("real", "0.1", "NaN", "-Infinity", "3.4e38", "1e-40"),
    "dp": ("double precision", "0.1", "NaN", "Infinity", "1e300", "-2.5"),
    "bo": ("boolean", "true", "false"),
    "ch": ("char(5)", "ab", ""),
    "vc": ("varchar(20)", "vär 😀", "a  "),
    "te": ("text", "", "quote ' \\ \n\t"),
    "ci": ("citext", "CiText"),
    "js": ("json", '{"a": 1,  "a": [1.10]}', "null"),
    "jb": ("jsonb", '{"b": [1.10, null], "a": "é"}'),
    "xm": ("xml", "<a>1</a>", '<?xml version="1.0"?><b/>'),
    "uu": ("uuid", "550E8400-e29b-41d4-a716-446655440000"),
    "ip": ("inet", "192.168.0.1/24", "2001:db8::1", "10.0.0.1"),
    "cd": ("cidr", "10.0.0.0/8"),
    "ma": ("macaddr", "08:00:2b:01:02:03"),
    "m8": ("macaddr8", "08:00:2b:01:02:03:04:05"),
    "b1": ("bit(1)", "1", "0"),
    "b8": ("bit(8)", "10000001", "00000000"),
    "bl": ("bit(70)", "1" + "0" * 68 + "1"),
    "bv": ("bit varying(10)", "101", ""),
    "bw": ("bit varying(100)", "1" * 90, "0"),
    "by": ("bytea", "\\x00ff80", "\\x"),
    "da": ("date", "2024-02-29", "infinity", "-infinity", "9999-12-31", "1500-02-28"),
    "dm": ("date", "0044-03-15 BC", "0001-01-01", "20000-01-01"),
    "ts": ("timestamp", "2024-02-29 12:34:56.123456", "1969-12-31 23:59:59.999999", "infinity", "-infinity"),
    "t3": ("timestamp(3)", "2024-02-29 12:34:56.789", "9999-12-31 23:59:59"),
    "tm": ("timestamp", "0001-01-01 00:00:00", "0044-03-15 10:00:00 BC", "1500-02-28 01:02:03"),
    "tz": ("timestamptz", "2024-02-29 12:34:56.123456+02", "infinity", "-infinity",
           "1969-12-31 23:59:59.9+00"),
    "z3": ("timestamptz(3)", "2024-02-29 12:34:56.789+00"),
    "zm": ("timestamptz", "0001-01-01 00:00:00+00", "0044-03-15 10:00:00+00 BC", "1500-02-28 01:02:03+00"),
    "ti": ("time", "12:34:56.789123", "00:00:00", "23:59:59.999999"),
    "t24": ("time", "24:00:00"),
    "t0": ("time(0)", "12:34:56"),
    "tt": ("timetz", "12:34:56.5+05:30", "00:30:00+01", "23:00:00.123456-02"),
    "t25": ("timetz", "24:00:00+00"),
    "iv": ("interval", "1 year 2 mons 3 days 04:05:06.789", "-1 mons", "0", "1 mon -1 days -04:05:06.5",
           "-00:00:00.000001", "100:00:10", "-1 year 13 mons"),
    "hs": ("hstore", 'k=>v, n=>NULL, "q\\"uote"=>"b\\\\a,b=>c"', "",
           ", ".join(f"key{n}=>{n}" for n in range(30)) + ", ä=>é"),
    "lt": ("ltree", "Top.Science"),
    "tv": ("tsvector", "'quick':1A 'the':2"),
    "en": ("mood", "ok", "ha,ppy"),
    "r4": ("int4range", "[1,10)", "empty"),
    "rn": ("numrange", "(1.5,]"),
    "rt": ("tstzrange", "[2024-01-01 00:00:00+00,)"),
    "rd": ("daterange", "[2024-01-01,2024-02-01)"),
    "pt": ("point", "(1.5,-2)", "(1e-20,1e300)"),
    "ai": ("int[]", "{1,NULL,3}", "{}", "{{1,2},{3,4}}", "[0:1]={5,6}"),
    "al": ("bigint[]", "{9223372036854775807}"),
    "af": ("real[]", "{0.1,1e10,NULL}"),
    "ad": ("double precision[]", "{0.1,1e300,-3}"),
    "an": ("numeric(10,2)[]", "{1.1,-2}"),
    "au": ("numeric[]", "{1.10,1e3}"),
    "at": ("text[]", '{a,"b,c",NULL,"q\\"x\\\\y","","NULL","{}"}'),
    "av": ("varchar(5)[]", "{ab}"),
    "ac": ("char(3)[]", "{a}"),
    "ab": ("boolean[]", "{t,f,NULL}"),
    "aa": ("date[]", "{2024-01-01,1969-12-31}"),
    "as": ("timestamp[]", '{"2024-01-01 00:00:00.000001","1969-12-31 23:59:59.5"}'),
    "a3": ("timestamp(3)[]", '{"2024-01-01 00:00:00.5"}'),
    "az": ("timestamptz[]", '{"2024-01-01 00:00:00.1+02"}'),
    "ay": ("timestamptz(3)[]", '{"2024-01-01 00:00:00.1+02"}'),
    "ak": ("time[]", "{12:34:56.5}"),
    "ax": ("timetz[]", "{12:34:56.5+02}"),
    "ag": ("uuid[]", "{550e8400-e29b-41d4-a716-446655440000}"),
    "aj": ("jsonb[]", '{"{\\"a\\": 1}"}'),
    "ae": ("mood[]", '{sad,"ha,ppy"}'),
    "ap": ("inet[]", "{10.0.0.1,10.0.0.0/8}"),
    "aq": ("citext[]", "{Ab}"),
    "ah": ("bytea[]", '{"\\\\x00ff"}'),
    "ge": ("int GENERATED ALWAYS AS (id * 2) STORED",),
    "co": ("addr", "(\"Main st\",12345)"),
    "nm": ("name", "nm"),
}  # fmt: skip
_MODES: Final = {
    "schema": {
        "decimal_handling_mode": "precise",
        "time_precision_mode": "adaptive",
        "interval_handling_mode": "numeric",
        "hstore_handling_mode": "map",
        "binary_handling_mode": "bytes",
    },
    "plain": {
        "value_converter_schemas_enable": "false",
        "key_converter_schemas_enable": "false",
        "decimal_handling_mode": "string",
        "time_precision_mode": "connect",
        "interval_handling_mode": "string",
        "hstore_handling_mode": "json",
        "binary_handling_mode": "base64",
        "include_unknown_datatypes": "true",
    },
    "double": {
        "decimal_handling_mode": "double",
        "time_precision_mode": "isostring",
        "interval_handling_mode": "string",
        "hstore_handling_mode": "json",
        "binary_handling_mode": "hex",
    },
    "counted": {
        "value_converter_schemas_enable": "false",
        "key_converter_schemas_enable": "false",
        "time_precision_mode": "microseconds",
        "hstore_handling_mode": "map",
    },
}


def _create(url: str) -> str:
    """The table and the statement that makes it."""
    columns = ", ".join(f'"{name}" {words[0]}' for name, words in _COLUMNS.items())
    sql = f"CREATE TABLE live.wide (id int PRIMARY KEY, {columns})"
    with plain_session(url) as session:
        session.execute(_SETUP.encode())
        session.execute(sql.encode())
    # A definition names what a domain and a composite are made of; more than 64 bits come as bytes.
    for words, base in (
        ("posint", "int"),
        ("addr", "bytea"),
        ("bit(70)", "bytea"),
        ("bit varying(100)", "bytea"),
    ):
        sql = sql.replace(f" {words}", f" {base}")
    return sql


def _fill(url: str) -> None:
    names = [name for name, words in _COLUMNS.items() if len(words) > 1]
    with plain_session(url) as session:
        session.execute("SET search_path = live, public")
        for number in range(max(len(words) for words in _COLUMNS.values())):
            values = [words[number + 1] if number + 1 < len(words) else None for words in _COLUMNS.values()]
            given = [value for name, value in zip(_COLUMNS, values, strict=True) if name in names]
            places = ", ".join(["%s"] * (len(names) + 1))
            quoted = ", ".join(f'"{name}"' for name in names)
            session.execute(f"INSERT INTO wide (id, {quoted}) VALUES ({places})".encode(), (number, *given))  # noqa: S608
        session.execute("INSERT INTO wide (id, te) VALUES (1000, 'last of all')")


_OTHERWISE: Final = {
    ("wide", "nm"): "a name, which is null where it is streamed, but under include.unknown.datatypes",
    ("wide", "co"): "a composite, which is sent under include.unknown.datatypes alone",
    ("wide", "ax"): "times in an array, of which the connector cuts what is less than a second",
}


@pytest.mark.parametrize("kind", _MODES)
def test_every_type_has_the_value_of_its_event(
    connect: Connect, postgres: Endpoint, brokers: str, tmp_path: Path, kind: str
) -> None:
    name = f"w{uuid.uuid4().hex[:8]}"
    with own_postgres(postgres, "live{}") as url:
        sql = _create(url)
        (declared,) = read_postgres_tables(sql, "live")
        look = look_up_in(DatabaseSettings.model_validate({"url": url}))
        stored = look(declared.table) if look is not None else None
        assert stored is not None
        # As the database shows it, the table is what a person declares.
        assert [(one.name, one.type, one.primary_key) for one in stored.columns] == [
            (one.name, one.type, one.primary_key) for one in declared.columns
        ]
        create_topics(brokers, {f"{name}.live.wide": 1})
        with connector(connect, url, name, **_MODES[kind]) as properties:
            _fill(url)
            wait_until_sent(brokers, f"{name}.live.wide", 1, b"last of all")
        capture = LiveCapture(save_capture(brokers, tmp_path, properties, [f"{name}.live.wide"]), sql=sql)
        table = TableId("live", "wide")
        with source_connection(url) as connection:
            rows = DatabaseRows.of(connection, url, table)
            differing = [*table_differences(capture, table, rows, _OTHERWISE)]
        assert not differing, "\n".join(differing)


_ORDERS: Final = """
CREATE SCHEMA live; SET search_path = live, public;
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE orders (region text COLLATE "en-x-icu", id bigint, price numeric(12,2), exact numeric, note text,
    data bytea, at timestamptz, tags text[], feeling mood, twice bigint GENERATED ALWAYS AS (id * 2) STORED,
    PRIMARY KEY (region, id));
ALTER TABLE orders ALTER note SET STORAGE EXTERNAL;
"""
_NAMES: Final = ("region", "id", "price", "exact", "note", "data", "at", "tags", "feeling")
_REGIONS: Final = ("", "a", "B", "c%_", "Ärger", "z'\\")


class _Orders:
    """A table that changes at random: whole rows, single columns, and keys."""

    def __init__(self, url: str, seed: int = 7) -> None:
        self._url, self._rng = url, random.Random(seed)

    def load(self, count: int) -> None:
        """Rows from before the connector."""
        with plain_session(self._url) as session:
            session.execute(_ORDERS.encode())
            for number in range(count):
                self._insert(session, self._rng.choice(_REGIONS), number)

    def change(self, session: Any) -> None:
        """One change; most updates leave the long text alone, so that the connector has it not."""
        rng = self._rng
        kind = rng.choices(("insert", "price", "note", "delete", "key"), (3, 5, 1, 2, 1))[0]
        if kind == "insert":
            self._insert(session, rng.choice(_REGIONS), rng.randrange(10**6, 10**9))
            return
        query = "SELECT region, id FROM live.orders OFFSET %s LIMIT 1"
        (size,) = session.execute("SELECT count(*) FROM live.orders").fetchone()
        key = session.execute(query, (rng.randrange(size),)).fetchone()

        def update(values: str, *parameters: Any) -> None:
            query = f"UPDATE live.orders SET {values} WHERE region = %s AND id = %s"  # noqa: S608
            session.execute(query.encode(), (*parameters, *key))

        if kind == "delete":
            session.execute("DELETE FROM live.orders WHERE region = %s AND id = %s", key)
        elif kind == "price":
            price = rng.choice((None, rng.randrange(10**6) / 100))
            update("price = %s, exact = %s", price, rng.random())
        elif kind == "note":
            update("note = %s", self._note())
        else:
            # With a long text that did not change, the connector would not have it for the new key.
            update("id = %s, note = %s", rng.randrange(10**9, 10**12), self._note())

    def last(self) -> None:
        """A row by which the end is known."""
        with plain_session(self._url) as session:
            session.execute("INSERT INTO live.orders (region, id, note) VALUES ('', -1, 'last of all')")

    def rows(self) -> list[tuple[Any, ...]]:
        """All rows now."""
        with plain_session(self._url) as session:
            session.execute("SET TimeZone = 'UTC'")
            found = session.execute("SELECT * FROM live.orders").fetchall()
        return sorted(_comparable(row[: len(_NAMES)]) for row in found)

    def _insert(self, session: Any, region: str, number: int) -> None:
        rng = self._rng
        session.execute(
            "INSERT INTO live.orders (region, id, price, exact, note, data, at, tags, feeling) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
            (
                region,
                number,
                rng.choice((None, rng.randrange(-(10**9), 10**9) / 100)),
                rng.choice((None, rng.randrange(10**9) / 1000)),
                self._note(),
                rng.choice((None, b"", rng.randbytes(9))),
                rng.choice((None, f"2024-10-27 01:{rng.randrange(60):02}:00.{rng.randrange(10**6):06}+00")),
                rng.choice((None, [], ["a", 'b"', ""])),
                rng.choice((None, "sad", "ok")),
            ),
        )

    def _note(self) -> str | None:
        return self._rng.choice((None, "", "näher\t😀", self._rng.randbytes(2_000).hex()))


def _comparable(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row by its texts, whichever database gave it."""
    return tuple(_text(value) for value in row)


def _text(value: Any) -> str:
    if isinstance(value, list):
        value = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    if isinstance(value, datetime):
        value = value.replace(tzinfo=None)  # in UTC, whether the reader says so or not
    if isinstance(value, Decimal):
        value = format(value.normalize(), "f")
    return value.hex() if isinstance(value, bytes) else str(value)


@contextmanager
def _writing(orders: _Orders, url: str) -> Iterator[None]:
    """The table changes all the time."""
    with plain_session(url) as session, changing(partial(orders.change, session), pause=0.01):
        yield


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["delta", "postgres"])
def test_a_first_load_while_the_connector_streams(
    connect: Connect,
    postgres: Endpoint,
    spark: SparkSession,
    servers: Servers,
    tmp_path: Path,
    kind: str,
    request: pytest.FixtureRequest,
) -> None:
    """The worker is killed at each step of its batches, while rows and changes of them come."""
    name, place, log = f"o{uuid.uuid4().hex[:8]}", place_of(kind, request, tmp_path), tmp_path / "worker.log"
    topic, table = f"{name}.live.orders", TableId("live", "orders")
    with own_postgres(postgres, "live{}") as url:
        orders = _Orders(url)
        orders.load(3_000)
        create_topics(servers["brokers"], {topic: 3})
        with connector(connect, url, name):
            source = {
                "brokers": servers["brokers"],
                "protocol": "debezium-json",
                "topics": [topic],
                "database": {"url": url, "chunk-rows": 200, "connections": 2},
            }
            more = {"source": source, "defaults": {"snapshot": "initial"}, "target": place.target}
            config = shop_config(tmp_path, servers, more)
            with _writing(orders, url):
                for step in steps_of(kind):
                    die_at(step, spark, config, log)
            orders.last()
            wait_until_sent(servers["brokers"], topic, 3, b"last of all")
            drain(spark, config, log)
            rows = place.rows(table)
            assert rows is not None
            found = sorted(_comparable(tuple(row[name] for name in _NAMES)) for row in rows)
            expected = orders.rows()
            assert len(found) == len(expected)
            other = [
                (row[:2], name, own[:80], there[:80])
                for row, source_row in zip(found, expected, strict=True)
                for name, own, there in zip(_NAMES, row, source_row, strict=True)
                if own != there
            ]
            assert not other, other[:9]
