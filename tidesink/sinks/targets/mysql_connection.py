"""Connections to MySQL and MariaDB, and the loading of CSV over one."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import closing
from tempfile import NamedTemporaryFile
from typing import Any, Final

from tidesink.errors import ConfigError
from tidesink.sinks.targets.mysql_errors import LoadRefusedError
from tidesink.sinks.targets.sql_endpoint import CONNECT_SECONDS, LOCK_SECONDS, Endpoint

# A value that does not fit is an error and never changed, nor is a 0 the next number of an AUTO_INCREMENT;
# what LOAD DATA changed is told, whatever the server tells others; instants are written in UTC.
_SESSION: Final = (
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,"
    "NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO'",
    "SET SESSION sql_notes = 1, max_error_count = 64",
    "SET SESSION time_zone = '+00:00'",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    f"SET SESSION innodb_lock_wait_timeout = {LOCK_SECONDS}, lock_wait_timeout = {LOCK_SECONDS}",
)
# The longest that a statement of ours may take (s); a server that is gone is noticed by the socket before.
_READ_SECONDS: Final = 3600


def pymysql() -> Any:
    """The driver.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import pymysql as driver
    except ImportError as error:
        raise ConfigError(
            "a mysql target needs PyMySQL: pip install 'tidesink[mysql]', on the executors too"
        ) from error
    return driver


def connect(endpoint: Endpoint, *, loads: bool = False) -> Any:
    """A connection; statements are in transactions. ``loads``: it may send a file of ours."""
    from pymysql.constants import CLIENT

    connection = pymysql().connect(
        host=endpoint.host,
        port=endpoint.port,
        database=endpoint.database or None,
        user=endpoint.user,
        password=endpoint.password,
        charset="utf8mb4",
        connect_timeout=CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        write_timeout=_READ_SECONDS,
        client_flag=CLIENT.FOUND_ROWS,  # an UPDATE counts the rows it finds, changed or not
        local_infile=loads,
        **_tls(endpoint),
    )
    with connection.cursor() as cursor:
        for statement in _SESSION:
            cursor.execute(statement)
        cursor.execute(_limit(endpoint.silence))
    return connection


def _limit(silence: int) -> str:
    """MariaDB's is of transactions; MySQL has that of every silence alone. Each server reads its comment."""
    mariadb, mysql = f", idle_transaction_timeout = {silence}", f", wait_timeout = {silence}"
    return f"SET SESSION sql_notes = 1 /*M!100300 {mariadb} */ /*!80000 {mysql} */"


def _tls(endpoint: Endpoint) -> dict[str, Any]:
    if endpoint.tls == "disable":
        return {"ssl_disabled": True}
    if endpoint.tls == "prefer":
        return {}
    context = ssl.create_default_context(cafile=endpoint.ca)
    context.check_hostname = endpoint.tls == "verify-full"
    if endpoint.tls == "require":
        context.verify_mode = ssl.CERT_NONE
    if endpoint.certificate:
        context.load_cert_chain(endpoint.certificate, endpoint.key)
    return {"ssl": context}


def load(endpoint: Endpoint, statement: str, chunks: Iterator[memoryview]) -> int:
    """LOAD DATA LOCAL of CSV into a staging table; how many rows the server took.

    The driver reads a file by its name: the lines stand in one of the task's own until they are loaded. Only
    then is there a connection, which MySQL would close while Spark takes its time for the lines.

    Raises:
        LoadRefusedError: the server changed a value, of which LOCAL makes a warning in any mode.
    """
    with NamedTemporaryFile(prefix="tidesink-", suffix=".csv") as file:
        for chunk in chunks:
            file.write(chunk)
        file.flush()
        with closing(connect(endpoint, loads=True)) as connection:
            rows = _loaded(connection, statement, file.name)
            connection.commit()
    return rows


def _loaded(connection: Any, statement: str, name: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(statement, (name,))
        rows = int(cursor.rowcount)
        cursor.execute("SHOW WARNINGS LIMIT 1")
        warning = cursor.fetchone()
    if warning is not None:
        raise LoadRefusedError(int(warning[1]))
    return rows
