"""Files of JSON Lines: captured Kafka records with their schemas, and events.

- Capture file, one record per line: ``{"topic", "partition", "offset", "timestamp", "headers", "key_b64",
  "value_b64"}``. Further members are ignored. The file may be gzipped.
- Schemas file, with the schemas of captured records: ``{"id", "schema"}`` per line.
- Events: the output of ``tidesink decode -o json``, which ``tidesink encode`` reads.

In events, integers are exact (unsigned 64-bit too). FLOAT is the shortest number that identifies its 32
bits. Values without a JSON number (Postgres) are the text NaN, Infinity or -Infinity. DECIMAL is text at
its scale; binary is ``{"base64": …}``; dates, times, JSON and VECTOR are the text that the record contains.

The functions that read decoded lines raise ConfigError for a line that ``decode -o json`` never writes; the
error names the wrong member. Their caller supplies the column types, which the lines do not contain.
"""

from __future__ import annotations

import gzip
import io
import json
import struct
import sys
import zlib
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal, InvalidOperation
from pathlib import PurePath
from typing import IO, Any, Final, NamedTuple
from uuid import UUID

import orjson

from tidesink.errors import ConfigError, EncodeError, TidesinkError, shown
from tidesink.events import (
    ChangeEvent,
    ColumnType,
    DdlEvent,
    Event,
    Message,
    MessageEvent,
    Op,
    Position,
    Row,
    SchemaIds,
    TableId,
    TableSchema,
    Value,
    WatermarkEvent,
)
from tidesink.typemap.table import row_of
from tidesink.typemap.values import json_value

_GZIP_MAGIC = b"\x1f\x8b"
_SCHEMA_LINES = (
    'JSON Lines with one schema per line: {"id": 1, "schema": …}. An id is an integer, or the UUID of an AWS '
    "Glue schema version. `tidesink registry export` writes such a file."
)


@contextmanager
def open_input(name: str) -> Iterator[IO[bytes]]:
    """Open a file, or stdin for ``-``. Gzip is recognised by its first bytes.

    Raises:
        ConfigError: the file cannot be opened.
    """
    if name == "-":
        yield _unpacked(sys.stdin.buffer)
        return
    try:
        file = open(name, "rb")  # noqa: PTH123, SIM115 (closed below)
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}.") from error
    with file:
        yield _unpacked(file)


def _unpacked(stream: IO[bytes]) -> IO[bytes]:
    buffered = stream if hasattr(stream, "peek") else io.BufferedReader(stream)  # type: ignore[type-var]
    if buffered.peek(2)[:2] == _GZIP_MAGIC:
        return gzip.GzipFile(fileobj=buffered)  # type: ignore[return-value]
    return buffered


