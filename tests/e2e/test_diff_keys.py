"""``tidesink diff`` over keys of every kind: one database compares them otherwise than another."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import sqlalchemy as sa
from confluent_kafka import Producer

from tests.contracts.sql_beds import DATABASES
from tests.e2e.diffing import diff_config, differing, drain, table_of_diff, tables_of_diff
from tests.e2e.places import KINDS, place_of
from tests.e2e.replay import Servers
from tests.e2e.sql_beside import connected, execute, target_of
from tests.e2e.writing import TableWriter
from tests.full import FULL, each, quick_on
from tests.mysql_values import own_database
from tests.postgres_database import own_postgres, plain_session
from tests.servers import create_topics
from tidesink.config import load_config
from tidesink.events import Column, TableId, TableSchema
from tidesink.sinks.diff.comparison import DiffOptions
from tidesink.sinks.diff.run import diff
from tidesink.sinks.targets.sql.location import Endpoint
from tidesink.sinks.targets.sql.target import SqlTarget
from tidesink.typemap.mysql_types import parse_sql_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers]


def _run(connection: sa.Connection, *statements: str) -> None:
    for statement in statements:
        connection.exec_driver_sql(statement.replace("%", "%%"))


def _columns(**types: str) -> tuple[Column, ...]:
    """Columns of MySQL, of which those that begin with k are the key."""
    return tuple(
        Column(name, parse_sql_type(sql), nullable=not name.startswith("k"), handle=name.startswith("k"))
        for name, sql in types.items()
    )


class _Tables:
    """Tables in one database of MariaDB, and what tells a topic of them."""

    def __init__(self, connection: sa.Connection, schema: str, servers: Servers) -> None:
        self.schema, self.connection = schema, connection
        self.topic = f"{servers['prefix']}keys"
        self._servers = servers
        create_topics(servers["brokers"], {self.topic: 1})

    def create(self, name: str, **types: str) -> TableWriter:
        """Make a table, and tell of it."""
        columns = _columns(**{one: sql.partition(" collate")[0] for one, sql in types.items()})
        words = ", ".join(f"`{one}` {sql}" for one, sql in types.items())
        key = ", ".join(f"`{one.name}`" for one in columns if one.handle)
        create = f"({words}, PRIMARY KEY ({key}))"
        _run(self.connection, f"CREATE TABLE `{name}` {create}")
        schema = TableSchema(TableId(self.schema, name), columns)
        feed = TableWriter(self._servers, schema, protocol="canal-json", topic=self.topic)
        quoted = self.schema.replace("`", "``")
        feed.ddl(f"CREATE TABLE `{quoted}`.`{name}` {create}")
        return feed


@contextmanager
def _tables(url: str, servers: Servers) -> Iterator[_Tables]:
    with own_database(url) as (connection, schema):
        yield _Tables(connection, schema, servers)


# Texts that are one key at the source, and as many at the target.
_ALIKE: Final = ("A", "á", "Á", "à", "À", "â", "Â", "ä", "Ä")


def test_a_row_that_is_found_for_many_keys_counts_once(
    spark: SparkSession,
    tmp_path: Path,
    servers: Servers,
    mariadb_url: str,
    request: pytest.FixtureRequest,
) -> None:
    """It differed at first, and is equal by the time of the second look, which asks for it by its key.

    A table that is gone at the source does not keep the others from being compared, and a column of the
    target's own is named.
    """
    server = ("postgres", DATABASES["postgres"](request))
    with _tables(mariadb_url, servers) as tables:
        gone = tables.create("gone", k="int", n="int")
        gone.upsert({"k": 1, "n": 1})
        feed = tables.create("words", k="varchar(20) collate utf8mb4_general_ci", n="int")
        _run(tables.connection, "INSERT INTO words VALUES ('a', 1)", "INSERT INTO gone VALUES (1, 1)")
        for text in _ALIKE:
            feed.upsert({"k": text, "n": 1})
        config = diff_config(tmp_path, servers, tables.topic, mariadb_url, target=target_of(server))
        drain(config)
        _run(tables.connection, "UPDATE words SET n = 2", "DROP TABLE gone")
        table = TableId(tables.schema, "words")
        with connected(server) as connections:
            location = SqlTarget(connections).place_of(table).location
        execute(server, f"ALTER TABLE {location} ADD COLUMN extra int")

        def tell(said: str) -> None:
            if "looking again" in said:
                _run(tables.connection, "UPDATE words SET n = 1")

        (found,) = diff(load_config(config), [table], DiffOptions(lag=0), tell=tell)
        assert (found.equal, found.different, found.only_at_target) == (1, 0, len(_ALIKE))
        assert found.not_compared == ("extra",)
        code, others = tables_of_diff(config)
        by_name = {one["table"]["name"]: one for one in others}
        assert differing(by_name["words"]) == (0, 0, len(_ALIKE))
        assert "gone" in by_name["gone"]["refused"]
        assert code == 3
        _run(tables.connection, "DELETE FROM words")
        for text in ("a", *_ALIKE):
            feed.delete({"k": text})
        drain(config)
        assert tables_of_diff(config)[0] == 2


@pytest.mark.parametrize("kind", KINDS)
@quick_on("postgres")
def test_a_column_that_is_wider_at_the_target(
    spark: SparkSession,
    tmp_path: Path,
    servers: Servers,
    mariadb_url: str,
    kind: str,
    request: pytest.FixtureRequest,
) -> None:
    """Another shard has wider types: values are equal in those, and a value that only those hold differs."""
    server = (kind, DATABASES[kind](request)) if kind in DATABASES else None
    target = target_of(server) if server else place_of(kind, request, tmp_path).target
    with _tables(mariadb_url, servers) as tables:
        narrow = tables.create("narrow", k="int", n="int", d="decimal(6,2)", f="float")
        wide = tables.create("wide", k="bigint", n="bigint", d="decimal(12,4)", f="double")
        _run(
            tables.connection,
            "INSERT INTO narrow VALUES (-2147483648, 2147483647, -9999.99, 0.1), (1, NULL, 1.23, NULL)",
            "INSERT INTO wide VALUES (1, 9223372036854775807, 1.2345, 0.1)",
        )
        narrow.delete({"k": 9})
        routes = [{"match": ".*", "to": "all_shards.rows", "shard-column": "origin"}]
        config = diff_config(tmp_path, servers, tables.topic, mariadb_url, routes=routes, target=target)
        drain(config)
        wide.delete({"k": 9})
        drain(config)
        _run(tables.connection, "INSERT INTO narrow VALUES (2, -1, 0.01, 1e-40)")
        narrow.upsert({"k": 2, "n": -1, "d": Decimal("0.01"), "f": 1e-40})
        drain(config)
        name = f"{tables.schema}.narrow"
        code, found = table_of_diff(config, name)
        assert (code, found["equal"], found["differences"]) == (0, 3, [])
        assert table_of_diff(config, f"{tables.schema}.wide")[1]["equal"] == 1
        if server is None:
            return
        rows = "UPDATE all_shards.rows SET n = 3000000000, d = 1.2345 WHERE k = 1 AND d < 1.2344"
        execute(server, rows)
        code, found = table_of_diff(config, name)
        assert differing(found) == (1, 0, 0)
        assert found["differences"][0]["columns"] == ["n", "d"]


# Of keys of MariaDB: types, and five keys as literals and as values of the first one.
_MARIADB: Final[Mapping[str, tuple[dict[str, str], tuple[str, ...], dict[str, Any]]]] = {
    "binary": (
        {"k": "binary(4)"},
        ("x'00'", "x'00ff8001'", "x'27'", "x'ffffffff'", "x'61'"),
        {"k": b"none"},
    ),
    "enum": ({"k": "enum('b','a','%s','','é')"}, ("'b'", "'a'", "'%s'", "''", "'é'"), {"k": 5}),
    "unsigned": (
        {"k": "bigint unsigned"},
        ("0", "18446744073709551615", "9223372036854775808", "1", "2"),
        {"k": 9},
    ),
    "decimal": (
        {"k": "decimal(30,10)"},
        ("0", "-1.5", "12345678901234567890.0000000001", "0.0000000001", "1e3"),
        {"k": Decimal(9)},
    ),
    "moment": (
        {"k": "datetime(6)"},
        ("'1000-01-01'", "'9999-12-31 23:59:59.999999'", "'2024-03-31 02:30'", "'2024-01-01 00:00:00.1'",
         "'2024-01-01'"),
        {"k": "2000-01-01 00:00:00.000000"},
    ),
    "exact text": (
        {"k": "varchar(20) collate utf8mb4_bin"},
        ("'a'", "'A'", "'á'", "'%s\\\\\\\\'", "'😀'"),
        {"k": "none"},
    ),
    "any case": (
        {"k": "varchar(20) collate utf8mb4_general_ci"},
        ("'a'", "'B'", "'ß'", "'c '", "''"),
        {"k": "none"},
    ),
    "composite": (
        {"k": "enum('b','a')", "k2": "varbinary(9)", "k3": "date"},
        ("'b', x'00', '2024-01-01'", "'b', x'01', '2024-01-01'", "'a', x'00', '2024-01-01'",
         "'a', x'00', '1000-01-01'", "'a', '', '9999-12-31'"),
        {"k": 1, "k2": b"none", "k3": "2000-01-01"},
    ),
}  # fmt: skip


@FULL
@pytest.mark.parametrize("case", _MARIADB)
def test_keys_of_mariadb(
    spark: SparkSession, tmp_path: Path, servers: Servers, mariadb_url: str, case: str
) -> None:
    types, keys, nobody = _MARIADB[case]
    with _tables(mariadb_url, servers) as tables:
        feed = tables.create("t", **types, v="int")
        for number, key in enumerate(keys[:4]):
            _run(tables.connection, f"INSERT INTO t VALUES ({key}, {number})")  # noqa: S608
        feed.delete(nobody)
        config = diff_config(tmp_path, servers, tables.topic, mariadb_url)
        drain(config)
        code, found = table_of_diff(config)
        assert (code, found["equal"], differing(found)) == (0, 4, (0, 0, 0))
        _run(
            tables.connection,
            "UPDATE t SET v = 10 WHERE v = 1",
            "DELETE FROM t WHERE v = 2",
            f"INSERT INTO t VALUES ({keys[4]}, 4)",  # noqa: S608
        )
        code, found = table_of_diff(config)
        assert (code, found["equal"], differing(found)) == (3, 2, (1, 1, 1))


# Of keys of Postgres: columns, five keys as literals, and the key of a row that the target alone has.
_POSTGRES: Final[Mapping[str, tuple[str, tuple[str, ...], dict[str, Any]]]] = {
    "uuid": (
        "k uuid",
        tuple(f"'{n}50E8400-e29b-41d4-a716-446655440000'" for n in range(5)),
        # Which is no key of the source at all.
        {"k": "none"},
    ),
    "bytes": ("k bytea", ("''", "'\\x00'", "'\\xff00'", "'\\x27'", "'\\x61'"), {"k": "AAEC"}),
    "number": ("k numeric(30,10)", ("0", "-1.5", "1e19", "0.0000000001", "'12345678901234567890.5'"),
               {"k": "9.0000000000"}),
    "instant": (
        "k timestamptz",
        ("'2024-01-01 00:00:00.000001+02'", "'0001-01-01 00:00+00'", "'9999-12-31 23:59:59.999999+00'",
         "'1969-12-31 23:59:59.9+00'", "'2024-01-01+00'"),
        {"k": "2000-01-01T00:00:00.000000Z"},
    ),
    "composite": (
        'k "mo%s%od", k2 uuid, k3 numeric',
        tuple(f"'{label}', '{n}50E8400-e29b-41d4-a716-446655440000', {n / 7}" for n, label in
              enumerate(("a", "z", "a", "h,a", "z"))),
        # A label that is none.
        {"k": "none", "k2": "550e8400-e29b-41d4-a716-446655440000", "k3": "1.5"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", each(_POSTGRES, full={*_POSTGRES} - {"uuid"}))
def test_keys_of_postgres(
    spark: SparkSession, tmp_path: Path, servers: Servers, postgres: Endpoint, kind: str
) -> None:
    """By a connector without schemas. Where the source cannot have a key of the target, all rows are read."""
    columns, keys, nobody = _POSTGRES[kind]
    names = [column.split()[0] for column in columns.split(", ")]
    create = f"CREATE TABLE public.t ({columns}, v int, PRIMARY KEY ({', '.join(names)}))"
    topic = f"{servers['prefix']}pg.public.t"
    create_topics(servers["brokers"], {topic: 1})
    with own_postgres(postgres) as url, plain_session(url) as session:
        session.execute("CREATE TYPE \"mo%s%od\" AS ENUM ('z', 'a', 'h,a')")
        session.execute(create.encode())
        for number, key in enumerate(keys[:4]):
            session.execute(f"INSERT INTO t VALUES ({key}, {number})".encode())  # noqa: S608
        row = {"version": "3.5.0.Final", "connector": "postgresql", "name": "pg", "ts_ms": 1, "db": "d",
               "schema": "public", "table": "t"}  # fmt: skip
        change = {"before": None, "after": {**nobody, "v": 9}, "source": row, "op": "c", "ts_ms": 1}
        producer = Producer({"bootstrap.servers": servers["brokers"]})
        producer.produce(topic, key=json.dumps(nobody).encode(), value=json.dumps(change).encode())
        assert producer.flush(120) == 0
        definition = {"sql": create.replace('"mo%s%od"', "text"), "dialect": "postgres"}
        config = diff_config(
            tmp_path,
            servers,
            topic,
            url,
            source={"protocol": "debezium-json", "debezium": {"decimal-handling-mode": "string"}},
            tables=[{"name": "public.t", "topic": topic, "definition": definition}],
            # A key that cannot be is not asked for until then.
            retry={"for": "3600s"},
        )
        drain(config)
        code, found = table_of_diff(config)
        assert (code, found["equal"], differing(found)) == (3, 4, (0, 0, 1))
        session.execute("UPDATE t SET v = 10 WHERE v = 1")
        session.execute("DELETE FROM t WHERE v = 2")
        session.execute(f"INSERT INTO t VALUES ({keys[4]}, 4)".encode())  # noqa: S608
        code, found = table_of_diff(config)
        assert (code, found["equal"], differing(found)) == (3, 2, (1, 1, 2))
