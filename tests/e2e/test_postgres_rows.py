"""Rows read from Postgres in ranges of a key: none is missed, and none is read from a standby."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pytest
import sqlalchemy as sa

from tests.full import each
from tests.postgres import standby_server
from tests.postgres_database import database_url, own_postgres, run_scripts, source_connection
from tidesink.cli.table_plans import identity_problem
from tidesink.config.source import DatabaseSettings
from tidesink.ddl.catalog import read_postgres_tables
from tidesink.errors import ConfigError, SourceUnavailableError, ValueOutOfRangeError
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.sinks.batch.source_rows import KeyRange, KeyShare, RowInput, SourceRows, key_ranges
from tidesink.sinks.decode.database_types import look_up_in, replica_identity
from tidesink.sinks.targets.sql.location import Endpoint
from tidesink.source_database.base import ReplicaIdentity, StoredTable, plain
from tidesink.source_database.database import begin_session, dialect_of, stored_table
from tidesink.source_database.postgres import key_orders

pytestmark = pytest.mark.servers
_ALL: Final = KeyRange()
# Of a test's own.
_ICU: Final = "tidesink_icu_order"

_TYPES: Final = """
CREATE EXTENSION citext; CREATE EXTENSION ltree; CREATE EXTENSION hstore;
CREATE TYPE mood AS ENUM ('z', 'a', 'm');
CREATE TYPE "mo%s%od" AS ENUM ('a', 'b'); CREATE DOMAIN code AS varchar(5) CHECK (VALUE <> 'no');
"""


class Database(NamedTuple):
    url: str
    connection: sa.Connection

    def stored(self, name: str, schema: str = "public") -> StoredTable:
        found = stored_table(self.connection, TableId(schema, name))
        assert found is not None
        return found

    def ranges(self, name: str, rows: int) -> tuple[StoredTable, list[KeyRange]]:
        """All ranges of a table."""
        stored, found = self.stored(name), list[KeyRange]()
        while not found or found[-1].up_to is not None:
            after = found[-1].up_to if found else None
            table = TableId("public", name)
            found += key_ranges(self.connection, table, stored, after=after, rows=rows, most=3)
        return stored, found

    def run(self, sql: str) -> None:
        run_scripts(self.url, sql)


@pytest.fixture
def database(postgres: Endpoint) -> Iterator[Database]:
    with own_postgres(postgres) as url, source_connection(url) as connection:
        yield Database(url, connection)


def _source(url: str, name: str, stored: StoredTable) -> SourceRows:
    columns = tuple(Column(one, kind) for one, kind in stored.types.items())
    schema = TableSchema(TableId("public", name), columns)
    return SourceRows(url, schema, stored.key, stored.types)


def _read(source: SourceRows, keys: KeyRange = _ALL) -> list[dict[str, Any]]:
    return [
        row for records in source(RowInput("rows", 0, keys, 1)) for row in records.column("row").to_pylist()
    ]


# Columns of a key, and values that the database orders in its own way.
_KEYS: Final = {
    "words": (
        'name text COLLATE "en-x-icu", id bigint',
        "(ARRAY['a','B','c ','Ä','','é%_''\\','ß','a-b'])[1+i%8], i",
    ),
    "any case": ("name citext, id int", "(ARRAY['a','B','c','Z','y'])[1+i%5], i"),
    "padded": ("c char(5), id int", "chr(65+i%20)||repeat(' ',i%3), i"),
    "kinds": ("e mood, u uuid", "(ARRAY['z','a','m']::mood[])[1+i%3], md5(i::text)::uuid"),
    "per%cent": ("e \"mo%s%od\", id int", "(ARRAY['a','b'])[1+i%2]::\"mo%s%od\", i"),
    "times": (
        "t timestamptz, d date",
        "timestamptz '2024-01-01+02' + i*interval '1.000001s', date '0001-01-01 BC' + i",
    ),
    "bytes": ("b bytea, n numeric", "decode(md5(i::text),'hex'), i/7.0"),
    "doubles": (
        "f double precision, r real",
        "CASE i%4 WHEN 0 THEN 'NaN' WHEN 1 THEN '-Infinity' ELSE i/7.0 END, i/7.0",
    ),
    "trees": ("l ltree, o oid", "('a.b'||i)::ltree, i::oid"),
    "texts": ("c code, j jsonb", "'x'||i%50, jsonb_build_object('a', i)"),
    "arrays": ("a int[], v varbit(70)", "ARRAY[i%5,NULL,i], i::bit(32)::varbit(70)"),
    "spans": ("i interval, r int4range", "i*interval '1 mon -3 days 01:02:03', int4range(i, i+2)"),
    "places": ("p inet, m money", "('10.0.'||i%9||'.'||i%200||'/24')::inet, i::numeric::money/3"),
    '"Odd ""Name%"': ('"a ""b%(x)s:y" int, "select" time', "i%9, time '00:00'+i*interval '1.5s'"),
}  # fmt: skip


_QUICK: Final = ("words", "any case", "kinds", "per%cent", "bytes", '"Odd ""Name%"')


@pytest.mark.parametrize("kind", each(_KEYS, full={*_KEYS} - {*_QUICK}))
def test_ranges_hold_every_row_once(database: Database, kind: str) -> None:
    columns, values = _KEYS[kind]
    database.run(_TYPES)
    begin_session(database.connection)
    name = kind.strip('"').replace('""', '"')
    quoted = '"' + name.replace('"', '""') + '"'
    database.run(f"CREATE TABLE {quoted} ({columns})")
    key = ", ".join('"' + one.replace('"', '""') + '"' for one in database.stored(name).types)
    database.run(f"ALTER TABLE {quoted} ADD PRIMARY KEY ({key})")
    inserted = f"SELECT {values} FROM generate_series(1, 300) i"  # noqa: S608
    database.run(f"INSERT INTO {quoted} {inserted} ON CONFLICT DO NOTHING")
    stored, ranges = database.ranges(name, 7)
    assert stored.key == tuple(stored.types)
    source = _source(database.url, name, stored)
    rows = [_read(source, keys) for keys in ranges]
    assert [len(part) for part in rows[:-1]] == [7] * (len(ranges) - 1)
    every = [repr(row) for part in rows for row in part]
    assert len(every) == len(set(every)) > 40


def test_a_range_is_found_by_the_index_of_the_key(database: Database) -> None:
    """A comparison of rows: with the first column alone each range would read on to its end."""
    database.run("CREATE TABLE t (a int, b int, PRIMARY KEY (a, b))")
    database.run("INSERT INTO t SELECT i % 3, i FROM generate_series(1, 3000) i; ANALYZE t")
    stored, ranges = database.ranges("t", 100)
    source = _source(database.url, "t", stored)
    query = source._query(ranges[3], dialect_of(database.connection))
    text = str(query.compile(database.connection.engine, compile_kwargs={"literal_binds": True}))
    plan = "\n".join(row[0] for row in database.connection.exec_driver_sql(f"EXPLAIN {text}"))
    assert "Index Cond: ((ROW(a, b) > ROW(" in plan


def test_which_key_is_usable(database: Database) -> None:
    database.run("""CREATE TABLE bare (a int, UNIQUE (a));
        CREATE TABLE partly (a int NOT NULL, b int); CREATE UNIQUE INDEX ON partly (a) WHERE b > 1;
        CREATE UNIQUE INDEX ON partly ((a + 1)); CREATE INDEX ON partly (a);
        CREATE TABLE patterned (a text NOT NULL); CREATE UNIQUE INDEX ON patterned (a text_pattern_ops);
        CREATE TABLE collated (a text NOT NULL); CREATE UNIQUE INDEX ON collated (a COLLATE "en-x-icu");
        CREATE TABLE named (a int NOT NULL, b int NOT NULL, c int NOT NULL);
        CREATE UNIQUE INDEX a_first ON named (b) INCLUDE (c); CREATE UNIQUE INDEX b_second ON named (a);
        CREATE TABLE identity (a int NOT NULL, b int NOT NULL); CREATE UNIQUE INDEX x1 ON identity (a);
        CREATE UNIQUE INDEX x2 ON identity (b); ALTER TABLE identity REPLICA IDENTITY USING INDEX x2;
        CREATE TABLE later (b int, a int PRIMARY KEY DEFERRABLE)""")  # fmt: skip
    for name in ("bare", "partly", "patterned", "collated"):
        assert database.stored(name).key == (), name
    assert database.stored("named").key == ("b",)
    assert database.stored("identity").key == ("b",)
    assert database.stored("later").key == ("a",)
    assert stored_table(database.connection, TableId("public", "absent")) is None


def test_a_partitioned_table_is_read_whole_and_its_size_is_known(database: Database) -> None:
    database.run("""CREATE TABLE p (id int, t text, PRIMARY KEY (id)) PARTITION BY RANGE (id);
        CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (500);
        CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (500) TO (1000) PARTITION BY RANGE (id);
        CREATE TABLE p3 PARTITION OF p2 FOR VALUES FROM (500) TO (1000);
        INSERT INTO p SELECT i, repeat('x', 100) FROM generate_series(0, 999) i""")  # fmt: skip
    stored, ranges = database.ranges("p", 300)
    assert stored.bytes > 100_000
    assert 500 < stored.rows < 5_000  # never analyzed
    source = _source(database.url, "p", stored)
    assert [len(_read(source, keys)) for keys in ranges] == [300, 300, 300, 100]
    part = database.stored("p3")
    assert part.key == ("id",)
    assert part.bytes < stored.bytes


def test_a_table_that_others_inherit_from_is_refused(database: Database) -> None:
    database.run("CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child () INHERITS (parent)")
    with pytest.raises(ConfigError, match="inherit"):
        database.stored("parent")
    assert database.stored("child").types.keys() == {"id"}


def test_generated_and_dropped_columns(database: Database) -> None:
    database.run("""CREATE TABLE g (id int PRIMARY KEY, gone int, twice int GENERATED ALWAYS AS (id*2) STORED,
        own int GENERATED ALWAYS AS IDENTITY, d date NOT NULL); ALTER TABLE g DROP COLUMN gone""")
    stored = database.stored("g")
    assert [*stored.types] == ["id", "own", "d"]
    assert [*stored.generated] == ["twice"]
    assert stored.required == {"id", "own", "d"}


def test_a_table_is_defined_as_a_person_declares_it(database: Database) -> None:
    """Domains by what they are made of, enums as text, and defaults that are constants or not."""
    database.run(_TYPES)
    database.run("""CREATE TABLE "a""b%s" (id int, k code NOT NULL, m mood DEFAULT 'a', n numeric(10,2),
        v numeric, t timestamp(3), u timestamptz DEFAULT now(), h hstore, l mood[], w bit(70),
        c citext DEFAULT 'it''s', o bigint GENERATED ALWAYS AS IDENTITY,
        twice int GENERATED ALWAYS AS (id*2) STORED, s smallint DEFAULT -5,
        j jsonb DEFAULT NULL, PRIMARY KEY (id, k))""")
    (declared,) = read_postgres_tables(
        """CREATE TABLE "a""b%s" (id int, k text, m text DEFAULT 'a', n numeric(10,2), v numeric,
        t timestamp(3), u timestamptz DEFAULT now(), h hstore, l text[], w bytea, c text DEFAULT 'it''s',
        o bigint NOT NULL GENERATED ALWAYS AS IDENTITY, twice int GENERATED ALWAYS AS (id*2) STORED,
        s smallint DEFAULT '-5', j jsonb, PRIMARY KEY (id, k))""",
        "public",
    )
    look = look_up_in(DatabaseSettings.model_validate({"url": database.url}))
    assert look is not None
    assert look(declared.table) == declared
    assert look(TableId("public", "nothing")) is look(TableId("", "nothing")) is None


def test_the_columns_that_postgres_sends_of_a_deleted_row(database: Database) -> None:
    database.run("""CREATE TABLE d (id int, tenant int NOT NULL, PRIMARY KEY (id));
        CREATE TABLE i (id int PRIMARY KEY, tenant int NOT NULL, no int NOT NULL, UNIQUE (no, tenant));
        ALTER TABLE i REPLICA IDENTITY USING INDEX i_no_tenant_key;
        CREATE TABLE f (id int PRIMARY KEY); ALTER TABLE f REPLICA IDENTITY FULL;
        CREATE TABLE n (id int PRIMARY KEY); ALTER TABLE n REPLICA IDENTITY NOTHING""")  # fmt: skip
    found = {name: database.stored(name).identity for name in "difn"}
    assert found == {"d": {"id"}, "i": {"no", "tenant"}, "f": None, "n": frozenset()}
    settings = DatabaseSettings.model_validate({"url": database.url})
    answers = {name: replica_identity(settings, TableId("public", name)) for name in "dinf"}
    sent = frozenset({"id"})
    assert answers["d"] == ReplicaIdentity(sent, frozenset({"id", "tenant"}), primary=sent)
    assert [one.primary for one in answers.values() if one is not None] == [{"id"}] * 4
    assert [name for name, one in answers.items() if one is not None and one.is_full] == ["f"]
    assert replica_identity(settings, TableId("public", "absent")) is None
    assert identity_problem(("ID",), database.stored("d")) is None
    problem = identity_problem(("tenant", "id"), database.stored("d"))
    assert problem is not None
    assert "does not send tenant" in problem
    assert "REPLICA IDENTITY FULL" in problem
    assert identity_problem(("id",), database.stored("f")) is None
    assert identity_problem(("renamed",), database.stored("d")) is None


def test_a_database_that_refuses_or_is_silent_is_told_without_secrets(
    database: Database, postgres: Endpoint
) -> None:
    database.run("""CREATE TABLE secret (id int PRIMARY KEY); CREATE TABLE filtered (id int PRIMARY KEY);
        INSERT INTO filtered VALUES (1), (2); ALTER TABLE filtered ENABLE ROW LEVEL SECURITY;
        DO $$BEGIN CREATE ROLE tidesink_reader LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END$$;
        GRANT SELECT ON filtered TO tidesink_reader;
        CREATE POLICY few ON filtered USING (id = 1)""")  # fmt: skip
    url = sa.engine.make_url(database.url)
    reader = url.set(username="tidesink_reader", password="SECRET")
    silent, nobody = url.set(port=1, password="SECRET"), url.set(username="nobody", password="SECRET")
    cases = (
        (reader, "secret", ConfigError, "refuses the user"),
        # Rows that a policy hides would be missed.
        (reader, "filtered", ConfigError, "refuses the user"),
        (silent, "secret", SourceUnavailableError, "does not answer"),
        (nobody, "secret", ConfigError, 'role "…" does not exist'),
        # A password that was taken for a part of the user's name.
        (url.set(host="SECRET@127.0.0.1"), "secret", ConfigError, 'role "…" does not exist'),
    )
    for place, name, error, words in cases:
        stored = database.stored(name)
        source = _source(place.render_as_string(hide_password=False), name, stored)
        assert "SECRET" not in repr(source)
        with pytest.raises(error, match=words) as caught:
            _read(source)
        assert "SECRET" not in str(caught.value)
        assert "source.database" in str(caught.value)
    database.run("DROP OWNED BY tidesink_reader; DROP ROLE tidesink_reader")


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_texts_of_a_database_of_another_encoding(postgres: Endpoint, encoding: str) -> None:
    """They are UTF-8 to us, and so are the keys that are asked for."""
    with own_postgres(postgres, encoding=encoding) as url:
        run_scripts(url, "CREATE TABLE t (name text PRIMARY KEY, f float)")
        run_scripts(url, "SET client_encoding = utf8;\nINSERT INTO t VALUES ('é', 1), ('e', 2)")
        with source_connection(url) as connection:
            stored = stored_table(connection, TableId("public", "t"))
            assert stored is not None
            assert stored.types["name"] == ColumnType("other text", sql="text")
        source = _source(url, "t", stored)
        assert sorted(row["name"] for row in _read(source)) == ["e", "é"]
        found = source.of_keys(KeyShare("rows"), ["name"], [("é",)])
        assert [row for part in found for row in part.column("row").to_pylist()] == [{"name": "é", "f": 1.0}]
        if encoding == "LATIN1":
            with pytest.raises(
                ValueOutOfRangeError, match="A key has a value that the column's type cannot hold"
            ):
                list(source.of_keys(KeyShare("rows"), ["name"], [("😀",)]))


@pytest.mark.parametrize(
    ("column", "key"),
    [("u uuid", "none"), ("n int", "9999999999"), ("t text", "\0"), ("d date", "0000-00-00")],
)
def test_a_key_that_the_source_cannot_have_is_no_failure_of_the_database(
    database: Database, column: str, key: str
) -> None:
    """To try again would not help."""
    database.run(f"CREATE TABLE k ({column} PRIMARY KEY)")
    source = _source(database.url, "k", database.stored("k"))
    with pytest.raises(
        ValueOutOfRangeError, match="A key has a value that the column's type cannot hold"
    ) as caught:
        list(source.of_keys(KeyShare("rows"), [column.partition(" ")[0]], [(key,)]))
    assert key not in str(caught.value)


def test_a_standby_is_refused() -> None:
    with standby_server() as endpoint:
        url = database_url(endpoint, "postgres")
        with pytest.raises(ConfigError, match="standby"), source_connection(url):
            pass
        stored = StoredTable({}, (), 0, 0)
        with pytest.raises(ConfigError, match="standby"):
            _read(_source(url, "any", stored))


def test_a_column_that_went_since_is_told(database: Database) -> None:
    database.run("CREATE TABLE went (id int PRIMARY KEY, gone int)")
    source = _source(database.url, "went", database.stored("went"))
    database.run("ALTER TABLE went DROP COLUMN gone")
    with pytest.raises(SourceUnavailableError, match="a column was dropped in the source database while"):
        _read(source)


def test_the_order_of_a_text_key_has_the_version_of_the_databases_own_collation(database: Database) -> None:
    """Of ICU here, of which another locale and another library give no version."""
    database.run("CREATE TABLE named (name text PRIMARY KEY)")
    oid = database.connection.exec_driver_sql("SELECT 'public.named'::regclass::oid").scalar_one()
    ours = key_orders(database.connection, plain(oid))["name"]
    database.run(f"CREATE DATABASE \"{_ICU}\" TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'de'")
    try:
        url = sa.engine.make_url(database.url).set(database=_ICU).render_as_string(hide_password=False)
        run_scripts(url, "CREATE TABLE named (name text PRIMARY KEY)")
        with source_connection(url) as connection:
            oid = connection.exec_driver_sql("SELECT 'public.named'::regclass::oid").scalar_one()
            query = "SELECT collversion FROM pg_collation WHERE collname = 'de-x-icu'"
            version = plain(connection.exec_driver_sql(query).scalar_one())
            found = key_orders(connection, plain(oid))["name"]
    finally:
        database.run(f'DROP DATABASE "{_ICU}"')
    assert found.endswith(f" i de {version}")
    assert found != ours
