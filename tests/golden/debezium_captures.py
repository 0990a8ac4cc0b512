"""Captures of real Debezium connectors: their records, their modes, and the rows the databases ended with."""

from __future__ import annotations

import base64
import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from tests.golden.debezium_tables import postgres_definitions
from tests.golden.vectors import unbase64
from tests.reduction_law import unsent_columns
from tidesink.codecs import open_codec
from tidesink.codecs.base import Codec
from tidesink.codecs.options import DebeziumModes, DebeziumOptions
from tidesink.ddl.catalog import TableDefinitions
from tidesink.events import ChangeEvent, DdlEvent, Event, Message, Op, Value
from tidesink.schema_registry import MemorySchemaRegistry

# Names that Avro cannot hold are changed in the schema: the columns of one table in each database.
_ADJUSTED: Final = {"col_with_space": "col with space", "__": "日本", "_1st": "1st"}
_MODE_NAMES: Final = {one.name: one.name.replace("_", ".") for one in fields(DebeziumModes)}


@dataclass(frozen=True)
class Capture:
    """All records of one connector, topic by topic."""

    path: Path

    @property
    def name(self) -> str:
        """The connector's name."""
        return self.path.stem

    @property
    def is_postgres(self) -> bool:
        """Whether it read Postgres, else MariaDB."""
        return self.connector["connector.class"].endswith("PostgresConnector")

    @property
    def is_unwrapped(self) -> bool:
        """Whether ExtractNewRecordState flattened its records, which leaves no envelope."""
        return any(value.endswith("ExtractNewRecordState") for value in self.connector.values())

    @property
    def is_avro(self) -> bool:
        """Whether its converter wrote Avro."""
        return self.connector["value.converter"].endswith("AvroConverter")

    @property
    def carries_types(self) -> bool:
        """Whether its records have a schema."""
        return self.is_avro or self.connector["value.converter.schemas.enable"] == "true"

    @cached_property
    def connector(self) -> dict[str, str]:
        """The connector's properties."""
        found: dict[str, str] = json.loads((self.path.parent / "connectors.json").read_text())[self.name]
        return found

    @property
    def modes(self) -> DebeziumModes:
        """Its handling modes, as a person reads them off its properties."""
        given: dict[str, Any] = {
            name: self.connector[key] for name, key in _MODE_NAMES.items() if key in self.connector
        }
        if self.connector.get("value.converter.decimal.format") == "NUMERIC":
            given["decimal_format"] = "numeric"
        if self.is_postgres:
            given.setdefault("time_precision_mode", "adaptive")
        return DebeziumModes(**given)

    @property
    def settings(self) -> dict[str, Any]:
        """What a user of this connector would write under ``source.debezium``."""
        modes = {
            one.name.replace("_", "-"): getattr(self.modes, one.name)
            for one in fields(DebeziumModes)
            if getattr(self.modes, one.name) != one.default
        }
        if not self.carries_types:
            # A table that was renamed is in no DDL, and no definition has it.
            modes["untyped-columns"] = "text"
        return modes

    @property
    def messages(self) -> Iterator[Message]:
        """Its records, topic by topic, each in Kafka's order."""
        with self.path.open(encoding="utf-8") as lines:
            for raw in map(json.loads, lines):
                headers = tuple((name, base64.b64decode(value)) for name, value in raw["headers"])
                key, value = (unbase64(raw[part]) for part in ("key_b64", "value_b64"))
                yield Message(
                    raw["topic"], raw["partition"], raw["offset"], key, value, raw["timestamp"], headers
                )

    def codec(self) -> Codec:
        """The codec as a user of this connector would open it."""
        options = DebeziumOptions(debezium=self.modes)
        if not self.is_avro:
            return open_codec("debezium-json", options=options, definitions=self.definitions())
        answers = json.loads((self.path.parent / "avro_schemas.json").read_text(encoding="utf-8"))
        schemas = {int(schema_id): answer["schema"] for schema_id, answer in answers.items()}
        return open_codec("debezium-avro", options=options, registry=MemorySchemaRegistry(schemas))

    def definitions(self) -> TableDefinitions | None:
        """What a user of this connector would have to declare, if anything."""
        # Plain JSON carries no types. MariaDB's come by its DDL topic. Postgres has none: they are declared.
        if self.is_postgres and not self.carries_types:
            return postgres_definitions(decimals_are_doubles=self.modes.decimal_handling_mode == "double")
        # With bigint.unsigned.handling.mode long only a declaration tells that -1 is 2^64-1.
        unsigned = self.modes.bigint_unsigned_handling_mode != "long"
        return None if self.is_postgres or unsigned or not self.is_unwrapped else self.ddl_definitions()

    def ddl_definitions(self) -> TableDefinitions:
        """The tables as the connector's schema-change topic leaves them."""
        definitions = TableDefinitions()
        for event in self.events(open_codec("debezium-json")):
            if isinstance(event, DdlEvent):
                definitions.apply(event.query, event.table.schema)
        return definitions

    def events(self, codec: Codec | None = None) -> Iterator[Event]:
        """The events of all its records."""
        codec = codec or self.codec()
        for message in self.messages:
            yield from codec.decode(message)

    def final_state(self) -> dict[str, list[dict[str, str | None]]]:
        """The rows each captured table ended with, as the database's client printed them."""
        folder = self.path.parent / "final_state"
        kind = "postgres" if self.is_postgres else "mariadb"
        found = {path.name.split(".", 1)[1].rpartition(".")[0]: path for path in folder.glob(f"{kind}.*")}
        listed = self.connector.get("table.include.list")
        tables = found if listed is None else {name.split(".", 1)[1] for name in listed.split(",")}
        read = _csv_rows if self.is_postgres else _tsv_rows
        return {name: list(read(path)) for name, path in found.items() if name in tables}

    def column_name(self, name: str) -> str:
        """A column's name at the source."""
        return _ADJUSTED.get(name, name) if self.is_avro else name


