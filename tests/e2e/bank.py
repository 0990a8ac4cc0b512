"""A bank whose every moment is known: transfers between accounts, over three tables of one changefeed.

Accounts are opened, closed, opened again and given another number (a change of the key, which TiCDC sends as
delete and insert of one commit); so are their entries, whose key has two columns. Money only moves.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Final, NamedTuple
from zlib import crc32

from confluent_kafka import Producer

from tests.e2e.replay import Servers
from tests.servers import create_topics
from tidesink.codecs import open_codec
from tidesink.codecs.base import CodecOptions
from tidesink.events import (
    ChangeEvent,
    Column,
    ColumnType,
    DdlEvent,
    Op,
    Position,
    Row,
    TableId,
    TableSchema,
    WatermarkEvent,
)
from tidesink.schema_registry import open_registry

PARTITIONS: Final = 3
# Accounts of these numbers are there from the first transaction to the last.
LASTING: Final = range(1, 9)
_MOST_ACCOUNTS: Final = 24
_OPENING: Final = 1_000
_FIRST_TS: Final = 450_000_000_000_000_000
Key = tuple[int, ...]


def _number(name: str, *, key: bool = False) -> Column:
    return Column(name, ColumnType("bigint", sql="bigint"), nullable=not key, handle=key, primary_key=key)


ACCOUNT: Final = TableSchema(
    TableId("bank", "account"),
    (
        _number("id", key=True),
        Column("owner", ColumnType("varchar", length=40, sql="varchar(40)")),
        _number("balance"),
        _number("version"),
    ),
)
TRANSFER: Final = TableSchema(
    TableId("bank", "transfer"),
    (_number("id", key=True), _number("source"), _number("goal"), _number("amount")),
)
ENTRY: Final = TableSchema(
    TableId("bank", "entry"),
    (_number("account", key=True), _number("line", key=True), _number("amount")),
)
SCHEMAS: Final = (ACCOUNT, TRANSFER, ENTRY)


class Change(NamedTuple):
    """One row's change, of the transaction at ``commit_ts``."""

    schema: TableSchema
    op: Op
    row: Row
    commit_ts: int
    before: Row | None = None


class Bank:
    """What the source holds, and what its changefeed has not sent yet; a transaction each ``step_ms``."""

    def __init__(self, seed: int, *, step_ms: int = 1) -> None:
        self._step = step_ms << 18
        self.rows: dict[str, dict[Key, Row]] = {schema.table.name: {} for schema in SCHEMAS}
        self.changes: list[Change] = []
        self._rng = random.Random(seed)
        self._ts = _FIRST_TS
        self._transfers = 0
        self._lines: dict[int, int] = {}
        for number in LASTING:
            self._begin()
            self._open(number, _OPENING)

    @property
    def total(self) -> int:
        """All the money there is, and ever was."""
        return _OPENING * len(LASTING)

    @property
    def accounts(self) -> dict[int, Row]:
        """The accounts by number."""
        return {key[0]: row for key, row in self.rows["account"].items()}

    def work(self, transactions: int) -> None:
        """So many transactions, of every kind."""
        kinds = (self._transfer, self._transfer, self._transfer, self._open_one, self._renumber, self._close)
        for _ in range(transactions):
            self._begin()
            self._rng.choice(kinds)()

    def forget_transfers(self) -> None:
        """Empty the table of transfers, which no sum is of."""
        self._begin()
        self.changes.append(Change(TRANSFER, Op.TRUNCATE, {}, self._ts))
        self.rows[TRANSFER.table.name].clear()

    def _begin(self) -> None:
        self._ts += self._step

    def _put(self, schema: TableSchema, row: Row) -> None:
        rows, key = self.rows[schema.table.name], key_of(schema, row)
        before = rows.get(key)
        op = Op.INSERT if before is None else Op.UPDATE
        self.changes.append(Change(schema, op, row, self._ts, before))
        rows[key] = row

    def _drop(self, schema: TableSchema, row: Row) -> None:
        del self.rows[schema.table.name][key_of(schema, row)]
        self.changes.append(Change(schema, Op.DELETE, row, self._ts))

    def _open(self, number: int, balance: int) -> None:
        owner = f"owner {self._rng.randrange(1000)}"
        self._put(ACCOUNT, {"id": number, "owner": owner, "balance": balance, "version": self._ts})
        self._book(number, balance)

    def _book(self, account: int, amount: int) -> None:
        line = self._lines[account] = self._lines.get(account, 0) + 1
        self._put(ENTRY, {"account": account, "line": line, "amount": amount})

    def _pay(self, source: int, goal: int, amount: int) -> None:
        self._transfers += 1
        self._put(TRANSFER, {"id": self._transfers, "source": source, "goal": goal, "amount": amount})
        for number, change in ((source, -amount), (goal, amount)):
            row = self.accounts[number]
            balance = int(row["balance"] or 0) + change
            self._put(ACCOUNT, {**row, "balance": balance, "version": self._ts})
            self._book(number, change)

    def _transfer(self) -> None:
        source, goal = self._rng.sample(sorted(self.accounts), 2)
        self._pay(source, goal, self._rng.randrange(1, 50))

    def _passing(self) -> int | None:
        """An account that may be closed."""
        found = sorted(self.accounts.keys() - set(LASTING))
        return self._rng.choice(found) if found else None

    def _free(self) -> int | None:
        """A number that nobody has, often one that somebody had."""
        found = sorted(set(range(1, _MOST_ACCOUNTS + 1)) - self.accounts.keys())
        return self._rng.choice(found) if found else None

    def _open_one(self) -> None:
        number = self._free()
        if number is not None:
            self._open(number, 0)

    def _close(self) -> None:
        number = self._passing()
        if number is None:
            return
        left = self.accounts[number]["balance"]
        self._pay(number, self._rng.choice(LASTING), int(left or 0))
        # A commit changes a row once: in the source's order nothing tells two changes of one commit apart.
        self._begin()
        self._drop(ACCOUNT, self.accounts[number])
        for row in self._entries(number):
            self._drop(ENTRY, row)

    def _renumber(self) -> None:
        old, new = self._passing(), self._free()
        if old is None or new is None:
            return
        row = self.accounts[old]
        self._drop(ACCOUNT, row)
        self._put(ACCOUNT, {**row, "id": new, "version": self._ts})
        for entry in self._entries(old):
            self._drop(ENTRY, entry)
            self._book(new, int(entry["amount"] or 0))

    def _entries(self, account: int) -> list[Row]:
        return [row for key, row in sorted(self.rows["entry"].items()) if key[0] == account]


