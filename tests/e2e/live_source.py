"""A table in a real database whose changes go to a topic, each after its commit, as a changefeed does it."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from tests.e2e.replay import Servers
from tests.e2e.writing import TableWriter, shop_config
from tests.tidb_front import committing
from tidesink.codecs.base import CodecOptions
from tidesink.config import Config
from tidesink.events import Column, ColumnType, Op, Row, TableId, TableSchema
from tidesink.sinks.runtime.control import SnapshotControl, change_control
from tidesink.sinks.state.sql_store import open_state_store

# A key of two columns, of which the text compares in any case, and one value of each kind of text.
COLUMNS: Final = (
    Column(
        "region", ColumnType("varchar", length=20, sql="varchar(20)"), False, handle=True, primary_key=True
    ),
    Column("id", ColumnType("bigint unsigned", sql="bigint unsigned"), False, handle=True, primary_key=True),
    Column("price", ColumnType("decimal", precision=12, scale=2, sql="decimal(12,2)")),
    Column("note", ColumnType("text", sql="text")),
    Column("data", ColumnType("blob", sql="blob")),
)
REGIONS: Final = ("", "a", "B", "c%_", "Ärger", "z'\\")
_LARGEST: Final = 2**64 - 1
# A key, the commit_ts, and the row from then on; None: it was deleted.
Commit = tuple[tuple[str, int], int, Row | None]


class LiveTable:
    """One table; ``name`` is new in the server.

    ``clock`` gives the commit_ts of changes, each behind its commit, and changes go to any partition. Without
    it their order is Kafka's. ``tells``: whether DDL is in the topic. ``in_time``: changes have the
    time at which they are made, and not one of long ago. ``made``: the topic is there from the beginning.
    ``commits`` are those of rows, ``sent`` what the topic has of them.
    """

    def __init__(
        self,
        engine: sa.Engine,
        servers: Servers,
        *,
        partitions: int = 3,
        seed: int = 5,
        clock: Callable[[], int] | None = None,
        tells: bool = True,
        in_time: bool = False,
        made: bool = True,
    ) -> None:
        self.name = TableId(f"live{uuid.uuid4().hex[:8]}", "orders")
        self.topic = f"{servers['prefix']}{self.name.schema}"
        self._engine, self._rng, self._partitions = engine, random.Random(seed), partitions
        self._rows: dict[tuple[str, int], Row] = {}
        self._columns: tuple[Column, ...] = COLUMNS
        self.largest_size = 10**6
        # In hundredths.
        self.largest_price = 10**9
        self._tells, self._in_time = tells, in_time
        # Of the last commit, in ms.
        self._clock = 1_767_225_600_000
        self.tso = clock
        self.commits, self.sent = list[Commit](), list[Commit]()
        # What the changefeed has not sent yet; None: nothing is held back.
        self._late: list[Callable[[], object]] | None = None
        schema = TableSchema(self.name, COLUMNS)
        self._brokers = servers["brokers"]
        if made:
            self.make_topic()
        options = CodecOptions(enable_tidb_extension=clock is not None)
        self._feed = TableWriter(servers, schema, protocol="canal-json", topic=self.topic, options=options)
        columns = ", ".join(f"`{one.name}` {(one.type.sql or '')}" for one in COLUMNS)
        self.create = f"CREATE TABLE `{self.name.schema}`.orders ({columns}, PRIMARY KEY (region, id))"
        with self._engine.begin() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE `{self.name.schema}`")
            connection.exec_driver_sql(f"{self.create} CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci")
        if tells:
            self._feed.ddl(self.create)

    def make_topic(self) -> None:
        """The topic comes into being."""
        from tests.servers import create_topics

        create_topics(self._brokers, {self.topic: self._partitions})

    def say(self) -> None:
        """From now on DDL is in the topic."""
        self._tells = True

    def load(self, count: int) -> None:
        """Rows from before the topic: nothing is sent of them."""
        rows = [self._row(self._rng.choice(REGIONS), number) for number in range(1, count)]
        rows.append(self._row("z'\\", _LARGEST))
        with self._engine.begin() as connection:
            connection.execute(self._table.insert(), rows)
        self._rows.update(((row["region"], row["id"]), row) for row in rows)
        at = self._commit_ts()
        self.commits += (((row["region"], row["id"]), at, row) for row in rows)

    def change(self) -> None:
        """One change at random: its commit, then its event."""
        kind = self._rng.choices(("insert", "update", "delete", "key"), (3, 5, 2, 1))[0]
        if kind == "insert":
            row = self._row(self._rng.choice(REGIONS), self._rng.randrange(10**6, 10**7))
            if (row["region"], row["id"]) not in self._rows:
                self._write(None, row)
            return
        key = self._rng.choice([*self._rows])
        old = self._rows[key]
        if kind == "delete":
            self._write(old, None)
        elif kind == "update":
            self._write(old, self._row(*key))
        else:
            # As TiCDC sends it: a delete, and an insert.
            moved = self._row(key[0], self._rng.randrange(10**7, 10**8))
            self._write(old, None)
            self._write(None, moved)

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """The changefeed is late: what is done here comes to the topic at the end."""
        late: list[Callable[[], object]] = []
        self._late = late
        try:
            yield
        finally:
            self._late = None
            for send in late:
                send()

    @contextmanager
    def unsent(self) -> Iterator[None]:
        """The changefeed loses what is done here, so that a copy is not equal to the table any more."""
        self._late = []
        try:
            yield
        finally:
            self._late = None

    def alter(
        self, change: str, columns: tuple[Column, ...], renamed: Mapping[str, str], **values: Any
    ) -> None:
        """An ALTER TABLE; rows have ``columns`` then, and ``values`` of those that are new."""
        statement = f"ALTER TABLE `{self.name.schema}`.orders {change}"
        with self._engine.begin() as connection:
            connection.exec_driver_sql(statement)
        self._columns = columns
        names = [column.name for column in columns]
        for key, row in self._rows.items():
            known = {**values, **{renamed.get(name, name): value for name, value in row.items()}}
            self._rows[key] = {name: known[name] for name in names}
        at = self._commit_ts()
        if self._tells:
            self._send(lambda: self._feed.ddl(statement, commit_ts=at))
        self._feed.schema = TableSchema(self.name, columns)

    def mark(self) -> None:
        """A watermark."""
        self._feed.watermark(self._commit_ts())

    def truncate(self) -> None:
        """A TRUNCATE."""
        statement = f"TRUNCATE TABLE `{self.name.schema}`.orders"
        with self._engine.begin() as connection:
            connection.exec_driver_sql(statement)
        self._rows.clear()
        at = self._commit_ts()
        self._send(lambda: self._feed.ddl(statement, commit_ts=at))

    def _commit_ts(self) -> int:
        if self.tso is not None:
            return self.tso()
        self._clock = max(self._clock + 1, time.time_ns() // 10**6 if self._in_time else 0)
        return self._clock << 18

    def _send(self, send: Callable[[], object]) -> None:
        if self._late is None:
            send()
        else:
            self._late.append(send)

    def rows(self) -> list[dict[str, Any]]:
        """All rows now, as the database has them."""
        with self._engine.connect() as connection:
            return [dict(row) for row in connection.execute(sa.select(self._table)).mappings()]

    @property
    def _table(self) -> sa.Table:
        types: dict[str, Any] = {
            "region": sa.String,
            "id": sa.BigInteger,
            "price": sa.Numeric(12, 2),
            "note": sa.Text,
            "remark": sa.Text,
            "size": sa.BigInteger,
        }
        columns = [sa.Column(one.name, types.get(one.name, sa.LargeBinary)) for one in self._columns]
        return sa.Table("orders", sa.MetaData(), *columns, schema=self.name.schema)

    def _row(self, region: str, number: int) -> dict[str, Any]:
        rng = self._rng
        row = {
            "region": region,
            "id": number,
            "price": rng.choice(
                (None, Decimal(rng.randrange(-self.largest_price, self.largest_price)) / 100)
            ),
            "note": rng.choice((None, "", "a\tb\n", f"näher {rng.random()} 😀")),
            "data": rng.choice((None, b"", rng.randbytes(9))),
            "size": rng.randrange(self.largest_size),
        }
        row["remark"] = row["note"]
        return {column.name: row[column.name] for column in self._columns}

    def write_in(self, connection: sa.Connection, old: Row | None, new: Row | None) -> None:
        """A change in a transaction of the caller's, sent at once."""
        self._execute(connection, old, new)
        self._tell(old, new, self._commit_ts())

    def _execute(self, connection: sa.Connection, old: Row | None, new: Row | None) -> None:
        table, key = self._table, (new or old or {})
        place = sa.and_(table.c.region == key["region"], table.c.id == key["id"])
        if new is None:
            connection.execute(table.delete().where(place))
        elif old is None:
            connection.execute(table.insert(), [dict(new)])
        else:
            connection.execute(table.update().where(place).values(**new))

    def _write(self, old: Row | None, new: Row | None) -> None:
        with committing():
            with self._engine.begin() as connection:
                self._execute(connection, old, new)
            at = self._commit_ts()
        self._tell(old, new, at)

    def _tell(self, old: Row | None, new: Row | None, at: int) -> None:
        """Send a change, and know it."""
        key = new or old or {}
        named = (str(key["region"]), int(str(key["id"])))
        if new is None:
            del self._rows[named]
        else:
            self._rows[named] = new
        op = Op.DELETE if new is None else Op.INSERT if old is None else Op.UPDATE
        before = old if op is Op.UPDATE else None
        record = self._feed.encoded(op, key, before=before, commit_ts=at)
        self.commits.append((named, at, new))
        # A key stays in its partition, as the dispatcher index-value has it.
        partition = hash(named) % self._partitions
        if self.tso is not None:
            partition = self._rng.randrange(self._partitions)

        def send() -> None:
            self._feed.send(record.key, record.value, partition=partition)
            self.sent.append((named, at, new))

        self._send(send)


