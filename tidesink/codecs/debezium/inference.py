"""Infers a table's columns and keys from a single debezium-json record, independent of other records.

A column whose type neither a schema nor a definition contains is read as text. Otherwise its type would
change from row to row with the JSON value (null, 1, 1.5), but a column has one type.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple

from tidesink.codecs.debezium.codec import DebeziumJsonCodec
from tidesink.codecs.debezium.envelope import DOCUMENT, KEY_ONLY, TICDC, connector_of
from tidesink.codecs.debezium.formats import JsonParser, Parsed
from tidesink.codecs.debezium.unwrapped import added_source
from tidesink.codecs.options import DebeziumOptions
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import DecodeError
from tidesink.events import (
    ChangeEvent,
    Column,
    ColumnType,
    DdlEvent,
    Event,
    Message,
    TableId,
    TableSchema,
)

UNTYPED: Final = (
    "its type is not known, so its values are kept as text. To set the type, define the table under tables."
)
# The member of an event's extension that every envelope has, and a flattened row does not.
SOURCE: Final = "source"
_MOST_SCHEMAS: Final = 1024
# The type of a column without a known type.
_GUESSED: Final = ColumnType("text")


class InferredColumn(NamedTuple):
    """A column of a record. ``guessed`` is True if its type is not known, so that it is read as text."""

    column: Column
    guessed: bool

    @property
    def text(self) -> str:
        """The column as JSON text, which ``inferred_column`` parses."""
        reported = {
            "name": self.column.name,
            "type": asdict(self.column.type),
            "default": self.column.default,
            "nullable": self.column.nullable,
        }
        return json.dumps({**reported, "guessed": self.guessed})


def inferred_column(text: str) -> InferredColumn:
    """Parses a column from the JSON text that ``InferredColumn.text`` returns."""
    members = json.loads(text)
    kind: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in members["type"].items()
    }
    return InferredColumn(
        Column(members["name"], ColumnType(**kind), members["nullable"], members["default"]),
        bool(members["guessed"]),
    )


class FirstRow(NamedTuple):
    """A table as described by a single record: its columns, its key, and how the record was written.

    ``message`` is that record. ``flattened``: True if ExtractNewRecordState flattened it. ``bare``: True if
    it contains no schema. ``is_ticdc``: True if TiCDC wrote it. ``connector``: the connector's name in its
    source block; empty if unknown.
    """

    table: TableId
    columns: tuple[InferredColumn, ...]
    keys: tuple[str, ...]
    flattened: bool
    bare: bool
    is_ticdc: bool
    message: Message
    connector: str = ""


class RowFacts(NamedTuple):
    """How the records whose events have the same ``TableSchema`` were written.

    ``bare``: True if the records contain no schema. ``flattened``: True if ExtractNewRecordState flattened
    them. ``guessed``: names of the columns whose type is not known. ``key_only``: names of the columns that
    only the Kafka key contains.
    """

    bare: bool = False
    flattened: bool = False
    guessed: frozenset[str] = frozenset()
    key_only: frozenset[str] = frozenset()


_NO_FACTS: Final = RowFacts()


@dataclass(frozen=True)
class _FactsSchema(TableSchema):
    """The schema of events whose records were not written in the usual way: ``facts`` describes how."""

    facts: RowFacts = _NO_FACTS


def facts_of(schema: TableSchema) -> RowFacts:
    """Returns how the records were written whose events from a ``LoneCodec`` have this schema."""
    return schema.facts if isinstance(schema, _FactsSchema) else _NO_FACTS


def inferred_columns(schema: TableSchema) -> tuple[InferredColumn, ...]:
    """Returns the columns of a schema from a ``LoneCodec``, each with whether its type was guessed."""
    guessed = facts_of(schema).guessed
    return tuple(InferredColumn(column, column.name in guessed) for column in schema.columns)


class _Parser(JsonParser):
    """A JSON parser that remembers whether the record that is being decoded has no schema."""

    bare = False

    def read(self, message: Message, part: str) -> Parsed | None:
        parsed = super().read(message, part)
        if part == "value" or message.value is None:
            self.bare = parsed is not None and parsed.schema is None
        return parsed


class LoneCodec(DebeziumJsonCodec):
    """A codec without memory: it decodes a record the same way whatever records it has decoded before.

    ``definition`` is the table from the config. For records without a schema, ``learned`` holds the types of
    columns that the definition does not contain, and a column that neither of them contains is read as text.
    """

    def __init__(
        self, options: DebeziumOptions, definition: TableSchema | None, learned: TableSchema | None = None
    ) -> None:
        self._types = {c.name: c.type for schema in (learned, definition) if schema for c in schema.columns}
        definitions = TableDefinitions([definition] if definition else [])
        super().__init__(options=options, definitions=definitions)
        self._parser = self._watched = _Parser(options.max_decompressed_bytes)
        self._rows, self._ticdc_rows = (
            replace(rows, untyped_is_text=True) for rows in (self._rows, self._ticdc_rows)
        )
        if learned is not None:
            self._rows.learned.put(learned)
        # The schema with facts, by the event's schema and whether its record was bare and flattened. The
        # event's schema is held, so that its id is not reused.
        self._met: dict[tuple[int, bool, bool], tuple[TableSchema, TableSchema]] = {}

    def _decoded(self, message: Message, keys: Collection[str] | None) -> tuple[Event, ...]:
        self._flattened_topics.clear()
        return tuple(self._with_facts(event) for event in super()._decoded(message, keys))

    def _with_facts(self, event: Event) -> Event:
        """Returns the event with a schema for which ``facts_of`` returns the facts about its record."""
        if not isinstance(event, ChangeEvent) or event.schema is None:
            return event
        schema, bare, flattened = event.schema, self._watched.bare, SOURCE not in (event.extension or {})
        key = id(schema), bare, flattened
        if key not in self._met:
            if len(self._met) >= _MOST_SCHEMAS:
                self._met.clear()
            facts = RowFacts(bare, flattened, self._guessed(schema) if bare else frozenset(), key_only(event))
            own = schema if facts == _NO_FACTS else _FactsSchema(schema.table, schema.columns, facts)
            self._met[key] = schema, own
        return event._replace(schema=self._met[key][1])

    def _guessed(self, schema: TableSchema) -> frozenset[str]:
        """Returns the names of the columns whose types were guessed, for a record without a schema."""
        # A key may have a schema even if its value does not. MongoDB's documents and their keys are texts.
        types, document = self._types, schema.by_name.get(DOCUMENT)
        if document is not None and document.type != _GUESSED and DOCUMENT not in types:
            return frozenset()
        return frozenset(
            column.name
            for column in schema.columns
            if column.type == _GUESSED and types.get(column.name) != _GUESSED
        )

    def _learn(self, event: DdlEvent) -> None:
        """Ignores DDL: types come only from ``definition`` and ``learned``."""


def first_row(
    messages: Iterable[Message],
    options: DebeziumOptions,
    definition: TableSchema | None = None,
    *,
    faults: list[DecodeError] | None = None,
) -> FirstRow | None:
    """Returns the table as described by the first record with a whole row; None if no record has a whole row.

    Records that cannot be decoded are skipped; their errors are appended to ``faults``.
    """
    codec = LoneCodec(options, definition)
    for message in messages:
        event = _row_of(codec, message, faults)
        if event is not None and event.schema is not None:
            connector, facts = connector_of_event(message, event), facts_of(event.schema)
            return FirstRow(
                event.table,
                inferred_columns(event.schema),
                tuple(event.key or ()),
                flattened=facts.flattened,
                bare=facts.bare,
                is_ticdc=event.commit_ts is not None or connector == TICDC,
                message=message,
                connector=connector,
            )
    return None


def key_only(event: ChangeEvent) -> frozenset[str]:
    """Returns the names of the columns that only the event's Kafka key has (``ByLogicalTableRouter``)."""
    names = (event.extension or {}).get(KEY_ONLY)
    return frozenset(names) if isinstance(names, tuple) else frozenset()


def connector_of_event(message: Message, event: ChangeEvent) -> str:
    """Returns the name of the connector that wrote an event's record; an empty text if it is not known.

    For a flattened row, the name comes from a field or a header of the record, or from fields that only one
    connector writes.
    """
    extension = event.extension or {}
    source = extension.get(SOURCE)
    return connector_of(source if isinstance(source, Mapping) else added_source(message, extension))


def _row_of(codec: LoneCodec, message: Message, faults: list[DecodeError] | None) -> ChangeEvent | None:
    try:
        events = codec.decode(message)
    except DecodeError as error:
        if faults is not None:
            faults.append(error)
        return None
    return next((event for event in events if isinstance(event, ChangeEvent) and _is_whole(event)), None)


def _is_whole(event: ChangeEvent) -> bool:
    """Returns True if an event has all columns: a new row, or an old row with more columns than its key."""
    columns = event.schema.columns if event.schema is not None else ()
    return bool(event.after) or (event.before is not None and len(columns) > len(event.key or ()))
