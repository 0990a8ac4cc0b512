"""What one debezium-json record tells of its table by itself, whatever others say.

Types that neither a schema nor a definition tells are text here: what a JSON value looks like differs from
row to row (null, 1, 1.5), and a column has one type.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Container, Iterable
from dataclasses import asdict, replace
from decimal import Decimal
from typing import Any, Final, NamedTuple

from tidesink.codecs.base import CodecOptions
from tidesink.codecs.debezium.codec import DebeziumJsonCodec
from tidesink.codecs.debezium.formats import JsonParser, Parsed
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import DecodeError
from tidesink.events import (
    ChangeEvent,
    Column,
    ColumnType,
    DdlEvent,
    Event,
    Message,
    Row,
    TableId,
    TableSchema,
    Value,
)

UNTYPED: Final = "nothing tells its type, so it is kept as text; give a table definition"
# The member of an event's extension that every envelope has, and no flattened row.
SOURCE: Final = "source"
_TEXT: Final = ColumnType("text")
_MOST_SCHEMAS: Final = 1024


class InferredColumn(NamedTuple):
    """A column that a record has; ``guessed``: nothing gave its type, so it is text."""

    column: Column
    guessed: bool

    @property
    def text(self) -> str:
        """The column as text, for ``inferred_column``."""
        reported = {
            "name": self.column.name,
            "type": asdict(self.column.type),
            "default": self.column.default,
        }
        return json.dumps({**reported, "guessed": self.guessed})


def inferred_column(text: str) -> InferredColumn:
    """A column out of ``InferredColumn.text``."""
    found = json.loads(text)
    kind: dict[str, Any] = {
        name: tuple(one) if isinstance(one, list) else one for name, one in found["type"].items()
    }
    return InferredColumn(
        Column(found["name"], ColumnType(**kind), default=found["default"]), bool(found["guessed"])
    )


class FirstRow(NamedTuple):
    """What a record tells of its table.

    ``flattened``: ExtractNewRecordState made it. ``bare``: it has no schema beside its payload. ``is_ticdc``:
    TiCDC wrote it. ``message`` is the record.
    """

    table: TableId
    columns: tuple[InferredColumn, ...]
    keys: tuple[str, ...]
    flattened: bool
    bare: bool
    is_ticdc: bool
    message: Message


class RowFacts(NamedTuple):
    """What is known of the records of one ``TableSchema``; ``guessed`` are columns that nothing types."""

    bare: bool = False
    flattened: bool = False
    guessed: frozenset[str] = frozenset()


class _Parser(JsonParser):
    """Remembers whether the last record came without a schema."""

    bare = False

    def read(self, message: Message, part: str) -> Parsed | None:
        found = super().read(message, part)
        if part == "value" or message.value is None:
            self.bare = found is not None and found.schema is None
        return found


class LoneCodec(DebeziumJsonCodec):
    """The codec without a memory: what a record means depends on no other one.

    ``known`` are columns that records without a schema are held to where no definition has them.
    """

    def __init__(
        self, options: CodecOptions, definition: TableSchema | None, known: TableSchema | None = None
    ) -> None:
        self._types = {c.name: c.type for one in (known, definition) if one for c in one.columns}
        definitions = TableDefinitions([definition] if definition else [])
        super().__init__(options=options, definitions=definitions)
        self._parser = self._watched = _Parser()
        if known is not None:
            self._rows.learned.put(known)

    def _decoded(self, message: Message, keys: Collection[str] | None) -> tuple[Event, ...]:
        self._flattened_topics.clear()
        return super()._decoded(message, keys)

    @property
    def bare(self) -> bool:
        """Whether the last record came without a schema."""
        return self._watched.bare

    def reported(self, schema: TableSchema) -> list[InferredColumn]:
        """The columns of the last record, of which this is the schema."""
        guessed = [self.bare and self._types.get(one.name) != one.type for one in schema.columns]
        return [
            InferredColumn(replace(column, type=_TEXT) if guess else column, guess)
            for column, guess in zip(schema.columns, guessed, strict=True)
        ]

    def _learn(self, event: DdlEvent) -> None:
        """Types are the caller's."""