def json_lines(name: str, *, option: str = "", form: str = "") -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a JSON Lines file with their line numbers. Empty lines are skipped.

    ``option``: CLI option that named the file, for error messages. ``form``: expected form of a line, for
    error messages.

    Raises:
        ConfigError: a line is not a JSON object, or the file cannot be read.
    """
    with open_input(name) as stream:
        number = 0
        try:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield number, _object(f"{option} {name}".strip(), number, line, form)
        except (OSError, EOFError, zlib.error) as error:
            raise ConfigError(f"{name} cannot be read after line {number}: {error}.") from error


def _object(name: str, number: int, line: bytes, form: str) -> dict[str, Any]:
    remedy = f". Give {form}" if form else ""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{name}, line {number} is not JSON: {error}{remedy}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{name}, line {number} is not a JSON object{remedy}")
    return value


def read_capture(name: str) -> Iterator[Message]:
    """Yield the records of a capture file.

    Raises:
        ConfigError: a line is not a Kafka record; the message has its line number.
    """
    for number, line in json_lines(name):
        try:
            message = message_of(line)
        except (ConfigError, TypeError, ValueError) as error:
            raise ConfigError(f"{name}, line {number} is not a Kafka record: {error}") from error
        yield message


def message_of(line: dict[str, Any]) -> Message:
    """Return the Kafka record of a capture line. A wrong line raises ConfigError, TypeError or ValueError."""
    for name in ("key_b64", "value_b64"):
        if name not in line:
            raise ConfigError(f"{name} is missing")
    return Message(
        topic=member(line, "topic", str),
        partition=member(line, "partition", int),
        offset=member(line, "offset", int),
        key=line_bytes("key_b64", line["key_b64"]),
        value=line_bytes("value_b64", line["value_b64"]),
        timestamp=line.get("timestamp"),
        headers=tuple((str(name), line_bytes("headers", value)) for name, value in line.get("headers") or ()),
    )


def base64_text(data: bytes | None) -> str | None:
    """Return bytes as base64 text; None stays None."""
    return None if data is None else b64encode(data).decode("ascii")


def capture_line(message: Message) -> dict[str, Any]:
    """Return a Kafka record as one line of a capture file."""
    return {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp,
        "headers": [[name, base64_text(value)] for name, value in message.headers],
        "key_b64": base64_text(message.key),
        "value_b64": base64_text(message.value),
    }


class SchemaFile(NamedTuple):
    """Schema texts of a schemas file, by schema id, or by the UUID of an AWS Glue schema version."""

    name: str
    by_id: dict[int, str]
    by_uuid: dict[UUID, str]


def read_schemas(name: str) -> SchemaFile:
    """Read the schema texts of a schemas file, unchanged.

    Raises:
        ConfigError: a line has no ``id`` and ``schema``, or one id has two schemas.
    """
    schemas = SchemaFile(PurePath(name).name, {}, {})
    for number, line in json_lines(name, option="--schemas", form=_SCHEMA_LINES):
        schema_id, schema = _registered_id(line.get("id")), line.get("schema")
        if schema_id is None or not isinstance(schema, str | dict | list):
            raise ConfigError(
                f"--schemas {name}, line {number} is not a schema with its id. Give {_SCHEMA_LINES}"
            )
        text = (
            schema
            if isinstance(schema, str)
            else json.dumps(schema, separators=(",", ":"), ensure_ascii=False)
        )
        held: dict[Any, str] = schemas.by_id if isinstance(schema_id, int) else schemas.by_uuid
        if held.setdefault(schema_id, text) != text:
            raise ConfigError(
                f"--schemas {name}, line {number}: another line has schema id {schema_id} with another "
                "schema."
            )
    return schemas


def _registered_id(value: Any) -> int | UUID | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        return UUID(value) if isinstance(value, str) else None
    except ValueError:
        return None


_INT64_LEAST, _UINT64_MOST = -(2**63), 2**64 - 1


def event_json(event: Event) -> dict[str, Any]:
    """Return an event as a JSON object, the form that ``decode -o json`` prints."""
    line = _members(event)
    if not isinstance(event, WatermarkEvent) and event.extension:
        line["extension"] = {name: _plain(value) for name, value in event.extension.items()}
    line["position"] = _position(event.position)
    return line


def _members(event: Event) -> dict[str, Any]:
    if isinstance(event, ChangeEvent):
        return {
            "type": event.op.value,
            "table": event.table._asdict(),
            "key": _row(event.key, event.schema),
            "before": _row(event.before, event.schema),
            "after": _row(event.after, event.schema),
            "commit_ts": event.commit_ts,
            "schema_id": event.schema_id._asdict() if event.schema_id is not None else None,
        }
    if isinstance(event, DdlEvent):
        return {
            "type": "ddl",
            "table": event.table._asdict(),
            "query": event.query,
            "kind": event.kind,
            "commit_ts": event.commit_ts,
        }
    if isinstance(event, WatermarkEvent):
        return {"type": "watermark", "commit_ts": event.commit_ts}
    line: dict[str, Any] = {"type": "message", "kind": event.kind}
    if event.prefix is not None or event.content is not None:
        line |= {"prefix": event.prefix, "content": _plain(event.content)}
    return line


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return {"base64": base64_text(value)}
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, int) and not _INT64_LEAST <= value <= _UINT64_MOST:
        return str(value)  # text as for a DECIMAL: many JSON readers would round the number
    return format(value, "f") if isinstance(value, Decimal) else value


def _position(position: Position) -> dict[str, Any]:
    topic, partition, offset, index = position[:4]
    return {"topic": topic, "partition": partition, "offset": offset, "index": index}


def _row(row: Row | None, schema: TableSchema | None) -> dict[str, Any] | None:
    if row is None:
        return None
    return {name: _value(name, value, schema) for name, value in row.items()}


def _value(name: str, value: Value, schema: TableSchema | None) -> Any:
    column = schema.by_name.get(name) if schema and isinstance(value, float) else None
    return json_value(value, column.type if column else None)


_IN_POSITION = frozenset({"topic", "partition", "offset"})


def _reason(error: TidesinkError) -> str:
    """Return an error's message, preceded by its column and schema id if the error has them."""
    rest = [f"{name} {value}" for name, value in error.context.items() if name not in _IN_POSITION]
    return f"{', '.join(rest)}: {error.message}" if rest else error.message


