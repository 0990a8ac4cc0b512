"""The rows of the golden vectors in a real database, and what is read of them by SQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import sqlalchemy as sa

from tests.golden.vectors import Json, Record, VectorFolder, columns_of, schema_of
from tests.spark.decoded import Decoded, decode_here
from tidesink.events import Column, TableId, TableSchema
from tidesink.sinks.batch.source_rows import KeyRange, RowInput, SourceRows, source_plan
from tidesink.sinks.decode.plans import DecodePlan
from tidesink.source_database.base import StoredTable
from tidesink.source_database.database import stored_table
from tidesink.typemap.table import render_members, row_of

# The column by which rows are told apart in the database; no vector has one of this name.
_NUMBER: Final = "_number"
# MariaDB cannot hold what it stands for: types that TiDB alone has.
NOT_HELD: Final = {"vector": "MariaDB 10.11 has no VECTOR"}
_OFFSETS: Final = {"UTC": "+00:00", "Asia/Shanghai": "+08:00"}


@dataclass
class VectorTable:
    """Events whose rows have the same columns, in one table; ``records`` are theirs, by codec."""

    schema: TableSchema
    raws: list[Json]
    time_zone: str
    events: list[Json] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)

    @cached_property
    def stored(self) -> tuple[Column, ...]:
        """The columns that the database is to have."""
        return tuple(c for c in self.schema.columns if not c.virtual and c.type.name not in NOT_HELD)

    def create(self, connection: sa.Connection, name: str) -> None:
        """Make the table, and write the rows."""
        types = {raw["name"]: raw for raw in self.raws}
        columns = ", ".join(f"{_quoted(c.name)} {_sql(c, types[c.name])}" for c in self.stored)
        run(connection, f"CREATE TABLE `{name}` ({_quoted(_NUMBER)} int PRIMARY KEY, {columns})")
        run(connection, f"SET time_zone = '{_OFFSETS[self.time_zone]}'")
        rows = ", ".join(self._row(number, event) for number, event in enumerate(self.events))
        run(connection, f"INSERT INTO `{name}` VALUES {rows}")  # noqa: S608

    def _row(self, number: int, event: Json) -> str:
        values = {raw["name"]: raw for raw in event["columns"]}
        return f"({number}, {', '.join(_literal(c, values[c.name]) for c in self.stored)})"


def vector_tables(folder: VectorFolder, codecs: Sequence[str]) -> list[VectorTable]:
    """The tables of a folder's row events."""
    tables: dict[str, VectorTable] = {}
    by_event: dict[str, VectorTable] = {}
    for codec in codecs:
        for record in folder.rows(codec):
            event = record.event
            if event is None or not event.get("columns") or not _is_plain(record):
                continue
            place = f"{event['event']} {record.time_zone}"
            if place not in by_event:
                raws, schema = columns_of(event), schema_of(event)
                named = [(r["name"], r["type"], r.get("elems"), r.get("charset"), r["is_key"]) for r in raws]
                nullable = [c.nullable for c in schema.columns]
                key = repr((schema.table, named, nullable, record.time_zone))
                table = tables.setdefault(key, VectorTable(schema, raws, record.time_zone))
                table.events.append(event)
                by_event[place] = table
            by_event[place].records.append(record)
    return list(tables.values())


def _is_plain(record: Record) -> bool:
    """Whether a record has its whole row by itself."""
    return record.message.value is not None and "error" not in record.raw and " +" not in record.name


def _sql(column: Column, raw: Json) -> str:
    words = str(raw["type"])
    if column.type.members is not None:
        members = render_members(tuple(one.replace("\\", "\\\\") for one in column.type.members))
        words = f"{column.type.name}({members})"
    if raw["charset"] not in ("binary", "") and row_of(column.type).reader in ("text", "enum", "set"):
        words += f" CHARACTER SET {raw['charset']}"
    return f"{words} {'NULL' if column.nullable else 'NOT NULL'}"


def _literal(column: Column, raw: Json) -> str:
    text, reader = raw["value"], row_of(column.type).reader
    if text is None:
        return "NULL"
    if reader == "binary":
        return f"x'{raw.get('hex', '')}'"
    if reader == "text":
        return f"_utf8mb4 x'{raw.get('hex') or text.encode().hex()}'"
    return f"'{text}'" if reader in ("date", "datetime", "timestamp", "time") else str(text)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def run(connection: sa.Connection, statement: str) -> None:
    """One statement as it is."""
    connection.exec_driver_sql(statement.replace("%", "%%"))


@dataclass(frozen=True)
class DatabaseRows:
    """All rows of a table, as they were read once; ``decoded`` by each plan."""

    stored: StoredTable
    records: pa.RecordBatch

    @classmethod
    def of(cls, connection: sa.Connection, url: str, table: TableId) -> DatabaseRows:
        """Read a table."""
        stored = stored_table(connection, table)
        assert stored is not None
        types = {**stored.types, **stored.virtual, **stored.generated}
        schema = TableSchema(table, tuple(Column(name, kind) for name, kind in types.items()))
        source = SourceRows(url, schema, (), {})
        (records,) = source(RowInput("rows", 0, KeyRange(), 1))
        return cls(stored, records)

    def lost(self, plan: DecodePlan) -> set[str]:
        """Columns that the plan's records have, and the database has not."""
        return {*source_plan(plan, self.stored)[1].lost}

    def decoded(self, plan: DecodePlan) -> Iterator[tuple[Decoded, dict[str, Any]]]:
        """Each row as an event of the plan's, and its values, without columns that the database lacks."""
        own, gap = source_plan(plan, self.stored)
        for one in decode_here(own, self.records):
            after = one.after or {}
            yield one, {name: value for name, value in after.items() if name not in gap.lost}
