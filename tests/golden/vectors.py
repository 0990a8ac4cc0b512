"""Folders of golden vectors: what TiDB held, and what TiCDC wrote for it.

A folder holds ``events.jsonl`` (the row events), ``schemas.jsonl``, and ``<codec>.rows.jsonl`` and
``<codec>.control.jsonl`` for each codec; files that are not there count as empty. A workload folder holds
``configs.json``, ``schemas.jsonl`` and one ``<config>.jsonl.gz`` of messages for each configuration.
"""

from __future__ import annotations

import base64
import fnmatch
import gzip
import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from tidesink.codecs.base import Options
from tidesink.codecs.dispatch import TableFilter
from tidesink.ddl.catalog import parse_create_table
from tidesink.errors import ConfigError
from tidesink.events import ChangeEvent, Column, Message, Op, Position, Row, TableId, TableSchema, Value
from tidesink.typemap.mysql_types import parse_sql_type
from tidesink.typemap.table import row_of

Json = dict[str, Any]
POSITION = Position("golden", 0, 0)
# Options that only the new architecture has: their presence tells the producer of a record.
_NEW_ONLY = ("keyspace", "avro-include-before-value", "output-row-key")


@dataclass(frozen=True)
class Record:
    """One line of ``<codec>.rows.jsonl`` or ``<codec>.control.jsonl``; ``event`` is what TiDB held."""

    folder: str
    line: int
    raw: Json
    event: Json | None

    @property
    def name(self) -> str:
        """The case's name: folder, event and line; exclusions match against it."""
        what = self.raw.get("event") or f"{self.raw['case']}@{self.raw.get('seq')}"
        return " ".join([f"{self.folder}/{self.raw['codec']}/{what}:{self.line}", *self._tags()])

    def _tags(self) -> Iterator[str]:
        """Forms of message that an exclusion can name, whatever the case is called."""
        value = self.message.value or b""
        if '"_ticdc_before": value does not match its schema' in self.raw.get("error", ""):
            yield "+stale-before-name"
        if self.config.get("large-message-handle-compression", "none") != "none":
            yield "+compressed"
        if "claim_check_b64" in self.raw or "claim_check_file" in self.raw:
            yield "+claim-check"
        elif b'"onlyHandleKey":true' in value:
            yield "+handle-key-only"

    @property
    def config(self) -> Json:
        """The producer's resolved options under TiCDC's names."""
        found: Json = self.raw["config"]
        return found

    @property
    def time_zone(self) -> str:
        """The changefeed's zone, which the older records tell by their case alone."""
        named = "Asia/Shanghai" if "tz_shanghai" in self.raw["case"] else "UTC"
        return str(self.config.get("time-zone") or named)

    @property
    def producer(self) -> Literal["classic", "new"]:
        """Which TiCDC wrote the record."""
        return "new" if any(name in self.config for name in _NEW_ONLY) else "classic"

    @property
    def message(self) -> Message:
        """The Kafka record; its topic may be unknown, as with control events."""
        return Message(
            topic=self.raw.get("topic") or "golden",
            partition=0,
            offset=self.line,
            key=unbase64(self.raw["key_b64"]),
            value=unbase64(self.raw["value_b64"]),
        )

    def options_of(self, codec: type[Options]) -> Options:
        """The producer's options as those of our codec."""
        named = {key.replace("-", "_"): value for key, value in self.config.items()}
        return codec().updated(
            {
                **named,
                "time_zone": self.time_zone if "case" in self.raw else "UTC",
                "producer": self.producer,
                "namespace": self.config.get("keyspace") or self.config.get("namespace") or "default",
                "row_checksum": self.config.get("integrity-check-level") == "correctness",
            }
        )


@dataclass(frozen=True)
class VectorFolder:
    """One folder of cases, such as ``ticdc`` or ``ticdc-new``."""

    path: Path

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.path.name

    @cached_property
    def events(self) -> dict[str, Json]:
        """Row events by their name."""
        return {event["event"]: event for event in _lines(self.path / "events.jsonl")}

    @cached_property
    def schemas(self) -> dict[int, str]:
        """Schema texts by registry id."""
        return schema_texts(self.path)

    def rows(self, codec: str) -> list[Record]:
        """The row records of ``avro`` or ``canal-json``."""
        return self._records(f"{codec}.rows.jsonl")

    def control(self, codec: str) -> list[Record]:
        """The DDL and watermark records of ``avro`` or ``canal-json``."""
        return self._records(f"{codec}.control.jsonl")

    def _records(self, file: str) -> list[Record]:
        return [
            Record(self.name, line, raw, _selected(self.events.get(raw.get("event", "")), raw["config"]))
            for line, raw in enumerate(_lines(self.path / file), start=1)
        ]