def key_of(schema: TableSchema, row: Row) -> Key:
    """The key of a row, by the names of its columns."""
    return tuple(int(row[column.name] or 0) for column in schema.handle_columns)


class Feed:
    """The bank's changefeed: each table's topic, a row's changes in the partition of its key."""

    def __init__(self, servers: Servers, protocol: str, options: CodecOptions) -> None:
        self._topics = {s.table: f"{servers['prefix']}{s.table.schema}_{s.table.name}" for s in SCHEMAS}
        registry = open_registry(servers["registry_url"])
        self._codec = open_codec(protocol, options=options, registry=registry)
        # What a busy broker refuses is sent again, and must not come behind what was sent after it.
        self._producer = Producer({"bootstrap.servers": servers["brokers"], "enable.idempotence": True})
        create_topics(servers["brokers"], dict.fromkeys(self._topics.values(), PARTITIONS))

    def send(self, changes: Iterable[Change]) -> None:
        """Send changes in their order."""
        for change in changes:
            topic = self._topics[change.schema.table]
            if change.op is Op.TRUNCATE:
                self._empty(change, topic)
                continue
            record = self._codec.encode(_event(change, topic), topic=topic)
            assert record is not None
            partition = crc32(repr(key_of(change.schema, change.row)).encode()) % PARTITIONS
            self._producer.produce(topic, key=record.key, value=record.value, partition=partition)
        assert self._producer.flush(120) == 0

    def _empty(self, change: Change, topic: str) -> None:
        """Send a TRUNCATE to partition 0, behind all rows before it, and before all behind it."""
        assert self._producer.flush(120) == 0
        table, position = change.schema.table, Position(topic, 0, 0)
        event = DdlEvent(table, f"TRUNCATE TABLE {table}", "TRUNCATE", change.commit_ts, position)
        record = self._codec.encode(event, topic=topic)
        assert record is not None
        self._producer.produce(topic, key=record.key, value=record.value, partition=0)
        assert self._producer.flush(120) == 0

    def mark(self, commit_ts: int) -> None:
        """Send a watermark to every partition."""
        for topic in self._topics.values():
            record = self._codec.encode(WatermarkEvent(commit_ts, Position(topic, 0, 0)), topic=topic)
            assert record is not None
            for partition in range(PARTITIONS):
                self._producer.produce(topic, key=record.key, value=record.value, partition=partition)
        assert self._producer.flush(120) == 0


def _event(change: Change, topic: str) -> ChangeEvent:
    schema, row = change.schema, change.row
    gone = change.op is Op.DELETE
    key = {column.name: row[column.name] for column in schema.handle_columns}
    return ChangeEvent(
        change.op,
        schema.table,
        key,
        row if gone else change.before,
        None if gone else row,
        change.commit_ts,
        Position(topic, 0, 0),
        schema,
    )
