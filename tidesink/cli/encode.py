"""``tidesink encode``: decoded lines back to the records they came from.

A flat-avro line that carries schema ids is written with those very schemas, and so under the options they
were built with. The width of BIT, which no schema says, is in the line's extension. A canal-json line shows
the TiDB extension by its ``commit_ts``, full types by ``extension.mysqlType``, and compression by
``extension.compression``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, Final, NamedTuple, cast, get_args

import orjson
import typer

from tidesink.cli import sources, terminal
from tidesink.cli.decode import record_line
from tidesink.cli.json_lines import (
    Line,
    capture_line,
    event_of,
    json_lines,
    line_bytes,
    position_of,
    table_of,
)
from tidesink.cli.sources import Setting, with_setting
from tidesink.cli.terminal import Output, OutputFormat, error_block, warn
from tidesink.codecs.base import CodecOptions, EncodedRecord
from tidesink.codecs.canal_json.codec import CanalJsonCodec
from tidesink.codecs.canal_json.schema import RowShapes
from tidesink.codecs.compression import Compression
from tidesink.codecs.flat_avro.codec import FlatAvroCodec
from tidesink.codecs.open import CODECS, open_codec
from tidesink.ddl.catalog import TableDefinitions
from tidesink.ddl.history import row_moment
from tidesink.errors import ConfigError, DecodeError, EncodeError, TidesinkError
from tidesink.events import ChangeEvent, DdlEvent, Message, TableSchema, WatermarkEvent

# TiCDC's default terminator where several canal-json objects share a value (tiflow c7b2588).
_TERMINATOR = b"\r\n"
# Refusals that are shown one by one; a capture may hold a million lines of one kind.
_MOST_REPORTED: Final = 20


class Encoded(NamedTuple):
    """A line and what it gave: a record, None where the protocol sends nothing, or why it cannot."""

    number: int
    line: Line
    record: EncodedRecord | EncodeError | None


@with_setting
def encode(
    *,
    found: Setting,
    file: sources.Input = "-",
    register: Annotated[
        bool, typer.Option("--register", help="Register schemas for lines without schema_id.")
    ] = False,
    output: Output = OutputFormat.JSON,
) -> None:
    """Turn decoded lines back into records: the inverse of decode -o json.

    It reads JSON Lines and writes capture lines. A line of type error gives its bytes unchanged. The exit
    code is 1 if a line cannot be written: stderr has its number and the reason; the others are written.
    """
    name = file or "-"
    unsent = refused = 0
    write = _writer(output)
    for message in joined(encoded(name, line_encoder(found, register=register))):
        if isinstance(message, EncodeError):
            refused += 1
            _show_refusal(message, refused)
        elif message is None:
            unsent += 1
        else:
            write(message)
    sys.stdout.flush()
    if unsent:
        warn(f"{unsent} lines have no record: {found.protocol} sends nothing for them under these options")
    if refused:
        warn(f"lines that cannot be written as {found.protocol}: {refused}; the others were written")
        raise typer.Exit(terminal.FAILED)


def _show_refusal(error: EncodeError, count: int) -> None:
    if count <= _MOST_REPORTED:
        sys.stderr.write(error_block(error))
    elif count == _MOST_REPORTED + 1:
        sys.stderr.write(f"more lines cannot be written: the first {_MOST_REPORTED} were shown\n")


def encoded(name: str, encode_line: EncodeLine) -> Iterator[Encoded]:
    """Each line of a file with its record, or why it has none.

    Raises:
        ConfigError: a line is none that ``decode -o json`` prints; the message has its number.
        RegistryError: the registry does not answer, or refuses access, so that no line can be checked.
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
        place, before = position_of(one.line), position_of(shared[-1].line) if shared else None
        if before is not None and not (place.index > 0 and before[:3] == place[:3]):
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
        "another line of the same record cannot be written, and a record is written whole or not at all",
        topic=position.topic,
        partition=position.partition,
        offset=position.offset,
        line=one.number,
    )


def _terminated(value: bytes | None) -> bytes:
    return b"" if value is None else value.removesuffix(_TERMINATOR) + _TERMINATOR


def _writer(output: OutputFormat) -> Callable[[Message], None]:
    stream = sys.stdout.buffer

    def write_json(message: Message) -> None:
        stream.write(orjson.dumps(capture_line(message)) + b"\n")

    def write_text(message: Message) -> None:
        stream.write(record_line(message).encode("utf-8") + b"\n")

    return write_json if output is OutputFormat.JSON else write_text


EncodeLine = Callable[[Line], EncodedRecord | None]


def line_encoder(setting: Setting, *, register: bool) -> EncodeLine:
    """What turns a decoded line of the setting's protocol into its record.

    It gives None where the protocol sends nothing for the line. ``register`` lets it register the
    schemas of lines that carry no ids.

    Raises:
        ConfigError: no line of this protocol carries ids, and ``register`` is False.
    """
    if setting.protocol == "canal-json":
        return CanalJsonLines(setting.options, setting.definitions, setting.declared).encode
    if setting.protocol == "debezium-avro" and not register:
        raise ConfigError(
            f"{setting.protocol} registers the schemas that --table-definition makes: give --register"
        )
    return SchemaLines(setting, register=register).encode