def _selected(event: Json | None, config: Json) -> Json | None:
    """The event with the columns that the changefeed's column selectors let through."""
    rules = next((value for name, value in config.items() if "column-selector" in name), None)
    if event is None or not rules:
        return event
    patterns = _column_patterns(rules, event["table"])
    if patterns is None:
        return event

    def passed(raws: list[Json] | None) -> list[Json] | None:
        return raws and [raw for raw in raws if _passes(raw["name"], patterns)]

    images: Json = {name: passed(event[name]) for name in ("columns", "pre_columns") if name in event}
    if "rows" in event:
        rows = ({name: passed(row.get(name)) for name in ("columns", "pre_columns")} for row in event["rows"])
        images["rows"] = [{**was, **now} for was, now in zip(event["rows"], rows, strict=True)]
    return {**event, **images}


def _column_patterns(rules: Any, table: str) -> list[str] | None:
    """The column patterns of the first selector that fits a table; None where none does."""
    if isinstance(rules, str):
        return [part.strip() for part in rules.split(",")]
    schema, _, name = table.partition(".")
    for rule in rules:
        if isinstance(rule, str):
            return list(rules)
        if TableFilter.parse(rule["matcher"]).matches(TableId(schema, name)):
            return list(rule["columns"])
    return None


def _passes(column: str, patterns: list[str]) -> bool:
    """Whether a column filter of TiDB's lets a column through: the last pattern that fits it decides."""
    for pattern in reversed(patterns):
        if fnmatch.fnmatchcase(column.lower(), pattern.lower().removeprefix("!")):
            return not pattern.startswith("!")
    return False


@dataclass(frozen=True)
class Workload:
    """One configuration of a whole changefeed."""

    path: Path
    config_name: str
    config: Json

    @property
    def name(self) -> str:
        """Folder and configuration."""
        return f"{self.path.name}/{self.config_name}"

    def options_of(self, codec: type[Options]) -> Options:
        """The producer's options as those of our codec."""
        return Record(self.path.name, 0, {"config": self.config}, None).options_of(codec)

    @cached_property
    def schemas(self) -> dict[int, str]:
        """Schema texts by registry id."""
        return schema_texts(self.path)

    def messages(self) -> Iterator[Message]:
        """Every message in the producer's order."""
        with gzip.open(self.path / f"{self.config_name}.jsonl.gz", "rt", encoding="utf-8") as lines:
            for raw in map(json.loads, lines):
                key, value = unbase64(raw["key_b64"]), unbase64(raw["value_b64"])
                yield Message(raw["topic"], raw["partition"], raw["offset"], key, value, raw["timestamp"])


def find_folders(root: Path) -> list[VectorFolder]:
    """The folders of cases at ``root`` or right under it, by name."""
    paths = [root, *sorted(path for path in root.iterdir() if path.is_dir())]
    return [VectorFolder(path) for path in paths if (path / "events.jsonl").is_file()]


def find_workloads(root: Path, protocol: str) -> list[Workload]:
    """The workloads of one protocol at ``root`` or right under it."""
    found = []
    for path in [root, *sorted(path for path in root.iterdir() if path.is_dir())]:
        if (path / "configs.json").is_file():
            configs = json.loads((path / "configs.json").read_text(encoding="utf-8"))
            found += [Workload(path, name, config) for name, config in sorted(configs.items())]
    return [workload for workload in found if workload.config["protocol"] == protocol]


def schema_texts(path: Path) -> dict[int, str]:
    """Schema texts by id; a file may hold them as objects or as strings."""
    found = {}
    for line in _lines(path / "schemas.jsonl"):
        schema = line["schema"]
        found[line["id"]] = schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False)
    return found


def unbase64(text: str | None) -> bytes | None:
    """Bytes of a ``_b64`` member."""
    return None if text is None else base64.b64decode(text)


