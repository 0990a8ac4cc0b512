"""``tidesink encode``: decoded lines back to the records they came from."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Annotated, Final, NamedTuple

import orjson
import typer

from tidesink.cli import exits, sources
from tidesink.cli.capture import capture_line, json_lines
from tidesink.cli.codec_options import Given, with_codec_options
from tidesink.cli.encoders import EncodeLine, line_encoder
from tidesink.cli.failures import error_block
from tidesink.cli.human import record_line
from tidesink.cli.line_members import Line, line_bytes, position_of
from tidesink.cli.output import Output, OutputFormat, warn
from tidesink.codecs.base import EncodedRecord
from tidesink.errors import ConfigError, EncodeError, TidesinkError
from tidesink.events import Message

# TiCDC's default terminator where several canal-json objects share a value (tiflow c7b2588).
_TERMINATOR = b"\r\n"
# Refusals that are told one by one; a capture may hold a million lines of one kind.
_MOST_TOLD: Final = 20


class Encoded(NamedTuple):
    """A line and what it gave: a record, None where the protocol sends nothing, or why it cannot."""

    number: int
    line: Line
    record: EncodedRecord | EncodeError | None


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

    Reads JSON Lines, writes capture lines. A line of type error gives its bytes as they were. Exit code 1
    where some line cannot be written: stderr has its number and the reason, the others are written.
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
    unsent = refused = 0
    write = _writer(output)
    for message in joined(encoded(name, line_encoder(found, register=register))):
        if isinstance(message, EncodeError):
            refused += 1
            _tell(message, refused)
        elif message is None:
            unsent += 1
        else:
            write(message)
    sys.stdout.flush()
    if unsent:
        warn(f"{unsent} lines have no record: {found.protocol} sends nothing for them under these options")
    if refused:
        warn(f"lines that cannot be written as {found.protocol}: {refused}; the others were written")
        raise typer.Exit(exits.FAILED)


def _tell(error: EncodeError, count: int) -> None:
    if count <= _MOST_TOLD:
        sys.stderr.write(error_block(error))
    elif count == _MOST_TOLD + 1:
        sys.stderr.write(f"more lines cannot be written: the first {_MOST_TOLD} were told\n")


def encoded(name: str, encode_line: EncodeLine) -> Iterator[Encoded]:
    """Each line of a file with its record, or why it has none.

    Raises:
        ConfigError: a line is none that ``decode -o json`` prints; the message has its number.
        RegistryError: the registry does not answer, or refuses us, so that no line can be judged.
    """
    for number, line in json_lines(name):
        try:
            record = given_bytes(line) if line.get("type") == "error" else encode_line(line)
        except ConfigError as error:
            raise ConfigError(f"{name}, line {number}: {error.message}") from error
        except EncodeError as error:
            error.with_context(line=number)
            yield Encoded(number, line, error)
        except TidesinkError as error:
            raise error.with_context(line=number) from error
        else:
            yield Encoded(number, line, record)


def given_bytes(line: Line) -> EncodedRecord:
    """The bytes that an error line carries.

    Raises:
        ConfigError: it carries none, or what is no base64, or it has no position.
    """
    if "key_b64" not in line or "value_b64" not in line:
        raise ConfigError("an error line needs key_b64 and value_b64")
    position_of(line)
    return EncodedRecord(*(line_bytes(name, line[name]) for name in ("key_b64", "value_b64")))


def joined(lines: Iterable[Encoded]) -> Iterator[Message | EncodeError | None]:
    """One message a record: events that shared a record (index 1, 2, …) are put into one again.

    A record of which some line cannot be encoded is not written at all: each of its lines gives an error.
    """
    shared: list[Encoded] = []
    for one in lines:
        if shared and not _same_record(shared[-1].line, one.line):
            yield from _whole(shared)
            shared = []
        shared.append(one)
    if shared:
        yield from _whole(shared)


def _whole(shared: list[Encoded]) -> Iterator[Message | EncodeError | None]:
    if any(isinstance(one.record, EncodeError) for one in shared):
        yield from map(_refusal, shared)
        return
    message: Message | None = None
    for one in shared:
        if not isinstance(one.record, EncodedRecord):
            yield None
        elif message is None:
            topic, partition, offset = position_of(one.line)[:3]
            message = Message(topic, partition, offset, one.record.key, one.record.value)
        else:
            message = replace(message, value=_terminated(message.value) + _terminated(one.record.value))
    if message is not None:
        yield message


def _refusal(one: Encoded) -> EncodeError:
    if isinstance(one.record, EncodeError):
        return one.record
    position = position_of(one.line)
    return EncodeError(
        "another line of the same record cannot be written, and a record is written whole",
        topic=position.topic,
        partition=position.partition,
        offset=position.offset,
        line=one.number,
    )


def _terminated(value: bytes | None) -> bytes:
    return b"" if value is None else value.removesuffix(_TERMINATOR) + _TERMINATOR


def _same_record(one: Line, other: Line) -> bool:
    first, second = position_of(one), position_of(other)
    return second.index > 0 and first[:3] == second[:3]


def _writer(output: OutputFormat) -> Callable[[Message], None]:
    stream = sys.stdout.buffer

    def write_json(message: Message) -> None:
        stream.write(orjson.dumps(capture_line(message)) + b"\n")

    def write_text(message: Message) -> None:
        stream.write(record_line(message).encode("utf-8") + b"\n")

    return write_json if output is OutputFormat.JSON else write_text
