"""``tidesink encode``: decoded lines back to the records they came from."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Annotated

import orjson
import typer

from tidesink.change import Message
from tidesink.cli import sources
from tidesink.cli.capture import capture_line, json_lines
from tidesink.cli.codec_options import Given, with_codec_options
from tidesink.cli.encoders import EncodeLine, line_encoder
from tidesink.cli.human import record_line
from tidesink.cli.line_members import Line, line_bytes, position_of
from tidesink.cli.output import Output, OutputFormat, warn
from tidesink.codecs.base import EncodedRecord
from tidesink.errors import ConfigError, TidesinkError

# TiCDC's default terminator where several canal-json objects share a value (tiflow c7b2588).
_TERMINATOR = b"\r\n"


@with_codec_options
def encode(
    *,
    given: Given,
    file: sources.Input = "-",
    protocol: sources.ProtocolName = None,
    schemas: sources.Schemas = None,
    schema_registry: sources.RegistryUrl = None,
    registry_file: sources.RegistryFile = None,
    table_definition: sources.Definitions = None,
    register: Annotated[
        bool, typer.Option("--register", help="Register schemas for lines without schema_id.")
    ] = False,
    config: sources.ConfigFile = None,
    output: Output = OutputFormat.JSON,
) -> None:
    """Turn decoded lines back into records: the inverse of decode -o json.

    Reads JSON Lines, writes capture lines. A line of type error gives its bytes as they were.
    """
    found = sources.setting(
        protocol=protocol,
        given=given,
        schemas=schemas,
        schema_registry=schema_registry,
        registry_file=registry_file,
        definitions=table_definition,
        config=config,
    )
    name = file or "-"
    unsent = 0
    write = _writer(output)
    for message in joined(encoded(name, line_encoder(found, register=register))):
        if message is None:
            unsent += 1
        else:
            write(message)
    sys.stdout.flush()
    if unsent:
        warn(f"{unsent} lines have no record: {found.protocol} sends nothing for them under these options")


def encoded(name: str, encode_line: EncodeLine) -> Iterator[tuple[Line, EncodedRecord | None]]:
    """Each line of a file with its record.

    Raises:
        ConfigError: a line is none that ``decode -o json`` prints; the message has its number.
        EncodeError: a line cannot be encoded; nothing after it is.
    """
    for number, line in json_lines(name):
        try:
            record = given_bytes(line) if line.get("type") == "error" else encode_line(line)
        except ConfigError as error:
            raise ConfigError(f"{name}, line {number}: {error.message}") from error
        except TidesinkError as error:
            raise error.with_context(line=number) from error
        yield line, record


def given_bytes(line: Line) -> EncodedRecord:
    """The bytes that an error line carries.

    Raises:
        ConfigError: it carries none, or what is no base64, or it has no position.
    """
    if "key_b64" not in line or "value_b64" not in line:
        raise ConfigError("an error line needs key_b64 and value_b64")
    position_of(line)
    return EncodedRecord(*(line_bytes(name, line[name]) for name in ("key_b64", "value_b64")))


def joined(records: Iterator[tuple[Line, EncodedRecord | None]]) -> Iterator[Message | None]:
    """One message a record: events that shared a record (index 1, 2, …) are put into one again."""
    waiting: Message | None = None
    for line, record in records:
        topic, partition, offset, index = position_of(line)[:4]
        found = None if record is None else Message(topic, partition, offset, record.key, record.value)
        if waiting and found and index and _same_record(waiting, found):
            waiting = replace(waiting, value=_terminated(waiting.value) + _terminated(found.value))
            continue
        if waiting is not None:
            yield waiting
        waiting = found
        if found is None:
            yield None
    if waiting is not None:
        yield waiting


def _terminated(value: bytes | None) -> bytes:
    return b"" if value is None else value.removesuffix(_TERMINATOR) + _TERMINATOR


def _same_record(one: Message, other: Message) -> bool:
    return (one.topic, one.partition, one.offset) == (other.topic, other.partition, other.offset)


def _writer(output: OutputFormat) -> Callable[[Message], None]:
    stream = sys.stdout.buffer

    def write_json(message: Message) -> None:
        stream.write(orjson.dumps(capture_line(message)) + b"\n")

    def write_text(message: Message) -> None:
        stream.write(record_line(message).encode("utf-8") + b"\n")

    return write_json if output is OutputFormat.JSON else write_text
