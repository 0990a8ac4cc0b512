"""The table definitions a canal-json topic tells of itself, by its DDL events.

TiCDC writes DDL events to partition 0 alone (tiflow c7b2588, ticdc b813e76). They are read ahead of the
rows, up to partition 0's end: a row on another partition can be read before the ALTER that gave it its
columns. The state store remembers the definitions and how far they go; where it was lost, partition 0 is
read again from its beginning.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson
import structlog

from tidesink.change import TableId, TableSchema
from tidesink.errors import ConfigError
from tidesink.sinks.offsets import TopicOffsets
from tidesink.sinks.ranges import OffsetRange
from tidesink.sinks.records_spark import marked_ddl
from tidesink.sinks.source import KafkaSource, translated_read_errors
from tidesink.sinks.state_store import StateStore
from tidesink.typemap.ddl import TableDefinitions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DDL_PARTITION: Final = 0
_KIND: Final = "topic-ddl"

_log = structlog.get_logger("tidesink.worker")


class _Statement(NamedTuple):
    database: str
    sql: str


class TopicDdl:
    """The definitions of one topic. Shared by the lanes of its tables."""

    def __init__(self, topic: str, *, pipeline: str, source: KafkaSource, store: StateStore) -> None:
        self._topic = topic
        self._name = f"{pipeline}/{topic}"
        self._source = source
        self._store = store
        self._lock = threading.Lock()
        self._definitions = TableDefinitions()
        self._topic_id: str | None = None
        self._next = 0
        self.warnings: tuple[str, ...] = ()

    def get(self, table: TableId) -> TableSchema | None:
        """A table as the topic's DDL has it so far."""
        with self._lock:
            return self._definitions.get(table)

    def tables(self) -> tuple[TableId, ...]:
        """Every table the topic's DDL knows."""
        with self._lock:
            return tuple(self._definitions)

    def scan(self, session: SparkSession, found: TopicOffsets) -> bool:
        """Read DDL up to partition 0's end; True where a definition changed.

        Raises:
            SourceError: Kafka refuses, or does not answer.
            StateStoreError: what was read cannot be kept.
        """
        with self._lock:
            self._restore(found)
            at = found.partitions.get(DDL_PARTITION)
            if at is None or at.latest <= self._next:
                return False
            statements = self._read(session, max(self._next, at.earliest), at.latest)
            # Kept before it is known here: a scan that is tried again begins where this one did.
            definitions = TableDefinitions.from_json(self._definitions.to_json())
            before = definitions.version
            self._apply(definitions, statements)
            self._save(definitions, at.latest)
            self._definitions, self._next = definitions, at.latest
            return definitions.version != before

    def _restore(self, found: TopicOffsets) -> None:
        if self._topic_id == found.topic_id:
            return
        kept: Any = self._store.load_document(_KIND, self._name)
        self._topic_id, self._next, self._definitions = found.topic_id, 0, TableDefinitions()
        if kept is not None and kept["topic_id"] == found.topic_id:
            self._next = int(kept["next_offset"])
            self._definitions = TableDefinitions.from_json(kept["definitions"])

    def _save(self, definitions: TableDefinitions, next_offset: int) -> None:
        document = {
            "topic_id": self._topic_id,
            "next_offset": next_offset,
            "definitions": definitions.to_json(),
        }
        self._store.save_document(_KIND, self._name, document)

    def _read(self, session: SparkSession, start: int, end: int) -> list[_Statement]:
        part = OffsetRange(self._topic, DDL_PARTITION, start, end)
        if part.records <= 0:
            return []
        raw = self._source.frame(session, [part])
        with translated_read_errors(self._topic):
            found = [_statement(value) for value in marked_ddl(raw)]
        return [statement for statement in found if statement is not None]

    def _apply(self, definitions: TableDefinitions, statements: list[_Statement]) -> None:
        for statement in statements:
            before = _members(definitions)
            try:
                definitions.apply(statement.sql, statement.database)
            except ConfigError as exc:
                self._warn(f"a DDL of topic {self._topic} cannot be read ({exc.message})", statement)
            for name in _renumbered(before, _members(definitions)):
                self._warn(
                    f"column {name}: its members got other numbers, and canal-json rows carry numbers; rows "
                    "from before this DDL that are not applied yet are read with the new members",
                    statement,
                )

    def _warn(self, text: str, statement: _Statement) -> None:
        shown = f"{text}: {statement.sql[:200]}"
        if shown not in self.warnings:
            self.warnings = (*self.warnings, shown)
            _log.warning("DDL to be looked at", topic=self._topic, warning=shown)


_Members = dict[tuple[TableId, str], tuple[str, ...]]


def _members(definitions: TableDefinitions) -> _Members:
    """The members of every ENUM and SET column."""
    schemas = (definitions.get(table) for table in definitions)
    return {
        (schema.table, column.name): column.type.members
        for schema in schemas
        if schema is not None
        for column in schema.columns
        if column.type.members is not None
    }


def _renumbered(before: _Members, after: _Members) -> list[str]:
    """Columns whose members are no longer those of before with others behind them."""
    return [
        f"{place[0]}.{place[1]}"
        for place, members in after.items()
        if (old := before.get(place)) is not None and members[: len(old)] != old
    ]


def _statement(value: bytes) -> _Statement | None:
    """The statement of a DDL event; None for any other record."""
    try:
        message = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(message, dict) or message.get("isDdl") is not True:
        return None
    sql, database = message.get("sql"), message.get("database")
    return _Statement(database if isinstance(database, str) else "", sql) if isinstance(sql, str) else None
