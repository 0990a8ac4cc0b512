"""What executors do with kept records in a database: write, read and settle them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from hashlib import sha256
from importlib import import_module
from typing import Any, Final, Literal

from tidesink.sinks.rejects import PLACE
from tidesink.sinks.targets.sql_endpoint import Endpoint

Database = Literal["postgres", "mysql"]
# The primary key's column: the digest of whose record it is and where it was in Kafka.
KEY: Final = "record"
_DIALECTS: Final[Mapping[Database, tuple[str, str]]] = {
    "postgres": ("tidesink.sinks.targets.postgres_dialect", "PostgresDialect"),
    "mysql": ("tidesink.sinks.targets.mysql_dialect", "MysqlDialect"),
}
_ROWS_A_FETCH: Final = 500


def dialect_of(database: Database) -> Any:
    """The dialect of a database; made anew, since it may go to an executor only by its name."""
    module, name = _DIALECTS[database]
    return getattr(import_module(module), name)()


def record_key(pipeline: str, table: str, place: Sequence[Any]) -> str:
    """The primary key of a record."""
    return sha256(json.dumps([pipeline, table, *place], ensure_ascii=True).encode()).hexdigest()


def utc(moment: datetime | None) -> datetime | None:
    """A moment of the database in UTC; MySQL gives its own without a zone."""
    if moment is None:
        return None
    return moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment.astimezone(timezone.utc)


@dataclass(frozen=True)
class _Task:
    """One transaction over a task's rows; gives one line: rows changed, and the code of what went wrong."""

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
        connection = dialect.connect(self.endpoint)
        try:
            count = 0
            with connection.cursor() as cursor:
                for row in rows:
                    cursor.execute(*self.statement(row))
                    count += max(0, cursor.rowcount)
            connection.commit()
        finally:
            connection.close()
        return count

    def statement(self, row: dict[str, Any]) -> tuple[str, list[Any]]:
        """What is done with a row."""
        raise NotImplementedError


def _rows(first: Any, batches: Iterator[Any]) -> Iterator[dict[str, Any]]:
    yield from first.to_pylist()
    for batch in batches:
        yield from batch.to_pylist()


@dataclass(frozen=True)
class RecordWriter(_Task):
    """Inserts records that are not there yet; ``given`` are the columns that are the same in all."""

    insert: str
    given: Mapping[str, Any]
    names: Sequence[str]

    def statement(self, row: dict[str, Any]) -> tuple[str, list[Any]]:
        """One record's insert."""
        whole = {**row, **self.given}
        key = record_key(whole["pipeline"], whole["table"], [row[name] for name in PLACE])
        return self.insert, [key, *(self._value(whole[name]) for name in self.names)]

    def _value(self, value: Any) -> Any:
        if isinstance(value, datetime):
            in_utc = utc(value)
            return in_utc.replace(tzinfo=None) if in_utc and self.database == "mysql" else in_utc
        # Postgres keeps U+0000 in no text; the record's own bytes are beside it.
        return value.replace("\0", "\ufffd") if isinstance(value, str) else value


@dataclass(frozen=True)
class RecordSettler(_Task):
    """Deletes records that are dealt with, and gives the others their new error and reason."""

    delete: str
    update: str
    pipeline: str
    table: str

    def statement(self, row: dict[str, Any]) -> tuple[str, list[Any]]:
        """What is done with one letter."""
        key = record_key(self.pipeline, self.table, [row[name] for name in PLACE])
        if row["error"] is None:
            return self.delete, [key]
        return self.update, [row["error"], row["reason"].replace("\0", "\ufffd"), key]


@dataclass(frozen=True)
class RecordReader:
    """Reads records as Spark reads Kafka's, from one task: they are few beside a table's rows."""

    database: Database
    endpoint: Endpoint
    queries: Sequence[str]
    values: Sequence[Any]

    def __call__(self, _batches: Iterable[Any]) -> Iterator[Any]:
        for _ in _batches:
            pass
        connection = dialect_of(self.database).connect(self.endpoint)
        try:
            for query in self.queries:
                yield from self._read(connection, query)
        finally:
            connection.close()

    def _read(self, connection: Any, query: str) -> Iterator[Any]:
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
        with connection.cursor() as cursor:
            cursor.execute(query, list(self.values))
            while rows := cursor.fetchmany(_ROWS_A_FETCH):
                plain = [(*row[:3], utc(row[3]), *row[4:]) for row in rows]
                columns = [list(column) for column in zip(*plain, strict=True)]
                arrays = [pa.array(c, field.type) for c, field in zip(columns, schema, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)