def live_config(
    folder: Path, servers: Servers, table: LiveTable, url: str, *, rows: int = 250, **more: Any
) -> Path:
    """A pipeline that loads the table from its database, in ranges of so many ``rows``, two a batch."""
    source = {
        "brokers": servers["brokers"],
        "protocol": "canal-json",
        "enable-tidb-extension": table.tso is not None,
        "topics": [table.topic],
        "database": {"url": url, "chunk-rows": rows, "connections": 2},
    }
    usual = {"source": source, "defaults": {"snapshot": "initial"}, "batch": {"max-records": 2 * rows}}
    return shop_config(folder, servers, {**usual, **more})


def ask_snapshot(
    config: Config, table: LiveTable, change: Callable[[SnapshotControl], SnapshotControl]
) -> None:
    """Ask something of the table's snapshots, as a person does."""
    with closing(open_state_store(config.state)) as store:
        asked = lambda control: replace(control, snapshot=change(control.snapshot))  # noqa: E731
        change_control(store, config.pipeline, table.name, asked)


def shown_snapshot(config: Config) -> Mapping[str, Any]:
    """What the status of the only table shows of its snapshot."""
    with closing(open_state_store(config.state)) as store:
        (status,) = store.statuses(config.pipeline)
    found: Mapping[str, Any] = status.details["snapshot"]
    return found


