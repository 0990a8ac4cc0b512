"""A sample shop in a MariaDB database, whose changes are sent to Kafka in the form that TiCDC writes.

The first rows are only in the database. Each later change is a transaction in the database, followed by its
record in Kafka. Everything except the commit times is generated from a seed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any, Final

from examples.first_load.mariadb import MariaDb
from tidesink.codecs import open_codec
from tidesink.codecs.options import CanalJsonOptions
from tidesink.ddl.catalog import TableDefinitions
from tidesink.dev.workload import OutgoingRecord, RecordEncoder, RecordSender, create_topics
from tidesink.events import ChangeEvent, Op, Position, TableId, TableSchema
from tidesink.schema_registry.naming import TopicRule
from tidesink.sinks.targets.sharing import quote_mysql

TOPICS: Final = "{schema}_{table}"
PARTITIONS: Final = 2
# The tables' DDL is not sent, so each record must have the full types of its columns.
CODEC: Final = CanalJsonOptions(enable_tidb_extension=True, content_compatible=True)
CUSTOMERS: Final = TableId("shop", "customers")
ORDERS: Final = TableId("shop", "orders")
# The id of an order that the shop never changes, so that the demo can alter it in the lake.
UNTOUCHED: Final = 17

_CREATE: Final = {
    CUSTOMERS: (
        "CREATE TABLE shop.customers (id BIGINT UNSIGNED PRIMARY KEY, email VARCHAR(120) NOT NULL, "
        "name VARCHAR(80), balance DECIMAL(20,4) NOT NULL, since DATE NOT NULL)"
    ),
    ORDERS: (
        "CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, customer_id BIGINT UNSIGNED NOT NULL, "
        "status ENUM('new','paid','shipped','returned') NOT NULL, total DECIMAL(14,2) NOT NULL, "
        "note TEXT, placed_at DATETIME(6) NOT NULL)"
    ),
}
# A row's values by column.
Row = dict[str, Any]

_ORDERS_OF_ONE: Final = 4  # the number of orders per customer
_NAMES: Final = ("Ada", "Émile", "中文", "O'Neill", "Grace 😀", None)
_NOTES: Final = (None, "", "leave at the door", "gift\twrapped\n", 'say "hi"')
_FIRST_DAY: Final = datetime(2016, 1, 1)
_DAYS: Final = 3650
_AT_ONCE: Final = 2_000
_NOWHERE: Final = Position(topic="", partition=0, offset=0)


@dataclass
class _Table:
    """The rows of one table, by id. ``ids``: ids of the rows that the shop may change, in any order."""

    schema: TableSchema
    rows: dict[int, Row] = field(default_factory=dict)
    ids: list[int] = field(default_factory=list)

    def add(self, row: Row) -> None:
        self.rows[row["id"]] = row
        if (self.schema.table, row["id"]) != (ORDERS, UNTOUCHED):
            self.ids.append(row["id"])

    def take(self, random: Random) -> Row:
        """Removes a random row from those that may change, and returns it."""
        index = random.randrange(len(self.ids))
        self.ids[index], self.ids[-1] = self.ids[-1], self.ids[index]
        return self.rows.pop(self.ids.pop())


class LiveShop:
    """A sample shop with two tables in a database, and their topics. The caller closes it."""

    def __init__(self, server: MariaDb, brokers: str, *, seed: int, topics: str = TOPICS) -> None:
        from tidesink.sinks.targets.sql.mysql import pymysql

        self._random = Random(seed)  # noqa: S311 - repeatable on purpose
        definitions = TableDefinitions()
        for query in _CREATE.values():
            definitions.apply(query)
        schemas = {table: definitions.get(table) for table in _CREATE}
        self._tables = {table: _Table(schema) for table, schema in schemas.items() if schema is not None}
        rule = TopicRule.parse(topics)
        codec = open_codec("canal-json", options=CODEC)
        self._encoder = RecordEncoder(codec, rule, PARTITIONS)
        create_topics(brokers, [rule.topic_for(table) for table in _CREATE], PARTITIONS)
        self._brokers = brokers
        self._sent: dict[str, int] = {}
        self._commit_ts = 0
        host, _, port = server.address.partition(":")
        self._connection = pymysql().connect(host=host, port=int(port), user="root", charset="utf8mb4")

    @property
    def changes(self) -> int:
        """The number of changes that were sent to Kafka."""
        return sum(self._sent.values())

    def load(self, orders: int) -> int:
        """Creates the tables and fills them with ``orders`` orders and their customers.

        Nothing is sent to Kafka. Returns the number of rows in both tables.
        """
        with self._connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE shop CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
            for query in _CREATE.values():
                cursor.execute(query)
            for number in range(1, orders // _ORDERS_OF_ONE + 2):
                self._tables[CUSTOMERS].add(self._customer(number))
            for number in range(1, orders + 1):
                self._tables[ORDERS].add(self._order(number))
            for table in self._tables.values():
                rows = [tuple(row.values()) for row in table.rows.values()]
                for start in range(0, len(rows), _AT_ONCE):
                    cursor.executemany(_insert(table.schema), rows[start : start + _AT_ONCE])
        self._connection.commit()
        return sum(len(table.rows) for table in self._tables.values())

    def change_until(self, stop: threading.Event, *, rate: float) -> None:
        """Changes at most ``rate`` rows per second until ``stop`` is set.

        Returns when all records have arrived in Kafka.

        Raises:
            SourceUnavailableError: A record could not be sent.
        """
        sender = RecordSender(self._brokers, rate=rate, by_topic=self._sent)
        while not stop.is_set():
            for record in self._transaction():
                sender.send(record)
        sender.close()

    def _transaction(self) -> Iterator[OutgoingRecord]:
        """Commits a random transaction in the database, then yields the records of its changes."""
        steps: tuple[Callable[[], Iterator[ChangeEvent]], ...] = (
            self._new_customer,
            self._new_order,
            self._updated,
            self._deleted,
        )
        (step,) = self._random.choices(steps, (1, 3, 8, 2))
        self._commit_ts = max(self._commit_ts + 1, int(time.time() * 1000) << 18)
        events = [*step()]
        with self._connection.cursor() as cursor:
            for event in events:
                cursor.execute(*_statement(event))
        self._connection.commit()
        for event in events:
            record = self._encoder.encode(event)
            assert record is not None  # noqa: S101  (each row event has a record)
            yield record

    def close(self) -> None:
        """Closes the connection to the database."""
        self._connection.close()

    def _new_customer(self) -> Iterator[ChangeEvent]:
        yield self._inserted(CUSTOMERS, self._customer(len(self._tables[CUSTOMERS].ids) + 10**9))

    def _new_order(self) -> Iterator[ChangeEvent]:
        """Creates an order and updates its customer's balance."""
        order = self._order(self.changes + 10**9)
        yield self._inserted(ORDERS, order)
        before = self._tables[CUSTOMERS].take(self._random)
        yield self._changed(CUSTOMERS, before, {"balance": before["balance"] - order["total"]})

    def _updated(self) -> Iterator[ChangeEvent]:
        before = self._tables[ORDERS].take(self._random)
        status = self._random.choice(("paid", "shipped", "returned"))
        yield self._changed(ORDERS, before, {"status": status, "note": self._random.choice(_NOTES)})

    def _deleted(self) -> Iterator[ChangeEvent]:
        before = self._tables[ORDERS].take(self._random)
        yield self._event(Op.DELETE, ORDERS, before, None)

    def _inserted(self, table: TableId, row: Row) -> ChangeEvent:
        self._tables[table].add(row)
        return self._event(Op.INSERT, table, None, row)

    def _changed(self, table: TableId, before: Row, values: dict[str, Any]) -> ChangeEvent:
        after = {**before, **values}
        self._tables[table].add(after)
        return self._event(Op.UPDATE, table, before, after)

    def _event(self, op: Op, table: TableId, before: Row | None, after: Row | None) -> ChangeEvent:
        key = {"id": (after or before or {})["id"]}
        schema = self._tables[table].schema
        return ChangeEvent(op, table, key, before, after, self._commit_ts, _NOWHERE, schema)

    def _customer(self, number: int) -> Row:
        random = self._random
        # Some ids are above 2^63, which an unsigned key allows.
        identity = 2**64 - number if number % 5 == 0 else number
        since = (_FIRST_DAY + timedelta(days=random.randrange(_DAYS))).date().isoformat()
        balance = Decimal(random.randrange(10**9)).scaleb(-4)
        return {
            "id": identity,
            "email": f"c{number}@example.com",
            "name": random.choice(_NAMES),
            "balance": balance,
            "since": since,
        }

    def _order(self, number: int) -> Row:
        random = self._random
        placed = _FIRST_DAY + timedelta(days=random.randrange(_DAYS), microseconds=random.randrange(10**10))
        return {
            "id": number,
            "customer_id": random.choice(self._tables[CUSTOMERS].ids),
            "status": "new",
            "total": Decimal(random.randrange(10**6)).scaleb(-2),
            "note": random.choice(_NOTES),
            "placed_at": placed.isoformat(" ", "microseconds"),
        }


def _place(table: TableId) -> str:
    return f"{quote_mysql(table.schema)}.{quote_mysql(table.name)}"


def _insert(schema: TableSchema) -> str:
    names = ", ".join(quote_mysql(column.name) for column in schema.columns)
    values = ", ".join("%s" for _ in schema.columns)
    return f"INSERT INTO {_place(schema.table)} ({names}) VALUES ({values})"  # noqa: S608


def _statement(event: ChangeEvent) -> tuple[str, tuple[Any, ...]]:
    """Returns the SQL statement that makes a change in the database, and the statement's parameters."""
    assert event.schema is not None  # noqa: S101  (``LiveShop`` gives it)
    if event.after is None:
        return f"DELETE FROM {_place(event.table)} WHERE id = %s", (event.key["id"],)  # type: ignore[index]  # noqa: S608
    if event.before is None:
        return _insert(event.schema), tuple(event.after.values())
    values = ", ".join(f"{quote_mysql(name)} = %s" for name in event.after)
    text = f"UPDATE {_place(event.table)} SET {values} WHERE id = %s"  # noqa: S608
    return text, (*event.after.values(), event.after["id"])
