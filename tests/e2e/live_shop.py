"""Two tables of a real database that a writer changes without a pause, and a connector's source.

The writer is a shop: an order and its lines are written in one transaction, and keys change in both. What the
tables hold is asked of the server at the end; nothing is remembered here.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any, Final, NamedTuple

import psycopg
import pymysql
import sqlalchemy as sa

from examples.first_load.mariadb import MariaDb
from tests.e2e.live_source import changing
from tests.postgres_database import admin_dsn, plain_session
from tidesink.sinks.targets.sql.location import Endpoint

SCHEMA: Final = "live"
TABLES: Final = ("orders", "lines")
READER, SENDER = "shop_reader", "shop_sender"
# Rows by which the end of every partition is known, and the text in them.
LAST_ROWS: Final = 24
LAST: Final = b"last of all"

_MARIADB: Final = (
    """CREATE TABLE live.orders (region varchar(20), id bigint unsigned, price decimal(12,2), note text,
    data varbinary(20), at datetime(6), moment timestamp(3) NULL, day date, feeling enum('sad','ok'),
    ratio double, PRIMARY KEY (region, id)) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci""",
    """CREATE TABLE live.`lines` (order_id bigint unsigned, id int, label varchar(40), amount int NOT NULL,
    PRIMARY KEY (order_id, id)) CHARACTER SET utf8mb4""",
)
_POSTGRES: Final = (
    "CREATE SCHEMA live",
    "CREATE TYPE live.mood AS ENUM ('sad', 'ok')",
    """CREATE TABLE live.orders (region varchar(20), id bigint, price numeric(12,2), note text, data bytea,
    at timestamp(6), moment timestamptz(3), day date, feeling live.mood, ratio double precision,
    PRIMARY KEY (region, id))""",
    """CREATE TABLE live.lines (order_id bigint, id int, label varchar(40), amount int NOT NULL,
    PRIMARY KEY (order_id, id))""",
    "ALTER TABLE live.orders REPLICA IDENTITY FULL",
    "ALTER TABLE live.lines REPLICA IDENTITY FULL",
)
_ORDERS: Final = ("region", "id", "price", "note", "data", "at", "moment", "day", "feeling", "ratio")
_REGIONS: Final = ("", "a", "B", "c%_", "Ärger", "z'\\")


@dataclass(frozen=True)
class MariaDbServer:
    """A MariaDB of the test's own, with a binary log."""

    server: MariaDb
    name = "mariadb"

    def connect(self) -> Any:
        """A session of the writer's."""
        return pymysql.connect(
            host="127.0.0.1",
            port=self.server.port,
            user="root",
            charset="utf8mb4",
            init_command="SET time_zone = '+00:00'",
        )

    def create(self) -> None:
        """The tables, and who reads them."""
        with closing(self.connect()) as session, session.cursor() as cursor:
            cursor.execute("CREATE DATABASE live")
            for statement in _MARIADB:
                cursor.execute(statement)
            for user in (READER, SENDER):
                for host in ("%", "localhost"):
                    cursor.execute(f"CREATE USER {user}@'{host}'")
                    cursor.execute(f"GRANT SELECT ON live.* TO {user}@'{host}'")
            for host in ("%", "localhost"):
                rights = (
                    "SELECT, RELOAD, SHOW DATABASES, REPLICATION SLAVE, REPLICATION CLIENT, BINLOG MONITOR"
                )
                cursor.execute(f"GRANT {rights} ON *.* TO {SENDER}@'{host}'")

    @property
    def url(self) -> str:
        """The reader's."""
        return f"mysql+pymysql://{READER}@{self.server.address}"

    def cut(self, user: str) -> int:
        """End all connections of a user; how many there were."""
        with closing(self.connect()) as session, session.cursor() as cursor:
            cursor.execute("SELECT id FROM information_schema.processlist WHERE user = %s", (user,))
            found = 0
            for (number,) in cursor.fetchall():
                with suppress(pymysql.MySQLError):  # it may have ended
                    cursor.execute(f"KILL {number}")
                    found += 1
        return found


