"""What a session of the source's database reads does not depend on the server's settings for new sessions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import pytest
import sqlalchemy as sa
from structlog.testing import capture_logs

from examples.first_load.mariadb import missing_programs, running_mariadb
from tests.absent import without_server
from tidesink.config.source import DatabaseSettings
from tidesink.errors import ConfigError, SourceUnavailableError
from tidesink.events import Column, TableId, TableSchema
from tidesink.sinks.batch.source_rows import KeyRange, RowInput, SourceRows, key_ranges
from tidesink.sinks.decode.database_types import created_by, look_into
from tidesink.source_database.base import StoredTable
from tidesink.source_database.database import begin_session, connected, open_transactions, stored_table

pytestmark = pytest.mark.servers

TABLE: Final = TableId("shop", "orders")
# What a new session inherits; "SET GLOBAL" of each is allowed to an administrator of MariaDB.
GLOBALS: Final = {
    "sql_select_limit": "5",
    "tx_isolation": "'READ-UNCOMMITTED'",
    "max_statement_time": "3600",
    "sql_big_selects": "OFF",
    "system_versioning_asof": "'2020-01-01'",
    "time_zone": "'+05:00'",
    "sql_mode": "'PAD_CHAR_TO_FULL_LENGTH,ANSI_QUOTES'",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sa.engine.URL]:
    """A MariaDB of the module's own, whose global variables may be changed, with a table of 20 rows."""
    if missing_programs():
        without_server("no mariadbd here: apt-get install mariadb-server-core")
    with running_mariadb(tmp_path_factory.mktemp("mariadb"), "innodb-buffer-pool-size=16M") as found:
        url = sa.engine.make_url(found.url)
        with _administrator(url) as connection:
            for statement in (
                "CREATE DATABASE shop",
                "CREATE TABLE shop.orders (id INT PRIMARY KEY, at TIMESTAMP NOT NULL DEFAULT "
                "'2026-01-01 00:00:00', ch CHAR(9)) WITH SYSTEM VERSIONING",
                "INSERT INTO shop.orders (id, ch) SELECT seq, 'a' FROM shop.seq_1_to_20",
                "CREATE USER reader IDENTIFIED BY 'reader'",
                "GRANT SELECT ON shop.* TO reader",
            ):
                connection.exec_driver_sql(statement)
        yield url


@contextmanager
def _administrator(url: sa.engine.URL) -> Iterator[sa.Connection]:
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        # A server that is stopped waits for its sessions.
        engine.dispose()


@contextmanager
def _globals(url: sa.engine.URL, **values: str) -> Iterator[None]:
    with _administrator(url) as connection:
        for name, value in values.items():
            connection.exec_driver_sql(f"SET GLOBAL {name} = {value}")
        try:
            yield
        finally:
            # This session has limits of its own.
            for name in values:
                connection.exec_driver_sql(f"SET GLOBAL {name} = DEFAULT")


def _reader(url: sa.engine.URL) -> str:
    return url.set(username="reader", password="reader").render_as_string(hide_password=False)


def _stored(url: str, table: TableId = TABLE) -> StoredTable:
    with connected(url) as connection:
        found = stored_table(connection, table)
    assert found is not None
    return found


def _rows(url: str, part: KeyRange = KeyRange()) -> list[dict[str, object]]:  # noqa: B008  (it is frozen)
    stored = _stored(url)
    schema = TableSchema(TABLE, tuple(Column(name, kind) for name, kind in stored.types.items()))
    rows = SourceRows(url, schema, stored.key, stored.key_types)
    wanted = RowInput("rows", 0, part, 1)
    return [row for batch in rows(wanted) for row in batch.column("row").to_pylist()]


def test_a_range_is_whole_whatever_new_sessions_inherit(server: sa.engine.URL) -> None:
    """A transaction that is open has deleted a row and added one: it rolls back, so that both are not so."""
    with _administrator(server) as writer:
        writer.exec_driver_sql("START TRANSACTION")
        writer.exec_driver_sql("DELETE FROM shop.orders WHERE id = 1")
        writer.exec_driver_sql("INSERT INTO shop.orders (id) VALUES (21)")
        plain = _rows(_reader(server))
        with _globals(server, **GLOBALS):
            found = _rows(_reader(server))
            with connected(_reader(server)) as connection:
                shown = {row[0]: row[1] for row in connection.exec_driver_sql("SHOW VARIABLES")}
        writer.exec_driver_sql("ROLLBACK")
    assert [int(str(row["id"])) for row in found] == [*range(1, 21)]
    assert found == plain
    assert (shown["max_statement_time"], shown["sql_big_selects"]) == ("0.000000", "ON")


@contextmanager
def _counts(*, more: int = 0) -> Iterator[list[str]]:
    """Collect the statements that count; ``more``: as if the database had so many rows more."""
    found: list[str] = []

    def change(_connection: object, _cursor: Any, statement: str, *rest: Any) -> tuple[str, Any]:
        if "count(*)" not in statement:
            return statement, rest[0]
        found.append(statement)
        return statement.replace("count(*)", f"count(*) + {more}"), rest[0]

    sa.event.listen(sa.engine.Engine, "before_cursor_execute", change, retval=True)
    try:
        yield found
    finally:
        sa.event.remove(sa.engine.Engine, "before_cursor_execute", change)


