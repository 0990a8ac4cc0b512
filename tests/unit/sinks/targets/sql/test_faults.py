"""What drivers report, and what becomes of it: each reason has its own cause and remedy.

The texts are those that libpq 17 with Postgres 15 and PyMySQL 1.2 with MariaDB 10.11 gave, hosts replaced.
"""

from __future__ import annotations

import socket
import ssl
from types import SimpleNamespace
from typing import Any

import psycopg
import pymysql
import pytest
from sqlalchemy.exc import OperationalError

from tidesink.errors import (
    ConfigError,
    SchemaRefusedError,
    SourceUnavailableError,
    TargetError,
    TransientTargetError,
)
from tidesink.events import TableId
from tidesink.sinks.targets.sharing import quote_mysql, quote_postgres
from tidesink.sinks.targets.sql import mysql_merge, postgres_merge
from tidesink.sinks.targets.sql.faults import Fault
from tidesink.sinks.targets.sql.location import Endpoint, not_connected, place_in
from tidesink.sinks.targets.sql.rights import held_rights, mysql_grants, postgres_grants
from tidesink.source_database.connection_faults import mysql_fault, postgres_fault
from tidesink.source_database.database import translated

ENDPOINT = Endpoint("db", 5432, "copy", "sink", "opensesame")
_AT = 'connection failed: connection to server at "10.0.0.7", port 5432 failed: '
_REFUSED = "Connection refused\n\tIs the server running on that host and accepting TCP/IP connections?"


@pytest.mark.parametrize(
    ("text", "error", "says", "remedy"),
    [
        (_AT + _REFUSED, TransientTargetError, "does not answer (connection refused)", "the server runs"),
        (
            f"{_AT}{_REFUSED}\nMultiple connection attempts failed. All failures were:\n"
            f"- host: 'localhost', port: 5432, hostaddr: '::1': {_AT}{_REFUSED}",
            TransientTargetError,
            "does not answer (connection refused)",
            "host and port in target.url",
        ),
        (
            'could not translate host name "db" to address: Name or service not known',
            TransientTargetError,
            "(host not found)",
            "the host in target.url",
        ),
        ("connection timeout expired", TransientTargetError, "(timeout)", "firewall"),
        (f"{_AT}timeout expired", TransientTargetError, "(timeout)", "firewall"),
        (f"{_AT}No route to host", TransientTargetError, "(no route to the host)", "network"),
        (
            f"{_AT}server closed the connection unexpectedly\n\tThis probably means the server terminated",
            TransientTargetError,
            "(the connection was closed)",
            "server's log",
        ),
        (
            f'{_AT}FATAL:  password authentication failed for user "sink"',
            TargetError,
            "refuses the user 'sink' (password authentication failed)",
            "target.user and target.password",
        ),
        # Under sslmode prefer libpq tries again without TLS, and the last answer is not the reason.
        (
            f'{_AT}FATAL:  password authentication failed for user "sink"\n'
            'connection to server at "10.0.0.7", port 5432 failed: FATAL:  no pg_hba.conf entry for host '
            '"10.0.0.9", user "sink", database "copy", no encryption',
            TargetError,
            "(password authentication failed)",
            "target.password",
        ),
        (f"{_AT}fe_sendauth: no password supplied", TargetError, "(it asks for a password)", "Set target"),
        (
            f'{_AT}FATAL:  no pg_hba.conf entry for host "10.0.0.9", user "sink", database "copy", '
            "no encryption",
            TargetError,
            "refuses the connection (no pg_hba.conf entry",
            "target.tls.mode to require",
        ),
        (
            f'{_AT}FATAL:  no pg_hba.conf entry for host "10.0.0.9", user "sink", database "copy", '
            "SSL encryption",
            TargetError,
            "refuses the user 'sink' (no pg_hba.conf entry",
            "Add a line",
        ),
        (
            f'{_AT}FATAL:  database "copy" does not exist',
            TargetError,
            '(database "copy" does not exist)',
            "CREATE DATABASE",
        ),
        (f'{_AT}FATAL:  role "sink" does not exist', TargetError, 'role "sink"', "Check target.user"),
        (
            f'{_AT}FATAL:  permission denied for database "copy"\nDETAIL:  User does not have CONNECT.',
            TargetError,
            'permission denied for database "copy"',
            "GRANT CONNECT",
        ),
        (
            f"{_AT}FATAL:  sorry, too many clients already",
            TransientTargetError,
            "too many",
            "raise the server's limit",
        ),
        (
            f"{_AT}FATAL:  the database system is starting up",
            TransientTargetError,
            "is starting up",
            "The connection is retried",
        ),
        (
            f"{_AT}FATAL:  the database system is shutting down",
            TransientTargetError,
            "is shutting down",
            "The connection is retried",
        ),
        (
            f"{_AT}server does not support SSL, but SSL was required",
            TargetError,
            "(it has no TLS)",
            "target.tls.mode to prefer",
        ),
        (
            f"{_AT}SSL error: certificate verify failed",
            TargetError,
            "cannot be trusted",
            "Set target.tls.ca",
        ),
        (
            'connection failed: root certificate file "/ca.pem" does not exist\nEither provide the file',
            TargetError,
            "cannot be read",
            "paths of ca",
        ),
        # A server in another language: its own words, whatever they are.
        (
            f"{_AT}FATAL:  Datenbanksystem wird wiederhergestellt",
            TransientTargetError,
            "(Datenbanksystem wird wiederhergestellt)",
            "server's log",
        ),
    ],
)
def test_each_reason_why_postgres_is_not_reached(
    text: str, error: type[TargetError], says: str, remedy: str
) -> None:
    found = not_connected(postgres_fault(psycopg.OperationalError(text)), "Postgres", ENDPOINT)
    assert type(found) is error
    assert found.message.startswith("Postgres at db:5432/copy ")
    assert says in found.message
    assert remedy in found.message
    assert "Is the server running" not in found.message


