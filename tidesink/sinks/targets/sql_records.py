"""Kept records in the target's own database: a table in each schema that tables of the pipeline are in.

Executors write and read it; nothing of the records passes the driver but what a person asks to see. Each
record's place in Kafka makes its primary key, so that a task that runs twice adds nothing.
"""

# ruff: noqa: S608  every name in a statement is quoted by the dialect, every value a parameter
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidesink.change import TableId
from tidesink.errors import TransientTargetError
from tidesink.sinks.progress import Progress
from tidesink.sinks.rejects import PLACE, Chosen, RecordGroup, RecordTable, in_order
from tidesink.sinks.targets.delta_errors import SPARK_ERRORS
from tidesink.sinks.targets.sql_connections import Connections
from tidesink.sinks.targets.sql_dialect import Dialect
from tidesink.sinks.targets.sql_endpoint import Endpoint
from tidesink.sinks.targets.sql_place import place_in
from tidesink.sinks.targets.sql_record_tasks import KEY, Database, RecordWriter, utc

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class _Words(NamedTuple):
    """A database's types by Spark's, what follows a table's columns, and what lets one at a time make it."""

    types: dict[str, str]
    options: str
    alone: str | None = None


_POSTGRES: Final = {
    "string": "text",
    "int": "integer",
    "bigint": "bigint",
    "binary": "bytea",
    "timestamp": "timestamp with time zone",
}
_MYSQL: Final = {
    "string": "longtext",
    "int": "int",
    "bigint": "bigint",
    "binary": "longblob",
    "timestamp": "datetime(6)",
}
_ONE_MAKER: Final = f"SELECT pg_advisory_xact_lock({int.from_bytes(b'tidesink', 'big')})"
_WORDS: Final[dict[Database, _Words]] = {
    # IF NOT EXISTS fails in Postgres where two make the same thing at the same moment.
    "postgres": _Words(_POSTGRES, "", _ONE_MAKER),
    "mysql": _Words(_MYSQL, " ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"),
}


