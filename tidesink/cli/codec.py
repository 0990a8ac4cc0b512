"""``tidesink decode`` and ``encode``: decode Kafka records to events, and encode decoded lines to records.

As text, an event is a head line (kind, table, location in Kafka, commit time) followed by a line per column;
a changed column shows its old and new value. If the records were written with other producer options than the
user declared, ``decode`` warns, and decodes them as they were written.

``encode`` encodes a flat-avro line with the schemas of the line's schema ids. These schemas also determine
the producer options. The line's ``extension`` holds what a schema lacks: the width of BIT columns; for
canal-json the full column types (``mysqlType``); for JSON protocols the record's ``compression``. A
canal-json line with a ``commit_ts`` is encoded with the TiDB extension unless the user sets that option.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, Final, NamedTuple, cast, get_args

import orjson
import typer
from rich.markup import escape, render

import tidesink.codecs
from tidesink.cli import sources, terminal
from tidesink.cli.json_lines import (
    Line,
    capture_line,
    error_json,
    event_json,
    event_of,
    json_lines,
    line_bytes,
    position_of,
    table_of,
)
from tidesink.cli.sources import Setting, with_setting
from tidesink.cli.status import commit_time
from tidesink.cli.terminal import Output, OutputFormat, console, error_block, warn
from tidesink.codecs.base import Codec, CodecOptions, EncodedRecord
from tidesink.codecs.canal_json.codec import CanalJsonCodec
from tidesink.codecs.canal_json.envelope import CanalJsonSchema
from tidesink.codecs.canal_json.schema import RowShapes
from tidesink.codecs.compression import Compression, compression_of
from tidesink.codecs.flat_avro.codec import FlatAvroCodec
from tidesink.codecs.open import CODECS, open_codec
from tidesink.codecs.options import CanalJsonOptions
from tidesink.ddl.catalog import TableDefinitions
from tidesink.ddl.history import row_moment
from tidesink.errors import (
    ConfigError,
    DecodeError,
    EncodeError,
    RegistryError,
    SchemaNotFoundError,
    TidesinkError,
)
from tidesink.events import ChangeEvent, DdlEvent, Event, Message, TableSchema, WatermarkEvent
from tidesink.schema_registry import MemorySchemaRegistry


@with_setting
def decode(
    *,
    found: Setting,
    file: sources.Input = None,
    topic: Annotated[str | None, typer.Option(help="A topic to read, instead of --input.")] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", help="Start of --topic: earliest (the default), latest, an offset, or @ms since 1970."
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option("--max", help="Stop after this many records.")] = None,
    brokers: Annotated[str | None, typer.Option(help="Kafka bootstrap servers, for --topic.")] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Also check each canal-json message against the published JSON Schema."
        ),
    ] = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show the events in Kafka records.

    The records come from a topic, a capture file or stdin. A record that cannot be decoded is shown with the
    reason and its bytes, and the exit code is 1.
    """
    codec = found.open_codec()
    checked = _strict(found) if strict else None
    messages = sources.records(file=file, topic=topic, start=start, limit=limit, brokers=brokers, found=found)
    logging.getLogger(tidesink.codecs.__name__).addHandler(_REPORTED)
    failed = 0
    write = _writer(output, at_once=start == "latest" or sys.stdout.isatty())
    observed = Observed(found)
    for message in messages:
        for line in decoded_lines(codec, message, observed, checked=checked):
            failed += line["type"] == "error"
            write(line)
    sys.stdout.flush()
    for text in observed.warnings():
        warn(text)
    if failed:
        raise typer.Exit(terminal.FAILED)


def _strict(setting: sources.Setting) -> CanalJsonSchema:
    if setting.protocol != "canal-json":
        raise ConfigError(
            f"--strict only applies to canal-json. {setting.protocol} records are always decoded with their "
            "own schema. Remove --strict."
        )
    return CanalJsonSchema(CanalJsonOptions.of(setting.options))


class _Reported(logging.Handler):
    """Prints a codec's warnings, such as a wrong checksum, on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one codec warning on stderr."""
        warn(record.getMessage())


_REPORTED = _Reported()


