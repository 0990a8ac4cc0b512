"""Reads the rows of a target table in a SQL database, to compare them with the source.

A Spark task selects every value as text (``Values.text_of``), so that no driver converts it. Spark then
casts the texts to the types of the source table's columns. ``spelling`` reports how the database itself
reformats a value, such as the spaces of JSON.

With cuts (``sql.cuts``), the rows that are read are the table as of the last cut, updated with the changes
that were gathered since that cut. One statement reads both. So if a cut is published while it runs, the
statement sees either the whole cut or nothing of it.
"""

# ruff: noqa: S608  every name and text in a statement is quoted by targets/sharing.py

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidesink.errors import TidesinkError
from tidesink.events import fold_name, folding
from tidesink.sinks.spark.errors import Reporting
from tidesink.sinks.state.progress import Progress
from tidesink.sinks.targets.base import SOFT_DELETE_COLUMN, TableReader
from tidesink.sinks.targets.sql.cuts import Gathered
from tidesink.sinks.targets.sql.dialect import Connections
from tidesink.sinks.targets.sql.faults import Fault
from tidesink.sinks.targets.sql.ledger import SqlLedger
from tidesink.sinks.targets.sql.load import Read
from tidesink.sinks.targets.sql.location import LEDGER, SHARDS, Endpoint, Place
from tidesink.typemap.native_sql import Native, native_of, native_spelling, reading_type
from tidesink.typemap.render_sql import Spelling, spelling_of
from tidesink.typemap.target_schema import TargetColumn, TargetSchema, quoted, wider_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class ReadTask:
    """A Spark task that runs a query and yields its rows as record batches of ``columns`` text columns.

    ``read``: the function of the dialect that runs the query.
    ``fault_of``, ``error_of``: the functions of the dialect that convert a driver's exception.
    ``table``: the source table, for errors.
    """

    endpoint: Endpoint
    query: str
    columns: int
    read: Read
    fault_of: Callable[[BaseException], Fault | None]
    error_of: Callable[..., TidesinkError]
    table: str

    def __call__(self, _batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the task's query. The batches that Spark passes in are ignored."""
        for _ in _batches:
            pass
        names = [f"c{index}" for index in range(self.columns)]
        try:
            for rows in self.read(self.endpoint, self.query):
                values = zip(*rows, strict=True)
                yield pa.record_batch([pa.array(map(_text, column), pa.string()) for column in values], names)
        except Exception as exc:
            fault = self.fault_of(exc)
            if fault is None:
                raise
            raise self.error_of(fault, table=self.table, user=self.endpoint.user) from None


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return value.decode() if isinstance(value, bytes) else str(value)


class SqlReader(TableReader):
    """Reads one target table of a SQL database."""

    def __init__(
        self,
        connections: Connections,
        place: Place,
        shape: TargetSchema,
        *,
        pipeline: str,
        session: SparkSession,
    ) -> None:
        self.session = session
        self._connections = connections
        self._dialect = connections.dialect
        self._place = place
        self._shape = shape
        self._table = str(shape.source)
        self._ledger = SqlLedger(self._dialect, place, pipeline, shape.keys)
        self._gathered = Gathered(self._dialect, place)

    @property
    def exists(self) -> bool:
        """True if the target table and its ledger exist."""
        ledger = replace(self._place, name=SHARDS if self._place.shard else LEDGER)
        with self._connections.transaction(self._table, writes=False) as cursor:
            return bool(
                self._dialect.tables.present(cursor, self._place)
                and self._dialect.tables.present(cursor, ledger)
            )

    def columns(self) -> Mapping[str, str]:
        """Return the table's current columns: Spark type by name."""
        with self._connections.transaction(self._table, writes=False) as cursor:
            self._present = self._dialect.tables.present(cursor, self._place)
        return {
            name: reading_type(self._shape.find(name), column_type, self._dialect.database)
            for name, column_type in self._present.items()
        }

    def committed(self) -> Progress | None:
        """Return the progress that the ledger records; None if no batch was ever applied."""
        with self._connections.transaction(self._table, writes=False) as cursor:
            entry = self._ledger.read(cursor)
        return entry.progress if entry else None

    def rows(self, columns: Sequence[TargetColumn]) -> DataFrame:
        """Return a lazy frame of the table's current rows.

        Spark reads the rows from the database each time it computes the frame.
        """
        from tidesink.sinks.spark.digests import ODD

        return self.compared_rows(columns).drop(ODD)

    def compared_rows(self, columns: Sequence[TargetColumn]) -> DataFrame:
        """Return the frame of ``rows`` with one more column, ``ODD``: the texts of values that do not fit
        their column's type.
        """
        from tidesink.sinks.spark.digests import ODD

        database = self._dialect.database
        fold = folding(self._present, (column.name for column in columns))
        present_columns = {
            fold(name): (self._place.quote(name), kind) for name, kind in self._present.items()
        }
        asked = [present_columns[fold(column.name)] for column in columns]
        types = [
            _held(shape_column.spark, reading_type(shape_column, kind, database))
            for shape_column, (_, kind) in zip(columns, asked, strict=True)
        ]
        dialect = self._dialect
        task = ReadTask(
            self._connections.endpoint,
            self._query(
                ", ".join(dialect.values.text_of(*one) for one in asked), [one.name for one in columns]
            ),
            len(asked),
            dialect.driver.read,
            dialect.driver.fault_of,
            dialect.driver.error_of,
            self._table,
        )
        ddl = ", ".join(f"c{index} string" for index in range(len(asked)))
        frame = self.session.range(0, 1, 1, 1).mapInArrow(Reporting(task), ddl)
        values = [_value(f"c{index}", kind) for index, kind in enumerate(types)]
        odd = (f"CASE WHEN {value} IS NULL THEN c{index} END" for index, value in enumerate(values))
        named = zip(values, columns, strict=True)
        return frame.selectExpr(
            *(f"{value} AS {quoted(shape_column.name)}" for value, shape_column in named),
            f"array({', '.join(odd)}) AS {ODD}",
        )

    def spelling(self, name: str) -> Spelling | None:
        """Return how the database changes the texts of a column: ``digits`` (zeros at the end of a fraction),
        ``json`` (spaces and the order of members), or None for no change.
        """
        fold = folding(self._present, (column.name for column in self._shape.columns))
        column_type = next(
            (kind for column_name, kind in self._present.items() if fold(column_name) == fold(name)), ""
        )
        column = self._shape.find(name)
        if column is not None and isinstance(native_of(column, column_type, self._dialect.database), Native):
            return native_spelling(column, column_type, self._dialect.database)
        return spelling_of(column_type, self._dialect.database)

    def close(self) -> None:
        """Close the connections to the database."""
        self._connections.close()

    @cached_property
    def _present(self) -> dict[str, str]:
        with self._connections.transaction(self._table, writes=False) as cursor:
            return self._dialect.tables.present(cursor, self._place)

    def _query(self, texts: str, columns: Sequence[str]) -> str:
        """Return the SQL query of the table's current rows.

        ``texts``: the SELECT list for the rows of the target table.

        Checks for a side table of gathered changes in each call, because a worker may have started to use
        cuts. The query then includes everything that was applied before the check.
        """
        conditions, more = self._living(), ""
        with self._connections.transaction(self._table, writes=False) as cursor:
            gathers = self._gathered.look(cursor)
        if gathers:
            conditions.append(self._gathered.lacks_row(self._ledger.keys))
            more = f" UNION ALL {self._gathered.living(columns)}"
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        return f"SELECT {texts} FROM {self._place.location} t{where}{more}"

    def _living(self) -> list[str]:
        """Return SQL conditions that exclude tombstones, soft-deleted rows and the rows of other shards."""
        conditions = []
        if SOFT_DELETE_COLUMN in self._present:
            conditions.append(f"{self._place.quote(SOFT_DELETE_COLUMN)} IS NOT TRUE")
        if self._place.shard is not None:
            column, value = self._place.shard
            name, kind = next(
                item for item in self._present.items() if fold_name(item[0]) == fold_name(column)
            )
            conditions.append(f"{self._place.quote(name)} = {self._dialect.values.literal(value, kind)}")
        return conditions


def _held(ddl: str, present: str) -> str:
    """Return the Spark type in which a column is read: the wider of its wanted type ``ddl`` and its stored
    type ``present``.
    """
    return "string" if present == "string" else wider_ddl(ddl, present) or ddl


def _value(text: str, ddl: str) -> str:
    """Return Spark SQL that casts a text to a type. The result is NULL if the text is not a value of the
    type.
    """
    if ddl == "string":
        return text
    if ddl == "binary":
        return f"unhex({text})"
    if ddl == "timestamp":
        return f"try_cast(concat({text}, 'Z') AS timestamp)"
    return f"try_cast({text} AS {ddl})"