def error_json(error: TidesinkError, message: Message) -> dict[str, Any]:
    """Return the JSON line of a record that cannot be decoded: its error, the remedy, and its bytes."""
    return {
        "type": "error",
        "error": type(error).__name__,
        "reason": _reason(error),
        "remedy": error.remedy,
        "position": _position(Position(message.topic, message.partition, message.offset)),
        "key_b64": base64_text(message.key),
        "value_b64": base64_text(message.value),
    }


Line = Mapping[str, Any]

_KINDS: Final[dict[type, str]] = {str: "a text", int: "an integer", dict: "an object", list: "a list"}
_UINT64_END: Final = 2**64


def member(line: Line, name: str, kind: type, *, inside: str = "") -> Any:
    """Return a required member of a JSON line, of type ``kind`` (``str``, ``int``, ``dict`` or ``list``).

    ``inside``: path of the object that holds the member, for error messages.

    Raises:
        ConfigError: the member is missing or of another type.
    """
    if name not in line:
        raise ConfigError(f"{inside}{name} is missing")
    value = line[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ConfigError(f"{inside}{name} must be {_KINDS[kind]}, not {shown(value)}")
    return value


def optional(line: Line, name: str, kind: type, *, inside: str = "") -> Any:
    """Return an optional member of a JSON line, or None if it is null or absent. See ``member``."""
    return None if line.get(name) is None else member(line, name, kind, inside=inside)


def position_of(line: Line) -> Position:
    """Return the position in Kafka (topic, partition, offset, index) that a decoded line names.

    Raises:
        ConfigError: the position is missing, or one of its members is negative or of the wrong type.
    """
    if line.get("position") is None:
        raise ConfigError("position is missing. Give an object with topic, partition and offset")
    position = member(line, "position", dict)
    index = optional(position, "index", int, inside="position.")
    topic = member(position, "topic", str, inside="position.")
    partition, offset = (member(position, name, int, inside="position.") for name in ("partition", "offset"))
    if min(partition, offset, index or 0) < 0:
        raise ConfigError("position: partition, offset and index must not be negative")
    return Position(topic, partition, offset, index or 0)


def table_of(line: Line) -> TableId:
    """Return the table that a decoded line names. Raises ConfigError if it names no table."""
    table = member(line, "table", dict)
    unknown = sorted(set(table) - {"schema", "name"})
    if unknown:
        raise ConfigError(f"table.{unknown[0]} is unknown. Remove it: a table only has schema and name")
    return TableId(member(table, "schema", str, inside="table."), member(table, "name", str, inside="table."))


def commit_ts_of(line: Line) -> int | None:
    """Return a line's commit_ts, or None. Raises ConfigError if it is not an unsigned 64-bit integer."""
    commit_ts: int | None = optional(line, "commit_ts", int)
    if commit_ts is not None and not 0 <= commit_ts < _UINT64_END:
        raise ConfigError(f"commit_ts must be an unsigned 64-bit integer, not {commit_ts}")
    return commit_ts


def schema_ids_of(line: Line) -> SchemaIds | None:
    """Return the schema ids in a line's ``schema_id``, or None. Raises ConfigError for a wrong form."""
    ids = optional(line, "schema_id", dict)
    if not ids:
        return None
    key, value = (optional(ids, name, int, inside="schema_id.") for name in ("key", "value"))
    return SchemaIds(key, value)


def extension_of(line: Line) -> dict[str, Any] | None:
    """Return a line's ``extension`` with base64 values decoded. Raises ConfigError for a wrong form."""
    extension = optional(line, "extension", dict)
    if not extension:
        return None
    for name, type_name in (optional(extension, "mysqlType", dict, inside="extension.") or {}).items():
        if not isinstance(type_name, str):
            raise ConfigError(f"extension.mysqlType.{name} must be a text, not {shown(type_name)}")
    for name in optional(extension, "pkNames", list, inside="extension.") or ():
        if not isinstance(name, str):
            raise ConfigError(f"extension.pkNames must hold texts, not {shown(name)}")
    return {
        name: line_bytes(f"extension.{name}", value["base64"])
        if isinstance(value, dict) and set(value) == {"base64"}
        else value
        for name, value in extension.items()
    }


def line_bytes(name: str, text: Any) -> bytes | None:
    """Decode base64 text; null becomes None. Raises ConfigError with the member's name for anything else."""
    if text is None:
        return None
    try:
        return b64decode(text, validate=True)
    except (ValueError, TypeError) as error:  # characters outside ASCII raise no base64.Error
        raise ConfigError(f"{name} is not base64") from error


SchemaOf = Callable[[Line], TableSchema]

_OPS = {op.value: op for op in Op}


def event_of(line: Line, schema_of: SchemaOf) -> Event:
    """Return the event of one decoded line.

    Raises:
        ConfigError: the line was not printed by ``decode -o json``.
        EncodeError: a value does not fit its column's type, or the schema lacks a column of the line.
    """
    kind = member(line, "type", str)
    position = position_of(line)
    if kind == "watermark":
        member(line, "commit_ts", int)  # required here, optional in a row
        return WatermarkEvent(commit_ts_of(line) or 0, position)
    if kind == "ddl":
        query, word = member(line, "query", str), member(line, "kind", str)
        return DdlEvent(table_of(line), query, word, commit_ts_of(line), position, extension_of(line))
    if kind == "message":
        prefix, content = optional(line, "prefix", str), optional(line, "content", dict)
        data = None if content is None else line_bytes("content", content.get("base64"))
        return MessageEvent(member(line, "kind", str), prefix, data, position, extension_of(line))
    if kind not in _OPS:
        raise ConfigError(
            f"type {shown(kind)} is unknown. Known types are {', '.join(_OPS)}, ddl, watermark, message and "
            "error"
        )
    return _parsed_change(line, schema_of)


def _parsed_change(line: Line, schema_of: SchemaOf) -> ChangeEvent:
    # All members are checked before the schema is requested, because some of them identify the schema.
    table, ids, extension = table_of(line), schema_ids_of(line), extension_of(line)
    rows = {name: optional(line, name, dict) for name in ("key", "before", "after")}
    commit_ts, schema = commit_ts_of(line), schema_of(line)
    return ChangeEvent(
        op=_OPS[line["type"]],
        table=table,
        key=_parsed_row(rows["key"], schema),
        before=_parsed_row(rows["before"], schema),
        after=_parsed_row(rows["after"], schema),
        commit_ts=commit_ts,
        position=position_of(line),
        schema=schema,
        schema_id=ids,
        extension=extension,
    )


def _parsed_row(row: Mapping[str, Any] | None, schema: TableSchema) -> Row | None:
    if row is None:
        return None
    return {name: _typed(name, value, schema) for name, value in row.items()}


def _typed(name: str, value: Any, schema: TableSchema) -> Value:
    column = schema.by_name.get(name)
    if column is None:
        raise EncodeError(
            "The table's schema does not have this column. Remove the column from the line, or give a schema "
            "that has it.",
            table=str(schema.table),
            column=name,
        )
    if value is None:
        return None
    read = _READERS.get(row_of(column.type).reader, _as_is)
    try:
        return read(value, column.type)
    except (ValueError, TypeError, InvalidOperation, OverflowError, Base64Error) as error:
        raise EncodeError(
            f"{shown(value)} is not a valid {column.type.sql or column.type.name}.",
            table=str(schema.table),
            column=name,
        ) from error


def _as_is(value: Any, _type: ColumnType) -> Value:
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise TypeError
    return value


def _integer(value: Any, _type: ColumnType) -> Value:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError
    return value


_NO_JSON_NUMBERS = frozenset({"NaN", "Infinity", "-Infinity"})


def _float64(value: Any, _type: ColumnType) -> Value:
    if isinstance(value, str) and value in _NO_JSON_NUMBERS:
        return float(value)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError
    return float(value)


def _float32(value: Any, column_type: ColumnType) -> Value:
    (exact,) = struct.unpack("<f", struct.pack("<f", _float64(value, column_type)))
    return float(exact)


def _boolean(value: Any, _type: ColumnType) -> Value:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _decimal(value: Any, _type: ColumnType) -> Value:
    if not isinstance(value, str):
        raise TypeError
    return Decimal(value)


def _binary(value: Any, _type: ColumnType) -> Value:
    if not isinstance(value, dict) or set(value) != {"base64"}:
        raise TypeError
    return b64decode(value["base64"], validate=True)


_READERS: dict[str, Callable[[Any, ColumnType], Value]] = {
    "integer": _integer,
    "unsigned64": _integer,
    "bit": _integer,
    "float32": _float32,
    "float64": _float64,
    "decimal": _decimal,
    "binary": _binary,
    "boolean": _boolean,
}