@dataclass(frozen=True)
class PostgresServer:
    """A database of the test's own in the tests' Postgres."""

    endpoint: Endpoint
    database: str
    name = "postgres"

    def connect(self) -> Any:
        """A session of the writer's."""
        session = psycopg.connect(admin_dsn(self.endpoint, self.database), options="-c TimeZone=UTC")
        session.autocommit = False
        return session

    def create(self) -> None:
        """The tables, and who reads them."""
        with closing(self.connect()) as session:
            for statement in _POSTGRES:
                session.execute(statement)
            session.execute(f"CREATE ROLE {self.reader} LOGIN")
            session.execute(f"GRANT USAGE ON SCHEMA live TO {self.reader}")
            session.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA live TO {self.reader}")
            session.commit()

    def drop_reader(self) -> None:
        """The role would stay behind its database otherwise."""
        with plain_session(self.admin_url) as session:
            session.execute(f"DROP OWNED BY {self.reader}".encode())
            session.execute(f"DROP ROLE {self.reader}".encode())

    @property
    def reader(self) -> str:
        """Roles are the server's."""
        return f"{READER}_{self.database}"

    @property
    def admin_url(self) -> str:
        """The connector's."""
        return self._url(self.endpoint.user, self.endpoint.password or None)

    @property
    def url(self) -> str:
        """The reader's."""
        return self._url(self.reader, None)

    def _url(self, user: str, password: str | None) -> str:
        place = (self.endpoint.host, self.endpoint.port, self.database)
        url = sa.engine.URL.create("postgresql+psycopg", user, password, *place)
        return url.render_as_string(hide_password=False)

    def cut(self, user: str) -> int:
        """End all connections of a user; how many there were."""
        who = "usename = %s" if user == READER else "backend_type = 'walsender' AND datname = %s"
        query = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {who}"  # noqa: S608
        with plain_session(self.admin_url) as session:
            return session.execute(
                query.encode(), (self.reader if user == READER else self.database,)
            ).rowcount


LiveServer = MariaDbServer | PostgresServer


class Counts(NamedTuple):
    """What a writer did."""

    transactions: int
    changes: int