def decoded_lines(
    codec: Codec, message: Message, observed: Observed, *, checked: CanalJsonSchema | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the output lines of one record: a line per event, or one line of type error if decoding fails.

    ``checked``: JSON Schema of canal-json against which the record is validated first, or None.

    Raises:
        RegistryError: the registry does not answer or refuses access.
    """
    try:
        if checked is not None:
            checked.check(message)
        events = codec.decode(message)
        lines = [event_json(event) for event in events]
    except (DecodeError, SchemaNotFoundError) as error:
        yield error_json(error, message)
        return
    for event in events:
        observed.see(event)
    yield from _with_compression(lines, message.value) if _may_compress(codec) else lines


def _may_compress(codec: Codec) -> bool:
    return "large_message_handle_compression" in CODECS[codec.name].reads


def _with_compression(lines: list[dict[str, Any]], value: bytes | None) -> list[dict[str, Any]]:
    """Add a record's compression to its decoded lines, so that ``encode`` compresses it in the same way."""
    kind = compression_of(value or b"")
    if kind != "none":
        for line in lines:
            line["extension"] = {**line.get("extension", {}), "compression": kind}
    return lines


def _writer(output: OutputFormat, *, at_once: bool) -> Callable[[dict[str, Any]], None]:
    """Return a function that prints a decoded line. ``at_once``: flush stdout after each JSON line."""
    if output is OutputFormat.TEXT:
        return _text_writer()
    stream = sys.stdout.buffer

    def write(line: dict[str, Any]) -> None:
        stream.write(orjson.dumps(line) + b"\n")
        if at_once:
            stream.flush()

    return write


def _text_writer() -> Callable[[dict[str, Any]], None]:
    screen = console()

    def show(line: dict[str, Any]) -> None:
        for text in human_lines(line):
            screen.print(text)

    def write(line: dict[str, Any]) -> None:
        for text in human_lines(line):
            sys.stdout.write(render(text).plain + "\n")

    return show if screen.is_terminal else write


_COLOURS = {
    "insert": "green",
    "upsert": "green",
    "update": "yellow",
    "delete": "red",
    "truncate": "red",
    "error": "bold red",
    "ddl": "cyan",
    "watermark": "dim",
    "message": "dim",
}
_LONGEST = 200


def human_lines(line: dict[str, Any]) -> Iterator[str]:
    """Yield the text lines that show a decoded line (an event or an error), in rich's markup."""
    yield _head(line)
    if line["type"] == "error":
        yield f"  {escape(line['error'])}: {escape(line['reason'])}"
        yield f"  key {_size(line['key_b64'])}, value {_size(line['value_b64'])} (bytes: -o json)"
    elif line["type"] == "ddl":
        yield f"  {escape(line['query'])}"
    elif line["type"] == "message":
        yield f"  {escape(line['kind'])}" + (f" {_shown(line['prefix'])}" if line.get("prefix") else "")
        if line.get("content") is not None:
            yield f"  {_shown(line['content'])}"
    else:
        yield from _columns(line)
    for name, value in (line.get("extension") or {}).items():
        yield f"  [dim]{escape(name)} = {_shown(value)}[/dim]"


def _head(line: dict[str, Any]) -> str:
    kind, position = line["type"], line["position"]
    table = line.get("table")
    name = " " + ".".join(part for part in table.values() if part) if table else ""
    record_position = f"{position['topic']}[{position['partition']}]@{position['offset']}"
    moment = commit_time(line.get("commit_ts"))
    when = f"  {moment} UTC (commit_ts {line['commit_ts']})" if moment else ""
    colour = _COLOURS.get(kind, "default")
    return f"[{colour}]{kind}[/{colour}]{escape(name)}  [dim]{escape(record_position)}{when}[/dim]"


def _columns(line: dict[str, Any]) -> Iterator[str]:
    before, after, key = (line.get(part) or {} for part in ("before", "after", "key"))
    names = [*after, *(name for name in before if name not in after)]
    width = max((len(name) for name in names), default=0)
    for name in names:
        label = escape(name.ljust(width))
        label = f"[bold]{label}[/bold]" if name in key else label
        yield f"  {label}  {_change(name, before, after)}"


def _change(name: str, before: dict[str, Any], after: dict[str, Any]) -> str:
    if name not in after:
        return _shown(before[name])
    if name in before and before[name] != after[name]:
        return f"{_shown(before[name])} -> {_shown(after[name])}"
    return _shown(after[name])


def _shown(value: Any) -> str:
    if value is None:
        return "NULL"
    text = f"base64 {value['base64']}" if isinstance(value, dict) and "base64" in value else str(value)
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"
    return escape("".join(char if char.isprintable() else repr(char)[1:-1] for char in text))


def _size(text: str | None) -> str:
    return "null" if text is None else f"{len(text) * 3 // 4 - text[-2:].count('=')} bytes"


def record_line(message: Message) -> str:
    """Format a record as one line of text: its location in Kafka, and its key and value in hex digits."""
    parts = [f"{message.topic}[{message.partition}]@{message.offset}"]
    for name, data in (("key", message.key), ("value", message.value)):
        parts.append(f"{name} {'null' if data is None else data.hex()}")
    return "  ".join(parts)


# The column type and Avro type of a field show the producer option that wrote it (tiflow c7b2588).
_MODES = {
    ("DECIMAL", "bytes"): ("avro_decimal_handling_mode", "precise"),
    ("DECIMAL", "string"): ("avro_decimal_handling_mode", "string"),
    ("BIGINT UNSIGNED", "long"): ("avro_bigint_unsigned_handling_mode", "long"),
    ("BIGINT UNSIGNED", "string"): ("avro_bigint_unsigned_handling_mode", "string"),
}
_MARKS = {"enable_tidb_extension": "_tidb_commit_ts", "avro_include_before_value": "_ticdc_before"}


class Observed:
    """Compares the producer options that the user declared with those that decoded events show."""

    def __init__(self, setting: Setting) -> None:
        self._declared = setting.declared
        self._is_debezium = setting.protocol.startswith("debezium")
        self._registry = setting.registry
        self._schemas: set[int] = set()
        self._seen: dict[str, set[Any]] = {}

    def see(self, event: Event) -> None:
        """Record the producer options that one decoded event shows."""
        if not self._declared or not isinstance(event, ChangeEvent) or self._is_debezium:
            return
        if event.schema_id is None:
            self._note("enable_tidb_extension", event.commit_ts is not None)
        elif event.schema_id.value is not None and event.schema_id.value not in self._schemas:
            self._schemas.add(event.schema_id.value)
            self._see_schema(event.schema_id.value)

    def _see_schema(self, schema_id: int) -> None:
        if self._registry is None:
            return
        try:
            record = json.loads(self._registry.schema_by_id(schema_id))
        except (RegistryError, ValueError):
            return  # the decoder has reported this error already
        fields = {field["name"]: field for field in record.get("fields", ())}
        for option, mark in _MARKS.items():
            self._note(option, mark in fields)
        for field in fields.values():
            mode = _MODES.get(_spelling(field))
            if mode is not None:
                self._note(*mode)

    def _note(self, option: str, value: Any) -> None:
        self._seen.setdefault(option, set()).add(value)

    def warnings(self) -> Iterator[str]:
        """Yield one warning for each declared option that differs from the decoded events."""
        for option, declared in self._declared.items():
            others = self._seen.get(option, set()) - {declared}
            if others:
                name = option.replace("_", "-")
                actual = _word(others.pop())
                yield (
                    f"{name} is declared as {_word(declared)}, but records were written with {actual}. "
                    "These records are decoded as they were written"
                )


def _spelling(field: dict[str, Any]) -> tuple[str, str]:
    """Return the ``tidb_type`` and the Avro type of a field of an Avro schema.

    For a union, returns those of the branch that has ``connect.parameters``. Without them both are empty.
    """
    branches = field["type"] if isinstance(field["type"], list) else [field["type"]]
    for branch in branches:
        if isinstance(branch, dict) and "connect.parameters" in branch:
            return str(branch["connect.parameters"].get("tidb_type")), str(branch.get("type"))
    return "", ""


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# TiCDC's default terminator between canal-json objects that share a value (tiflow c7b2588).
_TERMINATOR = b"\r\n"
# Number of encoding errors that are shown one by one; a file may have a million of one kind.
_MOST_REPORTED: Final = 20


class Encoded(NamedTuple):
    """Result of encoding one decoded line.

    number: Line number in the input.
    record: The Kafka record, or the encoding error. None if the protocol sends no record for the line.
    """

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
    """Turn lines of decode -o json back into Kafka records.

    The command reads JSON Lines and writes a capture line per record. The bytes in a line of type error are
    written unchanged. If a line cannot be encoded, its line number and the reason are printed on stderr, the
    other lines are written, and the exit code is 1.
    """
    name = file or "-"
    unsent = refused = 0
    write = _record_writer(output)
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
        warn(
            f"{unsent} lines were skipped: with these options {found.protocol} has no record for such events"
        )
    if refused:
        warn(f"{refused} lines cannot be written as {found.protocol}. All other lines were written")
        raise typer.Exit(terminal.FAILED)


def _show_refusal(error: EncodeError, count: int) -> None:
    if count <= _MOST_REPORTED:
        sys.stderr.write(error_block(error))
    elif count == _MOST_REPORTED + 1:
        sys.stderr.write(f"more lines cannot be written. Only the first {_MOST_REPORTED} errors are shown\n")


def encoded(name: str, encode_line: EncodeLine) -> Iterator[Encoded]:
    """Encode a file of decoded lines. Yields each line with its Kafka record or its encoding error.

    Raises:
        ConfigError: a line was not printed by ``decode -o json``; the message has its line number.
        RegistryError: the registry does not answer or refuses access.
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
    """Return the Kafka record whose bytes are stored in a line of type error.

    Raises:
        ConfigError: the line has no bytes, its bytes are not valid base64, or it has no position.
    """
    if "key_b64" not in line or "value_b64" not in line:
        raise ConfigError(
            "a line of type error needs key_b64 and value_b64. `tidesink decode -o json` writes both."
        )
    position_of(line)
    return EncodedRecord(*(line_bytes(name, line[name]) for name in ("key_b64", "value_b64")))


def joined(lines: Iterable[Encoded]) -> Iterator[Message | EncodeError | None]:
    """Yield a message per Kafka record. Consecutive lines of the same record are joined into one message.

    If one line of a record cannot be encoded, the record is not written, and each of its lines yields an
    error. A line for which the protocol sends no record yields None.
    """
    shared: list[Encoded] = []
    for entry in lines:
        position, before = position_of(entry.line), position_of(shared[-1].line) if shared else None
        if before is not None and not (position.index > 0 and before[:3] == position[:3]):
            yield from _whole(shared)
            shared = []
        shared.append(entry)
    if shared:
        yield from _whole(shared)


def _whole(shared: list[Encoded]) -> Iterator[Message | EncodeError | None]:
    if any(isinstance(entry.record, EncodeError) for entry in shared):
        yield from map(_refusal, shared)
        return
    message: Message | None = None
    for entry in shared:
        if not isinstance(entry.record, EncodedRecord):
            yield None
        elif message is None:
            topic, partition, offset = position_of(entry.line)[:3]
            message = Message(topic, partition, offset, entry.record.key, entry.record.value)
        else:
            message = replace(message, value=_terminated(message.value) + _terminated(entry.record.value))
    if message is not None:
        yield message


def _refusal(entry: Encoded) -> EncodeError:
    if isinstance(entry.record, EncodeError):
        return entry.record
    position = position_of(entry.line)
    return EncodeError(
        "The line was not written, because another line of the same Kafka record cannot be encoded. Correct "
        "the other line.",
        topic=position.topic,
        partition=position.partition,
        offset=position.offset,
        line=entry.number,
    )


def _terminated(value: bytes | None) -> bytes:
    return b"" if value is None else value.removesuffix(_TERMINATOR) + _TERMINATOR


def _record_writer(output: OutputFormat) -> Callable[[Message], None]:
    stream = sys.stdout.buffer

    def write_json(message: Message) -> None:
        stream.write(orjson.dumps(capture_line(message)) + b"\n")

    def write_text(message: Message) -> None:
        stream.write(record_line(message).encode("utf-8") + b"\n")

    return write_json if output is OutputFormat.JSON else write_text


EncodeLine = Callable[[Line], EncodedRecord | None]


def line_encoder(setting: Setting, *, register: bool) -> EncodeLine:
    """Return a function that encodes a decoded line to a Kafka record of ``setting.protocol``.

    The function returns None if the protocol sends no record for the line. ``register``: True if the
    function may register schemas (from table definitions) for lines without schema ids.

    Raises:
        ConfigError: the protocol is debezium-avro, whose lines have no schema ids, and ``register`` is False.
    """
    if setting.protocol == "canal-json":
        options = CanalJsonOptions.of(setting.options)
        return CanalJsonLines(options, setting.definitions, setting.declared).encode
    if setting.protocol == "debezium-avro" and not register:
        raise ConfigError(
            f"{setting.protocol} lines have no schema ids, so the schemas of --table-definition must be "
            "registered. Give --register to register them in the registry."
        )
    return SchemaLines(setting, register=register).encode


class _Codecs(NamedTuple):
    """The codec of some lines.

    ``trial``: the same codec with a registry in memory, or None without a registry. It encodes a line first,
    so that no schema is registered for a line that cannot be encoded.
    """

    codec: Codec
    trial: Codec | None


class SchemaLines:
    """Encodes decoded lines with the column types of a registered schema (flat-avro) or table definition."""

    def __init__(self, setting: Setting, *, register: bool) -> None:
        self._setting = setting
        self._definitions = setting.definitions
        self._register = register
        self._codec = open_codec(setting.protocol, registry=setting.registry, options=setting.options)
        self._codecs: dict[CodecOptions, _Codecs] = {}
        # For protocols without a registry, only the option decides whether DDL has the TiDB extension.
        self._in_avro = CODECS[setting.protocol].registry
        self._sent = (WatermarkEvent, DdlEvent) if self._in_avro else (WatermarkEvent,)
        self._schemas: dict[tuple[int, tuple[str, ...]], TableSchema] = {}

    def encode(self, line: Line) -> EncodedRecord | None:
        """Return the Kafka record of one decoded line, or None if the protocol sends no record for it.

        Raises:
            ConfigError: the line was not printed by ``decode -o json``.
            EncodeError: the line does not fit its schema, has no schema, or the protocol cannot express it.
            RegistryError: a schema cannot be read or registered.
        """
        event = event_of(line, self._schema_of)
        codec, topic = self._codec, event.position.topic
        options = CODECS[self._setting.protocol].options.of(self._setting.options)
        if not isinstance(codec, FlatAvroCodec) or isinstance(event, self._sent):
            options = self._options_of(options, line, control=isinstance(event, self._sent))
        elif isinstance(event, ChangeEvent):
            if event.schema_id is not None and event.schema_id != (None, None):
                return codec.encode_with_ids(event)
            if not self._register:
                raise EncodeError(
                    "The line has no schema_id. Give --register to register the schema of "
                    "--table-definition.",
                    table=str(event.table),
                )
        codecs = self._codecs_with(options)
        if codecs.trial is not None:
            codecs.trial.encode(event, topic=topic)
        return codecs.codec.encode(event, topic=topic)

    def _options_of(self, options: CodecOptions, line: Line, *, control: bool) -> CodecOptions:
        """Return the options with which a line is encoded.

        If the user gave no option for the compression, this is the compression that the line names.
        ``control``: True for watermarks, and for DDL in Avro, which need TiCDC's extension options.
        """
        if "large_message_handle_compression" not in self._setting.declared:
            kind = _compression(line.get("extension") or {})
            options = options.updated({"large_message_handle_compression": kind})
        if control:
            # TiCDC only sends watermarks with the TiDB extension, and DDL in Avro with both options.
            options = options.updated({"enable_tidb_extension": True, "avro_enable_watermark": True})
        return options

    def _codecs_with(self, options: CodecOptions) -> _Codecs:
        if options not in self._codecs:
            protocol = self._setting.protocol
            codec = open_codec(protocol, registry=self._setting.registry, options=options)
            trial = (
                open_codec(protocol, registry=MemorySchemaRegistry(), options=options)
                if self._in_avro
                else None
            )
            self._codecs[options] = _Codecs(codec, trial)
        return self._codecs[options]

    def _schema_of(self, line: Line) -> TableSchema:
        if not isinstance(self._codec, FlatAvroCodec):
            family = self._codec.name.partition("-")[0].capitalize()
            return _defined(self._definitions, line, reported=f"{family} lines contain no column types")
        ids = line.get("schema_id") or {}
        schema_id = ids.get("value") if ids.get("value") is not None else ids.get("key")
        if schema_id is None:
            return _defined(self._definitions, line)
        keys = tuple(line.get("key") or ())
        schema = self._schemas.get((schema_id, keys))
        if schema is None:
            try:
                schema = self._codec.schema_of(schema_id, keys=keys)
            except DecodeError as error:
                raise EncodeError(error.message, schema_id=schema_id) from error
            self._schemas[schema_id, keys] = schema
        return schema


class CanalJsonLines:
    """Encodes decoded lines to canal-json records."""

    def __init__(
        self, options: CanalJsonOptions, definitions: TableDefinitions, declared: Mapping[str, Any]
    ) -> None:
        self._options = options
        self._declared = declared
        self._definitions = definitions
        self._shapes = RowShapes(definitions, None)
        self._codecs: dict[CanalJsonOptions, CanalJsonCodec] = {}

    def encode(self, line: Line) -> EncodedRecord | None:
        """Return the canal-json record of one decoded line, or None if canal-json has no record for it.

        Raises:
            ConfigError: the line was not printed by ``decode -o json``.
            EncodeError: canal-json cannot express the line.
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
        raise ConfigError(f"extension.compression must be {' or '.join(get_args(Compression))}.")
    return cast("Compression", kind)


_NO_TYPES = "the line has no schema_id and no extension.mysqlType, and no earlier DDL line defines its table"


def _defined(definitions: TableDefinitions, line: Line, *, reported: str = _NO_TYPES) -> TableSchema:
    table = table_of(line)
    schema = definitions.get(table)
    if schema is None:
        raise EncodeError(
            f"The column types are unknown: {reported}. Give --table-definition FILE.",
            table=str(table),
        )
    return schema
