"""What one debezium-json record tells of its table by itself, whatever others say.

Types that neither a schema nor a definition tells are text here: what a JSON value looks like differs from
row to row (null, 1, 1.5), and a column has one type.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any, Final, NamedTuple

from tidesink.codecs.base import CodecOptions
from tidesink.codecs.debezium.codec import DebeziumCodec
from tidesink.codecs.debezium.formats import JsonParser, Parsed
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import DecodeError
from tidesink.events import ChangeEvent, Column, ColumnType, DdlEvent, Event, Message, TableId, TableSchema

UNTYPED: Final = "nothing tells its type, so it is kept as text; give a table definition"
_TEXT: Final = ColumnType("text")


class Told(NamedTuple):
    """A column that a record has; ``guessed``: nothing told its type, so it is text."""

    column: Column
    guessed: bool

    @property
    def text(self) -> str:
        """The column as text, for ``told_column``."""
        told = {"name": self.column.name, "type": asdict(self.column.type), "default": self.column.default}
        return json.dumps({**told, "guessed": self.guessed})


def told_column(text: str) -> Told:
    """A column out of ``Told.text``."""
    found = json.loads(text)
    kind: dict[str, Any] = {
        name: tuple(one) if isinstance(one, list) else one for name, one in found["type"].items()
    }
    return Told(Column(found["name"], ColumnType(**kind), default=found["default"]), bool(found["guessed"]))


class FirstRow(NamedTuple):
    """What a record tells of its table; ``flattened``: ExtractNewRecordState made it."""

    table: TableId
    columns: tuple[Told, ...]
    keys: tuple[str, ...]
    flattened: bool


class _Parser:
    """Reads JSON, and remembers whether the last record came without a schema."""

    def __init__(self) -> None:
        self._parser = JsonParser()
        self.bare = False

    def read(self, message: Message, part: str) -> Parsed | None:
        found = self._parser.read(message, part)
        if part == "value" or message.value is None:
            self.bare = found is not None and found.schema is None
        return found


class LoneCodec(DebeziumCodec):
    """The codec without a memory: what a record means depends on no other one.

    ``known`` are columns that records without a schema are held to where no definition has them.
    """

    def __init__(
        self, options: CodecOptions, definition: TableSchema | None, known: TableSchema | None = None
    ) -> None:
        self._watched = _Parser()
        self._types = {c.name: c.type for one in (known, definition) if one for c in one.columns}
        definitions = TableDefinitions([definition] if definition else [])
        super().__init__(self._watched, options=options, definitions=definitions)
        if known is not None:
            self._rows.learned.put(known)

    def decode(self, message: Message) -> tuple[Event, ...]:
        """As the codec does."""
        self._flattened_topics.clear()
        return super().decode(message)

    @property
    def bare(self) -> bool:
        """Whether the last record came without a schema."""
        return self._watched.bare

    def told(self, schema: TableSchema) -> list[Told]:
        """The columns of the last record, of which this is the schema."""
        guessed = [self.bare and self._types.get(one.name) != one.type for one in schema.columns]
        return [
            Told(replace(column, type=_TEXT) if guess else column, guess)
            for column, guess in zip(schema.columns, guessed, strict=True)
        ]

    def _learn(self, event: DdlEvent) -> None:
        """Types are the caller's."""


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
            flattened = "source" not in (event.extension or {})
            return FirstRow(event.table, tuple(codec.told(event.schema)), tuple(event.key or ()), flattened)
    return None


def _row_of(codec: LoneCodec, message: Message) -> ChangeEvent | None:
    try:
        events = codec.decode(message)
    except DecodeError:
        return None
    return next((one for one in events if isinstance(one, ChangeEvent) and one.after), None)