class SchemaLines:
    """Encodes lines whose columns have the types of the schema they name (flat-avro), or of a definition."""

    def __init__(self, setting: Setting, *, register: bool) -> None:
        self._definitions = setting.definitions
        self._register = register
        self._codec = open_codec(setting.protocol, registry=setting.registry, options=setting.options)
        # A topic that holds watermarks was written with the extension, and Avro's DDL with both options.
        sending = replace(setting.options, enable_tidb_extension=True, avro_enable_watermark=True)
        self._control = open_codec(setting.protocol, registry=setting.registry, options=sending)
        # Without a registry DDL is sent with the extension or without, which only the option says.
        in_avro = CODECS[setting.protocol].registry
        self._sent = (WatermarkEvent, DdlEvent) if in_avro else (WatermarkEvent,)
        self._schemas: dict[tuple[int, tuple[str, ...]], TableSchema] = {}

    def encode(self, line: Line) -> EncodedRecord | None:
        """The record of one line.

        Raises:
            ConfigError: the line is none that ``decode -o json`` prints.
            EncodeError: the line does not fit its schema, has none to be written with, or cannot be written.
            RegistryError: a schema cannot be read or registered.
        """
        event = event_of(line, self._schema_of)
        codec, topic = self._codec, event.position.topic
        if isinstance(event, self._sent):
            return self._control.encode(event, topic=topic)
        if isinstance(codec, FlatAvroCodec) and isinstance(event, ChangeEvent):
            if event.schema_id is not None and event.schema_id != (None, None):
                return codec.encode_with_ids(event)
            if not self._register:
                raise EncodeError(
                    "the line has no schema_id: give --register to register the schema that "
                    "--table-definition makes",
                    table=str(event.table),
                )
        return codec.encode(event, topic=topic)

    def _schema_of(self, line: Line) -> TableSchema:
        if not isinstance(self._codec, FlatAvroCodec):
            family = self._codec.name.partition("-")[0].capitalize()
            return _defined(self._definitions, line, reported=f"a {family} line has none")
        ids = line.get("schema_id") or {}
        schema_id = ids.get("value") if ids.get("value") is not None else ids.get("key")
        if schema_id is None:
            return _defined(self._definitions, line)
        keys = tuple(line.get("key") or ())
        known = self._schemas.get((schema_id, keys))
        if known is None:
            try:
                known = self._codec.schema_of(schema_id, keys=keys)
            except DecodeError as error:
                raise EncodeError(error.message, schema_id=schema_id) from error
            self._schemas[schema_id, keys] = known
        return known


class CanalJsonLines:
    """Encodes lines to canal-json."""

    def __init__(
        self, options: CodecOptions, definitions: TableDefinitions, declared: Mapping[str, Any]
    ) -> None:
        self._options = options
        self._declared = declared
        self._definitions = definitions
        self._shapes = RowShapes(definitions, None)
        self._codecs: dict[CodecOptions, CanalJsonCodec] = {}

    def encode(self, line: Line) -> EncodedRecord | None:
        """The record of one line.

        Raises:
            ConfigError: the line is none that ``decode -o json`` prints.
            EncodeError: canal-json cannot carry the line.
        """
        event = event_of(line, self._schema_of)
        return self._codec(line).encode(event, topic=event.position.topic)

    def _codec(self, line: Line) -> CanalJsonCodec:
        seen: dict[str, Any] = {"enable_tidb_extension": line.get("commit_ts") is not None}
        extension = line.get("extension") or {}
        types = extension.get("mysqlType")
        seen["output_row_key"] = "rowkey" in (extension.get("_tidb") or {})
        seen["large_message_handle_compression"] = _compression(extension)
        if types:
            seen["content_compatible"] = any("(" in str(word) for word in types.values())
        options = replace(
            self._options, **{name: value for name, value in seen.items() if name not in self._declared}
        )
        codec = self._codecs.get(options)
        if codec is None:
            codec = self._codecs[options] = CanalJsonCodec(options=options, definitions=self._definitions)
        return codec

    def _schema_of(self, line: Line) -> TableSchema:
        table, extension = table_of(line), line.get("extension") or {}
        types = extension.get("mysqlType")
        if types is None and self._definitions.get(table) is None:
            return _defined(self._definitions, line)
        definition = self._definitions.get(table)
        primary = (
            [column.name for column in definition.primary_key] if definition else list(line.get("key") or ())
        )
        row = {**(line.get("before") or {}), **(line.get("after") or {})}
        return self._shapes.find(
            table.schema,
            table.name,
            row=dict.fromkeys(row),
            mysql_type=types or {},
            pk_names=extension.get("pkNames", primary),
            commit_ts=row_moment(line.get("commit_ts"), extension.get("es")),
        ).schema


def _compression(extension: Mapping[str, Any]) -> Compression:
    kind = extension.get("compression", "none")
    if kind not in get_args(Compression):
        raise ConfigError(f"extension.compression must be {' or '.join(get_args(Compression))}")
    return cast("Compression", kind)


_REPORTED = "the line has no schema_id and no extension.mysqlType, and no DDL came before it"


def _defined(definitions: TableDefinitions, line: Line, *, reported: str = _REPORTED) -> TableSchema:
    table = table_of(line)
    schema = definitions.get(table)
    if schema is None:
        raise EncodeError(
            f"the column types are unknown: {reported}; give --table-definition FILE",
            table=str(table),
        )
    return schema
