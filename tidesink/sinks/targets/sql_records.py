"""Kept records in the target's own database: a table in each schema that tables of the pipeline are in.

Executors write and read it; nothing of the records passes the driver but what a person asks to see. Each
record's place in Kafka makes its primary key, so that a task that runs twice adds nothing.
"""

# ruff: noqa: S608  every name in a statement is quoted by the dialect, every value a parameter
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidesink.change import TableId
from tidesink.errors import SchemaRefusedError, TransientTargetError
from tidesink.sinks.progress import Progress
from tidesink.sinks.rejects import PLACE, Chosen, RecordGroup, RecordTable, in_order
from tidesink.sinks.targets.delta_errors import SPARK_ERRORS
from tidesink.sinks.targets.sql_connections import Connections
from tidesink.sinks.targets.sql_dialect import Dialect
from tidesink.sinks.targets.sql_endpoint import Endpoint
from tidesink.sinks.targets.sql_place import Place
from tidesink.sinks.targets.sql_record_tasks import KEY, Database, RecordWriter, utc

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class _Words(NamedTuple):
    """A database's words for a table of records.

    ``types`` by Spark's; ``options`` and ``inside`` are of the statement that makes it, ``after`` follows it;
    ``missing`` follows an insert, with the key's quoted column: a record that is there already is left alone,
    any other trouble is an error. ``alone`` lets one at a time make it.
    """

    types: dict[str, str]
    missing: str
    inside: str = ""
    options: str = ""
    after: str | None = None
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
# What lists and forgets goes by these: not by a look at all that was ever kept.
_WORDS: Final[dict[Database, _Words]] = {
    "postgres": _Words(
        _POSTGRES,
        missing="ON CONFLICT ({}) DO NOTHING",
        after='CREATE INDEX ON {} ("pipeline", "table", "batch")',
        # Two that make the same thing at the same moment are an error in Postgres.
        alone=_ONE_MAKER,
    ),
    "mysql": _Words(
        _MYSQL,
        # IGNORE would cut what does not fit as well.
        missing="ON DUPLICATE KEY UPDATE {0} = {0}",
        inside=", KEY (`pipeline`(64), `table`(191), `batch`)",
        options=" ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    ),
}
# The years that every database has (Kafka's timestamps are whatever a producer said), as microseconds.
_FIRST_MOMENT: Final = int(datetime(1000, 1, 1, tzinfo=timezone.utc).timestamp()) * 1_000_000
_LAST_MOMENT: Final = int(datetime(9999, 12, 31, tzinfo=timezone.utc).timestamp()) * 1_000_000


class Selection(NamedTuple):
    """Records in one table: its name, and a condition with its values."""

    location: str
    where: str
    values: list[Any]


class SqlRecords:
    """One table of kept records, in as many schemas as the pipeline writes to.

    ``place_of`` says where a source table's rows are: its records are in the same schema.
    """

    def __init__(
        self, dialect: Dialect, endpoint: Endpoint, place_of: Callable[[TableId], Place], table: RecordTable
    ) -> None:
        self.table = table
        self.dialect = dialect
        self.endpoint = endpoint
        self._place_of = place_of

    @property
    def place(self) -> str:
        """The server, and the table's name."""
        return shown_records(self.endpoint, self.table)

    def append(self, records: DataFrame, progress: Progress) -> int:
        """Keep the records of one batch that are not kept yet; how many of the batch's are kept now."""
        table = str(progress.table)
        location = self._prepared(progress.table).location
        given = {"pipeline": progress.pipeline, "table": table, "batch": progress.batch}
        insert, count = self._insert_statement(location), self._count_statement(location)
        writer = RecordWriter(self.dialect.database, self.endpoint, insert, count, given, self.table.names)
        return self.run(_writable(records, self.table, given), writer, table=table)

    def count(self, table: TableId) -> int:
        """How many records of a table are kept, of all pipelines."""
        with self.transaction(str(table), writes=False) as cursor:
            counts = []
            for location in self._located(cursor, [self._place_of(table).schema]):
                cursor.execute(
                    f"SELECT COUNT(*) FROM {location} WHERE {self._quoted('table')} = %s", (str(table),)
                )
                counts.append(int(cursor.fetchone()[0]))
        return sum(counts)

    def _prepared(self, table: TableId) -> Place:
        """The place of a source table's records: made, and given the columns it has not, where need be.

        Raises: SchemaRefusedError, where something else has its name.
        """
        rows = self._place_of(table)
        place = replace(rows, name=self.table.name, shard=None)
        with self.transaction(str(table)) as cursor:
            self.dialect.prepare_schema(cursor, rows)
            if self._missing(cursor, place):
                self._make(cursor, place)
        return place

    def _missing(self, cursor: Any, place: Place) -> list[str]:
        present = self.dialect.present(cursor, place)
        if present and KEY not in present:
            raise SchemaRefusedError(
                f"{place.shown} is there and is not tidesink's (it has no column {KEY}): rename it, or give "
                "dead-letters.path a folder for the records",
                table=str(place.source),
            )
        return [name for name in (KEY, *self.table.names) if name not in present]

    def _make(self, cursor: Any, place: Place) -> None:
        words = _WORDS[self.dialect.database]
        if words.alone is not None:
            cursor.execute(words.alone)
        missing = self._missing(cursor, place)  # another may have made it meanwhile
        spelt = [
            f"{self.dialect.quote(name)} {words.types[ddl]}"
            for name, ddl, _ in self.table.columns
            if name in missing
        ]
        if KEY in missing:
            key = self.dialect.quote(KEY)
            cursor.execute(
                f"CREATE TABLE IF NOT EXISTS {place.location} ({key} char(64) PRIMARY KEY, "
                f"{', '.join(spelt)}{words.inside}){words.options}"
            )
            if words.after is not None:
                cursor.execute(words.after.format(place.location))
        elif spelt:
            added = ", ".join(f"ADD COLUMN {column}" for column in spelt)
            cursor.execute(f"ALTER TABLE {place.location} {added}")

    def groups(self, chosen: Chosen) -> tuple[RecordGroup, ...]:
        """The chosen records counted by table, partition and sort."""
        by = ", ".join(map(self._quoted, ("table", "topic", "topic_id", "partition", self.table.kind)))
        offset, time = self._quoted("offset"), self._quoted("time")
        what = f"{by}, COUNT(*), MIN({offset}), MAX({offset}), MIN({time}), MAX({time})"
        found = self._asked(what, chosen, f"GROUP BY {by}")
        return in_order(
            [
                RecordGroup(table, topic, part, kind, count, least, most, utc(first), utc(last), topic_id)
                for table, topic, topic_id, part, kind, count, least, most, first, last in found
            ]
        )

    def rows(self, chosen: Chosen, *, limit: int) -> tuple[dict[str, Any], ...]:
        """The first of the chosen records, whole."""
        order = ", ".join(map(self._quoted, ("table", *PLACE)))
        found = self._asked(self._names(), chosen, f"ORDER BY {order} LIMIT {int(limit)}")
        rows = [self._row(row) for row in found]
        rows.sort(key=lambda row: tuple(row[name] for name in ("table", *PLACE)))
        return tuple(rows[:limit])

    def remove(self, chosen: Chosen) -> int:
        """Forget the chosen records; how many they were."""
        removed = 0
        with self.transaction(self.table.name) as cursor:
            for location, where, values in self.selections(cursor, chosen):
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
            ("topic_id", "=", chosen.topic_id),
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

    def selections(self, cursor: Any, chosen: Chosen) -> list[Selection]:
        """Where the chosen records are, and the conditions for them there.

        A record is this pipeline's where it lies in the schema that its table's rows go to: another pipeline
        of the same name, which writes to other schemas of the database, has its own.
        """
        where, values = self.condition(chosen)
        if chosen.table is not None:
            schemas = [self._place_of(table).schema for table in _tables_named(chosen.table)]
            return [Selection(place, where, values) for place in self._located(cursor, schemas)]
        found = []
        same = self._comparing(cursor)
        for schema in self._schemas(cursor):
            self._complete(cursor, schema)
            tables = [
                name
                for name in self._tables_in(cursor, schema, where, values)
                if same(schema) in {same(self._place_of(table).schema) for table in _tables_named(name)}
            ]
            if tables:
                among = f"{self._quoted('table')} IN ({', '.join(['%s'] * len(tables))})"
                found.append(Selection(self._in(schema), f"{where} AND {among}", [*values, *tables]))
        return found

    def _tables_in(self, cursor: Any, schema: str, where: str, values: list[Any]) -> list[str]:
        """The names of the tables that have records in a schema."""
        cursor.execute(
            f"SELECT DISTINCT {self._quoted('table')} FROM {self._in(schema)} WHERE {where}", values
        )
        return [name for (name,) in cursor.fetchall()]

    def _comparing(self, cursor: Any) -> Callable[[str], str]:
        """What makes equal the schema names that are one to the server."""
        return str.lower if self.dialect.folds_names(cursor) else str

    def _schemas(self, cursor: Any) -> list[str]:
        cursor.execute(
            "SELECT table_schema FROM information_schema.tables WHERE table_name = %s "
            "AND table_type = 'BASE TABLE' ORDER BY 1",
            (self.table.name,),
        )
        return [schema for (schema,) in cursor.fetchall()]

    def _located(self, cursor: Any, schemas: Iterable[str]) -> list[str]:
        """Those of the tables that are there, quoted as statements with parameters have them."""
        same = self._comparing(cursor)
        wanted = {same(schema) for schema in schemas}
        found = [schema for schema in self._schemas(cursor) if same(schema) in wanted]
        for schema in found:
            self._complete(cursor, schema)
        return [self._in(schema) for schema in found]

    def _complete(self, cursor: Any, schema: str) -> None:
        """Give a table of an earlier version the columns it lacks; what is not tidesink's stays as it is."""
        place = Place(TableId(schema, self.table.name), schema, self.table.name, self.dialect.quote)
        if self._missing(cursor, place):
            with self.transaction(place.shown) as writing:
                self._make(writing, place)

    def _in(self, schema: str) -> str:
        return f"{self._quoted(schema)}.{self._quoted(self.table.name)}"

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

    def _asked(self, what: str, chosen: Chosen, then: str) -> list[Any]:
        found: list[Any] = []
        with self.transaction(self.table.name, writes=False) as cursor:
            for location, where, values in self.selections(cursor, chosen):
                cursor.execute(f"SELECT {what} FROM {location} WHERE {where} {then}", values)
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

    def _insert_statement(self, location: str) -> str:
        key = self._quoted(KEY)
        marks = ", ".join(["%s"] * (len(self.table.names) + 1))
        into = location.replace("%", "%%")
        missing = _WORDS[self.dialect.database].missing.format(key)
        return f"INSERT INTO {into} ({key}, {self._names()}) VALUES ({marks}) {missing}"

    def _count_statement(self, location: str) -> str:
        return f"SELECT COUNT(*) FROM {location.replace('%', '%%')} WHERE {self._quoted(KEY)} IN"


def _tables_named(text: str) -> list[TableId]:
    """The tables that a text may name: names may have dots too."""
    parts = text.split(".")
    return [TableId(".".join(parts[:at]), ".".join(parts[at:])) for at in range(1, len(parts))]


def shown_records(endpoint: Endpoint, table: RecordTable) -> str:
    """The place of kept records for people to read."""
    return f"{endpoint.shown} {table.name}"


def _writable(records: DataFrame, table: RecordTable, given: Mapping[str, Any]) -> DataFrame:
    """Records with texts and times that every database takes: what is no UTF-8 as U+FFFD, no time as NULL."""
    from pyspark.sql import functions as F  # noqa: N812

    found = []
    for name, ddl, _ in table.columns:
        column = F.col(name)
        if ddl == "string":
            column = F.make_valid_utf8(column)
        if ddl == "timestamp":
            column = F.when(F.unix_micros(column).between(_FIRST_MOMENT, _LAST_MOMENT), column)
        if name not in given:
            found.append(column.alias(name))
    return records.select(*found)