class SqlRecords:
    """One table of kept records, in as many schemas as the pipeline writes to."""

    def __init__(self, dialect: Dialect, endpoint: Endpoint, template: str, table: RecordTable) -> None:
        self.table = table
        self.dialect = dialect
        self.endpoint = endpoint
        self._template = template

    @property
    def place(self) -> str:
        """The server, and the table's name."""
        return f"{self.endpoint.shown} {self.table.name}"

    def append(self, records: DataFrame, progress: Progress) -> int:
        """Keep the records of one batch that are not kept yet; how many were new."""
        table = str(progress.table)
        place = place_in(self._template, progress.table, self.dialect.quote)
        location = place.beside(self.table.name)
        with self.transaction(table) as cursor:
            self.dialect.prepare_schema(cursor, place)
            if (alone := _WORDS[self.dialect.database].alone) is not None:
                cursor.execute(alone)
            cursor.execute(self._create_statement(location))
        before = self.count(progress.table)
        given = {"pipeline": progress.pipeline, "table": table, "batch": progress.batch}
        columns = [name for name in self.table.names if name not in given]
        writer = RecordWriter(
            self.dialect.database, self.endpoint, self._insert_statement(location), given, self.table.names
        )
        self.run(records.select(*columns), writer, table=table)
        return self.count(progress.table) - before

    def count(self, table: TableId) -> int:
        """How many records of a table are kept, of all pipelines."""
        found = self._asked("COUNT(*)", f"{self._quoted('table')} = %s", [str(table)])
        return sum(int(row[0]) for row in found)

    def groups(self, chosen: Chosen) -> tuple[RecordGroup, ...]:
        """The chosen records counted by table, partition and sort."""
        by = ", ".join(map(self._quoted, ("table", "topic", "partition", self.table.kind)))
        offset, time = self._quoted("offset"), self._quoted("time")
        what = f"{by}, COUNT(*), MIN({offset}), MAX({offset}), MIN({time}), MAX({time})"
        where, values = self.condition(chosen)
        found = self._asked(what, f"{where} GROUP BY {by}", values)
        return in_order(
            [
                RecordGroup(table, topic, partition, kind, count, least, greatest, utc(first), utc(last))
                for table, topic, partition, kind, count, least, greatest, first, last in found
            ]
        )

    def rows(self, chosen: Chosen, *, limit: int) -> tuple[dict[str, Any], ...]:
        """The first of the chosen records, whole."""
        order = ", ".join(map(self._quoted, ("table", *PLACE)))
        where, values = self.condition(chosen)
        found = self._asked(self._names(), f"{where} ORDER BY {order} LIMIT {int(limit)}", values)
        rows = [self._row(row) for row in found]
        rows.sort(key=lambda row: tuple(row[name] for name in ("table", *PLACE)))
        return tuple(rows[:limit])

    def remove(self, chosen: Chosen) -> int:
        """Forget the chosen records; how many they were."""
        where, values = self.condition(chosen)
        removed = 0
        with self.transaction(self.table.name) as cursor:
            for location in self.locations(cursor):
                cursor.execute(f"DELETE FROM {location} WHERE {where}", values)
                removed += int(cursor.rowcount)
        return removed

    def condition(self, chosen: Chosen) -> tuple[str, list[Any]]:
        """The chosen records as a condition, and its values."""
        before = None if chosen.before is None else self._time(chosen.before)
        said = (
            ("pipeline", "=", chosen.pipeline),
            ("table", "=", chosen.table),
            ("topic", "=", chosen.topic),
            ("partition", "=", chosen.partition),
            ("offset", "=", chosen.offset),
            ("offset", "<", chosen.below),
            (self.table.kind, "=", chosen.kind),
            ("time", "<", before),
        )
        found = [
            (f"{self._quoted(name)} {sign} %s", value) for name, sign, value in said if value is not None
        ]
        return " AND ".join(text for text, _ in found), [value for _, value in found]

    def locations(self, cursor: Any) -> list[str]:
        """The tables there are, quoted as statements with parameters have them."""
        cursor.execute(
            "SELECT table_schema FROM information_schema.tables WHERE table_name = %s ORDER BY 1",
            (self.table.name,),
        )
        name = self._quoted(self.table.name)
        return [f"{self._quoted(schema)}.{name}" for (schema,) in cursor.fetchall()]

    @contextmanager
    def transaction(self, table: str, *, writes: bool = True) -> Iterator[Any]:
        """A cursor in a transaction on a connection of its own: it is asked for seldom."""
        connections = Connections(self.dialect, self.endpoint)
        try:
            with connections.transaction(table, writes=writes) as cursor:
                yield cursor
        finally:
            connections.close()

    def run(self, frame: DataFrame, task: Any, *, table: str) -> int:
        """Run a task over a frame on the executors; how many rows it changed.

        Raises: as ``TargetTable.apply``.
        """
        try:
            told = frame.mapInArrow(task, "rows bigint, code string").collect()
        except SPARK_ERRORS as exc:
            raise TransientTargetError(
                f"Spark could not bring the records to the database ({type(exc).__name__})", table=table
            ) from exc
        for row in told:
            if row["code"] is not None:
                raise self.dialect.error_of(row["code"], table=table)
        return sum(int(row["rows"]) for row in told)

    def _asked(self, what: str, where: str, values: list[Any]) -> list[Any]:
        found: list[Any] = []
        with self.transaction(self.table.name, writes=False) as cursor:
            for location in self.locations(cursor):
                cursor.execute(f"SELECT {what} FROM {location} WHERE {where}", values)
                found += cursor.fetchall()
        return found

    def _quoted(self, name: str) -> str:
        return self.dialect.quote(name).replace("%", "%%")

    def _names(self) -> str:
        return ", ".join(map(self._quoted, self.table.names))

    def _time(self, moment: datetime) -> datetime:
        """A moment as the database's column has it."""
        in_utc = moment.astimezone(timezone.utc)
        return in_utc.replace(tzinfo=None) if self.dialect.database == "mysql" else in_utc

    def _row(self, values: Any) -> dict[str, Any]:
        row = dict(zip(self.table.names, values, strict=True))
        parts = {name: None if row[name] is None else bytes(row[name]) for name in ("key", "value")}
        return {**row, **parts, "time": utc(row["time"])}

    def _create_statement(self, location: str) -> str:
        words = _WORDS[self.dialect.database]
        columns = ", ".join(
            f"{self.dialect.quote(name)} {words.types[ddl]}" for name, ddl, _ in self.table.columns
        )
        key = self.dialect.quote(KEY)
        return f"CREATE TABLE IF NOT EXISTS {location} ({key} char(64) PRIMARY KEY, {columns}){words.options}"

    def _insert_statement(self, location: str) -> str:
        names = f"{self._quoted(KEY)}, {self._names()}"
        marks = ", ".join(["%s"] * (len(self.table.names) + 1))
        into = location.replace("%", "%%")
        return self.dialect.insert_missing.format(f"{into} ({names}) VALUES ({marks})")
