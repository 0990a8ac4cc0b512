"""What executors do with kept records in a database: write, read and settle them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import datetime, timezone
from hashlib import sha256
from importlib import import_module
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, Final, Literal

from tidesink.sinks.rejects import IDENTITY
from tidesink.sinks.targets.sql_endpoint import Endpoint

Database = Literal["postgres", "mysql"]
# The primary key's column: the digest of whose record it is and which one in Kafka.
KEY: Final = "record"
# MySQL's number of the error.
_PACKET_TOO_LARGE: Final = 1153
_DIALECTS: Final[Mapping[Database, tuple[str, str]]] = {
    "postgres": ("tidesink.sinks.targets.postgres_dialect", "PostgresDialect"),
    "mysql": ("tidesink.sinks.targets.mysql_dialect", "MysqlDialect"),
}
# Values may have many MB each: few are fetched, and few are handed to Spark, at a time.
_ROWS_A_FETCH: Final = 20
_ROWS_A_BATCH: Final = 1000
_BYTES_A_BATCH: Final = 8_000_000
_ROWS_A_CALL: Final = 100
# What MySQL's packet has besides the values.
_FRAME_BYTES: Final = 10_000

_Done = tuple[str, list[Any]]
_Call = tuple[str, list[list[Any]]]


def dialect_of(database: Database) -> Any:
    """The dialect of a database; made anew, since it may go to an executor only by its name."""
    module, name = _DIALECTS[database]
    return getattr(import_module(module), name)()


def record_key(pipeline: str, table: str, identity: Sequence[Any]) -> str:
    """The primary key of a record, by the values of ``IDENTITY``."""
    return sha256(json.dumps([pipeline, table, *identity], ensure_ascii=True).encode()).hexdigest()


def utc(moment: datetime | None) -> datetime | None:
    """A moment of the database in UTC; MySQL gives its own without a zone."""
    if moment is None:
        return None
    return moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment.astimezone(timezone.utc)


@dataclass(frozen=True)
class _Task:
    """Transactions over a task's rows; gives one line: rows counted, and the code of what went wrong.

    None is open, and no row locked, while Spark makes the rows of the next.
    """

    database: Database
    endpoint: Endpoint

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        given = iter(batches)
        rows, code = self._done(given)
        for _ in given:  # Spark waits for its batches to be taken
            pass
        schema = pa.schema([("rows", pa.int64()), ("code", pa.string())])
        yield pa.RecordBatch.from_pydict({"rows": [rows], "code": [code]}, schema)

    def _done(self, batches: Iterator[Any]) -> tuple[int, str | None]:
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return 0, None
        dialect = dialect_of(self.database)
        try:
            return self._written(dialect, _rows(first, batches)), None
        except dialect.errors as exc:
            code = dialect.code_of(exc)
            if code is None:
                raise
            return 0, code

    def _written(self, dialect: Any, rows: Iterator[dict[str, Any]]) -> int:
        count = 0
        connection = None
        with ExitStack() as opened:
            for calls in self._transactions(_calls(map(self.statement, rows))):
                if connection is None or not dialect.alive(connection):
                    connection = opened.enter_context(closing(dialect.connect(self.endpoint)))
                count += self._committed(connection, calls)
        return count

    def _committed(self, connection: Any, calls: Sequence[_Call]) -> int:
        count = 0
        with connection.cursor() as cursor:
            for text, values in calls:
                self._check_room(connection, cursor, values)
                cursor.executemany(text, values)
                count += self._counted(cursor, values)
        connection.commit()
        return count

    def _transactions(self, calls: Iterator[_Call]) -> Iterator[Sequence[_Call]]:
        """What is committed at once: each call, where one that was done before is done again without harm."""
        return ([call] for call in calls)

    def _counted(self, cursor: Any, _values: Sequence[Sequence[Any]]) -> int:
        """How many rows a call that was just made counts as."""
        return max(0, int(cursor.rowcount))

    def _check_room(self, connection: Any, cursor: Any, values: Sequence[Sequence[Any]]) -> None:
        """MySQL cuts the connection of a statement that is too long, which looks as if it had gone away."""
        if self.database != "mysql":
            return
        longest = max(values, key=_length)
        if 2 * _length(longest) + _FRAME_BYTES < cursor.max_stmt_length:
            return
        cursor.execute("SELECT @@max_allowed_packet")
        (most,) = cursor.fetchone()
        spelt = sum(len(connection.escape(value).encode("utf-8", "surrogateescape")) for value in longest)
        if spelt + _FRAME_BYTES > int(most):
            raise connection.OperationalError(_PACKET_TOO_LARGE, "longer than max_allowed_packet")

    def statement(self, row: dict[str, Any]) -> _Done:
        """What is done with a row."""
        raise NotImplementedError


def _length(values: Sequence[Any]) -> int:
    return sum(len(value) for value in values if isinstance(value, bytes | str))


def _calls(statements: Iterator[_Done]) -> Iterator[_Call]:
    """Statements that follow each other and differ in their values alone, together."""
    for text, found in groupby(statements, itemgetter(0)):
        while some := [values for _, values in islice(found, _ROWS_A_CALL)]:
            yield text, some


def _rows(first: Any, batches: Iterator[Any]) -> Iterator[dict[str, Any]]:
    yield from _slices(first)
    for batch in batches:
        yield from _slices(batch)


def _slices(batch: Any) -> Iterator[dict[str, Any]]:
    """The rows of a batch, of which Python holds a few at a time."""
    for start in range(0, batch.num_rows, _ROWS_A_FETCH):
        yield from batch.slice(start, _ROWS_A_FETCH).to_pylist()


def _text(value: Any) -> Any:
    """A text that every database takes: Postgres keeps no U+0000; the record's own bytes are beside it."""
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value