def _socket_error(cause: OSError) -> pymysql.OperationalError:
    """As PyMySQL keeps it (``Connection.connect``)."""
    error = pymysql.OperationalError(2003, f"Can't connect to MySQL server on 'db' ({cause})")
    error.original_exception = cause  # type: ignore[attr-defined]  # types-PyMySQL lacks it
    return error


@pytest.mark.parametrize(
    ("raised", "error", "says", "remedy"),
    [
        (
            _socket_error(ConnectionRefusedError(111, "Connection refused")),
            TransientTargetError,
            "does not answer (connection refused)",
            "host and port in target.url",
        ),
        (_socket_error(socket.gaierror(-2, "unknown")), TransientTargetError, "(host not found)", "host"),
        (_socket_error(TimeoutError("timed out")), TransientTargetError, "(timeout)", "firewall"),
        (_socket_error(OSError(113, "No route")), TransientTargetError, "(no route to the host)", "network"),
        (_socket_error(ssl.SSLCertVerificationError("x")), TargetError, "cannot be trusted", "target.tls.ca"),
        (FileNotFoundError(2, "ca.pem"), TargetError, "cannot be read", "paths of ca"),
        (
            pymysql.OperationalError(2026, "SSL is required but the server doesn't support it"),
            TargetError,
            "(it has no TLS)",
            "target.tls.mode to prefer",
        ),
        (
            pymysql.OperationalError(2013, "Lost connection to MySQL server during query"),
            TransientTargetError,
            "(the connection was closed)",
            "server's log",
        ),
        (
            pymysql.OperationalError(1045, "Access denied for user 'sink'@'10.0.0.9' (using password: YES)"),
            TargetError,
            "refuses the user 'sink' (error 1045: Access denied for user 'sink'@'10.0.0.9'",
            "Check target.user and target.password",
        ),
        (
            pymysql.OperationalError(1044, "Access denied for user 'sink'@'%' to database 'copy'"),
            TargetError,
            "to database 'copy'",
            "GRANT ALL PRIVILEGES",
        ),
        (
            pymysql.OperationalError(1049, "Unknown database 'copy'"),
            TargetError,
            "Unknown database 'copy'",
            "CREATE DATABASE",
        ),
        (
            pymysql.OperationalError(1040, "Too many connections"),
            TransientTargetError,
            "Too many connections",
            "raise the server's limit",
        ),
        (
            pymysql.OperationalError(1130, "Host '10.0.0.9' is not allowed to connect to this server"),
            TargetError,
            "Host '10.0.0.9' is not allowed",
            "to allow logins from this machine",
        ),
        (
            pymysql.OperationalError(3159, "Connections using insecure transport are prohibited"),
            TargetError,
            "insecure transport",
            "target.tls.mode to require",
        ),
    ],
)
def test_each_reason_why_mysql_is_not_reached(
    raised: Exception, error: type[TargetError], says: str, remedy: str
) -> None:
    found = not_connected(mysql_fault(raised), "MySQL", ENDPOINT)
    assert type(found) is error
    assert says in found.message
    assert remedy in found.message