class LiveShop:
    """The tables on a server, and the writer's work in them."""

    def __init__(self, server: LiveServer, seed: int) -> None:
        self._server, self._rng = server, random.Random(seed)
        self._lines = "`lines`" if isinstance(server, MariaDbServer) else "lines"
        self._keys: list[tuple[str, int]] = []
        self._number = 0
        self._added = False
        self._alter = threading.Event()
        self.transactions = self.changes = 0

    def load(self, count: int) -> None:
        """Rows from before the connector: so many orders and two lines of each."""
        with closing(self._server.connect()) as session, session.cursor() as cursor:
            for _ in range(count):
                self._order(cursor)
            session.commit()
        self.transactions = self.changes = 0

    @contextmanager
    def changing(self, pause: float = 0.01) -> Iterator[None]:
        """Transactions all the time, ``pause`` seconds between two, in a thread of its own."""
        with (
            closing(self._server.connect()) as session,
            changing(lambda: self._transaction(session), pause=pause),
        ):
            yield

    def add_a_column(self) -> None:
        """Have the writer add a column before its next change; the rows that there are have it at once."""
        self._alter.set()

    def finish(self) -> None:
        """Rows that come last to each partition."""
        with closing(self._server.connect()) as session, session.cursor() as cursor:
            for number in range(LAST_ROWS):
                text = LAST.decode()
                cursor.execute(
                    "INSERT INTO live.orders (region, id, note) VALUES (%s, %s, %s)", ("end", number, text)
                )
                cursor.execute(
                    f"INSERT INTO live.{self._lines} (order_id, id, label, amount) VALUES (%s, %s, %s, 0)",  # noqa: S608
                    (10**15 + number, 0, text),
                )
            session.commit()

    def rows(self, table: str) -> tuple[list[str], list[tuple[str | None, ...]]]:
        """The columns of a table, and its rows as texts, in order."""
        named = self._lines if table == "lines" else table
        with closing(self._server.connect()) as session, session.cursor() as cursor:
            cursor.execute(f"SELECT * FROM live.{named}")  # noqa: S608
            names = [column[0] for column in cursor.description]
            return names, in_texts(cursor.fetchall())

    def _transaction(self, session: Any) -> None:
        with session.cursor() as cursor:
            if self._alter.is_set() and not self._added:
                session.commit()
                cursor.execute(
                    "ALTER TABLE live.orders ADD COLUMN remark varchar(40) NOT NULL DEFAULT 'näher'"
                )
                self._added = True
                session.commit()
            keys, before = list(self._keys), self.changes
            for _ in range(self._rng.randrange(1, 4)):
                self._rng.choices((self._order, self._pay, self._cancel, self._move), (4, 6, 2, 2))[0](cursor)
            if self._rng.random() < 0.1:
                session.rollback()
                self._keys, self.changes = keys, before
            else:
                session.commit()
                self.transactions += 1

    def _order(self, cursor: Any) -> None:
        self._number += 1
        key = self._rng.choice(_REGIONS), self._number * 1_000 + self._rng.randrange(1_000)
        values = (*key, *self._values())
        places = ", ".join(["%s"] * len(values))
        cursor.execute(f"INSERT INTO live.orders ({', '.join(_ORDERS)}) VALUES ({places})", values)  # noqa: S608
        for number in range(2):
            cursor.execute(
                f"INSERT INTO live.{self._lines} (order_id, id, label, amount) VALUES (%s, %s, %s, %s)",  # noqa: S608
                (key[1], number, self._rng.choice((None, "", "Ä")), self._rng.randrange(100)),
            )
        self._keys.append(key)
        self.changes += 3

    def _pay(self, cursor: Any) -> None:
        key, rng = self._rng.choice(self._keys), self._rng
        assignments = {"price": Decimal(rng.randrange(10**6)) / 100, "note": self._note()}
        if self._added:
            assignments["remark"] = f"paid {rng.randrange(10**6)}"
        given = ", ".join(f"{name} = %s" for name in assignments)
        cursor.execute(
            f"UPDATE live.orders SET {given} WHERE region = %s AND id = %s",  # noqa: S608
            (*assignments.values(), *key),
        )
        query = f"UPDATE live.{self._lines} SET amount = amount + %s WHERE order_id = %s"  # noqa: S608
        cursor.execute(query, (rng.randrange(1, 100), key[1]))
        self.changes += 3

    def _cancel(self, cursor: Any) -> None:
        region, number = self._keys.pop(self._rng.randrange(len(self._keys)))
        cursor.execute("DELETE FROM live.orders WHERE region = %s AND id = %s", (region, number))
        cursor.execute(f"DELETE FROM live.{self._lines} WHERE order_id = %s", (number,))  # noqa: S608
        self.changes += 3

    def _move(self, cursor: Any) -> None:
        """Other keys, in both tables."""
        at = self._rng.randrange(len(self._keys))
        region, number = self._keys[at]
        self._number += 1
        moved = self._number * 1_000 + self._rng.randrange(1_000)
        cursor.execute(
            "UPDATE live.orders SET id = %s WHERE region = %s AND id = %s", (moved, region, number)
        )
        query = f"UPDATE live.{self._lines} SET order_id = %s WHERE order_id = %s"  # noqa: S608
        cursor.execute(query, (moved, number))
        self._keys[at] = region, moved
        self.changes += 3

    def _values(self) -> Sequence[Any]:
        rng = self._rng
        at = f"2026-03-{rng.randrange(1, 28):02} 01:{rng.randrange(60):02}:00.{rng.randrange(10**6):06}"
        return (
            rng.choice((None, Decimal(rng.randrange(-(10**9), 10**9)) / 100)),
            self._note(),
            rng.choice((None, b"", rng.randbytes(9))),
            rng.choice((None, at)),
            rng.choice((None, at[:23])),
            rng.choice((None, "2024-02-29", "1969-12-31")),
            rng.choice((None, "sad", "ok")),
            rng.choice((None, 0.1, -1e300, rng.random())),
        )

    def _note(self) -> str | None:
        return self._rng.choice((None, "", "näher\t😀\n", self._rng.randbytes(200).hex()))


def in_texts(rows: Sequence[Sequence[Any]]) -> list[tuple[str | None, ...]]:
    """Rows in order, each value as a text that says the same whichever reader gave it."""
    return sorted((tuple(_text(value) for value in row) for row in rows), key=repr)


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, datetime):
        there = value if value.tzinfo is None else value.astimezone(timezone.utc).replace(tzinfo=None)
        return there.isoformat(timespec="microseconds")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, int | Decimal):
        return format(Decimal(value).normalize(), "f")
    return bytes(value).hex() if isinstance(value, bytes | bytearray | memoryview) else str(value)


def new_name() -> str:
    """A connector's, and the beginning of its topics'."""
    return f"shop{uuid.uuid4().hex[:8]}"