def test_rows_are_counted_only_if_fewer_came_than_there_were(server: sa.engine.URL) -> None:
    """A second scan of each range would double the load of the source."""
    url = _reader(server)
    with connected(url) as connection:
        stored = stored_table(connection, TABLE)
        assert stored is not None
        full, rest = key_ranges(connection, TABLE, stored, after=None, rows=12, most=2)
    assert (full.rows, rest.rows) == (12, None)
    with _counts(more=1) as counts:
        assert len(_rows(url, full)) == 12
        assert counts == []
        # The walk counted a row that came no more: the database has one more than it gave.
        with pytest.raises(SourceUnavailableError, match="returned 12 rows of a range that has 13"):
            _rows(url, replace(full, rows=13))
        with pytest.raises(SourceUnavailableError, match="returned 8 rows of a range that has 9"):
            _rows(url, rest)
    with _counts() as counts:
        # Rows that were deleted since the walk.
        assert len(_rows(url, replace(full, rows=13))) == 12
        assert len(counts) == 1


def test_characters_are_kept_or_refused(server: sa.engine.URL) -> None:
    """PyMySQL is asked for utf8mb4; another driver takes its character set from the URL."""
    with _globals(server, character_set_server="latin1"):
        assert len(_rows(_reader(server))) == 20
    engine = sa.create_engine(f"{_reader(server)}?charset=latin1")
    with (
        pytest.raises(ConfigError, match=r"character set is latin1.*charset=utf8mb4"),
        engine.connect() as connection,
    ):
        begin_session(connection)
    engine.dispose()


def test_a_read_only_server_is_refused_as_a_replica(server: sa.engine.URL) -> None:
    """And one that replicates, where the user may see that."""
    with _globals(server, read_only="ON"):
        with pytest.raises(ConfigError, match=r"is a replica.*source\.database\.replica"):
            _stored(_reader(server))
        with connected(_reader(server), replica=True) as connection:
            assert stored_table(connection, TABLE) is not None
    with _administrator(server) as administrator:
        administrator.exec_driver_sql(
            "CHANGE MASTER TO master_host = '127.0.0.1', master_port = 1, master_user = 'u'"
        )
        try:
            with capture_logs() as logs:
                # A server that takes writes, and was promoted: its channel is stopped.
                assert _stored(server.render_as_string(hide_password=False)).key == ("id",)
            assert ["RESET REPLICA ALL" in one["reason"] for one in logs] == [True]
            administrator.exec_driver_sql("START SLAVE")
            with pytest.raises(ConfigError, match="is a replica"):
                _stored(server.render_as_string(hide_password=False))
            # Types of columns are no rows.
            settings = DatabaseSettings.model_validate({"url": server.render_as_string(hide_password=False)})
            look = look_into(settings)
            assert look is not None
            assert [*look(TABLE)] == ["id", "at", "ch"]
            statement = created_by(settings, TABLE)
            assert statement is not None and "CREATE TABLE" in statement.sql  # noqa: PT018
        finally:
            administrator.exec_driver_sql("STOP SLAVE")
            administrator.exec_driver_sql("RESET SLAVE ALL")


def test_prepared_transactions_are_seen_by_any_user(server: sa.engine.URL) -> None:
    """Also those whose names are no text."""
    name = "X'00ff27', X'f0', 7"
    with _administrator(server) as writer, connected(_reader(server)) as reader:
        assert open_transactions(reader) == frozenset()
        for word in ("START", "END", "PREPARE"):
            writer.exec_driver_sql(f"XA {word} {name}")
        assert len(open_transactions(reader)) == 1
        writer.exec_driver_sql(f"XA ROLLBACK {name}")
        assert open_transactions(reader) == frozenset()


def test_columns_that_mariadb_hides_are_not_read(server: sa.engine.URL) -> None:
    """A unique key of a long column has a hash in a column that no list of columns has."""
    with _administrator(server) as connection:
        connection.exec_driver_sql("CREATE TABLE shop.pages (id INT, page LONGTEXT NOT NULL, UNIQUE (page))")
    stored = _stored(_reader(server), TableId("shop", "pages"))
    assert [*stored.types] == ["id", "page"]
    assert (stored.virtual, stored.key) == ({}, ("page",))


@pytest.mark.parametrize(
    "change",
    [
        "MODIFY k VARCHAR(20) COLLATE utf8mb4_bin NOT NULL",
        "CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        "MODIFY e ENUM('b', 'a') NOT NULL",
        "MODIFY n VARCHAR(20) NOT NULL",
    ],
)
def test_the_order_of_a_key_is_known_by_its_types_and_collations(server: sa.engine.URL, change: str) -> None:
    with _administrator(server) as connection:
        connection.exec_driver_sql(
            "CREATE OR REPLACE TABLE shop.coded (k VARCHAR(20) NOT NULL, e ENUM('a', 'b') NOT NULL, "
            "n INT NOT NULL, v TEXT, PRIMARY KEY (k, e, n)) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
        )
        table = TableId("shop", "coded")
        before = _stored(_reader(server), table)
        connection.exec_driver_sql("ALTER TABLE shop.coded MODIFY v TEXT COLLATE utf8mb4_bin, ADD w INT")
        assert _stored(_reader(server), table).order == before.order
        connection.exec_driver_sql(f"ALTER TABLE shop.coded {change}")
        after = _stored(_reader(server), table)
        assert after.key == before.key
        assert after.order != before.order