@pytest.mark.parametrize(
    ("raised", "error", "says"),
    [
        (
            psycopg.OperationalError(_AT + _REFUSED),
            SourceUnavailableError,
            r"does not answer \(connection re",
        ),
        (
            psycopg.OperationalError(f'{_AT}FATAL:  password authentication failed for user "SECRET"'),
            ConfigError,
            r"refuses the user \(password authentication failed\)",
        ),
        (
            psycopg.OperationalError(f'{_AT}FATAL:  database "SECRET" does not exist'),
            ConfigError,
            r'refuses the connection \(database "…" does not exist\)',
        ),
        (pymysql.OperationalError(1045, "denied 'SECRET'"), ConfigError, "refuses the user .error 1045"),
        (pymysql.OperationalError(1049, "Unknown database 'SECRET'"), ConfigError, "Unknown database"),
        (pymysql.OperationalError(1040, "Too many connections"), SourceUnavailableError, "Too many"),
        (
            pymysql.OperationalError(1142, "SELECT command denied to user 'SECRET'@'%' for table `a`.`b`"),
            ConfigError,
            r'refuses the user \(code 1142: SELECT command denied to user "…" for table `a`.`b`\)',
        ),
        (
            _socket_error(ConnectionRefusedError(111, "refused")),
            SourceUnavailableError,
            r"does not answer \(connection refused\)",
        ),
        (pymysql.OperationalError(2013, "Lost"), SourceUnavailableError, "does not answer .code 2013"),
    ],
)
def test_the_source_has_the_same_reasons(raised: Exception, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as caught, translated("source.database.url"):
        raise OperationalError("SELECT", {}, raised)
    assert "source.database.url" in str(caught.value)
    assert "SECRET" not in str(caught.value)


def test_a_right_that_a_statement_lacks_at_the_source_is_no_silence() -> None:
    refusal = OperationalError("SELECT", {}, _Refusal("42501", "permission denied for table a"))
    said = "code 42501: permission denied for table a"
    with pytest.raises(ConfigError, match=said) as caught, translated("source.database.url"):
        raise refusal
    assert "Grant it SELECT" in caught.value.message


class _Refusal(psycopg.Error):
    """An error of psycopg's with the fields that a server sends."""

    def __init__(self, sqlstate: str, message: str, **names: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        fields = dict.fromkeys(("schema_name", "table_name", "column_name", "constraint_name"))
        self._fields = SimpleNamespace(message_primary=message, source_file=None, **{**fields, **names})

    @property
    def diag(self) -> Any:
        return self._fields


@pytest.mark.parametrize(
    ("raised", "error", "says"),
    [
        (
            _Refusal("42501", "permission denied for table orders"),
            TargetError,
            ("The user 'sink' lacks a privilege", "permission denied for table orders", "validate --connect"),
        ),
        # The server may speak another language.
        (_Refusal("42501", "keine Berechtigung für Tabelle orders"), TargetError, ("Tabelle orders",)),
        (
            _Refusal("23502", "null value of SECRET", schema_name="shop", table_name="o", column_name="note"),
            TargetError,
            ("table shop.o, column note", "DROP NOT NULL"),
        ),
        (
            _Refusal("23505", "duplicate SECRET", schema_name="s", table_name="o", constraint_name="o_code"),
            TargetError,
            ("unique index that is not the key", "constraint o_code", "Drop that index"),
        ),
        (
            _Refusal("23503", "insert SECRET", schema_name="s", table_name="o", constraint_name="fk"),
            TargetError,
            ("foreign key", "constraint fk", "Drop the foreign key"),
        ),
        (_Refusal("22001", "value too long SECRET"), TargetError, ("does not fit its column",)),
        (
            _Refusal("25006", "cannot execute INSERT in a read-only transaction"),
            TransientTargetError,
            ("standby", "Set target.url to the primary"),
        ),
        (_Refusal("53100", "could not extend file"), TransientTargetError, ("disk is full", "Make room")),
        (_Refusal("53300", "too many clients"), TransientTargetError, ("no connections left",)),
        (_Refusal("40P01", "deadlock detected"), TransientTargetError, ("deadlock", "is tried again")),
        (
            _Refusal("55P03", "canceling statement due to lock timeout"),
            TransientTargetError,
            ("holds a lock", "pg_blocking_pids"),
        ),
        (
            _Refusal("57014", "canceling statement due to statement timeout"),
            TransientTargetError,
            ("due to statement timeout", "ALTER ROLE sink SET statement_timeout = 0"),
        ),
        (_Refusal("57P01", "terminating connection"), TransientTargetError, ("does not answer", "57P01")),
        (
            _Refusal("2BP01", "cannot drop column note because other objects depend on it"),
            TargetError,
            ("cannot drop column note", "Drop that object"),
        ),
        (_Refusal("42P10", "there is no unique constraint"), SchemaRefusedError, ("primary key",)),
        (_Refusal("42P01", 'relation "x" does not exist'), TransientTargetError, ('relation "x"',)),
    ],
)
def test_each_refusal_of_postgres(raised: Exception, error: type[TargetError], says: tuple[str, ...]) -> None:
    fault = postgres_merge.fault_of(raised)
    assert fault is not None
    found = postgres_merge.error_of(fault, table="shop.orders", user="sink")
    assert type(found) is error
    assert all(one in found.message for one in says), found.message
    assert "SECRET" not in found.message


@pytest.mark.parametrize(
    ("number", "text", "error", "says"),
    [
        (
            1142,
            "INSERT, UPDATE command denied to user 'sink'@'10.0.0.9' for table `shop`.`orders`",
            TargetError,
            ("lacks a privilege", "INSERT, UPDATE command denied", "`shop`.`orders`", "validate --connect"),
        ),
        (1044, "Access denied for user 'sink'@'%' to database 'shop'", TargetError, ("database 'shop'",)),
        (1227, "Access denied; you need the SUPER privilege", TargetError, ("SUPER privilege",)),
        (1370, "execute command denied to user 'sink'", TargetError, ("lacks a privilege",)),
        (1045, "Access denied for user 'sink'@'%'", TargetError, ("refuses the user", "target.password")),
        (1048, "Column 'note' cannot be null", TargetError, ("'note'", "MODIFY … NULL")),
        (1366, "Incorrect value: 'SECRET' for column", TargetError, ("does not fit its column",)),
        (1062, "Duplicate entry 'SECRET' for key 'code'", TargetError, ("unique index that is not the key",)),
        (1452, "a foreign key constraint fails (`shop`.`o`)", TargetError, ("Drop the foreign key",)),
        (1290, "running with the --read-only option", TransientTargetError, ("to the primary",)),
        (1114, "The table 'o' is full", TransientTargetError, ("'o' is full", "Make room")),
        (1040, "Too many connections", TransientTargetError, ("no connections left",)),
        (1213, "Deadlock found", TransientTargetError, ("deadlock",)),
        (1205, "Lock wait timeout exceeded", TransientTargetError, ("holds a lock", "SHOW PROCESSLIST")),
        (1969, "Query execution was interrupted", TransientTargetError, ("max_statement_time",)),
        (2013, "Lost connection", TransientTargetError, ("does not answer (2013)",)),
    ],
)
def test_each_refusal_of_mysql(
    number: int, text: str, error: type[TargetError], says: tuple[str, ...]
) -> None:
    fault = mysql_merge.fault_of(pymysql.OperationalError(number, text))
    assert fault is not None
    found = mysql_merge.error_of(fault, table="shop.orders", user="sink")
    assert type(found) is error
    assert all(one in found.message for one in says), found.message
    assert "SECRET" not in found.message


def test_the_grants_that_are_missing_are_the_remedy() -> None:
    grants = ['GRANT SELECT, INSERT ON "shop"."orders" TO sink']
    found = postgres_merge.error_of(Fault("42501"), table="shop.orders", user="sink", grants=grants)
    assert found.message.endswith(f"run: {grants[0]}")


@pytest.mark.parametrize(
    ("lines", "held"),
    [
        (["GRANT ALL PRIVILEGES ON *.* TO `root`@`localhost` WITH GRANT OPTION"], {"ALL PRIVILEGES"}),
        (
            ["GRANT USAGE ON *.* TO `sink`@`%`", "GRANT SELECT, CREATE TEMPORARY TABLES ON `shop`.* TO `s`"],
            {"USAGE", "SELECT", "CREATE TEMPORARY TABLES"},
        ),
        (["GRANT SELECT ON `sh%`.* TO `s`@`%`", "GRANT DROP ON `sho\\_`.* TO `s`@`%`"], {"SELECT"}),
        # What is on one table is not on its staging tables.
        (["GRANT USAGE ON *.* TO `s`@`%`", "GRANT SELECT ON `shop`.`orders` TO `s`@`%`"], {"USAGE"}),
        (["GRANT SELECT ON shop.* TO s@localhost"], {"SELECT"}),
        (["GRANT `writer` TO `s`@`%`"], None),
    ],
)
def test_the_rights_in_show_grants(lines: list[str], held: set[str] | None) -> None:
    assert held_rights(lines, "shop") == held


class _Answers:
    """A cursor that gives the next answer to each statement."""

    def __init__(self, *answers: list[tuple[Any, ...]]) -> None:
        self._answers = list(answers)
        self._now: list[tuple[Any, ...]] = []

    def execute(self, _statement: str, _values: object = None) -> None:
        self._now = self._answers.pop(0)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._now

    def fetchone(self) -> tuple[Any, ...]:
        return self._now[0]


_LEDGER_ROW = ("_tidesink_ledger", False, True, True, True, True)


@pytest.mark.parametrize(
    ("schema", "tables", "grants"),
    [
        (("sink", "copy", True, None, None, None), [], []),
        (("sink", "copy", False, None, None, None), [], ["GRANT CREATE ON DATABASE copy TO sink"]),
        (("sink", "copy", False, 9, True, False), [], ['GRANT CREATE ON SCHEMA "shop" TO sink']),
        (("sink", "copy", True, 9, True, True), [_LEDGER_ROW, ("orders", True, *[True] * 4)], []),
        (
            ("sink", "copy", True, 9, True, True),
            [("orders", False, True, False, False, True)],
            [
                'GRANT INSERT, UPDATE ON "shop"."orders" TO sink',
                'ALTER TABLE "shop"."orders" OWNER TO sink',
            ],
        ),
        (
            ("sink", "copy", False, 9, False, False),
            [("_tidesink_ledger", False, True, False, True, True), ("orders", True, *[True] * 4)],
            [
                'GRANT USAGE, CREATE ON SCHEMA "shop" TO sink',
                'GRANT INSERT ON "shop"."_tidesink_ledger" TO sink',
            ],
        ),
    ],
)
def test_postgres_lacks_what_a_table_needs(
    schema: tuple[Any, ...], tables: list[tuple[Any, ...]], grants: list[str]
) -> None:
    place = place_in("{schema}.{table}", TableId("shop", "orders"), quote_postgres)
    assert postgres_grants(_Answers([schema], tables), place, changes=True) == grants
    left = [one for one in grants if "OWNER" not in one]
    assert postgres_grants(_Answers([schema], tables), place, changes=False) == left


def test_mysql_lacks_what_a_table_needs() -> None:
    place = place_in("{schema}.{table}", TableId("shop", "orders"), quote_mysql)
    held = [("GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, DROP ON `shop`.* TO `si``nk`@`%`",)]
    cursor = _Answers(held, [("si`nk@%",)])
    assert mysql_grants(cursor, place, changes=True) == [
        "GRANT CREATE TEMPORARY TABLES, ALTER ON `shop`.* TO `si``nk`@`%`"
    ]
    cursor = _Answers([("GRANT ALL PRIVILEGES ON `shop`.* TO `sink`@`%`",)])
    assert mysql_grants(cursor, place, changes=True) == []