def find_captures(root: Path) -> list[Capture]:
    """The captures under ``root``, by name."""
    paths = sorted((root / "debezium").glob("*.jsonl"))
    return [Capture(path) for path in paths]


def _csv_rows(path: Path) -> Iterator[dict[str, str | None]]:
    # psql writes NULL as nothing and '' as "", which Python's reader does not tell apart.
    with path.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            yield {name: value or None for name, value in row.items()}


_ESCAPES: Final = {"\\\\": "\\", "\\n": "\n", "\\t": "\t", "\\0": "\0"}


def _tsv_rows(path: Path) -> Iterator[dict[str, str | None]]:
    # An empty table has no line at all, not even of names.
    lines = [line.split("\t") for line in path.read_text(encoding="utf-8").split("\n") if line]
    names = lines[0] if lines else []
    for row in lines[1:]:
        yield {
            name: None if text == "NULL" else _unescaped(text) for name, text in zip(names, row, strict=True)
        }


def _unescaped(text: str) -> str:
    out, index = "", 0
    while index < len(text):
        pair = text[index : index + 2]
        out += _ESCAPES.get(pair, text[index])
        index += 2 if pair in _ESCAPES else 1
    return out


@dataclass
class Replayed:
    """One table after its events: rows by key, or all rows where it has none."""

    rows: dict[tuple[Value, ...], dict[str, Any]] = field(default_factory=dict)
    keyless: list[dict[str, Any]] = field(default_factory=list)
    defaults: dict[str, str | None] = field(default_factory=dict)

    @property
    def all_rows(self) -> list[dict[str, Any]]:
        """Every row; a column added later has the default it was added with."""
        rows = [*self.rows.values(), *self.keyless]
        return [{**self.defaults, **row} for row in rows]

    def apply(self, event: ChangeEvent) -> None:
        """What one event does: the reduction in Kafka's order, one event at a time."""
        if event.op is Op.TRUNCATE:
            self.rows.clear()
            self.keyless.clear()
            return
        if event.after is not None and event.schema is not None:
            self.defaults = {c.name: c.default for c in event.schema.columns if c.default is not None}
        if event.key is None:
            self._apply_keyless(event)
        elif event.op is Op.DELETE:
            self.rows.pop(tuple(event.key.values()), None)
        else:
            self._put(event, tuple(event.key.values()))

    def _put(self, event: ChangeEvent, key: tuple[Value, ...]) -> None:
        assert event.after is not None
        stored = self.rows.get(key, {})
        kept = {name: stored[name] for name in unsent_columns(event) if name in stored}
        self.rows[key] = {**event.after, **kept}

    def _apply_keyless(self, event: ChangeEvent) -> None:
        if event.before is not None:
            self.keyless.remove(dict(event.before))
        if event.after is not None:
            self.keyless.append(dict(event.after))


def replay(capture: Capture) -> dict[str, Replayed]:
    """The tables after every event of a capture, by name.

    A renamed table's rows stay on the topic of its old name; they are moved as its DDL says.
    """
    tables: dict[str, Replayed] = {}
    renamed: list[tuple[str, str]] = []
    for event in capture.events():
        if isinstance(event, ChangeEvent):
            tables.setdefault(event.table.name, Replayed()).apply(event)
        if isinstance(event, DdlEvent) and event.query.startswith("RENAME TABLE "):
            old, _, new = event.query.removeprefix("RENAME TABLE ").partition(" TO ")
            renamed.append((old, new))
    for old, new in renamed:
        tables.setdefault(new, Replayed()).rows.update(tables.pop(old, Replayed()).rows)
    return tables