def _lines(path: Path) -> Iterable[Json]:
    if not path.is_file():
        return
    with path.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def columns_of(event: Json) -> list[Json]:
    """The fully described columns of a row event: the new row's, or a delete's old row."""
    found: list[Json] = event.get("columns") or event["pre_columns"]
    return found


def table_of(event: Json) -> TableId:
    """The table as the producer names it: after routing, where a route holds."""
    schema, _, name = (event.get("target_table") or event["table"]).partition(".")
    return TableId(schema, name)


def schema_of(event: Json) -> TableSchema:
    """The table's columns as TiDB knew them."""
    return TableSchema(table_of(event), tuple(_column(raw, event) for raw in columns_of(event)))


def _column(raw: Json, event: Json) -> Column:
    flags = raw.get("flags") or ()
    column_type = parse_sql_type(raw["type"])
    if raw.get("elems"):
        column_type = replace(column_type, members=tuple(raw["elems"]))
    if column_type.name == "decimal":
        column_type = replace(column_type, precision=raw["flen"], scale=raw["decimal"])
    if column_type.name == "bit":
        column_type = replace(column_type, length=raw["flen"])
    return Column(
        name=raw["name"],
        type=column_type,
        nullable="nullable" in flags,
        default=_default(raw, event, row_of(column_type).reader),
        handle=raw["is_key"],
        primary_key="primary_key" in flags,
        column_id=raw["id"],
        virtual="virtual" in flags,
    )


def _default(raw: Json, event: Json, reader: str) -> str | None:
    text: str | None = raw.get("default")
    if text is None or reader not in ("binary", "bit"):
        return text
    if reader == "bit" and "\ufffd" in text:  # JSON cannot hold the bytes: the statement can
        return _default_in_ddl(raw["name"], event["ddl"])
    return text.encode("utf-8").decode("latin-1")


def _default_in_ddl(column: str, statements: list[str]) -> str | None:
    for statement in statements:
        try:
            found = parse_create_table(statement).by_name.get(column)
        except ConfigError:
            continue
        if found is not None and found.default is not None:
            return found.default
    raise LookupError(f"no statement gives the default of {column}")


def typed_row(raws: list[Json], schema: TableSchema) -> dict[str, Value]:
    """A row as ``tidesink.events`` types it, from the texts TiDB answered."""
    return {raw["name"]: typed_value(raw, schema.by_name[raw["name"]]) for raw in raws}


def typed_value(raw: Json, column: Column) -> Value:
    """One value: told by the texts alone, sharing nothing with the readers under test."""
    text: str | None = raw["value"]
    if text is None:
        return None
    reader = row_of(column.type).reader
    members = column.type.members or ()
    if reader in ("integer", "unsigned64", "bit"):
        return int(text)
    if reader == "decimal":
        return Decimal(text)
    if reader in ("float32", "float64"):
        return struct.unpack("<f", struct.pack("<f", float(text)))[0] if reader == "float32" else float(text)
    if reader == "binary":
        return bytes.fromhex(raw.get("hex", ""))
    if reader == "enum":
        return members[int(text) - 1] if int(text) else ""
    if reader == "set":
        return ",".join(member for bit, member in enumerate(members) if int(text) >> bit & 1)
    return bytes.fromhex(raw["hex"]).decode("utf-8") if "hex" in raw else text


def before_of(event: Json, schema: TableSchema) -> dict[str, Value] | None:
    """The old row, or None for an insert."""
    return typed_row(event["pre_columns"], schema) if event.get("pre_columns") else None


def after_of(event: Json, schema: TableSchema) -> dict[str, Value] | None:
    """The new row, or None for a delete."""
    return typed_row(event["columns"], schema) if event.get("columns") else None


def change_of(event: Json, *, producer: str, extension: Mapping[str, object] | None = None) -> ChangeEvent:
    """The row change as an encoder is given it; its key is the one the producer puts into Kafka."""
    schema = schema_of(event)
    before, after = before_of(event, schema), after_of(event, schema)
    keys = schema.primary_key if producer == "new" else schema.handle_columns
    row: Row = after or before or {}
    return ChangeEvent(
        op=Op(event["op"]),
        table=schema.table,
        key={column.name: row[column.name] for column in keys} if keys else None,
        before=before,
        after=after,
        commit_ts=event["commit_ts"],
        position=POSITION,
        schema=schema,
        extension=extension,
    )