@dataclass(frozen=True)
class RecordWriter(_Task):
    """Inserts records that are not there yet, and counts those that are there then.

    ``given`` are the columns that are the same in all; ``count`` is a question before
    a list of keys.
    """

    insert: str
    count: str
    given: Mapping[str, Any]
    names: Sequence[str]

    def statement(self, row: dict[str, Any]) -> tuple[str, list[Any]]:
        """One record's insert."""
        whole = {**row, **self.given}
        key = record_key(whole["pipeline"], whole["table"], [row[name] for name in IDENTITY])
        return self.insert, [key, *(self._value(whole[name]) for name in self.names)]

    def _counted(self, cursor: Any, values: Sequence[Sequence[Any]]) -> int:
        marks = ", ".join(["%s"] * len(values))
        cursor.execute(f"{self.count} ({marks})", [key for key, *_ in values])
        return int(cursor.fetchone()[0])

    def _value(self, value: Any) -> Any:
        if isinstance(value, datetime):
            in_utc = utc(value)
            return in_utc.replace(tzinfo=None) if in_utc and self.database == "mysql" else in_utc
        return _text(value)


@dataclass(frozen=True)
class RecordSettler(_Task):
    """Deletes records that are dealt with, and gives the others their new error and reason."""

    delete: str
    update: str
    pipeline: str
    table: str

    def statement(self, row: dict[str, Any]) -> _Done:
        """What is done with one letter."""
        key = record_key(self.pipeline, self.table, [row[name] for name in IDENTITY])
        if row["error"] is None:
            return self.delete, [key]
        return self.update, [_text(row["error"]), _text(row["reason"]), key]

    def _transactions(self, calls: Iterator[_Call]) -> Iterator[Sequence[_Call]]:
        """All at once, without the records' values: what replays is settled whole or not at all."""
        yield list(calls)


@dataclass(frozen=True)
class RecordReader:
    """Reads records as Spark reads Kafka's, from one task: they are few beside a table's rows."""

    database: Database
    endpoint: Endpoint
    queries: Sequence[tuple[str, Sequence[Any]]]

    def __call__(self, _batches: Iterable[Any]) -> Iterator[Any]:
        for _ in _batches:
            pass
        with closing(dialect_of(self.database).connect(self.endpoint)) as connection:
            for query, values in self.queries:
                with _streaming(self.database, connection) as cursor:
                    cursor.execute(query, list(values))
                    yield from _batches_of(_fetched(cursor))


def _streaming(database: Database, connection: Any) -> Any:
    """A cursor that leaves at the server what is not fetched yet."""
    if database == "postgres":
        return connection.cursor(name="tidesink_records")
    from pymysql.cursors import SSCursor

    return connection.cursor(SSCursor)


def _fetched(cursor: Any) -> Iterator[tuple[Any, ...]]:
    while rows := cursor.fetchmany(_ROWS_A_FETCH):
        for topic, partition, offset, time, key, value in rows:
            yield topic, partition, offset, utc(time), key, value


def _batches_of(rows: Iterator[tuple[Any, ...]]) -> Iterator[Any]:
    """Record batches of rows, bounded by rows and bytes."""
    some: list[tuple[Any, ...]] = []
    held = 0
    for row in rows:
        some.append(row)
        held += _length(row)
        if len(some) >= _ROWS_A_BATCH or held >= _BYTES_A_BATCH:
            yield _batch_of(some)
            some, held = [], 0
    if some:
        yield _batch_of(some)


def _batch_of(rows: Sequence[tuple[Any, ...]]) -> Any:
    import pyarrow as pa

    schema = pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", "UTC")),
            ("key", pa.binary()),
            ("value", pa.binary()),
        ]
    )
    columns = [list(column) for column in zip(*rows, strict=True)]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