def in_order(
    rows: list[dict[str, Any]], names: Sequence[str] = ("region", "id", "price", "note", "data")
) -> list[tuple[Any, ...]]:
    """Rows of the table by its key, as tuples of some columns."""
    return sorted((tuple(row[name] for name in names) for row in rows), key=lambda row: (row[0], int(row[1])))


@contextmanager
def beside(work: Callable[[threading.Event], object]) -> Iterator[None]:
    """Work goes on in a thread of its own, until it is told to stop; it must not fail."""
    stop, failures = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            work(stop)
        except BaseException as exc:  # noqa: BLE001  (it is raised below)
            failures.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert failures == []


@contextmanager
def changing(change: Callable[[], object], *, pause: float = 0.005) -> Iterator[None]:
    """Something changes all the time, in a thread of its own; ``pause``: seconds between two changes."""

    def write(stop: threading.Event) -> None:
        while not stop.wait(pause):
            change()

    with beside(write):
        yield


@contextmanager
def live_table(url: str, servers: Servers, **options: Any) -> Iterator[LiveTable]:
    """A live table, dropped at the end."""
    engine = sa.create_engine(f"{url}?charset=utf8mb4", isolation_level="READ COMMITTED")
    table = LiveTable(engine, servers, **options)
    with dropped(engine, table.name.schema):
        yield table


@contextmanager
def dropped(engine: sa.Engine, schema: str) -> Iterator[None]:
    """A database is dropped at the end, and the engine closed."""
    try:
        yield
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql(f"DROP DATABASE `{schema}`")
        engine.dispose()