class _Known(NamedTuple):
    """A record's schema, and that of the event made of it."""

    schema: TableSchema
    typed: TableSchema
    facts: RowFacts


class TextCodec(LoneCodec):
    """The codec without a memory, to which a column that nothing types is text.

    A change of a record without a schema has text in such columns.
    """

    def __init__(
        self, options: CodecOptions, definition: TableSchema | None, known: TableSchema | None = None
    ) -> None:
        super().__init__(options, definition, known)
        self._met: dict[tuple[int, bool, bool], _Known] = {}
        self._facts: dict[int, _Known] = {}

    def forget(self) -> None:
        """Let go of what was met, where it is much; not while facts are asked for."""
        if len(self._met) >= _MOST_SCHEMAS:
            self._met.clear()
            self._facts.clear()

    def facts_of(self, schema: TableSchema) -> RowFacts:
        """What is known of the records whose events have this very schema."""
        found = self._facts.get(id(schema))
        return found.facts if found is not None and found.typed is schema else RowFacts()

    def _decoded(self, message: Message, keys: Collection[str] | None) -> tuple[Event, ...]:
        return tuple(self._typed(event) for event in super()._decoded(message, keys))

    def _typed(self, event: Event) -> Event:
        """The event, with text in columns that nothing types."""
        if not isinstance(event, ChangeEvent) or event.schema is None:
            return event
        known = self._known(event.schema, flattened=SOURCE not in (event.extension or {}))
        texts = known.facts.guessed
        event = event._replace(schema=known.typed)
        if not texts:
            return event
        key, before, after = (_with_texts(row, texts) for row in (event.key, event.before, event.after))
        return event._replace(key=key, before=before, after=after)

    def _known(self, schema: TableSchema, *, flattened: bool) -> _Known:
        place = id(schema), self.bare, flattened
        found = self._met.get(place)
        if found is None or found.schema is not schema:
            found = self._met[place] = self._new(schema, flattened=flattened)
            self._facts[id(found.typed)] = found
        return found

    def _new(self, schema: TableSchema, *, flattened: bool) -> _Known:
        reported = self.reported(schema)
        columns = tuple(one.column for one in reported)
        guessed = frozenset(one.column.name for one in reported if one.guessed)
        # Another object for each, so that it stands for the facts.
        typed = replace(schema, columns=columns) if self.bare or flattened else schema
        return _Known(schema, typed, RowFacts(self.bare, flattened, guessed))


def _with_texts(row: Row | None, names: Container[str]) -> Row | None:
    if row is None:
        return None
    return {
        name: _as_text(value) if value is not None and name in names else value for name, value in row.items()
    }


def _as_text(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def first_row(
    messages: Iterable[Message], options: CodecOptions, definition: TableSchema | None = None
) -> FirstRow | None:
    """What the first record that holds a whole row tells; None where none does.

    Records that cannot be decoded are passed over.
    """
    codec = LoneCodec(options, definition)
    for message in messages:
        event = _row_of(codec, message)
        if event is not None and event.schema is not None:
            return FirstRow(
                event.table,
                tuple(codec.reported(event.schema)),
                tuple(event.key or ()),
                flattened=SOURCE not in (event.extension or {}),
                bare=codec.bare,
                is_ticdc=event.commit_ts is not None,
                message=message,
            )
    return None


def _row_of(codec: LoneCodec, message: Message) -> ChangeEvent | None:
    try:
        events = codec.decode(message)
    except DecodeError:
        return None
    return next((one for one in events if isinstance(one, ChangeEvent) and _is_whole(one)), None)


def _is_whole(event: ChangeEvent) -> bool:
    """Whether an event tells all columns: it has a new row, or an old one that is more than its key."""
    columns = event.schema.columns if event.schema is not None else ()
    return bool(event.after) or (event.before is not None and len(columns) > len(event.key or ()))
