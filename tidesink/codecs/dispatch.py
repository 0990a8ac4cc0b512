"""Where TiCDC sends a row: its topic by expression, its partition by hash.

Dispatchers of a changefeed as in ``[sink] dispatchers``: the first whose matcher fits a table decides; a
table that none fits goes to the sink URI's topic by ``table``. Source: TiCDC (tiflow c7b2588) and its new
architecture (b813e76), which differ in one point: NULL columns are hashed as the text ``null``, or left out.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from tidesink.codecs.base import Producer
from tidesink.codecs.table_filter import TableFilter
from tidesink.errors import ConfigError, EncodeError
from tidesink.events import ChangeEvent, Column, Row, TableId, TableSchema, Value
from tidesink.schema_registry.naming import TopicRule
from tidesink.typemap.wire_text import text_writer

PartitionRule = Literal["table", "index-value", "columns", "ts"]

# TiCDC's names in any case; rowid is its old name of index-value, default one of table.
PARTITION_RULES: Final[dict[str, PartitionRule]] = {
    "default": "table",
    "table": "table",
    "rowid": "index-value",
    "index-value": "index-value",
    "columns": "columns",
    "ts": "ts",
}


class Route(NamedTuple):
    """Where one row goes. ``key`` is what TiCDC calls the partition key: what was hashed, as text."""

    topic: str
    hash: int
    key: str

    def partition(self, partitions: int) -> int:
        """The partition of a topic that has ``partitions`` of them."""
        return self.hash % partitions


@dataclass(frozen=True)
class Dispatcher:
    """One rule. ``topic`` None means the sink URI's topic; ``index`` names the index of index-value."""

    matcher: TableFilter
    topic: TopicRule | None = None
    partition: PartitionRule = "table"
    index: str = ""
    columns: tuple[str, ...] = ()

    def scatters(self, key: Collection[str] | None = None) -> str | None:
        """Why rows of one key can meet in several partitions, so that Kafka's order says nothing about them.

        None where they cannot. ``key``: the columns of the table's handle key, where they are known.
        """
        if self.partition == "ts":
            return "partition 'ts' spreads the changes of one row over partitions by their commit ts"
        named = set(self.columns) if self.partition == "columns" else {self.index} - {""}
        if not named:
            return None
        if self.partition == "columns" and key and {n.casefold() for n in named} <= _folded(key):
            return None
        if self.partition == "columns":
            what = f"partition 'columns' hashes {', '.join(self.columns)}"
        else:
            what = f"partition 'index-value' hashes the index {self.index}"
        return f"{what}: where a value changes, the row's later changes go to another partition"

    def __str__(self) -> str:
        if self.partition == "columns":
            return f"columns ({', '.join(self.columns)})"
        return f"index-value (index {self.index})" if self.index else self.partition


def _folded(names: Collection[str]) -> set[str]:
    return {name.casefold() for name in names}


@dataclass(frozen=True)
class Router:
    """The dispatchers of a changefeed, in its order, and the topic for what none of them fits."""

    default_topic: str
    dispatchers: tuple[Dispatcher, ...] = ()
    producer: Producer = "classic"

    def dispatcher_of(self, table: TableId) -> Dispatcher:
        """The rule that decides for a table."""
        found = (one for one in self.dispatchers if one.matcher.matches(table))
        return next(found, _OTHERWISE)

    def topic_of(self, table: TableId) -> str:
        """The topic of a table's rows."""
        rule = self.dispatcher_of(table).topic
        return self.default_topic if rule is None else rule.topic_for(table)

    def route(self, event: ChangeEvent, *, index: Sequence[str] = ()) -> Route:
        """Where a row change goes; ``index``: the columns of the index which its dispatcher names.

        Raises:
            ConfigError: the dispatcher names columns or an index that the table does not have.
            EncodeError: the event has no schema, no commit_ts, or a value that is not of its type.
        """
        dispatcher = self.dispatcher_of(event.table)
        topic = self.topic_of(event.table)
        if dispatcher.partition == "ts":
            if event.commit_ts is None:
                raise EncodeError("partition 'ts' needs the event's commit_ts", table=str(event.table))
            return Route(topic, event.commit_ts, str(event.commit_ts))
        total = _crc(event.table.schema.encode(), event.table.name.encode())
        if dispatcher.partition == "table":
            return Route(topic, total, str(event.table))
        schema = _schema(event)
        row = event.after if event.after is not None else event.before or event.key or {}
        for column in _hashed(dispatcher, schema, index):
            for part in self._parts(column, row):
                total ^= part
        return Route(topic, total, str(total))

    def _parts(self, column: Column, row: Row) -> Iterator[int]:
        if column.name not in row:
            raise EncodeError(f"the event lacks the column {column.name}, which its partition depends on")
        value = row[column.name]
        if value is not None:
            yield _crc(column.name.encode(), _hashed_text(column, value))
        elif self.producer == "classic":
            yield _crc(column.name.encode(), b"null")


_OTHERWISE: Final = Dispatcher(TableFilter.parse(["*.*"]))


def _crc(first: bytes, second: bytes) -> int:
    return zlib.crc32(second, zlib.crc32(first))


def _hashed_text(column: Column, value: Value) -> bytes:
    return value if isinstance(value, bytes) else text_writer(column.type)(value).encode("utf-8")


def _schema(event: ChangeEvent) -> TableSchema:
    if event.schema is None:
        raise EncodeError("the event has no schema, and the partition depends on its columns' types")
    return event.schema


def _hashed(dispatcher: Dispatcher, schema: TableSchema, index: Sequence[str]) -> Sequence[Column]:
    if dispatcher.partition == "columns":
        return _named(schema, dispatcher.columns, "partition 'columns'")
    if not dispatcher.index:
        return schema.handle_columns
    if not index:
        raise ConfigError(
            f"the table has no index {dispatcher.index}, which its dispatcher names: correct the dispatcher",
            table=str(schema.table),
        )
    return _named(schema, index, f"index {dispatcher.index}")


def _named(schema: TableSchema, names: Sequence[str], what: str) -> list[Column]:
    known = {column.name.casefold(): column for column in schema.columns}
    missing = [name for name in names if name.casefold() not in known]
    if missing:
        raise ConfigError(
            f"{what} names {', '.join(missing)}, which the table does not have: correct the dispatcher",
            table=str(schema.table),
        )
    return [known[name.casefold()] for name in names]
