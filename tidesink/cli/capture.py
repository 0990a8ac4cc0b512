"""Capture files: Kafka records as JSON Lines, and schemas beside them.

``{"topic", "partition", "offset", "timestamp", "headers", "key_b64", "value_b64"}`` a line; further
members are ignored. Files may be gzipped. ``{"id", "schema"}`` a line for schemas.
"""

from __future__ import annotations

import gzip
import io
import json
import sys
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import IO, Any, NamedTuple
from uuid import UUID

import orjson

from tidesink.errors import ConfigError
from tidesink.events import Message

_GZIP_MAGIC = b"\x1f\x8b"
_SCHEMA_LINES = (
    'JSON Lines, one schema a line: {"id": 1, "schema": …}, its id an integer (or Glue\'s UUID); '
    "tidesink registry export writes such a file"
)


@contextmanager
def open_input(name: str) -> Iterator[IO[bytes]]:
    """A file, or stdin for ``-``; gzip is seen by its first bytes.

    Raises:
        ConfigError: the file cannot be opened.
    """
    if name == "-":
        yield _unpacked(sys.stdin.buffer)
        return
    try:
        file = open(name, "rb")  # noqa: PTH123, SIM115 (closed below)
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}") from error
    with file:
        yield _unpacked(file)


def _unpacked(stream: IO[bytes]) -> IO[bytes]:
    buffered = stream if hasattr(stream, "peek") else io.BufferedReader(stream)  # type: ignore[type-var]
    if buffered.peek(2)[:2] == _GZIP_MAGIC:
        return gzip.GzipFile(fileobj=buffered)  # type: ignore[return-value]
    return buffered


def json_lines(name: str, *, option: str = "", form: str = "") -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSON Lines file with their line numbers; empty lines are skipped.

    ``option`` named the file, and ``form`` is what its lines should be: what a message says of a wrong one.

    Raises:
        ConfigError: a line is no JSON object, or the file cannot be read.
    """
    with open_input(name) as stream:
        number = 0
        try:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield number, _object(f"{option} {name}".strip(), number, line, form)
        except (OSError, EOFError, zlib.error) as error:
            raise ConfigError(f"{name} cannot be read after line {number}: {error}") from error


def _object(name: str, number: int, line: bytes, form: str) -> dict[str, Any]:
    remedy = f"; give {form}" if form else ""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{name}, line {number} is no JSON: {error}{remedy}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{name}, line {number} is no JSON object{remedy}")
    return value


def read_capture(name: str) -> Iterator[Message]:
    """The records of a capture file.

    Raises:
        ConfigError: a line is no record; the message has its number.
    """
    for number, line in json_lines(name):
        try:
            message = message_of(line)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{name}, line {number} is no Kafka record: {_why(error)}") from error
        yield message


def _why(error: Exception) -> str:
    return f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)


def message_of(line: dict[str, Any]) -> Message:
    """One capture line as a record. Raises KeyError, TypeError or ValueError for a wrong one."""
    return Message(
        topic=_typed(line, "topic", str),
        partition=_typed(line, "partition", int),
        offset=_typed(line, "offset", int),
        key=bytes_of("key_b64", line["key_b64"]),
        value=bytes_of("value_b64", line["value_b64"]),
        timestamp=line.get("timestamp"),
        headers=tuple((str(name), bytes_of("headers", value)) for name, value in line.get("headers") or ()),
    )


def _typed(line: dict[str, Any], name: str, kind: type) -> Any:
    value = line[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{name} is no {'text' if kind is str else 'integer'}")
    return value


def bytes_of(name: str, text: Any) -> bytes | None:
    """Base64 text as bytes; null stays null. Raises ValueError, which names the member, for anything else."""
    if text is None:
        return None
    try:
        return b64decode(text, validate=True)
    except (ValueError, TypeError) as error:  # characters outside ASCII are no base64.Error
        raise ValueError(f"{name} is no base64") from error


def base64_text(data: bytes | None) -> str | None:
    """Bytes as base64 text; null stays null."""
    return None if data is None else b64encode(data).decode("ascii")


def capture_line(message: Message) -> dict[str, Any]:
    """A record as one line of a capture file."""
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
    """The schemas of a file: by a registry's id, and by the UUID of an AWS Glue schema version."""

    name: str
    by_id: dict[int, str]
    by_uuid: dict[UUID, str]


def read_schemas(name: str) -> SchemaFile:
    """The schema texts of a schemas file; a text is kept as it stands.

    Raises:
        ConfigError: a line has no ``id`` and ``schema``, or one id has two schemas.
    """
    found = SchemaFile(PurePath(name).name, {}, {})
    for number, line in json_lines(name, option="--schemas", form=_SCHEMA_LINES):
        schema_id, schema = _schema_id(line.get("id")), line.get("schema")
        if schema_id is None or not isinstance(schema, str | dict | list):
            raise ConfigError(
                f"--schemas {name}, line {number} is no schema with its id; give {_SCHEMA_LINES}"
            )
        text = (
            schema
            if isinstance(schema, str)
            else json.dumps(schema, separators=(",", ":"), ensure_ascii=False)
        )
        held: dict[Any, str] = found.by_id if isinstance(schema_id, int) else found.by_uuid
        if held.setdefault(schema_id, text) != text:
            raise ConfigError(
                f"--schemas {name}, line {number}: schema id {schema_id} is there with another schema"
            )
    return found


def _schema_id(value: Any) -> int | UUID | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        return UUID(value) if isinstance(value, str) else None
    except ValueError:
        return None
